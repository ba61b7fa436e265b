"""The noise that spends a budget: found by a few proven evaluations around a guess."""

from __future__ import annotations

import math
from collections.abc import Callable

from checkins.accounting import Protocol
from checkins.accounting.gaussian import LEAST_NOISE, MOST_NOISE
from checkins.errors import CheckinsError
from checkins.planning.guess import LEAST_LOCAL, MOST_LOCAL, guessed_level
from checkins.planning.shape import Shape
from checkins.planning.target import Method, Target

_MOST_TURNS = 30
_STEEP = 20.0
"""About how fast log delta falls with the log of the noise, to begin with."""
_LEAST = 1e-300


def proven_level(
    shape: Shape, target: Target, cells: int, *, guess: float | None = None, slack: float = 0.08
) -> float | None:
    """The noise multiplier or local epsilon that keeps the target and spends most of it.

    None where none does. ``slack`` is how far below the target's delta the log of what is spent may
    end.

    Rounding:    to the side that spends less.
    """
    start = guess if guess is not None else guessed(shape, target)
    if shape.is_gaussian:
        root = _reports_root(shape)
        least, most = LEAST_NOISE / root * (1 + 1e-9), MOST_NOISE / root * (1 - 1e-9)
        return _least(
            lambda level: target.spent(shape, level, cells),
            target.delta,
            start=min(max(start, least), most),
            least=least,
            most=most,
            slack=slack,
        )
    found = _least(
        lambda inverse: target.spent(shape, 1.0 / inverse, cells),
        target.delta,
        start=1.0 / min(max(start, LEAST_LOCAL), MOST_LOCAL),
        least=1.0 / MOST_LOCAL,
        most=1.0 / LEAST_LOCAL,
        slack=slack,
    )
    return None if found is None else 1.0 / found


def guessed(shape: Shape, target: Target) -> float:
    """``guessed_level`` with or without room in every slot."""
    roomy = shape.capacity is None or target.method(shape) is Method.EXACT_POPULATION
    return guessed_level(shape, target, roomy=roomy)


def _reports_root(shape: Shape) -> float:
    """By what the noise of a slot exceeds that of one report."""
    server = shape.noise_at.value == "server"
    summed = shape.protocol is not Protocol.AVERAGED and shape.capacity is not None
    return math.sqrt(shape.capacity) if summed and not server and shape.capacity else 1.0


def _least(
    falls: Callable[[float], float],
    delta: float,
    *,
    start: float,
    least: float,
    most: float,
    slack: float,
) -> float | None:
    """The least x with falls(x) <= delta, within what ``slack`` leaves on the table."""

    def over(x: float) -> float:
        try:
            return math.log(max(falls(math.exp(x)), _LEAST) / delta)
        except CheckinsError:
            return math.inf  # nothing is proved there: not enough noise

    floor, ceiling = math.log(least), math.log(most)
    low, high, at_low, at_high = -math.inf, math.inf, math.inf, -math.inf
    x = min(max(math.log(start), floor), ceiling)
    for _ in range(_MOST_TURNS):
        y = over(x)
        if y <= 0.0:
            high, at_high = x, y
            if y >= -slack or x <= floor:
                return math.exp(x)
        else:
            low, at_low = x, y
            if x >= ceiling:
                return None
        if high - low < 1e-4:
            return math.exp(high)
        x = min(max(_next(low, high, at_low, at_high, slack), floor), ceiling)
    return math.exp(high) if math.isfinite(high) else None


def _next(low: float, high: float, at_low: float, at_high: float, slack: float) -> float:
    """Where to look: along the secant to the middle of the slack, inside the bracket."""
    aim = -slack / 2.0
    if not math.isfinite(high):
        return low + min((at_low - aim) / _STEEP, 1.0) * 1.02
    if not math.isfinite(low):
        return high - min((aim - at_high) / _STEEP, 1.0) * 1.02
    if not math.isfinite(at_low) or at_high < -60.0:
        return (low + high) / 2.0
    share = (at_low - aim) / (at_low - at_high)
    return low + (high - low) * min(max(share, 0.03), 0.97)
