"""Expected check-ins, reports and dummies of a run, from the distribution of check-ins per slot.

A dummy is a report without data, which the server draws in place of a missing report.

Theorem:     [BKMTT20, Prop 3.4 and 4.4] for one report per slot. The check-ins of a slot are
             binomial for any capacity, availability and dropout, because each client that can
             reach the slot checks in independently of the others, with the same probability.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from checkins.accounting import Protocol
from checkins.simulation.population import Arrivals, Sampling, SimulatedPopulation

Floats = NDArray[np.float64]
MAX_BARS = 60
"""Largest number of bars of a histogram."""
MAX_BINOMIALS = 2000
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
        fields = asdict(self)
        return {"check_ins": fields.pop("edges"), **fields}


@dataclass(frozen=True, slots=True)
class _Binomials:
    """The distinct binomial distributions of check-ins, and the number of slots with each one."""

    trials: NDArray[np.int64]
    probabilities: Floats
    slots: Floats


def occupancy(population: SimulatedPopulation, check_ins: NDArray[np.int64]) -> Histogram:
    """Return the histogram of the measured check-ins per slot, with the expected shares."""
    binomials = _limit_binomials(_check_in_binomials(population))
    # The bars cover all but a share of 1e-6 of the slots on either side, and all measured slots.
    low = int(np.min(binom.ppf(1e-6, binomials.trials, binomials.probabilities)))
    high = int(np.max(binom.isf(1e-6, binomials.trials, binomials.probabilities)))
    low, high = max(0, min(low, int(check_ins.min()))), max(high, int(check_ins.max()))
    width = max(1, -(-(high - low + 1) // MAX_BARS))
    edges = np.arange(low, high + 1, width)
    counts, _ = np.histogram(check_ins, np.append(edges, edges[-1] + width))
    bar_ends = np.append(edges, edges[-1] + width) - 1
    trials, probabilities = binomials.trials, binomials.probabilities
    cdfs = (binom.cdf(end, trials, probabilities) for end in bar_ends)
    cumulative_shares = np.array([np.average(cdf, weights=binomials.slots) for cdf in cdfs])
    shares = (counts / check_ins.size).tolist()
    return Histogram(edges.tolist(), width, shares, np.diff(cumulative_shares).tolist())


def expected_reports(population: SimulatedPopulation) -> float:
    """Return the expected number of reports that the server uses in a run."""
    binomials = _check_in_binomials(population, from_slot=population.design.window or 1)
    mean = binomials.trials * binomials.probabilities
    if population.design.capacity is not None:
        capacity = population.design.capacity
        # If B is binomial (n, p) and B' is binomial (n − 1, p), then
        # E min(B, K) = n p P(B' ≤ K − 2) + K P(B ≥ K).
        trials, probabilities = binomials.trials, binomials.probabilities
        share_below = binom.cdf(capacity - 2, np.maximum(trials - 1, 0), probabilities)
        share_full = binom.sf(capacity - 1, trials, probabilities)
        mean = np.where(trials > 0, mean * share_below + capacity * share_full, 0.0)
    return float((1.0 - population.dropout) * np.sum(mean * binomials.slots))


def expected_dummies(population: SimulatedPopulation) -> float:
    """Return the expected number of dummies in a run."""
    design = population.design
    released_slots = design.slots - (design.window or 1) + 1
    return design.reports_per_slot * released_slots - expected_reports(population)


def _check_in_binomials(population: SimulatedPopulation, *, from_slot: int = 1) -> _Binomials:
    design = population.design
    slots = np.arange(from_slot, design.slots + 1)
    online_shares = population.availability.online(slots)
    reachable_clients = np.full(slots.shape, population.clients)
    if design.protocol is Protocol.SLIDING and population.sampling is Sampling.CHECK_INS:
        window = design.window or 1
        woken_until = np.concatenate([np.zeros(1, np.int64), np.cumsum(population.waking())])
        reachable_clients = woken_until[slots] - woken_until[np.maximum(slots - window, 0)]
        if isinstance(population.availability, Arrivals):
            online_shares = np.ones(slots.shape)
    probabilities = design.participation / design.drawable_slots * online_shares
    if population.sampling is Sampling.SHUFFLED:
        reachable_clients = Arrivals(design.slots).waking(population.clients)[slots - 1]
        probabilities = online_shares
    # Pairs are stored as complex numbers, because pairs of columns take ten times as long to sort.
    pairs, slots_of_pair = np.unique(reachable_clients + 1j * probabilities, return_counts=True)
    binomials = np.stack([pairs.real, pairs.imag])
    return _Binomials(binomials[0].astype(np.int64), binomials[1], slots_of_pair.astype(np.float64))


def _limit_binomials(binomials: _Binomials) -> _Binomials:
    """Return at most ``MAX_BINOMIALS`` distributions, each representing equally many slots."""
    if binomials.slots.size <= MAX_BINOMIALS:
        return binomials
    cumulative_slots = np.cumsum(binomials.slots)
    slots_each = cumulative_slots[-1] / MAX_BINOMIALS
    indices = np.searchsorted(cumulative_slots, (np.arange(MAX_BINOMIALS) + 0.5) * slots_each)
    return _Binomials(
        binomials.trials[indices],
        binomials.probabilities[indices],
        np.full(MAX_BINOMIALS, slots_each),
    )
