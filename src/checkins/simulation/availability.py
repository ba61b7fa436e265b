"""When clients can be reached: the chance that one is online at its slot, and when clients wake."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from checkins import validate
from checkins.errors import InvalidValue

Shares = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Always:
    """Everyone is online at its slot."""

    def online(self, slots: NDArray[np.int64]) -> Shares:
        return np.ones(slots.shape)

    def __str__(self) -> str:
        return "always"


@dataclass(frozen=True, slots=True)
class Diurnal:
    """The share that is online rises and falls once in ``period`` slots, from ``least`` to 1."""

    period: int
    least: float

    def __post_init__(self) -> None:
        validate.count(period=self.period)
        validate.probability(least=self.least)

    def online(self, slots: NDArray[np.int64]) -> Shares:
        wave = 0.5 + 0.5 * np.cos(2.0 * math.pi * ((slots - 1) % self.period) / self.period)
        return self.least + (1.0 - self.least) * wave

    def __str__(self) -> str:
        return f"diurnal:{self.period}:{self.least:g}"


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Clients enrol evenly over the first ``slots``, each in one of them at random.

    A client that enrols after the slot it draws abstains. With a sliding window it wakes where it
    enrols, and as evenly as can be: the paper has one client wake in each slot.
    """

    slots: int

    def __post_init__(self) -> None:
        validate.count(slots=self.slots)

    def online(self, slots: NDArray[np.int64]) -> Shares:
        return np.minimum(1.0, slots / self.slots)

    def waking(self, clients: int) -> NDArray[np.int64]:
        """How many wake in slot 1, 2, ...; they add up to ``clients``."""
        edges = np.arange(self.slots + 1, dtype=object) * clients // self.slots
        return np.diff(edges).astype(np.int64)

    def __str__(self) -> str:
        return f"arrivals:{self.slots}"


Availability = Always | Diurnal | Arrivals


def parse(text: str) -> Availability:
    """``always``, ``diurnal:PERIOD:LEAST`` or ``arrivals:SLOTS``.

    >>> parse("diurnal:96:0.2")
    Diurnal(period=96, least=0.2)
    """
    if text == "always":
        return Always()
    words = text.split(":")
    try:
        if len(words) == 3 and words[0] == "diurnal":
            return Diurnal(int(words[1]), float(words[2]))
        if len(words) == 2 and words[0] == "arrivals":
            return Arrivals(int(words[1]))
    except InvalidValue as error:
        raise InvalidValue("availability", text, f"{error.name} {error.expected}") from error
    except ValueError:
        pass
    raise InvalidValue(
        "availability", text, "must be always, diurnal:PERIOD:LEAST or arrivals:SLOTS"
    )
