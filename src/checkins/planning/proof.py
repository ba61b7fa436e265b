"""The recommended design, settled: its last digit of noise, its campaign and its certificate."""

from __future__ import annotations

import time
from dataclasses import replace

from checkins.accounting import Adjacency, Certificate, Protocol, total_variation
from checkins.accounting.precision import Precision, certify_at
from checkins.campaign import Campaign, PartialRun, price
from checkins.errors import NotCovered
from checkins.planning.campaign import campaign_of
from checkins.planning.candidate import DesignCandidate
from checkins.planning.noise import guessed, proven_level
from checkins.planning.priced import PricedDesign
from checkins.planning.search import tidy
from checkins.planning.target import Method, Target

FULL_SLOTS = 300
"""Replace-one at more slots than this is certified on a coarser grid: a full one takes seconds."""
IN_HAND = 0.99
"""Of the budget, where the full certificate is left to `checkins check`: it composes in another
way, and came out a fifth of a per cent larger at worst where we looked."""
SLACK = 0.0015
_STEP, _MOST_TURNS = 1.0005, 8


def settled(design: PricedDesign) -> tuple[PricedDesign, Campaign, Certificate]:
    """The design at the least noise that a finer grid proves, what runs, and what it promises."""
    started = time.perf_counter()
    quick = is_quick(campaign_of(design))
    target = design.target
    if not quick:
        target = replace(target, epsilon=IN_HAND * target.epsilon)
    found, run = _settled(design, target, charged=not quick)
    if not quick:
        return found, run.campaign, _coarse(found, run, started)
    for _ in range(_MOST_TURNS):
        certificate = price([run])
        if certificate.epsilon <= target.epsilon:
            return replace(found, epsilon=certificate.epsilon), run.campaign, certificate
        more = max(certificate.epsilon / target.epsilon, _STEP)
        level = found.level * more if found.shape.is_gaussian else found.level / more
        found, run = _at(found, level)
    raise _disagreement(target)


def _settled(
    design: PricedDesign, target: Target, *, charged: bool
) -> tuple[PricedDesign, PartialRun]:
    """A level that a finer grid proves.

    If ``charged``, for what the grids of devices leave of delta. How much that is depends on the
    level: at first nearly all of it is hoped for.
    """
    shape = _declared(design)
    guess = design.level * guessed(shape, target) / guessed(shape, design.target)
    left = target.delta * (1.0 - 2.0**-20)
    for _ in range(_MOST_TURNS):
        goal = replace(target, delta=left)
        level = proven_level(shape, goal, precision_for(shape, target), guess=guess, slack=SLACK)
        if level is None:
            break
        found, run = _at(PricedDesign.of(shape, level, target, design.question), level)
        hoped, left = left, _left(target, run) if charged else left
        if left >= hoped:
            return found, run
    raise _disagreement(target)


def _at(design: PricedDesign, level: float) -> tuple[PricedDesign, PartialRun]:
    kept = tidy(design.shape, level)
    found = PricedDesign.of(design.shape, kept, design.target, design.question)
    return found, PartialRun.whole(campaign_of(found))


def _left(target: Target, run: PartialRun) -> float:
    return total_variation.share(
        delta=target.delta, epsilon=target.epsilon, variation=run.variation
    )


def precision_for(shape: DesignCandidate, target: Target) -> Precision:
    """Each trial of replace-one in a single run builds a distribution of its own: less precise."""
    several = shape.repeats > 1
    finest = several or target.adjacency is Adjacency.ADD_REMOVE
    return Precision.FINEST if finest else Precision.FINER


def _disagreement(target: Target) -> NotCovered:
    return NotCovered(
        "epsilon", target.epsilon, "no noise was found that a certificate agrees with"
    )


def _declared(design: PricedDesign) -> DesignCandidate:
    """The shape with a population declared only if its price rests on one."""
    shape = design.shape
    averaged = shape.protocol is Protocol.AVERAGED
    if averaged or design.target.method(shape) is Method.EXACT_POPULATION:
        return shape
    return replace(shape, population=None)


def is_quick(campaign: Campaign) -> bool:
    """Whether the full certificate takes a second or so."""
    if campaign.budget.adjacency is Adjacency.ADD_REMOVE:
        return True
    design = campaign.design
    gaussian = campaign.noise_multiplier is not None
    if not gaussian:
        return campaign.repeats == 1
    alone = campaign.repeats == 1 and design.slots <= FULL_SLOTS
    return alone and design.capacity is None


def _coarse(design: PricedDesign, run: PartialRun, started: float) -> Certificate:
    """The same theorem at the precision that proved the level: a looser but valid bound."""
    shape, target, campaign = design.shape, design.target, run.campaign
    return certify_at(
        campaign.design,
        epsilon=target.epsilon,
        delta=target.delta,
        adjacency=target.adjacency,
        precision=precision_for(shape, target),
        method=target.method(shape),
        campaigns=campaign.repeats,
        variation=run.variation,
        started=started,
    )
