"""Float vectors as whole numbers of a step: rounded toward zero, and short enough for certain.

Floats only decide how much a vector that is too long is shrunk. Whether it is short enough is
decided on the whole numbers that are returned, so no input can leave with a norm above the bound.

Theorem: docs/theory/grid.md, "Clipping".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from checkins.errors import InvalidValue

Units = npt.NDArray[np.int32]
Vector = npt.NDArray[Any]
FloatArray = npt.NDArray[np.float64]

_CHUNK = 1 << 15  # coordinates at a time: what they need stays in the cache
_MOST_SHRINKS = 52


def vector(update: npt.ArrayLike) -> Vector:
    """The update as an array, refused unless it is a vector of real numbers."""
    values = np.asarray(update)
    if values.ndim != 1 or values.dtype.kind not in "fiub":
        found = f"{values.dtype.name} of shape {values.shape}"
        raise InvalidValue("update", found, "must be a vector of real numbers")
    return values


def clipped(update: Vector, *, clip: float, step: float, order: int, bound: int) -> Units:
    """Whole numbers k with sum |k|^order <= bound, and no |k| step above the update's own size.

    ``bound`` is (clip/step)^order rounded down, and clip/step at most 2^30. An update that fits is
    rounded toward zero and no more; one with a NaN or an infinity becomes zero.
    """
    units = np.zeros(update.size, dtype=np.int32)
    with np.errstate(all="ignore"):
        largest = _largest(update)
        if not 0.0 < largest < np.inf:
            return units
        powers = sum(float(np.sum(np.abs(x / largest) ** order)) for _, x in _chunks(update))
        reach = clip / powers ** (1.0 / order)  # what the largest coordinate may be
        if largest <= np.nextafter(reach * (1.0 + 2.0**-20), np.inf):  # it may fit as it is
            total = 0
            for place, chunk in _chunks(update):
                units[place] = toward_zero(chunk, step)
                total += sum_of_powers(units[place], order)
            if total <= bound:
                return units
        for shrink in range(_MOST_SHRINKS):
            total = 0
            for place, chunk in _chunks(update):
                size = np.abs(chunk)
                shrunk = np.minimum(size / largest * reach, size)
                units[place] = toward_zero(np.copysign(shrunk, chunk), step)
                total += sum_of_powers(units[place], order)
            if total <= bound:
                return units
            reach *= 1.0 - 2.0 ** (shrink - _MOST_SHRINKS)
    units[:] = 0
    return units


def toward_zero(values: FloatArray, step: float) -> FloatArray:
    """values / step without its fraction, exactly, where that is below 2^50.

    A correctly rounded quotient never passes a whole number, but may be raised onto one. There the
    remainder, which has no rounding error, decides.

    >>> toward_zero(np.array([0.3, -0.75]), 0.1), 0.3 / 0.1, 0.9 / 0.1
    (array([ 2., -7.]), 2.9999999999999996, 9.0)
    >>> toward_zero(np.array([0.9]), 0.1)  # the double 0.1 is above a ninth of the double 0.9
    array([8.])
    """
    quotient = values / step
    whole = np.trunc(quotient)
    unclear = np.flatnonzero((whole == quotient) & (whole != 0.0))
    if unclear.size:
        value = values[unclear]
        whole[unclear] = np.rint((value - np.fmod(value, step)) / step)
    return whole


def _largest(update: Vector) -> float:
    """The largest size, or NaN or infinity where there is one."""
    largest = 0.0
    for _, chunk in _chunks(update):
        peak = float(np.max(np.abs(chunk)))
        if not peak < np.inf:
            return peak
        largest = max(largest, peak)
    return largest


def sum_of_powers(units: Units, order: int) -> int:
    """The exact sum of sizes or of squares of 32-bit integers, in pieces that fit 64 bits."""
    sizes = np.abs(units.astype(np.int64))
    if order == 1:
        return int(sizes.sum())
    if int(sizes.max(initial=0)) ** 2 * sizes.size < 1 << 63:
        return int(sizes @ sizes)
    high, low = sizes >> 16, sizes & 0xFFFF
    return (int(high @ high) << 32) + (int(high @ low) << 17) + int(low @ low)


def _chunks(update: Vector) -> Iterator[tuple[slice, FloatArray]]:
    """Places and their values as doubles; what is too large for a double becomes an infinity."""
    for start in range(0, update.size, _CHUNK):
        place = slice(start, start + _CHUNK)
        yield place, update[place].astype(np.float64, copy=False)
