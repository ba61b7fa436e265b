"""Likelihood ratios of reports of named randomizers, against a dummy and against another report.

A dummy is a report without data, which the server draws in place of a missing report. It is uniform
for randomized response and PrivUnit, and only noise for Laplace noise. So a report differs less
from a dummy than from the report of another input. ``TwoLevelDistribution`` and
``LaplaceDistribution`` describe the reports of one randomizer. They give

    against_dummy      L_E, the density ratio of a report to a dummy,
    against_report     L_F, the density ratio of two reports,
    replace_one_ratio  Z_E = (u - e^eps v)/D, for densities u, v of two reports and D of a dummy,

each for the inputs that are worst in convex order, at a value drawn from the dummy (from the second
report for L_F). ``dummy_share`` is the largest s with s D <= u for every report u. A distribution X
is given by its expectations ``call(t)`` = E(X - t)_+ and ``put(t)`` = E(t - X)_+.

Theorem:     docs/theory/pure.md, "Named randomizers".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy.special import ndtr

from checkins.accounting.exact.pure import ThreePoint, TwoPoint
from checkins.accounting.exact.slot_ratio import DEVIATES, FloatArray
from checkins.accounting.privunit_cap import best_cap


class DiscreteRatio:
    """A distribution X with finitely many values.

    ``deviations`` are the values minus the mean, in ascending order, and ``masses`` their
    probabilities. ``excess`` is an upper bound on the mean that was lost by capping large values.
    """

    def __init__(
        self, deviations: FloatArray, masses: FloatArray, *, mean: float, excess: float = 0.0
    ) -> None:
        """Take the values minus the mean, because they are more accurate than the values."""
        order = np.argsort(deviations)
        self.mean, self.excess = mean, excess
        self.deviations: FloatArray = deviations[order]
        self.masses: FloatArray = masses[order]
        products = self.deviations * self.masses
        self._mass_from = np.append(np.cumsum(self.masses[::-1])[::-1], 0.0)
        self._sum_from = np.append(np.cumsum(products[::-1])[::-1], 0.0)
        self._mass_below = np.append(0.0, np.cumsum(self.masses))
        self._sum_below = np.append(0.0, np.cumsum(products))

    @classmethod
    def at(
        cls, values: tuple[float, ...], masses: tuple[float, ...], *, mean: float
    ) -> DiscreteRatio:
        """Return the distribution with these values and probabilities."""
        return cls(np.array(values) - mean, np.array(masses), mean=mean)

    @property
    def floor(self) -> float:
        """The smallest value."""
        return float(self.deviations[0]) + self.mean

    @property
    def quantiles(self) -> FloatArray:
        return np.interp(ndtr(DEVIATES), self._mass_below[1:], self.deviations) + self.mean

    def call(self, t: FloatArray) -> FloatArray:
        """Return E(X - t)_+ plus the lost mean ``excess``."""
        x = t - self.mean
        return np.where(x < 0.0, self._put(x) - x, self._call(x)) + self.excess

    def put(self, t: FloatArray) -> FloatArray:
        """Return E(t - X)_+, plus the lost mean ``excess`` if t is at least the mean."""
        x = t - self.mean
        return np.where(x < 0.0, self._put(x), self._call(x) + x + self.excess)

    def _call(self, x: FloatArray) -> FloatArray:
        index = np.searchsorted(self.deviations, x, side="right")
        return np.asarray(np.maximum(self._sum_from[index] - x * self._mass_from[index], 0.0))

    def _put(self, x: FloatArray) -> FloatArray:
        index = np.searchsorted(self.deviations, x)
        return np.asarray(np.maximum(x * self._mass_below[index] - self._sum_below[index], 0.0))

    def survival(self, t: FloatArray) -> FloatArray:
        """Return Pr[X > t]."""
        index = np.searchsorted(self.deviations, t - self.mean, side="right")
        return np.asarray(self._mass_from[index])

    def cdf(self, t: FloatArray) -> FloatArray:
        """Return Pr[X <= t]."""
        index = np.searchsorted(self.deviations, t - self.mean, side="right")
        return np.asarray(self._mass_below[index])

    def likely_range(self, tolerance: float) -> tuple[float, float]:
        """Return two values outside which X has a mass of at most ``tolerance`` on each side."""
        low = int(np.searchsorted(self._mass_below[1:], tolerance))
        high = int(np.count_nonzero(self._mass_from[:-1] >= tolerance)) - 1
        values = self.deviations[[low, max(high, 0)]] + self.mean
        return float(values[0]), float(values[1])


@dataclass(frozen=True)
class TwoLevelDistribution:
    """A randomizer whose density ratio of a report to a uniform dummy has only two values.

    The high value is e^eps0 times the low value. A dummy falls where an input's ratio is high with
    probability ``dummy_high_probability``: 1/k for k-ary randomized response, and the mass of the
    spherical cap around the input for PrivUnit. A report of one of two inputs falls where their
    densities differ with probability ``differing_probability``.
    """

    local_epsilon: float
    dummy_high_probability: float
    differing_probability: float

    @cached_property
    def dummy_share(self) -> float:
        """The low value of the density ratio of a report to a dummy."""
        return 1.0 / (1.0 + self.dummy_high_probability * math.expm1(self.local_epsilon))

    @property
    def gap(self) -> float:
        """The high value of the density ratio minus the low value."""
        return self.dummy_share * math.expm1(self.local_epsilon)

    @property
    def two_point(self) -> TwoPoint:
        """The ratio L_E, in the form that binomial sums need."""
        low, gap = self.dummy_share, self.gap
        return TwoPoint(low + gap, 1.0 / low, gap, self.dummy_high_probability)

    @property
    def three_point(self) -> ThreePoint:
        """The ratio Z_E, in the form that binomial sums need."""
        low, high = self.dummy_share, self.dummy_share * math.exp(self.local_epsilon)
        return ThreePoint(self.dummy_high_probability, (high, low), (low, low), (low, high))

    @cached_property
    def against_dummy(self) -> DiscreteRatio:
        q, gap = self.dummy_high_probability, self.gap
        return DiscreteRatio(
            np.array([-q * gap, (1.0 - q) * gap]), np.array([1.0 - q, q]), mean=1.0
        )

    @cached_property
    def against_report(self) -> DiscreteRatio:
        up, down = math.expm1(self.local_epsilon), math.expm1(-self.local_epsilon)
        higher = self.differing_probability / (2.0 + up)
        masses = [self.differing_probability - higher, 1.0 - self.differing_probability, higher]
        return DiscreteRatio(np.array([down, 0.0, up]), np.array(masses), mean=1.0)

    def replace_one_ratio(self, epsilon: float) -> DiscreteRatio:
        q, gap, e = self.dummy_high_probability, self.gap, math.exp(epsilon)
        mean = -math.expm1(epsilon)
        middle = mean * (self.dummy_share - 1.0)
        deviations = np.array([middle - e * gap, middle, middle + gap])
        return DiscreteRatio(deviations, np.array([q, max(1.0 - 2.0 * q, 0.0), q]), mean=mean)


def randomized_response(local_epsilon: float, categories: int) -> TwoLevelDistribution:
    """Return the distribution of randomized response with ``categories`` values."""
    growth = math.expm1(local_epsilon)
    return TwoLevelDistribution(
        local_epsilon, 1.0 / categories, (2.0 + growth) / (growth + categories)
    )


@lru_cache(maxsize=256)
def privunit(local_epsilon: float, dimension: int) -> TwoLevelDistribution:
    """Return the distribution of PrivUnit. Inputs with disjoint caps are worst."""
    cap = best_cap(local_epsilon=local_epsilon, dimension=dimension)
    differing_probability = cap.inside * (1.0 + math.exp(-local_epsilon))
    return TwoLevelDistribution(local_epsilon, min(cap.mass, 0.5), min(differing_probability, 1.0))


@dataclass(frozen=True, slots=True)
class LaplaceRatio:
    """The density ratio L of Laplace noise, shifted by ``shift`` scales, to the unshifted noise.

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
    def quantiles(self) -> FloatArray:
        return np.exp(np.clip(self.shift * DEVIATES / 2.0, -self.shift, self.shift))

    def call(self, t: FloatArray) -> FloatArray:
        ceiling = math.exp(self.shift)
        losses = np.log(np.clip(t, self.floor, ceiling))
        inside = np.maximum(-np.expm1((losses - self.shift) / 2.0), 0.0)
        return np.where(t < self.floor, 1.0 - t, np.where(t < ceiling, inside, 0.0))

    def put(self, t: FloatArray) -> FloatArray:
        ceiling = math.exp(self.shift)
        between = np.clip(t, self.floor, ceiling)
        inside = np.maximum(-between * np.expm1(-(np.log(between) + self.shift) / 2.0), 0.0)
        return np.where(t <= self.floor, 0.0, np.where(t < ceiling, inside, t - 1.0))

    def survival(self, t: FloatArray) -> FloatArray:
        loss = np.log(np.maximum(t, self.floor))
        inside = 0.5 * np.exp(-(loss + self.shift) / 2.0)
        return np.where(t < self.floor, 1.0, np.where(loss >= self.shift, 0.0, inside))

    def cdf(self, t: FloatArray) -> FloatArray:
        return 1.0 - self.survival(t)

    def likely_range(self, tolerance: float) -> tuple[float, float]:
        return self.floor, math.exp(self.shift)


