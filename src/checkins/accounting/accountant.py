"""Certify designs: try every method that applies, and state the smallest epsilon proved.

>>> design = Design(
...     Protocol.FIXED, slots=1000, participation=1.0, randomizer=LocalRandomizer(1.0)
... )
>>> certificate = certify(design, delta=1e-6, adjacency=Adjacency.ADD_REMOVE)
>>> round(certificate.epsilon, 4), certificate.method
(0.1266, 'exact')
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from checkins import validate
from checkins.accounting import total_variation
from checkins.accounting.adversaries import AgainstServer, against_curious, against_server
from checkins.accounting.bounds import Bound, Campaigns, HeterogeneousClients, Mechanism, best_bound
from checkins.accounting.certificate import (
    KIND_INDEPENDENT_OF_DATA,
    OF_DESIGN,
    OF_SOME_RANDOMIZER,
    Certificate,
    assumptions,
    charged_to_delta,
    versions,
)
from checkins.accounting.comparisons import comparisons
from checkins.accounting.design import MOST_EPSILON, Adjacency, Design, LocalRandomizer, Protocol
from checkins.accounting.exact import campaign_divergence
from checkins.accounting.exact.grid_distribution import Rounding, Side
from checkins.errors import InvalidValue, NotCovered

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

METHODS = {
    "exact": "the exact accountant: one likelihood ratio, summed over slots",
    "exact-population": "the exact accountant, with a limit on the number of clients",
    "filter-gaussian": "a Gaussian filter: campaigns may be chosen after earlier releases",
    "filter-renyi": "a Renyi filter: campaigns may be chosen after earlier releases",
    "paper": "the paper's theorem for the protocol",
    "no-amplification": "the bound against an adversary who knows the client's slot",
    "poisson": "Poisson subsampling, as DP-SGD libraries assume",
    "shuffling-best": "shuffling, by the exact accountant",
    "shuffling-paper": "shuffling, by the paper's theorem",
    "shuffling-efmrtt19": "shuffling, by the earlier theorem that the paper improves",
}
"""The methods that a certificate can name, each with a description.

