"""Clients that differ in window or participation, and may differ anew in every campaign.

Theorem:     docs/theory/windows-and-capacity.md, "Kinds of clients".
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from checkins.accounting import composition
from checkins.accounting.bounds import Bound, Question
from checkins.accounting.design import Adjacency, Design
from checkins.accounting.exact.divergence import Interval
from checkins.errors import NotCovered

_MOST_SEQUENCES = 16
"""How many sequences of kinds are tried for a lower end; beyond that, those of one kind."""


@dataclass(frozen=True, slots=True)
class HeterogeneousClients:
    """Campaigns in each of which a client is of any one of the kinds ``designs``."""

    designs: tuple[Design, ...]
    adjacency: Adjacency
    campaigns: int

    def findings(self, delta: float) -> list[Bound]:
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
            found = Question((kind,), self.adjacency, 1).findings(delta)
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
