"""The likelihood ratio of all releases of a run: no test tells the two laws apart better.

With p the chance that the canary checks in where something is released, w_i that it is chosen in
slot i, and L_i the density ratio of slot i's release with it against without it,

    f = 1 − p + (p/m) Σ_i [ (1 − w_i) + w_i L_i ] .

Theorem:     docs/theory/one-likelihood-ratio.md, given what does not depend on the canary; [NP33]:
             the best test of any size is whether f exceeds some threshold.
Rounding:    to nearest: a statistic that is a little off tests a little worse, and proves no less.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from checkins.audit.canaries.noise import Noise
from checkins.audit.canaries.releases import Loads, Response
from checkins.audit.canaries.world import World

FloatArray = NDArray[np.float64]


def response_ratio(
    counts: NDArray[np.int64], chances: tuple[float, ...], base: tuple[float, ...], reach: float
) -> FloatArray:
    """log f from how often each outcome was reported: (outcomes, runs).

    The canary's report may be any of those of its slot, and its slot any: L is the average of
    ``chances`` / ``base`` over all reports.
    """
    reports = int(counts[:, 0].sum())
    average = np.zeros(counts.shape[1])
    for count, chance, usual in zip(counts, chances, base, strict=True):
        average += count * (chance / usual / reports)
    return np.asarray(np.log(1.0 - reach + reach * average))


def response_scores(counts: NDArray[np.int64], response: Response, reach: float) -> FloatArray:
    """log f − log f′, where f′ is that of the canary's other data."""
    first = response_ratio(counts, response.first, response.base, reach)
    if response.other == response.base:
        return first
    return first - response_ratio(counts, response.other, response.base, reach)


def sum_ratio(
    sums: FloatArray, loads: Loads, noise: Noise, update: float, world: World
) -> FloatArray:
    """log f from every slot's sum along the canary's update, in clips: (runs, slots).

    In averaged updates the canary is in a slot with a chance in proportion to its load.
    """
    shift = update - loads.displaced(world.capacity)
    ratios = np.exp(noise.log_ratio(sums - loads.level * loads.used(world.capacity), shift))
    if world.averaged:
        return np.asarray(np.log(np.sum(ratios * loads.counts, axis=1) / world.contributors))
    chance = loads.chance(world.capacity)
    average = np.mean(1.0 - chance + chance * ratios, axis=1)
    return np.asarray(np.log(1.0 - world.reach + world.reach * average))
