"""The clocks of a run inside Flower: real time, and the virtual time of a simulation."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

LONGEST_SLEEP_S = 30.0
"""Seconds after which a sleeping process reads the clock again, because it may have been set."""


class Clock(Protocol):
    """Tells the time in seconds since 1970, and sleeps."""

    def now(self) -> float: ...
    def sleep_until(self, moment_s: float) -> None: ...


@dataclass(frozen=True, slots=True)
class SystemClock:
    """The calendar clock of this machine, which must be synchronized, for example by NTP."""

    def now(self) -> float:
        return time.time()

    def sleep_until(self, moment_s: float) -> None:
        """Sleep until a moment; return at once if it has passed."""
        while (wait_s := moment_s - time.time()) > 0:
            time.sleep(min(wait_s, LONGEST_SLEEP_S))


@dataclass(slots=True)
class VirtualClock:
    """A clock that sleeps in no time.

    >>> clock = VirtualClock(5.0)
    >>> clock.sleep_until(7.0)
    >>> clock.now()
    7.0
    """

    now_s: float

    def now(self) -> float:
        return self.now_s

    def sleep_until(self, moment_s: float) -> None:
        """Go forward to a moment; do nothing if it has passed."""
        self.now_s = max(self.now_s, moment_s)
