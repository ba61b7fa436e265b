"""Compute all bounds on epsilon at one delta. A certificate uses the best of them.

The smallest upper bound is the certificate's epsilon. The largest lower bound is its
``epsilon_lower``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from checkins.accounting.certificate import Alternative
from checkins.accounting.composition import (
    Composition,
    curve_of_mixed_kinds,
    epsilon_of_mixed_kinds,
)
from checkins.accounting.design import (
    Adjacency,
    Design,
    GaussianNoise,
    LocalRandomizer,
    Protocol,
)
from checkins.accounting.exact import campaign_divergence
from checkins.accounting.paper import (
    composed_paper_epsilon,
    known_slot_epsilon,
    paper_covers,
)
from checkins.accounting.solve import DeltaBounds, Interval, TightestBounds, crossing
from checkins.errors import NotCovered

_COARSE_CELLS, _MOST_COARSE_EPSILON = 100, 100.0
"""Number of cells of a coarse grid, and the largest epsilon that is tried on it."""
_MOST_SEQUENCES = 16
"""Largest number of sequences of kinds of clients to try for a lower bound.

If there are more sequences, only those with the same kind in every campaign are tried."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The lower and the upper bound that one method proves for epsilon."""

    method: str
    epsilon: Interval
    note: str

    def as_alternative(self) -> Alternative:
        is_bounded = math.isfinite(self.epsilon.upper)
        note = self.note if is_bounded else "gives no bound for this design"
        return Alternative(self.method, self.epsilon.upper, note, proves=is_bounded)


def best_bound(bounds: Sequence[Bound]) -> Bound:
    """Return the bound with the smallest upper bound on epsilon."""
    return min(bounds, key=lambda bound: bound.epsilon.upper)


@dataclass(frozen=True, slots=True)
class Campaigns:
    """Campaigns with these designs one after the other, the whole sequence ``campaigns`` times."""

    designs: tuple[Design, ...]
    adjacency: Adjacency
    campaigns: int
    has_curious_clients: bool = False
    """Whether some clients disclose what they see. If so, only exact bounds hold."""
    needs_lower: bool = True
    """Whether lower bounds on epsilon are computed. Without them, ``bounds`` is faster."""

    @property
    def is_one_campaign(self) -> bool:
        return len(self.designs) == 1 and self.campaigns == 1

    @property
    def expected_participations(self) -> float:
        """The expected number of times that a client takes part.

        The campaigns are (0, delta)-DP if delta is at least this number.
        """
        return self.campaigns * math.fsum(design.participation for design in self.designs)

    def bounds(self, delta: float) -> list[Bound]:
        """Return the bound of every method that covers these campaigns."""
        return list(_cached_bounds(self, delta))

    def proves_larger_epsilon(self, epsilon: float, delta: float) -> bool:
        """Return True if a coarse grid proves that the true epsilon is larger than ``epsilon``."""
        if (
            not self.is_one_campaign
            or epsilon > _MOST_COARSE_EPSILON
            or self.expected_participations <= delta
        ):
            return False
        divergences = _lower_bound_divergences(
            self.designs[0], self.adjacency, delta, cells=_COARSE_CELLS
        )
        return any(divergence.lower(epsilon) > delta for divergence in divergences)

    def lower_epsilon(self, delta: float, *, at_most: float) -> float:
        """Return a lower bound on epsilon at this delta, which is at most ``at_most``.

        ``at_most`` is a lower bound at a nearly equal delta. It is tried first, so usually no
        search is needed.
        """
        return _cached_lower_epsilon(self, delta, at_most)


