"""A campaign made small: the same randomizer, protocol and participation, a run in a millisecond.

What is priced is priced anew, so the promise that is audited is that of the small campaign. The
noise of a slot's sum stays what it was: with fewer reports in it, each carries more of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from checkins import validate
from checkins.accounting import (
    Adjacency,
    Certificate,
    Design,
    GaussianNoise,
    LocalRandomizer,
    NoiseAt,
    Population,
    Protocol,
)
from checkins.campaign import Budget, Campaign, Optimizer
from checkins.campaign.partial_runs import PartialRun
from checkins.campaign.spending import price
from checkins.campaign.task import DataSet, Model, Task
from checkins.errors import NotCovered

SLOTS, WINDOW, CAPACITY, CONTRIBUTORS = 5, 3, 2, 6
"""Of the small campaign at most; a sliding one has room for a whole window after its warm-up."""
DELTA = 1e-3
"""What a few thousand runs can tell apart."""
DIMENSION = 2
PLENTY = 1e6
"""A budget that ends nothing."""


@dataclass(frozen=True, slots=True)
class SmallCampaign:
    """A campaign that can be run thousands of times, and what it promises."""

    campaign: Campaign
    certificate: Certificate

    @property
    def adjacency(self) -> Adjacency:
        return self.campaign.budget.adjacency


def made_small(campaign: Campaign, *, delta: float = DELTA) -> SmallCampaign:
    """The small form of a campaign, with the certificate of that.

    Refuses what no device can run: a campaign without a grid, or with PrivUnit.
    """
    validate.open_unit(delta=delta)
    randomizer = campaign.randomizer
    if randomizer.categories is not None or randomizer.clip is None or randomizer.grid is None:
        raise NotCovered(
            "randomizer",
            str(randomizer.kind),
            "no device runs it in a campaign, so no machine does: it needs gaussian or laplace"
            " noise with a clip and a grid; audit it with the compiled engine",
        )
    small = replace(
        campaign,
        population_id=None,
        budget=Budget(PLENTY, max(delta, campaign.budget.delta), campaign.budget.adjacency),
        design=_small_design(campaign.design),
        repeats=1,
        task=plain(campaign.task),
    )
    return SmallCampaign(small, price((PartialRun.whole(small),)))


def _small_design(design: Design) -> Design:
    averaged = design.protocol is Protocol.AVERAGED
    window = None if design.window is None else min(design.window, WINDOW)
    slots = min(design.slots, SLOTS) if window is None else 2 * window - 1
    capacity = None if design.capacity is None else min(design.capacity, CAPACITY)
    contributors = CONTRIBUTORS
    if design.population is not None:
        contributors = min(design.population.fewest, CONTRIBUTORS)
    return replace(
        design,
        slots=slots,
        window=window,
        capacity=capacity,
        population=Population(contributors, contributors) if averaged else None,
        randomizer=_as_noisy(design, capacity),
    )


def _as_noisy(design: Design, capacity: int | None) -> LocalRandomizer | GaussianNoise:
    noise = design.randomizer
    if not isinstance(noise, GaussianNoise) or noise.at is NoiseAt.SERVER or capacity is None:
        return noise
    return GaussianNoise(design.slot_noise(noise) / math.sqrt(capacity), noise.at)


def plain(task: Task | None) -> Task:
    """Steps that anyone can undo: what an adversary sees is then every slot's sum."""
    optimizer = Optimizer(1.0)
    if task is None:
        return Task(DataSet.SYNTHETIC, Model.LOGISTIC, optimizer)
    return replace(task, optimizer=optimizer)
