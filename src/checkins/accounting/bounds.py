"""All bounds on epsilon at one delta, of which a certificate uses the best.

The smallest upper bound is the certificate's epsilon. The largest lower bound is its
``epsilon_lower``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from checkins.accounting.certificate import Alternative
from checkins.accounting.composition import Composition, epsilon_of_mixed_kinds
from checkins.accounting.design import (
    MOST_LOCAL_EPSILON,
    Adjacency,
    Design,
    GaussianNoise,
    LocalRandomizer,
    NoiseAt,
    Protocol,
)
from checkins.accounting.exact import campaign_divergence
from checkins.accounting.exact.gaussian import report_epsilon
from checkins.accounting.paper import amplification, kov_composition, statements
from checkins.accounting.solve import DeltaBounds, Interval, crossing
from checkins.errors import NotCovered

_COARSE_CELLS, _MOST_COARSE_EPSILON = 100, 100.0
"""Cells of a coarse grid, and the largest epsilon that is tried on it."""
_MOST_SEQUENCES = 16
"""Largest number of sequences of kinds of clients that are tried for a lower bound.

If there are more, only sequences of a single kind are tried."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The interval that one method proves for epsilon."""

    method: str
    epsilon: Interval
    note: str

    def as_alternative(self) -> Alternative:
        bounded = math.isfinite(self.epsilon.upper)
        note = self.note if bounded else "gives no bound for this design"
        return Alternative(self.method, self.epsilon.upper, note, proves=bounded)


def best_bound(found: Sequence[Bound]) -> Bound:
    """Return the bound with the smallest upper bound on epsilon."""
    return min(found, key=lambda bound: bound.epsilon.upper)


@dataclass(frozen=True, slots=True)
class Campaigns:
    """``designs`` run one after the other, and the whole sequence runs ``campaigns`` times."""

    designs: tuple[Design, ...]
    adjacency: Adjacency
    campaigns: int
    curious: bool = False
    """Whether some clients disclose what they see. If so, only exact bounds hold."""
    needs_lower: bool = True
    """Whether lower bounds on epsilon are computed. Without them, ``bounds`` is faster."""

    @property
    def is_one_campaign(self) -> bool:
        return len(self.designs) == 1 and self.campaigns == 1

    @property
    def participation(self) -> float:
        """The expected number of times that a client takes part. Epsilon 0 holds at this delta."""
        return self.campaigns * math.fsum(design.participation for design in self.designs)

    def bounds(self, delta: float) -> list[Bound]:
        """Return the bounds of every method that applies."""
        if self.participation <= delta:
            note = "holds because participation is at most delta"
            return [Bound("exact", Interval(0.0, 0.0), note)]
        if self.is_one_campaign:
            one = _of_one_campaign(
                self.designs[0], self.adjacency, delta, needs_lower=self.needs_lower
            )
            found = list(one)
        else:
            found = list(_of_several_campaigns(self, delta))
        return found if self.curious else [*found, *_published(self, delta)]

    def proves_larger(self, epsilon: float, delta: float) -> bool:
        """Return True if a coarse grid proves that the true epsilon is larger than ``epsilon``."""
        if (
            not self.is_one_campaign
            or epsilon > _MOST_COARSE_EPSILON
            or self.participation <= delta
        ):
            return False
        known = _lower_bounds(self.designs[0], self.adjacency, delta, cells=_COARSE_CELLS)
        return any(bound.lower(epsilon) > delta for bound in known)

    def lower_epsilon(self, delta: float, *, at_most: float) -> float:
        """Return a lower bound on epsilon at this delta, which is at most ``at_most``.

        ``at_most`` is a lower bound at a delta that is nearly the same, so it is tried first, and
        usually no search is needed.
        """
        if at_most == 0.0 or not delta < 1.0:
            return 0.0
        if self.is_one_campaign:
            known = list(_lower_bounds(self.designs[0], self.adjacency, delta))
            for epsilon in (at_most, at_most * (1.0 - 1e-6), at_most * (1.0 - 1e-4)):
                if any(bound.lower(epsilon) > delta for bound in known):
                    return epsilon
            return min(at_most, max(one.epsilon.lower for one in self.bounds(delta)))
        if self.participation <= delta:
            return 0.0
        try:
            return min(at_most, _composed(self, delta).lower)
        except NotCovered:
            return 0.0


