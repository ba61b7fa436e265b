"""What a command is asked: designs to price, and the terms of the guarantee.

Asked by options or by campaign files, never by both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from checkins.accounting import Adjacency, Design, require
from checkins.cli import values
from checkins.cli.design_options import design_from
from checkins.cli.failures import Refused, quoted
from checkins.cli.options import Given
from checkins.errors import CheckinsError, InvalidValue
from checkins.protocol.campaign_file import CampaignFile, read_campaign

MOST_IN_A_LIST = 1000


@dataclass(frozen=True, slots=True)
class Question:
    """Designs that are run one after another, ``campaigns`` times, and what to promise."""

    designs: tuple[Design, ...]
    delta: float
    adjacency: Adjacency
    campaigns: int
    refusal: Callable[[InvalidValue], CheckinsError]
    files: tuple[CampaignFile, ...] = ()

    @property
    def what(self) -> Design | tuple[Design, ...]:
        """What the accountant takes: one design, or a mixed list."""
        return self.designs[0] if len(self.designs) == 1 else self.designs

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
            "delta", given.need("delta", "must lie strictly between 0 and 1"), require.open_unit
        )
        adjacency = values.one_of(
            "adjacency", given.need("adjacency", "must be add-remove or replace-one"), Adjacency
        )
        campaigns = values.whole(
            "campaigns", given.texts.get("campaigns", "1"), most=require.MOST_CAMPAIGNS
        )
    except InvalidValue as error:
        raise given.refusal(error) from error
    return Question((design,), delta, adjacency, campaigns, given.refusal)


def from_files(paths: Sequence[str], given: Given) -> Question:
    """The question that campaign files ask; several are a mixed list, composed."""
    for name in given.texts:
        raise given.contradiction(
            name, f"cannot be combined with {quoted(paths[0])}: say it in the file"
        )
    files = tuple(read_campaign(path) for path in paths)
    first = files[0]
    for other in files[1:]:
        _same_terms(first, other)
    rounds = math.gcd(*(file.repeats for file in files))
    length = sum(file.repeats // rounds for file in files)
    if length > MOST_IN_A_LIST:
        raise files[-1].refusal(
            InvalidValue(
                "campaigns",
                files[-1].repeats,
                f"makes a list of {length:,} campaigns with the others;"
                f" must make at most {MOST_IN_A_LIST:,}, or share a divisor with them",
            )
        )
    designs = tuple(file.design for file in files for _ in range(file.repeats // rounds))
    refusal = first.refusal if len(files) == 1 else _refusal_of_a_list
    return Question(designs, first.delta, first.adjacency, rounds, refusal, files)


def _same_terms(first: CampaignFile, other: CampaignFile) -> None:
    for name in ("delta", "adjacency"):
        ours, theirs = getattr(first, name), getattr(other, name)
        if ours != theirs:
            raise other.refusal(
                InvalidValue(name, theirs, f"must be {ours} as in {first.path}, to be composed")
            )


def _refusal_of_a_list(error: InvalidValue) -> Refused:
    return Refused(f"in this list of campaigns, {error}")
