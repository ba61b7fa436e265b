"""The exact accountant for random check-ins with Gaussian noise.

Notation: m is the number of slots, p0 the participation, and s the clip divided by the standard
deviation of the noise in a slot's output. Then

    delta(eps) = (p0/m) E(S - T)_+ ,

where S is the sum of m independent slot ratios and T is a threshold that depends on eps. The
distribution of S is computed by doubling. Only the slot ratio differs between the protocols.

Theorem:     docs/theory/gaussian.md.
Rounding:    distributions are rounded up or down in convex order (docs/theory/rounding.md). The
             relative ROUND_OFF covers floating-point errors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import log_ndtr

from checkins.accounting.design import Adjacency
from checkins.accounting.exact.dominating_pair import ROUND_OFF, DominatingPair, from_ratios
from checkins.accounting.exact.grid_distribution import (
    CELLS,
    REPLACE_ONE_CELLS,
    SMALLEST,
    TAIL,
    GridDistribution,
    Rounding,
    Side,
    discretise_down,
    discretise_up,
    sum_of,
)
from checkins.accounting.exact.slot_ratio import (
    Antipodal,
    Diluted,
    Displaced,
    Envelope,
    FloatArray,
    Shifted,
    SlotRatio,
)
from checkins.accounting.solve import (
    DeltaBounds,
    Divergence,
    Interval,
    crossing,
    first_true,
    root_above,
)

_MOST_LOSS = 200.0  # above e^200, the values of a ratio would not fit a double
MOST_SHIFT = 60.0
"""Largest shift of a Gaussian in standard deviations. Above it, no useful epsilon holds."""


def shifted_delta(shift: float, epsilons: FloatArray) -> FloatArray:
    """Return the smallest delta of N(shift, 1) against N(0, 1) at each epsilon.

    Theorem:     [BW18, Thm 8], arXiv:1805.06530v2. Exact.
    Neighbours:  any relation under which the means differ by ``shift`` deviations.
    Rounding:    to nearest.
    """
    upper, lower = _log_terms(shift, epsilons)
    return np.asarray(-np.exp(upper) * np.expm1(np.minimum(0.0, lower - upper)))


def largest_shift(epsilon: float, delta: float) -> float:
    """Return the largest shift of a unit Gaussian that is (epsilon, delta)-DP, at most 60.

    Theorem:     [BW18, Thm 8], arXiv:1805.06530v2.
    Neighbours:  any relation under which the means differ by the shift.
    Rounding:    down.

    >>> round(largest_shift(1.0, 1e-6), 4)
    0.2367
    """
    at = np.array([epsilon])
    return first_true(
        lambda shift: float(shifted_delta(max(shift, 1e-300), at)[0]) <= delta,
        false=MOST_SHIFT,
        true=0.0,
        width=MOST_SHIFT * 2.0**-59.5,
    )


def report_epsilon(noise_multiplier: float, local_delta: float) -> float:
    """Return the epsilon of one Gaussian report between two inputs at distance 2 clips.

    Theorem:     [BW18, Thm 8], arXiv:1805.06530v2.
    Neighbours:  replace-one.
    Rounding:    up; never below 1e-12.
    """
    shift = 2.0 / noise_multiplier

    def excess(epsilon: float) -> float:
        upper, lower = (float(term[0]) for term in _log_terms(shift, np.array([epsilon])))
        log_delta = upper + math.log(-math.expm1(min(lower - upper, -1e-300)))
        return log_delta - math.log(local_delta)

    high = shift * shift / 2 + shift * math.sqrt(2 * math.log(1 / local_delta))
    return root_above(excess, low=1e-12, high=high)


def outcome_masses(
    *, shift: float, chosen: float | None, slots: int, participation: float, cells: int
) -> tuple[FloatArray, FloatArray]:
    """Return the masses of all outcomes of a campaign, with the client and without the client.

    A client that checks in is chosen with probability ``chosen``, or always if that is None. It
    then shifts its slot's output by ``shift`` standard deviations.

    Theorem:     docs/theory/gaussian.md.
    Rounding:    up, on a grid with ``cells`` cells. Round-off is ignored, so this is an estimate.
    """
    ratio: SlotRatio = Shifted(shift) if chosen is None else Diluted(Shifted(shift), chosen)
    rounding = Rounding(side=Side.UP, cells=cells, tolerance=1e-18)
    total = sum_of(slots, discretise_up(ratio, rounding), mean=1.0, rounding=rounding)
    ratios = 1.0 - participation + participation / slots * (total.values + total.origin)
    return total.masses * ratios, total.masses


def _log_terms(shift: float, epsilons: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the logarithms of the two terms of Φ(s/2 − ε/s) − e^ε Φ(−s/2 − ε/s)."""
    upper = log_ndtr(shift / 2 - epsilons / shift)
    lower = epsilons + log_ndtr(-shift / 2 - epsilons / shift)
    return upper, lower