def _lower_bounds(
    design: Design, adjacency: Adjacency, delta: float, *, cells: int | None = None
) -> Iterator[DeltaBounds]:
    """Yield divergences whose ``lower`` some client of the design attains."""
    if isinstance(design.randomizer, LocalRandomizer):
        design = _with_pure_reports(design, design.randomizer)
    attaining = campaign_divergence.attaining_design(design)
    try:
        yield campaign_divergence.divergence(attaining, adjacency, delta=delta, cells=cells)
        bounded = campaign_divergence.with_population(design, adjacency, delta=delta, cells=cells)
        if bounded is not None and attaining == design:
            yield bounded
    except NotCovered:
        return


def _with_pure_reports(design: Design, randomizer: LocalRandomizer) -> Design:
    """Return the design with local delta 0. It is a special case of an approximate randomizer."""
    if randomizer.is_pure:
        return design
    return replace(design, randomizer=LocalRandomizer(randomizer.local_epsilon))


def _of_one_campaign(
    design: Design, adjacency: Adjacency, delta: float, *, needs_lower: bool
) -> Iterator[Bound]:
    """Yield the bounds of the exact accountant for one campaign."""
    try:
        divergence = campaign_divergence.divergence(design, adjacency, delta=delta)
        if needs_lower:
            found = divergence.epsilon(delta)
        else:
            found = Interval(0.0, divergence.upper_epsilon(delta))
        is_attained = campaign_divergence.attaining_design(design) == design
        if needs_lower and not is_attained:
            lower = _attained_lower(design, adjacency, delta)
            found = replace(found, lower=min(lower, found.upper))
        note = "holds for any number of clients and any model"
        if design.protocol is Protocol.AVERAGED:
            note = "assumes a minimum number of clients that contribute"
        yield Bound("exact", found, note)
        bounded = campaign_divergence.with_population(design, adjacency, delta=delta)
        if bounded is not None and design.population is not None:
            note = f"needs the assumption that at most {design.population.most:,} clients exist"
            found = bounded.epsilon(delta)
            yield Bound(
                "exact-population", found if is_attained else replace(found, lower=0.0), note
            )
    except NotCovered:
        if isinstance(design.randomizer, LocalRandomizer):
            pure = _with_pure_reports(design, design.randomizer)
            lower = _attained_lower(pure, adjacency, delta) if needs_lower else 0.0
            mechanism = Campaigns((design,), adjacency, 1)
            upper = _epsilon_with_local_delta(mechanism, delta, start=lower)
            note = "no upper bound; a pure randomizer proves the lower bound"
            if math.isfinite(upper):
                note = "the local delta is charged to delta once"
            yield Bound("exact", Interval(min(lower, upper), upper), note)


def _published(mechanism: Campaigns, delta: float) -> Iterator[Bound]:
    """Yield the bounds of the paper's theorems and of local privacy."""
    designs, campaigns = mechanism.designs, mechanism.campaigns
    if all(map(paper_covers, designs)):
        paper = composed_paper_epsilon(designs, campaigns=campaigns, delta=delta)
        note = "bound of the paper on random check-ins"
        if not mechanism.is_one_campaign:
            note = "bounds of the paper on random check-ins, composed by [KOV17]"
        yield Bound("paper", Interval(0.0, paper), note)
    if len(designs) == 1:
        adjacency = mechanism.adjacency
        upper = _no_amplification(designs[0], adjacency, campaigns=campaigns, delta=delta)
        note = "holds even if the adversary knows the client's slot"
        yield Bound("no-amplification", Interval(0.0, upper), note)


def _attained_lower(
    design: Design, adjacency: Adjacency, delta: float, *, known: float | None = None
) -> float:
    """Return a lower bound on epsilon that some client of the design attains.

    Return 0 if a coarse grid proves that this lower bound is at most ``known``.
    """
    attaining = campaign_divergence.attaining_design(design)
    if attaining.participation <= delta:
        return 0.0
    divergence = partial(campaign_divergence.divergence, attaining, adjacency, delta=delta)
    if known is not None and divergence(cells=_COARSE_CELLS).upper(known) <= delta:
        return 0.0
    return divergence().epsilon(delta).lower


def _of_several_campaigns(mechanism: Campaigns, delta: float) -> Iterator[Bound]:
    """Yield the bounds of the exact accountant for several campaigns."""
    try:
        yield Bound(
            "exact", _composed(mechanism, delta), "composed from privacy loss distributions"
        )
        bounded = _composition(mechanism).upper_epsilon_with_population(delta)
        if bounded is not None:
            note = "needs the declared limit on the number of clients"
            yield Bound("exact-population", Interval(0.0, bounded), note)
    except NotCovered:
        upper = _epsilon_with_local_delta(mechanism, delta, start=0.0)
        if math.isfinite(upper):
            note = "composed; the local delta of each campaign is charged to delta once"
            yield Bound("exact", Interval(0.0, upper), note)


