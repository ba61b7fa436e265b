"""Perform the actions of a flow, by blocking calls or on an event loop.

httpx is imported where a connection is made, since importing it loads its command line too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from checkins.client.actions import (
    Action,
    Flow,
    LogEvent,
    NoResponse,
    Request,
    Response,
    Save,
    SleepUntil,
)
from checkins.client.bounded_http import ResponseRejected, fetch, fetch_async
from checkins.client.clock import steady_s
from checkins.client.state import StateStore
from checkins.errors import OutOfOrder

if TYPE_CHECKING:
    import httpx

Result = TypeVar("Result")
Journal = Callable[[Mapping[str, object]], None]

MAX_SLEEP_S = 30.0
"""Longest single sleep in seconds, so that a device that was suspended wakes up in time."""
HEADERS = {"User-Agent": "checkins", "Accept-Encoding": "identity"}
"""HTTP headers of every device; they must not tell devices apart."""


def http_client(url: str) -> httpx.Client:
    """Return an HTTP client of a service, for blocking calls."""
    import httpx

    return httpx.Client(base_url=url, headers=HEADERS)


def async_http_client(url: str) -> httpx.AsyncClient:
    """Return an HTTP client of a service, for an event loop."""
    import httpx

    return httpx.AsyncClient(base_url=url, headers=HEADERS)


@dataclass(slots=True, eq=False)
class Driver:
    """Performs actions by blocking calls; ``journal`` None discards log events."""

    http: httpx.Client
    store: StateStore
    _: KW_ONLY
    journal: Journal | None = None
    steady: Callable[[], float] = steady_s
    sleep: Callable[[float], None] = time.sleep

    def drive(self, flow: Flow[Result]) -> Result:
        """Perform a flow's actions until it ends."""
        result: Any = None
        try:
            while True:
                result = self.perform(flow.send(result))
        except StopIteration as end:
            return cast(Result, end.value)
        finally:
            flow.close()

    def perform(self, action: Action) -> Any:
        """Perform one action; return its result."""
        match action:
            case Request():
                return self.send(action)
            case SleepUntil(until):
                while (left := until - self.steady()) > 0.0:
                    self.sleep(min(left, MAX_SLEEP_S))
            case Save(state):
                self.store.save(state)
            case LogEvent(fields):
                if self.journal is not None:
                    self.journal(fields)
            case _:
                return action.make()
        return None

    def send(self, request: Request) -> Response | NoResponse:
        """Send one request."""
        import httpx

        sent = self.steady()
        try:
            response, body = fetch(self.http, request)
        except (httpx.TransportError, ResponseRejected) as error:
            return no_response(error)
        return _response(response, body, sent, self.steady())


@dataclass(eq=False)
class AsyncDriver:
    """Performs actions on an event loop; training and disk writes run in ``executor``.

    ``executor`` None is the loop's default. ``http`` is None in a subclass that sends by itself.
    """

    http: httpx.AsyncClient | None
    store: StateStore
    _: KW_ONLY
    journal: Journal | None = None
    steady: Callable[[], float] = steady_s
    sleep: Callable[[float], Any] = asyncio.sleep
    executor: Executor | None = None

    async def drive(self, flow: Flow[Result]) -> Result:
        """Perform a flow's actions until it ends."""
        result: Any = None
        try:
            while True:
                result = await self.perform(flow.send(result))
        except StopIteration as end:
            return cast(Result, end.value)
        finally:
            flow.close()

    async def perform(self, action: Action) -> Any:
        """Perform one action; return its result."""
        match action:
            case Request():
                return await self.send(action)
            case SleepUntil(until):
                while (left := until - self.steady()) > 0.0:
                    await self.sleep(min(left, MAX_SLEEP_S))
            case Save(state):
                await self._in_executor(lambda: self.store.save(state))
            case LogEvent(fields):
                if self.journal is not None:
                    self.journal(fields)
            case _:
                return await self._in_executor(action.make)
        return None

    async def _in_executor(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self.executor, work)

    async def send(self, request: Request) -> Response | NoResponse:
        """Send one request; a swarm overrides this method."""
        import httpx

        if self.http is None:
            raise OutOfOrder("this driver has no HTTP client")
        sent = self.steady()
        try:
            response, body = await fetch_async(self.http, request)
        except (httpx.TransportError, ResponseRejected) as error:
            return no_response(error)
        return _response(response, body, sent, self.steady())


def _response(response: httpx.Response, body: bytes, sent: float, received: float) -> Response:
    after = retry_after_s(response.headers.get("retry-after"))
    return Response(response.status_code, body, sent, received, retry_after_s=after)


def retry_after_s(text: str | None) -> float | None:
    """Parse Retry-After in seconds, at most an hour; None for a date, which needs a calendar."""
    try:
        return max(0.0, min(float(text or ""), 3600.0))
    except ValueError:
        return None


def no_response(error: Exception) -> NoResponse:
    """Return the result of a request that failed; the error says why."""
    if isinstance(error, ResponseRejected):
        return NoResponse(str(error))
    return NoResponse(f"{type(error).__name__}: {error}".rstrip(": "))
