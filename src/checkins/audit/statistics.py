"""Compute the power of an attack: event rates, runs needed, and the trade-off curve.

An event says that the score of a run is above or below a threshold. As in ``bounds``, P is the
distribution under which the event should be likely, and Q the other one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, xlogy

from checkins.accounting.exact.gaussian import outcome_masses
from checkins.accounting.solve import first_true
from checkins.audit.bounds import Direction, Trials, ends_of, lower_end, upper_end
from checkins.audit.canaries import Canary, ResponseCanary, SumCanary
from checkins.audit.releases import GaussianSum, Response

FloatArray = NDArray[np.float64]

MAX_OUTCOMES = 2_000_000
"""Largest number of outcomes that are enumerated for exact rates."""
MAX_RUNS_NEEDED = 1e13
"""Largest number that ``runs_needed`` returns."""
_CELLS = 1500
_MAX_LOG_RUNS = math.log(MAX_RUNS_NEEDED)
_UNLUCKY = 1.5  # standard deviations


@dataclass(frozen=True, slots=True, eq=False)
class EventRates:
    """The probabilities of one event per threshold, under P (``likely``) and Q (``unlikely``)."""

    direction: Direction
    likely: FloatArray
    unlikely: FloatArray

    def epsilon(self, delta: float) -> float:
        """Return the exact epsilon of this attack, which infinitely many runs would measure."""
        return _largest_log_ratio(self.likely - delta, self.unlikely)

    def expected_bound(self, delta: float, *, runs: float, failure: float) -> float:
        """Return the bound that ``runs`` runs measure if both counts are somewhat unlucky.

        Unlucky means 1.5 standard deviations away from the expected count.
        """
        detected, mistaken = self.likely * runs, self.unlikely * runs
        detected = np.maximum(detected - _UNLUCKY * np.sqrt(detected * (1.0 - self.likely)), 0.0)
        mistaken = mistaken + _UNLUCKY * np.sqrt(mistaken * (1.0 - self.unlikely))
        low, high = ends_of(detected, np.minimum(mistaken, runs), runs, failure=failure)
        return _largest_log_ratio(low - delta, high)


def _largest_log_ratio(gains: FloatArray, rates: FloatArray) -> float:
    """Return the largest log(gain / rate) over the events where both are positive, at least 0."""
    some = (gains > 0.0) & (rates > 0.0)
    logs = np.log(gains[some]) - np.log(rates[some])
    return max(0.0, float(np.max(logs))) if some.any() else 0.0


def epsilon_of(rates: Sequence[EventRates], delta: float) -> float:
    """Return the exact epsilon of an attack: the larger one of its two directions."""
    return max((one.epsilon(delta) for one in rates), default=0.0)


def runs_needed(
    rates: Sequence[EventRates], *, delta: float, epsilon: float, failure: float
) -> float | None:
    """Return how many runs with and as many without the canary measure ``epsilon``.

    The runs on which events are chosen are not included, and the counts are assumed to be somewhat
    unlucky. Return None if no number of runs up to ``MAX_RUNS_NEEDED`` is enough.
    """
    useful = [one for one in rates if one.epsilon(delta) > epsilon]

    def reached(runs: float) -> bool:
        return any(
            one.expected_bound(delta, runs=runs, failure=failure) >= epsilon for one in useful
        )

    low, high = 0.0, math.log(16.0)
    while useful and high < _MAX_LOG_RUNS and not reached(math.exp(high)):
        low, high = high, high + math.log(8.0)
    if not useful or high >= _MAX_LOG_RUNS:
        return None
    return math.exp(
        first_true(lambda log: reached(math.exp(log)), false=low, true=high, width=0.03)
    )


def exact_rates(canary: Canary) -> tuple[EventRates, ...] | None:
    """Return the exact rates of an attack in both directions. None if they are not known.

    They are computed on a grid, with a relative error of about a thousandth. So they can estimate
    how many runs are needed, but cannot prove a bound.
    """
    if isinstance(canary, ResponseCanary) and canary.run.repeats == 1:
        return _response_rates(canary.response, canary.reports, canary.run.reach)
    if isinstance(canary, SumCanary) and canary.run.repeats == 1:
        return _sum_rates(canary)
    return None


@lru_cache(maxsize=16)
def _response_rates(
    response: Response, reports: int, reach: float
) -> tuple[EventRates, ...] | None:
    k = len(response.base)
    if math.comb(reports + k - 1, k - 1) > MAX_OUTCOMES:
        return None
    counts = _compositions(reports, k)
    base = np.asarray(response.base)
    logs = gammaln(reports + 1.0) - gammaln(counts + 1.0).sum(axis=1) + xlogy(counts, base).sum(1)
    masses = np.exp(logs)
    averages = [
        1.0 - reach + reach * (counts @ (np.asarray(distribution) / base)) / reports
        for distribution in (response.first, response.other)
    ]
    return rates_of(masses * averages[0], masses * averages[1])


def _compositions(total: int, parts: int) -> FloatArray:
    """Return all ways to split ``total`` into two or three counts, one way per row."""
    first = np.arange(total + 1.0)
    if parts == 2:
        return np.stack([first, total - first], axis=1)
    second = np.concatenate([np.arange(total - i + 1.0) for i in range(total + 1)])
    first = np.repeat(first, np.arange(total + 1, 0, -1))
    return np.stack([first, second, total - first - second], axis=1)


def _sum_rates(canary: SumCanary) -> tuple[EventRates, ...] | None:
    """Return the rates of a canary with Gaussian noise. None if they are not known.

    They are computable if f is a mean of independent and equally distributed slot ratios.
    """
    noise, run = canary.noise, canary.run
    if not isinstance(noise, GaussianSum) or not isinstance(noise.deviation, float):
        return None
    missing = canary.other is None or canary.other == canary.level
    if canary.crowd or not missing:
        return None
    full = run.capacity is not None and canary.others >= run.capacity
    if not full and canary.others:
        return None
    shift = (canary.first - (canary.level if full else 0.0)) / noise.deviation
    chosen = None
    if full and run.capacity is not None:
        chosen = run.capacity / (canary.others + 1.0)
    return rates_of(
        *outcome_masses(
            shift=shift, chosen=chosen, slots=run.slots, participation=run.reach, cells=_CELLS
        )
    )


def rates_of(present: FloatArray, missing: FloatArray) -> tuple[EventRates, ...]:
    """Return the rates of both directions.

    ``present`` and ``missing`` are the probabilities of every outcome with and without the canary.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(missing > 0.0, present / missing, np.inf)
    order = np.argsort(-ratios, kind="stable")
    present, missing = present[order], missing[order]
    return (
        EventRates(Direction.REMOVE, _summed(present), _summed(missing)),
        EventRates(Direction.ADD, _summed(missing[::-1]), _summed(present[::-1])),
    )


