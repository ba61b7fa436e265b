"""Integer noise: rounded Gaussian noise, rounded Laplace noise, and randomized response.

Each distribution is symmetric: a size and a sign. Scales are exact fractions, in units of the grid.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Protocol

import numpy as np
import numpy.typing as npt

from checkins.randomizers.exact_masses import BITS, MASS_ERROR, RoundedNormal, at_most_decay, decay
from checkins.randomizers.exact_sampling import (
    COLUMN_BITS,
    COLUMNS,
    MOST_CELLS,
    THRESHOLD_BITS,
    WEIGHT_BITS,
    WHOLE,
    ByteSource,
    Staircase,
    Thresholds,
    Words,
)

GAUSSIAN_CUT = Fraction(27, 2)
"""Deviations beyond which Gaussian noise is not drawn: a mass below 2**-131."""
LAPLACE_CUT = 91
"""Scales beyond which Laplace noise is not drawn: a mass below 2**-131."""
_CHUNK = 1 << 15  # draws at a time: what they need stays in the cache


class Sizes(Protocol):
    """A distribution of |noise|."""

    @property
    def most(self) -> int: ...
    @property
    def variation(self) -> Fraction: ...
    def draw(self, count: int, source: ByteSource) -> Words: ...


@dataclass(frozen=True, slots=True, eq=False)
class SymmetricNoise:
    """A size with a fair sign.

    ``variation`` bounds the total variation between one draw and the rounding of the continuous
    noise; ``most`` is the largest size that is ever drawn.
    """

    sizes: Sizes
    variation: Fraction

    @property
    def most(self) -> int:
        return self.sizes.most

    def draw(self, count: int, source: ByteSource) -> npt.NDArray[np.int32]:
        """Return ``count`` independent draws."""
        noise = np.zeros(count, dtype=np.int32)
        self.add_to(noise, source)
        return noise

    def add_to(self, units: npt.NDArray[np.int32], source: ByteSource) -> None:
        """Add one independent draw to each entry; the caller ensures that the sums fit 32 bits."""
        for start in range(0, units.size, _CHUNK):
            chunk = units[start : start + _CHUNK]
            noise = self.sizes.draw(chunk.size, source).view(np.int32)
            signs = np.frombuffer(source.bytes(-(-chunk.size // 8)), dtype=np.uint8)
            minus = -np.unpackbits(signs, count=chunk.size).astype(np.int32)
            noise ^= minus
            noise -= minus
            chunk += noise


@dataclass(frozen=True, slots=True, eq=False)
class Digits:
    """Sizes by independent digits; in place of the first digit stands "zero" where the size is 0.

    Without other digits this is one entry for each size.
    """

    first: Thresholds
    count: int
    """How many values the first digit has; the entry after them is zero."""
    others: tuple[tuple[int, Thresholds], ...]
    """The bits of each later digit, and its distribution."""

    @property
    def most(self) -> int:
        return self.count << sum(bits for bits, _ in self.others)

    @property
    def variation(self) -> Fraction:
        """Each weight is within 2 units; what they leave went to one entry of the table."""
        entries = self.count + 1 + sum(1 << bits for bits, _ in self.others)
        return Fraction(2 * entries, WHOLE)

    def draw(self, count: int, source: ByteSource) -> Words:
        sizes = self.first.draw(count, source)
        zeros = np.flatnonzero(sizes == self.count)
        for bits, digit in self.others:
            sizes <<= np.uint32(bits)
            sizes += digit.draw(count, source)
        sizes += np.uint32(1)
        sizes[zeros] = 0
        return sizes


@lru_cache(maxsize=32)
def rounded_gaussian(scale: Fraction) -> SymmetricNoise:
    """round(N(0, scale^2)), for a scale of at least 3.

    Theorem:     docs/theory/grid.md, "One threshold for each size" and "Flats and wedges".
    Rounding:    ``variation`` covers the cut tail, every rounded weight and the last digit.

    >>> float(rounded_gaussian(Fraction(100_000)).variation) < 2**-128
    True
    """
    reach = ceil(GAUSSIAN_CUT * scale)
    square = GAUSSIAN_CUT**2 / 2
    sizes: Sizes
    if reach < COLUMNS:
        normal, drop = RoundedNormal(scale), BITS - WEIGHT_BITS
        weights = [2 * (normal.mass(size) - MASS_ERROR) >> drop for size in range(1, reach + 1)]
        weights = [max(0, weight) for weight in weights]
        sizes = Digits(Thresholds.of([*weights, WHOLE - sum(weights)]), reach, ())
    else:
        low_bits, cells = cells_for(reach, most=MOST_CELLS)
        sizes = Staircase.of(scale, low_bits=low_bits, cells=cells)
    return SymmetricNoise(sizes, sizes.variation + at_most_decay(square))


@lru_cache(maxsize=32)
def rounded_laplace(scale: Fraction) -> SymmetricNoise:
    """round(Laplace(scale)): zero, or a sign and a geometric size.

    Theorem:     docs/theory/grid.md, "Laplace digits".
    Rounding:    as for ``rounded_gaussian``.

    >>> float(rounded_laplace(Fraction(100_000)).variation) < 2**-125
    True
    """
    up, down = scale.numerator, scale.denominator
    reach = ceil(LAPLACE_CUT * scale)
    low_bits, count = cells_for(reach, most=COLUMNS - 1)
    nonzero = WHOLE * decay(down, 2 * up) >> BITS
    weights = _geometric(Fraction(down << low_bits, up), count, whole=nonzero)
    first = Thresholds.of([*weights, WHOLE - sum(weights)])
    others = []
    while low_bits:
        bits = min(COLUMN_BITS, low_bits)
        low_bits -= bits
        weights = _geometric(Fraction(down << low_bits, up), 1 << bits, whole=WHOLE)
        weights[0] += WHOLE - sum(weights)
        others.append((bits, Thresholds.of(weights)))
    sizes = Digits(first, count, tuple(others))
    return SymmetricNoise(sizes, sizes.variation + at_most_decay(Fraction(LAPLACE_CUT)))


def cells_for(reach: int, *, most: int) -> tuple[int, int]:
    """Cut 1..reach into at most ``most`` cells of 2**low_bits sizes: low_bits and their number.

    >>> cells_for(1_350_000, most=2047)
    (10, 1319)
    """
    low_bits = (-(-reach // most) - 1).bit_length()
    return low_bits, -(-reach >> low_bits)


def _geometric(loss: Fraction, count: int, *, whole: int) -> list[int]:
    """Split ``whole`` in proportion to exp(-digit * loss), each share rounded down."""
    terms = [decay(digit * loss.numerator, loss.denominator) for digit in range(count)]
    total = sum(terms)
    return [whole * term // total for term in terms]


@dataclass(frozen=True, slots=True)
class RoundedResponse:
    """One of k categories kept with probability ``threshold`` / 2**128, else another, uniformly.

    Theorem:     docs/theory/grid.md, "Randomized response": the odds are at most exp(epsilon), so
                 it is epsilon-DP without any total variation.
    Rounding:    the probability of keeping is rounded down.
    """

    categories: int
    threshold: int

    def draw(self, category: int, source: ByteSource) -> int:
        if int.from_bytes(source.bytes(THRESHOLD_BITS // 8), "little") < self.threshold:
            return category
        other = uniform(self.categories - 1, source)
        return other + (other >= category)


def rounded_response(categories: int, local_epsilon: float) -> RoundedResponse:
    """Keep with probability 1 / (1 + (categories - 1) exp(-local_epsilon)), rounded down."""
    odds = 1 + (categories - 1) * at_most_decay(Fraction(local_epsilon))
    return RoundedResponse(categories, int((1 << THRESHOLD_BITS) / odds))


def uniform(count: int, source: ByteSource) -> int:
    """Return an integer below ``count``, uniform exactly."""
    bits = (count - 1).bit_length()
    while True:
        drawn = int.from_bytes(source.bytes(-(-bits // 8)), "little") & ((1 << bits) - 1)
        if drawn < count:
            return drawn
