"""The paper's privacy theorems for its three protocols, and for the mechanisms in their proofs.

[BKMTT20] is "Privacy Amplification via Random Check-Ins", arXiv:2007.06605v2. Here n is
``clients``, m is ``slots`` (``window`` for the sliding protocol) and p₀ is ``participation``. One
report is (ε₀, δ₀)-DP. A randomizer is pure if δ₀ = 0, and approximate otherwise. Where a docstring
gives only x, ε = x²/2 + x √(2 log(1/δ)). Most theorems are returned as an ``Amplification``, which
computes ε for pure and for approximate randomizers. A function whose name ends in ``_total`` takes
the total δ and chooses how to split it. A bound can be larger than
``amplification.known_slot_epsilon``, the ε that holds even if the adversary knows the client's
slot. In that case, this ε is the better bound. Theorems "at index 1" (replacement, swapping and
bins) compare datasets that differ in record 1.

Corollary 3.3 is about one epoch: the fixed window with p₀ = m/n, run n/m times. If m does not
divide n, there are ⌊n/m⌋ complete runs, and the bounds for n/m runs cover them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from checkins import validate
from checkins.accounting.paper import occupancy
from checkins.accounting.paper.amplification import (
    ROUND_UP,
    Amplification,
    best_split,
    exp_or_infinity,
    log_expm1,
)
from checkins.errors import InvalidValue, NotCovered

Loads = Sequence[int] | NDArray[np.int64]
"""The number of records in each bin, in order."""


def fixed_window(*, slots: int, participation: float) -> Amplification:
    """Return the theorem for check-ins in a fixed window of m slots.

        ε = p₀²e^ε₀(e^ε₀ − 1)²/(2m) + p₀(e^ε₀ − 1) √(2 e^ε₀ log(1/δ)/m)

    The method ``simplified`` gives 7 p₀ ε₀ √(log(1/δ)/m).

    Theorem:     [BKMTT20, Thm 3.2], arXiv:2007.06605v2.
    Neighbours:  replace-one.
    Rounding:    up.
    Differs:     m is inside the root, as in the theorem; in the proof, m is outside.

    >>> theorem = fixed_window(slots=10_000, participation=0.1)
    >>> round(theorem.epsilon(local_epsilon=1.0, delta=1e-6), 4)
    0.0149
    >>> round(theorem.simplified(local_epsilon=1.0, delta=1e-6), 4)
    0.026
    >>> given = dict(local_epsilon=0.1, local_delta=1e-16, delta=1e-6)
    >>> found = fixed_window(slots=1000, participation=1.0).approximate(**given)
    >>> round(found.epsilon, 4), f"{found.delta:.4e}"
    (0.3056, '1.0004e-06')
    """
    validate.probability(participation=participation)
    return replacement(slots=slots, largest_weight=participation)


def sliding_window(*, window: int) -> Amplification:
    """Return the theorem for a sliding window of m slots that starts when the client wakes.

        ε = e^ε₀(e^ε₀ − 1)²/(2m) + (e^ε₀ − 1) √(2 e^ε₀ log(1/δ)/m)

    Theorem:     [BKMTT20, Thm 4.3], arXiv:2007.06605v2. Participation 1.
    Neighbours:  replace-one.
    Rounding:    up.
    Differs:     the theorem counts n updates of the server, but there are n − m + 1. The theorem's
                 proof adds m δ₀ to δ, but the code does not (docs/theory/slips.md).

    >>> round(sliding_window(window=1000).epsilon(local_epsilon=1.0, delta=1e-6), 4)
    0.4749
    """
    validate.count(window=window)
    return fixed_window(slots=window, participation=1.0)


def averaged(*, load_delta: float, clients: int, slots: int) -> Amplification:
    """Return the theorem for averages of all reports of a slot. The total δ is δ + ``load_delta``.

        x = e^(2ε₀)(e^ε₀ − 1) ε₁,     ε₁ = √(1/n + 1/m) + √(log(1/δ₂)/n),     δ₂ = ``load_delta``

    With probability at most δ₂, the 2-norm of the slots' numbers of reports exceeds the bound of
    ``occupancy.load_norm``, which the theorem uses.

    Theorem:     [BKMTT20, Thm 4.1], arXiv:2007.06605v2. Participation 1, clients do not collude.
    Neighbours:  replace-one.
    Rounding:    up.

    >>> theorem = averaged(load_delta=5e-7, clients=100_000, slots=1000)
    >>> round(theorem.epsilon(local_epsilon=0.5, delta=5e-7), 4)
    0.4193
    """
    validate.open_unit(load_delta=load_delta)
    norm = occupancy.load_norm(clients=clients, slots=slots, delta=load_delta)
    return Amplification(2.0, norm / clients, clients, load_delta)


def averaged_total(
    *, local_epsilon: float, local_delta: float, delta: float, clients: int, slots: int
) -> float:
    """Return the smallest ε of ``averaged``, over splits of ``delta`` into its δ and its δ₂.

    Theorem:     [BKMTT20, Thm 4.1], arXiv:2007.06605v2. Participation 1, clients do not collude.
    Neighbours:  replace-one.
    Rounding:    up. Only the splits on the grid of ``amplification.best_split`` are tried, so a
                 slightly better split may exist.

    >>> given = dict(delta=1e-6, slots=1000)
    >>> round(averaged_total(local_epsilon=0.5, local_delta=0.0, clients=100_000, **given), 4)
    0.416
    >>> given = dict(local_epsilon=0.05, local_delta=1e-20, delta=1e-6)
    >>> round(averaged_total(clients=1000, slots=100, **given), 4)
    1.356
    """

    def bound(load_delta: float) -> float:
        theorem = averaged(load_delta=load_delta, clients=clients, slots=slots)
        return theorem.epsilon_at_total_delta(
            local_epsilon=local_epsilon, local_delta=local_delta, delta=delta - load_delta
        )

    return best_split(bound, delta=delta)


def replacement(*, slots: int, largest_weight: float) -> Amplification:
    """Return the theorem for m adaptive randomizers, if a random one of them gets the first record.

        x = w (e^ε₀ − 1) √(e^ε₀/m),     w = ``largest_weight``

    The first record is used with probability at most w.

    Theorem:     [BKMTT20, Thm A.4], arXiv:2007.06605v2.
    Neighbours:  replace-one, at index 1.
    Rounding:    up.

    >>> theorem = replacement(slots=1000, largest_weight=1.0)
    >>> round(theorem.epsilon(local_epsilon=1.0, delta=1e-6), 4)
    0.4749
    """
    validate.count(slots=slots)
    validate.probability(largest_weight=largest_weight)
    return Amplification(power=0.5, scale=largest_weight / math.sqrt(slots), randomizers=slots)


def swapping(*, clients: int) -> Amplification:
    """Return the theorem for n adaptive randomizers, if record 1 is swapped with a random record.

        x = e^(3ε₀/2) (e^ε₀ − 1) / √n

    Theorem:     [BKMTT20, Thm A.7], arXiv:2007.06605v2.
    Neighbours:  replace-one, at index 1.
    Rounding:    up.

    >>> round(swapping(clients=1000).epsilon(local_epsilon=1.0, delta=1e-6), 4)
    1.3097
    """
    validate.count(clients=clients)
    return Amplification(power=1.5, scale=1.0 / math.sqrt(clients), randomizers=clients)


def bins(*, loads: Loads) -> Amplification:
    """Return the theorem for averages within bins of sizes ℓ, if record 1 is swapped at random.

        x = e^(2ε₀) (e^ε₀ − 1) ‖ℓ‖₂ / n,     n = Σ ℓ

    Theorem:     [BKMTT20, Thm A.5], arXiv:2007.06605v2.
    Neighbours:  replace-one, at index 1, given the loads.
    Rounding:    up.

    >>> round(bins(loads=[10] * 1000).epsilon(local_epsilon=1.0, delta=1e-6), 4)
    2.1911
    """
    sizes = checked_loads(loads)
    clients = float(sizes.sum())
    scale = float(np.linalg.norm(sizes)) / clients
    return Amplification(power=2.0, scale=scale, randomizers=int(clients))


def checked_loads(loads: Loads) -> NDArray[np.float64]:
    """Return the loads as floats. They must be integers of at least 0, and not all 0."""
    sizes = np.asarray(loads)
    if sizes.ndim != 1 or sizes.size == 0 or not np.issubdtype(sizes.dtype, np.integer):
        raise InvalidValue("loads", loads, "must be a non-empty sequence of integers")
    if sizes.min() < 0 or not 1 <= sizes.sum() <= validate.MAX_SLOTS:
        raise InvalidValue("loads", loads, "must all be at least 0, and not all 0")
    return sizes.astype(np.float64)


def shuffling(*, clients: int) -> Amplification:
    """Return the theorem for n adaptive randomizers that get the records in random order.

        ε = e^(3ε₀)(e^ε₀ − 1)²/(2n) + e^(3ε₀/2)(e^ε₀ − 1) √(2 log(1/δ)/n)

    Theorem:     [BKMTT20, Thm 5.1], arXiv:2007.06605v2.
    Neighbours:  replace-one, at any index.
    Rounding:    up.

    >>> round(shuffling(clients=10_000).epsilon(local_epsilon=1.0, delta=1e-6), 4)
    0.4078
    """
    return swapping(clients=clients)


def shuffling_earlier(*, local_epsilon: float, delta: float, clients: int) -> float:
    """Return ε of shuffling by an earlier theorem, which [BKMTT20] improves.

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
    all_steps = 2.0 * exp_or_infinity(2.0 * local_epsilon + log_expm1(local_epsilon))
    step = all_steps / clients
    if math.isinf(all_steps) or step > 700.0:
        return math.inf
    tail = all_steps * math.sqrt(2.0 * -math.log(delta) / clients)
    return (all_steps * math.expm1(step) + tail) * ROUND_UP


