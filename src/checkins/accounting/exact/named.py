"""The exact accountant for a named randomizer and the dummies that run with it.

A slot releases the sum of K reports, dummies included. Notation: L_E, L_F and Z_E are the
likelihood ratios of the ``ReportLaw``, s is its dummy share, and w = K/(K+1). Whatever the other
reports are, the slot ratio of add/remove is below the envelope of

    the mean of C copies of L_E, with C = 1 + Binomial(K-1, s)   (the client takes a dummy's place),
    1 - w + w (the mean of K copies of L_F)                      (the client displaces another one)

in convex order. For replace-one, Z_E takes the place of L_E, and the three-point distribution of
``pure.dominating`` that of L_F. The bounds of ``pure_capacity`` hold for every randomizer, so the
smaller bound is used.

Theorem:     docs/theory/pure.md, "Named randomizers".
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from checkins.accounting.design import Adjacency
from checkins.accounting.exact import slot_sum
from checkins.accounting.exact.binomial import window
from checkins.accounting.exact.dominating_pair import NO_LOSS, DominatingPair
from checkins.accounting.exact.grid_distribution import (
    TAIL,
    GridDistribution,
    Rounding,
    Side,
    add,
    discretise_up,
    sum_of,
)
from checkins.accounting.exact.pure import (
    PureAddRemove,
    PureCampaign,
    ThreePointSum,
)
from checkins.accounting.exact.pure_capacity import (
    MOST_PLACES,
    SharedPureCampaign,
    SmallestBound,
    grid_cells,
)
from checkins.accounting.exact.report_laws import Atoms, LaplaceLaw, TwoLevelLaw
from checkins.accounting.exact.slot_ratio import (
    AttainedRatio,
    Diluted,
    Envelope,
    FloatArray,
    SlotRatio,
)
from checkins.accounting.solve import DeltaBounds, Divergence

_MOST_COUNTED = 10**6
"""Largest capacity for which copies are counted, to save time."""
_LEAST_SPREAD = 1e-5
"""Smallest standard deviation of a slot ratio. Values of narrower ratios are too close to 1."""
_MOST_LOCAL_EPSILON = 30.0
"""Largest local epsilon for which dummies are used. Above it, they hide a report no better."""
_LOG_OUTSIDE = 60.0
_INNER_TOLERANCE = 1e-22
_SINGLE_CELLS = 80
"""Largest number of grid cells of a single copy, whose ratio is smooth."""
_LOWER_CELLS = {Adjacency.ADD_REMOVE: 256, Adjacency.REPLACE_ONE: 160}
"""Numbers of grid cells of lower bounds for Laplace noise."""
_FEW_CELLS = 400
"""Below this number of grid cells, a search uses coarser means of copies too."""


@dataclass(frozen=True, slots=True)
class Detail:
    """How finely means of copies are computed: grid cells, and groups of values of C."""

    cells: int
    groups: int


_ADD_REMOVE, _REPLACE_ONE, _COARSE = Detail(256, 64), Detail(220, 48), Detail(128, 32)


def mean_of_copies(ratio: SlotRatio, copies: int, cells: int) -> Atoms:
    """Return the mean of independent copies of ``ratio``, rounded up in convex order."""
    rounding = Rounding(side=Side.UP, cells=cells, tolerance=_INNER_TOLERANCE)
    total = sum_of(copies, _atoms(ratio, rounding), mean=ratio.mean, rounding=rounding)
    gains, excess = _mean_gains(total, copies, ratio.mean)
    return Atoms(gains, total.masses, mean=ratio.mean, excess=excess)


def mean_of_random_copies(ratio: SlotRatio, capacity: int, share: float, detail: Detail) -> Atoms:
    """Return the mean of C copies of ``ratio`` for C = 1 + Binomial(capacity - 1, share).

    The mean of more copies is smaller in convex order. So values of C are divided into groups, and
    the smallest value of a group stands for all of them.
    """
    rounding = Rounding(side=Side.UP, cells=detail.cells, tolerance=_INNER_TOLERANCE)
    one, mean = _atoms(ratio, rounding), ratio.mean
    counted = window(
        trials=capacity - 1,
        probability=min(share, 1.0 - 1e-12),
        log_outside=_LOG_OUTSIDE,
    )
    starts = _group_starts(counted.masses, detail.groups)
    weights = np.add.reduceat(counted.masses, starts)
    outside = 4.0 * math.exp(-_LOG_OUTSIDE)  # more than the probability of all other values of C
    gains, masses, excess = [one.values + (one.origin - mean)], [outside * one.masses], 0.0
    steps: dict[int, GridDistribution] = {}
    copies = counted.first + 1
    total = sum_of(copies, one, mean=mean, rounding=rounding)
    for weight, more in zip(weights, np.diff(starts, prepend=0).tolist(), strict=True):
        if more:
            if more not in steps:
                steps[more] = sum_of(more, one, mean=mean, rounding=rounding)
            copies += more
            total = add(total, steps[more], mean=mean, copies=copies, rounding=rounding)
        found, lost = _mean_gains(total, copies, mean)
        gains.append(found)
        masses.append(float(weight) * total.masses)
        excess += float(weight) * lost
    whole = 1.0 / (1.0 + outside)
    return Atoms(
        np.concatenate(gains), whole * np.concatenate(masses), mean=mean, excess=excess * whole
    )


def _group_starts(masses: FloatArray, groups: int) -> npt.NDArray[np.intp]:
    """Divide probabilities into at most about ``groups`` groups, smaller ones where they are large.

    Return the index of the first probability of each group.
    """
    if len(masses) <= groups:
        return np.arange(len(masses))
    density = np.cbrt(masses)
    group = np.floor(groups * (np.cumsum(density) - density) / density.sum())
    return np.flatnonzero(np.diff(group, prepend=-1.0))


def _atoms(ratio: SlotRatio, rounding: Rounding) -> GridDistribution:
    if isinstance(ratio, Atoms):
        return GridDistribution(ratio.gains, ratio.masses, ratio.mean, ratio.excess)
    return discretise_up(ratio, replace(rounding, cells=min(rounding.cells, _SINGLE_CELLS)))


def _mean_gains(total: GridDistribution, copies: int, mean: float) -> tuple[FloatArray, float]:
    """Return the mean of copies minus its expectation, and the mean that was capped."""
    return (total.values + (total.origin - copies * mean)) / copies, total.excess / copies


@dataclass(frozen=True, slots=True)
class NamedCampaign:
    """A named randomizer, m slots that sum ``capacity`` reports each, and participation p0."""

    law: TwoLevelLaw | LaplaceLaw
    slots: int
    participation: float
    capacity: int
    is_coarse: bool = False

    @property
    def coarse(self) -> NamedCampaign:
        return replace(self, is_coarse=True)

    @property
    def local_epsilon(self) -> float:
        return self.law.local_epsilon

    @property
    def most_loss(self) -> float:
        return self.law.local_epsilon

    @property
    def weight(self) -> float:
        """The largest probability w = K/(K+1) of being chosen in a full slot."""
        return self.capacity / (self.capacity + 1.0)

    @property
    def counted(self) -> int:
        """The capacity for which copies are counted, or 0 if doubles cannot represent the ratios.

        It is smaller than the real one if the slot ratio would be too narrow or too expensive. Then
        the bound is larger than necessary.
        """
        if self.local_epsilon > _MOST_LOCAL_EPSILON:
            return 0
        spread = math.expm1(self.local_epsilon) * math.exp(-self.local_epsilon) / 8.0
        return int(min(self.capacity, _MOST_COUNTED, (spread / _LEAST_SPREAD) ** 2))

    @property
    def any_randomizer(self) -> PureCampaign | SharedPureCampaign:
        """The campaign of an arbitrary randomizer with the same local epsilon."""
        if self.capacity == 1:
            return PureCampaign(self.local_epsilon, self.slots, self.participation)
        return SharedPureCampaign(self.local_epsilon, self.slots, self.participation, self.capacity)

    @property
    def alone(self) -> PureCampaign:
        """The campaign of a client among dummies only: each place of a slot is like a slot."""
        places = self.slots * self.capacity
        return PureCampaign(self.local_epsilon, places, self.participation)

    def divergence(self, adjacency: Adjacency, *, delta: float, cells: int | None) -> Divergence:
        """Return the divergence. ``lower`` is that of a client among dummies only."""
        campaign = self.coarse if cells is not None and cells < _FEW_CELLS else self
        above = [self.any_randomizer.divergence(adjacency, delta=delta, cells=cells)]
        if self.counted > 0:
            found = slot_sum.divergence(
                campaign,
                adjacency,
                delta=delta,
                cells=grid_cells(adjacency, cells),
                search=slot_sum.QUICK,
            )
            above.insert(0, found)
        precision = 1e-3 if isinstance(self.law, LaplaceLaw) else 1e-7
        return SmallestBound(tuple(above), self._below(adjacency, delta=delta), precision)

    def _below(self, adjacency: Adjacency, *, delta: float) -> tuple[DeltaBounds, ...]:
        alone, law = self.alone, self.law
        if alone.slots > MOST_PLACES:
            return ()
        if isinstance(law, LaplaceLaw):
            single = replace(self, slots=alone.slots, capacity=1)
            return (
                slot_sum.divergence(single, adjacency, delta=delta, cells=_LOWER_CELLS[adjacency]),
            )
        one_sided = PureAddRemove(alone, delta=delta, ratio=law.two_point)
        if adjacency is Adjacency.ADD_REMOVE:
            return (one_sided,)
        return one_sided, ThreePointSum(alone, law.three_point, delta=delta)

    def pair(self, rounding: Rounding) -> DominatingPair:
        """Return the pair of all releases with and without the client, rounded as asked."""
        if rounding.side is Side.DOWN:
            return self._pair_below(rounding)
        if self.counted == 0:
            return self.any_randomizer.pair(rounding)
        delta = min(rounding.tolerance / TAIL, 0.5)
        named, other = (
            one.upper_epsilon(delta)
            for one in (
                slot_sum.divergence(self, Adjacency.ADD_REMOVE, delta=delta, cells=rounding.cells),
                self.any_randomizer.divergence(
                    Adjacency.ADD_REMOVE, delta=delta, cells=rounding.cells
                ),
            )
        )
        if other <= named:
            return self.any_randomizer.pair(rounding)
        return slot_sum.pair(self, rounding)

    def _pair_below(self, rounding: Rounding) -> DominatingPair:
        if self.alone.slots > MOST_PLACES:
            return NO_LOSS
        if isinstance(self.law, LaplaceLaw):
            return slot_sum.pair(replace(self, slots=self.alone.slots, capacity=1), rounding)
        exact = PureAddRemove(self.alone, delta=rounding.tolerance, ratio=self.law.two_point)
        return NO_LOSS.compose(exact.pair(), rounding)

    def add_remove_ratio(self) -> SlotRatio:
        return _add_remove_ratio(self.law, self.counted, self.weight, self.is_coarse)

    def replace_one_ratio(self, epsilon: float) -> SlotRatio:
        detail = _COARSE if self.is_coarse else _REPLACE_ONE
        b, e = math.exp(self.local_epsilon), math.exp(epsilon)
        mean, r = -math.expm1(epsilon), 1.0 / (1.0 + b)
        displacing = Atoms.at((1.0 - b * e, 0.0, b - e), (r, 1.0 - 2.0 * r, r), mean=mean)
        replaced = self.law.replacement(epsilon)
        if self.counted > 1:
            replaced = mean_of_random_copies(replaced, self.counted, self.law.dummy_share, detail)
            displacing = mean_of_copies(displacing, self.counted, 2 * detail.cells)
        full = Atoms(
            self.weight * displacing.gains,
            displacing.masses,
            mean=mean,
            excess=self.weight * displacing.excess,
        )
        return Envelope(replaced, full)

    def attained_add_remove_ratio(self) -> AttainedRatio | None:
        """Return the ratio of a client alone in its slot, or None if it has no density."""
        ratio = self.law.against_dummy
        return None if isinstance(ratio, Atoms) or self.capacity > 1 else ratio

    def attained_replace_one_ratio(self, epsilon: float) -> AttainedRatio | None:
        ratio = self.law.replacement(epsilon)
        return None if isinstance(ratio, Atoms) or self.capacity > 1 else ratio

    def guess(self, delta: float) -> float:
        """Estimate epsilon from that of an arbitrary randomizer."""
        found = self.any_randomizer.divergence(Adjacency.ADD_REMOVE, delta=delta, cells=100)
        return max(0.6 * found.upper_epsilon(delta), 1e-12)


@lru_cache(maxsize=64)
def _add_remove_ratio(
    law: TwoLevelLaw | LaplaceLaw, capacity: int, weight: float, is_coarse: bool
) -> SlotRatio:
    detail = _COARSE if is_coarse else _ADD_REMOVE
    first: SlotRatio = law.against_dummy
    second: SlotRatio = law.against_report
    if capacity > 1:
        first = mean_of_random_copies(first, capacity, law.dummy_share, detail)
        second = mean_of_copies(second, capacity, 2 * detail.cells)
    return Envelope(first, Diluted(second, weight))
