"""campaign.toml, schema 1: what the accountant needs of it.

``[budget]``, ``[protocol]`` and ``[randomizer]`` become a ``Design`` and the terms of its
guarantee. ``[task]`` and ``[schedule]`` may stand in the file and do not change its price. Nothing
that privacy depends on has a default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from checkins.accounting import (
    Adjacency,
    Design,
    GaussianNoise,
    LocalRandomizer,
    NoiseAt,
    Population,
    Protocol,
    require,
)
from checkins.errors import InvalidValue
from checkins.protocol.toml_source import InvalidCampaign, TomlSource

__all__ = ["CampaignFile", "InvalidCampaign", "Randomizer", "parse_campaign", "read_campaign"]

SCHEMA = 1
LEAST_NOISE_IN_GRID_STEPS = 3.0
"""Below it the sum of several rounded reports is not Gaussian enough for the price to hold."""

SECTIONS: Mapping[str, frozenset[str]] = {
    "budget": frozenset({"epsilon", "delta", "adjacency", "population"}),
    "protocol": frozenset({"kind", "slots", "participation", "capacity", "window", "repeats"}),
    "randomizer": frozenset(
        {"kind", "noise_at", "noise_multiplier", "clip", "grid", "local_epsilon"}
    ),
}
TOP = frozenset({"schema", "name", "population_id", "task", "schedule", *SECTIONS})

PLACES: Mapping[str, tuple[str, str]] = {
    **{key: (section, key) for section, keys in SECTIONS.items() for key in keys - {"kind"}},
    "protocol": ("protocol", "kind"),
    "campaigns": ("protocol", "repeats"),
}
"""Where an argument of the accountant stands in the file."""


class Randomizer(StrEnum):
    """How a report is made private."""

    GAUSSIAN = "gaussian"
    LAPLACE = "laplace"
    PRIVUNIT = "privunit"
    RANDOMIZED_RESPONSE = "randomized-response"


@dataclass(frozen=True, slots=True)
class CampaignFile:
    """One campaign as its file describes it; ``epsilon`` is its budget, not its price."""

    path: str
    name: str
    population_id: str | None
    design: Design
    epsilon: float
    delta: float
    adjacency: Adjacency
    repeats: int
    source: TomlSource

    def refusal(self, error: InvalidValue) -> InvalidCampaign:
        """A refusal of the accountant, with the line that it is about."""
        return _placed(error, self.source)


def read_campaign(path: str | Path) -> CampaignFile:
    """Read and check a campaign file."""
    return _checked(TomlSource.read(path))


def parse_campaign(text: str, *, path: str = "campaign.toml") -> CampaignFile:
    """Check the text of a campaign file; ``path`` is for messages.

    >>> parse_campaign("schema = 2")
    Traceback (most recent call last):
        ...
    checkins.protocol.toml_source.InvalidCampaign: campaign.toml:1: schema = 2: must be 1
    """
    return _checked(TomlSource.parse(text, path=path))


def _checked(source: TomlSource) -> CampaignFile:
    if source.need("", "schema") != SCHEMA or source.get("", "schema") is True:
        source.refuse("", "schema", f"must be {SCHEMA}")
    source.check_keys("", TOP)
    for section, keys in SECTIONS.items():
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


def _campaign(source: TomlSource) -> CampaignFile:
    epsilon, delta = source.number("budget", "epsilon"), source.number("budget", "delta")
    require.positive(epsilon=epsilon)
    require.open_unit(delta=delta)
    named, shared = source.get("", "name"), source.get("", "population_id")
    most = require.MOST_CAMPAIGNS
    repeated = source.get("protocol", "repeats") is not None
    return CampaignFile(
        path=source.path,
        name=Path(source.path).stem if named is None else source.word("", "name"),
        population_id=None if shared is None else source.word("", "population_id"),
        design=_design(source),
        epsilon=epsilon,
        delta=delta,
        adjacency=Adjacency(source.choice("budget", "adjacency", Adjacency)),
        repeats=source.count("protocol", "repeats", most=most) if repeated else 1,
        source=source,
    )


def _design(source: TomlSource) -> Design:
    randomizer = _randomizer(source)
    capacity = source.get("protocol", "capacity")
    if capacity == "all":
        if not isinstance(randomizer, GaussianNoise) or randomizer.at is not NoiseAt.SERVER:
            source.refuse("protocol", "capacity", 'goes with noise_at = "server" only')
        capacity = None
    window = source.get("protocol", "window")
    return Design(
        Protocol(source.choice("protocol", "kind", Protocol)),
        slots=source.count("protocol", "slots"),
        participation=source.number("protocol", "participation"),
        randomizer=randomizer,
        capacity=None if capacity is None else source.count("protocol", "capacity"),
        window=None if window is None else source.count("protocol", "window"),
        population=_population(source),
    )


def _population(source: TomlSource) -> Population | None:
    value = source.get("budget", "population")
    if value is None:
        return None
    bounds = value if isinstance(value, list) else [value, value]
    if len(bounds) != 2:
        source.refuse("budget", "population", "must be a whole number or [LOW, HIGH]")
    return Population(*bounds)


def _randomizer(source: TomlSource) -> LocalRandomizer | GaussianNoise:
    kind = source.choice("randomizer", "kind", Randomizer)
    if kind == Randomizer.GAUSSIAN:
        return _gaussian(source)
    for key in ("noise_at", "noise_multiplier"):
        if source.get("randomizer", key) is not None:
            source.refuse("randomizer", key, 'goes with kind = "gaussian" only')
    for key in ("clip", "grid"):
        if source.get("randomizer", key) is not None:
            require.positive(**{key: source.number("randomizer", key)})
    return LocalRandomizer(source.number("randomizer", "local_epsilon"))


def _gaussian(source: TomlSource) -> GaussianNoise:
    if source.get("randomizer", "local_epsilon") is not None:
        source.refuse("randomizer", "local_epsilon", 'does not go with kind = "gaussian"')
    noise = GaussianNoise(
        source.number("randomizer", "noise_multiplier"),
        NoiseAt(source.choice("randomizer", "noise_at", NoiseAt)),
    )
    clip = source.number("randomizer", "clip")
    require.positive(clip=clip)
    if source.get("randomizer", "grid") is not None:
        grid = source.number("randomizer", "grid")
        require.positive(grid=grid)
        coarsest = noise.noise_multiplier * clip / LEAST_NOISE_IN_GRID_STEPS
        if grid > coarsest:
            source.refuse(
                "randomizer", "grid", f"must be at most a third of the noise, {coarsest:.4g}"
            )
    return noise
