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


def composed(
    designs: Sequence[Design], adjacency: Adjacency, *, campaigns: int, delta: float
) -> Interval:
    """Bound epsilon of all ``designs``, one after the other, ``campaigns`` times over."""
    high = composed_upper(designs, adjacency, campaigns=campaigns, delta=delta)
    below = _pair(designs, adjacency, campaigns=campaigns, delta=delta, side=Side.DOWN)

    def lower(epsilon: float) -> float:
        return max(below.remove(epsilon), below.add(epsilon)) * (1 - ROUND_OFF)

    start = high if 0 < high < math.inf else 1.0
    low = crossing(lower, delta, guess=start, precision=1e-9).lower
    return Interval(min(low, high), high)


def composed_upper(
    designs: Sequence[Design], adjacency: Adjacency, *, campaigns: int, delta: float
) -> float:
    """Return the upper end of ``composed``, for half the work."""
    upper = _upper(designs, adjacency, campaigns=campaigns, delta=delta)
    return crossing(upper, delta, guess=1.0, precision=1e-9).upper


def composed_kinds(
    kinds: Sequence[Design], adjacency: Adjacency, *, campaigns: int, delta: float
) -> float:
    """Return epsilon of ``campaigns`` in each of which a client is of any one of ``kinds``.

    The kind may depend on earlier releases, and not on the client's data.

    Theorem:     docs/theory/windows-and-capacity.md, "Kinds of clients".
    Rounding:    up.
    """
    rounding = Rounding(
        side=Side.UP,
        cells=campaign_divergence.CELLS,
        tolerance=max(_TAIL * delta / campaigns, SMALLEST),
    )

    def pair(between: Adjacency) -> DominatingPair:
        known = [campaign_divergence.pair(kind, between, rounding, delta=delta) for kind in kinds]
        return envelope(known).repeat(campaigns, rounding)

    upper = _between(pair, adjacency, kinds)
    return crossing(upper, delta, guess=1.0, precision=1e-9).upper


def composed_with_population(
    designs: Sequence[Design], adjacency: Adjacency, *, campaigns: int, delta: float
) -> float | None:
    """Return epsilon by a declared population; None if none is, or slots overflow too often.

    Theorem:     docs/theory/gaussian.md: delta grows by at most the overflow probability.
    Rounding:    up.
    """
    without = without_overflow(designs, campaigns=campaigns)
    if without is None or without[1] >= delta:
        return None
    return composed_upper(without[0], adjacency, campaigns=campaigns, delta=delta - without[1])


def composed_delta(
    designs: Sequence[Design],
    adjacency: Adjacency,
    *,
    campaigns: int,
    epsilon: float,
    delta: float,
    cells: int,
) -> float:
    """Return an upper bound on delta of all campaigns at ``epsilon``, sharp around ``delta``."""

    def spent(run: Sequence[Design]) -> float:
        return _upper(run, adjacency, campaigns=campaigns, delta=delta, cells=cells)(epsilon)

    without = without_overflow(designs, campaigns=campaigns)
    if without is None or without[1] >= delta:
        return spent(designs)
    return min(spent(designs), spent(without[0]) + without[1])


def composed_delta_quickly(
    designs: Sequence[Design],
    adjacency: Adjacency,
    *,
    campaigns: int,
    epsilon: float,
    delta: float,
    cells: int,
) -> float:
    """Bound delta as ``composed_delta`` does, replace-one by way of the absent client alone.

    Many times quicker than composing curves, and a little looser at most. The population is not
    used; averaged updates are not covered.
    """
    both = _pair(
        designs, Adjacency.ADD_REMOVE, campaigns=campaigns, delta=delta, side=Side.UP, cells=cells
    )
    bound = worse if adjacency is Adjacency.ADD_REMOVE else triangle_bound
    return bound(both)(epsilon)


def composed_curve(
    designs: Sequence[Design],
    adjacency: Adjacency,
    *,
    campaigns: int,
    delta: float,
    cells: int = campaign_divergence.CELLS,
) -> Delta:
    """Return an upper bound on delta for every epsilon >= 0, sharp down to ``delta``."""
    plain = _upper(designs, adjacency, campaigns=campaigns, delta=delta, cells=cells)
    without = without_overflow(designs, campaigns=campaigns)
    if without is None or without[1] >= delta:
        return plain
    uncapped = _upper(without[0], adjacency, campaigns=campaigns, delta=delta, cells=cells)
    return lambda epsilon: min(plain(epsilon), uncapped(epsilon) + without[1])


def without_overflow(
    designs: Sequence[Design], *, campaigns: int
) -> tuple[list[Design], float] | None:
    """Return the designs in which no client is displaced, and the probability of an overflow.

    None if no design has both Gaussian noise with a capacity and a declared population.
    """
    probabilities = [campaign_divergence.overflow_probability_of(design) for design in designs]
    if all(probability is None for probability in probabilities):
        return None
    without = [
        design if probability is None else campaign_divergence.uncapped(design)
        for design, probability in zip(designs, probabilities, strict=True)
    ]
    return without, campaigns * math.fsum(probability or 0.0 for probability in probabilities)


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


def _upper(
    designs: Sequence[Design],
    adjacency: Adjacency,
    *,
    campaigns: int,
    delta: float,
    cells: int = campaign_divergence.CELLS,
) -> Delta:
    def pair(between: Adjacency) -> DominatingPair:
        return _pair(designs, between, campaigns=campaigns, delta=delta, side=Side.UP, cells=cells)

    return _between(pair, adjacency, designs)


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


def _pair(
    designs: Sequence[Design],
    adjacency: Adjacency,
    *,
    campaigns: int,
    delta: float,
    side: Side,
    cells: int = campaign_divergence.CELLS,
) -> DominatingPair:
    runs = len(designs) * campaigns
    rounding = Rounding(side=side, cells=cells, tolerance=max(_TAIL * delta / runs, SMALLEST))
    known = {
        one: campaign_divergence.pair(one, adjacency, rounding, delta=delta)
        for one in dict.fromkeys(designs)
    }
    once = reduce(lambda a, b: a.compose(b, rounding), (known[one] for one in designs))
    return once.repeat(campaigns, rounding)
