"""A TOML file whose values are taken by section and key, and refused with file, line and key."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NoReturn, cast

import tomlkit
from tomlkit.exceptions import TOMLKitError

from checkins.accounting import require
from checkins.errors import InvalidValue

MOST_BYTES = 200_000
LONGEST_VALUE = 60

_HEADER = re.compile(r"^\s*\[\s*([^\[\]#]+?)\s*\]")
_KEY = re.compile(r"""^\s*(?:"([^"]*)"|'([^']*)'|([\w-]+))\s*(?:\.\s*([\w-]+)\s*)?=""")


class InvalidCampaign(InvalidValue):
    """A campaign file that cannot be run; the message names file, line and key."""

    def __str__(self) -> str:
        said = "" if self.value is None else f" = {self.value}"
        return f"{self.name}{said}: {self.expected}"


def line_numbers(text: str) -> dict[tuple[str, str], int]:
    """The line of each (section, key), and of each section as (section, "").

    >>> line_numbers('schema = 1\\n[protocol]\\nslots = 0\\n')[("protocol", "slots")]
    3
    """
    numbers: dict[tuple[str, str], int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            section = header[1].strip("\"'")
            numbers.setdefault((section, ""), number)
        elif key := _KEY.match(line):
            name = key[1] or key[2] or key[3]
            numbers.setdefault((section, name), number)
            if section == "":  # an inline table or a dotted key is a section too
                numbers.setdefault((name, key[4] or ""), number)
    return numbers


@dataclass(frozen=True, slots=True)
class TomlSource:
    """A parsed file that still knows its path and its lines; the top is section ``""``."""

    path: str
    values: Mapping[str, object]
    lines: Mapping[tuple[str, str], int]

    @classmethod
    def read(cls, path: str | Path) -> TomlSource:
        try:
            with Path(path).open("rb") as file:
                content = file.read(MOST_BYTES + 1)
            text = content.decode("utf-8")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise InvalidCampaign(str(path), None, f"cannot be read: {reason}") from error
        if len(content) > MOST_BYTES:
            raise InvalidCampaign(str(path), None, f"must have at most {MOST_BYTES:,} bytes")
        return cls.parse(text, path=str(path))

    @classmethod
    def parse(cls, text: str, *, path: str) -> TomlSource:
        """The values of a text; ``path`` is for messages."""
        try:
            values = tomlkit.parse(text).unwrap()
        except RecursionError as error:
            raise InvalidCampaign(path, None, "is nested too deeply") from error
        except (TOMLKitError, ValueError) as error:
            line = getattr(error, "line", None)
            reason = str(error).partition(" at line ")[0]
            place = f"{path}:{line}" if line else path
            raise InvalidCampaign(place, None, f"is not TOML: {reason}") from error
        return cls(path, values, line_numbers(text))

    def section(self, name: str) -> Mapping[str, object]:
        if name == "":
            return self.values
        if name not in self.values:
            raise InvalidCampaign(f"{self.path}: [{name}]", None, "is missing")
        section = self.values[name]
        if not isinstance(section, dict):
            self.refuse("", name, f"must be a section, [{name}]")
        return section

    def get(self, section: str, key: str) -> object:
        """The value of a key, or None."""
        return self.section(section).get(key)

    def need(self, section: str, key: str) -> object:
        """The value of a key that must stand in the file."""
        if key not in self.section(section):
            self.refuse(section, key, "is missing; it has no default")
        return self.section(section)[key]

    def number(self, section: str, key: str) -> float:
        value = self.need(section, key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.refuse(section, key, "must be a number")
        try:
            return float(value)
        except OverflowError:
            self.refuse(section, key, "is too large")

    def count(self, section: str, key: str, *, most: int = require.MOST_SLOTS) -> int:
        value = self.need(section, key)
        try:
            require.count(most=most, whole=value)
        except InvalidValue as error:
            self.refuse(section, key, error.expected)
        return cast(int, value)

    def word(self, section: str, key: str) -> str:
        value = self.need(section, key)
        if not isinstance(value, str):
            self.refuse(section, key, "must be a text in quotes")
        return value

    def choice(self, section: str, key: str, choices: type[StrEnum]) -> str:
        *most, last = words = [str(choice) for choice in choices]
        value = self.need(section, key)
        if value not in words:
            self.refuse(section, key, f"must be {', '.join(most)} or {last}")
        return str(value)

    def check_keys(self, section: str, known: Set[str]) -> None:
        """Refuse a key that nobody reads: a misspelt value must not pass for an absent one."""
        for key in self.section(section):
            if key not in known:
                close = difflib.get_close_matches(key, sorted(known), n=1)
                hint = (
                    f"did you mean {close[0]}?" if close else f"known: {', '.join(sorted(known))}"
                )
                self.refuse(section, key, f"is not a known key; {hint}")

    def refuse(self, section: str, key: str, expected: str) -> NoReturn:
        raise self.refusal(section, key, expected)

    def refusal(self, section: str, key: str, expected: str) -> InvalidCampaign:
        """What is wrong with a key, told by file, line, section, key and value."""
        value = self.section(section).get(key)
        line = self.lines.get((section, key)) or self.lines.get((section or key, ""))
        place = self.path if line is None else f"{self.path}:{line}"
        if section == "" and isinstance(value, dict):
            return InvalidCampaign(f"{place}: [{key}]", None, expected)
        return InvalidCampaign(
            f"{place}: [{section}] {key}" if section else f"{place}: {key}",
            None if value is None else as_written(value),
            expected,
        )


def as_written(value: object) -> str:
    """The value on one line, as TOML writes it; a long one is cut.

    >>> as_written("fixed"), as_written(True), as_written([1, 2])
    ('"fixed"', 'true', '[1, 2]')
    """
    try:
        text = " ".join(tomlkit.item(value).as_string().split())
    except (ValueError, TypeError):
        text = type(value).__name__
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 3] + "..."
