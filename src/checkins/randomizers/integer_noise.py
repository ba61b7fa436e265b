"""Integer noise: rounded Gaussian noise, rounded Laplace noise, and randomized response.

Noise is drawn as a size, that is its absolute value, and an independent sign. Scales are exact
fractions, in units of the grid.

``Staircase`` samples the sizes of wide rounded Gaussian noise. One entry per size would need
millions of entries. Therefore the sizes 1, 2, ... are divided into cells of ``width`` =
2**low_bits sizes, and each cell has two entries:

    weight of a size    |▒▒__                        flat    the part below the weight of the cell's
                        |████▒▒__                            last size; a uniform size of the cell
                        |████████▒▒__                wedge   the part above; a uniform size that is
                        |████████████▒▒__                    accepted with its exact probability
                        +----cell----cell----

About one draw in a hundred is a wedge. A straight line gives two bounds on the probability of
acceptance, which decide almost all wedges with 32 random digits. In the other cases, one wedge in
hundreds, the mass is computed to 2**-260 and compared with 128 random digits.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Protocol

import numpy as np
import numpy.typing as npt

from checkins.randomizers.exact_sampling import (
    BITS,
    COLUMN_BITS,
    COLUMNS,
    MASS_ERROR,
    THRESHOLD_BITS,
    WEIGHT_BITS,
    WHOLE,
    ByteSource,
    RoundedNormal,
    Thresholds,
    Words,
    at_most_decay,
    decay,
    low_bits_of,
    read_only,
    words,
)

GAUSSIAN_CUT = Fraction(27, 2)
"""Gaussian noise is truncated at so many deviations, with a tail probability below 2**-131."""
LAPLACE_CUT = 91
"""Laplace noise is truncated at so many scales, with a tail probability below 2**-131."""
_CHUNK = 1 << 15  # draws per chunk, which then fits into the cache
MOST_CELLS = COLUMNS // 2 - 1
_SHARE_BITS = 32
_SHIFT = BITS - WEIGHT_BITS + _SHARE_BITS
_HIGH_BITS, _LOW_BITS = 32, 96


class Sizes(Protocol):
    """A distribution of |noise|."""

    @property
    def most(self) -> int: ...
    @property
    def variation(self) -> Fraction: ...
    def draw(self, count: int, source: ByteSource) -> Words: ...


@dataclass(frozen=True, slots=True, eq=False)
class SymmetricNoise:
    """Noise with a size and a uniform sign.

    ``variation`` bounds the total variation between one draw and the rounded continuous noise.
    ``most`` is the largest possible size.
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
        """Add an independent draw to each entry. The caller ensures that the sums fit 32 bits."""
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
    """A distribution of sizes whose digits are independent.

    The first digit is one of 0..count. The value ``count`` stands for size 0. Otherwise the size is
    1 plus the number that the digits form. If ``others`` is empty, the first digit alone gives it.
    """

    first: Thresholds
    count: int
    """The number of ordinary values of the first digit."""
    others: tuple[tuple[int, Thresholds], ...]
    """For each later digit, its number of bits and its distribution."""

    @property
    def most(self) -> int:
        return self.count << sum(bits for bits, _ in self.others)

    @property
    def variation(self) -> Fraction:
        """Bound the total variation of the rounded weights: at most 2/WHOLE for each weight."""
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


