"""Certify designs: compute epsilon by every method that applies, and state the smallest.

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
from checkins.accounting.bounds import (
    Bound,
    Campaigns,
    HeterogeneousClients,
    Mechanism,
    best_bound,
    known_lower,
)
from checkins.accounting.certificate import (
    KIND_INDEPENDENT_OF_DATA,
    OF_ANY_OTHERS,
    OF_DESIGN,
    OF_SOME_RANDOMIZER,
    OF_SOME_RANDOMIZER_AMONG_OTHERS,
    Certificate,
    assumptions,
    charge_assumptions,
    versions,
)
from checkins.accounting.comparisons import comparisons
from checkins.accounting.composition import Composition
from checkins.accounting.design import (
    MOST_EPSILON,
    Adjacency,
    Design,
    GaussianNoise,
    LocalRandomizer,
    Protocol,
)
from checkins.accounting.exact.grid_distribution import Side
from checkins.errors import InvalidValue, NotCovered

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

METHODS = {
    "exact": "the exact accountant: one likelihood ratio, summed over slots",
    "exact-population": "the exact accountant, assuming a maximum number of clients",
    "filter-gaussian": "a Gaussian filter: campaigns may be chosen after earlier releases",
    "filter-renyi": "a Renyi filter: campaigns may be chosen after earlier releases",
    "paper": "the paper's theorem for the protocol",
    "no-amplification": "the bound against an adversary who knows the slot that a client draws",
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
    check_arguments(
        designs, delta=delta, adjacency=adjacency, campaigns=campaigns, variation=variation
    )
    mechanism = Campaigns(designs, adjacency, campaigns)
    accounted, exposure = mechanism, 0.0
    if curious != 0 or curious is False:  # False is refused, because it is not a number
        validate.count(curious=curious)
        if any(one.has_unrelated_windows(adjacency) for one in designs):
            raise NotCovered(
                "curious", curious, "no theorem covers them if wake times depend on data"
            )
        accounted_designs, exposure = against_curious(
            designs, curious, delta=delta, campaigns=campaigns
        )
        accounted = replace(mechanism, designs=accounted_designs, has_curious_clients=True)
    bounds = _bounds_after_charges(accounted, delta, variation, exposure, curious=curious)
    certificate = _certificate(
        mechanism, bounds, delta=delta, variation=variation, exposure=exposure, curious=curious
    )
    if compare and len(designs) == 1 and designs[0].participation > 0.0:
        others = comparisons(designs[0], adjacency, campaigns=campaigns, delta=delta)
        certificate = replace(certificate, alternatives=(*certificate.alternatives, *others))
    return replace(certificate, seconds=time.perf_counter() - started)


def _certificate(
    mechanism: Mechanism,
    bounds: Sequence[Bound],
    *,
    delta: float,
    variation: float,
    exposure: float = 0.0,
    curious: int = 0,
) -> Certificate:
    """Return the certificate of the best bound. ``epsilon_lower`` is computed for ``mechanism``."""
    best = best_bound(bounds)
    epsilon = best.epsilon.upper
    # With curious clients, ``bounds`` is about a less private mechanism: lower bounds do not hold.
    true_bounds = mechanism.bounds(delta) if curious else bounds
    lower_epsilon = known_lower(true_bounds)
    if variation > 0.0:
        increased_delta = total_variation.increased_delta(
            delta=delta, epsilon=epsilon, variation=variation
        )
        lower_epsilon = mechanism.lower_epsilon(increased_delta, at_most=lower_epsilon)
    return Certificate(
        epsilon=epsilon,
        epsilon_lower=min(lower_epsilon, epsilon),
        epsilon_lower_of=mechanism_of_lower_bound(mechanism.designs),
        delta=delta,
        adjacency=mechanism.adjacency,
        method=best.method,
        assumptions=(
            *_assumptions_of_bound(mechanism, best, curious),
            *charge_assumptions(variation=variation, epsilon=epsilon, exposure=exposure),
        ),
        alternatives=tuple(bound.as_alternative() for bound in bounds),
        campaigns=mechanism.campaigns,
        curious=curious,
        variation=variation,
        against_server=_against_server(mechanism, delta),
        versions=versions("checkins", "numpy", "scipy", "dp-accounting"),
    )


def mechanism_of_lower_bound(designs: Sequence[Design]) -> str:
    """Return the text that says for which mechanism the lower bound on epsilon holds."""
    is_unnamed = any(
        isinstance(design.randomizer, LocalRandomizer) and design.named_randomizer is None
        for design in designs
    )
    among_others = any(_has_lower_bound_among_others(design) for design in designs)
    if is_unnamed:
        return OF_SOME_RANDOMIZER_AMONG_OTHERS if among_others else OF_SOME_RANDOMIZER
    return OF_ANY_OTHERS if among_others else OF_DESIGN


def _has_lower_bound_among_others(design: Design) -> bool:
    """Return True if the lower bound may need any number of other clients."""
    if isinstance(design.randomizer, GaussianNoise):
        is_displaced = design.displaces_clients and not design.has_correlated_noise
        return is_displaced and design.most_clients is None
    is_unnamed = design.named_randomizer is None and design.protocol is not Protocol.AVERAGED
    return is_unnamed and (design.capacity or 1) > 1


def _against_server(mechanism: Mechanism, delta: float) -> AgainstServer:
    """Return the guarantee if the server is not trusted, for the least protected kind of client."""
    if isinstance(mechanism, Campaigns):
        return against_server(mechanism.designs, delta=delta, campaigns=mechanism.campaigns)
    guarantees = (
        against_server((kind,), delta=delta, campaigns=mechanism.campaigns)
        for kind in mechanism.designs
    )
    return max(guarantees, key=lambda guarantee: guarantee.epsilon)


def smallest_epsilon(
    designs: Sequence[Design],
    *,
    delta: float,
    adjacency: Adjacency,
    campaigns: int = 1,
    variation: float = 0.0,
) -> float:
    """Return only the epsilon of ``certify``, or infinity if no epsilon is proved."""
    check_arguments(
        designs, delta=delta, adjacency=adjacency, campaigns=campaigns, variation=variation
    )
    mechanism = Campaigns(tuple(designs), adjacency, campaigns, needs_lower=False)
    try:
        return best_bound(_bounds_after_charges(mechanism, delta, variation, 0.0)).epsilon.upper
    except NotCovered:
        return math.inf


def _bounds_after_charges(
    mechanism: Mechanism, delta: float, variation: float, exposure: float, *, curious: int = 0
) -> list[Bound]:
    """Return all bounds on epsilon after the charges for ``variation`` and ``exposure``.

    ``exposure`` bounds the probability that a client displaces one of ``curious`` clients. The
    bounds hold at a share of ``delta``, and the rest covers the charges. The largest share that
    leaves enough for the charges is used. Raise ``NotCovered`` if no bound is finite.
    """
    if variation == 0.0 and exposure == 0.0:
        return _require_finite(mechanism.bounds(delta), mechanism.designs, delta)

    def charges_fit(share: float, epsilon: float) -> bool:
        return total_variation.charges_fit(
            share, delta=delta, epsilon=epsilon, variation=variation, exposure=exposure
        )

    least_epsilon = 0.0
    for share in total_variation.delta_shares(delta):
        if not charges_fit(share, least_epsilon):
            continue  # smaller shares have larger epsilons, and the charges grow with epsilon
        if mechanism.proves_larger_epsilon(
            _epsilon_that_exhausts_delta(share, delta, variation + exposure), share
        ):
            continue
        bounds = _require_finite(mechanism.bounds(share), mechanism.designs, delta)
        least_epsilon = max(least_epsilon, best_bound(bounds).epsilon.upper)
        if charges_fit(share, least_epsilon):
            # With curious clients, the charge may be large, so a better share is worth a search.
            if exposure > 0.0:
                return _improved_bounds(mechanism, bounds, delta, variation, exposure)
            return bounds
    raise total_variation.delta_exhausted(delta, variation, exposure, curious=curious)


def _improved_bounds(
    mechanism: Mechanism, bounds: list[Bound], delta: float, variation: float, exposure: float
) -> list[Bound]:
    """Compute the bounds again, up to twice, with all of delta that the charges leave."""
    for _ in range(2):
        epsilon = best_bound(bounds).epsilon.upper
        charge = total_variation.charge(epsilon=epsilon, variation=variation, exposure=exposure)
        share = math.nextafter(delta - charge, 0.0)
        improved = _require_finite(mechanism.bounds(share), mechanism.designs, delta)
        if not best_bound(improved).epsilon.upper < epsilon:
            break
        bounds = improved
    return bounds


def _epsilon_that_exhausts_delta(share: float, delta: float, charge_factor: float) -> float:
    """Return an epsilon above which ``share`` + e^epsilon ``charge_factor`` exceeds ``delta``."""
    ratio = (Fraction(delta) - Fraction(share)) / Fraction(charge_factor)
    return math.log1p(2.0 * float(min(ratio, Fraction(10) ** 300)))


def _require_finite(bounds: list[Bound], designs: Sequence[Design], delta: float) -> list[Bound]:
    """Return ``bounds``. Raise ``NotCovered`` if none of them is finite."""
    if any(math.isfinite(bound.epsilon.upper) for bound in bounds):
        return bounds
    for design in designs:
        if isinstance(design.randomizer, LocalRandomizer) and not design.randomizer.is_pure:
            raise NotCovered(
                "local_delta",
                design.randomizer.local_delta,
                "no theorem covers it; the sum over all campaigns must be less than delta",
            )
    raise NotCovered(
        "delta",
        delta,
        f"no epsilon below {MOST_EPSILON:g} is proved at this delta; add noise or slots, or run"
        " fewer campaigns",
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
    different kind each time, so epsilon may exceed the epsilon of every kind. Therefore the
    pointwise largest divergence of the kinds is composed. A declared population is not used.

    Theorem:     docs/theory/windows-and-capacity.md, "Kinds of clients".
    Rounding:    ``epsilon`` up, ``epsilon_lower`` down.
    """
    started = time.perf_counter()
    check_arguments(
        kinds, delta=delta, adjacency=adjacency, campaigns=campaigns, variation=variation
    )
    # The population is dropped: whether slots overflow depends on all kinds of clients together.
    distinct_kinds = tuple(
        dict.fromkeys(
            kind
            if kind.protocol is Protocol.AVERAGED
            else replace(kind, population=None, arrivals=None)
            for kind in kinds
        )
    )
    if len({_common_parameters(kind) for kind in distinct_kinds}) > 1:
        raise InvalidValue(
            "kinds", len(distinct_kinds), "must differ in slots, window and participation only"
        )
    mechanism = (
        Campaigns(distinct_kinds, adjacency, campaigns)
        if len(distinct_kinds) == 1
        else HeterogeneousClients(distinct_kinds, adjacency, campaigns)
    )
    bounds = _bounds_after_charges(mechanism, delta, variation, 0.0)
    certificate = _certificate(mechanism, bounds, delta=delta, variation=variation)
    return replace(certificate, seconds=time.perf_counter() - started)


