"""The common form of the paper's privacy theorems, and the lemma for approximate randomizers.

Each theorem says that a protocol with an ε₀-DP randomizer is (ε, δ)-DP with

    ε = x²/2 + x √(2 log(1/δ)),     x = scale · b^power · (b − 1),     b = e^ε₀.

The theorems differ only in ``power`` and ``scale``. "The paper" is [BKMTT20], arXiv:2007.06605v2.
For an (ε₀, δ₀)-DP randomizer, the paper's Lemma A.3 replaces each randomizer by a pure 8ε₀-DP
randomizer at total variation distance δ₁. The theorem with 8ε₀ instead of ε₀ gives ε′, and the
total δ is δ′ = δ + randomizers · (e^ε′ + 1) · δ₁, where ``randomizers`` is the number of replaced
randomizers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from checkins import validate
from checkins.accounting.solve import first_true
from checkins.errors import NotCovered

ROUND_UP = 1.0 + 2.0**-40
"""Factor by which every bound is enlarged, to cover the rounding errors of this package."""


def exp_or_infinity(power: float) -> float:
    """Return e^power, or infinity if it overflows.

    >>> exp_or_infinity(1000.0)
    inf
    """
    try:
        return math.exp(power)
    except OverflowError:
        return math.inf


def log_expm1(epsilon: float) -> float:
    """Return log(e^ε − 1) without overflow, or minus infinity at ε = 0.

    >>> log_expm1(1000.0)
    1000.0
    """
    if epsilon == 0.0:
        return -math.inf
    return math.log(math.expm1(epsilon)) if epsilon < 1.0 else epsilon + log_one_minus_exp(epsilon)


def log_one_minus_exp(power: float) -> float:
    """Return log(1 − e^−power) for power > 0, accurate for small and large powers."""
    if power < math.log(2.0):
        return math.log(-math.expm1(-power))
    return math.log1p(-math.exp(-power))


DELTA_SHARES = 32
"""Number of equal shares of a total δ. Splits of δ into two parts use whole shares."""


def best_split(bound: Callable[[float], float], *, delta: float) -> float:
    """Return the smallest value of ``bound`` at multiples of δ/DELTA_SHARES below δ.

    A multiple is skipped if ``bound`` raises ``NotCovered`` for it. If it raises for all of them,
    the first error is raised.
    """
    validate.open_unit(delta=delta)
    best, first_error = math.inf, None
    for share in range(1, DELTA_SHARES):
        try:
            best = min(best, bound(delta * share / DELTA_SHARES))
        except NotCovered as error:
            first_error = first_error or error
    if first_error is not None and math.isinf(best):
        raise first_error
    return best


PURE_EPSILON_FACTOR = 8.0
"""Factor by which ε of the pure randomizer of Lemma A.3 exceeds ε₀."""

_MAX_DISTANCE = math.nextafter(1.0, 0.0)  # the largest double below 1


def rejection_rounds(*, local_epsilon: float, distance: float) -> float:
    """Return the number T of rejection rounds that make the failure term of the lemma at most δ₁/2.

    T = ⌈ log(2/δ₁) / log(1/(1 − e^(−5ε₀))) ⌉. It is infinite if the denominator underflows to 0.

    Theorem:     proof of [BKMTT20, Lem A.3], arXiv:2007.06605v2.
    Neighbours:  none; T depends only on the randomizer and δ₁.
    Rounding:    up.
    Differs:     the proof has 1 − e^(5ε₀), a negative number, and a T that need not be an integer.

    >>> rejection_rounds(local_epsilon=0.5, distance=1e-6)
    170.0
    """
    validate.positive(local_epsilon=local_epsilon)
    validate.open_unit(distance=distance)
    rate = -log_one_minus_exp(5.0 * local_epsilon)
    if rate == 0.0:
        return math.inf
    ratio = (math.log(2.0) - math.log(distance)) / rate * ROUND_UP
    return float(math.ceil(ratio)) if ratio < 2.0**53 else ratio


def largest_local_delta(*, local_epsilon: float, distance: float) -> float:
    """Return the largest δ₀ for which an (ε₀, δ₀)-DP randomizer is within δ₁ of a pure one.

    The pure randomizer is 8ε₀-DP. δ₀ = (1 − e^−ε₀) δ₁ / (4 e^ε₀ (2 + T)), with T from
    ``rejection_rounds``.

    Theorem:     [BKMTT20, Lem A.3], arXiv:2007.06605v2; [CSUZZ19, Claims D.2 and D.5].
    Neighbours:  replace-one, of a single record.
    Rounding:    down; 0 if T is infinite.
    Differs:     T is rounded up to an integer, so δ₀ is slightly smaller than printed.

    >>> f"{largest_local_delta(local_epsilon=0.5, distance=1e-6):.4g}"
    '3.469e-10'
    """
    rounds = rejection_rounds(local_epsilon=local_epsilon, distance=distance)
    gap = -math.expm1(-local_epsilon) * math.exp(-local_epsilon)
    return gap * distance / (4.0 * (2.0 + rounds)) / ROUND_UP


def smallest_distance(*, local_epsilon: float, local_delta: float) -> float:
    """Return the smallest δ₁ for which Lemma A.3 allows δ₀, the inverse of ``largest_local_delta``.

    Theorem:     [BKMTT20, Lem A.3], arXiv:2007.06605v2, solved for δ₁.
    Neighbours:  replace-one, of a single record.
    Rounding:    up, to a distance for which the lemma allows δ₀.

    >>> f"{smallest_distance(local_epsilon=0.5, local_delta=1e-9):.4g}"
    '2.682e-06'
    """
    validate.positive(local_epsilon=local_epsilon)
    validate.open_unit(local_delta=local_delta)
    limit = largest_local_delta(local_epsilon=local_epsilon, distance=_MAX_DISTANCE)
    if not local_delta <= limit:
        raise NotCovered(
            "local_delta",
            local_delta,
            f"must be at most {limit:.3g} for local_epsilon = {local_epsilon} [BKMTT20, Lem A.3]",
        )

    def allows_local_delta(log_distance: float) -> bool:
        distance = min(math.exp(log_distance), _MAX_DISTANCE)
        return largest_local_delta(local_epsilon=local_epsilon, distance=distance) >= local_delta

    # δ₁ is always at least 8 δ₀, so ``allows_local_delta`` is False at log δ₀.
    log_smallest_distance = first_true(allows_local_delta, false=math.log(local_delta), true=0.0)
    return min(math.exp(log_smallest_distance), _MAX_DISTANCE)


@dataclass(frozen=True, slots=True)
class ApproximateBound:
    """The ε′ of a theorem for approximate randomizers, and its total δ′."""

    epsilon: float
    delta: float


@dataclass(frozen=True, slots=True)
class Amplification:
    """A theorem of the form above: its ``power``, its ``scale`` and its number of randomizers.

    ``load_delta`` is an upper bound on the probability that slots have more reports than ``scale``
    assumes.

    >>> theorem = Amplification(power=0.5, scale=1000**-0.5, randomizers=1000)
    >>> round(theorem.epsilon(local_epsilon=1.0, delta=1e-6), 4)
    0.4749
    """

    power: float
    scale: float
    randomizers: int
    load_delta: float = 0.0

    def spread(self, local_epsilon: float) -> float:
        """Return x = scale · e^(power ε₀) · (e^ε₀ − 1), or infinity if it overflows."""
        if self.scale == 0.0 or local_epsilon == 0.0:
            return 0.0
        log_factor = self.power * local_epsilon + log_expm1(local_epsilon)
        return exp_or_infinity(math.log(self.scale) + log_factor)

    def epsilon(self, *, local_epsilon: float, delta: float) -> float:
        """Return ε for a pure ε₀-DP randomizer, rounded up."""
        validate.non_negative(local_epsilon=local_epsilon)
        validate.open_unit(delta=delta)
        return tail_epsilon(spread=self.spread(local_epsilon), delta=delta)

    def simplified(self, *, local_epsilon: float, delta: float) -> float:
        """Return 7 · scale · ε₀ √log(1/δ), the simplified bound of random replacement.

        Raise ``NotCovered`` unless ε₀ ≤ 1 and δ ≤ 1/100.

        Rounding:    up.
        Differs:     the proof assumes δ ≤ 1/4, but it needs δ ≤ 1/100, as in the statement.
        """
        validate.non_negative(local_epsilon=local_epsilon)
        validate.open_unit(delta=delta)
        if not local_epsilon <= 1.0:
            raise NotCovered("local_epsilon", local_epsilon, "the simplified form needs at most 1")
        if not delta <= 0.01:
            raise NotCovered("delta", delta, "the simplified form needs at most 1/100")
        return 7.0 * self.scale * local_epsilon * math.sqrt(-math.log(delta)) * ROUND_UP

    def approximate(
        self, *, local_epsilon: float, local_delta: float, delta: float
    ) -> ApproximateBound:
        """Return (ε′, δ′) for an (ε₀, δ₀)-DP randomizer.

        ε′ is the bound for 8ε₀, and δ′ = δ + load_delta + randomizers · (e^ε′ + 1) δ₁.

        Theorem:     the "furthermore" part of each statement.
        Rounding:    both up; δ₁ is the smallest for which the lemma allows δ₀.
        Differs:     for swapping, bins and averages, all n randomizers are replaced, one per
                     client. The statements count m, one per slot.
        """
        validate.open_unit(delta=delta)
        distance = smallest_distance(local_epsilon=local_epsilon, local_delta=local_delta)
        epsilon = tail_epsilon(spread=self.spread(PURE_EPSILON_FACTOR * local_epsilon), delta=delta)
        replaced = self.randomizers * distance * (exp_or_infinity(epsilon) + 1.0)
        return ApproximateBound(
            epsilon=epsilon, delta=min(1.0, (delta + replaced) * ROUND_UP + self.load_delta)
        )

    def epsilon_at_total_delta(
        self, *, local_epsilon: float, local_delta: float, delta: float
    ) -> float:
        """Return the smallest ε′ for which the total δ′, without ``load_delta``, is at most
        ``delta``.

        For a pure randomizer, with δ₀ = 0, this is ``epsilon``.
        """
        if local_delta == 0.0:
            return self.epsilon(local_epsilon=local_epsilon, delta=delta)
        validate.open_unit(delta=delta)
        distance = smallest_distance(local_epsilon=local_epsilon, local_delta=local_delta)
        spread = self.spread(PURE_EPSILON_FACTOR * local_epsilon)
        log_replaced = math.log(self.randomizers) + math.log(distance)
        epsilon = smallest_epsilon(spread=spread, log_replaced=log_replaced, total=delta)
        if epsilon is None:
            raise self._local_delta_error(local_epsilon, local_delta, delta, spread)
        return epsilon

    def _local_delta_error(
        self, local_epsilon: float, local_delta: float, delta: float, spread: float
    ) -> NotCovered:
        def is_too_far(log_distance: float) -> bool:
            log_replaced = math.log(self.randomizers) + log_distance
            return smallest_epsilon(spread=spread, log_replaced=log_replaced, total=delta) is None

        advice = f"no local_delta is small enough for local_epsilon = {local_epsilon}"
        if not is_too_far(-700.0):
            distance = math.exp(first_true(is_too_far, false=-700.0, true=0.0)) / ROUND_UP
            limit = largest_local_delta(local_epsilon=local_epsilon, distance=distance)
            if limit > 0.0:
                advice = f"must be at most {limit:.3g} for local_epsilon = {local_epsilon}"
        return NotCovered("local_delta", local_delta, f"{advice} and a total delta of {delta}")


def tail_epsilon(*, spread: float, delta: float) -> float:
    """Return x²/2 + x √(2 log(1/δ)), rounded up, or infinity if it overflows."""
    return (spread * spread / 2.0 + spread * math.sqrt(2.0 * -math.log(delta))) * ROUND_UP


def smallest_epsilon(*, spread: float, log_replaced: float, total: float) -> float | None:
    """Return the smallest ε′ with δ + replaced · (e^ε′ + 1) ≤ total, or None if there is none.

    ``log_replaced`` is log(replaced), where replaced = randomizers · δ₁.

    x is ``spread``, and ε′ = x²/2 + x u for u = √(2 log(1/δ)), so δ = e^(−u²/2). The left side,

        e^(−u²/2) + replaced · (e^(x²/2 + x u) + 1),

    exceeds 1 at u = 0 and has at most one local minimum. So the smallest u at which the left side
    is at most ``total`` is found by bisection between 0 and that minimum.
    """
    x, half_square = spread, spread * spread / 2.0
    if x == 0.0:
        return 0.0 if 2.0 * math.exp(log_replaced) * ROUND_UP < total else None
    if math.isinf(half_square):
        return None

    def fits(u: float) -> bool:
        replaced = exp_or_infinity(log_replaced + half_square + x * u) + math.exp(log_replaced)
        return (math.exp(-u * u / 2.0) + replaced) * ROUND_UP <= total

    def is_rising(u: float) -> bool:  # whether the left side does not fall at u >= ``steepest``
        return math.log(u) - u * u / 2.0 - x * u <= log_replaced + half_square + math.log(x)

    steepest = 2.0 / (math.sqrt(x * x + 4.0) + x)
    end = steepest
    while not is_rising(end):
        end *= 2.0
    minimum = first_true(is_rising, false=steepest, true=end) if end > steepest else steepest
    if not fits(minimum):
        return None
    return (half_square + x * first_true(fits, false=0.0, true=minimum)) * ROUND_UP


def known_slot_epsilon(
    *, local_epsilon: float, local_delta: float, delta: float, participation: float = 1.0
) -> float:
    """Return the ε against an adversary who knows the client's slot, or infinity if there is none.

    For a pure randomizer (δ₀ = 0), ε is log(1 + p₀(e^ε₀ − 1)). For an (ε₀, δ₀)-DP randomizer, ε is
    ε₀ if δ ≥ δ₀, and infinity otherwise.

    Theorem:     [BBG18, Thm 2], arXiv:1807.01647v2: overlapping mixtures, weight p₀.
    Neighbours:  replace-one.
    Rounding:    up.

    >>> given = dict(local_epsilon=1.0, local_delta=0.0, delta=1e-6)
    >>> round(known_slot_epsilon(participation=0.1, **given), 4)
    0.1586
    """
    validate.non_negative(local_epsilon=local_epsilon)
    validate.open_unit(delta=delta)
    validate.probability(local_delta=local_delta, participation=participation)
    if local_delta > 0.0:
        return local_epsilon if delta >= local_delta else math.inf
    if local_epsilon < 700.0:
        mixture_epsilon = math.log1p(participation * math.expm1(local_epsilon)) * ROUND_UP
    else:
        mixture_epsilon = math.inf
    return min(local_epsilon, mixture_epsilon)
