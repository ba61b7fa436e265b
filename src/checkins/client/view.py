"""What a service shows of a campaign, believed only as far as its seal goes.

The sealed text says everything that matters to a device; what the service says beside it must
agree with it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from checkins.campaign import Campaign, Schedule, campaign_from_canonical
from checkins.campaign.seal import sealed
from checkins.client.errors import CampaignRefused
from checkins.errors import CheckinsError
from checkins.ledger.entry import MOST_NUMBERS, SHA256
from checkins.protocol.factories import sampler_of
from checkins.randomizers import DeviceSampler
from checkins.tasks.tensors import size

OVER = ("completed", "stopped")


class NotAView(CheckinsError):
    """An answer that is no campaign: a fault on the way, or another service."""


@dataclass(frozen=True, slots=True)
class Timetable:
    """When the slots of one run are, in seconds of the server's clock since 1970."""

    begins_s: float
    slot_s: float
    choose_s: float
    slots: int

    def begin(self, slot: int) -> float:
        """When check-ins of a slot open."""
        return self.begins_s + (slot - 1) * self.slot_s

    def choice(self, slot: int) -> float:
        """When they close, and the choice is made."""
        return self.begin(slot) + self.choose_s

    def end(self, slot: int) -> float:
        """When its reports are no longer taken."""
        return self.begin(slot + 1)

    def first_open(self, now_s: float) -> int:
        """The first slot whose check-ins are not over.

        >>> Timetable(0.0, slot_s=10.0, choose_s=4.0, slots=3).first_open(13.9)
        2
        >>> Timetable(0.0, slot_s=10.0, choose_s=4.0, slots=3).first_open(14.0)
        3
        """
        slot = max(1, int((now_s - self.begins_s) // self.slot_s) + 1)
        return slot if now_s < self.choice(slot) else slot + 1


@dataclass(frozen=True, slots=True)
class CampaignView:
    """One run of a campaign: its sealed parameters, and how far it is.

    ``next`` is the id of the run that follows, if there is one. ``epoch``, ``slots_closed`` and
    ``entries``, the length of the population's ledger, never decrease: a device that remembers
    larger ones sees that the service was set back. ``head`` is the hash of the ledger's last line,
    which stays what it is when more lines follow.
    """

    id: str
    campaign: Campaign
    seal: str
    run: int
    status: str
    timetable: Timetable
    shapes: dict[str, tuple[int, ...]]
    epoch: int
    slots_closed: int
    entries: int
    head: str
    next: str | None
    server_time_s: float

    @property
    def over(self) -> bool:
        """Whether no slot is to come."""
        return self.status in OVER

    @property
    def dimension(self) -> int:
        """How many numbers a report holds."""
        return size(self.shapes)

    def check(self, *, seal: str | None = None) -> None:
        """Refuse a campaign that clients cannot join, or another than the one with this seal."""
        if seal is not None and self.seal != seal:
            raise CampaignRefused("seal", self.seal, f"must be {seal}: this is another campaign")
        missing = self.campaign.missing
        if missing:
            raise CampaignRefused(
                "campaign", self.id, f"clients cannot join it: it has no {', '.join(missing)}"
            )

    def sampler(self) -> DeviceSampler:
        """What makes this campaign's reports; built once for each campaign."""
        return _sampler(self.campaign, self.dimension)


@lru_cache(maxsize=8)
def _sampler(campaign: Campaign, dimension: int) -> DeviceSampler:
    return sampler_of(campaign, dimension=dimension)


@lru_cache(maxsize=8)
def _campaign(text: str) -> Campaign:
    return campaign_from_canonical(text)


@lru_cache(maxsize=8)
def view_from(body: bytes) -> CampaignView:
    """Read a campaign view; one whose text does not hash to its seal is refused."""
    try:
        values: dict[str, Any] = json.loads(body)
        text, seal = values["campaign"], values["seal"]
        if not isinstance(text, str) or not isinstance(seal, str):
            raise TypeError("campaign and seal must be texts")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise NotAView(f"no campaign view: {type(error).__name__}") from error
    if sealed(text) != seal:
        raise CampaignRefused("seal", seal, f"must be {sealed(text)}, the hash of its text")
    campaign = _campaign(text)
    try:
        view = CampaignView(
            id=str(values["id"]),
            campaign=campaign,
            seal=seal,
            run=int(values["run"]),
            status=str(values["status"]),
            timetable=_timetable(campaign, int(values["run"])),
            shapes={
                str(tensor["name"]): tuple(int(n) for n in tensor["shape"])
                for tensor in values["tensors"]
            },
            epoch=int(values["epoch"]),
            slots_closed=int(values["slots_closed"]),
            entries=int(values["ledger"]["entries"]),
            head=_hash(values["ledger"]["head"]),
            next=values["next"],
            server_time_s=datetime.fromisoformat(values["server_time"]).timestamp(),
        )
        schedule, told = values["schedule"], view.timetable
        begins_s = datetime.fromisoformat(schedule["start"]).timestamp()
        agrees = (
            view.id == f"{seal.removeprefix('sha256:')[:12]}-{view.run}"
            and 1 <= view.run <= campaign.repeats
            and int(values["dimension"]) == view.dimension
            and (schedule["slot_s"], schedule["choose_s"]) == (told.slot_s, told.choose_s)
            and int(schedule["slots"]) == told.slots
            and abs(begins_s - told.begins_s) < 1e-3
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise NotAView(f"no campaign view: {type(error).__name__}: {error}") from error
    if not agrees:
        raise CampaignRefused("campaign", view.id, "what the service says is not what is sealed")
    if not 1 <= view.dimension <= MOST_NUMBERS or not all(map(_is_shape, view.shapes.values())):
        raise CampaignRefused(
            "tensors", view.dimension, f"must hold 1 to {MOST_NUMBERS:,} numbers together"
        )
    return view


def _hash(text: object) -> str:
    if not isinstance(text, str) or not SHA256.fullmatch(text):
        raise ValueError("the head of a ledger is 64 hexadecimal digits")
    return text


def _is_shape(shape: tuple[int, ...]) -> bool:
    return all(1 <= length <= MOST_NUMBERS for length in shape)


def _timetable(campaign: Campaign, run: int) -> Timetable:
    """Run r begins where run r − 1 ends."""
    schedule = campaign.schedule
    if schedule is None:
        raise CampaignRefused("campaign", campaign.name, "clients cannot join it: no [schedule]")
    slots = campaign.design.slots
    return Timetable(
        run_start(schedule, run=run, slots=slots).timestamp(),
        slot_s=schedule.slot_s,
        choose_s=schedule.choose_s,
        slots=slots,
    )


def run_start(schedule: Schedule, *, run: int, slots: int) -> datetime:
    """When the first slot of a run begins."""
    return schedule.start + timedelta(seconds=(run - 1) * slots * schedule.slot_s)
