"""One epoch in n/m runs: the fixed window with p₀ = m/n, repeated n/m times adaptively.

Where m does not divide n, ⌊n/m⌋ complete runs are made, and the bounds for n/m cover them.
"""

from __future__ import annotations

import math
from functools import partial

from checkins import validate
from checkins.accounting.paper.amplification import (
    UP,
    best_split,
    exponential,
    log_gap,
    log_inverse,
)
from checkins.accounting.paper.statements import fixed_window
from checkins.errors import InvalidValue, NotCovered


def one_run(*, local_epsilon: float, beta: float, clients: int, slots: int) -> float:
    """ε₁ of one run: the fixed window at p₀ = m/n and δ = β.

    Theorem:     proof of [BKMTT20, Cor 3.3], arXiv:2007.06605v2, first line.
    Neighbours:  replace-one.
    Rounding:    up.

    >>> round(one_run(local_epsilon=0.5, beta=1e-8, clients=170, slots=100), 4)
    0.2986
    """
    _check(clients=clients, slots=slots)
    validate.open_unit(beta=beta)
    theorem = fixed_window(slots=slots, participation=slots / clients)
    return theorem.epsilon(local_epsilon=local_epsilon, delta=beta)


def one_run_bound(*, local_epsilon: float, beta: float, clients: int, slots: int) -> float:
    """ε₁ ≤ 2(e^ε₀ − 1)√(2 m e^ε₀ log(1/β))/n: the closed form that the corollary uses.

    Theorem:     proof of [BKMTT20, Cor 3.3], arXiv:2007.06605v2, second line. Above ``one_run``
                 under the corollary's preconditions.
    Neighbours:  replace-one.
    Rounding:    up.

    >>> round(one_run_bound(local_epsilon=0.5, beta=1e-8, clients=170, slots=100), 3)
    0.595
    """
    _check(clients=clients, slots=slots)
    validate.non_negative(local_epsilon=local_epsilon)
    validate.open_unit(beta=beta)
    root = math.sqrt(2.0 * slots * log_inverse(beta))
    return 2.0 * exponential(_log_growth(local_epsilon)) * root / clients * UP


def total_delta(*, delta: float, beta: float, clients: int, slots: int) -> float:
    """δ + nβ/m: the total δ of all runs.

    Theorem:     proof of [BKMTT20, Cor 3.3], arXiv:2007.06605v2.
    Neighbours:  replace-one.
    Rounding:    up.
    Differs:     the corollary names only δ.

    >>> total_delta(delta=1e-6, beta=1e-9, clients=10_000, slots=100)
    1.10000...e-06
    """
    _check(clients=clients, slots=slots)
    validate.open_unit(delta=delta, beta=beta)
    return (delta + clients / slots * beta) * UP


def repeated(*, local_epsilon: float, delta: float, beta: float, clients: int, slots: int) -> float:
    """ε of all runs by advanced composition; the total is ``total_delta``.

        ε = ε₁ √(2 (n/m) log(1/δ)) + (n/m) ε₁ (e^ε₁ − 1),     ε₁ = ``one_run``

    Theorem:     proof of [BKMTT20, Cor 3.3], arXiv:2007.06605v2; [DR14, Thm 3.20].
    Neighbours:  replace-one.
    Rounding:    up.
    Differs:     n ≥ m is required; the corollary's other preconditions serve only its closed form.

    >>> given = dict(local_epsilon=1.0, clients=10_000, slots=100)
    >>> round(repeated(delta=5e-7, beta=5e-9, **given), 4)
    0.9747
    """
    validate.open_unit(delta=delta)
    single = one_run(local_epsilon=local_epsilon, beta=beta, clients=clients, slots=slots)
    if single > 700.0:
        return math.inf
    runs = clients / slots
    tail = single * math.sqrt(2.0 * runs * log_inverse(delta))
    return (tail + runs * single * math.expm1(single)) * UP


