"""Amplification by shuffling n adaptive local reports: the paper's bound, and the one before it."""

from __future__ import annotations

import math

from checkins import validate
from checkins.accounting.paper import replacement
from checkins.accounting.paper.amplification import ApproximateBound
from checkins.accounting.paper.rounding import UP, exponential, log_gap, log_inverse


def shuffling(*, local_epsilon: float, delta: float, clients: int) -> float:
    """ε of n adaptive ε₀-DP randomizers applied to the records in random order.

        ε = e^(3ε₀)(e^ε₀ − 1)²/(2n) + e^(3ε₀/2)(e^ε₀ − 1) √(2 log(1/δ)/n)

    Theorem:     [BKMTT20, Thm 5.1], arXiv:2007.06605v2.
    Neighbours:  replace-one.
    Rounding:    up.

    >>> round(shuffling(local_epsilon=1.0, delta=1e-6, clients=10_000), 4)
    0.4078
    """
    return replacement.swapping(local_epsilon=local_epsilon, delta=delta, clients=clients)


def shuffling_approximate(
    *, local_epsilon: float, local_delta: float, delta: float, clients: int
) -> ApproximateBound:
    """(ε′, δ′) of shuffling (ε₀, δ₀)-DP randomizers: 8ε₀, δ + n(e^ε′ + 1)δ₁.

    Theorem:     [BKMTT20, Thm 5.1], arXiv:2007.06605v2, "furthermore".
    Neighbours:  replace-one.
    Rounding:    both up; δ₁ is the smallest that admits δ₀.

    >>> given = dict(local_epsilon=0.1, local_delta=1e-16, clients=10_000)
    >>> found = shuffling_approximate(delta=1e-6, **given)
    >>> round(found.epsilon, 4), f"{found.delta:.3e}"
    (0.2147, '1.004e-06')
    """
    return replacement.swapping_approximate(
        local_epsilon=local_epsilon, local_delta=local_delta, delta=delta, clients=clients
    )


def shuffling_approximate_total(
    *, local_epsilon: float, local_delta: float, delta: float, clients: int
) -> float:
    """Smallest ε′ of ``shuffling_approximate`` whose total δ′ is at most ``delta``.

    Theorem:     [BKMTT20, Thm 5.1], arXiv:2007.06605v2, "furthermore".
    Neighbours:  replace-one.
    Rounding:    up.

    >>> given = dict(local_epsilon=0.1, local_delta=1e-16, clients=10_000)
    >>> round(shuffling_approximate_total(delta=1e-6, **given), 4)
    0.2147
    """
    return replacement.swapping_approximate_total(
        local_epsilon=local_epsilon, local_delta=local_delta, delta=delta, clients=clients
    )


def shuffling_earlier(*, local_epsilon: float, delta: float, clients: int) -> float:
    """ε of shuffling by the bound the paper improves on: n-fold advanced composition.

        ε = n ε₁ (e^ε₁ − 1) + ε₁ √(2 n log(1/δ)),     ε₁ = 2 e^(2ε₀)(e^ε₀ − 1)/n

    Theorem:     [EFMRTT19, Thm 7], as restated in [BKMTT20, section 5], arXiv:2007.06605v2.
    Neighbours:  replace-one.
    Rounding:    up.

    >>> round(shuffling_earlier(local_epsilon=1.0, delta=1e-6, clients=10_000), 4)
    1.3993
    """
    validate.non_negative(local_epsilon=local_epsilon)
    validate.open_unit(delta=delta)
    validate.count(clients=clients)
    whole = 2.0 * exponential(2.0 * local_epsilon + log_gap(local_epsilon))
    step = whole / clients
    if math.isinf(whole) or step > 700.0:
        return math.inf
    return (whole * math.expm1(step) + whole * math.sqrt(2.0 * log_inverse(delta) / clients)) * UP
