"""Queries for clients: enrolments, unspent tokens, and check-ins of the slot in progress.

Enrolment gives a client a token, and a check-in spends the token and gives the client a receipt.
Tokens, credentials and idempotency keys are hashes here; the store never holds the originals.

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

check_ins, enrolled_counts = schema.check_ins, schema.enrolled_counts
enrolments, tokens = schema.enrolments, schema.tokens
MAX_LIST_LENGTH = 500  # largest number of values in one list in a SQLite statement
_SAVE_REPORT = (
    update(check_ins)
    .where(check_ins.c.run == bindparam("at_run"), check_ins.c.receipt == bindparam("at_receipt"))
    .values(report=bindparam("new_report"))
)


@dataclass(frozen=True, slots=True)
class StoredCheckIn:
    """A check-in of the slot in progress; ``report`` is None until the report has arrived."""

    receipt: str
    token: str
    chosen: bool
    report: bytes | None


def unspent_tokens(connection: Connection, run: str, candidates: Sequence[str]) -> set[str]:
    """Return the tokens among ``candidates`` that are not spent."""
    c = tokens.c
    return {row.token for row in _matching_rows(connection, run, c.token, candidates, c.token)}


def receipts_of(connection: Connection, run: str, candidates: Sequence[str]) -> dict[str, str]:
    """Return the receipts, by token, of ``candidates`` that checked in to the slot in progress."""
    c = check_ins.c
    rows = _matching_rows(connection, run, c.token, candidates, c.token, c.receipt)
    return {row.token: row.receipt for row in rows}


def spend_tokens(connection: Connection, run: str, to_spend: Sequence[str]) -> bool:
    """Delete tokens. Return False if another worker has already spent one of them."""
    deleted = sum(
        connection.execute(delete(tokens).where(tokens.c.run == run, condition)).rowcount
        for condition in _membership_conditions(connection, tokens.c.token, to_spend)
    )
    return deleted == len(to_spend)


def add_tokens(connection: Connection, run: str, new_tokens: Iterable[str]) -> None:
    """Add tokens, ordered by hash, so that the order of arrival is not stored."""
    _insert_all(connection, tokens, [{"run": run, "token": token} for token in sorted(new_tokens)])


def add_check_ins(connection: Connection, run: str, slots: Mapping[tuple[str, str], int]) -> None:
    """Add check-ins, ordered by hash of the token. ``slots`` maps (token, receipt) to the slot."""
    rows = [
        {"run": run, "receipt": receipt, "slot": slot, "token": token}
        for (token, receipt), slot in sorted(slots.items())
    ]
    _insert_all(connection, check_ins, rows)


def lock_check_ins(
    connection: Connection, run: str, receipts: Sequence[str]
) -> dict[str, StoredCheckIn]:
    """Return the check-ins with these receipts, and lock them until the transaction ends.

    Without the lock, two workers could both save a report of the same client.
    """
    c = check_ins.c
    columns = (c.receipt, c.token, c.chosen, c.report)
    rows = _matching_rows(connection, run, c.receipt, receipts, *columns, lock=True)
    return {
        row.receipt: StoredCheckIn(row.receipt, row.token, bool(row.chosen), row.report)
        for row in rows
    }


def save_reports(connection: Connection, run: str, reports: Mapping[str, bytes]) -> None:
    if reports:
        rows = [{"at_run": run, "at_receipt": r, "new_report": reports[r]} for r in sorted(reports)]
        connection.execute(_SAVE_REPORT, rows)


def enrolment_keys(connection: Connection, run: str, candidates: Sequence[str]) -> dict[str, str]:
    """Return the idempotency key of each credential among ``candidates`` that has enrolled."""
    c = enrolments.c
    rows = _matching_rows(connection, run, c.credential, candidates, c.credential, c.key)
    return {row.credential: row.key for row in rows}


def add_enrolments(connection: Connection, run: str, keys: Mapping[str, str]) -> None:
    """Add enrolments. ``keys`` maps each credential to the idempotency key of its enrolment."""
    rows = [{"run": run, "credential": name, "key": keys[name]} for name in sorted(keys)]
    _insert_all(connection, enrolments, rows)


def lock_enrolled_count(connection: Connection, run: str) -> int:
    """Return how many clients have enrolled in a run, and lock the row of that number.

    The lock keeps other workers from enrolling clients in the run until the transaction ends.
    """
    query = select(enrolled_counts.c.clients).where(enrolled_counts.c.run == run).with_for_update()
    return int(connection.execute(query).scalar_one())


def save_enrolled_count(connection: Connection, run: str, clients: int) -> None:
    connection.execute(
        update(enrolled_counts).where(enrolled_counts.c.run == run).values(clients=clients)
    )


def erase_client(connection: Connection, run: str, token: str) -> bool:
    """Delete a token and its check-in. Return False if neither exists."""
    deleted = [
        connection.execute(delete(table).where(table.c.run == run, table.c.token == token)).rowcount
        for table in (tokens, check_ins)
    ]
    return any(deleted)


def erase_check_ins(connection: Connection, run: str) -> None:
    """Delete every check-in of the slot in progress."""
    connection.execute(delete(check_ins).where(check_ins.c.run == run))


def erase_clients(connection: Connection, run: str | None = None) -> None:
    """Delete everything about the clients of a run, or of all runs if ``run`` is None."""
    for table in (check_ins, tokens, enrolments, enrolled_counts):
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


def receipts_by_token(connection: Connection, run: str) -> dict[str, str]:
    """Return the receipt of each token that has checked in to the slot in progress."""
    c = check_ins.c
    rows = connection.execute(select(c.token, c.receipt).where(c.run == run))
    return {row.token: row.receipt for row in rows}


def chosen_by_receipt(connection: Connection, run: str) -> dict[str, bool]:
    """Return all receipts of the slot in progress, each with whether it was chosen."""
    c = check_ins.c
    rows = connection.execute(select(c.receipt, c.chosen).where(c.run == run))
    return {row.receipt: bool(row.chosen) for row in rows}


def chosen_receipts(connection: Connection, run: str) -> tuple[str, ...]:
    """Return the receipts that were chosen in the slot in progress."""
    c = check_ins.c
    return tuple(connection.execute(select(c.receipt).where(c.run == run, c.chosen)).scalars())


def save_choice(connection: Connection, run: str, chosen: Sequence[str], *, total: int) -> None:
    """Save which receipts were chosen. ``total`` counts the check-ins of the slot in progress."""
    c = check_ins.c
    all_chosen = len(chosen) == total
    if total:
        connection.execute(update(check_ins).where(c.run == run).values(chosen=all_chosen))
    if chosen and not all_chosen:
        for condition in _membership_conditions(connection, c.receipt, chosen):
            connection.execute(update(check_ins).where(c.run == run, condition).values(chosen=True))


def chosen_reports(
    connection: Connection, run: str, *, batch_size: int
) -> Iterator[tuple[str, bytes]]:
    """Yield (receipt, report) for each report of a chosen client, read in batches."""
    c, last_receipt = check_ins.c, ""
    while True:
        rows = connection.execute(
            select(c.receipt, c.report)
            .where(c.run == run, c.receipt > last_receipt)
            .where(c.chosen, c.report.is_not(None))
            .order_by(c.receipt)
            .limit(batch_size)
        ).all()
        if not rows:
            return
        last_receipt = rows[-1].receipt
        for row in rows:
            yield row.receipt, row.report
        del rows, row  # free the memory before the next batch is read


def _matching_rows(
    connection: Connection,
    run: str,
    key: Column[str],
    values: Sequence[str],
    *columns: Column[Any],
    lock: bool = False,
) -> Iterator[Row[Any]]:
    """Yield ``columns`` of the rows of a run whose column ``key`` is in ``values``.

    If ``lock``, the rows are locked in the order of their keys until the transaction ends.
    """
    for condition in _membership_conditions(connection, key, values):
        query = select(*columns).where(key.table.c.run == run, condition)
        yield from connection.execute(query.order_by(key).with_for_update() if lock else query)


def _membership_conditions(
    connection: Connection, key: Column[str], values: Sequence[str]
) -> Iterator[ColumnElement[bool]]:
    """Yield SQL conditions, each for a part of ``values``: the column ``key`` is in this part."""
    if not values:
        return
    if connection.dialect.name == "postgresql":
        yield key == any_(bindparam("values", list(values), ARRAY(key.type), unique=True))
        return
    for start in range(0, len(values), MAX_LIST_LENGTH):
        yield key.in_(values[start : start + MAX_LIST_LENGTH])


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
