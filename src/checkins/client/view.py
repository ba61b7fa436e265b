"""Parse and verify the view of a campaign that a service sends.

The sealed text determines everything that matters to a device; the other fields of the view must
agree with the sealed text.
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

FINAL_STATUSES = ("completed", "stopped")


class MalformedView(CheckinsError):
    """A response body that is no campaign view: a network fault, or another service."""


@dataclass(frozen=True, slots=True)
class Timetable:
    """The times of the slots of one run, in seconds of the server's clock since 1970."""

    begins_s: float
    slot_s: float
    choose_s: float
    slots: int

    def begin(self, slot: int) -> float:
        """Return the time at which check-ins of a slot open."""
        return self.begins_s + (slot - 1) * self.slot_s

    def choice(self, slot: int) -> float:
        """Return the time at which check-ins of a slot close and the server chooses."""
        return self.begin(slot) + self.choose_s

    def end(self, slot: int) -> float:
        """Return the time from which reports of a slot are refused."""
        return self.begin(slot + 1)

    def first_open(self, now_s: float) -> int:
        """Return the first slot whose check-ins have not closed.

        >>> Timetable(0.0, slot_s=10.0, choose_s=4.0, slots=3).first_open(13.9)
        2
        >>> Timetable(0.0, slot_s=10.0, choose_s=4.0, slots=3).first_open(14.0)
        3
        """
        slot = max(1, int((now_s - self.begins_s) // self.slot_s) + 1)
        return slot if now_s < self.choice(slot) else slot + 1


@dataclass(frozen=True, slots=True)
class CampaignView:
    """One run of a campaign: its sealed parameters and its progress.

    ``next`` is the id of the following run, None if there is none. ``epoch``, ``slots_closed`` and
    ``entries``, the length of the population's ledger, never decrease: a device that recorded
    larger values detects that the service was rolled back. ``head`` is the hash of the ledger's
    last line, which does not change when lines are appended.
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
        """Whether the run has no further slots."""
        return self.status in FINAL_STATUSES

    @property
    def dimension(self) -> int:
        """The number of values in a report."""
        return size(self.shapes)

    def check(self, *, seal: str | None = None) -> None:
        """Raise if clients cannot join the campaign, or if it does not have this seal.

        ``seal`` None accepts any seal.
        """
        if seal is not None and self.seal != seal:
            raise CampaignRefused("seal", self.seal, f"must be {seal}: this is another campaign")
        missing = self.campaign.missing
        if missing:
            raise CampaignRefused(
                "campaign", self.id, f"clients cannot join it: it has no {', '.join(missing)}"
            )

    def sampler(self) -> DeviceSampler:
        """Return the sampler of this campaign's reports; built once for each campaign."""
        return _sampler(self.campaign, self.dimension)


@lru_cache(maxsize=8)
def _sampler(campaign: Campaign, dimension: int) -> DeviceSampler:
    return sampler_of(campaign, dimension=dimension)


@lru_cache(maxsize=8)
def _campaign(text: str) -> Campaign:
    return campaign_from_canonical(text)


@lru_cache(maxsize=8)
def view_from(body: bytes) -> CampaignView:
    """Parse a campaign view; refuse one whose text does not hash to its seal."""
    try:
        values: dict[str, Any] = json.loads(body)
        text, seal = values["campaign"], values["seal"]
        if not isinstance(text, str) or not isinstance(seal, str):
            raise TypeError("campaign and seal must be strings")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MalformedView(f"no campaign view: {type(error).__name__}") from error
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
        schedule, times = values["schedule"], view.timetable
        begins_s = datetime.fromisoformat(schedule["start"]).timestamp()
        agrees = (
            view.id == f"{seal.removeprefix('sha256:')[:12]}-{view.run}"
            and 1 <= view.run <= campaign.repeats
            and int(values["dimension"]) == view.dimension
            and (schedule["slot_s"], schedule["choose_s"]) == (times.slot_s, times.choose_s)
            and int(schedule["slots"]) == times.slots
            and abs(begins_s - times.begins_s) < 1e-3
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise MalformedView(f"no campaign view: {type(error).__name__}: {error}") from error
    if not agrees:
        raise CampaignRefused("campaign", view.id, "the view does not agree with the sealed text")
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
    """Return the slot times of a run; run r begins where run r − 1 ends."""
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
    """Return the time at which the first slot of a run begins."""
    return schedule.start + timedelta(seconds=(run - 1) * slots * schedule.slot_s)
