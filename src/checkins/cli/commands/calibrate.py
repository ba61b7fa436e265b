"""`checkins calibrate`: compute the value of one parameter that meets a target epsilon."""

from __future__ import annotations

from typing import Annotated

import typer

from checkins.cli import params, terminal
from checkins.cli.params import Texts, text

CHOICES = "noise-multiplier|local-epsilon|participation|slots|capacity"

Epsilon = Annotated[Texts, text("--epsilon", "E", "The target epsilon.")]
Solve = Annotated[
    Texts, text("--solve", CHOICES, "The parameter to compute; leave its own option out.")
]


def calibrate(
    context: typer.Context,
    protocol: params.Protocol = None,
    slots: params.Slots = None,
    capacity: params.Capacity = None,
    window: params.Window = None,
    population: params.PopulationRange = None,
    participation: params.Participation = None,
    local_epsilon: params.LocalEpsilon = None,
    local_delta: params.LocalDelta = None,
    noise_multiplier: params.NoiseMultiplier = None,
    noise_at: params.NoiseAt = None,
    campaigns: params.Campaigns = None,
    curious: params.Curious = None,
    delta: params.Delta = None,
    adjacency: params.Adjacency = None,
    epsilon: Epsilon = None,
    solve: Solve = None,
    json: params.Json = False,
) -> None:
    """Compute the value of one parameter that meets a target epsilon.

    The value is rounded to the private side. The other options describe the rest of the design, as
    in account.
    """
    given = params.GivenOptions.of(context)
    with terminal.working("calibrating", quiet=json):
        from checkins import accounting, validate
        from checkins.cli import certificate_request

        with given.naming_options():
            wanted = given.required("solve", f"must be one of {CHOICES.replace('|', ', ')}")
            parameter = params.choice("solve", wanted, accounting.Parameter)
            unknown = parameter.replace("-", "_")
            if unknown in given:
                raise given.invalid(unknown, f"leave it out: --solve {parameter} computes it")
            target = params.number(
                "epsilon", given.required("epsilon", params.POSITIVE), validate.positive
            )
            request = certificate_request.from_options(
                given.solving(unknown, certificate_request.allowed_start(given, unknown))
            )
            calibration = accounting.calibrate(
                request.designs[0],
                parameter=parameter,
                epsilon=target,
                delta=request.delta,
                adjacency=request.adjacency,
                campaigns=request.campaigns,
                curious=request.curious,
            )
    if json:
        terminal.show_json(calibration.as_dict())
        return
    from checkins.cli.views import certificate

    terminal.show(*certificate.calibration_parts(calibration))
