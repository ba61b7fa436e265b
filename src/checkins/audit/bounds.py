"""Compute lower bounds on epsilon from the scores of trials, at a stated confidence.

A run is executed with or without one client, the canary, and gets a score. An event E says that the
score is at least t, or at most t. Let P be the distribution of the score with the canary and Q the
distribution without it, or the other way round. If the protocol is (ε, δ)-DP, then
Pr_P[E] <= e^ε Pr_Q[E] + δ. So

    ε >= log( (P_low − δ) / Q_high ),

where P_low is the lower end of the Clopper-Pearson interval of Pr_P[E], and Q_high the upper end of
that of Pr_Q[E]. The events are chosen on one part of the runs and counted on the rest. All interval
ends share the failure probability equally (Bonferroni), so that all bounds hold simultaneously at
the stated confidence.

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
    its other data set. Any score gives a valid bound, but a poor score gives a weak bound. A score
    may be infinite.
    """

    scores_with: Scores
    scores_without: Scores
    canary: str
    """Name of the client that took part in the runs of ``scores_with``."""
    statistic: str = "likelihood ratio of all releases"
    engine: str = "compiled"

    def __post_init__(self) -> None:
        for name in ("scores_with", "scores_without"):
            scores = np.asarray(getattr(self, name))
            if scores.ndim != 1 or not np.issubdtype(scores.dtype, np.number):
                raise InvalidValue(name, scores.shape, "must be one axis of numbers")
            if not np.issubdtype(scores.dtype, np.floating):
                scores = scores.astype(np.float64)
            if np.isnan(scores).any():
                raise InvalidValue(name, "NaN", "every run needs a score")
            object.__setattr__(self, name, scores)

    @property
    def fewest(self) -> int:
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
        named = (self.canary, self.statistic, self.engine)
        return Trials(first_with, first_without, *named), Trials(rest_with, rest_without, *named)


CHOOSING = 0.25
"""Share of the runs on which events are chosen. The events are not counted on these runs."""
MIN_RUNS = 8
"""Smallest number of runs with the canary, and without it, from which an event is chosen."""
_ULPS = 1e-9
_GROWTH = 1.02

FloatArray = NDArray[np.float64]


class Direction(StrEnum):
    """Which distribution is P. Under P the event should be likely, under Q unlikely."""

    REMOVE = "remove"
    """The canary is present under P, so the event is a large score."""
    ADD = "add"
    """The canary is missing under P, so the event is a small score."""

    def scores(self, trials: Trials) -> tuple[Scores, Scores]:
        """Return the scores under P, and the scores under Q."""
        scores = trials.scores_with, trials.scores_without
        return scores if self is Direction.REMOVE else scores[::-1]


@dataclass(frozen=True, slots=True)
class Event:
    """The event score >= ``threshold`` for ``REMOVE``, or score <= ``threshold`` for ``ADD``."""

    direction: Direction
    threshold: float
    delta: float
    """The delta for which the event was chosen."""

    def count(self, scores: Scores) -> int:
        remove = self.direction is Direction.REMOVE
        inside = scores >= self.threshold if remove else scores <= self.threshold
        return int(np.count_nonzero(inside))


