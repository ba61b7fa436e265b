"""Campaigns to start from, one for each kind of task.

Their values are examples, and must be chosen again for real people: the file says so.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum

from checkins.accounting import (
    Adjacency,
    Design,
    GaussianNoise,
    LocalRandomizer,
    NoiseAt,
    Population,
    Protocol,
)
from checkins.campaign.file import campaign_text
from checkins.campaign.model import Budget, Campaign, Schedule
from checkins.campaign.randomizer_config import RandomizerConfig, RandomizerKind
from checkins.campaign.task import DataFile, DataSet, Model, Optimizer, StepSizes, Task

SCHEDULE = Schedule(datetime(2030, 1, 1, tzinfo=UTC), slot_s=1.0, choose_s=0.3)
GAUSSIAN = RandomizerConfig(RandomizerKind.GAUSSIAN, clip=1.0, grid=1e-6)
CHOOSE = (
    "Nothing that privacy depends on has a default: every such value is in this file. Those marked",
    "(choose) decide the privacy guarantee. The values below are a place to start and no advice:",
    "choose them before anyone takes part. The epsilon of this file, and whether it is within its",
    "budget: checkins check FILE",
)


class Template(StrEnum):
    """The kinds of task for which there is a campaign file to start from."""

    PATIENTS = "patients"
    FASHION_MNIST = "fashion-mnist"
    SYNTHETIC = "synthetic"
    FILE = "file"


def template_text(template: Template) -> str:
    """Return the commented campaign file for a kind of task."""
    first, campaign = {
        Template.PATIENTS: _patients,
        Template.FASHION_MNIST: _fashion_mnist,
        Template.SYNTHETIC: _synthetic,
        Template.FILE: _file,
    }[template]()
    return campaign_text(campaign, head=(first, *CHOOSE))


def _patients() -> tuple[str, Campaign]:
    return (
        "One round of training on the records of a clinic's patients, one client each.",
        Campaign(
            name="patients",
            population_id="clinic",
            budget=Budget(0.5, 1e-6, Adjacency.ADD_REMOVE),
            design=Design(
                Protocol.FIXED,
                slots=200,
                participation=1.0,
                randomizer=GaussianNoise(0.1, NoiseAt.CLIENT),
                capacity=176,
                population=Population(15_000, 20_000),
            ),
            repeats=1,
            randomizer=GAUSSIAN,
            task=Task(DataSet.PATIENTS, Model.LOGISTIC, Optimizer(rate=5.0)),
            schedule=SCHEDULE,
        ),
    )


def _fashion_mnist() -> tuple[str, Campaign]:
    noise = GaussianNoise(1.0, NoiseAt.SERVER)
    return (
        "Pictures of clothes, one for each of 60,000 clients; the server adds the noise.",
        Campaign(
            name="fashion-mnist",
            population_id=None,
            budget=Budget(0.5, 1e-6, Adjacency.ADD_REMOVE),
            design=Design(Protocol.FIXED, slots=300, participation=1.0, randomizer=noise),
            repeats=1,
            randomizer=GAUSSIAN,
            task=Task(DataSet.FASHION_MNIST, Model.SOFTMAX, Optimizer(rate=2.0, divide_by=200)),
            schedule=SCHEDULE,
        ),
    )


def _synthetic() -> tuple[str, Campaign]:
    return "A convex problem with a known optimum; each report is private by itself.", Campaign(
        name="synthetic",
        population_id=None,
        budget=Budget(0.5, 1e-6, Adjacency.REPLACE_ONE),
        design=Design(
            Protocol.FIXED,
            slots=1000,
            participation=1.0,
            randomizer=LocalRandomizer(2.0),
            capacity=10,
        ),
        repeats=1,
        randomizer=RandomizerConfig(RandomizerKind.LAPLACE, clip=1.0, grid=1e-5),
        task=Task(
            DataSet.SYNTHETIC,
            Model.LOGISTIC,
            Optimizer(rate=5.0, schedule=StepSizes.INVERSE_SQRT, diameter=10.0),
        ),
        schedule=SCHEDULE,
    )


def _file() -> tuple[str, Campaign]:
    noise = GaussianNoise(1.0, NoiseAt.SERVER)
    data = DataFile(
        "records.csv",
        client_column="person",
        label_column="outcome",
        features=("age", "weight_kg"),
        ranges=((0.0, 100.0), (30.0, 200.0)),
    )
    return (
        "Your own table: say below whose row is whose, what to predict, and from what.",
        Campaign(
            name="my-campaign",
            population_id="my-population",
            budget=Budget(0.5, 1e-6, Adjacency.ADD_REMOVE),
            design=Design(Protocol.FIXED, slots=300, participation=1.0, randomizer=noise),
            repeats=1,
            randomizer=GAUSSIAN,
            task=Task(data, Model.LOGISTIC, Optimizer(rate=0.5, divide_by=30)),
            schedule=SCHEDULE,
        ),
    )
