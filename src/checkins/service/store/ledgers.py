"""Queries for ledgers: the hash chain of each population, its lines, and the releases."""

from __future__ import annotations

import json
import re

from sqlalchemy import Connection, LargeBinary, func, insert, select, update

from checkins.accounting.filters import Filter
from checkins.campaign import campaign_from_canonical
from checkins.errors import OutOfOrder
from checkins.ledger import Ledger, Run
from checkins.ledger.entry import Entry
from checkins.service.store import schema

runs, populations = schema.runs, schema.populations
PREFIX_BYTES = 256
"""The first bytes of a slot's ledger line. They contain its hash, but not its long sum."""
_SLOT_HASH = re.compile(
    rb'\{(?:"contributors":\d+,)?"dtype":(?:"\w+"|null),"entry":\d+,"hash":"([0-9a-f]{64})"'
)


def load_ledger(connection: Connection, population: str) -> Ledger:
    """Return the state of a population's ledger, without reading its lines."""
    c = populations.c
    query = select(c.entries, c.head).where(c.key == population)
    stored = connection.execute(query).one_or_none()
    if stored is None:
        return Ledger()
    query_runs = select(runs).where(runs.c.population == population).order_by(runs.c.position)
    open_runs: list[Run] = []
    closed: list[Run] = []
    for row in connection.execute(query_runs):
        run = Run(
            campaign_from_canonical(row.campaign),
            row.seal,
            row.number,
            row.dimension,
            simulated=False,
            filter=None if row.filter is None else Filter.parse(row.filter),
            slots_closed=row.closed,
            contributors=row.contributors,
        )
        (open_runs if row.ending is None else closed).append(run)
    if len(open_runs) > 1:
        raise OutOfOrder(f"{population}: two runs are open at once")
    running = open_runs[0] if open_runs else None
    return Ledger(stored.entries, stored.head, running, tuple(closed))


def add_population(connection: Connection, population: str, ledger: Ledger) -> None:
    """Add a population whose ledger is empty."""
    values = {"key": population, "entries": ledger.entries, "head": ledger.head}
    connection.execute(insert(populations).values(**values))


def entry_counts(connection: Connection) -> dict[str, int]:
    """Return the number of ledger entries of each population."""
    c = populations.c
    return {row.key: row.entries for row in connection.execute(select(c.key, c.entries))}


def append(connection: Connection, population: str, ledger: Ledger, entry: Entry) -> Ledger:
    """Append an entry and return the new ledger.

    Raise OutOfOrder if the stored ledger has changed since ``ledger`` was loaded.
    """
    after, line = ledger.append(entry)
    c = populations.c
    unchanged = (c.key == population, c.entries == ledger.entries, c.head == ledger.head)
    values = {"entries": after.entries, "head": after.head}
    updated = connection.execute(update(populations).where(*unchanged).values(**values))
    if updated.rowcount != 1:
        raise OutOfOrder(f"{population}: the ledger has changed meanwhile")
    row = {"population": population, "entry": after.entries, "line": line}
    connection.execute(insert(schema.ledger).values(**row))
    return after


def add_release(connection: Connection, run: str, *, slot: int, model_hash: str) -> None:
    connection.execute(insert(schema.releases).values(run=run, slot=slot, model_hash=model_hash))


def last_releases(
    connection: Connection, run: str, *, closed: int, most: int
) -> list[tuple[int, str]]:
    """Return (slot, model hash) of the releases in the last ``most`` slots up to ``closed``."""
    c = schema.releases.c
    query = select(c.slot, c.model_hash).where(c.run == run)
    query = query.where(c.slot <= closed, c.slot > closed - most).order_by(c.slot)
    return [(row.slot, row.model_hash) for row in connection.execute(query)]


def ledger_lines(connection: Connection, population: str, *, after: int, most: int) -> list[bytes]:
    """Return at most ``most`` lines of a ledger, starting after entry ``after``."""
    c = schema.ledger.c
    query = select(c.line).where(c.population == population, c.entry > after)
    return list(connection.execute(query.order_by(c.entry).limit(most)).scalars())


def ledger_heads(connection: Connection, population: str, *, after: int, most: int) -> list[str]:
    """Return the hashes of at most ``most`` lines after entry ``after``.

    The sums of slots, which are long, are not read.
    """
    c = schema.ledger.c
    prefix = func.substr(c.line, 1, PREFIX_BYTES, type_=LargeBinary).label("prefix")
    query = select(c.entry, prefix).where(c.population == population, c.entry > after)
    rows = connection.execute(query.order_by(c.entry).limit(most)).all()
    return [_head(connection, population, row.entry, bytes(row.prefix)) for row in rows]


def _head(connection: Connection, population: str, entry: int, prefix: bytes) -> str:
    slot = _SLOT_HASH.match(prefix)
    if slot is not None:
        return slot[1].decode("ascii")
    (line,) = ledger_lines(connection, population, after=entry - 1, most=1)
    return str(json.loads(line)["hash"])
