"""The exact accountant for noise that the server correlates across slots.

The server releases v_t = c_0 x_t + ... + c_{b-1} x_{t-b+1} + Z_t, where x_t is the sum of slot t.
So the update of a client is visible in b releases, and the likelihood ratios of nearby slots are
dependent. The accountant counts the slots in independent *blocks*: of each block,
``slots_per_block`` slots at a distance of ``spacing``, and one block in every ``period`` slots.
There are ``period`` ways to choose the first block, and the true ratio is the mean over them. With
one slot per block, this holds for every design. With several slots, whose ratios have a common
factor, it is tighter, but it does not hold with a capacity.

The client draws each slot of a block with the same probability, so the ratio of a block is the mean
of the ratios of its slots. In the worst case it is

    R = exp(N(-c/2, c)) * (mean of B independent copies of exp(N(-(v - c)/2, v - c))),

where B is the number of slots, v the variance of the logarithm of each slot's ratio, and c the
covariance of two of them. The common factor is integrated exactly, and the mean is rounded on a
grid.

Theorem:     docs/theory/correlated-noise.md.
Neighbours:  add/remove and replace-one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
from scipy.special import ndtr, ndtri

from checkins.accounting.design import LEAST_SLOT_NOISE, MOST_SLOT_NOISE, Adjacency
from checkins.accounting.exact.dominating_pair import NO_LOSS, DominatingPair, mixture
from checkins.accounting.exact.gaussian import GaussianCampaign
from checkins.accounting.exact.grid_distribution import (
    TAIL_SHARE,
    GridDistribution,
    Rounding,
    Side,
    discretise_down,
    discretise_up,
    sum_of,
)
from checkins.accounting.exact.report_distributions import DiscreteRatio
from checkins.accounting.exact.slot_blocks import (
    LEAST_SHARED,
    MOST_SHARED,
    ROUND_OFF,
    Blocks,
    Grouping,
    estimated_epsilons,
    groupings,
    lower_spread,
    spread_of,
)
from checkins.accounting.exact.slot_ratio import (
    DEVIATES,
    AttainedRatio,
    FloatArray,
    ShiftedGaussian,
    SlotRatio,
)
from checkins.accounting.noise_strategy import NoiseStrategy
from checkins.accounting.solve import DeltaBounds, Divergence, Interval, TightestBounds, crossing

_TOLERANCE = 1e-30
"""Mass of the mean of a block's independent factors that may lie off their grid."""
_CELLS = {Side.UP: 160, Side.DOWN: 240}
"""Numbers of grid cells for the mean of the independent factors of a block."""
_QUANTILE_CELLS = 600
"""Number of grid cells of the ratio of a block, from which the ratio of replace-one is built."""


@dataclass(frozen=True, slots=True)
class ScaledGaussians:
    """A shifted Gaussian's ratio ``common``, multiplied by an independent value of ``scales``.

    The product is 0 with probability ``zero_mass``. ``excess`` is how much the mean fell by capping
    large scales.

    Theorem:     docs/theory/correlated-noise.md, "Blocks".
    Neighbours:  add/remove.
    """

    common: ShiftedGaussian
    scales: FloatArray
    masses: FloatArray
    zero_mass: float
    excess: float
    mean, floor = 1.0, 0.0

    @classmethod
    def of(cls, common: ShiftedGaussian, distribution: GridDistribution) -> ScaledGaussians:
        scales = distribution.values + distribution.origin
        positive = scales > 0.0
        return cls(
            common,
            scales[positive],
            distribution.masses[positive],
            float(distribution.masses[~positive].sum()),
            distribution.excess,
        )

    @property
    def quantiles(self) -> FloatArray:
        variance = math.log(float(self.masses @ self.scales**2)) + self.common.shift**2
        return np.exp(math.sqrt(variance) * DEVIATES - variance / 2)

    def _per_scale(self, t: FloatArray) -> FloatArray:
        return np.divide.outer(np.maximum(t, 0.0), self.scales)

    def call(self, t: FloatArray) -> FloatArray:
        calls = self.common.call(self._per_scale(t)) @ (self.scales * self.masses)
        return np.asarray(calls + self.excess + np.maximum(-t, 0.0))

    def put(self, t: FloatArray) -> FloatArray:
        puts = self.common.put(self._per_scale(t)) @ (self.scales * self.masses)
        return np.asarray(puts + np.maximum(t, 0.0) * self.zero_mass)

    def survival(self, t: FloatArray) -> FloatArray:
        return np.asarray(self.common.survival(self._per_scale(t)) @ self.masses)

    def cdf(self, t: FloatArray) -> FloatArray:
        return np.asarray(self.common.cdf(self._per_scale(t)) @ self.masses + self.zero_mass)

    def likely_range(self, tolerance: float) -> tuple[float, float]:
        low, high = self.common.likely_range(tolerance)
        return low * float(self.scales[0]), high * float(self.scales[-1])


