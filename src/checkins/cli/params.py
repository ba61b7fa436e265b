"""Declare the options of commands and parse their values.

The value of an option remains a string until its command runs. So each error names the option as it
was typed, and ``checkins --help`` does not import the accountant. No value is clamped: a number
that float64 would turn into 0 or infinity is an error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from checkins import validate
from checkins.cli.errors import UsageError, quoted
from checkins.errors import InvalidValue

if TYPE_CHECKING:
    from checkins.accounting import Population

ALL = "all"
POSITIVE = "must be a finite number above 0"
ALLOWED: Mapping[object, str] = {
    validate.positive: POSITIVE,
    validate.open_unit: "must lie strictly between 0 and 1",
    validate.probability: "must lie in [0, 1]",
}
"""For each check of a number: which numbers pass it, as error messages say it."""
TIME_UNITS_S = {"": 1.0, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
Choice = TypeVar("Choice", bound=StrEnum)


def text(option: str, metavar: str, explained: str) -> click.Option:
    """Declare an option with a string value. It is parsed as a list to detect repeated options."""
    return click.Option([option], metavar=metavar, help=explained, multiple=True)


def flag(option: str, explained: str) -> click.Option:
    """Declare an option without a value."""
    return click.Option([option], help=explained, is_flag=True)


def folder(option: str, explained: str) -> click.Option:
    """Declare an option that takes a folder."""
    return click.Option([option], metavar="DIR", help=explained, type=click.Path(path_type=Path))


def argument(name: str, metavar: str, *, nargs: int = 1, required: bool = True) -> click.Argument:
    """Declare an argument. With ``nargs=-1``, any number of arguments is allowed."""
    return click.Argument([name], metavar=metavar, nargs=nargs, required=required)


def command(
    *parameters: click.Parameter, several: Sequence[str] = ()
) -> Callable[[Callable[[GivenOptions], None]], click.Command]:
    """Turn a function into a command with these arguments and options, in the order of its help.

    Only the options in ``several`` may be given more than once.
    """

    def declare(run: Callable[[GivenOptions], None]) -> click.Command:
        def callback(**values: object) -> None:
            run(GivenOptions.of(values, several))

        return click.Command(run.__name__, None, callback, list(parameters), run.__doc__)

    return declare


CAMPAIGN_FILE = argument("file", "CAMPAIGN.TOML")
PROTOCOL = text(
    "--protocol",
    "fixed|averaged|sliding",
    "What the server does in a slot. fixed: it uses at most --capacity check-ins of the slot."
    " averaged: it averages the reports of all check-ins of the slot. sliding: as fixed, but each"
    " client draws its slot from the next --window slots, not from all slots.",
)
SLOTS = text("--slots", "M", "Number of time steps of the campaign.")
WINDOW = text("--window", "W", "Number of slots that a client draws from (sliding only).")
PARTICIPATION = text("--participation", "P", "Probability that a client checks in at all.")
NOISE_AT = text(
    "--noise-at",
    "client|server",
    "Who adds the noise. client: each client, to its report. server: the server, to the sum of a"
    " slot.",
)
DELTA = text("--delta", "D", "The delta of the guarantee.")
ADJACENCY = text(
    "--adjacency",
    "replace-one|add-remove",
    "Which populations are neighbours. add-remove: one client is added or removed. replace-one:"
    " one client has other data.",
)
DESIGN = (
    PROTOCOL,
    SLOTS,
    text(
        "--capacity",
        "K|all",
        "Largest number of check-ins that a slot uses. With --noise-at client it is required. With"
        " --noise-at server the default is all. With --local-epsilon it does not change epsilon.",
    ),
    WINDOW,
    text(
        "--population",
        "LO..HI",
        "Number of clients, if it is known for certain. Required for the averaged protocol.",
    ),
    PARTICIPATION,
    text("--local-epsilon", "E", "Each report is E-DP on the device."),
    text(
        "--local-delta", "D", "Each report is (E, D)-DP on the device, where E is --local-epsilon."
    ),
    text(
        "--noise-multiplier",
        "S",
        "Standard deviation of the Gaussian noise, divided by the clip norm.",
    ),
    NOISE_AT,
    text(
        "--campaigns",
        "R",
        "How often the campaign is run, each time with fresh randomness. Default 1.",
    ),
    text(
        "--curious",
        "C",
        "Number of clients that may tell the adversary what they know: whether they were chosen,"
        " their reports and their noise. Default 0.",
    ),
    DELTA,
    ADJACENCY,
)
"""The options of `account` and `calibrate` that describe a design and its guarantee."""
FORCE = flag("--force", "Overwrite an existing file.")
JSON = flag("--json", "Print one JSON object on standard output.")


@dataclass(frozen=True, slots=True)
class GivenOptions:
    """The options that the user gave.

    ``texts`` maps the name of an option, with underscores, to its value as a string. ``values`` has
    every argument and option of the command, given or not. ``unknown`` is the name of the option
    that ``--solve`` computes. It is None for all other commands.
    """

    texts: Mapping[str, str]
    values: Mapping[str, Any] = field(default_factory=dict)
    unknown: str | None = None

    @classmethod
    def of(cls, values: Mapping[str, Any], several: Sequence[str] = ()) -> GivenOptions:
        """Collect the options that were given. Only those in ``several`` may be given twice."""
        texts: dict[str, str] = {}
        for name, value in values.items():
            if name not in ("files", *several) and isinstance(value, tuple) and value:
                if len(value) > 1:
                    both = " and ".join(quoted(text) for text in value[:2])
                    raise UsageError(f"{option(name)}: was given more than once, as {both}")
                texts[name] = value[0]
        return cls(texts, values)

    def __contains__(self, name: str) -> bool:
        return name in self.texts

    @property
    def json(self) -> bool:
        """Whether the result is printed as JSON."""
        return self.values.get("json") is True

    def replacing(self, **texts: str) -> GivenOptions:
        """Return a copy in which these options have other values."""
        return replace(self, texts={**self.texts, **texts})

    def required(self, name: str, allowed: str) -> str:
        """Return the value of an option. Raise if it was not given."""
        if name not in self.texts:
            raise UsageError(f"{option(name)} is missing; {allowed} (it has no default)")
        return self.texts[name]

    def typed(self, name: str) -> str:
        """Return the option and its value, as they were typed."""
        return f"{option(name)} {quoted(self.texts[name])}"

    def invalid(self, name: str, why: str) -> UsageError:
        """Return the error for an option that was given with a wrong value."""
        return UsageError(f"{self.typed(name)}: {why}")

    def solving(self, unknown: str, text: str) -> GivenOptions:
        """Return a copy with a first value for the option that ``--solve`` computes."""
        return replace(self.replacing(**{unknown: text}), unknown=unknown)

    @contextmanager
    def naming_options(self) -> Iterator[None]:
        """Turn an ``InvalidValue`` of the library into an error that names the option."""
        try:
            yield
        except InvalidValue as error:
            raise self.refusal(error) from error

    def refusal(
        self, error: InvalidValue, *, defaults: Mapping[str, str] | None = None
    ) -> UsageError:
        """Return the library's error as one that names the option and its value or default."""
        if error.name not in self.texts and error.name in (defaults or {}):
            default = (defaults or {})[error.name]
            return UsageError(f"{option(error.name)} {default} (the default): {error.expected}")
        if error.name == self.unknown:
            return UsageError(f"--solve {error.name.replace('_', '-')}: {error.expected}")
        if error.name in self.texts:
            return self.invalid(error.name, error.expected)
        if error.value is None:
            return UsageError(f"{option(error.name)} is missing; {error.expected}")
        return UsageError(f"{option(error.name)} {quoted(error.value)}: {error.expected}")

    def integer(
        self,
        name: str,
        *,
        default: int | None = None,
        least: int = 1,
        most: int = validate.MOST_SLOTS,
    ) -> int:
        """Return an option as an integer. The option is required if there is no default."""
        if name not in self.texts and default is not None:
            return default
        return integer(name, self.required(name, integers(most, least)), least=least, most=most)

    def number(
        self, name: str, check: Callable[..., None], *, default: float | None = None
    ) -> float:
        """Return an option as a number that passes the check. Without a default it is required."""
        if name not in self.texts and default is not None:
            return default
        return number(name, self.required(name, ALLOWED.get(check, "must be a number")), check)

    def choice(self, name: str, choices: type[Choice], *, default: str | None = None) -> Choice:
        """Return an option as a member of an enumeration. Without a default it is required."""
        if name not in self.texts and default is not None:
            return choices(default)
        return choice(name, self.required(name, one_of(choices)), choices)