The command line shows the part before the colon."""


def certify(
    design: Design | Sequence[Design],
    *,
    delta: float,
    adjacency: Adjacency,
    campaigns: int = 1,
    compare: bool = True,
    variation: float = 0.0,
    curious: int = 0,
) -> Certificate:
    """Certify the smallest epsilon that is proved for the design, with its assumptions.

    If ``design`` is a sequence, its campaigns run one after the other, and the whole sequence runs
    ``campaigns`` times. ``compare=False`` leaves out epsilons of other protocols, which prove
    nothing about the design. ``variation`` is an upper bound on the total variation distance
    between all real releases and some function of the design's releases, such as their rounding. It
    is charged to delta. ``epsilon_lower`` is a lower bound for the design without rounding, because
    rounded releases may be a little more private. ``curious`` is the number of clients that follow
    the protocol but disclose what they see (``adversaries.against_curious``).

    Rounding:    ``epsilon`` up, ``epsilon_lower`` down.
    """
    started = time.perf_counter()
    designs = (design,) if isinstance(design, Design) else tuple(design)
    check(designs, delta=delta, adjacency=adjacency, campaigns=campaigns, variation=variation)
    mechanism = Campaigns(designs, adjacency, campaigns)
    bounded, exposure = mechanism, 0.0
    if curious != 0 or curious is False:
        validate.count(curious=curious)
        accounted, exposure = against_curious(designs, curious, delta=delta, campaigns=campaigns)
        bounded = replace(mechanism, designs=accounted, curious=True)
    found = _bounds_after_charges(bounded, delta, variation, exposure)
    certificate = _certificate(
        mechanism, found, delta=delta, variation=variation, exposure=exposure, curious=curious
    )
    if compare and len(designs) == 1 and designs[0].participation > 0.0:
        compared = comparisons(designs[0], adjacency, campaigns=campaigns, delta=delta)
        certificate = replace(certificate, alternatives=(*certificate.alternatives, *compared))
    return replace(certificate, seconds=time.perf_counter() - started)


def _certificate(
    mechanism: Mechanism,
    found: Sequence[Bound],
    *,
    delta: float,
    variation: float,
    exposure: float = 0.0,
    curious: int = 0,
) -> Certificate:
    """Return the certificate of the best bound. Its lower bound is about ``mechanism``."""
    best = best_bound(found)
    epsilon = best.epsilon.upper
    # With curious clients, ``found`` is about a weaker mechanism: its lower bounds do not apply.
    known = mechanism.bounds(delta) if curious else found
    lower = max(bound.epsilon.lower for bound in known)
    if variation > 0.0:
        above = total_variation.increased_delta(delta=delta, epsilon=epsilon, variation=variation)
        lower = mechanism.lower_epsilon(above, at_most=lower)
    return Certificate(
        epsilon=epsilon,
        epsilon_lower=min(lower, epsilon),
        epsilon_lower_of=lower_of(mechanism.designs),
        delta=delta,
        adjacency=mechanism.adjacency,
        method=best.method,
        assumptions=(
            *_assumed(mechanism, best, curious),
            *charged_to_delta(variation=variation, epsilon=epsilon, exposure=exposure),
        ),
        alternatives=tuple(bound.as_alternative() for bound in found),
        campaigns=mechanism.campaigns,
        curious=curious,
        variation=variation,
        against_server=_against_server(mechanism, delta),
        versions=versions("checkins", "numpy", "scipy", "dp-accounting"),
    )


def lower_of(designs: Sequence[Design]) -> str:
    """Return the text that says for which mechanism the lower bound on epsilon holds."""
    unnamed = any(
        isinstance(design.randomizer, LocalRandomizer) and design.named_randomizer is None
        for design in designs
    )
    return OF_SOME_RANDOMIZER if unnamed else OF_DESIGN


def _against_server(mechanism: Mechanism, delta: float) -> AgainstServer:
    if isinstance(mechanism, Campaigns):
        return against_server(mechanism.designs, delta=delta, campaigns=mechanism.campaigns)
    each = (
        against_server((kind,), delta=delta, campaigns=mechanism.campaigns)
        for kind in mechanism.designs
    )
    return max(each, key=lambda one: one.epsilon)


def smallest_epsilon(
    designs: Sequence[Design],
    *,
    delta: float,
    adjacency: Adjacency,
    campaigns: int = 1,
    variation: float = 0.0,
) -> float:
    """Return the epsilon of ``certify`` without a certificate, or infinity if none is proved."""
    check(designs, delta=delta, adjacency=adjacency, campaigns=campaigns, variation=variation)
    mechanism = Campaigns(tuple(designs), adjacency, campaigns, needs_lower=False)
    try:
        return best_bound(_bounds_after_charges(mechanism, delta, variation, 0.0)).epsilon.upper
    except NotCovered:
        return math.inf


def _bounds_after_charges(
    mechanism: Mechanism, delta: float, variation: float, exposure: float
) -> list[Bound]:
    """Return all bounds at a part of ``delta``, the share.

    The rest of ``delta`` covers the charges for ``variation`` and ``exposure``. The largest share
    that leaves enough for them is used. Raise ``NotCovered`` if no bound is finite.
    """
    if variation == 0.0 and exposure == 0.0:
        return _finite(mechanism.bounds(delta), mechanism.designs, delta)

    def fits(share: float, epsilon: float) -> bool:
        return total_variation.fits(
            share, delta=delta, epsilon=epsilon, variation=variation, exposure=exposure
        )

    least = 0.0
    for share in total_variation.shares(delta):
        if not fits(share, least):
            continue  # its epsilon is at least ``least``, and the charges grow with epsilon
        if mechanism.proves_larger(_most_charged(share, delta, variation + exposure), share):
            continue
        found = _finite(mechanism.bounds(share), mechanism.designs, delta)
        least = max(least, best_bound(found).epsilon.upper)
        if fits(share, least):
            if exposure > 0.0:  # it may use much of delta, so a better share is worth a search
                return _refined(mechanism, found, delta, variation, exposure)
            return found
    raise total_variation.exhausted(delta, variation, exposure)


def _refined(
    mechanism: Mechanism, known: list[Bound], delta: float, variation: float, exposure: float
) -> list[Bound]:
    """Improve the bounds twice, with all of delta that remains after the charges."""
    for _ in range(2):
        epsilon = best_bound(known).epsilon.upper
        charge = total_variation.charge(epsilon=epsilon, variation=variation, exposure=exposure)
        share = math.nextafter(delta - charge, 0.0)
        found = _finite(mechanism.bounds(share), mechanism.designs, delta)
        if not best_bound(found).epsilon.upper < epsilon:
            break
        known = found
    return known


def _most_charged(share: float, delta: float, charged: float) -> float:
    """Return an epsilon above which ``share`` plus e^epsilon ``charged`` exceeds ``delta``."""
    room = (Fraction(delta) - Fraction(share)) / Fraction(charged)
    return math.log1p(2.0 * float(min(room, Fraction(10) ** 300)))


def _finite(found: list[Bound], designs: Sequence[Design], delta: float) -> list[Bound]:
    """Return the bounds. Raise ``NotCovered`` if none of them is finite."""
    if any(math.isfinite(bound.epsilon.upper) for bound in found):
        return found
    for design in designs:
        if isinstance(design.randomizer, LocalRandomizer) and not design.randomizer.is_pure:
            raise NotCovered(
                "local_delta",
                design.randomizer.local_delta,
                "no theorem covers it; its sum over all campaigns must be below delta",
            )
    raise NotCovered(
        "delta",
        delta,
        f"no epsilon below {MOST_EPSILON:g} is proved at it; add noise or slots, or run less",
    )


def certify_heterogeneous(
    kinds: Sequence[Design],
    *,
    delta: float,
    adjacency: Adjacency,
    campaigns: int = 1,
    variation: float = 0.0,
) -> Certificate:
    """Certify campaigns whose clients differ in window or participation.

    Each design in ``kinds`` describes one kind of client. The certificate holds for all clients.
    For one campaign, epsilon is the largest of all kinds. In several campaigns a client may be of a
    different kind each time, so epsilon may exceed that of every single kind. Therefore the
    pointwise largest divergence of the kinds is composed. A declared population is not used.

    Theorem:     docs/theory/windows-and-capacity.md, "Kinds of clients".
    Rounding:    ``epsilon`` up, ``epsilon_lower`` down.
    """
    started = time.perf_counter()
    check(kinds, delta=delta, adjacency=adjacency, campaigns=campaigns, variation=variation)
    # The population is dropped: whether slots overflow depends on all kinds of clients together.
    distinct = tuple(
        dict.fromkeys(
            kind if kind.protocol is Protocol.AVERAGED else replace(kind, population=None)
            for kind in kinds
        )
    )
    if len({(kind.protocol, kind.randomizer, kind.capacity) for kind in distinct}) > 1:
        raise InvalidValue(
            "kinds", len(distinct), "must differ in slots, window and participation only"
        )
    mechanism = (
        Campaigns(distinct, adjacency, campaigns)
        if len(distinct) == 1
        else HeterogeneousClients(distinct, adjacency, campaigns)
    )
    found = _bounds_after_charges(mechanism, delta, variation, 0.0)
    certificate = _certificate(mechanism, found, delta=delta, variation=variation)
    return replace(certificate, seconds=time.perf_counter() - started)


def loss_distribution(
    design: Design, *, delta: float, adjacency: Adjacency, interval: float
) -> PrivacyLossDistribution:
    """Return one campaign as dp_accounting's privacy loss distribution, to compose with others.

    ``delta`` is the smallest delta at which the result will be used. ``interval`` is the distance
    between neighbouring losses. A declared population is not used.

    Rounding:    up (pessimistic).
    """
    check((design,), delta=delta, adjacency=adjacency)
    validate.positive(interval=interval)
    if interval > 1.0:
        raise InvalidValue(
            "interval",
            interval,
            "must be at most 1, because coarser intervals give no useful bound",
        )
    rounding = Rounding.near(delta, side=Side.UP)
    pair = campaign_divergence.pair(design, adjacency, rounding, delta=delta)
    return pair.to_dp_accounting(interval=interval)


def check(
    designs: Sequence[Design],
    *,
    delta: float,
    adjacency: Adjacency,
    campaigns: int = 1,
    variation: float = 0.0,
) -> None:
    """Raise ``InvalidValue`` for arguments for which no certificate can exist."""
    validate.probability(variation=variation)
    for design in designs:
        validate.one_of(Design, design=design)
    validate.open_unit(delta=delta)
    validate.count(most=validate.MOST_CAMPAIGNS, campaigns=campaigns)
    if not isinstance(adjacency, Adjacency):
        raise InvalidValue("adjacency", adjacency, "must be a member of Adjacency")
    if not designs:
        raise InvalidValue("design", designs, "must name at least one campaign")
    for design in designs:
        design.check_adjacency(adjacency)


def _assumed(mechanism: Mechanism, best: Bound, curious: int) -> tuple[str, ...]:
    together = isinstance(mechanism, Campaigns)
    runs = mechanism.campaigns * (len(mechanism.designs) if together else 1)
    lines = (
        line
        for design in mechanism.designs
        for line in assumptions(
            design,
            adjacency=mechanism.adjacency,
            uses_population=best.method == "exact-population",
            campaigns=runs,
            curious=curious,
        )
    )
    return tuple(dict.fromkeys((*lines, *(() if together else (KIND_INDEPENDENT_OF_DATA,)))))
