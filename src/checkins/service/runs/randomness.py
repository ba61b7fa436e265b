"""Randomness of the server: drawn from the operating system only (invariant 13)."""

from __future__ import annotations

import secrets
from base64 import urlsafe_b64encode

from checkins.protocol.report import Report
from checkins.protocol.slot import Choose, Expired, Slot
from checkins.randomizers import DeviceSampler

RECEIPT_BYTES = 24  # number of random bytes in a receipt


def choice(slot: Slot) -> Choose:
    """Draw the choice among waiting clients: all subsets are equally likely, exactly."""
    return Choose(slot.number, tuple(secrets.randbelow(below) for below in slot.ranges))


def expiry(slot: Slot, sampler: DeviceSampler) -> Expired:
    """Draw the dummies, or the noise, that a slot needs to close."""
    dummies = some_dummies(slot.missing, sampler)
    noise = Report.from_noise(sampler.noise()) if slot.wants_noise else None
    return Expired(slot.number, dummies, noise)


def some_dummies(count: int, sampler: DeviceSampler) -> tuple[Report, ...]:
    """Draw ``count`` dummies, which take the place of missing reports."""
    return tuple(Report.from_device(sampler.dummy()) for _ in range(count))


def receipts(count: int) -> list[str]:
    """Draw ``count`` receipts, pseudonyms of check-ins that cannot be guessed."""
    drawn = secrets.token_bytes(RECEIPT_BYTES * count)  # one call to the system for all
    return [
        urlsafe_b64encode(drawn[start : start + RECEIPT_BYTES]).decode()
        for start in range(0, len(drawn), RECEIPT_BYTES)
    ]
