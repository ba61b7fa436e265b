"""Who checks in when: the exact joint law of a campaign's check-ins, without a row per client.

Clients are exchangeable until one of them is used, so it is enough to draw how many check in to
each slot, and then who the next one is that is used: the next in a shuffled order of all clients.
A hundred million clients take no more memory than their slots.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from checkins.accounting import Design, require
from checkins.simulation.availability import Always, Arrivals, Availability
from checkins.simulation.permutation import Permutation

Counts = NDArray[np.int64]
ROWS = 1 << 22
"""Draws held at a time while the cohorts of a sliding window pick their slots."""


@dataclass(frozen=True, slots=True)
class Crowd:
    """A population that takes part in one run of a design; seeded, for simulation alone.

    Theorem:     Algorithm 1, client's side: each client flips a p0-coin and picks uniformly in its
                 window; counts of the slots are multinomial, for each cohort that wakes together.
    """

    design: Design
    clients: int
    seed: int
    availability: Availability = field(default_factory=Always)

    def __post_init__(self) -> None:
        require.one_of(Design, design=self.design)
        require.count(clients=self.clients)

    def check_ins(self) -> Counts:
        """How many check in to slots 1..m."""
        generator = np.random.default_rng([self.seed, 1])
        slots = self.design.slots
        if self.design.window is None:
            counts = _spread(generator, self.clients, slots, self.design.participation)
        else:
            waking = Arrivals(slots).waking(self.clients)
            taking_part = generator.binomial(waking, self.design.participation)
            counts = _slide(generator, taking_part, self.design.window)
        online = self.availability.online(np.arange(1, slots + 1))
        if np.all(online >= 1.0):
            return counts
        return generator.binomial(counts, online)

    def order(self) -> Permutation:
        """The order in which clients are used, whoever they are."""
        return Permutation(self.clients, seed=self.seed)


def _spread(
    generator: np.random.Generator, clients: int, slots: int, participation: float
) -> Counts:
    """Each client in slot i with probability p0/m, in none with 1 − p0."""
    takers = int(generator.binomial(clients, participation))
    return generator.multinomial(takers, np.full(slots, 1.0 / slots))


def _slide(generator: np.random.Generator, waking: Counts, window: int) -> Counts:
    """Each cohort spreads over its own window; what falls after the last slot is never used."""
    slots = waking.size
    counts = np.zeros(slots + window, dtype=np.int64)
    if waking.sum() <= slots * window // 4:  # few clients: let each one pick
        for start in range(0, slots, max(1, ROWS // max(1, int(waking.max())))):
            cohort = waking[start : start + max(1, ROWS // max(1, int(waking.max())))]
            awake = np.repeat(np.arange(start, start + cohort.size), cohort)
            picked = awake + generator.integers(0, window, awake.size)
            counts += np.bincount(picked, minlength=counts.size)[: counts.size]
        return counts[:slots]
    share = np.full(window, 1.0 / window)
    for start in range(0, slots, max(1, ROWS // window)):
        rows = generator.multinomial(waking[start : start + max(1, ROWS // window)], share)
        for row, picked in enumerate(rows, start=start):
            counts[row : row + window] += picked
    return counts[:slots]
