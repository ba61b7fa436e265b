"""The noise that spends a budget: found by a few proven evaluations around a guess."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from checkins.accounting import Protocol
from checkins.accounting.design import LEAST_NOISE, MOST_NOISE
from checkins.errors import CheckinsError
from checkins.planning.candidate import DesignCandidate
from checkins.planning.guess import LEAST_LOCAL, MOST_LOCAL, guessed_level, is_out_of_reach
from checkins.planning.target import Method, Precision, Target

_MOST_TURNS = 40
_USUAL_STEEPNESS = 20.0
"""About how fast the log odds of delta fall with the log of the noise."""
_LEAST = 5e-324
_FAR = 60.0
"""Log odds this far below the target say nothing of where it is met."""


def proven_level(
    shape: DesignCandidate,
    target: Target,
    precision: Precision,
    *,
    guess: float | None = None,
    slack: float = 0.004,
) -> float | None:
    """The noise multiplier or local epsilon that keeps the target and spends most of it.

    None where none does. About ``slack`` of the level is more noise than would be needed, at most.

    Rounding:    to the side that spends less.
    """
    start = guess if guess is not None else guessed(shape, target)
    steepness = _steepness(shape, target)
    if shape.is_gaussian:
        root = _reports_root(shape)
        least, most = LEAST_NOISE / root * (1 + 1e-9), MOST_NOISE / root * (1 - 1e-9)
        return _least(
            lambda level: target.spent(shape, level, precision),
            target.delta,
            start=min(max(start, least), most),
            least=least,
            most=most,
            slack=slack,
            steepness=steepness,
        )
    found = _least(
        lambda inverse: target.spent(shape, 1.0 / inverse, precision),
        target.delta,
        start=1.0 / min(max(start, LEAST_LOCAL), MOST_LOCAL),
        least=1.0 / MOST_LOCAL,
        most=1.0 / LEAST_LOCAL,
        slack=slack / 4.0,  # looks are quick, and nothing is spent from some level on
        steepness=steepness,
    )
    return None if found is None else 1.0 / found


def guessed(shape: DesignCandidate, target: Target) -> float:
    """``guessed_level`` with or without room in every slot."""
    return guessed_level(shape, target, roomy=_has_room(shape, target))


def _has_room(shape: DesignCandidate, target: Target) -> bool:
    return shape.capacity is None or target.method(shape) is Method.EXACT_POPULATION


def seems_out_of_reach(shape: DesignCandidate, target: Target) -> bool:
    """Whether no noise will keep the target, by the guesses."""
    return is_out_of_reach(shape, target, roomy=_has_room(shape, target))


def _reports_root(shape: DesignCandidate) -> float:
    """By what the noise of a slot exceeds that of one report."""
    server = shape.noise_at.value == "server"
    summed = shape.protocol is not Protocol.AVERAGED and shape.capacity is not None
    return math.sqrt(shape.capacity) if summed and not server and shape.capacity else 1.0


def _steepness(shape: DesignCandidate, target: Target) -> float:
    """How fast the log odds of delta fall with the log of the noise, by the guesses."""
    odds = 0.7 * target.delta / (1.0 - target.delta)
    less = replace(target, delta=odds / (1.0 + odds))
    moved = abs(math.log(guessed(shape, less) / guessed(shape, target)))
    return min(max(-math.log(0.7) / moved, 2.0), 1e4) if moved > 1e-5 else _USUAL_STEEPNESS


def _log_odds(delta: float) -> float:
    return math.log(delta) - math.log1p(-delta) if delta < 1.0 else math.inf


def _least(
    falls: Callable[[float], float],
    delta: float,
    *,
    start: float,
    least: float,
    most: float,
    slack: float,
    steepness: float,
) -> float | None:
    """An x with falls(x) <= delta that is too large by about ``slack`` at most, relatively."""
    allowed = _log_odds(delta)

    def over(x: float) -> float:
        try:
            spent = falls(math.exp(x))
        except CheckinsError:
            return math.inf  # nothing is proved there: not enough noise
        beyond = _log_odds(max(spent, _LEAST)) - allowed
        return min(beyond, 0.0) if spent <= delta else max(beyond, 1e-15)

    floor, ceiling = math.log(least), math.log(most)
    bracket = _Bracket(steepness, slack)
    x = min(max(math.log(start), floor), ceiling)
    for _ in range(_MOST_TURNS):
        y = over(x)
        bracket.saw(x, y)
        if bracket.least <= y <= 0.0 or (y <= 0.0 and x <= floor):
            return math.exp(x)
        if y > 0.0 and x >= ceiling:
            return None
        if bracket.is_narrow:
            return math.exp(bracket.high)
        x = min(max(bracket.next(), floor), ceiling)
    return math.exp(bracket.high) if math.isfinite(bracket.high) else None


class _Bracket:
    """Where log odds are known to be above the allowed ones (``low``) and below (``high``).

    They fall with x but for the noise of a grid, which every x lays anew.
    """

    def __init__(self, steepness: float, slack: float) -> None:
        self.low, self.high = -math.inf, math.inf
        self._at_low, self._at_high = math.inf, -math.inf
        self._steepness, self._slack = steepness, slack
        self._stride, self._same, self._looks = 0.0, 0, 0
        self._last: tuple[float, float] | None = None

    def saw(self, x: float, y: float) -> None:
        above = y > 0.0
        self._looks += 1
        if self._last is not None:
            before, at_before = self._last
            self._same = self._same + 1 if above is (at_before > 0.0) else 0
            if abs(x - before) > 2.0 * self._slack and max(abs(y), abs(at_before)) < _FAR:
                self._steepness = max((at_before - y) / (x - before), self._steepness / 4.0)
        self._last = x, y
        if above:
            self.low, self._at_low = x, y
        else:
            self.high, self._at_high = x, y

    @property
    def is_narrow(self) -> bool:
        return self.high - self.low < self._slack

    @property
    def least(self) -> float:
        """The log odds, over the allowed ones, that are close enough.

        More after a few looks: then it is a noisy grid that is looked at.
        """
        return -self._slack * self._steepness * max(1.0, self._looks - 2.0)

    def next(self) -> float:
        """Along the slope, in strides that grow until both sides are known, then within them."""
        aim = self.least / 2.0
        if not math.isfinite(self.high):
            return self.low + self._step(self._at_low - aim)
        if not math.isfinite(self.low):
            return self.high - self._step(aim - self._at_high)
        width = self.high - self.low
        useful = math.isfinite(self._at_low) and self._at_high > -_FAR
        if not useful or self._same >= 2:
            self._same = 0
            return self.low + width / 2.0
        share = (self._at_low - aim) / (self._at_low - self._at_high)
        return self.low + width * min(max(share, 0.02), 0.98)

    def _step(self, far: float) -> float:
        """As far as the slope says, within reason; where that was not enough, twice as far."""
        least, most = 2.0 * self._stride, max(0.6, 3.0 * self._stride)
        self._stride = min(max(1.02 * far / self._steepness, least), most)
        return self._stride
