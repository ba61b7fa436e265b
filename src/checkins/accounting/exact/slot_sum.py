"""The exact accountant for campaigns whose slots have independent, equal slot ratios.

Notation: m is the number of slots and p0 the participation. Then

    delta(eps) = (p0/m) E(S - T)_+ ,

where S is the sum of m independent slot ratios and T is a threshold that depends on eps. The
distribution of S is computed by doubling. Only the slot ratio differs between the randomizers.

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
    REPLACE_ONE_CELLS,
    SMALLEST,
    TAIL,
    GridDistribution,
    Rounding,
    Side,
    discretise_down,
    discretise_up,
    sum_of,
)
from checkins.accounting.exact.slot_ratio import AttainedRatio, FloatArray, SlotRatio
from checkins.accounting.solve import DeltaBounds, Divergence, Interval, crossing

_COARSE_CELLS, _MOST_COARSE_CELLS = 160, 300
"""Cells of the coarse grid, and the largest number of cells for which no coarser grid is used."""
_MOST_LOSS = 200.0  # above e^200, the values of a ratio would not fit a double


@dataclass(frozen=True, slots=True)
class Search:
    """How a search for epsilon continues after a search on a coarse grid.

    ``stride`` is its first relative step, and ``precision`` the relative precision of the result.
    """

    stride: float
    precision: float


THOROUGH, QUICK = Search(0.1, 1e-4), Search(0.015, 3e-4)


class SlotSumCampaign(Protocol):
    """The number of slots, the participation and the slot ratios of a campaign."""

    @property
    def slots(self) -> int: ...
    @property
    def participation(self) -> float: ...
    @property
    def most_loss(self) -> float:
        """The largest privacy loss of a report, at which delta is 0; infinity if there is none."""
        ...

    def add_remove_ratio(self) -> SlotRatio: ...
    def replace_one_ratio(self, epsilon: float) -> SlotRatio: ...

    def attained_add_remove_ratio(self) -> AttainedRatio | None:
        """Return a ratio that some client attains, which proves lower bounds.

        Return None if no such ratio is known.
        """
        ...

    def attained_replace_one_ratio(self, epsilon: float) -> AttainedRatio | None: ...

    def guess(self, delta: float) -> float:
        """Return an estimate of epsilon, with which searches start."""
        ...

    @property
    def coarse(self) -> SlotSumCampaign:
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
    """Return the exact divergence on a grid. ``cells`` None means as many as a certificate."""
    if adjacency is Adjacency.ADD_REMOVE:
        return AddRemove(campaign, delta=delta, cells=cells or CELLS)
    return ReplaceOne(
        campaign, delta=delta, cells=cells or REPLACE_ONE_CELLS, search=search or THOROUGH
    )


def pair(campaign: SlotSumCampaign, rounding: Rounding) -> DominatingPair:
    """Return the pair of all releases with and without the client, rounded as asked."""
    m, p0 = campaign.slots, campaign.participation
    if rounding.side is Side.UP:
        first = discretise_up(campaign.add_remove_ratio(), rounding)
    elif (attained := campaign.attained_add_remove_ratio()) is not None:
        first = discretise_down(attained, rounding)
    else:
        return NO_LOSS
    total = sum_of(m, first, mean=1.0, rounding=rounding)
    gains = p0 / m * (total.values + (total.origin - m))
    ratios = 1.0 + gains if total.origin else 1.0 - p0 + p0 / m * total.values
    return from_ratios(ratios, gains, total.masses, only_present=p0 / m * total.excess)


def _last_slot_thresholds(
    distribution: GridDistribution, *, centred: float, uncentred: float, slots: int, mean: float
) -> FloatArray:
    """Return, for each sum of the other slots, what the last slot must exceed.

    This is the threshold minus the sum. ``centred`` and ``uncentred`` are the threshold relative to
    the mean of all slots and to 0. The one that cancels less is used.
    """
    if distribution.origin == 0.0:
        return uncentred - distribution.values
    return (centred - distribution.values) - (distribution.origin - (slots - 1) * mean) + mean


def _rounding(campaign: SlotSumCampaign, *, delta: float, cells: int, side: Side) -> Rounding:
    tolerance = TAIL * delta / campaign.participation
    return Rounding(side=side, cells=cells, tolerance=min(max(tolerance, SMALLEST), 1e-12))


class AddRemove:
    """Divergences in both directions between the releases with the client and without the client.

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
        self.above_ratio: SlotRatio = campaign.add_remove_ratio()

    @cached_property
    def above(self) -> GridDistribution:
        """The sum of all slots but the last, rounded up. The last slot is integrated exactly."""
        rounding = _rounding(self.campaign, delta=self.delta, cells=self.cells, side=Side.UP)
        first = discretise_up(self.above_ratio, rounding)
        return sum_of(self.campaign.slots - 1, first, mean=1.0, rounding=rounding)

    @cached_property
    def below(self) -> tuple[GridDistribution, AttainedRatio] | None:
        """The sum of all slots but the last, rounded down, and the ratio of the last slot.

        None if no attained ratio is known.
        """
        ratio = self.campaign.attained_add_remove_ratio()
        if ratio is None:
            return None
        rounding = _rounding(self.campaign, delta=self.delta, cells=self.cells, side=Side.DOWN)
        first = discretise_down(ratio, rounding)
        return sum_of(self.campaign.slots - 1, first, mean=1.0, rounding=rounding), ratio

    def _thresholds(self, distribution: GridDistribution, loss: float) -> FloatArray:
        m, p0 = self.campaign.slots, self.campaign.participation
        centred = m / p0 * math.expm1(loss)
        uncentred = m / p0 * (math.expm1(loss) + p0) if p0 < 1.0 else m * math.exp(loss)
        return _last_slot_thresholds(
            distribution, centred=centred, uncentred=uncentred, slots=m, mean=1.0
        )

    def _remove(self, distribution: GridDistribution, ratio: SlotRatio, epsilon: float) -> float:
        calls = float(ratio.call(self._thresholds(distribution, epsilon)) @ distribution.masses)
        return self.campaign.participation / self.campaign.slots * (calls + distribution.excess)

    def _add(self, distribution: GridDistribution, ratio: SlotRatio, epsilon: float) -> float:
        puts = float(ratio.put(self._thresholds(distribution, -epsilon)) @ distribution.masses)
        return math.exp(epsilon) * self.campaign.participation / self.campaign.slots * puts

    def remove_upper(self, epsilon: float) -> float:
        return min(1.0, self._remove(self.above, self.above_ratio, epsilon) * (1 + ROUND_OFF))

    def add_upper(self, epsilon: float) -> float:
        return min(1.0, self._add(self.above, self.above_ratio, epsilon) * (1 + ROUND_OFF))

    def upper(self, epsilon: float) -> float:
        return max(self.remove_upper(epsilon), self.add_upper(epsilon))

    def lower(self, epsilon: float) -> float:
        if self.below is None:
            return 0.0
        remove, add = self._remove(*self.below, epsilon), self._add(*self.below, epsilon)
        return max(remove, add) * (1 - ROUND_OFF)

    def epsilon(self, delta: float, *, precision: float = 1e-9) -> Interval:
        return _epsilon(self, delta, guess=self.campaign.guess(delta), precision=precision)

    def upper_epsilon(self, delta: float, *, precision: float = 1e-9) -> float:
        guess = self.campaign.guess(delta)
        return crossing(self.upper, delta, guess=guess, precision=precision).upper


