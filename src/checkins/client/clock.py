"""The server's clock as a device knows it: never the device's own calendar, which may be wrong."""

from __future__ import annotations

import time
from dataclasses import dataclass

DRIFT = 2e-4
"""Seconds that two clocks may part in a second: ten times what cheap quartz does."""


def steady_s() -> float:
    """Seconds that never jump, and go on while the device is suspended where that can be had."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


@dataclass(frozen=True, slots=True)
class ServerClock:
    """The server's time is the steady clock's plus ``ahead_s``, to within ``error_s``.

    >>> clock = ServerClock.read(1000.0, sent=4.0, received=6.0)
    >>> clock.server_s(5.0), clock.steady_s(1001.0), clock.error_s
    (1000.0, 6.0, 1.0)
    """

    ahead_s: float
    error_s: float
    read_at: float

    @classmethod
    def read(cls, server_s: float, *, sent: float, received: float) -> ServerClock:
        """From an answer that says the time: it was said between request and answer."""
        return cls(server_s - (sent + received) / 2, (received - sent) / 2, received)

    def server_s(self, steady: float) -> float:
        """The server's seconds since 1970 when the steady clock shows ``steady``."""
        return steady + self.ahead_s

    def steady_s(self, server: float) -> float:
        """What the steady clock shows at an instant of the server's."""
        return server - self.ahead_s

    def better(self, other: ServerClock) -> ServerClock:
        """The later reading, unless the earlier one is still the more exact."""
        old, new = sorted((self, other), key=lambda clock: clock.read_at)
        aged = old.error_s + DRIFT * (new.read_at - old.read_at)
        return old if aged < new.error_s else new
