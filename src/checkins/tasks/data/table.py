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
from checkins.optional_imports import import_optional
from checkins.tasks.data import MAX_CLASSES, Dataset, in_holdout

HASH_PREFIX = "checkins table"
"""Prefix of a client's id in the hash that determines the public holdout."""

CSV, PARQUET = ".csv", ".parquet"
_BLOCK_ROWS = 65_536  # rows converted at a time: cells as text take ten times the memory of numbers
_MAX_LISTED = 12  # largest number of columns or labels that an error lists
_SEPARATORS = {";": "; ", "\t": "tabs", "|": "| "}
_EMPTY_CELL_REMEDY = "fill it in with a public constant or leave the row out"
_TEXT_COLUMN_REMEDY = ", or leave the column out: list features in [task.data]"


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
    an InvalidValue error lists the columns that need a range.
    """
    path = Path(file)
    range_of = dict(ranges or {})
    if features is None:
        others = (name for name in column_names(path) if name not in (client_column, label_column))
        features = tuple(range_of or others)
    missing = [feature for feature in features if feature not in range_of]
    if missing:
        why = f"must have the lowest and highest value of {_list_text(missing)}"
        remedy = "use public constants, not the data"
        raise InvalidValue("ranges", sorted(range_of), f"{why}: {remedy}")
    unused = [name for name in range_of if name not in features]
    if unused:
        raise InvalidValue("ranges", unused[0], "is not among the features")
    feature_ranges = tuple(
        (float(range_of[name][0]), float(range_of[name][1])) for name in features
    )
    return DataFile(str(path), client_column, label_column, tuple(features), feature_ranges)


def describe_for_simulation(
    file: str | os.PathLike[str],
    *,
    client_column: str,
    label_column: str,
    campaign_data: str | DataFile,
    holdout: float = 0.0,
) -> tuple[DataFile, bool]:
    """Return the description of a table for a simulation, and whether ranges come from its data.

    If ``campaign_data`` is a table and all its features are columns of this table, the features and
    ranges of ``campaign_data`` are used. Otherwise all columns are features, with ranges from their
    lowest to their highest value. A real campaign must not use ranges computed from data.
    """
    path = Path(file)
    names = column_names(path)
    if label_column == client_column:
        raise InvalidValue("label_column", label_column, "must differ from the client column")
    features = tuple(name for name in names if name not in (client_column, label_column))
    ranges_by_name: dict[str, tuple[float, float]] = {}
    if isinstance(campaign_data, DataFile) and set(campaign_data.features) <= set(features):
        features = campaign_data.features
        ranges_by_name = dict(zip(campaign_data.features, campaign_data.ranges, strict=True))
    if not features:
        raise InvalidValue(
            "data", str(path), "has no column other than the client's and the label's"
        )
    ranges_from_data = any(name not in ranges_by_name for name in features)
    if ranges_from_data:
        table = read_columns(path, client=client_column, label=label_column, features=features)
        for name, column in zip(features, table.features.T, strict=True):
            low, high = float(column.min()), float(column.max())
            ranges_by_name.setdefault(name, (low, high) if low < high else (low - 1.0, low + 1.0))
    columns = (client_column, label_column)
    ranges = tuple(ranges_by_name[name] for name in features)
    classes = campaign_data.classes if isinstance(campaign_data, DataFile) else None
    return DataFile(str(path), *columns, features, ranges, classes, holdout), ranges_from_data


def load(source: DataFile, *, folder: str | os.PathLike[str] = ".") -> Dataset:
    """Read a table. A relative file name is relative to ``folder``.

    Clients are sorted by their ids as text, and their rows are in the order of the file. A hash of
    the id selects the clients in the public holdout (``in_holdout``). If ``source`` does
    not give the number of classes, the number in the data is assumed to be public.
    """
    path = Path(folder) / source.file
    table = read_columns(
        path, client=source.client_column, label=source.label_column, features=source.features
    )
    labels, classes = _class_labels(table.labels, source.label_column, source.classes)
    ids, client_of_row = np.unique(np.array(table.clients, dtype=object), return_inverse=True)
    if len(ids) == 1:
        why = f"is {ids[0]!r} in every row: it must name the client of each row"
        raise InvalidValue("client_column", source.client_column, why)
    is_holdout = in_holdout(ids.tolist(), share=source.holdout, hash_prefix=HASH_PREFIX)
    if is_holdout.all():
        why = f"puts all {len(ids)} clients into the public holdout"
        raise InvalidValue("holdout", source.holdout, why)
    features = scale(table.features, source.ranges)
    order = np.argsort(client_of_row, kind="stable")
    client_rows = order[~is_holdout[client_of_row[order]]]
    holdout_rows = order[is_holdout[client_of_row[order]]]
    if np.all(labels[client_rows] == labels[client_rows[0]]):
        why = f"leaves clients outside the holdout whose labels are all {labels[client_rows[0]]}"
        raise InvalidValue("holdout", source.holdout, why)
    rows_per_client = np.bincount(client_of_row, minlength=len(ids))[~is_holdout]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(rows_per_client, dtype=np.int64)])
    holdout = (features[holdout_rows], labels[holdout_rows])
    clients = (features[client_rows], labels[client_rows], offsets)
    return Dataset(path.stem, *clients, classes, *holdout)


def scale(
    values: NDArray[np.float64], ranges: Sequence[tuple[float, float]]
) -> NDArray[np.float32]:
    """Clip each column to its range and map the range onto [−1, 1].

    >>> scale(np.array([[0.0], [25.0], [200.0]]), [(0.0, 100.0)]).ravel().tolist()
    [-1.0, -0.5, 1.0]
    """
    low, high = np.array(ranges, dtype=np.float64).T
    # Divide by a power of two, which is exact, so that no difference overflows or underflows.
    _, power = np.frexp(np.maximum(np.abs(low), np.abs(high)))
    clipped = np.ldexp(np.clip(values, low, high), -power)
    low, high = np.ldexp(low, -power), np.ldexp(high, -power)
    return np.asarray(((clipped - low) - (high - clipped)) / (high - low), dtype=np.float32)


def _class_labels(
    values: NDArray[np.float64], column: str, classes: int | None
) -> tuple[NDArray[np.int64], int]:
    is_label = (values == np.floor(values)) & (values >= 0) & (values < MAX_CLASSES)
    if not is_label.all():
        row = int(np.argmin(is_label))
        why = "is not a label: must be an integer 0, 1, 2, ..."
        raise _cell_error(column, row + 1, float(values[row]), why)
    labels = values.astype(np.int64)
    if classes is not None and not np.max(labels) < classes:
        row = int(np.argmax(labels >= classes))
        why = f"is an unknown label: must be 0 to {classes - 1}"
        raise _cell_error(column, row + 1, int(labels[row]), why)
    distinct = np.unique(labels)
    if len(distinct) == 1:
        why = f"is {distinct[0]} in every row: with one class there is nothing to predict"
        raise InvalidValue("label_column", column, why)
    if classes is None:
        classes = len(distinct)
        if distinct[-1] != classes - 1:
            hint = ", or set the number of classes" if distinct[0] == 0 else ""
            remedy = f"recode them as 0 to {classes - 1}{hint}"
            why = f"holds the labels {_list_text(distinct)}: {remedy}"
            raise InvalidValue("label_column", column, why)
    return labels, classes


@dataclass(frozen=True, slots=True, eq=False)
class TableColumns:
    """The requested columns: clients as text, labels and features as finite numbers."""

    clients: list[str]
    labels: NDArray[np.float64]
    features: NDArray[np.float64]


def column_names(path: Path) -> tuple[str, ...]:
    """Return the names of a file's columns, in order."""
    _check_file(path)
    if path.suffix.lower() == CSV:
        with _open_csv(path) as (names, _):
            return names
    with _pyarrow_parquet(path) as parquet, parquet.ParquetFile(path) as file:
        return tuple(file.schema_arrow.names)


