"""Searches of the accountant: where a decreasing function, or a condition, crosses a threshold.

The delta at an epsilon is the hockey-stick divergence between all releases with a client and all
releases without it. The epsilon at a delta is found by a search. The divergence is known only up to
the bounds of ``DeltaBounds``. Every search returns the side on which the guarantee is weaker, so
that it is true.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from checkins.accounting.design import MOST_EPSILON
from checkins.errors import CheckinsError, ComputationFailed

_MOST_TURNS = 200
_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, slots=True)
class Interval:
    """A lower and an upper bound on a number."""

    lower: float
    upper: float


class DeltaBounds(Protocol):
    """Bounds on the smallest true delta at an epsilon >= 0. Both decrease with epsilon."""

    def upper(self, epsilon: float) -> float: ...
    def lower(self, epsilon: float) -> float: ...


class Divergence(DeltaBounds, Protocol):
    """Bounds on delta that also compute the epsilon at a given delta."""

    def epsilon(self, delta: float) -> Interval:
        """Return bounds on epsilon: ``upper`` is proved, and no epsilon below ``lower`` holds."""
        ...

    def upper_epsilon(self, delta: float) -> float:
        """Return the upper bound of ``epsilon`` without computing the lower bound."""
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
    """Bracket the smallest argument at which a decreasing function is at most ``target``.

    Return ``lower`` with falls(lower) > target, or 0, and ``upper`` with falls(upper) <= target.
    Their distance is at most ``precision`` times ``upper``. ``upper`` is infinite if falls(x) >
    target for all x up to ``MOST_EPSILON``. The search starts at ``guess``, and its first step is
    ``stride`` times ``guess``. It uses secant steps on the logarithm inside a shrinking bracket.

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
        if high > 1.0:  # take small steps, because far out a coarse grid may give no bound
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
            nudge = precision * high / 4  # step just past the root, so that both sides converge
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
    """Bisect a condition that is False at ``false`` and True at ``true``, and changes once between.

    Return a number at which the condition holds. Stop if no number lies between the two sides, or
    if their distance is at most ``width``, or at most ``precision`` times the side that holds. The
    condition is not evaluated at ``false`` and ``true`` themselves.

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
    """Return a root of a decreasing function by Brent's method, increased by a relative 1e-9.

    Return ``low`` if the function is at most 0 at ``low``.
    """
    # Imported here, because the import takes a third of a second and few certificates need it.
    from scipy.optimize import brentq

    if falls(low) <= 0.0:
        return low
    return float(brentq(falls, low, high, xtol=1e-12)) * (1 + 1e-9)


_MOST_STEPS = 40
_LEAST_ODDS = 5e-324
_FAR = 60.0
"""Difference of log odds above which a point does not help to locate the root."""


def just_enough(
    falls: Callable[[float], float],
    target: float,
    *,
    start: float,
    least: float,
    most: float,
    tolerance: float,
    slope: float,
) -> float | None:
    """Return an x from ``least`` to ``most`` at which a decreasing probability meets ``target``.

    The result is at most about 1 + ``tolerance`` times the smallest x that meets the target. Return
    None if falls(most) is above the target, or if no x is found. A ``CheckinsError`` counts as
    above the target. ``slope`` is about the rate at which the log odds of the probability decrease
    with log x. Because a grid rounds differently at every x, the tolerance grows with every
    evaluation.

    >>> search = dict(start=1.0, least=1e-3, most=1e6, tolerance=1e-3, slope=1.0)
    >>> round(just_enough(lambda x: 1.0 / (1.0 + x), 0.01, **search), 1)
    99.1
    """
    allowed, floor, ceiling = _log_odds(target), math.log(least), math.log(most)

    def excess(x: float) -> float:
        try:
            found = falls(math.exp(x))
        except CheckinsError:
            return math.inf
        beyond = _log_odds(max(found, _LEAST_ODDS)) - allowed
        return min(beyond, 0.0) if found <= target else max(beyond, 1e-15)

    low, high, at_low, at_high = -math.inf, math.inf, math.inf, -math.inf
    stride, same_side = 0.0, 0
    previous: tuple[float, float] | None = None
    x = min(max(math.log(start), floor), ceiling)
    for evaluations in range(1, _MOST_STEPS + 1):
        y = excess(x)
        if previous is not None:
            before, at_before = previous
            same_side = same_side + 1 if (y > 0.0) is (at_before > 0.0) else 0
            if abs(x - before) > 2.0 * tolerance and max(abs(y), abs(at_before)) < _FAR:
                slope = max((at_before - y) / (x - before), slope / 4.0)
        previous = x, y
        if y > 0.0:
            low, at_low = x, y
        else:
            high, at_high = x, y
        tolerated = -tolerance * slope * max(1.0, evaluations - 2.0)
        if tolerated <= y <= 0.0 or (y <= 0.0 and x <= floor):
            return math.exp(x)
        if y > 0.0 and x >= ceiling:
            return None
        if high - low < tolerance:
            return math.exp(high)
        aim, width = tolerated / 2.0, high - low
        if math.isinf(width):  # one side is unknown: follow the slope, and double the step
            distance = at_low - aim if math.isinf(high) else aim - at_high
            stride = min(max(1.02 * distance / slope, 2.0 * stride), max(0.6, 3.0 * stride))
            x = low + stride if math.isinf(high) else high - stride
        elif same_side >= 2 or math.isinf(at_low) or at_high <= -_FAR:
            same_side = 0
            x = low + width / 2.0
        else:
            x = low + width * min(max((at_low - aim) / (at_low - at_high), 0.02), 0.98)
        x = min(max(x, floor), ceiling)
    return math.exp(high) if math.isfinite(high) else None


def _log_odds(probability: float) -> float:
    return math.log(probability) - math.log1p(-probability) if probability < 1.0 else math.inf
