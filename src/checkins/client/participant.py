"""The public interface of a device: find a campaign, take part in its runs, withdraw.

A campaign may have several runs, one after another. A flow is a generator that yields actions, such
as a request, to a driver. A view is the public description of a run, fetched from the service.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checkins import validate
from checkins.client.actions import (
    UNTRUSTED_CERTIFICATE,
    CampaignRefused,
    Flow,
    LogEvent,
    NoResponse,
    Response,
    Save,
    ServiceFailed,
    SleepUntil,
)
from checkins.client.clock_and_randomness import OS_RANDOMNESS
from checkins.client.drivers import (
    AsyncDriver,
    Driver,
    Journal,
    async_http_client,
    check_url,
    http_client,
)
from checkins.client.odometer import OdometerFile, PrivacyLoss
from checkins.client.participation import Participation, ParticipationConfig
from checkins.client.service_client import ServiceClient, listing_request, withdraw_request
from checkins.client.state import (
    WITHDRAWN,
    MemoryStore,
    SavedState,
    StateFile,
    file_lock,
    make_private_folder,
)
from checkins.client.view import CampaignView
from checkins.errors import InvalidValue
from checkins.protocol import wire
from checkins.protocol.participant import Outcome

if TYPE_CHECKING:
    import httpx

MAX_POLLS_AFTER_END = 5
"""Number of views that the device fetches after the last slot, to learn the id of the next run."""
NO_TOKEN_PROBLEMS = frozenset({"refused", "not-enrolled", "unknown-campaign", "over"})
"""Problem types of responses to a withdrawal that mean that the token no longer exists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Participant(ParticipationConfig):
    """One device in one run of a campaign. ``run`` takes part, and ``withdraw`` leaves.

    The device draws once whether it takes part and in which slot. It sleeps until this slot begins
    by the server's clock, and checks in. If it is chosen, it trains, randomizes the update and
    sends its report. The draw is durable in the folder ``state`` before the check-in is sent, and
    the report is durable before it is sent. After a crash, ``run`` resumes from the stored state. A
    device that is offline during its slot abstains. At the end the folder holds only the id of the
    run and the outcome.

    ``campaign`` is the id of a run, which is ``fetch_campaign(url).id``. ``key`` is the enrolment
    secret, or None if the service requires none. If ``seal``, the hash of the campaign's
    parameters, is given, a campaign with another seal is refused. ``accept`` is called with the
    campaign and raises an error to decline; None accepts every campaign. ``journal`` is called with
    every event, for the owner of the device. If a journal is stored, it links the device to its
    slot. ``most_epsilon`` is the largest epsilon of all participations of the folder ``state``
    together; a campaign that would exceed it is refused. None means no limit. ``retry_timeout_s``
    is the number of seconds for which an unreachable service is retried before the slot is drawn.
    ``ca`` is a PEM file with the only certificate authorities that are trusted; None trusts the
    public ones. ``plain_http`` allows connections without encryption to other machines.
    """

    state: str | os.PathLike[str]
    journal: Journal | None = None

    def __post_init__(self) -> None:
        check_url(self.url, plain_http=self.plain_http, ca=self.ca)
        if not self.campaign or not set(self.campaign) <= set("0123456789abcdef-"):
            raise InvalidValue("campaign", self.campaign, "must be the id of a campaign's run")
        validate.non_negative(retry_timeout_s=self.retry_timeout_s)
        if self.most_epsilon is not None:
            validate.non_negative(most_epsilon=self.most_epsilon)

    def run(self, *, http: httpx.Client | None = None) -> Outcome:
        """Take part, or resume after a crash. The call blocks until the participation has ended.

        ``http`` is a client with the caller's proxies or certificates. None creates a client.
        """
        with self._driver(http) as (driver, file):
            return driver.drive(self._participation(file, driver.monotonic))

    async def run_async(self, *, http: httpx.AsyncClient | None = None) -> Outcome:
        """Take part as ``run`` does, without blocking the event loop."""
        async with self._async_driver(http) as (driver, file):
            return await driver.drive(self._participation(file, driver.monotonic))

    def withdraw(self, *, http: httpx.Client | None = None) -> bool:
        """Leave the run for good: the service invalidates the token and erases its check-in.

        The report of the device is erased too if its slot is not over. Models that were already
        released remain. Return False if there was nothing to withdraw. Raise if another process
        uses the folder ``state``.
        """
        with self._driver(http) as (driver, file):
            return driver.drive(self._withdrawal(file, driver.monotonic))

    async def withdraw_async(self, *, http: httpx.AsyncClient | None = None) -> bool:
        """Leave the run as ``withdraw`` does, on an event loop."""
        async with self._async_driver(http) as (driver, file):
            return await driver.drive(self._withdrawal(file, driver.monotonic))

    def follow(self, *, http: httpx.Client | None = None) -> Iterator[tuple[str, Outcome]]:
        """Take part in this run and all following runs; yield the id and the outcome of each."""
        participant: Participant | None = self
        while participant is not None:
            yield participant.campaign, participant.run(http=http)
            with participant._driver(http) as (driver, _):
                service = participant._service(driver.monotonic)
                participant = participant._for_run(driver.drive(next_run_flow(service)))

    async def follow_async(
        self, *, http: httpx.AsyncClient | None = None
    ) -> AsyncIterator[tuple[str, Outcome]]:
        """Take part as ``follow`` does, on an event loop."""
        participant: Participant | None = self
        while participant is not None:
            yield participant.campaign, await participant.run_async(http=http)
            async with participant._async_driver(http) as (driver, _):
                service = participant._service(driver.monotonic)
                participant = participant._for_run(await driver.drive(next_run_flow(service)))

    @property
    def spent(self) -> PrivacyLoss:
        """An upper bound on the privacy loss of all participations of the folder ``state``."""
        return self._odometer.load().total()

    @property
    def _odometer(self) -> OdometerFile:
        return OdometerFile(Path(self.state))

    def _for_run(self, run_id: str | None) -> Participant | None:
        return None if run_id is None else replace(self, campaign=run_id)

    def _participation(self, file: StateFile, monotonic: Callable[[], float]) -> Flow[Outcome]:
        participation = Participation(
            self,
            file.load(),
            monotonic=monotonic,
            randomness=OS_RANDOMNESS,
            odometer=self._odometer,
        )
        return participation.flow()

    def _withdrawal(self, file: StateFile, monotonic: Callable[[], float]) -> Flow[bool]:
        return withdrawal_flow(self._service(monotonic), file.load(), key=self.key)

    def _service(self, monotonic: Callable[[], float]) -> ServiceClient:
        return ServiceClient(self.url, self.campaign, self.retry_timeout_s, monotonic=monotonic)

    @contextmanager
    def _locked_file(self) -> Iterator[StateFile]:
        file = StateFile(make_private_folder(Path(self.state)) / f"{self.campaign}.json")
        with file_lock(file.path.with_suffix(".lock")):
            yield file

    @contextmanager
    def _driver(self, http: httpx.Client | None) -> Iterator[tuple[Driver, StateFile]]:
        context = http_client(self.url, self.ca) if http is None else nullcontext(http)
        with self._locked_file() as file, context as client:
            yield Driver(client, file, journal=self.journal), file

    @asynccontextmanager
    async def _async_driver(
        self, http: httpx.AsyncClient | None
    ) -> AsyncIterator[tuple[AsyncDriver, StateFile]]:
        context = async_http_client(self.url, self.ca) if http is None else nullcontext(http)
        with self._locked_file() as file:
            async with context as client:
                yield AsyncDriver(client, file, journal=self.journal), file


