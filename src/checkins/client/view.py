"""Parse and verify the view of a run, which is the public description that the service sends.

The view contains the sealed text, which holds all parameters of the campaign, and the seal, which
is the hash of this text. The other fields of the view must agree with the sealed text.
"""

from __future__ import annotations

import binascii
import json
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from checkins.campaign import Campaign, campaign_from_canonical
from checkins.campaign.model import seal_of
from checkins.client.actions import CampaignRefused
from checkins.errors import CheckinsError
from checkins.protocol import wire
from checkins.protocol.report import model_from_bytes
from checkins.protocol.rules import RunSchedule, sampler_of
from checkins.randomizers import DeviceSampler
from checkins.tasks.model import flatten, parameter_count


class MalformedView(CheckinsError):
    """The response body is no view: something else responded, or it was damaged on the way."""


@dataclass(frozen=True, slots=True)
class CampaignView:
    """One run of a campaign: its sealed parameters and its progress.

    ``run`` is the number of the run, from 1. ``shapes`` has the shape of each tensor of the model.
    ``epoch`` increases with each start of the service. ``entries`` is the number of lines of
    the population's ledger, and ``head`` is the hash of its last line. ``epoch``, ``slots_closed``
    and ``entries`` never decrease, so a device that has recorded larger values knows that the
    service was rolled back. Line ``entries`` of the ledger keeps its hash when the ledger grows.
    ``next`` is the id of the following run, or None if there is none.
    """

    id: str
    campaign: Campaign
    seal: str
    run: int
    status: str
    run_schedule: RunSchedule
    shapes: dict[str, tuple[int, ...]]
    epoch: int
    slots_closed: int
    entries: int
    head: str
    next: str | None
    server_time_s: float

    @property
    def is_over(self) -> bool:
        """Whether the run has no further slots."""
        return self.status in wire.FINISHED_STATUSES

    @property
    def dimension(self) -> int:
        """The number of values in a report."""
        return parameter_count(self.shapes)

    def check(self, *, seal: str | None = None) -> None:
        """Raise if clients cannot join the campaign, or if its seal is not ``seal``.

        If ``seal`` is None, any seal is accepted.
        """
        if seal is not None and self.seal != seal:
            raise CampaignRefused("seal", self.seal, f"must be {seal}: this is another campaign")
        missing = self.campaign.missing
        if missing:
            raise CampaignRefused(
                "campaign", self.id, f"clients cannot join, because it has no {', '.join(missing)}"
            )

    def sampler(self) -> DeviceSampler:
        """Return the sampler, which clips, rounds and adds noise. It is built once per campaign."""
        return _cached_sampler(self.campaign, self.dimension)

    def parse_model(self, content: bytes) -> NDArray[np.float64]:
        """Return a model as a flat array; raise ValueError if it is no model of this campaign."""
        tensors, _ = model_from_bytes(content)
        return flatten(tensors, self.shapes).astype(np.float64)

    def model_in_outcome(self, outcome: Mapping[str, object]) -> NDArray[np.float64] | None:
        """Return the model in an ``OutcomeWithModel``; None if it has no model of this campaign."""
        encoded = outcome.get("model")
        if not isinstance(encoded, str):
            return None
        try:
            return self.parse_model(b64decode(encoded, validate=True))
        except (ValueError, binascii.Error):
            return None


@lru_cache(maxsize=8)
def _cached_sampler(campaign: Campaign, dimension: int) -> DeviceSampler:
    return sampler_of(campaign, dimension=dimension)


@lru_cache(maxsize=8)
def _parse_sealed_text(text: str) -> Campaign:
    return campaign_from_canonical(text)


@lru_cache(maxsize=8)
def parse_view(body: bytes) -> CampaignView:
    """Parse a view.

    Raise ``MalformedView`` if ``body`` is not a view, and ``CampaignRefused`` if the seal is not
    the hash of the sealed text or another field does not agree with the sealed text.
    """
    try:
        values: wire.CampaignView = json.loads(body)
        text, seal = values["campaign"], values["seal"]
        if not isinstance(text, str) or not isinstance(seal, str):
            raise TypeError("campaign and seal must be strings")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MalformedView(f"not a campaign view: {type(error).__name__}") from error
    if seal_of(text) != seal:
        raise CampaignRefused("seal", seal, f"must be {seal_of(text)}, the hash of its text")
    campaign = _parse_sealed_text(text)
    try:
        view = CampaignView(
            id=str(values["id"]),
            campaign=campaign,
            seal=seal,
            run=int(values["run"]),
            status=str(values["status"]),
            run_schedule=RunSchedule.of(campaign, int(values["run"])),
            shapes={
                str(tensor["name"]): tuple(int(n) for n in tensor["shape"])
                for tensor in values["tensors"]
            },
            epoch=int(values["epoch"]),
            slots_closed=int(values["slots_closed"]),
            entries=int(values["ledger"]["entries"]),
            head=_checked_hash(values["ledger"]["head"]),
            next=values["next"],
            server_time_s=wire.parse_time(values["server_time"]),
        )
        schedule, times = values["schedule"], view.run_schedule
        is_consistent = (
            view.id == wire.run_id(seal, view.run)
            and 1 <= view.run <= campaign.repeats
            and int(values["dimension"]) == view.dimension
            and (schedule["slot_s"], schedule["choose_s"]) == (times.slot_s, times.choose_s)
            and int(schedule["slots"]) == times.slots
            and abs(wire.parse_time(schedule["start"]) - times.begins(1)) < 1e-3
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise MalformedView(f"not a campaign view: {type(error).__name__}: {error}") from error
    if not is_consistent:
        raise CampaignRefused("campaign", view.id, "the view does not agree with the sealed text")
    if not 1 <= view.dimension <= wire.MAX_NUMBERS or not all(map(_is_shape, view.shapes.values())):
        raise CampaignRefused(
            "tensors", view.dimension, f"must hold 1 to {wire.MAX_NUMBERS:,} numbers in total"
        )
    return view


def _checked_hash(text: object) -> str:
    if not isinstance(text, str) or not wire.SHA256_PATTERN.fullmatch(text):
        raise ValueError("the head of a ledger is 64 hexadecimal digits")
    return text


def _is_shape(shape: tuple[int, ...]) -> bool:
    return all(1 <= length <= wire.MAX_NUMBERS for length in shape)
