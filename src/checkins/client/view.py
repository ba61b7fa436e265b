"""Parse and verify the view of a run, which is its public description from the service.

The view contains the sealed text, which holds all parameters of the campaign. The other fields of
the view must agree with the sealed text.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache

from checkins.campaign import Campaign, campaign_from_canonical
from checkins.campaign.model import seal_of
from checkins.client.actions import CampaignRefused
from checkins.errors import CheckinsError
from checkins.ledger.entry import MOST_NUMBERS, SHA256
from checkins.protocol import wire
from checkins.protocol.rules import sampler_of
from checkins.protocol.schedule import RunSchedule
from checkins.randomizers import DeviceSampler
from checkins.tasks.model import parameter_count


class MalformedView(CheckinsError):
    """The response body is no campaign view: a network error, or another service."""


@dataclass(frozen=True, slots=True)
class CampaignView:
    """One run of a campaign: its sealed parameters and its progress.

    ``next`` is the id of the following run, or None if there is none. ``entries`` is the length of
    the population's ledger, and ``head`` is the hash of its last line. ``epoch``, ``slots_closed``
    and ``entries`` never decrease, so a device that has recorded larger values knows that the
    service was rolled back. Line ``entries`` of the ledger keeps its hash when the ledger grows.
    """

    id: str
    campaign: Campaign
    seal: str
    run: int
    status: str
    timetable: RunSchedule
    shapes: dict[str, tuple[int, ...]]
    epoch: int
    slots_closed: int
    entries: int
    head: str
    next: str | None
    server_time_s: float

    @property
    def over(self) -> bool:
        """Whether the run has no further slots."""
        return self.status in wire.OVER

    @property
    def dimension(self) -> int:
        """The number of values in a report."""
        return parameter_count(self.shapes)

    def check(self, *, seal: str | None = None) -> None:
        """Raise if clients cannot join the campaign, or if its seal is not ``seal``.

        None accepts any seal.
        """
        if seal is not None and self.seal != seal:
            raise CampaignRefused("seal", self.seal, f"must be {seal}: this is another campaign")
        missing = self.campaign.missing
        if missing:
            raise CampaignRefused(
                "campaign", self.id, f"clients cannot join it: it has no {', '.join(missing)}"
            )

    def sampler(self) -> DeviceSampler:
        """Return the sampler of this campaign's reports. It is built once per campaign."""
        return _sampler(self.campaign, self.dimension)


@lru_cache(maxsize=8)
def _sampler(campaign: Campaign, dimension: int) -> DeviceSampler:
    return sampler_of(campaign, dimension=dimension)


@lru_cache(maxsize=8)
def _campaign(text: str) -> Campaign:
    return campaign_from_canonical(text)


@lru_cache(maxsize=8)
def view_from(body: bytes) -> CampaignView:
    """Parse a view; raise if its seal is not the hash of its sealed text."""
    try:
        values: wire.CampaignView = json.loads(body)
        text, seal = values["campaign"], values["seal"]
        if not isinstance(text, str) or not isinstance(seal, str):
            raise TypeError("campaign and seal must be strings")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MalformedView(f"no campaign view: {type(error).__name__}") from error
    if seal_of(text) != seal:
        raise CampaignRefused("seal", seal, f"must be {seal_of(text)}, the hash of its text")
    campaign = _campaign(text)
    try:
        view = CampaignView(
            id=str(values["id"]),
            campaign=campaign,
            seal=seal,
            run=int(values["run"]),
            status=str(values["status"]),
            timetable=RunSchedule.of(campaign, int(values["run"])),
            shapes={
                str(tensor["name"]): tuple(int(n) for n in tensor["shape"])
                for tensor in values["tensors"]
            },
            epoch=int(values["epoch"]),
            slots_closed=int(values["slots_closed"]),
            entries=int(values["ledger"]["entries"]),
            head=_hash(values["ledger"]["head"]),
            next=values["next"],
            server_time_s=wire.parse_time(values["server_time"]),
        )
        schedule, times = values["schedule"], view.timetable
        agrees = (
            view.id == wire.run_id(seal, view.run)
            and 1 <= view.run <= campaign.repeats
            and int(values["dimension"]) == view.dimension
            and (schedule["slot_s"], schedule["choose_s"]) == (times.slot_s, times.choose_s)
            and int(schedule["slots"]) == times.slots
            and abs(wire.parse_time(schedule["start"]) - times.begins(1)) < 1e-3
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise MalformedView(f"no campaign view: {type(error).__name__}: {error}") from error
    if not agrees:
        raise CampaignRefused("campaign", view.id, "the view does not agree with the sealed text")
    if not 1 <= view.dimension <= MOST_NUMBERS or not all(map(_is_shape, view.shapes.values())):
        raise CampaignRefused(
            "tensors", view.dimension, f"must hold 1 to {MOST_NUMBERS:,} numbers in total"
        )
    return view


def _hash(text: object) -> str:
    if not isinstance(text, str) or not SHA256.fullmatch(text):
        raise ValueError("the head of a ledger is 64 hexadecimal digits")
    return text


def _is_shape(shape: tuple[int, ...]) -> bool:
    return all(1 <= length <= MOST_NUMBERS for length in shape)
