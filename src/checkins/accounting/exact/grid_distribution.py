"""Sums of independent slot ratios on a grid, rounded up or down in convex order.

A slot ratio is the likelihood ratio of one slot's output with and without one client.

Theorem: docs/theory/rounding.md.

A ``GridDistribution`` is a finite list of atoms, which are values with probabilities (masses).
Rounding up splits each atom between the two edges of its grid cell and preserves the mean. Rounding
down merges all atoms of a cell into one atom at their mean. Rounding up increases the expectation
of every convex function, and rounding down decreases it. All masses are positive, and they are only
added and multiplied. So nothing cancels, and tails have a small relative error down to the smallest
double. No mass wraps around as in an FFT.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from checkins.accounting.exact.slot_ratio import DEVIATES, AttainedRatio, FloatArray, SlotRatio

CELLS = 768
REPLACE_ONE_CELLS = 600
"""Numbers of grid cells of a certificate for add/remove and for replace-one.

For add/remove, the lower and the upper bound differ by at most half a percent. Replace-one uses
fewer cells, because it builds a distribution for every epsilon that it tries."""
TAIL_SHARE = 1e-9
"""Share of delta that may lie outside the grid."""
MIN_TOLERANCE = 1e-60
"""Smallest tolerance of a ``Rounding``. With a smaller one, values of a ratio would not fit a
double."""
_BLUR_FACTOR = 1e6
"""Limit on the mass of the cells around 0 times their width, in units of the tolerance."""
_MAX_COARSE_ATOMS = 80  # largest number of atoms of a coarse estimate
_BLOCK_ATOMS = 32  # number of atoms that are added to all atoms of the other distribution at once
_Indices = npt.NDArray[np.intp]


class Side(Enum):
    """Whether a distribution is rounded up or down."""

    UP = "up"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Rounding:
    """The side to round to, the number of grid cells, and the mass that may lie off the grid."""

    side: Side
    cells: int
    tolerance: float

    @classmethod
    def near(cls, delta: float, *, side: Side, cells: int = CELLS, runs: int = 1) -> Rounding:
        """Return the rounding of each of ``runs`` campaigns for a divergence of about ``delta``."""
        return cls(side, cells, max(TAIL_SHARE * delta / runs, MIN_TOLERANCE))


@dataclass(frozen=True, slots=True)
class GridDistribution:
    """A distribution with the values ``origin + values`` and the probabilities ``masses``.

    ``excess`` is an upper bound on the mean that was lost by capping values above the grid.
    """

    values: FloatArray
    masses: FloatArray
    origin: float
    excess: float = 0.0


@dataclass(frozen=True, slots=True)
class Grid:
    """Cells whose edges are ``origin + scale * sinh(u)``, for evenly spaced u.

    Cells within ``scale`` of ``origin`` have about the same width. Further away, the width grows
    geometrically.
    """

    origin: float
    scale: float
    first: float
    step: float
    cells: int

    @classmethod
    def over(cls, low: float, high: float, *, origin: float, scale: float, cells: int) -> Grid:
        first, last = math.asinh((low - origin) / scale), math.asinh((high - origin) / scale)
        return cls(origin, scale, first, (last - first) / cells, cells)

    def edges(self) -> FloatArray:
        """Return the cell edges, relative to the origin."""
        return np.asarray(self.scale * np.sinh(self.first + self.step * np.arange(self.cells + 1)))

    def locate(self, x: FloatArray) -> FloatArray:
        """Return 1 plus the cell index of each x, with a fraction. x is relative to the origin.

        The result is less than 1 below the grid, and ``cells + 1`` above the grid.
        """
        u = x / self.scale
        np.arcsinh(u, out=u)
        u -= self.first - self.step
        u /= self.step
        np.maximum(u, 0.0, out=u)  # maximum and minimum together are faster than clip
        return np.minimum(u, self.cells + 1.0, out=u)


def discretise_up(ratio: SlotRatio, rounding: Rounding) -> GridDistribution:
    """Return a distribution above ``ratio`` in convex order.

    Its stop-loss transform is that of ``ratio``, interpolated linearly on a grid. If ``ratio`` has
    no smallest value, values below the grid are raised to the first grid point, which can only
    increase the transform.
    """
    grid = _first_grid(ratio, rounding)
    nodes = grid.edges() + grid.origin
    if math.isfinite(ratio.floor):
        least_node = ratio.floor + 1e-6 * (nodes[1] - nodes[0])  # a closer node would give no slope
        nodes = np.concatenate(([ratio.floor], nodes[nodes > least_node]))
    masses, excess = stop_loss_masses(ratio, nodes)
    return GridDistribution(nodes - grid.origin, masses, grid.origin, excess)


def stop_loss_masses(ratio: SlotRatio, nodes: FloatArray) -> tuple[FloatArray, float]:
    """Return the masses at ``nodes`` of a distribution above ``ratio``, and its lost mean.

    Its stop-loss transform is that of ``ratio``, interpolated linearly between the nodes. The lost
    mean is that of values above the last node.
    """
    calls, puts, width = ratio.call(nodes), ratio.put(nodes), np.diff(nodes)
    if not math.isfinite(ratio.floor):
        puts = puts - puts[0]
    falling, rising = -np.diff(calls) / width, np.diff(puts) / width
    above = np.concatenate(([1.0], falling, [0.0]))  # P(X > t) of the interpolated distribution
    below = np.concatenate(([0.0], rising, [1.0]))
    left = nodes <= ratio.mean
    masses = np.where(left, np.diff(below), -np.diff(above))
    seam = int(np.count_nonzero(left)) - 1
    if 0 <= seam < len(nodes) - 1:
        masses[seam] = max(0.0, 1.0 - falling[seam] - (rising[seam - 1] if seam else 0.0))
    masses = np.maximum(masses, 0.0)
    return masses / masses.sum(), float(calls[-1])


def discretise_down(ratio: AttainedRatio, rounding: Rounding) -> GridDistribution:
    """Return a distribution below ``ratio`` in convex order: merge each grid cell into its mean."""
    grid = _first_grid(ratio, rounding)
    edges = grid.edges() + grid.origin
    edges = edges[edges > ratio.floor]
    calls, above = ratio.call(edges), ratio.survival(edges)
    puts, below = ratio.put(edges), ratio.cdf(edges)
    width = np.diff(edges)
    right = edges[:-1] >= ratio.mean
    masses = np.where(right, above[:-1] - above[1:], below[1:] - below[:-1])
    from_left = calls[:-1] - calls[1:] - width * above[1:]
    from_right = puts[1:] - puts[:-1] - width * below[:-1]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        means = np.where(right, edges[:-1] + from_left / masses, edges[1:] - from_right / masses)
        bottom = edges[0] - puts[0] / below[0]
        top = edges[-1] + calls[-1] / above[-1]
    means = np.clip(means, edges[:-1], edges[1:])
    values = np.concatenate(([bottom], means, [top]))
    masses = np.concatenate(([below[0]], masses, [above[-1]]))
    keep = (masses > 0) & np.isfinite(values)
    return GridDistribution(
        values[keep] - grid.origin, masses[keep] / masses[keep].sum(), grid.origin
    )


def _first_grid(ratio: SlotRatio, rounding: Rounding) -> Grid:
    """Choose a grid for a single slot ratio."""
    low, high = ratio.likely_range(rounding.tolerance)
    likely = np.exp(-(DEVIATES**2) / 2)
    estimate = CoarseEstimate(ratio.quantiles, likely / likely.sum(), ratio.mean, low, high)
    return estimate.grid(cells=rounding.cells, blur=_BLUR_FACTOR * rounding.tolerance)


@dataclass(frozen=True, slots=True)
class CoarseEstimate:
    """A coarse estimate of a distribution, from which a grid is chosen."""

    values: FloatArray
    masses: FloatArray
    mean: float
    low: float
    high: float

    def grid(self, *, cells: int, blur: float) -> Grid:
        """Return a grid for the distribution.

        The grid is centred on the mean if most of the mass is close to the mean compared with its
        distance from 0. Otherwise it is centred on 0, with cells so small that mass times width
        near 0 is below ``blur``.
        """
        distances = np.abs(self.values - self.mean)
        order = np.argsort(distances)
        spread = float(distances[order][np.searchsorted(np.cumsum(self.masses[order]), 0.5)])
        if spread == 0.0:  # most of the mass is at the mean itself
            spread = math.sqrt(float(self.masses @ distances**2))
        if 0.0 < spread < 0.3 * abs(self.mean):
            return Grid.over(self.low, self.high, origin=self.mean, scale=spread, cells=cells)
        distances = np.abs(self.values)
        order = np.argsort(distances)
        blurred = np.cumsum(self.masses[order]) * distances[order]
        index = min(int(np.count_nonzero(blurred < blur)), len(order) - 1)
        scale = float(distances[order][index])
        return Grid.over(self.low, self.high, origin=0.0, scale=scale, cells=cells)


def add(
    one: GridDistribution, other: GridDistribution, *, mean: float, copies: int, rounding: Rounding
) -> GridDistribution:
    """Return the distribution of the sum of two independent sums, of ``copies`` terms in all.

    The result is rounded to the given side on a new grid. ``mean`` is the mean of one term and only
    affects the choice of the grid.
    """
    grid = _grid_of_sum(one, other, mean=mean, copies=copies, rounding=rounding)
    cells = rounding.cells
    shift = one.origin + other.origin - grid.origin
    masses, moments = np.zeros(cells + 2), np.zeros(cells + 2)
    for rows, columns, times in blocks(one is other, len(one.values), len(other.values)):
        sums = (one.values[rows, None] + (other.values[None, columns] + shift)).ravel()
        products = (times * one.masses[rows, None] * other.masses[None, columns]).ravel()
        where = grid.locate(sums).astype(np.intp)
        masses += np.bincount(where, products, cells + 2)
        moments += np.bincount(where, products * sums, cells + 2)
    scale = 1.0 / masses.sum()  # differs from 1 by round-off only
    masses, moments = masses * scale, moments * scale
    if rounding.side is Side.DOWN:
        keep = masses > 0
        return GridDistribution(moments[keep] / masses[keep], masses[keep], grid.origin)
    floor = one.values[0] + other.values[0] + shift
    return _split_cells(grid, masses, moments, floor=floor, excess=one.excess + other.excess)


def _split_cells(
    grid: Grid, masses: FloatArray, moments: FloatArray, *, floor: float, excess: float
) -> GridDistribution:
    """Move each cell's mass to its two edges and preserve the mean. Cap values above the grid."""
    edges = np.concatenate(([min(floor, grid.edges()[0])], grid.edges()))
    inner, left, width = masses[:-1], edges[:-1], np.diff(edges)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(width > 0, (moments[:-1] - inner * left) / width, 0.0)
    to_right = np.clip(share, 0.0, inner)
    split = np.zeros(len(edges))
    split[:-1] += inner - to_right
    split[1:] += to_right
    split[-1] += masses[-1]
    capped = max(0.0, float(moments[-1] - masses[-1] * edges[-1]))
    keep = split > 0
    return GridDistribution(edges[keep], split[keep], grid.origin, excess + capped)


