"""Bounds on E(S - T)_+ for a sum S of many independent slot ratios, by fast Fourier transform.

The values x of one slot are rounded to the points of an equally spaced grid. Their masses are
multiplied by e^(tilt * x), so that sums near the threshold T become likely, and divided by their
sum. The Fourier transform of these *tilted* masses is raised to the power of the number of slots,
and transformed back. Tilting makes all errors small relative to the result, even if the result is
1e-20.

Theorem:     docs/theory/rounding.md, "Fourier transforms".
Rounding:    up or down, including round-off and the mass that wraps around.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import fft

from checkins.accounting.exact.dominating_pair import ROUND_OFF, AcceptanceProbabilities
from checkins.accounting.exact.grid_distribution import GridDistribution
from checkins.accounting.exact.slot_ratio import FloatArray

MAX_LENGTH = 1 << 19
"""Largest number of points of a Fourier transform. A sum that needs more is computed by doubling
(``slot_sum``)."""
_UNIT_ROUNDOFF = 2.0**-53
"""Largest relative error of one floating-point operation."""
_TRANSFORM_ERROR = 40.0 * _UNIT_ROUNDOFF
"""Bound on the relative error of a transform of N numbers, divided by log2(N).

The error is measured in the Euclidean norm. [Higham02, Thm 24.2] proves 7 unit round-offs for
precomputed roots of unity.
"""
_MAX_ROUNDING_CHANGE, _REFERENCE_RESOLUTION = 0.002, 600
"""Estimated relative change of E(S - T)_+ by rounding to the grid, at this resolution."""
_NEGLIGIBLE_LOG = -92.0
"""Logarithm below which the power of an entry of a transform is replaced by 0."""
_MAX_CAPPED_SHARE = 5.0
"""Largest part of an upper bound that may come from capped values, relative to all other parts."""
_MAX_ESTIMATED_CAPPED_SHARE = 0.1
"""The same, estimated when the grid is chosen, relative to E e^(tilt (S - T)) / tilt."""
_MAX_ERROR_SHARE = 0.03
"""Largest share of all errors in an upper bound. If they are larger, doubling is tighter."""
_FEW_COPIES, _MAX_ERROR_SHARE_OF_FEW = 100, 0.01
"""The same share for up to ``_FEW_COPIES`` slots, for which doubling is more precise."""
_MAX_LOWER_ERROR_SHARE = 0.2
"""The same share in a lower bound. It is larger, because doubling gives looser lower bounds."""
_MAX_RELATIVE_ERROR = 0.01
"""Largest relative error by the rounding of masses and exponents to floating-point numbers."""
_MIN_CELL_MASS = 1e-290
"""Mass below which a cell of a slot's output is dropped, because its ratio could overflow."""
_MIN_TILTED_MASS = 1e-60
"""Tilted mass below which a grid point is dropped. This changes less than round-off does."""
_TILT_ALLOWANCE = 4.0
"""How much log E e^(tilt (S - T)) may exceed its minimum over all tilts (``_good_tilt``)."""
_COUNTED_RANGE = 45.0
"""Sums from T to T + ``_COUNTED_RANGE`` / tilt are counted one by one.

Sums above that have negligible weights, and only a bound on them is added.
"""
_CHERNOFF_STEPS = (0.15, 0.3, 0.6, 1.0, 1.5, 2.0, 3.0)
"""Exponents that Chernoff's bound tries, as multiples of the tilt."""
_Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Grid:
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


def _log_mean_exp(tilt: float, values: FloatArray, masses: FloatArray) -> float:
    """Return log E e^(tilt X)."""
    exponents = tilt * values
    largest = float(exponents.max())
    return largest + math.log(float(np.exp(exponents - largest) @ masses))


