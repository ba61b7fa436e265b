"""`checkins account` and `checkins calibrate`: certify a design, or solve for one parameter."""

from __future__ import annotations

from checkins.cli import params, terminal
from checkins.cli.params import GivenOptions, text

SOLVABLE = "noise-multiplier|local-epsilon|participation|slots|capacity"


@params.command(
    params.argument("files", "[CAMPAIGN.TOML]...", nargs=-1, required=False),
    *params.DESIGN,
    params.JSON,
)
def account(given: GivenOptions) -> None:
    """Compute the smallest epsilon that is proved for a design.

    All methods that apply to the design are tried. The table shows the smallest epsilon first, then
    the results of the other methods. Campaign files can be given instead of the options; the
    epsilon then covers all files together. No option that privacy depends on has a default.
    """
    with terminal.working("computing the certificate", quiet=given.json):
        from checkins.cli import certificate_request

        if files := given.values["files"]:
            request = certificate_request.from_files(files, given)
        else:
            request = certificate_request.from_options(given)
        found = request.certify()
    if given.json:
        terminal.show_json(found.as_dict())
        return
    from checkins.cli.views import certificate

    terminal.show(*certificate.certificate_parts(found))
    composed = " by all campaigns together" if len(request.files) > 1 else ""
    for file in request.files:
        budget = file.campaign.budget.epsilon
        verdict = "is kept" if found.epsilon <= budget else "is exceeded"
        terminal.show(f"The budget of {file.path}, epsilon = {budget:g}, {verdict}{composed}.")


@params.command(
    *params.DESIGN,
    text("--epsilon", "E", "The target epsilon."),
    text("--solve", SOLVABLE, "The parameter to compute. Do not give its own option."),
    params.JSON,
)
def calibrate(given: GivenOptions) -> None:
    """Compute the value of one parameter that meets a target epsilon.

    The value is rounded so that the design has at most the target epsilon. The other options
    describe the rest of the design, as for account.
    """
    with terminal.working("calibrating", quiet=given.json):
        from checkins import accounting, validate
        from checkins.cli import certificate_request

        with given.naming_options():
            wanted = given.required("solve", f"must be one of {SOLVABLE.replace('|', ', ')}")
            parameter = params.choice("solve", wanted, accounting.Parameter)
            unknown = parameter.replace("-", "_")
            if unknown in given:
                raise given.invalid(
                    unknown, f"must not be given, because --solve {parameter} computes it"
                )
            target = given.number("epsilon", validate.positive)
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
    if given.json:
        terminal.show_json(calibration.as_dict())
        return
    from checkins.cli.views import certificate

    terminal.show(*certificate.calibration_parts(calibration))
