"""Prompts for the missing options of `checkins plan`, and the tables of its result.

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
from checkins.cli.terminal import align_decimals, bullet_list, plain_table
from checkins.cli.views.certificate import guarantee_sentence
from checkins.errors import InvalidValue
from checkins.planning.explain import duration_text
from checkins.planning.question import MAX_CLIENTS, MAX_DIMENSION

if TYPE_CHECKING:
    from rich.console import RenderableType

    from checkins.planning import Plan

BYTE_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
OTHER_TASK = "other"


class _PlainPrompt(Prompt):
    """A prompt without a colon at its end, because its text is a question."""

    prompt_suffix = " "


@dataclass(frozen=True, slots=True)
class OptionPrompt:
    """A prompt for one option. ``check`` raises ``InvalidValue`` if the answer is not valid.

    The prompt for the task has no ``check`` of its own, because the command checks its answer.
    """

    name: str
    question_text: str
    explanation: str
    check: Callable[[str], object] = str
    choices: tuple[str, ...] = ()
    default: str | None = None


REQUIRED_PROMPTS = (
    OptionPrompt(
        "population",
        "How many clients are there?",
        "A range such as 15000..20000, or one number. The epsilon of most designs does not depend"
        " on it.",
        lambda text: params.population(text, most=MAX_CLIENTS),
    ),
    OptionPrompt(
        "epsilon",
        "What is the privacy budget, epsilon?",
        "A guarantee with epsilon below 1 is strong, above 10 very weak.",
        lambda text: params.number("epsilon", text, validate.positive),
    ),
    OptionPrompt(
        "delta",
        "At what delta?",
        "Roughly the probability that the guarantee fails. Choose a delta far below 1 / clients.",
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
TASK_PROMPT = OptionPrompt(
    "task",
    "What is learned? [patients/fashion-mnist/synthetic/FILE/other]",
    "A built-in task, the name of a campaign file, or other.",
    default=OTHER_TASK,
)
DIMENSION_PROMPT = OptionPrompt(
    "dimension",
    "How many parameters does the model have?",
    "A report has one number per parameter, and each number gets noise.",
    lambda text: params.integer("dimension", text, most=MAX_DIMENSION),
)


def with_prompted_options(
    given: GivenOptions, *, check_task: Callable[[str], object]
) -> GivenOptions:
    """Prompt for each required option that is missing. Return all options."""
    answers: dict[str, str] = dict(given.texts)
    missing = [prompt for prompt in REQUIRED_PROMPTS if prompt.name not in answers]
    needs_task = "task" not in answers and "dimension" not in answers
    if not missing and not needs_task:
        return given
    console = Console(stderr=True, highlight=False)
    if needs_task:
        _ask_for_task(answers, console, check_task)
    for prompt in missing:
        answers[prompt.name] = prompt_until_valid(prompt, console)
    console.print()
    return given.replacing(**answers)


def _ask_for_task(
    answers: dict[str, str], console: Console, check_task: Callable[[str], object]
) -> None:
    def check(text: str) -> object:
        return text if text == OTHER_TASK else check_task(text)

    task = prompt_until_valid(TASK_PROMPT, console, check=check)
    if task == OTHER_TASK:
        answers["dimension"] = prompt_until_valid(DIMENSION_PROMPT, console)
    else:
        answers["task"] = task


def prompt_until_valid(
    prompt: OptionPrompt, console: Console, *, check: Callable[[str], object] | None = None
) -> str:
    """Prompt until the answer is valid. Print what is wrong with an invalid answer."""
    console.print()
    console.print(Text(prompt.explanation, style="dim"))
    question_text, choices = Text(prompt.question_text), list(prompt.choices) or None
    while True:
        if prompt.default is None:
            answer = _PlainPrompt.ask(question_text, console=console, choices=choices)
        else:
            answer = _PlainPrompt.ask(question_text, console=console, default=prompt.default)
        answer = (answer or "").strip()
        try:
            (check or prompt.check)(answer)
        except InvalidValue as error:
            console.print(Text(f"{error.expected}", style="red"))
            continue
        return answer


def plan_parts(plan: Plan, *, out: str | None) -> Iterator[RenderableType]:
    """Yield the recommended design, the reasons for it, other designs and the next steps.

    ``out`` is the file that was written, or None.
    """
    best = plan.recommended
    yield Text.assemble(("Recommended: ", "bold"), (best.label, "bold green"))
    yield guarantee_sentence(plan.certificate, counted_noun="runs")
    yield _design_table(plan)
    yield from bullet_list(
        "Why",
        (
            Text.assemble(reason.sentence, " ", (f"[{reason.theorem}]", "dim"))
            for reason in plan.reasons
        ),
    )
    yield _front_table(plan)
    yield _front_legend(plan)
    yield ""
    yield from bullet_list(
        "If the number of clients differs from the planned number",
        (row.sentence for row in plan.sensitivity if row.factor != 1.0),
    )
    yield from _next_steps(plan, out)


def _design_table(plan: Plan) -> RenderableType:
    best = plan.recommended
    candidate, metrics, load = best.candidate, best.metrics, best.metrics.slot_load
    level_name = "noise multiplier" if candidate.is_gaussian else "local epsilon"
    noise_place = f" at the {candidate.noise_at}" if candidate.is_gaussian else ""
    runs = f" in each of {candidate.repeats:,} runs" if candidate.repeats > 1 else ""
    unused_name, unused_of = "empty slots", "slots"
    if candidate.has_dummies:
        unused_name, unused_of = "dummies", "reports"
    reports = _count_text(metrics.clients_per_step)
    rows = {
        "protocol": str(candidate.protocol),
        "slots": f"{candidate.slots:,}{runs}",
        "window": None if candidate.window is None else f"{candidate.window:,} slots",
        "participation": f"{candidate.participation:g}",
        "capacity": None if best.capacity is None else _capacity_text(best.capacity),
        "minibatch": f"{candidate.minibatch:,} slots" if candidate.minibatch > 1 else None,
        "randomizer": f"{candidate.randomizer}{noise_place}",
        "bands": f"{candidate.bands:,} slots share noise" if candidate.bands > 1 else None,
        level_name: f"{best.level:g}",
        "model steps": f"{metrics.steps:,}, each with about {reports} reports",
        "noise per step": f"{metrics.noise_per_step:.3g} times the clip norm, in each coordinate",
        unused_name: f"{load.dummies_share:.1%} of all {unused_of}",
        "time": f"{duration_text(load.duration_s)} in total, {load.slot_s:g} s per slot",
        "upload": f"{bytes_text(best.load)} per client on average",
    }
    table = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        if value is not None:
            table.add_row(Text(name, style="dim"), value)
    return Padding(table, (1, 0, 1, 2))


def _front_table(plan: Plan) -> RenderableType:
    table = plain_table(
        "",
        "epsilon <=",
        "error",
        "time",
        "upload",
        "noise",
        "design",
        right=("time", "upload"),
        title="Pareto-optimal designs (all with the fixed protocol, unless another is named)",
    )
    epsilons = align_decimals([formatting.up(design.epsilon) for design in plan.front])
    errors = align_decimals([formatting.nearest(design.metrics.proxy, 3) for design in plan.front])
    levels = align_decimals([f"{design.level:.4g}" for design in plan.front])
    for design, epsilon, error, level in zip(plan.front, epsilons, errors, levels, strict=True):
        is_recommended = design is plan.recommended
        table.add_row(
            "*" if is_recommended else "",
            epsilon,
            error,
            duration_text(design.metrics.duration_s),
            bytes_text(design.load),
            level,
            design.label.removeprefix("fixed protocol, "),
            style="bold" if is_recommended else "",
        )
    return table


def _front_legend(plan: Plan) -> RenderableType:
    """Return a line for each column of the table of designs."""
    target = plan.recommended.target
    meanings = {
        "*": "the recommended design",
        "epsilon <=": f"proved at delta = {target.delta!r} ({target.adjacency}), rounded up",
        "error": "estimated error of the model, only for comparing designs",
        "time": "duration of all runs",
        "upload": "average upload of a client in all runs",
        "noise": "noise multiplier if the noise is Gaussian, otherwise the local epsilon",
    }
    if any(design.candidate.bands > 1 for design in plan.front):
        meanings["bands"] = "number of slots whose noise is correlated"
    table = Table.grid(padding=(0, 2))
    for column, meaning in meanings.items():
        table.add_row(Text(column, style="dim"), Text(meaning, style="dim"))
    return Padding(table, (0, 0, 0, 1))


def _next_steps(plan: Plan, out: str | None) -> Iterator[RenderableType]:
    if out is None:
        yield "No file was written. Use --out FILE to write the campaign file."
        return
    missing = plan.campaign.missing
    steps = {"check": "compute its certificate", "audit": "measure its epsilon by attacks"}
    if "[task]" not in missing:
        steps["simulate"] = "train its model on simulated clients"
    commands = {f"checkins {step} {out}": purpose for step, purpose in steps.items()}
    if not missing:
        commands[f"checkins serve {out} --start +60"] = "run it in 60 s"
    yield f"Wrote {out}. Next steps:"
    for command, purpose in commands.items():
        yield Text(f"  # {purpose}", style="dim")
        yield Text(f"  {command}")
    if missing:
        yield Text(f"  (to serve it, first add to the file: {', '.join(missing)})", style="dim")


def bytes_text(count: float) -> str:
    """Format a number of bytes with its unit.

    >>> bytes_text(56), bytes_text(158800), bytes_text(3.2e9)
    ('56 B', '159 kB', '3.2 GB')
    """
    for size, unit in BYTE_UNITS:
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.3g} B"


def _capacity_text(capacity: int | str) -> str:
    return (
        f"{capacity:,} check-ins per slot"
        if isinstance(capacity, int)
        else "all check-ins are used"
    )


def _count_text(count: float) -> str:
    return f"{count:,.0f}" if count >= 10 else f"{count:.2g}"
