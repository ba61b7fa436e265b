"""Gaussian noise: the likelihood ratio of one slot's output with and without a client.

Also the delta of a single Gaussian mechanism.

Theorem:     docs/theory/gaussian.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr

from checkins.accounting.design import Adjacency
from checkins.accounting.exact import slot_sum
from checkins.accounting.exact.dominating_pair import DominatingPair
from checkins.accounting.exact.grid_distribution import Rounding, Side, discretise_up, sum_of
from checkins.accounting.exact.slot_ratio import (
    Antipodal,
    AttainedRatio,
    Diluted,
    Displaced,
    Envelope,
    FloatArray,
    Shifted,
    SlotRatio,
)
from checkins.accounting.solve import Divergence, first_true, root_above

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
    most_loss = math.inf

    @property
    def coarse(self) -> GaussianCampaign:
        return self

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
        return slot_sum.divergence(self, adjacency, delta=delta, cells=cells)

    def pair(self, rounding: Rounding) -> DominatingPair:
        """Return the pair of all releases with and without the client, rounded as asked."""
        return slot_sum.pair(self, rounding)

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

    def attained_add_remove_ratio(self) -> AttainedRatio:
        return Shifted(self.shift)

    def attained_replace_one_ratio(self, epsilon: float) -> AttainedRatio:
        return Antipodal(self.shift, epsilon)

    def guess(self, delta: float) -> float:
        """Estimate epsilon by a Gaussian with the standard deviation of the likelihood ratio."""
        s = self.shift if self.displaces is None else 2 * self.shift
        deviate = math.sqrt(2 * math.log(1.25 / delta))
        alone = s * s / 2 + s * deviate
        average = self.participation * math.sqrt(math.expm1(min(s * s, 600.0)) / self.slots)
        return max(min(alone, average * deviate), 1e-12)
