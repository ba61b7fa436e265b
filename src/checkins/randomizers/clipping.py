"""Exact clipping of float vectors: no result has a norm above the clip.

The norm of the returned floats is meant in real arithmetic, without rounding. Let x be a row of d
coordinates whose largest absolute value is in [2^e, 2^(e+1)). The steps are:

1. Compute y = x / 2^e. Nothing overflows, and underflow is smaller than any rounding error.
2. Compute N = ‖y‖ (1 + (d + 8) 2^-52) in floats. It is at least the true norm of y, because a sum
   of d non-negative terms has a relative error of at most (d - 1) 2^-53 in any order, and the other
   operations add less than 8 rounding errors.
3. If N 2^e, rounded up, is at most the clip, return the row unchanged.
4. Otherwise return y t, rounded toward zero, with t <= clip / N. The norm of the result is at most
   t N and therefore at most the clip. t is smaller than clip / N by a few times the margin of step
   2, which is (d + 8) 2^-52, so that clipping the result again does not change it.

A row that contains a NaN or an infinity becomes zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from checkins import validate
from checkins.errors import InvalidValue

Float = TypeVar("Float", np.float32, np.float64)
FloatArray = npt.NDArray[np.float64]

MARGIN_ROUNDINGS = 8
"""Number of rounding errors, besides those of the sum, that the margin of step 2 covers."""


def clip_l2(update: npt.NDArray[Float], clip: float) -> npt.NDArray[Float]:
    """Return a new array in which each row (last axis) has an L2 norm of at most ``clip``.

    Theorem:     the steps in the docstring of this module.
    Rounding:    the true norm is never above ``clip``. If a row is shrunk, its norm is below
                 ``clip`` by a relative (d + 8) 2^-49 at most and, with float32, by one rounding
                 toward zero per coordinate.

    >>> clip_l2(np.array([3.0, 4.0]), 10.0)
    array([3., 4.])
    >>> clip_l2(np.array([[3e300, 4e300], [np.nan, 1.0]]), 10.0).round(12)
    array([[6., 8.],
           [0., 0.]])
    """
    return _clip(update, clip, _l2_norm)


def clip_l1(update: npt.NDArray[Float], clip: float) -> npt.NDArray[Float]:
    """Return a new array in which each row (last axis) has an L1 norm of at most ``clip``.

    Theorem:     the steps in the docstring of this module.
    Rounding:    the same as for ``clip_l2``.

    >>> clip_l1(np.array([3.0, -1.0]), 2.0).round(12)
    array([ 1.5, -0.5])
    """
    return _clip(update, clip, _l1_norm)


def _l2_norm(rows: FloatArray) -> FloatArray:
    return np.asarray(np.sqrt(np.sum(rows * rows, axis=-1, keepdims=True)))


def _l1_norm(rows: FloatArray) -> FloatArray:
    return np.asarray(np.sum(np.abs(rows), axis=-1, keepdims=True))


def _clip(
    update: npt.NDArray[Float], clip: float, norm: Callable[[FloatArray], FloatArray]
) -> npt.NDArray[Float]:
    validate.positive(clip=clip)
    array = _validated(update)
    if array.size == 0:
        return array.copy()
    finite = np.isfinite(array).all(axis=-1, keepdims=True)
    x = np.where(finite, array, 0.0).astype(np.float64)
    margin = (x.shape[-1] + MARGIN_ROUNDINGS) * 2.0**-52
    exponent = np.frexp(np.max(np.abs(x), axis=-1, keepdims=True))[1] - 1
    y = np.ldexp(x, -exponent)
    norm_above = norm(y) * (1.0 + margin)  # N
    with np.errstate(over="ignore"):  # an infinite norm is above any clip
        is_inside = np.nextafter(np.ldexp(norm_above, exponent), np.inf) <= clip
    is_inside |= norm_above == 0.0
    if is_inside.all():
        return x.astype(array.dtype)
    divisor = np.where(is_inside, 1.0, norm_above * (1.0 + 4.0 * margin))
    # If a row is shrunk, clip / divisor is below 2^1023. Otherwise the quotient is not used.
    factor = np.nextafter(np.where(is_inside, 0.0, clip) / divisor, 0.0)
    shrunk = _cast_toward_zero(np.nextafter(y * factor, 0.0), array.dtype)
    return np.where(is_inside, x.astype(array.dtype), shrunk)


def _validated(update: npt.NDArray[Float]) -> npt.NDArray[Float]:
    array = np.asarray(update)
    if array.dtype not in (np.float32, np.float64):
        raise InvalidValue("update", array.dtype.name, "must be an array of float32 or float64")
    if array.ndim == 0:
        raise InvalidValue("update", array, "must have at least one axis")
    return array


def _cast_toward_zero(values: FloatArray, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return the values rounded toward zero to ``dtype``."""
    with np.errstate(over="ignore"):
        nearest = values.astype(dtype)
    is_larger = np.abs(nearest.astype(np.float64)) > np.abs(values)
    return np.where(is_larger, np.nextafter(nearest, dtype.type(0.0)), nearest)
