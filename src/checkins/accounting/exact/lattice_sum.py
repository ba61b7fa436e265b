"""Sums of independent bounded slot ratios, by convolution on an evenly spaced grid.

Reports with a finite local epsilon have bounded slot ratios. Sums of many of them are nearly
normal, so a few hundred evenly spaced points are precise, and a sum of two is one convolution.
``grid_distribution.add`` places every pair of atoms on a new, unevenly spaced grid instead, which
takes ten times as long, but is also precise for few slots and for very uneven ratios. All masses
are positive, and they are only added and multiplied, so tails keep a small relative error.

A distribution is rounded up in convex order as in docs/theory/rounding.md. The stop-loss transform
of one slot ratio is interpolated linearly between the points. When a sum has grown, every second
point is dropped, and its mass is divided between its two neighbours. Mass below the grid is divided
between the smallest possible value and the first point. Each of these steps preserves the mean.
Values above the grid are lowered to the last point, and ``excess`` counts the mean that is lost.

Binomial distributions are kept on a window of counts, with negligible probability outside.
Probabilities are computed from ratios of neighbouring terms instead of factorials, so they are
accurate for counts in the billions. Tails are sums of positive terms, so they are accurate far
below 1e-15.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import betainc, xlogy

from checkins.accounting.exact.grid_distribution import (
    GridDistribution,
    Rounding,
    discretise_up,
    stop_loss_masses,
    sum_of,
)
from checkins.accounting.exact.slot_ratio import FloatArray, SlotRatio
from checkins.accounting.solve import first_true

ROUND_OFF = 2e-7
"""Relative error allowed for a tail. The largest error in tests, at 1e12 trials, is 5e-8."""


@dataclass(frozen=True, slots=True)
class Window:
    """Probabilities of the counts ``first``, ``first + 1``, ..., scaled to sum to 1."""

    first: int
    masses: FloatArray

    @property
    def counts(self) -> FloatArray:
        return self.first + np.arange(len(self.masses), dtype=np.float64)


def window(*, trials: int, probability: float, tail_exponent: float) -> Window:
    """Return the probabilities of Binomial(trials, probability), without negligible tails.

    Each of the two tails has a probability below exp(-tail_exponent). By Chernoff's bound,
    Pr[B >= k] <= exp(-trials KL(k/trials, probability)) for k above the mean, and likewise below
    it. The probabilities inside are scaled to sum to 1, so each is too large by a factor of at most
    1 / (1 - 2 exp(-tail_exponent)). An expectation over the window is wrong by at most
    2 exp(-tail_exponent) times the largest value in it.
    """
    first = _window_end(trials, probability, tail_exponent, upwards=False)
    last = _window_end(trials, probability, tail_exponent, upwards=True)
    counts = np.arange(first, last + 1, dtype=np.float64)
    steps = np.log((trials - counts[:-1]) / (counts[:-1] + 1.0)) + math.log(
        probability / (1.0 - probability)
    )
    logs = np.concatenate(([0.0], np.cumsum(steps)))
    masses = np.exp(logs - logs.max())
    return Window(first, masses / masses.sum())


def _window_end(trials: int, probability: float, tail_exponent: float, *, upwards: bool) -> int:
    """Return the first or last count of the window.

    Going outwards from the mean, it is the first count whose Chernoff exponent, trials * KL,
    exceeds ``tail_exponent``. If no count does, it is 0 or ``trials``.
    """
    inside, outside = round(trials * probability), trials if upwards else 0
    if _chernoff_exponent(trials, probability, outside) <= tail_exponent:
        return outside
    return first_true(
        lambda count: _chernoff_exponent(trials, probability, count) > tail_exponent,
        false=inside,
        true=outside,
    )


def _chernoff_exponent(trials: int, probability: float, count: int) -> float:
    """Return trials * KL(count/trials, probability)."""
    share = count / trials
    return trials * float(
        xlogy(share, share / probability) + xlogy(1 - share, (1 - share) / (1 - probability))
    )


def half_binomial_put(trials: FloatArray, y: FloatArray) -> FloatArray:
    """Return E(y - B)_+ for B ~ Binomial(trials, 1/2), elementwise.

    With j = floor(y) and T = Pr[B <= j], it equals (y - trials/2) T + (trials/4) Pr[B' = j], where
    B' ~ Binomial(trials - 1, 1/2). Far in the tail, the two terms cancel a few digits at most.
    """
    n = np.maximum(trials, 1.0)
    count = np.clip(np.floor(y), 0.0, n - 1.0)
    tail = betainc(n - count, count + 1.0, 0.5)
    regular = (y - n / 2) * tail + n / 4 * _half_binomial_mass(n - 1.0, count)
    inside = np.where(y < 1.0, np.maximum(y, 0.0) * np.exp2(-trials), np.maximum(regular, 0.0))
    return np.where(y >= trials, np.maximum(y - trials / 2, 0.0), inside)


def _half_binomial_mass(trials: FloatArray, count: FloatArray) -> FloatArray:
    """Return Pr[Binomial(trials, 1/2) = count] by Loader's saddle-point form.

    In this form, no large logarithms cancel.
    """
    other = trials - count
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(trials > 0, (count - other) / np.maximum(trials, 1.0), 0.0)
        deviance = trials / 2 * ((1 + t) * np.log1p(t) + (1 - t) * np.log1p(-t))
        correction = _stirling_error(trials) - _stirling_error(count) - _stirling_error(other)
        inner = np.sqrt(trials / (2 * math.pi * count * other)) * np.exp(correction - deviance)
    ends = np.exp2(-trials)
    return np.where((count <= 0) | (other <= 0), ends, inner)


def _stirling_error(n: FloatArray) -> FloatArray:
    """Return log n! - log(sqrt(2 pi n) (n/e)^n), the error of Stirling's formula.

    Use a table for n up to 15, and the asymptotic series for larger n.
    """
    small = np.minimum(n, 15.0).astype(np.intp)
    m = np.maximum(n, 15.0)
    s = 1.0 / (m * m)
    series = (1 / 12 - (1 / 360 - (1 / 1260 - (1 / 1680 - s / 1188) * s) * s) * s) / m
    return np.where(n < 15.5, _STIRLING_ERRORS[small], series)


_STIRLING_ERRORS = np.array(
    [0.0]
    + [
        math.lgamma(n + 1) - (n * math.log(n) - n + 0.5 * math.log(2 * math.pi * n))
        for n in range(1, 16)
    ]
)


_LONG_TAIL = 6.0
"""Smallest distance, in standard deviations, of the largest and of the smallest possible sum from
its mean. If a tail ends earlier, a sum is far from normal, and unevenly spaced points are used."""
_MAX_POINTS = 2000
"""Largest number of grid points of one slot ratio. If it needs more, unevenly spaced points are
used."""
_POINTS_PER_CELL = 0.125
"""Number of points per standard deviation, relative to the number of grid cells asked for."""
_ESTIMATE_POINTS = 256
"""Number of points at which the stop-loss transform is summed to estimate the variance."""


@dataclass(frozen=True, slots=True)
class LatticeDistribution:
    """A distribution of deviations from a mean, on the points ``step * (first + i)``.

    Point i has the probability ``masses[i]``. The value ``step * floor`` is at most all others and
    has the further probability ``floor_mass``. ``excess`` is an upper bound on the mean that was
    lost by lowering values above the grid.
    """

    step: float
    first: int
    masses: FloatArray
    floor: int
    floor_mass: float
    excess: float

    @property
    def deviation(self) -> float:
        """The standard deviation."""
        points = float(self.first) + np.arange(len(self.masses))
        squares = float(self.masses @ points**2) + self.floor_mass * float(self.floor) ** 2
        return self.step * math.sqrt(squares)

    def coarser(self) -> LatticeDistribution:
        """Return the distribution on every second point, rounded up."""
        start = self.first // 2
        padded = np.zeros(2 * (len(self.masses) // 2 + 1) + 1)
        padded[self.first - 2 * start :][: len(self.masses)] = self.masses
        masses, halves = padded[0::2].copy(), padded[1::2] / 2.0
        masses[:-1] += halves
        masses[1:] += halves
        floor = self.floor // 2
        return _with_floor(
            LatticeDistribution(2.0 * self.step, start, masses, floor, 0.0, self.excess),
            mass=self.floor_mass,
            distances=self.floor_mass * (start - self.floor / 2.0),
        )

    def add(self, other: LatticeDistribution, *, tolerance: float) -> LatticeDistribution:
        """Return the sum of two independent deviations, rounded up, with the larger of their steps.

        ``tolerance`` is about the mass that is moved below the grid, and the mean that is lost
        above the grid.
        """
        if self.step < other.step:
            return self.coarser().add(other, tolerance=tolerance)
        if other.step < self.step:
            return self.add(other.coarser(), tolerance=tolerance)
        first, floor = self.first + other.first, self.floor + other.floor
        sums = np.convolve(self.masses, other.masses)
        mass = distances = 0.0  # mass below ``first``, and the sum of its distances
        for one, rest in ((self, other), (other, self)):
            if one.floor_mass > 0.0:
                shifted, missing = one.floor_mass * rest.masses, one.first - one.floor
                below, inside = shifted[:missing], shifted[missing:]
                sums[: len(inside)] += inside
                mass += float(below.sum())
                distances += float(below @ (missing - np.arange(len(below))))
        both = self.floor_mass * other.floor_mass
        mass, distances = mass + both, distances + both * (first - floor)

        low = min(int(np.searchsorted(np.cumsum(sums), tolerance)), len(sums) - 1)
        lost_means = self.step * np.cumsum(np.cumsum(sums[:low:-1]))
        high = len(sums) - int(np.searchsorted(lost_means, tolerance))
        lost = float(sums[high:] @ np.arange(1, len(sums) - high + 1))
        kept = sums[low:high].copy()
        kept[-1] += sums[high:].sum()
        distances += mass * low + float(sums[:low] @ (low - np.arange(low)))
        mass += float(sums[:low].sum())
        excess = self.excess + other.excess + self.step * lost
        return _with_floor(
            LatticeDistribution(self.step, first + low, kept, floor, 0.0, excess),
            mass=mass,
            distances=distances,
        )


def _with_floor(
    distribution: LatticeDistribution, *, mass: float, distances: float
) -> LatticeDistribution:
    """Divide ``mass`` between the first point and the floor, and preserve its mean.

    ``distances`` is the sum of the distances of this mass from the first point, in steps.
    """
    gap = distribution.first - distribution.floor
    floor_mass = distances / gap if gap else 0.0
    distribution.masses[0] += max(mass - floor_mass, 0.0)
    return replace(distribution, floor_mass=floor_mass)


def discretise(
    ratio: SlotRatio, *, copies: float, tolerance: float, points: float
) -> LatticeDistribution | None:
    """Return a distribution above ``ratio`` in convex order, to sum ``copies`` of it.

    It has at least about ``points`` grid points per standard deviation. Return None if a tail of
    the sum ends early, or if too many points would be needed.
    """
    low, high = ratio.likely_range(tolerance)
    deviation = _estimated_deviation(ratio, low, high)
    shorter_tail = math.sqrt(copies) * min(high - ratio.mean, ratio.mean - low)
    while True:
        step = deviation / points
        if shorter_tail < _LONG_TAIL * deviation or high - low > _MAX_POINTS * step:
            return None
        distribution = _on_points(ratio, low, high, step)
        if deviation <= 1.2 * distribution.deviation:
            return distribution
        deviation = distribution.deviation


def _estimated_deviation(ratio: SlotRatio, low: float, high: float) -> float:
    """Estimate the standard deviation, from the integral of the stop-loss transform."""
    t = np.linspace(low, high, _ESTIMATE_POINTS)
    transform = np.where(t < ratio.mean, ratio.put(t), ratio.call(t))
    return math.sqrt(2.0 * float(transform.sum()) * (high - low) / (_ESTIMATE_POINTS - 1))


def _on_points(ratio: SlotRatio, low: float, high: float, step: float) -> LatticeDistribution:
    first, last = math.floor((low - ratio.mean) / step), math.ceil((high - ratio.mean) / step)
    floor = min(math.floor((ratio.floor - ratio.mean) / step - 1e-9), first)
    points = np.arange(first, last + 1)
    nodes = np.asarray(ratio.mean + step * points, dtype=np.float64)
    if floor < first:
        nodes = np.append(ratio.mean + step * floor, nodes)
    masses, excess = stop_loss_masses(ratio, nodes)
    floor_mass = 0.0 if floor == first else float(masses[0])
    return LatticeDistribution(step, first, masses[-len(points) :], floor, floor_mass, excess)


@dataclass(frozen=True, slots=True)
class LatticeAdder:
    """Sums of independent copies of ``one``, rounded up.

    ``points`` is the smallest number of grid points per standard deviation of a sum.
    """

    one: LatticeDistribution
    mean: float
    points: float
    tolerance: float

    @classmethod
    def of(cls, ratio: SlotRatio, rounding: Rounding, *, copies: float) -> LatticeAdder | None:
        """Return the adder for about ``copies`` copies, or None if it would not be precise."""
        points = _POINTS_PER_CELL * rounding.cells
        one = discretise(ratio, copies=copies, tolerance=rounding.tolerance, points=points)
        return None if one is None else cls(one, ratio.mean, points, rounding.tolerance)

    def sum_of(self, copies: int) -> LatticeDistribution:
        """Return the sum of at least one copy, by doubling."""
        total, one, summed = self.one, self.one, 1
        for bit in bin(copies)[3:]:
            summed *= 2
            total = self.add(total, total, summed)
            if bit == "1":
                summed += 1
                total = self.add(total, one, summed)
            while one.step < total.step:  # so that it is not made coarser again
                one = one.coarser()
        return total

    def add(
        self, one: LatticeDistribution, other: LatticeDistribution, copies: int
    ) -> LatticeDistribution:
        """Return the sum of two sums, of ``copies`` copies in all, without needless points."""
        total = one.add(other, tolerance=copies * self.tolerance)
        most_step = math.sqrt(copies) * self.one.step
        while 2.0 * total.step <= most_step:
            total = total.coarser()
        return total

    def on_grid(self, total: LatticeDistribution, copies: int) -> GridDistribution:
        """Return a sum of ``copies`` copies with their means added."""
        points = np.append(total.floor, total.first + np.arange(len(total.masses)))
        masses = np.append(total.floor_mass, total.masses)
        return GridDistribution(
            total.step * points, masses / masses.sum(), copies * self.mean, total.excess
        )


def sum_of_bounded(copies: int, ratio: SlotRatio, rounding: Rounding) -> GridDistribution:
    """Return the sum of ``copies`` independent copies of a bounded ratio, rounded up."""
    adder = LatticeAdder.of(ratio, rounding, copies=copies)
    if adder is None:
        return sum_of(copies, discretise_up(ratio, rounding), mean=ratio.mean, rounding=rounding)
    return adder.on_grid(adder.sum_of(copies), copies)