def next_run_flow(service: ServiceClient) -> Flow[str | None]:
    """Wait for the next run of the campaign and return its id, or None if there is no next run."""
    polls = 0
    while True:
        view = yield from service.fetch_view(SavedState(service.run_id))
        if view.next is not None or view.run == view.campaign.repeats:
            return view.next
        end = view.run_schedule.ends(view.run_schedule.slots)
        now = service.server_s()
        if view.status == "stopped" or (now >= end and polls >= MAX_POLLS_AFTER_END):
            return None
        polls += now >= end
        wait_s = min(max(end - now, 1.0), 3600.0) + view.run_schedule.slot_s / 4
        yield SleepUntil(service.clock.monotonic_s(now + wait_s))


def withdrawal_flow(service: ServiceClient, saved: bytes | None, *, key: str | None) -> Flow[bool]:
    """Withdraw the device from the run; return whether there was anything to withdraw.

    ``saved`` is the stored state of the device, or None if nothing is stored yet. ``key`` is the
    enrolment secret. If the enrolment was interrupted, the device first gets its token and then
    withdraws it. A device that never enrolled only records that it has left. The device erases its
    stored state after the service has responded.
    """
    run_id = service.run_id
    state = SavedState(run_id) if saved is None else SavedState.from_bytes(saved)
    if state.ended is not None:
        return False
    if state.key is None:  # the device has not enrolled, and will not enrol
        yield Save(state.ended_with(WITHDRAWN).to_bytes())
        return False
    token = state.token
    if token is None:
        token = yield from service.enrol(state.key, secret=key)

    def is_withdrawn(response: Response) -> bool | None:
        return response.status == 204 or response.problem in NO_TOKEN_PROBLEMS or None

    yield from service.retry_until(withdraw_request(run_id, token=token), is_withdrawn)
    yield Save(state.ended_with(WITHDRAWN).to_bytes())
    yield LogEvent({"event": "withdrawn", "campaign": run_id})
    return True


