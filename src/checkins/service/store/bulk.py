"""Many values in one statement: arrays in PostgreSQL, lists of a bounded length in SQLite.

An array is one parameter however many values it has, so PostgreSQL plans a statement once and a
batch is one message to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    any_,
    bindparam,
    column,
    func,
    insert,
    select,
)
from sqlalchemy.dialects.postgresql import ARRAY

MOST_IN_A_LIST = 500


def among(
    connection: Connection, of: ColumnElement[Any], values: Sequence[Any]
) -> Iterator[ColumnElement[bool]]:
    """Conditions that together say that a column has one of ``values``; none for no values."""
    if not values:
        return
    if connection.dialect.name == "postgresql":
        yield of == any_(bindparam("among", list(values), ARRAY(of.type), unique=True))
        return
    for start in range(0, len(values), MOST_IN_A_LIST):
        yield of.in_(values[start : start + MOST_IN_A_LIST])


def insert_all(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows that name the same columns."""
    if not rows:
        return
    if connection.dialect.name != "postgresql":
        connection.execute(insert(table), [dict(row) for row in rows])
        return
    names = list(rows[0])
    arrays = [
        bindparam(name, [row[name] for row in rows], ARRAY(table.c[name].type)) for name in names
    ]
    given = func.unnest(*arrays).table_valued(*(column(name) for name in names)).render_derived()
    connection.execute(insert(table).from_select(names, select(given)))