def antithetic_ratio(ratio: GridDistribution, epsilon: float) -> DiscreteRatio:
    """Return the largest l - e^eps l' in convex order, if l and l' are distributed as ``ratio``.

    It is attained if l' is as small as possible whenever l is large. So the quantiles of l and l'
    are matched from opposite ends.

    Theorem:     docs/theory/correlated-noise.md, "Replace-one".
    Neighbours:  replace-one, at privacy loss ``epsilon``.
    """
    kept = ratio.masses > 0.0
    values, masses = (ratio.values + ratio.origin)[kept], ratio.masses[kept]
    from_top, from_bottom = np.cumsum(masses[::-1]), np.cumsum(masses)
    ends = np.unique(np.concatenate((from_top, from_bottom)))
    ends = np.append(ends[ends < 0.5], 0.5)
    # Between two ends, l is a large value and l' a small value, or the other way round.
    last = len(values) - 1
    large = values[::-1][np.minimum(np.searchsorted(from_top, ends), last)]
    small = values[np.minimum(np.searchsorted(from_bottom, ends), last)]
    shares, growth = np.diff(ends, prepend=0.0), math.exp(epsilon)
    differences = np.concatenate((small - growth * large, large - growth * small))
    mean = -math.expm1(epsilon)
    shares = np.concatenate((shares, shares))
    return DiscreteRatio(differences - mean, shares, mean=mean, excess=ratio.excess)


@lru_cache(maxsize=512)
def block_ratio(shift: float, shared: float, slots: int, side: Side) -> ScaledGaussians:
    """Return the ratio of a block of ``slots`` slots, rounded to ``side``.

    ``shift`` is the standard deviation of the logarithm of the ratio of one slot. The common factor
    has the share ``shared`` of its variance.
    """
    rounding = Rounding(side=side, cells=_CELLS[side], tolerance=_TOLERANCE)
    own = ShiftedGaussian(shift * math.sqrt(1.0 - shared))
    one = (discretise_up if side is Side.UP else discretise_down)(own, rounding)
    total = sum_of(slots, one, mean=1.0, rounding=rounding)
    mean = GridDistribution(
        total.values / slots, total.masses, total.origin / slots, total.excess / slots
    )
    return ScaledGaussians.of(ShiftedGaussian(shift * math.sqrt(shared)), mean)


@lru_cache(maxsize=64)
def _rounded_block_ratio(shift: float, shared: float, slots: int) -> GridDistribution:
    rounding = Rounding(side=Side.UP, cells=_QUANTILE_CELLS, tolerance=_TOLERANCE)
    return discretise_up(block_ratio(shift, shared, slots, Side.UP), rounding)


@dataclass(frozen=True, slots=True)
class BlockCampaign(GaussianCampaign):
    """A campaign whose slots are blocks of ``slots_per_block`` slots with correlated noise.

    ``slots`` is the number of blocks. The logarithm of the ratio of each slot in a block has the
    variance 1 / noise**2, of which the share ``shared`` is common to all slots of the block.
    """

    slots_per_block: int = 1
    shared: float = 0.0

    def add_remove_ratio(self) -> SlotRatio:
        return block_ratio(self.shift, self.shared, self.slots_per_block, Side.UP)

    def replace_one_ratio(self, epsilon: float) -> SlotRatio:
        rounded = _rounded_block_ratio(self.shift, self.shared, self.slots_per_block)
        return antithetic_ratio(rounded, epsilon)

    def attained_add_remove_ratio(self) -> AttainedRatio:
        """Return a lower bound on the ratio in convex order, which proves lower bounds."""
        return block_ratio(self.shift, self.shared, self.slots_per_block, Side.DOWN)

    def attained_replace_one_ratio(self, epsilon: float) -> None:
        """Return None, because no bound is known from below."""


