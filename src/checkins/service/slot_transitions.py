"""What the clock does to a run, one transaction at a time: begin, choose, close (invariants 4–6).

Any worker may try at any moment: ``advance`` looks at where the run stands in the database, with
nobody else in it, and does what is due, or nothing. A worker that comes second finds it done. A
coordinator that comes back late does the same for every slot that it missed: what was durable in
time counts, all else is a dummy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sqlalchemy import Connection, delete, select, update

from checkins.errors import OutOfOrder
from checkins.ledger import Closed, Reason, SlotClosed, certificate
from checkins.protocol import server as servers
from checkins.protocol import slot as slots
from checkins.protocol.report import Report
from checkins.protocol.server import (
    ClosingRecorded,
    Ending,
    Phase,
    RecordClosing,
    Server,
    SlotBegan,
)
from checkins.protocol.slot import RecordChoice, Slot
from checkins.randomizers import DeviceReport
from checkins.service import randomness
from checkins.service.memory import batch_of
from checkins.service.run_spec import RunSpec
from checkins.service.store import records, tables
from checkins.service.store.database import Database
from checkins.service.store.records import RunSnapshot, RunState

check_ins = tables.check_ins


@dataclass(frozen=True, slots=True)
class Choice:
    """Who waits in a slot and who of them is used; read once its transaction is over."""

    slot: int
    waiting: frozenset[str]
    chosen: frozenset[str]


def due(terms: RunSpec, stage: RunState) -> float | None:
    """When the clock has something to do next; None once the slots are over."""
    if stage.phase is Phase.DONE:
        return None
    if stage.phase is Phase.WAITING:
        return terms.begins(stage.slot)
    if stage.slot_phase is slots.Phase.COLLECTING:
        return terms.chooses(stage.slot)
    return terms.ends(stage.slot)


def advance(database: Database, terms: RunSpec, known: RunSnapshot) -> RunSnapshot:
    """Do the next thing that is due, if there is one, and make it durable.

    Nothing is done while the clock holds. Where the run stands then, whoever brought it there.
    """
    with database.exclusive(terms.id) as connection:
        standing = records.load_standing(connection, terms, known)
        moment = due(terms, standing.stage)
        if moment is None or database.clock.holds or database.now() < moment:
            return standing
        if standing.stage.phase is Phase.WAITING:
            return _begin(connection, terms, standing)
        if standing.stage.slot_phase is slots.Phase.COLLECTING:
            return _choose(connection, terms, standing)
        closed = _close(connection, terms, standing)
        follows = due(terms, closed.stage)
        late = follows is not None and database.now() >= follows
        return _begin(connection, terms, closed) if late else closed


def server_at(terms: RunSpec, standing: RunSnapshot, slot: Slot | None) -> Server:
    """The machine, set to where the run stands."""
    stage = standing.stage
    return Server(terms.rules, standing.learner, stage.phase, stage.closed, slot)


def _begin(connection: Connection, terms: RunSpec, standing: RunSnapshot) -> RunSnapshot:
    server, _ = servers.step(server_at(terms, standing, None), SlotBegan(standing.stage.slot))
    stage = replace(standing.stage, phase=server.phase, slot_phase=slots.Phase.COLLECTING)
    return _at(connection, terms, standing, stage)


def _choose(connection: Connection, terms: RunSpec, standing: RunSnapshot) -> RunSnapshot:
    slot = _loaded(connection, terms, standing.stage)
    _, effects = servers.step(server_at(terms, standing, slot), randomness.choice(slot))
    for effect in effects:
        if isinstance(effect, RecordChoice):
            _save_choice(connection, terms.id, slot, effect.chosen)
    return _at(
        connection, terms, standing, replace(standing.stage, slot_phase=slots.Phase.CHOOSING)
    )


def _save_choice(connection: Connection, run: str, slot: Slot, chosen: tuple[str, ...]) -> None:
    everyone = len(chosen) == len(slot.waiting)
    if slot.waiting:
        connection.execute(update(check_ins).where(check_ins.c.run == run).values(chosen=everyone))
    if chosen and not everyone:
        for start in range(0, len(chosen), 500):
            some = chosen[start : start + 500]
            connection.execute(
                update(check_ins)
                .where(check_ins.c.run == run, check_ins.c.receipt.in_(some))
                .values(chosen=True)
            )


def _close(connection: Connection, terms: RunSpec, standing: RunSnapshot) -> RunSnapshot:
    """One transaction: reports, model, ledger; and who took part is forgotten (invariant 8)."""
    server = server_at(terms, standing, _chosen(connection, terms, standing.stage))
    recorded = servers.unrecorded(server)  # the choice is durable since its transaction
    if recorded is not None:
        server, _ = servers.step(server, recorded)
    server = _added_up(connection, terms, server)
    if server.slot is None:
        raise OutOfOrder("a slot that closes is in progress")
    server, effects = servers.step(server, randomness.expiry(server.slot, terms.sampler))
    (record,) = (effect for effect in effects if isinstance(effect, RecordClosing))
    entry = SlotClosed.of(
        slot=record.slot,
        total=record.total,
        model=record.model,
        contributors=record.contributors,
    )
    ledger = records.append(connection, terms.population, standing.ledger, entry)
    server, _ = servers.step(server, ClosingRecorded(record.slot))
    records.save_learner(connection, terms.id, server.learner)
    if terms.rules.releases(record.slot):
        records.add_release(connection, terms.id, slot=record.slot, model_hash=entry.model_hash)
    connection.execute(delete(check_ins).where(check_ins.c.run == terms.id))
    run = ledger.running
    stage = RunState(
        server.phase, server.closed, contributors=None if run is None else run.contributors
    )
    after = replace(
        standing,
        learner=server.learner,
        ledger=ledger,
        model_hash=entry.model_hash,
        closed_here=True,
    )
    return _at(connection, terms, after, stage)


def _added_up(connection: Connection, terms: RunSpec, server: Server) -> Server:
    """Sum the reports as they are read, and most dummies as they are drawn, a batch at a time.

    What it needs of memory does not grow with how many there are (``memory.needed``).
    """
    if server.slot is None:
        return server
    slot = slots.add_reports(server.slot, _stored_reports(connection, terms))
    at_once = batch_of(terms.dimension)
    while slot.missing > at_once:
        slot = slots.add_dummies(slot, randomness.some_dummies(at_once, terms.sampler))
    return replace(server, slot=slot)


def _stored_reports(connection: Connection, terms: RunSpec) -> Iterator[tuple[str, Report]]:
    """The reports of those who were chosen, with their receipts, read in batches."""
    last = ""
    while True:
        rows = connection.execute(
            select(check_ins.c.receipt, check_ins.c.report)
            .where(check_ins.c.run == terms.id, check_ins.c.receipt > last)
            .where(check_ins.c.chosen, check_ins.c.report.is_not(None))
            .order_by(check_ins.c.receipt)
            .limit(batch_of(terms.dimension))
        ).all()
        if not rows:
            return
        last = rows[-1].receipt
        for row in rows:
            yield row.receipt, report_of(row.report, terms)
        del rows, row  # before the next batch is read


def _at(
    connection: Connection, terms: RunSpec, standing: RunSnapshot, stage: RunState
) -> RunSnapshot:
    records.save_stage(connection, terms.id, stage)
    return replace(standing, stage=stage)


def _loaded(connection: Connection, terms: RunSpec, stage: RunState) -> Slot:
    """The slot in progress before its choice."""
    rows = connection.execute(
        select(check_ins.c.token, check_ins.c.receipt).where(check_ins.c.run == terms.id)
    )
    waiting = {row.token: row.receipt for row in rows}
    return Slot(stage.slot, terms.rules, stage.slot_phase or slots.Phase.COLLECTING, waiting)


def _chosen(connection: Connection, terms: RunSpec, stage: RunState) -> Slot:
    """The slot in progress after its choice, as far as closing it needs: without its reports."""
    receipts = connection.execute(
        select(check_ins.c.receipt).where(check_ins.c.run == terms.id, check_ins.c.chosen)
    ).scalars()
    phase = stage.slot_phase or slots.Phase.CHOOSING
    return Slot(stage.slot, terms.rules, phase, chosen=tuple(receipts))


def report_of(held: bytes, terms: RunSpec) -> Report:
    """A report as it was taken."""
    units: Any = np.frombuffer(held, dtype="<i4").astype(np.int32, copy=False)
    return Report.from_device(DeviceReport(units, terms.sampler.grid))


def read_choice(database: Database, run: str) -> Choice | None:
    """The choice of the slot in progress, once it is durable; None before."""
    with database.reading() as connection:
        stage = records.load_stage(connection, run)
        if stage.phase is not Phase.OPEN or stage.slot_phase is not slots.Phase.CHOOSING:
            return None
        rows = connection.execute(
            select(check_ins.c.receipt, check_ins.c.chosen).where(check_ins.c.run == run)
        ).all()
    waiting = frozenset(row.receipt for row in rows)
    return Choice(stage.slot, waiting, frozenset(row.receipt for row in rows if row.chosen))


def finish(
    database: Database, terms: RunSpec, known: RunSnapshot, stated: Mapping[str, Any] | None = None
) -> RunSnapshot:
    """Close the ledger of a run whose slots are over, with what it cost; nothing else is kept.

    ``stated`` is for a run that may have cost more than its ledger knows.
    """
    with database.reading() as connection:
        standing = records.load_standing(connection, terms, known)
    if standing.stage.phase is not Phase.DONE or standing.stage.ending is not None:
        return standing
    if stated is None:
        stated = certificate(standing.ledger).as_dict()  # takes a while: outside any transaction
    completed = standing.stage.closed == terms.rules.slots
    with database.exclusive(terms.id) as connection:
        standing = records.load_standing(connection, terms, standing)
        if standing.stage.ending is not None:
            return standing
        reason = Reason.COMPLETED if completed else Reason.STOPPED
        entry = Closed(reason, stated)
        ledger = records.append(connection, terms.population, standing.ledger, entry)
        stage = replace(standing.stage, ending=Ending.COMPLETED if completed else Ending.STOPPED)
        records.save_certificate(connection, terms.id, stated)
        for table in (tables.tokens, tables.enrolments, tables.enrolled, check_ins):
            connection.execute(delete(table).where(table.c.run == terms.id))
        after = replace(standing, ledger=ledger, certificate=stated)
        return _at(connection, terms, after, stage)


def stop(database: Database, terms: RunSpec, known: RunSnapshot) -> RunSnapshot:
    """End a run before its next release; the slot in progress is forgotten."""
    with database.exclusive(terms.id) as connection:
        standing = records.load_standing(connection, terms, known)
        if standing.stage.phase is Phase.DONE:
            return standing
        connection.execute(delete(check_ins).where(check_ins.c.run == terms.id))
        return _at(
            connection, terms, standing, replace(standing.stage, phase=Phase.DONE, slot_phase=None)
        )
