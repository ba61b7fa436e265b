"""From scores to a lower bound on epsilon that holds with a stated confidence, exactly.

A test is an event E about a run's score: "at least t" or "at most t". If the protocol is
(ε, δ)-DP, Pr_P[E] <= e^ε Pr_Q[E] + δ for both orders of (with, without). So

    ε >= log( (P_low − δ) / Q_high ),

with P_low and Q_high the Clopper-Pearson ends of the two chances. The events are chosen on one
part of the runs and counted on the rest, and the confidence is shared equally by every end that
is used (Bonferroni): what is said of all tests together holds with the confidence of the whole.

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
from checkins.audit.trials import Scores, Trials
from checkins.errors import InvalidValue

CHOOSING = 0.25
"""Share of the runs that the events are chosen on, and that count for nothing else."""
LEAST_RUNS = 8
_ULPS = 1e-9
_GROWTH = 1.02

FloatArray = NDArray[np.float64]


class Direction(StrEnum):
    """Which of the two laws is P, the one under which the event is likely."""

    REMOVE = "remove"
    """The canary is there under P: large scores."""
    ADD = "add"
    """The canary is missing under P: small scores."""


@dataclass(frozen=True, slots=True)
class Event:
    """A run is told as P where its score is at least ``threshold``, or at most for ``ADD``."""

    direction: Direction
    threshold: float
    delta: float
    """For which delta it was chosen."""

    def likely(self, trials: Trials) -> Scores:
        """The scores under P."""
        remove = self.direction is Direction.REMOVE
        return trials.scores_with if remove else trials.scores_without

    def unlikely(self, trials: Trials) -> Scores:
        """The scores under Q."""
        remove = self.direction is Direction.REMOVE
        return trials.scores_without if remove else trials.scores_with

    def count(self, scores: Scores) -> int:
        told = (
            scores >= self.threshold
            if self.direction is Direction.REMOVE
            else scores <= self.threshold
        )
        return int(np.count_nonzero(told))


@dataclass(frozen=True, slots=True)
class Counts:
    """How often an event happened among fresh runs of P and of Q."""

    event: Event
    canary: str
    hits: int = 0
    of_hits: int = 0
    alarms: int = 0
    of_alarms: int = 0

    def plus(self, trials: Trials) -> Counts:
        """With more runs."""
        likely, unlikely = self.event.likely(trials), self.event.unlikely(trials)
        return Counts(
            self.event,
            self.canary,
            self.hits + self.event.count(likely),
            self.of_hits + likely.size,
            self.alarms + self.event.count(unlikely),
            self.of_alarms + unlikely.size,
        )

    def bound(self, *, failure: float) -> MeasuredBound:
        """The bound that holds but with probability ``failure``."""
        low = lower_end(self.hits, self.of_hits, failure=failure / 2)
        high = upper_end(self.alarms, self.of_alarms, failure=failure / 2)
        return MeasuredBound(
            epsilon=_epsilon(low, high, self.event.delta),
            delta=self.event.delta,
            direction=self.event.direction,
            canary=self.canary,
            threshold=self.event.threshold,
            hits=self.hits,
            of_hits=self.of_hits,
            alarms=self.alarms,
            of_alarms=self.of_alarms,
            hit_rate_low=low,
            alarm_rate_high=high,
        )


@dataclass(frozen=True, slots=True)
class MeasuredBound:
    """No epsilon below ``epsilon`` is true at ``delta``, and the counts that show it.

    0 says nothing. ``hits`` are runs of P in the event, ``alarms`` runs of Q.
    """

    epsilon: float
    delta: float
    direction: Direction
    canary: str
    threshold: float
    hits: int
    of_hits: int
    alarms: int
    of_alarms: int
    hit_rate_low: float
    alarm_rate_high: float

    def at(self, delta: float) -> MeasuredBound:
        """The same counts, read at another delta."""
        epsilon = _epsilon(self.hit_rate_low, self.alarm_rate_high, delta)
        return replace(self, delta=delta, epsilon=epsilon)

    def as_dict(self) -> dict[str, object]:
        return {
            "delta": self.delta,
            "epsilon": self.epsilon,
            "direction": str(self.direction),
            "canary": self.canary,
            "threshold": self.threshold if math.isfinite(self.threshold) else None,
            "hits": self.hits,
            "of_hits": self.of_hits,
            "alarms": self.alarms,
            "of_alarms": self.of_alarms,
            "hit_rate_low": self.hit_rate_low,
            "alarm_rate_high": self.alarm_rate_high,
        }


def lower_bounds(
    trials: Trials | Sequence[Trials], *, deltas: Sequence[float], confidence: float
) -> list[MeasuredBound]:
    """The best lower bound at each delta; all of them hold together with ``confidence``.

    >>> honest = Trials(np.zeros(1000), np.zeros(1000), "nobody")
    >>> [bound.epsilon for bound in lower_bounds(honest, deltas=[1e-6], confidence=0.99)]
    [0.0]
    """
    every = (trials,) if isinstance(trials, Trials) else tuple(trials)
    check(deltas, confidence)
    tests = len(every) * len(deltas) * len(Direction)
    failure = (1.0 - confidence) / tests
    found: list[MeasuredBound] = []
    for one in every:
        chosen_on, fresh = one.split(CHOOSING)
        events = choose(chosen_on, deltas=deltas, failure=failure, fresh=fresh.fewest)
        found += (Counts(event, one.canary).plus(fresh).bound(failure=failure) for event in events)
    return best_of_each(found, deltas)


class Bound(Protocol):
    """No epsilon below ``epsilon`` is true at ``delta``."""

    @property
    def epsilon(self) -> float: ...
    @property
    def delta(self) -> float: ...
    @property
    def canary(self) -> str: ...
    def at(self, delta: float) -> Self:
        """What the same runs show at another delta."""
        ...

    def as_dict(self) -> dict[str, object]: ...


AnyBound = TypeVar("AnyBound", bound=Bound)


def best_of_each(found: Sequence[AnyBound], deltas: Sequence[float]) -> list[AnyBound]:
    """The largest bound at each delta: the ends of an event hold whatever delta it is read at."""
    return [
        max((bound.at(delta) for bound in found), key=lambda bound: bound.epsilon)
        for delta in deltas
    ]


def choose(
    trials: Trials, *, deltas: Sequence[float], failure: float, fresh: int
) -> tuple[Event, ...]:
    """For each delta and direction the event that promises most on ``fresh`` further runs.

    With too few runs to choose on, an event that never happens.
    """
    events: list[Event] = []
    for direction in Direction:
        signed = 1.0 if direction is Direction.REMOVE else -1.0
        blank = Event(direction, signed * math.inf, deltas[0])
        likely, unlikely = (
            np.sort(signed * scores.astype(np.float64))
            for scores in (blank.likely(trials), blank.unlikely(trials))
        )
        if min(likely.size, unlikely.size) < LEAST_RUNS or fresh < 1:
            events += (Event(direction, signed * math.inf, delta) for delta in deltas)
            continue
        places = _candidates(likely, unlikely)
        low, high = _promised(places, likely, unlikely, failure=failure, fresh=fresh)
        for delta in deltas:
            gain = np.log(np.maximum(low - delta, 1e-300)) - np.log(high)
            place = float(places[int(np.argmax(gain))])
            events.append(Event(direction, signed * place, delta))
    return tuple(events)


def _candidates(likely: FloatArray, unlikely: FloatArray) -> FloatArray:
    """Thresholds at the order statistics of both, dense where few runs lie beyond."""
    found = []
    for scores in (likely, unlikely):
        steps = math.log(scores.size) / math.log(_GROWTH)
        ranks = np.unique(np.floor(_GROWTH ** np.arange(0.0, steps))).astype(np.int64)
        ranks = np.minimum(ranks, scores.size)
        found += [scores[scores.size - ranks], scores[ranks - 1]]
    above = np.nextafter(found[2], math.inf)  # none of these runs of Q is in the event
    return np.unique(np.concatenate([*found, above]))


def _promised(
    places: FloatArray, likely: FloatArray, unlikely: FloatArray, *, failure: float, fresh: int
) -> tuple[FloatArray, FloatArray]:
    """The ends that so many fresh runs would have, at the rates seen; rare alarms are not 0."""
    hits = np.asarray(likely.size - np.searchsorted(likely, places), dtype=np.float64)
    hits *= fresh / likely.size
    alarms = (unlikely.size - np.searchsorted(unlikely, places) + 0.5) * (fresh / unlikely.size)
    alarms = np.minimum(alarms, float(fresh))
    return ends_of(hits, alarms, fresh, failure=failure)


def ends_of(
    hits: FloatArray, alarms: FloatArray, runs: float, *, failure: float
) -> tuple[FloatArray, FloatArray]:
    """P_low and Q_high of many events; what is expected need be no whole number."""
    return _lower_ends(hits, runs, failure / 2), _upper_ends(alarms, runs, failure / 2)


def lower_end(count: int, runs: int, *, failure: float) -> float:
    """Below the chance of what happened ``count`` times, but with probability ``failure``."""
    if runs == 0:
        return 0.0
    return float(_lower_ends(np.array(float(count)), runs, failure))


def upper_end(count: int, runs: int, *, failure: float) -> float:
    """Above the chance of what happened ``count`` times, but with probability ``failure``."""
    if runs == 0:
        return 1.0
    return float(_upper_ends(np.array(float(count)), runs, failure))


def _lower_ends(counts: FloatArray, runs: float, failure: float) -> FloatArray:
    some = np.maximum(counts, 0.5)
    ends = betaincinv(some, runs - np.minimum(counts, runs) + 1.0, failure) * (1.0 - _ULPS)
    return np.where(counts >= 1.0, ends, 0.0)


def _upper_ends(counts: FloatArray, runs: float, failure: float) -> FloatArray:
    left = np.maximum(runs - counts, 0.5)
    ends = betainccinv(counts + 1.0, left, failure) * (1.0 + _ULPS)
    return np.where(counts <= runs - 1.0, np.minimum(ends, 1.0), 1.0)


def _epsilon(low: float, high: float, delta: float) -> float:
    if not low > delta:
        return 0.0
    return max(0.0, math.log((low - delta) / high) - _ULPS)


def check(deltas: Sequence[float], confidence: float) -> None:
    """Refuse what no bound can be asked for."""
    validate.open_unit(confidence=confidence)
    if not deltas:
        raise InvalidValue("deltas", deltas, "must name at least one delta")
    for delta in deltas:
        validate.open_unit(delta=delta)
