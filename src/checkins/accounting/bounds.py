"""Every method that proves something about a design, at one delta: what a certificate chooses from.

The smallest upper end is the certificate's epsilon, the largest lower end what no epsilon may beat.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from checkins.accounting import composition
from checkins.accounting.design import Adjacency, Design, LocalRandomizer, Protocol
from checkins.accounting.exact import campaign_divergence
from checkins.accounting.paper_bounds import (
    composed_local_epsilon,
    composed_paper_epsilon,
    covers,
    local_epsilon,
    paper_epsilon,
)
from checkins.accounting.solve import DeltaBounds, Interval
from checkins.errors import NotCovered

_FEW, _MOST_LOOKED_AT = 100, 100.0
"""Cells of a quick look, and the largest epsilon that is worth one."""


@dataclass(frozen=True, slots=True)
class Bound:
    """What one method says of a design."""

    method: str
    epsilon: Interval
    note: str


@dataclass(frozen=True, slots=True)
class Question:
    """What is run; the delta that it may spend is another matter."""

    designs: tuple[Design, ...]
    adjacency: Adjacency
    campaigns: int
    curious: bool = False
    """Whether clients disclose what they see: then only the exact accountant proves something."""

    @property
    def alone(self) -> bool:
        return len(self.designs) == 1 and self.campaigns == 1

    @property
    def participation(self) -> float:
        """How often a client takes part in all of it, on average: a delta that always holds."""
        return self.campaigns * math.fsum(design.participation for design in self.designs)

    def bounds(self, delta: float) -> list[Bound]:
        if self.alone:
            found = list(_one(self.designs[0], self.adjacency, delta))
        else:
            found = list(_several(self, delta))
        if self.curious:
            return [one for one in found if one.method in ("exact", "exact-population")]
        return found

    def surely_above(self, epsilon: float, delta: float) -> bool:
        """Whether a quick look proves that every true epsilon of one campaign is above this one."""
        if not self.alone or epsilon > _MOST_LOOKED_AT or self.designs[0].participation <= delta:
            return False
        known = _lower_bounds(self.designs[0], self.adjacency, delta, cells=_FEW)
        return any(bound.lower(epsilon) > delta for bound in known)

    def too_small(self, delta: float, *, at_most: float) -> float:
        """An epsilon of at most ``at_most`` that is proved too small at this delta.

        ``at_most`` is one for a delta that hardly differs: it is tried first, with no search.
        """
        if at_most == 0.0 or not delta < 1.0:
            return 0.0
        if self.alone:
            known = list(_lower_bounds(self.designs[0], self.adjacency, delta))
            for epsilon in (at_most, at_most * (1.0 - 1e-6), at_most * (1.0 - 1e-4)):
                if any(bound.lower(epsilon) > delta for bound in known):
                    return epsilon
            return min(at_most, max(finding.epsilon.lower for finding in self.bounds(delta)))
        return min(at_most, _several_at_least(self, delta))


def _several_at_least(question: Question, delta: float) -> float:
    """The largest lower end of what is proved about several campaigns."""
    if question.participation <= delta:
        return 0.0
    try:
        return _composed(question.designs, question.adjacency, question.campaigns, delta).lower
    except NotCovered:
        return 0.0


def _lower_bounds(
    design: Design, adjacency: Adjacency, delta: float, *, cells: int | None = None
) -> Iterator[DeltaBounds]:
    randomizer = design.randomizer
    if isinstance(randomizer, LocalRandomizer) and not randomizer.is_pure:
        design = replace(design, randomizer=LocalRandomizer(randomizer.local_epsilon))
    try:
        yield campaign_divergence.divergence(
            campaign_divergence.attaining_design(design), adjacency, delta=delta, cells=cells
        )
        bounded = campaign_divergence.with_population(design, adjacency, delta=delta, cells=cells)
        if bounded is not None and campaign_divergence.attaining_design(design) == design:
            yield bounded
    except NotCovered:
        return


def _one(design: Design, adjacency: Adjacency, delta: float) -> Iterator[Bound]:
    """Every method that proves something about one campaign."""
    if design.participation <= delta:
        yield Bound("exact", Interval(0.0, 0.0), "participation is no larger than delta")
        return
    try:
        found = campaign_divergence.divergence(design, adjacency, delta=delta).epsilon(delta)
        true_of_all = campaign_divergence.attaining_design(design) == design
        if not true_of_all:
            lower = _true_at_least(design, adjacency, delta)
            found = replace(found, lower=min(lower, found.upper))
        averaged = design.protocol is Protocol.AVERAGED
        needs = (
            "how many clients contribute" if averaged else "neither the population nor the model"
        )
        yield Bound("exact", found, f"needs {needs}")
        bounded = campaign_divergence.with_population(design, adjacency, delta=delta)
        if bounded is not None and design.population is not None:
            note = f"needs that at most {design.population.most:,} clients exist"
            found = bounded.epsilon(delta)
            yield Bound(
                "exact-population", found if true_of_all else replace(found, lower=0.0), note
            )
    except NotCovered:
        yield from _witness(design, adjacency, delta)
    if covers(design):
        yield Bound("paper", Interval(0.0, paper_epsilon(design, delta=delta)), "as published")
    unamplified = _no_amplification(design, adjacency, campaigns=1, delta=delta)
    yield Bound("no-amplification", Interval(0.0, unamplified), "needs no random slots")


def _true_at_least(design: Design, adjacency: Adjacency, delta: float) -> float:
    """What some client of the design really gives away."""
    true = campaign_divergence.attaining_design(design)
    if true.participation <= delta:
        return 0.0
    return campaign_divergence.divergence(true, adjacency, delta=delta).epsilon(delta).lower


def _witness(design: Design, adjacency: Adjacency, delta: float) -> Iterator[Bound]:
    """A lower bound where no exact upper one exists: a pure randomizer is approximate too."""
    if isinstance(design.randomizer, LocalRandomizer):
        pure = replace(design, randomizer=LocalRandomizer(design.randomizer.local_epsilon))
        lower = _true_at_least(pure, adjacency, delta)
        yield Bound("exact", Interval(lower, math.inf), "a pure randomizer attains it")


def _several(question: Question, delta: float) -> Iterator[Bound]:
    """Every method that proves something about several campaigns."""
    designs, adjacency, campaigns = question.designs, question.adjacency, question.campaigns
    if question.participation <= delta:
        yield Bound("exact", Interval(0.0, 0.0), "participation is no larger than delta")
        return
    try:
        found = _composed(designs, adjacency, campaigns, delta)
        yield Bound("exact", found, "privacy loss distributions composed")
        bounded = composition.composed_with_population(
            designs, adjacency, campaigns=campaigns, delta=delta
        )
        if bounded is not None:
            note = "needs the declared bound on how many clients exist"
            yield Bound("exact-population", Interval(0.0, bounded), note)
    except NotCovered:
        pass
    if all(map(covers, designs)):
        paper = composed_paper_epsilon(designs, campaigns=campaigns, delta=delta)
        yield Bound("paper", Interval(0.0, paper), "as published, composed by KOV17")
    if len(designs) == 1:
        bare = _no_amplification(designs[0], adjacency, campaigns=campaigns, delta=delta)
        yield Bound("no-amplification", Interval(0.0, bare), "needs no random slots")


def _composed(
    designs: Sequence[Design], adjacency: Adjacency, campaigns: int, delta: float
) -> Interval:
    """Losses composed; below, what one campaign gives away by itself counts too."""
    found = composition.composed(designs, adjacency, campaigns=campaigns, delta=delta)
    alone = max(_true_beyond(one, adjacency, delta, found.lower) for one in set(designs))
    return replace(found, lower=min(max(found.lower, alone), found.upper))


def _true_beyond(design: Design, adjacency: Adjacency, delta: float, known: float) -> float:
    """``_true_at_least``, or 0 where a quick look shows that it is no more than ``known``."""
    true = campaign_divergence.attaining_design(design)
    if true.participation <= delta:
        return 0.0
    if (
        campaign_divergence.divergence(true, adjacency, delta=delta, cells=_FEW).upper(known)
        <= delta
    ):
        return 0.0
    return _true_at_least(design, adjacency, delta)


def _no_amplification(
    design: Design, adjacency: Adjacency, *, campaigns: int, delta: float
) -> float:
    """Epsilon if the adversary knew which slot the client would take, if it takes part."""
    if campaigns == 1 and isinstance(design.randomizer, LocalRandomizer):
        return local_epsilon(design, design.randomizer, delta=delta)
    averaged = design.protocol is Protocol.AVERAGED  # each report is seen with its own noise
    window = None if design.window is None else 1
    known = replace(
        campaign_divergence.uncapped(design) if averaged else design, slots=1, window=window
    )
    added = math.inf
    if isinstance(design.randomizer, LocalRandomizer):
        added = composed_local_epsilon(design, design.randomizer, campaigns=campaigns, delta=delta)
    try:
        if campaigns == 1:
            return campaign_divergence.divergence(known, adjacency, delta=delta).upper_epsilon(
                delta
            )
        composed = composition.composed_upper((known,), adjacency, campaigns=campaigns, delta=delta)
        return min(added, composed)
    except NotCovered:
        return added


_MOST_SEQUENCES = 16
"""How many sequences of kinds are tried for a lower end; beyond that, those of one kind."""


@dataclass(frozen=True, slots=True)
class HeterogeneousClients:
    """Campaigns in each of which a client is of any one of the kinds ``designs``."""

    designs: tuple[Design, ...]
    adjacency: Adjacency
    campaigns: int

    def bounds(self, delta: float) -> list[Bound]:
        """One campaign: the largest price of a kind. Several: the largest divergence, composed."""
        if self.campaigns == 1:
            return [self._dearest(delta)]
        upper = composition.composed_kinds(
            self.designs, self.adjacency, campaigns=self.campaigns, delta=delta
        )
        lower = self.too_small(delta, at_most=upper)
        note = "the largest divergence of all kinds of clients, composed"
        return [Bound("exact", Interval(lower, upper), note)]

    def _dearest(self, delta: float) -> Bound:
        """The kind whose smallest proven epsilon is largest; below, the largest lower end."""
        worst: Bound | None = None
        lower = 0.0
        for kind in self.designs:
            found = Question((kind,), self.adjacency, 1).bounds(delta)
            best = min(found, key=lambda one: one.epsilon.upper)
            lower = max(lower, *(one.epsilon.lower for one in found))
            if worst is None or best.epsilon.upper > worst.epsilon.upper:
                worst = best
        if worst is None:
            raise NotCovered("kinds", 0, "must be at least one")
        return Bound(
            worst.method,
            Interval(min(lower, worst.epsilon.upper), worst.epsilon.upper),
            f"the largest of {len(self.designs)} kinds of clients",
        )

    def surely_above(self, epsilon: float, delta: float) -> bool:
        return False

    def too_small(self, delta: float, *, at_most: float) -> float:
        """An epsilon of at most ``at_most`` that is proved too small for some client."""
        found = 0.0
        for sequence in self._sequences():
            runs = self.campaigns if len(sequence) == 1 else 1
            question = Question(sequence, self.adjacency, runs)
            found = max(found, question.too_small(delta, at_most=at_most))
        return found

    def _sequences(self) -> list[tuple[Design, ...]]:
        count = math.comb(self.campaigns + len(self.designs) - 1, self.campaigns)
        if count > _MOST_SEQUENCES:
            return [(kind,) for kind in self.designs]
        return list(itertools.combinations_with_replacement(self.designs, self.campaigns))
