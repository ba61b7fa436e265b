"""The random draws of the server, all from the operating system (invariant 13).

A dummy report is a randomized report of a zero update, drawn in place of a missing report.
"""

from __future__ import annotations

import secrets
from base64 import urlsafe_b64encode

from checkins.protocol.report import Report
from checkins.protocol.slot import Choose, Expired, Slot
from checkins.randomizers import DeviceSampler

RECEIPT_BYTES = 24  # number of random bytes in a receipt


def draw_choice(slot: Slot) -> Choose:
    """Draw which waiting clients are chosen: a uniformly random subset of the required size."""
    return Choose(slot.number, tuple(secrets.randbelow(bound) for bound in slot.ranges))


def draw_expiry(slot: Slot, sampler: DeviceSampler) -> Expired:
    """Draw what a slot needs to close: dummy reports for missing ones, or the server's noise."""
    dummies = draw_dummies(slot.missing_dummies, sampler)
    noise = Report.from_noise(sampler.noise()) if slot.needs_noise else None
    return Expired(slot.number, dummies, noise)


def draw_dummies(count: int, sampler: DeviceSampler) -> tuple[Report, ...]:
    """Draw ``count`` dummy reports."""
    return tuple(Report.from_device(sampler.dummy()) for _ in range(count))


def draw_receipts(count: int) -> list[str]:
    """Draw ``count`` receipts, which are pseudonyms of check-ins that nobody can guess."""
    random_bytes = secrets.token_bytes(RECEIPT_BYTES * count)  # one system call for all receipts
    return [
        urlsafe_b64encode(random_bytes[start : start + RECEIPT_BYTES]).decode()
        for start in range(0, len(random_bytes), RECEIPT_BYTES)
    ]
