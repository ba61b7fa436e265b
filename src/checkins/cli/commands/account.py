"""`checkins account`: compute the certificate of a design."""

from __future__ import annotations

import typer

from checkins.cli import params, terminal


def account(
    context: typer.Context,
    files: params.Files = None,
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
    json: params.Json = False,
) -> None:
    """Compute the smallest epsilon that is proved for a design.

    Every method that applies is tried; the results of the others are listed after the best one.
    Campaign files can be given instead of the options; several files are composed.
    Nothing that privacy depends on has a default.
    """
    given = params.GivenOptions.of(context)
    with terminal.working("computing the certificate", quiet=json):
        from checkins.cli import certificate_request

        if files:
            request = certificate_request.from_files(files, given)
        else:
            request = certificate_request.from_options(given)
        found = request.certify()
    if json:
        terminal.show_json(found.as_dict())
        return
    from checkins.cli.views import certificate

    terminal.show(*certificate.certificate_parts(found))
    composed = " by all campaigns together" if len(request.files) > 1 else ""
    for file in request.files:
        budget = file.campaign.budget.epsilon
        verdict = "is kept" if found.epsilon <= budget else "is exceeded"
        terminal.show(f"The budget of {file.path}, epsilon = {budget:g}, {verdict}{composed}.")
