"""The state machine of a run in the store: a slot begins, clients are chosen, the slot closes.

Each transition is one transaction (invariants 4 to 6). Any worker may call ``advance`` at any time.
``advance`` reads the state in an exclusive transaction and makes the next transition if it is due.
After a crash, calls of ``advance`` close every slot that ended meanwhile. ``protocol.server``
defines the transitions. This module loads and saves their state, and draws their random values
from the operating system (invariant 13).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from checkins.ledger import Closed, Reason, SlotClosed, certificate
from checkins.ledger.operator_log import OperatorAction
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
from checkins.protocol.slot import Choose, Expired, RecordChoice, Slot
from checkins.randomizers import DeviceSampler
from checkins.service.runs.report_sum import add_reports_in_batches, draw_dummies
from checkins.service.store import ledgers, operators, participants, past_sums, run_state
from checkins.service.store.database import Connection, Database
from checkins.service.store.run_state import RunSnapshot, RunSpec, RunState


@dataclass(frozen=True, slots=True)
class SlotChoice:
    """The receipts of all check-ins of a slot, and the receipts that were chosen."""

    slot: int
    waiting: frozenset[str]
    chosen: frozenset[str]


def next_due_time(spec: RunSpec, state: RunState) -> float | None:
    """Return when the next transition is due (seconds since 1970), or None after the last slot."""
    if state.phase is Phase.DONE:
        return None
    if state.phase is Phase.WAITING:
        return spec.run_schedule.begins(state.slot)
    if state.slot_phase is slots.Phase.COLLECTING:
        return spec.run_schedule.chooses(state.slot)
    return spec.run_schedule.ends(state.slot)


def advance(database: Database, spec: RunSpec, last_known: RunSnapshot) -> RunSnapshot:
    """Commit the next transition, if it is due and the time is not in doubt (``is_holding``).

    Return the snapshot after it. ``last_known`` is the caller's last snapshot of the run; what has
    not changed since then is not read again.
    """
    with database.exclusive_transaction(spec.id) as connection:
        snapshot = run_state.load_snapshot(connection, spec, last_known)
        due_at = next_due_time(spec, snapshot.state)
        if due_at is None or database.clock.is_holding or database.now() < due_at:
            return snapshot
        if snapshot.state.phase is Phase.WAITING:
            return _begin_slot(connection, spec, snapshot)
        if snapshot.state.slot_phase is slots.Phase.COLLECTING:
            return _choose_clients(connection, spec, snapshot)
        snapshot = _close_slot(connection, spec, snapshot)
        due_at = next_due_time(spec, snapshot.state)
        next_has_begun = due_at is not None and database.now() >= due_at
        return _begin_slot(connection, spec, snapshot) if next_has_begun else snapshot


def _begin_slot(connection: Connection, spec: RunSpec, snapshot: RunSnapshot) -> RunSnapshot:
    server, _ = servers.step(_server(spec, snapshot, None), SlotBegan(snapshot.state.slot))
    state = replace(snapshot.state, phase=server.phase, slot_phase=slots.Phase.COLLECTING)
    return _save_state(connection, spec, replace(snapshot, state=state))


def _choose_clients(connection: Connection, spec: RunSpec, snapshot: RunSnapshot) -> RunSnapshot:
    waiting = participants.receipts_by_token(connection, spec.id)
    slot = Slot(snapshot.state.slot, spec.rules, slots.Phase.COLLECTING, waiting)
    _, effects = servers.step(_server(spec, snapshot, slot), draw_choice(slot))
    for effect in effects:
        if isinstance(effect, RecordChoice):
            participants.save_choice(connection, spec.id, effect.receipts, total=len(waiting))
    state = replace(snapshot.state, slot_phase=slots.Phase.CHOOSING)
    return _save_state(connection, spec, replace(snapshot, state=state))


def _close_slot(connection: Connection, spec: RunSpec, snapshot: RunSnapshot) -> RunSnapshot:
    """Save the total, the model and the ledger entry, and erase all check-ins (invariant 8)."""
    chosen = participants.chosen_receipts(connection, spec.id)
    slot = Slot(snapshot.state.slot, spec.rules, slots.Phase.CHOOSING, chosen_receipts=chosen)
    exact_sums = past_sums.load_exact_sums(connection, spec.id, closed=snapshot.state.closed)
    server = replace(_server(spec, snapshot, slot), exact_sums=exact_sums)
    if (event := servers.event_after_restart(server)) is not None:
        server, _ = servers.step(server, event)  # an earlier transaction made the choice durable
    slot = add_reports_in_batches(connection, spec, server.slot or slot)
    server, effects = servers.step(replace(server, slot=slot), draw_expiry(slot, spec.sampler))
    (closing,) = (effect for effect in effects if isinstance(effect, RecordClosing))
    total, contributors = closing.total, closing.contributors
    entry = SlotClosed.of(
        slot=closing.slot, total=total, model=closing.model, contributors=contributors
    )
    ledger = ledgers.append(connection, spec.population, snapshot.ledger, entry)
    server, _ = servers.step(server, ClosingRecorded(closing.slot))
    run_state.save_learner(connection, spec, server.learner)
    _save_past_sums(connection, spec, server)
    if spec.rules.releases_model(closing.slot):
        ledgers.add_release(connection, spec.id, slot=closing.slot, model_hash=entry.model_hash)
    participants.erase_check_ins(connection, spec.id)
    contributors = None if ledger.running is None else ledger.running.contributors
    state = RunState(server.phase, server.closed, contributors=contributors)
    certificate, model_hash = snapshot.certificate, entry.model_hash
    closed = RunSnapshot(
        state, server.learner, ledger, certificate, model_hash, closed_by_this_process=True
    )
    return _save_state(connection, spec, closed)


def _save_past_sums(connection: Connection, spec: RunSpec, server: Server) -> None:
    """Save the sums that later slots need, and erase all others (invariant 16)."""
    if spec.rules.strategy is not None and spec.rules.releases_model(server.closed):
        run, closed = spec.id, server.closed
        past_sums.save_exact_sums(connection, run, server.exact_sums, closed=closed)
        past_sums.save_noisy_sums(connection, run, server.learner.noisy_sums, closed=closed)


def _server(spec: RunSpec, snapshot: RunSnapshot, slot: Slot | None) -> Server:
    """Return the protocol's state machine in the state of a snapshot."""
    state = snapshot.state
    return Server(spec.rules, snapshot.learner, state.phase, state.closed, slot)


