"""`checkins account`: what does a design cost?"""

from __future__ import annotations

import typer

from checkins.cli import options, screen


def account(
    context: typer.Context,
    files: options.Files = None,
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
    json: options.Json = False,
) -> None:
    """What a design costs: the smallest epsilon proved.

    Every method that applies is tried, and the others are shown beside the best.
    Campaign files may stand in place of the options; several are composed.
    Nothing that privacy depends on has a default.
    """
    given = options.Given.of(context)
    with screen.working("pricing the design", quiet=json):
        from checkins.cli import question, tables

        asked = question.from_files(files, given) if files else question.from_options(given)
        certificate = asked.price()
    if json:
        screen.show_json(certificate.as_dict())
        return
    screen.show(*tables.certificate_parts(certificate))
    together = " by all of them together" if len(asked.files) > 1 else ""
    for file in asked.files:
        budget = file.campaign.budget.epsilon
        held = "is kept" if certificate.epsilon <= budget else "is exceeded"
        screen.show(f"The budget of {file.path}, epsilon = {budget:g}, {held}{together}.")
