"""Clocks that move only when a test moves them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from checkins.service.store import time_source as store_clock
from checkins.service.store.database import Database
from tests.support.campaigns import START


@dataclass
class Clock:
    """Stands still unless a test sets ``now``, or somebody sleeps on it."""

    now: float = START.timestamp() - 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    async def sleep_async(self, seconds: float) -> None:
        self.now += seconds


class StoreClock(store_clock.Clock):
    """The clock of a store that shows the time of a test; it is compared with no calendar."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(calendar=clock, steady=clock)

    def adjust_to_calendar(self, calendar: Callable[[], float] | None = None) -> None:
        """Nothing: this clock is right."""

    def restore_offset(self, saved: tuple[float, float]) -> None:
        """Nothing: this clock is right."""


@dataclass
class Clocks:
    """The clocks of a machine: a calendar that can be set, and a steady clock that cannot."""

    calendar: float
    steady: float = 7000.0

    def passes(self, seconds: float) -> None:
        """Time goes by for both."""
        self.calendar += seconds
        self.steady += seconds

    def set(self, seconds: float) -> None:
        """Somebody sets the calendar by so much."""
        self.calendar += seconds

    def clock(self) -> store_clock.Clock:
        """A coordinator's clock on these, read once."""
        clock = store_clock.Clock(calendar=lambda: self.calendar, steady=lambda: self.steady)
        clock.adjust_to_calendar()
        return clock

    def give(self, database: Database) -> None:
        """Let a database run on these instead of what tests gave it before."""
        database.clock = self.clock()
