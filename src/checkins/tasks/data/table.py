"""A user's table, in a CSV or Parquet file: clients, labels, and features with public ranges.

A feature is clipped to its range and scaled so that the range becomes [−1, 1]. A range is a public
constant, which must be chosen without looking at the clients' data. A range computed from the data
would reveal their extremes, and the certificate does not cover that.

Errors name the column, the row (counted from 1, without the header) and the value. Reading CSV
needs only numpy, so that a device can read its own table. Parquet needs pyarrow.
"""

from __future__ import annotations

import csv
import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkins.campaign.task import DataFile
from checkins.errors import InvalidCell, InvalidData, InvalidValue
from checkins.tasks.data.dataset import MOST_CLASSES, Dataset, in_holdout
from checkins.validate import installed

PURPOSE = "checkins table"
"""Prefix of a client's id in the hash that determines the public holdout."""

CSV, PARQUET = ".csv", ".parquet"
_BLOCK = 65_536  # rows converted at a time, because text takes ten times the memory of numbers
_NAMED = 12  # largest number of columns or labels that an error lists
_SEPARATORS = {";": "; ", "\t": "tabs", "|": "| "}
_FILL_IN = "fill it in with a public constant or leave the row out"
_LEAVE_OUT = ", or leave the column out: list features in [task.data]"


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
        others = (name for name in header(path) if name not in (client_column, label_column))
        features = tuple(given or others)
    missing = [feature for feature in features if feature not in given]
    if missing:
        why = f"must have the lowest and highest value of {_listed(missing)}: use public constants"
        raise InvalidValue("ranges", sorted(given), f"{why}, not the data")
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
    names = header(path)
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
        cells = read(path, client=client_column, label=label_column, features=features)
        for name, column in zip(features, cells.features.T, strict=True):
            low, high = float(column.min()), float(column.max())
            known.setdefault(name, (low, high) if low < high else (low - 1.0, low + 1.0))
    columns, ranges = (client_column, label_column), tuple(known[name] for name in features)
    classes = like.classes if isinstance(like, DataFile) else None
    return DataFile(str(path), *columns, features, ranges, classes, holdout), read_off


def load(source: DataFile, *, folder: str | os.PathLike[str] = ".") -> Dataset:
    """Read a table. A relative file name is relative to ``folder``.

    Clients are sorted by their ids as text, and their rows are in the order of the file. A hash of
    the id selects the clients in the public holdout (``dataset.in_holdout``). If ``source`` does
    not give the number of classes, the number in the data is assumed to be public.
    """
    path = Path(folder) / source.file
    cells = read(
        path, client=source.client_column, label=source.label_column, features=source.features
    )
    labels, classes = _labels(cells.labels, source.label_column, source.classes)
    ids, owner = np.unique(np.array(cells.clients, dtype=object), return_inverse=True)
    if len(ids) == 1:
        why = f"is {ids[0]!r} in every row: it must name the client of each row"
        raise InvalidValue("client_column", source.client_column, why)
    held = in_holdout(ids.tolist(), share=source.holdout, purpose=PURPOSE)
    if held.all():
        raise InvalidValue("holdout", source.holdout, f"leaves none of the {len(ids)} clients")
    features = scaled(cells.features, source.ranges)
    order = np.argsort(owner, kind="stable")
    mine = order[~held[owner[order]]]
    public = order[held[owner[order]]]
    if np.all(labels[mine] == labels[mine[0]]):
        why = f"leaves clients whose labels are all {labels[mine[0]]}"
        raise InvalidValue("holdout", source.holdout, why)
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
    whole = (raw == np.floor(raw)) & (raw >= 0) & (raw < MOST_CLASSES)
    if not whole.all():
        row = int(np.argmin(whole))
        why = "is not a label: must be an integer 0, 1, 2, ..."
        raise _bad_cell(column, row + 1, float(raw[row]), why)
    labels = raw.astype(np.int64)
    if classes is not None and not np.max(labels) < classes:
        row = int(np.argmax(labels >= classes))
        why = f"is an unknown label: must be 0 to {classes - 1}"
        raise _bad_cell(column, row + 1, int(labels[row]), why)
    present = np.unique(labels)
    if len(present) == 1:
        why = f"is {present[0]} in every row: with one class there is nothing to predict"
        raise InvalidValue("label_column", column, why)
    if classes is None:
        classes = len(present)
        if present[-1] != classes - 1:
            count = ", or say how many classes there are" if present[0] == 0 else ""
            why = f"holds the labels {_listed(present)}: recode them as 0 to {classes - 1}{count}"
            raise InvalidValue("label_column", column, why)
    return labels, classes


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """The requested columns: clients as text, labels and features as finite numbers."""

    clients: list[str]
    labels: NDArray[np.float64]
    features: NDArray[np.float64]


