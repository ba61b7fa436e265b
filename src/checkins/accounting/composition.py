"""Compose several campaigns on one population.

Each campaign has fresh randomness, and all parameters are fixed beforehand. A *curve* is delta as a
function of epsilon. For replace-one there are two upper bounds, and the smaller delta is used. The
first composes the curves of the single campaigns. The second, the triangle bound, treats a
replacement as a removal followed by an addition:
delta(e1 + e2) <= delta_remove(e1) + exp(e1) delta_add(e2). Its delta_remove and delta_add are those
of the composed dominating pair for add/remove. A slot overflows if more clients check in to it than
its capacity.

Theorem:     docs/theory/windows-and-capacity.md, "Several campaigns".
Rounding:    pairs are rounded up for upper bounds and down for lower bounds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from checkins.accounting.design import Adjacency, Design, GaussianNoise, Protocol
from checkins.accounting.exact import campaign_divergence
from checkins.accounting.exact.dominating_pair import (
    ROUND_OFF,
    DeltaOfEpsilon,
    DominatingPair,
    envelope,
    triangle_bound,
)
from checkins.accounting.exact.grid_distribution import CELLS, Rounding, Side
from checkins.accounting.solve import Interval, crossing
from checkins.errors import NotCovered

_LEAST_CURVE_PARTICIPATION = 0.1
"""Smallest participation at which the triangle bound is skipped if the curves are exact."""


@dataclass(frozen=True, slots=True)
class Composition:
    """The exact accountant for a sequence of ``designs`` that runs ``repeats`` times."""

    designs: tuple[Design, ...]
    adjacency: Adjacency
    repeats: int

    def epsilon(self, delta: float) -> Interval:
        """Return a lower and an upper bound on epsilon."""
        upper, pair = self.upper_epsilon(delta), self.pair(self.adjacency, delta, Side.DOWN)

        def lower_delta(epsilon: float) -> float:
            return max(pair.remove(epsilon), pair.add(epsilon)) * (1 - ROUND_OFF)

        guess = upper if 0 < upper < math.inf else 1.0
        lower = crossing(lower_delta, delta, guess=guess, precision=1e-9).lower
        return Interval(min(lower, upper), upper)

    def upper_epsilon(self, delta: float) -> float:
        """Return only the upper bound on epsilon, in half the time of ``epsilon``."""
        return crossing(self._curve(delta), delta, guess=1.0, precision=1e-9).upper

    def upper_epsilon_with_population(self, delta: float) -> float | None:
        """Return an upper bound on epsilon that uses the declared population.

        Return None if no population is declared, or if slots overflow with a probability of at
        least ``delta``.

        Theorem:     docs/theory/gaussian.md: delta grows by at most the overflow probability.
        Rounding:    up.
        """
        uncapped, overflow = self._without_overflow()
        if uncapped is None or overflow >= delta:
            return None
        return uncapped.upper_epsilon(delta - overflow)

    def curve(self, delta: float, cells: int = CELLS) -> DeltaOfEpsilon:
        """Return an upper bound on delta as a function of epsilon, accurate near ``delta``.

        If a population is declared, the bound uses it at every epsilon at which this gives a
        smaller delta.
        """
        any_population = self._curve(delta, cells)
        uncapped, overflow = self._without_overflow()
        if uncapped is None or overflow >= delta:
            return any_population
        without_overflow = uncapped._curve(delta, cells)
        return lambda epsilon: min(any_population(epsilon), without_overflow(epsilon) + overflow)

    def triangle_curve(self, delta: float, cells: int) -> DeltaOfEpsilon:
        """Return a bound like ``curve``, but for replace-one use the triangle bound only.

        This is many times faster and only a little looser. The population is not used, and averaged
        updates are not covered.
        """
        add_remove_pair = self.pair(Adjacency.ADD_REMOVE, delta, Side.UP, cells)
        if self.adjacency is Adjacency.ADD_REMOVE:
            return worse_direction(add_remove_pair)
        return triangle_bound(add_remove_pair)

    def _without_overflow(self) -> tuple[Composition | None, float]:
        """Return the campaigns without capacities, and the probability that any slot overflows.

        Without a capacity, a client that checks in never displaces another client. Return None in
        place of the campaigns if no design has Gaussian noise, a capacity and a declared
        population.
        """
        probabilities = [
            campaign_divergence.overflow_probability_of(design, self.adjacency)
            for design in self.designs
        ]
        if all(probability is None for probability in probabilities):
            return None, 0.0
        uncapped = tuple(
            design if probability is None else campaign_divergence.uncapped(design)
            for design, probability in zip(self.designs, probabilities, strict=True)
        )
        overflow = self.repeats * math.fsum(probability or 0.0 for probability in probabilities)
        return replace(self, designs=uncapped), overflow

    def _curve(self, delta: float, cells: int = CELLS) -> DeltaOfEpsilon:
        def pair(relation: Adjacency) -> DominatingPair:
            return self.pair(relation, delta, Side.UP, cells)

        return _upper_delta_curve(pair, self.adjacency, self.designs)

    def pair(
        self, adjacency: Adjacency, delta: float, side: Side, cells: int = CELLS
    ) -> DominatingPair:
        """Return a dominating pair of all campaigns, accurate near ``delta``, rounded to ``side``.

        The population is not used. Equal designs are composed together, because the order of
        campaigns does not matter.
        """
        runs = len(self.designs) * self.repeats
        rounding = Rounding.near(delta, side=side, cells=cells, runs=runs)
        pairs = (
            campaign_divergence.pair(design, adjacency, rounding, delta=delta).repeat(
                times, rounding
            )
            for design, times in Counter(self.designs).items()
        )
        one_repeat = reduce(lambda a, b: a.compose(b, rounding), pairs)
        return one_repeat.repeat(self.repeats, rounding)


def epsilon_of_mixed_kinds(
    kinds: Sequence[Design], adjacency: Adjacency, *, campaigns: int, delta: float
) -> float:
    """Return the epsilon of several campaigns in which a client may be of any of ``kinds``.

    Rounding:    up.
    """
    delta_curve = curve_of_mixed_kinds(kinds, adjacency, campaigns=campaigns, delta=delta)
    return crossing(delta_curve, delta, guess=1.0, precision=1e-9).upper


def curve_of_mixed_kinds(
    kinds: Sequence[Design], adjacency: Adjacency, *, campaigns: int, delta: float
) -> DeltaOfEpsilon:
    """Return an upper bound on delta as a function of epsilon, accurate near ``delta``.

    In each campaign, a client may be of any of ``kinds``. The kind may depend on earlier releases,
    but must not depend on the client's data.

    Theorem:     docs/theory/windows-and-capacity.md, "Kinds of clients".
    Rounding:    up.
    """
    rounding = Rounding.near(delta, side=Side.UP, runs=campaigns)

    def pair(relation: Adjacency) -> DominatingPair:
        pairs = [campaign_divergence.pair(kind, relation, rounding, delta=delta) for kind in kinds]
        return envelope(pairs).repeat(campaigns, rounding)

    return _upper_delta_curve(pair, adjacency, kinds)


def worse_direction(add_remove_pair: DominatingPair) -> DeltaOfEpsilon:
    """Return the larger delta of adding and removing a client. The pair must be rounded up."""
    return lambda epsilon: (
        max(add_remove_pair.remove(epsilon), add_remove_pair.add(epsilon)) * (1 + ROUND_OFF)
    )


def _upper_delta_curve(
    pair: Callable[[Adjacency], DominatingPair], adjacency: Adjacency, designs: Sequence[Design]
) -> DeltaOfEpsilon:
    """Return an upper bound on delta as a function of epsilon.

    ``pair`` returns the composed dominating pair of a neighbour relation. For replace-one, the
    bound is the smaller of the two bounds of this module.
    """
    if adjacency is Adjacency.ADD_REMOVE:
        return worse_direction(pair(adjacency))
    if any(design.protocol is Protocol.AVERAGED for design in designs):
        return _delta_of_curve_pair(pair(adjacency))
    try:
        composed = _delta_of_curve_pair(pair(adjacency))
    except NotCovered:
        return triangle_bound(pair(Adjacency.ADD_REMOVE))
    if all(
        isinstance(design.randomizer, GaussianNoise)
        and design.capacity is None
        and design.participation >= _LEAST_CURVE_PARTICIPATION
        for design in designs
    ):
        return composed  # the curves are exact, so the triangle bound is hardly ever smaller
    triangle = triangle_bound(pair(Adjacency.ADD_REMOVE))
    return lambda epsilon: min(composed(epsilon), triangle(epsilon))


def _delta_of_curve_pair(curve: DominatingPair) -> DeltaOfEpsilon:
    """Return delta of a dominating pair that was built from a replace-one curve.

    Such a curve bounds both directions, so one direction of the pair is enough.
    """
    return lambda epsilon: curve.remove(epsilon) * (1 + ROUND_OFF)
