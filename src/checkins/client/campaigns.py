"""Finding a campaign at a service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from checkins.client import requests
from checkins.client.actions import Answer, Flow
from checkins.client.clock import steady_s
from checkins.client.drivers import Driver, connected
from checkins.client.errors import CampaignRefused
from checkins.client.participant import check_url
from checkins.client.randomness import DeviceRandomness
from checkins.client.saved_state import SavedState
from checkins.client.service_client import ServiceClient
from checkins.client.state_file import Memory
from checkins.client.view import OVER, CampaignView

if TYPE_CHECKING:
    import httpx


def fetch_campaign(
    url: str,
    campaign: str | None = None,
    *,
    patience_s: float = 10.0,
    http: httpx.Client | None = None,
) -> CampaignView:
    """The run with this id, its seal checked; without an id the one that is open.

    Where several campaigns are open the caller must name one.
    """
    check_url(url)
    if http is not None:
        return Driver(http, Memory()).drive(_found(url, campaign, patience_s))
    with connected(url) as own:
        return Driver(own, Memory()).drive(_found(url, campaign, patience_s))


def _found(url: str, campaign: str | None, patience_s: float) -> Flow[CampaignView]:
    named = campaign
    if named is None:
        listing = ServiceClient(url, "", patience_s, steady=steady_s, dice=DeviceRandomness())
        named = _open(url, (yield from listing.until(requests.listing(), _summaries)))
    contact = ServiceClient(url, named, patience_s, steady=steady_s, dice=DeviceRandomness())
    return (yield from contact.look(SavedState(named)))


def _summaries(answer: Answer) -> list[dict[str, Any]] | None:
    found = answer.value().get("campaigns") if answer.status == 200 else None
    well_formed = isinstance(found, list) and all(
        isinstance(one, dict) and {"id", "run", "status"} <= one.keys() for one in found
    )
    return found if well_formed else None


def _open(url: str, summaries: list[dict[str, Any]]) -> str:
    """The first run that is not over, of the only campaign that has one."""
    runs: dict[str, tuple[int, str]] = {}
    for one in summaries:
        if one["status"] not in OVER:
            seal, run = str(one["id"]).rpartition("-")[0], (int(one["run"]), str(one["id"]))
            runs[seal] = min(run, runs.get(seal, run))
    if not runs:
        raise CampaignRefused("campaign", None, f"none is open at {url}")
    if len(runs) > 1:
        ids = ", ".join(sorted(name for _, name in runs.values())[:8])
        raise CampaignRefused("campaign", None, f"several are open; name one of {ids}")
    return next(iter(runs.values()))[1]