@lru_cache(maxsize=256)
def _cached_bounds(mechanism: Campaigns, delta: float) -> tuple[Bound, ...]:
    """Return the bound of every method that covers the campaigns. Results are cached.

    A spending curve, a ledger and a plan certify the same campaigns several times.
    """
    if mechanism.expected_participations <= delta:
        note = "holds because participation is at most delta"
        return (Bound("exact", Interval(0.0, 0.0), note),)
    if mechanism.is_one_campaign:
        exact_bounds = _bounds_of_one_campaign(
            mechanism.designs[0], mechanism.adjacency, delta, needs_lower=mechanism.needs_lower
        )
    else:
        exact_bounds = _bounds_of_several_campaigns(mechanism, delta)
    depends_on_data = any(
        design.has_unrelated_windows(mechanism.adjacency) for design in mechanism.designs
    )
    if mechanism.has_curious_clients or depends_on_data:  # other proofs do not cover them
        return tuple(exact_bounds)
    return (*exact_bounds, *_paper_and_known_slot_bounds(mechanism, delta))


@lru_cache(maxsize=256)
def _cached_lower_epsilon(mechanism: Campaigns, delta: float, at_most: float) -> float:
    if at_most == 0.0 or not delta < 1.0:
        return 0.0
    if mechanism.is_one_campaign:
        divergences = list(
            _lower_bound_divergences(mechanism.designs[0], mechanism.adjacency, delta)
        )
        for epsilon in (at_most, at_most * (1.0 - 1e-6), at_most * (1.0 - 1e-4)):
            if any(divergence.lower(epsilon) > delta for divergence in divergences):
                return epsilon
        return min(at_most, known_lower(mechanism.bounds(delta)))
    if mechanism.expected_participations <= delta:
        return 0.0
    try:
        composed = _composed_epsilon(mechanism, delta)
        return min(at_most, _with_lower_of_one_campaign(mechanism, delta, composed).lower)
    except NotCovered:
        return 0.0


def _lower_bound_divergences(
    design: Design, adjacency: Adjacency, delta: float, *, cells: int | None = None
) -> Iterator[DeltaBounds]:
    """Yield divergences whose ``lower`` is a lower bound on the delta of some client."""
    if isinstance(design.randomizer, LocalRandomizer):
        design = _with_pure_reports(design, design.randomizer)
    attaining_design = _design_of_lower_bounds(design)
    if attaining_design.participation <= delta:
        return
    try:
        yield campaign_divergence.divergence(attaining_design, adjacency, delta=delta, cells=cells)
        with_population = campaign_divergence.with_population(
            design, adjacency, delta=delta, cells=cells
        )
        if with_population is not None and attaining_design == design:
            yield with_population
    except NotCovered:
        return


def _design_of_lower_bounds(design: Design) -> Design:
    """Return a design whose divergence is at most that of some client of ``design``.

    If the number of clients is declared, there may be too few others to fill slots. Then the result
    describes a client alone.
    """
    attaining_design = campaign_divergence.attaining_design(design)
    if _may_lack_others(design):
        return campaign_divergence.uncapped(attaining_design)
    return attaining_design


def _may_lack_others(design: Design) -> bool:
    """Return True if there may be fewer other clients than lower bounds need to fill slots.

    Then only the bound that assumes the declared number of clients has a lower bound.
    """
    has_gaussian_noise = isinstance(design.randomizer, GaussianNoise)
    return has_gaussian_noise and design.displaces_clients and design.most_clients is not None


def known_lower(bounds: Sequence[Bound]) -> float:
    """Return the largest lower bound on epsilon that holds under the assumptions of all bounds.

    If a number of clients is declared, only bounds that assume it are used, because the other lower
    bounds may need more clients.
    """
    with_population = [bound for bound in bounds if bound.method == "exact-population"]
    return max(bound.epsilon.lower for bound in with_population or bounds)


def _with_pure_reports(design: Design, randomizer: LocalRandomizer) -> Design:
    """Return the design with local delta 0. Its lower bounds hold for any local delta."""
    if randomizer.is_pure:
        return design
    return replace(design, randomizer=LocalRandomizer(randomizer.local_epsilon))


