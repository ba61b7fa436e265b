"""The grid of reports in real campaigns, and the total variation to the continuous mechanism.

A clipped update is rounded toward zero to integer multiples of the grid's step. Then integer noise
is added, whose distribution is that of the rounded continuous noise. Rounding commutes with
integer shifts, so a report is a post-processing of the continuous mechanism
(docs/theory/grid.md). The sampled noise deviates from this distribution by a total variation that
``variation`` bounds, and only this bound is added to delta.

``clip_to_units`` uses floats only to decide how much a long vector is shrunk. The norm itself is
computed from the returned integers, and never exceeds the bound (docs/theory/grid.md, "Clipping").
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from checkins import validate
from checkins.errors import InvalidValue
from checkins.randomizers.clipping import FloatArray
from checkins.randomizers.exact_sampling import MIN_SCALE, exp_minus_rounded_up
from checkins.randomizers.integer_noise import (
    GAUSSIAN_CUT_DEVIATIONS,
    LAPLACE_CUT_SCALES,
    SymmetricNoise,
    rounded_gaussian,
    rounded_laplace,
)
from checkins.randomizers.randomizer import (
    Gaussian,
    Laplace,
    PrivUnit,
    RandomizedResponse,
    Randomizer,
)

MAX_UNITS = 2**31 - 1
"""Largest entry of a report, which is a vector of 32-bit integers."""
MAX_CLIP_UNITS = 2**30
"""Largest clip norm in grid units. The other half of the 32-bit range is for the noise."""
MAX_DIMENSION = 10**9
"""Largest dimension of a report."""
REFUSAL_EXPONENT = 91
"""An honest report is rejected as too long with probability at most exp(-91)."""
REFUSAL_PROBABILITY = Fraction(1, 2**131)
"""An upper bound on exp(-91), because 91 > 131 log(2)."""
_PI_SQUARED = Fraction(98696, 10000)  # rounded down


class NoDeviceSampler(InvalidValue):
    """The randomizer has no exact sampler on a grid, so real campaigns cannot use it."""


class GridTooFine(InvalidValue):
    """The grid is so fine that reports do not fit into 32-bit integers."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A grid: reports are integer multiples of ``step``, which is used as an exact number."""

    step: float

    def __post_init__(self) -> None:
        validate.positive(grid=self.step)
        validate.make_floats(self, "step")

    def clip_units(self, clip: float) -> Fraction:
        """Return the clip norm in units of the step, exactly.

        Raises InvalidValue if the step is too coarse or too fine.
        """
        validate.positive(clip=clip)
        units = Fraction(float(clip)) / Fraction(self.step)
        if units < 1:
            raise InvalidValue(
                "grid", self.step, f"is too coarse: must be at most the clip, {clip!r}"
            )
        if units > MAX_CLIP_UNITS:
            least = f"{clip / MAX_CLIP_UNITS * (1 + 1e-6):.3g}"
            raise GridTooFine("grid", self.step, f"is too fine: must be at least {least}")
        return units

    def most_power_sum(self, clip: float, *, order: int) -> int:
        """Return the largest sum of |entry|^order of a clipped report, (clip/step)^order."""
        return math.floor(self.clip_units(clip) ** order)

    def clip(self, update: npt.ArrayLike, clip: float, *, order: int) -> Units:
        """Shrink an update to a norm of at most ``clip``, and round it toward zero.

        The norm is L1 if ``order`` is 1, and L2 if it is 2. An update within the norm is only
        rounded. An update that contains a NaN or an infinity becomes zero.

        Theorem:     docs/theory/grid.md, "Clipping".
        Rounding:    the sum of |entry|^order is at most (clip/step)^order, compared as integers.
                     No coordinate becomes larger.

        >>> Grid(0.25).clip(np.array([0.6, -0.8]), 1.0, order=2)
        array([ 2, -3], dtype=int32)
        >>> Grid(0.25).clip(np.array([1e308, np.inf]), 1.0, order=1)
        array([0, 0], dtype=int32)
        """
        bound = self.most_power_sum(clip, order=order)
        return clip_to_units(as_vector(update), clip=clip, step=self.step, order=order, bound=bound)

    def noise(self, randomizer: Gaussian | Laplace) -> SymmetricNoise:
        """Return the distribution of the noise of one coordinate."""
        scale = self.noise_scale(randomizer)
        if isinstance(randomizer, Gaussian):
            return rounded_gaussian(scale)
        return rounded_laplace(scale)

    def noise_scale(self, randomizer: Gaussian | Laplace, *, finer_bits: int = 0) -> Fraction:
        """Return the scale of the noise in units of the step, divided by 2**finer_bits.

        Raises InvalidValue if the grid is too coarse or too fine for the noise.

        >>> Grid(0.5).noise_scale(Gaussian(clip=1.0, noise_multiplier=1.0))
        Traceback (most recent call last):
            ...
        checkins.errors.InvalidValue: grid = 0.5: is too coarse: must be at most 0.333, ...
        """
        clip = self.clip_units(randomizer.clip) * (1 << finer_bits)
        if isinstance(randomizer, Laplace):
            scale = 2 * clip / Fraction(randomizer.local_epsilon)
            self._check_32_bits(clip, LAPLACE_CUT_SCALES * scale)
            return scale
        scale = Fraction(randomizer.noise_multiplier) * clip
        if scale < MIN_SCALE:
            most = f"{float(scale * Fraction(self.step) / MIN_SCALE) * (1 - 1e-3):.3g}"
            expected = f"is too coarse: must be at most {most}, a third of the noise's deviation"
            raise InvalidValue("grid", self.step, expected)
        self._check_32_bits(clip, GAUSSIAN_CUT_DEVIATIONS * scale)
        return scale

    def _check_32_bits(self, clip: Fraction, noise_cut: Fraction) -> None:
        """Raise GridTooFine if reports need more than 32 bits.

        Noise that is truncated at ``noise_cut`` is at most (1 + 1/512) noise_cut + 2, because the
        sizes of noise are divided into cells.
        """
        largest_entry = clip + noise_cut * Fraction(513, 512) + 2
        if largest_entry > MAX_UNITS:
            least = float(Fraction(self.step) * largest_entry / MAX_UNITS) * (1 + 1e-2)
            expected = f"is too fine: reports must fit 32 bits, so it must be at least {least:.3g}"
            raise GridTooFine("grid", self.step, expected)


