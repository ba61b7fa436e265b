"""Read and write campaign files. ``fields`` declares their keys.

If any value of a file is invalid, reading raises InvalidCampaign with the file, line and key.
Nothing that privacy depends on has a default. ``[task]`` and ``[schedule]`` may be absent, but a
campaign without them can only be certified, not run. Reading a written file gives the same campaign
again. A written file leaves out defaults that do not affect privacy.

There is a template of a campaign file for each kind of task. The values in it are examples. A
comment at its top says that the user must choose values before real people take part.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn

from checkins.accounting import (
    Adjacency,
    Design,
    GaussianNoise,
    LocalRandomizer,
    NoiseAt,
    Population,
    Protocol,
)
from checkins.campaign import fields
from checkins.campaign.field_types import Default, Key, NamedStrategy, Section, check_schema
from checkins.campaign.model import Budget, Campaign, Schedule
from checkins.campaign.randomizer_config import RandomizerConfig, RandomizerKind, noise_of_kind
from checkins.campaign.task import DataFile, DataSet, Model, Optimizer, StepSizes, Task
from checkins.campaign.toml import InvalidCampaign, TomlSource, to_toml
from checkins.errors import InvalidValue

LONGEST_CANONICAL = 2_000_000
"""Largest number of characters of a canonical form, which is enough for ten thousand features.

The canonical form of a campaign is the JSON text whose hash is the campaign's seal.
"""
COMMENT_COLUMN = 30
"""The column at which a comment of a written file begins."""
LONGEST_LINE = 100
"""Largest number of characters of a written line."""


@dataclass(frozen=True, slots=True)
class CampaignFile:
    """A campaign and the file that it was read from."""

    path: str
    source: TomlSource
    campaign: Campaign

    def refusal(self, error: InvalidValue) -> InvalidCampaign:
        """Convert an error of the accountant to one that names the file, line and key."""
        return _located_error(error, self.source)


def read_campaign(path: str | Path) -> CampaignFile:
    """Read and check a campaign file."""
    source = TomlSource.read(path)
    return CampaignFile(source.path, source, campaign_of(source))


def parse_campaign(text: str, *, path: str = "campaign.toml") -> CampaignFile:
    """Parse and check the text of a campaign file. ``path`` appears in error messages.

    >>> parse_campaign("schema = 2")
    Traceback (most recent call last):
        ...
    checkins.campaign.toml.InvalidCampaign: campaign.toml:1: schema = 2: must be 1
    """
    source = TomlSource.parse(text, path=path)
    return CampaignFile(path, source, campaign_of(source))


def campaign_from_canonical(text: str) -> Campaign:
    """Return the campaign of a canonical form. Raise InvalidValue if the text is not canonical."""
    if not isinstance(text, str) or len(text) > LONGEST_CANONICAL:
        expected = f"must be a text of at most {LONGEST_CANONICAL:,} characters"
        raise InvalidValue("campaign", "...", expected)
    try:
        values = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidValue("campaign", text[:60], "is not JSON") from error
    if not isinstance(values, dict):
        raise InvalidValue("campaign", text[:60], "must be a JSON object")
    randomizer, schedule = values.get("randomizer"), values.get("schedule")
    noise = randomizer.get("noise") if isinstance(randomizer, dict) else None
    if isinstance(noise, dict) and "strategy" in noise:  # it would have to be optimised first
        raise InvalidValue("campaign", text[:60], "is not in canonical form")
    if isinstance(schedule, dict) and isinstance(schedule.get("start"), str):
        schedule["start"] = _parse_date_time(schedule["start"])
    campaign = campaign_of(TomlSource("campaign", values, {}))
    if campaign.canonical() != text:
        raise InvalidValue("campaign", text[:60], "is not in canonical form")
    return campaign


def _parse_date_time(text: str) -> object:
    """Return the parsed date and time, or the text itself if it cannot be parsed."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return text  # TomlSource.date_time refuses the text later


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def campaign_of(source: TomlSource) -> Campaign:
    """Return the campaign that a file describes. Raise InvalidCampaign with the line and key."""
    check_schema(source)
    sections = [section for section in fields.SECTIONS if _is_in_file(section, source)]
    for section in sections:
        names = {key.name for key in section.keys}
        source.check_keys(section.name, names | _TOP_SECTIONS if section.name == "" else names)
    try:
        return _build_campaign(source, sections)
    except InvalidCampaign:
        raise
    except InvalidValue as error:
        raise _located_error(error, source) from error


_TOP_SECTIONS = {section.name for section in fields.SECTIONS if "." not in section.name} - {""}


def _is_in_file(section: Section, source: TomlSource) -> bool:
    """Return True if a section is required, or if it is optional and in the file."""
    if section.campaign_attribute is None:
        return True
    top, _, table = section.name.partition(".")
    if not source.has(top) or not table:
        return source.has(top)
    return section.inline or not isinstance(source.get(top, table), str)


