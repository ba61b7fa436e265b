"""What theory says of a run before it is run: the law of a slot's check-ins, dummies, reports.

Theorem:     [BKMTT20, Prop 3.4 and 4.2] for one report a slot; the same binomial laws for any
             capacity, availability and dropout: each client that can reach a slot checks in to it
             independently of the others, with one chance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from checkins.accounting import Protocol
from checkins.simulation.availability import Arrivals
from checkins.simulation.population import Sampling, SimulatedPopulation

Floats = NDArray[np.float64]
BARS = 60
MOST_LAWS = 2000


@dataclass(frozen=True, slots=True)
class Histogram:
    """Shares of slots by their check-ins: from ``edges[i]`` to below ``edges[i] + width``."""

    edges: list[int]
    width: int
    measured: list[float]
    expected: list[float]

    def as_dict(self) -> dict[str, object]:
        return {
            "check_ins": self.edges,
            "width": self.width,
            "measured": self.measured,
            "expected": self.expected,
        }


@dataclass(frozen=True, slots=True)
class _Laws:
    """The distinct binomial laws of the slots and how many slots follow each."""

    trials: NDArray[np.int64]
    chances: Floats
    slots: Floats


def occupancy(crowd: SimulatedPopulation, measured: NDArray[np.int64]) -> Histogram:
    """Measured check-ins of slots beside their law."""
    laws = _some(_laws(crowd))
    low = int(np.min(binom.ppf(1e-6, laws.trials, laws.chances)))
    high = int(np.max(binom.isf(1e-6, laws.trials, laws.chances)))
    low, high = max(0, min(low, int(measured.min()))), max(high, int(measured.max()))
    width = max(1, -(-(high - low + 1) // BARS))
    edges = np.arange(low, high + 1, width)
    seen, _ = np.histogram(measured, np.append(edges, edges[-1] + width))
    ends = np.append(edges, edges[-1] + width) - 1
    below = np.array(
        [np.average(binom.cdf(end, laws.trials, laws.chances), weights=laws.slots) for end in ends]
    )
    return Histogram(
        edges.tolist(), width, (seen / measured.size).tolist(), np.diff(below).tolist()
    )


def reports(crowd: SimulatedPopulation) -> float:
    """Expected reports of a run that the server uses."""
    laws = _laws(crowd, from_slot=crowd.design.window or 1)
    mean = laws.trials * laws.chances
    if crowd.design.capacity is not None:
        cap = crowd.design.capacity
        # E min(B, K) = np P(B' ≤ K − 2) + K P(B ≥ K), with B' of one trial less.
        inside = binom.cdf(cap - 2, np.maximum(laws.trials - 1, 0), laws.chances)
        mean = np.where(
            laws.trials > 0,
            mean * inside + cap * binom.sf(cap - 1, laws.trials, laws.chances),
            0.0,
        )
    return float((1.0 - crowd.dropout) * np.sum(mean * laws.slots))


def dummies(crowd: SimulatedPopulation) -> float:
    """Expected reports of nobody in a run with dummies."""
    design = crowd.design
    released = design.slots - (design.window or 1) + 1
    return (design.capacity or 1) * released - reports(crowd)


def _laws(crowd: SimulatedPopulation, *, from_slot: int = 1) -> _Laws:
    design = crowd.design
    slots = np.arange(from_slot, design.slots + 1)
    online = crowd.availability.online(slots)
    reach = np.full(slots.shape, crowd.clients)
    if design.protocol is Protocol.SLIDING and crowd.sampling is Sampling.CHECK_INS:
        window, given = design.window or 1, crowd.availability
        arrivals = given if isinstance(given, Arrivals) else Arrivals(design.slots)
        waking = np.zeros(design.slots, dtype=np.int64)
        early = arrivals.waking(crowd.clients)[: design.slots]
        waking[: early.size] = early
        total = np.concatenate([np.zeros(1, np.int64), np.cumsum(waking)])
        reach = total[slots] - total[np.maximum(slots - window, 0)]
        if isinstance(given, Arrivals):
            online = np.ones(slots.shape)
    chances = design.participation / design.choices * online
    if crowd.sampling is Sampling.SHUFFLED:
        reach, chances = Arrivals(design.slots).waking(crowd.clients)[slots - 1], online
    # Pairs as complex numbers: columns of a matrix take ten times as long to sort.
    pairs, counted = np.unique(reach + 1j * chances, return_counts=True)
    laws = np.stack([pairs.real, pairs.imag])
    return _Laws(laws[0].astype(np.int64), laws[1], counted.astype(np.float64))


def _some(laws: _Laws) -> _Laws:
    """At most ``MOST_LAWS`` of them, so that each stands for as many slots as any other."""
    if laws.slots.size <= MOST_LAWS:
        return laws
    until = np.cumsum(laws.slots)
    share = until[-1] / MOST_LAWS
    some = np.searchsorted(until, (np.arange(MOST_LAWS) + 0.5) * share)
    return _Laws(laws.trials[some], laws.chances[some], np.full(MOST_LAWS, share))
