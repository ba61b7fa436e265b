"""Several campaigns on one population, one after the other.

Theorem:     docs/theory/windows-and-capacity.md: fresh coins, parameters fixed beforehand. Where
             one client is replaced there are two ways, and the smaller delta counts: composing the
             curves of single campaigns, and the detour by the absent client, where campaigns
             compose as they are: delta(e1 + e2) <= delta_remove(e1) + exp(e1) delta_add(e2).
Rounding:    pairs are kept above for upper ends and below for lower ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce

from checkins.accounting.design import Adjacency, Design, Protocol
from checkins.accounting.exact import campaign_divergence
from checkins.accounting.exact.divergence import Interval, crossing
from checkins.accounting.exact.dominating_pair import ROUND_OFF, DominatingPair, envelope
from checkins.accounting.exact.grid_distribution import SMALLEST, Rounding, Side
from checkins.errors import NotCovered

SPLITS = (0.5, 0.46, 0.54, 0.4, 0.6)
"""Where the detour splits epsilon between leaving and coming."""
_TAIL = 1e-9
Delta = Callable[[float], float]
"""An upper bound on delta, of epsilon."""


def composed(
    designs: Sequence[Design], adjacency: Adjacency, *, campaigns: int, delta: float
) -> Interval:
    """Epsilon of all ``designs``, one after the other, ``campaigns`` times over."""
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
    """The upper end of ``composed``, for half the work."""
    upper = _upper(designs, adjacency, campaigns=campaigns, delta=delta)
    return crossing(upper, delta, guess=1.0, precision=1e-9).upper


def composed_kinds(
    kinds: Sequence[Design], adjacency: Adjacency, *, campaigns: int, delta: float
) -> float:
    """Epsilon of ``campaigns`` in each of which a client is of any one of ``kinds``.

    Which kind it is may depend on earlier releases, and not on its data.

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
    """Epsilon where slots rarely overflow, by a declared population; None where that is no help.

    Theorem:     docs/theory/gaussian.md: delta grows by no more than the chance of an overflow.
    Rounding:    up.
    """
    spared = without_overflow(designs, campaigns=campaigns)
    if spared is None or spared[1] >= delta:
        return None
    return composed_upper(spared[0], adjacency, campaigns=campaigns, delta=delta - spared[1])


def composed_delta(
    designs: Sequence[Design],
    adjacency: Adjacency,
    *,
    campaigns: int,
    epsilon: float,
    delta: float,
    cells: int,
) -> float:
    """An upper bound on the delta of all campaigns at ``epsilon``, sharp around ``delta``."""

    def spent(run: Sequence[Design]) -> float:
        return _upper(run, adjacency, campaigns=campaigns, delta=delta, cells=cells)(epsilon)

    spared = without_overflow(designs, campaigns=campaigns)
    if spared is None or spared[1] >= delta:
        return spent(designs)
    return min(spent(designs), spent(spared[0]) + spared[1])


def composed_curve(
    designs: Sequence[Design],
    adjacency: Adjacency,
    *,
    campaigns: int,
    delta: float,
    cells: int = campaign_divergence.CELLS,
) -> Delta:
    """An upper bound on delta at every epsilon >= 0, both directions, sharp down to ``delta``."""
    plain = _upper(designs, adjacency, campaigns=campaigns, delta=delta, cells=cells)
    spared = without_overflow(designs, campaigns=campaigns)
    if spared is None or spared[1] >= delta:
        return plain
    uncapped = _upper(spared[0], adjacency, campaigns=campaigns, delta=delta, cells=cells)
    return lambda epsilon: min(plain(epsilon), uncapped(epsilon) + spared[1])


def without_overflow(
    designs: Sequence[Design], *, campaigns: int
) -> tuple[list[Design], float] | None:
    """The designs with nobody ever displaced, and the chance that some slot overflows after all.

    ``None`` where no design has both a capacity that matters and a declared population.
    """
    chances = [campaign_divergence.overflow_chance(design) for design in designs]
    if all(chance is None for chance in chances):
        return None
    spared = [
        design if chance is None else campaign_divergence.uncapped(design)
        for design, chance in zip(designs, chances, strict=True)
    ]
    return spared, campaigns * math.fsum(chance or 0.0 for chance in chances)


def worse(both: DominatingPair) -> Delta:
    """Delta between coming and leaving, whichever is larger; the pair is one above."""
    return lambda epsilon: max(both.remove(epsilon), both.add(epsilon)) * (1 + ROUND_OFF)


def triangle_bound(both: DominatingPair) -> Delta:
    """Delta between two values of one client's data, by way of the absent client."""

    def delta(epsilon: float) -> float:
        sums = []
        for part in SPLITS:
            leaving, coming = part * epsilon, (1.0 - part) * epsilon
            sums.append(both.remove(leaving) + math.exp(leaving) * both.add(coming))
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
    """Delta of what ``pair`` composes; replace-one by the smaller of two ways where both hold."""
    if adjacency is Adjacency.ADD_REMOVE:
        return worse(pair(adjacency))
    if any(design.protocol is Protocol.AVERAGED for design in designs):
        return _replaced(pair(adjacency))
    around = triangle_bound(pair(Adjacency.ADD_REMOVE))
    try:
        straight = _replaced(pair(adjacency))
    except NotCovered:
        return around
    return lambda epsilon: min(straight(epsilon), around(epsilon))


def _replaced(curve: DominatingPair) -> Delta:
    """The pair of a curve is good for both directions."""
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
