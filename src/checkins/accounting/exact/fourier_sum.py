"""Bounds on E(S - T)_+ for a sum S of many independent slot ratios, by fast Fourier transform.

The values x of one slot are put on a grid of equal cells. Their masses are multiplied by
e^(tilt * x), so that the sums near the threshold T become likely. The Fourier transform of the
tilted masses is raised to the number of slots. Tilting makes all errors small relative to the
result, even if the result is 1e-20.

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
"""Largest number of grid points. A sum that needs more is computed by doubling instead."""
_UNIT = 2.0**-53  # the largest relative error of one floating-point operation
_TRANSFORM_ERROR = 40.0 * _UNIT
"""Relative error of a transform of N numbers in the Euclidean norm, divided by log2(N).

[Higham02, Thm 24.2] proves 7 units for precomputed roots of unity. This is over five times it."""
_RELATIVE_LOSS = 0.002  # relative change of E(S - T)_+ by the rounding to cells of the chosen width
_REFERENCE_CELLS = 600  # the number of cells to which this change belongs
_NEGLIGIBLE_LOG = -92.0  # logarithm of a power that is replaced by 0
_MAX_CAPPED_SHARE = 5.0  # of E(S - T)_+
_MAX_CAPPED = 0.1  # E(S - T)_+ above the cap of a slot, in units of its size under tilting
_MAX_ERROR_SHARE = 0.03  # with a larger bound on all errors, doubling is tighter
_FEW_COPIES, _MAX_ERROR_SHARE_OF_FEW = 100, 0.01  # doubling is more precise for few copies
_MAX_RELATIVE_ERROR = 0.01  # of rounded masses and exponents
_MAX_LOWER_ERROR_SHARE = 0.2  # the same for a lower bound, whose alternative is looser
_LEAST_BASE = 1e-290  # cells with less mass are dropped, because ratios could overflow
_LEAST_MASS = 1e-60  # smaller tilted masses are dropped, which changes less than round-off
_TILT_ALLOWANCE = 4.0  # see _good_tilt
_WINDOW = 45.0  # grid points above T + _WINDOW / tilt have negligible weight
_TILT_FACTORS = (0.15, 0.3, 0.6, 1.0, 1.5, 2.0, 3.0)
_Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Grid:
    """The grid points ``width`` * j for integers j from ``first`` to ``last``, and the tilt."""

    width: float
    first: int
    last: int
    length: int
    tilt: float


def _log_mean_exp(tilt: float, values: FloatArray, masses: FloatArray) -> float:
    """Return log E e^(tilt X)."""
    exponents = tilt * values
    largest = float(exponents.max())
    return largest + math.log(float(np.exp(exponents - largest) @ masses))


def _choose_grid(
    values: FloatArray, masses: FloatArray, *, copies: int, threshold: float, cells: int
) -> _Grid | None:
    """Choose tilt, range and cell width for the sum. Return None if no choice is good.

    That is if the sum needs too many points, or if single slots with huge ratios matter.

    A bad choice makes the bounds looser, but never wrong.
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
    width = min(math.sqrt(8.0 * _RELATIVE_LOSS / copies) / scale, gap / 400.0)
    width *= _REFERENCE_CELLS / cells
    reach = max(24.0 * deviation, _WINDOW / tilt, 4.5 * (high - mean), 1.05 * (high - low))
    length = fft.next_fast_len(max(64, math.ceil(reach / width) + 4), real=True)
    capped_mean = copies * float(np.maximum(values - high, 0.0) @ masses) * tilt
    log_scale = copies * _log_mean_exp(tilt, capped, masses) - tilt * threshold
    if length > MAX_LENGTH or capped_mean > _MAX_CAPPED * math.exp(min(log_scale, 0.0)):
        return None
    first = math.floor(low / width)
    return _Grid(width, first, max(math.ceil(high / width), first + 1), length, tilt)


