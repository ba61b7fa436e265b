"""Stronger adversaries: an untrusted server, and clients that disclose what they see.

A certificate is about what a trusted server releases. If the server is not trusted, only the noise
that a device adds to its own report is left: ``against_server``.

Curious clients follow the protocol and disclose everything that they see. A curious client learns
whether it was chosen, and knows its own report and noise. A client that checks in to a full slot
can displace one of them, who then sees that somebody came: ``against_curious``.

Theorem:     docs/theory/curious.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scipy.special import bdtrc

from checkins.accounting.design import (
    LEAST_NOISE,
    Adjacency,
    Design,
    GaussianNoise,
    LocalRandomizer,
    NoiseAt,
    Population,
    Protocol,
)
from checkins.accounting.exact.gaussian import report_epsilon
from checkins.accounting.paper import kov_composition
from checkins.errors import InvalidValue, NotCovered
from checkins.formatting import finite

NOTHING = "nothing: the server sees every clipped update before it adds noise"
OF_CONTENT = "of what a client's reports say; that it took part is not hidden from the server"
NO_BOUND = "no bound at this delta: the local deltas of its reports exceed it"


@dataclass(frozen=True, slots=True)
class AgainstServer:
    """Epsilon of one client's reports by themselves, at the certificate's delta.

    ``epsilon`` is infinite if no bound holds.
    """

    epsilon: float
    note: str

    def as_dict(self) -> dict[str, object]:
        return {
            "epsilon": finite(self.epsilon),
            "adjacency": str(Adjacency.REPLACE_ONE),
            "note": self.note,
        }


def against_server(designs: Sequence[Design], *, delta: float, campaigns: int = 1) -> AgainstServer:
    """Return the guarantee of a client's reports alone, one in every campaign.

    Gaussian reports are one Gaussian report with the sum of their precisions. Equal local
    randomizers are composed, different ones summed.

    Theorem:     [BW18, Thm 8], arXiv:1805.06530v2; [KOV17], ``paper.kov_composition``.
    Neighbours:  replace-one: two values of the client's data.
    Rounding:    up.
    """
    precision, local = 0.0, Counter[LocalRandomizer]()
    for design in designs:
        randomizer = design.randomizer
        if isinstance(randomizer, LocalRandomizer):
            local[randomizer] += campaigns
        elif randomizer.at is NoiseAt.SERVER:
            return AgainstServer(math.inf, NOTHING)
        else:
            precision += campaigns / randomizer.noise_multiplier**2
    left = delta - math.fsum(one.local_delta * times for one, times in local.items())
    added = math.fsum(one.local_epsilon * times for one, times in local.items())
    if left == 0.0 and not precision:  # basic composition spends exactly the local deltas
        return AgainstServer(added, OF_CONTENT)
    if not left > 0.0:
        return AgainstServer(math.inf, NO_BOUND)
    share = left / 2 if precision and local else left
    epsilon = 0.0
    if precision:
        epsilon += report_epsilon(1.0 / math.sqrt(precision), share)
    if len(local) == 1 and local.total() > 1:
        [(one, times)] = local.items()
        composed = kov_composition.homogeneous_composition(
            epsilon=one.local_epsilon, steps=times, delta=share
        )
        epsilon += min(added, composed)
    elif local:  # a single report spends no delta
        epsilon += added
    return AgainstServer(epsilon * (1.0 + 1e-12) if len(designs) > 1 else epsilon, OF_CONTENT)


_SHARE = 0.01
"""Largest part of delta charged for slots in which more curious clients meet than allowed for."""


def against_curious(
    designs: Sequence[Design], curious: int, *, delta: float, campaigns: int
) -> tuple[tuple[Design, ...], float]:
    """Return the designs to account for against ``curious`` clients, and their exposure h.

    e^ε h of delta is charged for all campaigns together (``total_variation.charge``).

    Neighbours:  any.
    Rounding:    h up.
    """
    runs = len(designs) * campaigns
    left, exposures = [], []
    for design in designs:
        met, probability = _in_one_slot(design, curious, most=_SHARE * delta / runs)
        left.append(_without(design, curious, met))
        exposures.append(_displaced(design, curious) + probability)
    total = campaigns * math.fsum(exposures)
    if runs > 1:  # for replace-one; the theorem says why
        total *= 1.0 + 2.0 * delta
    return tuple(left), min(1.0, total * (1.0 + 1e-12))


def _displaced(design: Design, curious: int) -> float:
    """Return c p0/(m (K+1)), a bound on the probability that the client displaces a curious one."""
    if not chooses(design):
        return 0.0
    return curious * design.participation / (design.choices * ((design.capacity or 1) + 1))


def chooses(design: Design) -> bool:
    """Return whether the server may turn away a client that checked in."""
    if design.protocol is Protocol.AVERAGED:
        return False
    return isinstance(design.randomizer, LocalRandomizer) or design.capacity is not None


def _in_one_slot(design: Design, curious: int, *, most: float) -> tuple[int, float]:
    """Return how many curious clients a slot allows for, and the probability that more meet."""
    noise = design.randomizer
    local_noise = isinstance(noise, GaussianNoise) and noise.at is NoiseAt.CLIENT
    if not local_noise or design.protocol is Protocol.AVERAGED:
        return 0, 0.0  # no part of the noise that hides a report is that of other clients
    slots, probability = design.choices, design.participation / design.choices
    for met in range(min(curious, (design.capacity or 1) - 1) + 1):
        more = slots * float(bdtrc(met, curious, probability)) * (1.0 + 1e-6)
        if more <= most:
            return met, more
    raise NotCovered(
        "curious",
        curious,
        f"could hold every place of a slot: with noise at the clients use a capacity far above"
        f" {curious * probability:.3g}, or noise at the server",
    )


def _without(design: Design, curious: int, met: int) -> Design:
    """Return the design with the reports and the noise of curious clients known."""
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
        fewest, most = design.population.fewest, design.population.most
        if curious >= fewest:
            raise InvalidValue(
                "curious", curious, f"must be fewer than the {fewest:,} who contribute"
            )
        return replace(design, population=Population(fewest - curious, most))
    if met and isinstance(randomizer, GaussianNoise) and design.capacity is not None:
        share = math.sqrt((design.capacity - met) / design.capacity) * (1.0 - 1e-12)
        if design.slot_noise(randomizer) * share < LEAST_NOISE:
            raise NotCovered("curious", curious, "leaves too little noise in a slot: add some")
        noise = replace(randomizer, noise_multiplier=randomizer.noise_multiplier * share)
        return replace(design, randomizer=noise)
    return design
