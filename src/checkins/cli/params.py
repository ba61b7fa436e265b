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
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from checkins import validate
from checkins.cli.errors import UsageError, printable
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


def options(table: str) -> list[click.Option]:
    """Declare options by a table in the form of the help.

    Each option begins on a new line, with its name, the placeholder of its value and two spaces
    before its help. Further lines are indented. An option without a placeholder is a flag. Every
    other option has a tuple of strings, so that a command can refuse an option that is repeated.

    >>> [(each.name, each.metavar) for each in options("--slots M  Time steps.\\n--json  As JSON.")]
    [('slots', 'M'), ('json', None)]
    """
    found = []
    for entry in re.split(r"\n(?=--)", cleandoc(table)):
        parsed = re.fullmatch(r"(--[a-z-]+)(?: (\S+))?\s{2,}(.*)", entry, re.DOTALL)
        if parsed is None:
            raise ValueError(entry)
        name, metavar, explained = parsed[1], parsed[2], " ".join(parsed[3].split())
        kind: dict[str, Any] = {"multiple": True} if metavar else {"is_flag": True}
        found.append(click.Option([name], metavar=metavar, help=explained, **kind))
    return found


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
            names = [str(each.name) for each in parameters]
            run(GivenOptions.of({name: values[name] for name in names}, several))

        return click.Command(run.__name__, None, callback, list(parameters), run.__doc__)

    return declare


CAMPAIGN_FILE = argument("file", "CAMPAIGN.TOML")
FORCE, JSON = options("""
    --force  Overwrite an existing file.
    --json  Print the result as one JSON object.
""")
DESIGN = options("""
    --protocol fixed|averaged|sliding  What the server does in a slot. fixed: it sums the reports of
        at most --capacity check-ins. averaged: it averages the reports of all check-ins. sliding:
        as fixed, but each client draws its slot from the next --window slots, not from all slots.
    --slots M  Number of time steps (slots) of the campaign.
    --capacity K|all  Largest number of check-ins that a slot uses. Required with --noise-at client.
        Default all with --noise-at server. With --local-epsilon the default is 1. The reports of
        a slot hide each other, so a larger capacity can lower epsilon.
    --window W  Number of slots from which a client draws its slot. Only for sliding.
    --population LO..HI  Least and largest possible number of clients. The guarantee assumes them.
        Required for the averaged protocol, otherwise optional.
    --participation P  Probability that a client takes part, from 0 to 1.
    --local-epsilon E  Epsilon of one report, which the device randomizes. Give this or
        --noise-multiplier.
    --local-delta D  Delta of one report, with --local-epsilon. Default 0.
    --randomizer randomized-response|laplace|privunit  The randomizer of the reports, with
        --local-epsilon and --capacity. Its dummies, the reports that the server draws in place of
        missing ones, lower epsilon. Default: any randomizer with this local epsilon.
    --categories C  Number of categories of --randomizer randomized-response.
    --dimension D  Number of coordinates of a report of --randomizer privunit.
    --noise-multiplier S  Standard deviation of the Gaussian noise divided by the clip norm. Needs
        --noise-at.
    --noise-at client|server  Who adds the Gaussian noise. client: each client, to its report.
        server: the server, to the sum of a slot.
    --campaigns R  Number of times that the campaign is run, each with fresh randomness. Default 1.
    --curious C  Number of clients that may disclose what they know to the adversary: whether they
        were chosen, their reports and their noise. Default 0.
    --delta D  The delta of the guarantee, between 0 and 1.
    --adjacency replace-one|add-remove  The neighbour relation of the guarantee. add-remove: one
        client is added or removed. replace-one: the data of one client are replaced.
""")
"""The options of `account` and `calibrate` that describe a design and its guarantee."""


def design_options(*names: str) -> list[click.Option]:
    """Return the options of a design with these names, in this order."""
    by_name = {each.name: each for each in DESIGN}
    return [by_name[name] for name in names]


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
                    both = " and ".join(printable(text) for text in value[:2])
                    raise UsageError(f"{option(name)}: was given more than once, as {both}")
                texts[name] = value[0]
        return cls(texts, values)

    def __contains__(self, name: str) -> bool:
        return name in self.texts

    @property
    def json(self) -> bool:
        """Whether the result is printed as JSON."""
        return self.values.get("json") is True

    def path(self, name: str) -> Path | None:
        """Return an option as a path. Return None if it was not given."""
        return Path(self.texts[name]) if name in self.texts else None

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
        return f"{option(name)} {printable(self.texts[name])}"

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
        return UsageError(f"{option(error.name)} {printable(error.value)}: {error.expected}")

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
