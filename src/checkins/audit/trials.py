"""What an attack saw: one score for each run of the protocol, with the canary and without it.

This value is all that lies between the engines, which run the protocol, and the bounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from checkins.errors import InvalidValue

Scores = NDArray[np.floating]


@dataclass(frozen=True, slots=True, eq=False)
class Trials:
    """Scores of independent runs; a larger one speaks for the canary.

    For replace-one, ``scores_with`` are of the canary's first data, ``scores_without`` of its
    other. Any score is allowed: a poor one costs power, never truth. It may be infinite.
    """

    scores_with: Scores
    scores_without: Scores
    canary: str
    """Who took part in one half of the runs, in words."""
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
                raise InvalidValue(name, "NaN", "a run without a score cannot be judged")
            object.__setattr__(self, name, scores)

    @property
    def fewest(self) -> int:
        """Runs of the smaller half."""
        return min(self.scores_with.size, self.scores_without.size)

    def split(self, share: float) -> tuple[Trials, Trials]:
        """The first ``share`` of either half, and the rest: both are independent of each other."""
        cut_with = int(self.scores_with.size * share)
        cut_without = int(self.scores_without.size * share)
        return (
            self._part(slice(None, cut_with), slice(None, cut_without)),
            self._part(slice(cut_with, None), slice(cut_without, None)),
        )

    def _part(self, of_with: slice, of_without: slice) -> Trials:
        return Trials(
            self.scores_with[of_with],
            self.scores_without[of_without],
            self.canary,
            self.statistic,
            self.engine,
        )
