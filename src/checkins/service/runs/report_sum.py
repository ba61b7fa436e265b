"""The sum of a slot's reports in bounded memory: read, decoded and added in batches.

Reports are read from the store, and dummy reports are drawn from the operating system's randomness.
``memory_limits`` has the size of a batch. Sums are exact, because reports are integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from checkins.protocol import slot as slots
from checkins.protocol.report import Report
from checkins.protocol.slot import Slot
from checkins.randomizers import DeviceReport, DeviceSampler
from checkins.service.runs.memory_limits import reports_per_batch
from checkins.service.store import participants
from checkins.service.store.database import Connection
from checkins.service.store.run_state import RunSpec


def add_reports_in_batches(connection: Connection, spec: RunSpec, slot: Slot) -> Slot:
    """Return the slot with all reports added, and dummies until at most one batch is missing.

    A dummy report replaces each report that was not durable in time (invariant 6). The caller draws
    the last batch of dummies when it closes the slot. Only one batch of reports is in memory at a
    time (``memory_limits.needed_bytes``).
    """
    batch_size = reports_per_batch(spec.dimension)
    rows = participants.chosen_reports(connection, spec.id, batch_size=batch_size)
    reports = ((receipt, decode_report(content, spec)) for receipt, content in rows)
    slot = slots.add_reports(slot, reports)
    while slot.missing_dummies > batch_size:
        slot = slots.add_dummies(slot, draw_dummies(batch_size, spec.sampler))
    return slot


def decode_report(content: bytes, spec: RunSpec) -> Report:
    """Return a report from its bytes in the store: 32-bit integers in steps of the grid."""
    units: Any = np.frombuffer(content, dtype="<i4").astype(np.int32, copy=False)
    return Report.from_device(DeviceReport(units, spec.sampler.grid))


def draw_dummies(count: int, sampler: DeviceSampler) -> tuple[Report, ...]:
    """Draw dummies: randomized reports of a zero update, in place of missing reports."""
    return tuple(Report.from_device(sampler.dummy()) for _ in range(count))
