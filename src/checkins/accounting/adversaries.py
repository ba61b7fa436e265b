"""Stronger adversaries: an untrusted server, and clients that disclose what they see.

A certificate is about what a trusted server releases. If the server is not trusted, a client is
protected only by the noise that its own device adds to a report. ``against_server`` returns that
guarantee.

Curious clients follow the protocol and disclose everything that they see. A curious client learns
whether it was chosen, and knows its own report and noise. If a client checks in to a full slot, it
can displace a curious client, who then learns that somebody else came. ``against_curious`` accounts
for this. The *exposure* h is an upper bound on the probability of such a displacement.

Theorem:     docs/theory/curious.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scipy.special import bdtrc

from checkins.accounting.design import (
    LEAST_SLOT_NOISE,
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
from checkins.accounting.solve import first_true
from checkins.errors import InvalidValue, NotCovered
from checkins.formatting import finite_or_none

NO_PROTECTION = "no protection, because it sees every clipped update before it adds the noise"
CONTENT_ONLY = "for what a client reports; the server sees which clients take part"
NO_BOUND = "no bound, because the local deltas of a client's reports exceed delta"


@dataclass(frozen=True, slots=True)
class AgainstServer:
    """Epsilon of one client's reports against the server, at the certificate's delta.

    ``epsilon`` is infinite if no bound holds. ``note`` says what the epsilon is about, or why there
    is none.
    """

    epsilon: float
    note: str

    def as_dict(self) -> dict[str, object]:
        return {
            "epsilon": finite_or_none(self.epsilon),
            "adjacency": str(Adjacency.REPLACE_ONE),
            "note": self.note,
        }


def against_server(designs: Sequence[Design], *, delta: float, campaigns: int = 1) -> AgainstServer:
    """Return the guarantee of a client's reports against the server, one report per campaign.

    Several Gaussian reports are equivalent to one Gaussian report whose precision (inverse
    variance) is the sum of theirs. Reports of equal local randomizers are composed by [KOV17]. The
    epsilons of different local randomizers are summed.

    Theorem:     [BW18, Thm 8], arXiv:1805.06530v2; [KOV17], ``paper.kov_composition``.
    Neighbours:  replace-one: two values of the client's data.
    Rounding:    up.
    """
    precision, randomizers = 0.0, Counter[LocalRandomizer]()
    for design in designs:
        randomizer = design.randomizer
        if isinstance(randomizer, LocalRandomizer):
            randomizers[randomizer] += campaigns
        elif randomizer.at is NoiseAt.SERVER:
            return AgainstServer(math.inf, NO_PROTECTION)
        else:
            precision += campaigns / randomizer.noise_multiplier**2
    remaining = delta - math.fsum(one.local_delta * count for one, count in randomizers.items())
    summed_epsilon = math.fsum(one.local_epsilon * count for one, count in randomizers.items())
    if remaining == 0.0 and not precision:  # basic composition needs the local deltas only
        return AgainstServer(summed_epsilon, CONTENT_ONLY)
    if not remaining > 0.0:
        return AgainstServer(math.inf, NO_BOUND)
    delta_share = remaining / 2 if precision and randomizers else remaining
    epsilon = 0.0
    if precision:
        epsilon += report_epsilon(1.0 / math.sqrt(precision), delta_share)
    if len(randomizers) == 1 and randomizers.total() > 1:
        [(one, count)] = randomizers.items()
        composed = kov_composition.homogeneous_composition(
            epsilon=one.local_epsilon, steps=count, delta=delta_share
        )
        epsilon += min(summed_epsilon, composed)
    elif randomizers:  # a single report needs no delta of its own
        epsilon += summed_epsilon
    return AgainstServer(epsilon * (1.0 + 1e-12) if len(designs) > 1 else epsilon, CONTENT_ONLY)


_CROWDED_SLOT_DELTA_SHARE = 0.01
"""Largest share of delta to charge for slots with more curious clients than the proof assumes."""


def against_curious(
    designs: Sequence[Design], curious: int, *, delta: float, campaigns: int
) -> tuple[tuple[Design, ...], float]:
    """Return the designs whose epsilon holds against ``curious`` clients, and the exposure h.

    h is the sum over all campaigns. The caller charges e^ε h to delta
    (``total_variation.charge``).

    Neighbours:  any.
    Rounding:    h up.
    """
    runs = len(designs) * campaigns
    accounted, exposures = [], []
    for design in designs:
        curious_in_slot, probability_of_more = _curious_per_slot(
            design, curious, most=_CROWDED_SLOT_DELTA_SHARE * delta / runs
        )
        accounted.append(_without_curious(design, curious, curious_in_slot))
        exposures.append(_displacement_bound(design, curious) + probability_of_more)
    total = campaigns * math.fsum(exposures)
    if runs > 1:  # replace-one needs this factor: see docs/theory/curious.md
        total *= 1.0 + 2.0 * delta
    return tuple(accounted), min(1.0, total * (1.0 + 1e-12))


def _displacement_bound(design: Design, curious: int) -> float:
    """Return c p0/(m (K+1)), which bounds the probability that a curious client is displaced.

    c is the number of curious clients, p0 the participation, m the number of slots from which a
    client draws, and K the capacity, or 1 if no capacity is declared.
    """
    if not design.displaces_clients:
        return 0.0
    return curious * design.participation / (design.drawable_slots * (design.reports_per_slot + 1))


def _curious_per_slot(design: Design, curious: int, *, most: float) -> tuple[int, float]:
    """Return a number of curious clients per slot to assume, and the probability of a larger one.

    The returned number is the smallest for which this probability is at most ``most``.
    """
    randomizer = design.randomizer
    noise_at_server = isinstance(randomizer, GaussianNoise) and randomizer.at is NoiseAt.SERVER
    if noise_at_server or design.protocol is Protocol.AVERAGED:
        return 0, 0.0  # the reports of other clients in the slot are not needed to hide a report
    slots, probability = design.drawable_slots, design.participation / design.drawable_slots
    places = design.reports_per_slot - 1

    def probability_of_more(in_slot: int) -> float:
        return slots * float(bdtrc(in_slot, curious, probability)) * (1.0 + 1e-6)

    most_in_slot = min(curious, places)
    if probability_of_more(most_in_slot) <= most:
        in_slot = first_true(
            lambda count: probability_of_more(count) <= most, false=-1, true=most_in_slot
        )
        return in_slot, probability_of_more(in_slot)
    if isinstance(randomizer, LocalRandomizer):
        return places, 0.0  # the local randomizer hides a report, even if all others are disclosed
    raise NotCovered(
        "curious",
        curious,
        f"could fill every place of a slot; use a capacity far above {curious * probability:.3g},"
        f" or noise at the server",
    )


def _without_curious(design: Design, curious: int, curious_in_slot: int) -> Design:
    """Return the design without the protection by the reports and noise of curious clients."""
    randomizer = design.randomizer
    if isinstance(randomizer, LocalRandomizer) and not randomizer.is_pure:
        raise NotCovered(
            "curious", curious, "no theorem covers them with a local delta; use a pure randomizer"
        )
    if design.protocol is Protocol.AVERAGED and isinstance(randomizer, GaussianNoise):
        if design.least_reports is None:
            raise NotCovered(
                "curious",
                curious,
                "are covered for averages of Gaussian reports only with least_reports",
            )
        return replace(design, least_reports=max(1, design.least_reports - curious))
    if design.protocol is Protocol.AVERAGED and design.population is not None:
        fewest, most = design.population.fewest, design.population.most
        if curious >= fewest:
            raise InvalidValue(
                "curious", curious, f"must be fewer than the {fewest:,} clients that contribute"
            )
        return replace(design, population=Population(fewest - curious, most))
    if curious_in_slot and design.capacity is not None and isinstance(randomizer, LocalRandomizer):
        unnamed = LocalRandomizer(randomizer.local_epsilon)  # bounds for known dummies do not apply
        return replace(design, capacity=design.capacity - curious_in_slot, randomizer=unnamed)
    if curious_in_slot and isinstance(randomizer, GaussianNoise) and design.capacity is not None:
        share = math.sqrt((design.capacity - curious_in_slot) / design.capacity) * (1.0 - 1e-12)
        if design.slot_noise(randomizer) * share < LEAST_SLOT_NOISE:
            raise NotCovered("curious", curious, "leave too little noise in a slot; add noise")
        noise = replace(randomizer, noise_multiplier=randomizer.noise_multiplier * share)
        return replace(design, randomizer=noise)
    return design
