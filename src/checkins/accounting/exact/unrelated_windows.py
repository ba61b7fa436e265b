"""Replace-one in the sliding protocol, if the time at which a client wakes depends on its data.

Then the windows of the two values of a client's data are unrelated: they may be equal, overlap or
be disjoint. Let f and f' be the likelihood ratios of all releases with either value to those
without the client. ``UnrelatedWindows`` covers pure reports with one report per slot.
``RemovalThenAddition`` covers every design, by the triangle bound: a replacement is a removal
followed by an addition.

Theorem:     docs/theory/windows-and-capacity.md, "Wake times that depend on data".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from checkins.accounting.exact.binomial import ROUND_OFF
from checkins.accounting.exact.dominating_pair import DominatingPair, triangle_bound
from checkins.accounting.exact.pure import PureAddRemove, PureCampaign
from checkins.accounting.exact.slot_ratio import FloatArray
from checkins.accounting.solve import Interval, crossing

_MAX_BLOCKS = 2000
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
        starts = np.arange(0, count, -(-count // _MAX_BLOCKS))
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
