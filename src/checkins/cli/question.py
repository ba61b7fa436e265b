"""What a command is asked: designs to price, and the terms of the guarantee.

Asked by options or by campaign files, never by both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from checkins import validate
from checkins.accounting import Adjacency, Certificate, Design, certify
from checkins.campaign import CampaignFile, read_campaign
from checkins.campaign.partial_runs import PartialRun
from checkins.campaign.spending import price
from checkins.cli import values
from checkins.cli.design_options import design_from
from checkins.cli.failures import Refused, quoted
from checkins.cli.options import Given
from checkins.errors import CheckinsError, InvalidValue


@dataclass(frozen=True, slots=True)
class Question:
    """What to price: a design and the terms of its guarantee, or campaign files."""

    priced: Callable[[], Certificate]
    refusal: Callable[[InvalidValue], CheckinsError]
    designs: tuple[Design, ...]
    delta: float
    adjacency: Adjacency
    campaigns: int = 1
    curious: int = 0
    files: tuple[CampaignFile, ...] = ()

    def price(self) -> Certificate:
        """The certificate; a refusal names the option, or the line of the file, it is about."""
        with self.in_the_askers_words():
            return self.priced()

    @contextmanager
    def in_the_askers_words(self) -> Iterator[None]:
        """Name the option, or the line of the file, that the accountant refuses."""
        try:
            yield
        except InvalidValue as error:
            raise self.refusal(error) from error


def from_options(given: Given) -> Question:
    """The question that the options ask."""
    try:
        design = design_from(given)
        delta = values.real(
            "delta", given.need("delta", "must lie strictly between 0 and 1"), validate.open_unit
        )
        adjacency = values.one_of(
            "adjacency", given.need("adjacency", "must be add-remove or replace-one"), Adjacency
        )
        campaigns = values.whole(
            "campaigns", given.texts.get("campaigns", "1"), most=validate.MOST_CAMPAIGNS
        )
        curious = _curious(given)
    except InvalidValue as error:
        raise given.refusal(error) from error

    def priced() -> Certificate:
        return certify(
            design, delta=delta, adjacency=adjacency, campaigns=campaigns, curious=curious
        )

    return Question(priced, given.refusal, (design,), delta, adjacency, campaigns, curious)


def _curious(given: Given) -> int:
    """How many clients may be curious; 0 if the option is not given."""
    if "curious" not in given or given.texts["curious"] == "0":
        return 0
    return values.whole("curious", given.texts["curious"])


def from_files(paths: Sequence[str], given: Given) -> Question:
    """The question that campaign files ask; several are a mixed list, composed."""
    for name in given.texts:
        if name != "curious":
            raise given.contradiction(
                name, f"cannot be combined with {quoted(paths[0])}: say it in the file"
            )
    with given.in_own_words():
        curious = _curious(given)
    files = tuple(read_campaign(path) for path in paths)
    first = files[0]
    for other in files[1:]:
        _same_terms(first, other)

    def priced() -> Certificate:
        runs = [PartialRun.whole(file.campaign) for file in files]
        return price(runs, compare=True, curious=curious)

    def refusal(error: InvalidValue) -> CheckinsError:
        if error.name in given.texts:
            return given.refusal(error)
        if len(files) == 1 or error.name == "campaigns":
            return max(files, key=lambda file: file.campaign.repeats).refusal(error)
        return _refusal_of_a_list(error)

    designs = tuple(file.campaign.design for file in files)
    budget = first.campaign.budget
    return Question(priced, refusal, designs, budget.delta, budget.adjacency, files=files)


def _same_terms(first: CampaignFile, other: CampaignFile) -> None:
    for name in ("delta", "adjacency"):
        ours, theirs = (getattr(file.campaign.budget, name) for file in (first, other))
        if ours != theirs:
            raise other.refusal(
                InvalidValue(name, theirs, f"must be {ours} as in {first.path}, to be composed")
            )


def _refusal_of_a_list(error: InvalidValue) -> Refused:
    return Refused(f"in this list of campaigns, {error}")
