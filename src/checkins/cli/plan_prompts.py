"""What `checkins plan` asks at a terminal: only what is missing, one question after the other.

Questions go to standard error. Nothing that privacy depends on is suggested as an answer that one
could accept by pressing enter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console
from rich.prompt import Prompt
from rich.text import Text

from checkins import validate
from checkins.accounting import Adjacency
from checkins.cli import values
from checkins.cli.options import Given
from checkins.errors import InvalidValue
from checkins.planning.question import MOST_CLIENTS, MOST_DIMENSION

OTHER = "other"


class Question(Prompt):
    """It ends with its own question mark."""

    prompt_suffix = " "


@dataclass(frozen=True, slots=True)
class Asked:
    """One question: what is asked, what to say about it, and what an answer must be."""

    name: str
    words: str
    explained: str
    check: Callable[[str], object]
    choices: tuple[str, ...] = ()
    default: str | None = None


REQUIRED = (
    Asked(
        "population",
        "How many clients are there?",
        "A range, as 15000..20000, or one number. Most designs promise the same whatever it is.",
        lambda text: values.population(text, most=MOST_CLIENTS),
    ),
    Asked(
        "epsilon",
        "What epsilon may be spent?",
        "Below 1 is a strong promise; above 10 hardly any.",
        lambda text: values.real("epsilon", text, validate.positive),
    ),
    Asked(
        "delta",
        "At what delta?",
        "The chance that the promise fails: far below 1 / clients, as 1e-6 for ten thousand.",
        lambda text: values.real("delta", text, validate.open_unit),
    ),
    Asked(
        "adjacency",
        "Which two populations must look alike?",
        "add-remove: with a client or without it. replace-one: with its data or with other data.",
        lambda text: values.one_of("adjacency", text, Adjacency),
        choices=tuple(Adjacency),
    ),
)
LEARNED = Asked(
    "task",
    "What is learned?",
    "A known task, the name of a campaign file, or other.",
    str,
    default=OTHER,
)
DIMENSION = Asked(
    "dimension",
    "How many numbers does the model have?",
    "Each of them needs noise, and is uploaded.",
    lambda text: values.whole("dimension", text, most=MOST_DIMENSION),
)


def completed(given: Given) -> Given:
    """The options with an answer for each that is needed and missing."""
    answers: dict[str, str] = dict(given.texts)
    missing = [one for one in REQUIRED if one.name not in answers]
    unknown = "task" not in answers and "dimension" not in answers
    if not missing and not unknown:
        return given
    console = Console(stderr=True, highlight=False)
    if unknown:
        _ask_what_is_learned(answers, console)
    for one in missing:
        answers[one.name] = ask(one, console)
    console.print()
    return Given(answers)


def _ask_what_is_learned(answers: dict[str, str], console: Console) -> None:
    from checkins.cli.plan_question import known_campaign

    def known(text: str) -> object:
        return text if text == OTHER else known_campaign(text)

    learned = ask(LEARNED, console, check=known, hint="patients/fashion-mnist/synthetic/FILE/other")
    if learned == OTHER:
        answers["dimension"] = ask(DIMENSION, console)
    else:
        answers["task"] = learned


def ask(
    question: Asked,
    console: Console,
    *,
    check: Callable[[str], object] | None = None,
    hint: str | None = None,
) -> str:
    """An answer that passes its check; a wrong one is told why, and asked again."""
    console.print()
    console.print(Text(question.explained, style="dim"))
    words = question.words if hint is None else f"{question.words} [{hint}]"
    choices = list(question.choices) or None
    while True:
        if question.default is None:
            answer = Question.ask(Text(words), console=console, choices=choices)
        else:
            answer = Question.ask(Text(words), console=console, default=question.default)
        answer = (answer or "").strip()
        try:
            (check or question.check)(answer)
        except InvalidValue as error:
            console.print(Text(f"{error.expected}", style="red"))
            continue
        return answer
