"""The clock by which slots close: a steady clock plus an offset, which follows the calendar clock.

An operator, NTP or a hypervisor can set a calendar clock to any time. If a coordinator followed a
jump forward, it would close every remaining slot at once, without the reports of its clients. A
steady clock never jumps, so the time here is a steady clock plus an offset. Once a second the time
is compared with the calendar. If the difference is small, the offset is adjusted slowly. If it is
large, the offset does not change, and the clock **holds** until both clocks agree again or an
operator confirms the calendar (``runs/clock_watch.py``).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from pathlib import Path

TOLERANCE_S = 2.0
"""Largest difference between the calendar and this clock for which the clock is adjusted.

The uncertainty of the clock is added to it.
"""
SLEW = 0.05  # largest adjustment in seconds per second; that of NTP is 0.0005
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def calendar_s() -> float:
    """Return the time of this machine's calendar clock, in seconds since 1970."""
    return time.time()


def steady_s() -> float:
    """Return the time of a clock that cannot be set, in seconds since an unknown moment.

    If the system supports it, the clock also runs while the machine is suspended.
    """
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


def boot_id() -> str | None:
    """Return an id that changes when this machine boots, or None if the system has none."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


class Clock:
    """A clock in seconds since 1970 that never jumps. Several threads may use it.

    >>> calendar = [1000.0]
    >>> clock = Clock(calendar=lambda: calendar[0], steady=lambda: 5.0)
    >>> clock.read()
    >>> calendar[0] += 3600.0  # the calendar is set forward by an hour
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
        """How far the calendar is ahead of this clock; None while they agree."""
        self._steady = steady_s if steady is None else steady
        self._lock = threading.Lock()
        self._offset = self.calendar() - self._steady()
        self._uncertainty = math.inf  # the offset is not known before the first reading
        self._read_at = self._steady()

    @property
    def holds(self) -> bool:
        """Whether the calendar and this clock disagree, so that no slot may be closed."""
        return self.off_s is not None

    @property
    def setting(self) -> tuple[float, float]:
        """The offset of the calendar from the steady clock, and its uncertainty."""
        return self._offset, self._uncertainty

    def now(self) -> float:
        """Return the time. While the clock holds, a jump of the calendar is ignored."""
        return self._steady() + self._offset

    def read(self, calendar: Callable[[], float] | None = None) -> None:
        """Read a calendar clock, which may take a while, and adjust this clock to it."""
        before = self._steady()
        there = (calendar or self.calendar)()
        self.adjust(before=before, there=there, after=self._steady())

    def adjust(self, *, before: float, there: float, after: float) -> None:
        """Adjust this clock to a reading of the calendar.

        The calendar showed ``there`` at an unknown steady time between ``before`` and ``after``, so
        ``after - before`` is the uncertainty of the reading. The first reading is accepted as it
        is. A later reading changes the time by at most ``SLEW`` seconds per elapsed second. A
        reading that is more precise than all earlier ones may change it by their uncertainty too.
        """
        with self._lock:
            offset, uncertainty = self._offset, after - before
            off = math.nan
            if math.isfinite(there):
                off = nearest_offset(offset, before=before, there=there, after=after) - offset
            if not abs(off) <= TOLERANCE_S + self._uncertainty:  # also true if ``off`` is NaN
                self.off_s = off
                return
            self.off_s = None
            most = SLEW * max(0.0, after - self._read_at)
            if uncertainty < self._uncertainty:
                most, self._uncertainty = most + self._uncertainty, uncertainty
            self._offset = offset + min(max(off, -most), most)
            self._read_at = after

    def resume(self, setting: tuple[float, float]) -> None:
        """Use the ``setting`` of another process on the same machine."""
        with self._lock:
            self._offset, self._uncertainty = setting
            self._read_at = self._steady()

    def trust(self) -> None:
        """Accept the next reading of the calendar, even if it differs a lot."""
        with self._lock:
            self._uncertainty, self.off_s = math.inf, None


def nearest_offset(offset: float, *, before: float, there: float, after: float) -> float:
    """Return the value nearest to ``offset`` that a reading of another clock allows.

    ``offset`` is the other clock minus this clock. The other clock showed ``there`` at an unknown
    time between ``before`` and ``after``.
    """
    return min(max(offset, there - after), there - before)
