"""Exact clipping of float vectors: no input leaves with a norm above the clip.

The norm is the true one, in real arithmetic on the floats returned. The steps, for a row
x of d coordinates with largest absolute value in [2^e, 2^(e+1)):

1. y = x / 2^e is computed (nothing overflows; what underflows is smaller than any rounding error).
2. N = ‖y‖ (1 + (d + 8) 2^-52), in floats, is at least the true norm of y: a sum of d non-negative
   terms in any order errs by a relative (d - 1) 2^-53 at most, the other operations by less than 8.
3. Where N 2^e, rounded up, is at most the clip, the row is returned bit for bit.
4. Otherwise it becomes y t rounded toward zero, with t <= clip / N: its norm is at most t N, and
   so at most the clip. t is below clip / N by a few such margins: clipping twice changes nothing.

A row that holds a NaN or an infinity has no direction: it becomes zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from checkins import validate
from checkins.accounting.exact.slot_ratio import FloatArray
from checkins.errors import InvalidValue

Float = TypeVar("Float", np.float32, np.float64)

MARGIN_ULPS = 8
"""Roundings beyond those of the sum that step 2 allows for, each counted as a whole 2^-52."""


def clip_l2(update: npt.NDArray[Float], clip: float) -> npt.NDArray[Float]:
    """Shrink each row (last axis) to an L2 norm of at most ``clip``; a new array, of the same type.

    Theorem:     the steps at the head of this file.
    Rounding:    the true norm is never above ``clip``; below it by a relative (d + 8) 2^-49 at most
                 where a row is shrunk (float32 rows: and one rounding toward zero per coordinate).

    >>> clip_l2(np.array([3.0, 4.0]), 10.0)
    array([3., 4.])
    >>> clip_l2(np.array([[3e300, 4e300], [np.nan, 1.0]]), 10.0).round(12)
    array([[6., 8.],
           [0., 0.]])
    """
    return _clip(update, clip, _l2)


def clip_l1(update: npt.NDArray[Float], clip: float) -> npt.NDArray[Float]:
    """Shrink each row (last axis) to an L1 norm of at most ``clip``; a new array, of the same type.

    Theorem:     the steps at the head of this file.
    Rounding:    as ``clip_l2``.

    >>> clip_l1(np.array([3.0, -1.0]), 2.0).round(12)
    array([ 1.5, -0.5])
    """
    return _clip(update, clip, _l1)


def _l2(rows: FloatArray) -> FloatArray:
    return np.asarray(np.sqrt(np.sum(rows * rows, axis=-1, keepdims=True)))


def _l1(rows: FloatArray) -> FloatArray:
    return np.asarray(np.sum(np.abs(rows), axis=-1, keepdims=True))


def _clip(
    update: npt.NDArray[Float], clip: float, norm: Callable[[FloatArray], FloatArray]
) -> npt.NDArray[Float]:
    validate.positive(clip=clip)
    given = _checked(update)
    if given.size == 0:
        return given.copy()
    finite = np.isfinite(given).all(axis=-1, keepdims=True)
    x = np.where(finite, given, 0.0).astype(np.float64)
    margin = (x.shape[-1] + MARGIN_ULPS) * 2.0**-52
    exponent = np.frexp(np.max(np.abs(x), axis=-1, keepdims=True))[1] - 1
    y = np.ldexp(x, -exponent)
    above = norm(y) * (1.0 + margin)
    with np.errstate(over="ignore"):  # an infinite norm is above any clip
        inside = np.nextafter(np.ldexp(above, exponent), np.inf) <= clip
    inside |= above == 0.0
    if inside.all():
        return x.astype(given.dtype)
    reach = np.where(inside, 1.0, above * (1.0 + 4.0 * margin))
    # Where a row is outside, clip / reach is below 2^1023; elsewhere the quotient is not used.
    factor = np.nextafter(np.where(inside, 0.0, clip) / reach, 0.0)
    shrunk = _toward_zero(np.nextafter(y * factor, 0.0), given.dtype)
    return np.where(inside, x.astype(given.dtype), shrunk)


def _checked(update: npt.NDArray[Float]) -> npt.NDArray[Float]:
    given = np.asarray(update)
    if given.dtype not in (np.float32, np.float64):
        raise InvalidValue("update", given.dtype.name, "must be an array of float32 or float64")
    if given.ndim == 0:
        raise InvalidValue("update", given, "must have at least one axis")
    return given


def _toward_zero(values: FloatArray, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The nearest values of ``dtype`` that are not larger in size."""
    with np.errstate(over="ignore"):
        nearest = values.astype(dtype)
    grown = np.abs(nearest.astype(np.float64)) > np.abs(values)
    return np.where(grown, np.nextafter(nearest, dtype.type(0.0)), nearest)
