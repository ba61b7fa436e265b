"""Dominating pairs: two distributions P and Q on a finite list of outcomes.

P is the distribution of all releases with the client (or with its data), and Q is the distribution
without the client (or with other data). An outcome has its probability (mass) under P and under Q,
and its privacy loss is log P/Q. The difference P - Q, called the gain, is stored separately,
because it is more accurate if P and Q nearly agree. To compose campaigns with fresh randomness,
masses are multiplied and losses are added. Rounding up splits an outcome between two neighbouring
losses and preserves its masses under P and under Q. This is safe: the two parts can be merged
again, so the original pair is a post-processing of the rounded pair. Rounding down merges
neighbouring outcomes, which is post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from checkins.accounting.exact.grid_distribution import Grid, Rounding, Side, blocks, groups
from checkins.accounting.exact.slot_ratio import FloatArray

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

_MAX_LOSS = 600.0  # an outcome with a larger loss counts as possible under P only
_MIN_RELATIVE_SPACING = 1e-5  # outcomes of an envelope with a smaller relative distance are dropped
_EXTRA_ENVELOPE_POINTS = 1024  # points of an envelope in addition to the outcomes
_MAX_MASS_ROUND_OFF = 1e-11  # a larger difference of the sum of masses from 1 is lost mass
ROUND_OFF = 1e-7
"""Relative error of a divergence that covers all floating-point errors."""
EPSILON_SPLITS = (0.5, 0.46, 0.54, 0.4, 0.6)
"""Values of e1/(e1 + e2) that the triangle bound tries, to use the smallest delta."""
DeltaOfEpsilon = Callable[[float], float]
"""An upper bound on delta as a function of epsilon."""


@dataclass(frozen=True, slots=True)
class DominatingPair:
    """Outcomes in increasing order of their losses.

    ``absent`` holds the masses under Q, ``present`` the masses under P, and ``gains`` P - Q.
    ``only_present`` is the mass of outcomes that are possible under P only, and ``only_absent`` the
    mass of outcomes that are possible under Q only.
    """

    absent: FloatArray
    present: FloatArray
    gains: FloatArray
    only_present: float = 0.0
    only_absent: float = 0.0

    @property
    def losses(self) -> FloatArray:
        near = np.abs(self.gains) < 0.5 * self.absent
        far = np.log(self.present) - np.log(self.absent)
        return np.where(near, np.log1p(np.where(near, self.gains, 0.0) / self.absent), far)

    def remove(self, epsilon: float) -> float:
        """Return the delta of P against Q at ``epsilon``, the sum of (P - e^eps Q)_+."""
        if epsilon < math.log(2.0):
            excess = self.gains - math.expm1(epsilon) * self.absent
        else:  # if P and Q are far apart, P and Q are more accurate than the gain
            excess = self.present - math.exp(epsilon) * self.absent
        return float(excess[excess > 0].sum()) + self.only_present

    def add(self, epsilon: float) -> float:
        """Return the delta of Q against P at ``epsilon``, the sum of (Q - e^eps P)_+."""
        if epsilon < math.log(2.0):
            excess = -math.expm1(epsilon) * self.absent - math.exp(epsilon) * self.gains
        else:
            excess = self.absent - math.exp(epsilon) * self.present
        return float(excess[excess > 0].sum()) + self.only_absent

    def compose(self, other: DominatingPair, rounding: Rounding) -> DominatingPair:
        """Return the pair of two campaigns together, rounded to ``rounding.side``."""
        only_present = _union_probability(self.only_present, other.only_present)
        only_absent = _union_probability(self.only_absent, other.only_absent)
        grid = _composed_grid(self, other, rounding)
        if grid is None:  # no outcome is possible under both P and Q
            nothing = np.zeros(0)
            return DominatingPair(
                nothing, nothing, nothing, only_present, only_absent
            )._add_lost_mass()
        losses, others, size = self.losses - grid.origin, other.losses, grid.cells + 2
        absent, present, gains = np.zeros(size), np.zeros(size), np.zeros(size)
        # a, p, g: masses and gains of this pair; b, q, h: those of the other pair
        for rows, columns, times in blocks(self is other, len(losses), len(others)):
            where = grid.locate(np.add.outer(losses[rows], others[columns]).ravel()).astype(np.intp)
            a, p, g = self.absent[rows], times * self.present[rows], self.gains[rows]
            b, q, h = other.absent[columns], other.present[columns], other.gains[columns]
            gain = times * (np.multiply.outer(g, q) + np.multiply.outer(a, h))
            absent += np.bincount(where, (times * np.multiply.outer(a, b)).ravel(), size)
            present += np.bincount(where, np.multiply.outer(p, q).ravel(), size)
            gains += np.bincount(where, gain.ravel(), size)
        cells = DominatingPair(absent, present, gains, only_present, only_absent)
        if rounding.side is Side.UP:
            return _split_cells(cells, grid.edges() + grid.origin)._drop_zeros()._add_lost_mass()
        return cells._drop_zeros()

    def _drop_zeros(self) -> DominatingPair:
        """Drop outcomes whose mass under P or under Q has underflowed to 0."""
        keep = (self.absent > 0) & (self.present > 0)
        lost = float(self.absent[(self.absent > 0) & (self.present == 0)].sum())
        return DominatingPair(
            self.absent[keep],
            self.present[keep],
            self.gains[keep],
            self.only_present,
            self.only_absent + lost,
        )

    def _add_lost_mass(self) -> DominatingPair:
        """Restore mass that was lost by underflow, so that the masses of P and of Q sum to 1.

        Mass lost from P counts as possible under P only, and likewise for Q.
        """
        present, absent = _missing_mass(self.present), _missing_mass(self.absent)
        return replace(
            self,
            only_present=max(self.only_present, present if present > _MAX_MASS_ROUND_OFF else 0.0),
            only_absent=max(self.only_absent, absent if absent > _MAX_MASS_ROUND_OFF else 0.0),
        )

    def repeat(self, times: int, rounding: Rounding) -> DominatingPair:
        """Return the pair of ``times`` runs of the campaign, by doubling."""
        total = self
        for bit in bin(times)[3:]:
            total = total.compose(total, rounding)
            if bit == "1":
                total = total.compose(self, rounding)
        return total

    def to_dp_accounting(self, *, interval: float) -> PrivacyLossDistribution:
        """Return the pair for dp_accounting, rounded up to multiples of ``interval``.

        Deltas are raised by ``ROUND_OFF``, to cover the floating-point errors of this module.
        """
        # Imported here, because the import takes longer than that of the rest of the accountant.
        from dp_accounting.pld.pld_pmf import DensePLDPmf
        from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

        if not len(self.absent):
            full_loss = DensePLDPmf(interval, 0, np.zeros(1), 1.0, True)
            return PrivacyLossDistribution(full_loss, full_loss)
        losses = self.losses
        first = math.floor(losses[0] / interval)
        cells = max(math.ceil(losses[-1] / interval) - first, 1)
        edges = interval * np.arange(first, first + cells + 1)
        where = 1 + np.clip((losses / interval - first).astype(np.intp), 0, cells - 1)
        absent, present, gains = (
            np.bincount(where, weights, cells + 2).astype(np.float64)
            for weights in (self.absent, self.present, self.gains)
        )
        binned = DominatingPair(absent, present, gains, self.only_present, self.only_absent)
        pair = _split_cells(binned, edges)
        last = first + cells
        present, only_present = _with_raised_deltas(
            pair.present, edges, _missing_mass(pair.present)
        )
        absent, only_absent = _with_raised_deltas(
            pair.absent[::-1], -edges[::-1], _missing_mass(pair.absent)
        )
        remove = DensePLDPmf(interval, first, present, only_present, True)
        add = DensePLDPmf(interval, -last, absent, only_absent, True)
        return PrivacyLossDistribution(remove, add)


def _union_probability(one: float, other: float) -> float:
    """Return the probability that at least one of two independent events happens."""
    return one + other - one * other


def _missing_mass(masses: FloatArray) -> float:
    """Return 1 minus the sum of the masses, or 0 if that is negative."""
    return max(0.0, 1.0 - math.fsum(masses))


def _with_raised_deltas(
    masses: FloatArray, losses: FloatArray, infinite: float
) -> tuple[FloatArray, float]:
    """Return the masses and the mass of an infinite loss, with deltas raised by ``ROUND_OFF``.

    The mass of every loss above 0 grows by this factor, and the mass of the other losses shrinks.
    """
    above = losses > 0.0
    grown = np.where(above, masses * (1.0 + ROUND_OFF), masses)
    room = math.fsum(masses[~above])
    extra = ROUND_OFF * (math.fsum(masses[above]) + infinite)
    grown[~above] *= max(0.0, 1.0 - extra / room) if room > 0.0 else 0.0
    return grown, infinite * (1.0 + ROUND_OFF)


def from_ratios(
    ratios: FloatArray, gains: FloatArray, masses: FloatArray, *, only_present: float = 0.0
) -> DominatingPair:
    """Return the pair of outcomes with P/Q = ``ratios`` = 1 + ``gains`` and ``masses`` under Q."""
    keep, impossible = (ratios > 0) & (masses > 0), ratios <= 0
    absent = masses[keep]
    return DominatingPair(
        absent,
        absent * ratios[keep],
        absent * gains[keep],
        only_present,
        float(masses[impossible].sum()),
    )


NO_LOSS = from_ratios(np.ones(1), np.zeros(1), np.ones(1))
"""The pair of a campaign that reveals nothing: P and Q are equal."""


def from_curve(epsilons: FloatArray, deltas: FloatArray) -> DominatingPair:
    """Return a pair that dominates every pair with delta at most ``deltas`` at ``epsilons``.

    The deltas bound both directions. ``epsilons`` increases from 0. A divergence is convex in
    e^eps, so the lower convex hull of the given points is an upper bound. The kinks of the
    hull are the outcomes of the pair, and its changes of slope are their masses.
    """
    x = np.concatenate(([-1.0], np.expm1(-epsilons[:0:-1]), np.expm1(epsilons)))  # e^eps - 1
    mirrored = -np.expm1(-epsilons[:0:-1]) + np.exp(-epsilons[:0:-1]) * deltas[:0:-1]
    y = np.concatenate(([1.0], mirrored, deltas))
    hull = _lower_hull(x, y)
    x, y = x[hull], y[hull]
    slopes = np.diff(y) / np.diff(x)
    masses = np.diff(np.concatenate(([-1.0], slopes, [0.0])))
    ratios = np.concatenate(([0.0], np.exp(-epsilons[:0:-1]), np.exp(epsilons)))[hull]
    return from_ratios(ratios, x, np.maximum(masses, 0.0), only_present=float(y[-1]))


@dataclass(frozen=True, slots=True)
class AcceptanceProbabilities:
    """The probabilities that a test between P and Q accepts.

    ``absent`` is an upper bound on the probability under Q, and ``absent`` + ``gain`` a lower bound
    on the probability under P.
    """

    absent: float
    gain: float


def from_tests(tests: Sequence[AcceptanceProbabilities]) -> DominatingPair:
    """Return a pair that is dominated by a symmetric pair (P, Q) with these tests.

    A pair is symmetric if exchanging P and Q does not change its divergences. The outcomes of the
    result are the edges of the concave hull of the tests' points (Q(A), P(A)), of the origin, and
    of the mirrored points (1 - P(A), 1 - Q(A)).

    Theorem:     [Blackwell53]: a pair with a smaller hull is a post-processing of (P, Q).
    """
    # A test and its mirror image have the same gain. The one that accepts less is used.
    points = sorted(
        (max(0.0, min(test.absent, 1.0 - test.absent - test.gain)), test.gain)
        for test in tests
        if test.gain > 0.0
    )
    if not points:
        return NO_LOSS
    best = max(range(len(points)), key=lambda index: points[index][1])
    x, gains = np.array([(0.0, 0.0), *points[: best + 1]]).T
    hull = _lower_hull(x, -gains)
    absent, gain = np.diff(x[hull]), np.diff(gains[hull])
    present = absent + gain
    middle = max(0.0, 1.0 - float(absent.sum()) - float(present.sum()))
    sides = [(absent[::-1], present[::-1], gain[::-1]), (present, absent, -gain)]
    absents, presents, all_gains = (
        np.concatenate((sides[1][k], [middle] if k < 2 else [0.0], sides[0][k])) for k in range(3)
    )
    keep = absents > 0.0
    return DominatingPair(
        absents[keep],
        presents[keep],
        all_gains[keep],
        only_present=float(presents[~keep].sum()),
    )


def triangle_bound(add_remove_pair: DominatingPair) -> DeltaOfEpsilon:
    """Return the triangle bound on delta between two values of one client's data."""

    def delta(epsilon: float) -> float:
        deltas = []
        for split in EPSILON_SPLITS:
            remove_epsilon, add_epsilon = split * epsilon, (1.0 - split) * epsilon
            deltas.append(
                add_remove_pair.remove(remove_epsilon)
                + math.exp(remove_epsilon) * add_remove_pair.add(add_epsilon)
            )
        return min(1.0, min(deltas) * (1 + ROUND_OFF))

    return delta


