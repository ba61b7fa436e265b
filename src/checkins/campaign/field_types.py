"""Classes and functions with which ``fields`` declares the keys of a campaign file.

A declaration says how a key is read, checked, written, sealed and documented.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from datetime import UTC, datetime
from enum import Enum, StrEnum
from numbers import Integral
from typing import Any, cast

from checkins import strategies, validate
from checkins.accounting import Adjacency, NoiseAt, NoiseStrategy, Population, Protocol
from checkins.accounting.noise_strategy import MOST_BANDS
from checkins.campaign.randomizer_config import RandomizerKind
from checkins.campaign.task import (
    SCATTERING_NEEDS_PICTURES,
    DataFile,
    Features,
    StepSizes,
    Task,
    features_fit,
    optimizer_argument,
    require_optimizer_kind,
)
from checkins.campaign.toml import TomlSource
from checkins.errors import InvalidValue
from checkins.strategies import StrategyName, Workload

SCHEMA = 1
"""The version of the format of campaign files."""

Reader = Callable[[TomlSource, str, str], Any]
"""A function that returns a value, given the file, the section and the key.

It raises InvalidCampaign if the value has a wrong type.
"""


class Default(Enum):
    """Marks a key that has no default value."""

    REQUIRED = "the key must be in the file"


class Sealed(Enum):
    """Whether the canonical form of a campaign contains a key.

    The canonical form is the JSON text whose hash is the seal of the campaign.
    """

    ALWAYS = "always, even if the value is the default"
    UNLESS_DEFAULT = "only if the value is not the default, for keys added to the format later"
    NEVER = "never"


def plain_value(value: Any) -> Any:
    """Convert a value of a campaign to a JSON or TOML value. None means that there is no value."""
    match value:
        case None | bool() | float() | dict():
            return value
        case str():
            return str(value)
        case Integral():
            return int(value)
        case datetime():
            return value.astimezone(UTC).isoformat().removesuffix("+00:00") + "Z"
        case Population():
            return [int(value.fewest), int(value.most)]
        case tuple():
            return [plain_value(item) for item in value]
        case DataFile():
            return None  # the section task.data contains its values
    return float(value)


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a campaign file.

    ``read`` reads the value. If it is None, the key is a table that has its own section.
    ``accepts`` (the allowed values), ``meaning`` and ``privacy`` (what the key affects, such as
    "epsilon") are columns of the documentation. ``comment`` is the comment in a written file: a
    text, a text for each value, or a function of the campaign.
    ``attribute_path`` is the attribute of ``Campaign`` with the value, such as ``design.slots``.
    If it is empty, the path is section and name.
    ``get`` returns a campaign's value in JSON. If it is None, the attribute's value is used.
    ``get_for_file`` returns the value to write to a file, or None to leave the key out. If
    ``get_for_file`` is None, the value of ``get`` is written.
    ``aliases`` are other names that error messages of the accountant use for the value.
    """

    name: str
    read: Reader | None
    accepts: str
    _: KW_ONLY
    section: str = ""
    meaning: str = ""
    privacy: str = ""
    comment: str | Mapping[Any, str] | Callable[[Any], str] = ""
    default: Any = Default.REQUIRED
    sealed: Sealed = Sealed.ALWAYS
    get: Callable[[Any], Any] | None = None
    get_for_file: Callable[[Any], Any] | None = None
    aliases: tuple[str, ...] = ()
    attribute_path: str = ""

    def documented(self, meaning: str, **documentation: Any) -> Key:
        """Return the key with its ``meaning``, and optionally a ``comment`` and ``privacy``."""
        return replace(self, meaning=meaning, **documentation)

    @property
    def attribute(self) -> str:
        """The dotted path of the attribute of ``Campaign`` that holds the value."""
        return self.attribute_path or f"{self.section}.{self.name}".removeprefix(".")

    def value(self, campaign: Any) -> Any:
        """Return a campaign's value for this key. None if the campaign has no value for it."""
        if self.get is not None:
            return self.get(campaign)
        return plain_value(attribute_at(campaign, self.attribute))

    def sealed_value(self, campaign: Any) -> Any:
        """Return the value for the canonical form. None means that the key is left out."""
        value = self.value(campaign)
        if self.sealed is Sealed.NEVER or self._is_omitted_default(value):
            return None
        return value

    def written_value(self, campaign: Any) -> Any:
        """Return the value for a campaign file. None means that the key is left out."""
        if self.get_for_file is not None:
            return self.get_for_file(campaign)
        value = self.value(campaign)
        return None if self._is_omitted_default(value) else value

    def _is_omitted_default(self, value: Any) -> bool:
        """Return True if the value is the default, and this key is left out in that case."""
        return self.sealed is not Sealed.ALWAYS and value == plain_value(self.default)

    def comment_for(self, campaign: Any) -> str:
        """Return the comment that is written next to the key."""
        if isinstance(self.comment, Mapping):
            return self.comment[attribute_at(campaign, self.attribute)]
        return self.comment if isinstance(self.comment, str) else self.comment(campaign)