def _choose_grid(
    values: FloatArray, masses: FloatArray, *, copies: int, threshold: float, resolution: int
) -> _Grid | None:
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
    return _Grid(width, first, max(math.ceil(high / width), first + 1), length, tilt)


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
class _TiltedSum:
    """The tilted distribution of the sum of ``copies`` slots, as a Fourier transform.

    One slot has the value ``grid.width`` * ``indices[k]`` with the (untilted) probability
    e^``log_masses[k]``. ``log_mean`` is log E e^(tilt X) for this value X. ``spectrum`` is the
    Fourier transform of the tilted masses of one slot, shifted so that the index ``centre`` is at
    position 0. ``error`` bounds the Euclidean norm of the errors of the spectrum, divided by the
    square root of the length.
    """

    grid: _Grid
    copies: int
    indices: _Integers
    log_masses: FloatArray
    log_mean: float
    centre: int
    spectrum: npt.NDArray[np.complex128]
    error: float

    @classmethod
    def of(cls, grid: _Grid, indices: _Integers, masses: FloatArray, copies: int) -> _TiltedSum:
        log_masses = np.log(masses)
        exponents = log_masses + grid.tilt * grid.width * indices
        largest = int(np.argmax(exponents))
        tilted = np.exp(exponents - exponents[largest])
        total = float(tilted.sum())
        tilted /= total
        centre, peak = int(indices[largest]), float(tilted[largest])
        tilted[(tilted < _MIN_TILTED_MASS)] = 0.0
        tilted[largest] = 0.0  # transformed exactly, because the peak may hold nearly all mass
        spectrum, error = _transform(indices - centre, tilted, grid.length)
        log_mean = float(exponents[largest]) + math.log(total)
        error += 4 * _UNIT_ROUNDOFF
        return cls(grid, copies, indices, log_masses, log_mean, centre, spectrum + peak, error)

    def power(self, copies: int) -> tuple[npt.NDArray[np.complex128], float]:
        """Return the transform of the sum of ``copies`` slots, and a bound on its errors.

        The bound is on the same norm as ``error``.
        """
        result = np.zeros_like(self.spectrum)
        magnitudes = np.abs(self.spectrum)
        with np.errstate(divide="ignore"):
            active = copies * np.log(magnitudes) > _NEGLIGIBLE_LOG
        base = self.spectrum[active]
        total = np.ones_like(base)
        for bit in bin(copies)[2:]:
            total = total * total
            if bit == "1":
                total = total * base
        result[active] = total
        # |a^n - b^n| <= n |a - b| max(|a|, |b|)^(n-1), and 3 unit round-offs per complex product
        growth = math.exp(min(copies * self.error * math.sqrt(self.grid.length), 700.0))
        error = copies * (self.error + 3 * _UNIT_ROUNDOFF) * growth + math.exp(_NEGLIGIBLE_LOG)
        return result, error

    def log_beyond(self, value: float, *, above: bool, one_slot: FloatArray | None = None) -> float:
        """Bound the logarithm of the tilted mass of sums above or below ``value`` (Chernoff).

        ``one_slot`` holds the untilted masses of one of the slots. If it is None, this slot has the
        same masses as all others.
        """
        grid, best = self.grid, math.inf
        points = grid.width * self.indices
        for multiple in _CHERNOFF_STEPS:
            step = multiple * grid.tilt * (1.0 if above else -1.0)
            exponents = self.log_masses + (grid.tilt + step) * points
            largest = float(exponents.max())
            powers = np.exp(exponents - largest)
            all_slots = self.copies * (largest + math.log(float(powers.sum())) - self.log_mean)
            if one_slot is not None:
                first = float((powers * one_slot / np.exp(self.log_masses)).sum())
                all_slots += math.log(max(first, 1e-300)) - math.log(float(powers.sum()))
            best = min(best, all_slots - step * value)
        return min(best, 0.0)

    def first_index(self, threshold: float) -> int:
        """Return the index of the first sum above ``threshold``, minus the sum of the centres."""
        return math.floor(threshold / self.grid.width) + 1 - self.copies * self.centre

    def points_above(self, threshold: float, count: int) -> tuple[_Integers, FloatArray]:
        """Return positions of the first ``count`` sums above ``threshold``, and their distances.

        A position is an index into an inverse transform. A distance is the sum minus ``threshold``.
        """
        start = self.first_index(threshold)
        offsets = start + np.arange(count)
        first_point = (start + self.copies * self.centre) * self.grid.width
        distances = (first_point - threshold) + self.grid.width * np.arange(count)
        return (offsets % self.grid.length).astype(np.int64), np.asarray(distances, np.float64)

    def threshold_error(self, threshold: float) -> float:
        """Bound the round-off of the distances of ``points_above``."""
        max_index = self.grid.length + abs(self.first_index(0.0))
        return 8.0 * _UNIT_ROUNDOFF * (abs(threshold) + self.grid.width * max_index)

    def log_scale(self, threshold: float) -> float:
        """Return log E e^(tilt (S - T)), the logarithm of untilted divided by tilted results."""
        return self.copies * self.log_mean - self.grid.tilt * threshold

    def relative_error(self, threshold: float) -> float:
        """Bound the relative error of results that comes from rounded masses and exponents."""
        max_exponent = float(np.abs(self.grid.tilt * self.grid.width * self.indices).max())
        exponents = self.copies * (max_exponent + 20.0) + abs(self.grid.tilt * threshold)
        return 4.0 * _UNIT_ROUNDOFF * exponents


