"""A planned design as a campaign: what check, simulate, serve and audit take."""

from __future__ import annotations

import math
from dataclasses import replace

from checkins.accounting import Protocol
from checkins.campaign import (
    Budget,
    Campaign,
    Optimizer,
    RandomizerConfig,
    RandomizerKind,
    Schedule,
    Task,
    campaign_text,
)
from checkins.campaign.templates import SCHEDULE
from checkins.errors import InvalidValue
from checkins.planning.priced import PricedDesign
from checkins.planning.turnout import CHOOSE_SHARE

FINEST_GRID, COARSEST_GRID = 1e-6, 1.0
DIGITS = 3


def campaign_of(design: PricedDesign) -> Campaign:
    """The campaign that runs this design."""
    question, shape = design.question, design.shape
    slot_s = design.figures.turnout.slot_s
    return Campaign(
        name=question.name,
        population_id=question.population_id,
        budget=Budget(question.epsilon, question.delta, question.adjacency),
        design=shape.design(design.level),
        repeats=shape.repeats,
        randomizer=_randomizer(design),
        task=_task(design),
        schedule=Schedule(SCHEDULE.start, slot_s=slot_s, choose_s=round(CHOOSE_SHARE * slot_s, 6)),
    )


def written(design: PricedDesign, campaign: Campaign) -> str:
    """The text of campaign.toml, with what it was planned for at its head."""
    asked = design.question
    many = f"{asked.population.fewest:,} to {asked.population.most:,} clients"
    head = [
        f"Planned for {many}, {asked.dimension:,} numbers in a model.",
        "The budget was asked for; slots, noise and the rest follow from it by checkins plan.",
        "What this file costs, and whether it keeps its budget: checkins check FILE",
    ]
    return campaign_text(campaign, head=head)


def _randomizer(design: PricedDesign) -> RandomizerConfig:
    shape, clip = design.shape, design.question.learning.clip
    if shape.randomizer is RandomizerKind.PRIVUNIT:
        return RandomizerConfig(shape.randomizer, clip=clip)
    if not shape.is_gaussian:
        clip = _digits(clip * math.sqrt(design.question.dimension))
    noise, grid = shape.design(design.level).randomizer, FINEST_GRID
    while True:
        try:
            chosen = RandomizerConfig(shape.randomizer, clip=clip, grid=grid)
            chosen.check_noise(noise)
            return chosen
        except InvalidValue as error:
            if error.name != "grid" or grid >= COARSEST_GRID:
                raise
            grid = float(f"{grid * 10.0:.1e}")  # reports outgrow 32 bits: count more coarsely


def _task(design: PricedDesign) -> Task | None:
    task = design.question.learning.task
    return None if task is None else replace(task, optimizer=optimizer_of(design))


def optimizer_of(design: PricedDesign) -> Optimizer:
    """Steps that balance way and noise, R/(T√V), with momentum only where they would be too long.

    A slot's sum is divided by the reports that are expected in it, a public number.
    """
    learning, shape, worth = design.question.learning, design.shape, design.figures
    step = learning.step(steps=worth.steps, variance=worth.variance)
    momentum = learning.momentum(steps=worth.steps, step=step)
    count: int | None = max(1, round(worth.turnout.reports))
    if shape.protocol is Protocol.AVERAGED:
        count = None
    return Optimizer(
        rate=_digits(step * (1.0 - momentum) / learning.clip),
        minibatch=shape.minibatch,
        divide_by=count,
        momentum=momentum or None,
    )


def _digits(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
