"""`checkins plan`: which campaign spends this budget best, and why?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from checkins.cli import options, places, screen
from checkins.cli.init import NAME, PRINT, Force, write_new

Epsilon = Annotated[options.Texts, options.text("--epsilon", "E", "What may be spent.")]
Dimension = Annotated[
    options.Texts, options.text("--dimension", "D", "Numbers in the model; a --task says its own.")
]
Task = Annotated[
    options.Texts,
    options.text(
        "--task",
        "patients|fashion-mnist|synthetic|FILE",
        "What is learned: a known task, or that of a campaign file.",
    ),
]
Population = Annotated[
    options.Texts, options.text("--population", "LO..HI", "How many clients you think there are.")
]
Availability = Annotated[
    options.Texts,
    options.text(
        "--availability",
        "TIME",
        "How long a device that joined can keep an appointment: 600, 30min, 8h, 2d. Without it: to"
        " the end.",
    ),
]
Uplink = Annotated[
    options.Texts,
    options.text("--uplink", "B", "Bytes a second that a device can send. Without it: 125000."),
]
Dropout = Annotated[
    options.Texts,
    options.text("--dropout", "P", "Chance that a chosen device never reports. Without it: 0."),
]
Updates = Annotated[
    options.Texts,
    options.text(
        "--updates-per-second", "N", "Reports that the server can take. Without it: 1000."
    ),
]
Duration = Annotated[
    options.Texts,
    options.text("--duration", "TIME", "How long all of it may last. Without it: 1d."),
]
Minibatch = Annotated[options.Texts, options.text("--minibatch", "B", "Slots of one model step.")]
Randomizer = Annotated[
    options.Texts,
    options.text("--randomizer", "gaussian|laplace|privunit", "How a report is made private."),
]
Capacity = Annotated[
    options.Texts, options.text("--capacity", "K|all", "Check-ins that a slot uses at most.")
]
Campaigns = Annotated[
    options.Texts, options.text("--campaigns", "R", "How often it is run, with fresh coins.")
]
Out = Annotated[
    options.Texts,
    options.text(
        "--out", "FILE", f"Where to write the campaign; - does not. On a terminal: {NAME}."
    ),
]


def plan(
    context: typer.Context,
    population: Population = None,
    epsilon: Epsilon = None,
    delta: options.Delta = None,
    adjacency: options.Adjacency = None,
    dimension: Dimension = None,
    task: Task = None,
    availability: Availability = None,
    uplink: Uplink = None,
    dropout: Dropout = None,
    updates_per_second: Updates = None,
    duration: Duration = None,
    protocol: options.Protocol = None,
    slots: options.Slots = None,
    participation: options.Participation = None,
    capacity: Capacity = None,
    window: options.Window = None,
    minibatch: Minibatch = None,
    campaigns: Campaigns = None,
    noise_at: options.NoiseAt = None,
    randomizer: Randomizer = None,
    out: Out = None,
    force: Force = False,
    json: options.Json = False,
) -> None:
    """Find the campaign that spends a budget best, and say why.

    Any option of a design fixes that part of it; the rest is searched. On a terminal it asks for
    what is missing and writes campaign.toml; otherwise it asks nothing and writes what --out names.
    """
    given = options.Given.of(context)
    at_terminal = not json and people_read()
    place = given.texts.get("out", NAME if at_terminal else PRINT)
    if place != PRINT:
        places.check_file(Path(place), force=force, instead=", --out - writes nothing")
    if at_terminal and people_answer():
        from checkins.cli.plan_prompts import completed

        given = completed(given)
    with screen.working("planning", quiet=json):
        from checkins.cli.plan_question import asked, in_own_words
        from checkins.planning import make_plan

        question = asked(given)
        with in_own_words(given):
            found = make_plan(question)
    if place != PRINT:
        write_new(place, found.text, force=force)
    if json:
        screen.show_json(found.as_json())
        return
    from checkins.cli.plan_words import plan_parts

    screen.show(*plan_parts(found, place=None if place == PRINT else place))


def people_read() -> bool:
    """Whether the answer goes to a terminal."""
    return sys.stdout.isatty()


def people_answer() -> bool:
    """Whether there is somebody to ask."""
    return sys.stdin.isatty()
