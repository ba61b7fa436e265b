"""Declare the options of commands and parse their values.

The value of an option remains a string until its command runs. So an error message can quote the
value as the user typed it, and ``checkins --help`` does not import the accountant. No value is
clamped: a number that float64 would turn into 0 or infinity is an error.
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
from checkins.cli.terminal import UsageError, printable
from checkins.errors import InvalidValue

if TYPE_CHECKING:
    from checkins.accounting import Population

ALL_CHECK_INS = "all"
"""Value of ``--capacity`` for a slot that uses every check-in."""
MUST_BE_POSITIVE = "must be a finite number above 0"
ALLOWED_NUMBERS: Mapping[object, str] = {
    validate.positive: MUST_BE_POSITIVE,
    validate.open_unit: "must lie strictly between 0 and 1",
    validate.probability: "must lie in [0, 1]",
}
"""Maps a check of a number to the part of an error message that says which numbers pass it."""
SECONDS_PER_UNIT = {"": 1.0, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
Choice = TypeVar("Choice", bound=StrEnum)


def options(table: str) -> list[click.Option]:
    """Declare the options in ``table``, a text that looks like the help.

    Each option begins on a new line: its name, the placeholder of its value, two spaces and its
    help text. Further lines of the help text are indented. An option without a placeholder is a
    flag. The value of any other option is a tuple with all its values, so that a command can
    refuse an option that is given twice.

    >>> [(each.name, each.metavar) for each in options("--slots M  Time steps.\\n--json  As JSON.")]
    [('slots', 'M'), ('json', None)]
    """
    declared = []
    for entry in re.split(r"\n(?=--)", cleandoc(table)):
        match = re.fullmatch(r"(--[a-z-]+)(?: (\S+))?\s{2,}(.*)", entry, re.DOTALL)
        if match is None:
            raise ValueError(entry)
        name, metavar, help_text = match[1], match[2], " ".join(match[3].split())
        kind: dict[str, Any] = {"multiple": True} if metavar else {"is_flag": True}
        if metavar:
            kind["shell_complete"] = _completions(metavar)
        declared.append(click.Option([name], metavar=metavar, help=help_text, **kind))
    return declared


def _completions(metavar: str) -> Callable[..., list[Any]]:
    """Return what a shell offers for a value: the listed values, or file names.

    Values are listed in lower case, and placeholders are in upper case.
    """
    listed = [value for value in metavar.split("|") if re.fullmatch(r"[a-z][a-z0-9-]*", value)]
    names_a_file = re.search(r"FILE|DIR|TOML", metavar) is not None

    def complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        offered = [CompletionItem(value) for value in listed if value.startswith(incomplete)]
        return offered or ([CompletionItem(incomplete, type="file")] if names_a_file else [])

    return complete


def argument(name: str, metavar: str, *, nargs: int = 1, required: bool = True) -> click.Argument:
    """Declare a positional argument. With ``nargs=-1``, it may be given any number of times."""
    return click.Argument(
        [name],
        metavar=metavar,
        nargs=nargs,
        required=required,
        shell_complete=_completions(metavar),
    )


def command(
    *parameters: click.Parameter, repeatable: Sequence[str] = ()
) -> Callable[[Callable[[GivenOptions], None]], click.Command]:
    """Turn a function into a command with these arguments and options. Its help has their order.

    Only the options that ``repeatable`` names may be given more than once.
    """

    def declare(run: Callable[[GivenOptions], None]) -> click.Command:
        def callback(**values: object) -> None:
            names = [str(each.name) for each in parameters]
            run(GivenOptions.of({name: values[name] for name in names}, repeatable))

        return click.Command(
            run.__name__.replace("_", "-"), None, callback, list(parameters), run.__doc__
        )

    return declare


CAMPAIGN_FILE_ARGUMENT = argument("file", "CAMPAIGN.TOML")
FORCE_OPTION, JSON_OPTION = options("""
    --force  Overwrite an existing file.
    --json  Print the result as one JSON object.
