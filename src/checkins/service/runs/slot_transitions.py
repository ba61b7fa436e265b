"""Slot transitions by the clock, one transaction each: begin, choose, close (invariants 4–6).

Any worker may try at any moment: ``advance`` reads the state of the run in an exclusive transaction
and does what is due, or nothing. A worker that comes second finds it done. A coordinator that
recovers from a crash does the same for every slot that it missed: reports that were durable in time
count, and dummies replace all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

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
from checkins.service.runs import randomness
from checkins.service.runs.memory_limits import batch_of
from checkins.service.store import ledgers, participants, run_state
from checkins.service.store.database import Connection, Database
from checkins.service.store.run_spec import RunSpec
from checkins.service.store.run_state import RunSnapshot, RunState


@dataclass(frozen=True, slots=True)
class SlotChoice:
    """The receipts that wait in a slot, and those that were chosen."""

    slot: int
    waiting: frozenset[str]
    chosen: frozenset[str]


def due(spec: RunSpec, state: RunState) -> float | None:
    """Return when the next transition is due, in seconds since 1970; None after the last slot."""
    if state.phase is Phase.DONE:
        return None
    if state.phase is Phase.WAITING:
        return spec.times.begins(state.slot)
    if state.slot_phase is slots.Phase.COLLECTING:
        return spec.times.chooses(state.slot)
    return spec.times.ends(state.slot)


def advance(database: Database, spec: RunSpec, known: RunSnapshot) -> RunSnapshot:
    """Make the next transition that is due, durably, and return the snapshot after it.

    Nothing is done while the clock holds. Another worker may have made the transition.
    """
    with database.exclusive(spec.id) as connection:
        snapshot = run_state.load_snapshot(connection, spec, known)
        moment = due(spec, snapshot.state)
        if moment is None or database.clock.holds or database.now() < moment:
            return snapshot
        if snapshot.state.phase is Phase.WAITING:
            return _begin(connection, spec, snapshot)
        if snapshot.state.slot_phase is slots.Phase.COLLECTING:
            return _choose(connection, spec, snapshot)
        closed = _close(connection, spec, snapshot)
        follows = due(spec, closed.state)
        late = follows is not None and database.now() >= follows
        return _begin(connection, spec, closed) if late else closed


def server_at(spec: RunSpec, snapshot: RunSnapshot, slot: Slot | None) -> Server:
    """Return the state machine in the state of a snapshot."""
    state = snapshot.state
    return Server(spec.rules, snapshot.learner, state.phase, state.closed, slot)


def _begin(connection: Connection, spec: RunSpec, snapshot: RunSnapshot) -> RunSnapshot:
    server, _ = servers.step(server_at(spec, snapshot, None), SlotBegan(snapshot.state.slot))
    state = replace(snapshot.state, phase=server.phase, slot_phase=slots.Phase.COLLECTING)
    return _at(connection, spec, snapshot, state)


def _choose(connection: Connection, spec: RunSpec, snapshot: RunSnapshot) -> RunSnapshot:
    slot = _loaded(connection, spec, snapshot.state)
    _, effects = servers.step(server_at(spec, snapshot, slot), randomness.choice(slot))
    for effect in effects:
        if isinstance(effect, RecordChoice):
            participants.save_choice(connection, spec.id, effect.chosen, waiting=len(slot.waiting))
    return _at(connection, spec, snapshot, replace(snapshot.state, slot_phase=slots.Phase.CHOOSING))


def _close(connection: Connection, spec: RunSpec, snapshot: RunSnapshot) -> RunSnapshot:
    """Save sum, model and ledger entry, and erase who took part (invariant 8)."""
    server = server_at(spec, snapshot, _chosen(connection, spec, snapshot.state))
    recorded = servers.unrecorded(server)  # the choice is durable since its transaction
    if recorded is not None:
        server, _ = servers.step(server, recorded)
    server = _added_up(connection, spec, server)
    if server.slot is None:
        raise OutOfOrder("a slot that closes is in progress")
    server, effects = servers.step(server, randomness.expiry(server.slot, spec.sampler))
    (record,) = (effect for effect in effects if isinstance(effect, RecordClosing))
    entry = SlotClosed.of(
        slot=record.slot,
        total=record.total,
        model=record.model,
        contributors=record.contributors,
    )
    ledger = ledgers.append(connection, spec.population, snapshot.ledger, entry)
    server, _ = servers.step(server, ClosingRecorded(record.slot))
    run_state.save_learner(connection, spec.id, server.learner)
    if spec.rules.releases(record.slot):
        ledgers.add_release(connection, spec.id, slot=record.slot, model_hash=entry.model_hash)
    participants.erase_slot(connection, spec.id)
    run = ledger.running
    state = RunState(
        server.phase, server.closed, contributors=None if run is None else run.contributors
    )
    after = replace(
        snapshot,
        learner=server.learner,
        ledger=ledger,
        model_hash=entry.model_hash,
        closed_here=True,
    )
    return _at(connection, spec, after, state)


def _added_up(connection: Connection, spec: RunSpec, server: Server) -> Server:
    """Add the reports as they are read, and most dummies as they are drawn, a batch at a time.

    Its memory does not grow with their number (``memory_limits.needed``).
    """
    if server.slot is None:
        return server
    slot = slots.add_reports(server.slot, _stored_reports(connection, spec))
    at_once = batch_of(spec.dimension)
    while slot.missing > at_once:
        slot = slots.add_dummies(slot, randomness.some_dummies(at_once, spec.sampler))
    return replace(server, slot=slot)


def _stored_reports(connection: Connection, spec: RunSpec) -> Iterator[tuple[str, Report]]:
    """Yield the reports of those who were chosen, with their receipts, read in batches."""
    at_once = batch_of(spec.dimension)
    for receipt, held in participants.chosen_reports(connection, spec.id, at_once=at_once):
        yield receipt, report_of(held, spec)


def _at(
    connection: Connection, spec: RunSpec, snapshot: RunSnapshot, state: RunState
) -> RunSnapshot:
    run_state.save_state(connection, spec.id, state)
    return replace(snapshot, state=state)


def _loaded(connection: Connection, spec: RunSpec, state: RunState) -> Slot:
    """Return the slot in progress before its choice."""
    waiting = participants.waiting(connection, spec.id)
    return Slot(state.slot, spec.rules, state.slot_phase or slots.Phase.COLLECTING, waiting)


def _chosen(connection: Connection, spec: RunSpec, state: RunState) -> Slot:
    """Return the slot in progress after its choice, without its reports."""
    receipts = participants.chosen_receipts(connection, spec.id)
    phase = state.slot_phase or slots.Phase.CHOOSING
    return Slot(state.slot, spec.rules, phase, chosen=receipts)


def report_of(held: bytes, spec: RunSpec) -> Report:
    """Return a stored report."""
    units: Any = np.frombuffer(held, dtype="<i4").astype(np.int32, copy=False)
    return Report.from_device(DeviceReport(units, spec.sampler.grid))


def read_choice(database: Database, run: str) -> SlotChoice | None:
    """Return the choice of the slot in progress; None before it is durable."""
    with database.reading() as connection:
        state = run_state.load_state(connection, run)
        if state.phase is not Phase.OPEN or state.slot_phase is not slots.Phase.CHOOSING:
            return None
        chosen = participants.choices(connection, run)
    return SlotChoice(
        state.slot, frozenset(chosen), frozenset(one for one in chosen if chosen[one])
    )


def finish(
    database: Database, spec: RunSpec, known: RunSnapshot, stated: Mapping[str, Any] | None = None
) -> RunSnapshot:
    """Close the ledger of a run whose slots are over with its certificate, and erase its clients.

    ``stated`` is the certificate of a run whose privacy loss may exceed what its ledger records;
    None: the certificate is computed from the ledger.
    """
    with database.reading() as connection:
        snapshot = run_state.load_snapshot(connection, spec, known)
    if snapshot.state.phase is not Phase.DONE or snapshot.state.ending is not None:
        return snapshot
    if stated is None:
        stated = certificate(snapshot.ledger).as_dict()  # takes a while: outside any transaction
    completed = snapshot.state.closed == spec.rules.slots
    with database.exclusive(spec.id) as connection:
        snapshot = run_state.load_snapshot(connection, spec, snapshot)
        if snapshot.state.ending is not None:
            return snapshot
        reason = Reason.COMPLETED if completed else Reason.STOPPED
        entry = Closed(reason, stated)
        ledger = ledgers.append(connection, spec.population, snapshot.ledger, entry)
        state = replace(snapshot.state, ending=Ending.COMPLETED if completed else Ending.STOPPED)
        run_state.save_certificate(connection, spec.id, stated)
        participants.erase_clients(connection, spec.id)
        after = replace(snapshot, ledger=ledger, certificate=stated)
        return _at(connection, spec, after, state)


def stop(database: Database, spec: RunSpec, known: RunSnapshot) -> RunSnapshot:
    """End a run before its next release; the slot in progress is erased."""
    with database.exclusive(spec.id) as connection:
        snapshot = run_state.load_snapshot(connection, spec, known)
        if snapshot.state.phase is Phase.DONE:
            return snapshot
        participants.erase_slot(connection, spec.id)
        return _at(
            connection, spec, snapshot, replace(snapshot.state, phase=Phase.DONE, slot_phase=None)
        )