def _summed(masses: FloatArray) -> FloatArray:
    return np.minimum(np.cumsum(masses), 1.0)  # round-off must not make a probability exceed 1


POINTS = 48
"""Number of thresholds outside the tails of the two score distributions."""
MAX_CURVE_RUNS = 4_000_000
"""Largest number of runs in a curve. More runs would not change what is visible in a plot."""
_MAX_RATES = 4000


@dataclass(frozen=True, slots=True)
class TradeOffPoint:
    """Both error rates at one threshold, each with its own Clopper-Pearson interval."""

    false_positive: float
    false_positive_low: float
    false_positive_high: float
    false_negative: float
    false_negative_low: float
    false_negative_high: float


@dataclass(frozen=True, slots=True, eq=False)
class TradeOffCurve:
    """The trade-off between the two error rates.

    The counts are the numbers of runs whose score is at least each threshold.
    """

    thresholds: NDArray[np.float64]
    counts_with: NDArray[np.int64]
    counts_without: NDArray[np.int64]
    runs_with: int = 0
    runs_without: int = 0

    @classmethod
    def over(cls, trials: Trials) -> TradeOffCurve:
        """Return a curve without counts, whose thresholds are quantiles of the scores."""
        tails = np.array([1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2])
        shares = np.concatenate([np.linspace(0.02, 0.98, POINTS // 2), tails, 1.0 - tails])
        scores = [
            np.quantile(half, shares, method="nearest")
            for half in (trials.scores_with, trials.scores_without)
            if half.size
        ]
        places = np.unique(np.concatenate(scores).astype(np.float64))
        nothing = np.zeros(len(places), dtype=np.int64)
        return cls(places, nothing, nothing)

    def plus(self, trials: Trials) -> TradeOffCurve:
        """Return the curve with more runs added, up to ``MAX_CURVE_RUNS``."""
        if self.runs_with >= MAX_CURVE_RUNS:
            return self
        return replace(
            self,
            counts_with=self.counts_with + _at_least(trials.scores_with, self.thresholds),
            counts_without=self.counts_without + _at_least(trials.scores_without, self.thresholds),
            runs_with=self.runs_with + trials.scores_with.size,
            runs_without=self.runs_without + trials.scores_without.size,
        )

    def points(self, *, confidence: float) -> tuple[TradeOffPoint, ...]:
        """Return all points. Each interval end on its own holds with ``confidence``."""
        if not self.runs_with or not self.runs_without:
            return ()

        def ends(count: int, runs: int) -> tuple[float, float, float]:
            failure = 1.0 - confidence
            low, high = (end(count, runs, failure=failure) for end in (lower_end, upper_end))
            return count / runs, low, high

        counts = zip(self.counts_with.tolist(), self.counts_without.tolist(), strict=True)
        return tuple(
            TradeOffPoint(
                *ends(above, self.runs_without), *ends(self.runs_with - found, self.runs_with)
            )
            for found, above in counts
        )

    @staticmethod
    def rates(trials: Trials) -> tuple[EventRates, ...]:
        """Return the observed rates of all events, for both directions."""
        present, missing = np.sort(trials.scores_with), np.sort(trials.scores_without)
        if not present.size or not missing.size:
            return ()
        places = np.unique(np.concatenate([present, missing]))
        if places.size > _MAX_RATES:
            places = places[np.linspace(0, places.size - 1, _MAX_RATES).astype(np.intp)]
        above = [1.0 - np.searchsorted(half, places) / half.size for half in (present, missing)]
        below = [
            np.searchsorted(half, places, side="right") / half.size for half in (present, missing)
        ]
        least = 200.0 / min(present.size, missing.size)  # rarer events are left out
        remove, add = above[1] >= least, below[0] >= least
        return (
            EventRates(Direction.REMOVE, above[0][remove], above[1][remove]),
            EventRates(Direction.ADD, below[1][add], below[0][add]),
        )


def _at_least(scores: NDArray[np.floating], thresholds: NDArray[np.float64]) -> NDArray[np.int64]:
    places = np.searchsorted(thresholds, scores, side="right")
    counts = np.bincount(places, minlength=len(thresholds) + 1)
    return np.asarray(counts[::-1].cumsum()[::-1][1:], dtype=np.int64)
