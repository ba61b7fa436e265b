"""The exact accountant for a design: which likelihood ratio bounds one campaign of it.

Theorem:     docs/theory/one-likelihood-ratio.md: whatever the others do and however the model
             adapts, the likelihood ratio of all releases is below a sum of independent slot ratios
             in convex order; docs/theory/windows-and-capacity.md for windows, capacity, averages
             and repetition.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

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
from checkins.accounting.exact.dominating_pair import DominatingPair, from_curve, from_ratios
from checkins.accounting.exact.grid_distribution import Rounding, Side
from checkins.accounting.paper.occupancy import overflow_probability
from checkins.accounting.solve import Divergence, Interval, crossing
from checkins.errors import NotCovered

CELLS = 768
REPLACE_ONE_CELLS = 600
"""Cells of a grid: [lower, upper] are within half a percent of each other, add/remove. Replace-one,
where a distribution must be built for every epsilon tried, uses fewer: within one percent up to a
hundred slots, about three at ten thousand."""

_TAIL = 1e-9
_CURVE_CELLS = 320
_CERTAIN = from_ratios(np.ones(1), np.zeros(1), np.ones(1))


def divergence(
    design: Design, adjacency: Adjacency, *, delta: float, cells: int | None = None
) -> Divergence:
    """Return the exact divergence of one campaign; raise ``NotCovered`` if no theorem is exact."""
    _check(design, adjacency)
    if isinstance(design.randomizer, GaussianNoise):
        noisy = gaussian_campaign(design, design.randomizer)
        if adjacency is Adjacency.ADD_REMOVE:
            return gaussian.GaussianAddRemove(noisy, delta=delta, cells=cells or CELLS)
        return gaussian.GaussianReplaceOne(noisy, delta=delta, cells=cells or REPLACE_ONE_CELLS)
    if design.protocol is Protocol.AVERAGED:
        return pure.PureReplaceOne(_shuffled(design, design.randomizer), delta=delta)
    campaign = pure_campaign(design, design.randomizer)
    if adjacency is Adjacency.ADD_REMOVE:
        return pure.PureAddRemove(campaign, delta=delta)
    return pure.PureReplaceOne(campaign, delta=delta)


def pure_campaign(design: Design, randomizer: LocalRandomizer) -> pure.PureCampaign:
    """Return the parameters that the accountant for pure randomizers uses."""
    return pure.PureCampaign(randomizer.local_epsilon, design.choices, design.participation)


def gaussian_campaign(design: Design, noise: GaussianNoise) -> gaussian.GaussianCampaign:
    """Return the parameters that the accountant for Gaussian noise uses."""
    return gaussian.GaussianCampaign(
        design.slot_noise(noise), design.choices, design.participation, design.capacity
    )


def _check(design: Design, adjacency: Adjacency) -> None:
    design.check_adjacency(adjacency)
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
    """Return the shuffle of all contributors' reports: averaged updates are its post-processing."""
    contribute = design.population.fewest if design.population else 1
    return pure.PureCampaign(randomizer.local_epsilon, contribute, 1.0)


def attaining_design(design: Design) -> Design:
    """Return a fixed window whose divergence some client of the design attains: for lower ends.

    A client of the sliding window meets no more slots than the server is active in. The sum of K
    pure reports reveals at most which of K slots of their own they were in, and a canary among
    dummies reveals that much.
    """
    if design.protocol is Protocol.AVERAGED:
        return design
    met, probability = design.choices, design.participation
    if design.window is not None:
        met = min(design.window, design.slots - design.window + 1)
        probability *= met / design.window
    if isinstance(design.randomizer, LocalRandomizer):
        met *= design.capacity or 1
    elif met == design.choices:
        return design
    return replace(
        design, protocol=Protocol.FIXED, slots=met, window=None, participation=probability
    )


@dataclass(frozen=True, slots=True)
class UnlessOverflow:
    """The divergence ``usual``, except with probability at most ``probability``: then ``rare``."""

    usual: Divergence
    rare: Divergence
    probability: float

    def upper(self, epsilon: float) -> float:
        return self.usual.upper(epsilon) + self.probability * self.rare.upper(epsilon)

    def lower(self, epsilon: float) -> float:
        return self.usual.lower(epsilon)

    def epsilon(self, delta: float) -> Interval:
        usual = self.usual.epsilon(delta)
        return Interval(usual.lower, self._upper_end(delta, usual.upper))

    def upper_epsilon(self, delta: float) -> float:
        return self._upper_end(delta, self.usual.upper_epsilon(delta))

    def _upper_end(self, delta: float, usual: float) -> float:
        if self.probability >= 1.0:
            return self.rare.upper_epsilon(delta)
        return crossing(self.upper, delta, guess=1.01 * usual, precision=1e-4).upper


def with_population(
    design: Design, adjacency: Adjacency, *, delta: float, cells: int | None = None
) -> Divergence | None:
    """Return the divergence if at most ``population.most`` clients exist.

    None if capacity or population is not declared, or the noise is not Gaussian.

    Theorem:     docs/theory/gaussian.md: no client is displaced unless a slot overflows.
    """
    probability = overflow_probability_of(design)
    if probability is None:
        return None
    usual = divergence(uncapped(design), adjacency, delta=delta, cells=cells)
    rare = divergence(design, adjacency, delta=delta, cells=_CURVE_CELLS)
    return UnlessOverflow(usual, rare, probability)


def uncapped(design: Design) -> Design:
    """Return the fixed window in which no client is displaced, with the noise of a slot's sum."""
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


def overflow_probability_of(design: Design) -> float | None:
    """Bound the probability that some slot among a client's choices is full without it.

    None if capacity or population is not declared, or the noise is not Gaussian.
    """
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
    """Return one campaign's dominating pair, which composes, on the side of ``rounding``.

    Rounded down, replace-one is attained by a client whose other data equal its absence.
    """
    _check(design, adjacency)
    if design.participation == 0.0:
        return _CERTAIN
    one_sided = adjacency is Adjacency.ADD_REMOVE or rounding.side is Side.DOWN
    if not one_sided:
        return _CERTAIN.compose(_curve_pair(design, rounding, delta=delta), rounding)
    if rounding.side is Side.DOWN:
        design = attaining_design(design)
    if isinstance(design.randomizer, GaussianNoise):
        return gaussian.GaussianAddRemove.pair(
            gaussian_campaign(design, design.randomizer), rounding
        )
    campaign = pure_campaign(design, design.randomizer)
    if design.protocol is Protocol.AVERAGED:
        campaign = _shuffled(design, design.randomizer)
    return _CERTAIN.compose(pure.PureAddRemove(campaign, delta=rounding.tolerance).pair(), rounding)


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
    if isinstance(curve, pure.PureReplaceOne):
        nodes = 200 if rounding.cells >= 200 else rounding.cells // 2
    epsilons = np.linspace(0.0, last, nodes)
    return from_curve(epsilons, np.array([curve.upper(float(e)) for e in epsilons]))
