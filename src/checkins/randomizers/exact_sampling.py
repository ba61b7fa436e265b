"""Exact probabilities in integer arithmetic, and exact sampling of finite distributions.

A real number x in [0, 1] is represented by an integer near 2**FRACTION_BITS * x. One *unit* is
2**-FRACTION_BITS. No floats are used, so tables of thresholds are the same on every machine.

Let Y be normal with mean 0 and deviation ``scale``. The mass P(round(Y) = k) is the integral of its
density over [k - 1/2, k + 1/2]. With x = k/scale, r = 1/(2 scale), the standard normal density
phi and Hermite polynomials He,

    P(round(Y) = k) = 2r phi(x) * sum over i of He_2i(x) r^2i / (2i + 1)! .

``AliasTable`` samples a distribution with at most 4,096 entries, whose probabilities are multiples
of 2**-WEIGHT_BITS; the multiple is the *weight* of an entry. Walker's alias method [Walker77]
arranges the entries in 4,096 columns of equal probability, each with at most two entries. A draw
needs one column and one comparison with a uniform number U in [0, 1) of 128 binary digits:

    word of 32 random bits = 12 bits: the column | 20 bits: the first digits of U
    the entry with the column's number if U < the column's threshold, else the column's other entry

The last 108 digits of U are drawn only if the first 20 equal those of the threshold, which happens
once in a million draws. The comparison is exact.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import isqrt
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

FRACTION_BITS = 288
"""Number of binary digits after the point."""
EXPONENTIAL_ERROR = 1 << 24
"""Largest error of ``exp_minus``, in units of 2**-FRACTION_BITS."""

_SERIES_EXPONENT = 8  # the series of exp is summed for arguments below 2**-8
_UNDERFLOW_ARGUMENT = 1 << 10  # exp(-1024) is far below one unit


def exp_minus(numerator: int, denominator: int) -> int:
    """Return exp(-numerator / denominator) in units, for a non-negative fraction.

    Theorem:     docs/theory/grid.md, "Exponentials": halve the argument until it is below 2^-8, sum
                 the alternating series, and square the result once for each halving.
    Rounding:    within EXPONENTIAL_ERROR units on either side, and never above 1.

    >>> abs(exp_minus(1, 1) / 2**FRACTION_BITS - 0.36787944117144233) < 1e-16
    True
    """
    if numerator >= _UNDERFLOW_ARGUMENT * denominator:
        return 0
    halvings = max(0, numerator.bit_length() - denominator.bit_length() + 1 + _SERIES_EXPONENT)
    argument = (numerator << FRACTION_BITS) // (denominator << halvings)
    total = term = 1 << FRACTION_BITS
    count = 1
    while term:
        term = (term * argument >> FRACTION_BITS) // count
        total += -term if count & 1 else term
        count += 1
    for _ in range(halvings):
        total = total * total >> FRACTION_BITS
    return total


def exp_minus_rounded_up(loss: Fraction) -> Fraction:
    """Return exp(-loss), rounded up by about 2**-264."""
    units = exp_minus(loss.numerator, loss.denominator) + EXPONENTIAL_ERROR
    return Fraction(units, 1 << FRACTION_BITS)


MIN_SCALE = 3
"""Smallest scale at which a sum of rounded normals is close to one rounded normal."""
MASS_RANGE_DEVIATIONS = 14
"""Masses are computed for |k| up to this many deviations, where ``MASS_ERROR`` is proved."""
MASS_ERROR = 1 << 26
"""Largest error of a computed mass, in units of 2**-FRACTION_BITS."""


@dataclass(frozen=True, slots=True)
class RoundedNormal:
    """The distribution of round(N(0, scale^2)), for a scale of at least MIN_SCALE."""

    scale: Fraction

    def mass(self, k: int) -> int:
        """Return P(round(Y) = k) in units, for |k| <= MASS_RANGE_DEVIATIONS * scale.

        Theorem:     docs/theory/grid.md, "Masses of the rounded normal".
        Rounding:    within MASS_ERROR units on either side.

        >>> normal = RoundedNormal(Fraction(3))
        >>> abs(normal.mass(0) / 2**FRACTION_BITS - 0.1323676652218073) < 1e-16
        True
        """
        a, b = self.scale.numerator, self.scale.denominator  # scale = a / b
        k, bits = abs(k), FRACTION_BITS
        density = _inverse_root_two_pi() * exp_minus(k * k * b * b, 2 * a * a) >> bits
        xr = (k * b * b << bits) // (2 * a * a)  # x r
        rr = (b * b << bits) // (4 * a * a)  # r^2
        total, even, odd = 1 << bits, 1 << bits, xr  # He_n(x) r^n / n! for the last even and odd n
        for n in range(2, series_length(a // b), 2):
            even = ((xr * odd >> bits) - (rr * even >> bits)) // n
            total += even // (n + 1)
            odd = ((xr * even >> bits) - (rr * odd >> bits)) // (n + 1)
        return (density * total >> bits) * b // a


@lru_cache(maxsize=1024)
def series_length(scale: int) -> int:
    """Return how many terms of the series of a mass are enough for scales of at least ``scale``.

    The omitted terms add up to less than one unit. Cramér's inequality bounds
    |He_n(x)| phi(x) by sqrt(n!)/2, so the n-th term is at most (2 scale)^-n / sqrt(n!), and each
    even term is at most 1/36 of the one before.
    """
    n, inverse_square = 0, 1  # 1 / (bound on the n-th term)^2
    while inverse_square >> (2 * FRACTION_BITS + 2) == 0:
        n += 1
        inverse_square *= n * 4 * scale * scale
    return n + n % 2 + 1


@lru_cache(maxsize=1)
def _inverse_root_two_pi() -> int:
    """Return 1/sqrt(2 pi) in units, with an error of at most 2 units.

    pi is computed by Machin's formula, with 32 additional binary digits.
    """
    bits = FRACTION_BITS + 32
    pi = 4 * (4 * _arctangent_of_inverse(5, bits) - _arctangent_of_inverse(239, bits))
    return isqrt((1 << (2 * FRACTION_BITS + bits)) // (2 * pi))


def _arctangent_of_inverse(x: int, bits: int) -> int:
    """Return arctan(1/x) in units of 2**-bits."""
    total = term = (1 << bits) // x
    n = 1
    while term:
        term //= x * x
        n += 2
        total += term // n if n % 4 == 1 else -(term // n)
    return total


Words = npt.NDArray[np.uint32]

COLUMN_BITS = 12
COLUMNS = 1 << COLUMN_BITS  # the number of columns of a table
THRESHOLD_BITS = 128  # the number of binary digits of U and of a threshold
WEIGHT_BITS = COLUMN_BITS + THRESHOLD_BITS
TOTAL_WEIGHT = 1 << WEIGHT_BITS
"""The sum of the weights of a distribution."""
_FIRST_BITS = 32 - COLUMN_BITS  # the digits of U that every draw needs; the others are last bits
_LAST_BITS = THRESHOLD_BITS - _FIRST_BITS
_LAST_BYTES, _LAST_MASK = (_LAST_BITS + 7) // 8, (1 << _LAST_BITS) - 1


class ByteSource(Protocol):
    """A source of random bytes. Tests use predictable sources, to reach rare branches."""

    def bytes(self, count: int) -> bytes: ...


class OperatingSystemBytes:
    """The operating system's cryptographic generator. It has no state in this process."""

    def bytes(self, count: int) -> bytes:
        return os.urandom(count)


