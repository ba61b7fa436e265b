"""Small campaigns and loaded tasks that tests of the simulator share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

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
from checkins.campaign import Budget, Campaign, Optimizer, RandomizerConfig, RandomizerKind, Task
from checkins.campaign.randomizer_config import noise_of_kind
from checkins.tasks.built_in_models import Softmax
from checkins.tasks.data import Dataset
from checkins.tasks.loaded_task import LoadedTask
from checkins.tasks.model import Model

FEATURES, CLASSES = 5, 3


@dataclass(frozen=True)
class Randomization:
    """A randomizer with its noise."""

    kind: RandomizerKind
    clip: float = 0.7
    noise_multiplier: float | None = None
    noise_at: NoiseAt | None = None
    local_epsilon: float | None = None

    @property
    def noise(self) -> GaussianNoise | LocalRandomizer:
        return noise_of_kind(
            self.kind,
            noise_multiplier=self.noise_multiplier,
            noise_at=self.noise_at,
            local_epsilon=self.local_epsilon,
        )


GAUSSIAN = Randomization(RandomizerKind.GAUSSIAN, noise_multiplier=0.8, noise_at=NoiseAt.CLIENT)
AT_SERVER = replace(GAUSSIAN, noise_at=NoiseAt.SERVER)
LAPLACE = Randomization(RandomizerKind.LAPLACE, local_epsilon=2.0)
PRIVUNIT = Randomization(RandomizerKind.PRIVUNIT, local_epsilon=4.0)


def campaign(
    randomizer: Randomization = GAUSSIAN,
    *,
    protocol: Protocol = Protocol.FIXED,
    slots: int = 12,
    participation: float = 1.0,
    capacity: int | None = 4,
    window: int | None = None,
    repeats: int = 1,
    local_steps: int = 1,
    local_rate: float | None = None,
    model: str = "softmax",
    least_reports: int | None = None,
    **optimizer: Any,
) -> Campaign:
    """A campaign whose every number a test can set."""
    averaged = protocol is Protocol.AVERAGED
    design = Design(
        protocol,
        slots=slots,
        participation=participation,
        randomizer=randomizer.noise,
        capacity=None if averaged else capacity,
        window=window,
        population=Population(1, 10**6) if averaged else None,
        least_reports=least_reports,
    )
    adjacency = Adjacency.REPLACE_ONE if averaged else Adjacency.ADD_REMOVE
    steps = Optimizer(**{"rate": 0.5, **optimizer})
    return Campaign(
        "test",
        None,
        Budget(100.0, 1e-6, adjacency),
        design,
        repeats,
        RandomizerConfig(randomizer.kind, clip=randomizer.clip),
        Task("synthetic", model, steps, local_steps=local_steps, local_rate=local_rate),
    )


def with_strategy(asked: Campaign, *numerators: int, bits: int = 10) -> Campaign:
    """The campaign with noise that its server correlates across slots."""
    noise = asked.design.randomizer
    assert isinstance(noise, GaussianNoise)
    strategy = NoiseStrategy(numerators, bits)
    return replace(
        asked, design=replace(asked.design, randomizer=replace(noise, strategy=strategy))
    )


def dataset(
    clients: int = 40, *, classes: int = CLASSES, sizes: tuple[int, ...] = (1,), holdout: int = 0
) -> Dataset:
    """Clients with so many rows each, in turn; the label follows the features as far as it can."""
    generator = np.random.default_rng(1)
    offsets = np.concatenate([[0], np.cumsum(np.resize(sizes, clients))]).astype(np.int64)
    truth = generator.normal(size=(FEATURES, classes))

    def rows(count: int) -> tuple[Any, Any]:
        features = generator.normal(size=(count, FEATURES)).astype(np.float32)
        return features, np.argmax(features @ truth, axis=1)

    features, labels = rows(int(offsets[-1]))
    held, held_labels = rows(holdout)
    return Dataset("toy", features, labels, offsets, classes, held, held_labels)


def loaded(model: Model | None = None, **given: Any) -> LoadedTask:
    """Softmax on a small data set, if nothing else is said."""
    data = dataset(**given)
    return LoadedTask(data, Softmax(FEATURES, data.classes) if model is None else model)


def pure_design(
    slots: int = 40, participation: float = 1.0, window: int | None = None, capacity: int | None = 1
) -> Design:
    """Who checks in when, and nothing else that matters."""
    return Design(
        Protocol.FIXED if window is None else Protocol.SLIDING,
        slots=slots,
        participation=participation,
        randomizer=LocalRandomizer(1.0),
        capacity=capacity,
        window=window,
    )