def envelope(pairs: Sequence[DominatingPair]) -> DominatingPair:
    """Return a pair that dominates each of ``pairs``. Its divergence is the largest of theirs.

    Let X = P/Q under Q. E(X - t)_+ determines every divergence, and E(t - X)_+ differs from it by
    the same linear function of t for all pairs. The maximum of E(X - t)_+ over the pairs is
    computed at the outcomes of the pairs, and at points in between, where two functions may cross.
    Straight lines between the points lie above the maximum, because it is convex. The changes of
    slope are the masses of the envelope.

    Theorem:     docs/theory/windows-and-capacity.md, "Kinds of clients".
    Rounding:    up. An outcome is dropped if it is too close to the one before it for doubles.
    """
    if len(set(map(id, pairs))) == 1:
        return pairs[0]
    losses = np.concatenate([pair.losses for pair in pairs])
    between = np.linspace(losses.min(), losses.max(), _EXTRA_ENVELOPE_POINTS)
    x = _drop_close_points(np.unique(np.expm1(np.concatenate((losses, between)))))
    below, above = x[x < 0.0], x[x > 0.0]
    puts = np.max([_puts(pair, below) for pair in pairs], axis=0)
    at_one = max(pair.remove(0.0) for pair in pairs)
    calls = np.max([_calls(pair, above) for pair in pairs], axis=0)
    only_present = max(pair.only_present for pair in pairs)
    x = np.concatenate(([-1.0], below, [0.0], above))
    rising = np.diff(np.concatenate(([0.0], puts, [at_one]))) / np.diff(x[: len(below) + 2])
    falling = np.diff(np.concatenate(([at_one], calls))) / np.diff(x[len(below) + 1 :])
    slopes = np.concatenate((rising - 1.0, falling))
    masses = np.concatenate(
        (
            [rising[0]],
            np.diff(rising),
            [slopes[len(below) + 1] - slopes[len(below)] if len(above) else 1.0 - rising[-1]],
            np.diff(falling),
            [-falling[-1]] if len(above) else [],
        )
    )
    last_call = float(calls[-1]) if len(above) else at_one
    return from_ratios(
        1.0 + x, x, np.maximum(masses, 0.0), only_present=max(last_call, only_present)
    )._add_lost_mass()


