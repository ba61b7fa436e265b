"""The public interface of a device: find a campaign, take part, follow its runs, withdraw."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from checkins import validate
from checkins.client.actions import CampaignRefused, Flow, LogEvent, Response, Save, SleepUntil
from checkins.client.clock import OS_RANDOMNESS
from checkins.client.drivers import AsyncDriver, Driver, Journal, async_http_client, http_client
from checkins.client.participation import Participation, ParticipationConfig
from checkins.client.service_client import ServiceClient, listing_request, withdraw_request
from checkins.client.state import WITHDRAWN, MemoryStore, SavedState, StateFile, locked, make_folder
from checkins.client.view import CampaignView
from checkins.errors import InvalidValue
from checkins.protocol import wire
from checkins.protocol.participant import Outcome

if TYPE_CHECKING:
    import httpx

POLLS_AFTER_THE_END = 5
"""If this many views after the last slot name no next run, the device stops waiting for one."""
NO_TOKEN_PROBLEMS = frozenset({"refused", "not-enrolled", "unknown-campaign", "over"})
"""Problem types that mean that the token no longer exists, so that nothing is left to withdraw."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Participant(ParticipationConfig):
    """One device in one run of a campaign. ``run`` takes part, and ``withdraw`` leaves.

    The device draws its coin and its slot once. It sleeps until its slot begins by the server's
    clock, and checks in. If it is chosen, it trains, randomizes the update and reports. The draw is
    durable in the folder ``state`` before the check-in is sent, and the report before it is sent.
    After a crash, ``run`` resumes from there. A device that is offline at its slot abstains. At the
    end the folder holds only the campaign's id and the outcome.

    ``campaign`` is the id of a run, as ``fetch_campaign`` returns it. ``key`` is the enrolment
    secret, or None if the service requires none. If ``seal`` is given, a campaign with another seal
    is refused. ``accept`` is called with the sealed campaign and raises an error to decline; None
    accepts every campaign. ``journal`` is called with every event, for the owner of the device. A
    stored journal links the device to its slot. ``patience_s`` is the number of seconds for which
    an unreachable service is retried before the slot is drawn.
    """

    state: str | os.PathLike[str]
    journal: Journal | None = None

    def __post_init__(self) -> None:
        check_url(self.url)
        if not self.campaign or not set(self.campaign) <= set("0123456789abcdef-"):
            raise InvalidValue("campaign", self.campaign, "must be the id of a campaign's run")
        validate.non_negative(patience_s=self.patience_s)

    def run(self, *, http: httpx.Client | None = None) -> Outcome:
        """Take part, or resume after a crash. The call blocks until the participation has ended.

        ``http`` is the caller's own client, for proxies or certificates. None creates a client.
        """
        with self._driver(http) as (driver, file):
            return driver.drive(self._participation(file, driver.steady))

    async def run_async(self, *, http: httpx.AsyncClient | None = None) -> Outcome:
        """Take part as ``run`` does, without blocking the event loop."""
        async with self._async_driver(http) as (driver, file):
            return await driver.drive(self._participation(file, driver.steady))

    def withdraw(self, *, http: httpx.Client | None = None) -> bool:
        """Leave the run for good: the service invalidates the token and erases its check-in.

        A report that was sent in the current slot is erased too. Earlier releases remain. Returns
        False if there was nothing to withdraw. No other process may be using the folder.
        """
        with self._driver(http) as (driver, file):
            return driver.drive(self._withdrawal(file, driver.steady))

    async def withdraw_async(self, *, http: httpx.AsyncClient | None = None) -> bool:
        """Leave as ``withdraw`` does, on an event loop."""
        async with self._async_driver(http) as (driver, file):
            return await driver.drive(self._withdrawal(file, driver.steady))

    def follow(self, *, http: httpx.Client | None = None) -> Iterator[tuple[str, Outcome]]:
        """Take part in this run and the following ones; yield the id and the outcome of each."""
        here: Participant | None = self
        while here is not None:
            yield here.campaign, here.run(http=http)
            with here._driver(http) as (driver, _):
                here = here._in_run(driver.drive(next_run_flow(here._service(driver.steady))))

    async def follow_async(
        self, *, http: httpx.AsyncClient | None = None
    ) -> AsyncIterator[tuple[str, Outcome]]:
        """Take part as ``follow`` does, on an event loop."""
        here: Participant | None = self
        while here is not None:
            yield here.campaign, await here.run_async(http=http)
            async with here._async_driver(http) as (driver, _):
                found = await driver.drive(next_run_flow(here._service(driver.steady)))
                here = here._in_run(found)

    def _in_run(self, campaign: str | None) -> Participant | None:
        return None if campaign is None else replace(self, campaign=campaign)

    def _participation(self, file: StateFile, steady: Callable[[], float]) -> Flow[Outcome]:
        return Participation(self, file.load(), steady=steady, randomness=OS_RANDOMNESS).flow()

    def _withdrawal(self, file: StateFile, steady: Callable[[], float]) -> Flow[bool]:
        return withdrawal_flow(self._service(steady), file.load(), key=self.key)

    def _service(self, steady: Callable[[], float]) -> ServiceClient:
        return ServiceClient(self.url, self.campaign, self.patience_s, steady=steady)

    @contextmanager
    def _locked_file(self) -> Iterator[StateFile]:
        file = StateFile(make_folder(Path(self.state)) / f"{self.campaign}.json")
        with locked(file.path.with_suffix(".lock")):
            yield file

    @contextmanager
    def _driver(self, http: httpx.Client | None) -> Iterator[tuple[Driver, StateFile]]:
        own = http_client(self.url) if http is None else nullcontext(http)
        with self._locked_file() as file, own as client:
            yield Driver(client, file, journal=self.journal), file

    @asynccontextmanager
    async def _async_driver(
        self, http: httpx.AsyncClient | None
    ) -> AsyncIterator[tuple[AsyncDriver, StateFile]]:
        own = async_http_client(self.url) if http is None else nullcontext(http)
        with self._locked_file() as file:
            async with own as client:
                yield AsyncDriver(client, file, journal=self.journal), file


