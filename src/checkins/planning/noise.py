"""The noise that meets a budget: proven bounds on delta, closed-form estimates, a root search.

Bounds here are computed at less precision than a certificate's: they only ever give a larger delta,
so every bound is proven, and noise that meets a budget here meets it in a certificate.

Estimates take the larger of two noises: one at which the likelihood ratio of the client's own slot
meets the budget, one at which the variance of the ratio over all slots does. That is within some
ten per cent of the exact noise. An estimate decides only which designs are evaluated; every design
that is shown has a proven bound.

Theorem:     docs/theory/gaussian.md, docs/theory/pure.md, docs/theory/windows-and-capacity.md.
Neighbours:  the target's.
Rounding:    delta up.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from checkins.accounting import Adjacency, NoiseAt, Protocol
from checkins.accounting.design import LEAST_NOISE, MOST_NOISE
from checkins.accounting.precision import Method, Precision, delta_at, method_at
from checkins.errors import CheckinsError
from checkins.planning.candidate import DesignCandidate

QUICK, FINE = Precision.DRAFT, Precision.FINE
"""Precision of curves, and of designs that are shown."""


@dataclass(frozen=True, slots=True)
class Target:
    """An (epsilon, delta) for a neighbour relation."""

    epsilon: float
    delta: float
    adjacency: Adjacency

    def spent(self, candidate: DesignCandidate, level: float, precision: Precision) -> float:
        """Return an upper bound on delta at this epsilon."""
        return delta_at(
            candidate.design(level),
            epsilon=self.epsilon,
            delta=self.delta,
            adjacency=self.adjacency,
            precision=precision,
            campaigns=candidate.repeats,
        )

    def method(self, candidate: DesignCandidate) -> Method:
        """Return the method of ``spent``."""
        design = candidate.design(_any_level(candidate))
        return method_at(design, delta=self.delta, campaigns=candidate.repeats)


def _any_level(candidate: DesignCandidate) -> float:
    """Return a level that any design may have: the method does not depend on it."""
    summed = candidate.capacity if candidate.noise_at is NoiseAt.CLIENT else None
    return 1.0 / math.sqrt(summed or 1)


MOST_LOCAL = 30.0
LEAST_LOCAL = 1e-5


def estimated_level(candidate: DesignCandidate, target: Target) -> float:
    """Return the noise multiplier or local epsilon that approximately meets the target."""
    if not candidate.is_gaussian:
        return _local_epsilon(candidate, target)
    noise = min(max(_slot_noise(candidate, target), LEAST_NOISE * 1.001), MOST_NOISE * 0.999)
    return noise / _reports_root(candidate)


def seems_out_of_reach(candidate: DesignCandidate, target: Target) -> bool:
    """Return whether the target needs more noise than the largest, beyond an estimate's error."""
    if not candidate.is_gaussian:
        return _local_epsilon(candidate, target) <= LEAST_LOCAL
    return _slot_noise(candidate, target) > 1.2 * MOST_NOISE


def _slot_noise(candidate: DesignCandidate, target: Target) -> float:
    shift = _shift(candidate, target)
    if candidate.capacity is not None and target.method(candidate) is not Method.EXACT_POPULATION:
        shift *= 0.55  # one client may displace another: nearly twice the shift
    return 1.0 / shift


def _reports_root(candidate: DesignCandidate) -> float:
    """Return the factor by which the noise of a slot exceeds that of one report."""
    if candidate.noise_at is NoiseAt.SERVER or candidate.capacity is None:
        return 1.0
    return math.sqrt(candidate.capacity)


def _shift(candidate: DesignCandidate, target: Target) -> float:
    """Return the clip over the noise of a slot."""
    slots, probability = candidate.choices, candidate.participation
    if candidate.protocol is Protocol.AVERAGED:
        slots, probability = 1, 1.0
    return _slot_shift(slots, probability, candidate.repeats, target)


@lru_cache(maxsize=1 << 15)
def _slot_shift(slots: int, probability: float, repeats: int, target: Target) -> float:
    x = _normal_shift(target.epsilon, target.delta) ** 2 * slots / (probability**2 * repeats)
    replaced = target.adjacency is Adjacency.REPLACE_ONE
    together = math.sqrt(math.asinh(x / 4.0) if replaced else math.log1p(x))
    low, high = 1e-7, 5.0
    allowed = target.delta / repeats
    if _alone(high, slots, probability, target.epsilon, replaced) <= allowed:
        return min(together, high)
    for _ in range(20):
        middle = math.sqrt(low * high)
        if _alone(middle, slots, probability, target.epsilon, replaced) > allowed:
            high = middle
        else:
            low = middle
    return min(together, low)


