"""Read values of a TOML file by section and key. Errors name the file, the line and the key.

Before a text is parsed, limits on its size and structure are checked in one pass. Without them, a
TOML parser may need quadratic time for a dotted key with many parts, and a deep stack for nested
brackets. A text within these limits is parsed in a fraction of a second.

A table inside a section, ``optimizer = { rate = 0.5 }`` or ``[task.optimizer]``, is called the
section ``task.optimizer`` here. Error messages name its keys as ``[task] optimizer.rate``.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Mapping, Set
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import NoReturn, TypeVar, cast

from checkins import validate
from checkins.errors import InvalidValue

Value = TypeVar("Value")
LONGEST_QUOTED_VALUE = 60
"""Largest number of characters of a value in an error message. Longer values are shortened."""
MAX_BYTES = 200_000
"""Largest number of bytes of a file."""
MAX_KEYS = 20_000
"""Largest number of keys, tables and arrays of a file."""
MAX_DOTTED_KEY_PARTS = 8
"""Largest number of parts of a dotted key, such as task.optimizer.rate."""
MAX_NESTING = 16
"""Largest depth of brackets inside brackets."""

_KEY_LINE = re.compile(r"""^\s*(?:"([^"]*)"|'([^']*)'|([\w-]+))\s*(?:\.\s*([\w-]+)\s*)?=""")
_LINE_WITHOUT_VALUE = re.compile(r"^[^=#]*=\s*(?:#.*)?$")

# One token of TOML. Strings and comments are whole tokens, so brackets in them do not count.
_TOKEN = re.compile(
    r"""
      (?P<blank> [ \t]++ | \#[^\n]*+ )
    | (?P<part>
          \"\"\" (?: [^"\\]++ | \\. | "{1,2}(?!") )*+ "{3,5}
        | ''' (?: [^']++ | '{1,2}(?!') )*+ '{3,5}
        | " (?: [^"\\\n]++ | \\. )*+ "
        | ' [^'\n]*+ '
        | [A-Za-z0-9_-]++
      )
    | (?P<mark> . )
    """,
    re.VERBOSE | re.DOTALL,
)


class InvalidCampaign(InvalidValue):
    """A campaign file is invalid. The message names the file, the line and the key."""

    def __str__(self) -> str:
        value = "" if self.value is None else f" = {self.value}"
        return f"{self.name}{value}: {self.expected}"