def one_run(*, local_epsilon: float, beta: float, clients: int, slots: int) -> float:
    """Return ε₁ of one run: the ε of the fixed window at p₀ = m/n, if the δ of one run is β.

    Theorem:     proof of [BKMTT20, Cor 3.3], arXiv:2007.06605v2, first line.
    Neighbours:  replace-one.
    Rounding:    up.

    >>> round(one_run(local_epsilon=0.5, beta=1e-8, clients=170, slots=100), 4)
    0.2986
    """
    _check_epoch(clients=clients, slots=slots)
    validate.open_unit(beta=beta)
    theorem = fixed_window(slots=slots, participation=slots / clients)
    return theorem.epsilon(local_epsilon=local_epsilon, delta=beta)


def one_run_bound(*, local_epsilon: float, beta: float, clients: int, slots: int) -> float:
    """Return 2(e^ε₀ − 1)√(2 m e^ε₀ log(1/β))/n, the closed form of ε₁ in the corollary.

    Theorem:     proof of [BKMTT20, Cor 3.3], arXiv:2007.06605v2, second line. Under the corollary's
                 preconditions, the result is an upper bound on ``one_run``.
    Neighbours:  replace-one.
    Rounding:    up.

    >>> round(one_run_bound(local_epsilon=0.5, beta=1e-8, clients=170, slots=100), 3)
    0.595
    """
    _check_epoch(clients=clients, slots=slots)
    validate.non_negative(local_epsilon=local_epsilon)
    validate.open_unit(beta=beta)
    root = math.sqrt(2.0 * slots * -math.log(beta))
    return 2.0 * exp_or_infinity(_log_growth(local_epsilon)) * root / clients * ROUND_UP


