"""The state machine of a run in the store.

Each slot begins, chooses clients and closes; then the run is finished. Each transition is one
transaction (invariants 4 to 6). Any worker may call ``advance`` at any time. It reads the state in
an exclusive transaction and makes the next transition if it is due. After a crash the same function
closes every slot that ended meanwhile. ``protocol.server`` defines the transitions, and this module
loads and saves their state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from checkins.ledger import Closed, Reason, certificate
from checkins.protocol import server as servers
from checkins.protocol import slot as slots
from checkins.protocol.server import Ending, Phase, SlotBegan
from checkins.protocol.slot import RecordChoice, Slot
from checkins.service.runs import randomness
from checkins.service.runs.slot_closing import close_slot, server_at
from checkins.service.store import ledgers, participants, run_state
from checkins.service.store.database import Connection, Database
from checkins.service.store.run_spec import RunSpec
from checkins.service.store.run_state import RunSnapshot, RunState


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
        closed = close_slot(connection, spec, snapshot)
        closed = _at(connection, spec, closed, closed.state)
        follows = due(spec, closed.state)
        late = follows is not None and database.now() >= follows
        return _begin(connection, spec, closed) if late else closed


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


def _at(
    connection: Connection, spec: RunSpec, snapshot: RunSnapshot, state: RunState
) -> RunSnapshot:
    run_state.save_state(connection, spec.id, state)
    return replace(snapshot, state=state)


def _loaded(connection: Connection, spec: RunSpec, state: RunState) -> Slot:
    """Return the slot in progress, in which no client has been chosen yet."""
    waiting = participants.waiting(connection, spec.id)
    return Slot(state.slot, spec.rules, state.slot_phase or slots.Phase.COLLECTING, waiting)


def read_choice(database: Database, run: str) -> SlotChoice | None:
    """Return the choice of the slot in progress, or None if it is not durable yet."""
    with database.reading() as connection:
        state = run_state.load_state(connection, run)
        if state.phase is not Phase.OPEN or state.slot_phase is not slots.Phase.CHOOSING:
            return None
        chosen = participants.choices(connection, run)
    return SlotChoice(state.slot, frozenset(chosen), frozenset(filter(chosen.get, chosen)))


def finish(
    database: Database, spec: RunSpec, known: RunSnapshot, stated: Mapping[str, Any] | None = None
) -> RunSnapshot:
    """End a run after its last slot: write its certificate to the ledger and erase its clients.

    ``stated`` is the certificate, if the run may have lost more privacy than the ledger records. If
    None, the certificate is computed from the ledger.
    """
    snapshot = database.read(run_state.load_snapshot, spec, known)
    if snapshot.state.phase is not Phase.DONE or snapshot.state.ending is not None:
        return snapshot
    if stated is None:
        stated = certificate(snapshot.ledger).as_dict()  # slow, so outside any transaction
    completed = snapshot.state.closed == spec.rules.slots
    with database.exclusive(spec.id) as connection:
        snapshot = run_state.load_snapshot(connection, spec, snapshot)
        if snapshot.state.ending is not None:
            return snapshot
        entry = Closed(Reason.COMPLETED if completed else Reason.STOPPED, stated)
        ledger = ledgers.append(connection, spec.population, snapshot.ledger, entry)
        state = replace(snapshot.state, ending=Ending.COMPLETED if completed else Ending.STOPPED)
        run_state.save_certificate(connection, spec.id, stated)
        participants.erase_clients(connection, spec.id)
        return _at(connection, spec, replace(snapshot, ledger=ledger, certificate=stated), state)


def stop(database: Database, spec: RunSpec, known: RunSnapshot) -> RunSnapshot:
    """Stop a run before its next release, and erase the slot in progress."""
    with database.exclusive(spec.id) as connection:
        snapshot = run_state.load_snapshot(connection, spec, known)
        if snapshot.state.phase is Phase.DONE:
            return snapshot
        participants.erase_slot(connection, spec.id)
        state = replace(snapshot.state, phase=Phase.DONE, slot_phase=None)
        return _at(connection, spec, snapshot, state)
