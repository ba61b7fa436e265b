"""Gaussian noise at the clients and a declared number of clients: few slots are full.

A client displaces another client only in a *full* slot, to which at least as many other clients
check in as its capacity. The number of full slots is random. Let h(j) be the bound on delta if at
most j slots are full, and let the probability of more than j full slots be at most tail(j + 1).
Then

    delta <= h(i) + tail(i + 1) h(j) + tail(j + 1)      for all i <= j.

Theorem:     docs/theory/gaussian.md, "A declared number of clients".
"""

from __future__ import annotations

import math
from functools import cached_property, lru_cache

import numpy as np
from scipy.special import betainc, gammaln, xlogy

from checkins.accounting.design import Adjacency
from checkins.accounting.exact import slot_sum
from checkins.accounting.exact.dominating_pair import ROUND_OFF
from checkins.accounting.exact.fourier_sum import threshold_of_sum, upper_stop_loss
from checkins.accounting.exact.gaussian import GaussianCampaign
from checkins.accounting.exact.grid_distribution import (
    GridDistribution,
    Rounding,
    Side,
    add,
    discretise_up,
    sum_of,
)
from checkins.accounting.exact.slot_ratio import SlotRatio
from checkins.accounting.solve import Interval, crossing, first_true

_SMALLER_COUNT_TAIL = 0.01
"""Probability of more than i full slots, for the smaller number i of full slots."""
_LARGER_COUNT_TAIL_SHARE = 1e-3
"""Probability of more than j full slots, relative to delta, for the larger number j."""
_TAIL_SLACK, _MIN_TAIL = 1.0 + 1e-6, 1e-300  # of incomplete beta functions
_PRECISION = {Adjacency.ADD_REMOVE: 1e-6, Adjacency.REPLACE_ONE: 2e-4}
"""Relative precisions of a search. Replace-one needs a new distribution for every epsilon."""
_MAX_EPSILON = 200.0  # above it, the values of a replace-one ratio may not fit a double
_ADD_REMOVE_CELLS, _REPLACE_ONE_CELLS = 512, 600
"""Numbers of grid cells of a certificate."""


