"""Balls in bins: the number of clients (load) of a slot, if each of n clients draws one of m slots.

Each client takes part with probability p₀. An empty slot gets a dummy, a report without data.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import betainc

from checkins import validate
from checkins.accounting.paper.amplification import ROUND_UP
from checkins.errors import InvalidValue

_TAIL_SLACK = 1.0 + 1e-6  # more than the error of scipy's incomplete beta function
_MIN_TAIL = 1e-300  # a smaller tail probability may have underflowed
_MAX_DEVIATIONS = 12.0  # standard deviations from the mean beyond which loads are ignored


def empty_probability(*, clients: int, slots: int, participation: float) -> float:
    """Return (1 − p₀/m)^n, the probability that no client checks in to a given slot.

    Theorem:     proof of [BKMTT20, Prop 3.4], arXiv:2007.06605v2. Exact.
    Neighbours:  none.
    Rounding:    up.

    >>> round(empty_probability(clients=1000, slots=100, participation=0.1), 4)
    0.3677
    """
    validate.count(clients=clients, slots=slots)
    validate.probability(participation=participation)
    probability = participation / slots
    if probability >= 1.0:
        return 0.0
    return min(1.0, math.exp(clients * math.log1p(-probability)) * ROUND_UP)


def dummies_fixed(*, clients: int, slots: int, participation: float) -> float:
    """Return m(1 − p₀/m)^n, the expected number of dummies in the fixed window.

    Theorem:     [BKMTT20, Prop 3.4], arXiv:2007.06605v2. Exact, although the paper says "at most".
    Neighbours:  none.
    Rounding:    up.

    >>> round(dummies_fixed(clients=1000, slots=100, participation=0.1), 2)
    36.77
    """
    return slots * empty_probability(clients=clients, slots=slots, participation=participation)


def dummies_fixed_bound(*, clients: int, slots: int, participation: float) -> float:
    """Return m/e^c with c = n p₀/m check-ins per slot, an upper bound on ``dummies_fixed``.

    Theorem:     [BKMTT20, Prop 3.4], arXiv:2007.06605v2, with p₀ = cm/n.
    Neighbours:  none.
    Rounding:    up.

    >>> round(dummies_fixed_bound(clients=1000, slots=100, participation=0.1), 2)
    36.79
    """
    validate.count(clients=clients, slots=slots)
    validate.probability(participation=participation)
    return slots * math.exp(-clients * (participation / slots)) * ROUND_UP


def dummies_sliding(*, clients: int, window: int) -> float:
    """Return (n − m + 1)(1 − 1/m)^m, the expected number of dummies in the sliding window.

    Theorem:     proof of [BKMTT20, Prop 4.4], arXiv:2007.06605v2. Exact, participation 1.
    Neighbours:  none.
    Rounding:    up.
    Differs:     the sum is over the slots m to n; the proof stops at n − m + 1.

    >>> round(dummies_sliding(clients=1000, window=100), 2)
    329.8
    """
    updates = _sliding_updates(clients=clients, window=window)
    return updates * empty_probability(clients=window, slots=window, participation=1.0)


def dummies_sliding_bound(*, clients: int, window: int) -> float:
    """Return (n − m + 1)/e, an upper bound on ``dummies_sliding``.

    Theorem:     [BKMTT20, Prop 4.4], arXiv:2007.06605v2. Participation 1.
    Neighbours:  none.
    Rounding:    up.

    >>> round(dummies_sliding_bound(clients=1000, window=100), 2)
    331.46
    """
    return _sliding_updates(clients=clients, window=window) / math.e * ROUND_UP


def load_norm(*, clients: int, slots: int, delta: float) -> float:
    """Return a bound on the 2-norm of the slots' loads, valid with probability at least 1 − δ.

        ‖L‖₂ ≤ √(n + n²/m) + √(n log(1/δ))

    Theorem:     [BKMTT20, Lem A.6], arXiv:2007.06605v2. Participation 1.
    Neighbours:  none; the loads do not depend on data.
    Rounding:    up.

    >>> round(load_norm(clients=10_000, slots=100, delta=1e-6), 1)
    1376.7
    """
    validate.count(clients=clients, slots=slots)
    validate.open_unit(delta=delta)
    mean = math.sqrt(clients + clients / slots * clients)
    return (mean + math.sqrt(clients * -math.log(delta))) * ROUND_UP


def expected_inverse_load(*, clients: int, slots: int) -> float:
    """Return E[1/S | S > 0] for S ~ Binomial(n, 1/m), the number of reports in a slot.

    It is the factor by which averaging a slot's reports reduces the variance of the noise.

    Theorem:     proof of [BKMTT20, Thm 4.2], arXiv:2007.06605v2. Exact, participation 1.
    Neighbours:  none.
    Rounding:    up, by a relative 1e-9. Loads over 12 standard deviations from the mean, with a
                 probability below 1e-30, are left out.
    Differs:     the paper uses m/n, which is too small by Jensen's inequality.

    >>> round(expected_inverse_load(clients=1000, slots=100), 4)
    0.1129
    """
    validate.count(clients=clients, slots=slots)
    if slots == 1:
        return ROUND_UP / clients
    p, q = 1.0 / slots, 1.0 - 1.0 / slots
    mean = clients / slots
    half_width = _MAX_DEVIATIONS * math.sqrt(mean * q) + 50.0
    low, high = max(1, math.floor(mean - half_width)), min(clients, math.ceil(mean + half_width))
    loads = np.arange(low, high + 1, dtype=np.float64)
    # Logarithms of the ratios of neighbouring weights, so that no large factorial is needed.
    steps = np.log1p((mean + p - loads[1:]) / (loads[1:] * q))
    logs = np.concatenate(([0.0], np.cumsum(steps)))
    weights = np.exp(logs - logs.max())
    return float((weights / loads).sum() / weights.sum()) * (1.0 + 1e-9)


def overflow_probability(*, clients: int, slots: int, participation: float, capacity: int) -> float:
    """Return a bound on the probability that some slot gets K or more of the n − 1 other clients.

    The bound is min(1, m · Pr[Binomial(n − 1, p₀/m) ≥ K]), where K is ``capacity``. In a slot with
    K other clients, the client can displace another client.

    Theorem:     union bound over slots; the binomial tail is an incomplete beta function.
    Neighbours:  none; check-ins do not depend on data.
    Rounding:    up, by a relative 1e-6, and never below m · 1e-300.

    >>> f"{overflow_probability(clients=1000, slots=100, participation=1.0, capacity=30):.3e}"
    '2.017e-05'
    """
    validate.count(clients=clients, slots=slots, capacity=capacity)
    validate.probability(participation=participation)
    others, probability = clients - 1, participation / slots
    if others < capacity or probability == 0.0:
        return 0.0
    tail = float(betainc(float(capacity), float(others - capacity + 1), probability))
    return min(1.0, slots * max(tail * _TAIL_SLACK, _MIN_TAIL))


def _sliding_updates(*, clients: int, window: int) -> int:
    """Return n − m + 1, the number of slots in which the server updates the model."""
    validate.count(clients=clients, window=window)
    if window > clients:
        raise InvalidValue("window", window, f"must be at most clients = {clients}")
    return clients - window + 1
