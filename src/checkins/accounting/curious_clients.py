"""Curious clients: they follow the protocol and disclose everything that they see.

A curious client learns whether it was chosen, and knows its own report and noise. Whoever checks in
to a full slot can displace one of them, who then sees that somebody came.

Theorem:     docs/theory/curious.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from scipy.special import bdtrc

from checkins.accounting.design import (
    Design,
    GaussianNoise,
    LocalRandomizer,
    NoiseAt,
    Population,
    Protocol,
)
from checkins.accounting.exact.gaussian import LEAST_NOISE
from checkins.errors import InvalidValue, NotCovered

_SHARE = 0.01
"""Largest part of delta spent on slots in which more curious clients meet than are allowed for."""


def against_curious(
    designs: Sequence[Design], curious: int, *, delta: float, campaigns: int
) -> tuple[tuple[Design, ...], float]:
    """The designs that are left to price against ``curious`` clients, and their exposure h.

    e^ε h of delta is charged for all campaigns together (``variation.charge``).

    Neighbours:  any.
    Rounding:    h up.
    """
    runs = len(designs) * campaigns
    left, exposures = [], []
    for design in designs:
        met, chance = _in_one_slot(design, curious, most=_SHARE * delta / runs)
        left.append(_without(design, curious, met))
        exposures.append(_displaced(design, curious) + chance)
    total = campaigns * math.fsum(exposures)
    if runs > 1:  # where one client is replaced; the theorem says why
        total *= 1.0 + 2.0 * delta
    return tuple(left), min(1.0, total * (1.0 + 1e-12))


def _displaced(design: Design, curious: int) -> float:
    """An upper bound c p0/(m (K+1)) on the probability that the client displaces a curious one."""
    if not chooses(design):
        return 0.0
    return curious * design.participation / (design.choices * ((design.capacity or 1) + 1))


def chooses(design: Design) -> bool:
    """Whether the server may turn away a client that checked in."""
    if design.protocol is Protocol.AVERAGED:
        return False
    return isinstance(design.randomizer, LocalRandomizer) or design.capacity is not None


def _in_one_slot(design: Design, curious: int, *, most: float) -> tuple[int, float]:
    """How many curious clients a slot is priced with, and the probability that more meet."""
    if not _noise_is_shared(design):
        return 0, 0.0
    slots, chance = design.choices, design.participation / design.choices
    for met in range(min(curious, (design.capacity or 1) - 1) + 1):
        more = slots * float(bdtrc(met, curious, chance)) * (1.0 + 1e-6)
        if more <= most:
            return met, more
    raise NotCovered(
        "curious",
        curious,
        f"could hold every place of a slot: with noise at the clients use a capacity far above"
        f" {curious * chance:.3g}, or noise at the server",
    )


def _noise_is_shared(design: Design) -> bool:
    """Whether the noise that hides a report is partly that of other clients."""
    noise = design.randomizer
    return (
        isinstance(noise, GaussianNoise)
        and noise.at is NoiseAt.CLIENT
        and design.protocol is not Protocol.AVERAGED
    )


def _without(design: Design, curious: int, met: int) -> Design:
    """The design with the reports and the noise of curious clients known."""
    randomizer = design.randomizer
    if isinstance(randomizer, LocalRandomizer) and not randomizer.is_pure:
        raise NotCovered(
            "curious", curious, "no theorem covers it with a local delta: use a pure randomizer"
        )
    if design.protocol is Protocol.AVERAGED and isinstance(randomizer, GaussianNoise):
        raise NotCovered(
            "curious", curious, "no theorem covers it for averages of Gaussian reports"
        )
    if design.protocol is Protocol.AVERAGED and design.population is not None:
        return replace(design, population=_fewer(design.population, curious))
    if met and isinstance(randomizer, GaussianNoise) and design.capacity is not None:
        share = math.sqrt((design.capacity - met) / design.capacity) * (1.0 - 1e-12)
        if design.slot_noise(randomizer) * share < LEAST_NOISE:
            raise NotCovered("curious", curious, "leaves too little noise in a slot: add some")
        noise = replace(randomizer, noise_multiplier=randomizer.noise_multiplier * share)
        return replace(design, randomizer=noise)
    return design


def _fewer(population: Population, curious: int) -> Population:
    if curious >= population.fewest:
        raise InvalidValue(
            "curious", curious, f"must be fewer than the {population.fewest:,} who contribute"
        )
    return Population(population.fewest - curious, population.most)
