"""The distribution of a sum of independent slot ratios, tilted, as a Fourier transform.

The values x of one slot are rounded to the points of an equally spaced grid. Their masses are
multiplied by e^(tilt * x), so that sums near a threshold T become likely, and divided by their sum.
The Fourier transform of these *tilted* masses is raised to the power of the number of slots.
Tilting makes all errors small relative to the result. ``fourier_sum`` computes bounds with it.

Theorem:     docs/theory/rounding.md, "Fourier transforms".
Rounding:    to nearest, with bounds on all errors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt
from scipy import fft

from checkins.accounting.exact.slot_ratio import FloatArray

MAX_LENGTH = 1 << 19
"""Largest number of points of a Fourier transform. A sum that needs more is computed by doubling
(``slot_sum``)."""
UNIT_ROUNDOFF = 2.0**-53
"""Largest relative error of one floating-point operation."""
_TRANSFORM_ERROR = 40.0 * UNIT_ROUNDOFF
"""Bound on the relative error of a transform of N numbers, divided by log2(N).

The error is measured in the Euclidean norm. [Higham02, Thm 24.2] proves 7 unit round-offs for
precomputed roots of unity.
"""
_MAX_ROUNDING_CHANGE, _REFERENCE_RESOLUTION = 0.002, 600
"""Estimated relative change of E(S - T)_+ by rounding to the grid, at this resolution."""
_NEGLIGIBLE_LOG = -92.0
"""Logarithm below which the power of an entry of a transform is replaced by 0."""
_MAX_ESTIMATED_CAPPED_SHARE = 0.1
"""Largest estimated part of E(S - T)_+ that may come from capped values of a grid.

It is relative to E e^(tilt (S - T)) / tilt.
"""
_MIN_TILTED_MASS = 1e-60
"""Tilted mass below which a grid point is dropped. The effect is smaller than round-off."""
_TILT_ALLOWANCE = 4.0
"""How much log E e^(tilt (S - T)) may exceed its minimum over all tilts (``_good_tilt``)."""
_COUNTED_RANGE = 45.0
"""Sums from T to T + ``_COUNTED_RANGE`` / tilt are counted one by one.