def _bounds_of_one_campaign(
    design: Design, adjacency: Adjacency, delta: float, *, needs_lower: bool
) -> Iterator[Bound]:
    """Yield the bounds of the exact accountant for one campaign."""
    try:
        divergence = campaign_divergence.divergence(design, adjacency, delta=delta)
        if needs_lower and not _may_lack_others(design):
            epsilon = divergence.epsilon(delta)
        else:
            epsilon = Interval(0.0, divergence.upper_epsilon(delta))
        is_attained = campaign_divergence.attaining_design(design) == design
        if needs_lower and not is_attained and not _may_lack_others(design):
            lower = _attained_lower_epsilon(design, adjacency, delta)
            epsilon = replace(epsilon, lower=min(lower, epsilon.upper))
        note = "holds for any number of clients and any model"
        if design.has_unrelated_windows(adjacency):
            note = "holds even if wake times depend on data"
        if design.protocol is Protocol.AVERAGED:
            note = "assumes a minimum number of clients that contribute"
            if design.least_reports is not None:
                note = f"the noise of at least {design.least_reports:,} reports hides an update"
        yield Bound("exact", epsilon, note)
        with_population = campaign_divergence.with_population(design, adjacency, delta=delta)
        if with_population is not None:
            note = f"needs the assumption that at most {design.most_clients:,} clients exist"
            if design.most_clients == design.arrivals:
                note = f"assumes that at most {design.arrivals:,} clients wake in a window"
            if needs_lower and is_attained:
                epsilon = with_population.epsilon(delta)
            else:
                epsilon = Interval(0.0, with_population.upper_epsilon(delta))
                if needs_lower:
                    lower = _attained_lower_epsilon(design, adjacency, delta)
                    epsilon = replace(epsilon, lower=min(lower, epsilon.upper))
            yield Bound("exact-population", epsilon, note)
    except NotCovered:
        if isinstance(design.randomizer, LocalRandomizer):
            pure = _with_pure_reports(design, design.randomizer)
            lower = _attained_lower_epsilon(pure, adjacency, delta) if needs_lower else 0.0
            mechanism = Campaigns((design,), adjacency, 1)
            upper = _epsilon_with_local_delta(mechanism, delta, start=lower)
            note = "no upper bound; a pure randomizer proves the lower bound"
            if math.isfinite(upper):
                note = "the local delta is charged to delta once"
            yield Bound("exact", Interval(min(lower, upper), upper), note)


def _paper_and_known_slot_bounds(mechanism: Campaigns, delta: float) -> Iterator[Bound]:
    """Yield the bound of the paper's theorem, and the bound without amplification."""
    designs, campaigns = mechanism.designs, mechanism.campaigns
    if all(map(paper_covers, designs)):
        paper_bound = composed_paper_epsilon(designs, campaigns=campaigns, delta=delta)
        note = "bound of the paper on random check-ins"
        if not mechanism.is_one_campaign:
            note = "bounds of the paper on random check-ins, composed by [KOV17]"
        yield Bound("paper", Interval(0.0, paper_bound), note)
    if len(designs) == 1:
        adjacency = mechanism.adjacency
        upper = _no_amplification_epsilon(designs[0], adjacency, campaigns=campaigns, delta=delta)
        note = "holds even if the adversary knows the client's slot"
        if designs[0].participation < 1.0:
            note = "holds even if the adversary knows the drawn slot, but not who takes part"
        if designs[0].least_reports is not None:
            note = "holds even if the adversary sees each single report"
        yield Bound("no-amplification", Interval(0.0, upper), note)


def _attained_lower_epsilon(
    design: Design, adjacency: Adjacency, delta: float, *, known_lower: float | None = None
) -> float:
    """Return a lower bound on epsilon that holds for some client of the design.

    ``known_lower`` is a lower bound that the caller already has, or None. Return 0 if a coarse grid
    proves that the new lower bound is not larger.
    """
    attaining_design = _design_of_lower_bounds(design)
    if attaining_design.participation <= delta:
        return 0.0
    divergence = partial(campaign_divergence.divergence, attaining_design, adjacency, delta=delta)
    if known_lower is not None and divergence(cells=_COARSE_CELLS).upper(known_lower) <= delta:
        return 0.0
    with_bounds = divergence()
    if known_lower is not None and isinstance(with_bounds, TightestBounds):
        return with_bounds.lower_epsilon(delta, guess=known_lower)
    return with_bounds.epsilon(delta).lower


