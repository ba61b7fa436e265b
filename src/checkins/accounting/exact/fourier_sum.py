"""Bounds on E(S - T)_+ for a sum S of many independent slot ratios, by fast Fourier transform.

The module ``tilted_sum`` computes the distribution of S, tilted so that sums near the threshold T
are likely. The errors are then small relative to the result, even if the result is 1e-20.

Theorem:     docs/theory/rounding.md, "Fourier transforms".
Rounding:    up or down, including round-off and the mass that wraps around.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from checkins.accounting.exact.dominating_pair import ROUND_OFF, AcceptanceProbabilities
from checkins.accounting.exact.grid_distribution import GridDistribution
from checkins.accounting.exact.slot_ratio import FloatArray
from checkins.accounting.exact.tilted_sum import (
    UNIT_ROUNDOFF,
    Integers,
    Spectrum,
    TiltedGrid,
    TiltedSlot,
    TiltedSum,
    choose_grid,
    errors_will_dominate,
    euclidean_norm,
    inverse_transform,
    transform,
)

_MAX_CAPPED_SHARE = 5.0
"""Largest part of an upper bound that may come from capped values, relative to all other parts."""
_MAX_ERROR_SHARE = 0.03
"""Largest share of an upper bound that may come from errors. Above it, doubling is tighter."""
_FEW_COPIES, _MAX_ERROR_SHARE_OF_FEW = 100, 0.01
"""The same share for up to ``_FEW_COPIES`` slots, for which doubling is more precise."""
_MAX_LOWER_ERROR_SHARE = 0.2
"""The same share in a lower bound. It is larger, because doubling gives looser lower bounds."""
_MAX_RELATIVE_ERROR = 0.01
"""Largest relative error by the rounding of masses and exponents to floating-point numbers."""
_MIN_CELL_MASS = 1e-290
"""Mass below which a cell of a slot's output is dropped, because its ratio could overflow."""
SlotGroups = Sequence[tuple[GridDistribution, int]]
"""Distributions of slot ratios, and the number of slots with each of them."""


def upper_stop_loss(groups: SlotGroups, *, threshold: float, resolution: int) -> float | None:
    """Return an upper bound on E(S - T)_+, where S is the sum of independent slots.

    ``groups`` holds, for each kind of slot, an upper bound in convex order on its ratio, and the
    number of such slots. The grid is finer if ``resolution`` is larger. Return None if the sum
    needs too many grid points, or if the errors are too large.
    """
    groups = [(slot, count) for slot, count in groups if count > 0]
    copies = sum(count for _, count in groups)
    grid = choose_grid(*_pooled(groups), copies=copies, threshold=threshold, resolution=resolution)
    if grid is None:
        return None
    on_grid, capped = [], 0.0
    for slot, count in groups:
        values = slot.values + slot.origin
        indices, masses, excess = _split_between_points(grid, values, slot.masses)
        on_grid.append((indices, masses, count))
        capped += count * (excess + slot.excess)
    if errors_will_dominate(grid, on_grid, threshold=threshold):
        return None
    total = TiltedSum(
        grid,
        tuple((TiltedSlot.of(grid, indices, masses), count) for indices, masses, count in on_grid),
    )
    distance_error = total.threshold_error(threshold)
    positions, distances = total.points_above(threshold, grid.counted_points)
    weights = (distances + distance_error) * np.exp(-grid.tilt * distances)
    spectrum = total.spectrum()
    sums, error = inverse_transform(spectrum.values, spectrum.error, grid.length)
    result = float((sums[positions] * weights).sum())
    # The weight (x - T) e^(-tilt (x - T)) of a sum x falls from T + 1/tilt on. So above the last
    # counted sum, it is at most the weight of that sum.
    last = float(distances[-1])
    uncounted = math.inf
    if grid.tilt * last > 1.0:
        uncounted = (last + distance_error) * math.exp(-grid.tilt * last)
    uncounted *= math.exp(min(0.0, total.log_beyond(threshold + last, above=True)))
    errors = error * euclidean_norm(weights) + uncounted
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
    return below_cap + capped if capped <= _MAX_CAPPED_SHARE * below_cap else None


