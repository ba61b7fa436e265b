"""What may be spent, and a proven bound on what a design spends of it.

Grids here are coarser than a certificate's: a coarse grid only ever spends more, so every bound is
proven, and a noise that keeps a budget here keeps it there.

Theorem:     docs/theory/gaussian.md, docs/theory/pure.md, docs/theory/windows-and-capacity.md.
Neighbours:  the target's.
Rounding:    delta up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from checkins.accounting import Adjacency, Design, Protocol, composition
from checkins.accounting.composition import triangle_bound, worse
from checkins.accounting.exact import campaign_divergence
from checkins.accounting.exact.grid_distribution import SMALLEST, Rounding, Side
from checkins.planning.candidate import DesignCandidate

_TAIL = 1e-9


class Method(StrEnum):
    """How a design of a plan was priced: the names of a certificate's methods."""

    EXACT = "exact"
    EXACT_POPULATION = "exact-population"
    NO_AMPLIFICATION = "no-amplification"


QUICK, FINE = 100, 200
"""Cells of a law: to draw curves with, and to prove what is shown."""


@dataclass(frozen=True, slots=True)
class Target:
    """An (epsilon, delta) between neighbours."""

    epsilon: float
    delta: float
    adjacency: Adjacency

    def spent(self, shape: DesignCandidate, level: float, cells: int) -> float:
        """An upper bound on the delta that the shape spends at this epsilon."""
        priced, beyond = self._priced(shape, shape.design(level))
        if shape.participation * shape.repeats <= self.delta:
            return 0.0
        if shape.repeats > 1:
            return min(1.0, self._composed(priced, shape.repeats, cells) + beyond)
        law = campaign_divergence.divergence(priced, self.adjacency, delta=self.delta, cells=cells)
        return min(1.0, law.upper(self.epsilon) + beyond)

    def method(self, shape: DesignCandidate) -> Method:
        """By which of a certificate's methods ``spent`` is proven."""
        if shape.protocol is Protocol.AVERAGED and shape.is_gaussian:
            return Method.NO_AMPLIFICATION
        if shape.is_gaussian and shape.population is not None and self._roomy(shape) is not None:
            return Method.EXACT_POPULATION
        return Method.EXACT

    def _roomy(self, shape: DesignCandidate) -> float | None:
        """The chance that a slot overflows, where it is small enough to pay for in delta."""
        if not shape.is_gaussian or shape.capacity is None or shape.population is None:
            return None
        chance = campaign_divergence.overflow_chance(shape.design(_any_level(shape)))
        if chance is None or chance * shape.repeats > 0.01 * self.delta:
            return None
        return chance * shape.repeats

    def _priced(self, shape: DesignCandidate, design: Design) -> tuple[Design, float]:
        """The design that stands for this one, and the delta that this costs."""
        if shape.protocol is Protocol.AVERAGED and shape.is_gaussian:
            return replace(
                campaign_divergence.uncapped(design), slots=1
            ), 0.0  # as if slots were known
        chance = self._roomy(shape)
        return (design, 0.0) if chance is None else (campaign_divergence.uncapped(design), chance)

    def _composed(self, design: Design, repeats: int, cells: int) -> float:
        """Of all runs together.

        Where one client is replaced, by the detour alone: many times quicker than composing
        curves, and a little dearer at most.
        """
        if design.protocol is Protocol.AVERAGED:
            return composition.composed_delta(
                (design,),
                self.adjacency,
                campaigns=repeats,
                epsilon=self.epsilon,
                delta=self.delta,
                cells=cells,
            )
        tolerance = max(_TAIL * self.delta / repeats, SMALLEST)
        rounding = Rounding(side=Side.UP, cells=cells, tolerance=tolerance)
        once = campaign_divergence.pair(design, Adjacency.ADD_REMOVE, rounding, delta=self.delta)
        every = once.repeat(repeats, rounding)
        spent = worse if self.adjacency is Adjacency.ADD_REMOVE else triangle_bound
        return spent(every)(self.epsilon)


def _any_level(shape: DesignCandidate) -> float:
    """A noise that any design may have: the chance of an overflow does not depend on it."""
    return 1.0 / math.sqrt(shape.capacity or 1)