def option(name: str) -> str:
    """Return the option with this name: ``local_epsilon`` becomes ``--local-epsilon``."""
    return "--" + name.replace("_", "-")


def integers(most: int, least: int = 1) -> str:
    """Return the text that says which integers are allowed."""
    return f"must be an integer from {least:,} to {most:,}"


def integer(name: str, text: str, *, least: int = 1, most: int = validate.MOST_SLOTS) -> int:
    """Parse an integer. ``1e6``, ``1_000`` and ``1,000`` are accepted too.

    >>> integer("slots", "1e6"), integer("slots", "1_000"), integer("slots", "1,000")
    (1000000, 1000, 1000)
    >>> integer("slots", "2.5")
    Traceback (most recent call last):
        ...
    checkins.errors.InvalidValue: slots = '2.5': must be an integer from 1 to 1,000,000,000,000
    """
    try:
        thousands = re.fullmatch(r"[0-9]{1,3}(,[0-9]{3})+", text)
        exact = Decimal(text.replace(",", "") if thousands else text)
    except InvalidOperation:
        exact = Decimal("nan")
    in_range = exact.is_finite() and least <= exact <= most
    if not in_range or exact != exact.to_integral_value():
        raise InvalidValue(name, text, integers(most, least))
    return int(exact)


def number(name: str, text: str, check: Callable[..., None]) -> float:
    """Parse a number that passes a check of ``checkins.validate``.

    >>> number("delta", "1e-6", validate.open_unit)
    1e-06
    >>> number("participation", "1e-400", validate.probability)
    Traceback (most recent call last):
        ...
    checkins.errors.InvalidValue: participation = '1e-400': is too close to 0 for a float64
    """
    try:
        value = float(text) if text.isascii() else math.nan
    except ValueError:
        value = math.nan
    check(**{name: value})
    if value == 0.0 and any(digit in "123456789" for digit in text.lower().partition("e")[0]):
        raise InvalidValue(name, text, "is too close to 0 for a float64")
    return value