@dataclass(frozen=True, slots=True)
class Counts:
    """How often an event happened in runs of P (true positives) and of Q (false positives).

    These runs are not the ones on which the event was chosen.
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
        low = lower_end(self.true_positives, self.positive_runs, failure=failure / 2)
        high = upper_end(self.false_positives, self.negative_runs, failure=failure / 2)
        return MeasuredBound(
            epsilon=_epsilon(low, high, self.event.delta),
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
    ``false_positives`` of ``negative_runs`` runs of Q. ``epsilon`` is 0 if they prove nothing.
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
        epsilon = _epsilon(self.true_positive_rate_low, self.false_positive_rate_high, delta)
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
    """Return the best lower bound at each delta. All hold simultaneously with ``confidence``.

    >>> same = Trials(np.zeros(1000), np.zeros(1000), "none")
    >>> [bound.epsilon for bound in lower_bounds(same, deltas=[1e-6], confidence=0.99)]
    [0.0]
    """
    every = (trials,) if isinstance(trials, Trials) else tuple(trials)
    validate.open_unit(confidence=confidence)
    if not deltas:
        raise InvalidValue("deltas", deltas, "must name at least one delta")
    for delta in deltas:
        validate.open_unit(delta=delta)
    tests = len(every) * len(deltas) * len(Direction)
    failure = (1.0 - confidence) / tests
    found: list[MeasuredBound] = []
    for one in every:
        chosen_on, fresh = one.split(CHOOSING)
        events = choose(chosen_on, deltas=deltas, failure=failure, fresh=fresh.fewest)
        found += (Counts(event, one.canary).plus(fresh).bound(failure=failure) for event in events)
    return best_of_each(found, deltas)


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


AnyBound = TypeVar("AnyBound", bound=Bound)


def best_of_each(found: Sequence[AnyBound], deltas: Sequence[float]) -> list[AnyBound]:
    """Return the largest bound at each delta.

    A bound of another delta may be the largest, because interval ends do not depend on delta.
    """
    return [
        max((bound.at(delta) for bound in found), key=lambda bound: bound.epsilon)
        for delta in deltas
    ]


def choose(
    trials: Trials, *, deltas: Sequence[float], failure: float, fresh: int
) -> tuple[Event, ...]:
    """Return, for each delta and direction, the event with the largest expected bound.

    ``fresh`` is the number of runs on which the events will be counted. If there are fewer than
    ``MIN_RUNS`` runs, the returned event never happens, and its bound will be 0.
    """
    events: list[Event] = []
    for direction in Direction:
        signed = 1.0 if direction is Direction.REMOVE else -1.0
        likely, unlikely = (
            np.sort(signed * scores.astype(np.float64)) for scores in direction.scores(trials)
        )
        if min(likely.size, unlikely.size) < MIN_RUNS or fresh < 1:
            events += (Event(direction, signed * math.inf, delta) for delta in deltas)
            continue
        places = _candidates(likely, unlikely)
        low, high = _expected_ends(places, likely, unlikely, failure=failure, fresh=fresh)
        for delta in deltas:
            gain = np.log(np.maximum(low - delta, 1e-300)) - np.log(high)
            place = float(places[int(np.argmax(gain))])
            events.append(Event(direction, signed * place, delta))
    return tuple(events)


def _candidates(likely: FloatArray, unlikely: FloatArray) -> FloatArray:
    """Return candidate thresholds: scores of both kinds of runs, more densely in the tails."""
    found = []
    for scores in (likely, unlikely):
        steps = math.log(scores.size) / math.log(_GROWTH)
        ranks = np.unique(np.floor(_GROWTH ** np.arange(0.0, steps))).astype(np.int64)
        ranks = np.minimum(ranks, scores.size)
        found += [scores[scores.size - ranks], scores[ranks - 1]]
    above = np.nextafter(found[2], math.inf)  # just above the scores of Q
    return np.unique(np.concatenate([*found, above]))


def _expected_ends(
    places: FloatArray, likely: FloatArray, unlikely: FloatArray, *, failure: float, fresh: int
) -> tuple[FloatArray, FloatArray]:
    """Return the interval ends that ``fresh`` runs would have at the observed rates.

    Half a run is added to the false positives, so that no rate is estimated as 0.
    """
    true_positives = np.asarray(likely.size - np.searchsorted(likely, places), dtype=np.float64)
    true_positives *= fresh / likely.size
    false_positives = unlikely.size - np.searchsorted(unlikely, places) + 0.5
    false_positives = np.minimum(false_positives * (fresh / unlikely.size), float(fresh))
    return ends_of(true_positives, false_positives, fresh, failure=failure)


def ends_of(
    true_positives: FloatArray, false_positives: FloatArray, runs: float, *, failure: float
) -> tuple[FloatArray, FloatArray]:
    """Return P_low and Q_high of many events. The counts need not be integers."""
    high = _upper_ends(false_positives, runs, failure / 2)
    return _lower_ends(true_positives, runs, failure / 2), high


def lower_end(count: int, runs: int, *, failure: float) -> float:
    """Return a lower Clopper-Pearson bound on a probability, false with at most ``failure``."""
    return float(_lower_ends(np.array(float(count)), runs, failure)) if runs else 0.0


def upper_end(count: int, runs: int, *, failure: float) -> float:
    """Return an upper Clopper-Pearson bound on a probability, false with at most ``failure``."""
    return float(_upper_ends(np.array(float(count)), runs, failure)) if runs else 1.0


def _lower_ends(counts: FloatArray, runs: float, failure: float) -> FloatArray:
    some = np.maximum(counts, 0.5)
    ends = betaincinv(some, runs - np.minimum(counts, runs) + 1.0, failure) * (1.0 - _ULPS)
    return np.where(counts >= 1.0, ends, 0.0)


def _upper_ends(counts: FloatArray, runs: float, failure: float) -> FloatArray:
    left = np.maximum(runs - counts, 0.5)
    ends = betainccinv(counts + 1.0, left, failure) * (1.0 + _ULPS)
    return np.where(counts <= runs - 1.0, np.minimum(ends, 1.0), 1.0)


def _epsilon(low: float, high: float, delta: float) -> float:
    return max(0.0, math.log((low - delta) / high) - _ULPS) if low > delta else 0.0
