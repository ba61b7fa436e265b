"""Integer noise: rounded Gaussian noise, rounded Laplace noise, and randomized response.

Noise is drawn as a size, that is its absolute value, and an independent sign. Scales are exact
fractions, in units of the grid step. A size is drawn from an alias table, whose entries have
integer weights.

``Staircase`` samples the sizes of wide rounded Gaussian noise. One entry per size would need
millions of entries. Therefore the sizes 1, 2, ... are divided into cells of ``width`` =
2**offset_bits sizes, and each cell has two entries:

    weight of a size    |▒▒__                        flat    the part below the weight of the cell's
                        |████▒▒__                            last size; a uniform size of the cell
                        |████████▒▒__                wedge   the part above; a uniform size that is
                        |████████████▒▒__                    accepted with its exact probability
                        +----cell----cell----

About one draw in a hundred is a wedge. The probability of acceptance is bounded from both sides by
a straight line plus or minus a margin. For almost all wedges, these bounds and 32 random digits
decide. In the other cases, one wedge in hundreds, the exact probability is computed to 2**-260 and
compared with U, a uniform number in [0, 1) of 128 random binary digits.
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
    COLUMN_BITS,
    COLUMNS,
    FRACTION_BITS,
    MASS_ERROR,
    THRESHOLD_BITS,
    TOTAL_WEIGHT,
    WEIGHT_BITS,
    AliasTable,
    ByteSource,
    RoundedNormal,
    Words,
    exp_minus,
    exp_minus_rounded_up,
    random_bits,
    random_words,
    read_only,
)

GAUSSIAN_CUT_DEVIATIONS = Fraction(27, 2)
"""Gaussian noise is truncated at this many deviations. The tail probability is below 2**-131."""
LAPLACE_CUT_SCALES = 91
"""Laplace noise is truncated at this many scales. The tail probability is below 2**-131."""
_CHUNK = 1 << 15  # draws per chunk, which then fits into the cache
MAX_CELLS = COLUMNS // 2 - 1
"""Largest number of cells of a staircase, whose table has two entries per cell, and two more."""
_SCALE_BITS = 32
_WEIGHT_SHIFT = FRACTION_BITS - WEIGHT_BITS + _SCALE_BITS  # from mass times scale to weight
_FIRST_DIGITS, _LAST_DIGITS = 32, 96  # random digits for a wedge: always, and only if needed


class SizeDistribution(Protocol):
    """A distribution of sizes. ``variation`` bounds the total variation to the truncated noise."""

    @property
    def largest_size(self) -> int: ...
    @property
    def variation(self) -> Fraction: ...
    def draw(self, count: int, source: ByteSource) -> Words: ...


@dataclass(frozen=True, slots=True, eq=False)
class SymmetricNoise:
    """Noise with a size and a uniform sign.

    ``variation`` bounds the total variation between one draw and the rounded continuous noise.
    ``largest_size`` is the largest possible absolute value.
    """

    sizes: SizeDistribution
    variation: Fraction

    @property
    def largest_size(self) -> int:
        return self.sizes.largest_size

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
            noise ^= minus  # with −1, these two steps negate; with 0, they change nothing
            noise -= minus
            chunk += noise


@dataclass(frozen=True, slots=True, eq=False)
class DigitwiseSizes:
    """A distribution of sizes whose digits are independent.

    The first digit is one of 0, 1, ..., ``first_digit_values``. The largest of these values stands
    for size 0. Otherwise the size is 1 plus the number that all digits form.
    """

    first_digit: AliasTable
    first_digit_values: int
    """The number of values of the first digit that do not stand for size 0."""
    later_digits: tuple[tuple[int, AliasTable], ...]
    """For each later digit, its number of bits and its distribution. Empty if there is none."""

    @property
    def largest_size(self) -> int:
        return self.first_digit_values << sum(bits for bits, _ in self.later_digits)

    @property
    def variation(self) -> Fraction:
        """The total variation due to rounded weights: at most 2/TOTAL_WEIGHT for each weight."""
        entries = self.first_digit_values + 1 + sum(1 << bits for bits, _ in self.later_digits)
        return Fraction(2 * entries, TOTAL_WEIGHT)

    def draw(self, count: int, source: ByteSource) -> Words:
        sizes = self.first_digit.draw(count, source)
        zeros = np.flatnonzero(sizes == self.first_digit_values)
        for bits, digit in self.later_digits:
            sizes <<= np.uint32(bits)
            sizes += digit.draw(count, source)
        sizes += np.uint32(1)
        sizes[zeros] = 0
        return sizes


@dataclass(frozen=True, slots=True, eq=False)
class Staircase:
    """The distribution of |round(N(0, scale^2))| up to ``largest_size``, for scales from 76.

    The entries of ``table`` are the flats of all cells, the wedges of all cells, size zero, and
    "draw again".

    Theorem:     docs/theory/grid.md, "Flats and wedges".
    Rounding:    ``variation`` bounds the total variation to the truncated distribution.
    """

    normal: RoundedNormal
    offset_bits: int
    weight_scale: int
    """Weights are probabilities times weight_scale * 2**-32, so that they sum to TOTAL_WEIGHT."""
    floors: tuple[int, ...]
    """For each cell, a lower bound on the weights of its sizes."""
    rises: tuple[int, ...]
    """For each cell, an upper bound on the weights of its sizes, minus the lower bound."""
    margins: npt.NDArray[np.uint64]
    """For each cell, the largest distance of its weights from a straight line, in 2**-32 rises."""
    table: AliasTable

    @classmethod
    def of(cls, scale: Fraction, *, offset_bits: int, cells: int) -> Staircase:
        normal, width = RoundedNormal(scale), 1 << offset_bits
        masses = [normal.mass(cell * width) for cell in range(cells + 1)]
        weight_scale = 1 << _SCALE_BITS
        floors, tops = _weight_bounds(masses, weight_scale)
        # Flats and wedges together have the weight width * sum(tops), and zero has tops[0] / 2.
        weight_scale = (TOTAL_WEIGHT << _SCALE_BITS) // (width * sum(tops) + tops[0] // 2 + 1) - 1
        floors, tops = _weight_bounds(masses, weight_scale)
        rises = [top - floor for top, floor in zip(tops, floors, strict=True)]
        weights = [width * floor for floor in floors] + [width * rise for rise in rises]
        weights.append((masses[0] - MASS_ERROR) * weight_scale >> _WEIGHT_SHIFT)
        weights.append(TOTAL_WEIGHT - sum(weights))
        margins = [
            _margin(scale, width=width, cell=cell, top=tops[cell], rise=rises[cell])
            for cell in range(cells)
        ]
        return cls(
            normal,
            offset_bits,
            weight_scale,
            tuple(floors),
            tuple(rises),
            read_only(np.array(margins, dtype=np.uint64)),
            AliasTable.of(weights),
        )

    @property
    def cells(self) -> int:
        return len(self.floors)

    @property
    def largest_size(self) -> int:
        return self.cells << self.offset_bits

    @property
    def variation(self) -> Fraction:
        """The total variation due to rounded weights and to the 128 random digits of wedges."""
        total = Fraction(self.weight_scale * TOTAL_WEIGHT, 1 << _SCALE_BITS) / 2
        digits = _FIRST_DIGITS + _LAST_DIGITS
        digit_error = Fraction(sum(self.rises) << self.offset_bits, 1 << digits)
        mass_errors = 4 * MASS_ERROR * self.weight_scale * self.largest_size
        return (digit_error + Fraction(mass_errors, 1 << _WEIGHT_SHIFT) + 2) / total

    def draw(self, count: int, source: ByteSource) -> Words:
        entries = self.table.draw(count, source)
        low = random_bits(source, count, self.offset_bits)
        sizes = entries << np.uint32(self.offset_bits)
        sizes += low
        sizes += np.uint32(1)
        not_flat = np.flatnonzero(entries >= self.cells)
        if not_flat.size:
            sizes[not_flat] = self._draw_not_flat(entries[not_flat], low[not_flat], source)
        return sizes

    def _draw_not_flat(self, entries: Words, low: Words, source: ByteSource) -> Words:
        """Return the sizes of draws whose entry is a wedge, zero or "draw again"."""
        sizes = np.zeros(entries.size, dtype=np.uint32)
        must_redraw = entries == 2 * self.cells + 1
        wedges = np.flatnonzero(entries < 2 * self.cells)
        cell = entries[wedges] - np.uint32(self.cells)
        offset = low[wedges].astype(np.uint32)
        accepted = self._accepts(cell, offset, source)
        sizes[wedges] = (cell << np.uint32(self.offset_bits)) + offset + np.uint32(1)
        must_redraw[wedges] = ~accepted
        redrawn = np.flatnonzero(must_redraw)
        if redrawn.size:
            sizes[redrawn] = self.draw(redrawn.size, source)
        return sizes

    def _accepts(self, cell: Words, offset: Words, source: ByteSource) -> npt.NDArray[np.bool_]:
        """Return for each wedge whether U < (weight - floor) / rise, so that it is accepted."""
        first = random_words(source, cell.size)
        width = np.uint64(1 << self.offset_bits)
        line = (width - np.uint64(1) - offset) << np.uint64(_FIRST_DIGITS)
        margin = self.margins[cell]
        accepted = (first + margin + np.uint64(1)) * width <= line
        undecided = ~accepted & (first * width < line + margin * width)
        for i in np.flatnonzero(undecided):
            accepted[i] = self.accepts_exactly(int(cell[i]), int(offset[i]), int(first[i]), source)
        return accepted

    def accepts_exactly(self, cell: int, offset: int, first: int, source: ByteSource) -> bool:
        """Return whether a wedge is accepted, from its mass and 96 more digits of U."""
        last = int.from_bytes(source.bytes(_LAST_DIGITS // 8), "little")
        mass = self.normal.mass((cell << self.offset_bits) + offset + 1)
        above_floor = 2 * (mass - MASS_ERROR) * self.weight_scale
        above_floor -= self.floors[cell] << _WEIGHT_SHIFT
        u = first << _LAST_DIGITS | last
        return u * self.rises[cell] << _WEIGHT_SHIFT < above_floor << (_FIRST_DIGITS + _LAST_DIGITS)


def _weight_bounds(masses: list[int], weight_scale: int) -> tuple[list[int], list[int]]:
    """Return, for each cell, a lower and an upper bound on the weights of its sizes.

    The weight of a size is the sum for the two signs.
    """
    floors = [
        max(0, 2 * (mass - MASS_ERROR) * weight_scale >> _WEIGHT_SHIFT) for mass in masses[1:]
    ]
    tops = [-(-2 * (mass + MASS_ERROR) * weight_scale >> _WEIGHT_SHIFT) for mass in masses[:-1]]
    return floors, tops


def _margin(scale: Fraction, *, width: int, cell: int, top: int, rise: int) -> int:
    """Return an upper bound on the distance of a cell's weights from a straight line.

    The distance is at most width^2/8 times the second derivative. It is returned in 2**-32 rises.
    """
    one = 1 << _FIRST_DIGITS
    largest_x = ((cell + 1) * width + Fraction(1, 2)) / scale
    distance = Fraction(5 * width * width, 32) / scale**2 * max(Fraction(1), largest_x**2) * top
    return min(one, -int(-(distance + 2) * one // rise)) if rise else one


@lru_cache(maxsize=32)
def rounded_gaussian(scale: Fraction) -> SymmetricNoise:
    """Return the distribution of round(N(0, scale^2)), for a scale of at least 3.

    Theorem:     docs/theory/grid.md, "One threshold for each size" and "Flats and wedges".
    Rounding:    ``variation`` covers the truncated tail, the rounded weights and the finite number
                 of random digits.

    >>> float(rounded_gaussian(Fraction(100_000)).variation) < 2**-128
    True
    """
    largest = ceil(GAUSSIAN_CUT_DEVIATIONS * scale)
    sizes: SizeDistribution
    if largest < COLUMNS:
        normal, shift = RoundedNormal(scale), FRACTION_BITS - WEIGHT_BITS
        weights = [2 * (normal.mass(size) - MASS_ERROR) >> shift for size in range(1, largest + 1)]
        weights = [max(0, weight) for weight in weights]
        sizes = DigitwiseSizes(AliasTable.of([*weights, TOTAL_WEIGHT - sum(weights)]), largest, ())
    else:
        offset_bits, cells = divide_into_cells(largest, max_cells=MAX_CELLS)
        sizes = Staircase.of(scale, offset_bits=offset_bits, cells=cells)
    tail_probability = exp_minus_rounded_up(GAUSSIAN_CUT_DEVIATIONS**2 / 2)
    return SymmetricNoise(sizes, sizes.variation + tail_probability)


@lru_cache(maxsize=32)
def rounded_laplace(scale: Fraction) -> SymmetricNoise:
    """Return the distribution of round(Laplace(scale)): zero, or a sign and a geometric size.

    Theorem:     docs/theory/grid.md, "Laplace digits".
    Rounding:    as for ``rounded_gaussian``.

    >>> float(rounded_laplace(Fraction(100_000)).variation) < 2**-125
    True
    """
    a, b = scale.numerator, scale.denominator  # scale = a / b
    largest = ceil(LAPLACE_CUT_SCALES * scale)
    low_bits, first_values = divide_into_cells(largest, max_cells=COLUMNS - 1)
    nonzero = TOTAL_WEIGHT * exp_minus(b, 2 * a) >> FRACTION_BITS
    weights = _geometric_weights(Fraction(b << low_bits, a), first_values, total=nonzero)
    first_digit = AliasTable.of([*weights, TOTAL_WEIGHT - sum(weights)])
    later_digits = []
    while low_bits:
        bits = min(COLUMN_BITS, low_bits)
        low_bits -= bits
        weights = _geometric_weights(Fraction(b << low_bits, a), 1 << bits, total=TOTAL_WEIGHT)
        weights[0] += TOTAL_WEIGHT - sum(weights)
        later_digits.append((bits, AliasTable.of(weights)))
    sizes = DigitwiseSizes(first_digit, first_values, tuple(later_digits))
    tail_probability = exp_minus_rounded_up(Fraction(LAPLACE_CUT_SCALES))
    return SymmetricNoise(sizes, sizes.variation + tail_probability)


def divide_into_cells(largest: int, *, max_cells: int) -> tuple[int, int]:
    """Divide the integers 1..largest into cells of 2**offset_bits integers each.

    Return the smallest offset_bits with at most ``max_cells`` cells, and the number of cells.

    >>> divide_into_cells(1_350_000, max_cells=2047)
    (10, 1319)
    """
    offset_bits = (-(-largest // max_cells) - 1).bit_length()
    return offset_bits, -(-largest >> offset_bits)


def _geometric_weights(loss: Fraction, count: int, *, total: int) -> list[int]:
    """Split ``total`` into weights of the digits 0, 1, ..., proportional to exp(-digit * loss)."""
    terms = [exp_minus(digit * loss.numerator, loss.denominator) for digit in range(count)]
    sum_of_terms = sum(terms)
    return [total * term // sum_of_terms for term in terms]


@dataclass(frozen=True, slots=True)
class RoundedResponse:
    """Report the true category with probability ``threshold`` / 2**128, else another category.

    The other category is uniform.

    Theorem:     docs/theory/grid.md, "Randomized response": the ratio of probabilities is at most
                 exp(epsilon), so the response is exactly epsilon-DP and nothing is added to delta.
    Rounding:    the probability of the true category is rounded down.
    """

    categories: int
    threshold: int

    def draw(self, category: int, source: ByteSource) -> int:
        if int.from_bytes(source.bytes(THRESHOLD_BITS // 8), "little") < self.threshold:
            return category
        other = uniform_below(self.categories - 1, source)
        return other + (other >= category)


def rounded_response(categories: int, local_epsilon: float) -> RoundedResponse:
    """Return the randomized response with this local epsilon.

    The true category has the probability 1 / (1 + (categories - 1) exp(-local_epsilon)), rounded
    down.
    """
    odds = 1 + (categories - 1) * exp_minus_rounded_up(Fraction(local_epsilon))
    return RoundedResponse(categories, int((1 << THRESHOLD_BITS) / odds))


def uniform_below(count: int, source: ByteSource) -> int:
    """Return an exactly uniform integer below ``count``."""
    bits = (count - 1).bit_length()
    while True:
        drawn = int.from_bytes(source.bytes(-(-bits // 8)), "little") & ((1 << bits) - 1)
        if drawn < count:
            return drawn
