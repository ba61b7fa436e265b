"""How much an attack can measure: its exact laws where they are known, and the runs it needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, xlogy

from checkins.accounting.exact.gaussian import outcome_masses
from checkins.audit.bounds import Direction, ends_of
from checkins.audit.canaries.canary import Canary, ResponseCanary, SumCanary
from checkins.audit.canaries.noise import GaussianSum
from checkins.audit.canaries.releases import Response

FloatArray = NDArray[np.float64]

MOST_OUTCOMES = 2_000_000
MOST_RUNS = 1e13
"""More are not told apart from never."""
_CELLS = 1500
_MOST_LOG_RUNS = math.log(MOST_RUNS)
_UNLUCKY = 1.5  # deviations


@dataclass(frozen=True, slots=True, eq=False)
class Rates:
    """Chances of the events of all thresholds: under P, where they are likely, and under Q."""

    direction: Direction
    likely: FloatArray
    unlikely: FloatArray

    def epsilon(self, delta: float) -> float:
        """What endless runs would measure: the epsilon of this attack."""
        gain = self.likely - delta
        some = (gain > 0.0) & (self.unlikely > 0.0)
        if not some.any():
            return 0.0
        return max(0.0, float(np.max(np.log(gain[some]) - np.log(self.unlikely[some]))))

    def promised(self, delta: float, *, runs: float, failure: float) -> float:
        """What so many fresh runs measure, even if both counts come out a little unlucky."""
        hits, alarms = self.likely * runs, self.unlikely * runs
        hits = np.maximum(hits - _UNLUCKY * np.sqrt(hits * (1.0 - self.likely)), 0.0)
        alarms = alarms + _UNLUCKY * np.sqrt(alarms * (1.0 - self.unlikely))
        low, high = ends_of(hits, np.minimum(alarms, runs), runs, failure=failure)
        gain = low - delta
        some = gain > 0.0
        if not some.any():
            return 0.0
        return max(0.0, float(np.max(np.log(gain[some]) - np.log(high[some]))))


def epsilon_of(rates: Sequence[Rates], delta: float) -> float:
    """The larger of both directions."""
    return max((one.epsilon(delta) for one in rates), default=0.0)


def runs_needed(
    rates: Sequence[Rates], *, delta: float, epsilon: float, failure: float
) -> float | None:
    """Fresh runs of each half after which ``epsilon`` is measured, a little bad luck included.

    None where no number of them is enough, or none below ``MOST_RUNS``.
    """
    useful = [one for one in rates if one.epsilon(delta) > epsilon]

    def reached(runs: float) -> bool:
        return any(one.promised(delta, runs=runs, failure=failure) >= epsilon for one in useful)

    low, high = 0.0, math.log(16.0)
    while useful and high < _MOST_LOG_RUNS and not reached(math.exp(high)):
        low, high = high, high + math.log(8.0)
    if not useful or high >= _MOST_LOG_RUNS:
        return None
    while high - low > 0.03:
        middle = (low + high) / 2
        low, high = (low, middle) if reached(math.exp(middle)) else (middle, high)
    return math.exp(high)


def exact_rates(canary: Canary) -> tuple[Rates, ...] | None:
    """Both directions of an attack whose laws are known; None for others.

    To about a thousandth where a law lives on a grid: it counts runs, it proves nothing.
    """
    if isinstance(canary, ResponseCanary) and canary.world.repeats == 1:
        return _response_rates(canary.response, canary.reports, canary.world.reach)
    if isinstance(canary, SumCanary) and canary.world.repeats == 1:
        return _sum_rates(canary)
    return None


@lru_cache(maxsize=16)
def _response_rates(response: Response, reports: int, reach: float) -> tuple[Rates, ...] | None:
    k = len(response.base)
    if math.comb(reports + k - 1, k - 1) > MOST_OUTCOMES:
        return None
    counts = _compositions(reports, k)
    base = np.asarray(response.base)
    logs = gammaln(reports + 1.0) - gammaln(counts + 1.0).sum(axis=1) + xlogy(counts, base).sum(1)
    masses = np.exp(logs)
    averages = [
        1.0 - reach + reach * (counts @ (np.asarray(law) / base)) / reports
        for law in (response.first, response.other)
    ]
    return rates_of(masses * averages[0], masses * averages[1])


def _compositions(total: int, parts: int) -> FloatArray:
    """All ways to share ``total`` among two or three outcomes: (ways, parts)."""
    first = np.arange(total + 1.0)
    if parts == 2:
        return np.stack([first, total - first], axis=1)
    second = np.concatenate([np.arange(total - i + 1.0) for i in range(total + 1)])
    first = np.repeat(first, np.arange(total + 1, 0, -1))
    return np.stack([first, second, total - first - second], axis=1)


def _sum_rates(canary: SumCanary) -> tuple[Rates, ...] | None:
    """A Gaussian shift in one direction: f is a mean of independent slot ratios."""
    noise, world = canary.noise, canary.world
    if not isinstance(noise, GaussianSum) or not isinstance(noise.deviation, float):
        return None
    missing = canary.other is None or canary.other == canary.level
    if canary.crowd or not missing:
        return None
    full = world.capacity is not None and canary.others >= world.capacity
    if not full and canary.others:
        return None
    shift = (canary.first - (canary.level if full else 0.0)) / noise.deviation
    chosen = None
    if full and world.capacity is not None:
        chosen = world.capacity / (canary.others + 1.0)
    return rates_of(
        *outcome_masses(
            shift=shift, chosen=chosen, slots=world.slots, participation=world.reach, cells=_CELLS
        )
    )


def rates_of(present: FloatArray, missing: FloatArray) -> tuple[Rates, ...]:
    """Of the masses of all outcomes, with the canary and without it."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(missing > 0.0, present / missing, np.inf)
    order = np.argsort(-ratios, kind="stable")
    present, missing = present[order], missing[order]
    return (
        Rates(Direction.REMOVE, _summed(present), _summed(missing)),
        Rates(Direction.ADD, _summed(missing[::-1]), _summed(present[::-1])),
    )


def _summed(masses: FloatArray) -> FloatArray:
    return np.minimum(np.cumsum(masses), 1.0)  # round-off must not make a chance exceed 1
