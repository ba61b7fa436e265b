"""The exact accountant for slots that sum K reports of an arbitrary eps0-DP randomizer.

A slot with capacity K releases a function of the sum of exactly K reports. The server fills empty
places with dummies, which are reports without data. The slot ratio is the likelihood ratio of this
sum with and without one client. Let (A, B) ~ Multinomial(K; r, r), where b = e^eps0 and
r = 1/(1+b). Whatever the other reports are, the slot ratio of add/remove is, in convex order,
below the random variable L_K with

    L_K = (bA + B)/(A + bB)   with probability   Pr[A, B] (A + bB)/K .

Replace-one has the bound Z_K (see ``SharedSlotReplaceOneRatio``). The stop-loss transform of Z_K,
``call(t)`` = E(Z_K - t)_+, follows from that of L_K. ``put(t)`` is E(t - Z_K)_+. At K = 1, L_K and
Z_K are the two-point and three-point distributions of ``pure``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import gammaln

from checkins.accounting.design import Adjacency
from checkins.accounting.exact import slot_sum
from checkins.accounting.exact.dominating_pair import NO_LOSS, DominatingPair
from checkins.accounting.exact.grid_distribution import TAIL_SHARE, Rounding, Side
from checkins.accounting.exact.lattice_sum import half_binomial_put, window
from checkins.accounting.exact.pure import PureCampaign
from checkins.accounting.exact.report_distributions import DiscreteRatio
from checkins.accounting.exact.slot_ratio import (
    DEVIATES,
    AttainedRatio,
    FloatArray,
    SlotRatio,
)
from checkins.accounting.solve import DeltaBounds, Divergence, TightestBounds

_MAX_BLOCKS = 300
"""Largest number of blocks into which the values of A + B are divided."""
_TAIL_EXPONENT = 150.0
"""Values of A + B with a total probability below 2 e^-150 are left out."""
_NODE_COUNT = 400
"""Number of points t >= 1 at which the stop-loss transform of L_K is computed."""
_MAX_CAPACITY = 10**7
"""Largest K for which L_K is computed, to save memory."""
_MIN_DEVIATION = 1e-5
"""Smallest standard deviation of L_K. Below it, the values of L_K are too close to 1."""
_CERTIFICATE_CELLS = {Adjacency.ADD_REMOVE: 512, Adjacency.REPLACE_ONE: 400}
"""Numbers of grid cells for a certificate."""
_CELLS_FACTOR = 0.7
"""Number of grid cells for pure reports, relative to the number that a caller asks for. Ratios of
pure reports are bounded, so epsilon is still at most about half a percent larger than on a much
finer grid."""
_MAX_CAPACITY_AMONG_OTHERS = 10_000
"""Largest K for which a lower bound among other clients is computed, to save memory."""
_MAX_EPSILON_AMONG_OTHERS = 20.0
"""Largest local epsilon for such a lower bound. Above it, all likely reports are the same."""
MAX_PLACES = 10**9
"""Largest number of places in all slots, m K, for which a lower bound is computed."""


def quick_divergence(
    campaign: slot_sum.SlotSumCampaign, adjacency: Adjacency, *, delta: float, cells: int | None
) -> Divergence:
    """Return the divergence of pure reports, computed on a grid, with a quick search for epsilon.

    ``cells`` is the number of grid cells that a caller asks for. None means as many as for a
    certificate.
    """
    pure_cells = (
        _CERTIFICATE_CELLS[adjacency] if cells is None else math.ceil(_CELLS_FACTOR * cells)
    )
    return slot_sum.divergence(
        campaign, adjacency, delta=delta, cells=pure_cells, search=slot_sum.QUICK
    )


def stop_loss_upper_bounds(gains: FloatArray, local_epsilon: float, capacity: int) -> FloatArray:
    """Return upper bounds on E(L_K - t)_+ at t = 1 + ``gains``, by grouping values of A + B."""
    growth = math.expm1(local_epsilon)  # b - 1
    totals = window(
        trials=capacity,
        probability=min(2.0 / (2.0 + growth), 1.0 - 1e-16),
        tail_exponent=_TAIL_EXPONENT,
    )
    starts = np.arange(0, len(totals.masses), -(-len(totals.masses) // _MAX_BLOCKS))
    ends = np.append(starts[1:], len(totals.masses)) - 1
    masses = np.add.reduceat(totals.masses, starts)
    fewest, most = totals.counts[starts], totals.counts[ends]
    one_minus_k = (growth - gains) / (growth * (2.0 + gains))  # 1 - k, without cancellation
    level = (most - fewest) / 2.0 + np.multiply.outer(one_minus_k, fewest)
    shortfall = half_binomial_put(np.broadcast_to(most, level.shape), level)
    return np.asarray(growth * (2.0 + gains) / capacity * (shortfall @ masses))


class SharedSlotRatio:
    r"""The ratio L_K of add/remove. Its stop-loss transform is interpolated linearly.

    Let c = A + B. Given c, A is Binomial(c, 1/2). For 1 <= t <= b,

        E(L_K - t)_+ = (b-1)(1+t)/K  E(A - k c)_+ ,    k = (tb - 1) / ((b-1)(1+t)) .

    Values below 1 mirror values above 1: E(t - L_K)_+ = t E(L_K - 1/t)_+. So the transform is
    computed at points t >= 1 only. It is convex, so straight lines between the points lie above it,
    and the mirror image of a line is a line. L_K decreases in convex order if K grows, so a smaller
    K gives a valid bound and saves memory.

    Theorem:     docs/theory/pure.md, "Capacity".
    Neighbours:  add/remove.
    Rounding:    up.

    >>> ratio = SharedSlotRatio(1.0, 1)
    >>> round(float(ratio.call(np.array([1.0]))[0]), 4)  # (b - 1)/(b + 1)
    0.4621
    """

    mean = 1.0

    def __init__(self, local_epsilon: float, capacity: int) -> None:
        self.local_epsilon = local_epsilon
        b = math.exp(local_epsilon)
        self.floor = 1.0 / b
        self._log_deviation = math.sqrt(math.log1p((b - 1.0) ** 2 * 2.0 / (1.0 + b) / capacity))
        """About the standard deviation of log L_K."""
        scale = min(self._log_deviation, local_epsilon) / 4.0
        steps = np.linspace(0.0, math.asinh(local_epsilon / scale), _NODE_COUNT)
        losses = np.minimum(scale * np.sinh(steps), local_epsilon)
        self._gains: FloatArray = np.expm1(losses)
        """The points t at which the transform is computed, minus 1. The last point is b."""
        self._calls = stop_loss_upper_bounds(self._gains, local_epsilon, capacity)
        self._calls[-1] = 0.0

    @property
    def quantiles(self) -> FloatArray:
        return 1.0 + self.typical_gains

    @property
    def typical_gains(self) -> FloatArray:
        """The quantiles minus 1."""
        losses = self._log_deviation * DEVIATES - self._log_deviation**2 / 2.0
        return np.expm1(np.clip(losses, -self.local_epsilon, self.local_epsilon))

    def call(self, t: FloatArray) -> FloatArray:
        return self.call_near_one(t, t - 1.0)

    def put(self, t: FloatArray) -> FloatArray:
        return self.put_near_one(t, t - 1.0)

    def call_near_one(self, t: FloatArray, gain: FloatArray) -> FloatArray:
        """Return E(L_K - t)_+. ``gain`` is t - 1, which the caller knows more accurately than t."""
        above = np.interp(gain, self._gains, self._calls)
        return np.where(gain >= 0.0, above, self._lower_put(t, gain) - gain)

    def put_near_one(self, t: FloatArray, gain: FloatArray) -> FloatArray:
        """Return E(t - L_K)_+. ``gain`` is t - 1, which the caller knows more accurately than t."""
        above = np.interp(gain, self._gains, self._calls)
        return np.where(gain <= 0.0, self._lower_put(t, gain), above + gain)

    def _lower_put(self, t: FloatArray, gain: FloatArray) -> FloatArray:
        """Return E(t - L_K)_+ for t <= 1, the mirror image of E(L_K - 1/t)_+."""
        inside = np.clip(t, self.floor, 1.0)
        mirrored = inside * np.interp(-np.minimum(gain, 0.0) / inside, self._gains, self._calls)
        return np.where(t > self.floor, mirrored, 0.0)

    def likely_range(self, tolerance: float) -> tuple[float, float]:
        high = 1.0 + self.max_gain(tolerance)
        return 1.0 / high, high

    def max_gain(self, tolerance: float) -> float:
        """Return a gain from which on E(L_K - 1 - gain)_+ is at most ``tolerance``."""
        index = int(np.searchsorted(-self._calls, -tolerance))
        return float(self._gains[min(max(index, 1), _NODE_COUNT - 1)])


@dataclass(frozen=True, slots=True)
class SharedSlotReplaceOneRatio:
    """The upper bound Z_K, in convex order, on l - e^eps l'. It is computed from L_K.

    l and l' are the likelihood ratios of a slot with two values of the client's data, both relative
    to the slot without the client.

        E(Z_K - t)_+ = E(L_K - e^eps - t)_+                    for t >= 0,
                     = e^eps E(e^-eps (1 - t) - L_K)_+         for t <= 0.

    Theorem:     docs/theory/pure.md, "Capacity".
    Neighbours:  replace-one, at privacy loss ``epsilon``, which is at most the local epsilon.
    Rounding:    up.
    """

    ratio: SharedSlotRatio
    epsilon: float

    @property
    def mean(self) -> float:
        return -math.expm1(self.epsilon)

    @property
    def floor(self) -> float:
        return -math.expm1(self.epsilon + self.ratio.local_epsilon)

    @property
    def quantiles(self) -> FloatArray:
        gains, growth = self.ratio.typical_gains, math.expm1(self.epsilon)
        return gains - gains[::-1] - growth - growth * gains[::-1]

    def call(self, t: FloatArray) -> FloatArray:
        up = np.maximum(t, 0.0)
        above = self.ratio.call_near_one(math.exp(self.epsilon) + up, math.expm1(self.epsilon) + up)
        return np.where(t >= 0.0, above, self._mirrored(t, self.ratio.put_near_one))

    def put(self, t: FloatArray) -> FloatArray:
        below = self._mirrored(t, self.ratio.call_near_one)
        return np.where(t <= 0.0, below, self.call(t) + t - self.mean)

    def _mirrored(
        self, t: FloatArray, transform: Callable[[FloatArray, FloatArray], FloatArray]
    ) -> FloatArray:
        """Return e^eps times the transform of L_K at e^-eps (1 - t), for t <= 0."""
        down, inverse = np.minimum(t, 0.0), math.exp(-self.epsilon)
        gain = (-down - math.expm1(self.epsilon)) * inverse
        return math.exp(self.epsilon) * transform(inverse * (1.0 - down), gain)

    def likely_range(self, tolerance: float) -> tuple[float, float]:
        gain, growth = self.ratio.max_gain(tolerance), math.expm1(self.epsilon)
        loss = gain / (1.0 + gain)
        return -loss - growth - math.exp(self.epsilon) * gain, gain - growth + (1.0 + growth) * loss


_shared_slot = lru_cache(maxsize=64)(SharedSlotRatio)


@lru_cache(maxsize=8)
def _among_others(local_epsilon: float, capacity: int) -> DiscreteRatio:
    """Return the ratio of a slot in which ``capacity`` - 1 other clients report a third value.

    The randomizer is 3-ary randomized response. The client reports the first value, and a dummy is
    a report of the second. If A, B and C of the reports are the first, second and third value, the
    ratio is (bA + B + C/b)/(A + bB + C/b). Its probability is that for K reports of the third
    value, times the denominator divided by K.

    Theorem:     docs/theory/pure.md, "Capacity". Attained.
    Neighbours:  add/remove.
    Rounding:    to nearest; counts with a probability below e^-150 are left out.
    """
    b = math.exp(local_epsilon)
    likely = window(trials=capacity, probability=1.0 / (b + 2.0), tail_exponent=_TAIL_EXPONENT)
    first, second = (counts.ravel() for counts in np.meshgrid(likely.counts, likely.counts))
    third = capacity - first - second
    first, second, third = (counts[third >= 0.0] for counts in (first, second, third))
    logs = third * local_epsilon - gammaln(first + 1) - gammaln(second + 1) - gammaln(third + 1)
    kept = logs > logs.max() - _TAIL_EXPONENT
    first, second, third, logs = first[kept], second[kept], third[kept], logs[kept]
    absent = first + b * second + third / b
    deviations = math.expm1(local_epsilon) * (first - second) / absent
    masses = np.exp(logs - logs.max()) * absent
    return DiscreteRatio(deviations, masses / masses.sum(), mean=1.0)


@dataclass(frozen=True, slots=True)
class PureCapacityCampaign:
    """A campaign of an arbitrary eps0-DP randomizer, whose slots sum ``capacity`` reports each."""

    local_epsilon: float
    slots: int
    participation: float
    capacity: int

    @property
    def max_privacy_loss(self) -> float:
        """The largest privacy loss of a report. At this epsilon, delta is 0."""
        return self.local_epsilon

    @property
    def places(self) -> int:
        """The number of places for reports in all slots."""
        return self.slots * self.capacity

    @property
    def among_dummies(self) -> PureCampaign:
        """The campaign in which all other reports are dummies, as a campaign of capacity 1.

        Each place for a report then counts as a slot of its own.
        """
        return PureCampaign(self.local_epsilon, self.places, self.participation)

    @property
    def with_capacity_one(self) -> PureCampaign:
        """The same campaign with one report per slot. Its upper bounds hold for every capacity."""
        return PureCampaign(self.local_epsilon, self.slots, self.participation)

    @property
    def computed_capacity(self) -> int:
        """The K for which L_K is computed. It is smaller than ``capacity`` if L_K would take too
        much memory, or if its values would be too close to 1."""
        growth = math.expm1(self.local_epsilon)
        variance = growth**2 * 2.0 / (2.0 + growth)  # of L_1, about K times that of L_K
        return int(min(self.capacity, _MAX_CAPACITY, variance / _MIN_DEVIATION**2))

    def divergence(self, adjacency: Adjacency, *, delta: float, cells: int | None) -> Divergence:
        """Return bounds on the divergence. A client alone or among others attains the lower bound.

        The lower bound is one for replace-one too, because the report of a client's other data may
        be distributed like a dummy. ``cells`` is the number of grid cells. None means as many as
        for a certificate.
        """
        upper_bounds = [self.with_capacity_one.divergence(adjacency, delta=delta, cells=cells)]
        if self.computed_capacity > 1:
            upper_bounds.insert(0, quick_divergence(self, adjacency, delta=delta, cells=cells))
        lower_bounds: list[DeltaBounds] = []
        if self.attained_add_remove_ratio() is not None:
            lower_bounds.append(
                quick_divergence(self, Adjacency.ADD_REMOVE, delta=delta, cells=cells)
            )
        if self.places <= MAX_PLACES:
            lower_bounds.append(self.among_dummies.divergence(adjacency, delta=delta, cells=cells))
        return TightestBounds(tuple(upper_bounds), tuple(lower_bounds))

    def pair(self, rounding: Rounding) -> DominatingPair:
        """Return the dominating pair of all releases with the client and without the client."""
        if rounding.side is Side.DOWN:
            return self.among_dummies.pair(rounding) if self.places <= MAX_PLACES else NO_LOSS
        delta = min(rounding.tolerance / TAIL_SHARE, 0.5)
        capacity_bound = self.divergence(Adjacency.ADD_REMOVE, delta=delta, cells=rounding.cells)
        with_capacity_one = self.with_capacity_one.divergence(
            Adjacency.ADD_REMOVE, delta=delta, cells=None
        )
        if capacity_bound.upper_epsilon(delta) < with_capacity_one.upper_epsilon(delta):
            return slot_sum.pair(self, rounding)
        return self.with_capacity_one.pair(rounding)

    def add_remove_ratio(self) -> SlotRatio:
        return _shared_slot(self.local_epsilon, self.computed_capacity)

    def replace_one_ratio(self, epsilon: float) -> SlotRatio:
        return SharedSlotReplaceOneRatio(
            _shared_slot(self.local_epsilon, self.computed_capacity), epsilon
        )

    def attained_add_remove_ratio(self) -> AttainedRatio | None:
        """Return the ratio of a client among others in every slot, or None if not computed."""
        limit = min(self.computed_capacity, _MAX_CAPACITY_AMONG_OTHERS)
        if not 1 < self.capacity <= limit or self.local_epsilon > _MAX_EPSILON_AMONG_OTHERS:
            return None
        return _among_others(self.local_epsilon, self.capacity)

    def attained_replace_one_ratio(self, epsilon: float) -> None:
        """Return None: no client is known to attain the bound Z_K."""

    @property
    def coarser(self) -> PureCapacityCampaign:
        """The campaign for coarse grids: this campaign itself, because L_K is quick to compute."""
        return self

    def initial_guess(self, delta: float) -> float:
        """Estimate epsilon, for searches, by a Gaussian with the likelihood ratio's deviation."""
        growth = math.expm1(self.local_epsilon)
        variance = growth**2 * 2.0 / (2.0 + growth) / self.computed_capacity / self.slots
        deviate = math.sqrt(2 * math.log(1.25 / delta))
        estimate = self.participation * math.sqrt(variance) * deviate
        return max(min(estimate, self.local_epsilon), 1e-12)