def _epsilon_with_local_delta(mechanism: Campaigns, delta: float, *, start: float) -> float:
    """Return epsilon of campaigns whose reports have local deltas, or infinity if unproved.

    Reports are compared with those of a pure randomizer that is close in total variation. So each
    campaign charges its local delta once, and not once for every slot. The search starts at
    ``start``.

    Theorem:     docs/theory/pure.md, "Approximate randomizers".
    Rounding:    up.
    """
    pure, charges = [], []
    for design in mechanism.designs:
        randomizer = design.randomizer
        if not isinstance(randomizer, LocalRandomizer) or design.protocol is Protocol.AVERAGED:
            return math.inf
        # The proof does not use the other reports of a slot.
        pure.append(
            replace(design, randomizer=LocalRandomizer(randomizer.local_epsilon), capacity=None)
        )
        charge = mechanism.campaigns * design.participation * randomizer.local_delta
        if mechanism.adjacency is Adjacency.REPLACE_ONE:
            charge *= 2.0 + math.exp(randomizer.local_epsilon)
        charges.append(charge)
    total = math.fsum(charges) * (1.0 + 1e-12)
    curve: Callable[[float], float]
    if mechanism.is_one_campaign:
        curve = campaign_divergence.divergence(pure[0], mechanism.adjacency, delta=delta).upper
    else:
        curve = Composition(tuple(pure), mechanism.adjacency, mechanism.campaigns).curve(delta)

    def charged(epsilon: float) -> float:
        growth = math.exp(epsilon)
        factor = growth if mechanism.adjacency is Adjacency.ADD_REMOVE else 1.0 + growth
        return curve(epsilon) + factor * total

    if total >= delta:
        return math.inf
    return crossing(charged, delta, guess=start or 1.0, precision=1e-6).upper


def _composition(mechanism: Campaigns) -> Composition:
    return Composition(mechanism.designs, mechanism.adjacency, mechanism.campaigns)


def _composed(mechanism: Campaigns, delta: float) -> Interval:
    """Compose the privacy losses.

    A lower bound for one campaign is also a lower bound for all campaigns together.
    """
    found = _composition(mechanism).epsilon(delta)
    alone = max(
        _attained_lower(one, mechanism.adjacency, delta, known=found.lower)
        for one in set(mechanism.designs)
    )
    return replace(found, lower=min(max(found.lower, alone), found.upper))


def _no_amplification(
    design: Design, adjacency: Adjacency, *, campaigns: int, delta: float
) -> float:
    """Return epsilon against an adversary who knows the client's slot, or infinity if unproved."""
    local = math.inf
    if isinstance(design.randomizer, LocalRandomizer):
        local = known_slot_epsilon(design, design.randomizer, delta=delta, campaigns=campaigns)
        if campaigns == 1 or design.named_randomizer is not None:
            return local
    known = campaign_divergence.with_known_slot(design)
    try:
        if campaigns == 1:
            exact = campaign_divergence.divergence(known, adjacency, delta=delta)
            return exact.upper_epsilon(delta)
        return min(local, Composition((known,), adjacency, campaigns).upper_epsilon(delta))
    except NotCovered:
        return local


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
        upper = epsilon_of_mixed_kinds(
            self.designs, self.adjacency, campaigns=self.campaigns, delta=delta
        )
        lower = self.lower_epsilon(delta, at_most=upper)
        note = "composed from the largest divergence of all kinds of clients"
        return [Bound("exact", Interval(lower, upper), note)]

    def _worst_kind(self, delta: float) -> Bound:
        """Return the best bound of the kind of client for which that bound is largest."""
        found = [Campaigns((kind,), self.adjacency, 1).bounds(delta) for kind in self.designs]
        worst = max((best_bound(bounds) for bounds in found), key=lambda bound: bound.epsilon.upper)
        lower = max(bound.epsilon.lower for bounds in found for bound in bounds)
        upper = worst.epsilon.upper
        note = f"the largest of {len(self.designs)} kinds of clients"
        return Bound(worst.method, Interval(min(lower, upper), upper), note)

    def proves_larger(self, epsilon: float, delta: float) -> bool:
        return False

    def lower_epsilon(self, delta: float, *, at_most: float) -> float:
        """Return a lower bound on epsilon for some client, which is at most ``at_most``."""
        found = 0.0
        for sequence in self._sequences():
            runs = self.campaigns if len(sequence) == 1 else 1
            mechanism = Campaigns(sequence, self.adjacency, runs)
            found = max(found, mechanism.lower_epsilon(delta, at_most=at_most))
        return found

    def _sequences(self) -> list[tuple[Design, ...]]:
        count = math.comb(self.campaigns + len(self.designs) - 1, self.campaigns)
        if count > _MOST_SEQUENCES:
            return [(kind,) for kind in self.designs]
        return list(itertools.combinations_with_replacement(self.designs, self.campaigns))


