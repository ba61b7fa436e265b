"""The question that the options of `checkins plan` ask."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from checkins import validate
from checkins.accounting import Adjacency, NoiseAt, Population, Protocol
from checkins.campaign import (
    Campaign,
    InvalidCampaign,
    RandomizerKind,
    parse_campaign,
    read_campaign,
)
from checkins.campaign.templates import Template, template_text
from checkins.cli import values
from checkins.cli.failures import Refused
from checkins.cli.options import Given, option
from checkins.errors import InvalidValue
from checkins.planning import Constraints, Devices, Learning, Question, Server
from checkins.planning.question import (
    MOST_CLIENTS,
    MOST_DIMENSION,
    MOST_PLANNED_SLOTS,
    MOST_REPEATS,
)

if TYPE_CHECKING:
    from checkins.campaign import Task

POPULATION = "must be an integer or LO..HI"
OPTION = {
    "availability_s": "availability",
    "uplink_bytes_per_s": "uplink",
    "updates_per_s": "updates_per_second",
    "duration_s": "duration",
    "repeats": "campaigns",
}
"""Names of the library that options have other words for."""
DEFAULTS = {"uplink": "125000", "dropout": "0", "updates_per_second": "1000", "duration": "1d"}
"""What an option that was not given says, as one would type it."""
UNITS = {"": 1.0, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
KNOWN = (Template.PATIENTS, Template.FASHION_MNIST, Template.SYNTHETIC)


def asked(given: Given) -> Question:
    """The question; what is missing or wrong is refused by its option."""
    with in_own_words(given):
        population = clients(given.need("population", POPULATION))
        epsilon = values.real(
            "epsilon", given.need("epsilon", "must be a finite number above 0"), validate.positive
        )
        delta = values.real(
            "delta", given.need("delta", "must lie strictly between 0 and 1"), validate.open_unit
        )
        adjacency = values.one_of(
            "adjacency", given.need("adjacency", "must be add-remove or replace-one"), Adjacency
        )
        learning, dimension, campaign = _learning(given)
        return Question(
            population,
            epsilon,
            delta,
            adjacency,
            dimension=dimension,
            devices=_devices(given),
            server=_server(given),
            fixed=fixed_by(given),
            learning=learning,
            name="planned" if campaign is None else campaign.name,
            population_id=None if campaign is None else campaign.population_id,
        )


@contextmanager
def in_own_words(given: Given) -> Iterator[None]:
    """Name the option that the library refuses, by the option's own word."""
    try:
        yield
    except InvalidCampaign:
        raise  # it names its file and line
    except InvalidValue as error:
        raise _refusal(given, error) from error


def _refusal(given: Given, error: InvalidValue) -> Refused:
    name = OPTION.get(error.name, error.name)
    if name == "variation":
        return given.contradiction(
            "delta",
            f"is too small: noise on a grid alone may fail with {error.value:.1e}, so give more",
        )
    if name not in given and name in DEFAULTS:
        return Refused(f"{option(name)} {DEFAULTS[name]} (the default): {error.expected}")
    return given.refusal(InvalidValue(name, error.value, error.expected))


def clients(text: str) -> Population:
    """How many clients there are, as far as plans are made."""
    return values.population(text, most=MOST_CLIENTS)


def _learning(given: Given) -> tuple[Learning, int, Campaign | None]:
    dimension = None
    if "dimension" in given:
        dimension = values.whole("dimension", given.texts["dimension"], most=MOST_DIMENSION)
    if "task" not in given:
        if dimension is None:
            given.need("dimension", "must be an integer, or name a --task")
        return Learning(), dimension or 1, None
    campaign, folder = known_campaign(given.texts["task"])
    task = campaign.task
    if task is None:
        raise InvalidValue("task", given.texts["task"], "the file has no [task]: leave it out")
    learning = Learning.of(task, name=campaign.name)
    if learning == Learning(name=campaign.name, task=task) and campaign.randomizer.clip:
        learning = Learning(name=campaign.name, task=task, clip=campaign.randomizer.clip)
    own = dimension_of(task, folder)
    if dimension not in (None, own):
        raise InvalidValue("dimension", dimension, f"the task's model has {own:,}: leave it out")
    return learning, own, campaign


def known_campaign(named: str) -> tuple[Campaign, str]:
    """That of a known task, or of a file."""
    if named in list(KNOWN):
        return parse_campaign(template_text(Template(named))).campaign, "."
    if not Path(named).is_file():
        known = ", ".join(KNOWN)
        raise InvalidValue("task", named, f"must be {known} or an existing campaign file")
    return read_campaign(named).campaign, str(Path(named).parent)


def dimension_of(task: Task, folder: str) -> int:
    """How many numbers the model of a task has."""
    from checkins.tasks.loaded_task import model_of

    return int(model_of(task, folder=folder).dimension)


def _devices(given: Given) -> Devices:
    texts, usual = given.texts, Devices()
    return Devices(
        availability_s=seconds("availability", texts["availability"])
        if "availability" in given
        else None,
        uplink_bytes_per_s=values.real("uplink", texts["uplink"], validate.positive)
        if "uplink" in given
        else usual.uplink_bytes_per_s,
        dropout=values.real("dropout", texts["dropout"], validate.probability)
        if "dropout" in given
        else usual.dropout,
    )


def _server(given: Given) -> Server:
    texts, usual = given.texts, Server()
    return Server(
        updates_per_s=values.real(
            "updates_per_second", texts["updates_per_second"], validate.positive
        )
        if "updates_per_second" in given
        else usual.updates_per_s,
        duration_s=seconds("duration", texts["duration"])
        if "duration" in given
        else usual.duration_s,
    )


def fixed_by(given: Given) -> Constraints:
    """What the options leave no choice about."""
    texts = given.texts

    def whole(name: str, most: int) -> int | None:
        return values.whole(name, texts[name], most=most) if name in given else None

    capacity: int | str | None = None
    if "capacity" in given:
        found = values.capacity(texts["capacity"])
        capacity = values.ALL if found is None else found
    return Constraints(
        protocol=values.one_of("protocol", texts["protocol"], Protocol)
        if "protocol" in given
        else None,
        slots=whole("slots", MOST_PLANNED_SLOTS),
        participation=values.real("participation", texts["participation"], validate.probability)
        if "participation" in given
        else None,
        capacity=capacity,
        window=whole("window", MOST_PLANNED_SLOTS),
        minibatch=whole("minibatch", MOST_PLANNED_SLOTS),
        repeats=whole("campaigns", MOST_REPEATS),
        noise_at=values.one_of("noise_at", texts["noise_at"], NoiseAt)
        if "noise_at" in given
        else None,
        randomizer=values.one_of("randomizer", texts["randomizer"], RandomizerKind)
        if "randomizer" in given
        else None,
    )


def seconds(name: str, text: str) -> float:
    """A time: a number of seconds, or one with s, min, h or d.

    >>> seconds("duration", "90"), seconds("duration", "1.5h"), seconds("duration", "2d")
    (90.0, 5400.0, 172800.0)
    """
    said = re.fullmatch(r"([0-9.]+(?:e[+-]?[0-9]+)?)(s|min|h|d|)", text.strip(), re.ASCII)
    try:
        found = float(said[1]) * UNITS[said[2]] if said else math.nan
    except ValueError:
        found = math.nan
    if not 0.0 < found < math.inf:
        raise InvalidValue(name, text, "must be a time above 0: 600, 30min, 8h, 2d")
    return found
