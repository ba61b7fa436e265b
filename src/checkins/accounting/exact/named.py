"""The exact accountant for a named randomizer: randomized response, PrivUnit or Laplace noise.

A slot releases the sum of K reports. The server fills empty places with dummies, which are reports
without data. The slot ratio is the likelihood ratio of this sum with and without one client.
Notation: L_E and L_F are the density ratios of a report to a dummy and to another report. Z_E is
the replace-one ratio to a dummy (see ``report_distributions``). s = ``dummy_share`` is the weight
of a dummy's distribution in every report's distribution, and w = K/(K+1). For all other reports,
the slot ratio of add/remove is, in convex order, below the envelope (the smallest upper bound) of
two ratios:

    the mean of C copies of L_E, with C = 1 + Binomial(K-1, s)   (the client takes a dummy's place),
    1 - w + w (the mean of K copies of L_F)                (the client displaces another client).

For replace-one, use Z_E instead of L_E, and ``pure.dominating_three_point`` instead of L_F. The
bounds of ``pure_capacity`` hold for every randomizer. The smaller of the two bounds is used.

Theorem:     docs/theory/pure.md, "Named randomizers".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, pairwise
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from checkins.accounting.design import Adjacency
from checkins.accounting.exact import slot_sum
from checkins.accounting.exact.dominating_pair import NO_LOSS, DominatingPair
from checkins.accounting.exact.grid_distribution import (
    TAIL_SHARE,
    GridDistribution,
    Rounding,
    Side,
    add,
    discretise_up,
    sum_of,
)
from checkins.accounting.exact.lattice_sum import LatticeAdder, window
from checkins.accounting.exact.pure import (
    PureAddRemove,
    PureCampaign,
    ThreePointSum,
)
from checkins.accounting.exact.pure_capacity import (
    MAX_PLACES,
    PureCapacityCampaign,
    quick_divergence,
)
from checkins.accounting.exact.report_distributions import (
    DiscreteRatio,
    LaplaceDistribution,
    TwoLevelDistribution,
)
from checkins.accounting.exact.slot_ratio import (
    AttainedRatio,
    DilutedRatio,
    Envelope,
    FloatArray,
    SlotRatio,
)
from checkins.accounting.solve import DeltaBounds, Divergence, TightestBounds

Sum = TypeVar("Sum")
_MAX_CAPACITY = 10**6
"""Largest capacity K for which means of copies are computed, to save time."""
_MIN_DEVIATION = 1e-5
"""Smallest standard deviation of a slot ratio. Below it, the values are too close to 1."""
_MAX_LOCAL_EPSILON = 30.0
"""Largest local epsilon for which dummies are used. Above it, they would not lower the bound."""
_TAIL_EXPONENT = 60.0
"""Values of C outside a window are replaced by 1. Their total probability is below 2 e^-60."""
_COPIES_TOLERANCE = 1e-22
"""Mass that may lie beyond the grid of a mean of copies."""
_SINGLE_COPY_CELLS = 80
"""Largest number of grid cells for the ratio of a single copy, which is smooth."""
_LOWER_CELLS = {Adjacency.ADD_REMOVE: 256, Adjacency.REPLACE_ONE: 160}
"""Numbers of grid cells for the lower bounds of Laplace noise."""
_COARSE_BELOW_CELLS = 400
"""If a caller asks for fewer grid cells than this, means of copies are computed coarsely too."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """Precision of means of copies: the number of grid cells, and of groups of values of C."""

    cells: int
    groups: int


_ADD_REMOVE_RESOLUTION, _REPLACE_ONE_RESOLUTION, _COARSE_RESOLUTION = (
    Resolution(256, 64),
    Resolution(220, 48),
    Resolution(128, 32),
)


class _Adder(Protocol[Sum]):
    """Sums of independent copies of one ratio, in the representation ``Sum``, rounded up."""

    def sum_of(self, copies: int) -> Sum: ...
    def add(self, one: Sum, other: Sum, copies: int) -> Sum:
        """Return the sum of two sums, of ``copies`` copies in all."""
        ...

    def on_grid(self, total: Sum, copies: int) -> GridDistribution: ...


@dataclass(frozen=True, slots=True)
class _GridAdder:
    """Sums on unevenly spaced grids, for ratios for which ``LatticeAdder`` is not precise."""

    copy: GridDistribution
    mean: float
    rounding: Rounding

    @classmethod
    def of(cls, ratio: SlotRatio, rounding: Rounding) -> _GridAdder:
        return cls(_on_grid(ratio, rounding), ratio.mean, rounding)

    def sum_of(self, copies: int) -> GridDistribution:
        return sum_of(copies, self.copy, mean=self.mean, rounding=self.rounding)

    def add(self, one: GridDistribution, other: GridDistribution, copies: int) -> GridDistribution:
        return add(one, other, mean=self.mean, copies=copies, rounding=self.rounding)

    def on_grid(self, total: GridDistribution, copies: int) -> GridDistribution:
        return total


def _sums(adder: _Adder[Sum], counts: Sequence[int]) -> Iterator[GridDistribution]:
    """Yield the sums of these numbers of copies, which increase."""
    total = adder.sum_of(counts[0])
    yield adder.on_grid(total, counts[0])
    extra_sums: dict[int, Sum] = {}
    for before, copies in pairwise(counts):
        extra = copies - before
        if extra not in extra_sums:
            extra_sums[extra] = adder.sum_of(extra)
        total = adder.add(total, extra_sums[extra], copies)
        yield adder.on_grid(total, copies)


def _sums_of_copies(
    ratio: SlotRatio, counts: Sequence[int], cells: int, *, typical: float
) -> Iterator[GridDistribution]:
    """Yield the sums of these numbers of copies of ``ratio``. ``typical`` is a likely number."""
    rounding = Rounding(side=Side.UP, cells=cells, tolerance=_COPIES_TOLERANCE)
    lattice = LatticeAdder.of(ratio, rounding, copies=typical)
    if lattice is not None:
        return _sums(lattice, counts)
    return _sums(_GridAdder.of(ratio, rounding), counts)


def mean_of_copies(ratio: SlotRatio, copies: int, cells: int) -> DiscreteRatio:
    """Return the mean of ``copies`` independent copies of ``ratio``, rounded up in convex order."""
    (total,) = _sums_of_copies(ratio, [copies], cells, typical=copies)
    deviations, excess = _mean_deviations(total, copies, ratio.mean)
    return DiscreteRatio(deviations, total.masses, mean=ratio.mean, excess=excess)


def mean_of_random_copies(
    ratio: SlotRatio, capacity: int, share: float, resolution: Resolution
) -> DiscreteRatio:
    """Return the mean of C copies of ``ratio``, rounded up, for C = 1 + Binomial(K - 1, share).

    K is ``capacity``. The mean of more copies is smaller in convex order. So values of C are
    divided into groups, and every value of a group is replaced by the smallest value of the group.
    """
    copy_counts = window(
        trials=capacity - 1,
        probability=min(share, 1.0 - 1e-12),
        tail_exponent=_TAIL_EXPONENT,
    )
    starts = _group_starts(copy_counts.masses, resolution.groups)
    tail = 4.0 * math.exp(-_TAIL_EXPONENT)  # more than the probability of all other values of C
    weights = np.append(np.add.reduceat(copy_counts.masses, starts), tail) / (1.0 + tail)
    counts = (copy_counts.first + 1 + starts).tolist()
    typical = 1.0 + share * (capacity - 1)
    sums = chain(
        _sums_of_copies(ratio, counts, resolution.cells, typical=typical),
        _sums_of_copies(ratio, [1], resolution.cells, typical=1.0),
    )
    deviations, masses, excess = [], [], 0.0
    for weight, copies, total in zip(weights.tolist(), [*counts, 1], sums, strict=True):
        group_deviations, group_excess = _mean_deviations(total, copies, ratio.mean)
        deviations.append(group_deviations)
        masses.append(weight * total.masses)
        excess += weight * group_excess
    return DiscreteRatio(
        np.concatenate(deviations), np.concatenate(masses), mean=ratio.mean, excess=excess
    )


def _group_starts(masses: FloatArray, groups: int) -> npt.NDArray[np.intp]:
    """Divide a list of probabilities into about ``groups`` groups of neighbours.

    Groups are shorter where the probabilities are large. Return the first index of each group.
    """
    if len(masses) <= groups:
        return np.arange(len(masses))
    density = np.cbrt(masses)
    group = np.floor(groups * (np.cumsum(density) - density) / density.sum())
    return np.flatnonzero(np.diff(group, prepend=-1.0))


def _on_grid(ratio: SlotRatio, rounding: Rounding) -> GridDistribution:
    """Return ``ratio`` as a ``GridDistribution``, rounded up unless it is discrete already."""
    if isinstance(ratio, DiscreteRatio):
        return GridDistribution(ratio.deviations, ratio.masses, ratio.mean, ratio.excess)
    return discretise_up(ratio, replace(rounding, cells=min(rounding.cells, _SINGLE_COPY_CELLS)))


def _mean_deviations(total: GridDistribution, copies: int, mean: float) -> tuple[FloatArray, float]:
    """Return the values of a mean of copies minus ``mean``, and the mean lost by capping values."""
    return (total.values + (total.origin - copies * mean)) / copies, total.excess / copies


@dataclass(frozen=True, slots=True)
class NamedCampaign:
    """A campaign of a named randomizer, whose slots sum ``capacity`` reports each.

    If ``is_coarse``, upper bounds on the slot ratios are computed faster and are looser. If
    ``slots_have_room``, no slot is full before the client checks in. So the client takes the place
    of a dummy, and never that of another client.
    """

    report: TwoLevelDistribution | LaplaceDistribution
    slots: int
    participation: float
    capacity: int
    is_coarse: bool = False
    slots_have_room: bool = False

    @property
    def coarser(self) -> NamedCampaign:
        return replace(self, is_coarse=True)

    @property
    def local_epsilon(self) -> float:
        return self.report.local_epsilon

    @property
    def max_privacy_loss(self) -> float:
        """The largest privacy loss of a report. At this epsilon, delta is 0."""
        return self.report.local_epsilon

    @property
    def choice_probability(self) -> float:
        """The largest probability w = K/(K+1) that a client is chosen in a full slot."""
        return self.capacity / (self.capacity + 1.0)

    @property
    def computed_capacity(self) -> int:
        """The capacity for which the slot ratio is computed, or 0 if doubles cannot represent it.

        It is smaller than ``capacity`` if the ratio would be too close to 1, or would take too much
        time. The bound then holds, but is larger than necessary.
        """
        if self.local_epsilon > _MAX_LOCAL_EPSILON:
            return 0
        one_report_deviation = math.expm1(self.local_epsilon) * math.exp(-self.local_epsilon) / 8.0
        return int(min(self.capacity, _MAX_CAPACITY, (one_report_deviation / _MIN_DEVIATION) ** 2))

    @property
    def any_randomizer(self) -> PureCampaign | PureCapacityCampaign:
        """The same campaign with an arbitrary randomizer of the same local epsilon."""
        if self.capacity == 1:
            return PureCampaign(self.local_epsilon, self.slots, self.participation)
        return PureCapacityCampaign(
            self.local_epsilon, self.slots, self.participation, self.capacity
        )

    @property
    def among_dummies(self) -> PureCampaign:
        """The campaign in which all other reports are dummies, as a campaign of capacity 1.

        Each place for a report then counts as a slot of its own.
        """
        places = self.slots * self.capacity
        return PureCampaign(self.local_epsilon, places, self.participation)

    def divergence(self, adjacency: Adjacency, *, delta: float, cells: int | None) -> Divergence:
        """Return bounds on the divergence. The lower one is for a client alone among dummies.

        ``cells`` is the number of grid cells. None means as many as for a certificate.
        """
        campaign = self.coarser if cells is not None and cells < _COARSE_BELOW_CELLS else self
        upper_bounds = [self.any_randomizer.divergence(adjacency, delta=delta, cells=cells)]
        if self.computed_capacity > 0:
            named_bound = quick_divergence(campaign, adjacency, delta=delta, cells=cells)
            upper_bounds.insert(0, named_bound)
        precision = 1e-3 if isinstance(self.report, LaplaceDistribution) else 1e-7
        return TightestBounds(
            tuple(upper_bounds), self._lower_bounds(adjacency, delta=delta), precision
        )

    def _lower_bounds(self, adjacency: Adjacency, *, delta: float) -> tuple[DeltaBounds, ...]:
        among_dummies, report = self.among_dummies, self.report
        if among_dummies.slots > MAX_PLACES:
            return ()
        if isinstance(report, LaplaceDistribution):
            single = replace(self, slots=among_dummies.slots, capacity=1)
            return (
                slot_sum.divergence(single, adjacency, delta=delta, cells=_LOWER_CELLS[adjacency]),
            )
        add_remove_bound = PureAddRemove(among_dummies, delta=delta, ratio=report.two_point)
        if adjacency is Adjacency.ADD_REMOVE:
            return (add_remove_bound,)
        return add_remove_bound, ThreePointSum(among_dummies, report.three_point, delta=delta)

    def pair(self, rounding: Rounding) -> DominatingPair:
        """Return the dominating pair of all releases with the client and without the client."""
        if rounding.side is Side.DOWN:
            return self._lower_pair(rounding)
        if self.computed_capacity == 0:
            return self.any_randomizer.pair(rounding)
        delta = min(rounding.tolerance / TAIL_SHARE, 0.5)
        named_epsilon, any_randomizer_epsilon = (
            bound.upper_epsilon(delta)
            for bound in (
                slot_sum.divergence(self, Adjacency.ADD_REMOVE, delta=delta, cells=rounding.cells),
                self.any_randomizer.divergence(
                    Adjacency.ADD_REMOVE, delta=delta, cells=rounding.cells
                ),
            )
        )
        if any_randomizer_epsilon <= named_epsilon:
            return self.any_randomizer.pair(rounding)
        return slot_sum.pair(self, rounding)

    def _lower_pair(self, rounding: Rounding) -> DominatingPair:
        if self.among_dummies.slots > MAX_PLACES:
            return NO_LOSS
        if isinstance(self.report, LaplaceDistribution):
            return slot_sum.pair(
                replace(self, slots=self.among_dummies.slots, capacity=1), rounding
            )
        exact = PureAddRemove(
            self.among_dummies, delta=rounding.tolerance, ratio=self.report.two_point
        )
        return NO_LOSS.compose(exact.pair(), rounding)

    def add_remove_ratio(self) -> SlotRatio:
        choice_probability = None if self.slots_have_room else self.choice_probability
        return _add_remove_ratio(
            self.report, self.computed_capacity, choice_probability, self.is_coarse
        )

    def replace_one_ratio(self, epsilon: float) -> SlotRatio:
        resolution = _COARSE_RESOLUTION if self.is_coarse else _REPLACE_ONE_RESOLUTION
        b, e = math.exp(self.local_epsilon), math.exp(epsilon)
        mean, r = -math.expm1(epsilon), 1.0 / (1.0 + b)
        displace_ratio = DiscreteRatio.at(
            (1.0 - b * e, 0.0, b - e), (r, 1.0 - 2.0 * r, r), mean=mean
        )
        join_ratio = self.report.replace_one_ratio(epsilon)
        if self.computed_capacity > 1:
            join_ratio = mean_of_random_copies(
                join_ratio, self.computed_capacity, self.report.dummy_share, resolution
            )
        if self.slots_have_room:
            return join_ratio
        if self.computed_capacity > 1:
            displace_ratio = mean_of_copies(
                displace_ratio, self.computed_capacity, 2 * resolution.cells
            )
        full_slot_ratio = DiscreteRatio(
            self.choice_probability * displace_ratio.deviations,
            displace_ratio.masses,
            mean=mean,
            excess=self.choice_probability * displace_ratio.excess,
        )
        return Envelope(join_ratio, full_slot_ratio)

    def attained_add_remove_ratio(self) -> AttainedRatio | None:
        """Return the ratio of a client alone in its slot, which proves lower bounds.

        Return None for a discrete ratio or K > 1. Their lower bounds are computed in other ways.
        """
        ratio = self.report.against_dummy
        return None if isinstance(ratio, DiscreteRatio) or self.capacity > 1 else ratio

    def attained_replace_one_ratio(self, epsilon: float) -> AttainedRatio | None:
        """Return the replace-one ratio of a client alone in its slot, or None as above."""
        ratio = self.report.replace_one_ratio(epsilon)
        return None if isinstance(ratio, DiscreteRatio) or self.capacity > 1 else ratio

    def initial_guess(self, delta: float) -> float:
        """Return 60% of the epsilon of an arbitrary randomizer, with which searches start."""
        divergence = self.any_randomizer.divergence(Adjacency.ADD_REMOVE, delta=delta, cells=100)
        return max(0.6 * divergence.upper_epsilon(delta), 1e-12)


@lru_cache(maxsize=64)
def _add_remove_ratio(
    report: TwoLevelDistribution | LaplaceDistribution,
    capacity: int,
    choice_probability: float | None,
    is_coarse: bool,
) -> SlotRatio:
    """Return the slot ratio. If ``choice_probability`` is None, no slot is full."""
    resolution = _COARSE_RESOLUTION if is_coarse else _ADD_REMOVE_RESOLUTION
    join_ratio: SlotRatio = report.against_dummy
    displace_ratio: SlotRatio = report.against_report
    if capacity > 1:
        join_ratio = mean_of_random_copies(join_ratio, capacity, report.dummy_share, resolution)
    if choice_probability is None:
        return join_ratio
    if capacity > 1:
        displace_ratio = mean_of_copies(displace_ratio, capacity, 2 * resolution.cells)
    return Envelope(join_ratio, DilutedRatio(displace_ratio, choice_probability))