Mechanism = Campaigns | HeterogeneousClients
"""What a certificate is about: campaigns whose clients are all alike, or of several kinds."""


def paper_epsilon(design: Design, *, delta: float) -> float:
    """Return the epsilon of the paper's theorem for the protocol, or infinity if it gives none.

    Theorem:     [BKMTT20, Thm 3.2] fixed, [BKMTT20, Thm 4.1] averaged, [BKMTT20, Thm 4.3] sliding.
    Neighbours:  replace-one; add/remove too for fixed and sliding.
    Rounding:    up.
    Differs:     the paper proves replace-one only. Its proof compares two mixtures that share the
                 component without the client. For add/remove, one mixture is that component
                 alone, and the same bound holds.
    """
    if isinstance(design.randomizer, LocalRandomizer):
        return _local(design, design.randomizer, delta=delta)
    noise = design.randomizer.noise_multiplier
    local_deltas = [max(delta * 10.0**-k, 1e-290) for k in range(4, 60, 4)]
    local_epsilons = [report_epsilon(noise, local_delta) for local_delta in local_deltas]
    tries = (
        _local(design, LocalRandomizer(local_epsilon, local_delta), delta=delta)
        for local_epsilon, local_delta in zip(local_epsilons, local_deltas, strict=True)
        if local_epsilon <= MOST_LOCAL_EPSILON
    )
    return min(tries, default=math.inf)


def paper_covers(design: Design) -> bool:
    """Return True if the paper's theorem covers the design: one report per slot, local noise."""
    if isinstance(design.randomizer, GaussianNoise) and design.randomizer.at is NoiseAt.SERVER:
        return False
    if design.protocol is Protocol.SLIDING and design.participation != 1.0:
        return False
    return design.capacity in (None, 1)


def _local(design: Design, randomizer: LocalRandomizer, *, delta: float) -> float:
    """Return the theorem's epsilon for this randomizer, or infinity if it does not apply."""
    local = {
        "local_epsilon": randomizer.local_epsilon,
        "local_delta": randomizer.local_delta,
        "delta": delta,
    }
    try:
        if design.protocol is Protocol.AVERAGED:
            clients = design.population.fewest if design.population else 1
            return statements.averaged_total(clients=clients, slots=design.slots, **local)
        theorem = (
            statements.sliding_window(window=design.drawable_slots)
            if design.protocol is Protocol.SLIDING
            else statements.fixed_window(slots=design.slots, participation=design.participation)
        )
        return theorem.total_epsilon(**local)
    except NotCovered:
        return math.inf


def known_slot_epsilon(
    design: Design, randomizer: LocalRandomizer, *, delta: float, campaigns: int = 1
) -> float:
    """Return the epsilon that holds if the client's slots are known, or infinity if unproved.

    Participation below 1 still amplifies privacy, except for averaged updates. Several campaigns
    are composed by [KOV17].
    """
    averaged = design.protocol is Protocol.AVERAGED
    one = amplification.known_slot_epsilon(
        local_epsilon=randomizer.local_epsilon,
        local_delta=randomizer.local_delta,
        delta=delta,
        participation=1.0 if averaged else design.participation,
    )
    if campaigns == 1:
        return one
    left = delta - campaigns * randomizer.local_delta
    if left <= 0.0:
        return math.inf
    return kov_composition.homogeneous_composition(epsilon=one, steps=campaigns, delta=left)


def composed_paper_epsilon(designs: Sequence[Design], *, campaigns: int, delta: float) -> float:
    """Compose the paper's bounds of several campaigns by [KOV17].

    Half of ``delta`` is shared by the single campaigns. The other half is for the composition. A
    single campaign uses all of ``delta``.
    """
    runs = len(designs) * campaigns
    if runs == 1:
        return paper_epsilon(designs[0], delta=delta)
    each = [paper_epsilon(design, delta=delta / (2 * runs)) for design in designs]
    if not all(map(math.isfinite, each)):
        return math.inf
    if len(set(each)) == 1:
        return kov_composition.homogeneous_composition(epsilon=each[0], steps=runs, delta=delta / 2)
    return kov_composition.composition(each * campaigns, delta=delta / 2)
