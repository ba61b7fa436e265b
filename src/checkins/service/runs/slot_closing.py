"""Closing a slot: add the reports, update the model, write the ledger, erase the check-ins.

A dummy report, drawn by the server, replaces each report that was not durable in time (invariant
6). Reports are read and dummy reports are drawn in batches, so that the memory does not grow with
their number (``memory_limits.needed``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from checkins.ledger import SlotClosed
from checkins.protocol import server as servers
from checkins.protocol import slot as slots
from checkins.protocol.report import Report
from checkins.protocol.server import ClosingRecorded, RecordClosing, Server
from checkins.protocol.slot import Slot
from checkins.randomizers import DeviceReport
from checkins.service.runs import randomness
from checkins.service.runs.memory_limits import reports_per_batch
from checkins.service.store import ledgers, participants, run_state
from checkins.service.store.database import Connection
from checkins.service.store.run_spec import RunSpec
from checkins.service.store.run_state import RunSnapshot, RunState


def server_at(spec: RunSpec, snapshot: RunSnapshot, slot: Slot | None) -> Server:
    """Return the protocol's state machine in the state of a snapshot."""
    state = snapshot.state
    return Server(spec.rules, snapshot.learner, state.phase, state.closed, slot)


def close_slot(connection: Connection, spec: RunSpec, snapshot: RunSnapshot) -> RunSnapshot:
    """Save the sum, the model and the ledger entry, and erase who took part (invariant 8).

    The caller must save the state of the returned snapshot.
    """
    state = snapshot.state
    chosen = participants.chosen_receipts(connection, spec.id)
    phase = state.slot_phase or slots.Phase.CHOOSING
    slot = Slot(state.slot, spec.rules, phase, chosen=chosen)
    server = server_at(spec, snapshot, slot)
    if (recorded := servers.unrecorded(server)) is not None:
        server, _ = servers.step(server, recorded)  # an earlier transaction made the choice durable
    slot = _added_up(connection, spec, server.slot or slot)
    server = replace(server, slot=slot)
    server, effects = servers.step(server, randomness.expiry(slot, spec.sampler))
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
    return RunSnapshot(
        RunState(server.phase, server.closed, contributors=contributors),
        server.learner,
        ledger,
        snapshot.certificate,
        entry.model_hash,
        closed_here=True,
    )


def _added_up(connection: Connection, spec: RunSpec, slot: Slot) -> Slot:
    """Return the slot with all reports added, and all dummy reports except the last batch."""
    at_once = reports_per_batch(spec.dimension)

    def reports() -> Iterator[tuple[str, Report]]:
        for receipt, held in participants.chosen_reports(connection, spec.id, at_once=at_once):
            yield receipt, report_of(held, spec)

    slot = slots.add_reports(slot, reports())
    while slot.missing > at_once:
        slot = slots.add_dummies(slot, randomness.some_dummies(at_once, spec.sampler))
    return slot


def report_of(held: bytes, spec: RunSpec) -> Report:
    units: Any = np.frombuffer(held, dtype="<i4").astype(np.int32, copy=False)
    return Report.from_device(DeviceReport(units, spec.sampler.grid))