def _good_tilt(
    values: FloatArray, masses: FloatArray, *, copies: int, threshold: float, gap: float
) -> float:
    """Return a tilt for which the tilted sums come close to the threshold.

    It is somewhat smaller than the tilt that minimises E e^(tilt (S - T)), at which sums far above
    the threshold may be likely.
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

    ``indices`` and ``masses`` are the tilted masses of one slot. The transform of one slot
    ``spectrum`` is relative to the index ``centre``. ``error`` bounds the Euclidean norm of the
    errors of the spectrum, divided by the square root of the length.
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
        tilted[(tilted < _LEAST_MASS)] = 0.0
        tilted[largest] = 0.0  # transformed exactly, because the peak may hold nearly all mass
        spectrum, error = _transform(indices - centre, tilted, grid.length)
        log_mean = float(exponents[largest]) + math.log(total)
        return cls(
            grid, copies, indices, log_masses, log_mean, centre, spectrum + peak, error + 4 * _UNIT
        )

    def power(self, copies: int) -> tuple[npt.NDArray[np.complex128], float]:
        """Return the transform of the sum of ``copies`` slots, and its error as in ``error``."""
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
        # |a^n - b^n| <= n |a - b| max(|a|, |b|)^(n-1), and 3 units for each complex product
        growth = math.exp(min(copies * self.error * math.sqrt(self.grid.length), 700.0))
        return result, copies * (self.error + 3 * _UNIT) * growth + math.exp(_NEGLIGIBLE_LOG)

    def log_beyond(self, value: float, *, above: bool, one_slot: FloatArray | None = None) -> float:
        """Bound the logarithm of the tilted mass of sums beyond ``value``, by Chernoff's bound.

        One of the slots has the (untilted) masses ``one_slot``, or those of all slots if None.
        """
        grid, best = self.grid, math.inf
        points = grid.width * self.indices
        for factor in _TILT_FACTORS:
            step = factor * grid.tilt * (1.0 if above else -1.0)
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
        """Return the index of the first grid point above ``threshold``, relative to the centres."""
        return math.floor(threshold / self.grid.width) + 1 - self.copies * self.centre

    def points_above(self, threshold: float, count: int) -> tuple[_Integers, FloatArray]:
        """Return positions in a transform and the distances above ``threshold`` of grid points."""
        start = self.first_index(threshold)
        offsets = start + np.arange(count)
        first_point = (start + self.copies * self.centre) * self.grid.width
        distances = (first_point - threshold) + self.grid.width * np.arange(count)
        return (offsets % self.grid.length).astype(np.int64), np.asarray(distances, np.float64)

    def threshold_error(self, threshold: float) -> float:
        """Bound the round-off of the distances of ``points_above``."""
        reach = abs(threshold) + self.grid.width * (self.grid.length + abs(self.first_index(0.0)))
        return 8.0 * _UNIT * reach

    def log_scale(self, threshold: float) -> float:
        """Return log E e^(tilt (S - T)), the factor between tilted and untilted results."""
        return self.copies * self.log_mean - self.grid.tilt * threshold

    def relative_error(self, threshold: float) -> float:
        """Bound the relative error of results that comes from rounded masses and exponents."""
        extent = float(np.abs(self.grid.tilt * self.grid.width * self.indices).max())
        exponents = self.copies * (extent + 20.0) + abs(self.grid.tilt * threshold)
        return 4.0 * _UNIT * exponents


def _errors_will_dominate(
    grid: _Grid, indices: _Integers, masses: FloatArray, *, copies: int, threshold: float
) -> bool:
    """Guess whether round-off will be a large part of E(S - T)_+, without computing transforms.

    A wrong guess makes the bounds looser, but never wrong. The sum is guessed to exceed the
    threshold by one huge ratio, or like a normal distribution.
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
    slot: GridDistribution, *, copies: int, threshold: float, cells: int
) -> float | None:
    """Return an upper bound on E(S - T)_+, where S is the sum of ``copies`` draws of ``slot``.

    ``slot`` is an upper bound in convex order on one slot. More ``cells`` make the grid finer.
    Return None if the sum needs too many grid points, or if the errors are not negligible.
    """
    values = slot.values + slot.origin
    grid = _choose_grid(values, slot.masses, copies=copies, threshold=threshold, cells=cells)
    if grid is None:
        return None
    indices, masses, excess = _split_between_points(grid, values, slot.masses)
    if _errors_will_dominate(grid, indices, masses, copies=copies, threshold=threshold):
        return None
    total = _TiltedSum.of(grid, indices, masses, copies)
    slack = total.threshold_error(threshold)
    count = min(grid.length // 2, math.ceil(_WINDOW / (grid.tilt * grid.width)))
    positions, distances = total.points_above(threshold, count)
    weights = (distances + slack) * np.exp(-grid.tilt * distances)
    spectrum, error = total.power(copies)
    sums, error = _inverse(spectrum, error, grid.length)
    result = float((sums[positions] * weights).sum())
    # (x - T) e^(-tilt (x - T)) falls from T + 1/tilt on, so beyond the window it is at most this
    reach = float(distances[-1])
    beyond = (reach + slack) * math.exp(-grid.tilt * reach) if grid.tilt * reach > 1.0 else math.inf
    beyond *= math.exp(min(0.0, total.log_beyond(threshold + reach, above=True)))
    errors = error * _norm(weights) + beyond
    relative = total.relative_error(threshold)
    # Mass that wraps around is counted in addition, so it only makes the result larger.
    window = grid.width * grid.length
    wrapped = math.exp(total.log_beyond(threshold - window + reach, above=False))
    wrapped += math.exp(total.log_beyond(threshold + window, above=True))
    doubtful = errors + wrapped * float(weights.max())
    allowed = _MAX_ERROR_SHARE if copies > _FEW_COPIES else _MAX_ERROR_SHARE_OF_FEW
    if not (doubtful <= allowed * result and relative <= _MAX_RELATIVE_ERROR):
        return None
    bulk = math.exp(min(total.log_scale(threshold), 700.0)) * (result + errors) * (1.0 + relative)
    capped = copies * (excess + slot.excess)
    return bulk + capped if capped <= _MAX_CAPPED_SHARE * bulk else None


def _split_between_points(
    grid: _Grid, values: FloatArray, masses: FloatArray
) -> tuple[_Integers, FloatArray, float]:
    """Split each atom between its two grid points, and preserve the mean.

    Values below the grid are raised to its first point. Return the indices, their masses, and the
    mean that is lost by capping values above the grid.
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

    It accepts the outcomes A for which the sum over all slots of rounded ratios exceeds a
    threshold. ``gain`` is a lower bound on P(A) - e^eps P'(A), and so on delta.

    Theorem:     docs/theory/rounding.md, "Fourier transforms".
    """

    def __init__(
        self, cells: CellMasses, *, epsilon: float, slots: int, participation: float, fineness: int
    ) -> None:
        self.slots, self.participation, self._epsilon = slots, participation, epsilon
        keep = cells.base > _LEAST_BASE
        self._base = cells.base[keep]
        self._others = cells.other[keep]
        self._differences = cells.present[keep] - math.exp(epsilon) * self._others
        self._threshold = slots * (1.0 - participation) / participation * math.expm1(epsilon)
        ratios = self._differences / self._base
        order = np.argsort(ratios, kind="stable")
        self._grid = _choose_grid(
            ratios[order],
            self._base[order],
            copies=slots,
            threshold=self._threshold,
            cells=fineness,
        )
        self._ratios = ratios
        self.gain = 0.0 if self._grid is None else self._compute_gain(self._grid)

    def _compute_gain(self, grid: _Grid) -> float:
        places = np.clip(np.rint(self._ratios / grid.width), grid.first, grid.last)
        self._offsets = places.astype(np.int64) - grid.first
        dense = np.bincount(self._offsets, self._base).astype(np.float64)
        self._kept = np.flatnonzero(dense)
        masses, indices = dense[self._kept], self._kept + grid.first
        # the part of each ratio that the rounded ratio lacks, times its mass
        lacks = self._grouped(self._differences - self._base * (grid.width * places))
        # Move all rounded ratios by one constant, so that they are right on average.
        tilts = masses * np.exp(grid.tilt * grid.width * (indices - indices[-1]))
        move = float((lacks / masses) @ tilts) / float(tilts.sum())
        lacks = lacks - move * masses
        self._threshold -= self.slots * move
        if _errors_will_dominate(
            grid, indices, masses, copies=self.slots, threshold=self._threshold
        ):
            return 0.0
        self._total = total = _TiltedSum.of(grid, indices, masses, self.slots)
        count = min(grid.length // 2, math.ceil(_WINDOW / (grid.tilt * grid.width)))
        self._positions, distances = total.points_above(self._threshold, count)
        self._reach = float(distances[-1])
        self._decay = np.exp(-grid.tilt * distances)
        self._power, self._power_error = total.power(self.slots - 1)
        self._scales = np.exp(grid.tilt * grid.width * indices - total.log_mean)
        weights = (distances - total.threshold_error(self._threshold)) * self._decay
        sums, error, wrapped = self._with_one(masses)
        counted = float((sums * weights).sum())
        errors = error * _norm(weights) + wrapped * float(np.abs(weights).max())
        sums, error, wrapped = self._with_one(lacks)
        lacking = self.slots * float((sums * self._decay).sum())
        errors += self.slots * (error * _norm(self._decay) + wrapped)
        relative = total.relative_error(self._threshold)
        magnitude = counted + self.slots * float((np.abs(sums) * self._decay).sum())
        gain = counted + lacking - errors - relative * magnitude
        if not (errors <= _MAX_LOWER_ERROR_SHARE * gain and relative <= _MAX_RELATIVE_ERROR):
            return 0.0
        scale = math.exp(min(total.log_scale(self._threshold), 700.0))
        return gain * scale * self.participation / self.slots

    def probabilities(self) -> AcceptanceProbabilities:
        """Return bounds on the probabilities that the test accepts."""
        if self.gain == 0.0 or self._grid is None:
            return AcceptanceProbabilities(0.0, 0.0)
        scale = math.exp(min(self._total.log_scale(self._threshold), 700.0))
        relative = self._total.relative_error(self._threshold) + ROUND_OFF
        in_base, other = self._accepted(self._base), self._accepted(self._others)
        lower, upper = (
            scale * ((1.0 - self.participation) * a + self.participation * b)
            for a, b in zip(in_base, other, strict=True)
        )
        lower, upper = max(0.0, lower) * (1.0 - relative), upper * (1.0 + relative)
        growth = math.expm1(self._epsilon)
        return AcceptanceProbabilities(
            min(1.0, upper), self.gain * (1.0 - ROUND_OFF) + growth * lower - (upper - lower)
        )

    def _accepted(self, one_slot: FloatArray) -> tuple[float, float]:
        """Bound the tilted probability to accept if one slot has the masses ``one_slot``."""
        sums, error, wrapped = self._with_one(self._grouped(one_slot))
        accepted = float((sums * self._decay).sum())
        return accepted - error * _norm(self._decay) - wrapped, accepted + error * _norm(
            self._decay
        )

    def _grouped(self, by_cell: FloatArray) -> FloatArray:
        return np.bincount(self._offsets, by_cell).astype(np.float64)[self._kept]

    def _with_one(self, one_slot: FloatArray) -> tuple[FloatArray, float, float]:
        """Return the tilted sums above the threshold, if the masses of one slot are ``one_slot``.

        The second result bounds the Euclidean norm of their errors. The third bounds the mass of
        sums outside the window that wraps around into the counted points.
        """
        tilted, total = one_slot * self._scales, self._total
        length, largest = total.grid.length, float(np.abs(tilted).sum())
        spectrum, error = _transform(total.indices - total.centre, tilted, length)
        error += (self._power_error + 4 * _UNIT) * largest
        sums, error = _inverse(self._power * spectrum, error, length)
        window, magnitudes = total.grid.width * length, np.abs(one_slot)
        log_wrapped = np.logaddexp(
            total.log_beyond(
                self._threshold - window + self._reach, above=False, one_slot=magnitudes
            ),
            total.log_beyond(self._threshold + window, above=True, one_slot=magnitudes),
        )
        return sums[self._positions], error, math.exp(min(0.0, float(log_wrapped)))
