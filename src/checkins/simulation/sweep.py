"""The settings of a sweep: all combinations of values for some keys of a campaign file."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from checkins.campaign import Campaign, InvalidCampaign, campaign_text, parse_campaign
from checkins.errors import InvalidValue

MOST_SETTINGS = 1000


@dataclass(frozen=True, slots=True)
class Axis:
    """A key of the campaign file and its values in a sweep.

    >>> Axis.parse("protocol.slots=100, 200")
    Axis(key='protocol.slots', values=(100, 200))
    """

    key: str
    values: tuple[object, ...]

    @classmethod
    def parse(cls, text: str) -> Axis:
        """Parse ``SECTION.KEY=VALUE,VALUE,...``. Values are TOML; quotes may be omitted."""
        key, equals, values = text.partition("=")
        if not equals or not key.strip() or not values.strip():
            raise InvalidValue("sweep", text, "must be SECTION.KEY=VALUE,VALUE,...")
        parsed = _values(values)
        for place, value in enumerate(parsed):
            if value in parsed[:place]:
                raise InvalidValue("sweep", text, f"has the value {value} more than once")
        return cls(key.strip(), parsed)


def settings(axes: Iterable[Axis]) -> Iterator[dict[str, object]]:
    """Yield every combination of the axes' values. Without axes, yield one empty combination."""
    listed = list(axes)
    keys = [axis.key for axis in listed]
    for key in keys:
        if keys.count(key) > 1:
            raise InvalidValue("sweep", key, "was given more than once")
    count = 1
    for axis in listed:
        count *= len(axis.values)
    if count > MOST_SETTINGS:
        raise InvalidValue("sweep", count, f"makes more than {MOST_SETTINGS:,} campaigns")
    for values in itertools.product(*(axis.values for axis in listed)):
        yield dict(zip(keys, values, strict=True))


def changed(campaign: Campaign, setting: dict[str, object]) -> Campaign:
    """Return the campaign with the keys in ``setting`` replaced in its file."""
    if not setting:
        return campaign
    import tomlkit

    document = tomlkit.parse(campaign_text(campaign))
    for key, value in setting.items():
        *tables, last = key.split(".")
        place: object = document
        for name in tables:
            place = place.get(name) if isinstance(place, dict) else None
        if not isinstance(place, dict):
            raise InvalidValue("sweep", key, f"the file has no table {'.'.join(tables)!r}")
        place[last] = value
    try:
        return parse_campaign(tomlkit.dumps(document)).campaign
    except InvalidCampaign as error:
        _, _, place = error.name.partition(": ")
        raise InvalidValue("sweep", label(setting), f"{place}: {error.expected}") from error


def label(setting: Mapping[str, object]) -> str:
    """Return a combination as text.

    >>> label({"protocol.slots": 100, "task.model": "mlp"})
    'protocol.slots=100, task.model=mlp'
    """
    return ", ".join(f"{key}={value}" for key, value in setting.items())


def _values(text: str) -> tuple[object, ...]:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        return tuple(tomlkit.parse(f"values = [{text}]").unwrap()["values"])
    except (TOMLKitError, ValueError):
        return tuple(_value(word.strip()) for word in text.split(","))


def _value(word: str) -> object:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        parsed: object = tomlkit.parse(f"value = {word}")["value"]
    except TOMLKitError:
        return word
    return parsed.unwrap() if hasattr(parsed, "unwrap") else parsed
