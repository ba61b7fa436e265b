"""Searches of the accountant for the point at which a function or a condition changes.

The delta at an epsilon is the hockey-stick divergence between all releases with a client and all
releases without it. The epsilon at a delta is found by a search. Only lower and upper bounds on the
divergence are known (``DeltaBounds``). Every search
returns the safe end of its last bracket: the larger epsilon for an upper bound, and the smaller
epsilon for a lower bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from checkins.accounting.design import MOST_EPSILON
from checkins.errors import CheckinsError, ComputationFailed

_MOST_ITERATIONS = 200
"""Largest number of evaluations to shrink a bracket in ``crossing``."""
_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, slots=True)
class Interval:
    """A lower and an upper bound on a number."""

    lower: float
    upper: float


class DeltaBounds(Protocol):
    """Bounds on the smallest true delta at an epsilon >= 0, which decrease with epsilon."""

    def upper(self, epsilon: float) -> float: ...
    def lower(self, epsilon: float) -> float: ...


class Divergence(DeltaBounds, Protocol):
    """Bounds on delta at an epsilon, and bounds on epsilon at a delta."""

    def epsilon(self, delta: float) -> Interval:
        """Return bounds on epsilon: ``upper`` is proved, and no epsilon below ``lower`` holds."""
        ...

    def upper_epsilon(self, delta: float) -> float:
        """Return the upper bound of ``epsilon`` without computing the lower bound."""
        ...


def crossing(
    decreasing: Callable[[float], float],
    target: float,
    *,
    guess: float,
    precision: float,
    stride: float = 0.1,
    surely_above_at_zero: bool = False,
) -> Interval:
    """Bracket the smallest argument at which a decreasing function is at most ``target``.

    ``decreasing`` is above the target at ``lower``, or ``lower`` is 0. It is at most the target at
    ``upper``. The distance of the ends is at most ``precision`` times ``upper``. ``upper`` is
    infinite if the function is above the target at all numbers up to ``MOST_EPSILON``. The search
    starts at ``guess``, and its first step is ``stride`` times ``guess``. It uses secant steps on
    the logarithm inside a shrinking bracket. If ``surely_above_at_zero``, the function is not
    evaluated at 0.

    >>> bracket = crossing(lambda x: math.exp(-x), 0.5, guess=1.0, precision=1e-9)
    >>> bracket.lower < math.log(2) <= bracket.upper
    True
    """
    if not surely_above_at_zero and decreasing(0.0) <= target:
        return Interval(0.0, 0.0)
    low, high = 0.0, min(max(guess, 1e-12), MOST_EPSILON)
    at_low, at_high = math.inf, decreasing(high)
    factor, shrink = 1.0 + stride, 1.0 - stride
    while at_high > target:
        if high >= MOST_EPSILON:
            return Interval(low, math.inf)
        low, at_low = high, at_high
        high, factor = min(high * factor, MOST_EPSILON), factor * factor
        if high > 1.0:  # take small steps: a coarse grid may give no bound at large epsilons
            factor = min(factor, 1.5)
        at_high = decreasing(high)
    while low == 0.0 and high > 1e-300:
        trial = high * shrink
        if trial < 1e-300:
            return Interval(0.0, high)
        at_trial = decreasing(trial)
        if at_trial > target:
            low, at_low = trial, at_trial
        else:
            high, at_high, shrink = trial, at_trial, shrink * shrink
    for iteration in range(_MOST_ITERATIONS):
        if high - low <= precision * high:
            return Interval(low, high)
        middle = (low + high) / 2
        if iteration % 3 < 2 and at_high > 0.0 and at_low < math.inf:
            log_above, log_fall = math.log(at_low / target), math.log(at_low / at_high)
            nudge = (
                precision * high / 4
            )  # evaluate just beyond the estimated root, so that both ends converge
            secant = low + (high - low) * log_above / log_fall
            middle = secant + nudge if iteration % 2 else secant - nudge
            middle = min(max(middle, low + (high - low) / 100), high - (high - low) / 100)
        at_middle = decreasing(middle)
        if at_middle > target:
            low, at_low = middle, at_middle
        else:
            high, at_high = middle, at_middle
    raise ComputationFailed(f"no epsilon found for delta = {target!r}")


@dataclass(frozen=True, slots=True)
class TightestBounds:
    """The smallest of several upper bounds on delta, and the largest of several lower bounds.

    ``precision`` is the relative precision of the search for the lower bound on epsilon.
    """

    upper_bounds: tuple[Divergence, ...]
    lower_bounds: tuple[DeltaBounds, ...]
    precision: float = 1e-7

    def upper(self, epsilon: float) -> float:
        return min(bound.upper(epsilon) for bound in self.upper_bounds)

    def lower(self, epsilon: float) -> float:
        return max((bound.lower(epsilon) for bound in self.lower_bounds), default=0.0)

    def epsilon(self, delta: float) -> Interval:
        upper = self.upper_epsilon(delta)
        lower = self.lower_epsilon(delta, guess=0.8 * upper)
        if lower > upper * (1.0 + 1e-6):
            raise ComputationFailed(f"epsilon's lower bound {lower!r} exceeds its upper {upper!r}")
        return Interval(min(lower, upper), upper)

    def lower_epsilon(self, delta: float, *, guess: float) -> float:
        """Return only the lower bound on epsilon, by a search that starts at ``guess``."""
        return crossing(self.lower, delta, guess=guess, precision=self.precision).lower

    def upper_epsilon(self, delta: float) -> float:
        first_bound, *other_bounds = self.upper_bounds
        smallest_epsilon = first_bound.upper_epsilon(delta)
        for other in other_bounds:
            if other.upper(smallest_epsilon) <= delta:
                smallest_epsilon = min(smallest_epsilon, other.upper_epsilon(delta))
        return smallest_epsilon


def first_true(
    holds: Callable[[_Number], bool],
    *,
    false: _Number,
    true: _Number,
    precision: float = 0.0,
    width: float = 0.0,
) -> _Number:
    """Bisect a condition that is False at ``false`` and True at ``true``, and changes once between.

    Return a number at which the condition holds. Stop if no number lies between the two ends, or if
    their distance is at most ``width``, or at most ``precision`` times the end that holds. The
    condition is not evaluated at the given ends ``false`` and ``true``.

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