def header(path: Path) -> tuple[str, ...]:
    """Return the names of a file's columns, in order."""
    _check_file(path)
    if path.suffix.lower() == CSV:
        with _rows(path) as (names, _):
            return names
    with _parquet(path) as parquet, parquet.ParquetFile(path) as file:
        return tuple(file.schema_arrow.names)


def read(path: Path, *, client: str, label: str, features: tuple[str, ...]) -> Cells:
    """Return the requested columns. Errors count rows from 1, without the header."""
    names = header(path)
    columns = {"client_column": client, "label_column": label}
    for kind, column in [*columns.items(), *(("features", feature) for feature in features)]:
        _check_column(path, kind, column, names)
    numeric = (label, *features)
    reader = _read_csv if path.suffix.lower() == CSV else _read_parquet
    clients, numbers = reader(path, names, client, numeric)
    if not clients:
        raise InvalidData("file", str(path), "has a header but no rows")
    _check_finite(numbers, numeric)
    return Cells(clients, numbers[:, 0], numbers[:, 1:])


def _listed(names: Sequence[object] | NDArray[Any]) -> str:
    """Return the first names of a list as text, with an ellipsis if there are more."""
    return ", ".join(map(str, names[:_NAMED])) + (", ..." if len(names) > _NAMED else "")


def _bad_cell(column: str, row: int, value: object, expected: str) -> InvalidCell:
    return InvalidCell(f"column {column!r}, row {row:,}", value, expected)


def _check_file(path: Path) -> None:
    if path.suffix.lower() not in (CSV, PARQUET):
        remedy = ": save it as CSV with commas" if path.suffix.lower() == ".tsv" else ""
        raise InvalidData("file", str(path), f"must end in .csv or .parquet{remedy}")
    if not path.exists():
        near = _nearest(path.name, [other.name for other in path.parent.glob("*")])
        raise InvalidData("file", str(path), f"does not exist{near}")
    if not path.is_file():
        raise InvalidData("file", str(path), "is not a file")


def _check_column(path: Path, kind: str, column: str, names: tuple[str, ...]) -> None:
    if column not in names:
        hints = _nearest(column, names) + _separator_hint(path)
        why = f"is not a column of {path.name} ({_listed(names) or 'none'}){hints}"
        raise InvalidValue(kind, column, why)
    if (times := names.count(column)) > 1:
        why = f"occurs {times} times in the header of {path.name}: rename or remove all but one"
        raise InvalidValue(kind, column, why)


def _separator_hint(path: Path) -> str:
    """Return a hint if the header seems to use another separator than commas, else ''."""
    if path.suffix.lower() != CSV:
        return ""
    with path.open(encoding="utf-8-sig", errors="replace") as text:
        line = next((line for line in text if line.strip()), "")
    mark = max(_SEPARATORS, key=line.count)
    if line.count(mark) <= line.count(","):
        return ""
    return f"; cells are separated by {_SEPARATORS[mark]}: save it with commas"


def _nearest(name: str, names: tuple[str, ...] | list[str]) -> str:
    folded = {other.casefold(): other for other in names}
    near = difflib.get_close_matches(name.casefold(), folded, n=1)
    return f": did you mean {folded[near[0]]!r}?" if near else ""


