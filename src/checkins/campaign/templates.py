"""Templates of campaign files, one for each kind of task.

The values in a template are examples. A comment at its top says that the user must choose values
before real people take part.
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
GAUSSIAN_RANDOMIZER = RandomizerConfig(RandomizerKind.GAUSSIAN, clip=1.0, grid=1e-6)
HEAD_COMMENT = (
    "Every value that privacy depends on is in this file. The values marked (choose) decide the",
    "privacy guarantee. They are examples, not advice. Choose them before anyone takes part.",
    "To see the epsilon of this file, and whether it is within the budget:",
    "checkins check FILE",
)


class Template(StrEnum):
    """The names of the templates, one for each kind of task."""

    PATIENTS = "patients"
    FASHION_MNIST = "fashion-mnist"
    SYNTHETIC = "synthetic"
    FILE = "file"


def template_text(template: Template) -> str:
    """Return the text of a template, with comments."""
    title, campaign = {
        Template.PATIENTS: _patients,
        Template.FASHION_MNIST: _fashion_mnist,
        Template.SYNTHETIC: _synthetic,
        Template.FILE: _data_file,
    }[template]()
    return campaign_text(campaign, head=(title, *HEAD_COMMENT))


def _patients() -> tuple[str, Campaign]:
    design = _design(
        200, GaussianNoise(0.1, NoiseAt.CLIENT), capacity=176, population=Population(15_000, 20_000)
    )
    task = Task(DataSet.PATIENTS, Model.LOGISTIC, Optimizer(rate=5.0))
    title = "One round of training on the records of a clinic. Each patient is one client."
    return title, _campaign("patients", design, task, population_id="clinic")


def _fashion_mnist() -> tuple[str, Campaign]:
    design = _design(300, GaussianNoise(1.0, NoiseAt.SERVER))
    task = Task(DataSet.FASHION_MNIST, Model.SOFTMAX, Optimizer(rate=2.0, divide_by=200))
    title = "60,000 clients with one picture of clothes each. The server adds the noise."
    return title, _campaign("fashion-mnist", design, task)


def _synthetic() -> tuple[str, Campaign]:
    optimizer = Optimizer(rate=5.0, schedule=StepSizes.INVERSE_SQRT, diameter=10.0)
    campaign = _campaign(
        "synthetic",
        _design(1000, LocalRandomizer(2.0), capacity=10),
        Task(DataSet.SYNTHETIC, Model.LOGISTIC, optimizer),
        adjacency=Adjacency.REPLACE_ONE,
        randomizer=RandomizerConfig(RandomizerKind.LAPLACE, clip=1.0, grid=1e-5),
    )
    return "A convex problem with a known optimum. Each report is private by itself.", campaign


def _data_file() -> tuple[str, Campaign]:
    data = DataFile(
        "records.csv",
        client_column="person",
        label_column="outcome",
        features=("age", "weight_kg"),
        ranges=((0.0, 100.0), (30.0, 200.0)),
    )
    design = _design(300, GaussianNoise(1.0, NoiseAt.SERVER))
    task = Task(data, Model.LOGISTIC, Optimizer(rate=0.5, divide_by=30))
    title = "Your own data file. Name its columns in [task.data] below."
    return title, _campaign("my-campaign", design, task, population_id="my-population")


def _design(
    slots: int,
    noise: GaussianNoise | LocalRandomizer,
    *,
    capacity: int | None = None,
    population: Population | None = None,
) -> Design:
    return Design(
        Protocol.FIXED,
        slots=slots,
        participation=1.0,
        randomizer=noise,
        capacity=capacity,
        population=population,
    )


def _campaign(
    name: str,
    design: Design,
    task: Task,
    *,
    population_id: str | None = None,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    randomizer: RandomizerConfig = GAUSSIAN_RANDOMIZER,
) -> Campaign:
    budget = Budget(0.5, 1e-6, adjacency)
    return Campaign(name, population_id, budget, design, 1, randomizer, task, SCHEDULE)