@dataclass(frozen=True, slots=True, eq=False)
class Staircase:
    """The distribution of |round(N(0, scale^2))| up to ``most``, for a scale of at least 76.

    The entries of ``table`` are the flats of the cells, their wedges, zero, and "draw again".

    Theorem:     docs/theory/grid.md, "Flats and wedges".
    Rounding:    the total variation to the distribution truncated at ``most`` is at most
                 ``variation``.
    """

    normal: RoundedNormal
    low_bits: int
    share: int
    """Probabilities are multiplied by share * 2**-32, so that flats and wedges sum to WHOLE."""
    floors: tuple[int, ...]
    """For each cell, a lower bound on the weights of its sizes."""
    rises: tuple[int, ...]
    """For each cell, an upper bound on the weights of its sizes, minus the lower bound."""
    margins: npt.NDArray[np.uint64]
    """For each cell, the largest distance of the weights from a straight line, in 2**-32 rises."""
    table: Thresholds

    @classmethod
    def of(cls, scale: Fraction, *, low_bits: int, cells: int) -> Staircase:
        normal, width = RoundedNormal(scale), 1 << low_bits
        masses = [normal.mass(cell * width) for cell in range(cells + 1)]
        share = 1 << _SHARE_BITS
        floors, tops = _weights(masses, share)
        # Flats and wedges together have the weight width * sum(tops), and zero half a top.
        share = (WHOLE << _SHARE_BITS) // (width * sum(tops) + tops[0] // 2 + 1) - 1
        floors, tops = _weights(masses, share)
        rises = [top - floor for top, floor in zip(tops, floors, strict=True)]
        weights = [width * floor for floor in floors] + [width * rise for rise in rises]
        weights.append((masses[0] - MASS_ERROR) * share >> _SHIFT)
        weights.append(WHOLE - sum(weights))
        margins = [
            _margin(scale, width=width, cell=cell, top=tops[cell], rise=rises[cell])
            for cell in range(cells)
        ]
        return cls(
            normal,
            low_bits,
            share,
            tuple(floors),
            tuple(rises),
            read_only(np.array(margins, dtype=np.uint64)),
            Thresholds.of(weights),
        )

    @property
    def cells(self) -> int:
        return len(self.floors)

    @property
    def most(self) -> int:
        return self.cells << self.low_bits

    @property
    def variation(self) -> Fraction:
        """The total variation, from rounded weights and from the 128 digits of wedges."""
        whole = Fraction(self.share * WHOLE, 1 << _SHARE_BITS) / 2
        undecided = Fraction(sum(self.rises) << self.low_bits, 1 << (_HIGH_BITS + _LOW_BITS))
        computed = Fraction(4 * MASS_ERROR * self.share * self.most, 1 << _SHIFT)
        return (undecided + computed + 2) / whole

    def draw(self, count: int, source: ByteSource) -> Words:
        entries = self.table.draw(count, source)
        low = low_bits_of(source, count, self.low_bits)
        sizes = entries << np.uint32(self.low_bits)
        sizes += low
        sizes += np.uint32(1)
        special = np.flatnonzero(entries >= self.cells)
        if special.size:
            sizes[special] = self._draw_special(entries[special], low[special], source)
        return sizes

    def _draw_special(self, entries: Words, low: Words, source: ByteSource) -> Words:
        """Return the sizes of draws whose entry is a wedge, zero or "draw again"."""
        sizes = np.zeros(entries.size, dtype=np.uint32)
        again = entries == 2 * self.cells + 1
        wedges = np.flatnonzero(entries < 2 * self.cells)
        cell = entries[wedges] - np.uint32(self.cells)
        offset = low[wedges].astype(np.uint32)
        accepted = self._accept(cell, offset, source)
        sizes[wedges] = (cell << np.uint32(self.low_bits)) + offset + np.uint32(1)
        again[wedges] = ~accepted
        redrawn = np.flatnonzero(again)
        if redrawn.size:
            sizes[redrawn] = self.draw(redrawn.size, source)
        return sizes

    def _accept(self, cell: Words, offset: Words, source: ByteSource) -> npt.NDArray[np.bool_]:
        """Return for each wedge whether it is accepted: U is below (weight - floor) / rise."""
        first = words(source, cell.size)
        width = np.uint64(1 << self.low_bits)
        line = (width - np.uint64(1) - offset) << np.uint64(_HIGH_BITS)
        margin = self.margins[cell]
        accepted = (first + margin + np.uint64(1)) * width <= line
        unclear = ~accepted & (first * width < line + margin * width)
        for at in np.flatnonzero(unclear):
            accepted[at] = self.accepts_exactly(
                int(cell[at]), int(offset[at]), int(first[at]), source
            )
        return accepted

    def accepts_exactly(self, cell: int, offset: int, first: int, source: ByteSource) -> bool:
        """Return whether a wedge is accepted, by its mass and 96 more digits of U."""
        last = int.from_bytes(source.bytes(_LOW_BITS // 8), "little")
        mass = self.normal.mass((cell << self.low_bits) + offset + 1)
        due = 2 * (mass - MASS_ERROR) * self.share - (self.floors[cell] << _SHIFT)
        u = first << _LOW_BITS | last
        return u * self.rises[cell] << _SHIFT < due << (_HIGH_BITS + _LOW_BITS)


def _weights(masses: list[int], share: int) -> tuple[list[int], list[int]]:
    """Return a lower and an upper bound on the weights of each cell's sizes, for both signs."""
    floors = [max(0, 2 * (mass - MASS_ERROR) * share >> _SHIFT) for mass in masses[1:]]
    tops = [-(-2 * (mass + MASS_ERROR) * share >> _SHIFT) for mass in masses[:-1]]
    return floors, tops


def _margin(scale: Fraction, *, width: int, cell: int, top: int, rise: int) -> int:
    """Return an upper bound on the distance of a cell's weights from a straight line.

    The distance is at most width^2/8 times the second derivative.
    """
    full = 1 << _HIGH_BITS
    furthest = ((cell + 1) * width + Fraction(1, 2)) / scale
    curve = Fraction(5 * width * width, 32) / scale**2 * max(Fraction(1), furthest**2) * top
    return min(full, -int(-(curve + 2) * full // rise)) if rise else full


@lru_cache(maxsize=32)
def rounded_gaussian(scale: Fraction) -> SymmetricNoise:
    """Return the distribution of round(N(0, scale^2)), for a scale of at least 3.

    Theorem:     docs/theory/grid.md, "One threshold for each size" and "Flats and wedges".
    Rounding:    ``variation`` covers the truncated tail, the rounded weights and the finite number
                 of random digits.

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
    """Return the distribution of round(Laplace(scale)): zero, or a sign and a geometric size.

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
    """Divide the integers 1..reach into at most ``most`` cells of 2**low_bits integers each.

    Return low_bits, which is the smallest possible, and the number of cells.

    >>> cells_for(1_350_000, most=2047)
    (10, 1319)
    """
    low_bits = (-(-reach // most) - 1).bit_length()
    return low_bits, -(-reach >> low_bits)


def _geometric(loss: Fraction, count: int, *, whole: int) -> list[int]:
    """Split ``whole`` into ``count`` integers proportional to exp(-digit * loss), rounded down."""
    terms = [decay(digit * loss.numerator, loss.denominator) for digit in range(count)]
    total = sum(terms)
    return [whole * term // total for term in terms]


@dataclass(frozen=True, slots=True)
class RoundedResponse:
    """Keep a category with probability ``threshold`` / 2**128, else return another one uniformly.

    Theorem:     docs/theory/grid.md, "Randomized response": the ratio of probabilities is at most
                 exp(epsilon), so the response is exactly epsilon-DP and delta is charged nothing.
    Rounding:    the probability of keeping the category is rounded down.
    """

    categories: int
    threshold: int

    def draw(self, category: int, source: ByteSource) -> int:
        if int.from_bytes(source.bytes(THRESHOLD_BITS // 8), "little") < self.threshold:
            return category
        other = uniform(self.categories - 1, source)
        return other + (other >= category)


def rounded_response(categories: int, local_epsilon: float) -> RoundedResponse:
    """Return the randomized response of ``local_epsilon``.

    A category is accepted with probability 1 / (1 + (categories - 1) exp(-local_epsilon)), rounded
    down.
    """
    odds = 1 + (categories - 1) * at_most_decay(Fraction(local_epsilon))
    return RoundedResponse(categories, int((1 << THRESHOLD_BITS) / odds))


def uniform(count: int, source: ByteSource) -> int:
    """Return an exactly uniform integer below ``count``."""
    bits = (count - 1).bit_length()
    while True:
        drawn = int.from_bytes(source.bytes(-(-bits // 8)), "little") & ((1 << bits) - 1)
        if drawn < count:
            return drawn