def mixture(weights: Sequence[float], pairs: Sequence[DominatingPair]) -> DominatingPair:
    """Return the pair of a run that uses one of ``pairs`` at random and releases which."""
    if len(pairs) == 1:
        return pairs[0]
    order = np.argsort(np.concatenate([pair.losses for pair in pairs]))
    absent, present, gains = (
        np.concatenate([w * getattr(pair, name) for w, pair in zip(weights, pairs, strict=True)])[
            order
        ]
        for name in ("absent", "present", "gains")
    )
    only_present, only_absent = (
        math.fsum(w * getattr(pair, name) for w, pair in zip(weights, pairs, strict=True))
        for name in ("only_present", "only_absent")
    )
    return DominatingPair(absent, present, gains, only_present, only_absent)


def _drop_close_points(x: FloatArray) -> FloatArray:
    """Drop each sorted point that is too close to the previous point for differences of doubles."""
    step = _MIN_RELATIVE_SPACING * np.maximum(np.abs(x), np.median(np.abs(x)))
    spaced: list[float] = []
    for value, least in zip(x, step, strict=True):
        if not spaced or value - spaced[-1] >= least:
            spaced.append(float(value))
    return np.array(spaced)


def _calls(pair: DominatingPair, x: FloatArray) -> FloatArray:
    """Return E(X - 1 - x)_+ at each x >= 0, including outcomes that are possible under P only."""
    gains, from_top = pair.gains[::-1], pair.absent[::-1]
    tail_gain, tail_mass = np.cumsum(gains), np.cumsum(from_top)
    ratios = np.expm1(pair.losses)
    count = len(ratios) - np.searchsorted(ratios, x, side="right")
    gain = np.concatenate(([0.0], tail_gain))[count]
    mass = np.concatenate(([0.0], tail_mass))[count]
    return np.asarray(np.maximum(gain - x * mass, 0.0) + pair.only_present)