@dataclass(frozen=True, slots=True)
class LaplaceReplaceOneRatio:
    """The difference l - e^eps l', for the density ratios l and l' of two opposite shifts of noise.

    Both ratios are relative to the unshifted noise. With Y standard Laplace and h = ``shift``, the
    difference is e^(|Y|-|Y-h|) - e^eps e^(|Y|-|Y+h|), which increases in Y.

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
    def quantiles(self) -> FloatArray:
        return self._value(np.clip(self.shift * DEVIATES / 2.0, -self.shift, self.shift))

    def _value(self, y: FloatArray) -> FloatArray:
        """Return the difference at Y = y, where |y| is at most the shift."""
        above = np.exp(np.maximum(2.0 * y, 0.0) - self.shift)
        below = np.exp(np.maximum(-2.0 * y, 0.0) - self.shift)
        return np.asarray(above - math.exp(self.epsilon) * below)

    def _noise_at_value(self, t: FloatArray) -> FloatArray:
        """Return the y at which the difference is t, between minus the shift and the shift."""
        middle = math.exp(-self.shift) * self.mean
        least = math.exp(-self.shift)
        right = np.log((np.maximum(t, middle) - middle) / least + 1.0) / 2.0
        left = (middle - np.minimum(t, middle)) / (math.exp(self.epsilon) * least)
        return np.clip(np.where(t >= middle, right, -np.log1p(left) / 2.0), -self.shift, self.shift)

    def call(self, t: FloatArray) -> FloatArray:
        y = self._noise_at_value(np.clip(t, self.floor, self.ceiling))
        shifted_tail, opposite_tail = _laplace_tail(y - self.shift), _laplace_tail(y + self.shift)
        above = shifted_tail - math.exp(self.epsilon) * opposite_tail - t * _laplace_tail(y)
        inside = np.where(t < self.ceiling, np.maximum(above, 0.0), 0.0)
        return np.where(t < self.floor, self.mean - t, inside)

    def put(self, t: FloatArray) -> FloatArray:
        put = np.maximum(self.call(t) + (t - self.mean), 0.0)
        return np.where(t <= self.floor, 0.0, put)

    def survival(self, t: FloatArray) -> FloatArray:
        inside = _laplace_tail(self._noise_at_value(np.clip(t, self.floor, self.ceiling)))
        return np.where(t < self.floor, 1.0, np.where(t >= self.ceiling, 0.0, inside))

    def cdf(self, t: FloatArray) -> FloatArray:
        return 1.0 - self.survival(t)

    def likely_range(self, tolerance: float) -> tuple[float, float]:
        return self.floor, self.ceiling


def _laplace_tail(y: FloatArray) -> FloatArray:
    """Return the probability that standard Laplace noise exceeds y."""
    half = 0.5 * np.exp(-np.abs(y))
    return np.where(y >= 0.0, half, 1.0 - half)


@dataclass(frozen=True, slots=True)
class LaplaceDistribution:
    """Laplace noise of scale 2C/eps0 on updates with L1 norm at most C. A dummy is only noise.

    Two opposite corners of the L1 ball are the worst pair of updates.
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

    def replace_one_ratio(self, epsilon: float) -> LaplaceReplaceOneRatio:
        return LaplaceReplaceOneRatio(self.local_epsilon / 2.0, epsilon)