def _save_state(connection: Connection, spec: RunSpec, snapshot: RunSnapshot) -> RunSnapshot:
    """Save the state of a snapshot, and return the snapshot unchanged."""
    run_state.save_state(connection, spec.id, snapshot.state)
    return snapshot


def read_choice(database: Database, run: str) -> SlotChoice | None:
    """Return which clients were chosen in the slot in progress, or None before the choice."""
    with database.read_transaction() as connection:
        state = run_state.load_state(connection, run)
        if state.phase is not Phase.OPEN or state.slot_phase is not slots.Phase.CHOOSING:
            return None
        is_chosen = participants.chosen_by_receipt(connection, run)
    chosen = frozenset(receipt for receipt in is_chosen if is_chosen[receipt])
    return SlotChoice(state.slot, frozenset(is_chosen), chosen)


def finish(
    database: Database,
    spec: RunSpec,
    last_known: RunSnapshot,
    final_certificate: Mapping[str, Any] | None = None,
) -> RunSnapshot:
    """End a run after its last slot: write its certificate to the ledger and erase its clients.

    ``final_certificate`` is needed if the run may have lost more privacy than the ledger records,
    as after a restore from a backup. If None, the certificate is computed from the ledger.
    """
    snapshot = database.read(run_state.load_snapshot, spec, last_known)
    if snapshot.state.phase is not Phase.DONE or snapshot.state.ending is not None:
        return snapshot
    if final_certificate is None:  # slow, so outside any transaction
        final_certificate = certificate(snapshot.ledger).as_dict()
    is_complete = snapshot.state.closed == spec.rules.slots
    with database.exclusive_transaction(spec.id) as connection:
        snapshot = run_state.load_snapshot(connection, spec, snapshot)
        if snapshot.state.ending is not None:
            return snapshot
        entry = Closed(Reason.COMPLETED if is_complete else Reason.STOPPED, final_certificate)
        ledger = ledgers.append(connection, spec.population, snapshot.ledger, entry)
        state = replace(snapshot.state, ending=Ending.COMPLETED if is_complete else Ending.STOPPED)
        run_state.save_certificate(connection, spec.id, final_certificate)
        participants.erase_clients(connection, spec.id)
        ended = replace(snapshot, state=state, ledger=ledger, certificate=final_certificate)
        return _save_state(connection, spec, ended)


def stop(
    database: Database, spec: RunSpec, last_known: RunSnapshot, *, operator: str | None = None
) -> RunSnapshot:
    """Stop a run before its next release, and erase the check-ins of the slot in progress.

    ``operator`` is who stops it, for the log of actions; None if the service itself does.
    """
    with database.exclusive_transaction(spec.id) as connection:
        snapshot = run_state.load_snapshot(connection, spec, last_known)
        if snapshot.state.phase is Phase.DONE:
            return snapshot
        participants.erase_check_ins(connection, spec.id)
        past_sums.erase_exact_sums(connection, spec.id)
        if operator is not None:
            action, now = OperatorAction.CAMPAIGN_STOPPED, database.now()
            operators.append_to_log(
                connection, action, operator=operator, now=now, campaign=spec.id
            )
        state = replace(snapshot.state, phase=Phase.DONE, slot_phase=None)
        return _save_state(connection, spec, replace(snapshot, state=state))


def draw_choice(slot: Slot) -> Choose:
    """Draw which waiting clients are chosen: a uniformly random subset of the required size."""
    return Choose(slot.number, tuple(secrets.randbelow(bound) for bound in slot.ranges))


def draw_expiry(slot: Slot, sampler: DeviceSampler) -> Expired:
    """Draw what a slot needs to close: dummy reports for missing ones, or the server's noise."""
    dummies = draw_dummies(slot.missing_dummies, sampler)
    noise = Report.from_noise(sampler.noise()) if slot.needs_noise else None
    return Expired(slot.number, dummies, noise)