def fetch_campaign(
    url: str,
    campaign: str | None = None,
    *,
    retry_timeout_s: float = 10.0,
    ca: str | os.PathLike[str] | None = None,
    plain_http: bool = False,
    http: httpx.Client | None = None,
    on_retry: Callable[[str], None] = lambda reason: None,
) -> CampaignView:
    """Fetch the view of a run, and check that its seal is the hash of its parameters.

    ``campaign`` is the id of the run. None means the first open run of the only open campaign, and
    raises CampaignRefused if no campaign or more than one campaign is open. An unreachable service
    is retried for ``retry_timeout_s`` seconds, and ``on_retry`` is called once with the reason. A
    service whose certificate is not trusted is not retried. The other arguments are as in
    ``Participant``.
    """
    check_url(url, plain_http=plain_http, ca=ca)
    with http_client(url, ca) if http is None else nullcontext(http) as client:
        flow = _fetch_flow(url, campaign, retry_timeout_s)
        return Driver(client, MemoryStore()).drive(_with_first_failure(url, flow, on_retry))


def _with_first_failure(
    url: str, flow: Flow[CampaignView], on_retry: Callable[[str], None]
) -> Flow[CampaignView]:
    """Run ``flow``; call ``on_retry`` before its first retry, and raise for a wrong certificate."""
    result: Any = None
    failure, is_told = "", False
    while True:
        try:
            action = flow.send(result)
        except StopIteration as end:
            view: CampaignView = end.value
            return view
        if isinstance(action, SleepUntil) and failure and not is_told:
            on_retry(failure)
            is_told = True
        result = yield action
        if not isinstance(action, SleepUntil):
            failure = result.reason if isinstance(result, NoResponse) else ""
        if UNTRUSTED_CERTIFICATE in failure:
            raise ServiceFailed(url, f"its certificate is not trusted: {failure}")


def _fetch_flow(url: str, run_id: str | None, retry_timeout_s: float) -> Flow[CampaignView]:
    if run_id is None:
        service = ServiceClient(url, "", retry_timeout_s)
        open_runs = yield from service.retry_until(listing_request(), _open_runs)
        run_id = _run_of_only_open_campaign(url, open_runs)
    return (yield from ServiceClient(url, run_id, retry_timeout_s).fetch_view(SavedState(run_id)))


def _open_runs(response: Response) -> list[tuple[int, str]] | None:
    """Return number and id of each run that is not over, or None to retry the request.

    The request is retried if the response is not a valid listing of campaigns. A valid listing may
    be empty.
    """
    listing = response.parse_json(wire.Campaigns, 200)
    try:
        return listing and [
            (int(run["run"]), str(run["id"]))
            for run in listing["campaigns"]
            if run["status"] not in wire.FINISHED_STATUSES
        ]
    except (KeyError, TypeError, ValueError):
        return None


def _run_of_only_open_campaign(url: str, open_runs: list[tuple[int, str]]) -> str:
    """Return the first open run of the open campaign; raise unless one campaign is open."""
    first_runs: dict[str, tuple[int, str]] = {}  # by the seal, which is the same for all runs
    for run in open_runs:
        seal = wire.seal_digits(run[1])
        first_runs[seal] = min(run, first_runs.get(seal, run))
    if not first_runs:
        raise CampaignRefused("campaign", None, f"none is open at {url}")
    if len(first_runs) > 1:
        ids = ", ".join(sorted(run_id for _, run_id in first_runs.values())[:8])
        raise CampaignRefused("campaign", None, f"several are open; name one of {ids}")
    return next(iter(first_runs.values()))[1]