def _alone(s: float, slots: int, probability: float, epsilon: float, replaced: bool) -> float:
    """Return delta of one slot's likelihood ratio, with all other slots at their mean."""
    others, excess = slots / probability - 1.0, math.expm1(epsilon)
    if replaced:
        c = math.exp(-s * s / 2.0)
        half = others * excess
        x = (half + math.sqrt(half * half + 4.0 * c * c * math.exp(epsilon))) / (2.0 * c)
        at = math.log(x) / s
        gone = math.exp(epsilon) * _tail(at + s) + half * _tail(at)
    else:
        threshold = 1.0 + (others + 1.0) * excess
        at = math.log(threshold) / s + s / 2.0
        gone = threshold * _tail(at)
    return probability * max(_tail(at - s) - gone, 0.0)


def _tail(x: float) -> float:
    return 0.5 * math.erfc(x / math.sqrt(2.0))


@lru_cache(maxsize=256)
def _normal_shift(epsilon: float, delta: float) -> float:
    """Return the μ for which normals at distance μ have this delta at this epsilon."""
    low, high = 1e-9, 100.0
    for _ in range(80):
        mu = math.sqrt(low * high)
        seen = _tail(epsilon / mu - mu / 2.0)
        if seen - math.exp(min(epsilon, 700.0)) * _tail(epsilon / mu + mu / 2.0) > delta:
            high = mu
        else:
            low = mu
    return low


def _local_epsilon(candidate: DesignCandidate, target: Target) -> float:
    slots, probability = candidate.choices, candidate.participation
    if candidate.protocol is Protocol.AVERAGED and candidate.population is not None:
        slots, probability = candidate.population.fewest, 1.0
    x = (
        _normal_shift(target.epsilon, target.delta) ** 2
        * slots
        / (probability**2 * candidate.repeats)
    )
    if target.adjacency is Adjacency.REPLACE_ONE:
        b = ((4.0 + x) + math.sqrt((4.0 + x) ** 2 - 8.0 * (2.0 - x))) / 4.0
    else:
        b = 1.0 + x / 2.0 + math.sqrt(x + x * x / 4.0)
    known = math.log1p(math.expm1(min(target.epsilon, 600.0) / candidate.repeats) / probability)
    return min(max(math.log(b), known, LEAST_LOCAL), MOST_LOCAL)


_MOST_TURNS = 40
_USUAL_STEEPNESS = 20.0
"""Approximate slope of the log odds of delta in the log of the noise."""
_LEAST = 5e-324
_FAR = 60.0
"""Difference of log odds beyond which a point does not help to locate the root."""


def proven_level(
    candidate: DesignCandidate,
    target: Target,
    precision: Precision,
    *,
    guess: float | None = None,
    slack: float = 0.004,
) -> float | None:
    """Return the noise multiplier or local epsilon that meets the target with the least noise.

    None if no level does. The noise exceeds the least by a factor of about 1 + ``slack`` at most.

    Rounding:    to the side that spends less.
    """
    start = guess if guess is not None else estimated_level(candidate, target)
    steepness = _steepness(candidate, target)
    if candidate.is_gaussian:
        root = _reports_root(candidate)
        least, most = LEAST_NOISE / root * (1 + 1e-9), MOST_NOISE / root * (1 - 1e-9)
        return _least(
            lambda level: target.spent(candidate, level, precision),
            target.delta,
            start=min(max(start, least), most),
            least=least,
            most=most,
            slack=slack,
            steepness=steepness,
        )
    found = _least(
        lambda inverse: target.spent(candidate, 1.0 / inverse, precision),
        target.delta,
        start=1.0 / min(max(start, LEAST_LOCAL), MOST_LOCAL),
        least=1.0 / MOST_LOCAL,
        most=1.0 / LEAST_LOCAL,
        slack=slack / 4.0,  # evaluations are fast, and delta is 0 from some level on
        steepness=steepness,
    )
    return None if found is None else 1.0 / found


def _steepness(candidate: DesignCandidate, target: Target) -> float:
    """Return the slope of the log odds of delta in the log of the noise, by the estimates."""
    odds = 0.7 * target.delta / (1.0 - target.delta)
    less = replace(target, delta=odds / (1.0 + odds))
    moved = abs(math.log(estimated_level(candidate, less) / estimated_level(candidate, target)))
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
    """Return an x with falls(x) <= delta, larger than the least by about ``slack``, relatively."""
    allowed = _log_odds(delta)

    def over(x: float) -> float:
        try:
            spent = falls(math.exp(x))
        except CheckinsError:
            return math.inf  # no bound is known there: not enough noise
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
    """Points with log odds above the target (``low``) and below it (``high``).

    Log odds fall with x, apart from the rounding of a grid, which differs between values of x.
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
        """The tolerated difference of log odds; it grows after a few evaluations, since the
        rounding of the grid then prevents convergence.
        """
        return -self._slack * self._steepness * max(1.0, self._looks - 2.0)

    def next(self) -> float:
        """Return the next point: along the slope until both sides are known, then between them."""
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
        """Return a bounded step along the slope, twice as long as the last one at least."""
        least, most = 2.0 * self._stride, max(0.6, 3.0 * self._stride)
        self._stride = min(max(1.02 * far / self._steepness, least), most)
        return self._stride