def choice(name: str, text: str, choices: type[Choice]) -> Choice:
    """Return the member of an enumeration that has this value."""
    try:
        return choices(text)
    except ValueError:
        raise InvalidValue(name, text, one_of(choices)) from None


def one_of(choices: type[StrEnum]) -> str:
    """Return the text that says which values are allowed."""
    *most, last = [str(each) for each in choices]
    return f"must be {', '.join(most)} or {last}"


def population(text: str, *, most: int = validate.MOST_SLOTS) -> Population:
    """Parse the number of clients: a range ``LO..HI``, or one number.

    >>> population("10..20"), population("1e3")
    (Population(fewest=10, most=20), Population(fewest=1000, most=1000))
    """
    from checkins.accounting import Population

    low, dots, high = text.partition("..")
    try:
        fewest = integer("population", low, most=most)
        largest = integer("population", high, most=most) if dots else fewest
    except InvalidValue:
        raise InvalidValue(
            "population", text, f"must be an integer or LO..HI, from 1 to {most:,}"
        ) from None
    return Population(fewest, largest)


def capacity(text: str) -> int | None:
    """Parse the capacity of a slot. Return None for ``all``."""
    try:
        return None if text == ALL else integer("capacity", text)
    except InvalidValue as error:
        raise InvalidValue("capacity", text, f"{error.expected}, or {ALL}") from None


def seconds(name: str, text: str) -> float:
    """Parse a duration: a number of seconds, or a number with the unit s, min, h or d.

    >>> seconds("duration", "90"), seconds("duration", "1.5h"), seconds("duration", "2d")
    (90.0, 5400.0, 172800.0)
    """
    parsed = re.fullmatch(r"([0-9.]+(?:e[+-]?[0-9]+)?)(s|min|h|d|)", text.strip(), re.ASCII)
    try:
        found = float(parsed[1]) * TIME_UNITS_S[parsed[2]] if parsed else math.nan
    except ValueError:
        found = math.nan
    if not 0.0 < found < math.inf:
        raise InvalidValue(name, text, "must be a time above 0: 600, 30min, 8h, 2d")
    return found
