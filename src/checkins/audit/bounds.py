"""Compute lower bounds on epsilon from the scores of trials, at a stated confidence.

A run is executed with or without one client, the canary, and gets a score. An event E says that the
score is at least t, or at most t. Let P be the distribution of the score with the canary and Q the
distribution without it, or the other way round. If the protocol is (ε, δ)-DP, then
Pr_P[E] <= e^ε Pr_Q[E] + δ. So

    ε >= log( (P_low − δ) / Q_high ),

where P_low is the lower end of the Clopper-Pearson interval of Pr_P[E], and Q_high the upper end of
the interval of Pr_Q[E]. The events are chosen on one part of the runs and counted on the rest. All
interval ends share the failure probability equally (Bonferroni), so that all bounds hold
simultaneously at the stated confidence.

Theorem:     [CP34]; [KOV17, Thm 2.1] for the region of (ε, δ)-DP tests.
Rounding:    down.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainccinv, betaincinv

from checkins import validate
from checkins.errors import InvalidValue

Scores = NDArray[np.floating]


@dataclass(frozen=True, slots=True, eq=False)
class Trials:
    """Scores of independent runs. A larger score is evidence that the canary took part.

    For replace-one, ``scores_with`` belong to the canary's first data set and ``scores_without`` to
    its other data set. ``statistic`` says how the scores were computed, and ``engine`` how the runs
    were made. Any score gives a valid bound, but a poor score gives a weak bound. A score may be
    infinite.
    """

    scores_with: Scores
    scores_without: Scores
    canary: str
    """Name of the canary, which took part in the runs of ``scores_with``."""
    statistic: str = "likelihood ratio of all releases"
    engine: str = "compiled"

    def __post_init__(self) -> None:
        for name in ("scores_with", "scores_without"):
            scores = np.asarray(getattr(self, name))
            if scores.ndim != 1 or not np.issubdtype(scores.dtype, np.number):
                raise InvalidValue(name, scores.shape, "must be an array of numbers with one axis")
            if not np.issubdtype(scores.dtype, np.floating):
                scores = scores.astype(np.float64)
            if np.isnan(scores).any():
                raise InvalidValue(name, "NaN", "every run needs a score")
            object.__setattr__(self, name, scores)

    @property
    def fewest_runs(self) -> int:
        """The number of runs with the canary or without it, whichever is smaller."""
        return min(self.scores_with.size, self.scores_without.size)

    def split(self, share: float) -> tuple[Trials, Trials]:
        """Return the first ``share`` of the runs, and the rest.

        Runs with the canary and runs without it are split separately.
        """
        (first_with, rest_with), (first_without, rest_without) = (
            np.split(scores, [int(scores.size * share)])
            for scores in (self.scores_with, self.scores_without)
        )
        labels = (self.canary, self.statistic, self.engine)
        return Trials(first_with, first_without, *labels), Trials(rest_with, rest_without, *labels)


SELECTION_SHARE = 0.25
"""Share of the runs that are used to choose events. Only the other runs count the events."""
MIN_RUNS = 8
"""Smallest number of runs with the canary, and without it, from which an event is chosen."""
_ROUNDING_MARGIN = 1e-9  # more than the relative rounding error of an interval end
_THRESHOLD_RANK_RATIO = 1.02
"""Approximate ratio of the ranks of successive candidate thresholds among the sorted scores."""

FloatArray = NDArray[np.float64]


class Direction(StrEnum):
    """Whether P is the distribution of the runs with the canary, or of the runs without it.

    Q is the distribution of the other runs. An event has a larger probability under P than under Q.
    """

    REMOVE = "remove"
    """P has the canary and Q does not, so the event is that the score is large."""
    ADD = "add"
    """Q has the canary and P does not, so the event is that the score is small."""

    def scores(self, trials: Trials) -> tuple[Scores, Scores]:
        """Return the scores under P, and the scores under Q."""
        scores = trials.scores_with, trials.scores_without
        return scores if self is Direction.REMOVE else scores[::-1]


@dataclass(frozen=True, slots=True)
class Event:
    """The event that the score is at least (``REMOVE``) or at most (``ADD``) the threshold."""

    direction: Direction
    threshold: float
    delta: float
    """The delta for which the event was chosen."""

    def count(self, scores: Scores) -> int:
        """Return the number of runs in which the event happened."""
        remove = self.direction is Direction.REMOVE
        happened = scores >= self.threshold if remove else scores <= self.threshold
        return int(np.count_nonzero(happened))


@dataclass(frozen=True, slots=True)
class Counts:
    """How often an event happened in runs of P (true positives) and of Q (false positives).

    The direction of the event says whether P or Q has the canary. The event was chosen on other
    runs.
    """

    event: Event
    canary: str
    true_positives: int = 0
    positive_runs: int = 0
    false_positives: int = 0
    negative_runs: int = 0

    def plus(self, trials: Trials) -> Counts:
        """Return the counts with more runs added."""
        likely, unlikely = self.event.direction.scores(trials)
        return replace(
            self,
            true_positives=self.true_positives + self.event.count(likely),
            positive_runs=self.positive_runs + likely.size,
            false_positives=self.false_positives + self.event.count(unlikely),
            negative_runs=self.negative_runs + unlikely.size,
        )

    def bound(self, *, failure: float) -> MeasuredBound:
        """Return the bound that is false with probability at most ``failure``."""
        low = interval_low(self.true_positives, self.positive_runs, failure=failure / 2)
        high = interval_high(self.false_positives, self.negative_runs, failure=failure / 2)
        return MeasuredBound(
            epsilon=_epsilon_bound(low, high, self.event.delta),
            delta=self.event.delta,
            direction=self.event.direction,
            canary=self.canary,
            threshold=self.event.threshold,
            true_positives=self.true_positives,
            positive_runs=self.positive_runs,
            false_positives=self.false_positives,
            negative_runs=self.negative_runs,
            true_positive_rate_low=low,
            false_positive_rate_high=high,
        )


@dataclass(frozen=True, slots=True)
class MeasuredBound:
    """A lower bound on epsilon at ``delta``, and the counts that prove it.

    The event happened in ``true_positives`` of ``positive_runs`` runs of P, and in
    ``false_positives`` of ``negative_runs`` runs of Q. ``epsilon`` is 0 if this proves nothing.
    """

    epsilon: float
    delta: float
    direction: Direction
    canary: str
    threshold: float
    true_positives: int
    positive_runs: int
    false_positives: int
    negative_runs: int
    true_positive_rate_low: float
    false_positive_rate_high: float

    def at(self, delta: float) -> MeasuredBound:
        """Return the bound from the same counts at another delta."""
        epsilon = _epsilon_bound(self.true_positive_rate_low, self.false_positive_rate_high, delta)
        return replace(self, delta=delta, epsilon=epsilon)

    def as_dict(self) -> dict[str, object]:
        return {
            "delta": self.delta,
            "epsilon": self.epsilon,
            "direction": str(self.direction),
            "canary": self.canary,
            "threshold": self.threshold if math.isfinite(self.threshold) else None,
            "hits": self.true_positives,
            "of_hits": self.positive_runs,
            "alarms": self.false_positives,
            "of_alarms": self.negative_runs,
            "hit_rate_low": self.true_positive_rate_low,
            "alarm_rate_high": self.false_positive_rate_high,
        }


def lower_bounds(
    trials: Trials | Sequence[Trials], *, deltas: Sequence[float], confidence: float
) -> list[MeasuredBound]:
    """Return the best lower bound at each delta. Together they hold with ``confidence``.

    >>> same = Trials(np.zeros(1000), np.zeros(1000), "none")
    >>> [bound.epsilon for bound in lower_bounds(same, deltas=[1e-6], confidence=0.99)]
    [0.0]
    """
    all_trials = (trials,) if isinstance(trials, Trials) else tuple(trials)
    validate.open_unit(confidence=confidence)
    if not deltas:
        raise InvalidValue("deltas", deltas, "must name at least one delta")
    for delta in deltas:
        validate.open_unit(delta=delta)
    event_count = len(all_trials) * len(deltas) * len(Direction)
    failure = (1.0 - confidence) / event_count
    bounds: list[MeasuredBound] = []
    for part in all_trials:
        first, rest = part.split(SELECTION_SHARE)
        events = choose_events(first, deltas=deltas, failure=failure, counted_runs=rest.fewest_runs)
        bounds += (Counts(event, part.canary).plus(rest).bound(failure=failure) for event in events)
    return best_at_each_delta(bounds, deltas)


class Bound(Protocol):
    """A lower bound on epsilon at ``delta``."""

    @property
    def epsilon(self) -> float: ...
    @property
    def delta(self) -> float: ...
    @property
    def canary(self) -> str: ...
    def at(self, delta: float) -> Self:
        """Return the bound from the same runs at another delta."""

    def as_dict(self) -> dict[str, object]: ...


BoundType = TypeVar("BoundType", bound=Bound)


def best_at_each_delta(bounds: Sequence[BoundType], deltas: Sequence[float]) -> list[BoundType]:
    """Return the largest bound at each delta.

    Every bound is evaluated at every delta. An event that was chosen for one delta may give the
    largest bound at another delta.
    """
    return [
        max((bound.at(delta) for bound in bounds), key=lambda bound: bound.epsilon)
        for delta in deltas
    ]


def choose_events(
    trials: Trials, *, deltas: Sequence[float], failure: float, counted_runs: int
) -> tuple[Event, ...]:
    """Return, for each delta and direction, the event with the largest expected bound.

    ``counted_runs`` is the number of runs on which the events will be counted later, and
    ``failure`` the probability with which each bound may be false. If ``trials`` have fewer than
    ``MIN_RUNS`` runs, the returned events are impossible, so that their bounds are 0.
    """
    events: list[Event] = []
    for direction in Direction:
        sign = 1.0 if direction is Direction.REMOVE else -1.0
        likely, unlikely = (
            np.sort(sign * scores.astype(np.float64)) for scores in direction.scores(trials)
        )
        if min(likely.size, unlikely.size) < MIN_RUNS or counted_runs < 1:
            events += (Event(direction, sign * math.inf, delta) for delta in deltas)
            continue
        thresholds = _candidate_thresholds(likely, unlikely)
        low, high = _expected_ends(thresholds, likely, unlikely, failure=failure, runs=counted_runs)
        for delta in deltas:
            expected_bounds = np.log(np.maximum(low - delta, 1e-300)) - np.log(high)
            best_threshold = float(thresholds[int(np.argmax(expected_bounds))])
            events.append(Event(direction, sign * best_threshold, delta))
    return tuple(events)


def _candidate_thresholds(likely: FloatArray, unlikely: FloatArray) -> FloatArray:
    """Return candidate thresholds: scores of runs of P and of Q, and numbers just above those of Q.

    ``likely`` are the sorted scores of P, and ``unlikely`` those of Q. Candidates are denser in the
    tails.
    """
    candidates = []
    for scores in (likely, unlikely):
        steps = math.log(scores.size) / math.log(_THRESHOLD_RANK_RATIO)
        ranks = np.unique(np.floor(_THRESHOLD_RANK_RATIO ** np.arange(0.0, steps))).astype(np.int64)
        ranks = np.minimum(ranks, scores.size)
        candidates += [scores[scores.size - ranks], scores[ranks - 1]]
    # At a threshold just above a score of Q, this score does not count as a false positive.
    above = np.nextafter(candidates[2], math.inf)
    return np.unique(np.concatenate([*candidates, above]))


def _expected_ends(
    thresholds: FloatArray, likely: FloatArray, unlikely: FloatArray, *, failure: float, runs: int
) -> tuple[FloatArray, FloatArray]:
    """Return, for each threshold, the P_low and Q_high that are expected from ``runs`` runs.

    Half a run is added to the false positives, so that no rate is estimated as 0.
    """
    true_positives = np.asarray(likely.size - np.searchsorted(likely, thresholds), dtype=np.float64)
    true_positives *= runs / likely.size
    false_positives = unlikely.size - np.searchsorted(unlikely, thresholds) + 0.5
    false_positives = np.minimum(false_positives * (runs / unlikely.size), float(runs))
    return interval_ends(true_positives, false_positives, runs, failure=failure)


def interval_ends(
    true_positives: FloatArray, false_positives: FloatArray, runs: float, *, failure: float
) -> tuple[FloatArray, FloatArray]:
    """Return P_low and Q_high of many events. The counts may be expectations, not integers."""
    high = _interval_highs(false_positives, runs, failure / 2)
    return _interval_lows(true_positives, runs, failure / 2), high


def interval_low(count: int, runs: int, *, failure: float) -> float:
    """Return a Clopper-Pearson lower bound, false with probability at most ``failure``."""
    return float(_interval_lows(np.array(float(count)), runs, failure)) if runs else 0.0


def interval_high(count: int, runs: int, *, failure: float) -> float:
    """Return a Clopper-Pearson upper bound, false with probability at most ``failure``."""
    return float(_interval_highs(np.array(float(count)), runs, failure)) if runs else 1.0


def _interval_lows(counts: FloatArray, runs: float, failure: float) -> FloatArray:
    successes = np.maximum(counts, 0.5)
    ends = betaincinv(successes, runs - np.minimum(counts, runs) + 1.0, failure)
    ends *= 1.0 - _ROUNDING_MARGIN
    return np.where(counts >= 1.0, ends, 0.0)


def _interval_highs(counts: FloatArray, runs: float, failure: float) -> FloatArray:
    failures = np.maximum(runs - counts, 0.5)
    ends = betainccinv(counts + 1.0, failures, failure) * (1.0 + _ROUNDING_MARGIN)
    return np.where(counts <= runs - 1.0, np.minimum(ends, 1.0), 1.0)


def _epsilon_bound(low: float, high: float, delta: float) -> float:
    """Return log((low − delta) / high), rounded down, or 0 if it is negative or not defined."""
    return max(0.0, math.log((low - delta) / high) - _ROUNDING_MARGIN) if low > delta else 0.0
