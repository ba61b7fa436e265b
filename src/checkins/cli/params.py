"""Options that commands share, and the parsers of their texts.

Every option stays a text until its command runs. So each error names the option as it was typed,
and ``checkins --help`` does not import the accountant. No value is clamped: a number that float64
would turn into 0 or infinity is an error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from checkins import validate
from checkins.cli.errors import UsageError, quoted
from checkins.errors import InvalidValue

if TYPE_CHECKING:
    from checkins.accounting import Population

Texts = list[str] | None
"""The texts of an option, one for each time it was given; None if it was not given."""
ALL = "all"
POSITIVE = "must be a finite number above 0"
OPEN_UNIT = "must lie strictly between 0 and 1"
ADJACENCIES = "must be add-remove or replace-one"
TIME_UNITS_S = {"": 1.0, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
Choice = TypeVar("Choice", bound=StrEnum)


def text(option: str, metavar: str, explained: str) -> typer.models.OptionInfo:
    """Declare an option that takes a text."""
    declared: typer.models.OptionInfo = typer.Option(
        option, metavar=metavar, help=explained, show_default=False
    )
    return declared


Files = Annotated[
    list[str] | None, typer.Argument(metavar="CAMPAIGN.TOML", hidden=True, show_default=False)
]
Protocol = Annotated[
    Texts, text("--protocol", "fixed|averaged|sliding", "How a slot uses its check-ins.")
]
Slots = Annotated[Texts, text("--slots", "M", "Time steps of the campaign.")]
Capacity = Annotated[
    Texts,
    text(
        "--capacity",
        "K|all",
        "Largest number of check-ins that a slot uses. Required for Gaussian noise at the client;"
        " with noise at the server the default is all; with --local-epsilon the epsilon does not"
        " depend on it.",
    ),
]
Window = Annotated[
    Texts, text("--window", "W", "Slots that a client chooses from (sliding protocol only).")
]
PopulationRange = Annotated[
    Texts,
    text(
        "--population",
        "LO..HI",
        "Number of clients, if it is known for certain; required for the averaged protocol.",
    ),
]
Participation = Annotated[
    Texts, text("--participation", "P", "Probability that a client checks in at all.")
]
LocalEpsilon = Annotated[Texts, text("--local-epsilon", "E", "Each report is E-DP on the device.")]
LocalDelta = Annotated[
    Texts,
    text(
        "--local-delta", "D", "Each report is (E, D)-DP on the device, with E of --local-epsilon."
    ),
]
NoiseMultiplier = Annotated[
    Texts, text("--noise-multiplier", "S", "Standard deviation of the Gaussian noise / clip norm.")
]
NoiseAt = Annotated[
    Texts,
    text(
        "--noise-at",
        "client|server",
        "Who adds the noise: each client to its report, or the server to the sum of a slot.",
    ),
]
Campaigns = Annotated[
    Texts,
    text(
        "--campaigns", "R", "Number of runs of the campaign, each with fresh randomness. Default 1."
    ),
]
Curious = Annotated[
    Texts,
    text(
        "--curious",
        "C",
        "Number of clients that may disclose what they see: whether they were chosen, their"
        " reports and their noise. Default 0.",
    ),
]
Delta = Annotated[Texts, text("--delta", "D", "The delta of the guarantee.")]
Adjacency = Annotated[
    Texts,
    text(
        "--adjacency",
        "replace-one|add-remove",
        "Neighbouring populations: one client's data replaced, or one client added or removed.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]


@dataclass(frozen=True, slots=True)
class GivenOptions:
    """The texts of the options that were given, by their names with underscores.

    ``unknown`` is the option that ``--solve`` asks for; None for every other command.
    """

    texts: Mapping[str, str]
    unknown: str | None = None

    @classmethod
    def of(cls, context: typer.Context, *, several: Sequence[str] = ()) -> GivenOptions:
        """Collect the options with a value; only those in ``several`` may be given twice."""
        texts: dict[str, str] = {}
        for name, value in context.params.items():
            if name not in ("files", *several) and isinstance(value, list) and value:
                if len(value) > 1:
                    both = " and ".join(quoted(text) for text in value[:2])
                    raise UsageError(f"{option(name)}: was given more than once, as {both}")
                texts[name] = value[0]
        return cls(texts)

    def __contains__(self, name: str) -> bool:
        return name in self.texts

    def required(self, name: str, allowed: str) -> str:
        """Return the text of an option that has no default."""
        if name not in self.texts:
            raise UsageError(f"{option(name)}: is missing; {allowed} (it has no default)")
        return self.texts[name]

    def typed(self, name: str) -> str:
        """Return the option and its text, as they were typed."""
        return f"{option(name)} {quoted(self.texts[name])}"

    def invalid(self, name: str, why: str) -> UsageError:
        """Return the error that a given option is wrong."""
        return UsageError(f"{self.typed(name)}: {why}")

    def solving(self, unknown: str, text: str) -> GivenOptions:
        """Return the options with a starting text for the option that is solved for."""
        return GivenOptions({**self.texts, unknown: text}, unknown)

    @contextmanager
    def naming_options(self) -> Iterator[None]:
        """Turn an ``InvalidValue`` of the library into an error that names the option."""
        try:
            yield
        except InvalidValue as error:
            raise self.refusal(error) from error

    def refusal(self, error: InvalidValue) -> UsageError:
        """Return the library's error with the option and its text."""
        if error.name == self.unknown:
            return UsageError(f"--solve {error.name.replace('_', '-')}: {error.expected}")
        if error.name in self.texts:
            return self.invalid(error.name, error.expected)
        if error.value is None:
            return UsageError(f"{option(error.name)}: is missing; {error.expected}")
        return UsageError(f"{option(error.name)} {quoted(error.value)}: {error.expected}")

    def integer(
        self, name: str, *, default: int, least: int = 1, most: int = validate.MOST_SLOTS
    ) -> int:
        """Return an option as an integer, or the default if it was not given."""
        if name not in self.texts:
            return default
        return integer(name, self.texts[name], least=least, most=most)

    def number(self, name: str, check: Callable[..., None], *, default: float) -> float:
        """Return an option as a number that passes the check, or the default."""
        return number(name, self.texts[name], check) if name in self.texts else default


def option(name: str) -> str:
    """Return the option of a parameter: ``local_epsilon`` is ``--local-epsilon``."""
    return "--" + name.replace("_", "-")


def integers(most: int, least: int = 1) -> str:
    """Describe the integers that are allowed."""
    return f"must be an integer from {least:,} to {most:,}"


def integer(name: str, text: str, *, least: int = 1, most: int = validate.MOST_SLOTS) -> int:
    """Parse an integer; ``1e6``, ``1_000`` and ``1,000`` are integers too.

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
    """Parse a member of an enumeration, by its exact value."""
    try:
        return choices(text)
    except ValueError:
        *most, last = [str(each) for each in choices]
        raise InvalidValue(name, text, f"must be {', '.join(most)} or {last}") from None


def population(text: str, *, most: int = validate.MOST_SLOTS) -> Population:
    """Parse a range of population sizes ``LO..HI``, or one number for both ends.

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
    """Parse the capacity of a slot; None means ``all``."""
    try:
        return None if text == ALL else integer("capacity", text)
    except InvalidValue as error:
        raise InvalidValue("capacity", text, f"{error.expected}, or {ALL}") from None


def seconds(name: str, text: str) -> float:
    """Parse a time: a number of seconds, or a number with the unit s, min, h or d.

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
