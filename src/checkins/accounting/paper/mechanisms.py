"""The mechanisms that the paper reduces its protocols to: replacement, swapping, bins, shuffling.

Replacement, swapping and bins hold at index 1, for two datasets that differ in their first record;
shuffling holds at any index.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from checkins import validate
from checkins.accounting.paper.amplification import (
    UP,
    Amplification,
    ApproximateBound,
    exponential,
    log_gap,
    log_inverse,
)
from checkins.errors import InvalidValue, NotCovered

Loads = Sequence[int] | NDArray[np.int64]
"""How many records each bin holds, in order."""


def random_replacement(
    *, local_epsilon: float, delta: float, slots: int, largest_weight: float
) -> float:
    """ε of m adaptive randomizers, one of which sees the first record with weight at most w.

        x = w (e^ε₀ − 1) √(e^ε₀/m)

    Theorem:     [BKMTT20, Thm A.4], arXiv:2007.06605v2.
    Neighbours:  replace-one, at index 1.
    Rounding:    up.

    >>> round(random_replacement(local_epsilon=1.0, delta=1e-6, slots=1000, largest_weight=1.0), 4)
    0.4749
    """
    theorem = replacement_theorem(slots=slots, largest_weight=largest_weight)
    return theorem.epsilon(local_epsilon=local_epsilon, delta=delta)


def random_replacement_simplified(
    *, local_epsilon: float, delta: float, slots: int, largest_weight: float
) -> float:
    """7 w ε₀ √(log(1/δ)/m), for ε₀ ≤ 1 and δ ≤ 1/100.

    Theorem:     [BKMTT20, Thm A.4], arXiv:2007.06605v2, "in particular".
    Neighbours:  replace-one, at index 1.
    Rounding:    up.
    Differs:     the proof starts from δ ≤ 1/4; it needs the statement's 1/100.

    >>> given = dict(local_epsilon=1.0, delta=1e-6, slots=1000)
    >>> round(random_replacement_simplified(largest_weight=1.0, **given), 4)
    0.8228
    """
    replacement_theorem(slots=slots, largest_weight=largest_weight)
    return simplified(
        local_epsilon=local_epsilon, delta=delta, scale=largest_weight / math.sqrt(slots)
    )


def random_replacement_approximate(
    *, local_epsilon: float, local_delta: float, delta: float, slots: int, largest_weight: float
) -> ApproximateBound:
    """(ε′, δ′) of random replacement with (ε₀, δ₀)-DP randomizers: 8ε₀, δ + m(e^ε′ + 1)δ₁.

    Theorem:     [BKMTT20, Thm A.4], arXiv:2007.06605v2, "furthermore".
    Neighbours:  replace-one, at index 1.
    Rounding:    both up; δ₁ is the smallest that admits δ₀.

    >>> given = dict(local_epsilon=0.05, local_delta=1e-20, delta=1e-6)
    >>> found = random_replacement_approximate(slots=1000, largest_weight=0.1, **given)
    >>> round(found.epsilon, 4), f"{found.delta:.4e}"
    (0.01, '1.0000e-06')
    """
    theorem = replacement_theorem(slots=slots, largest_weight=largest_weight)
    return theorem.approximate(local_epsilon=local_epsilon, local_delta=local_delta, delta=delta)


def random_replacement_approximate_total(
    *, local_epsilon: float, local_delta: float, delta: float, slots: int, largest_weight: float
) -> float:
    """Smallest ε′ of ``random_replacement_approximate`` whose total δ′ is at most ``delta``.

    Theorem:     [BKMTT20, Thm A.4], arXiv:2007.06605v2, "furthermore".
    Neighbours:  replace-one, at index 1.
    Rounding:    up.

    >>> given = dict(local_epsilon=0.05, local_delta=1e-20, delta=1e-6)
    >>> round(random_replacement_approximate_total(slots=1000, largest_weight=0.1, **given), 4)
    0.01
    """
    theorem = replacement_theorem(slots=slots, largest_weight=largest_weight)
    return theorem.approximate_total(
        local_epsilon=local_epsilon, local_delta=local_delta, delta=delta
    )


def swapping(*, local_epsilon: float, delta: float, clients: int) -> float:
    """ε of n adaptive randomizers after the first record is swapped with a random one.

        x = e^(3ε₀/2) (e^ε₀ − 1) / √n

    Theorem:     [BKMTT20, Thm A.7], arXiv:2007.06605v2.
    Neighbours:  replace-one, at index 1.
    Rounding:    up.

    >>> round(swapping(local_epsilon=1.0, delta=1e-6, clients=1000), 4)
    1.3097
    """
    return _swapping(clients=clients).epsilon(local_epsilon=local_epsilon, delta=delta)


def swapping_approximate(
    *, local_epsilon: float, local_delta: float, delta: float, clients: int
) -> ApproximateBound:
    """(ε′, δ′) of swapping with (ε₀, δ₀)-DP randomizers: 8ε₀, δ + n(e^ε′ + 1)δ₁.

    Theorem:     [BKMTT20, Thm A.7], arXiv:2007.06605v2, "furthermore".
    Neighbours:  replace-one, at index 1.
    Rounding:    both up; δ₁ is the smallest that admits δ₀.
    Differs:     n randomizers are replaced, where the statement counts m.

    >>> given = dict(local_epsilon=0.05, local_delta=1e-20, delta=1e-6)
    >>> found = swapping_approximate(clients=1000, **given)
    >>> round(found.epsilon, 4), f"{found.delta:.4e}"
    (0.1494, '1.0000e-06')
    """
    return _swapping(clients=clients).approximate(
        local_epsilon=local_epsilon, local_delta=local_delta, delta=delta
    )


def swapping_approximate_total(
    *, local_epsilon: float, local_delta: float, delta: float, clients: int
) -> float:
    """Smallest ε′ of ``swapping_approximate`` whose total δ′ is at most ``delta``.

    Theorem:     [BKMTT20, Thm A.7], arXiv:2007.06605v2, "furthermore".
    Neighbours:  replace-one, at index 1.
    Rounding:    up.
    Differs:     n randomizers are replaced, where the statement counts m.

    >>> given = dict(local_epsilon=0.05, local_delta=1e-20, delta=1e-6)
    >>> round(swapping_approximate_total(clients=1000, **given), 4)
    0.1494
    """
    return _swapping(clients=clients).approximate_total(
        local_epsilon=local_epsilon, local_delta=local_delta, delta=delta
    )


def bins(*, local_epsilon: float, delta: float, loads: Loads) -> float:
    """ε of averaging within bins of given sizes ℓ, after one random swap.

        x = e^(2ε₀) (e^ε₀ − 1) ‖ℓ‖₂ / n,     n = Σ ℓ

    Theorem:     [BKMTT20, Thm A.5], arXiv:2007.06605v2.
    Neighbours:  replace-one, at index 1, given the loads.
    Rounding:    up.

    >>> round(bins(local_epsilon=1.0, delta=1e-6, loads=[10] * 1000), 4)
    2.1911
    """
    return _bins(loads=loads).epsilon(local_epsilon=local_epsilon, delta=delta)


def bins_approximate(
    *, local_epsilon: float, local_delta: float, delta: float, loads: Loads
) -> ApproximateBound:
    """(ε′, δ′) of bins with (ε₀, δ₀)-DP randomizers: 8ε₀, δ + n(e^ε′ + 1)δ₁.

    Theorem:     [BKMTT20, Thm A.5], arXiv:2007.06605v2, "furthermore".
    Neighbours:  replace-one, at index 1, given the loads.
    Rounding:    both up; δ₁ is the smallest that admits δ₀.
    Differs:     n randomizers are replaced, where the statement counts m.

    >>> given = dict(local_epsilon=0.05, local_delta=1e-20, delta=1e-6)
    >>> found = bins_approximate(loads=[10] * 100, **given)
    >>> round(found.epsilon, 4), f"{found.delta:.4e}"
    (0.5814, '1.0000e-06')
    """
    return _bins(loads=loads).approximate(
        local_epsilon=local_epsilon, local_delta=local_delta, delta=delta
    )


def bins_approximate_total(
    *, local_epsilon: float, local_delta: float, delta: float, loads: Loads
) -> float:
    """Smallest ε′ of ``bins_approximate`` whose total δ′ is at most ``delta``.

    Theorem:     [BKMTT20, Thm A.5], arXiv:2007.06605v2, "furthermore".
    Neighbours:  replace-one, at index 1, given the loads.
    Rounding:    up.
    Differs:     n randomizers are replaced, where the statement counts m.

    >>> given = dict(local_epsilon=0.05, local_delta=1e-20, delta=1e-6)
    >>> round(bins_approximate_total(loads=[10] * 100, **given), 4)
    0.5814
    """
    return _bins(loads=loads).approximate_total(
        local_epsilon=local_epsilon, local_delta=local_delta, delta=delta
    )


def shuffling(*, local_epsilon: float, delta: float, clients: int) -> float:
    """ε of n adaptive ε₀-DP randomizers applied to the records in random order.

        ε = e^(3ε₀)(e^ε₀ − 1)²/(2n) + e^(3ε₀/2)(e^ε₀ − 1) √(2 log(1/δ)/n)

    Theorem:     [BKMTT20, Thm 5.1], arXiv:2007.06605v2.
    Neighbours:  replace-one.
    Rounding:    up.

    >>> round(shuffling(local_epsilon=1.0, delta=1e-6, clients=10_000), 4)
    0.4078
    """
    return swapping(local_epsilon=local_epsilon, delta=delta, clients=clients)


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
    return swapping_approximate(
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
    return swapping_approximate_total(
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
    all_steps = 2.0 * exponential(2.0 * local_epsilon + log_gap(local_epsilon))
    step = all_steps / clients
    if math.isinf(all_steps) or step > 700.0:
        return math.inf
    tail = all_steps * math.sqrt(2.0 * log_inverse(delta) / clients)
    return (all_steps * math.expm1(step) + tail) * UP


def simplified(*, local_epsilon: float, delta: float, scale: float) -> float:
    """7 · scale · ε₀ √log(1/δ), refused outside ε₀ ≤ 1 and δ ≤ 1/100."""
    validate.non_negative(local_epsilon=local_epsilon)
    validate.open_unit(delta=delta)
    if not local_epsilon <= 1.0:
        raise NotCovered("local_epsilon", local_epsilon, "the simplified form needs at most 1")
    if not delta <= 0.01:
        raise NotCovered("delta", delta, "the simplified form needs at most 1/100")
    return 7.0 * scale * local_epsilon * math.sqrt(log_inverse(delta)) * UP


def checked_loads(loads: Loads) -> NDArray[np.float64]:
    """The loads as floats, checked: integers of at least 0 with a positive sum."""
    sizes = np.asarray(loads)
    if sizes.ndim != 1 or sizes.size == 0 or not np.issubdtype(sizes.dtype, np.integer):
        raise InvalidValue("loads", loads, "must be a non-empty sequence of integers")
    if sizes.min() < 0 or not 1 <= sizes.sum() <= validate.MOST_SLOTS:
        raise InvalidValue("loads", loads, "must be at least 0 each, and not all 0")
    return sizes.astype(np.float64)


def replacement_theorem(*, slots: int, largest_weight: float) -> Amplification:
    """Return the theorem of random replacement into ``slots`` slots."""
    validate.count(slots=slots)
    validate.probability(largest_weight=largest_weight)
    return Amplification(power=0.5, scale=largest_weight / math.sqrt(slots), randomizers=slots)


def _swapping(*, clients: int) -> Amplification:
    validate.count(clients=clients)
    return Amplification(power=1.5, scale=1.0 / math.sqrt(clients), randomizers=clients)


def _bins(*, loads: Loads) -> Amplification:
    sizes = checked_loads(loads)
    clients = float(sizes.sum())
    scale = float(np.linalg.norm(sizes)) / clients
    return Amplification(power=2.0, scale=scale, randomizers=int(clients))
