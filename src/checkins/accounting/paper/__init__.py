"""The paper's statements, one function each, and its Table 1 and Figure 2 as plain data.

[BKMTT20] is "Privacy Amplification via Random Check-Ins", arXiv:2007.06605v2. Some of its formulas
contain mistakes. docs/theory/slips.md lists them and says what the code does instead. This module
computes the bounds of the paper for a ``Design``, and composes them over several campaigns.
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
from checkins.accounting.paper import amplification, kov_composition, statements
from checkins.errors import NotCovered


def paper_epsilon(design: Design, *, delta: float) -> float:
    """Return the epsilon of the paper's theorem for the protocol, or infinity if none applies.

    Theorem:     [BKMTT20, Thm 3.2] for the fixed protocol, [BKMTT20, Thm 4.1] for the averaged
                 protocol, [BKMTT20, Thm 4.3] for the sliding protocol.
    Neighbours:  replace-one; add/remove too for fixed and sliding.
    Rounding:    up.
    Differs:     the paper proves replace-one only. Its proof compares two mixtures, one for each
                 of the client's two data sets. Both contain the same component for the case
                 that the client is not chosen. For add/remove, the distribution without the
                 client is this component, and the same bound holds.
    """
    if isinstance(design.randomizer, LocalRandomizer):
        return _theorem_epsilon(design, design.randomizer, delta=delta)
    noise = design.randomizer.noise_multiplier
    local_deltas = [max(delta * 10.0**-k, 1e-290) for k in range(4, 60, 4)]
    local_epsilons = [report_epsilon(noise, local_delta) for local_delta in local_deltas]
    epsilons = (
        _theorem_epsilon(design, LocalRandomizer(local_epsilon, local_delta), delta=delta)
        for local_epsilon, local_delta in zip(local_epsilons, local_deltas, strict=True)
        if local_epsilon <= MOST_LOCAL_EPSILON
    )
    return min(epsilons, default=math.inf)


def paper_covers(design: Design) -> bool:
    """Return True if the paper's theorem covers the design.

    It requires noise at the client, at most one report per slot, and participation 1 in the
    sliding protocol.
    """
    if isinstance(design.randomizer, GaussianNoise) and design.randomizer.at is NoiseAt.SERVER:
        return False
    if design.protocol is Protocol.SLIDING and design.participation != 1.0:
        return False
    return design.capacity in (None, 1)


def _theorem_epsilon(design: Design, randomizer: LocalRandomizer, *, delta: float) -> float:
    """Return the paper's epsilon for this randomizer, or infinity if no theorem applies."""
    privacy = {
        "local_epsilon": randomizer.local_epsilon,
        "local_delta": randomizer.local_delta,
        "delta": delta,
    }
    try:
        if design.protocol is Protocol.AVERAGED:
            clients = design.population.fewest if design.population else 1
            return statements.averaged_total(clients=clients, slots=design.slots, **privacy)
        theorem = (
            statements.sliding_window(window=design.drawable_slots)
            if design.protocol is Protocol.SLIDING
            else statements.fixed_window(slots=design.slots, participation=design.participation)
        )
        return theorem.epsilon_at_total_delta(**privacy)
    except NotCovered:
        return math.inf


def known_slot_epsilon(
    design: Design, randomizer: LocalRandomizer, *, delta: float, campaigns: int = 1
) -> float:
    """Return epsilon against an adversary who knows the client's slots, or infinity if unproved.

    Participation below 1 still amplifies privacy, except for averaged updates. Several campaigns
    are composed by [KOV17].
    """
    is_averaged = design.protocol is Protocol.AVERAGED
    single = amplification.known_slot_epsilon(
        local_epsilon=randomizer.local_epsilon,
        local_delta=randomizer.local_delta,
        delta=delta,
        participation=1.0 if is_averaged else design.participation,
    )
    if campaigns == 1:
        return single
    remaining = delta - campaigns * randomizer.local_delta
    if remaining <= 0.0:
        return math.inf
    return kov_composition.homogeneous_composition(epsilon=single, steps=campaigns, delta=remaining)


def composed_paper_epsilon(designs: Sequence[Design], *, campaigns: int, delta: float) -> float:
    """Compose the paper's bounds by [KOV17]. Every design is run ``campaigns`` times.

    All single runs together use half of ``delta``, and the composition uses the other half. If
    there is only one run, it uses all of ``delta``.
    """
    runs = len(designs) * campaigns
    if runs == 1:
        return paper_epsilon(designs[0], delta=delta)
    epsilons = [paper_epsilon(design, delta=delta / (2 * runs)) for design in designs]
    if not all(map(math.isfinite, epsilons)):
        return math.inf
    if len(set(epsilons)) == 1:
        return kov_composition.homogeneous_composition(
            epsilon=epsilons[0], steps=runs, delta=delta / 2
        )
    return kov_composition.composition(epsilons * campaigns, delta=delta / 2)
