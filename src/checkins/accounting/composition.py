"""Several campaigns on one population, one after the other.

Theorem:     docs/theory/windows-and-capacity.md: fresh randomness, parameters fixed beforehand.
             Replace-one has two bounds, and the smaller delta counts: composing the curves of
             single campaigns, and the triangle bound by way of the absent client, whose add/remove
             pairs compose: delta(e1 + e2) <= delta_remove(e1) + exp(e1) delta_add(e2).
Rounding:    pairs are rounded up for upper ends and down for lower ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from checkins.accounting.design import Adjacency, Design, Protocol
from checkins.accounting.exact import campaign_divergence
from checkins.accounting.exact.dominating_pair import ROUND_OFF, DominatingPair, envelope
from checkins.accounting.exact.grid_distribution import SMALLEST, Rounding, Side
from checkins.accounting.solve import Interval, crossing
from checkins.errors import NotCovered

SPLITS = (0.5, 0.46, 0.54, 0.4, 0.6)
"""Shares of epsilon that the triangle bound gives to removing the client; adding has the rest."""
_TAIL = 1e-9
Delta = Callable[[float], float]
"""An upper bound on delta as a function of epsilon."""


@dataclass(frozen=True, slots=True)
class Composition:
    """The exact accountant for ``designs``, one after the other, ``campaigns`` times over."""

    designs: tuple[Design, ...]
    adjacency: Adjacency
    campaigns: int

    def epsilon(self, delta: float) -> Interval:
        """Return the ends between which epsilon lies."""
        high, below = self.upper_epsilon(delta), self._pair(self.adjacency, delta, Side.DOWN)

        def lower(epsilon: float) -> float:
            return max(below.remove(epsilon), below.add(epsilon)) * (1 - ROUND_OFF)

        start = high if 0 < high < math.inf else 1.0
        low = crossing(lower, delta, guess=start, precision=1e-9).lower
        return Interval(min(low, high), high)

    def upper_epsilon(self, delta: float) -> float:
        """Return the upper end of ``epsilon``, for half the work."""
        return crossing(self._curve(delta), delta, guess=1.0, precision=1e-9).upper

    def upper_epsilon_with_population(self, delta: float) -> float | None:
        """Return epsilon by a declared population; None if none is, or slots overflow too often.

        Theorem:     docs/theory/gaussian.md: delta grows by at most the overflow probability.
        Rounding:    up.
        """
        uncapped, overflow = self._without_overflow()
        if uncapped is None or overflow >= delta:
            return None
        return uncapped.upper_epsilon(delta - overflow)

    def curve(self, delta: float, cells: int = campaign_divergence.CELLS) -> Delta:
        """Return an upper bound on delta for every epsilon >= 0, sharp down to ``delta``."""
        plain = self._curve(delta, cells)
        uncapped, overflow = self._without_overflow()
        if uncapped is None or overflow >= delta:
            return plain
        without = uncapped._curve(delta, cells)
        return lambda epsilon: min(plain(epsilon), without(epsilon) + overflow)

    def triangle_curve(self, delta: float, cells: int) -> Delta:
        """Return a bound as ``curve`` does, replace-one by way of the absent client alone.

        Many times quicker than composing curves, and a little looser at most. The population is
        not used; averaged updates are not covered.
        """
        both = self._pair(Adjacency.ADD_REMOVE, delta, Side.UP, cells)
        return worse(both) if self.adjacency is Adjacency.ADD_REMOVE else triangle_bound(both)

    def _without_overflow(self) -> tuple[Composition | None, float]:
        """Return the campaigns in which no client is displaced, and the overflow probability.

        None if no design has both Gaussian noise with a capacity and a declared population.
        """
        known = [campaign_divergence.overflow_probability_of(design) for design in self.designs]
        if all(probability is None for probability in known):
            return None, 0.0
        uncapped = tuple(
            design if probability is None else campaign_divergence.uncapped(design)
            for design, probability in zip(self.designs, known, strict=True)
        )
        overflow = self.campaigns * math.fsum(probability or 0.0 for probability in known)
        return replace(self, designs=uncapped), overflow

    def _curve(self, delta: float, cells: int = campaign_divergence.CELLS) -> Delta:
        def pair(between: Adjacency) -> DominatingPair:
            return self._pair(between, delta, Side.UP, cells)

        return _between(pair, self.adjacency, self.designs)

    def _pair(
        self, adjacency: Adjacency, delta: float, side: Side, cells: int = campaign_divergence.CELLS
    ) -> DominatingPair:
        runs = len(self.designs) * self.campaigns
        rounding = Rounding(side=side, cells=cells, tolerance=max(_TAIL * delta / runs, SMALLEST))
        known = {
            one: campaign_divergence.pair(one, adjacency, rounding, delta=delta)
            for one in dict.fromkeys(self.designs)
        }
        once = reduce(lambda a, b: a.compose(b, rounding), (known[one] for one in self.designs))
        return once.repeat(self.campaigns, rounding)


def composed_kinds(
    kinds: Sequence[Design], adjacency: Adjacency, *, campaigns: int, delta: float
) -> float:
    """Return epsilon of ``campaigns`` in each of which a client is of any one of ``kinds``.

    The kind may depend on earlier releases, and not on the client's data.

    Theorem:     docs/theory/windows-and-capacity.md, "Kinds of clients".
    Rounding:    up.
    """
    tolerance = max(_TAIL * delta / campaigns, SMALLEST)
    rounding = Rounding(side=Side.UP, cells=campaign_divergence.CELLS, tolerance=tolerance)

    def pair(between: Adjacency) -> DominatingPair:
        known = [campaign_divergence.pair(kind, between, rounding, delta=delta) for kind in kinds]
        return envelope(known).repeat(campaigns, rounding)

    upper = _between(pair, adjacency, kinds)
    return crossing(upper, delta, guess=1.0, precision=1e-9).upper


def worse(both: DominatingPair) -> Delta:
    """Return the larger delta of adding and removing the client; ``both`` is rounded up."""
    return lambda epsilon: max(both.remove(epsilon), both.add(epsilon)) * (1 + ROUND_OFF)


def triangle_bound(both: DominatingPair) -> Delta:
    """Return delta between two values of one client's data, by way of the absent client."""

    def delta(epsilon: float) -> float:
        sums = []
        for part in SPLITS:
            removing, adding = part * epsilon, (1.0 - part) * epsilon
            sums.append(both.remove(removing) + math.exp(removing) * both.add(adding))
        return min(1.0, min(sums) * (1 + ROUND_OFF))

    return delta


def _between(
    pair: Callable[[Adjacency], DominatingPair], adjacency: Adjacency, designs: Sequence[Design]
) -> Delta:
    """Return delta of the composed pair; replace-one by the smaller of two bounds if both hold."""
    if adjacency is Adjacency.ADD_REMOVE:
        return worse(pair(adjacency))
    if any(design.protocol is Protocol.AVERAGED for design in designs):
        return _replaced(pair(adjacency))
    triangle = triangle_bound(pair(Adjacency.ADD_REMOVE))
    try:
        straight = _replaced(pair(adjacency))
    except NotCovered:
        return triangle
    return lambda epsilon: min(straight(epsilon), triangle(epsilon))


def _replaced(curve: DominatingPair) -> Delta:
    """Return delta of the pair of a curve, which bounds both directions."""
    return lambda epsilon: curve.remove(epsilon) * (1 + ROUND_OFF)
