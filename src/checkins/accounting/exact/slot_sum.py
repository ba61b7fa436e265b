"""The exact accountant for campaigns whose slot ratios are independent and identically distributed.

A slot ratio is the likelihood ratio of one slot's output with and without one client. Notation: m
is the number of slots and p0 the participation. Then

    delta(eps) = (p0/m) E(S - T)_+ ,

where S is the sum of m independent slot ratios and T is a threshold that depends on eps. The
distribution of S is computed on a grid, by doubling: sums of 1, 2, 4, ... slots. Only the slot
ratio differs between the randomizers. It is given by its expectations ``ratio.call(t)`` =
E(ratio - t)_+ and ``ratio.put(t)`` = E(t - ratio)_+.

Theorem:     docs/theory/one-likelihood-ratio.md.
Rounding:    distributions are rounded up or down in convex order (docs/theory/rounding.md). The
             relative ROUND_OFF covers floating-point errors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from checkins.accounting.design import Adjacency
from checkins.accounting.exact.dominating_pair import (
    NO_LOSS,
    ROUND_OFF,
    DominatingPair,
    from_ratios,
)
from checkins.accounting.exact.grid_distribution import (
    CELLS,
    MIN_TOLERANCE,
    REPLACE_ONE_CELLS,
    TAIL_SHARE,
    GridDistribution,
    Rounding,
    Side,
    discretise_down,
    discretise_up,
    sum_of,
)
from checkins.accounting.exact.lattice_sum import sum_of_bounded
from checkins.accounting.exact.slot_ratio import AttainedRatio, FloatArray, SlotRatio
from checkins.accounting.solve import DeltaBounds, Divergence, Interval, crossing

_COARSE_CELLS, _MAX_DIRECT_CELLS = 160, 300
"""Number of cells of the coarse grid on which a search starts. A search on a full grid with at most
``_MAX_DIRECT_CELLS`` cells uses no coarse grid."""
_LARGE_EPSILON = 8.0
"""Epsilon from which on the delta of adding a client is also bounded at smaller epsilons."""
_MAX_EPSILON = 200.0  # above it, the values of a replace-one ratio may not fit a double


@dataclass(frozen=True, slots=True)
class Search:
    """Settings of a search for epsilon, which starts at an estimate from a coarse grid.

    ``stride`` is the first step relative to the estimate. ``precision`` is the relative precision
    of the result.
    """

    stride: float
    precision: float


THOROUGH, QUICK = Search(0.1, 1e-4), Search(0.015, 3e-4)
"""The precise search, and a faster one, which relies on a good estimate from the coarse grid."""


class SlotSumCampaign(Protocol):
    """The number of slots, the participation and the slot ratios of a campaign."""

    @property
    def slots(self) -> int: ...
    @property
    def participation(self) -> float: ...
    @property
    def max_privacy_loss(self) -> float:
        """The largest privacy loss of a report, or infinity. At this epsilon, delta is 0."""
        ...

    def add_remove_ratio(self) -> SlotRatio:
        """Return an upper bound on the slot ratio of add/remove, in convex order."""
        ...

    def replace_one_ratio(self, epsilon: float) -> SlotRatio:
        """Return an upper bound on the slot ratio of replace-one at ``epsilon``."""
        ...

    def attained_add_remove_ratio(self) -> AttainedRatio | None:
        """Return an add/remove ratio that some client and data attain. It proves lower bounds.

        Return None if no such ratio is known.
        """
        ...

    def attained_replace_one_ratio(self, epsilon: float) -> AttainedRatio | None:
        """Return a replace-one ratio that some client and data attain, or None if unknown."""
        ...

    def initial_guess(self, delta: float) -> float:
        """Return an estimate of epsilon at ``delta``, with which searches start."""
        ...

    @property
    def coarser(self) -> SlotSumCampaign:
        """The same campaign, with ratios that are computed faster and less tightly."""
        ...


def divergence(
    campaign: SlotSumCampaign,
    adjacency: Adjacency,
    *,
    delta: float,
    cells: int | None,
    search: Search | None = None,
) -> Divergence:
    """Return bounds on the divergence, computed on a grid.

    ``cells`` is the number of grid cells. None means as many as for a certificate. ``search`` is
    used for replace-one only. None means ``THOROUGH``.
    """
    if adjacency is Adjacency.ADD_REMOVE:
        return AddRemove(campaign, delta=delta, cells=cells or CELLS)
    return ReplaceOne(
        campaign, delta=delta, cells=cells or REPLACE_ONE_CELLS, search=search or THOROUGH
    )


def pair(campaign: SlotSumCampaign, rounding: Rounding) -> DominatingPair:
    """Return the dominating pair of all releases with the client and without the client.

    ``rounding`` gives the side to round to, the cells and the tolerance.
    """
    m, p0 = campaign.slots, campaign.participation
    if rounding.side is Side.UP:
        total = _sum_up(campaign, m, campaign.add_remove_ratio(), rounding)
    elif (attained := campaign.attained_add_remove_ratio()) is not None:
        total = sum_of(m, discretise_down(attained, rounding), mean=1.0, rounding=rounding)
    else:
        return NO_LOSS
    gains = p0 / m * (total.values + (total.origin - m))
    ratios = 1.0 + gains if total.origin else 1.0 - p0 + p0 / m * total.values
    return from_ratios(ratios, gains, total.masses, only_present=p0 / m * total.excess)


def _sum_up(
    campaign: SlotSumCampaign, copies: int, ratio: SlotRatio, rounding: Rounding
) -> GridDistribution:
    """Return the sum of ``copies`` independent copies of a slot ratio, rounded up."""
    if math.isfinite(campaign.max_privacy_loss) and copies > 0:
        return sum_of_bounded(copies, ratio, rounding)
    return sum_of(copies, discretise_up(ratio, rounding), mean=ratio.mean, rounding=rounding)


def last_slot_thresholds(
    distribution: GridDistribution, *, centred: float, uncentred: float, slots: int, mean: float
) -> FloatArray:
    """Return, for each sum of the other slots, the value that the last slot's ratio must exceed.

    It is the threshold T minus the sum. The caller gives T in two forms: ``centred`` is T minus the
    mean of the sum of all slots, and ``uncentred`` is T itself. The form that loses fewer digits is
    used.
    """
    if distribution.origin == 0.0:
        return uncentred - distribution.values
    return (centred - distribution.values) - (distribution.origin - (slots - 1) * mean) + mean


def rounding_of(campaign: SlotSumCampaign, *, delta: float, cells: int, side: Side) -> Rounding:
    """Return the rounding for bounds on the divergence near ``delta``."""
    tolerance = TAIL_SHARE * delta / campaign.participation
    return Rounding(side=side, cells=cells, tolerance=min(max(tolerance, MIN_TOLERANCE), 1e-12))


class AddRemove:
    """Divergences in both directions between the releases with the client and without the client.

    ``upper`` and ``lower`` are bounds on delta at an epsilon. The grid is chosen for the given
    ``delta``.

    Theorem:     docs/theory/one-likelihood-ratio.md. Exact if the slot ratio is attained.
    Neighbours:  add/remove.
    Rounding:    ``upper`` up, ``lower`` down.

    >>> from checkins.accounting.exact.gaussian import GaussianCampaign
    >>> campaign = GaussianCampaign(noise=1.0, slots=10, participation=1.0)
    >>> AddRemove(campaign, delta=1e-6, cells=512).epsilon(1e-6).upper < 2.66
    True
    """

    def __init__(self, campaign: SlotSumCampaign, *, delta: float, cells: int) -> None:
        self.campaign, self.delta, self.cells = campaign, delta, cells
        self.upper_ratio: SlotRatio = campaign.add_remove_ratio()

    @cached_property
    def upper_sum(self) -> GridDistribution:
        """The sum of all slot ratios but the last, rounded up. The last is integrated exactly."""
        rounding = rounding_of(self.campaign, delta=self.delta, cells=self.cells, side=Side.UP)
        return _sum_up(self.campaign, self.campaign.slots - 1, self.upper_ratio, rounding)

    @cached_property
    def lower_sum(self) -> tuple[GridDistribution, AttainedRatio] | None:
        """The sum of all slot ratios but the last, rounded down, and the ratio of the last slot.

        None if no attained ratio is known.
        """
        ratio = self.campaign.attained_add_remove_ratio()
        if ratio is None:
            return None
        rounding = rounding_of(self.campaign, delta=self.delta, cells=self.cells, side=Side.DOWN)
        one_slot = discretise_down(ratio, rounding)
        return sum_of(self.campaign.slots - 1, one_slot, mean=1.0, rounding=rounding), ratio

    def _thresholds(self, distribution: GridDistribution, loss: float) -> FloatArray:
        m, p0 = self.campaign.slots, self.campaign.participation
        centred = m / p0 * math.expm1(loss)
        uncentred = m / p0 * (math.expm1(loss) + p0) if p0 < 1.0 else m * math.exp(loss)
        return last_slot_thresholds(
            distribution, centred=centred, uncentred=uncentred, slots=m, mean=1.0
        )

    def remove_delta(
        self, distribution: GridDistribution, ratio: SlotRatio, epsilon: float
    ) -> float:
        calls = float(ratio.call(self._thresholds(distribution, epsilon)) @ distribution.masses)
        return self.campaign.participation / self.campaign.slots * (calls + distribution.excess)

    def add_delta(self, distribution: GridDistribution, ratio: SlotRatio, epsilon: float) -> float:
        puts = float(ratio.put(self._thresholds(distribution, -epsilon)) @ distribution.masses)
        return math.exp(epsilon) * self.campaign.participation / self.campaign.slots * puts

    def remove_upper(self, epsilon: float) -> float:
        return min(
            1.0, self.remove_delta(self.upper_sum, self.upper_ratio, epsilon) * (1 + ROUND_OFF)
        )

    def add_upper(self, epsilon: float) -> float:
        # Mass that is rounded to the smallest ratio counts e^epsilon times. So the bound at a
        # smaller epsilon, which also holds at this epsilon, may be smaller.
        smaller = (0.5, 0.25) if epsilon > _LARGE_EPSILON else ()
        deltas = (
            self.add_delta(self.upper_sum, self.upper_ratio, share * epsilon)
            for share in (1.0, *smaller)
        )
        return min(1.0, min(deltas) * (1 + ROUND_OFF))

    def upper(self, epsilon: float) -> float:
        return max(self.remove_upper(epsilon), self.add_upper(epsilon))

    def lower(self, epsilon: float) -> float:
        if epsilon >= self.campaign.max_privacy_loss or self.lower_sum is None:
            return 0.0
        remove, add = (
            self.remove_delta(*self.lower_sum, epsilon),
            self.add_delta(*self.lower_sum, epsilon),
        )
        return max(remove, add) * (1 - ROUND_OFF)

    def epsilon(self, delta: float, *, precision: float = 1e-9) -> Interval:
        return _interval(self, delta, guess=self.campaign.initial_guess(delta), precision=precision)

    def upper_epsilon(self, delta: float, *, precision: float = 1e-9) -> float:
        guess = self.campaign.initial_guess(delta)
        return crossing(self.upper, delta, guess=guess, precision=precision).upper


class ReplaceOne:
    """Divergence between the releases with two values of one client's data.

    The slot ratio depends on epsilon, so every epsilon needs a distribution of its own.

    Theorem:     docs/theory/one-likelihood-ratio.md. Exact if the slot ratio is attained.
    Neighbours:  replace-one.
    Rounding:    ``upper`` up, ``lower`` down.
    """

    def __init__(
        self,
        campaign: SlotSumCampaign,
        *,
        delta: float,
        cells: int,
        search: Search = THOROUGH,
    ) -> None:
        self.campaign, self.delta, self.cells, self.search = campaign, delta, cells, search

    def delta_of(self, distribution: GridDistribution, ratio: SlotRatio, epsilon: float) -> float:
        m, p0 = self.campaign.slots, self.campaign.participation
        centred = m / p0 * math.expm1(epsilon)
        thresholds = last_slot_thresholds(
            distribution, centred=centred, uncentred=(1.0 - p0) * centred, slots=m, mean=ratio.mean
        )
        return p0 / m * (float(ratio.call(thresholds) @ distribution.masses) + distribution.excess)

    def upper(self, epsilon: float) -> float:
        if epsilon >= self.campaign.max_privacy_loss:
            return 0.0
        if epsilon > _MAX_EPSILON:
            return self.upper(_MAX_EPSILON)
        ratio = self.campaign.replace_one_ratio(epsilon)
        rounding = rounding_of(self.campaign, delta=self.delta, cells=self.cells, side=Side.UP)
        distribution = _sum_up(self.campaign, self.campaign.slots - 1, ratio, rounding)
        return min(1.0, self.delta_of(distribution, ratio, epsilon) * (1 + ROUND_OFF))

    def lower(self, epsilon: float) -> float:
        if epsilon > _MAX_EPSILON:
            return 0.0
        ratio = self.campaign.attained_replace_one_ratio(epsilon)
        if ratio is None:
            return 0.0
        rounding = rounding_of(self.campaign, delta=self.delta, cells=self.cells, side=Side.DOWN)
        one_slot = discretise_down(ratio, rounding)
        distribution = sum_of(self.campaign.slots - 1, one_slot, mean=ratio.mean, rounding=rounding)
        return self.delta_of(distribution, ratio, epsilon) * (1 - ROUND_OFF)

    def epsilon(self, delta: float) -> Interval:
        upper = self.upper_epsilon(delta)
        lower_guess = 0.99 * upper if 0 < upper < math.inf else self.campaign.initial_guess(delta)
        precision = self.search.precision
        lower = crossing(self.lower, delta, guess=lower_guess, precision=precision).lower
        return Interval(min(lower, upper), upper)

    def upper_epsilon(self, delta: float) -> float:
        estimate = self._rough_epsilon(delta) if self.cells > _MAX_DIRECT_CELLS else math.inf
        has_estimate = 0.0 < estimate < math.inf
        return crossing(
            self.upper,
            delta,
            guess=estimate if has_estimate else self.campaign.initial_guess(delta),
            precision=self.search.precision,
            stride=self.search.stride if has_estimate else THOROUGH.stride,
            surely_above_at_zero=has_estimate and self.search is QUICK,
        ).upper

    def _rough_epsilon(self, delta: float) -> float:
        """Return an upper bound on epsilon from a coarse grid, with which the search starts."""
        coarse_bound = ReplaceOne(self.campaign.coarser, delta=delta, cells=_COARSE_CELLS)
        guess = self.campaign.initial_guess(delta)
        precision = 3e-3 if self.search is THOROUGH else 1e-2
        return crossing(coarse_bound.upper, delta, guess=guess, precision=precision).upper


def _interval(divergence: DeltaBounds, delta: float, *, guess: float, precision: float) -> Interval:
    upper = crossing(divergence.upper, delta, guess=guess, precision=precision).upper
    lower_guess = 0.99 * upper if 0 < upper < math.inf else guess
    lower = crossing(divergence.lower, delta, guess=lower_guess, precision=precision).lower
    return Interval(min(lower, upper), upper)
