"""Group slots with correlated noise into blocks, and estimate which grouping is best.

The noise of nearby slots is correlated, and so are the logarithms of their likelihood ratios. The
accountant (``correlated_noise``) counts slots in blocks. Blocks are independent, and all slots of a
block have the same variance and pairwise the same covariance. Every grouping is valid, and the best
one depends on the noise.

Notation: gamma_d = c_0 c_d + c_1 c_{d+1} + ... is the covariance of the logarithms of the ratios of
two slots at distance d, if the noise multiplier is 1.

Theorem:     docs/theory/correlated-noise.md, "Spacing" and "Blocks".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import ndtr

from checkins.accounting.exact.slot_ratio import FloatArray
from checkins.accounting.noise_strategy import NoiseStrategy

ROUND_OFF = 1e-12
"""Relative error that covers the rounding of sums of products of coefficients."""
LEAST_SHARED, MOST_SHARED = 1e-6, 1.0 - 1e-6
"""Smallest and largest share of the variance that the slots of a block may have in common."""
_SIZES, _SPACINGS = (2, 3, 4, 6, 8, 12, 16), (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Numbers of slots per block, and distances between them, that are tried."""
_PERIODS_PER_DOUBLING = 6
_BISECTIONS = 30
_LARGEST_VARIANCE = 30.0
"""Variance of the logarithm of a ratio above which a grouping is not tried."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """Blocks of ``slots_per_block`` slots at a distance of ``spacing``, one in every ``period``."""

    slots_per_block: int
    spacing: int
    period: int

    def footprint(self, rows: int) -> int:
        """Return the number of releases in which updates of one block are visible."""
        return rows + (self.slots_per_block - 1) * self.spacing


@dataclass(frozen=True, slots=True)
class Spread:
    """The variance of the logarithm of each slot's ratio in a block, and their covariance."""

    variance: float
    covariance: float = 0.0


@dataclass(frozen=True, slots=True)
class Blocks:
    """Independent blocks: their number, their spread, and the participation over all of them."""

    count: int
    slots_per_block: int
    spread: Spread
    participation: float


