"""Exact probabilities in integer arithmetic, and exact sampling of finite distributions.

A real number x in [0, 1] is represented by 2**BITS * x, rounded to an integer below or above. One
*unit* is 2**-BITS. No floats are used, so tables of thresholds are the same on every machine.

Let Y be normal with mean 0 and deviation ``scale``. The mass P(round(Y) = k) is the integral of its
density over [k - 1/2, k + 1/2]. With x = k/scale, r = 1/(2 scale) and Hermite polynomials He,

    P(round(Y) = k) = 2r phi(x) * sum over i of He_2i(x) r^2i / (2i + 1)! .

``Thresholds`` samples a distribution with at most 4,096 entries, whose probabilities are multiples
of 2**-WEIGHT_BITS; the multiple is the *weight* of an entry. Walker's alias method [Walker77]
arranges the entries in 4,096 columns of equal probability, each with at most two entries. A draw
needs one column and one comparison with a uniform number U in [0, 1) of 128 binary digits:

    word of 32 random bits = 12 bits: the column | 20 bits: the first digits of U
    the column's own entry if U < its threshold, else its other entry

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


Words = npt.NDArray[np.uint32]

COLUMN_BITS = 12
COLUMNS = 1 << COLUMN_BITS
THRESHOLD_BITS = 128
WEIGHT_BITS = COLUMN_BITS + THRESHOLD_BITS
WHOLE = 1 << WEIGHT_BITS
"""The sum of the weights of a distribution."""
_FIRST_BITS = 32 - COLUMN_BITS
_LAST_BITS = THRESHOLD_BITS - _FIRST_BITS
_LAST_BYTES, _LAST = (_LAST_BITS + 7) // 8, (1 << _LAST_BITS) - 1


class ByteSource(Protocol):
    """A source of random bytes. Tests have their own, to reach rare branches."""

    def bytes(self, count: int) -> bytes: ...


class OperatingSystem:
    """The operating system's cryptographic generator. It has no state in this process."""

    def bytes(self, count: int) -> bytes:
        return os.urandom(count)


def words(source: ByteSource, count: int) -> Words:
    """Return ``count`` independent uniform words of 32 bits."""
    return np.frombuffer(source.bytes(4 * count), dtype="<u4")


def low_bits_of(source: ByteSource, count: int, bits: int) -> Words:
    """Return ``count`` independent uniform integers of ``bits`` bits."""
    size = 1 if bits <= 8 else 2 if bits <= 16 else 4
    drawn = np.frombuffer(source.bytes(size * count), dtype=f"<u{size}")
    return (drawn >> (8 * size - bits)).astype(np.uint32)


def read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Make an array read-only, because all samplers of a process share the tables."""
    array.flags.writeable = False
    return array


@dataclass(frozen=True, slots=True, eq=False)
class Thresholds:
    """A distribution on entries 0, 1, ..., at most 4,096, whose weights are in units of 2**-140.

    Theorem:     docs/theory/grid.md, "Columns".
    Rounding:    none. ``weights`` returns exactly the weights that ``of`` was given.
    """

    thresholds: tuple[int, ...]
    others: npt.NDArray[np.uint32]
    firsts: Words
    """For each column, a word with its number and the first 20 digits of its threshold."""

    @classmethod
    def of(cls, weights: Sequence[int]) -> Thresholds:
        """Return the table of a distribution with these weights, whose sum must be WHOLE.

        >>> table = Thresholds.of([WHOLE // 4, WHOLE - WHOLE // 4])
        >>> table.weights()[:3] == [WHOLE // 4, WHOLE - WHOLE // 4, 0]
        True
        """
        column = 1 << THRESHOLD_BITS
        left = [*weights, *[0] * (COLUMNS - len(weights))]
        if len(left) != COLUMNS or min(left) < 0 or sum(left) != WHOLE:
            raise ValueError(f"weights must be at most {COLUMNS} integers that sum to WHOLE")
        small = [entry for entry in range(COLUMNS) if left[entry] < column]
        large = [entry for entry in range(COLUMNS) if left[entry] >= column]
        thresholds, others = [0] * COLUMNS, list(range(COLUMNS))
        while small:
            entry, donor = small.pop(), large[-1]
            thresholds[entry], others[entry] = left[entry], donor
            left[donor] -= column - left[entry]
            if left[donor] < column:
                small.append(large.pop())
        # The remaining entries fill a column alone: its threshold is 0, its other entry is itself.
        firsts = [
            entry << _FIRST_BITS | threshold >> _LAST_BITS
            for entry, threshold in enumerate(thresholds)
        ]
        columns = (np.array(row, dtype=np.uint32) for row in (others, firsts))
        return cls(tuple(thresholds), *map(read_only, columns))

    def weights(self) -> list[int]:
        """Return the weights of the entries in ``draw``, computed from the columns."""
        weights = [0] * COLUMNS
        for entry, threshold in enumerate(self.thresholds):
            weights[entry] += threshold
            weights[int(self.others[entry])] += (1 << THRESHOLD_BITS) - threshold
        return weights

    def draw(self, count: int, source: ByteSource) -> Words:
        """Return ``count`` independent entries."""
        drawn = words(source, count)
        column = drawn >> np.uint32(_FIRST_BITS)
        first = self.firsts.take(column, mode="clip")
        entries = self.others.take(column, mode="clip")
        np.copyto(entries, column, where=drawn < first)
        for tie in np.flatnonzero(drawn == first):
            at = int(column[tie])
            last = int.from_bytes(source.bytes(_LAST_BYTES), "little") & _LAST
            entries[tie] = at if last < self.thresholds[at] & _LAST else self.others[at]
        return entries