@dataclass(frozen=True, slots=True)
class Section:
    """A section of a campaign file, with its keys in the order in which they are written.

    The section ``a.b`` is the table b of section a. ``campaign_attribute`` names an attribute of
    ``Campaign``. A campaign in which this attribute is None has no such section. If
    ``campaign_attribute`` is None, every campaign has the section. An ``inline`` section is written
    as ``b = { ... }`` in section a.
    """

    name: str
    keys: tuple[Key, ...]
    campaign_attribute: str | None = None
    inline: bool = False

    def is_in(self, campaign: Any) -> bool:
        """Return True if a campaign has this section."""
        if self.campaign_attribute is None:
            return True
        value = attribute_at(campaign, self.campaign_attribute)
        return value is not None and not isinstance(value, str)


def attribute_at(campaign: Any, path: str) -> Any:
    """Return the attribute at a dotted path such as ``design.slots``.

    Return None if an attribute on the path is None.
    """
    for name in path.split("."):
        if campaign is None:
            return None
        campaign = getattr(campaign, name)
    return campaign


def choice_reader(choices: type[StrEnum]) -> Reader:
    """Return a function that reads a member of an enum."""
    return lambda source, section, key: choices(source.choice(section, key, choices))


def check_schema(source: TomlSource, section: str = "", key: str = "schema") -> int:
    """Return the version of the format. Raise InvalidCampaign if it is not ``SCHEMA``."""
    if source.require(section, key) != SCHEMA or source.get(section, key) is True:
        source.refuse(section, key, f"must be {SCHEMA}")
    return SCHEMA


def read_population(source: TomlSource, section: str, key: str) -> Population:
    value = source.require(section, key)
    bounds = value if isinstance(value, list) else [value, value]
    largest = validate.MAX_SLOTS
    in_range = all(type(bound) is int and 1 <= bound <= largest for bound in bounds)
    if len(bounds) != 2 or not in_range:
        source.refuse(section, key, f"must be an integer or [LO, HI], from 1 to {largest:,}")
    return Population(*bounds)


def read_capacity(source: TomlSource, section: str, key: str) -> int | None:
    if source.get(section, key) != "all":
        return source.integer(section, key)
    if source.get("randomizer", "noise_at") != NoiseAt.SERVER:
        source.refuse(section, key, 'requires noise_at = "server"')
    return None


@dataclass(frozen=True, slots=True)
class NamedStrategy:
    """A strategy of correlated noise that a file names instead of stating its coefficients."""

    name: StrategyName
    bands: int

    def for_run(self, *, slots: int, task: Task | None) -> NoiseStrategy:
        """Return the coefficients. Without a task, gradient descent is assumed.

        An average of the models is not part of the workload. The coefficients that are best for the
        average alone give a larger epsilon, and the model was worse in every simulation at the same
        epsilon (docs/experiments.md).
        """
        workload = Workload(slots)
        if task is not None:
            optimizer = task.optimizer
            arguments = (optimizer.momentum, optimizer.nesterov, optimizer.minibatch)
            workload = Workload(slots, *arguments)
        return strategies.named(self.name, self.bands, workload)


def read_noise(source: TomlSource, section: str, key: str) -> NamedStrategy | NoiseStrategy:
    table = f"{section}.{key}"
    values = source.section(table)
    if "strategy" in values or "bands" in values:
        source.check_keys(table, {"bands", "strategy"})
        name = StrategyName(source.choice(table, "strategy", StrategyName))
        return NamedStrategy(name, source.integer(table, "bands", most=MOST_BANDS))
    source.check_keys(table, {"bits", "numerators"})
    numerators = source.require(table, "numerators")
    if not isinstance(numerators, list):
        source.refuse(table, "numerators", "must be a list of integers")
    try:
        return NoiseStrategy(tuple(numerators), cast(int, source.require(table, "bits")))
    except InvalidValue as error:
        source.refuse(section, key, f"{error.name}: {error.expected}")


def noise_for_file(campaign: Any) -> dict[str, Any] | None:
    strategy = campaign.strategy
    if strategy is None:
        return None
    return {"bits": int(strategy.bits), "numerators": list(map(int, strategy.numerators))}


def capacity_for_file(campaign: Any) -> int | str | None:
    if campaign.design.capacity is None and campaign.design.protocol is not Protocol.AVERAGED:
        return "all"
    return campaign.design.capacity and int(campaign.design.capacity)


