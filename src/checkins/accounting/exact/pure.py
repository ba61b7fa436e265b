"""The exact accountant for random check-ins with an arbitrary eps0-DP randomizer, by binomial sums.

A slot holds one report. Its slot ratio is the likelihood ratio of the slot's output with and
without the client. Notation: m is the number of slots, p0 the participation, b = e^eps0 and
r = 1/(1+b).

In the sliding protocol, the time at which a client wakes may depend on its data. Under replace-one,
the windows of the two values of its data are then unrelated: they may be equal, overlap or be
disjoint. Let f and f' be the likelihood ratios of all releases with either value to those
without the client. ``UnrelatedWindows`` covers pure reports with one report per slot.
``RemovalThenAddition`` covers every design, by the triangle bound: a replacement is a removal
followed by an addition.

Theorem:     docs/theory/windows-and-capacity.md, "Wake times that depend on data".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from checkins.accounting.design import Adjacency
from checkins.accounting.exact.dominating_pair import (
    NO_LOSS,
    DominatingPair,
    from_ratios,
    triangle_bound,
)
from checkins.accounting.exact.grid_distribution import Rounding
from checkins.accounting.exact.lattice_sum import ROUND_OFF, half_binomial_put, window
from checkins.accounting.exact.slot_ratio import FloatArray
from checkins.accounting.solve import DeltaBounds, Divergence, Interval, crossing

_TAIL_MARGIN = 45.0  # at most e^-45 times delta lies outside a window, far below ROUND_OFF
_MAX_BLOCKS = 600  # largest number of blocks into which counts are grouped
_MAX_MIRRORED_LOCAL_EPSILON = 15.0  # above it, values of the mirror image cancel in doubles
_EPSILON_ROUND_OFF = 4e-15  # close to eps0, delta depends on the last digits of epsilon


@dataclass(frozen=True, slots=True)
class PureCampaign:
    """A campaign of an arbitrary eps0-DP randomizer, with one report per slot."""

    local_epsilon: float
    slots: int
    participation: float

    def divergence(self, adjacency: Adjacency, *, delta: float, cells: int | None) -> Divergence:
        """Return bounds on the divergence, which are accurate near ``delta``.

        ``cells`` is ignored, because binomial sums need no grid.
        """
        if adjacency is Adjacency.ADD_REMOVE:
            return PureAddRemove(self, delta=delta)
        return PureReplaceOne(self, delta=delta)

    def pair(self, rounding: Rounding) -> DominatingPair:
        """Return the dominating pair of all releases with the client and without the client."""
        exact = PureAddRemove(self, delta=rounding.tolerance).pair()
        return NO_LOSS.compose(exact, rounding)

    def tail_exponent(self, delta: float) -> float:
        """Return an exponent so that tails below exp(-exponent) are negligible near ``delta``."""
        return math.log(1.0 / delta) + 2 * self.local_epsilon + _TAIL_MARGIN


@dataclass(frozen=True, slots=True)
class TwoPoint:
    """A slot ratio with two values, ``high`` and 1/``inverse_low``.

    ``probability`` is that of ``high``. ``gap`` is the difference of the values.
    """

    high: float
    inverse_low: float
    gap: float
    probability: float


def worst_two_point(local_epsilon: float) -> TwoPoint:
    """Return a slot ratio that is above those of all eps0-DP randomizers in convex order.

    Binary randomized response attains it, if a dummy is the report of one of the two values.
    """
    b = math.exp(local_epsilon)
    return TwoPoint(b, b, 2.0 * math.sinh(local_epsilon), 1.0 / (1.0 + b))


class PureAddRemove:
    r"""Exact divergences between the releases with the client and without the client.

    The likelihood ratio is f = 1 - p0 + p0 (K b + (m-K)/b)/m with K ~ Binomial(m, r), so that

        delta_remove(eps) = E(f - e^eps)_+,     delta_add(eps) = E(1 - e^eps f)_+ .

    If ``ratio`` is given, its two values replace b and 1/b, and its probability replaces r.

    Theorem:     docs/theory/pure.md, "Add/remove". Attained by one client among dummies.
    Neighbours:  add/remove.
    Rounding:    ``upper`` up and ``lower`` down, by the relative ROUND_OFF. Both are valid near the
                 given ``delta``, because the window of counts is chosen for it.

    >>> pure = PureAddRemove(PureCampaign(1.0, 1000, 1.0), delta=1e-6)
    >>> round(pure.epsilon(1e-6).upper, 4)
    0.1266
    """

    def __init__(
        self, campaign: PureCampaign, *, delta: float, ratio: TwoPoint | None = None
    ) -> None:
        m = campaign.slots
        self.local_epsilon = campaign.local_epsilon
        ratio = worst_two_point(campaign.local_epsilon) if ratio is None else ratio
        probability = ratio.probability
        binomial = window(
            trials=m, probability=probability, tail_exponent=campaign.tail_exponent(delta)
        )
        self.step = campaign.participation * ratio.gap / m
        """The amount by which f grows if K grows by 1."""
        self.deviations: FloatArray = binomial.counts - m * probability
        self.masses = binomial.masses
        ups, downs = binomial.counts / m, (m - binomial.counts) / m
        p0 = campaign.participation
        self.ratios: FloatArray = (1.0 - p0) + p0 * (ups * ratio.high + downs / ratio.inverse_low)
        self._cdf = np.cumsum(binomial.masses)
        self._survival = np.cumsum(binomial.masses[::-1])[::-1]
        below = np.concatenate(([0.0], np.cumsum(self._cdf)[:-1]))
        above = np.concatenate((np.cumsum(self._survival[::-1])[::-1][1:], [0.0]))
        self._puts, self._calls = self.step * below, self.step * above

    def pair(self) -> DominatingPair:
        """Return the exact pair of all releases with the client and without the client."""
        return from_ratios(self.ratios, self.step * self.deviations, self.masses)

    def calls(self, levels: FloatArray) -> FloatArray:
        """Return E(f - 1 - x)_+ for each x in ``levels``, where f is the likelihood ratio."""
        levels = levels / self.step
        k = np.searchsorted(self.deviations, levels)
        inside = np.minimum(k, len(self.deviations) - 1)
        rest = self.step * (self.deviations[inside] - levels) * self._survival[inside]
        return np.where(k < len(self.deviations), self._calls[inside] + rest, 0.0)

    def _remove_delta(self, epsilon: float) -> float:
        level = math.expm1(epsilon) / self.step
        k = int(np.searchsorted(self.deviations, level))
        if k == len(self.deviations):
            return 0.0
        return float(self._calls[k] + self.step * (self.deviations[k] - level) * self._survival[k])

    def _add_delta(self, epsilon: float) -> float:
        is_near = epsilon < math.log(
            2.0
        )  # for ratios near 1, the difference from 1 is more accurate
        level = math.expm1(-epsilon) if is_near else math.exp(-epsilon)
        values = self.step * self.deviations if is_near else self.ratios
        k = int(np.searchsorted(values, level, side="right")) - 1
        if k < 0:
            return 0.0
        return math.exp(epsilon) * float(self._puts[k] + (level - values[k]) * self._cdf[k])

    def _delta(self, epsilon: float) -> float:
        return max(self._remove_delta(epsilon), self._add_delta(epsilon))

    def upper(self, epsilon: float) -> float:
        return min(1.0, self._delta(epsilon) * (1 + ROUND_OFF))

    def lower(self, epsilon: float) -> float:
        return self._delta(epsilon) * (1 - ROUND_OFF)

    def epsilon(self, delta: float) -> Interval:
        """Return bounds on epsilon in closed form: delta is linear in e^eps between two counts."""
        lower = self._epsilon(delta * (1 + ROUND_OFF)) * (1 - _EPSILON_ROUND_OFF)
        upper = self._epsilon(delta * (1 - ROUND_OFF)) * (1 + _EPSILON_ROUND_OFF)
        return Interval(lower, min(upper, self.local_epsilon))

    def upper_epsilon(self, delta: float) -> float:
        return self.epsilon(delta).upper

    def _epsilon(self, delta: float) -> float:
        centre = int(np.searchsorted(self.deviations, 0.0))
        calls, tails = self._calls[centre:], self._survival[centre:]
        remove = 0.0
        if self._remove_delta(0.0) > delta:
            k = int(np.count_nonzero(calls > delta))
            deviation = self.deviations[centre + k] - (delta - calls[k]) / (self.step * tails[k])
            remove = math.log1p(self.step * deviation)
        add = 0.0
        if self._add_delta(0.0) > delta:
            deltas = self._puts[:centre] / self.ratios[:centre]
            k = int(np.count_nonzero(deltas <= delta)) - 1
            unused_delta = delta * self.ratios[k] - self._puts[k]
            ratio_increase = unused_delta / (self._cdf[k] - delta)
            add = -math.log(self.ratios[k] + ratio_increase)
            if add < math.log(2.0):
                add = -math.log1p(self.step * self.deviations[k] + ratio_increase)
        return max(0.0, remove, add)


@dataclass(frozen=True, slots=True)
class ThreePoint:
    """The distribution of one slot's contribution l - e^eps l' to f - e^eps f'.

    f and f' are the likelihood ratios of all releases with two values of the client's data. The
    contribution is ``up`` or ``down``, each with ``probability``, and otherwise ``middle``. Each
    of the three is given as a pair (l, l') of density ratios to a common base distribution.
    """

    probability: float
    up: tuple[float, float]
    middle: tuple[float, float]
    down: tuple[float, float]


def dominating_three_point(local_epsilon: float) -> ThreePoint:
    """Return a contribution that is above those of all eps0-DP randomizers in convex order.

    No randomizer attains it.
    """
    b = math.exp(local_epsilon)
    return ThreePoint(1.0 / (1.0 + b), (b, 1.0), (0.0, 0.0), (1.0, b))


def attained_three_points(local_epsilon: float) -> tuple[ThreePoint, ...]:
    """Return the contributions of two real randomizers. Each proves a lower bound.

    The randomizers are 3-ary randomized response and its mirror image. The mirror image is left out
    for a large local epsilon, because its values cancel in doubles. docs/theory/pure.md lists three
    more: two vary only l or only l', and add/remove covers them; the third has l = l' and proves
    nothing.
    """
    b = math.exp(local_epsilon)
    response = ThreePoint(1.0 / (b + 2.0), (b, 1.0), (1.0 / b, 1.0 / b), (1.0, b))
    mirror = ThreePoint(b / (2.0 * b + 1.0), (1.0, 1.0 / b), (b, b), (1.0 / b, 1.0))
    return (response, mirror) if local_epsilon < _MAX_MIRRORED_LOCAL_EPSILON else (response,)


class ThreePointSum:
    """Bounds on E(f - e^eps f')_+ if each of m slots contributes a three-point distribution.

    Let c be the number of slots whose contribution is not ``middle``. Given c, the number of slots
    with the contribution ``up`` is Binomial(c, 1/2). If c has many values, they are grouped in
    blocks, and the smallest and the largest c of a block bound the expectation from both sides.
    """

    def __init__(self, campaign: PureCampaign, point: ThreePoint, *, delta: float) -> None:
        self.campaign, self.point = campaign, point
        m = campaign.slots
        binomial = window(
            trials=m,
            probability=min(2.0 * point.probability, 1.0 - 1e-16),
            tail_exponent=campaign.tail_exponent(delta),
        )
        starts = np.arange(0, len(binomial.masses), -(-len(binomial.masses) // _MAX_BLOCKS))
        ends = np.append(starts[1:], len(binomial.masses)) - 1
        self._masses = np.add.reduceat(binomial.masses, starts)
        self._fewest: FloatArray = binomial.counts[starts]
        self._most: FloatArray = binomial.counts[ends]

    def _bound(self, epsilon: float, *, trials: FloatArray, drift_counts: FloatArray) -> float:
        """Return a bound on E(f - e^eps f')_+, with one number c for each block of counts.

        ``trials`` is the c of Binomial(c, 1/2), and ``drift_counts`` the c of the mean of the sum.
        """
        up, middle, down = self._values(epsilon)
        p0, m = self.campaign.participation, self.campaign.slots
        step = p0 * (up - down) / m
        offset = p0 * middle - (1.0 - p0) * math.expm1(epsilon)
        y = offset / step + drift_counts * (up - middle) / (up - down) + (trials - drift_counts) / 2
        return step * float(self._masses @ half_binomial_put(trials, y))

    def _values(self, epsilon: float) -> tuple[float, float, float]:
        e, point = math.exp(epsilon), self.point
        up, middle, down = (one - e * other for one, other in (point.up, point.middle, point.down))
        return up, middle, down

    def _has_upward_drift(self, epsilon: float) -> bool:
        """Return True if the expectation of the sum grows with c."""
        up, middle, down = self._values(epsilon)
        return (up + down) / 2 > middle

    def upper(self, epsilon: float) -> float:
        counts = self._most if self._has_upward_drift(epsilon) else self._fewest
        return self._bound(epsilon, trials=self._most, drift_counts=counts) * (1 + ROUND_OFF)

    def lower(self, epsilon: float) -> float:
        counts = self._fewest if self._has_upward_drift(epsilon) else self._most
        return self._bound(epsilon, trials=self._fewest, drift_counts=counts) * (1 - ROUND_OFF)


class PureReplaceOne:
    r"""Upper and lower bounds on the divergence between two values of one client's data.

    With (A, B) ~ Multinomial(m; r, r),

        delta(eps) <= E( (1-p0)(1-e^eps) + (p0/m) (A (b-e^eps) + B (1 - b e^eps)) )_+ ,

    and delta is 0 for eps >= eps0. ``attained_three_points`` gives the lower bounds.

    Theorem:     docs/theory/pure.md, "Replace-one: upper" and "lower". At p0 = 1 the upper bound is
                 also that of shuffling m adaptive reports.
    Neighbours:  replace-one.
    Rounding:    ``upper`` up and ``lower`` down, by the relative ROUND_OFF. Both are valid near the
                 given ``delta``, because the window of counts is chosen for it.

    >>> bounds = PureReplaceOne(PureCampaign(1.0, 1000, 1.0), delta=1e-6).epsilon(1e-6)
    >>> round(bounds.upper, 4), round(bounds.lower, 4)
    (0.1487, 0.1306)
    """

    def __init__(self, campaign: PureCampaign, *, delta: float) -> None:
        self.campaign = campaign
        self._upper_sum = ThreePointSum(
            campaign, dominating_three_point(campaign.local_epsilon), delta=delta
        )
        self._lower_sums = tuple(
            ThreePointSum(campaign, point, delta=delta)
            for point in attained_three_points(campaign.local_epsilon)
        )
        self._add_remove = PureAddRemove(campaign, delta=delta)

    def upper(self, epsilon: float) -> float:
        if epsilon >= self.campaign.local_epsilon:
            return 0.0
        return min(1.0, self._upper_sum.upper(epsilon))

    def lower(self, epsilon: float) -> float:
        if epsilon >= self.campaign.local_epsilon:
            return 0.0
        lower_bounds: tuple[DeltaBounds, ...] = (self._add_remove, *self._lower_sums)
        return min(max(one.lower(epsilon) for one in lower_bounds), self.upper(epsilon))

    def epsilon(self, delta: float) -> Interval:
        upper, guess = self.upper_epsilon(delta), self._guess(delta)
        lower = crossing(self.lower, delta, guess=1.05 * guess, precision=1e-7).lower
        return Interval(min(lower, upper), upper)

    def upper_epsilon(self, delta: float) -> float:
        guess = 1.2 * self._guess(delta)
        upper = crossing(self.upper, delta, guess=guess, precision=1e-7).upper
        return min(upper, self._known_slot_epsilon)

    @property
    def _known_slot_epsilon(self) -> float:
        """The epsilon that holds if the client's slot is known."""
        gain = self.campaign.participation * math.expm1(self.campaign.local_epsilon)
        return min(math.log1p(gain) * (1 + _EPSILON_ROUND_OFF), self.campaign.local_epsilon)

    def _guess(self, delta: float) -> float:
        """Return the epsilon of add/remove, with which searches start, or a value above 0."""
        return self._add_remove.epsilon(delta).upper or self._known_slot_epsilon / 8


_MAX_WINDOW_BLOCKS = 2000
"""Largest number of blocks into which the values of f' are grouped."""


class UnrelatedWindows:
    r"""Bounds on E(f - e^eps f')_+ for independent f and f', each of one value of the data.

    Each is distributed as the f of ``PureAddRemove``. Values of f' are grouped in blocks, because
    the expectation over f is convex in f'. The mean of each block bounds it from below, and the
    ends of the block, with the same mean, bound it from above.

    Theorem:     docs/theory/windows-and-capacity.md, "Wake times that depend on data". Attained by
                 a client alone whose two windows are disjoint.
    Neighbours:  replace-one; the wake times may depend on data.
    Rounding:    ``upper`` up and ``lower`` down. Both are valid near the given ``delta``.

    >>> bounds = UnrelatedWindows(PureCampaign(1.0, 1000, 1.0), delta=1e-6).epsilon(1e-6)
    >>> round(bounds.lower, 4), round(bounds.upper, 4)
    (0.176, 0.176)
    """

    def __init__(self, campaign: PureCampaign, *, delta: float) -> None:
        self._one = one = PureAddRemove(campaign, delta=delta)
        count = len(one.masses)
        starts = np.arange(0, count, -(-count // _MAX_WINDOW_BLOCKS))
        ends = np.append(starts[1:], count) - 1
        deviations = one.step * one.deviations
        # f' - 1 is precise near f' = 1, and f' far from it, where it may be as small as e^-eps0
        self._is_near_one = (np.abs(deviations[starts]) < 0.5) & (np.abs(deviations[ends]) < 0.5)
        values = np.where(np.repeat(self._is_near_one, ends - starts + 1), deviations, one.ratios)
        masses = np.add.reduceat(one.masses, starts)
        means = np.add.reduceat(one.masses * values, starts) / np.maximum(masses, 1e-300)
        self._low, self._high = values[starts], values[ends]
        self._masses, self._means = masses, np.clip(means, self._low, self._high)
        width = self._high - self._low
        share = np.divide(self._means - self._low, width, out=np.zeros(len(width)), where=width > 0)
        self._low_masses, self._high_masses = masses * (1.0 - share), masses * share

    def _expectation(self, epsilon: float, values: FloatArray, masses: FloatArray) -> float:
        """Return the expectation, if each block has one of these ``values`` and ``masses``."""
        if epsilon >= 2.0 * self._one.local_epsilon:
            return 0.0
        growth = math.exp(epsilon)
        levels = growth * values + np.where(self._is_near_one, math.expm1(epsilon), -1.0)
        return float(masses @ self._one.calls(levels))

    def upper(self, epsilon: float) -> float:
        delta = self._expectation(epsilon, self._low, self._low_masses)
        delta += self._expectation(epsilon, self._high, self._high_masses)
        return min(1.0, delta * (1.0 + 2.0 * ROUND_OFF))

    def lower(self, epsilon: float) -> float:
        return self._expectation(epsilon, self._means, self._masses) * (1.0 - 2.0 * ROUND_OFF)

    def epsilon(self, delta: float) -> Interval:
        upper = self.upper_epsilon(delta)
        if not 0.0 < upper < math.inf:
            return Interval(0.0, upper)
        lower = crossing(self.lower, delta, guess=upper, precision=1e-7, stride=1e-4).lower
        return Interval(min(lower, upper), upper)

    def upper_epsilon(self, delta: float) -> float:
        guess = math.sqrt(2.0) * self._one.epsilon(delta).upper or 1e-3
        return crossing(self.upper, delta, guess=guess, precision=1e-7).upper


@dataclass(frozen=True, slots=True)
class RemovalThenAddition:
    """The triangle bound on the divergence between two values of one client's data.

    ``pair`` is the dominating pair of all releases with and without the client, rounded up.

    Theorem:     docs/theory/windows-and-capacity.md, "Several campaigns".
    Neighbours:  replace-one; the wake times may depend on data.
    Rounding:    ``upper`` up. No lower bound is known, so ``lower`` is 0.
    """

    pair: DominatingPair

    def upper(self, epsilon: float) -> float:
        return triangle_bound(self.pair)(epsilon)

    def lower(self, epsilon: float) -> float:
        return 0.0

    def epsilon(self, delta: float) -> Interval:
        return Interval(0.0, self.upper_epsilon(delta))

    def upper_epsilon(self, delta: float) -> float:
        return crossing(self.upper, delta, guess=1.0, precision=1e-9).upper
