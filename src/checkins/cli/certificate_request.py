"""Read the design that `account` and `calibrate` certify, from options or campaign files."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from checkins import validate
from checkins.accounting import (
    Adjacency,
    Certificate,
    Design,
    GaussianNoise,
    LocalRandomizer,
    NoiseAt,
    Protocol,
    certify,
)
from checkins.cli import params
from checkins.cli.errors import UsageError, quoted
from checkins.cli.params import POSITIVE, GivenOptions, option
from checkins.errors import CheckinsError, InvalidValue, TooManyRuns

if TYPE_CHECKING:
    from checkins.campaign import CampaignFile

COUNT = params.integers(validate.MOST_SLOTS)


@dataclass(frozen=True, slots=True)
class CertificateRequest:
    """Designs to certify, with the delta and the neighbour relation of the guarantee.

    ``compute`` returns the certificate. ``refusal`` turns an error of ``compute`` into one that
    names the option or the line of the file. ``files`` is empty if the design comes from options.
    """

    compute: Callable[[], Certificate]
    refusal: Callable[[InvalidValue], CheckinsError]
    designs: tuple[Design, ...]
    delta: float
    adjacency: Adjacency
    campaigns: int = 1
    curious: int = 0
    files: tuple[CampaignFile, ...] = ()

    def certify(self) -> Certificate:
        """Return the certificate. An error names the option or the line of the file."""
        try:
            return self.compute()
        except InvalidValue as error:
            raise self.refusal(error) from error


def from_options(given: GivenOptions) -> CertificateRequest:
    """Return the request that the options describe."""
    with given.naming_options():
        design = design_from(given)
        delta = given.number("delta", validate.open_unit)
        adjacency = given.choice("adjacency", Adjacency)
        campaigns = given.integer("campaigns", default=1, most=validate.MOST_CAMPAIGNS)
        curious = _curious(given)

    def compute() -> Certificate:
        return certify(
            design, delta=delta, adjacency=adjacency, campaigns=campaigns, curious=curious
        )

    return CertificateRequest(
        compute, given.refusal, (design,), delta, adjacency, campaigns, curious
    )


def from_files(paths: Sequence[str], given: GivenOptions) -> CertificateRequest:
    """Return the request for campaign files. Its certificate covers all files together."""
    from checkins.campaign import read_campaign
    from checkins.campaign.partial_runs import PartialRun
    from checkins.campaign.spending import certify_runs

    for name in (name for name in given.texts if name != "curious"):
        raise given.invalid(name, f"cannot be combined with {quoted(paths[0])}: set it in the file")
    with given.naming_options():
        curious = _curious(given)
    files = tuple(read_campaign(path) for path in paths)
    first = files[0]
    for other in files[1:]:
        _check_same_terms(first, other)

    def compute() -> Certificate:
        runs = [PartialRun.whole(file.campaign) for file in files]
        return certify_runs(runs, compare=True, curious=curious)

    def refusal(error: InvalidValue) -> CheckinsError:
        if error.name in given.texts:
            return given.refusal(error)
        if len(files) == 1 or isinstance(error, TooManyRuns):
            return max(files, key=lambda file: file.campaign.repeats).refusal(error)
        return UsageError(f"in this list of campaigns, {error}")

    designs = tuple(file.campaign.design for file in files)
    budget = first.campaign.budget
    return CertificateRequest(
        compute, refusal, designs, budget.delta, budget.adjacency, files=files
    )


def _check_same_terms(first: CampaignFile, other: CampaignFile) -> None:
    for name in ("delta", "adjacency"):
        ours, theirs = (getattr(file.campaign.budget, name) for file in (first, other))
        if ours != theirs:
            raise other.refusal(
                InvalidValue(name, theirs, f"must be {ours} as in {first.path}, to be composed")
            )


def _curious(given: GivenOptions) -> int:
    return given.integer("curious", default=0, least=0)


def design_from(given: GivenOptions) -> Design:
    """Return the design that the options describe."""
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
    if "local_epsilon" in given and "noise_multiplier" in given:
        raise given.invalid("local_epsilon", "cannot be combined with --noise-multiplier")
    for name, partner in (("local_delta", "local_epsilon"), ("noise_at", "noise_multiplier")):
        if name in given and partner not in given:
            raise given.invalid(name, f"needs {option(partner)}, which is missing")
    if "local_epsilon" in given:
        return LocalRandomizer(
            given.number("local_epsilon", validate.positive),
            given.number("local_delta", validate.probability, default=0.0),
        )
    if "noise_multiplier" in given:
        level = given.number("noise_multiplier", validate.positive)
        return GaussianNoise(level, given.choice("noise_at", NoiseAt))
    raise UsageError(
        f"--local-epsilon or --noise-multiplier is missing; {POSITIVE} (it has no default)"
    )


def _capacity(given: GivenOptions, text: str) -> int | None:
    if text != params.ALL:
        return params.integer("capacity", text)
    if given.texts.get("noise_at") != NoiseAt.SERVER:
        raise given.invalid("capacity", f"needs --noise-at server; otherwise it {COUNT}")
    return None


def allowed_start(given: GivenOptions, unknown: str) -> str:
    """Return a valid text for the option that ``--solve`` computes.

    The design must be valid before the calibration starts. The result does not depend on this text.
    """
    if unknown == "slots":
        return given.texts.get("window", "1")
    if unknown == "capacity" and given.texts.get("noise_at") == NoiseAt.CLIENT:
        noise = given.number("noise_multiplier", validate.positive)
        return str(min(max(1, math.ceil(1.0 / noise) ** 2), validate.MOST_SLOTS))
    if unknown == "noise_multiplier" and given.texts.get("noise_at") == NoiseAt.CLIENT:
        capacity = given.texts.get("capacity", "1")
        return "1" if capacity == params.ALL else str(params.integer("capacity", capacity) ** -0.5)
    return "1"
