"""`checkins account` and `checkins calibrate`: certify a design, or solve for one parameter.

The options or the campaign files describe the design. An error names the option, or the line of
the file, that is wrong.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from checkins import validate
from checkins.cli import params, terminal
from checkins.cli.params import MUST_BE_POSITIVE, GivenOptions, dashed_name, options
from checkins.cli.terminal import UsageError, printable
from checkins.errors import InvalidValue, TooManyRuns

if TYPE_CHECKING:
    from checkins.accounting import (
        Certificate,
        Design,
        GaussianNoise,
        LocalRandomizer,
        NoiseStrategy,
    )
    from checkins.campaign import CampaignFile

SOLVABLE_PARAMETERS = "noise-multiplier|local-epsilon|participation|slots|capacity"


@params.command(
    params.argument("files", "[CAMPAIGN.TOML]...", nargs=-1, required=False),
    *params.DESIGN_OPTIONS,
    params.JSON_OPTION,
)
def account(given: GivenOptions) -> None:
    """Compute the smallest epsilon that is proved for a design.

    Describe the design by options or by campaign files. With several files, epsilon covers all
    their campaigns together. The command tries every method of proof that applies, and the table
    shows the best method first. Options that privacy depends on have no default.
    """
    with terminal.spinner("computing the certificate", quiet=given.json):
        files = _campaign_files(given)
        result = _certify_files(files, given) if files else _certify_options(given)
    if given.json:
        terminal.show_json(result.as_dict())
        return
    from checkins.cli.views import certificate

    terminal.show(*certificate.certificate_parts(result))
    several = len(files) > 1
    subject, verb = ("All campaigns together", "are") if several else ("The campaign", "is")
    for file in files:
        budget = file.campaign.budget.epsilon
        verdict = f"{verb} within" if result.epsilon <= budget else "exceed" + "s" * (not several)
        terminal.show(f"{subject} {verdict} the budget of {file.path}, epsilon = {budget:g}.")


@params.command(
    *params.DESIGN_OPTIONS,
    *options(f"""
    --epsilon E  The target: the largest epsilon that the design may have.
    --solve {SOLVABLE_PARAMETERS}  The parameter to compute. Do not give the option of
        this parameter.
    """),
    params.JSON_OPTION,
)
def calibrate(given: GivenOptions) -> None:
    """Compute one parameter that meets a target epsilon.

    --solve names the parameter. The other options describe the rest of the design, as in the
    command account. The value is rounded so that epsilon does not exceed the target.
    """
    with terminal.spinner("calibrating", quiet=given.json), given.errors_as_option_errors():
        from checkins import accounting

        name = given.required("solve", f"must be one of {SOLVABLE_PARAMETERS.replace('|', ', ')}")
        parameter = params.choice("solve", name, accounting.Parameter)
        unknown = parameter.replace("-", "_")
        if unknown in given:
            raise given.invalid(
                unknown, f"must not be given, because --solve {parameter} computes it"
            )
        if unknown == "slots" and given.texts.get("strategy") == "optimised":
            raise given.invalid(
                "strategy", "depends on the number of slots, which --solve slots computes"
            )
        target = given.number("epsilon", validate.positive)
        completed = given.with_unknown(unknown, _placeholder_value(given, unknown))
        with completed.errors_as_option_errors():
            design, arguments = _design(completed), _guarantee_arguments(completed)
        calibration = accounting.calibrate(design, parameter=parameter, epsilon=target, **arguments)
    if given.json:
        terminal.show_json(calibration.as_dict())
        return
    from checkins.cli.views import certificate

    terminal.show(*certificate.calibration_parts(calibration))


def _certify_options(given: GivenOptions) -> Certificate:
    """Return the certificate of the design that the options describe."""
    from checkins.accounting import certify

    with given.errors_as_option_errors():
        return certify(_design(given), **_guarantee_arguments(given))


def _campaign_files(given: GivenOptions) -> list[CampaignFile]:
    """Read the campaign files. Raise if options describe a design as well."""
    paths = given.values["files"]
    if not paths:
        return []
    from checkins.campaign import read_campaign

    for name in given.texts:
        if name != "curious":
            raise given.invalid(
                name, f"cannot be combined with the file {printable(paths[0])}: set it in the file"
            )
    return [read_campaign(path) for path in paths]


def _certify_files(files: list[CampaignFile], given: GivenOptions) -> Certificate:
    """Return the certificate of all campaigns together. Delta and adjacency must be the same."""
    from checkins.campaign.partial_runs import PartialRun
    from checkins.campaign.spending import certify_runs

    with given.errors_as_option_errors():
        curious = _curious_clients(given)
    first = files[0]
    for other in files[1:]:
        for name in ("delta", "adjacency"):
            expected, actual = (getattr(file.campaign.budget, name) for file in (first, other))
            if expected != actual:
                problem = f"must be {expected} as in {first.path}, so that one epsilon covers both"
                raise other.refusal(InvalidValue(name, actual, problem))
    try:
        runs = [PartialRun.whole(file.campaign) for file in files]
        return certify_runs(runs, compare=True, curious=curious)
    except InvalidValue as error:
        if error.name in given.texts:
            raise given.refusal(error) from error
        if len(files) == 1 or isinstance(error, TooManyRuns):
            most_runs = max(files, key=lambda file: file.campaign.repeats)
            raise most_runs.refusal(error) from error
        raise UsageError(f"these campaigns together: {error}") from error


def _guarantee_arguments(given: GivenOptions) -> dict[str, Any]:
    """Return the arguments of ``certify`` that do not describe the design."""
    from checkins.accounting import Adjacency

    return {
        "delta": given.number("delta", validate.open_unit),
        "adjacency": given.choice("adjacency", Adjacency),
        "campaigns": given.integer("campaigns", default=1, most=validate.MAX_CAMPAIGNS),
        "curious": _curious_clients(given),
    }


def _curious_clients(given: GivenOptions) -> int:
    return given.integer("curious", default=0, least=0)


def _design(given: GivenOptions) -> Design:
    """Return the design that the options describe."""
    from checkins.accounting import Design, Protocol, WakeTimes

    texts = given.texts
    return Design(
        given.choice("protocol", Protocol),
        slots=given.integer("slots"),
        participation=given.number("participation", validate.probability),
        randomizer=_randomizer(given),
        capacity=_capacity(given, texts["capacity"]) if "capacity" in given else None,
        window=given.integer("window") if "window" in given else None,
        population=params.population(texts["population"]) if "population" in given else None,
        least_reports=given.integer("least_reports") if "least_reports" in given else None,
        arrivals=given.integer("arrivals") if "arrivals" in given else None,
        wake_times=given.choice("wake_times", WakeTimes)
        if "wake_times" in given
        else WakeTimes.INDEPENDENT,
    )


def _randomizer(given: GivenOptions) -> LocalRandomizer | GaussianNoise:
    from checkins.accounting import GaussianNoise, NoiseAt

    if "local_epsilon" in given and "noise_multiplier" in given:
        raise given.invalid("local_epsilon", "cannot be combined with --noise-multiplier")
    for name, partner in _NEEDED_OPTIONS.items():
        if name in given and partner not in given:
            raise given.invalid(name, f"needs {dashed_name(partner)}, which is missing")
    if "local_epsilon" in given:
        return _local_randomizer(given)
    if "noise_multiplier" in given:
        noise_multiplier = given.number("noise_multiplier", validate.positive)
        noise_at = given.choice("noise_at", NoiseAt)
        return GaussianNoise(noise_multiplier, noise_at, _strategy(given))
    raise UsageError(
        f"--local-epsilon or --noise-multiplier is missing; it {MUST_BE_POSITIVE} and has no"
        " default"
    )


_NEEDED_OPTIONS = {
    "local_delta": "local_epsilon",
    "randomizer": "local_epsilon",
    "categories": "randomizer",
    "dimension": "randomizer",
    "noise_at": "noise_multiplier",
    "bands": "strategy",
    "strategy": "bands",
}
"""Maps an option to the option that it needs."""


def _strategy(given: GivenOptions) -> NoiseStrategy | None:
    """Return how noise is correlated across slots. None if the options do not say."""
    from checkins import strategies
    from checkins.accounting.noise_strategy import MOST_BANDS

    if "strategy" not in given:
        return None
    if given.texts.get("noise_at") != "server":
        raise given.invalid("strategy", "needs --noise-at server")
    bands, text = given.integer("bands", most=MOST_BANDS), given.texts["strategy"]
    if text in list(strategies.StrategyName):
        workload = strategies.Workload(given.integer("slots"))
        return strategies.named(strategies.StrategyName(text), bands, workload)
    strategy = strategies.read_strategy(text)
    if strategy.bands != bands:
        raise given.invalid("bands", f"must be {strategy.bands}, as in {printable(text)}")
    return strategy


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
    if given.texts.get("protocol") == "averaged":
        raise given.invalid("randomizer", "is not used with --protocol averaged: leave it out")
    if "capacity" not in given:
        raise given.invalid("randomizer", "needs --capacity, the number of reports of a slot")
    for parameter, owner in (
        ("categories", RandomizerName.RANDOMIZED_RESPONSE),
        ("dimension", RandomizerName.PRIVUNIT),
    ):
        if parameter in given and name is not owner:
            raise given.invalid(parameter, f"is only for --randomizer {owner}")
    if name is RandomizerName.RANDOMIZED_RESPONSE:
        categories = given.integer("categories", least=2)
        return RandomizedResponseReports(local_epsilon, local_delta, categories)
    if name is RandomizerName.PRIVUNIT:
        dimension = given.integer("dimension", most=MOST_PRIVUNIT_DIMENSION)
        return PrivUnitReports(local_epsilon, local_delta, dimension)
    return LaplaceReports(local_epsilon, local_delta)


def _capacity(given: GivenOptions, text: str) -> int | None:
    if text != params.ALL_CHECK_INS:
        return params.integer("capacity", text)
    if given.texts.get("noise_at") != "server":
        allowed = params.range_text(validate.MAX_SLOTS)
        raise given.invalid(
            "capacity", f"needs --noise-at server; otherwise the capacity {allowed}"
        )
    return None


def _placeholder_value(given: GivenOptions, unknown: str) -> str:
    """Return some valid value for the option that ``--solve`` computes.

    The calibration starts from a valid design. Its result does not depend on this value.
    """
    at_client = given.texts.get("noise_at") == "client"
    if unknown == "slots":
        return given.texts.get("window", "1")
    if unknown == "capacity" and at_client:
        noise = given.number("noise_multiplier", validate.positive)
        return str(min(max(1, math.ceil(1.0 / noise) ** 2), validate.MAX_SLOTS))
    if unknown == "noise_multiplier" and at_client:
        capacity = given.texts.get("capacity", "1")
        return (
            "1"
            if capacity == params.ALL_CHECK_INS
            else str(params.integer("capacity", capacity) ** -0.5)
        )
    return "1"
