"""The sums of the last slots of a run whose noise is correlated across slots.

``exact_sums`` has the sums without noise. They are secret, so they are in a table of their own,
which no backup contains (invariant 16 of docs/invariants.md). ``noisy_sums`` has the public noisy
sums. Both are written in the transaction that closes a slot, and rows that no later slot needs are
deleted in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Table, delete, func, insert, select

from checkins.errors import OutOfOrder
from checkins.ledger.entry import NumberType, pack_numbers
from checkins.service.store.schema import exact_sums, noisy_sums

Sums = tuple[NDArray[Any], ...]
"""The sums of successive slots, newest first."""


def load_exact_sums(connection: Connection, run: str, *, closed: int) -> Sums:
    """Return the exact sums of the last slots, up to slot ``closed``."""
    return _load(connection, exact_sums, run, NumberType.INT64, closed)


def load_noisy_sums(connection: Connection, run: str, *, closed: int) -> Sums:
    """Return the noisy sums of the last slots, up to slot ``closed``."""
    return _load(connection, noisy_sums, run, NumberType.FLOAT64, closed)


def save_exact_sums(connection: Connection, run: str, sums: Sums, *, closed: int) -> None:
    """Save the newest of the sums, and delete all sums that are not in ``sums``."""
    _save(connection, exact_sums, run, sums, NumberType.INT64, closed)


def save_noisy_sums(connection: Connection, run: str, sums: Sums, *, closed: int) -> None:
    """Save the newest of the sums, and delete all sums that are not in ``sums``."""
    _save(connection, noisy_sums, run, sums, NumberType.FLOAT64, closed)


def erase_exact_sums(connection: Connection, run: str | None = None) -> None:
    """Delete the exact sums of a run, or of all runs if ``run`` is None."""
    delete_all = delete(exact_sums)
    connection.execute(delete_all if run is None else delete_all.where(exact_sums.c.run == run))


def count_exact_sums(connection: Connection, run: str) -> int:
    count = select(func.count()).select_from(exact_sums).where(exact_sums.c.run == run)
    return int(connection.execute(count).scalar_one())


def _load(connection: Connection, table: Table, run: str, dtype: NumberType, closed: int) -> Sums:
    query = select(table.c.slot, table.c.sum).where(table.c.run == run)
    rows = connection.execute(query.order_by(table.c.slot.desc())).all()
    slots = [row.slot for row in rows]
    if slots != list(range(closed, closed - len(rows), -1)):
        raise OutOfOrder(f"run {run} has {table.name} of the slots {slots}, not of the last ones")
    return tuple(np.frombuffer(row.sum, dtype=dtype.little_endian) for row in rows)


def _save(
    connection: Connection,
    table: Table,
    run: str,
    sums: Sequence[NDArray[Any]],
    dtype: NumberType,
    closed: int,
) -> None:
    of_run = delete(table).where(table.c.run == run)
    connection.execute(of_run.where(table.c.slot <= closed - len(sums)))
    if sums:
        row = {"run": run, "slot": closed, "sum": pack_numbers(sums[0], dtype)}
        connection.execute(insert(table).values(**row))
