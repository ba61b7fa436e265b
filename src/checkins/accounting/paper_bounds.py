"""The paper's theorem for a design, at one total delta.

A Gaussian randomizer is (eps0, delta0)-DP for every delta0; the best delta0 is taken.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from checkins.accounting.design import (
    MOST_LOCAL_EPSILON,
    Design,
    GaussianNoise,
    LocalRandomizer,
    NoiseAt,
    Protocol,
)
from checkins.accounting.exact.gaussian import report_epsilon
from checkins.accounting.paper import kov_composition, statements
from checkins.accounting.paper.amplification import held_locally
from checkins.errors import NotCovered


def paper_epsilon(design: Design, *, delta: float) -> float:
    """Return epsilon by the theorem of the design's protocol; infinity if it gives no bound.

    Theorem:     [BKMTT20, Thm 3.2] fixed, [BKMTT20, Thm 4.1] averaged, [BKMTT20, Thm 4.3] sliding.
    Neighbours:  replace-one; add/remove too for fixed and sliding.
    Rounding:    up.
    Differs:     the proof compares two mixtures that overlap in what the slot does without the
                 client; without the client only that part is left, and the same bound holds.
    """
    if isinstance(design.randomizer, LocalRandomizer):
        return _local(design, design.randomizer, delta=delta)
    noise = design.randomizer.noise_multiplier
    local_deltas = [max(delta * 10.0**-k, 1e-290) for k in range(4, 60, 4)]
    local_epsilons = [report_epsilon(noise, local_delta) for local_delta in local_deltas]
    tries = (
        _local(design, LocalRandomizer(local_epsilon, local_delta), delta=delta)
        for local_epsilon, local_delta in zip(local_epsilons, local_deltas, strict=True)
        if local_epsilon <= MOST_LOCAL_EPSILON
    )
    return min(tries, default=math.inf)


def covers(design: Design) -> bool:
    """Return whether the paper's theorem covers this design: one report a slot, local noise."""
    if isinstance(design.randomizer, GaussianNoise) and design.randomizer.at is NoiseAt.SERVER:
        return False
    if design.protocol is Protocol.SLIDING and design.participation != 1.0:
        return False
    return design.capacity in (None, 1)


def _local(design: Design, randomizer: LocalRandomizer, *, delta: float) -> float:
    try:
        return _by_theorem(design, randomizer, delta)
    except NotCovered:
        return math.inf


def _by_theorem(design: Design, randomizer: LocalRandomizer, delta: float) -> float:
    local_epsilon, local_delta = randomizer.local_epsilon, randomizer.local_delta
    if design.protocol is Protocol.AVERAGED:
        clients = design.population.fewest if design.population else 1
        given = {"local_epsilon": local_epsilon, "delta": delta}
        if randomizer.is_pure:
            return statements.averaged_total(clients=clients, slots=design.slots, **given)
        return statements.averaged_approximate_total(
            local_delta=local_delta, clients=clients, slots=design.slots, **given
        )
    theorem = (
        statements.sliding_window(window=design.choices)
        if design.protocol is Protocol.SLIDING
        else statements.fixed_window(slots=design.slots, participation=design.participation)
    )
    if randomizer.is_pure:
        return theorem.epsilon(local_epsilon=local_epsilon, delta=delta)
    return theorem.approximate_total(
        local_epsilon=local_epsilon, local_delta=local_delta, delta=delta
    )


def local_epsilon(design: Design, randomizer: LocalRandomizer, *, delta: float) -> float:
    """Return the epsilon that holds with no amplification; infinity if none does."""
    amplified = design.protocol is not Protocol.AVERAGED
    return held_locally(
        local_epsilon=randomizer.local_epsilon,
        local_delta=randomizer.local_delta,
        delta=delta,
        participation=design.participation if amplified else 1.0,
    )


def composed_local_epsilon(
    design: Design, randomizer: LocalRandomizer, *, campaigns: int, delta: float
) -> float:
    """Return epsilon of several campaigns with no amplification, by [KOV17] or by summing."""
    left = delta - campaigns * randomizer.local_delta
    if left <= 0.0:
        return math.inf
    one = local_epsilon(design, randomizer, delta=delta)
    return kov_composition.homogeneous_composition(epsilon=one, steps=campaigns, delta=left)


def composed_paper_epsilon(designs: Sequence[Design], *, campaigns: int, delta: float) -> float:
    """Compose the paper's bounds of several campaigns by [KOV17], half of delta for each part."""
    runs = len(designs) * campaigns
    each = [paper_epsilon(design, delta=delta / (2 * runs)) for design in designs]
    if not all(map(math.isfinite, each)):
        return math.inf
    if len(set(each)) == 1:
        return kov_composition.homogeneous_composition(epsilon=each[0], steps=runs, delta=delta / 2)
    return kov_composition.composition(epsilons=each * campaigns, delta=delta / 2)
