"""Small campaigns that the real state machines run in about a millisecond.

``made_small`` returns a smaller campaign with the same protocol and participation but fewer slots,
and computes a certificate for it. The noise of a slot's sum stays the same. If a slot has fewer
reports, each report therefore has more noise. The other functions build the campaigns of the leak
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
"""Largest values of a small campaign. With sliding windows it has 2 ``WINDOW`` − 1 slots."""
DELTA = 1e-3
"""Default delta. At this delta, a few thousand runs can measure bounds."""
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
    """Return a smaller campaign of the same kind, with its own certificate.

    Raises NotCovered if the campaign has no clip or no grid, or uses randomized response, because
    no device can run it.
    """
    validate.open_unit(delta=delta)
    randomizer = campaign.randomizer
    if randomizer.categories is not None or randomizer.clip is None or randomizer.grid is None:
        why = (
            "cannot run on a device, so the state machines cannot run it. They need gaussian or"
            " laplace noise with a clip and a grid. Audit it with the compiled engine"
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
    """Return the task with plain SGD steps.

    With plain SGD, the sum of every slot can be computed from the released models.
    """
    optimizer = Optimizer(1.0)
    if task is None:
        return Task(DataSet.SYNTHETIC, Model.LOGISTIC, optimizer)
    return replace(task, optimizer=optimizer)


CLIP = 1.0
"""Clipping norm of the leak tests' campaigns."""


def server_noise(*, slots: int, noise: float, delta: float, participation: float = 1.0) -> Campaign:
    """Return a campaign that uses every check-in, with noise at the server.

    Its certified epsilon is tight.
    """
    randomizer = GaussianNoise(noise, NoiseAt.SERVER)
    return _campaign(randomizer, delta, slots=slots, participation=participation)


def client_noise(
    *, slots: int, noise: float, capacity: int, delta: float, grid: float = 1e-4
) -> Campaign:
    """Return a campaign where devices add Gaussian noise, and dummy reports fill the slots."""
    randomizer = GaussianNoise(noise, NoiseAt.CLIENT)
    return _campaign(randomizer, delta, grid=grid, slots=slots, capacity=capacity)


def laplace(*, slots: int, local_epsilon: float, delta: float) -> Campaign:
    """Return a campaign where devices add Laplace noise and a slot uses one report."""
    return _campaign(accounting.LocalRandomizer(local_epsilon), delta, slots=slots, capacity=1)


def sliding(*, window: int, noise: float, delta: float) -> Campaign:
    """Return a campaign with sliding windows, long enough for a window after the warm-up."""
    randomizer, slots = GaussianNoise(noise, NoiseAt.SERVER), 2 * window - 1
    return _campaign(randomizer, delta, accounting.Protocol.SLIDING, slots=slots, window=window)


def averaged(*, slots: int, contributors: int, local_epsilon: float, delta: float) -> Campaign:
    """Return a campaign with averaged updates, which publishes the counts of reports."""
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
