"""Whether a report that is known to the last unit is in a sum with noise that is not known.

A slot's total is a sum of reports and of dummies, and a dummy looks like a report from outside. The
checker knows every report, noise included. A report of d coordinates is d numbers that nobody else
has drawn: laid over a sum as a matched filter, it tells whether it is in there.

    score(r, u) = <r, w> / <u, w>,   w = u cut off at ±4 scales

is near 1 if u is in the rest r once, near 0 if it is not, near −1 if it was taken out and had not
been in. What remains in r are m Laplace vectors of the same scale b, so by Chernoff's bound

    P(|score| ≥ t) ≤ 2 exp(−λ t <u, w> − m Σ log(1 − λ² b² w²))   for every λ with λ b max|w| < 1,

and the checker adds up the bounds of all the questions it asks: ``chance`` is at most the
probability that any of its answers is wrong. (The law on the grid is taken for the continuous one;
the grid is 1/50,000 of the scale.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

CUT = 4.0
"""In scales: the coordinate that holds the update itself must not outweigh all others."""

FRACTIONS = np.linspace(0.05, 0.95, 19)
"""Where λ is tried, as a share of the largest that is allowed."""


@dataclass(frozen=True, slots=True)
class Filters:
    """The reports to look for, one in each row, in grid units; ``scale`` is that of their noise."""

    reports: NDArray[np.float64]
    weights: NDArray[np.float64]
    norms: Vector
    scale: float

    @classmethod
    def of(cls, reports: NDArray[np.int64], *, scale: float) -> Filters:
        known = reports.astype(np.float64)
        weights = np.clip(known, -CUT * scale, CUT * scale)
        return cls(known, weights, np.einsum("ij,ij->i", known, weights), scale)

    def scores(self, rest: NDArray[np.int64]) -> Vector:
        """How often each report is in this rest."""
        return (self.weights @ rest.astype(np.float64)) / self.norms

    def chances(self, *, threshold: float, vectors: int) -> Vector:
        """For each report: at most this likely, noise alone scores ``threshold`` or more."""
        if vectors == 0 or not len(self.reports):
            return np.zeros(len(self.reports))
        share = self.weights / np.abs(self.weights).max(axis=1, keepdims=True)
        reach = threshold * self.norms / (self.scale * np.abs(self.weights).max(axis=1))
        best = np.zeros(len(self.reports))
        for fraction in FRACTIONS:
            cost = -np.log1p(-((fraction * share) ** 2)).sum(axis=1)
            best = np.minimum(best, vectors * cost - fraction * reach)
        return np.minimum(1.0, 2.0 * np.exp(best))
