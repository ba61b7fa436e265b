"""What of a campaign an attack on one client meets: its slots, its coin, who else is there."""

from __future__ import annotations

from dataclasses import dataclass

from checkins.accounting import Design, GaussianNoise, Protocol
from checkins.errors import InvalidValue

MOST_SLOTS = 20_000
"""Of one client's window: every one of them is drawn in every run."""
MOST_REPEATS = 1_000


@dataclass(frozen=True, slots=True)
class World:
    """One run of a protocol as the canary sees it; ``repeats`` of them follow one another.

    The canary draws one of ``choices`` slots. In ``slots`` of them something is released; another
    one means that it abstains. ``capacity`` None means that every check-in is used.
    """

    slots: int
    choices: int
    participation: float
    capacity: int | None
    repeats: int
    averaged: bool = False
    contributors: int = 1
    """How many take part in averaged updates, the canary among them."""

    @property
    def reach(self) -> float:
        """The chance that the canary checks in to a slot that releases something."""
        return self.participation * self.slots / self.choices

    @property
    def places(self) -> int:
        """Reports of all slots together, where dummies fill them."""
        return self.slots * (self.capacity or 1)

    @classmethod
    def of(cls, design: Design, *, repeats: int) -> World:
        """A client of the sliding protocol wakes when the server has warmed up: the worst time."""
        active = design.slots
        if design.window is not None:
            active = min(design.window, design.slots - design.window + 1)
        if active > MOST_SLOTS:
            raise InvalidValue(
                "slots", active, f"must be at most {MOST_SLOTS:,} to be audited: each is simulated"
            )
        if repeats > MOST_REPEATS:
            raise InvalidValue(
                "repeats", repeats, f"must be at most {MOST_REPEATS:,} to be audited"
            )
        averaged = design.protocol is Protocol.AVERAGED
        everyone = averaged or isinstance(design.randomizer, GaussianNoise)
        return cls(
            slots=active,
            choices=design.choices,
            participation=design.participation,
            capacity=design.capacity if everyone else design.capacity or 1,
            repeats=repeats,
            averaged=averaged,
            contributors=design.population.fewest if averaged and design.population else 1,
        )