@dataclass(frozen=True, slots=True)
class GaussianCampaign:
    """m slots, each with an output whose noise is ``noise`` times the clip.

    ``displaces`` is the capacity K if the client may displace another client in a full slot. It is
    None if slots have no capacity, so that the client only adds its update to a sum.
    """

    noise: float
    slots: int
    participation: float
    displaces: int | None = None

    @property
    def shift(self) -> float:
        return 1.0 / self.noise

    @property
    def weight(self) -> float:
        """The largest probability w = K/(K+1) of being chosen in a full slot."""
        return 1.0 if self.displaces is None else self.displaces / (self.displaces + 1.0)

    def divergence(self, adjacency: Adjacency, *, delta: float, cells: int | None) -> Divergence:
        """Return the exact divergence on a grid.

        If ``cells`` is None, the grid has as many cells as for a certificate.
        """
        if adjacency is Adjacency.ADD_REMOVE:
            return GaussianAddRemove(self, delta=delta, cells=cells or CELLS)
        return GaussianReplaceOne(self, delta=delta, cells=cells or REPLACE_ONE_CELLS)

    def pair(self, rounding: Rounding) -> DominatingPair:
        """Return the pair of all releases with and without the client, rounded as asked."""
        m, p0 = self.slots, self.participation
        if rounding.side is Side.UP:
            first = discretise_up(self.add_remove_ratio(), rounding)
        else:
            first = discretise_down(Shifted(self.shift), rounding)
        total = sum_of(m, first, mean=1.0, rounding=rounding)
        gains = p0 / m * (total.values + (total.origin - m))
        ratios = 1.0 + gains if total.origin else 1.0 - p0 + p0 / m * total.values
        return from_ratios(ratios, gains, total.masses, only_present=p0 / m * total.excess)

    def add_remove_ratio(self) -> SlotRatio:
        joins = Shifted(self.shift)
        if self.displaces is None:
            return joins
        return Envelope(joins, Diluted(Shifted(2 * self.shift), self.weight))

    def replace_one_ratio(self, epsilon: float) -> SlotRatio:
        joins = Antipodal(self.shift, epsilon)
        if self.displaces is None:
            return joins
        return Envelope(joins, Displaced(self.shift, epsilon, self.weight))


def _last_slot_thresholds(
    distribution: GridDistribution, *, centred: float, uncentred: float, slots: int, mean: float
) -> FloatArray:
    """Return, for each sum of the other slots, what the last slot must exceed.

    This is the threshold minus the sum. ``centred`` and ``uncentred`` are the threshold relative to
    the mean of all slots and to 0. The one that cancels less is used.
    """
    if distribution.origin == 0.0:
        return uncentred - distribution.values
    return (centred - distribution.values) - (distribution.origin - (slots - 1) * mean) + mean


