"""The one form behind the paper's privacy theorems, and the lemma for approximate randomizers.

Each statement says that a protocol is (ε, δ)-DP with

    ε = x²/2 + x √(2 log(1/δ)),     x = scale · b^power · (b − 1),     b = e^ε₀,

and differs from the others in ``power`` and ``scale`` only. With an (ε₀, δ₀)-DP randomizer, 8ε₀
takes the place of ε₀ and the total is δ′ = δ + randomizers · (e^ε′ + 1) · δ₁: the lemma replaces
each randomizer by a pure 8ε₀-DP one at total variation distance δ₁.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from checkins import validate
from checkins.accounting.solve import first_true
from checkins.errors import NotCovered

UP = 1.0 + 2.0**-40
"""Factor by which a published bound exceeds its float value; covers every rounding error here."""


def exponential(power: float) -> float:
    """e^power, infinity where float64 overflows.

    >>> exponential(1000.0)
    inf
    """
    try:
        return math.exp(power)
    except OverflowError:
        return math.inf


def log_gap(epsilon: float) -> float:
    """log(e^ε − 1) without overflow; minus infinity at ε = 0.

    >>> log_gap(1000.0)
    1000.0
    """
    if epsilon == 0.0:
        return -math.inf
    return math.log(math.expm1(epsilon)) if epsilon < 1.0 else epsilon + log_complement(epsilon)


def log_complement(power: float) -> float:
    """log(1 − e^−power) for power > 0, accurate at both ends."""
    if power < math.log(2.0):
        return math.log(-math.expm1(-power))
    return math.log1p(-math.exp(-power))


def log_inverse(delta: float) -> float:
    """log(1/δ), also where 1/δ overflows."""
    return -math.log(delta)


SHARES = 32
"""A total δ is split between two events in steps of 1/SHARES; the best split is reported."""


def best_split(bound: Callable[[float], float], *, delta: float) -> float:
    """Return the smallest bound(part) over the SHARES − 1 parts of a total δ.

    Parts at which the bound is refused are left out; the first refusal is raised if all are.
    """
    validate.open_unit(delta=delta)
    best, refusal = math.inf, None
    for share in range(1, SHARES):
        try:
            best = min(best, bound(delta * share / SHARES))
        except NotCovered as error:
            refusal = refusal or error
    if refusal is not None and math.isinf(best):
        raise refusal
    return best


MAGNIFICATION = 8.0
"""The pure randomizer is ``MAGNIFICATION`` · ε₀-DP."""

_LARGEST_DISTANCE = math.nextafter(1.0, 0.0)


def rejection_rounds(*, local_epsilon: float, distance: float) -> float:
    """Number T of rejection rounds that make the failure term of the lemma at most δ₁/2.

    T = ⌈ log(2/δ₁) / log(1/(1 − e^(−5ε₀))) ⌉, infinite where ε₀ is so large that none suffices.

    Theorem:     proof of [BKMTT20, Lem A.3], arXiv:2007.06605v2.
    Neighbours:  none; T depends on the randomizer alone.
    Rounding:    up.
    Differs:     the proof has 1 − e^(5ε₀), a negative number, and a T that need not be an integer.

    >>> rejection_rounds(local_epsilon=0.5, distance=1e-6)
    170.0
    """
    validate.positive(local_epsilon=local_epsilon)
    validate.open_unit(distance=distance)
    rate = -log_complement(5.0 * local_epsilon)
    if rate == 0.0:
        return math.inf
    ratio = (math.log(2.0) - math.log(distance)) / rate * UP
    return float(math.ceil(ratio)) if ratio < 2.0**53 else ratio


def largest_local_delta(*, local_epsilon: float, distance: float) -> float:
    """Largest δ₀ for which an (ε₀, δ₀)-DP randomizer is within δ₁ of a pure 8ε₀-DP one.

    With T from ``rejection_rounds``, δ₀ ≤ (1 − e^−ε₀) δ₁ / (4 e^ε₀ (2 + T)).

    Theorem:     [BKMTT20, Lem A.3], arXiv:2007.06605v2; [CSUZZ19, Claims D.2 and D.5].
    Neighbours:  replace-one, of a single record.
    Rounding:    down; 0 where nothing above 0 is allowed.
    Differs:     T is rounded up to an integer, so δ₀ is slightly smaller than printed.

    >>> f"{largest_local_delta(local_epsilon=0.5, distance=1e-6):.4g}"
    '3.469e-10'
    """
    needed = rejection_rounds(local_epsilon=local_epsilon, distance=distance)
    gap = -math.expm1(-local_epsilon) * math.exp(-local_epsilon)
    return gap * distance / (4.0 * (2.0 + needed)) / UP


def smallest_distance(*, local_epsilon: float, local_delta: float) -> float:
    """Smallest δ₁ for which the lemma admits this δ₀: the inverse of ``largest_local_delta``.

    Theorem:     [BKMTT20, Lem A.3], arXiv:2007.06605v2, solved for δ₁.
    Neighbours:  replace-one, of a single record.
    Rounding:    up: the distance returned is itself admissible.

    >>> f"{smallest_distance(local_epsilon=0.5, local_delta=1e-9):.4g}"
    '2.682e-06'
    """
    validate.positive(local_epsilon=local_epsilon)
    validate.open_unit(local_delta=local_delta)
    most = largest_local_delta(local_epsilon=local_epsilon, distance=_LARGEST_DISTANCE)
    if not local_delta <= most:
        raise NotCovered(
            "local_delta",
            local_delta,
            f"must be at most {most:.3g} for local_epsilon = {local_epsilon} [BKMTT20, Lem A.3]",
        )

    def admits(log_distance: float) -> bool:
        distance = min(math.exp(log_distance), _LARGEST_DISTANCE)
        return largest_local_delta(local_epsilon=local_epsilon, distance=distance) >= local_delta

    # δ₁ ≥ 8 δ₀ always, so log δ₀ is on the failing side.
    found = first_true(admits, false=math.log(local_delta), true=0.0)
    return min(math.exp(found), _LARGEST_DISTANCE)


@dataclass(frozen=True, slots=True)
class ApproximateBound:
    """The ε′ of an approximate theorem, and the total δ′ that goes with it."""

    epsilon: float
    delta: float


@dataclass(frozen=True, slots=True)
class Amplification:
    """One theorem's ``power`` and ``scale``, and how many randomizers touch the client's data.

    ``load_delta`` is the probability that the loads exceed those that ``scale`` assumes.

    >>> theorem = Amplification(power=0.5, scale=1000**-0.5, randomizers=1000)
    >>> round(theorem.epsilon(local_epsilon=1.0, delta=1e-6), 4)
    0.4749
    """

    power: float
    scale: float
    randomizers: int
    load_delta: float = 0.0

    def spread(self, local_epsilon: float) -> float:
        """x = scale · e^(power ε₀) · (e^ε₀ − 1); infinity where it overflows."""
        if self.scale == 0.0 or local_epsilon == 0.0:
            return 0.0
        log_factor = self.power * local_epsilon + log_gap(local_epsilon)
        return exponential(math.log(self.scale) + log_factor)

    def epsilon(self, *, local_epsilon: float, delta: float) -> float:
        """ε of a pure ε₀-DP randomizer, rounded up."""
        validate.non_negative(local_epsilon=local_epsilon)
        validate.open_unit(delta=delta)
        return tail_epsilon(spread=self.spread(local_epsilon), delta=delta)

    def simplified(self, *, local_epsilon: float, delta: float) -> float:
        """7 · scale · ε₀ √log(1/δ) of random replacement, refused outside ε₀ ≤ 1 and δ ≤ 1/100.

        Rounding:    up.
        Differs:     the proof starts from δ ≤ 1/4; it needs the statement's 1/100.
        """
        validate.non_negative(local_epsilon=local_epsilon)
        validate.open_unit(delta=delta)
        if not local_epsilon <= 1.0:
            raise NotCovered("local_epsilon", local_epsilon, "the simplified form needs at most 1")
        if not delta <= 0.01:
            raise NotCovered("delta", delta, "the simplified form needs at most 1/100")
        return 7.0 * self.scale * local_epsilon * math.sqrt(log_inverse(delta)) * UP

    def approximate(
        self, *, local_epsilon: float, local_delta: float, delta: float
    ) -> ApproximateBound:
        """(ε′, δ′) of an (ε₀, δ₀)-DP randomizer: 8ε₀, δ + load δ + randomizers · (e^ε′ + 1) δ₁.

        Theorem:     the "furthermore" of each statement.
        Rounding:    both up; δ₁ is the smallest that admits δ₀.
        Differs:     swapping, bins and averages replace n randomizers; the statements count m.
        """
        validate.open_unit(delta=delta)
        distance = smallest_distance(local_epsilon=local_epsilon, local_delta=local_delta)
        epsilon = tail_epsilon(spread=self.spread(MAGNIFICATION * local_epsilon), delta=delta)
        replaced = self.randomizers * distance * (exponential(epsilon) + 1.0)
        return ApproximateBound(
            epsilon=epsilon, delta=min(1.0, (delta + replaced) * UP + self.load_delta)
        )

    def approximate_total(self, *, local_epsilon: float, local_delta: float, delta: float) -> float:
        """Smallest ε′ of ``approximate`` whose total δ′, without load δ, is at most ``delta``."""
        validate.open_unit(delta=delta)
        distance = smallest_distance(local_epsilon=local_epsilon, local_delta=local_delta)
        spread = self.spread(MAGNIFICATION * local_epsilon)
        log_replaced = math.log(self.randomizers) + math.log(distance)
        epsilon = smallest_within(spread=spread, log_replaced=log_replaced, total=delta)
        if epsilon is None:
            raise self._refusal(local_epsilon, local_delta, delta, spread)
        return epsilon

    def _refusal(
        self, local_epsilon: float, local_delta: float, delta: float, spread: float
    ) -> NotCovered:
        def too_far(log_distance: float) -> bool:
            log_replaced = math.log(self.randomizers) + log_distance
            return smallest_within(spread=spread, log_replaced=log_replaced, total=delta) is None

        advice = f"no local_delta is small enough for local_epsilon = {local_epsilon}; lower it"
        if not too_far(-700.0):
            distance = math.exp(first_true(too_far, false=-700.0, true=0.0)) / UP
            most = largest_local_delta(local_epsilon=local_epsilon, distance=distance)
            if most > 0.0:
                advice = f"must be at most {most:.3g} for local_epsilon = {local_epsilon}"
        return NotCovered("local_delta", local_delta, f"{advice} at total delta = {delta}")


def tail_epsilon(*, spread: float, delta: float) -> float:
    """x²/2 + x √(2 log(1/δ)), rounded up; infinity where it overflows."""
    return (spread * spread / 2.0 + spread * math.sqrt(2.0 * log_inverse(delta))) * UP


def smallest_within(*, spread: float, log_replaced: float, total: float) -> float | None:
    """Smallest ε′ with inner δ + replaced · (e^ε′ + 1) ≤ total, or None where there is none.

    With ε′ = x²/2 + x u the inner δ is e^(−u²/2), and the total

        e^(−u²/2) + replaced · (e^(x²/2 + x u) + 1)

    exceeds 1 at u = 0, has at most one dip, and is below ``total`` only inside it: the first u that
    fits is found by bisection between 0 and the bottom of the dip.
    """
    x, half = spread, spread * spread / 2.0
    if x == 0.0:
        return 0.0 if 2.0 * math.exp(log_replaced) * UP < total else None
    if math.isinf(half):
        return None

    def fits(u: float) -> bool:
        replaced = exponential(log_replaced + half + x * u) + math.exp(log_replaced)
        return (math.exp(-u * u / 2.0) + replaced) * UP <= total

    def rises(u: float) -> bool:  # the derivative is not negative, to the right of the steepest u
        return math.log(u) - u * u / 2.0 - x * u <= log_replaced + half + math.log(x)

    steepest = 2.0 / (math.sqrt(x * x + 4.0) + x)
    beyond = steepest
    while not rises(beyond):
        beyond *= 2.0
    bottom = first_true(rises, false=steepest, true=beyond) if beyond > steepest else steepest
    if not fits(bottom):
        return None
    return (half + x * first_true(fits, false=0.0, true=bottom)) * UP


def held_locally(
    *, local_epsilon: float, local_delta: float, delta: float, participation: float = 1.0
) -> float:
    """Return the ε that holds without amplification; infinity if none does at this δ.

    log(1 + p₀(e^ε₀ − 1)) for a pure randomizer (δ₀ = 0); ε₀ for an (ε₀, δ₀)-DP one, where δ ≥ δ₀.

    Theorem:     [BBG18, Thm 2], arXiv:1807.01647v2: overlapping mixtures, weight p₀.
    Neighbours:  replace-one.
    Rounding:    up.

    >>> round(held_locally(local_epsilon=1.0, local_delta=0.0, delta=1e-6, participation=0.1), 4)
    0.1586
    """
    validate.non_negative(local_epsilon=local_epsilon)
    validate.open_unit(delta=delta)
    validate.probability(local_delta=local_delta, participation=participation)
    if local_delta > 0.0:
        return local_epsilon if delta >= local_delta else math.inf
    if local_epsilon < 700.0:
        mixed = math.log1p(participation * math.expm1(local_epsilon)) * UP
    else:
        mixed = math.inf
    return min(local_epsilon, mixed)
