"""The server's dice: drawn from the operating system, and from nowhere else (invariant 13)."""

from __future__ import annotations

import secrets
from base64 import urlsafe_b64encode
from collections.abc import Sequence

from checkins.protocol.report import Report
from checkins.protocol.slot import Choose, Expired, Slot
from checkins.randomizers import DeviceSampler

RECEIPT_BYTES = TOKEN_BYTES = 24


def choice(slot: Slot) -> Choose:
    """Which of those who wait are used: every subset is equally likely, exactly."""
    return Choose(slot.number, _uniform(slot.ranges))


def expiry(slot: Slot, sampler: DeviceSampler) -> Expired:
    """The dummies, or the noise, that a slot needs to close."""
    dummies = some_dummies(slot.missing, sampler)
    noise = Report.from_noise(sampler.noise()) if slot.wants_noise else None
    return Expired(slot.number, dummies, noise)


def some_dummies(count: int, sampler: DeviceSampler) -> tuple[Report, ...]:
    """So many stand-ins for reports."""
    return tuple(Report.from_device(sampler.dummy()) for _ in range(count))


def receipts(count: int) -> list[str]:
    """A pseudonym for each of so many check-ins; nobody guesses one."""
    drawn = secrets.token_bytes(RECEIPT_BYTES * count)  # one call to the system for all
    return [
        urlsafe_b64encode(drawn[start : start + RECEIPT_BYTES]).decode()
        for start in range(0, len(drawn), RECEIPT_BYTES)
    ]


def token() -> str:
    """A client's one participation in a run."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def _uniform(ranges: Sequence[int]) -> tuple[int, ...]:
    return tuple(secrets.randbelow(below) for below in ranges)
