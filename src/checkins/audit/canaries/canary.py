"""The clients that an attack looks for, each in the world where it shows most.

A certificate holds whatever the other clients do and whatever their data are, so an attack may
choose them: it has nobody else there, or slots full of clients that are the canary's opposite and
come to a slot of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from checkins.audit.canaries.noise import GaussianSum, Noise
from checkins.audit.canaries.releases import (
    Arrival,
    Loads,
    Response,
    SumDraws,
    draw_sums,
    response_releases,
    sum_releases,
)
from checkins.audit.canaries.statistic import FloatArray, response_scores, sum_ratio
from checkins.audit.canaries.world import World
from checkins.audit.trials import Trials

RATIO = "likelihood ratio of all releases"
_BLOCK = 1 << 19
"""Numbers that are drawn at a time: they fit a cache, and threads stay busy."""


class Canary(Protocol):
    """One attack: it plays the protocol any number of times and scores what it sees."""

    @property
    def name(self) -> str: ...
    @property
    def explained(self) -> str: ...
    @property
    def statistic(self) -> str:
        """What a score is."""
        ...

    @property
    def note(self) -> str:
        """What a reader must know besides, or nothing."""
        ...

    @property
    def block(self) -> int:
        """How many runs are best played at a time."""
        ...

    @property
    def smallest_block(self) -> int:
        """How few runs may be played at a time without making anything ready anew."""
        ...

    @property
    def ready_s(self) -> float:
        """About how long it takes before the first run can begin, in seconds."""
        ...

    def trials(self, runs: int, generator: np.random.Generator) -> Trials: ...


@dataclass(frozen=True, slots=True)
class ResponseCanary:
    """A client whose report is one outcome of a short list, among dummies or others that differ."""

    name: str
    explained: str
    response: Response
    world: World
    statistic: str = RATIO
    note: str = ""
    smallest_block: int = 1
    ready_s: float = 0.0

    @property
    def reports(self) -> int:
        """Among how many reports the canary's is one, if it is there."""
        return self.world.contributors if self.world.averaged else self.world.places

    @property
    def block(self) -> int:
        return max(256, _BLOCK // (8 * self.world.repeats))

    def trials(self, runs: int, generator: np.random.Generator) -> Trials:
        present, missing = np.zeros(runs), np.zeros(runs)
        for _ in range(self.world.repeats):
            draws = self.response.draw(self.world, runs, self.reports, generator)
            for total, counts in zip((present, missing), response_releases(draws), strict=True):
                total += response_scores(counts, self.response, self.world.reach)
        return Trials(present, missing, self.name)


@dataclass(frozen=True, slots=True)
class SumCanary:
    """A client whose update is ``first`` times the clip, or ``other`` times, or that is missing.

    ``others`` clients come to every slot, with updates of ``level`` times the clip in the canary's
    direction. A ``crowd`` instead draws its slots as the protocol says; the adversary knows them.
    """

    name: str
    explained: str
    world: World
    noise: Noise
    first: float = 1.0
    other: float | None = None
    others: int = 0
    level: float = 0.0
    crowd: int = 0
    statistic: str = RATIO
    note: str = ""
    smallest_block: int = 1
    ready_s: float = 0.0

    @property
    def block(self) -> int:
        return max(64, _BLOCK // self.world.slots)

    def trials(self, runs: int, generator: np.random.Generator) -> Trials:
        present, missing = np.zeros(runs), np.zeros(runs)
        for _ in range(self.world.repeats):
            draws = self.draw(runs, generator)
            sums = sum_releases(
                draws, first=self.first, other=self.other, capacity=self.world.capacity
            )
            for total, seen in zip((present, missing), sums, strict=True):
                total += self.score(seen, draws.loads)
        return Trials(present, missing, self.name)

    def draw(self, runs: int, generator: np.random.Generator) -> SumDraws:
        """Every draw of ``runs`` runs."""
        noise = self.noise.draw((runs, self.world.slots), generator)
        return draw_sums(self.world, self._loads(runs, generator), noise, generator)

    def score(self, sums: FloatArray, loads: Loads) -> FloatArray:
        """log f of the canary's data, less that of its other data."""
        first = sum_ratio(sums, loads, self.noise, self.first, self.world)
        if self.other is None:
            return first
        return first - sum_ratio(sums, loads, self.noise, self.other, self.world)

    def _loads(self, runs: int, generator: np.random.Generator) -> Loads:
        slots = self.world.slots
        if not self.crowd:
            return Loads(np.full((1, slots), self.others, dtype=np.int64), self.level)
        takers = generator.binomial(self.crowd, self.world.participation, runs)
        counts = generator.multinomial(takers, np.full(slots, 1.0 / slots))
        return Loads(counts, self.level)


@dataclass(frozen=True, slots=True)
class AveragedCanary:
    """A client of averaged updates with Gaussian reports: its update is the clip, or its opposite.

    The others send noise alone. How many reports a slot averages over is seen.
    """

    name: str
    explained: str
    world: World
    deviation: float
    statistic: str = RATIO
    note: str = ""
    smallest_block: int = 1
    ready_s: float = 0.0

    @property
    def block(self) -> int:
        return max(64, _BLOCK // self.world.slots)

    def trials(self, runs: int, generator: np.random.Generator) -> Trials:
        present, missing = np.zeros(runs), np.zeros(runs)
        slots, rows = self.world.slots, np.arange(runs)
        for _ in range(self.world.repeats):
            arrival = Arrival.draw(self.world, runs, generator)
            shares = np.full(slots, 1.0 / slots)
            counts = generator.multinomial(self.world.contributors - 1, shares, runs)
            counts[rows, arrival.slot] += 1
            noise = GaussianSum(self.deviation * np.sqrt(np.maximum(counts, 1)))
            loads = Loads(counts, 0.0)
            usual = noise.draw((runs, slots), generator)
            draws = SumDraws(arrival, np.zeros(runs, dtype=np.int64), loads, usual)
            sums = sum_releases(draws, first=1.0, other=-1.0, capacity=None)
            for total, seen in zip((present, missing), sums, strict=True):
                total += sum_ratio(seen, loads, noise, 1.0, self.world)
                total -= sum_ratio(seen, loads, noise, -1.0, self.world)
        return Trials(present, missing, self.name)
