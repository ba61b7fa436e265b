"""Many runs of the protocol at once: every draw of it, and the releases that follow from them.

A run is drawn once and played twice, with the canary and without it. That halves the work and
costs nothing: the two chances of a test are bounded one by one, whatever their dependence.

Only what depends on the canary is drawn. Of reports that are outcomes from a short list a slot's
sum tells how many of each it holds, and the canary may be any of them: all slots together are one
list of counts. Of a sum with additive noise only the part along the canary's update depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from checkins.audit.canaries.world import World

FloatArray = NDArray[np.float64]
Indices = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Arrival:
    """The canary's own draws: whether it checks in where something is released, and where."""

    here: Flags
    slot: Indices

    @classmethod
    def draw(cls, world: World, runs: int, generator: np.random.Generator) -> Arrival:
        coin = generator.random(runs) < world.participation
        slot = generator.integers(0, world.choices, runs)
        here = coin & (slot < world.slots)
        return cls(here, np.where(here, slot, 0))


# ---- reports that are outcomes from a short list --------------------------------------------


@dataclass(frozen=True, slots=True)
class ResponseDraws:
    """``others``: outcomes of all reports but one; ``usual``: of that one in the canary's absence.

    ``first`` and ``other`` are the canary's report of its data, and of its other data.
    """

    here: Flags
    others: Indices
    usual: Indices
    first: Indices
    other: Indices


@dataclass(frozen=True, slots=True)
class Response:
    """The chances of a report's outcomes: of the canary's data, of its other data, of anyone else.

    Where the canary may be missing, its other data are nobody's: ``other`` is ``base``.
    """

    first: tuple[float, ...]
    other: tuple[float, ...]
    base: tuple[float, ...]

    def draw(
        self, world: World, runs: int, reports: int, generator: np.random.Generator
    ) -> ResponseDraws:
        """``reports`` are those of all slots; nobody else takes the canary's place."""
        arrival = Arrival.draw(world, runs, generator)
        if len(self.base) == 2:
            ones = generator.binomial(reports - 1, self.base[0], runs)
            others = np.stack([ones, reports - 1 - ones])
        else:
            others = generator.multinomial(reports - 1, self.base, runs).T.copy()
        usual = _outcomes(self.base, runs, generator)
        first = _outcomes(self.first, runs, generator)
        other = usual if self.other == self.base else _outcomes(self.other, runs, generator)
        return ResponseDraws(arrival.here, others, usual, first, other)


def response_releases(draws: ResponseDraws) -> tuple[Indices, Indices]:
    """How often each outcome was reported: (outcomes, runs), with the canary and without it."""
    return (
        _with_one_more(draws.others, np.where(draws.here, draws.first, draws.usual)),
        _with_one_more(draws.others, np.where(draws.here, draws.other, draws.usual)),
    )


def _outcomes(chances: tuple[float, ...], runs: int, generator: np.random.Generator) -> Indices:
    ends = np.cumsum(chances)[:-1]
    uniform = generator.random(runs)
    if len(ends) == 1:
        return np.asarray(uniform >= ends[0], dtype=np.int64)
    return np.asarray(np.searchsorted(ends, uniform, side="right"), dtype=np.int64)


def _with_one_more(counts: Indices, outcome: Indices) -> Indices:
    more = counts.copy()
    more[outcome, np.arange(len(outcome))] += 1
    return more


# ---- sums with additive noise ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loads:
    """How many others check in to each slot, known to the adversary: (runs, slots) or (1, slots).

    Their updates all are ``level`` times the clip along the canary's direction.
    """

    counts: Indices
    level: float

    def used(self, capacity: int | None) -> Indices:
        return self.counts if capacity is None else np.minimum(self.counts, capacity)

    def chance(self, capacity: int | None) -> FloatArray:
        """That the canary is chosen among them: w."""
        if capacity is None:
            return np.ones(self.counts.shape)
        return np.minimum(1.0, capacity / (self.counts + 1.0))

    def displaced(self, capacity: int | None) -> FloatArray:
        """The update that a chosen canary stands in for: another's where the slot is full."""
        if capacity is None:
            return np.zeros(self.counts.shape)
        return np.where(self.counts >= capacity, self.level, 0.0)


@dataclass(frozen=True, slots=True)
class SumDraws:
    """The canary's arrival, its place in the order of its slot, every slot's noise and load.

    Noise is (runs, slots). Orders are uniform: a slot uses the first K of those who wait.
    """

    arrival: Arrival
    order: Indices
    loads: Loads
    noise: FloatArray

    def chosen(self, capacity: int | None) -> Flags:
        """Where the canary is used."""
        return (
            self.arrival.here if capacity is None else self.arrival.here & (self.order < capacity)
        )


def draw_sums(
    world: World, loads: Loads, noise: FloatArray, generator: np.random.Generator
) -> SumDraws:
    """The canary's own draws, and the server's choice as far as it is about the canary."""
    runs = len(noise)
    arrival = Arrival.draw(world, runs, generator)
    waiting = np.broadcast_to(loads.counts, noise.shape)[np.arange(runs), arrival.slot]
    return SumDraws(arrival, generator.integers(0, waiting + 1), loads, noise)


def sum_releases(
    draws: SumDraws, *, first: float, other: float | None, capacity: int | None
) -> tuple[FloatArray, FloatArray]:
    """Every slot's sum along the canary's update, in clips: (runs, slots), with it and without.

    ``other`` is the canary's other data, None where it is missing.
    """
    usual = draws.noise + draws.loads.level * draws.loads.used(capacity)
    rows = np.arange(len(usual))
    slot, chosen = draws.arrival.slot, draws.chosen(capacity)
    displaced = np.broadcast_to(draws.loads.displaced(capacity), usual.shape)[rows, slot]
    present = usual.copy()
    present[rows, slot] += np.where(chosen, first - displaced, 0.0)
    if other is None:
        return present, usual
    usual[rows, slot] += np.where(chosen, other - displaced, 0.0)
    return present, usual