def spread_of(strategy: NoiseStrategy, rows: int, grouping: Grouping, blocks: int) -> Spread | None:
    """Return the spread of each of ``blocks`` blocks, with the first ``rows`` coefficients.

    Return None if the slots of a block have so much in common that one of them is as good.

    Rounding:    up.
    """
    overlapping = -(-grouping.footprint(rows) // grouping.period)
    if grouping.slots_per_block == 1:
        return _spread_of_single_slots(
            strategy, rows, grouping.period, min(blocks, 2 * overlapping + 1)
        )
    return _spread_of_blocks(strategy, rows, grouping, min(blocks, overlapping))


@lru_cache(maxsize=4096)
def _spread_of_single_slots(strategy: NoiseStrategy, rows: int, period: int, slots: int) -> Spread:
    """Return the spread of single slots: gamma_0 plus gamma at multiples of the period.

    A slot in the middle has the largest sum, because gamma does not increase.
    """
    gammas = [_product(strategy, rows, distance) for distance in range(0, rows, period)]
    before = (slots - 1) // 2
    total = sum(gammas[: before + 1]) + sum(gammas[1 : slots - before])
    return Spread(math.ldexp(total, -2 * strategy.bits) * (1.0 + ROUND_OFF))


def _product(strategy: NoiseStrategy, rows: int, distance: int) -> int:
    numerators = np.array(strategy.numerators[:rows], dtype=np.int64)
    return int(numerators[distance:] @ numerators[: rows - distance])


@lru_cache(maxsize=8192)
def _spread_of_blocks(
    strategy: NoiseStrategy, rows: int, grouping: Grouping, blocks: int
) -> Spread | None:
    coefficients = np.array(strategy.coefficients[:rows])
    offsets = grouping.spacing * np.arange(grouping.slots_per_block)
    columns = np.zeros((len(offsets), grouping.footprint(len(coefficients))))
    for column, offset in zip(columns, offsets, strict=True):
        column[offset : offset + len(coefficients)] = coefficients
    if columns.shape[1] > blocks * grouping.period:
        columns = _on_circle(columns, blocks * grouping.period)
    of_block = columns.sum(axis=0)
    places = np.arange(columns.shape[1]) % grouping.period
    of_all = np.bincount(places, of_block, grouping.period)[places]
    weights = np.divide(of_all, of_block, out=np.zeros_like(of_all), where=of_block > 0.0)
    products = (columns * weights) @ columns.T
    variance = float(products.diagonal().max())
    covariance = float(products[~np.eye(len(products), dtype=bool)].max())
    if covariance > MOST_SHARED * variance:
        return None
    covariance = max(covariance, LEAST_SHARED * variance)
    return Spread(variance * (1.0 + ROUND_OFF), covariance * (1.0 + ROUND_OFF))


def _on_circle(columns: FloatArray, length: int) -> FloatArray:
    """Wrap columns around to ``length`` rows: row i sums rows i, i + length, and so on."""
    folded = np.zeros((len(columns), length))
    for start in range(0, columns.shape[1], length):
        part = columns[:, start : start + length]
        folded[:, : part.shape[1]] += part
    return folded


def lower_spread(strategy: NoiseStrategy, rows: int, slots_per_block: int) -> Spread:
    """Return lower bounds on the variances and covariances of consecutive slots.

    Each slot is visible in at least ``rows`` releases, or in as many releases as there are bands.

    Rounding:    down.
    """
    numerators, unit = strategy.numerators, math.ldexp(1.0 - ROUND_OFF, -2 * strategy.bits)
    later = numerators[:rows]
    variance = sum(one * one for one in later)
    covariance = sum(a * b for a, b in zip(numerators[slots_per_block - 1 :], later, strict=False))
    return Spread(variance * unit, covariance * unit)


@lru_cache(maxsize=64)
def groupings(bands: int, slots: int, *, only_single: bool) -> tuple[Grouping, ...]:
    """Return the groupings to try."""
    longest = min(bands, slots)
    single = [Grouping(1, 1, period) for period in _periods(1, longest, slots)]
    if only_single or longest == 1:
        return tuple(single)
    several = (
        Grouping(size, spacing, period)
        for size in _SIZES
        for spacing in _SPACINGS
        if (size - 1) * spacing <= longest
        for period in _periods(size, min(2 * bands + size, slots), slots)
    )
    return (*single, *several)


def _periods(least: int, most: int, slots: int) -> Sequence[int]:
    """Return periods from ``least`` to ``most``, the largest for each number of blocks."""
    if least > most:
        return ()
    doublings = math.log2(most / least)
    count = 2 + math.ceil(_PERIODS_PER_DOUBLING * doublings)
    periods = {round(period) for period in np.geomspace(least, most, count)}
    periods |= {least, most, *range(least, min(most, 8) + 1)}
    return sorted({min(most, slots // (slots // period)) for period in periods})


def estimated_epsilons(blocks: Sequence[Blocks], *, noise: float, delta: float) -> FloatArray:
    """Estimate epsilon of add/remove for each way of grouping slots into blocks.

    The likelihood ratio of all releases is approximated by a lognormal variable plus a constant,
    with the same mean, variance and third moment. This is no bound. Its error is a few percent, and
    nearly the same for similar groupings.
    """
    count, size, variance, covariance, participation = np.array(
        [
            (
                one.count,
                one.slots_per_block,
                one.spread.variance,
                one.spread.covariance,
                one.participation,
            )
            for one in blocks
        ]
    ).T
    own = np.minimum(variance / noise**2, _LARGEST_VARIANCE)
    common = np.minimum(covariance / noise**2, own)
    own = own - common
    growth, own_growth = np.expm1(common), np.expm1(own)
    square = growth + (growth + 1.0) * own_growth / size
    cube = (
        np.exp(3.0 * common)
        * (np.exp(3.0 * own) + 3.0 * (size - 1.0) * np.exp(own) + (size - 1.0) * (size - 2.0))
        / size**2
        - 3.0 * square
        - 1.0
    )
    cube = np.where(square < 1e-4, 3.0 * square**2, np.maximum(cube, 1e-30))
    spread = participation**2 * square / count
    skew = cube / square**1.5 / np.sqrt(count)
    half = skew**2 / 2.0
    root = np.cbrt(1.0 + half + np.sqrt(half * (2.0 + half)))
    log_variance = np.log(np.maximum(root + 1.0 / root - 1.0, 1.0 + 1e-15))
    deviation, scale = np.sqrt(log_variance), np.sqrt(spread / np.expm1(log_variance))

    def estimated_delta(epsilon: FloatArray) -> FloatArray:
        threshold = np.maximum(1.0 + np.expm1(epsilon) / scale, 1e-300)
        log_threshold = np.log(threshold) / deviation
        call = ndtr(deviation / 2 - log_threshold) - threshold * ndtr(
            -deviation / 2 - log_threshold
        )
        return np.asarray(scale * call)

    low, high = np.full(len(count), -30.0), np.full(len(count), 6.0)  # of the logarithm
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        above = estimated_delta(np.exp(middle)) > delta
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return np.asarray(np.exp(high))
