"""From a description to a certificate: every method that applies, the smallest valid epsilon.

>>> design = Design(
...     Protocol.FIXED, slots=1000, participation=1.0, randomizer=LocalRandomizer(1.0)
... )
>>> certificate = certify(design, delta=1e-6, adjacency=Adjacency.ADD_REMOVE)
>>> round(certificate.epsilon, 4), certificate.method
(0.1266, 'exact')
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version

from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from checkins.accounting import exact, require
from checkins.accounting.assumptions import assumptions
from checkins.accounting.certificate import Alternative, Certificate
from checkins.accounting.comparison import comparisons
from checkins.accounting.design import (
    Adjacency,
    Design,
    LocalRandomizer,
    Protocol,
)
from checkins.accounting.divergence import MOST_EPSILON, Interval
from checkins.accounting.law import SMALLEST, Rounding, Side
from checkins.accounting.paper_bounds import (
    composed_local_epsilon,
    composed_paper_epsilon,
    covers,
    local_epsilon,
    paper_epsilon,
)
from checkins.errors import InvalidValue, NotCovered

METHODS = {
    "exact": "the exact accountant: one likelihood ratio, summed over slots",
    "exact-population": "the exact accountant, given the largest population",
    "paper": "the paper's theorem for the protocol",
    "no-amplification": "what holds even if the client's slot were known",
    "poisson": "Poisson subsampling, as DP-SGD libraries assume",
    "shuffling-best": "shuffling, by the exact accountant",
    "shuffling-paper": "shuffling, by the paper's theorem",
    "shuffling-efmrtt19": "shuffling, by the earlier theorem the paper improves",
}
"""What each method name in a certificate means."""


@dataclass(frozen=True, slots=True)
class _Finding:
    method: str
    epsilon: Interval
    note: str


def certify(
    design: Design | Sequence[Design],
    *,
    delta: float,
    adjacency: Adjacency,
    campaigns: int = 1,
    compare: bool = True,
) -> Certificate:
    """The smallest epsilon proven for the design, with everything it rests on.

    A sequence of designs is run one after the other, and all of it ``campaigns`` times over.
    ``compare=False`` leaves out the comparisons that prove nothing about the design.

    Rounding:    ``epsilon`` up, ``epsilon_lower`` down.
    """
    started = time.perf_counter()
    designs = (design,) if isinstance(design, Design) else tuple(design)
    check(designs, delta=delta, adjacency=adjacency, campaigns=campaigns)
    alone = len(designs) == 1 and campaigns == 1
    found = list(
        _one(designs[0], adjacency, delta)
        if alone
        else _several(designs, adjacency, campaigns, delta)
    )
    best = min(found, key=lambda finding: finding.epsilon.upper, default=None)
    if best is None or not math.isfinite(best.epsilon.upper):
        raise _uncovered(designs, delta)
    compared: list[Alternative] = []
    if compare and len(designs) == 1 and designs[0].participation > 0.0:
        compared = list(comparisons(designs[0], adjacency, campaigns=campaigns, delta=delta))
    lower = max(finding.epsilon.lower for finding in found)
    return Certificate(
        epsilon=best.epsilon.upper,
        epsilon_lower=min(lower, best.epsilon.upper),
        delta=delta,
        adjacency=adjacency,
        method=best.method,
        assumptions=_assumed(designs, best, campaigns),
        alternatives=(
            *(_alternative(finding) for finding in found),
            *compared,
        ),
        campaigns=campaigns,
        seconds=time.perf_counter() - started,
        versions=_versions(),
    )


def certify_kinds(
    kinds: Sequence[Design], *, delta: float, adjacency: Adjacency, campaigns: int = 1
) -> Certificate:
    """One campaign whose clients differ, in window or participation: the largest price of any kind.

    Capacity is priced without regard to a population.

    Theorem:     docs/theory/windows-and-capacity.md; kinds are not ordered, so all are priced.
    Rounding:    ``epsilon`` up, ``epsilon_lower`` down.
    """
    check(kinds, delta=delta, adjacency=adjacency, campaigns=campaigns)
    priced = [
        certify(kind, delta=delta, adjacency=adjacency, campaigns=campaigns, compare=False)
        for kind in dict.fromkeys(_without_population(kind) for kind in kinds)
    ]
    worst = max(priced, key=lambda certificate: certificate.epsilon)
    everything = (line for certificate in priced for line in certificate.assumptions)
    return replace(
        worst,
        assumptions=tuple(dict.fromkeys(everything)),
        epsilon_lower=max(certificate.epsilon_lower for certificate in priced),
        seconds=math.fsum(certificate.seconds for certificate in priced),
    )


def _without_population(design: Design) -> Design:
    """How often a slot overflows depends on all kinds together: no kind may count on its own."""
    averaged = design.protocol is Protocol.AVERAGED
    return design if averaged else replace(design, population=None)


def loss_distribution(
    design: Design, *, delta: float, adjacency: Adjacency, interval: float
) -> PrivacyLossDistribution:
    """One campaign as dp_accounting's privacy loss distribution, to compose with others there.

    ``delta`` is the smallest one of interest, ``interval`` the spacing of the losses. A declared
    population is not used.

    Rounding:    up (pessimistic).
    """
    check((design,), delta=delta, adjacency=adjacency, campaigns=1)
    require.positive(interval=interval)
    if interval > 1.0:
        raise InvalidValue("interval", interval, "must be at most 1: losses would drown in it")
    rounding = Rounding(side=Side.UP, cells=exact.CELLS, tolerance=max(1e-9 * delta, SMALLEST))
    pair = exact.pair(design, adjacency, rounding, delta=delta)
    return pair.to_dp_accounting(interval=interval)


def check(designs: Sequence[Design], *, delta: float, adjacency: Adjacency, campaigns: int) -> None:
    """Refuse what no certificate can be asked for."""
    for design in designs:
        require.one_of(Design, design=design)
    require.open_unit(delta=delta)
    require.count(most=require.MOST_CAMPAIGNS, campaigns=campaigns)
    if not isinstance(adjacency, Adjacency):
        raise InvalidValue("adjacency", adjacency, "must be an Adjacency, one of the two")
    if not designs:
        raise InvalidValue("design", designs, "must name at least one campaign")
    for design in designs:
        if design.protocol is Protocol.AVERAGED and adjacency is Adjacency.ADD_REMOVE:
            raise NotCovered(
                "adjacency",
                str(adjacency),
                "a lone client shows in averaged updates (delta = 1): use replace-one",
            )


def _one(design: Design, adjacency: Adjacency, delta: float) -> Iterator[_Finding]:
    """Every method that proves something about one campaign."""
    if design.participation <= delta:
        yield _Finding("exact", Interval(0.0, 0.0), "participation is no larger than delta")
        return
    try:
        priced = exact.divergence(design, adjacency, delta=delta).epsilon(delta)
        yield _Finding("exact", priced, "needs neither the population nor the model")
        bounded = exact.with_population(design, adjacency, delta=delta)
        if bounded is not None and design.population is not None:
            note = f"needs that at most {design.population.most:,} clients exist"
            yield _Finding("exact-population", bounded.epsilon(delta), note)
    except NotCovered:
        yield from _witness(design, adjacency, delta)
    if covers(design):
        yield _Finding("paper", Interval(0.0, paper_epsilon(design, delta=delta)), "as published")
    unamplified = _no_amplification(design, adjacency, campaigns=1, delta=delta)
    yield _Finding("no-amplification", Interval(0.0, unamplified), "needs no random slots")


def _witness(design: Design, adjacency: Adjacency, delta: float) -> Iterator[_Finding]:
    """A lower bound where no exact upper one exists: a pure randomizer is approximate too."""
    if isinstance(design.randomizer, LocalRandomizer):
        pure = replace(design, randomizer=LocalRandomizer(design.randomizer.local_epsilon))
        lower = exact.divergence(pure, adjacency, delta=delta).epsilon(delta).lower
        yield _Finding("exact", Interval(lower, math.inf), "a pure randomizer attains it")


def _several(
    designs: Sequence[Design], adjacency: Adjacency, campaigns: int, delta: float
) -> Iterator[_Finding]:
    """Every method that proves something about several campaigns."""
    spent = campaigns * math.fsum(design.participation for design in designs)
    if spent <= delta:
        yield _Finding("exact", Interval(0.0, 0.0), "participation is no larger than delta")
        return
    try:
        priced = exact.composed(designs, adjacency, campaigns=campaigns, delta=delta)
        singles = (
            exact.divergence(design, adjacency, delta=delta).epsilon(delta).lower
            for design in set(designs)
            if design.participation > delta
        )
        alone = max(singles, default=0.0)
        priced = replace(priced, lower=min(max(priced.lower, alone), priced.upper))
        yield _Finding("exact", priced, "privacy loss distributions composed")
        bounded = exact.composed_with_population(
            designs, adjacency, campaigns=campaigns, delta=delta
        )
        if bounded is not None:
            note = "needs the declared bound on how many clients exist"
            yield _Finding("exact-population", Interval(0.0, bounded), note)
    except NotCovered:
        pass
    if all(map(covers, designs)):
        paper = composed_paper_epsilon(designs, campaigns=campaigns, delta=delta)
        yield _Finding("paper", Interval(0.0, paper), "as published, composed by KOV17")
    if len(designs) == 1:
        bare = _no_amplification(designs[0], adjacency, campaigns=campaigns, delta=delta)
        yield _Finding("no-amplification", Interval(0.0, bare), "needs no random slots")


def _no_amplification(
    design: Design, adjacency: Adjacency, *, campaigns: int, delta: float
) -> float:
    """Epsilon if the adversary knew which slot the client would take, if it takes part."""
    if campaigns == 1 and isinstance(design.randomizer, LocalRandomizer):
        return local_epsilon(design, design.randomizer, delta=delta)
    averaged = design.protocol is Protocol.AVERAGED  # each report is seen with its own noise
    window = None if design.window is None else 1
    known = replace(exact.uncapped(design) if averaged else design, slots=1, window=window)
    added = math.inf
    if isinstance(design.randomizer, LocalRandomizer):
        added = composed_local_epsilon(design, design.randomizer, campaigns=campaigns, delta=delta)
    try:
        if campaigns == 1:
            return exact.divergence(known, adjacency, delta=delta).epsilon(delta).upper
        composed = exact.composed((known,), adjacency, campaigns=campaigns, delta=delta)
        return min(added, composed.upper)
    except NotCovered:
        return added


def _alternative(finding: _Finding) -> Alternative:
    bounded = math.isfinite(finding.epsilon.upper)
    note = finding.note if bounded else "no bound here"
    return Alternative(finding.method, finding.epsilon.upper, note, proves=bounded)


def _assumed(designs: Sequence[Design], best: _Finding, campaigns: int) -> tuple[str, ...]:
    uses_population = best.method == "exact-population"
    lines = (
        line
        for design in designs
        for line in assumptions(
            design, uses_population=uses_population, campaigns=campaigns, designs=len(designs)
        )
    )
    return tuple(dict.fromkeys(lines))


def _uncovered(designs: Sequence[Design], delta: float) -> NotCovered:
    for design in designs:
        if isinstance(design.randomizer, LocalRandomizer) and not design.randomizer.is_pure:
            return NotCovered(
                "local_delta",
                design.randomizer.local_delta,
                "no theorem covers it: all campaigns together must stay within delta",
            )
    return NotCovered(
        "delta",
        delta,
        f"no epsilon below {MOST_EPSILON:g} is proved at it: add noise or slots, or run less",
    )


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in ("checkins", "numpy", "scipy", "dp-accounting"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "unknown"
    return versions