""")
DESIGN_OPTIONS = options("""
    --protocol fixed|averaged|sliding  What the server does in a slot. fixed: it sums the reports of
        at most --capacity check-ins. averaged: it averages the reports of all check-ins. sliding:
        the same as fixed, but each client draws its slot from its next --window slots, not from
        all slots.
    --slots M  Number of time steps (slots) of the campaign.
    --capacity K|all  Largest number of check-ins that a slot uses. Required with --noise-at client.
        Default: all with --noise-at server, 1 with --local-epsilon. With --local-epsilon, a larger
        capacity can lower epsilon, because the reports of a slot hide each other.
    --window W  Number of slots from which a client draws its slot. Only for --protocol sliding.
    --population LO..HI  Smallest and largest possible number of clients. With a capacity, it can
        make epsilon smaller; the certificate says if it relies on it. Required for the averaged
        protocol, otherwise optional.
    --arrivals N  Largest number of clients that wake in any --window consecutive slots. The
        guarantee holds only up to this number. Only for --protocol sliding.
    --wake-times independent|any  What is assumed about the time at which a client wakes.
        independent: it does not depend on the client's data. any: it may depend on them. Only for
        --protocol sliding. Default independent.
    --least-reports L  The server skips every slot with fewer than L reports, which lowers epsilon.
        Only for --protocol averaged with Gaussian noise.
    --participation P  Probability that a client takes part, from 0 to 1.
    --local-epsilon E  Epsilon of one report, if the device randomizes its report. Give this option
        or --noise-multiplier.
    --local-delta D  Delta of one report. Only with --local-epsilon. Default 0.
    --randomizer randomized-response|laplace|privunit  The randomizer of the reports. Needs
        --local-epsilon and --capacity. Epsilon is smaller than for an unknown randomizer, because
        the accountant knows the dummies: reports that the server draws in place of missing ones.
        Default: any randomizer with this local epsilon.
    --categories C  Number of categories of --randomizer randomized-response.
    --dimension D  Number of coordinates of a report of --randomizer privunit.
    --noise-multiplier S  Standard deviation of the Gaussian noise divided by the clip norm. Needs
        --noise-at.
    --noise-at client|server  Who adds the Gaussian noise. client: each client adds it to its
        report. server: the server adds it to the sum of a slot.
    --bands B  The server correlates the noise of each slot with that of the next B - 1 slots, so
        that it harms the model less. Needs --strategy. Only for --noise-at server.
    --strategy square-root|optimised|FILE  The coefficients of correlated noise. square-root: those
        of the power series of (1 - x)^(-1/2). optimised: the best coefficients for gradient
        descent without momentum over --slots slots. FILE: a JSON file with the integers numerators
        and the integer bits. Each coefficient is a numerator divided by 2^bits. Needs --bands.
    --campaigns R  Number of times that the campaign is run, each time with fresh randomness. The
        guarantee covers all runs together. Default 1.
    --curious C  Number of clients that may disclose what they know to the adversary: whether they
        were chosen, their reports and their noise. Default 0.
    --delta D  The delta of the guarantee, between 0 and 1.
    --adjacency replace-one|add-remove  The neighbour relation of the guarantee. add-remove: one
        client is added or removed. replace-one: the data of one client are replaced.
