"""Prompt for missing options of a plan, and print the design and its alternatives.

Prompts are printed on standard error. A prompt for a value that privacy depends on has no default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.prompt import Prompt
from rich.table import Table
from rich.text import Text

from checkins import formatting, validate
from checkins.accounting import Adjacency
from checkins.cli import params
from checkins.cli.params import GivenOptions
from checkins.cli.terminal import listed, plain_table
from checkins.cli.views.certificate import guarantee
from checkins.errors import InvalidValue
from checkins.planning.explain import duration_text
from checkins.planning.question import MOST_CLIENTS, MOST_DIMENSION

if TYPE_CHECKING:
    from rich.console import RenderableType

    from checkins.planning import Plan

BYTE_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
OTHER = "other"


class _PlainPrompt(Prompt):
    """A prompt that ends with a space and not with a colon, because its text is a question."""

    prompt_suffix = " "


@dataclass(frozen=True, slots=True)
class OptionPrompt:
    """A prompt for one option: its question, an explanation, and a check of the answer."""

    name: str
    words: str
    explained: str
    check: Callable[[str], object]
    choices: tuple[str, ...] = ()
    default: str | None = None


REQUIRED = (
    OptionPrompt(
        "population",
        "How many clients are there?",
        "A range such as 15000..20000, or one number. Most designs have the same epsilon for any"
        " number of clients.",
        lambda text: params.population(text, most=MOST_CLIENTS),
    ),
    OptionPrompt(
        "epsilon",
        "What is the privacy budget, epsilon?",
        "Below 1 the guarantee is strong. Above 10 it is very weak.",
        lambda text: params.number("epsilon", text, validate.positive),
    ),
    OptionPrompt(
        "delta",
        "At what delta?",
        "Roughly the probability that the guarantee fails. Choose it far below 1 / clients.",
        lambda text: params.number("delta", text, validate.open_unit),
    ),
    OptionPrompt(
        "adjacency",
        "Which populations are neighbours?",
        "add-remove: one client is added or removed. replace-one: one client has other data.",
        lambda text: params.choice("adjacency", text, Adjacency),
        choices=tuple(Adjacency),
    ),
)
TASK = OptionPrompt(
    "task",
    "What is learned? [patients/fashion-mnist/synthetic/FILE/other]",
    "A built-in task, the name of a campaign file, or other.",
    str,
    default=OTHER,
)
DIMENSION = OptionPrompt(
    "dimension",
    "How many parameters does the model have?",
    "Each parameter is uploaded and gets noise.",
    lambda text: params.integer("dimension", text, most=MOST_DIMENSION),
)


def completed(given: GivenOptions, *, check_task: Callable[[str], object]) -> GivenOptions:
    """Prompt for each required option that is missing. Return the completed options."""
    answers: dict[str, str] = dict(given.texts)
    missing = [prompt for prompt in REQUIRED if prompt.name not in answers]
    unknown = "task" not in answers and "dimension" not in answers
    if not missing and not unknown:
        return given
    console = Console(stderr=True, highlight=False)
    if unknown:
        _ask_for_task(answers, console, check_task)
    for prompt in missing:
        answers[prompt.name] = ask(prompt, console)
    console.print()
    return given.replacing(**answers)


def _ask_for_task(
    answers: dict[str, str], console: Console, check_task: Callable[[str], object]
) -> None:
    def check(text: str) -> object:
        return text if text == OTHER else check_task(text)

    task = ask(TASK, console, check=check)
    if task == OTHER:
        answers["dimension"] = ask(DIMENSION, console)
    else:
        answers["task"] = task


def ask(
    question: OptionPrompt, console: Console, *, check: Callable[[str], object] | None = None
) -> str:
    """Prompt until the answer is valid. Print what is wrong with an invalid answer."""
    console.print()
    console.print(Text(question.explained, style="dim"))
    words, choices = Text(question.words), list(question.choices) or None
    while True:
        if question.default is None:
            answer = _PlainPrompt.ask(words, console=console, choices=choices)
        else:
            answer = _PlainPrompt.ask(words, console=console, default=question.default)
        answer = (answer or "").strip()
        try:
            (check or question.check)(answer)
        except InvalidValue as error:
            console.print(Text(f"{error.expected}", style="red"))
            continue
        return answer


def plan_parts(plan: Plan, *, place: str | None) -> Iterator[RenderableType]:
    """Return the recommended design, the reasons, the alternatives and the next steps."""
    best = plan.recommended
    yield Text.assemble(("Recommended: ", "bold"), (best.label, "bold green"))
    yield guarantee(plan.certificate, several="runs")
    yield _design(plan)
    yield from listed(
        "Why",
        (
            Text.assemble(reason.sentence, " ", (f"[{reason.theorem}]", "dim"))
            for reason in plan.reasons
        ),
    )
    yield _front(plan)
    yield Text(
        f"*: recommended. epsilon: certified, rounded up, at delta = {best.target.delta!r}"
        f" ({best.target.adjacency}). proxy: estimate of the error; smaller is better. time: of all"
        " runs. upload: per client. noise: noise multiplier, or local epsilon. design: the"
        " protocol; runs x slots (no x: one run); the window of a sliding protocol; p, the"
        " participation, if it is below 1; and who adds the Gaussian noise, or the name of another"
        " randomizer.",
        style="dim",
    )
    yield ""
    yield from listed(
        "If the number of clients differs from the plan",
        (row.sentence for row in plan.sensitivity if row.factor != 1.0),
    )
    yield from _next(plan, place)


def _design(plan: Plan) -> RenderableType:
    best = plan.recommended
    candidate, metrics, load = best.candidate, best.metrics, best.metrics.slot_load
    level = "noise multiplier" if candidate.is_gaussian else "local epsilon"
    where = f" at the {candidate.noise_at}" if candidate.is_gaussian else ""
    runs = f" in each of {candidate.repeats:,} runs" if candidate.repeats > 1 else ""
    unused = "dummies" if candidate.has_dummies else "empty slots"
    rows = {
        "protocol": str(candidate.protocol),
        "slots": f"{candidate.slots:,}{runs}",
        "window": None if candidate.window is None else f"{candidate.window:,} slots",
        "participation": f"{candidate.participation:g}",
        "capacity": None if best.capacity is None else f"{best.capacity}",
        "minibatch": f"{candidate.minibatch:,}" if candidate.minibatch > 1 else None,
        "randomizer": f"{candidate.randomizer}{where}",
        level: f"{best.level:g}",
        "model steps": f"{metrics.steps:,}, about {_few(metrics.clients_per_step)} reports each",
        "noise per step": f"{metrics.noise_per_step:.3g} times the clip norm per coordinate",
        unused: f"{load.dummies_share:.1%}",
        "time": f"{duration_text(load.duration_s)}, {load.slot_s:g} s per slot",
        "upload": f"{bytes_text(best.load)} per client on average",
    }
    table = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        if value is not None:
            table.add_row(Text(name, style="dim"), value)
    return Padding(table, (1, 0, 1, 2))


def _front(plan: Plan) -> RenderableType:
    numbers = ("epsilon", "proxy", "time", "upload", "noise")
    table = plain_table("", *numbers, "design", right=numbers, title="Pareto-optimal designs")
    for design in plan.front:
        chosen = design is plan.recommended
        table.add_row(
            "*" if chosen else "",
            formatting.up(design.epsilon),
            formatting.nearest(design.metrics.proxy, 3),
            duration_text(design.metrics.duration_s),
            bytes_text(design.load),
            f"{design.level:.4g}",
            design.label.replace(" slots", "").replace(" slot", "").replace("fixed, ", ""),
            style="bold" if chosen else "",
        )
    return table


def _next(plan: Plan, place: str | None) -> Iterator[RenderableType]:
    if place is None:
        yield "No file was written. Use --out FILE to write the campaign file."
        return
    missing = plan.campaign.missing
    steps = {"check": "compute its certificate", "audit": "measure epsilon by attacks"}
    if "[task]" not in missing:
        steps["simulate"] = "train on simulated clients"
    table = Table.grid(padding=(0, 2))
    for step, what in steps.items():
        table.add_row(f"checkins {step} {place}", Text(what, style="dim"))
    if not missing:
        table.add_row(f"checkins serve {place} --start +60", Text("run it", style="dim"))
    yield f"Wrote {place}. Next:"
    yield Padding(table, (0, 0, 0, 2))
    if missing:
        yield Text(f"  (before it can be served, add: {', '.join(missing)})", style="dim")


def bytes_text(count: float) -> str:
    """Format a number of bytes with its unit.

    >>> bytes_text(56), bytes_text(158800), bytes_text(3.2e9)
    ('56 B', '159 kB', '3.2 GB')
    """
    for size, unit in BYTE_UNITS:
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.3g} B"


def _few(count: float) -> str:
    return f"{count:,.0f}" if count >= 10 else f"{count:.2g}"
