"""The exact accountant for random check-ins with an eps0-DP randomizer, by binomial sums.

Notation: m is the number of slots, p0 the participation, b = e^eps0 and r = 1/(1+b).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from checkins.accounting.design import Adjacency
from checkins.accounting.exact.binomial import ROUND_OFF, fair_shortfall, window
from checkins.accounting.exact.dominating_pair import NO_LOSS, DominatingPair, from_ratios
from checkins.accounting.exact.grid_distribution import Rounding
from checkins.accounting.exact.slot_ratio import FloatArray
from checkins.accounting.solve import DeltaBounds, Divergence, Interval, crossing

_MARGIN = 45.0  # at most e^-45 times delta lies outside a window, far below ROUND_OFF
_BLOCKS = 600
_MIRROR_CANCELS = 15.0
_ULPS = 4e-15  # if epsilon is close to eps0, delta depends on the last digits of epsilon


@dataclass(frozen=True, slots=True)
class PureCampaign:
    """An eps0-DP randomizer, m slots and participation p0."""

    local_epsilon: float
    slots: int
    participation: float

    def divergence(self, adjacency: Adjacency, *, delta: float, cells: int | None) -> Divergence:
        """Return the exact divergence, valid near ``delta``.

        ``cells`` is ignored, because binomial sums need no grid.
        """
        if adjacency is Adjacency.ADD_REMOVE:
            return PureAddRemove(self, delta=delta)
        return PureReplaceOne(self, delta=delta)

    def pair(self, rounding: Rounding) -> DominatingPair:
        """Return the pair of all releases with and without the client, rounded as asked."""
        exact = PureAddRemove(self, delta=rounding.tolerance).pair()
        return NO_LOSS.compose(exact, rounding)

    def log_outside(self, delta: float) -> float:
        """Return the ``log_outside`` of a window of counts that is accurate near ``delta``."""
        return math.log(1.0 / delta) + 2 * self.local_epsilon + _MARGIN


@dataclass(frozen=True, slots=True)
class TwoPoint:
    """A slot ratio with two values, ``high`` and 1/``inverse_low``.

    ``probability`` is that of ``high``. ``gap`` is the difference of the values.
    """

    high: float
    inverse_low: float
    gap: float
    probability: float


def extreme(local_epsilon: float) -> TwoPoint:
    """Return the slot ratio that is above those of all eps0-DP randomizers in convex order.

    Randomized response with two values attains it if a dummy is the report of one of them.
    """
    b = math.exp(local_epsilon)
    return TwoPoint(b, b, 2.0 * math.sinh(local_epsilon), 1.0 / (1.0 + b))


class PureAddRemove:
    r"""Exact divergences between the releases with the client and without the client.

    The likelihood ratio is f = 1 - p0 + p0 (K b + (m-K)/b)/m with K ~ Binomial(m, r), so that

        delta_remove(eps) = E(f - e^eps)_+,     delta_add(eps) = E(1 - e^eps f)_+ .

    If ``ratio`` is given, its two values take the place of b and 1/b, and its probability that of
    r.

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
        ratio = extreme(campaign.local_epsilon) if ratio is None else ratio
        probability = ratio.probability
        binomial = window(
            trials=m, probability=probability, log_outside=campaign.log_outside(delta)
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

    def _remove(self, epsilon: float) -> float:
        at = math.expm1(epsilon) / self.step
        k = int(np.searchsorted(self.deviations, at))
        if k == len(self.deviations):
            return 0.0
        return float(self._calls[k] + self.step * (self.deviations[k] - at) * self._survival[k])

    def _add(self, epsilon: float) -> float:
        near = epsilon < math.log(2.0)  # for ratios near 1, the difference from 1 is more accurate
        at = math.expm1(-epsilon) if near else math.exp(-epsilon)
        values = self.step * self.deviations if near else self.ratios
        k = int(np.searchsorted(values, at, side="right")) - 1
        if k < 0:
            return 0.0
        return math.exp(epsilon) * float(self._puts[k] + (at - values[k]) * self._cdf[k])

    def _delta(self, epsilon: float) -> float:
        return max(self._remove(epsilon), self._add(epsilon))

    def upper(self, epsilon: float) -> float:
        return min(1.0, self._delta(epsilon) * (1 + ROUND_OFF))

    def lower(self, epsilon: float) -> float:
        return self._delta(epsilon) * (1 - ROUND_OFF)

    def epsilon(self, delta: float) -> Interval:
        """Return bounds in closed form, because delta is linear in e^eps between two counts."""
        lower = self._epsilon(delta * (1 + ROUND_OFF)) * (1 - _ULPS)
        upper = self._epsilon(delta * (1 - ROUND_OFF)) * (1 + _ULPS)
        return Interval(lower, min(upper, self.local_epsilon))

    def upper_epsilon(self, delta: float) -> float:
        return self.epsilon(delta).upper

    def _epsilon(self, delta: float) -> float:
        centre = int(np.searchsorted(self.deviations, 0.0))
        calls, left = self._calls[centre:], self._survival[centre:]
        remove = 0.0
        if self._remove(0.0) > delta:
            k = int(np.count_nonzero(calls > delta))
            excess = self.deviations[centre + k] - (delta - calls[k]) / (self.step * left[k])
            remove = math.log1p(self.step * excess)
        add = 0.0
        if self._add(0.0) > delta:
            deltas = self._puts[:centre] / self.ratios[:centre]
            k = int(np.count_nonzero(deltas <= delta)) - 1
            room = delta * self.ratios[k] - self._puts[k]
            more = room / (self._cdf[k] - delta)
            add = -math.log(self.ratios[k] + more)
            if add < math.log(2.0):
                add = -math.log1p(self.step * self.deviations[k] + more)
        return max(0.0, remove, add)


@dataclass(frozen=True, slots=True)
class ThreePoint:
    """The distribution of one slot's contribution l - e^eps l' to f - e^eps f'.

    The contribution is ``up`` or ``down``, each with ``probability``, and otherwise ``middle``.
    Each is given as a pair (l, l') of density ratios against a common base distribution.
    """

    probability: float
    up: tuple[float, float]
    middle: tuple[float, float]
    down: tuple[float, float]


def dominating(local_epsilon: float) -> ThreePoint:
    """Return a distribution that is above those of all eps0-DP randomizers in convex order.

    No randomizer attains it.
    """
    b = math.exp(local_epsilon)
    return ThreePoint(1.0 / (1.0 + b), (b, 1.0), (0.0, 0.0), (1.0, b))


def attained(local_epsilon: float) -> tuple[ThreePoint, ...]:
    """Return extreme distributions of real randomizers. Each proves a lower bound.

    They are 3-ary randomized response and its mirror image. The mirror image is left out for a
    large local epsilon, because its values cancel in doubles. docs/theory/pure.md lists five
    distributions. Two of the others vary only l or only l', and add/remove covers them. In the last
    one l = l', which proves nothing.
    """
    b = math.exp(local_epsilon)
    response = ThreePoint(1.0 / (b + 2.0), (b, 1.0), (1.0 / b, 1.0 / b), (1.0, b))
    mirror = ThreePoint(b / (2.0 * b + 1.0), (1.0, 1.0 / b), (b, b), (1.0 / b, 1.0))
    return (response, mirror) if local_epsilon < _MIRROR_CANCELS else (response,)


class ThreePointSum:
    """Bounds on E(f - e^eps f')_+ if each of m slots contributes a three-point distribution.

    Let c be the number of slots that are not ``middle``. The number of slots that are ``up`` is
    then Binomial(c, 1/2). If c has many values, they are grouped in blocks, and the expectation
    over a block is bounded from both sides by the smallest and the largest c of the block.
    """

    def __init__(self, campaign: PureCampaign, point: ThreePoint, *, delta: float) -> None:
        self.campaign, self.point = campaign, point
        m = campaign.slots
        binomial = window(
            trials=m,
            probability=min(2.0 * point.probability, 1.0 - 1e-16),
            log_outside=campaign.log_outside(delta),
        )
        starts = np.arange(0, len(binomial.masses), -(-len(binomial.masses) // _BLOCKS))
        ends = np.append(starts[1:], len(binomial.masses)) - 1
        self._masses = np.add.reduceat(binomial.masses, starts)
        self._fewest: FloatArray = binomial.counts[starts]
        self._most: FloatArray = binomial.counts[ends]

    def _bound(self, epsilon: float, *, trials: FloatArray, drift_at: FloatArray) -> float:
        """Return E(f - e^eps f')_+ with these numbers of trials B(c, 1/2) for each block."""
        up, middle, down = self._values(epsilon)
        p0, m = self.campaign.participation, self.campaign.slots
        swing = p0 * (up - down) / m
        start = p0 * middle - (1.0 - p0) * math.expm1(epsilon)
        y = start / swing + drift_at * (up - middle) / (up - down) + (trials - drift_at) / 2
        return swing * float(self._masses @ fair_shortfall(trials, y))

    def _values(self, epsilon: float) -> tuple[float, float, float]:
        e, point = math.exp(epsilon), self.point
        up, middle, down = (one - e * other for one, other in (point.up, point.middle, point.down))
        return up, middle, down

    def _drifts_up(self, epsilon: float) -> bool:
        up, middle, down = self._values(epsilon)
        return (up + down) / 2 > middle

    def upper(self, epsilon: float) -> float:
        at = self._most if self._drifts_up(epsilon) else self._fewest
        return self._bound(epsilon, trials=self._most, drift_at=at) * (1 + ROUND_OFF)

    def lower(self, epsilon: float) -> float:
        at = self._fewest if self._drifts_up(epsilon) else self._most
        return self._bound(epsilon, trials=self._fewest, drift_at=at) * (1 - ROUND_OFF)


class PureReplaceOne:
    r"""Upper and lower bounds on the divergence between two values of one client's data.

    With (A, B) ~ Multinomial(m; r, r),

        delta(eps) <= E( (1-p0)(1-e^eps) + (p0/m) (A (b-e^eps) + B (1 - b e^eps)) )_+ ,

    and delta is 0 for eps >= eps0. The distributions of ``attained`` give the lower bounds.

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
        self._above = ThreePointSum(campaign, dominating(campaign.local_epsilon), delta=delta)
        self._below = tuple(
            ThreePointSum(campaign, point, delta=delta)
            for point in attained(campaign.local_epsilon)
        )
        self._one_sided = PureAddRemove(campaign, delta=delta)

    def upper(self, epsilon: float) -> float:
        if epsilon >= self.campaign.local_epsilon:
            return 0.0
        return min(1.0, self._above.upper(epsilon))

    def lower(self, epsilon: float) -> float:
        if epsilon >= self.campaign.local_epsilon:
            return 0.0
        witnesses: tuple[DeltaBounds, ...] = (self._one_sided, *self._below)
        return min(max(one.lower(epsilon) for one in witnesses), self.upper(epsilon))

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
        return min(math.log1p(gain) * (1 + _ULPS), self.campaign.local_epsilon)

    def _guess(self, delta: float) -> float:
        return self._one_sided.epsilon(delta).upper or self._known_slot_epsilon / 8