def _located_error(error: InvalidValue, source: TomlSource) -> InvalidCampaign:
    section_and_key = _keys_by_argument().get(error.name)
    if section_and_key is not None:
        return source.error_at(*section_and_key, error.expected)
    return InvalidCampaign(f"{source.path}: {error.name}", error.value, error.expected)


def _keys_by_argument() -> Mapping[str, tuple[str, str]]:
    """Return (section, key) in the file for each argument name in error messages.

    The argument ``kind`` is left out, because several sections have a key of that name. Two
    sections have a key ``features``. The argument ``features`` means the later key, in
    ``task.data``.
    """
    keys: dict[str, tuple[str, str]] = {}
    for key in (key for section in fields.SECTIONS for key in section.keys):
        for name in (key.attribute.rpartition(".")[2], *key.aliases):
            keys[name] = (key.section, key.name)
    del keys["kind"]
    return keys


def _build_campaign(source: TomlSource, sections: Sequence[Section]) -> Campaign:
    # The constructor arguments of each part of the campaign, such as "task.optimizer".
    arguments: dict[str, dict[str, Any]] = defaultdict(dict)
    for section in sections:
        in_file = source.section(section.name)
        # Keys in the file come first, so that a wrong value is reported before a missing key.
        for key in sorted(section.keys, key=lambda key: key.name not in in_file):
            if key.read is not None:
                part, _, name = key.attribute.rpartition(".")
                arguments[part][name] = _read_value(key, source)
    top, randomizer = arguments[""], arguments["randomizer"]
    if top["name"] is None:
        top["name"] = Path(source.path).stem
    noise_values = {
        name: top.pop(name) for name in ("noise_at", "noise_multiplier", "local_epsilon")
    }
    task = _build_task(arguments) if "task" in arguments else None
    strategy = top.pop("strategy")
    if isinstance(strategy, NamedStrategy):
        strategy = strategy.for_run(slots=arguments["design"]["slots"], task=task)
    noise = noise_of_kind(randomizer["kind"], strategy=strategy, **noise_values)
    del top["schema"]
    return Campaign(
        **top,
        randomizer=RandomizerConfig(**randomizer),
        budget=Budget(**arguments["budget"]),
        design=Design(**arguments["design"], randomizer=noise),
        task=task,
        schedule=Schedule(**arguments["schedule"]) if "schedule" in arguments else None,
    )


def _read_value(key: Key, source: TomlSource) -> Any:
    absent = key.name not in source.section(key.section)
    if key.read is None or (absent and key.default is not Default.REQUIRED):
        return key.default
    return key.read(source, key.section, key.name)


def _build_task(arguments: dict[str, dict[str, Any]]) -> Task:
    task = dict(arguments["task"])
    if task["data"] is None:
        task["data"] = DataFile(**arguments["task.data"])
    return Task(**task, optimizer=Optimizer(**arguments["task.optimizer"]))


def campaign_text(campaign: Campaign, *, head: Sequence[str] = (), is_chosen: bool = False) -> str:
    """Return the text of a campaign file with comments. ``head`` is the comment at its top.

    If ``is_chosen``, no value is marked (choose), because somebody has chosen all values.
    """
    lines = [f"# {line}".rstrip() for line in head]
    for section in fields.SECTIONS:
        if section.is_in(campaign) and not section.inline:
            lines += [*([""] if lines else []), *_section_lines(section, campaign)]
    text = "\n".join(lines) + "\n"
    return text.replace("# (choose) ", "# ") if is_chosen else text


def _section_lines(section: Section, campaign: Campaign) -> Iterator[str]:
    if section.name:
        yield f"[{section.name}]"
    for key in section.keys:
        if key.read is None:
            table = _inline_table(f"{section.name}.{key.name}", campaign)
            yield _key_line(key.name, table, key.comment_for(campaign))
            continue
        value, comment = key.written_value(campaign), key.comment_for
        if isinstance(value, dict):
            yield ""
            yield _commented_line(f"[{section.name}.{key.name}]", comment(campaign))
            yield from (_key_line(_toml_key(name), item) for name, item in value.items())
        elif value is not None:
            yield _key_line(key.name, value, comment(campaign))


def _inline_table(name: str, campaign: Campaign) -> dict[str, Any]:
    (section,) = (section for section in fields.SECTIONS if section.name == name)
    values = {key.name: key.written_value(campaign) for key in section.keys}
    return {key: value for key, value in values.items() if value is not None}


def _key_line(key: str, value: object, comment: str = "") -> str:
    return _commented_line(f"{key} = {to_toml(value)}", comment)


def _commented_line(text: str, comment: str) -> str:
    if not comment:
        return text
    padded = f"{text:<{COMMENT_COLUMN}}" if len(text) < COMMENT_COLUMN else f"{text}  "
    line = f"{padded}# {comment}"
    return line if len(line) <= LONGEST_LINE else f"# {comment}\n{text}"


def _toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else to_toml(name)


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
    campaign = _campaign("my-campaign", design, task, population_id="my-population")
    schedule = replace(SCHEDULE, slot_s=60.0, choose_s=20.0)
    return title, replace(campaign, schedule=schedule)


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
