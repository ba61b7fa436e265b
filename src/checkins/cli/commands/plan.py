"""`checkins init` writes a template of a campaign file; `checkins plan` searches for a design."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from checkins import validate
from checkins.cli import params, terminal
from checkins.cli.params import GivenOptions, options
from checkins.cli.terminal import UsageError
from checkins.errors import DeltaExhausted, InvalidValue

if TYPE_CHECKING:
    from checkins.campaign import Campaign
    from checkins.planning import Constraints, Devices, Learning, Question, Server

Parsed = TypeVar("Parsed")
DEFAULT_FILE = "campaign.toml"
NO_FILE = "-"
"""Value of ``--out`` with which no file is written."""

OPTION_NAMES = {
    "availability_s": "availability",
    "uplink_bytes_per_s": "uplink",
    "updates_per_s": "updates_per_second",
    "duration_s": "duration",
    "repeats": "campaigns",
}
"""Maps a parameter of the planner to its command-line option, where the two names differ."""
DEFAULT_TEXTS = {"uplink": "125000", "dropout": "0", "updates_per_second": "1000", "duration": "1d"}
"""The defaults of options, as error messages quote them."""


@params.command(
    *options(f"""
    --task patients|fashion-mnist|synthetic|file  The learning task: a built-in task, or file for
        your own data. Default patients.
    --out FILE  The file to write, or - to print it. Default {DEFAULT_FILE}.
    """),
    params.FORCE_OPTION,
    params.JSON_OPTION,
)
def init(given: GivenOptions) -> None:
    """Write a campaign file with comments, to start from.

    The file is valid, and its campaign is within its budget. Before clients take part, replace the
    values that are marked (choose) by your own.
    """
    from checkins.campaign import parse_campaign
    from checkins.campaign.file import Template, template_text

    with given.errors_as_option_errors():
        template = given.choice("task", Template, default=Template.PATIENTS)
    content = template_text(template)
    out = given.texts.get("out", DEFAULT_FILE)
    if out != NO_FILE:
        terminal.write_new(out, content, force=given.values["force"])
    if given.json:
        terminal.show_json(
            {
                "task": str(template),
                "path": None if out == NO_FILE else out,
                "seal": parse_campaign(content).campaign.seal,
                "text": content,
            }
        )
    elif out == NO_FILE:
        print(content, end="")
    else:
        terminal.show_plain(f"Wrote {out}. Replace the values marked (choose), then run:")
        terminal.show_plain(f"  checkins check {out}")


OPTIONS = (
    *options("""
    --population LO..HI  Expected number of clients: the range LO to HI, or one number. Required.
    --epsilon E  The privacy budget: the largest epsilon of all runs together. Required.
    """),
    *params.design_options("delta", "adjacency"),
    *options("""
    --dimension D  Number of parameters of the model. Required without --task.
    --task patients|fashion-mnist|synthetic|FILE  The learning task: a built-in task, or the task of
        a campaign file.
    --availability TIME  How long a device stays available after it has joined, such as 600
        (seconds), 30min, 8h or 2d. Default: until the campaign ends.
    --uplink B  Upload rate of a device in bytes per second. Default 125000.
    --dropout P  Probability that a chosen device never reports, from 0 to 1. Default 0.
    --updates-per-second N  Reports that the server can process per second. Default 1000.
    --duration TIME  Time limit for all runs of the campaign, such as 8h. Default 1d.
    """),
    *params.design_options("protocol", "slots", "participation", "window", "noise_at"),
    *options(f"""
    --capacity K|all  Largest number of check-ins that a slot uses.
    --minibatch B  Number of slots whose sums are combined into one step of the model.
    --campaigns R  Number of times that the campaign is run, with fresh randomness.
    --bands B  Number of slots over which the server correlates its noise; 1 is independent noise.
    --randomizer gaussian|laplace|privunit  How reports are randomized: Gaussian noise, Laplace
        noise or PrivUnit.
    --out FILE  The campaign file to write, or - to write no file. Default: {DEFAULT_FILE} on a
        terminal, otherwise -.
    """),
    params.FORCE_OPTION,
    params.JSON_OPTION,
)


@params.command(*OPTIONS)
def plan(given: GivenOptions) -> None:
    """Find the most accurate campaign for a privacy budget.

    The options from --protocol to --randomizer fix parameters of the design. The planner chooses
    all other parameters. The output explains each choice and names the theorem behind it. On a
    terminal, the command prompts for missing options and writes campaign.toml. Otherwise it never
    prompts, and it writes a file only with --out.
    """
    json, force = given.json, given.values["force"]
    at_terminal = not json and stdout_is_terminal()
    out = given.texts.get("out", DEFAULT_FILE if at_terminal else NO_FILE)
    if out != NO_FILE:
        terminal.check_out_file(Path(out), force=force, other_advice=", and --out - writes no file")
    if at_terminal and stdin_is_terminal():
        from checkins.cli.views.plan import with_prompted_options

        given = with_prompted_options(given, check_task=campaign_of_task)
    with terminal.spinner("planning", quiet=json):
        from checkins.planning import make_plan

        question = question_from(given)
        with _errors_as_option_errors(given):
            result = make_plan(question)
    if out != NO_FILE:
        terminal.write_new(out, result.text, force=force)
    if json:
        terminal.show_json(result.as_json())
        return
    from checkins.cli.views.plan import plan_parts

    terminal.show(*plan_parts(result, out=None if out == NO_FILE else out))


def stdout_is_terminal() -> bool:
    """Return True if standard output is a terminal."""
    return sys.stdout.isatty()


def stdin_is_terminal() -> bool:
    """Return True if standard input is a terminal, so that prompts can be answered."""
    return sys.stdin.isatty()


def question_from(given: GivenOptions) -> Question:
    """Convert the options into the input of the planner."""
    from checkins.accounting import Adjacency
    from checkins.planning import Question
    from checkins.planning.question import MAX_CLIENTS

    with _errors_as_option_errors(given):
        population = params.population(
            given.required("population", "must be an integer or LO..HI"), most=MAX_CLIENTS
        )
        epsilon = given.number("epsilon", validate.positive)
        delta = given.number("delta", validate.open_unit)
        adjacency = given.choice("adjacency", Adjacency)
        learning, dimension, campaign = _learning(given)
        return Question(
            population,
            epsilon,
            delta,
            adjacency,
            dimension=dimension,
            devices=_devices(given),
            server=_server(given),
            fixed=_constraints(given),
            learning=learning,
            name="planned" if campaign is None else campaign.name,
            population_id=None if campaign is None else campaign.population_id,
        )


@contextmanager
def _errors_as_option_errors(given: GivenOptions) -> Iterator[None]:
    """Convert an ``InvalidValue`` of the planner into an error that names the option."""
    from checkins.campaign import InvalidCampaign

    try:
        yield
    except InvalidCampaign:
        raise  # the message already names the file and line
    except InvalidValue as error:
        raise _refusal(given, error) from error


def _refusal(given: GivenOptions, error: InvalidValue) -> UsageError:
    if isinstance(error, DeltaExhausted):
        return given.invalid(
            "delta",
            f"is too small: rounding the noise to its grid alone uses more than {error.value:.1e}",
        )
    name = OPTION_NAMES.get(error.name, error.name)
    return given.refusal(InvalidValue(name, error.value, error.expected), defaults=DEFAULT_TEXTS)


def _learning(given: GivenOptions) -> tuple[Learning, int, Campaign | None]:
    from checkins.planning import Learning
    from checkins.planning.question import MAX_DIMENSION

    dimension = given.integer("dimension", default=0, most=MAX_DIMENSION) or None
    if "task" not in given:
        if dimension is None:
            raise UsageError(
                "give --dimension D, the number of parameters of the model, or --task; neither has"
                " a default"
            )
        return Learning(), dimension, None
    from checkins.tasks.loaded_task import model_of

    campaign, folder = campaign_of_task(given.texts["task"])
    task = campaign.task
    if task is None:
        raise InvalidValue(
            "task", given.texts["task"], "the file has no [task]; give --dimension and not --task"
        )
    learning = Learning.of(task, name=campaign.name)
    if learning == Learning(name=campaign.name, task=task) and campaign.randomizer.clip:
        learning = Learning(name=campaign.name, task=task, clip=campaign.randomizer.clip)
    task_dimension = int(model_of(task, folder=folder).dimension)
    if dimension not in (None, task_dimension):
        raise InvalidValue(
            "dimension",
            dimension,
            f"the model of the task has {task_dimension:,} parameters; leave out --dimension",
        )
    return learning, task_dimension, campaign


def campaign_of_task(task: str) -> tuple[Campaign, str]:
    """Return the campaign of a built-in task or a campaign file, and the folder of its data."""
    from checkins.campaign import parse_campaign, read_campaign
    from checkins.campaign.file import Template, template_text

    templates = [template for template in Template if template is not Template.FILE]
    if task in templates:
        return parse_campaign(template_text(Template(task))).campaign, "."
    if not Path(task).is_file():
        names = ", ".join(templates)
        raise InvalidValue("task", task, f"must be {names} or an existing campaign file")
    return read_campaign(task).campaign, str(Path(task).parent)


def _devices(given: GivenOptions) -> Devices:
    from checkins.planning import Devices

    defaults = Devices()
    return Devices(
        availability_s=_optional(given, "availability", params.seconds),
        uplink_bytes_per_s=given.number(
            "uplink", validate.positive, default=defaults.uplink_bytes_per_s
        ),
        dropout=given.number("dropout", validate.probability, default=defaults.dropout),
    )


def _server(given: GivenOptions) -> Server:
    from checkins.planning import Server

    defaults = Server()
    return Server(
        updates_per_s=given.number(
            "updates_per_second", validate.positive, default=defaults.updates_per_s
        ),
        duration_s=_optional(given, "duration", params.seconds) or defaults.duration_s,
    )


def _constraints(given: GivenOptions) -> Constraints:
    """Return the parameters of the design that options fix. Other parameters are None."""
    from checkins.accounting import NoiseAt, Protocol
    from checkins.accounting.noise_strategy import MOST_BANDS
    from checkins.campaign import RandomizerKind
    from checkins.planning import Constraints
    from checkins.planning.question import MAX_PLANNED_SLOTS, MAX_REPEATS

    slots = partial(params.integer, most=MAX_PLANNED_SLOTS)
    return Constraints(
        protocol=_optional(given, "protocol", partial(params.choice, choices=Protocol)),
        slots=_optional(given, "slots", slots),
        participation=_optional(
            given, "participation", partial(params.number, check=validate.probability)
        ),
        capacity=_optional(
            given, "capacity", lambda _, text: params.capacity(text) or params.ALL_CHECK_INS
        ),
        window=_optional(given, "window", slots),
        minibatch=_optional(given, "minibatch", slots),
        repeats=_optional(given, "campaigns", partial(params.integer, most=MAX_REPEATS)),
        bands=_optional(given, "bands", partial(params.integer, most=MOST_BANDS)),
        noise_at=_optional(given, "noise_at", partial(params.choice, choices=NoiseAt)),
        randomizer=_optional(given, "randomizer", partial(params.choice, choices=RandomizerKind)),
    )


def _optional(given: GivenOptions, name: str, parse: Callable[[str, str], Parsed]) -> Parsed | None:
    """Return the parsed value of an option, or None if the option was not given."""
    return parse(name, given.texts[name]) if name in given else None
