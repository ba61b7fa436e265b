"""Read columns of a CSV or Parquet file. Errors name the column, the row and the value.

Reading CSV needs no other package, so that a device can read its own table. Parquet needs pyarrow.
"""

from __future__ import annotations

import csv
import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkins.errors import InvalidCell, InvalidData, InvalidValue
from checkins.tasks.optional_import import package

CSV, PARQUET = ".csv", ".parquet"
_BLOCK = 65_536  # rows converted at a time, because text takes ten times the memory of numbers
_SHOWN = 12
_MARKS = {";": "; ", "\t": "tabs", "|": "| "}
_FILL = "fill it in with a public constant or leave the row out"
_LEAVE = ", or leave the column out: list features in [task.data]"


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
    found = _read_csv if path.suffix.lower() == CSV else _read_parquet
    clients, numbers = found(path, names, client, numeric)
    if not clients:
        raise InvalidData("file", str(path), "has a header but no rows")
    _check_finite(numbers, numeric)
    return Cells(clients, numbers[:, 0], numbers[:, 1:])


def bad_cell(column: str, row: int, value: object, expected: str) -> InvalidCell:
    """Return the error about one cell."""
    return InvalidCell(f"column {column!r}, row {row:,}", value, expected)


def _check_file(path: Path) -> None:
    if path.suffix.lower() not in (CSV, PARQUET):
        remedy = ": save it as CSV with commas" if path.suffix.lower() == ".tsv" else ""
        raise InvalidData("file", str(path), f"must end in .csv or .parquet{remedy}")
    if not path.exists():
        near = _nearest(path.name, _siblings(path))
        raise InvalidData("file", str(path), f"does not exist{near}")
    if not path.is_file():
        raise InvalidData("file", str(path), "is not a file")


def _siblings(path: Path) -> list[str]:
    try:
        return [other.name for other in path.parent.iterdir()]
    except OSError:
        return []


def _check_column(path: Path, kind: str, column: str, names: tuple[str, ...]) -> None:
    if column not in names:
        shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
        near = _nearest(column, names)
        hint = _separated(path)
        raise InvalidValue(
            kind, column, f"is not a column of {path.name} ({shown or 'none'}){near}{hint}"
        )
    if names.count(column) > 1:
        why = (
            f"occurs {names.count(column)} times in the header of {path.name}: "
            "rename or remove all but one"
        )
        raise InvalidValue(kind, column, why)


def _separated(path: Path) -> str:
    """Return a hint if the header seems to use another separator than commas, else ''."""
    if path.suffix.lower() != CSV:
        return ""
    with path.open(encoding="utf-8-sig", errors="replace") as text:
        line = next((line for line in text if line.strip()), "")
    mark = max(_MARKS, key=line.count)
    if line.count(mark) <= line.count(","):
        return ""
    return f"; cells are separated by {_MARKS[mark]}: save it with commas"


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
        raise InvalidData(
            "file", str(path), f"is not well-formed CSV: {error}{_separated(path)}"
        ) from error
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
                    raise InvalidCell(
                        f"row {number:,}", len(row), f"must have {len(names)} cells, as the header"
                    )
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
                _check_number(cell, column, number, remedy="" if column == label else _LEAVE)
        raise


def _check_number(cell: str, column: str, number: int, *, remedy: str) -> None:
    if not cell.strip():
        raise bad_cell(column, number, cell, f"is empty: {_FILL}")
    try:
        float(cell)
    except ValueError:
        raise bad_cell(
            column, number, cell, f"is not a number: encode categories as numbers{remedy}"
        ) from None


def _client(cell: str, column: str, number: int) -> str:
    """Return an id without surrounding blanks. Raises InvalidCell if it is empty."""
    stripped = cell.strip()
    if not stripped:
        raise bad_cell(column, number, cell, "is empty: every row must belong to a client")
    return stripped


def _check_finite(numbers: NDArray[np.float64], columns: tuple[str, ...]) -> None:
    fits = np.isfinite(numbers)
    if not fits.all():
        row, place = np.argwhere(~fits)[0].tolist()
        value = float(numbers[row, place])
        raise bad_cell(columns[place], row + 1, value, f"must be finite: {_FILL}")


@contextmanager
def _parquet(path: Path) -> Iterator[Any]:
    parquet = package("pyarrow.parquet", extra="data", wanted_by=path.name)
    arrow = package("pyarrow", extra="data", wanted_by=path.name)
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
    types = package("pyarrow.types", extra="data", wanted_by=name)
    if types.is_floating(column.type) or types.is_nested(column.type):
        raise InvalidValue(
            "client_column", name, f"holds {column.type}: ids must be texts or integers"
        )
    return [
        _client("" if value is None else str(value), name, number)
        for number, value in enumerate(column.to_pylist(), 1)
    ]


def _arrow_numbers(column: Any, name: str, *, label: str) -> NDArray[np.float64]:
    types = package("pyarrow.types", extra="data", wanted_by=name)
    kind = column.type
    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise bad_cell(name, row + 1, None, f"is empty: {_FILL}")
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return np.asarray(column.to_numpy(), dtype=np.float64)
    if types.is_decimal(kind):
        return np.array([float(value) for value in column.to_pylist()], dtype=np.float64)
    if types.is_dictionary(kind) or types.is_string(kind) or types.is_large_string(kind):
        cells = [[str(value)] for value in column.to_pylist()]
        return _numbers(cells, (name,), 1, label=label).ravel()
    raise InvalidCell(f"column {name!r}", str(kind), "must hold numbers")
