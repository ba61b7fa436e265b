"""The randomness of a device: from the operating system, never seeded."""

from __future__ import annotations

import secrets

from checkins.protocol.participant import COIN


class DeviceRandomness:
    """Random draws of a device other than its noise; tests substitute fixed values."""

    def coin(self) -> int:
        """Return an integer uniform on [0, 2^64)."""
        return secrets.randbelow(COIN)

    def pick(self, size: int) -> int:
        """Return an integer uniform on [0, size), the index of a slot in a window."""
        return secrets.randbelow(size)

    def key(self) -> str:
        """Return an unguessable idempotency key for one enrolment."""
        return secrets.token_urlsafe(32)

    def jitter(self) -> float:
        """Return a number uniform on [0, 1) that spreads the requests of many devices."""
        return secrets.randbelow(2**53) / 2**53


OS_RANDOMNESS = DeviceRandomness()
"""The randomness of every real device."""
