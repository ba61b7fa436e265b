"""The clock by which slots close: a steady clock, adjusted slowly to the calendar clock.

An operator, NTP or a hypervisor can set a calendar clock to any time. A coordinator that followed a
jump forward would close every remaining slot at once, with dummies. So the time here is that of a
steady clock, which never jumps, plus an offset. The calendar is compared once a second: a small
difference is followed slowly, a larger one not at all. Until both clocks agree again, or an
operator confirms the calendar, the clock **holds**: see ``runs/clock_watch.py``.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from pathlib import Path

TOLERANCE_S = 2.0
"""Largest difference between calendar and steady clock that is followed, in seconds."""
SLEW = 0.05  # most seconds per second by which the time moves towards the calendar; NTP: 0.0005
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def calendar_s() -> float:
    """Return seconds since 1970 on this machine's calendar clock."""
    return time.time()


def steady_s() -> float:
    """Return seconds that never jump; they include suspension where the system has such a clock."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


def boot_id() -> str | None:
    """Return the id of this boot of this machine; None if the system has none."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


class Clock:
    """Seconds since 1970 that never jump; safe to use from threads.

    >>> calendar = [1000.0]
    >>> clock = Clock(calendar=lambda: calendar[0], steady=lambda: 5.0)
    >>> clock.read()
    >>> calendar[0] += 3600.0  # it is set forward
    >>> clock.read()
    >>> clock.now(), clock.off_s
    (1000.0, 3600.0)
    """

    def __init__(
        self,
        *,
        calendar: Callable[[], float] | None = None,
        steady: Callable[[], float] | None = None,
    ) -> None:
        self.calendar = calendar_s if calendar is None else calendar
        self.off_s: float | None = None
        """How far the calendar is ahead of this clock while it holds; None while they agree."""
        self._steady = steady_s if steady is None else steady
        self._lock = threading.Lock()
        self._ahead = self.calendar() - self._steady()
        self._width = math.inf  # nothing is known before a reading
        self._read_at = self._steady()

    @property
    def holds(self) -> bool:
        """Whether calendar and steady clock disagree, so that nothing may be closed by the time."""
        return self.off_s is not None

    @property
    def setting(self) -> tuple[float, float]:
        """How far the calendar is ahead of the steady clock, and how uncertain that is."""
        return self._ahead, self._width

    def now(self) -> float:
        """Return the time; while the clock holds, as if the calendar had never been set."""
        return self._steady() + self._ahead

    def read(self, calendar: Callable[[], float] | None = None) -> None:
        """Compare with a calendar clock, which may take a while to answer."""
        before = self._steady()
        there = (calendar or self.calendar)()
        self.heard(before=before, there=there, after=self._steady())

    def heard(self, *, before: float, there: float, after: float) -> None:
        """Adjust to a calendar that read ``there`` at some steady time from before to after.

        The first reading is adopted at once. A reading more precise than all before corrects
        their uncertainty; otherwise the time moves by at most ``SLEW``.
        """
        with self._lock:
            ahead, width = self._ahead, after - before
            off = math.nan
            if math.isfinite(there):
                off = corrected(ahead, before=before, there=there, after=after) - ahead
            if not abs(off) <= TOLERANCE_S + self._width:  # NaN is no agreement
                self.off_s = off
                return
            self.off_s = None
            most = SLEW * max(0.0, after - self._read_at)
            if width < self._width:
                most, self._width = most + self._width, width
            self._ahead = ahead + min(max(off, -most), most)
            self._read_at = after

    def resume(self, setting: tuple[float, float]) -> None:
        """Adopt the setting of another process on the same steady clock."""
        with self._lock:
            self._ahead, self._width = setting
            self._read_at = self._steady()

    def trust(self) -> None:
        """Adopt the next reading, however far it is off."""
        with self._lock:
            self._width, self.off_s = math.inf, None


def corrected(offset: float, *, before: float, there: float, after: float) -> float:
    """Return the offset nearest to ``offset`` that a reading of another clock allows.

    The clock read ``there`` at an unknown time between ``before`` and ``after``.
    """
    return min(max(offset, there - after), there - before)