def blocks(square: bool, rows: int, columns: int) -> Iterator[tuple[slice, slice, float]]:
    """Yield blocks of (rows, columns, multiplicity) that cover all pairs of a row and a column.

    If ``square``, pairs are symmetric. Blocks off the diagonal then have multiplicity 2.
    """
    for start in range(0, rows, _BLOCK_ATOMS):
        band = slice(start, min(rows, start + _BLOCK_ATOMS))
        if not square:
            yield band, slice(0, columns), 1.0
            continue
        yield band, band, 1.0
        if band.stop < columns:
            yield band, slice(band.stop, columns), 2.0


def _grid_of_sum(
    one: GridDistribution, other: GridDistribution, *, mean: float, copies: int, rounding: Rounding
) -> Grid:
    """Choose a grid for the sum from a coarse estimate of its distribution."""
    a, b, origin = _coarsen(one), _coarsen(other), one.origin + other.origin
    rows, columns, times = _pairs(one is other, len(a.masses), len(b.masses))
    masses = times * (a.masses[rows] * b.masses[columns])
    low = _low_end(a, b, tolerance=rounding.tolerance)
    high = _high_end(a, b, tolerance=copies * rounding.tolerance)
    middle = a.middle[rows] + b.middle[columns] + origin
    estimate = CoarseEstimate(middle, masses, copies * mean, low + origin, high + origin)
    return estimate.grid(cells=rounding.cells, blur=_BLUR_FACTOR * copies * rounding.tolerance)


