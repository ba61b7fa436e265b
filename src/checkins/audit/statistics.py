"""Compute the power of an attack: event rates, runs needed, and the trade-off curve.

An attack scores each run of a campaign, made with or without one client, the canary. An event says
that the score is above or below a threshold. P is the distribution of scores under which the event
should be likely, and Q the distribution under which it should be unlikely.
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
from checkins.audit.bounds import Direction, Trials, interval_ends, interval_high, interval_low
from checkins.audit.canaries import Canary, ResponseCanary, SumCanary
from checkins.audit.releases import GaussianSum, Response

FloatArray = NDArray[np.float64]

MAX_OUTCOMES = 2_000_000
"""Largest number of outcomes that are enumerated for exact rates."""
MAX_RUNS_NEEDED = 1e13
"""Largest number that ``runs_needed`` returns."""
_GRID_CELLS = 1500  # cells of the grid on which the exact rates of sums are computed
_MAX_LOG_RUNS = math.log(MAX_RUNS_NEEDED)
_UNLUCKY_DEVIATIONS = 1.5  # a count this many standard deviations off is called unlucky


@dataclass(frozen=True, slots=True, eq=False)
class EventRates:
    """For each threshold, the probability of the event under P (true positive) and under Q."""

    direction: Direction
    true_positive: FloatArray
    false_positive: FloatArray

    def epsilon(self, delta: float) -> float:
        """Return the exact epsilon of this attack, which unlimited runs would measure."""
        return _largest_log_ratio(self.true_positive - delta, self.false_positive)

    def expected_bound(self, delta: float, *, runs: float, failure: float) -> float:
        """Return the bound that ``runs`` runs measure if both counts are unlucky.

        An unlucky count is 1.5 standard deviations away from its expectation.
        """
        detections, false_alarms = self.true_positive * runs, self.false_positive * runs
        deviation = np.sqrt(detections * (1.0 - self.true_positive))
        detections = np.maximum(detections - _UNLUCKY_DEVIATIONS * deviation, 0.0)
        deviation = np.sqrt(false_alarms * (1.0 - self.false_positive))
        false_alarms = np.minimum(false_alarms + _UNLUCKY_DEVIATIONS * deviation, runs)
        low, high = interval_ends(detections, false_alarms, runs, failure=failure)
        return _largest_log_ratio(low - delta, high)


def _largest_log_ratio(gains: FloatArray, rates: FloatArray) -> float:
    """Return the largest log(gain / rate) over events where both are positive, but at least 0."""
    is_positive = (gains > 0.0) & (rates > 0.0)
    logs = np.log(gains[is_positive]) - np.log(rates[is_positive])
    return max(0.0, float(np.max(logs))) if is_positive.any() else 0.0


def exact_epsilon(rates: Sequence[EventRates], delta: float) -> float:
    """Return the exact epsilon of an attack: the larger epsilon of its two directions."""
    return max((part.epsilon(delta) for part in rates), default=0.0)


def runs_needed(
    rates: Sequence[EventRates], *, delta: float, epsilon: float, failure: float
) -> float | None:
    """Return how many runs with the canary, and as many without it, measure ``epsilon``.

    The runs on which events are chosen are not included, and the counts are assumed to be unlucky
    (``EventRates.expected_bound``). Return None if no number of runs up to ``MAX_RUNS_NEEDED`` is
    enough.
    """
    useful_rates = [part for part in rates if part.epsilon(delta) > epsilon]

    def is_reached(runs: float) -> bool:
        bounds = (part.expected_bound(delta, runs=runs, failure=failure) for part in useful_rates)
        return any(bound >= epsilon for bound in bounds)

    low, high = 0.0, math.log(16.0)
    while useful_rates and high < _MAX_LOG_RUNS and not is_reached(math.exp(high)):
        low, high = high, high + math.log(8.0)
    if not useful_rates or high >= _MAX_LOG_RUNS:
        return None
    return math.exp(
        first_true(lambda log: is_reached(math.exp(log)), false=low, true=high, width=0.03)
    )


def exact_rates(canary: Canary) -> tuple[EventRates, ...] | None:
    """Return the exact rates of an attack in both directions. None if they are not known.

    Rates of sums are computed on a grid, with a relative error of about a thousandth. So the rates
    can estimate how many runs are needed, but cannot prove a bound.
    """
    if isinstance(canary, ResponseCanary) and canary.run.repeats == 1:
        return _response_rates(canary.response, canary.reports, canary.run.check_in_probability)
    if isinstance(canary, SumCanary) and canary.run.repeats == 1:
        return _sum_rates(canary)
    return None


@lru_cache(maxsize=16)
def _response_rates(
    response: Response, reports: int, check_in_probability: float
) -> tuple[EventRates, ...] | None:
    """Return the rates of a canary whose report is one of k outcomes, by enumerating all counts."""
    k, p = len(response.base), check_in_probability
    if math.comb(reports + k - 1, k - 1) > MAX_OUTCOMES:
        return None
    counts = _compositions(reports, k)
    base = np.asarray(response.base)
    logs = gammaln(reports + 1.0) - gammaln(counts + 1.0).sum(axis=1) + xlogy(counts, base).sum(1)
    masses = np.exp(logs)
    averages = [
        1.0 - p + p * (counts @ (np.asarray(distribution) / base)) / reports
        for distribution in (response.first, response.other)
    ]
    return rates_from_outcomes(masses * averages[0], masses * averages[1])


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

    The rates are known if the likelihood ratio of a run is a mean of slot ratios that are
    independent and identically distributed.
    """
    noise, run = canary.noise, canary.run
    if not isinstance(noise, GaussianSum) or not isinstance(noise.deviation, float):
        return None
    if run.coefficients != (1.0,):
        return None  # the ratios of slots are dependent
    displaces_itself = canary.other_update == canary.others_update  # like a missing canary
    if canary.random_others or not (canary.other_update is None or displaces_itself):
        return None
    is_full = run.capacity is not None and canary.others_per_slot >= run.capacity
    if not is_full and canary.others_per_slot:
        return None
    shift = (canary.update - (canary.others_update if is_full else 0.0)) / noise.deviation
    chosen = None
    if is_full and run.capacity is not None:
        chosen = run.capacity / (canary.others_per_slot + 1.0)
    p, cells = run.check_in_probability, _GRID_CELLS
    return rates_from_outcomes(
        *outcome_masses(
            shift=shift, choice_probability=chosen, slots=run.slots, participation=p, cells=cells
        )
    )


