"""Two clocks that tests turn: a calendar that can be set, and a steady one that cannot."""

from __future__ import annotations

from dataclasses import dataclass

from checkins.service.store.clock import Clock
from checkins.service.store.database import Database


@dataclass
class Clocks:
    """A machine's clocks; both stand still unless time passes."""

    calendar: float
    steady: float = 7000.0

    def passes(self, seconds: float) -> None:
        """Time goes by for both."""
        self.calendar += seconds
        self.steady += seconds

    def set(self, seconds: float) -> None:
        """Somebody sets the calendar by so much."""
        self.calendar += seconds

    def clock(self) -> Clock:
        """A coordinator's clock on these, read once."""
        clock = Clock(calendar=lambda: self.calendar, steady=lambda: self.steady)
        clock.read()
        return clock

    def give(self, database: Database) -> None:
        """Let a database run on these instead of what tests gave it before."""
        database.clock = self.clock()