_MAX_GROUPINGS, _MAX_ESTIMATE_RATIO = 3, 1.01
"""Largest number of groupings whose exact bounds are computed, and the largest ratio of their
estimated epsilon to the smallest estimate."""
_MIN_SHARE_OF_RUN = 0.95
"""If a run has at least this share of all slots, the bounds for all slots are tried, too."""
_MOST_DELTA = 1e-2
"""Largest delta at which the groupings of a single run are compared, to compose several runs."""
_LOWER_BOUND_SIZES = (*range(1, 17), 20, 24, 28, 32)
"""Numbers of slots per block that a search for a lower bound tries."""
_PARTICIPATION_BITS, _LOWER_PRECISION = 40, 1e-4
"""Number of binary digits to which a participation is rounded up, and the relative precision of the
lower bound on epsilon, which is far below the upper bound."""


@dataclass(frozen=True, slots=True)
class CorrelatedCampaign:
    """A campaign in which the server correlates the noise of slots by ``strategy``.

    ``noise`` is the deviation of Z_t in clip norms. A client draws one of ``slots`` slots, and its
    update is visible in at most ``rows`` releases. ``capacity`` is None if slots sum all check-ins.
    """

    noise: float
    strategy: NoiseStrategy
    slots: int
    rows: int
    participation: float
    capacity: int | None = None

    def divergence(
        self,
        adjacency: Adjacency,
        *,
        delta: float,
        cells: int | None,
        grouping_delta: float | None = None,
    ) -> Divergence:
        """Return bounds on the divergence. ``cells`` is as in ``GaussianCampaign``.

        The groupings are chosen for ``grouping_delta``. None means ``delta``.
        """
        uppers = tuple(
            part.divergence(adjacency, delta=delta, cells=cells)
            for part in self._parts(grouping_delta or delta)
        )
        lower = LowerBound(self, adjacency, delta=delta, cells=cells)
        return TightestBounds(uppers, (lower,), _LOWER_PRECISION)

    def delta_of_run(self, delta: float, rounding: Rounding) -> float:
        """Return the delta at which a run must be accurate if runs are composed at ``delta``.

        The result is larger than ``delta``, because the privacy losses of runs add up. ``rounding``
        was chosen for the number of runs.
        """
        runs = max(1.0, TAIL_SHARE * delta / rounding.tolerance)
        of_run = float(ndtr(ndtri(min(delta, 0.5)) / math.sqrt(runs)))
        return max(delta, min(of_run, _MOST_DELTA * self.participation))

    def pair(self, rounding: Rounding, *, delta: float) -> DominatingPair:
        """Return the dominating pair of all releases with the client and without the client.

        It is accurate for composing runs at ``delta``.
        """
        delta_of_run = self.delta_of_run(delta, rounding)
        if rounding.side is Side.DOWN:
            lower = LowerBound(self, Adjacency.ADD_REMOVE, delta=delta_of_run, cells=None)
            return NO_LOSS if lower.campaign is None else lower.campaign.pair(rounding)
        return self._parts(delta_of_run)[0].pair(rounding)

    def _parts(self, delta: float) -> list[Part]:
        """Return the bounds with the smallest estimates of epsilon, the smallest first.

        If this run is nearly as long as a run with participation 1 that begins with it, then the
        bounds for that run hold for this run, too. So epsilon does not grow if a run stops early.
        """
        parts = self._best_parts(delta)
        whole = math.floor(self.slots / self.participation * (1.0 + 1e-12))
        if self.slots < whole <= self.slots / _MIN_SHARE_OF_RUN:
            # In the sliding protocol, ``rows`` may exceed the slots of a window.
            rows = max(self.rows, min(self.strategy.bands, whole))
            longer = replace(self, slots=whole, rows=rows, participation=1.0)
            parts += longer._best_parts(delta)
        return list({(part.weights, part.blocks): part for part in parts}.values())

    def _best_parts(self, delta: float) -> list[Part]:
        only_single = self.capacity is not None
        weighted = weighted_blocks(
            self.strategy, self.rows, self.slots, self.participation, only_single=only_single
        )
        candidates = [
            (weights, blocks) for weights, blocks in weighted if self._are_accurate(blocks)
        ]
        firsts = [blocks[0] for _, blocks in candidates]
        # With a capacity, the update of a displaced client may be opposite to the client's update.
        noise = self.noise if self.capacity is None else self.noise / 2.0
        estimates = estimated_epsilons(firsts, noise=noise, delta=delta)
        order = estimates.argsort(kind="stable")[:_MAX_GROUPINGS]
        return [
            Part(self, *candidates[index])
            for index in order
            if estimates[index] <= _MAX_ESTIMATE_RATIO * estimates[order[0]]
        ]

    def _are_accurate(self, blocks: Sequence[Blocks]) -> bool:
        """Return True if the accountant's floating-point numbers are accurate enough."""
        variance = max(one.spread.variance for one in blocks)
        return self.noise >= LEAST_SLOT_NOISE * math.sqrt(variance) * (1.0 - 1e-9)

    def noise_of(self, blocks: Blocks) -> float:
        """Return the noise of independent slots with the spread of a slot of these blocks."""
        return self.noise / math.sqrt(blocks.spread.variance)

    def of_blocks(self, blocks: Blocks) -> GaussianCampaign:
        """Return the campaign with independent blocks in place of slots, rounded up.

        Noise above the largest supported noise is lowered to it, which can only increase delta.
        """
        noise = min(self.noise_of(blocks), MOST_SLOT_NOISE)
        if blocks.slots_per_block == 1:
            return GaussianCampaign(noise, blocks.count, blocks.participation, self.capacity)
        return BlockCampaign(
            noise,
            blocks.count,
            blocks.participation,
            slots_per_block=blocks.slots_per_block,
            shared=blocks.spread.covariance / blocks.spread.variance,
        )


