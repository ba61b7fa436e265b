"""Turn a planned design into a campaign file."""

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
from checkins.planning.candidate import CHOOSE_SHARE
from checkins.planning.cost_model import CalibratedDesign
from checkins.randomizers.grid import GridTooFine

FINEST_GRID, COARSEST_GRID = 1e-6, 1.0
DIGITS = 3


def campaign_of(design: CalibratedDesign) -> Campaign:
    """Return the campaign that runs this design."""
    question, candidate = design.question, design.candidate
    slot_s = design.metrics.slot_load.slot_s
    return Campaign(
        name=question.name,
        population_id=question.population_id,
        budget=Budget(question.epsilon, question.delta, question.adjacency),
        design=candidate.design(design.level),
        repeats=candidate.repeats,
        randomizer=_randomizer(design),
        task=_task(design),
        schedule=Schedule(SCHEDULE.start, slot_s=slot_s, choose_s=round(CHOOSE_SHARE * slot_s, 6)),
    )


def campaign_file_text(design: CalibratedDesign, campaign: Campaign) -> str:
    """Return the text of campaign.toml, with the planning question as a comment at the top."""
    asked = design.question
    many = f"{asked.population.fewest:,} to {asked.population.most:,} clients"
    head = [
        f"Planned for {many} and a model of {asked.dimension:,} numbers.",
        "checkins plan chose the slots, the noise and the other parameters to meet the budget.",
        "To see its certificate and whether it meets its budget: checkins check FILE",
    ]
    return campaign_text(campaign, head=head)


def _randomizer(design: CalibratedDesign) -> RandomizerConfig:
    candidate, clip = design.candidate, design.question.learning.clip
    if candidate.randomizer is RandomizerKind.PRIVUNIT:
        return RandomizerConfig(candidate.randomizer, clip=clip)
    if not candidate.is_gaussian:
        clip = _digits(clip * math.sqrt(design.question.dimension))
    noise, grid = candidate.design(design.level).randomizer, FINEST_GRID
    while True:
        try:
            chosen = RandomizerConfig(candidate.randomizer, clip=clip, grid=grid)
            chosen.check_noise(noise)
            return chosen
        except GridTooFine:
            if grid >= COARSEST_GRID:
                raise
            grid = float(f"{grid * 10.0:.1e}")


def _task(design: CalibratedDesign) -> Task | None:
    task = design.question.learning.task
    return None if task is None else replace(task, optimizer=optimizer_of(design))


def optimizer_of(design: CalibratedDesign) -> Optimizer:
    """Return the optimizer whose step size R/(T√V) balances bias and noise.

    Momentum is used if that step is larger than the largest stable step. A slot's sum is divided by
    the expected number of reports, which is a public number.
    """
    learning, candidate, metrics = design.question.learning, design.candidate, design.metrics
    step = learning.step(steps=metrics.steps, variance=metrics.variance)
    momentum = learning.momentum(steps=metrics.steps, step=step)
    count: int | None = max(1, round(metrics.slot_load.reports))
    if candidate.protocol is Protocol.AVERAGED:
        count = None
    return Optimizer(
        rate=_digits(step * (1.0 - momentum) / learning.clip),
        minibatch=candidate.minibatch,
        divide_by=count,
        momentum=momentum or None,
    )


def _digits(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
