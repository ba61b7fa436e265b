"""`checkins account` and `checkins calibrate`: certify a design, or solve for one parameter.

The design comes from options or from campaign files. An error names the option or the line of the
file that is wrong.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from checkins import validate
from checkins.cli import params, terminal
from checkins.cli.errors import UsageError, printable
from checkins.cli.params import POSITIVE, GivenOptions, option, options
from checkins.errors import InvalidValue, TooManyRuns

if TYPE_CHECKING:
    from checkins.accounting import Certificate, Design, GaussianNoise, LocalRandomizer
    from checkins.campaign import CampaignFile

SOLVABLE = "noise-multiplier|local-epsilon|participation|slots|capacity"


@params.command(
    params.argument("files", "[CAMPAIGN.TOML]...", nargs=-1, required=False),
    *params.DESIGN,
    params.JSON,
)
def account(given: GivenOptions) -> None:
    """Compute the smallest epsilon that is proved for a design.

    The design is given by options or by campaign files. With several files, epsilon covers all of
    them together. Every method that applies is tried, and the table shows the best method first. An
    option on which privacy depends has no default.
    """
    with terminal.working("computing the certificate", quiet=given.json):
        files = _campaign_files(given)
        found = _certify_files(files, given) if files else _certify_options(given)
    if given.json:
        terminal.show_json(found.as_dict())
        return
    from checkins.cli.views import certificate

    terminal.show(*certificate.certificate_parts(found))
    several = len(files) > 1
    subject, verb = ("All campaigns together", "are") if several else ("The campaign", "is")
    for file in files:
        budget = file.campaign.budget.epsilon
        verdict = f"{verb} within" if found.epsilon <= budget else "exceed" + "s" * (not several)
        terminal.show(f"{subject} {verdict} the budget of {file.path}, epsilon = {budget:g}.")


@params.command(
    *params.DESIGN,
    *options(f"""
    --epsilon E  The largest epsilon that the design may have.
    --solve {SOLVABLE}  The parameter to compute. Leave out the option of this parameter.
    """),
    params.JSON,
)
def calibrate(given: GivenOptions) -> None:
    """Compute the value of one parameter that meets a target epsilon.

    --solve names the parameter. The other options describe the design as for account. The value is
    rounded so that epsilon does not exceed the target.
    """
    with terminal.working("calibrating", quiet=given.json), given.naming_options():
        from checkins import accounting

        wanted = given.required("solve", f"must be one of {SOLVABLE.replace('|', ', ')}")
        parameter = params.choice("solve", wanted, accounting.Parameter)
        unknown = parameter.replace("-", "_")
        if unknown in given:
            raise given.invalid(
                unknown, f"must not be given, because --solve {parameter} computes it"
            )
        target = given.number("epsilon", validate.positive)
        solving = given.solving(unknown, _first_value(given, unknown))
        with solving.naming_options():
            design, terms = _design(solving), _terms(solving)
        calibration = accounting.calibrate(design, parameter=parameter, epsilon=target, **terms)
    if given.json:
        terminal.show_json(calibration.as_dict())
        return
    from checkins.cli.views import certificate

    terminal.show(*certificate.calibration_parts(calibration))


def _certify_options(given: GivenOptions) -> Certificate:
    """Return the certificate of the design that the options describe."""
    from checkins.accounting import certify

    with given.naming_options():
        return certify(_design(given), **_terms(given))


def _campaign_files(given: GivenOptions) -> list[CampaignFile]:
    """Read the campaign files. Raise if an option describes a design too."""
    paths = given.values["files"]
    if not paths:
        return []
    from checkins.campaign import read_campaign

    for name in given.texts:
        if name != "curious":
            raise given.invalid(
                name, f"cannot be combined with {printable(paths[0])}: set it in the file"
            )
    return [read_campaign(path) for path in paths]


def _certify_files(files: list[CampaignFile], given: GivenOptions) -> Certificate:
    """Return the certificate of all files together. Their deltas and adjacencies must be equal."""
    from checkins.campaign.partial_runs import PartialRun
    from checkins.campaign.spending import certify_runs

    with given.naming_options():
        curious = _curious(given)
    first = files[0]
    for other in files[1:]:
        for name in ("delta", "adjacency"):
            ours, theirs = (getattr(file.campaign.budget, name) for file in (first, other))
            if ours != theirs:
                expected = f"must be {ours} as in {first.path}, to be composed"
                raise other.refusal(InvalidValue(name, theirs, expected))
    try:
        runs = [PartialRun.whole(file.campaign) for file in files]
        return certify_runs(runs, compare=True, curious=curious)
    except InvalidValue as error:
        if error.name in given.texts:
            raise given.refusal(error) from error
        if len(files) == 1 or isinstance(error, TooManyRuns):
            longest = max(files, key=lambda file: file.campaign.repeats)
            raise longest.refusal(error) from error
        raise UsageError(f"in this list of campaigns, {error}") from error


def _terms(given: GivenOptions) -> dict[str, Any]:
    """Return the arguments of ``certify`` that describe the guarantee."""
    from checkins.accounting import Adjacency

    return {
        "delta": given.number("delta", validate.open_unit),
        "adjacency": given.choice("adjacency", Adjacency),
        "campaigns": given.integer("campaigns", default=1, most=validate.MOST_CAMPAIGNS),
        "curious": _curious(given),
    }


def _curious(given: GivenOptions) -> int:
    return given.integer("curious", default=0, least=0)


def _design(given: GivenOptions) -> Design:
    """Return the design that the options describe."""
    from checkins.accounting import Design, Protocol

    texts = given.texts
    return Design(
        given.choice("protocol", Protocol),
        slots=given.integer("slots"),
        participation=given.number("participation", validate.probability),
        randomizer=_randomizer(given),
        capacity=_capacity(given, texts["capacity"]) if "capacity" in given else None,
        window=given.integer("window") if "window" in given else None,
        population=params.population(texts["population"]) if "population" in given else None,
    )


def _randomizer(given: GivenOptions) -> LocalRandomizer | GaussianNoise:
    from checkins.accounting import GaussianNoise, NoiseAt

    if "local_epsilon" in given and "noise_multiplier" in given:
        raise given.invalid("local_epsilon", "cannot be combined with --noise-multiplier")
    for name, partner in _PARTNERS.items():
        if name in given and partner not in given:
            raise given.invalid(name, f"needs {option(partner)}, which is missing")
    if "local_epsilon" in given:
        return _local_randomizer(given)
    if "noise_multiplier" in given:
        level = given.number("noise_multiplier", validate.positive)
        return GaussianNoise(level, given.choice("noise_at", NoiseAt))
    raise UsageError(
        f"--local-epsilon or --noise-multiplier is missing; {POSITIVE} (it has no default)"
    )


_PARTNERS = {
    "local_delta": "local_epsilon",
    "randomizer": "local_epsilon",
    "categories": "randomizer",
    "dimension": "randomizer",
    "noise_at": "noise_multiplier",
}
"""Options that are useless without another option."""


def _local_randomizer(given: GivenOptions) -> LocalRandomizer:
    from checkins.accounting import (
        LaplaceReports,
        LocalRandomizer,
        PrivUnitReports,
        RandomizedResponseReports,
    )
    from checkins.accounting.design import MOST_PRIVUNIT_DIMENSION, RandomizerName

    local_epsilon = given.number("local_epsilon", validate.positive)
    local_delta = given.number("local_delta", validate.probability, default=0.0)
    if "randomizer" not in given:
        return LocalRandomizer(local_epsilon, local_delta)
    name = given.choice("randomizer", RandomizerName)
    if "capacity" not in given:
        raise given.invalid("randomizer", "needs --capacity, the number of reports of a slot")
    for parameter, owner in (
        ("categories", RandomizerName.RANDOMIZED_RESPONSE),
        ("dimension", RandomizerName.PRIVUNIT),
    ):
        if parameter in given and name is not owner:
            raise given.invalid(parameter, f"goes with --randomizer {owner} only")
    if name is RandomizerName.RANDOMIZED_RESPONSE:
        categories = given.integer("categories", least=2)
        return RandomizedResponseReports(local_epsilon, local_delta, categories)
    if name is RandomizerName.PRIVUNIT:
        dimension = given.integer("dimension", most=MOST_PRIVUNIT_DIMENSION)
        return PrivUnitReports(local_epsilon, local_delta, dimension)
    return LaplaceReports(local_epsilon, local_delta)


def _capacity(given: GivenOptions, text: str) -> int | None:
    if text != params.ALL:
        return params.integer("capacity", text)
    if given.texts.get("noise_at") != "server":
        allowed = params.integers(validate.MOST_SLOTS)
        raise given.invalid("capacity", f"needs --noise-at server; otherwise it {allowed}")
    return None


def _first_value(given: GivenOptions, unknown: str) -> str:
    """Return a valid text for the option that ``--solve`` computes.

    The design must be valid before the calibration starts. The result does not depend on this text.
    """
    at_client = given.texts.get("noise_at") == "client"
    if unknown == "slots":
        return given.texts.get("window", "1")
    if unknown == "capacity" and at_client:
        noise = given.number("noise_multiplier", validate.positive)
        return str(min(max(1, math.ceil(1.0 / noise) ** 2), validate.MOST_SLOTS))
    if unknown == "noise_multiplier" and at_client:
        capacity = given.texts.get("capacity", "1")
        return "1" if capacity == params.ALL else str(params.integer("capacity", capacity) ** -0.5)
    return "1"
