"""The clock that decides when slots close: a steady clock plus an offset.

The calendar clock (the system time) can be set to any time by an operator, NTP or a hypervisor. If
a coordinator followed a jump forward, it would close every remaining slot at once, without the
reports of its clients. A steady (monotonic) clock never jumps, so the time here is a steady clock
plus an offset. Once a second the time is compared with the calendar clock. If the difference is
small, the offset is adjusted slowly. If the difference is large, the offset does not change, and
the clock **holds**: no slot is closed until both clocks agree again or an operator confirms the
calendar clock (``runs/clock_jumps.py``).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from pathlib import Path

TOLERANCE_S = 2.0
"""Largest difference in seconds between the calendar and this clock before this clock holds.

The uncertainty of this clock's offset is added to the tolerance.
"""
SLEW_RATE = 0.05  # largest adjustment of the time, in seconds per second; NTP's limit is 0.0005
BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")


def calendar_s() -> float:
    """Return the time of this machine's calendar clock, in seconds since 1970."""
    return time.time()


def steady_s() -> float:
    """Return the time of a clock that nobody can set, in seconds since an arbitrary moment.

    On systems with CLOCK_BOOTTIME, the clock also runs while the machine is suspended.
    """
    boottime_clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boottime_clock is None else time.clock_gettime(boottime_clock)


def boot_id() -> str | None:
    """Return an id that changes when this machine boots, or None if the system has none."""
    try:
        return BOOT_ID_FILE.read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


class Clock:
    """A clock in seconds since 1970 that never jumps. Several threads may use it.

    >>> calendar = [1000.0]
    >>> clock = Clock(calendar=lambda: calendar[0], steady=lambda: 5.0)
    >>> clock.adjust_to_calendar()
    >>> calendar[0] += 3600.0  # the calendar is set forward by an hour
    >>> clock.adjust_to_calendar()
    >>> clock.now(), clock.calendar_ahead_s
    (1000.0, 3600.0)
    """

    def __init__(
        self,
        *,
        calendar: Callable[[], float] | None = None,
        steady: Callable[[], float] | None = None,
    ) -> None:
        self.calendar = calendar_s if calendar is None else calendar
        self.calendar_ahead_s: float | None = None
        """Seconds by which the calendar is ahead of this clock. None if the clocks agree, and NaN
        if the calendar's reading is not finite."""
        self._steady = steady_s if steady is None else steady
        self._lock = threading.Lock()
        self._offset = self.calendar() - self._steady()
        self._uncertainty = math.inf  # in seconds; no calendar reading has been accepted yet
        self._adjusted_at = self._steady()  # steady time of the last adjustment

    @property
    def is_holding(self) -> bool:
        """Whether the calendar and this clock disagree, so that no slot may be closed."""
        return self.calendar_ahead_s is not None

    @property
    def offset_and_uncertainty(self) -> tuple[float, float]:
        """Calendar time minus steady time, and the uncertainty of that offset, in seconds."""
        return self._offset, self._uncertainty

    def now(self) -> float:
        """Return the time in seconds since 1970, which does not follow a jump of the calendar."""
        return self._steady() + self._offset

    def adjust_to_calendar(self, calendar: Callable[[], float] | None = None) -> None:
        """Read ``calendar`` (by default the clock's own calendar), and adjust this clock to it."""
        before = self._steady()
        reading = (calendar or self.calendar)()
        self.adjust_or_hold(before=before, reading=reading, after=self._steady())

    def adjust_or_hold(self, *, before: float, reading: float, after: float) -> None:
        """Compare this clock with a reading of the calendar. Hold if the calendar has jumped.

        The calendar has jumped if the two clocks differ by more than ``TOLERANCE_S`` and the
        uncertainty of this clock. Otherwise this clock is adjusted to the reading.

        The calendar showed ``reading`` at an unknown steady time between ``before`` and ``after``,
        so ``after - before`` is the uncertainty of the reading. The first reading is accepted as it
        is. A later reading changes the time by at most ``SLEW_RATE`` seconds per elapsed second. If
        the uncertainty of a reading is smaller than that of all earlier readings, the time may
        change by more: the limit is then larger by the smallest earlier uncertainty.
        """
        with self._lock:
            offset, uncertainty = self._offset, after - before
            difference = math.nan
            if math.isfinite(reading):
                nearest = nearest_offset(offset, before=before, reading=reading, after=after)
                difference = nearest - offset
            if not abs(difference) <= TOLERANCE_S + self._uncertainty:  # NaN comes here too
                self.calendar_ahead_s = difference
                return
            self.calendar_ahead_s = None
            max_change = SLEW_RATE * max(0.0, after - self._adjusted_at)
            if uncertainty < self._uncertainty:
                max_change, self._uncertainty = max_change + self._uncertainty, uncertainty
            self._offset = offset + min(max(difference, -max_change), max_change)
            self._adjusted_at = after

    def restore_offset(self, saved: tuple[float, float]) -> None:
        """Use the ``offset_and_uncertainty`` that a process on this machine has saved."""
        with self._lock:
            self._offset, self._uncertainty = saved
            self._adjusted_at = self._steady()

    def accept_next_reading(self) -> None:
        """Stop holding, and accept the next reading of the calendar, however much it differs."""
        with self._lock:
            self._uncertainty, self.calendar_ahead_s = math.inf, None


def nearest_offset(offset: float, *, before: float, reading: float, after: float) -> float:
    """Return the offset nearest to ``offset`` that agrees with a reading of another clock.

    An offset is the other clock's time minus this clock's time. The other clock showed ``reading``
    at an unknown time of this clock between ``before`` and ``after``.
    """
    return min(max(offset, reading - after), reading - before)
