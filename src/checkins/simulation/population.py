"""Who checks in when: the exact joint law of a run's check-ins, without a row per client.

Clients are exchangeable until one of them is used, so it is enough to draw how many check in to
each slot, and then who the next one is that is used: the next in a shuffled order of all clients.
A hundred million clients take no more memory than their slots.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from checkins import validate
from checkins.accounting import Design, Protocol
from checkins.simulation.availability import Always, Arrivals, Availability
from checkins.simulation.permutation import MOST_CLIENTS, Words, keys_of

Counts = NDArray[np.int64]
ROWS = 1 << 22
"""Draws held at a time while the cohorts of a sliding window pick their slots."""


class Sampling(Enum):
    """Who decides when a client is used."""

    CHECK_INS = "each client picks its own slot"
    POISSON = "a server draws every client anew for each slot, independently"
    SHUFFLED = "a shuffler sends each client's report once, in random order"


@dataclass(frozen=True, slots=True)
class SlotCounts:
    """One run: how many check in to slots 1..m, and how many reports reach the server.

    Client number k of the shuffled order, counted from ``first``, is the one that slot uses next.
    ``keys`` are those of its order: one for all slots, or with Poisson sampling one for each.
    """

    check_ins: Counts
    reports: Counts
    first: Counts
    keys: Words


@dataclass(frozen=True, slots=True)
class SimulatedPopulation:
    """A population that takes part in runs of a design; seeded, for simulation alone.

    Theorem:     Algorithm 1, client's side: each client flips a p0-coin and picks uniformly in its
                 window; counts of the slots are multinomial, for each cohort that wakes together.
    """

    design: Design
    clients: int
    seed: int
    availability: Availability = field(default_factory=Always)
    dropout: float = 0.0
    """The chance that a client which is chosen never reports."""
    sampling: Sampling = Sampling.CHECK_INS

    def __post_init__(self) -> None:
        validate.one_of(Design, design=self.design)
        validate.count(most=MOST_CLIENTS, clients=self.clients)
        validate.probability(dropout=self.dropout)

    def run(self, number: int = 1) -> SlotCounts:
        """Run ``number`` of 1, 2, ...: fresh coins each time."""
        seeds = np.random.SeedSequence([self.seed, number])
        check_ins = self.check_ins(np.random.default_rng(seeds.spawn(1)[0]))
        reports = check_ins
        if self.design.capacity is not None:
            reports = np.minimum(check_ins, self.design.capacity)
        if self.design.window is not None:
            reports = reports * (np.arange(1, reports.size + 1) >= self.design.window)
        if self.dropout > 0.0:
            reports = np.random.default_rng(seeds.spawn(1)[0]).binomial(reports, 1.0 - self.dropout)
        alone = self.sampling is Sampling.POISSON
        first = np.zeros_like(check_ins) if alone else np.cumsum(check_ins) - check_ins
        keys = keys_of(seeds.spawn(1)[0], (check_ins.size,) if alone else (1,))
        return SlotCounts(check_ins, reports, first, keys)

    def check_ins(self, generator: np.random.Generator) -> Counts:
        """How many check in to slots 1..m."""
        slots, chance = self.design.slots, self.design.participation
        if self.sampling is Sampling.POISSON:
            counts = generator.binomial(self.clients, chance / self.design.choices, slots)
        elif self.sampling is Sampling.SHUFFLED:
            counts = Arrivals(slots).waking(self.clients)
        elif self.design.protocol is Protocol.SLIDING:
            counts = self._sliding(generator)
            if isinstance(self.availability, Arrivals):
                return counts  # it says when they wake, and has been heeded
        else:
            takers = int(generator.binomial(self.clients, chance))
            counts = generator.multinomial(takers, np.full(slots, 1.0 / slots))
        online = self.availability.online(np.arange(1, slots + 1))
        if np.all(online >= 1.0):
            return counts
        return generator.binomial(counts, online)

    def _sliding(self, generator: np.random.Generator) -> Counts:
        slots, window = self.design.slots, self.design.window or 1
        spread = self.availability
        arrivals = spread if isinstance(spread, Arrivals) else Arrivals(slots)
        waking = np.zeros(slots, dtype=np.int64)
        early = arrivals.waking(self.clients)[:slots]
        waking[: early.size] = early
        return _slide(generator, generator.binomial(waking, self.design.participation), window)


def _slide(generator: np.random.Generator, waking: Counts, window: int) -> Counts:
    """Each cohort spreads over its own window; what falls after the last slot is never used."""
    slots = waking.size
    counts = np.zeros(slots + window, dtype=np.int64)
    large = waking > max(1, window // 4)
    few = np.where(large, 0, waking)  # let each one pick
    length = max(1, ROWS // max(1, int(few.max())))
    for start in range(0, slots, length):
        cohorts = few[start : start + length]
        awake = np.repeat(np.arange(cohorts.size), cohorts)
        picked = awake + generator.integers(0, window, awake.size)
        counts[start : start + cohorts.size + window] += np.bincount(
            picked, minlength=cohorts.size + window
        )
    share = np.full(window, 1.0 / window)
    for row in np.flatnonzero(large):
        counts[row : row + window] += generator.multinomial(waking[row], share)
    return counts[:slots]