def _rounding(campaign: GaussianCampaign, *, delta: float, cells: int, side: Side) -> Rounding:
    tolerance = TAIL * delta / campaign.participation
    return Rounding(side=side, cells=cells, tolerance=min(max(tolerance, SMALLEST), 1e-12))


class GaussianAddRemove:
    """Divergences in both directions between the releases with the client and without the client.

    Theorem:     docs/theory/gaussian.md. Attained if slots have no capacity. Otherwise ``lower`` is
                 attained by a client that displaces only dummies.
    Neighbours:  add/remove.
    Rounding:    ``upper`` up, ``lower`` down.

    >>> campaign = GaussianCampaign(noise=1.0, slots=10, participation=1.0)
    >>> GaussianAddRemove(campaign, delta=1e-6, cells=512).epsilon(1e-6).upper < 2.66
    True
    """

    def __init__(self, campaign: GaussianCampaign, *, delta: float, cells: int) -> None:
        self.campaign, self.delta, self.cells = campaign, delta, cells
        self.above_ratio: SlotRatio = campaign.add_remove_ratio()
        self.below_ratio = Shifted(campaign.shift)

    @cached_property
    def above(self) -> GridDistribution:
        """The sum of all slots but the last, rounded up. The last slot is integrated exactly."""
        rounding = _rounding(self.campaign, delta=self.delta, cells=self.cells, side=Side.UP)
        first = discretise_up(self.above_ratio, rounding)
        return sum_of(self.campaign.slots - 1, first, mean=1.0, rounding=rounding)

    @cached_property
    def below(self) -> GridDistribution:
        """The sum of all slots but the last, rounded down, if no client is displaced."""
        rounding = _rounding(self.campaign, delta=self.delta, cells=self.cells, side=Side.DOWN)
        first = discretise_down(self.below_ratio, rounding)
        return sum_of(self.campaign.slots - 1, first, mean=1.0, rounding=rounding)

    def _thresholds(self, distribution: GridDistribution, loss: float) -> FloatArray:
        m, p0 = self.campaign.slots, self.campaign.participation
        centred = m / p0 * math.expm1(loss)
        uncentred = m / p0 * (math.expm1(loss) + p0) if p0 < 1.0 else m * math.exp(loss)
        return _last_slot_thresholds(
            distribution, centred=centred, uncentred=uncentred, slots=m, mean=1.0
        )

    def _remove(self, distribution: GridDistribution, ratio: SlotRatio, epsilon: float) -> float:
        calls = float(ratio.call(self._thresholds(distribution, epsilon)) @ distribution.masses)
        return self.campaign.participation / self.campaign.slots * (calls + distribution.excess)

    def _add(self, distribution: GridDistribution, ratio: SlotRatio, epsilon: float) -> float:
        puts = float(ratio.put(self._thresholds(distribution, -epsilon)) @ distribution.masses)
        return math.exp(epsilon) * self.campaign.participation / self.campaign.slots * puts

    def remove_upper(self, epsilon: float) -> float:
        return min(1.0, self._remove(self.above, self.above_ratio, epsilon) * (1 + ROUND_OFF))

    def add_upper(self, epsilon: float) -> float:
        return min(1.0, self._add(self.above, self.above_ratio, epsilon) * (1 + ROUND_OFF))

    def upper(self, epsilon: float) -> float:
        return max(self.remove_upper(epsilon), self.add_upper(epsilon))

    def lower(self, epsilon: float) -> float:
        remove = self._remove(self.below, self.below_ratio, epsilon)
        return max(remove, self._add(self.below, self.below_ratio, epsilon)) * (1 - ROUND_OFF)

    def epsilon(self, delta: float, *, precision: float = 1e-9) -> Interval:
        return _epsilon(self, delta, guess=_guess(self.campaign, delta), precision=precision)

    def upper_epsilon(self, delta: float, *, precision: float = 1e-9) -> float:
        guess = _guess(self.campaign, delta)
        return crossing(self.upper, delta, guess=guess, precision=precision).upper