def read_columns(path: Path, *, client: str, label: str, features: tuple[str, ...]) -> TableColumns:
    """Return the requested columns. Errors count rows from 1, without the header."""
    header = column_names(path)
    columns = {"client_column": client, "label_column": label}
    for setting, column in [*columns.items(), *(("features", feature) for feature in features)]:
        _check_column(path, setting, column, header)
    number_columns = (label, *features)
    read_file = _read_csv if path.suffix.lower() == CSV else _read_parquet
    clients, numbers = read_file(path, header, client, number_columns)
    if not clients:
        raise InvalidData("file", str(path), "has a header but no rows")
    _check_finite(numbers, number_columns)
    return TableColumns(clients, numbers[:, 0], numbers[:, 1:])


def _list_text(names: Sequence[object] | NDArray[Any]) -> str:
    """Return the first names of a list as text, with an ellipsis if there are more."""
    return ", ".join(map(str, names[:_MAX_LISTED])) + (", ..." if len(names) > _MAX_LISTED else "")


def _cell_error(column: str, row: int, value: object, expected: str) -> InvalidCell:
    return InvalidCell(f"column {column!r}, row {row:,}", value, expected)


def _check_file(path: Path) -> None:
    if path.suffix.lower() not in (CSV, PARQUET):
        remedy = ": save it as CSV with commas" if path.suffix.lower() == ".tsv" else ""
        raise InvalidData("file", str(path), f"must end in .csv or .parquet{remedy}")
    if not path.exists():
        suggestion = _did_you_mean(path.name, [other.name for other in path.parent.glob("*")])
        raise InvalidData("file", str(path), f"does not exist{suggestion}")
    if not path.is_file():
        raise InvalidData("file", str(path), "is not a file")