def _common_parameters(kind: Design) -> tuple[object, ...]:
    """Return the parameters that all kinds of clients must share."""
    return kind.protocol, kind.randomizer, kind.capacity, kind.least_reports, kind.wake_times


def loss_distribution(
    design: Design | Sequence[Design],
    *,
    delta: float,
    adjacency: Adjacency,
    interval: float,
    campaigns: int = 1,
) -> PrivacyLossDistribution:
    """Return campaigns as dp_accounting's privacy loss distribution, to compose with others.

    If ``design`` is a sequence, its campaigns run one after the other, and the whole sequence runs
    ``campaigns`` times. ``delta`` is the smallest delta at which the result will be used.
    ``interval`` is the distance between neighbouring points of the grid of privacy losses. A
    declared population is not used.

    Rounding:    up (pessimistic).
    """
    designs = (design,) if isinstance(design, Design) else tuple(design)
    check_arguments(designs, delta=delta, adjacency=adjacency, campaigns=campaigns)
    validate.positive(interval=interval)
    if interval > 1.0:
        raise InvalidValue(
            "interval",
            interval,
            "must be at most 1, because coarser intervals give no useful bound",
        )
    pair = Composition(designs, adjacency, campaigns).pair(adjacency, delta, Side.UP)
    return pair.to_dp_accounting(interval=interval)