def line_numbers(text: str) -> dict[tuple[str, str], int]:
    """Return the line of each (section, key), and of each section as (section, "").

    >>> line_numbers('schema = 1\\n[protocol]\\nslots = 0\\n')[("protocol", "slots")]
    3
    """
    numbers: dict[tuple[str, str], int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if (header := line.strip()).startswith("[") and "]" in header:
            header_name = header[1 : header.index("]")]
            section = ".".join(part.strip().strip("\"'") for part in header_name.split("."))
            numbers.setdefault((section, ""), number)
        elif key := _KEY_LINE.match(line):
            name = key[1] or key[2] or key[3] or ""
            numbers.setdefault((section, name), number)
            table = f"{section}.{name}" if section else name
            numbers.setdefault((table, key[4] or ""), number)  # an inline table, or a dotted key
    return numbers


@dataclass(frozen=True, slots=True)
class TomlSource:
    """The values of a file, its path, and the lines of its keys.

    The keys at the top of the file have the section ``""``.
    """

    path: str
    values: Mapping[str, object]
    lines: Mapping[tuple[str, str], int]

    @classmethod
    def read(cls, path: str | Path) -> TomlSource:
        try:
            with Path(path).open("rb") as file:
                content = file.read(MAX_BYTES + 1)
            text = content.decode("utf-8-sig")  # some editors write a byte order mark
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise InvalidCampaign(str(path), None, f"cannot be read: {reason}") from error
        if len(content) > MAX_BYTES:
            raise InvalidCampaign(str(path), None, f"must have at most {MAX_BYTES:,} bytes")
        return cls.parse(text, path=str(path))

    @classmethod
    def parse(cls, text: str, *, path: str) -> TomlSource:
        """Parse a text. ``path`` appears in error messages.

        A text that exceeds the limits of this module is refused before it is parsed.
        """
        limit_error = exceeded_limit(text)
        if limit_error is not None:
            line, problem = limit_error
            raise InvalidCampaign(path if line is None else f"{path}:{line}", None, problem)
        try:
            values = tomllib.loads(text)
        except ValueError as error:
            line, reason = _parser_error(error, text)
            raise InvalidCampaign(f"{path}:{line}", None, f"is not TOML: {reason}") from error
        return cls(path, values, line_numbers(text))

    def section(self, name: str) -> Mapping[str, object]:
        """Return the values of a section. ``a.b`` is the table b of section a."""
        if name == "":
            return self.values
        outer, _, inner = name.rpartition(".")
        values = self.section(outer)
        if inner not in values:
            if outer:
                self.refuse(outer, inner, "is missing; it has no default")
            raise InvalidCampaign(f"{self.path}: [{name}]", None, "is missing")
        section = values[inner]
        if not isinstance(section, dict):
            kind = f"table, {inner} = {{ ... }}" if outer else f"section, [{inner}]"
            self.refuse(outer, inner, f"must be a {kind}")
        return section

    def has(self, name: str) -> bool:
        """Return True if the file has this section, or this key at its top."""
        return name in self.values

    def get(self, section: str, key: str) -> object:
        """Return the value of a key. None if the section does not contain the key."""
        return self.section(section).get(key)

    def require(self, section: str, key: str) -> object:
        """Return the value of a key. Raise InvalidCampaign if the key is missing."""
        if key not in self.section(section):
            self.refuse(section, key, "is missing; it has no default")
        return self.section(section)[key]

    def number(self, section: str, key: str) -> float:
        value = self.require(section, key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.refuse(section, key, "must be a number")
        try:
            return float(value)
        except OverflowError:
            self.refuse(section, key, "is too large")

    def integer(self, section: str, key: str, *, most: int = validate.MAX_SLOTS) -> int:
        """Return an integer from 1 to ``most``."""
        value = self.require(section, key)
        try:
            validate.count(most=most, value=value)
        except InvalidValue as error:
            self.refuse(section, key, error.expected)
        return cast(int, value)

    def text(self, section: str, key: str) -> str:
        return self._value_of_type(str, section, key, "must be a text in quotes")

    def boolean(self, section: str, key: str) -> bool:
        return self._value_of_type(bool, section, key, "must be true or false")

    def date_time(self, section: str, key: str) -> datetime:
        """Return a date and time, with or without an offset from UTC."""
        expected = "must be a date and time, such as 2030-01-01T00:00:00Z"
        return self._value_of_type(datetime, section, key, expected)

    def _value_of_type(self, kind: type[Value], section: str, key: str, expected: str) -> Value:
        value = self.require(section, key)
        if not isinstance(value, kind):
            self.refuse(section, key, expected)
        return value

    def texts(self, section: str, key: str) -> tuple[str, ...]:
        values = self.require(section, key)
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            self.refuse(section, key, "must be a list of texts in quotes")
        return tuple(values)

    def choice(self, section: str, key: str, choices: type[StrEnum]) -> str:
        names = [str(choice) for choice in choices]
        value = self.require(section, key)
        if value not in names:
            listed = f"{', '.join(names[:-1])} or {names[-1]}" if names[1:] else f'"{names[0]}"'
            self.refuse(section, key, f"must be {listed}")
        return str(value)

    def check_keys(self, section: str, known: Set[str]) -> None:
        """Raise InvalidCampaign if the section has a key that is not ``known``, such as a typo."""
        for key in self.section(section):
            if key not in known:
                similar = difflib.get_close_matches(key, sorted(known), n=1)
                names = ", ".join(sorted(known))
                hint = f"did you mean {similar[0]}?" if similar else f"known: {names}"
                self.refuse(section, key, f"is not a known key; {hint}")

    def refuse(self, section: str, key: str, expected: str) -> NoReturn:
        """Raise the error of ``error_at``."""
        raise self.error_at(section, key, expected)

    def error_at(self, section: str, key: str, expected: str) -> InvalidCampaign:
        """Return an error that names the file, line, section, key and value."""
        value = self.section(section).get(key)
        line = self._line_of_key(section, key)
        place = self.path if line is None else f"{self.path}:{line}"
        if section == "" and isinstance(value, dict):
            return InvalidCampaign(f"{place}: [{key}]", None, expected)
        top, _, table = section.partition(".")
        key_path = f"{table}.{key}" if table else key
        return InvalidCampaign(
            f"{place}: [{top}] {key_path}" if section else f"{place}: {key}",
            None if value is None else short_toml(value),
            expected,
        )

    def _line_of_key(self, section: str, key: str) -> int | None:
        """Return the line of a key, or of the innermost table around it. None if unknown."""
        if (section, key) in self.lines:
            return self.lines[section, key]
        table = section or key
        while table:
            outer, _, inner = table.rpartition(".")
            for section_and_key in ((table, ""), (outer, inner)):
                if section_and_key in self.lines:
                    return self.lines[section_and_key]
            table = outer
        return None


def _parser_error(error: ValueError, text: str) -> tuple[int, str]:
    """Return the line and the reason of a parser's error. Some reasons are put more clearly."""
    reason, _, place = str(error).rpartition(" (at ")
    lines = text.rstrip().split("\n")
    position = re.match(r"line (\d+),", place)
    line = int(position[1]) if position else len(lines)
    if line <= len(lines) and _LINE_WITHOUT_VALUE.match(lines[line - 1]):
        return line, "a value is missing after ="
    if not position and reason.startswith(("Expected", "Invalid", "Unterminated", "Unclosed")):
        return line, "the file ends in the middle of a line"
    if reason == "Cannot overwrite a value":
        return line, "this key appears twice"
    return line, reason or str(error)


def short_toml(value: object) -> str:
    """Return a value on one line, as TOML writes it. A long value is shortened.

    >>> short_toml("fixed"), short_toml(True), short_toml([1, 2])
    ('"fixed"', 'true', '[1, 2]')
    """
    text = " ".join(to_toml(value, max_length=LONGEST_QUOTED_VALUE).split())
    return text if len(text) <= LONGEST_QUOTED_VALUE else text[: LONGEST_QUOTED_VALUE - 3] + "..."


def to_toml(value: object, *, max_length: int | None = None) -> str:
    """Return a value in TOML.

    Of each text, list and table, at most the first ``max_length`` characters or items are written.
    None means no limit.

    >>> to_toml(1e-6), to_toml([1, 2]), to_toml({"kind": "sgd", "nesterov": True})
    ('1e-6', '[1, 2]', '{ kind = "sgd", nesterov = true }')
    """
    match value:
        case bool():
            return str(value).lower()
        case int():
            return str(value) if value.bit_length() < 1000 else "an integer of many digits"
        case float():
            return re.sub(r"e\+?(-?)0*", r"e\1", repr(value))
        case str():
            return json.dumps(value[:max_length], ensure_ascii=False)  # JSON escapes as TOML does
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case list():
            items = (to_toml(item, max_length=max_length) for item in value[:max_length])
            return f"[{', '.join(items)}]"
        case dict():
            pairs = islice(value.items(), max_length)
            inside = ", ".join(
                f"{key} = {to_toml(item, max_length=max_length)}" for key, item in pairs
            )
            return f"{{ {inside} }}"
    return str(value)


def exceeded_limit(text: str) -> tuple[int | None, str] | None:
    """Return (line, limit) if a text exceeds a limit, else None.

    The line is None if the text as a whole is too long.

    >>> exceeded_limit("a.b.c = [[1.5], [2.5]]  # ....................")
    >>> exceeded_limit("name = 'x'\\na.b.c.d.e.f.g.h.i = 1")
    (2, 'must have at most 8 parts in a dotted key')
    """
    if len(text) > MAX_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        return None, f"must have at most {MAX_BYTES:,} bytes"
    parts = depth = keys = 0
    after_dot = False  # whether the last token was a dot after a part
    for token in _TOKEN.finditer(text):
        kind = token.lastgroup
        if kind == "blank":
            continue
        if kind == "part":
            parts = parts + 1 if after_dot else 1
            after_dot = False
            if parts > MAX_DOTTED_KEY_PARTS:
                limit = f"must have at most {MAX_DOTTED_KEY_PARTS} parts in a dotted key"
                return _line_of_token(text, token), limit
            continue
        mark = token[0]
        after_dot = mark == "." and parts > 0
        if not after_dot:
            parts = 0
        keys += mark in "=["
        depth += (mark in "[{") - (mark in "]}")
        if depth > MAX_NESTING:
            return _line_of_token(text, token), "is nested too deeply"
        if keys > MAX_KEYS:
            return _line_of_token(
                text, token
            ), f"must have at most {MAX_KEYS:,} keys, tables and arrays"
    return None


def _line_of_token(text: str, token: re.Match[str]) -> int:
    return text.count("\n", 0, token.start()) + 1
