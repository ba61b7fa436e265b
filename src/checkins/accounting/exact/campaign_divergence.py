"""The exact accountant for one campaign of a design.

A slot ratio is a distribution. It bounds the likelihood ratio of one slot's output, with and
without one client, in convex order. The likelihood ratio of all releases is then bounded, in convex
order, by a weighted sum of independent slot ratios, whatever the other clients do and however the
model depends on earlier releases. This module chooses the slot ratio for a design.

Theorem:     docs/theory/one-likelihood-ratio.md; docs/theory/windows-and-capacity.md for windows,
             capacity, averaged updates and several campaigns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from checkins.accounting.design import (
    Adjacency,
    Design,
    GaussianNoise,
    LaplaceReports,
    NamedRandomizer,
    NoiseAt,
    Population,
    PrivUnitReports,
    Protocol,
    RandomizedResponseReports,
    WakeTimes,
)
from checkins.accounting.exact import report_distributions
from checkins.accounting.exact.correlated_noise import CorrelatedCampaign
from checkins.accounting.exact.dominating_pair import NO_LOSS, DominatingPair, from_curve
from checkins.accounting.exact.full_slots import FewFullSlots, FullSlots
from checkins.accounting.exact.gaussian import GaussianCampaign
from checkins.accounting.exact.grid_distribution import CELLS, MIN_TOLERANCE, Rounding, Side
from checkins.accounting.exact.named import NamedCampaign
from checkins.accounting.exact.pure import (
    PureCampaign,
    PureReplaceOne,
    RemovalThenAddition,
    UnrelatedWindows,
)
from checkins.accounting.exact.pure_capacity import PureCapacityCampaign
from checkins.accounting.exact.report_distributions import LaplaceDistribution, TwoLevelDistribution
from checkins.accounting.paper.occupancy import overflow_probability
from checkins.accounting.solve import Divergence, Interval, TightestBounds, crossing
from checkins.errors import NotCovered

_CURVE_CELLS = 320
"""Number of grid cells for a curve of delta over epsilon, and for ``UnlessOverflow.with_overflow``.

