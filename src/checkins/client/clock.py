"""The clock and the randomness of a device.

The calendar time of the device is never used, and random numbers are never seeded.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass

from checkins.protocol.participant import COIN

DRIFT = 2e-4
"""Largest assumed clock drift in seconds per second, ten times that of a cheap quartz."""


def steady_s() -> float:
    """Return monotonic seconds. They include time in suspend if the system can measure it."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


@dataclass(frozen=True, slots=True)
class ServerClock:
    """An estimate: server time = monotonic time + ``ahead_s``, with error at most ``error_s``.

    ``read_at`` is the monotonic time of the estimate.

    >>> clock = ServerClock.read(1000.0, sent=4.0, received=6.0)
    >>> clock.server_s(5.0), clock.steady_s(1001.0), clock.error_s
    (1000.0, 6.0, 1.0)
    """

    ahead_s: float
    error_s: float
    read_at: float

    @classmethod
    def read(cls, server_s: float, *, sent: float, received: float) -> ServerClock:
        """Estimate the offset from the server's time in a response.

        ``sent`` and ``received`` are the monotonic times of request and response.
        """
        return cls(server_s - (sent + received) / 2, (received - sent) / 2, received)

    def server_s(self, steady: float) -> float:
        """Return the server's time, in seconds since 1970, at a monotonic time."""
        return steady + self.ahead_s

    def steady_s(self, server: float) -> float:
        """Return the monotonic time at a server time."""
        return server - self.ahead_s

    def better(self, other: ServerClock) -> ServerClock:
        """Return the later estimate, or the earlier one if its error with drift is smaller."""
        old, new = sorted((self, other), key=lambda clock: clock.read_at)
        aged = old.error_s + DRIFT * (new.read_at - old.read_at)
        return old if aged < new.error_s else new


class DeviceRandomness:
    """Random numbers of a device from the operating system, except for its noise."""

    def coin(self) -> int:
        """Return an integer uniform on [0, 2^64)."""
        return secrets.randbelow(COIN)

    def pick(self, size: int) -> int:
        """Return an integer uniform on [0, size): the index of a slot in the window."""
        return secrets.randbelow(size)

    def key(self) -> str:
        """Return an unguessable idempotency key for one enrolment."""
        return secrets.token_urlsafe(32)

    def jitter(self) -> float:
        """Return a number uniform on [0, 1) that spreads the requests of many devices."""
        return secrets.randbelow(2**53) / 2**53


OS_RANDOMNESS = DeviceRandomness()
"""The randomness of every real device."""