class ReplaceOne:
    """Divergence between two values of one client's data.

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

    def _delta(self, distribution: GridDistribution, ratio: SlotRatio, epsilon: float) -> float:
        m, p0 = self.campaign.slots, self.campaign.participation
        centred = m / p0 * math.expm1(epsilon)
        thresholds = _last_slot_thresholds(
            distribution, centred=centred, uncentred=(1.0 - p0) * centred, slots=m, mean=ratio.mean
        )
        return p0 / m * (float(ratio.call(thresholds) @ distribution.masses) + distribution.excess)

    def upper(self, epsilon: float) -> float:
        if epsilon >= self.campaign.most_loss:
            return 0.0
        if epsilon > _MOST_LOSS:
            return self.upper(_MOST_LOSS)
        ratio = self.campaign.replace_one_ratio(epsilon)
        rounding = _rounding(self.campaign, delta=self.delta, cells=self.cells, side=Side.UP)
        first = discretise_up(ratio, rounding)
        distribution = sum_of(self.campaign.slots - 1, first, mean=ratio.mean, rounding=rounding)
        return min(1.0, self._delta(distribution, ratio, epsilon) * (1 + ROUND_OFF))

    def lower(self, epsilon: float) -> float:
        if epsilon > _MOST_LOSS:
            return 0.0
        ratio = self.campaign.attained_replace_one_ratio(epsilon)
        if ratio is None:
            return 0.0
        rounding = _rounding(self.campaign, delta=self.delta, cells=self.cells, side=Side.DOWN)
        first = discretise_down(ratio, rounding)
        distribution = sum_of(self.campaign.slots - 1, first, mean=ratio.mean, rounding=rounding)
        return self._delta(distribution, ratio, epsilon) * (1 - ROUND_OFF)

    def epsilon(self, delta: float) -> Interval:
        upper = self.upper_epsilon(delta)
        nearby = 0.99 * upper if 0 < upper < math.inf else self.campaign.guess(delta)
        precision = self.search.precision
        lower = crossing(self.lower, delta, guess=nearby, precision=precision).lower
        return Interval(min(lower, upper), upper)

    def upper_epsilon(self, delta: float) -> float:
        rough = self._rough_epsilon(delta) if self.cells > _MOST_COARSE_CELLS else None
        is_known = rough is not None and 0.0 < rough < math.inf
        is_quick = is_known and self.search is QUICK
        return crossing(
            self.upper,
            delta,
            guess=rough if rough is not None and is_known else self.campaign.guess(delta),
            precision=self.search.precision,
            stride=self.search.stride if is_known else THOROUGH.stride,
            surely_above_at_zero=is_quick,
        ).upper

    def _rough_epsilon(self, delta: float) -> float:
        """Return an upper bound on epsilon from a coarse grid."""
        coarse = ReplaceOne(self.campaign.coarse, delta=delta, cells=_COARSE_CELLS)
        guess = self.campaign.guess(delta)
        precision = 3e-3 if self.search is THOROUGH else 1e-2
        return crossing(coarse.upper, delta, guess=guess, precision=precision).upper


def _epsilon(divergence: DeltaBounds, delta: float, *, guess: float, precision: float) -> Interval:
    upper = crossing(divergence.upper, delta, guess=guess, precision=precision).upper
    nearby = 0.99 * upper if 0 < upper < math.inf else guess
    lower = crossing(divergence.lower, delta, guess=nearby, precision=precision).lower
    return Interval(min(lower, upper), upper)