""")
"""Options that describe a design and its guarantee. `account` and `calibrate` use them all."""


def design_options(*names: str) -> list[click.Option]:
    """Return the options in ``DESIGN_OPTIONS`` that have these names, in this order."""
    by_name = {each.name: each for each in DESIGN_OPTIONS}
    return [by_name[name] for name in names]


@dataclass(frozen=True, slots=True)
class GivenOptions:
    """The options that the user gave.

    ``texts`` maps the name of an option, such as ``local_epsilon``, to its value as a string. It
    has only options that were given. ``values`` has every argument and option of the command as
    click parsed it, given or not. ``unknown`` is the option that ``--solve`` computes. It is None
    for every command other than `calibrate`.
    """

    texts: Mapping[str, str]
    values: Mapping[str, Any] = field(default_factory=dict)
    unknown: str | None = None

    @classmethod
    def of(cls, values: Mapping[str, Any], repeatable: Sequence[str] = ()) -> GivenOptions:
        """Collect the given options. Raise if one that is not in ``repeatable`` was given twice."""
        texts: dict[str, str] = {}
        for name, value in values.items():
            if name not in ("files", *repeatable) and isinstance(value, tuple) and value:
                if len(value) > 1:
                    first_two = " and ".join(printable(text) for text in value[:2])
                    raise UsageError(f"{dashed_name(name)}: was given more than once: {first_two}")
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
        """Return a copy in which the options ``texts`` have these values."""
        return replace(self, texts={**self.texts, **texts})

    def required(self, name: str, allowed: str) -> str:
        """Return the value of an option. If it is missing, raise; the error states ``allowed``."""
        if name not in self.texts:
            raise UsageError(f"{dashed_name(name)} is missing; it {allowed} and has no default")
        return self.texts[name]

    def as_typed(self, name: str) -> str:
        """Return the option and its value as the user typed them."""
        return f"{dashed_name(name)} {printable(self.texts[name])}"

    def invalid(self, name: str, problem: str) -> UsageError:
        """Return the error for an option that was given with a wrong value."""
        return UsageError(f"{self.as_typed(name)}: {problem}")

    def with_unknown(self, unknown: str, text: str) -> GivenOptions:
        """Return a copy in which ``unknown``, the option that ``--solve`` computes, has a value."""
        return replace(self.replacing(**{unknown: text}), unknown=unknown)

    @contextmanager
    def errors_as_option_errors(self) -> Iterator[None]:
        """Convert each ``InvalidValue`` of the block into an error that names the option."""
        try:
            yield
        except InvalidValue as error:
            raise self.refusal(error) from error

    def refusal(
        self, error: InvalidValue, *, defaults: Mapping[str, str] | None = None
    ) -> UsageError:
        """Convert an ``InvalidValue`` into an error with the name and value of the option."""
        if error.name not in self.texts and error.name in (defaults or {}):
            default = (defaults or {})[error.name]
            name = dashed_name(error.name)
            return UsageError(f"{name} {default} (the default): {error.expected}")
        if error.name == self.unknown:
            return UsageError(f"--solve {error.name.replace('_', '-')}: {error.expected}")
        if error.name in self.texts:
            return self.invalid(error.name, error.expected)
        if error.value is None:
            return UsageError(f"{dashed_name(error.name)} is missing; {error.expected}")
        return UsageError(f"{dashed_name(error.name)} {printable(error.value)}: {error.expected}")

    def integer(
        self,
        name: str,
        *,
        default: int | None = None,
        least: int = 1,
        most: int = validate.MAX_SLOTS,
    ) -> int:
        """Return an option as an integer. If ``default`` is None, the option is required."""
        if name not in self.texts and default is not None:
            return default
        text = self.required(name, range_text(most, least))
        return integer(name, text, least=least, most=most)

    def number(
        self, name: str, check: Callable[..., None], *, default: float | None = None
    ) -> float:
        """Return an option as a number that passes ``check``. Without default, it is required."""
        if name not in self.texts and default is not None:
            return default
        text = self.required(name, ALLOWED_NUMBERS.get(check, "must be a number"))
        return number(name, text, check)

    def choice(self, name: str, choices: type[Choice], *, default: str | None = None) -> Choice:
        """Return an option as a member of an enumeration. Without default, it is required."""
        if name not in self.texts and default is not None:
            return choices(default)
        return choice(name, self.required(name, choices_text(choices)), choices)


def dashed_name(name: str) -> str:
    """Return the name as it is typed: ``local_epsilon`` becomes ``--local-epsilon``."""
    return "--" + name.replace("_", "-")


def range_text(most: int, least: int = 1) -> str:
    """Return the part of an error message that says which integers are allowed."""
    return f"must be an integer from {least:,} to {most:,}"


def integer(name: str, text: str, *, least: int = 1, most: int = validate.MAX_SLOTS) -> int:
    """Parse an integer. ``1e6``, ``1_000`` and ``1,000`` are accepted too.

    >>> integer("slots", "1e6"), integer("slots", "1_000"), integer("slots", "1,000")
    (1000000, 1000, 1000)
    >>> integer("slots", "2.5")
    Traceback (most recent call last):
        ...
    checkins.errors.InvalidValue: slots = '2.5': must be an integer from 1 to 1,000,000,000,000
    """
    try:
        has_commas = re.fullmatch(r"[0-9]{1,3}(,[0-9]{3})+", text)
        value = Decimal(text.replace(",", "") if has_commas else text)
    except InvalidOperation:
        value = Decimal("nan")
    in_range = value.is_finite() and least <= value <= most
    if not in_range or value != value.to_integral_value():
        raise InvalidValue(name, text, range_text(most, least))
    return int(value)


def number(name: str, text: str, check: Callable[..., None]) -> float:
    """Parse a number. ``check`` is a function of ``checkins.validate`` that raises if it is wrong.

    >>> number("delta", "1e-6", validate.open_unit)
    1e-06
    >>> number("participation", "1e-400", validate.probability)
    Traceback (most recent call last):
        ...
    checkins.errors.InvalidValue: participation = '1e-400': is too close to 0 for a float64
    >>> number("participation", "50%", validate.probability)
    Traceback (most recent call last):
        ...
    checkins.errors.InvalidValue: participation = '50%': must lie in [0, 1]; write 0.5
    """
    try:
        value = float(text) if text.isascii() else math.nan
    except ValueError:
        value = math.nan
    try:
        check(**{name: value})
    except InvalidValue as error:
        if (fraction := _percentage(text)) is None:
            raise
        raise InvalidValue(name, text, f"{error.expected}; write {fraction:.12g}") from error
    if value == 0.0 and any(digit in "123456789" for digit in text.lower().partition("e")[0]):
        raise InvalidValue(name, text, "is too close to 0 for a float64")
    return value


def _percentage(text: str) -> float | None:
    """Return a percentage such as 50% as a number such as 0.5, or None for another text."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?%", text)
    return None if match is None else float(match[1]) / 100.0


