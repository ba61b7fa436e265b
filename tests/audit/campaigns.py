"""Small campaigns to attack."""

from __future__ import annotations

from checkins.accounting import (
    Adjacency,
    Design,
    GaussianNoise,
    LocalRandomizer,
    NoiseAt,
    NoiseStrategy,
    Population,
    Protocol,
)
from checkins.campaign import Budget, Campaign, RandomizerConfig, RandomizerKind

ADD_REMOVE, REPLACE_ONE = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE
BANDS = NoiseStrategy((12, 6, 5, 4), bits=4)
"""Noise that is correlated across four slots."""


def pure(
    local_epsilon: float = 2.0,
    *,
    slots: int = 10,
    participation: float = 1.0,
    capacity: int | None = 1,
    adjacency: Adjacency = ADD_REMOVE,
    delta: float = 1e-3,
    categories: int | None = None,
    dimension: int | None = None,
    kind: RandomizerKind = RandomizerKind.PRIVUNIT,
    window: int | None = None,
    contributors: int | None = None,
    population: Population | None = None,
    repeats: int = 1,
) -> Campaign:
    """Randomized response, Laplace noise, or PrivUnit, certified by name if it has a dimension."""
    kind = kind if categories is None else RandomizerKind.RANDOMIZED_RESPONSE
    choice = RandomizerConfig(kind, categories=categories, dimension=dimension)
    protocol = Protocol.FIXED if window is None else Protocol.SLIDING
    if contributors is not None:
        protocol, capacity = Protocol.AVERAGED, None
        population = Population(contributors, contributors)
    design = Design(
        protocol,
        slots=slots,
        participation=participation,
        randomizer=LocalRandomizer(local_epsilon),
        capacity=capacity,
        window=window,
        population=population,
    )
    return Campaign("pure", None, Budget(100.0, delta, adjacency), design, repeats, choice)


def gaussian(
    noise: float = 1.0,
    *,
    slots: int = 10,
    participation: float = 1.0,
    capacity: int | None = None,
    at: NoiseAt = NoiseAt.SERVER,
    adjacency: Adjacency = ADD_REMOVE,
    delta: float = 1e-3,
    population: Population | None = None,
    window: int | None = None,
    averaged: bool = False,
    least_reports: int | None = None,
    repeats: int = 1,
    strategy: NoiseStrategy | None = None,
) -> Campaign:
    choice = RandomizerConfig(RandomizerKind.GAUSSIAN, clip=1.0)
    protocol = Protocol.AVERAGED if averaged else Protocol.FIXED
    design = Design(
        Protocol.SLIDING if window is not None else protocol,
        slots=slots,
        participation=participation,
        randomizer=GaussianNoise(noise, at, strategy),
        capacity=capacity,
        window=window,
        population=population,
        least_reports=least_reports,
    )
    return Campaign("gaussian", None, Budget(100.0, delta, adjacency), design, repeats, choice)
