"""Exact laws of counts: how many slots are empty, how many clients meet, when n pick among m."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

Law = NDArray[np.float64]
"""Law[k] is the probability of k."""
Worth = Callable[[int], int]
"""What a slot with so many check-ins counts for."""


def is_likely(count: int, law: Law, alpha: float) -> bool:
    """False with probability at most ``alpha`` for a count of this law: half of it on each side."""
    return bool(law[: count + 1].sum() > alpha / 2 and law[count:].sum() > alpha / 2)


def binomial(trials: int, chance: float) -> Law:
    return np.asarray(binom.pmf(np.arange(trials + 1), trials, chance))


def summed(law: Law, times: int) -> Law:
    """The law of the sum of independent copies: no term is negative, so no digit is lost.

    What is left out, below 1e-60 each, is nothing beside any ``alpha``.
    """
    total, power = np.ones(1), law
    while times:
        if times % 2:
            total = _convolved(total, power)
        times //= 2
        power = _convolved(power, power) if times else power
    return total


def _convolved(one: Law, other: Law) -> Law:
    both = np.convolve(one, other)
    both[both < 1e-60] = 0.0  # denormal numbers take a processor a hundred times longer
    return np.trim_zeros(both, "b")


def mean(law: Law) -> float:
    return float(np.arange(len(law)) @ law)


def over_slots(n: int, m: int, participation: float, *, worth: Worth, most: int) -> Law:
    """The law of worth(L_1) + ... + worth(L_m), at most ``most``, for the loads L of m slots.

    The coefficient of y^n / n! in e^((1 − p) y) (Σ_k x^worth(k) (p y/m)^k / k!)^m: each client
    abstains, or picks a slot. Rows go by the power of y, columns by that of x.
    """
    ways = np.zeros((n + 1, most + 1))
    ways[:, 0] = [(1.0 - participation) ** k / math.factorial(k) for k in range(n + 1)]
    for _ in range(m):
        more = np.zeros_like(ways)
        for k in range(n + 1):
            chance = (participation / m) ** k / math.factorial(k)
            if worth(k) <= most:
                more[k:, worth(k) :] += chance * ways[: n + 1 - k, : most + 1 - worth(k)]
        ways = more
    return ways[n] * float(math.factorial(n))


def dummies(n: int, m: int, participation: float, *, capacity: int = 1) -> Law:
    """How many dummies m slots need: with capacity 1, how many slots are empty."""
    most = m * capacity
    return over_slots(n, m, participation, worth=lambda load: max(0, capacity - load), most=most)


def meetings(n: int, m: int) -> Law:
    """How many pairs of n clients meet in a slot: (‖L‖² − n)/2."""
    most = math.comb(n, 2)
    return over_slots(n, m, 1.0, worth=lambda load: math.comb(load, 2), most=most)


def dummies_sliding(n: int, m: int) -> Law:
    """The same for the sliding window: client i wakes at slot i and picks from i to i + m − 1.

    The state is the set of slots from i on that are taken, as bits, with the count of empty ones.
    """
    laws = {0: np.eye(1, n - m + 2)[0]}
    for i in range(1, n + 1):
        woken: dict[int, Law] = {}
        for taken, law in laws.items():
            for pick in range(m):
                key = taken | 1 << pick
                woken[key] = woken.get(key, np.zeros_like(law)) + law / m
        laws = {}
        for taken, law in woken.items():
            counts = i >= m and not taken & 1
            after = np.concatenate(([0.0], law[:-1])) if counts else law
            laws[taken >> 1] = laws.get(taken >> 1, np.zeros_like(law)) + after
    return np.sum(list(laws.values()), axis=0)