def total_delta(*, delta: float, beta: float, clients: int, slots: int) -> float:
    """Return δ + nβ/m, the total δ of all runs.

    β is the δ of each of the n/m runs, and δ is that of their composition.

    Theorem:     proof of [BKMTT20, Cor 3.3], arXiv:2007.06605v2.
    Neighbours:  replace-one.
    Rounding:    up.
    Differs:     the corollary states δ alone.

    >>> total_delta(delta=1e-6, beta=1e-9, clients=10_000, slots=100)
    1.10000...e-06
    """
    _check_epoch(clients=clients, slots=slots)
    validate.open_unit(delta=delta, beta=beta)
    return (delta + clients / slots * beta) * ROUND_UP


def repeated(*, local_epsilon: float, delta: float, beta: float, clients: int, slots: int) -> float:
    """Return ε of all runs by advanced composition. The total δ is ``total_delta``.

        ε = ε₁ √(2 (n/m) log(1/δ)) + (n/m) ε₁ (e^ε₁ − 1),     ε₁ = ``one_run``

    Theorem:     proof of [BKMTT20, Cor 3.3], arXiv:2007.06605v2; [DR14, Thm 3.20].
    Neighbours:  replace-one.
    Rounding:    up.
    Differs:     only n ≥ m is required; only ``repeated_explicit`` needs the other preconditions.

    >>> given = dict(local_epsilon=1.0, clients=10_000, slots=100)
    >>> round(repeated(delta=5e-7, beta=5e-9, **given), 4)
    0.9747
    """
    validate.open_unit(delta=delta)
    run_epsilon = one_run(local_epsilon=local_epsilon, beta=beta, clients=clients, slots=slots)
    if run_epsilon > 700.0:
        return math.inf
    runs = clients / slots
    tail = run_epsilon * math.sqrt(2.0 * runs * -math.log(delta))
    return (tail + runs * run_epsilon * math.expm1(run_epsilon)) * ROUND_UP