def _check_column(path: Path, setting: str, column: str, header: tuple[str, ...]) -> None:
    if column not in header:
        hints = _did_you_mean(column, header) + _separator_hint(path)
        why = f"is not a column of {path.name} ({_list_text(header) or 'none'}){hints}"
        raise InvalidValue(setting, column, why)
    if (count := header.count(column)) > 1:
        why = f"occurs {count} times in the header of {path.name}: rename or remove all but one"
        raise InvalidValue(setting, column, why)


def _separator_hint(path: Path) -> str:
    """Return a hint if the header seems to use another separator than commas, else ''."""
    if path.suffix.lower() != CSV:
        return ""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        line = next((line for line in file if line.strip()), "")
    separator = max(_SEPARATORS, key=line.count)
    if line.count(separator) <= line.count(","):
        return ""
    return f"; cells are separated by {_SEPARATORS[separator]}: save it with commas"


def _did_you_mean(name: str, names: tuple[str, ...] | list[str]) -> str:
    names_by_casefold = {other.casefold(): other for other in names}
    matches = difflib.get_close_matches(name.casefold(), names_by_casefold, n=1)
    return f": did you mean {names_by_casefold[matches[0]]!r}?" if matches else ""


@contextmanager
def _open_csv(path: Path) -> Iterator[tuple[tuple[str, ...], Iterator[list[str]]]]:
    """Yield the header and an iterator over the rows, without blank lines."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = (row for row in csv.reader(file, strict=True) if row)
            header = next(reader, None)
            if header is None:
                raise InvalidData("file", str(path), "is empty: must begin with a header")
            yield tuple(name.strip() for name in header), reader
    except UnicodeDecodeError as error:
        raise InvalidData("file", str(path), "is not UTF-8 text: save it as UTF-8") from error
    except csv.Error as error:
        why = f"is not well-formed CSV: {error}{_separator_hint(path)}"
        raise InvalidData("file", str(path), why) from error
    except OSError as error:
        raise InvalidData("file", str(path), f"cannot be read: {error.strerror}") from error


def _read_csv(
    path: Path, header: tuple[str, ...], client: str, number_columns: tuple[str, ...]
) -> tuple[list[str], NDArray[np.float64]]:
    client_index = header.index(client)
    number_indices = [header.index(column) for column in number_columns]
    clients: list[str] = []
    blocks = [np.empty((0, len(number_columns)))]
    with _open_csv(path) as (_, rows):
        while block := list(islice(rows, _BLOCK_ROWS)):
            first_row = len(clients) + 1
            for row_number, row in enumerate(block, first_row):
                if len(row) != len(header):
                    why = f"must have {len(header)} cells, like the header"
                    raise InvalidCell(f"row {row_number:,}", len(row), why)
                clients.append(_client_id(row[client_index], client, row_number))
            cells = [[row[index] for index in number_indices] for row in block]
            blocks.append(_parse_numbers(cells, number_columns, first_row, label=number_columns[0]))
    return clients, np.concatenate(blocks)


def _parse_numbers(
    cells: list[list[str]], columns: tuple[str, ...], first_row: int, *, label: str
) -> NDArray[np.float64]:
    try:
        return np.array(cells, dtype=np.float64)
    except ValueError:
        for row_number, row in enumerate(cells, first_row):
            for column, cell in zip(columns, row, strict=True):
                remedy = "" if column == label else _TEXT_COLUMN_REMEDY
                _check_number(cell, column, row_number, remedy=remedy)
        raise


def _check_number(cell: str, column: str, row_number: int, *, remedy: str) -> None:
    if not cell.strip():
        raise _cell_error(column, row_number, cell, f"is empty: {_EMPTY_CELL_REMEDY}")
    try:
        float(cell)
    except ValueError:
        why = f"is not a number: encode categories as numbers{remedy}"
        raise _cell_error(column, row_number, cell, why) from None


def _client_id(cell: str, column: str, row_number: int) -> str:
    """Return an id without surrounding blanks. Raises InvalidCell if it is empty."""
    stripped = cell.strip()
    if not stripped:
        raise _cell_error(column, row_number, cell, "is empty: every row must belong to a client")
    return stripped


def _check_finite(numbers: NDArray[np.float64], columns: tuple[str, ...]) -> None:
    is_finite = np.isfinite(numbers)
    if not is_finite.all():
        row, column = np.argwhere(~is_finite)[0].tolist()
        value = float(numbers[row, column])
        raise _cell_error(columns[column], row + 1, value, f"must be finite: {_EMPTY_CELL_REMEDY}")


@contextmanager
def _pyarrow_parquet(path: Path) -> Iterator[Any]:
    """Yield the module pyarrow.parquet, and turn its errors into InvalidData errors."""
    parquet = import_optional("pyarrow.parquet", value=path.name)
    arrow = import_optional("pyarrow", value=path.name)
    try:
        yield parquet
    except arrow.ArrowException as error:
        why = str(error).partition("\n")[0]
        raise InvalidData("file", str(path), f"is not a valid Parquet file: {why}") from error
    except OSError as error:
        raise InvalidData("file", str(path), f"cannot be read: {error}") from error


def _read_parquet(
    path: Path, header: tuple[str, ...], client: str, number_columns: tuple[str, ...]
) -> tuple[list[str], NDArray[np.float64]]:
    # ParquetFile accepts files with duplicate column names; pyarrow's data sets do not.
    with _pyarrow_parquet(path) as parquet, parquet.ParquetFile(path) as file:
        table = file.read(columns=[client, *number_columns])
    clients = _arrow_clients(table.column(client), client) if len(table) else []
    numbers = np.empty((len(clients), len(number_columns)))
    if clients:
        label = number_columns[0]
        for index, column in enumerate(number_columns):
            numbers[:, index] = _arrow_numbers(table.column(column), column, label=label)
    return clients, numbers


def _arrow_clients(column: Any, name: str) -> list[str]:
    types = import_optional("pyarrow.types", value=name)
    if types.is_floating(column.type) or types.is_nested(column.type):
        why = f"holds {column.type}: ids must be texts or integers"
        raise InvalidValue("client_column", name, why)
    return [
        _client_id("" if value is None else str(value), name, row_number)
        for row_number, value in enumerate(column.to_pylist(), 1)
    ]


def _arrow_numbers(column: Any, name: str, *, label: str) -> NDArray[np.float64]:
    types = import_optional("pyarrow.types", value=name)
    dtype = column.type
    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise _cell_error(name, row + 1, None, f"is empty: {_EMPTY_CELL_REMEDY}")
    if types.is_integer(dtype) or types.is_floating(dtype) or types.is_boolean(dtype):
        return np.asarray(column.to_numpy(), dtype=np.float64)
    if types.is_decimal(dtype):
        return np.array([float(value) for value in column.to_pylist()], dtype=np.float64)
    if types.is_dictionary(dtype) or types.is_string(dtype) or types.is_large_string(dtype):
        cells = [[str(value)] for value in column.to_pylist()]
        return _parse_numbers(cells, (name,), 1, label=label).ravel()
    raise InvalidCell(f"column {name!r}", str(dtype), "must hold numbers")
