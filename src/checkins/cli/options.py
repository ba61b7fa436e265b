"""The options that say what is run, shared by every command that prices a design.

They stay texts until a command runs: so each refusal is ours and names the option, and
``checkins --help`` need not import the accountant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import typer

from checkins.cli.failures import Refused, quoted
from checkins.errors import InvalidValue

Texts = list[str] | None
"""An option's texts, one for each time it was given; more than one is refused, not overruled."""


def text(option: str, metavar: str, explained: str) -> typer.models.OptionInfo:
    """An option that is a text for now."""
    found: typer.models.OptionInfo = typer.Option(
        option, metavar=metavar, help=explained, show_default=False
    )
    return found


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
        "Check-ins that a slot uses at most. Gaussian noise at the client needs it; noise at the"
        " server uses all without it; --local-epsilon costs the same with any.",
    ),
]
Window = Annotated[
    Texts, text("--window", "W", "Slots a client chooses from (sliding protocol only).")
]
PopulationRange = Annotated[
    Texts,
    text(
        "--population",
        "LO..HI",
        "How many clients there are, if you can promise that; the averaged protocol needs it.",
    ),
]
Participation = Annotated[
    Texts, text("--participation", "P", "Probability that a client checks in at all.")
]
LocalEpsilon = Annotated[Texts, text("--local-epsilon", "E", "Each report is E-DP on the device.")]
LocalDelta = Annotated[
    Texts, text("--local-delta", "D", "Each report is (E, D)-DP: D of --local-epsilon.")
]
NoiseMultiplier = Annotated[
    Texts,
    text("--noise-multiplier", "S", "Standard deviation of Gaussian noise / clip norm."),
]
NoiseAt = Annotated[
    Texts,
    text(
        "--noise-at",
        "client|server",
        "Who adds it: each client to its report, or the server to the sum of a slot.",
    ),
]
Campaigns = Annotated[
    Texts,
    text(
        "--campaigns",
        "R",
        "How often the campaign is run, with fresh coins each time. Without it: once.",
    ),
]
Curious = Annotated[
    Texts,
    text(
        "--curious",
        "C",
        "Clients that may disclose what they see: whether they were chosen, their reports and"
        " their noise. Without it: none.",
    ),
]
Delta = Annotated[Texts, text("--delta", "D", "The delta of the guarantee.")]
Adjacency = Annotated[
    Texts,
    text("--adjacency", "replace-one|add-remove", "Which two populations must look alike."),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]


@dataclass(frozen=True, slots=True)
class Given:
    """The options that were given, by their names with underscores, and their texts."""

    texts: Mapping[str, str]
    unknown: str | None = None

    @classmethod
    def of(cls, context: typer.Context, *, several: Sequence[str] = ()) -> Given:
        """Every option with a value; one that was given twice is refused, unless in ``several``."""
        texts: dict[str, str] = {}
        for name, value in context.params.items():
            if name not in ("files", *several) and isinstance(value, list) and value:
                if len(value) > 1:
                    both = " and ".join(quoted(text) for text in value[:2])
                    raise Refused(f"{option(name)}: was given more than once, as {both}")
                texts[name] = value[0]
        return cls(texts)

    def __contains__(self, name: str) -> bool:
        return name in self.texts

    def need(self, name: str, allowed: str) -> str:
        """The text of an option that must be given."""
        if name not in self.texts:
            raise Refused(f"{option(name)}: is missing; {allowed} (it has no default)")
        return self.texts[name]

    def shown(self, name: str) -> str:
        return f"{option(name)} {quoted(self.texts[name])}"

    def contradiction(self, name: str, why: str) -> Refused:
        return Refused(f"{self.shown(name)}: {why}")

    def solving(self, unknown: str, text: str) -> Given:
        """The same, with a text to start from for the option that is solved for."""
        return Given({**self.texts, unknown: text}, unknown)

    @contextmanager
    def in_own_words(self) -> Iterator[None]:
        """Name the option that the library refuses."""
        try:
            yield
        except InvalidValue as error:
            raise self.refusal(error) from error

    def refusal(self, error: InvalidValue) -> Refused:
        """The library's refusal in the caller's words: the option and its text."""
        if error.name == self.unknown:
            return Refused(f"--solve {error.name.replace('_', '-')}: {error.expected}")
        if error.name in self.texts:
            return Refused(f"{self.shown(error.name)}: {error.expected}")
        if error.value is None:
            return Refused(f"{option(error.name)}: is missing; {error.expected}")
        return Refused(f"{option(error.name)} {quoted(error.value)}: {error.expected}")


def option(name: str) -> str:
    """The option of a field: ``local_epsilon`` is ``--local-epsilon``."""
    return "--" + name.replace("_", "-")
