"""A finite law, drawn exactly by comparing random words with thresholds of 128 bits.

The probabilities are whole numbers of 2**-WEIGHT_BITS. They are laid out in 4,096 columns of equal
probability that hold at most two entries each (Walker's alias method [Walker77]), so a draw is one
column and one comparison:

    word of 32 random bits = 12 bits: the column | 20 bits: the first digits of U
    the column's own entry if U < its threshold, else its other entry

U has 128 digits. Its last 108 are drawn only where the first 20 equal the threshold's, once in a
million draws; the comparison is exact all the same, and nothing here is a float.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]

COLUMN_BITS = 12
COLUMNS = 1 << COLUMN_BITS
THRESHOLD_BITS = 128
WEIGHT_BITS = COLUMN_BITS + THRESHOLD_BITS
WHOLE = 1 << WEIGHT_BITS
"""The sum of the weights of a law."""
_FIRST_BITS = 32 - COLUMN_BITS
_LAST_BITS = THRESHOLD_BITS - _FIRST_BITS
_LAST_BYTES, _LAST = (_LAST_BITS + 7) // 8, (1 << _LAST_BITS) - 1


class ByteSource(Protocol):
    """Where random bytes come from; tests write their own to reach rare branches."""

    def bytes(self, count: int) -> bytes: ...


class OperatingSystem:
    """The operating system's cryptographic generator: no seed, no state of ours, safe to fork."""

    def bytes(self, count: int) -> bytes:
        return os.urandom(count)


def words(source: ByteSource, count: int) -> Words:
    """``count`` independent uniform words of 32 bits."""
    return np.frombuffer(source.bytes(4 * count), dtype="<u4")


def low_bits_of(source: ByteSource, count: int, bits: int) -> Words:
    """``count`` independent uniform numbers of ``bits`` bits, from words no longer than needed."""
    size = 1 if bits <= 8 else 2 if bits <= 16 else 4
    drawn = np.frombuffer(source.bytes(size * count), dtype=f"<u{size}")
    return (drawn >> (8 * size - bits)).astype(np.uint32)


def fixed(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array, never to be changed: tables are shared by every sampler of a process."""
    array.flags.writeable = False
    return array


@dataclass(frozen=True, slots=True, eq=False)
class Thresholds:
    """A law on entries 0, 1, ... of at most 4,096, each with a whole number of 2**-140.

    Theorem:     docs/theory/grid.md, "Columns".
    Rounding:    none: ``weights`` gives back exactly what was laid out.
    """

    thresholds: tuple[int, ...]
    others: npt.NDArray[np.uint32]
    firsts: Words
    """The column and the first digits of its threshold, as in a word."""

    @classmethod
    def of(cls, weights: Sequence[int]) -> Thresholds:
        """Lay out weights whose sum is WHOLE.

        >>> law = Thresholds.of([WHOLE // 4, WHOLE - WHOLE // 4])
        >>> law.weights()[:3] == [WHOLE // 4, WHOLE - WHOLE // 4, 0]
        True
        """
        column = 1 << THRESHOLD_BITS
        left = [*weights, *[0] * (COLUMNS - len(weights))]
        if len(left) != COLUMNS or min(left) < 0 or sum(left) != WHOLE:
            raise ValueError(f"weights must be at most {COLUMNS} whole numbers that sum to WHOLE")
        small = [entry for entry in range(COLUMNS) if left[entry] < column]
        large = [entry for entry in range(COLUMNS) if left[entry] >= column]
        thresholds, others = [0] * COLUMNS, list(range(COLUMNS))
        while small:
            entry, donor = small.pop(), large[-1]
            thresholds[entry], others[entry] = left[entry], donor
            left[donor] -= column - left[entry]
            if left[donor] < column:
                small.append(large.pop())
        # What remains fills its column alone: threshold 0, and the other entry is itself.
        firsts = [
            entry << _FIRST_BITS | threshold >> _LAST_BITS
            for entry, threshold in enumerate(thresholds)
        ]
        columns = (np.array(row, dtype=np.uint32) for row in (others, firsts))
        return cls(tuple(thresholds), *map(fixed, columns))

    def weights(self) -> list[int]:
        """The law that ``draw`` has, read back from the columns."""
        weights = [0] * COLUMNS
        for entry, threshold in enumerate(self.thresholds):
            weights[entry] += threshold
            weights[int(self.others[entry])] += (1 << THRESHOLD_BITS) - threshold
        return weights

    def draw(self, count: int, source: ByteSource) -> Words:
        """``count`` independent entries."""
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
