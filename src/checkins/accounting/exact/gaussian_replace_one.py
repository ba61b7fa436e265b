"""The exact accountant for replace-one with Gaussian noise: one campaign, and pairs to compose.

The distribution of the sum over all slots is computed by one Fourier transform (``fourier_sum``).
If there are very many slots, or if single ratios may be huge, it is computed by doubling
(``slot_sum``).

Theorem:     docs/theory/gaussian.md, "Replace-one".
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtr

from checkins.accounting.exact import slot_sum
from checkins.accounting.exact.adaptive_updates import AdaptiveUpdates
from checkins.accounting.exact.dominating_pair import (
    NO_LOSS,
    ROUND_OFF,
    DominatingPair,
    from_curve,
    from_tests,
)
from checkins.accounting.exact.fourier_sum import (
    CellMasses,
    ThresholdTest,
    threshold_of_sum,
    upper_stop_loss,
)
from checkins.accounting.exact.grid_distribution import (
    REPLACE_ONE_CELLS,
    Rounding,
    Side,
    discretise_up,
)
from checkins.accounting.exact.slot_ratio import FloatArray
from checkins.accounting.solve import Interval, crossing
from checkins.errors import NotCovered

if TYPE_CHECKING:
    from checkins.accounting.exact.gaussian import GaussianCampaign

_OUTPUT_CELLS = 3000
"""Number of cells of a slot's output in lower bounds."""
_MAX_DEVIATIONS = 13.0
"""Standard deviations of noise beyond which a slot's output is one cell."""
_MAX_EPSILON = 200.0  # above it, the values of a replace-one ratio may not fit a double
_FEW_SLOTS = 1000
"""With more slots, sums by doubling use fewer cells, to save time."""
_COARSE_CELLS = 100  # resolution of the grid with which a search starts
_PRECISION, _ONE_SLOT_PRECISION = 2e-5, 1e-9  # relative precisions of a search
_DOUBLING_PRECISION = 2e-4  # bounds by doubling are at least ten times as wide
_DISPLACING_PRECISION = 2e-4  # of lower bounds, which are further away if slots are full
_FINE_PAIR_CELLS = 512
"""Smallest number of grid cells for which a pair to compose has 64 kinks instead of 32."""


