"""Queries for clients: enrolments, unspent tokens, and check-ins of the slot in progress.

A statement about many values passes them to PostgreSQL as one array, so that the statement text
stays the same and is planned once. To SQLite it passes lists of bounded length.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Row,
    Table,
    any_,
    bindparam,
    column,
    delete,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY

from checkins.service.store import schema

check_ins, enrolled = schema.check_ins, schema.enrolled
enrolments, tokens = schema.enrolments, schema.tokens
MOST_IN_A_LIST = 500  # largest number of values in a list for SQLite
_SAVE_REPORT = (
    update(check_ins)
    .where(check_ins.c.run == bindparam("a"), check_ins.c.receipt == bindparam("b"))
    .values(report=bindparam("c"))
)


@dataclass(frozen=True, slots=True)
class StoredCheckIn:
    """A check-in of the slot in progress; ``report`` is None until the report has arrived."""

    receipt: str
    token: str
    chosen: bool
    report: bytes | None


def unspent_tokens(connection: Connection, run: str, wanted: Sequence[str]) -> set[str]:
    """Return those of the ``wanted`` tokens that are not spent."""
    c = tokens.c
    return {row.token for row in _rows(connection, run, c.token, wanted, c.token)}


def receipts_of(connection: Connection, run: str, wanted: Sequence[str]) -> dict[str, str]:
    """Return the receipt of each ``wanted`` token that has checked in to the slot in progress."""
    c = check_ins.c
    rows = _rows(connection, run, c.token, wanted, c.token, c.receipt)
    return {row.token: row.receipt for row in rows}


def spend_tokens(connection: Connection, run: str, spent: Sequence[str]) -> bool:
    """Delete tokens. Return False if another worker has spent one of them before."""
    deleted = sum(
        connection.execute(delete(tokens).where(tokens.c.run == run, condition)).rowcount
        for condition in _conditions(connection, tokens.c.token, spent)
    )
    return deleted == len(spent)


def add_tokens(connection: Connection, run: str, new: Iterable[str]) -> None:
    """Add tokens, ordered by their hashes."""
    _insert_all(connection, tokens, [{"run": run, "token": token} for token in sorted(new)])


def add_check_ins(connection: Connection, run: str, slot_of: Mapping[tuple[str, str], int]) -> None:
    """Add a check-in to a slot for each (token, receipt), ordered by the hash of the token."""
    rows = [
        {"run": run, "receipt": receipt, "slot": slot, "token": token}
        for (token, receipt), slot in sorted(slot_of.items())
    ]
    _insert_all(connection, check_ins, rows)


def lock_check_ins(
    connection: Connection, run: str, wanted: Sequence[str]
) -> dict[str, StoredCheckIn]:
    """Return the check-ins with these receipts, and lock them until the transaction ends.

    Without the lock, two workers could both save a report of the same client.
    """
    c = check_ins.c
    columns = (c.receipt, c.token, c.chosen, c.report)
    rows = _rows(connection, run, c.receipt, wanted, *columns, lock=True)
    return {
        row.receipt: StoredCheckIn(row.receipt, row.token, bool(row.chosen), row.report)
        for row in rows
    }


def save_reports(connection: Connection, run: str, reports: Mapping[str, bytes]) -> None:
    if reports:
        rows = [{"a": run, "b": receipt, "c": reports[receipt]} for receipt in sorted(reports)]
        connection.execute(_SAVE_REPORT, rows)


def enrolment_keys(connection: Connection, run: str, wanted: Sequence[str]) -> dict[str, str]:
    """Return the idempotency key of each ``wanted`` credential that has enrolled."""
    c = enrolments.c
    rows = _rows(connection, run, c.credential, wanted, c.credential, c.key)
    return {row.credential: row.key for row in rows}


def add_enrolments(connection: Connection, run: str, keys: Mapping[str, str]) -> None:
    """Add the idempotency key of each credential, ordered by the hash of the credential."""
    rows = [{"run": run, "credential": name, "key": key} for name, key in sorted(keys.items())]
    _insert_all(connection, enrolments, rows)


def lock_enrolled(connection: Connection, run: str) -> int:
    """Return how many clients have enrolled in a run, and lock that number.

    No other worker enrols clients in the run until the transaction ends.
    """
    query = select(enrolled.c.clients).where(enrolled.c.run == run).with_for_update()
    return int(connection.execute(query).scalar_one())


def save_enrolled(connection: Connection, run: str, clients: int) -> None:
    connection.execute(update(enrolled).where(enrolled.c.run == run).values(clients=clients))


def erase_client(connection: Connection, run: str, token: str) -> bool:
    """Delete a token and its check-in. Return False if there was neither."""
    deleted = [
        connection.execute(delete(table).where(table.c.run == run, table.c.token == token)).rowcount
        for table in (tokens, check_ins)
    ]
    return any(deleted)


def erase_slot(connection: Connection, run: str) -> None:
    """Delete every check-in of the slot in progress."""
    connection.execute(delete(check_ins).where(check_ins.c.run == run))


def erase_clients(connection: Connection, run: str | None = None) -> None:
    """Delete everything about the clients of a run, or of all runs if ``run`` is None."""
    for table in (check_ins, tokens, enrolments, enrolled):
        delete_all = delete(table)
        connection.execute(delete_all if run is None else delete_all.where(table.c.run == run))


def slot_of(connection: Connection, run: str, receipt: str) -> int | None:
    """Return the slot of a receipt, or None if it does not belong to the slot in progress."""
    c = check_ins.c
    query = select(c.slot).where(c.run == run, c.receipt == receipt)
    return connection.execute(query).scalar_one_or_none()


def is_chosen(connection: Connection, run: str, slot: int, receipt: str) -> bool:
    """Return whether ``slot`` is in progress and the receipt was chosen in it."""
    c = check_ins.c
    query = select(c.chosen).where(c.run == run, c.receipt == receipt, c.slot == slot)
    return bool(connection.execute(query).scalar_one_or_none())


def waiting_receipts(connection: Connection, run: str) -> dict[str, str]:
    """Return the receipt of each token that has checked in to the slot in progress."""
    c = check_ins.c
    rows = connection.execute(select(c.token, c.receipt).where(c.run == run))
    return {row.token: row.receipt for row in rows}


def chosen_by_receipt(connection: Connection, run: str) -> dict[str, bool]:
    """Return whether each receipt of the slot in progress was chosen."""
    c = check_ins.c
    rows = connection.execute(select(c.receipt, c.chosen).where(c.run == run))
    return {row.receipt: bool(row.chosen) for row in rows}


def chosen_receipts(connection: Connection, run: str) -> tuple[str, ...]:
    """Return the receipts that were chosen in the slot in progress."""
    c = check_ins.c
    return tuple(connection.execute(select(c.receipt).where(c.run == run, c.chosen)).scalars())


def save_choice(connection: Connection, run: str, chosen: Sequence[str], *, waiting: int) -> None:
    """Save which of the ``waiting`` check-ins of the slot in progress were chosen."""
    c = check_ins.c
    everyone = len(chosen) == waiting
    if waiting:
        connection.execute(update(check_ins).where(c.run == run).values(chosen=everyone))
    if chosen and not everyone:
        for condition in _conditions(connection, c.receipt, chosen):
            connection.execute(update(check_ins).where(c.run == run, condition).values(chosen=True))


def chosen_reports(
    connection: Connection, run: str, *, batch_size: int
) -> Iterator[tuple[str, bytes]]:
    """Yield the receipt and the report of each chosen client, read ``batch_size`` at a time."""
    c, last = check_ins.c, ""
    while True:
        rows = connection.execute(
            select(c.receipt, c.report)
            .where(c.run == run, c.receipt > last)
            .where(c.chosen, c.report.is_not(None))
            .order_by(c.receipt)
            .limit(batch_size)
        ).all()
        if not rows:
            return
        last = rows[-1].receipt
        for row in rows:
            yield row.receipt, row.report
        del rows, row  # free the memory before the next batch is read


def _rows(
    connection: Connection,
    run: str,
    key: Column[str],
    values: Sequence[str],
    *columns: Column[Any],
    lock: bool = False,
) -> Iterator[Row[Any]]:
    """Yield these columns of the rows of a run whose ``key`` is in ``values``.

    ``lock`` locks the rows, in the order of their keys, until the transaction ends.
    """
    for condition in _conditions(connection, key, values):
        query = select(*columns).where(key.table.c.run == run, condition)
        yield from connection.execute(query.order_by(key).with_for_update() if lock else query)


def _conditions(
    connection: Connection, key: Column[str], values: Sequence[str]
) -> Iterator[ColumnElement[bool]]:
    """Yield conditions that together select the rows whose ``key`` is in ``values``."""
    if not values:
        return
    if connection.dialect.name == "postgresql":
        yield key == any_(bindparam("values", list(values), ARRAY(key.type), unique=True))
        return
    for start in range(0, len(values), MOST_IN_A_LIST):
        yield key.in_(values[start : start + MOST_IN_A_LIST])


def _insert_all(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows, which must all have the same columns."""
    if not rows:
        return
    if connection.dialect.name != "postgresql":
        connection.execute(insert(table), [dict(row) for row in rows])
        return
    names = list(rows[0])
    arrays = [
        bindparam(name, [row[name] for row in rows], ARRAY(table.c[name].type)) for name in names
    ]
    values = func.unnest(*arrays).table_valued(*(column(name) for name in names)).render_derived()
    connection.execute(insert(table).from_select(names, select(values)))
