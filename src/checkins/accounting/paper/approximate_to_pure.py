"""From an (ε₀, δ₀)-DP randomizer to a pure 8ε₀-DP one at a small total variation distance.

Every approximate theorem of the paper goes through this lemma: it replaces each randomizer by a
pure one and pays for the distance δ₁ between the two.
"""

from __future__ import annotations

import math

from checkins import validate
from checkins.accounting.paper.rounding import UP, first_true, log_complement
from checkins.errors import NotCovered

MAGNIFICATION = 8.0
"""The pure randomizer is ``MAGNIFICATION`` · ε₀-DP."""

_LARGEST_DISTANCE = math.nextafter(1.0, 0.0)


def rounds(*, local_epsilon: float, distance: float) -> float:
    """Number T of rejection rounds that make the failure term of the lemma at most δ₁/2.

    T = ⌈ log(2/δ₁) / log(1/(1 − e^(−5ε₀))) ⌉, infinite where ε₀ is so large that none suffices.

    Theorem:     proof of [BKMTT20, Lem A.3], arXiv:2007.06605v2.
    Neighbours:  none; T depends on the randomizer alone.
    Rounding:    up.
    Differs:     the proof has 1 − e^(5ε₀), a negative number, and a T that need not be whole.

    >>> rounds(local_epsilon=0.5, distance=1e-6)
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

    With T from ``rounds``, δ₀ ≤ (1 − e^−ε₀) δ₁ / (4 e^ε₀ (2 + T)).

    Theorem:     [BKMTT20, Lem A.3], arXiv:2007.06605v2; [CSUZZ19, Claims D.2 and D.5].
    Neighbours:  replace-one, of a single record.
    Rounding:    down; 0 where nothing above 0 is allowed.
    Differs:     T is rounded up to a whole number, so δ₀ is slightly smaller than printed.

    >>> f"{largest_local_delta(local_epsilon=0.5, distance=1e-6):.4g}"
    '3.469e-10'
    """
    needed = rounds(local_epsilon=local_epsilon, distance=distance)
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
