"""When clients can be reached: the chance that one is online at its slot, and when clients wake."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from checkins.accounting import require
from checkins.errors import InvalidValue

Shares = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Always:
    """Everyone is online at its slot."""

    def online(self, slots: NDArray[np.int64]) -> Shares:
        return np.ones(slots.shape)


@dataclass(frozen=True, slots=True)
class Diurnal:
    """The share that is online rises and falls once in ``period`` slots, from ``least`` to 1."""

    period: int
    least: float

    def __post_init__(self) -> None:
        require.count(period=self.period)
        require.probability(least=self.least)

    def online(self, slots: NDArray[np.int64]) -> Shares:
        wave = 0.5 + 0.5 * np.cos(2.0 * math.pi * (slots - 1) / self.period)
        return self.least + (1.0 - self.least) * wave


Availability = Always | Diurnal


@dataclass(frozen=True, slots=True)
class Arrivals:
    """In which slot clients wake, for the sliding window: evenly over the first ``slots``.

    The paper has one client wake in each slot; any population is spread as evenly.
    """

    slots: int

    def __post_init__(self) -> None:
        require.count(slots=self.slots)

    def waking(self, clients: int) -> NDArray[np.int64]:
        """How many wake in slot 1, 2, ...; they add up to ``clients``."""
        edges = np.arange(self.slots + 1, dtype=object) * clients // self.slots
        return np.diff(edges).astype(np.int64)


def parse(text: str) -> Availability:
    """``always``, or ``diurnal:PERIOD:LEAST``.

    >>> parse("diurnal:96:0.2")
    Diurnal(period=96, least=0.2)
    """
    if text == "always":
        return Always()
    words = text.split(":")
    try:
        if len(words) == 3 and words[0] == "diurnal":
            return Diurnal(int(words[1]), float(words[2]))
    except ValueError as error:
        if isinstance(error, InvalidValue):
            raise
    raise InvalidValue("availability", text, "must be always or diurnal:PERIOD:LEAST")