class GaussianReplaceOne:
    """Bounds on the divergence between the releases with two values of one client's data.

    ``cells`` is the resolution of the grid. None means that of a certificate.

    Theorem:     docs/theory/gaussian.md, "Replace-one". Exact without a capacity.
    Neighbours:  replace-one.
    Rounding:    ``upper`` up, ``lower`` down.
    """

    def __init__(self, campaign: GaussianCampaign, *, delta: float, cells: int | None) -> None:
        self.campaign, self.delta = campaign, delta
        self.cells = cells or REPLACE_ONE_CELLS
        self._precision = _ONE_SLOT_PRECISION if campaign.slots == 1 else _PRECISION
        doubling_cells = self.cells if campaign.slots <= _FEW_SLOTS else self.cells * 3 // 4
        # With few slots, huge ratios are more precise by doubling, and fast.
        self._doubles = campaign.slots == 1 or (campaign.slots <= 32 and campaign.shift > 2.5)
        self._by_doubling = slot_sum.ReplaceOne(campaign, delta=delta, cells=doubling_cells)

    def upper(self, epsilon: float) -> float:
        by_transform = self._upper_by_transform(epsilon)
        return self._by_doubling.upper(epsilon) if by_transform is None else by_transform

    def _upper_by_transform(self, epsilon: float) -> float | None:
        campaign = self.campaign
        if self._doubles or epsilon > _MAX_EPSILON:
            return None
        rounding = slot_sum.rounding_of(
            campaign, delta=self.delta, cells=2 * self.cells, side=Side.UP
        )
        one_slot = discretise_up(campaign.replace_one_ratio(epsilon), rounding)
        slots, participation = campaign.slots, campaign.participation
        threshold = threshold_of_sum(epsilon, slots=slots, participation=participation)
        stop_loss = upper_stop_loss([(one_slot, slots)], threshold=threshold, resolution=self.cells)
        if stop_loss is None:
            return None
        return min(1.0, campaign.participation / campaign.slots * stop_loss * (1 + ROUND_OFF))

    def lower(self, epsilon: float) -> float:
        if epsilon > _MAX_EPSILON:
            return 0.0
        alone = 0.0 if self._doubles else self._test(epsilon).gain * (1 - ROUND_OFF)
        displacing = max((bound.lower(epsilon) for bound in self._displacing), default=0.0)
        if alone == 0.0 and displacing <= self.delta:
            alone = self._by_doubling.lower(epsilon)
        return max(alone, displacing)

    @cached_property
    def _displacing(self) -> tuple[slot_sum.AddRemove | AdaptiveUpdates, ...]:
        """Lower bounds of a client that displaces others, with fixed and with adaptive updates.

        Theorem:     docs/theory/gaussian.md, "Lower bounds with a capacity". Attained.
        """
        if self.campaign.capacity is None:
            return ()
        return (
            slot_sum.AddRemove(self.campaign.displacing, delta=self.delta, cells=self.cells),
            AdaptiveUpdates(self.campaign, delta=self.delta, cells=self.cells // 2),
        )

    def _test(self, epsilon: float) -> ThresholdTest:
        return ThresholdTest(
            client_alone(self.campaign.shift),
            epsilon=epsilon,
            slots=self.campaign.slots,
            participation=self.campaign.participation,
            resolution=self.cells,
        )

    def epsilon(self, delta: float) -> Interval:
        upper = self.upper_epsilon(delta)
        guess = 0.998 * upper if 0 < upper < math.inf else self.campaign.initial_guess(delta)
        precision, stride = self._precision_near(guess), 0.004
        if self.campaign.capacity is not None and self.campaign.slots > 1:
            precision, stride = max(precision, _DISPLACING_PRECISION), 0.015
        lower = crossing(
            self.lower,
            delta,
            guess=guess,
            precision=precision,
            stride=stride,
            surely_above_at_zero=upper > 0.0,
        ).lower
        return Interval(min(lower, upper), upper)

    def upper_epsilon(self, delta: float) -> float:
        guess, stride, surely_above_at_zero = self.campaign.initial_guess(delta), 0.1, False
        if self.cells > _COARSE_CELLS:
            coarse = GaussianReplaceOne(self.campaign, delta=delta, cells=_COARSE_CELLS)
            surely_above_at_zero = coarse._by_doubling.lower(0.0) > delta
            rough = crossing(
                coarse._estimate,
                delta,
                guess=guess,
                precision=0.01,
                surely_above_at_zero=surely_above_at_zero,
            ).upper
            if 0.0 < rough < math.inf:
                guess, stride = rough, 0.01
        return crossing(
            self.upper,
            delta,
            guess=guess,
            precision=self._precision_near(guess),
            stride=stride,
            surely_above_at_zero=surely_above_at_zero,
        ).upper

    def _estimate(self, epsilon: float) -> float:
        """Estimate delta. On a coarse grid, only the lower bound by doubling is close to delta."""
        by_transform = self._upper_by_transform(epsilon)
        if by_transform is not None:
            return by_transform
        doubling = self._by_doubling
        return (doubling.upper if self.campaign.capacity else doubling.lower)(epsilon)

    def _precision_near(self, epsilon: float) -> float:
        """Return the relative precision of a search that starts at ``epsilon``."""
        if self._doubles or self._upper_by_transform(epsilon) is not None:
            return self._precision
        return _DOUBLING_PRECISION

    def pair(self, rounding: Rounding) -> DominatingPair:
        """Return a pair of all releases under two values of a client's data, for composition.

        Rounded up, it dominates the releases of every client. Rounded down, it is dominated by
        those of a client that displaces no other client. Raise ``NotCovered`` if no epsilon has a
        small enough delta.
        """
        negligible = rounding.tolerance * 1e4
        guess = self.campaign.initial_guess(negligible)
        largest = crossing(self.upper, negligible, guess=guess, precision=0.02, stride=0.2).upper
        if not math.isfinite(largest):
            raise NotCovered(
                "delta", self.delta, "is too small to compose campaigns of this design"
            )
        if largest == 0.0 and rounding.side is Side.UP:
            at_zero = self.upper(0.0)
            return replace(NO_LOSS, only_present=at_zero, only_absent=at_zero)
        count = 64 if rounding.cells >= _FINE_PAIR_CELLS else 32
        epsilons = largest * np.sinh(np.linspace(0.0, 2.0, count)) / math.sinh(2.0)
        if rounding.side is Side.UP:
            return from_curve(epsilons, np.array([self.upper(float(e)) for e in epsilons]))
        return from_tests([self._test(float(e)).probabilities() for e in epsilons])


@lru_cache(maxsize=64)
def client_alone(shift: float) -> CellMasses:
    """Return the cell masses of a client with two opposite updates that displaces no client."""
    edges = _edges(-shift, shift)
    return CellMasses(_masses(edges, 0.0), _masses(edges, shift), _masses(edges, -shift))


def _edges(lowest_mean: float, highest_mean: float) -> FloatArray:
    inner = np.linspace(
        lowest_mean - _MAX_DEVIATIONS, highest_mean + _MAX_DEVIATIONS, _OUTPUT_CELLS - 1
    )
    return np.concatenate(([-np.inf], inner, [np.inf]))


def _masses(edges: FloatArray, mean: float) -> FloatArray:
    """Return the masses of a normal distribution between edges, accurate in both tails."""
    above = edges[:-1] >= mean
    below, beyond = ndtr(edges - mean), ndtr(mean - edges)
    return np.where(above, beyond[:-1] - beyond[1:], below[1:] - below[:-1])