def read_data(source: TomlSource, section: str, key: str) -> str | None:
    """Return the name of a data set. None if the value is a table, which has its own section."""
    return source.text(section, key) if isinstance(source.require(section, key), str) else None


def read_features(source: TomlSource, section: str, key: str) -> Features:
    features = Features(source.choice(section, key, Features))
    if not features_fit(features, str(source.get("task", "data"))):
        source.refuse(section, key, SCATTERING_NEEDS_PICTURES)
    return features


def read_optimizer_kind(source: TomlSource, section: str, key: str) -> str:
    try:
        require_optimizer_kind(source.require(section, key))
    except InvalidValue as error:
        source.refuse(section, key, error.expected)
    return source.text(section, key)


def read_arguments(source: TomlSource, section: str, key: str) -> tuple[tuple[str, Any], ...]:
    table, arguments = f"{section}.{key}", []
    for name, value in source.section(table).items():
        try:
            arguments.append(optimizer_argument(name, value))
        except InvalidValue as error:
            source.refuse(table, name, error.expected)
    return tuple(arguments)


def divide_by_for_file(campaign: Any) -> int | None:
    """Return ``divide_by``. None if it is the default: the capacity, or 1 without a capacity."""
    count = campaign.task.optimizer.divide_by
    return None if count == campaign.design.reports_per_slot else plain_value(count)


def schedule_for_file(campaign: Any) -> str | None:
    schedule = campaign.task.optimizer.schedule
    return None if schedule is StepSizes.CONSTANT else str(schedule)


def read_ranges(source: TomlSource, section: str, key: str) -> tuple[tuple[float, float], ...]:
    table, features = f"{section}.{key}", source.texts(section, "features")
    source.require(section, key)
    source.check_keys(table, frozenset(features))
    ranges = []
    for feature in features:
        bounds = source.require(table, feature)
        if not (isinstance(bounds, list) and len(bounds) == 2 and all(map(_is_number, bounds))):
            source.refuse(table, feature, "must be [LOW, HIGH]")
        ranges.append((bounds[0], bounds[1]))
    return tuple(ranges)


def ranges_by_feature(data: DataFile) -> dict[str, list[float]]:
    return dict(zip(data.features, map(plain_value, data.ranges), strict=True))


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, float) or abs(value) <= 2**1000  # larger integers do not fit a float


PROTOCOL_COMMENTS = {
    Protocol.FIXED: "each client draws one of all slots. Or: averaged, sliding",
    Protocol.AVERAGED: "a slot averages all its reports. Or: fixed, sliding",
    Protocol.SLIDING: "a client draws one of the slots after it wakes. Or: fixed, averaged",
}
RANDOMIZER_COMMENTS = {
    RandomizerKind.GAUSSIAN: "or laplace, privunit, randomized-response with local_epsilon",
    RandomizerKind.LAPLACE: "or privunit, randomized-response, gaussian with noise_multiplier",
    RandomizerKind.PRIVUNIT: "or laplace, randomized-response, gaussian with noise_multiplier",
    RandomizerKind.RANDOMIZED_RESPONSE: "or laplace, privunit, gaussian with noise_multiplier",
}
NOISE_AT_COMMENTS = {
    NoiseAt.CLIENT: "noise is added to each report. Or server: to the sum of a slot",
    NoiseAt.SERVER: "noise is added to the sum of a slot. Or client: to each report",
}
ADJACENCY_COMMENTS = {
    Adjacency.ADD_REMOVE: "(choose) neighbours: one client more or less. Or: replace-one",
    Adjacency.REPLACE_ONE: "(choose) neighbours: one client's data differ. Or: add-remove",
}


def noise_comment(campaign: Any) -> str:
    """Return the comment on ``noise_multiplier`` in the file of a campaign."""
    owner = "a slot's" if campaign.noise_at is NoiseAt.SERVER else "one report's"
    return f"(choose) standard deviation of {owner} noise / clip"


def clip_comment(campaign: Any) -> str:
    """Return the comment on ``clip`` in the file of a campaign."""
    norm = "L1 norm" if campaign.randomizer.kind is RandomizerKind.LAPLACE else "norm"
    return f"(choose) largest {norm} of one update"


def optimizer_comment(campaign: Any) -> str:
    """Return the comment on ``optimizer`` in the file of a campaign."""
    if campaign.task.optimizer.divide_by == campaign.design.reports_per_slot:
        return ""
    return "rate: the step size. divide_by: the expected number of reports per slot"


def capacity_comment(campaign: Any) -> str:
    """Return the comment on ``capacity`` in the file of a campaign."""
    if campaign.design.capacity is None:
        advice = ". Suits noise at the server" if campaign.noise_at is NoiseAt.SERVER else ""
        return f"every check-in of a slot is used{advice}"
    return "(choose) largest number of check-ins per slot. Dummies fill the rest"
