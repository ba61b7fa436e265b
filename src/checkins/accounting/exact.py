"""The exact accountant for a described design: which law prices it, alone or composed.

Theorem:     docs/theory/one-likelihood-ratio.md: whatever the others do and however the model
             adapts, the likelihood ratio of all releases is below a sum of independent slot ratios
             in convex order; docs/theory/windows-and-capacity.md for windows, capacity, averages
             and repetition.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

import numpy as np

from checkins.accounting import gaussian, pure
from checkins.accounting.design import (
    Adjacency,
    Design,
    GaussianNoise,
    LocalRandomizer,
    NoiseAt,
    Protocol,
)
from checkins.accounting.divergence import Interval, Otherwise, Priced, crossing
from checkins.accounting.law import SMALLEST, Rounding, Side
from checkins.accounting.pair import ROUND_OFF, Pair, from_curve, from_ratios
from checkins.accounting.paper.occupancy import overflow_probability
from checkins.errors import NotCovered

CELLS = 768
REPLACE_ONE_CELLS = 600
"""Cells of a law: [lower, upper] are within half a percent of each other, add/remove. Replace-one,
where a law must be built for every epsilon tried, makes do with fewer: within one percent up to a
hundred slots, about three at ten thousand."""

_TAIL = 1e-9
_CURVE_CELLS = 320
_CERTAIN = from_ratios(np.ones(1), np.zeros(1), np.ones(1))


def divergence(
    design: Design, adjacency: Adjacency, *, delta: float, cells: int | None = None
) -> Priced:
    """The exact divergence of one campaign; raises ``NotCovered`` where no theorem is exact."""
    _check(design, adjacency)
    if isinstance(design.randomizer, GaussianNoise):
        noisy = design.gaussian_campaign(design.randomizer)
        if adjacency is Adjacency.ADD_REMOVE:
            return gaussian.AddRemove(noisy, delta=delta, cells=cells or CELLS)
        return gaussian.ReplaceOne(noisy, delta=delta, cells=cells or REPLACE_ONE_CELLS)
    if design.protocol is Protocol.AVERAGED:
        return pure.ReplaceOne(_shuffled(design, design.randomizer), delta=delta)
    campaign = design.pure_campaign(design.randomizer)
    if adjacency is Adjacency.ADD_REMOVE:
        return pure.AddRemove(campaign, delta=delta)
    return pure.ReplaceOne(campaign, delta=delta)


def _check(design: Design, adjacency: Adjacency) -> None:
    if design.protocol is Protocol.AVERAGED and adjacency is Adjacency.ADD_REMOVE:
        raise NotCovered(
            "adjacency",
            str(adjacency),
            "a lone client shows in averaged updates (delta = 1): use replace-one",
        )
    if isinstance(design.randomizer, GaussianNoise):
        if design.protocol is Protocol.AVERAGED:
            raise NotCovered(
                "protocol", str(design.protocol), "no exact bound for averaged Gaussian reports"
            )
    elif not design.randomizer.is_pure:
        raise NotCovered(
            "local_delta", design.randomizer.local_delta, "no exact bound for approximate reports"
        )


def _shuffled(design: Design, randomizer: LocalRandomizer) -> pure.PureCampaign:
    """Averaged updates are post-processing of shuffling the reports of those who contributed."""
    contribute = design.population.fewest if design.population else 1
    return pure.PureCampaign(randomizer.local_epsilon, contribute, 1.0)


def attained(design: Design) -> Design:
    """A fixed window whose law some client of the design really has: what lower ends rest on.

    A client of the sliding window meets no more slots than the server is active in. The sum of K
    pure reports tells no more than which of K slots of their own they were in, and a canary among
    dummies tells that much.
    """
    if design.protocol is Protocol.AVERAGED:
        return design
    met, chance = design.choices, design.participation
    if design.window is not None:
        met = min(design.window, design.slots - design.window + 1)
        chance *= met / design.window
    if isinstance(design.randomizer, LocalRandomizer):
        met *= design.capacity or 1
    elif met == design.choices:
        return design
    return replace(design, protocol=Protocol.FIXED, slots=met, window=None, participation=chance)


def with_population(
    design: Design, adjacency: Adjacency, *, delta: float, cells: int | None = None
) -> Priced | None:
    """The divergence where at most ``population.most`` clients exist; None where it is no matter.

    Theorem:     docs/theory/gaussian.md: nobody is displaced, but for the chance of an overflow.
    """
    chance = overflow_chance(design)
    if chance is None:
        return None
    usual = divergence(uncapped(design), adjacency, delta=delta, cells=cells)
    rare = divergence(design, adjacency, delta=delta, cells=_CURVE_CELLS)
    return Otherwise(usual, rare, chance)


def uncapped(design: Design) -> Design:
    """The fixed window in which nobody is displaced, its noise that of a whole slot."""
    if not isinstance(design.randomizer, GaussianNoise):
        return replace(design, protocol=Protocol.FIXED, slots=design.choices, window=None)
    noise = GaussianNoise(design.slot_noise(design.randomizer), NoiseAt.SERVER)
    return replace(
        design,
        protocol=Protocol.FIXED,
        slots=design.choices,
        window=None,
        capacity=None,
        randomizer=noise,
    )


def overflow_chance(design: Design) -> float | None:
    """The chance that some slot of a client's choice is full without it; None where it is moot."""
    if design.population is None or design.capacity is None:
        return None
    if not isinstance(design.randomizer, GaussianNoise):
        return None
    return overflow_probability(
        clients=design.population.most,
        slots=design.choices,
        participation=design.participation,
        capacity=design.capacity,
    )


