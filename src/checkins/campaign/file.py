"""campaign.toml, schema 1: read whole, or refused with file, line and key.

Nothing that privacy depends on has a default. ``[task]`` and ``[schedule]`` may be absent: such a
campaign can be priced and not run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from checkins import validate
from checkins.accounting import Adjacency, Design, NoiseAt, Population, Protocol
from checkins.campaign.description import (
    Budget,
    Campaign,
    DataFile,
    Features,
    Optimizer,
    RandomizerConfig,
    RandomizerKind,
    Schedule,
    StepSizes,
    Task,
)
from checkins.campaign.optimizer import Argument, argument, require_kind
from checkins.campaign.task import MOST_CLASSES, MOST_LOCAL_STEPS, NOT_PICTURES, fits
from checkins.campaign.toml_source import InvalidCampaign, TomlSource
from checkins.errors import InvalidValue

__all__ = ["CampaignFile", "InvalidCampaign", "campaign_of", "parse_campaign", "read_campaign"]

SCHEMA = 1

SECTIONS: Mapping[str, frozenset[str]] = {
    "budget": frozenset({"epsilon", "delta", "adjacency", "population"}),
    "protocol": frozenset({"kind", "slots", "participation", "capacity", "window", "repeats"}),
    "randomizer": frozenset(
        {"kind", "noise_at", "noise_multiplier", "clip", "grid", "local_epsilon", "categories"}
    ),
}
OPTIONAL_SECTIONS: Mapping[str, frozenset[str]] = {
    "task": frozenset({"data", "features", "model", "local_steps", "local_rate", "optimizer"}),
    "schedule": frozenset({"start", "slot_s", "choose_s"}),
}
TABLES: Mapping[str, frozenset[str]] = {
    "task.optimizer": frozenset(
        {"kind", "rate", "minibatch", "schedule", "diameter", "divide_by"}
        | {"momentum", "nesterov", "arguments"}
    ),
    "task.data": frozenset(
        {"file", "client_column", "label_column", "features", "ranges", "classes", "holdout"}
    ),
}
TOP = frozenset({"schema", "name", "population_id", *SECTIONS, *OPTIONAL_SECTIONS})

PLACES: Mapping[str, tuple[str, str]] = {
    **{
        key: (section, key)
        for section, keys in {**SECTIONS, **TABLES, **OPTIONAL_SECTIONS}.items()
        for key in keys - {"kind"}
    },
    "name": ("", "name"),
    "population_id": ("", "population_id"),
    "features": ("task.data", "features"),
    "schedule": ("task.optimizer", "schedule"),
    "protocol": ("protocol", "kind"),
    "campaigns": ("protocol", "repeats"),
    "variation": ("randomizer", "grid"),
}
"""Where an argument of the description or of the accountant stands in the file."""


@dataclass(frozen=True, slots=True)
class CampaignFile:
    """A campaign with the file it was read from, to tell a refusal by its line."""

    path: str
    source: TomlSource
    campaign: Campaign

    def refusal(self, error: InvalidValue) -> InvalidCampaign:
        """A refusal of the accountant, with the line that it is about."""
        return _placed(error, self.source)


def read_campaign(path: str | Path) -> CampaignFile:
    """Read and check a campaign file."""
    source = TomlSource.read(path)
    return CampaignFile(source.path, source, campaign_of(source))


def parse_campaign(text: str, *, path: str = "campaign.toml") -> CampaignFile:
    """Check the text of a campaign file; ``path`` is for messages.

    >>> parse_campaign("schema = 2")
    Traceback (most recent call last):
        ...
    checkins.campaign.toml_source.InvalidCampaign: campaign.toml:1: schema = 2: must be 1
    """
    source = TomlSource.parse(text, path=path)
    return CampaignFile(path, source, campaign_of(source))


def campaign_of(source: TomlSource) -> Campaign:
    """The campaign that the values of a file describe; every refusal names its place."""
    if source.need("", "schema") != SCHEMA or source.get("", "schema") is True:
        source.refuse("", "schema", f"must be {SCHEMA}")
    source.check_keys("", TOP)
    for section, keys in SECTIONS.items():
        source.check_keys(section, keys)
    for section, keys in OPTIONAL_SECTIONS.items():
        if source.has(section):
            source.check_keys(section, keys)
    try:
        return _campaign(source)
    except InvalidCampaign:
        raise
    except InvalidValue as error:
        raise _placed(error, source) from error


def _placed(error: InvalidValue, source: TomlSource) -> InvalidCampaign:
    if error.name in PLACES:
        return source.refusal(*PLACES[error.name], error.expected)
    return InvalidCampaign(f"{source.path}: {error.name}", error.value, error.expected)


def _campaign(source: TomlSource) -> Campaign:
    randomizer = _randomizer(source)
    most = validate.MOST_CAMPAIGNS
    repeated = source.get("protocol", "repeats") is not None
    return Campaign(
        name=source.word("", "name") if source.has("name") else Path(source.path).stem,
        population_id=source.word("", "population_id") if source.has("population_id") else None,
        budget=Budget(
            source.number("budget", "epsilon"),
            source.number("budget", "delta"),
            Adjacency(source.choice("budget", "adjacency", Adjacency)),
        ),
        design=_design(source, randomizer),
        repeats=source.count("protocol", "repeats", most=most) if repeated else 1,
        randomizer=randomizer,
        task=_task(source) if source.has("task") else None,
        schedule=_schedule(source) if source.has("schedule") else None,
    )


def _design(source: TomlSource, randomizer: RandomizerConfig) -> Design:
    capacity = source.get("protocol", "capacity")
    if capacity == "all":
        if randomizer.noise_at is not NoiseAt.SERVER:
            source.refuse("protocol", "capacity", 'goes with noise_at = "server" only')
        capacity = None
    window = source.get("protocol", "window")
    return Design(
        Protocol(source.choice("protocol", "kind", Protocol)),
        slots=source.count("protocol", "slots"),
        participation=source.number("protocol", "participation"),
        randomizer=randomizer.promise,
        capacity=None if capacity is None else source.count("protocol", "capacity"),
        window=None if window is None else source.count("protocol", "window"),
        population=_population(source),
    )


def _population(source: TomlSource) -> Population | None:
    value = source.get("budget", "population")
    if value is None:
        return None
    bounds = value if isinstance(value, list) else [value, value]
    most = validate.MOST_SLOTS
    whole = all(type(one) is int and 1 <= one <= most for one in bounds)
    if len(bounds) != 2 or not whole:
        expected = f"must be an integer or [LO, HI], from 1 to {most:,}"
        source.refuse("budget", "population", expected)
    return Population(*bounds)


def _randomizer(source: TomlSource) -> RandomizerConfig:
    def number(key: str) -> float | None:
        present = source.get("randomizer", key) is not None
        return source.number("randomizer", key) if present else None

    categories, noise_at = (source.get("randomizer", key) for key in ("categories", "noise_at"))
    return RandomizerConfig(
        RandomizerKind(source.choice("randomizer", "kind", RandomizerKind)),
        clip=number("clip"),
        grid=number("grid"),
        noise_multiplier=number("noise_multiplier"),
        noise_at=None
        if noise_at is None
        else NoiseAt(source.choice("randomizer", "noise_at", NoiseAt)),
        local_epsilon=number("local_epsilon"),
        categories=None if categories is None else source.count("randomizer", "categories"),
    )


def _task(source: TomlSource) -> Task:
    given = source.section("task")
    named = isinstance(source.need("task", "data"), str)
    data = source.word("task", "data") if named else _data(source)
    features = None
    if "features" in given:
        features = Features(source.choice("task", "features", Features))
        if not fits(features, data):
            source.refuse("task", "features", NOT_PICTURES)  # a table has features too: not that
    return Task(
        data,
        source.word("task", "model"),
        _optimizer(source),
        source.count("task", "local_steps", most=MOST_LOCAL_STEPS) if "local_steps" in given else 1,
        source.number("task", "local_rate") if "local_rate" in given else None,
        features,
    )


def _data(source: TomlSource) -> DataFile:
    table = "task.data"
    given = source.section(table)
    source.check_keys(table, TABLES[table])
    features = source.words(table, "features")
    source.need(table, "ranges")
    ranges = source.section(f"{table}.ranges")
    source.check_keys(f"{table}.ranges", frozenset(features))
    for feature in features:
        ends = source.need(f"{table}.ranges", feature)
        if not (isinstance(ends, list) and len(ends) == 2 and all(map(_is_number, ends))):
            source.refuse(f"{table}.ranges", feature, "must be [LOW, HIGH]")
    return DataFile(
        source.word(table, "file"),
        source.word(table, "client_column"),
        source.word(table, "label_column"),
        features,
        tuple(tuple(ranges[feature]) for feature in features),  # type: ignore[arg-type, misc]  # checked above
        source.count(table, "classes", most=MOST_CLASSES) if "classes" in given else None,
        source.number(table, "holdout") if "holdout" in given else 0.0,
    )


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, float) or abs(value) <= 2**1000  # beyond, no float holds it


def _optimizer(source: TomlSource) -> Optimizer:
    table = "task.optimizer"
    source.check_keys(table, TABLES[table])
    try:
        require_kind(source.need(table, "kind"))
    except InvalidValue as error:
        source.refuse(table, "kind", error.expected)
    given = source.section(table)
    return Optimizer(
        rate=source.number(table, "rate"),
        minibatch=source.count(table, "minibatch") if "minibatch" in given else 1,
        schedule=StepSizes(source.choice(table, "schedule", StepSizes))
        if "schedule" in given
        else StepSizes.CONSTANT,
        diameter=source.number(table, "diameter") if "diameter" in given else None,
        divide_by=source.count(table, "divide_by") if "divide_by" in given else None,
        kind=source.word(table, "kind"),
        momentum=source.number(table, "momentum") if "momentum" in given else None,
        nesterov=source.truth(table, "nesterov") if "nesterov" in given else False,
        arguments=_arguments(source) if "arguments" in given else (),
    )


def _arguments(source: TomlSource) -> tuple[Argument, ...]:
    table, kept = "task.optimizer.arguments", []
    for name, value in source.section(table).items():
        try:
            kept.append(argument(name, value))
        except InvalidValue as error:
            source.refuse(table, name, error.expected)
    return tuple(kept)


def _schedule(source: TomlSource) -> Schedule:
    return Schedule(
        source.instant("schedule", "start"),
        source.number("schedule", "slot_s"),
        source.number("schedule", "choose_s"),
    )