def variation(
    randomizer: Randomizer, grid: Grid, *, reports: int, capacity: int | None, dimension: int
) -> float:
    """Return a bound on the total variation between all noise of a campaign and its design's noise.

    ``reports`` is the number of noise vectors that are drawn: one per report, dummies included, or
    one per slot if the server adds the noise. If the accountant treats the noise of all reports in
    a slot as one Gaussian, ``capacity`` is the number of reports in a slot. If the accountant
    treats every noise vector separately, as with local randomizers and with noise at the server,
    ``capacity`` is None. The result includes the probability that a report is rejected as too long
    (``checkins.randomizers.device``).

    Theorem:     docs/theory/grid.md, "Sums of rounded Gaussians" and "Reports that are
                 too long".
    Neighbours:  any, because the bound holds for every input.
    Rounding:    up.

    >>> noise = Gaussian(clip=1.0, noise_multiplier=0.1)
    >>> variation(noise, Grid(1e-6), reports=35_200, capacity=176, dimension=10**6) < 1e-28
    True
    """
    validate.count(reports=reports)
    validate.count(most=MAX_DIMENSION, dimension=dimension)
    if isinstance(randomizer, RandomizedResponse):
        return 0.0  # the sampler of randomized response is exact
    if isinstance(randomizer, PrivUnit):
        raise no_device_sampler_error(randomizer)
    noise = grid.noise(randomizer)
    per_coordinate = noise.variation * reports
    if capacity is not None:
        validate.count(capacity=capacity)
        if isinstance(randomizer, Gaussian):
            scale = grid.noise_scale(randomizer)
            per_coordinate += variation_of_sum(scale, capacity) * -(-reports // capacity)
    return min(1.0, float_rounded_up(per_coordinate * dimension + REFUSAL_PROBABILITY * reports))


def variation_of_sum(scale: Fraction, count: int) -> Fraction:
    """Return a bound on the total variation between a sum of rounded Gaussians and one Gaussian.

    The sum has ``count`` independent terms, distributed as round(N(0, scale^2)). It is compared
    with a post-processing of one Gaussian of the same variance. The bound is the sum over
    j = 2..count and n = 1, 2, ... of exp(-2 pi^2 n^2 scale^2 (1 - 1/j)).

    Theorem:     docs/theory/grid.md, "Sums of rounded Gaussians".
    Rounding:    up, because every j above 3 is replaced by 3.
    """
    if count == 1:
        return Fraction(0)
    # The factor 2 (1 - 1/j) is 1 for j = 2, and 4/3 for j = 3.
    for_two, for_more = (
        _sum_of_exponentials(factor * _PI_SQUARED * scale**2)
        for factor in (Fraction(1), Fraction(4, 3))
    )
    return for_two + (count - 2) * for_more


def no_device_sampler_error(randomizer: Randomizer) -> NoDeviceSampler:
    """Return the error to raise if a randomizer has no device sampler."""
    return NoDeviceSampler(
        "randomizer",
        type(randomizer).__name__,
        "has no sampler that is exact on a grid: use Gaussian or Laplace noise for real reports",
    )


def _sum_of_exponentials(loss: Fraction) -> Fraction:
    """Return an upper bound on the sum over n = 1, 2, ... of exp(-n^2 loss)."""
    first = exp_minus_rounded_up(loss)
    return first / (1 - first)


def float_rounded_up(exact: Fraction) -> float:
    """Return the smallest float that is at least ``exact``."""
    nearest = float(exact)
    return nearest if Fraction(nearest) >= exact else math.nextafter(nearest, math.inf)


Units = npt.NDArray[np.int32]
Vector = npt.NDArray[Any]

_CHUNK = 1 << 15  # coordinates per chunk, which then fits into the cache
_MAX_SHRINKS = 52  # the last shrink, by a half, is far more than rounding errors need


def as_vector(update: npt.ArrayLike) -> Vector:
    """Return the update as an array. Raises InvalidValue unless it is a vector of real numbers."""
    values = np.asarray(update)
    if values.ndim != 1 or values.dtype.kind not in "fiub":
        description = f"{values.dtype.name} of shape {values.shape}"
        raise InvalidValue("update", description, "must be a vector of real numbers")
    return values


def clip_to_units(update: Vector, *, clip: float, step: float, order: int, bound: int) -> Units:
    """Return integers k with sum |k|^order <= bound, where |k| step <= |update| per coordinate.

    ``bound`` is (clip/step)^order, rounded down, and clip/step is at most 2^30. An update within
    the bound is only rounded toward zero. An update with a NaN or an infinity becomes zero.
    """
    units = np.zeros(update.size, dtype=np.int32)
    with np.errstate(all="ignore"):
        largest = _largest_absolute(update)
        if not 0.0 < largest < np.inf:
            return units
        powers = sum(float(np.sum(np.abs(x / largest) ** order)) for _, x in _chunks(update))
        target = clip / powers ** (1.0 / order)  # the largest coordinate after shrinking
        if largest <= np.nextafter(target * (1.0 + 2.0**-20), np.inf):  # try without shrinking
            total = 0
            for part, chunk in _chunks(update):
                units[part] = divide_toward_zero(chunk, step)
                total += sum_of_powers(units[part], order)
            if total <= bound:
                return units
        for shrink in range(_MAX_SHRINKS):
            total = 0
            for part, chunk in _chunks(update):
                size = np.abs(chunk)
                shrunk = np.minimum(size / largest * target, size)
                units[part] = divide_toward_zero(np.copysign(shrunk, chunk), step)
                total += sum_of_powers(units[part], order)
            if total <= bound:
                return units
            target *= 1.0 - 2.0 ** (shrink - _MAX_SHRINKS)
    units[:] = 0
    return units


def divide_toward_zero(values: FloatArray, step: float) -> FloatArray:
    """Return values / step, rounded toward zero. The result is exact if it is below 2^50.

    The floating-point quotient may be rounded up to an integer that the exact quotient does not
    reach. If the quotient is an integer, the remainder, which fmod computes exactly, decides.

    >>> divide_toward_zero(np.array([0.3, -0.75]), 0.1), 0.3 / 0.1, 0.9 / 0.1
    (array([ 2., -7.]), 2.9999999999999996, 9.0)
    >>> divide_toward_zero(np.array([0.9]), 0.1)  # the double 0.1 is above 1/9 of the double 0.9
    array([8.])
    """
    quotient = values / step
    truncated = np.trunc(quotient)
    undecided = np.flatnonzero((truncated == quotient) & (truncated != 0.0))
    if undecided.size:
        value = values[undecided]
        truncated[undecided] = np.rint((value - np.fmod(value, step)) / step)
    return truncated


def _largest_absolute(update: Vector) -> float:
    """Return the largest absolute value, or a NaN or infinity if the update contains one."""
    largest = 0.0
    for _, chunk in _chunks(update):
        peak = float(np.max(np.abs(chunk)))
        if not peak < np.inf:
            return peak
        largest = max(largest, peak)
    return largest


def sum_of_powers(units: Units, order: int) -> int:
    """Return the exact sum of absolute values (order 1) or of squares (order 2)."""
    sizes = np.abs(units.astype(np.int64))
    if order == 1:
        return int(sizes.sum())
    if int(sizes.max(initial=0)) ** 2 * sizes.size < 1 << 63:
        return int(sizes @ sizes)
    high, low = sizes >> 16, sizes & 0xFFFF  # the squares would overflow 64 bits
    return (int(high @ high) << 32) + (int(high @ low) << 17) + int(low @ low)


def _chunks(update: Vector) -> Iterator[tuple[slice, FloatArray]]:
    """Yield slices of the update, with their values as doubles. Too large values are infinite."""
    for start in range(0, update.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        yield part, update[part].astype(np.float64, copy=False)
