"""A device's randomness: the operating system's, drawn once and never seeded (invariant 13)."""

from __future__ import annotations

import secrets

from checkins.protocol.participant import COIN


class DeviceRandomness:
    """What a device draws besides its noise. Tests have dice of their own."""

    def coin(self) -> int:
        """Uniform below 2^64."""
        return secrets.randbelow(COIN)

    def pick(self, size: int) -> int:
        """Uniform below the size of a window."""
        return secrets.randbelow(size)

    def key(self) -> str:
        """A name for one enrolment that nobody guesses."""
        return secrets.token_urlsafe(32)

    def jitter(self) -> float:
        """Uniform in [0, 1): so that devices do not all speak at once."""
        return secrets.randbelow(2**53) / 2**53
