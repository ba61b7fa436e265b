"""Sample finite distributions exactly, by comparing random words with thresholds of 128 bits.

A distribution has at most 4,096 entries, whose probabilities are multiples of 2**-WEIGHT_BITS; the
multiple is the *weight* of an entry. Walker's alias method [Walker77] arranges the entries in 4,096
columns of equal probability, each with at most two entries. A draw needs one column and one
comparison with a uniform number U in [0, 1) of 128 binary digits:

    word of 32 random bits = 12 bits: the column | 20 bits: the first digits of U
    the column's own entry if U < its threshold, else its other entry

The last 108 digits of U are drawn only if the first 20 equal those of the threshold, which happens
once in a million draws. The comparison is exact, and no floats are used.

``Staircase`` samples the size, that is the absolute value, of wide rounded Gaussian noise. One
entry per size would need millions of entries. Therefore the sizes 1, 2, ... are divided into cells
of ``width`` = 2**low_bits sizes, and each cell has two entries:

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

import os
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from checkins.randomizers.exact_masses import BITS, MASS_ERROR, RoundedNormal

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


def fixed(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
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
        return cls(tuple(thresholds), *map(fixed, columns))

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


MOST_CELLS = COLUMNS // 2 - 1
_SHARE_BITS = 32
_SHIFT = BITS - WEIGHT_BITS + _SHARE_BITS
_HIGH_BITS, _LOW_BITS = 32, 96


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
            fixed(np.array(margins, dtype=np.uint64)),
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
            sizes[special] = self._settle(entries[special], low[special], source)
        return sizes

    def _settle(self, entries: Words, low: Words, source: ByteSource) -> Words:
        """Return the sizes of draws whose entry is a wedge, zero or "draw again"."""
        sizes = np.zeros(entries.size, dtype=np.uint32)
        again = entries == 2 * self.cells + 1
        wedges = np.flatnonzero(entries < 2 * self.cells)
        cell = entries[wedges] - np.uint32(self.cells)
        offset = low[wedges].astype(np.uint32)
        kept = self._keep(cell, offset, source)
        sizes[wedges] = (cell << np.uint32(self.low_bits)) + offset + np.uint32(1)
        again[wedges] = ~kept
        redrawn = np.flatnonzero(again)
        if redrawn.size:
            sizes[redrawn] = self.draw(redrawn.size, source)
        return sizes

    def _keep(self, cell: Words, offset: Words, source: ByteSource) -> npt.NDArray[np.bool_]:
        """Return for each wedge whether it is accepted: U is below (weight - floor) / rise."""
        first = words(source, cell.size)
        width = np.uint64(1 << self.low_bits)
        line = (width - np.uint64(1) - offset) << np.uint64(_HIGH_BITS)
        margin = self.margins[cell]
        kept = (first + margin + np.uint64(1)) * width <= line
        unclear = ~kept & (first * width < line + margin * width)
        for at in np.flatnonzero(unclear):
            kept[at] = self.keeps(int(cell[at]), int(offset[at]), int(first[at]), source)
        return kept

    def keeps(self, cell: int, offset: int, first: int, source: ByteSource) -> bool:
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
