"""`checkins calibrate`: which value of one parameter meets a target epsilon?"""

from __future__ import annotations

from typing import Annotated

import typer

from checkins.cli import options, screen

CHOICES = "noise-multiplier|local-epsilon|participation|slots|capacity"

Epsilon = Annotated[options.Texts, options.text("--epsilon", "E", "The epsilon to meet.")]
Solve = Annotated[
    options.Texts,
    options.text("--solve", CHOICES, "The parameter to find; leave its own option out."),
]


def calibrate(
    context: typer.Context,
    protocol: options.Protocol = None,
    slots: options.Slots = None,
    capacity: options.Capacity = None,
    window: options.Window = None,
    population: options.PopulationRange = None,
    participation: options.Participation = None,
    local_epsilon: options.LocalEpsilon = None,
    local_delta: options.LocalDelta = None,
    noise_multiplier: options.NoiseMultiplier = None,
    noise_at: options.NoiseAt = None,
    campaigns: options.Campaigns = None,
    curious: options.Curious = None,
    delta: options.Delta = None,
    adjacency: options.Adjacency = None,
    epsilon: Epsilon = None,
    solve: Solve = None,
    json: options.Json = False,
) -> None:
    """The value of one parameter that meets a target.

    Rounded to the side that spends less. The options say the rest of the design, as in account.
    """
    given = options.Given.of(context)
    with screen.working("solving", quiet=json):
        from checkins import validate
        from checkins.accounting import Parameter
        from checkins.accounting import calibrate as solved
        from checkins.cli import question, tables, values
        from checkins.cli.design_options import POSITIVE, allowed_start

        with given.in_own_words():
            wanted = given.need("solve", f"must be one of {CHOICES.replace('|', ', ')}")
            parameter = values.one_of("solve", wanted, Parameter)
            unknown = parameter.replace("-", "_")
            if unknown in given:
                raise given.contradiction(unknown, f"leave it out: --solve {parameter} asks for it")
            target = values.real("epsilon", given.need("epsilon", POSITIVE), validate.positive)
            asked = question.from_options(given.solving(unknown, allowed_start(given, unknown)))
            calibration = solved(
                asked.designs[0],
                parameter=parameter,
                epsilon=target,
                delta=asked.delta,
                adjacency=asked.adjacency,
                campaigns=asked.campaigns,
                curious=asked.curious,
            )
    if json:
        screen.show_json(calibration.as_dict())
    else:
        screen.show(*tables.calibration_parts(calibration))