def random_words(source: ByteSource, count: int) -> Words:
    """Return ``count`` independent uniform words of 32 bits."""
    return np.frombuffer(source.bytes(4 * count), dtype="<u4")


def random_bits(source: ByteSource, count: int, bits: int) -> Words:
    """Return ``count`` independent uniform integers of ``bits`` bits."""
    size_bytes = 1 if bits <= 8 else 2 if bits <= 16 else 4
    drawn = np.frombuffer(source.bytes(size_bytes * count), dtype=f"<u{size_bytes}")
    return (drawn >> (8 * size_bytes - bits)).astype(np.uint32)


def read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Make a table read-only and return it, because all samplers of a process share the tables."""
    array.flags.writeable = False
    return array


@dataclass(frozen=True, slots=True, eq=False)
class AliasTable:
    """A distribution on at most 4,096 entries 0, 1, ..., whose weights are in units of 2**-140.

    Theorem:     docs/theory/grid.md, "Columns".
    Rounding:    none. ``weights`` returns exactly the argument of ``of``.
    """

    thresholds: tuple[int, ...]
    """For each column, its threshold for U, in units of 2**-128."""
    other_entries: npt.NDArray[np.uint32]
    """For each column, the entry that is drawn if U is not below the threshold."""
    first_words: Words
    """For each column, a word with its number and the first 20 digits of its threshold."""

    @classmethod
    def of(cls, weights: Sequence[int]) -> AliasTable:
        """Return the table of a distribution with these weights, whose sum must be TOTAL_WEIGHT.

        >>> table = AliasTable.of([TOTAL_WEIGHT // 4, TOTAL_WEIGHT - TOTAL_WEIGHT // 4])
        >>> table.weights()[:3] == [TOTAL_WEIGHT // 4, TOTAL_WEIGHT - TOTAL_WEIGHT // 4, 0]
        True
        """
        column_weight = 1 << THRESHOLD_BITS
        remaining = [*weights, *[0] * (COLUMNS - len(weights))]
        if len(remaining) != COLUMNS or min(remaining) < 0 or sum(remaining) != TOTAL_WEIGHT:
            raise ValueError(f"weights must be at most {COLUMNS} integers that sum to TOTAL_WEIGHT")
        small = [entry for entry in range(COLUMNS) if remaining[entry] < column_weight]
        large = [entry for entry in range(COLUMNS) if remaining[entry] >= column_weight]
        thresholds, other_entries = [0] * COLUMNS, list(range(COLUMNS))
        while small:
            entry, donor = small.pop(), large[-1]
            thresholds[entry], other_entries[entry] = remaining[entry], donor
            remaining[donor] -= column_weight - remaining[entry]
            if remaining[donor] < column_weight:
                small.append(large.pop())
        # Each entry in ``large`` fills its column alone: threshold 0, itself as the other entry.
        first_words = [
            entry << _FIRST_BITS | threshold >> _LAST_BITS
            for entry, threshold in enumerate(thresholds)
        ]
        columns = (np.array(row, dtype=np.uint32) for row in (other_entries, first_words))
        return cls(tuple(thresholds), *map(read_only, columns))

    def weights(self) -> list[int]:
        """Return the weight with which ``draw`` returns each entry, computed from the columns."""
        weights = [0] * COLUMNS
        for entry, threshold in enumerate(self.thresholds):
            weights[entry] += threshold
            weights[int(self.other_entries[entry])] += (1 << THRESHOLD_BITS) - threshold
        return weights

    def draw(self, count: int, source: ByteSource) -> Words:
        """Return ``count`` independent entries."""
        drawn = random_words(source, count)
        columns = drawn >> np.uint32(_FIRST_BITS)
        first_words = self.first_words.take(columns, mode="clip")
        entries = self.other_entries.take(columns, mode="clip")
        np.copyto(entries, columns, where=drawn < first_words)
        for tie in np.flatnonzero(drawn == first_words):
            column = int(columns[tie])
            last_digits = int.from_bytes(source.bytes(_LAST_BYTES), "little") & _LAST_MASK
            is_below = last_digits < self.thresholds[column] & _LAST_MASK
            entries[tie] = column if is_below else self.other_entries[column]
        return entries
