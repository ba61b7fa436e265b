"""The clock and the randomness of a device.

The device's calendar clock, which its owner can set, is never used. Random numbers come from the
operating system and are never seeded.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass

from checkins.protocol.participant import COIN_RANGE

MAX_CLOCK_DRIFT = 2e-4
"""Largest assumed clock drift in seconds per second, ten times that of a cheap quartz clock."""


def monotonic_s() -> float:
    """Return monotonic seconds, which include time in suspend if the system can measure it."""
    boot_clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot_clock is None else time.clock_gettime(boot_clock)


@dataclass(frozen=True, slots=True)
class ServerClock:
    """An estimate: server time = monotonic time + ``offset_s``, with error at most ``error_s``.

    ``estimated_at_s`` is the monotonic time when the estimate was made.

    >>> clock = ServerClock.estimate(1000.0, sent_s=4.0, received_s=6.0)
    >>> clock.server_s(5.0), clock.monotonic_s(1001.0), clock.error_s
    (1000.0, 6.0, 1.0)
    """

    offset_s: float
    error_s: float
    estimated_at_s: float

    @classmethod
    def estimate(cls, server_s: float, *, sent_s: float, received_s: float) -> ServerClock:
        """Estimate the server's clock from ``server_s``, the server's time in a response.

        ``sent_s`` and ``received_s`` are the monotonic times when the request was sent and when the
        response was received.
        """
        return cls(server_s - (sent_s + received_s) / 2, (received_s - sent_s) / 2, received_s)

    def server_s(self, monotonic_s: float) -> float:
        """Return the server's time, in seconds since 1970, at a monotonic time."""
        return monotonic_s + self.offset_s

    def monotonic_s(self, server_s: float) -> float:
        """Return the device's monotonic time at a time of the server, in seconds since 1970."""
        return server_s - self.offset_s

    def more_accurate(self, other: ServerClock) -> ServerClock:
        """Return the later of two estimates, unless the earlier estimate has a smaller error.

        The error of the earlier estimate has grown since by the drift of the clock.
        """
        old, new = sorted((self, other), key=lambda clock: clock.estimated_at_s)
        old_error_s = old.error_s + MAX_CLOCK_DRIFT * (new.estimated_at_s - old.estimated_at_s)
        return old if old_error_s < new.error_s else new


class DeviceRandomness:
    """Random numbers of a device from the operating system. Its noise is drawn elsewhere."""

    def coin(self) -> int:
        """Return an integer uniform on [0, 2^64). It decides whether the device takes part."""
        return secrets.randbelow(COIN_RANGE)

    def pick(self, size: int) -> int:
        """Return an integer uniform on [0, size): the index of a slot in the window."""
        return secrets.randbelow(size)

    def idempotency_key(self) -> str:
        """Return an unguessable idempotency key for one enrolment."""
        return secrets.token_urlsafe(32)

    def jitter(self) -> float:
        """Return a number uniform on [0, 1) that spreads the requests of many devices."""
        return secrets.randbelow(2**53) / 2**53


OS_RANDOMNESS = DeviceRandomness()
"""The randomness of every real device."""