def _bounds_of_several_campaigns(mechanism: Campaigns, delta: float) -> Iterator[Bound]:
    """Yield the bounds of the exact accountant for several campaigns."""
    try:
        composed = _composed_epsilon(mechanism, delta)
        epsilon = _with_lower_of_one_campaign(mechanism, delta, composed)
        yield Bound("exact", epsilon, "composed from privacy loss distributions")
        upper = _composition(mechanism).upper_epsilon_with_population(delta)
        if upper is not None:
            note = "needs the declared limit on the number of clients"
            yield Bound("exact-population", Interval(min(composed.lower, upper), upper), note)
    except NotCovered:
        upper = _epsilon_with_local_delta(mechanism, delta, start=0.0)
        if math.isfinite(upper):
            note = "composed; the local delta of each campaign is charged to delta once"
            yield Bound("exact", Interval(0.0, upper), note)


def _epsilon_with_local_delta(mechanism: Mechanism, delta: float, *, start: float) -> float:
    """Return epsilon of campaigns whose reports have local deltas, or infinity if unproved.

    Reports are compared with reports of a pure randomizer that is close in total variation. So each
    campaign charges its local delta once, and not once for every slot. With several kinds of
    clients, each campaign is charged for the kind with the largest charge. The search for epsilon
    starts at ``start``.

    Theorem:     docs/theory/pure.md, "Approximate randomizers".
    Rounding:    up.
    """
    pure, charges = [], []
    for design in mechanism.designs:
        randomizer = design.randomizer
        if not isinstance(randomizer, LocalRandomizer) or design.protocol is Protocol.AVERAGED:
            return math.inf
        # Drop the capacity, because the proof does not use the other reports of a slot.
        pure.append(
            replace(design, randomizer=LocalRandomizer(randomizer.local_epsilon), capacity=None)
        )
        charge = mechanism.campaigns * design.participation * randomizer.local_delta
        if mechanism.adjacency is Adjacency.REPLACE_ONE:
            charge *= 2.0 + math.exp(randomizer.local_epsilon)
        charges.append(charge)
    adjacency, campaigns = mechanism.adjacency, mechanism.campaigns
    is_sequence = isinstance(mechanism, Campaigns)
    total_charge = (math.fsum(charges) if is_sequence else max(charges)) * (1.0 + 1e-12)
    if total_charge >= delta:
        return math.inf
    curve: Callable[[float], float]
    if not is_sequence:
        curve = curve_of_mixed_kinds(pure, adjacency, campaigns=campaigns, delta=delta)
    elif len(pure) == campaigns == 1:
        curve = campaign_divergence.divergence(pure[0], adjacency, delta=delta).upper
    else:
        curve = Composition(tuple(pure), adjacency, campaigns).curve(delta)

    def charged_delta(epsilon: float) -> float:
        growth = math.exp(epsilon)
        factor = growth if adjacency is Adjacency.ADD_REMOVE else 1.0 + growth
        return curve(epsilon) + factor * total_charge

    return crossing(charged_delta, delta, guess=start or 1.0, precision=1e-6).upper


def _composition(mechanism: Campaigns) -> Composition:
    return Composition(mechanism.designs, mechanism.adjacency, mechanism.campaigns)


def _composed_epsilon(mechanism: Campaigns, delta: float) -> Interval:
    """Return bounds on epsilon by composing the privacy losses of all campaigns.

    The lower bound holds for a client that displaces no other client.
    """
    if not mechanism.needs_lower:
        return Interval(0.0, _composition(mechanism).upper_epsilon(delta))
    return _composition(mechanism).epsilon(delta)


def _with_lower_of_one_campaign(mechanism: Campaigns, delta: float, composed: Interval) -> Interval:
    """Return ``composed``, with a lower bound for one of the campaigns if it is larger.

    A lower bound for one campaign is also a lower bound for all campaigns together.
    """
    if not mechanism.needs_lower:
        return composed
    lower = max(
        _attained_lower_epsilon(design, mechanism.adjacency, delta, known_lower=composed.lower)
        for design in set(mechanism.designs)
    )
    return replace(composed, lower=min(max(composed.lower, lower), composed.upper))


