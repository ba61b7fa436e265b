"""Likelihood ratios of named randomizers: a report against a dummy, and a report against a report.

A dummy is a report without data, which the server draws in place of a missing report. The dummies
that run are central: uniform for randomized response and PrivUnit, only noise for Laplace. So a
report differs less from a dummy than from the report of another input. Each ``ReportLaw`` gives

    against_dummy      L_E, the density ratio of a report to a dummy,
    against_report     L_F, the density ratio of two reports,
    replacement(eps)   Z_E = (u - e^eps v)/D, for two reports u and v and a dummy D,

each for the inputs that are worst in convex order, with independent values under the dummy (under
the second report for L_F). ``dummy_share`` is the largest s with s D <= u for every report u.

Notation: b = e^eps0, where eps0 is the local epsilon.

Theorem:     docs/theory/pure.md, "Named randomizers".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Protocol

import numpy as np
from scipy.special import ndtr

from checkins.accounting.exact.pure import ThreePoint, TwoPoint
from checkins.accounting.exact.slot_ratio import (
    DEVIATES,
    FloatArray,
    SlotRatio,
)
from checkins.accounting.privunit_cap import best_cap


class Atoms:
    """A distribution with finitely many values.

    ``excess`` is an upper bound on the mean that was lost by capping large values.
    """

    def __init__(
        self, gains: FloatArray, masses: FloatArray, *, mean: float, excess: float = 0.0
    ) -> None:
        """Take the values minus the mean, which are more accurate than the values."""
        order = np.argsort(gains)
        self.mean, self._excess = mean, excess
        self._gains: FloatArray = gains[order]
        self._masses: FloatArray = masses[order]
        products = self._gains * self._masses
        self._mass_from = np.append(np.cumsum(self._masses[::-1])[::-1], 0.0)
        self._gain_from = np.append(np.cumsum(products[::-1])[::-1], 0.0)
        self._mass_below = np.append(0.0, np.cumsum(self._masses))
        self._gain_below = np.append(0.0, np.cumsum(products))

    @classmethod
    def at(cls, values: tuple[float, ...], masses: tuple[float, ...], *, mean: float) -> Atoms:
        return cls(np.array(values) - mean, np.array(masses), mean=mean)

    @property
    def gains(self) -> FloatArray:
        """The values in ascending order, minus the mean."""
        return self._gains

    @property
    def masses(self) -> FloatArray:
        return self._masses

    @property
    def excess(self) -> float:
        return self._excess

    @property
    def floor(self) -> float:
        return float(self._gains[0]) + self.mean

    @property
    def typical(self) -> FloatArray:
        return np.interp(ndtr(DEVIATES), self._mass_below[1:], self._gains) + self.mean

    def call(self, t: FloatArray) -> FloatArray:
        x = t - self.mean
        return np.where(x < 0.0, self._put(x) - x, self._call(x)) + self._excess

    def put(self, t: FloatArray) -> FloatArray:
        x = t - self.mean
        return np.where(x < 0.0, self._put(x), self._call(x) + x + self._excess)

    def _call(self, x: FloatArray) -> FloatArray:
        k = np.searchsorted(self._gains, x, side="right")
        return np.asarray(np.maximum(self._gain_from[k] - x * self._mass_from[k], 0.0))

    def _put(self, x: FloatArray) -> FloatArray:
        k = np.searchsorted(self._gains, x)
        return np.asarray(np.maximum(x * self._mass_below[k] - self._gain_below[k], 0.0))

    def reach(self, tolerance: float) -> tuple[float, float]:
        low = int(np.searchsorted(self._mass_below[1:], tolerance))
        high = int(np.count_nonzero(self._mass_from[:-1] >= tolerance)) - 1
        return float(self._gains[low]) + self.mean, float(self._gains[max(high, 0)]) + self.mean


class ReportLaw(Protocol):
    """The likelihood ratios of one named randomizer and its dummies."""

    @property
    def local_epsilon(self) -> float: ...
    @property
    def dummy_share(self) -> float: ...
    @property
    def against_dummy(self) -> SlotRatio: ...
    @property
    def against_report(self) -> SlotRatio: ...
    def replacement(self, epsilon: float) -> SlotRatio: ...


@dataclass(frozen=True)
class TwoLevelLaw:
    """A randomizer whose reports have two densities relative to a uniform dummy.

    The high density is e^eps0 times the low one. A dummy has the high density of an input with
    probability ``dummy_mass``: 1/k for k-ary randomized response, the mass of the cap for PrivUnit.
    Two inputs have different densities at a report of the second with probability ``differing``.
    """

    local_epsilon: float
    dummy_mass: float
    differing: float

    @cached_property
    def dummy_share(self) -> float:
        """The low density of a report."""
        return 1.0 / (1.0 + self.dummy_mass * math.expm1(self.local_epsilon))

    @property
    def two_point(self) -> TwoPoint:
        low = self.dummy_share
        gap = low * math.expm1(self.local_epsilon)
        return TwoPoint(low + gap, 1.0 / low, gap, self.dummy_mass)

    @property
    def three_point(self) -> ThreePoint:
        low, high = self.dummy_share, self.dummy_share * math.exp(self.local_epsilon)
        return ThreePoint(self.dummy_mass, (high, low), (low, low), (low, high))

    @cached_property
    def against_dummy(self) -> Atoms:
        q, gap = self.dummy_mass, self.dummy_share * math.expm1(self.local_epsilon)
        return Atoms(np.array([-q * gap, (1.0 - q) * gap]), np.array([1.0 - q, q]), mean=1.0)

    @cached_property
    def against_report(self) -> Atoms:
        up, down = math.expm1(self.local_epsilon), math.expm1(-self.local_epsilon)
        higher = self.differing / (2.0 + up)
        masses = [self.differing - higher, 1.0 - self.differing, higher]
        return Atoms(np.array([down, 0.0, up]), np.array(masses), mean=1.0)

    def replacement(self, epsilon: float) -> Atoms:
        q, low, e = self.dummy_mass, self.dummy_share, math.exp(epsilon)
        gap, mean = low * math.expm1(self.local_epsilon), -math.expm1(epsilon)
        middle = mean * (low - 1.0)
        gains = np.array([middle - e * gap, middle, middle + gap])
        return Atoms(gains, np.array([q, max(1.0 - 2.0 * q, 0.0), q]), mean=mean)


def randomized_response(local_epsilon: float, categories: int) -> TwoLevelLaw:
    """Return the law of k-ary randomized response with uniform dummies."""
    growth = math.expm1(local_epsilon)
    return TwoLevelLaw(local_epsilon, 1.0 / categories, (2.0 + growth) / (growth + categories))


@lru_cache(maxsize=256)
def privunit(local_epsilon: float, dimension: int) -> TwoLevelLaw:
    """Return the law of PrivUnit with uniform dummies. Disjoint caps are worst."""
    cap = best_cap(local_epsilon=local_epsilon, dimension=dimension)
    differing = cap.inside * (1.0 + math.exp(-local_epsilon))
    return TwoLevelLaw(local_epsilon, min(cap.mass, 0.5), min(differing, 1.0))


@dataclass(frozen=True, slots=True)
class LaplaceRatio:
    """The density ratio of Laplace noise shifted by ``shift`` scales to the unshifted noise.

        E(L - t)_+ = 1 - sqrt(t) e^(-shift/2)   for |log t| <= shift .

    Theorem:     docs/theory/pure.md, "Named randomizers". Attained.
    Neighbours:  add/remove.
    """

    shift: float
    mean = 1.0

    @property
    def floor(self) -> float:
        return math.exp(-self.shift)

    @property
    def typical(self) -> FloatArray:
        return np.exp(np.clip(self.shift * DEVIATES / 2.0, -self.shift, self.shift))

    def call(self, t: FloatArray) -> FloatArray:
        losses = np.log(np.clip(t, self.floor, math.exp(self.shift)))
        inside = np.maximum(-np.expm1((losses - self.shift) / 2.0), 0.0)
        return np.where(t < self.floor, 1.0 - t, inside)

    def put(self, t: FloatArray) -> FloatArray:
        return np.where(t <= self.floor, 0.0, np.maximum(self.call(t) + (t - 1.0), 0.0))

    def survival(self, t: FloatArray) -> FloatArray:
        loss = np.log(np.maximum(t, self.floor))
        inside = 0.5 * np.exp(-(loss + self.shift) / 2.0)
        return np.where(t < self.floor, 1.0, np.where(loss >= self.shift, 0.0, inside))

    def cdf(self, t: FloatArray) -> FloatArray:
        return 1.0 - self.survival(t)

    def reach(self, tolerance: float) -> tuple[float, float]:
        return self.floor, math.exp(self.shift)


@dataclass(frozen=True, slots=True)
class LaplaceReplacement:
    """The difference l - e^eps l' of the ratios of two opposite shifts against the same noise.

    With Y standard Laplace and h = ``shift``, it is e^(|Y|-|Y-h|) - e^eps e^(|Y|-|Y+h|), which
    increases in Y.

    Theorem:     docs/theory/pure.md, "Named randomizers". Attained.
    Neighbours:  replace-one, at privacy loss ``epsilon``.
    """

    shift: float
    epsilon: float

    @property
    def mean(self) -> float:
        return -math.expm1(self.epsilon)

    @property
    def floor(self) -> float:
        return math.exp(-self.shift) - math.exp(self.epsilon + self.shift)

    @property
    def ceiling(self) -> float:
        return math.exp(self.shift) - math.exp(self.epsilon - self.shift)

    @property
    def typical(self) -> FloatArray:
        return self._value(np.clip(self.shift * DEVIATES / 2.0, -self.shift, self.shift))

    def _value(self, y: FloatArray) -> FloatArray:
        """Return the difference at Y = y, where |y| is at most the shift."""
        above = np.exp(np.maximum(2.0 * y, 0.0) - self.shift)
        below = np.exp(np.maximum(-2.0 * y, 0.0) - self.shift)
        return np.asarray(above - math.exp(self.epsilon) * below)

    def _noise(self, t: FloatArray) -> FloatArray:
        """Return the y at which the difference is t."""
        centre = math.exp(-self.shift) * self.mean
        least = math.exp(-self.shift)
        right = np.log((np.maximum(t, centre) - centre) / least + 1.0) / 2.0
        left = (centre - np.minimum(t, centre)) / (math.exp(self.epsilon) * least)
        return np.clip(np.where(t >= centre, right, -np.log1p(left) / 2.0), -self.shift, self.shift)

    def call(self, t: FloatArray) -> FloatArray:
        y = self._noise(np.clip(t, self.floor, self.ceiling))
        own, other = _laplace_tail(y - self.shift), _laplace_tail(y + self.shift)
        above = own - math.exp(self.epsilon) * other - t * _laplace_tail(y)
        inside = np.where(t < self.ceiling, np.maximum(above, 0.0), 0.0)
        return np.where(t < self.floor, self.mean - t, inside)

    def put(self, t: FloatArray) -> FloatArray:
        put = np.maximum(self.call(t) + (t - self.mean), 0.0)
        return np.where(t <= self.floor, 0.0, put)

    def survival(self, t: FloatArray) -> FloatArray:
        inside = _laplace_tail(self._noise(np.clip(t, self.floor, self.ceiling)))
        return np.where(t < self.floor, 1.0, np.where(t >= self.ceiling, 0.0, inside))

    def cdf(self, t: FloatArray) -> FloatArray:
        return 1.0 - self.survival(t)

    def reach(self, tolerance: float) -> tuple[float, float]:
        return self.floor, self.ceiling


def _laplace_tail(y: FloatArray) -> FloatArray:
    """Return the probability that standard Laplace noise exceeds y."""
    half = 0.5 * np.exp(-np.abs(y))
    return np.where(y >= 0.0, half, 1.0 - half)


@dataclass(frozen=True, slots=True)
class LaplaceLaw:
    """Laplace noise of scale 2C/eps0 on updates with L1 norm at most C. A dummy is only noise.

    The updates of two opposite corners of the L1 ball are worst.
    """

    local_epsilon: float

    @property
    def dummy_share(self) -> float:
        return math.exp(-self.local_epsilon / 2.0)

    @property
    def against_dummy(self) -> LaplaceRatio:
        return LaplaceRatio(self.local_epsilon / 2.0)

    @property
    def against_report(self) -> LaplaceRatio:
        return LaplaceRatio(self.local_epsilon)

    def replacement(self, epsilon: float) -> LaplaceReplacement:
        return LaplaceReplacement(self.local_epsilon / 2.0, epsilon)