class FullSlots:
    """Upper bounds on the probability that at least j slots are full.

    At most ``others`` other clients can check in to a given slot, each with probability at most
    ``check_in``, independently of the others. Each checks in to at most one slot. At most
    ``all_others`` can check in to any of the slots.

    Theorem:     docs/theory/gaussian.md, "A declared number of clients".
    Neighbours:  none; check-ins do not depend on data.
    Rounding:    up.
    """

    def __init__(
        self, *, others: int, all_others: int, slots: int, check_in: float, capacity: int
    ) -> None:
        self.slots = slots
        self.most = min(slots, all_others // capacity) if others >= capacity else 0
        tail = 0.0
        if self.most > 0 and check_in > 0.0:
            tail = float(betainc(float(capacity), float(others - capacity + 1), check_in))
        self._one_slot = min(1.0, max(tail * _TAIL_SLACK, _MIN_TAIL))

    def tail(self, count: int) -> float:
        """Return a bound on the probability that ``count`` or more slots are full."""
        if count > self.most:
            return 0.0
        if count == 0:
            return 1.0
        q, m = self._one_slot, self.slots
        subsets = gammaln(m + 1.0) - gammaln(count + 1.0) - gammaln(m - count + 1.0)
        exponents = [float(subsets) + count * math.log(q)]
        share = count / m
        if share > q:
            exponents.append(
                -m * float(xlogy(share, share / q) + xlogy(1.0 - share, (1.0 - share) / (1.0 - q)))
            )
        return min(1.0, math.exp(min(0.0, min(exponents))) * _TAIL_SLACK)

    def quantile(self, probability: float) -> int:
        """Return a number of full slots that is exceeded with at most this probability."""
        if self.tail(1) <= probability:
            return 0
        return first_true(
            lambda count: self.tail(count + 1) <= probability, false=0, true=self.most
        )


class FewFullSlots:
    """Bounds on the divergence if there are at most as many clients as ``full_slots`` assumes.

    Theorem:     docs/theory/gaussian.md, "A declared number of clients".
    Neighbours:  add/remove and replace-one.
    Rounding:    ``upper`` up, ``lower`` down.
    """

    def __init__(
        self,
        campaign: GaussianCampaign,
        adjacency: Adjacency,
        *,
        full_slots: FullSlots,
        delta: float,
        cells: int | None,
    ) -> None:
        self.campaign, self.adjacency, self.full_slots = campaign, adjacency, full_slots
        self.delta, self.cells = delta, cells
        often = self.full_slots.quantile(_SMALLER_COUNT_TAIL)
        never = self.full_slots.quantile(_LARGER_COUNT_TAIL_SHARE * delta)
        self._levels = (often, never) if often < never else (never,)
        self.without_overflow = campaign.uncapped.divergence(adjacency, delta=delta, cells=cells)

    def upper(self, epsilon: float) -> float:
        total, before = 0.0, 1.0
        for level in self._levels:
            bounds = self._with(level) if level else self.without_overflow
            total += before * bounds.upper(epsilon)
            before = self.full_slots.tail(level + 1)
        return min(1.0, total + before)

    def _with(self, full: int) -> WithFullSlots:
        return _with_full_slots(self.campaign, self.adjacency, full, self.delta, self.cells)

    def lower(self, epsilon: float) -> float:
        """Return a lower bound on the delta of a client alone."""
        return self.without_overflow.lower(epsilon)

    def epsilon(self, delta: float) -> Interval:
        alone = self.without_overflow.epsilon(delta)
        upper = self._upper_epsilon(delta, alone.upper)
        return Interval(min(alone.lower, upper), upper)

    def upper_epsilon(self, delta: float) -> float:
        return self._upper_epsilon(delta, self.without_overflow.upper_epsilon(delta))

    def _upper_epsilon(self, delta: float, alone: float) -> float:
        if self._levels == (0,) and self.full_slots.tail(1) == 0.0:
            return alone
        guess = 1.001 * alone
        if self.adjacency is Adjacency.REPLACE_ONE and self.upper(guess) > delta:
            add_remove = FewFullSlots(
                self.campaign,
                Adjacency.ADD_REMOVE,
                full_slots=self.full_slots,
                delta=self.delta,
                cells=self.cells,
            )
            guess = max(guess, 1.02 * add_remove.upper_epsilon(delta))
        return crossing(
            self.upper,
            delta,
            guess=guess,
            precision=_PRECISION[self.adjacency],
            stride=0.01,
            surely_above_at_zero=alone > 0.0,
        ).upper


@lru_cache(maxsize=16)
def _with_full_slots(
    campaign: GaussianCampaign, adjacency: Adjacency, full: int, delta: float, cells: int | None
) -> WithFullSlots:
    return WithFullSlots(campaign, adjacency, full, delta=delta, cells=cells)


class WithFullSlots:
    """Upper bounds on the divergence if at most ``full`` slots are full.

    The ratio of every other slot is that of a client that joins a sum or displaces a dummy.

    Theorem:     docs/theory/gaussian.md, "A declared number of clients".
    Neighbours:  add/remove and replace-one.
    Rounding:    up.
    """

    def __init__(
        self,
        campaign: GaussianCampaign,
        adjacency: Adjacency,
        full: int,
        *,
        delta: float,
        cells: int | None,
    ) -> None:
        self.campaign, self.adjacency, self.full = campaign, adjacency, full
        is_replaced = adjacency is Adjacency.REPLACE_ONE
        self._cells = cells or (_REPLACE_ONE_CELLS if is_replaced else _ADD_REMOVE_CELLS)
        self._delta = delta

    def upper(self, epsilon: float) -> float:
        if self.adjacency is Adjacency.ADD_REMOVE:
            return self._add_remove(epsilon)
        return self._replace_one(min(epsilon, _MAX_EPSILON))

    def _rounding(self, cells: int) -> Rounding:
        return slot_sum.rounding_of(self.campaign, delta=self._delta, cells=cells, side=Side.UP)

    def _sum_of_other_slots(
        self, ordinary: SlotRatio, full: SlotRatio, rounding: Rounding
    ) -> tuple[GridDistribution, SlotRatio]:
        """Return the sum of all slots but one, rounded up, and the ratio of that slot."""
        mean, total = ordinary.mean, None
        counts = [(ordinary, self.campaign.slots - self.full), (full, self.full)]
        last = next(ratio for ratio, count in counts if count > 0)
        for ratio, count in counts:
            copies = count - (ratio is last)
            if copies <= 0:
                continue
            one = sum_of(copies, discretise_up(ratio, rounding), mean=mean, rounding=rounding)
            if total is None:
                total = one
            else:
                slots = self.campaign.slots - 1
                total = add(total, one, mean=mean, copies=slots, rounding=rounding)
        return GridDistribution(np.zeros(1), np.ones(1), 0.0) if total is None else total, last

    @cached_property
    def _add_remove_sum(self) -> tuple[GridDistribution, SlotRatio]:
        ordinary = self.campaign.uncapped.add_remove_ratio()
        full = self.campaign.add_remove_ratio()
        return self._sum_of_other_slots(ordinary, full, self._rounding(self._cells))

    def _add_remove(self, epsilon: float) -> float:
        bounds = slot_sum.AddRemove(self.campaign, delta=self._delta, cells=self._cells)
        distribution, ratio = self._add_remove_sum
        remove = bounds.remove_delta(distribution, ratio, epsilon)
        add_ = bounds.add_delta(distribution, ratio, epsilon)
        return min(1.0, max(remove, add_) * (1.0 + ROUND_OFF))

    def _replace_one(self, epsilon: float) -> float:
        campaign = self.campaign
        ordinary = campaign.uncapped.replace_one_ratio(epsilon)
        full = campaign.replace_one_ratio(epsilon)
        slots, participation = campaign.slots, campaign.participation
        threshold = threshold_of_sum(epsilon, slots=slots, participation=participation)
        fine = self._rounding(2 * self._cells)
        groups = [
            (discretise_up(ordinary, fine), slots - self.full),
            (discretise_up(full, fine), self.full),
        ]
        stop_loss = upper_stop_loss(groups, threshold=threshold, resolution=self._cells)
        if stop_loss is not None:
            return min(1.0, participation / slots * stop_loss * (1.0 + ROUND_OFF))
        coarse = self._rounding(self._cells // 2)
        distribution, ratio = self._sum_of_other_slots(ordinary, full, coarse)
        bounds = slot_sum.ReplaceOne(campaign, delta=self._delta, cells=self._cells)
        return min(1.0, bounds.delta_of(distribution, ratio, epsilon) * (1.0 + ROUND_OFF))
