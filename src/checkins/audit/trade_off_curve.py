"""The trade-off between the two errors of an attack, at many thresholds of its score."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from checkins.audit.bounds import Direction, lower_end, upper_end
from checkins.audit.power import Rates
from checkins.audit.trials import Trials

POINTS = 48
MOST_RUNS = 4_000_000
"""More runs add nothing that a picture shows."""
_MOST_RATES = 4000


@dataclass(frozen=True, slots=True)
class Point:
    """One threshold: both errors, each with its Clopper-Pearson ends, which hold one by one."""

    false_positive: float
    false_positive_low: float
    false_positive_high: float
    false_negative: float
    false_negative_low: float
    false_negative_high: float


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Runs whose score is at least each threshold, counted on fresh runs."""

    thresholds: NDArray[np.float64]
    told_with: NDArray[np.int64]
    told_without: NDArray[np.int64]
    runs_with: int = 0
    runs_without: int = 0

    @classmethod
    def over(cls, trials: Trials) -> Curve:
        """Thresholds at even steps of both laws, and into their tails."""
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

    def plus(self, trials: Trials) -> Curve:
        """With more runs, while they make a difference."""
        if self.runs_with >= MOST_RUNS:
            return self
        return replace(
            self,
            told_with=self.told_with + _at_least(trials.scores_with, self.thresholds),
            told_without=self.told_without + _at_least(trials.scores_without, self.thresholds),
            runs_with=self.runs_with + trials.scores_with.size,
            runs_without=self.runs_without + trials.scores_without.size,
        )

    def points(self, *, confidence: float) -> tuple[Point, ...]:
        """Every threshold; an end holds with ``confidence``, both of a point but with twice the
        chance to fail."""
        if not self.runs_with or not self.runs_without:
            return ()
        failure = 1.0 - confidence
        found = []
        for told, alarms in zip(self.told_with.tolist(), self.told_without.tolist(), strict=True):
            missed = self.runs_with - told
            found.append(
                Point(
                    alarms / self.runs_without,
                    lower_end(alarms, self.runs_without, failure=failure),
                    upper_end(alarms, self.runs_without, failure=failure),
                    missed / self.runs_with,
                    lower_end(missed, self.runs_with, failure=failure),
                    upper_end(missed, self.runs_with, failure=failure),
                )
            )
        return tuple(found)

    @staticmethod
    def rates(trials: Trials) -> tuple[Rates, ...]:
        """The chances of all events as they were seen, for both directions."""
        present, missing = np.sort(trials.scores_with), np.sort(trials.scores_without)
        if not present.size or not missing.size:
            return ()
        places = np.unique(np.concatenate([present, missing]))
        if places.size > _MOST_RATES:
            places = places[np.linspace(0, places.size - 1, _MOST_RATES).astype(np.intp)]
        above = [1.0 - np.searchsorted(half, places) / half.size for half in (present, missing)]
        below = [
            np.searchsorted(half, places, side="right") / half.size for half in (present, missing)
        ]
        least = 200.0 / min(present.size, missing.size)  # rarer events are too uncertain
        remove, add = above[1] >= least, below[0] >= least
        return (
            Rates(Direction.REMOVE, above[0][remove], above[1][remove]),
            Rates(Direction.ADD, below[1][add], below[0][add]),
        )


def _at_least(scores: NDArray[np.floating], thresholds: NDArray[np.float64]) -> NDArray[np.int64]:
    places = np.searchsorted(thresholds, scores, side="right")
    counts = np.bincount(places, minlength=len(thresholds) + 1)
    return np.asarray(counts[::-1].cumsum()[::-1][1:], dtype=np.int64)