def root_above(decreasing: Callable[[float], float], *, low: float, high: float) -> float:
    """Return a root of a decreasing function by Brent's method, increased by a relative 1e-9.

    Return ``low`` if the function is at most 0 at ``low``.
    """
    # Imported here, because the import takes a third of a second and few certificates need it.
    from scipy.optimize import brentq

    if decreasing(low) <= 0.0:
        return low
    return float(brentq(decreasing, low, high, xtol=1e-12)) * (1 + 1e-9)


_MOST_EVALUATIONS = 40
_LEAST_PROBABILITY = 5e-324
"""Smallest positive float, in place of a probability of 0, whose logarithm is infinite."""
_FAR_LOG_ODDS = 60.0
"""Smallest difference of log odds at which a point does not help to locate the root."""


def smallest_meeting(
    decreasing: Callable[[float], float],
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
    None if decreasing(most) is above the target, or if no x is found. A ``CheckinsError`` counts as
    above the target. ``slope`` is a guess of the rate at which the log odds of the probability
    decrease with log x. The tolerance grows with every evaluation, because the function is not
    smooth: its grid rounds differently at every x.

    >>> search = dict(start=1.0, least=1e-3, most=1e6, tolerance=1e-3, slope=1.0)
    >>> round(smallest_meeting(lambda x: 1.0 / (1.0 + x), 0.01, **search), 1)
    99.1
    """
    target_log_odds, floor, ceiling = _log_odds(target), math.log(least), math.log(most)

    def excess(log_x: float) -> float:
        try:
            probability = decreasing(math.exp(log_x))
        except CheckinsError:
            return math.inf
        difference = _log_odds(max(probability, _LEAST_PROBABILITY)) - target_log_odds
        return min(difference, 0.0) if probability <= target else max(difference, 1e-15)

    low, high, at_low, at_high = -math.inf, math.inf, math.inf, -math.inf
    stride, same_side = 0.0, 0
    previous: tuple[float, float] | None = None
    log_x = min(max(math.log(start), floor), ceiling)
    for evaluations in range(1, _MOST_EVALUATIONS + 1):
        at_x = excess(log_x)
        if previous is not None:
            previous_x, at_previous = previous
            same_side = same_side + 1 if (at_x > 0.0) is (at_previous > 0.0) else 0
            if (
                abs(log_x - previous_x) > 2.0 * tolerance
                and max(abs(at_x), abs(at_previous)) < _FAR_LOG_ODDS
            ):
                slope = max((at_previous - at_x) / (log_x - previous_x), slope / 4.0)
        previous = log_x, at_x
        if at_x > 0.0:
            low, at_low = log_x, at_x
        else:
            high, at_high = log_x, at_x
        tolerated = -tolerance * slope * max(1.0, evaluations - 2.0)
        if tolerated <= at_x <= 0.0 or (at_x <= 0.0 and log_x <= floor):
            return math.exp(log_x)
        if at_x > 0.0 and log_x >= ceiling:
            return None
        if high - low < tolerance:
            return math.exp(high)
        aim, width = tolerated / 2.0, high - low
        if math.isinf(width):  # one side is unknown: follow the slope, and double the step
            distance = at_low - aim if math.isinf(high) else aim - at_high
            stride = min(max(1.02 * distance / slope, 2.0 * stride), max(0.6, 3.0 * stride))
            log_x = low + stride if math.isinf(high) else high - stride
        elif same_side >= 2 or math.isinf(at_low) or at_high <= -_FAR_LOG_ODDS:
            same_side = 0
            log_x = low + width / 2.0
        else:
            log_x = low + width * min(max((at_low - aim) / (at_low - at_high), 0.02), 0.98)
        log_x = min(max(log_x, floor), ceiling)
    return math.exp(high) if math.isfinite(high) else None


def _log_odds(probability: float) -> float:
    return math.log(probability) - math.log1p(-probability) if probability < 1.0 else math.inf
