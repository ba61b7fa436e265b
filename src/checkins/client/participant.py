"""A device's part in a campaign: the object that a user of the SDK makes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from checkins import validate
from checkins.campaign import Campaign
from checkins.client.actions import Flow
from checkins.client.drivers import AsyncDriver, Driver, Journal, connected, connected_async
from checkins.client.following import following
from checkins.client.participation import Participation, ParticipationConfig
from checkins.client.randomness import DeviceRandomness
from checkins.client.service_client import ServiceClient
from checkins.client.state_file import StateFile, locked, make_folder
from checkins.client.trainer import Trainer
from checkins.client.withdrawal import withdrawal
from checkins.errors import InvalidValue
from checkins.protocol.participant import Outcome

if TYPE_CHECKING:
    import httpx


@dataclass(frozen=True, slots=True, kw_only=True)
class Participant:
    """One device in one run of a campaign. ``run`` takes part; ``withdraw`` leaves.

    It draws its coin and slot once, sleeps until its slot by the server's clock, checks in, and if
    it is chosen trains, makes the update private, and reports. What it drew and what it reports
    are durable in the folder ``state`` before anyone hears of them: after a crash ``run`` goes on
    from there. A device that is offline at its slot abstains. Once it is over, the folder holds
    nothing but that it is.

    ``campaign`` is the id of a run, as ``fetch_campaign`` finds it. ``key`` is what the service
    asks for at enrolment, if it does. ``seal`` pins the campaign's parameters, and ``accept`` is
    shown them and raises to decline. ``journal`` is told every step, for the device's owner:
    nothing of it leaves the device, and a journal that is kept links the device to its slot.
    ``patience_s`` is how long a service that cannot be reached is tried before the slot is drawn.
    """

    url: str
    campaign: str
    trainer: Trainer
    state: str | os.PathLike[str]
    key: str | None = field(default=None, repr=False)
    seal: str | None = None
    accept: Callable[[Campaign], None] | None = None
    journal: Journal | None = None
    patience_s: float = 60.0

    def __post_init__(self) -> None:
        check_url(self.url)
        if not self.campaign or not set(self.campaign) <= set("0123456789abcdef-"):
            raise InvalidValue("campaign", self.campaign, "must be the id of a campaign's run")
        validate.non_negative(patience_s=self.patience_s)

    def run(self, *, http: httpx.Client | None = None) -> Outcome:
        """Take part, or go on after a crash; blocks until it is over.

        ``http`` is a connection of the caller's own, for proxies or certificates.
        """
        with self._hands(http) as (hands, file):
            return hands.drive(self._participation(file, hands.steady))

    async def run_async(self, *, http: httpx.AsyncClient | None = None) -> Outcome:
        """The same on an event loop: training and the disk do not block it."""
        async with self._async_hands(http) as (hands, file):
            return await hands.drive(self._participation(file, hands.steady))

    def withdraw(self, *, http: httpx.Client | None = None) -> bool:
        """Leave for good: the token is spent, and what the running slot holds of it is erased.

        Returns whether there was anything to withdraw. What was released stays released. A run
        that is under way in this folder must be ended first.
        """
        with self._hands(http) as (hands, file):
            return hands.drive(self._withdrawal(file, hands.steady))

    async def withdraw_async(self, *, http: httpx.AsyncClient | None = None) -> bool:
        """The same on an event loop."""
        async with self._async_hands(http) as (hands, file):
            return await hands.drive(self._withdrawal(file, hands.steady))

    def follow(self, *, http: httpx.Client | None = None) -> Iterator[tuple[str, Outcome]]:
        """This run and those that follow it, with fresh coins in each: ids and outcomes."""
        here: Participant | None = self
        while here is not None:
            yield here.campaign, here.run(http=http)
            with here._hands(http) as (hands, _):
                here = here._then(hands.drive(here._following(hands.steady)))

    async def follow_async(
        self, *, http: httpx.AsyncClient | None = None
    ) -> AsyncIterator[tuple[str, Outcome]]:
        """The same on an event loop."""
        here: Participant | None = self
        while here is not None:
            yield here.campaign, await here.run_async(http=http)
            async with here._async_hands(http) as (hands, _):
                here = here._then(await hands.drive(here._following(hands.steady)))

    def _then(self, campaign: str | None) -> Participant | None:
        return None if campaign is None else replace(self, campaign=campaign)

    def _participation(self, file: StateFile, steady: Callable[[], float]) -> Flow[Outcome]:
        plan = ParticipationConfig(
            self.url,
            self.campaign,
            self.trainer,
            self.key,
            self.seal,
            self.accept,
            self.patience_s,
        )
        return Participation(plan, file.load(), steady=steady, dice=DeviceRandomness()).flow()

    def _withdrawal(self, file: StateFile, steady: Callable[[], float]) -> Flow[bool]:
        contact = self._contact(steady)
        return withdrawal(contact, file.load(), campaign=self.campaign, key=self.key)

    def _following(self, steady: Callable[[], float]) -> Flow[str | None]:
        return following(self._contact(steady), self.campaign)

    def _contact(self, steady: Callable[[], float]) -> ServiceClient:
        return ServiceClient(
            self.url, self.campaign, self.patience_s, steady=steady, dice=DeviceRandomness()
        )

    def _file(self) -> StateFile:
        return StateFile(make_folder(Path(self.state)) / f"{self.campaign}.json")

    def _locked(self, file: StateFile) -> AbstractContextManager[None]:
        return locked(file.path.with_suffix(".lock"))

    @contextmanager
    def _hands(self, http: httpx.Client | None) -> Iterator[tuple[Driver, StateFile]]:
        file = self._file()
        with self._locked(file):
            if http is not None:
                yield Driver(http, file, journal=self.journal), file
                return
            with connected(self.url) as own:
                yield Driver(own, file, journal=self.journal), file

    @asynccontextmanager
    async def _async_hands(
        self, http: httpx.AsyncClient | None
    ) -> AsyncIterator[tuple[AsyncDriver, StateFile]]:
        file = self._file()
        with self._locked(file):
            if http is not None:
                yield AsyncDriver(http, file, journal=self.journal), file
                return
            async with connected_async(self.url) as own:
                yield AsyncDriver(own, file, journal=self.journal), file


def check_url(url: str) -> None:
    """Refuse what is no address of a service."""
    scheme, colon, rest = url.partition("://")
    if scheme not in ("http", "https") or not colon or not rest.strip("/"):
        raise InvalidValue("url", url, "must be http://HOST[:PORT] or https://HOST[:PORT]")
