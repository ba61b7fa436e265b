"""Every search of the accountant: the place where a falling function, or a condition, changes side.

The hockey-stick divergence of what is released with a client against without it decides both
questions that people ask: the delta of an epsilon, and the epsilon of a delta. It is never known
exactly. ``DeltaBounds`` brackets it, and every search returns the side that claims less.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from checkins.accounting.design import MOST_EPSILON
from checkins.errors import ComputationFailed

_MOST_TURNS = 200
_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, slots=True)
class Interval:
    """The ends between which a number is proved to lie."""

    lower: float
    upper: float


class DeltaBounds(Protocol):
    """Bounds on the smallest delta that is true at an epsilon >= 0; both fall with epsilon."""

    def upper(self, epsilon: float) -> float: ...
    def lower(self, epsilon: float) -> float: ...


class Divergence(DeltaBounds, Protocol):
    """Bounds on delta that also find the epsilon of a delta."""

    def epsilon(self, delta: float) -> Interval:
        """Return an interval: ``upper`` is proved true, ``lower`` proved too small or equal."""
        ...

    def upper_epsilon(self, delta: float) -> float:
        """Return the upper end of ``epsilon`` without the work for the lower end."""
        ...


def crossing(
    falls: Callable[[float], float],
    target: float,
    *,
    guess: float,
    precision: float,
    stride: float = 0.1,
    surely_above_at_zero: bool = False,
) -> Interval:
    """Bracket the smallest argument at which a falling function is at most ``target``.

    Returns ``lower`` with falls(lower) > target (or 0) and ``upper`` with falls(upper) <= target,
    no further apart than ``precision`` relative to ``upper``. ``upper`` is infinite if no argument
    up to ``MOST_EPSILON`` has it. Secant steps on the logarithm stay inside a shrinking bracket;
    the first step away from the guess is ``stride`` of it.

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
        if high > 1.0:  # small steps: far out, a coarse grid may bound nothing any more
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
    for turn in range(_MOST_TURNS):
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


def first_true(
    holds: Callable[[_Number], bool],
    *,
    false: _Number,
    true: _Number,
    precision: float = 0.0,
    width: float = 0.0,
) -> _Number:
    """Bisect a condition that changes once between two numbers; it holds at the number returned.

    Stops when no number lies between the two sides, or they are within ``width`` of each other, or
    within ``precision`` relative to the side that holds. The condition is not evaluated at
    ``false`` and ``true``.

    >>> first_true(lambda x: x * x >= 2.0, false=0.0, true=2.0)
    1.4142135623730951
    >>> first_true(lambda n: n * n >= 50, false=0, true=50)
    8
    """
    while abs(true - false) > max(width, precision * abs(true)):
        middle = (false + true) // 2 if isinstance(true, int) else (false + true) / 2
        if middle in (false, true):
            break
        if holds(middle):
            true = middle
        else:
            false = middle
    return true


def root_above(falls: Callable[[float], float], *, low: float, high: float) -> float:
    """Return a root of a falling function by Brent's method, rounded up by 1e-9 of itself.

    Returns ``low`` if the function is at most 0 there already.
    """
    # Imported here: it takes a third of a second, and few certificates need it.
    from scipy.optimize import brentq

    if falls(low) <= 0.0:
        return low
    return float(brentq(falls, low, high, xtol=1e-12)) * (1 + 1e-9)
