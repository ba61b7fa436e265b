"""Exponentials and probabilities of the rounded normal distribution, in integer arithmetic.

A real number x in [0, 1] is represented by 2**BITS * x, rounded to an integer below or above. One
*unit* is 2**-BITS. No floats are used, so tables of thresholds are the same on every machine.

Let Y be normal with mean 0 and deviation ``scale``. The mass P(round(Y) = k) is the integral of its
density over [k - 1/2, k + 1/2]. With x = k/scale, r = 1/(2 scale) and Hermite polynomials He,

    P(round(Y) = k) = 2r phi(x) * sum over i of He_2i(x) r^2i / (2i + 1)! .
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import isqrt

BITS = 288
"""Number of binary digits after the point."""
DECAY_ERROR = 1 << 24
"""Largest error of ``decay``, in units."""

_SMALL = 8  # the series is summed for arguments below 2**-8
_NOTHING = 1 << 10  # exp(-1024) is far below one unit


def decay(numerator: int, denominator: int) -> int:
    """Return exp(-numerator / denominator) in units, for a non-negative fraction.

    Theorem:     docs/theory/grid.md, "Exponentials": halve the argument until it is below 2^-8, sum
                 the alternating series, and square the result once for each halving.
    Rounding:    within DECAY_ERROR units on either side, and never above 1.

    >>> abs(decay(1, 1) / 2**BITS - 0.36787944117144233) < 1e-16
    True
    """
    if numerator >= _NOTHING * denominator:
        return 0
    halvings = max(0, numerator.bit_length() - denominator.bit_length() + 1 + _SMALL)
    argument = (numerator << BITS) // (denominator << halvings)
    total = term = 1 << BITS
    count = 1
    while term:
        term = (term * argument >> BITS) // count
        total += -term if count & 1 else term
        count += 1
    for _ in range(halvings):
        total = total * total >> BITS
    return total


def at_most_decay(loss: Fraction) -> Fraction:
    """Return exp(-loss), rounded up by about 2**-264."""
    return Fraction(decay(loss.numerator, loss.denominator) + DECAY_ERROR, 1 << BITS)


LEAST_SCALE = 3
"""Smallest scale at which a sum of rounded normals is close enough to a rounded normal."""
REACH = 14
"""``MASS_ERROR`` is proved for |k| up to this many deviations."""
MASS_ERROR = 1 << 26
"""Largest error of a mass, in units of 2**-BITS."""


@dataclass(frozen=True, slots=True)
class RoundedNormal:
    """The distribution of round(N(0, scale^2)), for a scale of at least LEAST_SCALE."""

    scale: Fraction

    def mass(self, k: int) -> int:
        """Return P(round(Y) = k) in units of 2**-BITS, for |k| <= REACH * scale.

        Theorem:     docs/theory/grid.md, "Masses of the rounded normal".
        Rounding:    within MASS_ERROR units on either side.

        >>> normal = RoundedNormal(Fraction(3))
        >>> abs(normal.mass(0) / 2**BITS - 0.1323676652218073) < 1e-16
        True
        """
        up, down = self.scale.numerator, self.scale.denominator
        k = abs(k)
        density = _inverse_root_two_pi() * decay(k * k * down * down, 2 * up * up) >> BITS
        first = (k * down * down << BITS) // (2 * up * up)  # x r
        second = (down * down << BITS) // (4 * up * up)  # r^2
        total, before, now = 1 << BITS, 1 << BITS, first  # He_n(x) r^n / n!
        for n in range(2, terms(up // down), 2):
            before = ((first * now >> BITS) - (second * before >> BITS)) // n
            total += before // (n + 1)
            now = ((first * before >> BITS) - (second * now >> BITS)) // (n + 1)
        return (density * total >> BITS) * down // up


@lru_cache(maxsize=1024)
def terms(scale: int) -> int:
    """Return how many terms of the series are enough, for scales of at least ``scale``.

    The terms that are left out add up to less than a unit. Cramér's inequality bounds
    |He_n(x)| phi(x) by sqrt(n!)/2, so the n-th term is at most (2 scale)^-n / sqrt(n!), and each
    even term is at most 1/36 of the one before.
    """
    n, square = 0, 1  # the inverse square of the bound on the n-th term
    while square >> (2 * BITS + 2) == 0:
        n += 1
        square *= n * 4 * scale * scale
    return n + n % 2 + 1


@lru_cache(maxsize=1)
def _inverse_root_two_pi() -> int:
    """Return 1/sqrt(2 pi) in units, with an error of at most 2.

    pi is computed by Machin's formula, with 32 additional digits.
    """
    guarded = BITS + 32
    pi = 4 * (4 * _arctangent_of_inverse(5, guarded) - _arctangent_of_inverse(239, guarded))
    return isqrt((1 << (2 * BITS + guarded)) // (2 * pi))


def _arctangent_of_inverse(x: int, bits: int) -> int:
    total = term = (1 << bits) // x
    n = 1
    while term:
        term //= x * x
        n += 2
        total += term // n if n % 4 == 1 else -(term // n)
    return total
