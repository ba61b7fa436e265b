"""The small campaigns of the drills, each of a kind whose certificate is modest."""

from __future__ import annotations

from dataclasses import replace

from checkins.accounting import (
    Adjacency,
    Design,
    GaussianNoise,
    LocalRandomizer,
    NoiseAt,
    Population,
    Protocol,
)
from checkins.audit.machines.small import PLENTY, plain
from checkins.campaign import Budget, Campaign, RandomizerConfig, RandomizerKind

CLIP = 1.0


def server_noise(*, slots: int, noise: float, delta: float, participation: float = 1.0) -> Campaign:
    """Every check-in is used, and the server adds the noise: its price is exact and attained."""
    randomizer = GaussianNoise(noise, NoiseAt.SERVER)
    design = Design(Protocol.FIXED, slots=slots, participation=participation, randomizer=randomizer)
    return _campaign(design, delta)


def client_noise(
    *, slots: int, noise: float, capacity: int, delta: float, grid: float = 1e-4
) -> Campaign:
    """Devices add Gaussian noise, and dummies fill the slots."""
    randomizer = GaussianNoise(noise, NoiseAt.CLIENT)
    design = Design(
        Protocol.FIXED, slots=slots, participation=1.0, randomizer=randomizer, capacity=capacity
    )
    return _campaign(design, delta, grid=grid)


def laplace(*, slots: int, local_epsilon: float, delta: float) -> Campaign:
    """Devices add Laplace noise, one report a slot: the paper's protocol."""
    design = Design(
        Protocol.FIXED,
        slots=slots,
        participation=1.0,
        randomizer=LocalRandomizer(local_epsilon),
        capacity=1,
    )
    return _campaign(design, delta)


def sliding(*, window: int, noise: float, delta: float) -> Campaign:
    """A window that slides; the canary's lies after the warm-up."""
    randomizer = GaussianNoise(noise, NoiseAt.SERVER)
    design = Design(
        Protocol.SLIDING,
        slots=2 * window - 1,
        participation=1.0,
        randomizer=randomizer,
        window=window,
    )
    return _campaign(design, delta)


def averaged(*, slots: int, contributors: int, local_epsilon: float, delta: float) -> Campaign:
    """Averaged updates, which tell how many there are."""
    design = Design(
        Protocol.AVERAGED,
        slots=slots,
        participation=1.0,
        randomizer=LocalRandomizer(local_epsilon),
        population=Population(contributors, contributors),
    )
    return replaceable(_campaign(design, delta, Adjacency.REPLACE_ONE))


def _campaign(
    design: Design,
    delta: float,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    *,
    grid: float = 1e-4,
) -> Campaign:
    gaussian = isinstance(design.randomizer, GaussianNoise)
    kind = RandomizerKind.GAUSSIAN if gaussian else RandomizerKind.LAPLACE
    return Campaign(
        name="drill",
        population_id=None,
        budget=Budget(PLENTY, delta, adjacency),
        design=design,
        repeats=1,
        randomizer=RandomizerConfig(kind, clip=CLIP, grid=grid),
        task=plain(None),
    )


def replaceable(campaign: Campaign) -> Campaign:
    """The same, with its promise about one client's data changed."""
    budget = replace(campaign.budget, adjacency=Adjacency.REPLACE_ONE)
    return replace(campaign, budget=budget)