def _no_amplification_epsilon(
    design: Design, adjacency: Adjacency, *, campaigns: int, delta: float
) -> float:
    """Return epsilon against an adversary who knows the client's slot, or infinity if unproved."""
    local = math.inf
    if isinstance(design.randomizer, LocalRandomizer):
        local = known_slot_epsilon(design, design.randomizer, delta=delta, campaigns=campaigns)
        if campaigns == 1 or design.named_randomizer is not None:
            return local
    known_slot = campaign_divergence.with_known_slot(design)
    try:
        if campaigns == 1:
            divergence = campaign_divergence.divergence(known_slot, adjacency, delta=delta)
            return divergence.upper_epsilon(delta)
        return min(local, Composition((known_slot,), adjacency, campaigns).upper_epsilon(delta))
    except NotCovered:
        return local


def _has_local_delta(designs: Sequence[Design]) -> bool:
    return any(
        isinstance(design.randomizer, LocalRandomizer) and not design.randomizer.is_pure
        for design in designs
    )


@dataclass(frozen=True, slots=True)
class HeterogeneousClients:
    """Campaigns with several kinds of clients.

    Each design in ``designs`` describes one kind. A client may be of a different kind in each
    campaign.
    """

    designs: tuple[Design, ...]
    adjacency: Adjacency
    campaigns: int

    def bounds(self, delta: float) -> list[Bound]:
        """Bound one campaign by its worst kind, and several by composing the largest divergence."""
        if self.campaigns == 1:
            return [self._worst_kind(delta)]
        note = "composed from the largest divergence of all kinds of clients"
        if _has_local_delta(self.designs):
            upper = _epsilon_with_local_delta(self, delta, start=0.0)
            return [Bound("exact", Interval(0.0, upper), f"{note}; local deltas are charged once")]
        upper = epsilon_of_mixed_kinds(
            self.designs, self.adjacency, campaigns=self.campaigns, delta=delta
        )
        lower = self.lower_epsilon(delta, at_most=upper)
        return [Bound("exact", Interval(lower, upper), note)]

    def _worst_kind(self, delta: float) -> Bound:
        """Return the best bound of the kind of client for which that bound is largest."""
        by_kind = [Campaigns((kind,), self.adjacency, 1).bounds(delta) for kind in self.designs]
        worst = max(
            (best_bound(bounds) for bounds in by_kind), key=lambda bound: bound.epsilon.upper
        )
        lower = max(map(known_lower, by_kind))
        upper = worst.epsilon.upper
        note = f"the largest of {len(self.designs)} kinds of clients"
        return Bound(worst.method, Interval(min(lower, upper), upper), note)

    def proves_larger_epsilon(self, epsilon: float, delta: float) -> bool:
        """Return False, because no fast lower bound is known for several kinds of clients."""
        return False

    def lower_epsilon(self, delta: float, *, at_most: float) -> float:
        """Return a lower bound on epsilon for some client, which is at most ``at_most``."""
        lower = 0.0
        for sequence in self._sequences():
            repeats = self.campaigns if len(sequence) == 1 else 1
            mechanism = Campaigns(sequence, self.adjacency, repeats)
            lower = max(lower, mechanism.lower_epsilon(delta, at_most=at_most))
        return lower

    def _sequences(self) -> list[tuple[Design, ...]]:
        """Return sequences with one kind per campaign, or with one kind for all campaigns."""
        count = math.comb(self.campaigns + len(self.designs) - 1, self.campaigns)
        if count > _MOST_SEQUENCES:
            return [(kind,) for kind in self.designs]
        return list(itertools.combinations_with_replacement(self.designs, self.campaigns))


Mechanism = Campaigns | HeterogeneousClients
"""What a certificate is about: campaigns whose clients are all alike, or of several kinds."""