@dataclass(frozen=True, slots=True)
class _CoarseAtoms:
    """Groups of atoms: the first, middle and last value of each group, and its mass."""

    first: FloatArray
    middle: FloatArray
    last: FloatArray
    masses: FloatArray


def _coarsen(distribution: GridDistribution) -> _CoarseAtoms:
    starts, ends = groups(len(distribution.values))
    first, last = distribution.values[starts], distribution.values[ends]
    return _CoarseAtoms(
        first, (first + last) / 2, last, np.add.reduceat(distribution.masses, starts)
    )


def groups(count: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Divide ``count`` atoms into at most 80 groups. Return each group's first and last index."""
    size = -(-count // _MAX_COARSE_ATOMS)
    starts = np.arange(0, count, size)
    return starts, np.minimum(starts + size, count) - 1


@lru_cache(256)
def _pairs(square: bool, rows: int, columns: int) -> tuple[_Indices, _Indices, FloatArray]:
    """Return row, column and multiplicity of every pair. If ``square``, only column >= row."""
    if square:
        row, column = np.triu_indices(rows)
        return row, column, np.where(row == column, 1.0, 2.0)
    row, column = np.divmod(np.arange(rows * columns), columns)
    return row, column, np.ones(1)


def _low_end(a: _CoarseAtoms, b: _CoarseAtoms, *, tolerance: float) -> float:
    """Return the value below which the sum has about ``tolerance`` of its mass.

    To save time, only the smallest sums are sorted, if they have enough mass.
    """
    size = min(len(a.first), len(b.first))
    products = np.cumsum(a.masses)[:size] * np.cumsum(b.masses)[:size]
    index = min(int(np.searchsorted(products, 2 * tolerance)), size - 1)
    bound = math.inf if products[index] < 2 * tolerance else a.first[index] + b.first[index]
    sums = np.add.outer(a.first, b.first)
    relevant = sums <= bound
    values, masses = _sorted(sums[relevant], np.multiply.outer(a.masses, b.masses)[relevant])
    return float(values[np.searchsorted(np.cumsum(masses), tolerance)])


def _high_end(a: _CoarseAtoms, b: _CoarseAtoms, *, tolerance: float) -> float:
    """Return the value t with E(sum - t)_+ of about ``tolerance``.

    To save time, only the largest sums are sorted, as in ``_low_end``.
    """
    size = min(len(a.last), len(b.last))
    products = np.cumsum(a.masses[::-1])[:size] * np.cumsum(b.masses[::-1])[:size]
    ends = a.last[::-1][:size] + b.last[::-1][:size]
    indices = np.flatnonzero(products[:-1] * -np.diff(ends) >= 2 * tolerance)
    bound = ends[indices[0] + 1] if len(indices) else -math.inf
    sums = np.add.outer(a.last, b.last)
    relevant = sums >= bound
    values, masses = _sorted(-sums[relevant], np.multiply.outer(a.masses, b.masses)[relevant])
    calls = np.cumsum(np.cumsum(masses)[:-1] * np.diff(values))
    return -float(values[np.searchsorted(calls, tolerance)])


def _sorted(values: FloatArray, masses: FloatArray) -> tuple[FloatArray, FloatArray]:
    order = np.argsort(values)
    return values[order], masses[order]


def sum_of(
    copies: int, distribution: GridDistribution, *, mean: float, rounding: Rounding
) -> GridDistribution:
    """Return the distribution of the sum of ``copies`` independent draws, by doubling."""
    if copies == 0:
        return GridDistribution(np.zeros(1), np.ones(1), 0.0)
    total, summed = distribution, 1
    for bit in bin(copies)[3:]:
        summed *= 2
        total = add(total, total, mean=mean, copies=summed, rounding=rounding)
        if bit == "1":
            summed += 1
            total = add(total, distribution, mean=mean, copies=summed, rounding=rounding)
    return total