def _puts(pair: DominatingPair, x: FloatArray) -> FloatArray:
    """Return E(1 + x - X)_+ at each x in [-1, 0], including outcomes possible under Q only."""
    ratios = np.expm1(pair.losses)
    count = np.searchsorted(ratios, x, side="left")
    gain = np.concatenate(([0.0], np.cumsum(pair.gains)))[count]
    mass = np.concatenate(([0.0], np.cumsum(pair.absent)))[count]
    return np.asarray(np.maximum(x * mass - gain, 0.0) + (1.0 + x) * pair.only_absent)


def _lower_hull(x: FloatArray, y: FloatArray) -> list[int]:
    """Return the indices of the points on the lower convex hull."""
    hull: list[int] = []
    for c in range(len(x)):
        while len(hull) > 1:
            a, b = hull[-2], hull[-1]
            if (y[b] - y[a]) * (x[c] - x[a]) < (y[c] - y[a]) * (x[b] - x[a]):
                break
            hull.pop()
        hull.append(c)
    return hull


def _split_cells(cells: DominatingPair, edges: FloatArray) -> DominatingPair:
    """Move the masses of each cell to its two edges, and preserve the masses under P and Q.

    The first and the last outcome of ``cells`` lie below the first edge and above the last edge.
    Their masses are moved to the nearest edge. Mass that does not fit the loss at that edge counts
    as possible under P only (above) or under Q only (below).
    """
    absent, present, gains = cells.absent[1:-1], cells.present[1:-1], cells.gains[1:-1]
    left, ratios = edges[:-1], np.exp(edges)
    excess = np.where(
        np.abs(left) < 0.5, gains - absent * np.expm1(left), present - absent * ratios[:-1]
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(absent > 0, excess / (ratios[:-1] * np.expm1(np.diff(edges))), 0.0)
    to_right = np.clip(share, 0.0, absent)
    split = np.append(absent - to_right, 0.0) + np.append(0.0, to_right)
    lowest = float(np.clip(cells.present[0] / ratios[0], 0.0, cells.absent[0]))
    split[0] += lowest
    split[-1] += cells.absent[-1]
    return DominatingPair(
        split,
        split * ratios,
        split * np.expm1(edges),
        cells.only_present + max(0.0, float(cells.present[-1] - cells.absent[-1] * ratios[-1])),
        cells.only_absent + float(cells.absent[0] - lowest),
    )


def _composed_grid(one: DominatingPair, other: DominatingPair, rounding: Rounding) -> Grid | None:
    """Choose a grid for the composed losses from a coarse estimate.

    Return None if the composition has no outcomes.
    """
    if not len(one.absent) or not len(other.absent):
        return None
    firsts, ends, absents, presents = zip(_coarse_groups(one), _coarse_groups(other), strict=True)
    losses = np.add.outer(*firsts).ravel()
    order = np.argsort(losses)
    losses = losses[order]
    absent = np.multiply.outer(*absents).ravel()[order]
    lasts = np.add.outer(*ends).ravel()
    from_top = np.argsort(-lasts)
    present = np.multiply.outer(*presents).ravel()[from_top]
    lowest = int(np.count_nonzero(np.cumsum(absent[:-1]) < rounding.tolerance))
    highest = int(np.count_nonzero(np.cumsum(present[:-1]) < rounding.tolerance))
    low, high = losses[lowest], lasts[from_top][highest]
    if not absent.sum() > 0.0:
        return None
    centre = float(absent @ losses) / float(absent.sum())
    spread = math.sqrt(float(absent @ (losses - centre) ** 2))
    spread = max(spread, 1e-12 * max(1.0, abs(centre)))
    return Grid.over(
        max(min(float(low), centre) - spread, -_MAX_LOSS),
        min(max(float(high), centre) + spread, _MAX_LOSS),
        origin=centre,
        scale=spread,
        cells=rounding.cells,
    )


def _coarse_groups(pair: DominatingPair) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return the first and last loss of at most 80 groups of outcomes, and their masses."""
    losses, (starts, ends) = pair.losses, groups(len(pair.absent))
    absent, present = (np.add.reduceat(one, starts) for one in (pair.absent, pair.present))
    return losses[starts], losses[ends], absent, present
