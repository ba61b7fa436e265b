"""The exact accountant for campaigns with Gaussian noise, and the delta of one Gaussian mechanism.

The accountant needs the slot ratio: the likelihood ratio of a slot's output with and without a
client.

Theorem:     docs/theory/gaussian.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import log_ndtr

from checkins.accounting.design import Adjacency
from checkins.accounting.exact import slot_sum
from checkins.accounting.exact.dominating_pair import DominatingPair
from checkins.accounting.exact.gaussian_replace_one import GaussianReplaceOne
from checkins.accounting.exact.grid_distribution import (
    CELLS,
    Rounding,
    Side,
    discretise_up,
    sum_of,
)
from checkins.accounting.exact.slot_ratio import (
    AntipodalGaussian,
    AttainedRatio,
    DilutedGaussian,
    DilutedRatio,
    DisplacedGaussian,
    Envelope,
    FloatArray,
    ShiftedGaussian,
    SlotRatio,
)
from checkins.accounting.solve import Divergence, TightestBounds, first_true, root_above

_PAIR_CELLS = 320
"""Largest number of grid cells if a whole curve of divergences is computed."""
MAX_SHIFT = 60.0
"""Largest shift of a Gaussian, in standard deviations. With a larger shift, epsilon is useless."""


def shifted_delta(shift: float, epsilons: FloatArray) -> FloatArray:
    """Return the hockey-stick divergence of N(shift, 1) and N(0, 1) at each epsilon.

    Theorem:     [BW18, Thm 8], arXiv:1805.06530v2. Exact.
    Neighbours:  any relation under which the means differ by ``shift`` standard deviations.
    Rounding:    to nearest.
    """
    upper, lower = _log_terms(shift, epsilons)
    return np.asarray(-np.exp(upper) * np.expm1(np.minimum(0.0, lower - upper)))


def largest_shift(epsilon: float, delta: float) -> float:
    """Return the largest shift, up to 60, for which N(shift, 1) against N(0, 1) is (eps, delta)-DP.

    Theorem:     [BW18, Thm 8], arXiv:1805.06530v2.
    Neighbours:  any relation under which the means differ by the shift.
    Rounding:    down.

    >>> round(largest_shift(1.0, 1e-6), 4)
    0.2367
    """
    epsilons = np.array([epsilon])
    return first_true(
        lambda shift: float(shifted_delta(max(shift, 1e-300), epsilons)[0]) <= delta,
        false=MAX_SHIFT,
        true=0.0,
        width=MAX_SHIFT * 2.0**-59.5,
    )


def report_epsilon(noise_multiplier: float, local_delta: float) -> float:
    """Return the epsilon of one Gaussian report for two inputs at a distance of 2 clipping norms.

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
    *, shift: float, choice_probability: float | None, slots: int, participation: float, cells: int
) -> tuple[FloatArray, FloatArray]:
    """Return the masses of all outcomes of a campaign, with the client and without the client.

    A client that checks in is chosen with probability ``choice_probability``. None means always.
    A chosen client shifts its slot's output by ``shift`` standard deviations.

    Theorem:     docs/theory/gaussian.md.
    Rounding:    up, on a grid with ``cells`` cells. Round-off is ignored, so this is an estimate.
    """
    ratio: SlotRatio = (
        ShiftedGaussian(shift)
        if choice_probability is None
        else DilutedRatio(ShiftedGaussian(shift), choice_probability)
    )
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
    """A campaign in which the noise of a slot's output is ``noise`` times the clipping norm.

    ``capacity`` is the largest number of reports per slot, so a client may displace another client
    in a full slot. None means no limit: a client only adds its update to a sum.
    """

    noise: float
    slots: int
    participation: float
    capacity: int | None = None
    displaces_in_lower_bounds: bool = False
    """Whether ``attained_add_remove_ratio`` is that of a client that displaces another one, and not
    of a client alone."""
    max_privacy_loss = math.inf

    @property
    def coarser(self) -> GaussianCampaign:
        """The campaign for coarse grids: this campaign, because its ratios are quick to compute."""
        return self

    @property
    def displacing(self) -> GaussianCampaign:
        """This campaign, with the lower bounds of a client that displaces another client.

        Every slot has exactly as many other reports as its capacity. All of them have one update,
        and the client has the opposite update.
        """
        return replace(self, displaces_in_lower_bounds=True)

    @property
    def uncapped(self) -> GaussianCampaign:
        """This campaign if no slot is full: a client never displaces another client."""
        return replace(self, capacity=None)

    @property
    def shift(self) -> float:
        """The largest shift of a slot's output by one update, in standard deviations."""
        return 1.0 / self.noise

    @property
    def choice_probability(self) -> float:
        """The largest probability that a client is chosen in a full slot: K/(K+1), or 1 if None."""
        return 1.0 if self.capacity is None else self.capacity / (self.capacity + 1.0)

    def divergence(self, adjacency: Adjacency, *, delta: float, cells: int | None) -> Divergence:
        """Return bounds on the divergence, computed on a grid.

        If ``cells`` is None, the grid has as many cells as for a certificate.
        """
        if adjacency is Adjacency.REPLACE_ONE:
            return GaussianReplaceOne(self, delta=delta, cells=cells)
        bounds = slot_sum.AddRemove(self, delta=delta, cells=cells or CELLS)
        if self.capacity is None:
            return bounds
        displacing = slot_sum.AddRemove(self.displacing, delta=delta, cells=cells or CELLS)
        return TightestBounds((bounds,), (bounds, displacing))

    def pair(self, rounding: Rounding) -> DominatingPair:
        """Return the dominating pair of all releases with the client and without the client."""
        return slot_sum.pair(self, rounding)

    def replace_one_pair(self, rounding: Rounding) -> DominatingPair:
        """Return the pair of all releases with two values of the client's data."""
        cells = min(_PAIR_CELLS, rounding.cells // 2)
        delta = rounding.tolerance * 1e4
        return GaussianReplaceOne(self, delta=delta, cells=cells).pair(rounding)

    def add_remove_ratio(self) -> SlotRatio:
        join_ratio = ShiftedGaussian(self.shift)
        if self.capacity is None:
            return join_ratio
        return Envelope(
            join_ratio, DilutedRatio(ShiftedGaussian(2 * self.shift), self.choice_probability)
        )

    def replace_one_ratio(self, epsilon: float) -> SlotRatio:
        join_ratio = AntipodalGaussian(self.shift, epsilon)
        if self.capacity is None:
            return join_ratio
        return Envelope(join_ratio, DisplacedGaussian(self.shift, epsilon, self.choice_probability))

    def attained_add_remove_ratio(self) -> AttainedRatio:
        """Return the ratio that proves lower bounds (see ``displacing``)."""
        if self.displaces_in_lower_bounds:
            return DilutedGaussian(ShiftedGaussian(2 * self.shift), self.choice_probability)
        return ShiftedGaussian(self.shift)

    def attained_replace_one_ratio(self, epsilon: float) -> AttainedRatio | None:
        """Return the replace-one ratio of a client that displaces no client."""
        return AntipodalGaussian(self.shift, epsilon)

    def initial_guess(self, delta: float) -> float:
        """Estimate epsilon, for searches, by a Gaussian with the likelihood ratio's deviation."""
        shift = self.shift if self.capacity is None else 2 * self.shift
        deviate = math.sqrt(2 * math.log(1.25 / delta))
        one_slot = shift * shift / 2 + shift * deviate
        spread = self.participation * math.sqrt(math.expm1(min(shift * shift, 600.0)) / self.slots)
        return max(min(one_slot, spread * deviate), 1e-12)