def repeated_explicit(
    *, local_epsilon: float, delta: float, beta: float, clients: int, slots: int
) -> float:
    """Return ε of all runs in closed form. Raise ``NotCovered`` if a precondition fails.

        ε = 4(e^ε₀ − 1)√(e^ε₀ log(1/β) log(1/δ)/n) + 12(e^ε₀ − 1)²e^ε₀ log(1/β)/n

    Theorem:     proof of [BKMTT20, Cor 3.3], arXiv:2007.06605v2, last display.
    Neighbours:  replace-one.
    Rounding:    up.
    Differs:     the first term has log(1/δ); one display of the paper has log(1/β) there. ε₁ ≤ 1/2
                 and n ≥ m are checked, because the stated preconditions do not imply them.

    >>> given = dict(local_epsilon=1.0, clients=10_000, slots=100)
    >>> round(repeated_explicit(delta=5e-7, beta=5e-9, **given), 4)
    2.0712
    """
    validate.open_unit(delta=delta)
    _check_corollary(local_epsilon=local_epsilon, beta=beta, clients=clients, slots=slots)
    growth = exp_or_infinity(_log_growth(local_epsilon)) / math.sqrt(clients)
    log_beta = -math.log(beta)
    tail = 4.0 * growth * math.sqrt(log_beta * -math.log(delta))
    return (tail + 12.0 * growth * growth * log_beta) * ROUND_UP


def repeated_total(
    *,
    local_epsilon: float,
    delta: float,
    clients: int,
    slots: int,
    form: Callable[..., float] = repeated,
) -> float:
    """Return the smallest ε of ``form`` over splits of a total ``delta`` into δ + nβ/m.

    ``form`` is ``repeated`` or ``repeated_explicit``.

    Theorem:     proof of [BKMTT20, Cor 3.3], arXiv:2007.06605v2; [DR14, Thm 3.20].
    Neighbours:  replace-one.
    Rounding:    up. Only the splits on the grid of ``amplification.best_split`` that satisfy the
                 preconditions are tried, so a slightly better split may exist.

    >>> given = dict(local_epsilon=1.0, delta=1e-6, clients=10_000, slots=100)
    >>> round(repeated_total(**given), 4), round(repeated_total(form=repeated_explicit, **given), 4)
    (0.9744, 2.071)
    """
    _check_epoch(clients=clients, slots=slots)
    bound = partial(form, local_epsilon=local_epsilon, clients=clients, slots=slots)
    return best_split(
        lambda part: bound(delta=part, beta=(delta - part) * slots / clients), delta=delta
    )


def _log_growth(local_epsilon: float) -> float:
    """Return log((e^ε₀ − 1) e^(ε₀/2))."""
    return log_expm1(local_epsilon) + local_epsilon / 2.0


def _check_epoch(*, clients: int, slots: int) -> None:
    validate.count(clients=clients, slots=slots)
    if clients < slots:
        raise InvalidValue(
            "slots", slots, f"must be at most clients = {clients}, because p₀ is m/n"
        )


def _check_corollary(*, local_epsilon: float, beta: float, clients: int, slots: int) -> None:
    _check_epoch(clients=clients, slots=slots)
    validate.non_negative(local_epsilon=local_epsilon)
    validate.open_unit(beta=beta)
    limit = 2.0 / 3.0 * math.log(clients / (8.0 * math.sqrt(slots)))
    if not local_epsilon <= limit:
        raise NotCovered(
            "local_epsilon",
            local_epsilon,
            f"must be at most (2/3) log(n/(8√m)) = {limit:.4g} for n = {clients}, m = {slots}",
        )
    least = exp_or_infinity(2.0 * _log_growth(local_epsilon)) * math.sqrt(slots) * -math.log(beta)
    if not clients >= least:
        raise NotCovered(
            "clients",
            clients,
            f"must be at least (e^ε₀ − 1)²e^ε₀ √m log(1/β) = {least:.4g} for beta = {beta:.3g}",
        )
    exact = one_run(local_epsilon=local_epsilon, beta=beta, clients=clients, slots=slots)
    closed = one_run_bound(local_epsilon=local_epsilon, beta=beta, clients=clients, slots=slots)
    if not closed <= 0.5:
        raise NotCovered(
            "local_epsilon",
            local_epsilon,
            f"one run's epsilon_1 = {closed:.3f} must be at most 1/2 (n = {clients}, m = {slots})",
        )
    if not exact <= closed:
        raise NotCovered("beta", beta, "is too close to 1 for the closed form of epsilon_1")
