"""The state machine of a run in the store: each slot begins, chooses clients and closes.

Each transition is one transaction (invariants 4 to 6). Any worker may call ``advance`` at any time.
It reads the state in an exclusive transaction and makes the next transition if it is due. After a
crash the same function closes every slot that ended meanwhile. ``protocol.server`` defines the
transitions, and this module loads and saves their state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

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
from checkins.service.runs.memory_limits import reports_per_batch
from checkins.service.store import ledgers, participants, run_state
from checkins.service.store.database import Connection, Database
from checkins.service.store.run_state import RunSnapshot, RunSpec, RunState


@dataclass(frozen=True, slots=True)
class SlotChoice:
    """The receipts of all check-ins of a slot, and the receipts that were chosen."""

    slot: int
    waiting: frozenset[str]
    chosen: frozenset[str]


def due(spec: RunSpec, state: RunState) -> float | None:
    """Return when the next transition is due, in Unix time, or None after the last slot."""
    if state.phase is Phase.DONE:
        return None
    if state.phase is Phase.WAITING:
        return spec.times.begins(state.slot)
    if state.slot_phase is slots.Phase.COLLECTING:
        return spec.times.chooses(state.slot)
    return spec.times.ends(state.slot)


def advance(database: Database, spec: RunSpec, known: RunSnapshot) -> RunSnapshot:
    """Commit the next transition, if it is due and the clock does not hold.

    Return the snapshot afterwards. Parts that are the same as in ``known`` are not read again.
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
        next_due = due(spec, closed.state)
        late = next_due is not None and database.now() >= next_due
        return _begin(connection, spec, closed) if late else closed


def _begin(connection: Connection, spec: RunSpec, snapshot: RunSnapshot) -> RunSnapshot:
    server, _ = servers.step(_server(spec, snapshot, None), SlotBegan(snapshot.state.slot))
    state = replace(snapshot.state, phase=server.phase, slot_phase=slots.Phase.COLLECTING)
    return _saved(connection, spec, replace(snapshot, state=state))


def _choose(connection: Connection, spec: RunSpec, snapshot: RunSnapshot) -> RunSnapshot:
    waiting = participants.waiting_receipts(connection, spec.id)
    slot = Slot(snapshot.state.slot, spec.rules, slots.Phase.COLLECTING, waiting)
    _, effects = servers.step(_server(spec, snapshot, slot), randomness.choice(slot))
    for effect in effects:
        if isinstance(effect, RecordChoice):
            participants.save_choice(connection, spec.id, effect.chosen, waiting=len(waiting))
    state = replace(snapshot.state, slot_phase=slots.Phase.CHOOSING)
    return _saved(connection, spec, replace(snapshot, state=state))


def _close(connection: Connection, spec: RunSpec, snapshot: RunSnapshot) -> RunSnapshot:
    """Save the sum, the model and the ledger entry, and erase who took part (invariant 8)."""
    chosen = participants.chosen_receipts(connection, spec.id)
    slot = Slot(snapshot.state.slot, spec.rules, slots.Phase.CHOOSING, chosen=chosen)
    server = _server(spec, snapshot, slot)
    if (recorded := servers.unrecorded(server)) is not None:
        server, _ = servers.step(server, recorded)  # an earlier transaction made the choice durable
    slot = _with_reports(connection, spec, server.slot or slot)
    server, effects = servers.step(
        replace(server, slot=slot), randomness.expiry(slot, spec.sampler)
    )
    (record,) = (effect for effect in effects if isinstance(effect, RecordClosing))
    entry = SlotClosed.of(
        slot=record.slot, total=record.total, model=record.model, contributors=record.contributors
    )
    ledger = ledgers.append(connection, spec.population, snapshot.ledger, entry)
    server, _ = servers.step(server, ClosingRecorded(record.slot))
    run_state.save_learner(connection, spec.id, server.learner)
    if spec.rules.releases(record.slot):
        ledgers.add_release(connection, spec.id, slot=record.slot, model_hash=entry.model_hash)
    participants.erase_slot(connection, spec.id)
    contributors = None if ledger.running is None else ledger.running.contributors
    state = RunState(server.phase, server.closed, contributors=contributors)
    certificate, model_hash = snapshot.certificate, entry.model_hash
    closed = RunSnapshot(state, server.learner, ledger, certificate, model_hash, closed_here=True)
    return _saved(connection, spec, closed)


