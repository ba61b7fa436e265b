"""Actions performed: by blocking calls, or on an event loop. The two differ in nothing else.

httpx is imported where a connection is made: it brings a command line of its own along.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, TypeVar

from checkins.client.actions import (
    Action,
    Answer,
    Flow,
    LogEvent,
    NoResponse,
    Request,
    Save,
    SleepUntil,
)
from checkins.client.answers import AnswerRefused, fetch, fetch_async
from checkins.client.clock import steady_s
from checkins.client.state_file import Keeper
from checkins.errors import OutOfOrder

if TYPE_CHECKING:
    import httpx

Result = TypeVar("Result")
Journal = Callable[[Mapping[str, object]], None]

LONGEST_NAP_S = 30.0
"""A longer sleep is several: a device that was suspended meanwhile wakes soon enough."""
HEADERS = {"User-Agent": "checkins", "Accept-Encoding": "identity"}
"""The same for every device: a header must not tell them apart."""


def connected(url: str) -> httpx.Client:
    """A connection to a service, for blocking calls."""
    import httpx

    return httpx.Client(base_url=url, headers=HEADERS)


def connected_async(url: str) -> httpx.AsyncClient:
    """A connection to a service, for an event loop."""
    import httpx

    return httpx.AsyncClient(base_url=url, headers=HEADERS)


class Driver:
    """Performs actions by blocking calls."""

    def __init__(
        self,
        http: httpx.Client,
        keeper: Keeper,
        *,
        journal: Journal | None = None,
        steady: Callable[[], float] = steady_s,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._http = http
        self._keeper = keeper
        self._journal = journal
        self.steady = steady
        self._sleep = sleep

    def drive(self, flow: Flow[Result]) -> Result:
        """Perform a flow's actions until it ends."""
        result: Any = None
        try:
            while True:
                result = self.perform(flow.send(result))
        except StopIteration as end:
            return_value: Result = end.value
            return return_value
        finally:
            flow.close()

    def perform(self, action: Action) -> Any:
        """Do one action; returns its result."""
        match action:
            case Request():
                return self._send(action)
            case SleepUntil(until):
                while (left := until - self.steady()) > 0.0:
                    self._sleep(min(left, LONGEST_NAP_S))
            case Save(kept):
                self._keeper.save(kept)
            case LogEvent(story):
                if self._journal is not None:
                    self._journal(story)
            case _:
                return action.make()
        return None

    def _send(self, request: Request) -> Answer | NoResponse:
        import httpx

        sent = self.steady()
        try:
            answer, body = fetch(self._http, request.method, request.path, **_limits(request))
        except (httpx.TransportError, AnswerRefused) as error:
            return NoResponse(_why(error))
        return _answer(answer, body, sent, self.steady())


class AsyncDriver:
    """Performs actions on an event loop; training and the disk are given to ``executor``."""

    def __init__(
        self,
        http: httpx.AsyncClient | None,
        keeper: Keeper,
        *,
        journal: Journal | None = None,
        steady: Callable[[], float] = steady_s,
        sleep: Callable[[float], Any] = asyncio.sleep,
        executor: Executor | None = None,
    ) -> None:
        self._http = http
        self._keeper = keeper
        self._journal = journal
        self.steady = steady
        self._sleep = sleep
        self._executor = executor

    async def drive(self, flow: Flow[Result]) -> Result:
        """Perform a flow's actions until it ends."""
        result: Any = None
        try:
            while True:
                result = await self.perform(flow.send(result))
        except StopIteration as end:
            return_value: Result = end.value
            return return_value
        finally:
            flow.close()

    async def perform(self, action: Action) -> Any:
        """Do one action; returns its result."""
        match action:
            case Request():
                return await self.send(action)
            case SleepUntil(until):
                while (left := until - self.steady()) > 0.0:
                    await self._sleep(min(left, LONGEST_NAP_S))
            case Save(kept):
                await self._elsewhere(lambda: self._keeper.save(kept))
            case LogEvent(story):
                if self._journal is not None:
                    self._journal(story)
            case _:
                return await self._elsewhere(action.make)
        return None

    async def _elsewhere(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def send(self, request: Request) -> Answer | NoResponse:
        """One request; a swarm has a way of its own, and no ``http``."""
        import httpx

        if self._http is None:
            raise OutOfOrder("there is no connection to send on")
        sent = self.steady()
        try:
            answer, body = await fetch_async(
                self._http, request.method, request.path, **_limits(request)
            )
        except (httpx.TransportError, AnswerRefused) as error:
            return NoResponse(_why(error))
        return _answer(answer, body, sent, self.steady())


def _limits(request: Request) -> dict[str, Any]:
    return {
        "headers": request.headers,
        "content": request.body,
        "most_bytes": request.most_bytes,
        "within_s": request.timeout_s,
    }


def _answer(answer: httpx.Response, body: bytes, sent: float, received: float) -> Answer:
    return Answer(
        answer.status_code,
        body,
        sent,
        received,
        retry_after_s=retry_after_s(answer.headers.get("retry-after")),
    )


def retry_after_s(text: str | None) -> float | None:
    """What Retry-After says in seconds; a date is not for a device, whose calendar may be wrong."""
    try:
        return max(0.0, min(float(text or ""), 3600.0))
    except ValueError:
        return None


def _why(error: Exception) -> str:
    if isinstance(error, AnswerRefused):
        return str(error)
    return f"{type(error).__name__}: {error}".rstrip(": ")
