"""The recommended design, settled: its last digit of noise, its campaign and its certificate."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from checkins.accounting import Adjacency, Certificate, Protocol
from checkins.accounting import variation as total_variation
from checkins.accounting.assumptions import assumptions, paid_in_delta
from checkins.accounting.certificate import Alternative
from checkins.accounting.versions import versions
from checkins.errors import NotCovered
from checkins.planning.campaign import campaign_of
from checkins.planning.noise import proven_level
from checkins.planning.priced import PricedDesign
from checkins.planning.search import tidy
from checkins.planning.shape import Shape
from checkins.planning.target import FINE, Method
from checkins.protocol.campaign import Campaign, RunSoFar, price

FULL_SLOTS = 300
"""Replace-one at more slots than this is certified on a coarser grid: a full one takes seconds."""
FINEST, FINER = 448, 280
"""Cells to settle with; each trial of replace-one in a single run builds a law of its own."""
IN_HAND = 0.99
"""Of the budget, where the full certificate is left to `checkins check`: it composes in another
way, and came out a fifth of a per cent larger at worst where we looked."""
_STEP = 1.0005


def settled(design: PricedDesign) -> tuple[PricedDesign, Campaign, Certificate]:
    """The design at the least noise that a finer grid proves, what runs, and what it promises."""
    shape, target = _declared(design), design.target
    if not is_quick(campaign_of(design)):
        target = replace(target, epsilon=IN_HAND * target.epsilon)
    cells = FINEST if target.adjacency is Adjacency.ADD_REMOVE or shape.repeats > 1 else FINER
    level = proven_level(shape, target, cells, guess=design.level, slack=0.03)
    better = level is not None and (level < design.level) is shape.is_gaussian
    kept = tidy(shape, level) if level is not None and better else design.level
    for _ in range(40):
        found = PricedDesign.of(shape, kept, target, design.question)
        campaign = campaign_of(found)
        certificate = certified(found, campaign, cells)
        if certificate.epsilon <= target.epsilon:
            return replace(found, epsilon=certificate.epsilon), campaign, certificate
        kept = tidy(shape, kept * _STEP if shape.is_gaussian else kept / _STEP)
    raise NotCovered("epsilon", target.epsilon, "no noise was found that a certificate agrees with")


def _declared(design: PricedDesign) -> Shape:
    """The shape with a population declared only if its price rests on one."""
    shape = design.shape
    averaged = shape.protocol is Protocol.AVERAGED
    if averaged or design.target.method(shape) is Method.EXACT_POPULATION:
        return shape
    return replace(shape, population=None)


def certified(design: PricedDesign, campaign: Campaign, cells: int) -> Certificate:
    """What ``checkins check`` says of the campaign, or a coarser bound where that takes long."""
    if is_quick(campaign):
        return price([RunSoFar.whole(campaign)])
    return _coarse(design, campaign, cells)


def is_quick(campaign: Campaign) -> bool:
    """Whether the full certificate takes a second or so."""
    if campaign.budget.adjacency is Adjacency.ADD_REMOVE:
        return True
    design = campaign.design
    gaussian = campaign.randomizer.noise_multiplier is not None
    if not gaussian:
        return campaign.repeats == 1
    alone = campaign.repeats == 1 and design.slots <= FULL_SLOTS
    return alone and design.capacity is None


def _coarse(design: PricedDesign, campaign: Campaign, cells: int) -> Certificate:
    """The same theorem on a coarser grid: a little dearer, and as true."""
    started = time.perf_counter()
    shape, target, run = design.shape, design.target, RunSoFar.whole(campaign)
    left = total_variation.share(
        delta=target.delta, epsilon=target.epsilon, variation=run.variation
    )
    goal = replace(target, delta=left)
    spent = min(goal.spent(shape, design.level, each) for each in (FINE, cells))
    epsilon = target.epsilon if spent <= left else math.inf
    method = str(target.method(shape))
    lines = assumptions(
        campaign.design,
        uses_population=method == Method.EXACT_POPULATION,
        campaigns=campaign.repeats,
    )
    note = f"on a grid of {cells} cells; checkins check uses a finer one"
    return Certificate(
        epsilon=epsilon,
        epsilon_lower=0.0,
        delta=target.delta,
        adjacency=target.adjacency,
        method=method,
        assumptions=(*lines, *paid_in_delta(variation=run.variation, epsilon=target.epsilon)),
        alternatives=(Alternative(method, epsilon, note, proves=True),),
        campaigns=campaign.repeats,
        variation=run.variation,
        seconds=time.perf_counter() - started,
        versions=versions("checkins", "numpy", "scipy"),
    )
