"""Every method that proves something about a design, at one delta: what a certificate chooses from.

The smallest upper end is the certificate's epsilon, the largest lower end what no epsilon may beat.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from checkins.accounting import exact
from checkins.accounting.design import Adjacency, Design, LocalRandomizer, Protocol
from checkins.accounting.divergence import Divergence, Interval
from checkins.accounting.paper_bounds import (
    composed_local_epsilon,
    composed_paper_epsilon,
    covers,
    local_epsilon,
    paper_epsilon,
)
from checkins.errors import NotCovered


@dataclass(frozen=True, slots=True)
class Finding:
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

    @property
    def alone(self) -> bool:
        return len(self.designs) == 1 and self.campaigns == 1

    def findings(self, delta: float) -> list[Finding]:
        if self.alone:
            return list(_one(self.designs[0], self.adjacency, delta))
        return list(_several(self.designs, self.adjacency, self.campaigns, delta))

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
        return min(at_most, max(finding.epsilon.lower for finding in self.findings(delta)))


def _lower_bounds(design: Design, adjacency: Adjacency, delta: float) -> Iterator[Divergence]:
    randomizer = design.randomizer
    if isinstance(randomizer, LocalRandomizer) and not randomizer.is_pure:
        design = replace(design, randomizer=LocalRandomizer(randomizer.local_epsilon))
    try:
        yield exact.divergence(exact.attained(design), adjacency, delta=delta)
        bounded = exact.with_population(design, adjacency, delta=delta)
        if bounded is not None and exact.attained(design) == design:
            yield bounded
    except NotCovered:
        return


def _one(design: Design, adjacency: Adjacency, delta: float) -> Iterator[Finding]:
    """Every method that proves something about one campaign."""
    if design.participation <= delta:
        yield Finding("exact", Interval(0.0, 0.0), "participation is no larger than delta")
        return
    try:
        priced = exact.divergence(design, adjacency, delta=delta).epsilon(delta)
        true_of_all = exact.attained(design) == design
        if not true_of_all:
            lower = _true_at_least(design, adjacency, delta)
            priced = replace(priced, lower=min(lower, priced.upper))
        yield Finding("exact", priced, "needs neither the population nor the model")
        bounded = exact.with_population(design, adjacency, delta=delta)
        if bounded is not None and design.population is not None:
            note = f"needs that at most {design.population.most:,} clients exist"
            found = bounded.epsilon(delta)
            yield Finding(
                "exact-population", found if true_of_all else replace(found, lower=0.0), note
            )
    except NotCovered:
        yield from _witness(design, adjacency, delta)
    if covers(design):
        yield Finding("paper", Interval(0.0, paper_epsilon(design, delta=delta)), "as published")
    unamplified = _no_amplification(design, adjacency, campaigns=1, delta=delta)
    yield Finding("no-amplification", Interval(0.0, unamplified), "needs no random slots")


def _true_at_least(design: Design, adjacency: Adjacency, delta: float) -> float:
    """What some client of the design really gives away."""
    true = exact.attained(design)
    if true.participation <= delta:
        return 0.0
    return exact.divergence(true, adjacency, delta=delta).epsilon(delta).lower


def _witness(design: Design, adjacency: Adjacency, delta: float) -> Iterator[Finding]:
    """A lower bound where no exact upper one exists: a pure randomizer is approximate too."""
    if isinstance(design.randomizer, LocalRandomizer):
        pure = replace(design, randomizer=LocalRandomizer(design.randomizer.local_epsilon))
        lower = _true_at_least(pure, adjacency, delta)
        yield Finding("exact", Interval(lower, math.inf), "a pure randomizer attains it")


def _several(
    designs: Sequence[Design], adjacency: Adjacency, campaigns: int, delta: float
) -> Iterator[Finding]:
    """Every method that proves something about several campaigns."""
    spent = campaigns * math.fsum(design.participation for design in designs)
    if spent <= delta:
        yield Finding("exact", Interval(0.0, 0.0), "participation is no larger than delta")
        return
    try:
        priced = exact.composed(designs, adjacency, campaigns=campaigns, delta=delta)
        singles = (_true_at_least(design, adjacency, delta) for design in set(designs))
        alone = max(singles, default=0.0)
        priced = replace(priced, lower=min(max(priced.lower, alone), priced.upper))
        yield Finding("exact", priced, "privacy loss distributions composed")
        bounded = exact.composed_with_population(
            designs, adjacency, campaigns=campaigns, delta=delta
        )
        if bounded is not None:
            note = "needs the declared bound on how many clients exist"
            yield Finding("exact-population", Interval(0.0, bounded), note)
    except NotCovered:
        pass
    if all(map(covers, designs)):
        paper = composed_paper_epsilon(designs, campaigns=campaigns, delta=delta)
        yield Finding("paper", Interval(0.0, paper), "as published, composed by KOV17")
    if len(designs) == 1:
        bare = _no_amplification(designs[0], adjacency, campaigns=campaigns, delta=delta)
        yield Finding("no-amplification", Interval(0.0, bare), "needs no random slots")


def _no_amplification(
    design: Design, adjacency: Adjacency, *, campaigns: int, delta: float
) -> float:
    """Epsilon if the adversary knew which slot the client would take, if it takes part."""
    if campaigns == 1 and isinstance(design.randomizer, LocalRandomizer):
        return local_epsilon(design, design.randomizer, delta=delta)
    averaged = design.protocol is Protocol.AVERAGED  # each report is seen with its own noise
    window = None if design.window is None else 1
    known = replace(exact.uncapped(design) if averaged else design, slots=1, window=window)
    added = math.inf
    if isinstance(design.randomizer, LocalRandomizer):
        added = composed_local_epsilon(design, design.randomizer, campaigns=campaigns, delta=delta)
    try:
        if campaigns == 1:
            return exact.divergence(known, adjacency, delta=delta).epsilon(delta).upper
        composed = exact.composed((known,), adjacency, campaigns=campaigns, delta=delta)
        return min(added, composed.upper)
    except NotCovered:
        return added
