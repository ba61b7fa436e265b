"""The exact accountant for a described design: which law prices one campaign of it.

Theorem:     docs/theory/one-likelihood-ratio.md: whatever the others do and however the model
             adapts, the likelihood ratio of all releases is below a sum of independent slot ratios
             in convex order; docs/theory/windows-and-capacity.md for windows, capacity, averages
             and repetition.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from checkins.accounting.design import (
    Adjacency,
    Design,
    GaussianNoise,
    LocalRandomizer,
    NoiseAt,
    Protocol,
)
from checkins.accounting.exact import gaussian, pure
from checkins.accounting.exact.divergence import Otherwise, Priced, crossing
from checkins.accounting.exact.dominating_pair import DominatingPair, from_curve, from_ratios
from checkins.accounting.exact.grid_distribution import Rounding, Side
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


def pair(
    design: Design, adjacency: Adjacency, rounding: Rounding, *, delta: float
) -> DominatingPair:
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


def _curve_pair(design: Design, rounding: Rounding, *, delta: float) -> DominatingPair:
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