def _with_reports(connection: Connection, spec: RunSpec, slot: Slot) -> Slot:
    """Return the slot with all reports added, and all dummy reports except the last batch.

    A dummy report, drawn by the server, replaces each report that was not durable in time
    (invariant 6). Only one batch is in memory at a time (``memory_limits.needed_bytes``).
    """
    batch_size = reports_per_batch(spec.dimension)
    stored = participants.chosen_reports(connection, spec.id, batch_size=batch_size)
    reports = ((receipt, stored_report(units, spec)) for receipt, units in stored)
    slot = slots.add_reports(slot, reports)
    while slot.missing > batch_size:
        slot = slots.add_dummies(slot, randomness.some_dummies(batch_size, spec.sampler))
    return slot


def stored_report(stored: bytes, spec: RunSpec) -> Report:
    """Return a report from its bytes in the store."""
    units: Any = np.frombuffer(stored, dtype="<i4").astype(np.int32, copy=False)
    return Report.from_device(DeviceReport(units, spec.sampler.grid))


def _server(spec: RunSpec, snapshot: RunSnapshot, slot: Slot | None) -> Server:
    """Return the protocol's state machine in the state of a snapshot."""
    state = snapshot.state
    return Server(spec.rules, snapshot.learner, state.phase, state.closed, slot)


def _saved(connection: Connection, spec: RunSpec, snapshot: RunSnapshot) -> RunSnapshot:
    """Save the state of a snapshot, and return the snapshot."""
    run_state.save_state(connection, spec.id, snapshot.state)
    return snapshot


def read_choice(database: Database, run: str) -> SlotChoice | None:
    """Return the choice of the slot in progress, or None if it is not durable yet."""
    with database.reading() as connection:
        state = run_state.load_state(connection, run)
        if state.phase is not Phase.OPEN or state.slot_phase is not slots.Phase.CHOOSING:
            return None
        is_chosen = participants.chosen_by_receipt(connection, run)
    chosen = frozenset(receipt for receipt in is_chosen if is_chosen[receipt])
    return SlotChoice(state.slot, frozenset(is_chosen), chosen)


def finish(
    database: Database,
    spec: RunSpec,
    known: RunSnapshot,
    final_certificate: Mapping[str, Any] | None = None,
) -> RunSnapshot:
    """End a run after its last slot: write its certificate to the ledger and erase its clients.

    ``final_certificate`` is needed if the run may have lost more privacy than the ledger records.
    If None, the certificate is computed from the ledger.
    """
    snapshot = database.read(run_state.load_snapshot, spec, known)
    if snapshot.state.phase is not Phase.DONE or snapshot.state.ending is not None:
        return snapshot
    if final_certificate is None:  # slow, so outside any transaction
        final_certificate = certificate(snapshot.ledger).as_dict()
    completed = snapshot.state.closed == spec.rules.slots
    with database.exclusive(spec.id) as connection:
        snapshot = run_state.load_snapshot(connection, spec, snapshot)
        if snapshot.state.ending is not None:
            return snapshot
        entry = Closed(Reason.COMPLETED if completed else Reason.STOPPED, final_certificate)
        ledger = ledgers.append(connection, spec.population, snapshot.ledger, entry)
        state = replace(snapshot.state, ending=Ending.COMPLETED if completed else Ending.STOPPED)
        run_state.save_certificate(connection, spec.id, final_certificate)
        participants.erase_clients(connection, spec.id)
        ended = replace(snapshot, state=state, ledger=ledger, certificate=final_certificate)
        return _saved(connection, spec, ended)


def stop(database: Database, spec: RunSpec, known: RunSnapshot) -> RunSnapshot:
    """Stop a run before its next release, and erase the slot in progress."""
    with database.exclusive(spec.id) as connection:
        snapshot = run_state.load_snapshot(connection, spec, known)
        if snapshot.state.phase is Phase.DONE:
            return snapshot
        participants.erase_slot(connection, spec.id)
        state = replace(snapshot.state, phase=Phase.DONE, slot_phase=None)
        return _saved(connection, spec, replace(snapshot, state=state))