@dataclass(frozen=True, slots=True)
class Part:
    """A bound on the divergence of ``campaign``: the mean over ``blocks`` with ``weights``."""

    campaign: CorrelatedCampaign
    weights: tuple[float, ...]
    blocks: tuple[Blocks, ...]

    def divergence(self, adjacency: Adjacency, *, delta: float, cells: int | None) -> Divergence:
        campaigns = map(self.campaign.of_blocks, self.blocks)
        parts = tuple(one.divergence(adjacency, delta=delta, cells=cells) for one in campaigns)
        return parts[0] if len(parts) == 1 else WeightedMean(self.weights, parts)

    def pair(self, rounding: Rounding) -> DominatingPair:
        pairs = [self.campaign.of_blocks(blocks).pair(rounding) for blocks in self.blocks]
        return mixture(self.weights, pairs)


@dataclass(frozen=True, slots=True)
class WeightedMean:
    """The mean of divergences, with ``weights`` that sum to 1. Only upper bounds are computed."""

    weights: tuple[float, ...]
    parts: tuple[Divergence, ...]

    def upper(self, epsilon: float) -> float:
        deltas = (part.upper(epsilon) for part in self.parts)
        return math.fsum(w * delta for w, delta in zip(self.weights, deltas, strict=True))

    def lower(self, epsilon: float) -> float:
        return 0.0

    def epsilon(self, delta: float) -> Interval:
        return Interval(0.0, self.upper_epsilon(delta))

    def upper_epsilon(self, delta: float) -> float:
        guess = self.parts[0].upper_epsilon(delta)
        return crossing(self.upper, delta, guess=guess, precision=1e-6, stride=0.01).upper