Sums above that have negligible weights, and only a bound on them is added.
"""
_CHERNOFF_STEPS = (0.15, 0.3, 0.6, 1.0, 1.5, 2.0, 3.0)
"""Exponents that Chernoff's bound tries, as multiples of the tilt."""
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TiltedGrid:
    """The grid points ``width`` * j of one slot, for integers j from ``first`` to ``last``.

    The Fourier transform has ``length`` points, and ``tilt`` is the tilt of the masses.
    """

    width: float
    first: int
    last: int
    length: int
    tilt: float

    @property
    def period(self) -> float:
        """The difference of two sums that the Fourier transform adds at the same point."""
        return self.width * self.length

    @property
    def counted_points(self) -> int:
        """The number of sums above the threshold that are counted one by one."""
        return min(self.length // 2, math.ceil(_COUNTED_RANGE / (self.tilt * self.width)))


def _log_mean_exp(tilt: float, values: FloatArray, masses: FloatArray) -> float:
    """Return log E e^(tilt X)."""
    exponents = tilt * values
    largest = float(exponents.max())
    return largest + math.log(float(np.exp(exponents - largest) @ masses))


def choose_grid(
    values: FloatArray, masses: FloatArray, *, copies: int, threshold: float, resolution: int
) -> TiltedGrid | None:
    """Choose tilt, range and width of the grid for the sum of ``copies`` slots.

    The width is inversely proportional to ``resolution``. Return None if the sum needs too many
    points, or if single slots with huge ratios matter. Any choice of tilt, range and width gives
    valid bounds; a bad choice gives loose ones.
    """
    mean = float(values @ masses)
    true_gap = threshold - copies * mean
    typical = 1.25 * math.sqrt(copies) * float(masses @ np.abs(values - mean))
    gap = max(true_gap, 2.0 * typical)
    deviation = math.sqrt(copies * float(masses @ np.clip(values - mean, -gap, gap) ** 2))
    high = min(float(values[-1]), mean + gap + min(4.0 * deviation, gap))
    low = max(float(values[0]), mean - 8.0 * gap)
    tilt = 0.0
    for _ in range(2):  # the range depends on the tilt, and the tilt on the range
        capped = np.clip(values, low, high)
        tilt = _good_tilt(capped, masses, copies=copies, threshold=threshold, gap=gap)
        weights = masses * np.exp(np.maximum(tilt * np.minimum(values - mean, 0.0), -700.0))
        unlikely = int(np.searchsorted(copies * np.cumsum(weights), 1e-6))
        low = max(low, float(values[max(unlikely - 1, 0)]))
    tilted = masses * np.exp(tilt * (capped - high))
    tilted /= tilted.sum()
    centre = float(tilted @ capped)
    deviation = math.sqrt(copies * float(tilted @ (capped - centre) ** 2))
    scale = max(tilt, min(1.0 / typical, 4.0 / max(true_gap, 1e-3 * typical)))
    width = min(math.sqrt(8.0 * _MAX_ROUNDING_CHANGE / copies) / scale, gap / 400.0)
    width *= _REFERENCE_RESOLUTION / resolution
    period = max(24.0 * deviation, _COUNTED_RANGE / tilt, 4.5 * (high - mean), 1.05 * (high - low))
    length = fft.next_fast_len(max(64, math.ceil(period / width) + 4), real=True)
    capped_part = copies * float(np.maximum(values - high, 0.0) @ masses) * tilt
    log_scale = copies * _log_mean_exp(tilt, capped, masses) - tilt * threshold
    max_capped_part = _MAX_ESTIMATED_CAPPED_SHARE * math.exp(min(log_scale, 0.0))
    if length > MAX_LENGTH or capped_part > max_capped_part:
        return None
    first = math.floor(low / width)
    return TiltedGrid(width, first, max(math.ceil(high / width), first + 1), length, tilt)


def _good_tilt(
    values: FloatArray, masses: FloatArray, *, copies: int, threshold: float, gap: float
) -> float:
    """Return a tilt at which sums close to the threshold are likely.

    The tilt that minimises E e^(tilt (S - T)) may make sums far above the threshold likely. So the
    result is smaller: the smallest tilt at which the logarithm of this expectation exceeds its
    minimum by at most ``_TILT_ALLOWANCE``.
    """

    def log_scale(tilt: float) -> float:
        return copies * _log_mean_exp(tilt, values, masses) - tilt * threshold

    target, low, high = threshold / copies, 1e-3 / gap, 1e5 / gap
    for _ in range(24):
        tilt = math.sqrt(low * high)
        weights = masses * np.exp(tilt * (values - values[-1]))
        if float(weights @ values) < target * float(weights.sum()):
            low = tilt
        else:
            high = tilt
    best, high = log_scale(low), low
    allowed = best + min(_TILT_ALLOWANCE, 0.1 * abs(best))
    low /= 8.0
    for _ in range(12):
        tilt = math.sqrt(low * high)
        low, high = (low, tilt) if log_scale(tilt) <= allowed else (tilt, high)
    return high


@dataclass(frozen=True, slots=True)
class TiltedSlot:
    """The tilted distribution of one slot, as a Fourier transform.

    The slot has the value ``grid.width`` * ``indices[k]`` with the (untilted) probability
    e^``log_masses[k]``. ``log_mean`` is log E e^(tilt X) for this value X. ``spectrum`` is the
    Fourier transform of the tilted masses, shifted so that the index ``centre`` is at position 0.
    ``error`` bounds the Euclidean norm of the errors of the spectrum, divided by the square root of
    the length.
    """

    grid: TiltedGrid
    indices: Integers
    log_masses: FloatArray
    log_mean: float
    centre: int
    spectrum: npt.NDArray[np.complex128]
    error: float

    @classmethod
    def of(cls, grid: TiltedGrid, indices: Integers, masses: FloatArray) -> TiltedSlot:
        log_masses = np.log(masses)
        exponents = log_masses + grid.tilt * grid.width * indices
        largest = int(np.argmax(exponents))
        tilted = np.exp(exponents - exponents[largest])
        total = float(tilted.sum())
        tilted /= total
        centre, peak = int(indices[largest]), float(tilted[largest])
        tilted[(tilted < _MIN_TILTED_MASS)] = 0.0
        tilted[largest] = 0.0  # transformed exactly, because the peak may hold nearly all mass
        spectrum, error = transform(indices - centre, tilted, grid.length)
        log_mean = float(exponents[largest]) + math.log(total)
        error += 4 * UNIT_ROUNDOFF
        return cls(grid, indices, log_masses, log_mean, centre, spectrum + peak, error)

    def power(self, copies: int) -> Spectrum:
        """Return the transform of the sum of ``copies`` slots."""
        result = np.zeros_like(self.spectrum)
        magnitudes = np.abs(self.spectrum)
        with np.errstate(divide="ignore", invalid="ignore"):
            active = copies * np.log(magnitudes) > _NEGLIGIBLE_LOG if copies else magnitudes >= 0.0
        base = self.spectrum[active]
        total = np.ones_like(base)
        for bit in bin(copies)[2:]:
            total = total * total
            if bit == "1":
                total = total * base
        result[active] = total
        # |a^n - b^n| <= n |a - b| max(|a|, |b|)^(n-1), and 3 unit round-offs per complex product
        growth = math.exp(min(copies * self.error * math.sqrt(self.grid.length), 700.0))
        error = copies * (self.error + 3 * UNIT_ROUNDOFF) * growth + math.exp(_NEGLIGIBLE_LOG)
        return Spectrum(result, error, growth)

    def log_moment(self, step: float, masses: FloatArray | None = None) -> float:
        """Return log E e^(step X) under the tilted distribution.

        ``masses`` are untilted masses in place of those of the slot, or None.
        """
        exponents = self.log_masses + (self.grid.tilt + step) * self.grid.width * self.indices
        largest = float(exponents.max())
        powers = np.exp(exponents - largest)
        if masses is not None:
            powers = powers * masses / np.exp(self.log_masses)
        return largest + math.log(max(float(powers.sum()), 1e-300)) - self.log_mean

    @property
    def max_exponent(self) -> float:
        return float(np.abs(self.grid.tilt * self.grid.width * self.indices).max())


@dataclass(frozen=True, slots=True)
class Spectrum:
    """A Fourier transform of tilted masses.

    ``error`` bounds the Euclidean norm of its errors, divided by the square root of its length.
    ``largest`` bounds its largest absolute value. Without errors, this is at most 1.
    """

    values: npt.NDArray[np.complex128]
    error: float
    largest: float = 1.0

    def times(self, other: Spectrum) -> Spectrum:
        """Return the transform of the sum of two independent sums."""
        error = self.error * other.largest + other.error * self.largest
        error += 3 * UNIT_ROUNDOFF * self.largest * other.largest
        return Spectrum(self.values * other.values, error, self.largest * other.largest)


@dataclass(frozen=True, slots=True)
class TiltedSum:
    """The tilted distribution of the sum of independent slots, as a Fourier transform.

    ``groups`` holds, for each kind of slot, its distribution and the number of such slots.
    """

    grid: TiltedGrid
    groups: tuple[tuple[TiltedSlot, int], ...]

    @property
    def centre(self) -> int:
        """The index of the sum that is at position 0 of an inverse transform."""
        return sum(copies * slot.centre for slot, copies in self.groups)

    def spectrum(self, *, leave_out_one: bool = False) -> Spectrum:
        """Return the transform of the sum, or of all slots but one of the first group."""
        powers = [
            slot.power(copies - (leave_out_one and group == 0))
            for group, (slot, copies) in enumerate(self.groups)
        ]
        return reduce(Spectrum.times, powers)

    def log_beyond(self, value: float, *, above: bool, one_slot: FloatArray | None = None) -> float:
        """Bound the logarithm of the tilted mass of sums above or below ``value`` (Chernoff).

        ``one_slot`` holds the untilted masses of one slot of the first group. If it is None, this
        slot has the same masses as the others of its group.
        """
        best = math.inf
        for multiple in _CHERNOFF_STEPS:
            step = multiple * self.grid.tilt * (1.0 if above else -1.0)
            all_slots = math.fsum(copies * slot.log_moment(step) for slot, copies in self.groups)
            if one_slot is not None:
                first = self.groups[0][0]
                all_slots += first.log_moment(step, one_slot) - first.log_moment(step)
            best = min(best, all_slots - step * value)
        return min(best, 0.0)

    def first_index(self, threshold: float) -> int:
        """Return the index of the first sum above ``threshold``, minus the sum of the centres."""
        return math.floor(threshold / self.grid.width) + 1 - self.centre

    def points_above(self, threshold: float, count: int) -> tuple[Integers, FloatArray]:
        """Return positions of the first ``count`` sums above ``threshold``, and their distances.

        A position is an index into an inverse transform. A distance is the sum minus ``threshold``.
        """
        start = self.first_index(threshold)
        offsets = start + np.arange(count)
        first_point = (start + self.centre) * self.grid.width
        distances = (first_point - threshold) + self.grid.width * np.arange(count)
        return (offsets % self.grid.length).astype(np.int64), np.asarray(distances, np.float64)

    def threshold_error(self, threshold: float) -> float:
        """Bound the round-off of the distances of ``points_above``."""
        max_index = self.grid.length + abs(self.first_index(0.0))
        return 8.0 * UNIT_ROUNDOFF * (abs(threshold) + self.grid.width * max_index)

    def log_scale(self, threshold: float) -> float:
        """Return log E e^(tilt (S - T)), the logarithm of untilted divided by tilted results."""
        log_mean = math.fsum(copies * slot.log_mean for slot, copies in self.groups)
        return log_mean - self.grid.tilt * threshold

    def relative_error(self, threshold: float) -> float:
        """Bound the relative error of results that comes from rounded masses and exponents."""
        exponents = math.fsum(copies * (slot.max_exponent + 20.0) for slot, copies in self.groups)
        return 4.0 * UNIT_ROUNDOFF * (exponents + abs(self.grid.tilt * threshold))


def errors_will_dominate(
    grid: TiltedGrid, groups: Sequence[tuple[Integers, FloatArray, int]], *, threshold: float
) -> bool:
    """Guess without transforms whether round-off will be a large part of E(S - T)_+.

    ``groups`` holds indices, masses and the number of slots of each kind. After a wrong guess the
    bounds are looser, but still valid. E(S - T)_+ is estimated by its size if one huge ratio
    exceeds the threshold, plus its size for a normally distributed sum.
    """
    tilt, slots = grid.tilt, []
    for indices, masses, copies in groups:
        points = grid.width * indices
        exponents = np.log(masses) + tilt * points
        tilted = np.exp(exponents - exponents.max())
        tilted /= tilted.sum()
        slots.append((points, tilted, float(tilted @ points), copies))
    total_mean = math.fsum(copies * mean for _, _, mean, copies in slots)
    gap = max(threshold - total_mean, 0.0)
    variance, by_one_ratio, error = 0.0, 0.0, 0.0
    for points, tilted, mean, copies in slots:
        variance += copies * float(tilted @ np.minimum(np.abs(points - mean), gap / 4.0) ** 2)
        beyond = np.maximum(points + total_mean - mean - threshold, 0.0)
        by_one_ratio += copies * float(tilted @ (beyond * np.exp(-tilt * beyond)))
        tilted[np.argmax(tilted)] = 0.0
        error += copies * _TRANSFORM_ERROR * math.log2(grid.length) * euclidean_norm(tilted)
    like_normal = math.exp(-gap * gap / (2.0 * variance)) if variance > 0.0 else 1.0
    norm_of_weights = math.sqrt(1.0 / (4.0 * tilt**3 * grid.width))  # of x e^(-tilt x)
    return error * norm_of_weights > 0.1 * (by_one_ratio + like_normal / tilt)


def euclidean_norm(values: FloatArray) -> float:
    """Return the Euclidean norm, without the threads that a matrix library would start."""
    return math.sqrt(float((values * values).sum()))


def transform(
    indices: Integers, masses: FloatArray, length: int
) -> tuple[npt.NDArray[np.complex128], float]:
    """Return the Fourier transform of masses at indices, and a bound on its error.

    The bound is on the Euclidean norm of the errors, divided by the square root of the length.
    """
    dense = np.bincount(indices % length, masses, length).astype(np.float64)
    return fft.rfft(dense), _TRANSFORM_ERROR * math.log2(length) * euclidean_norm(dense)


def inverse_transform(
    spectrum: npt.NDArray[np.complex128], error: float, length: int
) -> tuple[FloatArray, float]:
    """Return the masses of a transform, and a bound on the Euclidean norm of their errors."""
    masses = fft.irfft(spectrum, length)
    transform = _TRANSFORM_ERROR * math.log2(length)
    return masses, error + transform * (euclidean_norm(masses) + error) * 1.01
