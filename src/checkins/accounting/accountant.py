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
import time
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from checkins.accounting import exact, require
from checkins.accounting import variation as total_variation
from checkins.accounting.assumptions import assumptions, paid_in_delta
from checkins.accounting.certificate import Alternative, Certificate
from checkins.accounting.comparison import comparisons
from checkins.accounting.design import (
    Adjacency,
    Design,
    LocalRandomizer,
    Protocol,
)
from checkins.accounting.divergence import MOST_EPSILON
from checkins.accounting.findings import Finding, Question
from checkins.accounting.law import SMALLEST, Rounding, Side
from checkins.accounting.versions import versions
from checkins.errors import InvalidValue, NotCovered

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

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


def certify(
    design: Design | Sequence[Design],
    *,
    delta: float,
    adjacency: Adjacency,
    campaigns: int = 1,
    compare: bool = True,
    variation: float = 0.0,
) -> Certificate:
    """The smallest epsilon proven for the design, with everything it rests on.

    A sequence of designs is run one after the other, and all of it ``campaigns`` times over.
    ``compare=False`` leaves out the comparisons that prove nothing about the design. ``variation``
    bounds the total variation between what runs, all releases together, and some function of the
    design's releases, such as their rounding; it is paid for in delta. ``epsilon_lower`` is about
    the design: what is rounded may be a little more private.

    Rounding:    ``epsilon`` up, ``epsilon_lower`` down.
    """
    started = time.perf_counter()
    designs = (design,) if isinstance(design, Design) else tuple(design)
    check(designs, delta=delta, adjacency=adjacency, campaigns=campaigns)
    total_variation.check(variation)
    question = Question(designs, adjacency, campaigns)
    found, best = _charged(question, delta, variation)
    compared: list[Alternative] = []
    if compare and len(designs) == 1 and designs[0].participation > 0.0:
        compared = list(comparisons(designs[0], adjacency, campaigns=campaigns, delta=delta))
    lower = max(finding.epsilon.lower for finding in found)
    if variation > 0.0:
        above = total_variation.widened(
            delta=delta, epsilon=best.epsilon.upper, variation=variation
        )
        lower = question.too_small(above, at_most=lower)
    return Certificate(
        epsilon=best.epsilon.upper,
        epsilon_lower=min(lower, best.epsilon.upper),
        delta=delta,
        adjacency=adjacency,
        method=best.method,
        assumptions=(
            *_assumed(designs, best, campaigns),
            *paid_in_delta(variation=variation, epsilon=best.epsilon.upper),
        ),
        alternatives=(
            *(_alternative(finding) for finding in found),
            *compared,
        ),
        campaigns=campaigns,
        variation=variation,
        seconds=time.perf_counter() - started,
        versions=versions("checkins", "numpy", "scipy", "dp-accounting"),
    )


def smallest_epsilon(
    designs: Sequence[Design],
    *,
    delta: float,
    adjacency: Adjacency,
    campaigns: int = 1,
    variation: float = 0.0,
) -> float:
    """The epsilon of the certificate, without the rest of it; infinity where none is proved."""
    check(designs, delta=delta, adjacency=adjacency, campaigns=campaigns)
    total_variation.check(variation)
    try:
        _, best = _charged(Question(tuple(designs), adjacency, campaigns), delta, variation)
    except NotCovered:
        return math.inf
    return best.epsilon.upper


def _charged(question: Question, delta: float, variation: float) -> tuple[list[Finding], Finding]:
    """Every finding at the largest share of delta that leaves enough for the variation."""
    if variation == 0.0:
        found = question.findings(delta)
        return found, _best(found, question, delta)
    least = 0.0
    for share in total_variation.shares(delta):
        if not total_variation.fits(share, delta=delta, epsilon=least, variation=variation):
            continue  # nor would it at the epsilon of this share, which is no smaller
        if question.surely_above(_most_charged(share, delta, variation), share):
            continue
        found = question.findings(share)
        best = _best(found, question, delta)
        least = max(least, best.epsilon.upper)
        if total_variation.fits(share, delta=delta, epsilon=least, variation=variation):
            return found, best
    raise total_variation.exhausted(delta, variation)


def _most_charged(share: float, delta: float, variation: float) -> float:
    """An epsilon from which on ``share`` and the charge for the variation exceed ``delta``."""
    room = (Fraction(delta) - Fraction(share)) / Fraction(variation)
    return math.log1p(2.0 * float(min(room, Fraction(10) ** 300)))


def _best(found: Sequence[Finding], question: Question, delta: float) -> Finding:
    best = min(found, key=lambda finding: finding.epsilon.upper, default=None)
    if best is None or not math.isfinite(best.epsilon.upper):
        raise _uncovered(question.designs, delta)
    return best


def certify_kinds(
    kinds: Sequence[Design],
    *,
    delta: float,
    adjacency: Adjacency,
    campaigns: int = 1,
    variation: float = 0.0,
) -> Certificate:
    """One campaign whose clients differ, in window or participation: the largest price of any kind.

    Capacity is priced without regard to a population.

    Theorem:     docs/theory/windows-and-capacity.md; kinds are not ordered, so all are priced.
    Rounding:    ``epsilon`` up, ``epsilon_lower`` down.
    """
    check(kinds, delta=delta, adjacency=adjacency, campaigns=campaigns)
    priced = [
        certify(
            kind,
            delta=delta,
            adjacency=adjacency,
            campaigns=campaigns,
            compare=False,
            variation=variation,
        )
        for kind in dict.fromkeys(_without_population(kind) for kind in kinds)
    ]
    worst = max(priced, key=lambda certificate: certificate.epsilon)
    everything = [line for certificate in priced for line in certificate.assumptions]
    own = paid_in_delta(variation=variation, epsilon=worst.epsilon)
    charges = {paid_in_delta(variation=variation, epsilon=one.epsilon) for one in priced}
    others = (line for line in everything if (line,) not in charges)
    return replace(
        worst,
        assumptions=(*dict.fromkeys(others), *own),
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


def _alternative(finding: Finding) -> Alternative:
    bounded = math.isfinite(finding.epsilon.upper)
    note = finding.note if bounded else "no bound here"
    return Alternative(finding.method, finding.epsilon.upper, note, proves=bounded)


def _assumed(designs: Sequence[Design], best: Finding, campaigns: int) -> tuple[str, ...]:
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