def choice(name: str, text: str, choices: type[Choice]) -> Choice:
    """Return the member of an enumeration that has this value."""
    try:
        return choices(text)
    except ValueError:
        raise InvalidValue(name, text, choices_text(choices)) from None


def choices_text(choices: type[StrEnum]) -> str:
    """Return the part of an error message that says which values are allowed."""
    *first, last = [str(each) for each in choices]
    return f"must be {', '.join(first)} or {last}"


def population(text: str, *, most: int = validate.MAX_SLOTS) -> Population:
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
    """Parse the capacity of a slot. Return None for ``all``, a capacity without limit."""
    try:
        return None if text == ALL_CHECK_INS else integer("capacity", text)
    except InvalidValue as error:
        raise InvalidValue("capacity", text, f"{error.expected}, or {ALL_CHECK_INS}") from None


def seconds(name: str, text: str) -> float:
    """Parse a duration: a number of seconds, or a number with the unit s, min, h or d.

    >>> seconds("duration", "90"), seconds("duration", "1.5h"), seconds("duration", "2d")
    (90.0, 5400.0, 172800.0)
    """
    match = re.fullmatch(r"([0-9.]+(?:e[+-]?[0-9]+)?)(s|min|h|d|)", text.strip(), re.ASCII)
    try:
        duration_s = float(match[1]) * SECONDS_PER_UNIT[match[2]] if match else math.nan
    except ValueError:
        duration_s = math.nan
    if not 0.0 < duration_s < math.inf:
        raise InvalidValue(name, text, "must be a time above 0, such as 600, 30min, 8h or 2d")
    return duration_s
