"""The settings of a sweep: all combinations of values for some keys of a campaign file."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from checkins.campaign import Campaign, InvalidCampaign, campaign_text, parse_campaign
from checkins.errors import InvalidValue

MAX_SETTINGS = 1000
"""Largest number of combinations in a sweep."""


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
        parsed = _parse_values(values)
        for index, value in enumerate(parsed):
            if value in parsed[:index]:
                raise InvalidValue("sweep", text, f"has the value {value} more than once")
        return cls(key.strip(), parsed)


def setting_combinations(axes: Iterable[Axis]) -> Iterator[dict[str, object]]:
    """Yield every combination of the axes' values. Without axes, yield one empty combination."""
    axis_list = list(axes)
    keys = [axis.key for axis in axis_list]
    for key in keys:
        if keys.count(key) > 1:
            raise InvalidValue("sweep", key, "was given more than once")
    combinations = 1
    for axis in axis_list:
        combinations *= len(axis.values)
    if combinations > MAX_SETTINGS:
        raise InvalidValue("sweep", combinations, f"makes more than {MAX_SETTINGS:,} campaigns")
    for values in itertools.product(*(axis.values for axis in axis_list)):
        yield dict(zip(keys, values, strict=True))


def with_setting(campaign: Campaign, setting: dict[str, object]) -> Campaign:
    """Return the campaign whose file has the values in ``setting`` for these keys."""
    if not setting:
        return campaign
    import tomlkit

    document = tomlkit.parse(campaign_text(campaign))
    for key, value in setting.items():
        *tables, name_in_table = key.split(".")
        table: object = document
        for table_name in tables:
            table = table.get(table_name) if isinstance(table, dict) else None
        if not isinstance(table, dict):
            raise InvalidValue("sweep", key, f"the file has no table {'.'.join(tables)!r}")
        table[name_in_table] = value
    try:
        return parse_campaign(tomlkit.dumps(document)).campaign
    except InvalidCampaign as error:
        _, _, field = error.name.partition(": ")
        raise InvalidValue("sweep", setting_label(setting), f"{field}: {error.expected}") from error


def setting_label(setting: Mapping[str, object]) -> str:
    """Return a combination of values as text.

    >>> setting_label({"protocol.slots": 100, "task.model": "mlp"})
    'protocol.slots=100, task.model=mlp'
    """
    return ", ".join(f"{key}={value}" for key, value in setting.items())


def _parse_values(text: str) -> tuple[object, ...]:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        return tuple(tomlkit.parse(f"values = [{text}]").unwrap()["values"])
    except (TOMLKitError, ValueError):
        return tuple(_parse_value(word.strip()) for word in text.split(","))


def _parse_value(word: str) -> object:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        parsed: object = tomlkit.parse(f"value = {word}")["value"]
    except TOMLKitError:
        return word
    return parsed.unwrap() if hasattr(parsed, "unwrap") else parsed