def check_arguments(
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
    validate.count(most=validate.MAX_CAMPAIGNS, campaigns=campaigns)
    if not isinstance(adjacency, Adjacency):
        raise InvalidValue("adjacency", adjacency, "must be a member of Adjacency")
    if not designs:
        raise InvalidValue("design", designs, "must name at least one campaign")
    for design in designs:
        design.check_adjacency(adjacency)


def _uses_population(design: Design, method: str) -> bool:
    """Return True if the bound of this method assumes the declared number of clients."""
    if design.protocol is Protocol.AVERAGED:
        return method == "paper"
    return method == "exact-population"


def _assumptions_of_bound(mechanism: Mechanism, best: Bound, curious: int) -> tuple[str, ...]:
    """Return the assumptions of the best bound, without duplicates."""
    is_sequence = isinstance(mechanism, Campaigns)
    runs = mechanism.campaigns * (len(mechanism.designs) if is_sequence else 1)
    lines = (
        line
        for design in mechanism.designs
        for line in assumptions(
            design,
            adjacency=mechanism.adjacency,
            uses_population=_uses_population(design, best.method),
            campaigns=runs,
            curious=curious,
        )
    )
    return tuple(dict.fromkeys((*lines, *(() if is_sequence else (KIND_INDEPENDENT_OF_DATA,)))))
