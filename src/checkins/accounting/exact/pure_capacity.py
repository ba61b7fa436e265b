"""The exact accountant for slots that sum K reports of an eps0-DP randomizer.

A slot with capacity K releases a function of exactly K reports, dummies included. Let
(A, B) ~ Multinomial(K; r, r), where b = e^eps0 and r = 1/(1+b). Whatever the other reports are,
the slot ratio of add/remove is below

    L_K = (bA + B)/(A + bB)   with probability   Pr[A, B] (A + bB)/K

in convex order. Replace-one has the bound Z_K, whose stop-loss transform follows from that of L_K.
At K = 1 these are the two-point and three-point distributions of ``pure``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from checkins.accounting.design import Adjacency
from checkins.accounting.exact import slot_sum
from checkins.accounting.exact.binomial import fair_shortfall, window
from checkins.accounting.exact.dominating_pair import NO_LOSS, DominatingPair
from checkins.accounting.exact.grid_distribution import TAIL, Rounding, Side
from checkins.accounting.exact.pure import PureCampaign
from checkins.accounting.exact.slot_ratio import DEVIATES, FloatArray, SlotRatio
from checkins.accounting.solve import DeltaBounds, Divergence, Interval, crossing
from checkins.errors import ComputationFailed

_BLOCKS = 300
"""Largest number of groups into which the values of A + B are divided."""
_LOG_OUTSIDE = 150.0
"""Values of A + B with a total probability below 2 e^-150 are left out."""
_NODES = 400
"""Number of points t >= 1 at which the stop-loss transform is computed."""
_MOST_COUNTED = 10**7
"""Largest capacity K of a ratio L_K that is computed, to save memory."""
_LEAST_SPREAD = 1e-5
"""Smallest standard deviation of a ratio L_K. Values of narrower ratios are too close to 1."""
_CERTIFICATE_CELLS = {Adjacency.ADD_REMOVE: 512, Adjacency.REPLACE_ONE: 400}
_CELLS_SHARE = 0.7
"""Share of the cells of a Gaussian campaign that are used. Ratios of pure reports are bounded, so
epsilon is then at most about half a percent larger than on a much finer grid."""
MOST_PLACES = 10**11
"""Largest number of places mK for which a lower bound is computed."""


def grid_cells(adjacency: Adjacency, cells: int | None) -> int:
    """Return the number of grid cells for pure reports. ``cells`` None means a certificate."""
    return _CERTIFICATE_CELLS[adjacency] if cells is None else math.ceil(_CELLS_SHARE * cells)


def exact_calls(gains: FloatArray, local_epsilon: float, capacity: int) -> FloatArray:
    """Return E(L_K - t)_+ at t = 1 + ``gains``, rounded up by grouping values of A + B."""
    growth = math.expm1(local_epsilon)  # b - 1
    counted = window(
        trials=capacity,
        probability=min(2.0 / (2.0 + growth), 1.0 - 1e-16),
        log_outside=_LOG_OUTSIDE,
    )
    starts = np.arange(0, len(counted.masses), -(-len(counted.masses) // _BLOCKS))
    ends = np.append(starts[1:], len(counted.masses)) - 1
    masses = np.add.reduceat(counted.masses, starts)
    fewest, most = counted.counts[starts], counted.counts[ends]
    rest = (growth - gains) / (growth * (2.0 + gains))  # 1 - k, without cancellation
    needed = (most - fewest) / 2.0 + np.multiply.outer(rest, fewest)
    shortfall = fair_shortfall(np.broadcast_to(most, needed.shape), needed)
    return np.asarray(growth * (2.0 + gains) / capacity * (shortfall @ masses))


class SharedSlot:
    r"""The ratio L_K of add/remove, with a piecewise linear stop-loss transform.

    With c = A + B, so that A ~ Binomial(c, 1/2) given c, and for 1 <= t <= b,

        E(L_K - t)_+ = (b-1)(1+t)/K  E(A - k c)_+ ,    k = (tb - 1) / ((b-1)(1+t)) .

    The lower half is the mirror image of the upper half: E(t - L_K)_+ = t E(L_K - 1/t)_+. So the
    transform is computed at points t >= 1 only. Lines between them lie above it, because it is
    convex, and the mirror image of a line is a line. L_K decreases in convex order if K grows, so
    a smaller K may be used to save memory.

    Theorem:     docs/theory/pure.md, "Capacity".
    Neighbours:  add/remove.
    Rounding:    up.

    >>> alone = SharedSlot(1.0, 1)
    >>> round(float(alone.call(np.array([1.0]))[0]), 4)  # (b - 1)/(b + 1)
    0.4621
    """

    mean = 1.0

    def __init__(self, local_epsilon: float, capacity: int) -> None:
        self.local_epsilon = local_epsilon
        b = math.exp(local_epsilon)
        self.floor = 1.0 / b
        self._spread = math.sqrt(math.log1p((b - 1.0) ** 2 * 2.0 / (1.0 + b) / capacity))
        """About the standard deviation of log L_K."""
        scale = min(self._spread, local_epsilon) / 4.0
        steps = np.linspace(0.0, math.asinh(local_epsilon / scale), _NODES)
        losses = np.minimum(scale * np.sinh(steps), local_epsilon)
        self._gains: FloatArray = np.expm1(losses)
        """The points, minus 1. The last point is b."""
        self._calls = exact_calls(self._gains, local_epsilon, capacity)
        self._calls[-1] = 0.0

    @property
    def typical(self) -> FloatArray:
        return 1.0 + self.typical_gains

    @property
    def typical_gains(self) -> FloatArray:
        losses = self._spread * DEVIATES - self._spread**2 / 2.0
        return np.expm1(np.clip(losses, -self.local_epsilon, self.local_epsilon))

    def call(self, t: FloatArray) -> FloatArray:
        return self.call_near_one(t, t - 1.0)

    def put(self, t: FloatArray) -> FloatArray:
        return self.put_near_one(t, t - 1.0)

    def call_near_one(self, t: FloatArray, gain: FloatArray) -> FloatArray:
        """Return E(L_K - t)_+, where ``gain`` is t - 1, known more accurately than from t."""
        above = np.interp(gain, self._gains, self._calls)
        return np.where(gain >= 0.0, above, self._lower_put(t, gain) - gain)

    def put_near_one(self, t: FloatArray, gain: FloatArray) -> FloatArray:
        """Return E(t - L_K)_+, where ``gain`` is t - 1, known more accurately than from t."""
        above = np.interp(gain, self._gains, self._calls)
        return np.where(gain <= 0.0, self._lower_put(t, gain), above + gain)

    def _lower_put(self, t: FloatArray, gain: FloatArray) -> FloatArray:
        """Return E(t - L_K)_+ for t <= 1, the mirror image of E(L_K - 1/t)_+."""
        inside = np.clip(t, self.floor, 1.0)
        mirrored = inside * np.interp(-np.minimum(gain, 0.0) / inside, self._gains, self._calls)
        return np.where(t > self.floor, mirrored, 0.0)

    def reach(self, tolerance: float) -> tuple[float, float]:
        high = 1.0 + self.most_gain(tolerance)
        return 1.0 / high, high

    def most_gain(self, tolerance: float) -> float:
        """Return a gain above which E(L_K - 1 - gain)_+ is at most ``tolerance``."""
        last = int(np.searchsorted(-self._calls, -tolerance))
        return float(self._gains[min(max(last, 1), _NODES - 1)])


@dataclass(frozen=True, slots=True)
class SharedSlotReplacement:
    """The bound Z_K on l - e^eps l', from the ratio L_K.

        E(Z_K - t)_+ = E(L_K - e^eps - t)_+                    for t >= 0,
                     = e^eps E(e^-eps (1 - t) - L_K)_+         for t <= 0.

    Theorem:     docs/theory/pure.md, "Capacity".
    Neighbours:  replace-one, at privacy loss ``epsilon``, which is at most the local epsilon.
    Rounding:    up.
    """

    ratio: SharedSlot
    epsilon: float

    @property
    def mean(self) -> float:
        return -math.expm1(self.epsilon)

    @property
    def floor(self) -> float:
        return -math.expm1(self.epsilon + self.ratio.local_epsilon)

    @property
    def typical(self) -> FloatArray:
        gains, grown = self.ratio.typical_gains, math.expm1(self.epsilon)
        return gains - gains[::-1] - grown - grown * gains[::-1]

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
        down, shrunk = np.minimum(t, 0.0), math.exp(-self.epsilon)
        gain = (-down - math.expm1(self.epsilon)) * shrunk
        return math.exp(self.epsilon) * transform(shrunk * (1.0 - down), gain)

    def reach(self, tolerance: float) -> tuple[float, float]:
        gain, grown = self.ratio.most_gain(tolerance), math.expm1(self.epsilon)
        lost = gain / (1.0 + gain)
        return -lost - grown - math.exp(self.epsilon) * gain, gain - grown + (1.0 + grown) * lost


_shared_slot = lru_cache(maxsize=64)(SharedSlot)


@dataclass(frozen=True, slots=True)
class SharedPureCampaign:
    """An eps0-DP randomizer, m slots that sum ``capacity`` reports each, and participation p0."""

    local_epsilon: float
    slots: int
    participation: float
    capacity: int

    @property
    def most_loss(self) -> float:
        return self.local_epsilon

    @property
    def places(self) -> int:
        return self.slots * self.capacity

    @property
    def alone(self) -> PureCampaign:
        """The campaign of a client among dummies only: each place of a slot is like a slot."""
        return PureCampaign(self.local_epsilon, self.places, self.participation)

    @property
    def single(self) -> PureCampaign:
        """The campaign with one report per slot, whose bounds hold for every capacity."""
        return PureCampaign(self.local_epsilon, self.slots, self.participation)

    @property
    def counted(self) -> int:
        """The capacity K of the ratio L_K that is used. It is smaller than the real one if L_K
        would take too much memory, or if its values would be too close to 1."""
        growth = math.expm1(self.local_epsilon)
        variance = growth**2 * 2.0 / (2.0 + growth)  # of L_1, about K times that of L_K
        return int(min(self.capacity, _MOST_COUNTED, variance / _LEAST_SPREAD**2))

    def divergence(self, adjacency: Adjacency, *, delta: float, cells: int | None) -> Divergence:
        """Return the divergence. ``lower`` is that of a client among dummies only."""
        above = [self.single.divergence(adjacency, delta=delta, cells=cells)]
        if self.counted > 1:
            found = slot_sum.divergence(
                self,
                adjacency,
                delta=delta,
                cells=grid_cells(adjacency, cells),
                search=slot_sum.QUICK,
            )
            above.insert(0, found)
        below = []
        if self.places <= MOST_PLACES:
            below.append(self.alone.divergence(adjacency, delta=delta, cells=cells))
        return SmallestBound(tuple(above), tuple(below))

    def pair(self, rounding: Rounding) -> DominatingPair:
        """Return the pair of all releases with and without the client, rounded as asked."""
        if rounding.side is Side.DOWN:
            return self.alone.pair(rounding) if self.places <= MOST_PLACES else NO_LOSS
        delta = min(rounding.tolerance / TAIL, 0.5)
        found = self.divergence(Adjacency.ADD_REMOVE, delta=delta, cells=rounding.cells)
        single = self.single.divergence(Adjacency.ADD_REMOVE, delta=delta, cells=None)
        if found.upper_epsilon(delta) < single.upper_epsilon(delta):
            return slot_sum.pair(self, rounding)
        return self.single.pair(rounding)

    def add_remove_ratio(self) -> SlotRatio:
        return _shared_slot(self.local_epsilon, self.counted)

    def replace_one_ratio(self, epsilon: float) -> SlotRatio:
        return SharedSlotReplacement(_shared_slot(self.local_epsilon, self.counted), epsilon)

    def attained_add_remove_ratio(self) -> None:
        """Return None: no client attains the ratio L_K."""

    def attained_replace_one_ratio(self, epsilon: float) -> None:
        """Return None: no client attains the bound Z_K."""

    @property
    def coarse(self) -> SharedPureCampaign:
        return self

    def guess(self, delta: float) -> float:
        """Estimate epsilon by a Gaussian with the standard deviation of the likelihood ratio."""
        growth = math.expm1(self.local_epsilon)
        variance = growth**2 * 2.0 / (2.0 + growth) / self.counted / self.slots
        deviate = math.sqrt(2 * math.log(1.25 / delta))
        guess = self.participation * math.sqrt(variance) * deviate
        return max(min(guess, self.local_epsilon), 1e-12)


@dataclass(frozen=True, slots=True)
class SmallestBound:
    """The smallest of several upper bounds, and the largest of several lower bounds on delta.

    ``precision`` is the relative precision of the lower bound on epsilon.
    """

    above: tuple[Divergence, ...]
    below: tuple[DeltaBounds, ...]
    precision: float = 1e-7

    def upper(self, epsilon: float) -> float:
        return min(one.upper(epsilon) for one in self.above)

    def lower(self, epsilon: float) -> float:
        return max((one.lower(epsilon) for one in self.below), default=0.0)

    def epsilon(self, delta: float) -> Interval:
        upper = self.upper_epsilon(delta)
        lower = crossing(self.lower, delta, guess=0.8 * upper, precision=self.precision).lower
        if lower > upper * (1.0 + 1e-6):
            raise ComputationFailed(f"the bounds on epsilon cross: {lower!r} and {upper!r}")
        return Interval(min(lower, upper), upper)

    def upper_epsilon(self, delta: float) -> float:
        least, *others = self.above
        found = least.upper_epsilon(delta)
        for other in others:
            if other.upper(found) <= delta:
                found = min(found, other.upper_epsilon(delta))
        return found
