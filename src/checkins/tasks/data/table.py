"""A user's table: its client column, label column, and features with public ranges.

A feature is clipped to its range and scaled so that the range becomes [−1, 1]. A range is a public
constant, which must be chosen without looking at the clients' data. A range computed from the data
would reveal their extremes, and the certificate does not cover that.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from checkins import validate
from checkins.campaign.task import DataFile
from checkins.errors import InvalidValue
from checkins.tasks.data import table_file
from checkins.tasks.data.dataset import MOST_CLASSES, Dataset, in_holdout
from checkins.tasks.data.table_file import bad_cell

PURPOSE = "checkins table"
"""Prefix of a client's id in the hash that determines the public holdout."""


def describe(
    file: str | os.PathLike[str],
    *,
    client_column: str,
    label_column: str,
    features: Sequence[str] | None = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
) -> DataFile:
    """Return the description of a table for a campaign file, from column names and ranges.

    If ``features`` is None, the features are the columns in ``ranges``. If ``ranges`` is None too,
    an error lists the columns that need a range.
    """
    path = Path(file)
    given = dict(ranges or {})
    if features is None:
        others = (
            name for name in table_file.header(path) if name not in (client_column, label_column)
        )
        features = tuple(given or others)
    missing = [feature for feature in features if feature not in given]
    if missing:
        why = (
            f"must have the lowest and highest value of {', '.join(missing[:12])}"
            f"{', ...' if len(missing) > 12 else ''}: use public constants, not the data"
        )
        raise InvalidValue("ranges", sorted(given), why)
    unused = [name for name in given if name not in features]
    if unused:
        raise InvalidValue("ranges", unused[0], "is not among the features")
    ends = tuple((float(given[name][0]), float(given[name][1])) for name in features)
    return DataFile(str(path), client_column, label_column, tuple(features), ends)


def described(
    file: str | os.PathLike[str],
    *,
    client_column: str,
    label_column: str,
    like: str | DataFile,
    holdout: float = 0.0,
) -> tuple[DataFile, bool]:
    """Return the description of a table for a simulation, and whether ranges come from its data.

    If ``like`` is a table and all its features are columns of this table, its features and ranges
    are used. Otherwise all columns are features, with ranges from their lowest to their highest
    value. A real campaign must not use such ranges.
    """
    path = Path(file)
    names = table_file.header(path)
    if label_column == client_column:
        raise InvalidValue("label_column", label_column, "cannot be the client's column too")
    features = tuple(name for name in names if name not in (client_column, label_column))
    known: dict[str, tuple[float, float]] = {}
    if isinstance(like, DataFile) and set(like.features) <= set(features):
        features = like.features
        known = dict(zip(like.features, like.ranges, strict=True))
    if not features:
        raise InvalidValue(
            "data", str(path), "has no column other than the client's and the label's"
        )
    read_off = any(name not in known for name in features)
    if read_off:
        cells = table_file.read(path, client=client_column, label=label_column, features=features)
        for name, column in zip(features, cells.features.T, strict=True):
            low, high = float(column.min()), float(column.max())
            known.setdefault(name, (low, high) if low < high else (low - 1.0, low + 1.0))
    columns, ranges = (client_column, label_column), tuple(known[name] for name in features)
    classes = like.classes if isinstance(like, DataFile) else None
    return DataFile(str(path), *columns, features, ranges, classes, holdout), read_off


def load(
    source: DataFile,
    *,
    folder: str | os.PathLike[str] = ".",
    classes: int | None = None,
    holdout: float = 0.0,
) -> Dataset:
    """Read a table. A relative file name is relative to ``folder``.

    Clients are sorted by their ids as text, and their rows are in the order of the file.
    ``holdout`` is the share of clients in the public holdout, whom nothing protects; a hash of the
    id selects them (``dataset.in_holdout``). ``classes`` is a public constant. If it is None, the
    labels must be 0, 1, ... without gaps, and their number is assumed to be public.
    """
    path = Path(folder) / source.file
    cells = table_file.read(
        path, client=source.client_column, label=source.label_column, features=source.features
    )
    labels, classes = _labels(cells.labels, source.label_column, classes)
    ids, owner = np.unique(np.array(cells.clients, dtype=object), return_inverse=True)
    if len(ids) == 1:
        why = f"is {ids[0]!r} in every row: it must name the client of each row"
        raise InvalidValue("client_column", source.client_column, why)
    held = in_holdout(ids.tolist(), share=holdout, purpose=PURPOSE)
    if held.all():
        raise InvalidValue("holdout", holdout, f"leaves none of the {len(ids)} clients")
    features = scaled(cells.features, source.ranges)
    order = np.argsort(owner, kind="stable")
    mine = order[~held[owner[order]]]
    public = order[held[owner[order]]]
    if np.all(labels[mine] == labels[mine[0]]):
        raise InvalidValue(
            "holdout", holdout, f"leaves clients whose labels are all {labels[mine[0]]}"
        )
    rows = np.bincount(owner, minlength=len(ids))[~held]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(rows, dtype=np.int64)])
    held_rows = (features[public], labels[public])
    return Dataset(path.stem, features[mine], labels[mine], offsets, classes, *held_rows)


def scaled(
    values: NDArray[np.float64], ranges: Sequence[tuple[float, float]]
) -> NDArray[np.float32]:
    """Clip each column to its range and map the range onto [−1, 1].

    >>> scaled(np.array([[0.0], [25.0], [200.0]]), [(0.0, 100.0)]).ravel().tolist()
    [-1.0, -0.5, 1.0]
    """
    low, high = np.array(ranges, dtype=np.float64).T
    # Divide by a power of two, which is exact, so that no difference overflows or underflows.
    _, power = np.frexp(np.maximum(np.abs(low), np.abs(high)))
    inside = np.ldexp(np.clip(values, low, high), -power)
    low, high = np.ldexp(low, -power), np.ldexp(high, -power)
    return np.asarray(((inside - low) - (high - inside)) / (high - low), dtype=np.float32)


def _labels(
    raw: NDArray[np.float64], column: str, classes: int | None
) -> tuple[NDArray[np.int64], int]:
    if classes is not None:
        validate.count(most=MOST_CLASSES, classes=classes)
    whole = (raw == np.floor(raw)) & (raw >= 0) & (raw < MOST_CLASSES)
    if not whole.all():
        row = int(np.argmin(whole))
        raise bad_cell(
            column, row + 1, float(raw[row]), "is not a label: must be an integer 0, 1, 2, ..."
        )
    labels = raw.astype(np.int64)
    if classes is not None and not np.max(labels) < classes:
        row = int(np.argmax(labels >= classes))
        raise bad_cell(
            column, row + 1, int(labels[row]), f"is an unknown label: must be 0 to {classes - 1}"
        )
    present = np.unique(labels)
    if len(present) == 1:
        why = f"is {present[0]} in every row: with one class there is nothing to predict"
        raise InvalidValue("label_column", column, why)
    if classes is None:
        classes = len(present)
        if present[-1] != classes - 1:
            shown = ", ".join(map(str, present[:12].tolist())) + (", ..." if classes > 12 else "")
            why = f"holds the labels {shown}: recode them as 0 to {classes - 1}" + (
                ", or say how many classes there are" if present[0] == 0 else ""
            )
            raise InvalidValue("label_column", column, why)
    return labels, classes