def pair(design: Design, adjacency: Adjacency, rounding: Rounding, *, delta: float) -> Pair:
    """What one campaign releases, as a pair that composes, on the side of ``rounding``.

    Below, replace-one is witnessed by a client whose other data look like no data.
    """
    _check(design, adjacency)
    if design.participation == 0.0:
        return _CERTAIN
    one_sided = adjacency is Adjacency.ADD_REMOVE or rounding.side is Side.DOWN
    if not one_sided:
        return _CERTAIN.compose(_curve_pair(design, rounding, delta=delta), rounding)
    if rounding.side is Side.DOWN:
        design = attained(design)
    if isinstance(design.randomizer, GaussianNoise):
        return gaussian.AddRemove.pair(design.gaussian_campaign(design.randomizer), rounding)
    campaign = design.pure_campaign(design.randomizer)
    if design.protocol is Protocol.AVERAGED:
        campaign = _shuffled(design, design.randomizer)
    return _CERTAIN.compose(pure.AddRemove(campaign, delta=rounding.tolerance).pair(), rounding)


def _curve_pair(design: Design, rounding: Rounding, *, delta: float) -> Pair:
    smallest = rounding.tolerance * 1e4
    cells = min(_CURVE_CELLS, rounding.cells // 2)
    curve = divergence(design, Adjacency.REPLACE_ONE, delta=smallest, cells=cells)
    last = crossing(curve.upper, smallest, guess=curve.upper_epsilon(delta), precision=0.02).upper
    if not math.isfinite(last):
        raise NotCovered("delta", delta, "too small for this design to compose")
    if last == 0.0:
        hidden = curve.upper(0.0)
        return replace(_CERTAIN, only_present=hidden, only_absent=hidden)
    nodes = rounding.cells // 16
    if isinstance(curve, pure.ReplaceOne):
        nodes = 200 if rounding.cells >= 200 else rounding.cells // 2
    epsilons = np.linspace(0.0, last, nodes)
    return from_curve(epsilons, np.array([curve.upper(float(e)) for e in epsilons]))


def composed(
    designs: Sequence[Design], adjacency: Adjacency, *, campaigns: int, delta: float
) -> Interval:
    """Epsilon of all ``designs``, one after the other, ``campaigns`` times over.

    Theorem:     docs/theory/windows-and-capacity.md: fresh coins, parameters fixed beforehand.
    Rounding:    pairs are kept above for ``upper`` and below for ``lower``.
    """
    above, below = (
        _composed_pair(designs, adjacency, campaigns=campaigns, delta=delta, side=side)
        for side in (Side.UP, Side.DOWN)
    )
    return bracket(above, below, adjacency, delta=delta)


def composed_upper(
    designs: Sequence[Design], adjacency: Adjacency, *, campaigns: int, delta: float
) -> float:
    """The upper end of ``composed``, for half the work."""
    above = _composed_pair(designs, adjacency, campaigns=campaigns, delta=delta, side=Side.UP)
    return _upper_end(above, adjacency, delta=delta)


def roomy(designs: Sequence[Design], *, campaigns: int) -> tuple[list[Design], float] | None:
    """The designs with nobody ever displaced, and the chance that some slot overflows after all.

    ``None`` where no design has both a capacity that matters and a declared population.
    """
    chances = [overflow_chance(design) for design in designs]
    if all(chance is None for chance in chances):
        return None
    spared = [
        design if chance is None else uncapped(design)
        for design, chance in zip(designs, chances, strict=True)
    ]
    return spared, campaigns * math.fsum(chance or 0.0 for chance in chances)


def composed_with_population(
    designs: Sequence[Design], adjacency: Adjacency, *, campaigns: int, delta: float
) -> float | None:
    """Epsilon where slots rarely overflow, by a declared population; None where that is no help.

    Theorem:     docs/theory/gaussian.md: delta grows by no more than the chance of an overflow.
    Rounding:    up.
    """
    spared = roomy(designs, campaigns=campaigns)
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
        above = _composed_pair(
            run, adjacency, campaigns=campaigns, delta=delta, side=Side.UP, cells=cells
        )
        return _upper(above, adjacency, epsilon)

    spared = roomy(designs, campaigns=campaigns)
    if spared is None or spared[1] >= delta:
        return spent(designs)
    return min(spent(designs), spent(spared[0]) + spared[1])


def _upper(above: Pair, adjacency: Adjacency, epsilon: float) -> float:
    if adjacency is Adjacency.REPLACE_ONE:  # the pair above is good for both directions
        return above.remove(epsilon) * (1 + ROUND_OFF)
    return max(above.remove(epsilon), above.add(epsilon)) * (1 + ROUND_OFF)


def bracket(above: Pair, below: Pair, adjacency: Adjacency, *, delta: float) -> Interval:
    """The epsilon of a delta between two pairs."""

    def lower(epsilon: float) -> float:
        return max(below.remove(epsilon), below.add(epsilon)) * (1 - ROUND_OFF)

    high = _upper_end(above, adjacency, delta=delta)
    start = high if 0 < high < math.inf else 1.0
    low = crossing(lower, delta, guess=start, precision=1e-9).lower
    return Interval(min(low, high), high)


def _upper_end(above: Pair, adjacency: Adjacency, *, delta: float) -> float:
    def upper(epsilon: float) -> float:
        return _upper(above, adjacency, epsilon)

    return crossing(upper, delta, guess=1.0, precision=1e-9).upper


def _composed_pair(
    designs: Sequence[Design],
    adjacency: Adjacency,
    *,
    campaigns: int,
    delta: float,
    side: Side,
    cells: int = CELLS,
) -> Pair:
    runs = len(designs) * campaigns
    rounding = Rounding(side=side, cells=cells, tolerance=max(_TAIL * delta / runs, SMALLEST))
    known = {one: pair(one, adjacency, rounding, delta=delta) for one in dict.fromkeys(designs)}
    once = reduce(lambda a, b: a.compose(b, rounding), (known[one] for one in designs))
    return once.repeat(campaigns, rounding)