def repeated_explicit(
    *, local_epsilon: float, delta: float, beta: float, clients: int, slots: int
) -> float:
    """ε of all runs in closed form, under the corollary's preconditions.

        ε = 4(e^ε₀ − 1)√(e^ε₀ log(1/β) log(1/δ)/n) + 12(e^ε₀ − 1)²e^ε₀ log(1/β)/n

    Theorem:     proof of [BKMTT20, Cor 3.3], arXiv:2007.06605v2, last display.
    Neighbours:  replace-one.
    Rounding:    up.
    Differs:     the first term has log(1/δ) where one display has log(1/β); ε₁ ≤ 1/2 and n ≥ m are
                 checked, since the stated preconditions do not imply them.

    >>> given = dict(local_epsilon=1.0, clients=10_000, slots=100)
    >>> round(repeated_explicit(delta=5e-7, beta=5e-9, **given), 4)
    2.0712
    """
    validate.open_unit(delta=delta)
    _check_corollary(local_epsilon=local_epsilon, beta=beta, clients=clients, slots=slots)
    growth = exponential(_log_growth(local_epsilon)) / math.sqrt(clients)
    log_beta = log_inverse(beta)
    tail = 4.0 * growth * math.sqrt(log_beta * log_inverse(delta))
    return (tail + 12.0 * growth * growth * log_beta) * UP


def repeated_total(*, local_epsilon: float, delta: float, clients: int, slots: int) -> float:
    """Smallest ε of ``repeated`` over splits of a total ``delta`` into δ + nβ/m.

    Theorem:     proof of [BKMTT20, Cor 3.3], arXiv:2007.06605v2; [DR14, Thm 3.20].
    Neighbours:  replace-one.
    Rounding:    up; the split is the best of SHARES − 1.

    >>> round(repeated_total(local_epsilon=1.0, delta=1e-6, clients=10_000, slots=100), 4)
    0.9744
    """
    _check(clients=clients, slots=slots)
    bound = partial(repeated, local_epsilon=local_epsilon, clients=clients, slots=slots)
    return best_split(
        lambda part: bound(delta=part, beta=(delta - part) * slots / clients), delta=delta
    )


def repeated_explicit_total(
    *, local_epsilon: float, delta: float, clients: int, slots: int
) -> float:
    """Smallest ε of ``repeated_explicit`` over splits of a total ``delta`` into δ + nβ/m.

    Theorem:     proof of [BKMTT20, Cor 3.3], arXiv:2007.06605v2, last display.
    Neighbours:  replace-one.
    Rounding:    up; the split is the best of SHARES − 1 among those the preconditions admit.

    >>> round(repeated_explicit_total(local_epsilon=1.0, delta=1e-6, clients=10_000, slots=100), 4)
    2.071
    """
    _check(clients=clients, slots=slots)
    bound = partial(repeated_explicit, local_epsilon=local_epsilon, clients=clients, slots=slots)
    return best_split(
        lambda part: bound(delta=part, beta=(delta - part) * slots / clients), delta=delta
    )


def _log_growth(local_epsilon: float) -> float:
    return log_gap(local_epsilon) + local_epsilon / 2.0


def _check(*, clients: int, slots: int) -> None:
    validate.count(clients=clients, slots=slots)
    if clients < slots:
        raise InvalidValue("slots", slots, f"must be at most clients = {clients}: p₀ is m/n")


def _check_corollary(*, local_epsilon: float, beta: float, clients: int, slots: int) -> None:
    _check(clients=clients, slots=slots)
    validate.non_negative(local_epsilon=local_epsilon)
    validate.open_unit(beta=beta)
    most = 2.0 / 3.0 * math.log(clients / (8.0 * math.sqrt(slots)))
    if not local_epsilon <= most:
        raise NotCovered(
            "local_epsilon",
            local_epsilon,
            f"must be at most (2/3) log(n/(8√m)) = {most:.4g} for n = {clients}, m = {slots}",
        )
    needed = exponential(2.0 * _log_growth(local_epsilon)) * math.sqrt(slots) * log_inverse(beta)
    if not clients >= needed:
        raise NotCovered(
            "clients",
            clients,
            f"must be at least (e^ε₀ − 1)²e^ε₀ √m log(1/β) = {needed:.4g} for beta = {beta:.3g}",
        )
    exact = one_run(local_epsilon=local_epsilon, beta=beta, clients=clients, slots=slots)
    bound = one_run_bound(local_epsilon=local_epsilon, beta=beta, clients=clients, slots=slots)
    if not bound <= 0.5:
        raise NotCovered(
            "local_epsilon",
            local_epsilon,
            f"one run's epsilon_1 = {bound:.3f} must be at most 1/2 (n = {clients}, m = {slots})",
        )
    if not exact <= bound:
        raise NotCovered("beta", beta, "is so near 1 that the closed form of epsilon_1 fails")