def rates_from_outcomes(present: FloatArray, missing: FloatArray) -> tuple[EventRates, ...]:
    """Return the rates of both directions.

    ``present`` and ``missing`` are the probabilities of every outcome with and without the canary.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(missing > 0.0, present / missing, np.inf)
    order = np.argsort(-ratios, kind="stable")
    present, missing = present[order], missing[order]
    return (
        EventRates(Direction.REMOVE, _cumulative(present), _cumulative(missing)),
        EventRates(Direction.ADD, _cumulative(missing[::-1]), _cumulative(present[::-1])),
    )


def _cumulative(masses: FloatArray) -> FloatArray:
    return np.minimum(np.cumsum(masses), 1.0)  # rounding must not make a probability exceed 1


CENTRAL_THRESHOLDS = 48
"""Number of thresholds between the tails of the two score distributions, half for each."""
MAX_CURVE_RUNS = 4_000_000
"""Largest number of runs in a trade-off curve. More runs would not visibly change a plot."""
_MAX_THRESHOLDS = 4000  # largest number of thresholds at which event rates are observed


@dataclass(frozen=True, slots=True)
class TradeOffPoint:
    """The two error rates at one threshold, each with its Clopper-Pearson interval."""

    false_positive: float
    false_positive_low: float
    false_positive_high: float
    false_negative: float
    false_negative_low: float
    false_negative_high: float


@dataclass(frozen=True, slots=True, eq=False)
class TradeOffCurve:
    """The trade-off between the two error rates.

    For each threshold, ``counts_with`` is the number of runs with the canary whose score is at
    least the threshold, and ``counts_without`` the same number for runs without the canary.
    """

    thresholds: NDArray[np.float64]
    counts_with: NDArray[np.int64]
    counts_without: NDArray[np.int64]
    runs_with: int = 0
    runs_without: int = 0

    @classmethod
    def with_thresholds_of(cls, trials: Trials) -> TradeOffCurve:
        """Return a curve without counts, whose thresholds are quantiles of the scores."""
        tails = np.array([1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2])
        central = np.linspace(0.02, 0.98, CENTRAL_THRESHOLDS // 2)
        probabilities = np.concatenate([central, tails, 1.0 - tails])
        quantiles = [
            np.quantile(half, probabilities, method="nearest")
            for half in (trials.scores_with, trials.scores_without)
            if half.size
        ]
        thresholds = np.unique(np.concatenate(quantiles).astype(np.float64))
        zeros = np.zeros(len(thresholds), dtype=np.int64)
        return cls(thresholds, zeros, zeros)

    def plus(self, trials: Trials) -> TradeOffCurve:
        """Return the curve with more runs added, up to ``MAX_CURVE_RUNS``."""
        if self.runs_with >= MAX_CURVE_RUNS:
            return self
        return replace(
            self,
            counts_with=self.counts_with + _counts_at_least(trials.scores_with, self.thresholds),
            counts_without=self.counts_without
            + _counts_at_least(trials.scores_without, self.thresholds),
            runs_with=self.runs_with + trials.scores_with.size,
            runs_without=self.runs_without + trials.scores_without.size,
        )

    def points(self, *, confidence: float) -> tuple[TradeOffPoint, ...]:
        """Return one point per threshold. Each interval end alone holds with ``confidence``."""
        if not self.runs_with or not self.runs_without:
            return ()

        def rate_and_ends(count: int, runs: int) -> tuple[float, float, float]:
            failure = 1.0 - confidence
            low, high = (end(count, runs, failure=failure) for end in (interval_low, interval_high))
            return count / runs, low, high

        counts = zip(self.counts_with.tolist(), self.counts_without.tolist(), strict=True)
        return tuple(
            TradeOffPoint(
                *rate_and_ends(false_positives, self.runs_without),
                *rate_and_ends(self.runs_with - true_positives, self.runs_with),
            )
            for true_positives, false_positives in counts
        )

    @staticmethod
    def rates(trials: Trials) -> tuple[EventRates, ...]:
        """Return the observed rates of all events, for both directions."""
        present, missing = np.sort(trials.scores_with), np.sort(trials.scores_without)
        if not present.size or not missing.size:
            return ()
        thresholds = np.unique(np.concatenate([present, missing]))
        if thresholds.size > _MAX_THRESHOLDS:
            indices = np.linspace(0, thresholds.size - 1, _MAX_THRESHOLDS).astype(np.intp)
            thresholds = thresholds[indices]
        halves = (present, missing)
        rates_above = [1.0 - np.searchsorted(half, thresholds) / half.size for half in halves]
        rates_below = [
            np.searchsorted(half, thresholds, side="right") / half.size for half in halves
        ]
        min_rate = 200.0 / min(present.size, missing.size)  # rarer events are left out
        remove, add = rates_above[1] >= min_rate, rates_below[0] >= min_rate
        return (
            EventRates(Direction.REMOVE, rates_above[0][remove], rates_above[1][remove]),
            EventRates(Direction.ADD, rates_below[1][add], rates_below[0][add]),
        )


def _counts_at_least(
    scores: NDArray[np.floating], thresholds: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Return for each threshold how many scores are at least the threshold."""
    places = np.searchsorted(thresholds, scores, side="right")
    counts = np.bincount(places, minlength=len(thresholds) + 1)
    return np.asarray(counts[::-1].cumsum()[::-1][1:], dtype=np.int64)