def check_url(url: str) -> None:
    """Raise if ``url`` is not the address of a service."""
    scheme, colon, rest = url.partition("://")
    if scheme not in ("http", "https") or not colon or not rest.strip("/"):
        raise InvalidValue("url", url, "must be http://HOST[:PORT] or https://HOST[:PORT]")


def next_run_flow(service: ServiceClient) -> Flow[str | None]:
    """Wait for the run after this one and return its id; None after the last run."""
    polls = 0
    while True:
        view = yield from service.fetch_view(SavedState(service.run_id))
        if view.next is not None or view.run == view.campaign.repeats:
            return view.next
        end = view.timetable.ends(view.timetable.slots)
        now = service.server_s()
        if view.status == "stopped" or (now >= end and polls >= POLLS_AFTER_THE_END):
            return None
        polls += now >= end
        wait_s = min(max(end - now, 1.0), 3600.0) + view.timetable.slot_s / 4
        yield SleepUntil(service.clock.steady_s(now + wait_s))


def withdrawal_flow(service: ServiceClient, stored: bytes | None, *, key: str | None) -> Flow[bool]:
    """Withdraw; return whether there was anything to withdraw.

    ``stored`` is the durable state of the device, or None if there is none yet. A device whose
    enrolment was interrupted first gets its token. A device that never enrolled only records that
    it has left. The device erases its own state after the service has responded.
    """
    run_id = service.run_id
    state = SavedState(run_id) if stored is None else SavedState.from_bytes(stored)
    if state.ended is not None:
        return False
    if state.key is None:  # the device has not enrolled, and will not enrol
        yield Save(state.over(WITHDRAWN).to_bytes())
        return False
    token = state.token
    if token is None:
        token = yield from service.enrol(state.key, key=key)

    def withdrawn(response: Response) -> bool | None:
        return response.status == 204 or response.problem in NO_TOKEN_PROBLEMS or None

    yield from service.retry_until(withdraw_request(run_id, token=token), withdrawn)
    yield Save(state.over(WITHDRAWN).to_bytes())
    yield LogEvent({"event": "withdrawn", "campaign": run_id})
    return True


def fetch_campaign(
    url: str,
    campaign: str | None = None,
    *,
    patience_s: float = 10.0,
    http: httpx.Client | None = None,
) -> CampaignView:
    """Fetch the run with this id and check its seal.

    If ``campaign`` is None, the only open campaign is fetched. Raises CampaignRefused if no
    campaign or more than one is open.
    """
    check_url(url)
    with http_client(url) if http is None else nullcontext(http) as client:
        return Driver(client, MemoryStore()).drive(_fetch_flow(url, campaign, patience_s))


def _fetch_flow(url: str, campaign: str | None, patience_s: float) -> Flow[CampaignView]:
    named = campaign
    if named is None:
        listing = ServiceClient(url, "", patience_s)
        named = _open_run(url, (yield from listing.retry_until(listing_request(), _open_runs)))
    return (yield from ServiceClient(url, named, patience_s).fetch_view(SavedState(named)))


def _open_runs(response: Response) -> list[tuple[int, str]] | None:
    """Return number and id of each run that is not over; None if the response lists no runs."""
    found = response.read(wire.Campaigns, 200)
    try:
        return found and [
            (int(one["run"]), str(one["id"]))
            for one in found["campaigns"]
            if one["status"] not in wire.OVER
        ]
    except (KeyError, TypeError, ValueError):
        return None


def _open_run(url: str, open_runs: list[tuple[int, str]]) -> str:
    """Return the first run of the only open campaign; raise unless exactly one is open."""
    runs: dict[str, tuple[int, str]] = {}
    for run in open_runs:
        seal = wire.seal_digits(run[1])
        runs[seal] = min(run, runs.get(seal, run))
    if not runs:
        raise CampaignRefused("campaign", None, f"none is open at {url}")
    if len(runs) > 1:
        ids = ", ".join(sorted(name for _, name in runs.values())[:8])
        raise CampaignRefused("campaign", None, f"several are open; name one of {ids}")
    return next(iter(runs.values()))[1]