def _pooled(groups: SlotGroups) -> tuple[FloatArray, FloatArray]:
    """Return values and masses of a slot that is drawn at random, by which a grid is chosen."""
    if len(groups) == 1:
        slot = groups[0][0]
        return slot.values + slot.origin, slot.masses
    values = np.concatenate([slot.values + slot.origin for slot, _ in groups])
    masses = np.concatenate([count * slot.masses for slot, count in groups])
    order = np.argsort(values, kind="stable")
    return values[order], masses[order] / masses.sum()


def threshold_of_sum(epsilon: float, *, slots: int, participation: float) -> float:
    """Return the T for which delta is (participation / slots) E(S - T)_+, for replace-one."""
    return slots * (1.0 - participation) / participation * math.expm1(epsilon)


def _split_between_points(
    grid: TiltedGrid, values: FloatArray, masses: FloatArray
) -> tuple[Integers, FloatArray, float]:
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
        errors = error * euclidean_norm(weights) + wrapped * float(np.abs(weights).max())
        masses, error, wrapped = sums.with_one_slot(sums.rounding_errors)
        rounded_off = self.slots * float((masses * decay).sum())
        errors += self.slots * (error * euclidean_norm(decay) + wrapped)
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

    ``total`` is the sum of all slots. ``all_but_one`` is the transform of all slots but one.
    ``positions`` are the counted sums in an inverse transform,
    ``distances`` their distances above ``threshold``, and ``decay`` is e^(-tilt * distance).

    The other arrays are about one slot. ``offset_of_cell`` maps each cell to the grid point of its
    rounded ratio, counted from the first grid point, and ``offsets`` are the grid points that have
    mass. For each of them, ``masses`` is its mass, ``tilts`` the factor from untilted to tilted
    mass, and ``rounding_errors`` the sum of mass times (ratio minus rounded ratio) of its cells.
    """

    total: TiltedSum
    threshold: float
    all_but_one: Spectrum
    positions: Integers
    distances: FloatArray
    decay: FloatArray
    offset_of_cell: Integers
    offsets: Integers
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
        grid = choose_grid(
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
        if errors_will_dominate(grid, [(indices, masses, slots)], threshold=threshold):
            return None
        one_slot = TiltedSlot.of(grid, indices, masses)
        total = TiltedSum(grid, ((one_slot, slots),))
        positions, distances = total.points_above(threshold, grid.counted_points)
        return cls(
            total=total,
            threshold=threshold,
            all_but_one=total.spectrum(leave_out_one=True),
            positions=positions,
            distances=distances,
            decay=np.exp(-grid.tilt * distances),
            offset_of_cell=offset_of_cell,
            offsets=offsets,
            masses=masses,
            tilts=np.exp(grid.tilt * grid.width * indices - one_slot.log_mean),
            rounding_errors=rounding_errors,
        )

    def acceptance(self, by_cell: FloatArray) -> tuple[float, float]:
        """Bound the tilted probability of sums above the threshold, from below and from above.

        One slot has the masses ``by_cell`` of the cells, and the others those of the base.
        """
        one_slot = np.bincount(self.offset_of_cell, by_cell).astype(np.float64)[self.offsets]
        sums, error, wrapped = self.with_one_slot(one_slot)
        accepted = float((sums * self.decay).sum())
        error_bound = error * euclidean_norm(self.decay)
        return accepted - error_bound - wrapped, accepted + error_bound

    def with_one_slot(self, one_slot: FloatArray) -> tuple[FloatArray, float, float]:
        """Return the tilted masses of the counted sums, if one slot has the masses ``one_slot``.

        The second result bounds the Euclidean norm of their errors. The third bounds the mass of
        sums outside the period of the transform, which it adds to the counted sums.
        """
        tilted, total = one_slot * self.tilts, self.total
        length, largest = total.grid.length, float(np.abs(tilted).sum())
        slot = total.groups[0][0]
        spectrum, error = transform(slot.indices - slot.centre, tilted, length)
        error += 4 * UNIT_ROUNDOFF * largest
        product = self.all_but_one.times(Spectrum(spectrum, error, largest))
        sums, error = inverse_transform(product.values, product.error, length)
        period, magnitudes = total.grid.period, np.abs(one_slot)
        lowest = self.threshold - period + float(self.distances[-1])
        log_wrapped = np.logaddexp(
            total.log_beyond(lowest, above=False, one_slot=magnitudes),
            total.log_beyond(self.threshold + period, above=True, one_slot=magnitudes),
        )
        return sums[self.positions], error, math.exp(min(0.0, float(log_wrapped)))