It is smaller than for a certificate, to save time.
"""


def divergence(
    design: Design, adjacency: Adjacency, *, delta: float, cells: int | None = None
) -> Divergence:
    """Return bounds on the divergence of one campaign. Raise ``NotCovered`` if no theorem applies.

    ``cells`` is the number of grid cells. None means as many as for a certificate.
    """
    _check_coverage(design, adjacency)
    if design.has_unrelated_windows(adjacency):
        return _divergence_if_windows_depend_on_data(design, delta=delta, cells=cells)
    relation = _adjacency_of_slot_ratio(design, adjacency)
    return campaign_of(design).divergence(relation, delta=delta, cells=cells)


def _divergence_if_windows_depend_on_data(
    design: Design, *, delta: float, cells: int | None
) -> Divergence:
    """Return bounds for replace-one if the wake times of clients may depend on their data."""
    rounding = Rounding.near(delta, side=Side.UP, cells=cells or CELLS, runs=2)
    campaign = campaign_of(design)
    if isinstance(campaign, CorrelatedCampaign):
        return RemovalThenAddition(campaign.pair(rounding, delta=delta))
    through_absence = RemovalThenAddition(campaign.pair(rounding))
    randomizer = design.randomizer
    if isinstance(randomizer, GaussianNoise):
        return through_absence
    pure = PureCampaign(randomizer.local_epsilon, design.drawable_slots, design.participation)
    unrelated = UnrelatedWindows(pure, delta=delta)
    if isinstance(campaign, PureCampaign):
        return unrelated  # some client attains this bound, so no valid bound is smaller
    return TightestBounds((unrelated, through_absence), ())


def campaign_of(
    design: Design,
) -> PureCampaign | PureCapacityCampaign | NamedCampaign | GaussianCampaign | CorrelatedCampaign:
    """Return the campaign that computes the divergence of the design.

    Every kind of campaign has its own slot ratio, and the methods ``divergence`` and ``pair``. Only
    this function decides which kind a design is. Averaged updates are a post-processing of a
    shuffle of all reports, so they are accounted for as a shuffle. Averaged Gaussian reports are
    accounted for as if the adversary knew the client's slot. The sum of this slot has the noise of
    at least ``least_reports`` reports, and two updates of a client differ by at most 2 clip norms.
    """
    randomizer = design.randomizer
    if isinstance(randomizer, GaussianNoise) and design.protocol is Protocol.AVERAGED:
        deviation = randomizer.noise_multiplier * math.sqrt(design.least_reports or 1)
        return GaussianCampaign(deviation * (1.0 - 1e-15) / 2.0, slots=1, participation=1.0)
    if isinstance(randomizer, GaussianNoise) and randomizer.strategy is not None:
        return CorrelatedCampaign(
            randomizer.noise_multiplier,
            randomizer.strategy,
            design.drawable_slots,
            min(design.slots, randomizer.strategy.bands),
            design.participation,
            design.capacity,
        )
    if isinstance(randomizer, GaussianNoise):
        noise = design.slot_noise(randomizer)
        return GaussianCampaign(noise, design.drawable_slots, design.participation, design.capacity)
    if design.protocol is Protocol.AVERAGED:
        return PureCampaign(
            randomizer.local_epsilon, design.population.fewest if design.population else 1, 1.0
        )
    if design.named_randomizer is not None and design.capacity is not None:
        report = _report_distribution(design.named_randomizer)
        return NamedCampaign(report, design.drawable_slots, design.participation, design.capacity)
    if design.capacity is not None and design.capacity > 1:
        return PureCapacityCampaign(
            randomizer.local_epsilon, design.drawable_slots, design.participation, design.capacity
        )
    return PureCampaign(randomizer.local_epsilon, design.drawable_slots, design.participation)


def _report_distribution(randomizer: NamedRandomizer) -> TwoLevelDistribution | LaplaceDistribution:
    match randomizer:
        case RandomizedResponseReports(local_epsilon=local_epsilon, categories=categories):
            return report_distributions.randomized_response(local_epsilon, categories)
        case LaplaceReports(local_epsilon=local_epsilon):
            return LaplaceDistribution(local_epsilon)
        case PrivUnitReports(local_epsilon=local_epsilon, dimension=dimension):
            return report_distributions.privunit(local_epsilon, dimension)
    raise NotCovered("randomizer", type(randomizer).__name__, "its dummies are not known")


def _adjacency_of_slot_ratio(design: Design, adjacency: Adjacency) -> Adjacency:
    """Return the neighbour relation for which ``campaign_of(design)`` computes the divergence.

    It is ``adjacency``, except for averaged Gaussian reports. Replacing an update shifts their sum,
    as adding a client does, so the slot ratio of add/remove is used, with twice the shift.
    """
    is_shift = design.protocol is Protocol.AVERAGED and isinstance(design.randomizer, GaussianNoise)
    return Adjacency.ADD_REMOVE if is_shift else adjacency


def _check_coverage(design: Design, adjacency: Adjacency) -> None:
    design.check_adjacency(adjacency)
    if isinstance(design.randomizer, GaussianNoise):
        if design.protocol is Protocol.AVERAGED and design.least_reports is None:
            raise NotCovered(
                "protocol",
                str(design.protocol),
                "there is no exact bound for averaged Gaussian reports without least_reports",
            )
    elif not design.randomizer.is_pure:
        raise NotCovered(
            "local_delta",
            design.randomizer.local_delta,
            "is not covered here: use a pure randomizer",
        )


def attaining_design(design: Design) -> Design:
    """Return a design whose divergence some client of ``design`` attains.

    Its divergence is a lower bound. In the sliding protocol, it has at most as many slots as the
    server is active in. For averaged Gaussian reports in several slots, no lower bound is
    known, so the returned design has participation 0.
    """
    if design.protocol is Protocol.AVERAGED and isinstance(design.randomizer, GaussianNoise):
        fewest = 1 if design.population is None else design.population.fewest
        if design.slots == 1 and fewest <= (design.least_reports or 1):
            return design
        return replace(uncapped(design), slots=1, participation=0.0)
    window = design.window
    if window is None:
        return design
    active_slots = design.slots - window + 1
    if design.wake_times is WakeTimes.ANY:
        is_pure = isinstance(campaign_of(design), PureCampaign)
        if is_pure and active_slots >= 2 * window:
            return design  # two disjoint windows fit
        design = replace(design, wake_times=WakeTimes.INDEPENDENT)
    reachable_slots = min(window, active_slots)
    if reachable_slots == window:
        return design
    limit = design.most_clients
    return _fixed_window(
        design,
        slots=reachable_slots,
        participation=design.participation * reachable_slots / window,
        population=None if limit is None else Population(1, limit),
    )


@dataclass(frozen=True, slots=True)
class UnlessOverflow:
    """A divergence that is ``without_overflow`` if no slot overflows, and else ``with_overflow``.

    A slot overflows if more clients check in than its capacity. ``probability`` is an upper bound
    on the probability that some slot overflows. ``FewFullSlots`` is tighter, but it covers neither
    correlated noise nor windows that depend on data.
    """

    without_overflow: Divergence
    with_overflow: Divergence
    probability: float

    def upper(self, epsilon: float) -> float:
        return self.without_overflow.upper(epsilon) + self.probability * self.with_overflow.upper(
            epsilon
        )

    def lower(self, epsilon: float) -> float:
        return self.without_overflow.lower(epsilon)

    def epsilon(self, delta: float) -> Interval:
        without_overflow = self.without_overflow.epsilon(delta)
        return Interval(without_overflow.lower, self._upper_epsilon(delta, without_overflow.upper))

    def upper_epsilon(self, delta: float) -> float:
        return self._upper_epsilon(delta, self.without_overflow.upper_epsilon(delta))

    def _upper_epsilon(self, delta: float, without_overflow: float) -> float:
        if self.probability >= 1.0:
            return self.with_overflow.upper_epsilon(delta)
        return crossing(self.upper, delta, guess=1.01 * without_overflow, precision=1e-4).upper


@dataclass(frozen=True, slots=True)
class WithFailureProbability:
    """A divergence that holds except with a ``probability``, which is added to delta."""

    divergence: Divergence
    probability: float

    def upper(self, epsilon: float) -> float:
        return self.divergence.upper(epsilon) + self.probability

    def lower(self, epsilon: float) -> float:
        return self.divergence.lower(epsilon)

    def epsilon(self, delta: float) -> Interval:
        upper = self.upper_epsilon(delta)
        return Interval(min(self.divergence.epsilon(delta).lower, upper), upper)

    def upper_epsilon(self, delta: float) -> float:
        remaining = math.nextafter(delta - self.probability, 0.0)
        return self.divergence.upper_epsilon(remaining) if remaining > 0.0 else math.inf


def with_population(
    design: Design, adjacency: Adjacency, *, delta: float, cells: int | None = None
) -> Divergence | None:
    """Return the divergence, assuming that there are at most ``most_clients`` clients.

    Return None if capacity or number of clients is not declared, if the accountant uses neither
    Gaussian noise nor the dummies of a named randomizer, or if the assumption does not help.

    Theorem:     docs/theory/gaussian.md, docs/theory/pure.md, "Named randomizers": no client is
                 displaced unless a slot overflows.
    """
    if design.named_randomizer is not None:
        return _named_with_population(design, adjacency, delta=delta, cells=cells)
    probability = overflow_probability_of(design, adjacency)
    if probability is None:
        return None
    campaign = campaign_of(design)
    if isinstance(campaign, GaussianCampaign) and not design.has_unrelated_windows(adjacency):
        full_slots = _full_slots(design)
        return FewFullSlots(campaign, adjacency, full_slots=full_slots, delta=delta, cells=cells)
    without_overflow = divergence(uncapped(design), adjacency, delta=delta, cells=cells)
    with_overflow = divergence(design, adjacency, delta=delta, cells=_CURVE_CELLS)
    return UnlessOverflow(without_overflow, with_overflow, probability)


def _full_slots(design: Design) -> FullSlots:
    """Return bounds on how many of the slots of one client are full with other clients.

    Another client can check in to a slot of this client's window only if it wakes in this window
    or in the window before it. At most ``arrivals`` clients wake in each of the two.
    """
    clients = design.most_clients or 1
    most_others = [] if design.population is None else [design.population.most - 1]
    if design.arrivals is not None:
        most_others.append(2 * design.arrivals - 1)
    return FullSlots(
        others=clients - 1,
        all_others=min(most_others),
        slots=design.drawable_slots,
        check_in=design.participation / design.drawable_slots,
        capacity=design.capacity or 1,
    )


def _named_with_population(
    design: Design, adjacency: Adjacency, *, delta: float, cells: int | None
) -> Divergence | None:
    """Return the divergence of ``with_population`` for a named randomizer."""
    probability, campaign = _overflow_bound(design), campaign_of(design)
    if not isinstance(campaign, NamedCampaign) or campaign.computed_capacity == 0:
        return None
    if probability is None or probability >= delta or design.has_unrelated_windows(adjacency):
        return None
    with_room = replace(campaign, slots_have_room=True)
    return WithFailureProbability(
        with_room.divergence(adjacency, delta=delta, cells=cells), probability
    )


def uncapped(design: Design) -> Design:
    """Return a design without a capacity, and with the same noise in a slot's sum.

    It has a fixed window, unless the noise is correlated across slots. With correlated noise, an
    update is visible in several releases, so wake times matter even without a capacity.
    """
    if design.has_correlated_noise:
        return replace(design, capacity=None)
    randomizer = design.randomizer
    if isinstance(randomizer, GaussianNoise):
        noise = design.slot_noise(randomizer)
        randomizer = replace(randomizer, noise_multiplier=noise, at=NoiseAt.SERVER)
    return _fixed_window(
        design,
        slots=design.drawable_slots,
        capacity=None,
        least_reports=None,
        randomizer=randomizer,
    )


def _fixed_window(design: Design, **changes: Any) -> Design:
    """Return the design with a fixed window, and with other ``changes``."""
    return replace(
        design,
        protocol=Protocol.FIXED,
        window=None,
        arrivals=None,
        wake_times=WakeTimes.INDEPENDENT,
        **changes,
    )


def with_known_slot(design: Design) -> Design:
    """Return the one-slot campaign that is seen by an adversary who knows the client's slot.

    If updates are averaged, the adversary is assumed to see each single report.
    """
    if design.protocol is Protocol.AVERAGED:
        return replace(uncapped(design), slots=1)
    randomizer = design.randomizer
    if isinstance(randomizer, GaussianNoise):
        # With correlated noise, one update is visible in several releases. Together they reveal
        # at most as much as one release with independent noise.
        randomizer = replace(randomizer, strategy=None)
    window = None if design.window is None else 1
    return replace(design, slots=1, window=window, randomizer=randomizer)


def overflow_probability_of(design: Design, adjacency: Adjacency) -> float | None:
    """Return a bound on the probability that other clients fill a slot that the client may draw.

    Return None if capacity or number of clients is not declared, or if the noise is not Gaussian.
    In the sliding protocol, the clients that may check in to a slot wake in ``window`` consecutive
    slots. So the declared ``arrivals`` count in place of the population, if there are fewer. If
    new data may change the window of the client, the bound covers the slots of both windows.

    Theorem:     docs/theory/windows-and-capacity.md, "Uneven arrivals".
    """
    probability = _overflow_bound(design)
    if probability is None or not isinstance(design.randomizer, GaussianNoise):
        return None
    return min(1.0, 2.0 * probability) if design.has_unrelated_windows(adjacency) else probability


def _overflow_bound(design: Design) -> float | None:
    """Return the bound of ``overflow_probability_of`` for one window, and for any randomizer."""
    if design.most_clients is None or design.capacity is None:
        return None
    return overflow_probability(
        clients=design.most_clients,
        slots=design.drawable_slots,
        participation=design.participation,
        capacity=design.capacity,
    )


def pair(
    design: Design, adjacency: Adjacency, rounding: Rounding, *, delta: float
) -> DominatingPair:
    """Return a dominating pair of one campaign, rounded to ``rounding.side``, for composition.

    If ``rounding.side`` is ``DOWN`` and the noise is not Gaussian, replace-one gets the pair of
    add/remove. This is a valid lower bound, because some randomizer maps the client's other data
    to reports with the distribution of dummies.
    """
    _check_coverage(design, adjacency)
    if design.participation == 0.0:
        return NO_LOSS
    if rounding.side is Side.DOWN:
        design = attaining_design(design)
        if design.participation == 0.0:
            return NO_LOSS
        if not isinstance(design.randomizer, GaussianNoise):
            adjacency = Adjacency.ADD_REMOVE
    campaign, relation = campaign_of(design), _adjacency_of_slot_ratio(design, adjacency)
    if (
        rounding.side is Side.UP
        and design.has_unrelated_windows(adjacency)
        and not isinstance(campaign, PureCampaign)
    ):
        raise NotCovered(
            "wake_times",
            str(design.wake_times),
            "has no dominating pair: bound a replacement by a removal and an addition",
        )
    if isinstance(campaign, GaussianCampaign) and relation is Adjacency.REPLACE_ONE:
        return NO_LOSS.compose(_cached_replace_one_pair(campaign, rounding), rounding)
    if isinstance(campaign, PureCapacityCampaign | NamedCampaign):
        return _cached_pair(campaign, adjacency, _with_rounded_tolerance(rounding))
    smallest_delta, cells = rounding.tolerance * 1e4, _curve_cells(rounding)
    if isinstance(campaign, CorrelatedCampaign):
        if relation is Adjacency.ADD_REMOVE or rounding.side is Side.DOWN:
            return campaign.pair(rounding, delta=delta)  # covers replacement by an update of 0
        curve = campaign.divergence(
            adjacency,
            delta=smallest_delta,
            cells=cells,
            grouping_delta=campaign.delta_of_run(delta, rounding),
        )
    elif relation is Adjacency.ADD_REMOVE:
        return campaign.pair(rounding)
    else:
        curve = divergence(design, adjacency, delta=smallest_delta, cells=cells)
    guess = curve.upper_epsilon(delta)
    return NO_LOSS.compose(_curve_pair(curve, rounding, guess=guess, delta=delta), rounding)


@lru_cache(maxsize=64)
def _cached_replace_one_pair(campaign: GaussianCampaign, rounding: Rounding) -> DominatingPair:
    return campaign.replace_one_pair(rounding)


@lru_cache(maxsize=512)
def _cached_pair(
    campaign: PureCapacityCampaign | NamedCampaign, adjacency: Adjacency, rounding: Rounding
) -> DominatingPair:
    """Return the pair of a campaign whose curve takes a second to compute.

    A ledger composes the same campaign with others many times.
    """
    if adjacency is Adjacency.ADD_REMOVE:
        return campaign.pair(rounding)
    smallest_delta, cells = rounding.tolerance * 1e4, _curve_cells(rounding)
    curve = campaign.divergence(adjacency, delta=smallest_delta, cells=cells)
    add_remove = campaign.divergence(Adjacency.ADD_REMOVE, delta=smallest_delta, cells=cells)
    guess = 1.5 * add_remove.upper_epsilon(smallest_delta)
    found = _curve_pair(curve, rounding, guess=guess, delta=smallest_delta)
    return NO_LOSS.compose(found, rounding)


def _with_rounded_tolerance(rounding: Rounding) -> Rounding:
    """Round the tolerance down to a power of 16, so that similar roundings share a cached pair."""
    exponent = 4 * math.floor(math.log2(rounding.tolerance) / 4)
    return replace(rounding, tolerance=max(2.0**exponent, min(MIN_TOLERANCE, rounding.tolerance)))


def _curve_cells(rounding: Rounding) -> int:
    return min(_CURVE_CELLS, rounding.cells // 2)


def _curve_pair(
    curve: Divergence, rounding: Rounding, *, guess: float, delta: float
) -> DominatingPair:
    """Return a replace-one pair that dominates the curve of delta over epsilon.

    ``guess`` is an estimate of the epsilon at which the curve is negligible. ``delta`` is named in
    the error if no such epsilon exists.
    """
    smallest_delta = rounding.tolerance * 1e4
    largest_epsilon = crossing(curve.upper, smallest_delta, guess=guess, precision=0.02).upper
    if not math.isfinite(largest_epsilon):
        raise NotCovered("delta", delta, "is too small to compose campaigns of this design")
    if largest_epsilon == 0.0:
        delta_at_zero = curve.upper(0.0)
        return replace(NO_LOSS, only_present=delta_at_zero, only_absent=delta_at_zero)
    node_count = rounding.cells // (24 if isinstance(curve, TightestBounds) else 16)
    if isinstance(curve, PureReplaceOne):
        node_count = 200 if rounding.cells >= 200 else rounding.cells // 2
    epsilons = np.linspace(0.0, largest_epsilon, node_count)
    return from_curve(epsilons, np.array([curve.upper(float(e)) for e in epsilons]))