class GaussianReplaceOne:
    """Divergence between two values of one client's data.

    The slot ratio depends on epsilon, so every epsilon needs a distribution of its own.

    Theorem:     docs/theory/gaussian.md. Attained if slots have no capacity. Otherwise ``lower`` is
                 attained by a client that displaces only dummies.
    Neighbours:  replace-one.
    Rounding:    ``upper`` up, ``lower`` down.
    """

    def __init__(self, campaign: GaussianCampaign, *, delta: float, cells: int) -> None:
        self.campaign, self.delta, self.cells = campaign, delta, cells

    def _delta(self, distribution: GridDistribution, ratio: SlotRatio, epsilon: float) -> float:
        m, p0 = self.campaign.slots, self.campaign.participation
        centred = m / p0 * math.expm1(epsilon)
        thresholds = _last_slot_thresholds(
            distribution, centred=centred, uncentred=(1.0 - p0) * centred, slots=m, mean=ratio.mean
        )
        return p0 / m * (float(ratio.call(thresholds) @ distribution.masses) + distribution.excess)

    def upper(self, epsilon: float) -> float:
        if epsilon > _MOST_LOSS:
            return self.upper(_MOST_LOSS)
        ratio = self.campaign.replace_one_ratio(epsilon)
        rounding = _rounding(self.campaign, delta=self.delta, cells=self.cells, side=Side.UP)
        first = discretise_up(ratio, rounding)
        distribution = sum_of(self.campaign.slots - 1, first, mean=ratio.mean, rounding=rounding)
        return min(1.0, self._delta(distribution, ratio, epsilon) * (1 + ROUND_OFF))

    def lower(self, epsilon: float) -> float:
        if epsilon > _MOST_LOSS:
            return 0.0
        ratio = Antipodal(self.campaign.shift, epsilon)
        rounding = _rounding(self.campaign, delta=self.delta, cells=self.cells, side=Side.DOWN)
        first = discretise_down(ratio, rounding)
        distribution = sum_of(self.campaign.slots - 1, first, mean=ratio.mean, rounding=rounding)
        return self._delta(distribution, ratio, epsilon) * (1 - ROUND_OFF)

    def epsilon(self, delta: float, *, precision: float = 1e-4) -> Interval:
        return _epsilon(self, delta, guess=self._coarse_guess(delta), precision=precision)

    def upper_epsilon(self, delta: float, *, precision: float = 1e-4) -> float:
        return crossing(
            self.upper, delta, guess=self._coarse_guess(delta), precision=precision
        ).upper

    def _coarse_guess(self, delta: float) -> float:
        """Return a first guess of epsilon, from a faster search on a coarse grid if possible."""
        if self.cells > 300:
            coarse = GaussianReplaceOne(self.campaign, delta=delta, cells=160)
            rough = coarse.upper_epsilon(delta, precision=3e-3)
            if math.isfinite(rough):
                return rough
        return _guess(self.campaign, delta)


def _epsilon(divergence: DeltaBounds, delta: float, *, guess: float, precision: float) -> Interval:
    upper = crossing(divergence.upper, delta, guess=guess, precision=precision).upper
    nearby = 0.99 * upper if 0 < upper < math.inf else guess
    lower = crossing(divergence.lower, delta, guess=nearby, precision=precision).lower
    return Interval(min(lower, upper), upper)


def _guess(campaign: GaussianCampaign, delta: float) -> float:
    """Estimate epsilon by a Gaussian with the standard deviation of the likelihood ratio."""
    s = campaign.shift if campaign.displaces is None else 2 * campaign.shift
    deviate = math.sqrt(2 * math.log(1.25 / delta))
    alone = s * s / 2 + s * deviate
    average = campaign.participation * math.sqrt(math.expm1(min(s * s, 600.0)) / campaign.slots)
    return max(min(alone, average * deviate), 1e-12)
