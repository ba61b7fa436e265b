"""delta as a function of epsilon, known from both sides, and its inverse.

The hockey-stick divergence of what is released with a client against without it decides both
questions people ask: the delta of an epsilon, and the epsilon of a delta. We never know it exactly;
a ``Divergence`` brackets it, and an epsilon read off it is rounded away from optimism.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from checkins.errors import ComputationFailed

MOST_EPSILON = 500.0
"""No search goes beyond this: a guarantee with epsilon = 500 promises nothing."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Where a number is known to lie."""

    lower: float
    upper: float


class Divergence(Protocol):
    """The smallest delta that is true at an epsilon >= 0, bracketed; falls as epsilon grows."""

    def upper(self, epsilon: float) -> float: ...
    def lower(self, epsilon: float) -> float: ...


class Priced(Divergence, Protocol):
    """A divergence that knows its own way to the epsilon of a delta."""

    def epsilon(self, delta: float) -> Interval:
        """``upper`` is proven true, ``lower`` proven too small or equal."""
        ...

    def upper_epsilon(self, delta: float) -> float:
        """The upper end of ``epsilon`` without the work for the lower one."""
        ...


@dataclass(frozen=True, slots=True)
class Otherwise:
    """``usual``, but with probability ``chance`` (an upper bound) only ``rare`` holds."""

    usual: Priced
    rare: Priced
    chance: float

    def upper(self, epsilon: float) -> float:
        return self.usual.upper(epsilon) + self.chance * self.rare.upper(epsilon)

    def lower(self, epsilon: float) -> float:
        return self.usual.lower(epsilon)

    def epsilon(self, delta: float) -> Interval:
        usual = self.usual.epsilon(delta)
        return Interval(usual.lower, self._upper_end(delta, usual.upper))

    def upper_epsilon(self, delta: float) -> float:
        return self._upper_end(delta, self.usual.upper_epsilon(delta))

    def _upper_end(self, delta: float, usual: float) -> float:
        if self.chance >= 1.0:
            return self.rare.upper_epsilon(delta)
        return crossing(self.upper, delta, guess=1.01 * usual, precision=1e-4).upper


def crossing(
    falls: Callable[[float], float],
    target: float,
    *,
    guess: float,
    precision: float,
    stride: float = 0.1,
    surely_above_at_zero: bool = False,
) -> Interval:
    """Bracket the place where a falling function first is at most ``target``.

    Returns ``lower`` with falls(lower) > target (or 0) and ``upper`` with falls(upper) <= target,
    no further apart than ``precision`` relative to ``upper``; infinity when there is none.
    Secant steps on the logarithm, kept inside a shrinking bracket; the first step away from the
    guess is ``stride`` of it.

    >>> bracket = crossing(lambda x: math.exp(-x), 0.5, guess=1.0, precision=1e-9)
    >>> bracket.lower < math.log(2) <= bracket.upper
    True
    """
    if not surely_above_at_zero and falls(0.0) <= target:
        return Interval(0.0, 0.0)
    low, high = 0.0, min(max(guess, 1e-12), MOST_EPSILON)
    at_low, at_high = math.inf, falls(high)
    factor, shrink = 1.0 + stride, 1.0 - stride
    while at_high > target:
        if high >= MOST_EPSILON:
            return Interval(low, math.inf)
        low, at_low = high, at_high
        high, factor = min(high * factor, MOST_EPSILON), factor * factor
        if high > 1.0:  # look everywhere: far out, a coarse grid may bound nothing any more
            factor = min(factor, 1.5)
        at_high = falls(high)
    while low == 0.0 and high > 1e-300:
        trial = high * shrink
        if trial < 1e-300:
            return Interval(0.0, high)
        at_trial = falls(trial)
        if at_trial > target:
            low, at_low = trial, at_trial
        else:
            high, at_high, shrink = trial, at_trial, shrink * shrink
    for turn in range(200):
        if high - low <= precision * high:
            return Interval(low, high)
        middle = (low + high) / 2
        if turn % 3 < 2 and at_high > 0.0 and at_low < math.inf:
            rise, total = math.log(at_low / target), math.log(at_low / at_high)
            nudge = precision * high / 4  # step just past the root, so that both ends close in
            share = low + (high - low) * rise / total
            middle = share + nudge if turn % 2 else share - nudge
            middle = min(max(middle, low + (high - low) / 100), high - (high - low) / 100)
        at_middle = falls(middle)
        if at_middle > target:
            low, at_low = middle, at_middle
        else:
            high, at_high = middle, at_middle
    raise ComputationFailed(f"no epsilon found for delta = {target!r}")