@contextmanager
def _rows(path: Path) -> Iterator[tuple[tuple[str, ...], Iterator[list[str]]]]:
    """Yield the header and an iterator over the rows, without blank lines."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as text:
            reader = (row for row in csv.reader(text, strict=True) if row)
            first = next(reader, None)
            if first is None:
                raise InvalidData("file", str(path), "is empty: must begin with a header")
            yield tuple(name.strip() for name in first), reader
    except UnicodeDecodeError as error:
        raise InvalidData("file", str(path), "is not UTF-8 text: save it as UTF-8") from error
    except csv.Error as error:
        why = f"is not well-formed CSV: {error}{_separator_hint(path)}"
        raise InvalidData("file", str(path), why) from error
    except OSError as error:
        raise InvalidData("file", str(path), f"cannot be read: {error.strerror}") from error


def _read_csv(
    path: Path, names: tuple[str, ...], client: str, numeric: tuple[str, ...]
) -> tuple[list[str], NDArray[np.float64]]:
    whose, places = names.index(client), [names.index(column) for column in numeric]
    clients: list[str] = []
    blocks = [np.empty((0, len(numeric)))]
    with _rows(path) as (_, rows):
        while block := list(islice(rows, _BLOCK)):
            start = len(clients) + 1
            for number, row in enumerate(block, start):
                if len(row) != len(names):
                    why = f"must have {len(names)} cells, as the header"
                    raise InvalidCell(f"row {number:,}", len(row), why)
                clients.append(_client(row[whose], client, number))
            cells = [[row[place] for place in places] for row in block]
            blocks.append(_numbers(cells, numeric, start, label=numeric[0]))
    return clients, np.concatenate(blocks)


def _numbers(
    cells: list[list[str]], columns: tuple[str, ...], start: int, *, label: str
) -> NDArray[np.float64]:
    try:
        return np.array(cells, dtype=np.float64)
    except ValueError:
        for number, row in enumerate(cells, start):
            for column, cell in zip(columns, row, strict=True):
                _check_number(cell, column, number, remedy="" if column == label else _LEAVE_OUT)
        raise


def _check_number(cell: str, column: str, number: int, *, remedy: str) -> None:
    if not cell.strip():
        raise _bad_cell(column, number, cell, f"is empty: {_FILL_IN}")
    try:
        float(cell)
    except ValueError:
        why = f"is not a number: encode categories as numbers{remedy}"
        raise _bad_cell(column, number, cell, why) from None


def _client(cell: str, column: str, number: int) -> str:
    """Return an id without surrounding blanks. Raises InvalidCell if it is empty."""
    stripped = cell.strip()
    if not stripped:
        raise _bad_cell(column, number, cell, "is empty: every row must belong to a client")
    return stripped


def _check_finite(numbers: NDArray[np.float64], columns: tuple[str, ...]) -> None:
    fits = np.isfinite(numbers)
    if not fits.all():
        row, place = np.argwhere(~fits)[0].tolist()
        value = float(numbers[row, place])
        raise _bad_cell(columns[place], row + 1, value, f"must be finite: {_FILL_IN}")


@contextmanager
def _parquet(path: Path) -> Iterator[Any]:
    parquet = installed("pyarrow.parquet", extra="data", wanted_by=path.name)
    arrow = installed("pyarrow", extra="data", wanted_by=path.name)
    try:
        yield parquet
    except arrow.ArrowException as error:
        why = str(error).partition("\n")[0]
        raise InvalidData("file", str(path), f"is not a valid Parquet file: {why}") from error
    except OSError as error:
        raise InvalidData("file", str(path), f"cannot be read: {error}") from error


def _read_parquet(
    path: Path, names: tuple[str, ...], client: str, numeric: tuple[str, ...]
) -> tuple[list[str], NDArray[np.float64]]:
    # ParquetFile allows duplicate column names that are not used; pyarrow's data sets do not.
    with _parquet(path) as parquet, parquet.ParquetFile(path) as file:
        columns = file.read(columns=[client, *numeric])
    clients = _arrow_clients(columns.column(client), client) if len(columns) else []
    numbers = np.empty((len(clients), len(numeric)))
    if clients:
        for place, column in enumerate(numeric):
            numbers[:, place] = _arrow_numbers(columns.column(column), column, label=numeric[0])
    return clients, numbers


def _arrow_clients(column: Any, name: str) -> list[str]:
    types = installed("pyarrow.types", extra="data", wanted_by=name)
    if types.is_floating(column.type) or types.is_nested(column.type):
        why = f"holds {column.type}: ids must be texts or integers"
        raise InvalidValue("client_column", name, why)
    return [
        _client("" if value is None else str(value), name, number)
        for number, value in enumerate(column.to_pylist(), 1)
    ]


def _arrow_numbers(column: Any, name: str, *, label: str) -> NDArray[np.float64]:
    types = installed("pyarrow.types", extra="data", wanted_by=name)
    kind = column.type
    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise _bad_cell(name, row + 1, None, f"is empty: {_FILL_IN}")
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return np.asarray(column.to_numpy(), dtype=np.float64)
    if types.is_decimal(kind):
        return np.array([float(value) for value in column.to_pylist()], dtype=np.float64)
    if types.is_dictionary(kind) or types.is_string(kind) or types.is_large_string(kind):
        cells = [[str(value)] for value in column.to_pylist()]
        return _numbers(cells, (name,), 1, label=label).ravel()
    raise InvalidCell(f"column {name!r}", str(kind), "must hold numbers")
