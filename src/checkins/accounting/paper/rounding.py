"""Numbers kept on the safe side: overflow becomes infinity, searches return the side that holds."""

from __future__ import annotations

import math
from collections.abc import Callable

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


def first_true(holds: Callable[[float], bool], *, false: float, true: float) -> float:
    """Bisect a predicate that switches once between two points; the answer itself holds.

    >>> first_true(lambda x: x * x >= 2.0, false=0.0, true=2.0)
    1.4142135623730951
    """
    while True:
        middle = false + (true - false) / 2.0
        if middle in (false, true):
            return true
        if holds(middle):
            true = middle
        else:
            false = middle
