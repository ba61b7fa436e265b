"""Expected check-ins, reports and dummies of a run, from the distribution of a slot's check-ins.

A dummy is a report without data, which the server draws in place of a missing report.

Theorem:     [BKMTT20, Prop 3.4 and 4.2] for one report per slot. The same binomial distributions
             hold for any capacity, availability and dropout, because each client that can reach a
             slot checks in to it independently of the others, with the same probability.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from checkins.accounting import Protocol
from checkins.simulation.population import Arrivals, Sampling, SimulatedPopulation

Floats = NDArray[np.float64]
BARS = 60
"""Largest number of bars of a histogram."""
MOST_BINOMIALS = 2000
"""Largest number of distinct binomial distributions to average over."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Shares of slots by number of check-ins, measured and expected.

    Bar ``i`` counts the slots with at least ``edges[i]`` and fewer than ``edges[i] + width``
    check-ins.
    """

    edges: list[int]
    width: int
    measured: list[float]
    expected: list[float]

    def as_json(self) -> dict[str, object]:
        plain = asdict(self)
        return {"check_ins": plain.pop("edges"), **plain}


@dataclass(frozen=True, slots=True)
class _Binomials:
    """The distinct binomial distributions of check-ins, and how many slots have each of them."""

    trials: NDArray[np.int64]
    probabilities: Floats
    slots: Floats


def occupancy(population: SimulatedPopulation, measured: NDArray[np.int64]) -> Histogram:
    """Return the histogram of the measured check-ins per slot, with the expected shares."""
    binomials = _thinned(_binomials(population))
    low = int(np.min(binom.ppf(1e-6, binomials.trials, binomials.probabilities)))
    high = int(np.max(binom.isf(1e-6, binomials.trials, binomials.probabilities)))
    low, high = max(0, min(low, int(measured.min()))), max(high, int(measured.max()))
    width = max(1, -(-(high - low + 1) // BARS))
    edges = np.arange(low, high + 1, width)
    counts, _ = np.histogram(measured, np.append(edges, edges[-1] + width))
    ends = np.append(edges, edges[-1] + width) - 1
    trials, probabilities = binomials.trials, binomials.probabilities
    cdfs = (binom.cdf(end, trials, probabilities) for end in ends)
    below = np.array([np.average(cdf, weights=binomials.slots) for cdf in cdfs])
    shares = (counts / measured.size).tolist()
    return Histogram(edges.tolist(), width, shares, np.diff(below).tolist())


def reports(population: SimulatedPopulation) -> float:
    """Return the expected number of reports that the server uses in a run."""
    binomials = _binomials(population, from_slot=population.design.window or 1)
    mean = binomials.trials * binomials.probabilities
    if population.design.capacity is not None:
        cap = population.design.capacity
        # E min(B, K) = np P(B' ≤ K − 2) + K P(B ≥ K), where B' has n − 1 trials.
        inside = binom.cdf(cap - 2, np.maximum(binomials.trials - 1, 0), binomials.probabilities)
        full = binom.sf(cap - 1, binomials.trials, binomials.probabilities)
        mean = np.where(binomials.trials > 0, mean * inside + cap * full, 0.0)
    return float((1.0 - population.dropout) * np.sum(mean * binomials.slots))


def dummies(population: SimulatedPopulation) -> float:
    """Return the expected number of dummies in a run."""
    design = population.design
    released = design.slots - (design.window or 1) + 1
    return (design.capacity or 1) * released - reports(population)


def _binomials(population: SimulatedPopulation, *, from_slot: int = 1) -> _Binomials:
    design = population.design
    slots = np.arange(from_slot, design.slots + 1)
    online = population.availability.online(slots)
    reach = np.full(slots.shape, population.clients)
    if design.protocol is Protocol.SLIDING and population.sampling is Sampling.CHECK_INS:
        window = design.window or 1
        total = np.concatenate([np.zeros(1, np.int64), np.cumsum(population.waking())])
        reach = total[slots] - total[np.maximum(slots - window, 0)]
        if isinstance(population.availability, Arrivals):
            online = np.ones(slots.shape)
    probabilities = design.participation / design.drawable_slots * online
    if population.sampling is Sampling.SHUFFLED:
        reach, probabilities = Arrivals(design.slots).waking(population.clients)[slots - 1], online
    # Pairs are complex numbers because columns of a matrix take ten times as long to sort.
    pairs, counted = np.unique(reach + 1j * probabilities, return_counts=True)
    binomials = np.stack([pairs.real, pairs.imag])
    return _Binomials(binomials[0].astype(np.int64), binomials[1], counted.astype(np.float64))


def _thinned(binomials: _Binomials) -> _Binomials:
    """Return at most ``MOST_BINOMIALS`` distributions, each representing equally many slots."""
    if binomials.slots.size <= MOST_BINOMIALS:
        return binomials
    until = np.cumsum(binomials.slots)
    share = until[-1] / MOST_BINOMIALS
    some = np.searchsorted(until, (np.arange(MOST_BINOMIALS) + 0.5) * share)
    return _Binomials(
        binomials.trials[some], binomials.probabilities[some], np.full(MOST_BINOMIALS, share)
    )