def _errors_will_dominate(
    grid: _Grid, indices: _Integers, masses: FloatArray, *, copies: int, threshold: float
) -> bool:
    """Guess without transforms whether round-off will be a large part of E(S - T)_+.

    After a wrong guess the bounds are looser, but still valid. E(S - T)_+ is estimated by its size
    if one huge ratio exceeds the threshold, plus its size for a normally distributed sum.
    """
    tilt, points = grid.tilt, grid.width * indices
    exponents = np.log(masses) + tilt * points
    tilted = np.exp(exponents - exponents.max())
    tilted /= tilted.sum()
    mean = float(tilted @ points)
    gap = max(threshold - copies * mean, 0.0)
    variance = copies * float(tilted @ np.minimum(np.abs(points - mean), gap / 4.0) ** 2)
    beyond = np.maximum(points + (copies - 1) * mean - threshold, 0.0)
    by_one_ratio = copies * float(tilted @ (beyond * np.exp(-tilt * beyond)))
    like_normal = math.exp(-gap * gap / (2.0 * variance)) if variance > 0.0 else 1.0
    tilted[np.argmax(tilted)] = 0.0
    error = _TRANSFORM_ERROR * math.log2(grid.length) * _norm(tilted)
    norm_of_weights = math.sqrt(1.0 / (4.0 * tilt**3 * grid.width))  # of x e^(-tilt x)
    return copies * error * norm_of_weights > 0.1 * (by_one_ratio + like_normal / tilt)


def _norm(values: FloatArray) -> float:
    """Return the Euclidean norm, without the threads that a matrix library would start."""
    return math.sqrt(float((values * values).sum()))


def _transform(
    indices: _Integers, masses: FloatArray, length: int
) -> tuple[npt.NDArray[np.complex128], float]:
    """Return the Fourier transform of masses at indices, and a bound on its error.

    The bound is on the Euclidean norm of the errors, divided by the square root of the length.
    """
    dense = np.bincount(indices % length, masses, length).astype(np.float64)
    return fft.rfft(dense), _TRANSFORM_ERROR * math.log2(length) * _norm(dense)


def _inverse(
    spectrum: npt.NDArray[np.complex128], error: float, length: int
) -> tuple[FloatArray, float]:
    """Return the masses of a transform, and a bound on the Euclidean norm of their errors."""
    masses = fft.irfft(spectrum, length)
    transform = _TRANSFORM_ERROR * math.log2(length)
    return masses, error + transform * (_norm(masses) + error) * 1.01


