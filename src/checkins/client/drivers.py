"""Drivers, which perform the actions of a device's flow with blocking calls or on an event loop.

A flow is a generator that yields actions, such as a request or a sleep, and receives their results.
httpx is imported only where a connection is made, because the import is slow: it also loads the
command-line tool of httpx.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urlsplit

from checkins.client.actions import (
    Action,
    Flow,
    LogEvent,
    NoResponse,
    Request,
    Response,
    Save,
    SleepUntil,
    UseFiles,
)
from checkins.client.bounded_http import ResponseRejected, fetch, fetch_async
from checkins.client.clock_and_randomness import monotonic_s
from checkins.client.state import StateStore
from checkins.errors import InvalidValue, OutOfOrder
from checkins.protocol import wire

if TYPE_CHECKING:
    import httpx

Result = TypeVar("Result")
Journal = Callable[[Mapping[str, object]], None]
"""Writes one event, given as its fields, to the log of the device's owner."""

MAX_SLEEP_S = 30.0
"""Longest single sleep in seconds. A longer sleep is divided, and the clock is read in between,
because the device may be suspended."""
HEADERS = {"User-Agent": "checkins", "Accept-Encoding": "identity"}
"""HTTP headers of every request. All devices send the same, so the headers identify no device."""


def check_url(url: str, *, plain_http: bool, ca: str | os.PathLike[str] | None = None) -> None:
    """Raise if ``url`` is not the address of a service, or is not encrypted.

    HTTP without encryption is accepted if ``plain_http`` is True, or on this machine. It is never
    accepted if ``ca``, a file with authorities to trust, is given, because nothing would use it.
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https"):
        raise InvalidValue("url", url, "must be http://HOST[:PORT] or https://HOST[:PORT]")
    if parts.scheme == "http" and not plain_http and not wire.is_loopback(host):
        expected = (
            "is not encrypted, so anyone on the network path can read and change what is sent: use"
            " https://, or allow plain HTTP explicitly (--plain-http, plain_http=True)"
        )
        raise InvalidValue("url", url, expected)
    if parts.scheme == "http" and ca is not None:
        raise InvalidValue("ca", str(ca), f"is for https://, and the URL is {url}")


def tls_context(ca: str | os.PathLike[str] | None) -> ssl.SSLContext | None:
    """Return a TLS context that trusts only the authorities in the PEM file ``ca``.

    Return None if ``ca`` is None: then the public authorities are trusted.
    """
    if ca is None:
        return None
    try:
        return ssl.create_default_context(cafile=ca)
    except ssl.SSLError:
        raise InvalidValue("ca", str(ca), "must contain certificates in PEM format") from None
    except OSError as error:
        raise InvalidValue("ca", str(ca), f"cannot be read: {error.strerror}") from None


def http_client(url: str, ca: str | os.PathLike[str] | None = None) -> httpx.Client:
    """Return a blocking HTTP client for the service at ``url``; ``ca`` is as in ``tls_context``."""
    import httpx

    return httpx.Client(base_url=url, headers=HEADERS, verify=tls_context(ca) or True)


def async_http_client(url: str, ca: str | os.PathLike[str] | None = None) -> httpx.AsyncClient:
    """Return an asynchronous HTTP client for the service at ``url``; see ``http_client``."""
    import httpx

    return httpx.AsyncClient(base_url=url, headers=HEADERS, verify=tls_context(ca) or True)


@dataclass(slots=True, eq=False)
class Driver:
    """Performs actions with blocking calls.

    ``store`` holds the device's state. If ``journal`` is None, log events are discarded.
    ``monotonic`` returns the device's monotonic time in seconds.
    """

    http: httpx.Client
    store: StateStore
    _: KW_ONLY
    journal: Journal | None = None
    monotonic: Callable[[], float] = monotonic_s
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
                while (remaining_s := until - self.monotonic()) > 0.0:
                    self.sleep(min(remaining_s, MAX_SLEEP_S))
            case Save(state):
                self.store.save(state)
            case LogEvent(fields):
                if self.journal is not None:
                    self.journal(fields)
            case UseFiles(work):
                return work()
            case _:
                return action.make_report()
        return None

    def send(self, request: Request) -> Response | NoResponse:
        """Send one request."""
        import httpx

        sent_s = self.monotonic()
        try:
            response, body = fetch(self.http, request)
        except (httpx.TransportError, ResponseRejected) as error:
            return no_response(error)
        return _response(response, body, sent_s, self.monotonic())


@dataclass(eq=False)
class AsyncDriver:
    """Performs actions on an event loop. Training and disk writes run in ``executor``.

    If ``executor`` is None, the default executor of the loop is used. ``http`` is None only in a
    subclass that overrides ``send``. The other fields are as in ``Driver``.
    """

    http: httpx.AsyncClient | None
    store: StateStore
    _: KW_ONLY
    journal: Journal | None = None
    monotonic: Callable[[], float] = monotonic_s
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
                while (remaining_s := until - self.monotonic()) > 0.0:
                    await self.sleep(min(remaining_s, MAX_SLEEP_S))
            case Save(state):
                await self._in_executor(lambda: self.store.save(state))
            case LogEvent(fields):
                if self.journal is not None:
                    self.journal(fields)
            case UseFiles(work):
                return await self._in_executor(work)
            case _:
                return await self._in_executor(action.make_report)
        return None

    async def _in_executor(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self.executor, work)

    async def send(self, request: Request) -> Response | NoResponse:
        """Send one request. The driver of load tests overrides this method."""
        import httpx

        if self.http is None:
            raise OutOfOrder("this driver has no HTTP client")
        sent_s = self.monotonic()
        try:
            response, body = await fetch_async(self.http, request)
        except (httpx.TransportError, ResponseRejected) as error:
            return no_response(error)
        return _response(response, body, sent_s, self.monotonic())


def _response(response: httpx.Response, body: bytes, sent_s: float, received_s: float) -> Response:
    delay_s = retry_after_s(response.headers.get("retry-after"))
    return Response(response.status_code, body, sent_s, received_s, retry_after_s=delay_s)


def retry_after_s(header: str | None) -> float | None:
    """Return the seconds of a Retry-After header, at most 3600; None without a number."""
    try:
        return max(0.0, min(float(header or ""), 3600.0))
    except ValueError:
        return None


def no_response(error: Exception) -> NoResponse:
    """Return the result of a request that failed with ``error``."""
    if isinstance(error, ResponseRejected):
        return NoResponse(str(error))
    return NoResponse(f"{type(error).__name__}: {error}".rstrip(": "))
