"""Small campaigns that the real state machines run in about a millisecond.

``made_small`` shrinks a campaign: the same randomizer, protocol and participation, fewer slots. The
certificate is computed for the small campaign. The noise of a slot's sum stays the same: with fewer
reports in it, each report carries more noise. The other functions build the campaigns of the leak
tests, each with a moderate certified epsilon.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from checkins import accounting, validate
from checkins.accounting import Adjacency, Certificate, Design, GaussianNoise, NoiseAt, Population
from checkins.campaign import Budget, Campaign, Optimizer, RandomizerConfig, RandomizerKind
from checkins.campaign.partial_runs import PartialRun
from checkins.campaign.spending import certify_runs
from checkins.campaign.task import DataSet, Model, Task
from checkins.errors import NotCovered

SLOTS, WINDOW, CAPACITY, CONTRIBUTORS = 5, 3, 2, 6
"""Largest values of a small campaign; a sliding one has a whole window after its warm-up."""
DELTA = 1e-3
"""Default delta: a few thousand runs can measure bounds at this delta."""
DIMENSION = 2
"""Dimension of the model of a small campaign."""
PLENTY = 1e6
"""Epsilon of a budget that is never exhausted."""


@dataclass(frozen=True, slots=True)
class SmallCampaign:
    """A campaign that can be run thousands of times, and its certificate."""

    campaign: Campaign
    certificate: Certificate

    @property
    def adjacency(self) -> Adjacency:
        return self.campaign.budget.adjacency


def made_small(campaign: Campaign, *, delta: float = DELTA) -> SmallCampaign:
    """Return the small form of a campaign, with its own certificate.

    Raises NotCovered for campaigns that no device can run: without a grid, or with PrivUnit.
    """
    validate.open_unit(delta=delta)
    randomizer = campaign.randomizer
    if randomizer.categories is not None or randomizer.clip is None or randomizer.grid is None:
        why = (
            "no device runs it in a campaign, so no machine does: it needs gaussian or laplace"
            " noise with a clip and a grid; audit it with the compiled engine"
        )
        raise NotCovered("randomizer", str(randomizer.kind), why)
    small = replace(
        campaign,
        population_id=None,
        budget=Budget(PLENTY, max(delta, campaign.budget.delta), campaign.budget.adjacency),
        design=_small_design(campaign.design),
        repeats=1,
        task=plain(campaign.task),
    )
    return SmallCampaign(small, certify_runs((PartialRun.whole(small),)))


def _small_design(design: Design) -> Design:
    averaged = design.protocol is accounting.Protocol.AVERAGED
    window = None if design.window is None else min(design.window, WINDOW)
    slots = min(design.slots, SLOTS) if window is None else 2 * window - 1
    capacity = None if design.capacity is None else min(design.capacity, CAPACITY)
    contributors = CONTRIBUTORS
    if design.population is not None:
        contributors = min(design.population.fewest, CONTRIBUTORS)
    noise = design.randomizer
    if isinstance(noise, GaussianNoise) and noise.at is not NoiseAt.SERVER and capacity is not None:
        noise = GaussianNoise(design.slot_noise(noise) / math.sqrt(capacity), noise.at)
    return replace(
        design,
        slots=slots,
        window=window,
        capacity=capacity,
        population=Population(contributors, contributors) if averaged else None,
        randomizer=noise,
    )


def plain(task: Task | None) -> Task:
    """Return the task with plain SGD steps, from which every slot's sum can be computed."""
    optimizer = Optimizer(1.0)
    if task is None:
        return Task(DataSet.SYNTHETIC, Model.LOGISTIC, optimizer)
    return replace(task, optimizer=optimizer)


CLIP = 1.0
"""Clipping norm of the leak tests' campaigns."""


def server_noise(*, slots: int, noise: float, delta: float, participation: float = 1.0) -> Campaign:
    """Return a campaign that uses every check-in, with server noise: its epsilon is tight."""
    randomizer = GaussianNoise(noise, NoiseAt.SERVER)
    return _campaign(randomizer, delta, slots=slots, participation=participation)


def client_noise(
    *, slots: int, noise: float, capacity: int, delta: float, grid: float = 1e-4
) -> Campaign:
    """Return a campaign where devices add Gaussian noise and dummies fill the slots."""
    randomizer = GaussianNoise(noise, NoiseAt.CLIENT)
    return _campaign(randomizer, delta, grid=grid, slots=slots, capacity=capacity)


def laplace(*, slots: int, local_epsilon: float, delta: float) -> Campaign:
    """Return a campaign where devices add Laplace noise, one report a slot, as in the paper."""
    return _campaign(accounting.LocalRandomizer(local_epsilon), delta, slots=slots, capacity=1)


def sliding(*, window: int, noise: float, delta: float) -> Campaign:
    """Return a campaign with sliding windows; the canary's window lies after the warm-up."""
    randomizer, slots = GaussianNoise(noise, NoiseAt.SERVER), 2 * window - 1
    return _campaign(randomizer, delta, accounting.Protocol.SLIDING, slots=slots, window=window)


def averaged(*, slots: int, contributors: int, local_epsilon: float, delta: float) -> Campaign:
    """Return a campaign with averaged updates, whose counts are public."""
    people, randomizer = (
        Population(contributors, contributors),
        accounting.LocalRandomizer(local_epsilon),
    )
    return _campaign(
        randomizer, delta, accounting.Protocol.AVERAGED, slots=slots, population=people
    )


def _campaign(
    randomizer: GaussianNoise | accounting.LocalRandomizer,
    delta: float,
    protocol: accounting.Protocol = accounting.Protocol.FIXED,
    *,
    grid: float = 1e-4,
    participation: float = 1.0,
    **described: Any,
) -> Campaign:
    gaussian = isinstance(randomizer, GaussianNoise)
    kind = RandomizerKind.GAUSSIAN if gaussian else RandomizerKind.LAPLACE
    averaged = protocol is accounting.Protocol.AVERAGED  # defined for replace-one only
    adjacency = Adjacency.REPLACE_ONE if averaged else Adjacency.ADD_REMOVE
    return Campaign(
        name="leak test",
        population_id=None,
        budget=Budget(PLENTY, delta, adjacency),
        design=Design(protocol, participation=participation, randomizer=randomizer, **described),
        repeats=1,
        randomizer=RandomizerConfig(kind, clip=CLIP, grid=grid),
        task=plain(None),
    )


def replaceable(campaign: Campaign) -> Campaign:
    """Return the campaign with replace-one neighbours."""
    budget = replace(campaign.budget, adjacency=Adjacency.REPLACE_ONE)
    return replace(campaign, budget=budget)
