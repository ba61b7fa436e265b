"""The size of wide rounded Gaussian noise, drawn exactly from 4,096 thresholds.

One threshold for each whole number would take millions. The sizes 1, 2, ... are cut into cells of
``width`` = 2**low_bits sizes instead:

    weight of a size    |▒▒__                        flat    the part below the cell's last size:
                        |████▒▒__                            uniform, so it is taken as it is
                        |████████▒▒__                wedge   the rest (one draw in a hundred): taken
                        |████████████▒▒__                    with the probability that is its due
                        +----cell----cell----

A wedge is decided by two bounds, 2**-32 fine, that a straight line gives; where these differ, one
wedge in hundreds, the mass is computed to 2**-260 and compared with 128 random digits.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from checkins.randomizers.exponential import BITS
from checkins.randomizers.normal import MASS_ERROR, NormalLaw
from checkins.randomizers.thresholds import (
    COLUMNS,
    WEIGHT_BITS,
    WHOLE,
    ByteSource,
    Thresholds,
    Words,
    fixed,
    low_bits_of,
    words,
)

MOST_CELLS = COLUMNS // 2 - 1
_SHARE_BITS = 32
_SHIFT = BITS - WEIGHT_BITS + _SHARE_BITS
_FIRST_BITS, _LAST_BITS = 32, 96


@dataclass(frozen=True, slots=True, eq=False)
class Staircase:
    """|round(N(0, scale^2))| up to ``most``, for a scale of at least 76.

    The entries of ``table`` are the flats of the cells, their wedges, zero, and "draw again".

    Theorem:     docs/theory/grid.md, "Flats and wedges".
    Rounding:    within the total variation ``variation`` of the law cut at ``most``.
    """

    law: NormalLaw
    low_bits: int
    share: int
    """Weights are this many 2**-32 of the probabilities, so that flats and wedges fit in WHOLE."""
    floors: tuple[int, ...]
    """For each cell, the weight that every size in it reaches."""
    rises: tuple[int, ...]
    """For each cell, what no size in it has above the floor."""
    margins: npt.NDArray[np.uint64]
    """For each cell, how far from a straight line the wedge may be, in 2**-32 of its rise."""
    table: Thresholds

    @classmethod
    def of(cls, scale: Fraction, *, low_bits: int, cells: int) -> Staircase:
        law, width = NormalLaw(scale), 1 << low_bits
        masses = [law.mass(cell * width) for cell in range(cells + 1)]
        share = 1 << _SHARE_BITS
        floors, tops = _weights(masses, share)
        # Flats and wedges together are the area under the tops; zero has half a top.
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
            law,
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
        """Every size's weight is within 2 units, but for what 128 digits of a wedge leave open."""
        whole = Fraction(self.share * WHOLE, 1 << _SHARE_BITS) / 2
        undecided = Fraction(sum(self.rises) << self.low_bits, 1 << (_FIRST_BITS + _LAST_BITS))
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
        """The sizes of draws that met a wedge, zero, or "draw again"."""
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
        """Whether each wedge is taken: U below (weight - floor) / rise."""
        first = words(source, cell.size)
        width = np.uint64(1 << self.low_bits)
        line = (width - np.uint64(1) - offset) << np.uint64(_FIRST_BITS)
        margin = self.margins[cell]
        kept = (first + margin + np.uint64(1)) * width <= line
        unclear = ~kept & (first * width < line + margin * width)
        for at in np.flatnonzero(unclear):
            kept[at] = self.keeps(int(cell[at]), int(offset[at]), int(first[at]), source)
        return kept

    def keeps(self, cell: int, offset: int, first: int, source: ByteSource) -> bool:
        """The same decision from the mass itself and 96 more digits of U."""
        last = int.from_bytes(source.bytes(_LAST_BITS // 8), "little")
        mass = self.law.mass((cell << self.low_bits) + offset + 1)
        due = 2 * (mass - MASS_ERROR) * self.share - (self.floors[cell] << _SHIFT)
        u = first << _LAST_BITS | last
        return u * self.rises[cell] << _SHIFT < due << (_FIRST_BITS + _LAST_BITS)


def _weights(masses: list[int], share: int) -> tuple[list[int], list[int]]:
    """What the sizes of each cell reach at least and at most, both signs together."""
    floors = [max(0, 2 * (mass - MASS_ERROR) * share >> _SHIFT) for mass in masses[1:]]
    tops = [-(-2 * (mass + MASS_ERROR) * share >> _SHIFT) for mass in masses[:-1]]
    return floors, tops


def _margin(scale: Fraction, *, width: int, cell: int, top: int, rise: int) -> int:
    """How far the weights in a cell may be from a line: width^2/8 of their second derivative."""
    full = 1 << _FIRST_BITS
    furthest = ((cell + 1) * width + Fraction(1, 2)) / scale
    curve = Fraction(5 * width * width, 32) / scale**2 * max(Fraction(1), furthest**2) * top
    return min(full, -int(-(curve + 2) * full // rise)) if rise else full