class LowerBound:
    """A lower bound on the delta of a client whose updates all point in one direction.

    Slots whose updates are visible in too few releases are not counted. Covariances are lowered to
    the smallest one in a block of consecutive slots, and to 0 between blocks.

    Theorem:     docs/theory/correlated-noise.md, "Lower bounds".
    Rounding:    down.
    """

    def __init__(
        self,
        campaign: CorrelatedCampaign,
        adjacency: Adjacency,
        *,
        delta: float,
        cells: int | None,
    ) -> None:
        self._correlated = replace(campaign, capacity=None)  # the client is alone
        self._adjacency, self._delta, self._cells = adjacency, delta, cells

    def upper(self, epsilon: float) -> float:
        return 1.0

    def lower(self, epsilon: float) -> float:
        return max((bound.lower(epsilon) for bound in self._bounds), default=0.0)

    @cached_property
    def _bounds(self) -> list[DeltaBounds]:
        campaigns: list[tuple[GaussianCampaign | None, Adjacency]]
        campaigns = [(self.campaign, Adjacency.ADD_REMOVE)]
        if self._adjacency is Adjacency.REPLACE_ONE:  # an update of 0 is as if the client is absent
            single = (blocks for blocks in self._candidates() if blocks.slots_per_block == 1)
            campaigns.append((self._best(list(single)), self._adjacency))
        return [
            campaign.divergence(adjacency, delta=self._delta, cells=self._cells)
            for campaign, adjacency in campaigns
            if campaign is not None
        ]

    @cached_property
    def campaign(self) -> GaussianCampaign | None:
        """The campaign whose add/remove divergence is the largest known lower bound, or None."""
        return self._best(list(self._candidates()))

    def _best(self, candidates: list[Blocks]) -> GaussianCampaign | None:
        """Return the best of the campaigns whose noise is supported, or None."""
        noise_of = self._correlated.noise_of
        candidates = [blocks for blocks in candidates if noise_of(blocks) <= MOST_SLOT_NOISE]
        if not candidates:
            return None
        estimates = estimated_epsilons(candidates, noise=self._correlated.noise, delta=self._delta)
        return self._correlated.of_blocks(candidates[int(estimates.argmax())])

    def _candidates(self) -> Iterator[Blocks]:
        slots, rows = self._correlated.slots, self._correlated.rows
        while rows:  # with one row, every slot counts
            for size in _LOWER_BOUND_SIZES:
                spread = lower_spread(self._correlated.strategy, rows, size)
                count = (slots - rows + 1) // size
                share = spread.covariance / spread.variance
                if count > 0 and (size == 1 or LEAST_SHARED <= share <= MOST_SHARED):
                    counted = count * size / slots * (1.0 - ROUND_OFF)
                    yield Blocks(count, size, spread, self._correlated.participation * counted)
            rows //= 2


Weighted = tuple[tuple[float, ...], tuple[Blocks, ...]]
"""Weights and blocks of a weighted mean of bounds."""


@lru_cache(maxsize=32)
def weighted_blocks(
    strategy: NoiseStrategy, rows: int, slots: int, participation: float, *, only_single: bool
) -> tuple[Weighted, ...]:
    """Return what each grouping proves. It does not depend on the noise.

    The number of slots may not be a multiple of the period. Then it is rounded down, or it is
    rounded up and the participation grows in proportion. With one slot per block and
    participation 1, some ways to choose the slots have one block more than others.
    """
    found: list[Weighted] = []

    def prove(grouping: Grouping, parts: list[tuple[float, int, float]]) -> None:
        blocks = []
        for _, count, part_participation in parts:
            spread = spread_of(strategy, rows, grouping, count)
            if spread is None:
                return
            blocks.append(Blocks(count, grouping.slots_per_block, spread, part_participation))
        found.append((tuple(weight for weight, *_ in parts), tuple(blocks)))

    for grouping in groupings(strategy.bands, slots, only_single=only_single):
        period = grouping.period
        count, rest = divmod(slots, period)
        rounded_up = _rounded_up(participation * (-(-slots // period) * period / slots))
        if rest and rounded_up <= 1.0:
            prove(grouping, [(1.0, count + 1, rounded_up)])
        if count:
            prove(grouping, [(1.0, count, participation)])
        if count and rest and grouping.slots_per_block == 1 and rounded_up > 1.0:
            more = rest * (count + 1) / slots
            prove(grouping, [(1.0 - more, count, participation), (more, count + 1, participation)])
    return tuple(found)


def _rounded_up(participation: float) -> float:
    """Round up the last bits, so that equal products of different factors are equal floats."""
    mantissa, exponent = math.frexp(participation)
    rounded = math.ceil(math.ldexp(mantissa, _PARTICIPATION_BITS) - 0.01)
    return math.ldexp(rounded, exponent - _PARTICIPATION_BITS)
