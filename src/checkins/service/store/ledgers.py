"""Queries for ledgers and releases. Each population has one ledger, a hash chain of lines.

The head of a ledger is the hash of its last line.
"""

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
LINE_PREFIX_BYTES = 256
"""Number of bytes at the start of a slot's ledger line that are read to find the line's hash.

The rest of the line is the sum of the slot's reports, which is long.
"""
_SLOT_HASH_PATTERN = re.compile(
    rb'\{(?:"contributors":\d+,)?"dtype":(?:"\w+"|null),"entry":\d+,"hash":"([0-9a-f]{64})"'
)


def load_ledger(connection: Connection, population: str) -> Ledger:
    """Return the state of a population's ledger, without reading its lines."""
    c = populations.c
    query = select(c.entries, c.head).where(c.key == population)
    ledger_row = connection.execute(query).one_or_none()
    if ledger_row is None:
        return Ledger()
    query_runs = select(runs).where(runs.c.population == population).order_by(runs.c.position)
    open_runs: list[Run] = []
    closed_runs: list[Run] = []
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
        (open_runs if row.ending is None else closed_runs).append(run)
    if len(open_runs) > 1:
        raise OutOfOrder(f"{population}: two runs are open at once")
    running = open_runs[0] if open_runs else None
    return Ledger(ledger_row.entries, ledger_row.head, running, tuple(closed_runs))


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
    new_ledger, line = ledger.append(entry)
    c = populations.c
    unchanged = (c.key == population, c.entries == ledger.entries, c.head == ledger.head)
    values = {"entries": new_ledger.entries, "head": new_ledger.head}
    updated = connection.execute(update(populations).where(*unchanged).values(**values))
    if updated.rowcount != 1:
        raise OutOfOrder(f"{population}: the ledger has changed meanwhile")
    row = {"population": population, "entry": new_ledger.entries, "line": line}
    connection.execute(insert(schema.ledger).values(**row))
    return new_ledger


def add_release(connection: Connection, run: str, *, slot: int, model_hash: str) -> None:
    connection.execute(insert(schema.releases).values(run=run, slot=slot, model_hash=model_hash))


def last_releases(
    connection: Connection, run: str, *, last_slot: int, slots: int
) -> list[tuple[int, str]]:
    """Return (slot, model hash) of each release in the last ``slots`` slots up to ``last_slot``."""
    c = schema.releases.c
    query = select(c.slot, c.model_hash).where(c.run == run)
    query = query.where(c.slot <= last_slot, c.slot > last_slot - slots).order_by(c.slot)
    return [(row.slot, row.model_hash) for row in connection.execute(query)]


def ledger_lines(connection: Connection, population: str, *, after: int, limit: int) -> list[bytes]:
    """Return at most ``limit`` lines of a ledger, starting after entry ``after``."""
    c = schema.ledger.c
    query = select(c.line).where(c.population == population, c.entry > after)
    return list(connection.execute(query.order_by(c.entry).limit(limit)).scalars())


def ledger_heads(connection: Connection, population: str, *, after: int, limit: int) -> list[str]:
    """Return the hashes of at most ``limit`` lines of a ledger, starting after entry ``after``.

    Only the beginning of a slot's line is read, because its sum of reports is long.
    """
    c = schema.ledger.c
    prefix = func.substr(c.line, 1, LINE_PREFIX_BYTES, type_=LargeBinary).label("prefix")
    query = select(c.entry, prefix).where(c.population == population, c.entry > after)
    rows = connection.execute(query.order_by(c.entry).limit(limit)).all()
    return [_line_hash(connection, population, row.entry, bytes(row.prefix)) for row in rows]


def _line_hash(connection: Connection, population: str, entry: int, prefix: bytes) -> str:
    match = _SLOT_HASH_PATTERN.match(prefix)
    if match is not None:
        return match[1].decode("ascii")
    (line,) = ledger_lines(connection, population, after=entry - 1, limit=1)
    return str(json.loads(line)["hash"])
