"""The likelihood ratio of a block of slots whose noise is correlated.

With noise that is correlated across slots, the accountant treats several slots together as one
*block* (``correlated_noise``). The client draws each slot of a block with the same probability, so
the ratio of a block is the mean of the ratios of its slots. In the worst case it is

    R = exp(N(-c/2, c)) * (mean of B independent copies of exp(N(-(v - c)/2, v - c))),

where B is the number of slots, v the variance of the logarithm of each slot's ratio, and c the
covariance of two of them. The common factor is integrated exactly, and the mean is rounded on a
grid.

Theorem:     docs/theory/correlated-noise.md, "Blocks".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from checkins.accounting.exact.gaussian import GaussianCampaign
from checkins.accounting.exact.grid_distribution import (
    GridDistribution,
    Rounding,
    Side,
    discretise_down,
    discretise_up,
    sum_of,
)
from checkins.accounting.exact.report_distributions import DiscreteRatio
from checkins.accounting.exact.slot_ratio import (
    DEVIATES,
    AttainedRatio,
    FloatArray,
    ShiftedGaussian,
    SlotRatio,
)

_TOLERANCE = 1e-30
"""Mass of the mean of a block's independent factors that may lie off their grid."""
_CELLS = {Side.UP: 160, Side.DOWN: 240}
"""Numbers of grid cells for the mean of the independent factors of a block."""
_QUANTILE_CELLS = 600
"""Number of grid cells of the ratio of a block, from which the ratio of replace-one is built."""


@dataclass(frozen=True, slots=True)
class ScaledGaussians:
    """A shifted Gaussian's ratio ``common``, multiplied by an independent value of ``scales``.

    The product is 0 with probability ``zero_mass``. ``excess`` is how much the mean fell by capping
    large scales.

    Theorem:     docs/theory/correlated-noise.md, "Blocks".
    Neighbours:  add/remove.
    """

    common: ShiftedGaussian
    scales: FloatArray
    masses: FloatArray
    zero_mass: float
    excess: float
    mean, floor = 1.0, 0.0

    @classmethod
    def of(cls, common: ShiftedGaussian, distribution: GridDistribution) -> ScaledGaussians:
        scales = distribution.values + distribution.origin
        positive = scales > 0.0
        return cls(
            common,
            scales[positive],
            distribution.masses[positive],
            float(distribution.masses[~positive].sum()),
            distribution.excess,
        )

    @property
    def quantiles(self) -> FloatArray:
        variance = math.log(float(self.masses @ self.scales**2)) + self.common.shift**2
        return np.exp(math.sqrt(variance) * DEVIATES - variance / 2)

    def _per_scale(self, t: FloatArray) -> FloatArray:
        return np.divide.outer(np.maximum(t, 0.0), self.scales)

    def call(self, t: FloatArray) -> FloatArray:
        calls = self.common.call(self._per_scale(t)) @ (self.scales * self.masses)
        return np.asarray(calls + self.excess + np.maximum(-t, 0.0))

    def put(self, t: FloatArray) -> FloatArray:
        puts = self.common.put(self._per_scale(t)) @ (self.scales * self.masses)
        return np.asarray(puts + np.maximum(t, 0.0) * self.zero_mass)

    def survival(self, t: FloatArray) -> FloatArray:
        return np.asarray(self.common.survival(self._per_scale(t)) @ self.masses)

    def cdf(self, t: FloatArray) -> FloatArray:
        return np.asarray(self.common.cdf(self._per_scale(t)) @ self.masses + self.zero_mass)

    def likely_range(self, tolerance: float) -> tuple[float, float]:
        low, high = self.common.likely_range(tolerance)
        return low * float(self.scales[0]), high * float(self.scales[-1])


def antithetic_ratio(ratio: GridDistribution, epsilon: float) -> DiscreteRatio:
    """Return the largest l - e^eps l' in convex order, if l and l' are distributed as ``ratio``.

    It is attained if l' is as small as possible whenever l is large. So the quantiles of l and l'
    are matched from opposite ends.

    Theorem:     docs/theory/correlated-noise.md, "Replace-one".
    Neighbours:  replace-one, at privacy loss ``epsilon``.
    """
    kept = ratio.masses > 0.0
    values, masses = (ratio.values + ratio.origin)[kept], ratio.masses[kept]
    from_top, from_bottom = np.cumsum(masses[::-1]), np.cumsum(masses)
    ends = np.unique(np.concatenate((from_top, from_bottom)))
    ends = np.append(ends[ends < 0.5], 0.5)
    # Between two ends, l is a large value and l' a small value, or the other way round.
    last = len(values) - 1
    large = values[::-1][np.minimum(np.searchsorted(from_top, ends), last)]
    small = values[np.minimum(np.searchsorted(from_bottom, ends), last)]
    shares, growth = np.diff(ends, prepend=0.0), math.exp(epsilon)
    differences = np.concatenate((small - growth * large, large - growth * small))
    mean = -math.expm1(epsilon)
    shares = np.concatenate((shares, shares))
    return DiscreteRatio(differences - mean, shares, mean=mean, excess=ratio.excess)


@lru_cache(maxsize=512)
def block_ratio(shift: float, shared: float, slots: int, side: Side) -> ScaledGaussians:
    """Return the ratio of a block of ``slots`` slots, rounded to ``side``.

    ``shift`` is the standard deviation of the logarithm of the ratio of one slot. The common factor
    has the share ``shared`` of its variance.
    """
    rounding = Rounding(side=side, cells=_CELLS[side], tolerance=_TOLERANCE)
    own = ShiftedGaussian(shift * math.sqrt(1.0 - shared))
    one = (discretise_up if side is Side.UP else discretise_down)(own, rounding)
    total = sum_of(slots, one, mean=1.0, rounding=rounding)
    mean = GridDistribution(
        total.values / slots, total.masses, total.origin / slots, total.excess / slots
    )
    return ScaledGaussians.of(ShiftedGaussian(shift * math.sqrt(shared)), mean)


@lru_cache(maxsize=64)
def _rounded_block_ratio(shift: float, shared: float, slots: int) -> GridDistribution:
    rounding = Rounding(side=Side.UP, cells=_QUANTILE_CELLS, tolerance=_TOLERANCE)
    return discretise_up(block_ratio(shift, shared, slots, Side.UP), rounding)


@dataclass(frozen=True, slots=True)
class BlockCampaign(GaussianCampaign):
    """A campaign whose slots are blocks of ``slots_per_block`` slots with correlated noise.

    ``slots`` is the number of blocks. The logarithm of the ratio of each slot in a block has the
    variance 1 / noise**2, of which the share ``shared`` is common to all slots of the block.
    """

    slots_per_block: int = 1
    shared: float = 0.0

    def add_remove_ratio(self) -> SlotRatio:
        return block_ratio(self.shift, self.shared, self.slots_per_block, Side.UP)

    def replace_one_ratio(self, epsilon: float) -> SlotRatio:
        rounded = _rounded_block_ratio(self.shift, self.shared, self.slots_per_block)
        return antithetic_ratio(rounded, epsilon)

    def attained_add_remove_ratio(self) -> AttainedRatio:
        """Return a lower bound on the ratio in convex order, which proves lower bounds."""
        return block_ratio(self.shift, self.shared, self.slots_per_block, Side.DOWN)

    def attained_replace_one_ratio(self, epsilon: float) -> None:
        """Return None, because no bound is known from below."""