def upper_stop_loss(
    slot: GridDistribution, *, copies: int, threshold: float, resolution: int
) -> float | None:
    """Return an upper bound on E(S - T)_+, where S is the sum of ``copies`` draws of ``slot``.

    ``slot`` is an upper bound in convex order on one slot. The grid is finer if ``resolution`` is
    larger. Return None if the sum needs too many grid points, or if the errors are too large.
    """
    values = slot.values + slot.origin
    grid = _choose_grid(
        values, slot.masses, copies=copies, threshold=threshold, resolution=resolution
    )
    if grid is None:
        return None
    indices, masses, excess = _split_between_points(grid, values, slot.masses)
    if _errors_will_dominate(grid, indices, masses, copies=copies, threshold=threshold):
        return None
    total = _TiltedSum.of(grid, indices, masses, copies)
    distance_error = total.threshold_error(threshold)
    count = min(grid.length // 2, math.ceil(_COUNTED_RANGE / (grid.tilt * grid.width)))
    positions, distances = total.points_above(threshold, count)
    weights = (distances + distance_error) * np.exp(-grid.tilt * distances)
    spectrum, error = total.power(copies)
    sums, error = _inverse(spectrum, error, grid.length)
    result = float((sums[positions] * weights).sum())
    # The weight (x - T) e^(-tilt (x - T)) of a sum x falls from T + 1/tilt on. So above the last
    # counted sum, it is at most the weight of that sum.
    last = float(distances[-1])
    uncounted = math.inf
    if grid.tilt * last > 1.0:
        uncounted = (last + distance_error) * math.exp(-grid.tilt * last)
    uncounted *= math.exp(min(0.0, total.log_beyond(threshold + last, above=True)))
    errors = error * _norm(weights) + uncounted
    relative = total.relative_error(threshold)
    # Mass that wraps around is added to the result, which remains an upper bound.
    wrapped = math.exp(total.log_beyond(threshold - grid.period + last, above=False))
    wrapped += math.exp(total.log_beyond(threshold + grid.period, above=True))
    error_bound = errors + wrapped * float(weights.max())
    allowed = _MAX_ERROR_SHARE if copies > _FEW_COPIES else _MAX_ERROR_SHARE_OF_FEW
    if not (error_bound <= allowed * result and relative <= _MAX_RELATIVE_ERROR):
        return None
    scale = math.exp(min(total.log_scale(threshold), 700.0))
    below_cap = scale * (result + errors) * (1.0 + relative)
    capped = copies * (excess + slot.excess)
    return below_cap + capped if capped <= _MAX_CAPPED_SHARE * below_cap else None


def threshold_of_sum(epsilon: float, *, slots: int, participation: float) -> float:
    """Return the T for which delta is (participation / slots) E(S - T)_+, for replace-one."""
    return slots * (1.0 - participation) / participation * math.expm1(epsilon)


def _split_between_points(
    grid: _Grid, values: FloatArray, masses: FloatArray
) -> tuple[_Integers, FloatArray, float]:
    """Split the mass of each value between the two nearest grid points, and preserve the mean.

    Values below the grid are raised to its first point, and values above it are lowered to its last
    point. Return the indices, their masses, and the decrease of the mean by this lowering.
    """
    top = grid.width * grid.last
    excess = float(np.maximum(values - top, 0.0) @ masses)
    places = np.clip(values / grid.width, grid.first, grid.last)
    left = np.minimum(np.floor(places), grid.last - 1)
    share = places - left
    offsets = (left - grid.first).astype(np.int64)
    size = grid.last - grid.first + 1
    dense = np.bincount(offsets, masses * (1.0 - share), size)
    dense += np.bincount(offsets + 1, masses * share, size)
    kept = np.flatnonzero(dense)
    indices = (kept + grid.first).astype(np.int64)
    return indices, dense[kept].astype(np.float64), excess


@dataclass(frozen=True, slots=True)
class CellMasses:
    """The masses of the same cells of a slot's output under three distributions.

    ``base`` is the distribution without the client, ``present`` with the client, and ``other`` with
    the client's other data. Some client and data attain them.
    """

    base: FloatArray
    present: FloatArray
    other: FloatArray


class ThresholdTest:
    """A test between two values of a client's data, P with the first and P' with the second.

    The ratio of an outcome of a slot is z = (u - e^eps v) / D. Here u and v are its probabilities
    with the first and the second value, and D its probability without the client. Ratios are
    rounded to a grid. The test accepts if the sum of the rounded ratios of all slots exceeds a
    threshold. Let A be this event. ``gain`` is a lower bound on P(A) - e^eps P'(A), so also on
    delta.

    Theorem:     docs/theory/rounding.md, "Fourier transforms".
    """

    def __init__(
        self,
        cells: CellMasses,
        *,
        epsilon: float,
        slots: int,
        participation: float,
        resolution: int,
    ) -> None:
        self.slots, self.participation, self._epsilon = slots, participation, epsilon
        keep = cells.base > _MIN_CELL_MASS
        self._base = cells.base[keep]
        self._other = cells.other[keep]
        differences = cells.present[keep] - math.exp(epsilon) * self._other
        self._sums = _RoundedSums.of(
            self._base,
            differences,
            slots=slots,
            threshold=threshold_of_sum(epsilon, slots=slots, participation=participation),
            resolution=resolution,
        )
        self.gain = 0.0 if self._sums is None else self._compute_gain(self._sums)

    def _compute_gain(self, sums: _RoundedSums) -> float:
        total, decay = sums.total, sums.decay
        weights = (sums.distances - total.threshold_error(sums.threshold)) * decay
        masses, error, wrapped = sums.with_one_slot(sums.masses)
        counted = float((masses * weights).sum())
        errors = error * _norm(weights) + wrapped * float(np.abs(weights).max())
        masses, error, wrapped = sums.with_one_slot(sums.rounding_errors)
        rounded_off = self.slots * float((masses * decay).sum())
        errors += self.slots * (error * _norm(decay) + wrapped)
        relative = total.relative_error(sums.threshold)
        magnitude = counted + self.slots * float((np.abs(masses) * decay).sum())
        gain = counted + rounded_off - errors - relative * magnitude
        if not (errors <= _MAX_LOWER_ERROR_SHARE * gain and relative <= _MAX_RELATIVE_ERROR):
            return 0.0
        scale = math.exp(min(total.log_scale(sums.threshold), 700.0))
        return gain * scale * self.participation / self.slots

    def probabilities(self) -> AcceptanceProbabilities:
        """Return bounds on the probabilities that the test accepts."""
        if self.gain == 0.0 or self._sums is None:
            return AcceptanceProbabilities(0.0, 0.0)
        total, threshold = self._sums.total, self._sums.threshold
        scale = math.exp(min(total.log_scale(threshold), 700.0))
        relative = total.relative_error(threshold) + ROUND_OFF
        in_base = self._sums.acceptance(self._base)
        other = self._sums.acceptance(self._other)
        lower, upper = (
            scale * ((1.0 - self.participation) * a + self.participation * b)
            for a, b in zip(in_base, other, strict=True)
        )
        lower, upper = max(0.0, lower) * (1.0 - relative), upper * (1.0 + relative)
        growth = math.expm1(self._epsilon)
        return AcceptanceProbabilities(
            min(1.0, upper), self.gain * (1.0 - ROUND_OFF) + growth * lower - (upper - lower)
        )


@dataclass(frozen=True, slots=True, eq=False)
class _RoundedSums:
    """The distribution of the sum of the rounded ratios of all slots, above a threshold.

    ``total`` is the sum of all slots. ``power`` is the transform of all slots but one, and
    ``power_error`` bounds its errors. ``positions`` are the counted sums in an inverse transform,
    ``distances`` their distances above ``threshold``, and ``decay`` is e^(-tilt * distance).

    The other arrays are about one slot. ``offset_of_cell`` maps each cell to the grid point of its
    rounded ratio, counted from the first grid point, and ``offsets`` are the grid points that have
    mass. For each of them, ``masses`` is its mass, ``tilts`` the factor from untilted to tilted
    mass, and ``rounding_errors`` the sum of mass times (ratio minus rounded ratio) of its cells.
    """

    total: _TiltedSum
    threshold: float
    power: npt.NDArray[np.complex128]
    power_error: float
    positions: _Integers
    distances: FloatArray
    decay: FloatArray
    offset_of_cell: _Integers
    offsets: _Integers
    masses: FloatArray
    tilts: FloatArray
    rounding_errors: FloatArray

    @classmethod
    def of(
        cls,
        base: FloatArray,
        differences: FloatArray,
        *,
        slots: int,
        threshold: float,
        resolution: int,
    ) -> _RoundedSums | None:
        """Round the ratios ``differences`` / ``base`` of a slot's cells, and sum all slots.

        Return None if there is no good grid, or if round-off would be too large.
        """
        ratios = differences / base
        order = np.argsort(ratios, kind="stable")
        grid = _choose_grid(
            ratios[order], base[order], copies=slots, threshold=threshold, resolution=resolution
        )
        if grid is None:
            return None
        places = np.clip(np.rint(ratios / grid.width), grid.first, grid.last)
        offset_of_cell = places.astype(np.int64) - grid.first
        dense = np.bincount(offset_of_cell, base).astype(np.float64)
        offsets = np.flatnonzero(dense)
        masses, indices = dense[offsets], offsets + grid.first
        by_cell = differences - base * (grid.width * places)
        rounding_errors = np.bincount(offset_of_cell, by_cell).astype(np.float64)[offsets]
        # Move all rounded ratios by one constant, so that their tilted mean is that of the ratios.
        tilted = masses * np.exp(grid.tilt * grid.width * (indices - indices[-1]))
        move = float((rounding_errors / masses) @ tilted) / float(tilted.sum())
        rounding_errors = rounding_errors - move * masses
        threshold -= slots * move
        if _errors_will_dominate(grid, indices, masses, copies=slots, threshold=threshold):
            return None
        total = _TiltedSum.of(grid, indices, masses, slots)
        count = min(grid.length // 2, math.ceil(_COUNTED_RANGE / (grid.tilt * grid.width)))
        positions, distances = total.points_above(threshold, count)
        power, power_error = total.power(slots - 1)
        return cls(
            total=total,
            threshold=threshold,
            power=power,
            power_error=power_error,
            positions=positions,
            distances=distances,
            decay=np.exp(-grid.tilt * distances),
            offset_of_cell=offset_of_cell,
            offsets=offsets,
            masses=masses,
            tilts=np.exp(grid.tilt * grid.width * indices - total.log_mean),
            rounding_errors=rounding_errors,
        )

    def acceptance(self, by_cell: FloatArray) -> tuple[float, float]:
        """Bound the tilted probability of sums above the threshold, from below and from above.

        One slot has the masses ``by_cell`` of the cells, and the others those of the base.
        """
        one_slot = np.bincount(self.offset_of_cell, by_cell).astype(np.float64)[self.offsets]
        sums, error, wrapped = self.with_one_slot(one_slot)
        accepted = float((sums * self.decay).sum())
        error_bound = error * _norm(self.decay)
        return accepted - error_bound - wrapped, accepted + error_bound

    def with_one_slot(self, one_slot: FloatArray) -> tuple[FloatArray, float, float]:
        """Return the tilted masses of the counted sums, if one slot has the masses ``one_slot``.

        The second result bounds the Euclidean norm of their errors. The third bounds the mass of
        sums outside the period of the transform, which it adds to the counted sums.
        """
        tilted, total = one_slot * self.tilts, self.total
        length, largest = total.grid.length, float(np.abs(tilted).sum())
        spectrum, error = _transform(total.indices - total.centre, tilted, length)
        error += (self.power_error + 4 * _UNIT_ROUNDOFF) * largest
        sums, error = _inverse(self.power * spectrum, error, length)
        period, magnitudes = total.grid.period, np.abs(one_slot)
        lowest = self.threshold - period + float(self.distances[-1])
        log_wrapped = np.logaddexp(
            total.log_beyond(lowest, above=False, one_slot=magnitudes),
            total.log_beyond(self.threshold + period, above=True, one_slot=magnitudes),
        )
        return sums[self.positions], error, math.exp(min(0.0, float(log_wrapped)))
