"""Send HTTP requests and limit the responses: bounded size, bounded time, no compression.

httpx alone does not enforce these limits. It would decompress a few megabytes of gzip to gigabytes.
The timeout of httpx applies to each read, so a server that sends one byte now and then would never
exceed the timeout.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from checkins.client.actions import Request, RequestKind
from checkins.errors import CheckinsError

if TYPE_CHECKING:
    import httpx

CONNECT_TIMEOUT_S = 10.0
"""Longest time in seconds to open a connection."""
MIN_BYTES_PER_S = 1000.0
"""Lowest allowed average rate of a long response, in bytes per second, after ``timeout_s``."""
NO_COMPRESSION = {"Accept-Encoding": "identity"}
"""Headers that ask the service not to compress its response."""


class ResponseRejected(CheckinsError):
    """A response was compressed, too large or too slow. No part of the response is used."""


def fetch(http: httpx.Client, request: Request) -> tuple[httpx.Response, bytes]:
    """Send one request with a blocking client; return the response and its body.

    Raise ``ResponseRejected`` if a limit of the request is exceeded. After ``request.timeout_s``
    the connection is closed.
    """
    watchdog, body, max_bytes = _Watchdog(http), bytearray(), request.max_bytes
    with watchdog.limit(request.timeout_s):
        arguments = _httpx_arguments(request)
        httpx_request = http.build_request(**arguments, extensions={"trace": watchdog.trace})
        with closing(http.send(httpx_request, stream=True)) as response:
            check_headers(response.headers, max_bytes)
            if response.is_stream_consumed:  # a transport given by the caller has read the body
                check_size(len(response.content), max_bytes)
                return response, response.content
            for chunk in response.iter_raw():
                body += chunk
                check_size(len(body), max_bytes)
    return response, bytes(body)


async def fetch_async(http: httpx.AsyncClient, request: Request) -> tuple[httpx.Response, bytes]:
    """Do the same as ``fetch`` on an event loop."""
    body, max_bytes = bytearray(), request.max_bytes
    try:
        async with (
            asyncio.timeout(request.timeout_s),
            http.stream(**_httpx_arguments(request)) as response,
        ):
            check_headers(response.headers, max_bytes)
            if response.is_stream_consumed:
                check_size(len(response.content), max_bytes)
                return response, response.content
            async for chunk in response.aiter_raw():
                body += chunk
                check_size(len(body), max_bytes)
    except TimeoutError:
        raise _too_slow(request.timeout_s) from None
    return response, bytes(body)


@contextmanager
def stream(
    http: httpx.Client, path: str, *, max_bytes: int, timeout_s: float
) -> Iterator[tuple[httpx.Response, Iterator[bytes]]]:
    """Yield a long response and an iterator of its chunks.

    The status line and the headers must arrive within ``timeout_s``. The body may take
    ``timeout_s`` and one more second for every ``MIN_BYTES_PER_S`` bytes received. The time that
    the caller spends on a chunk does not count.
    """
    import httpx

    watchdog = _Watchdog(http)
    with watchdog.limit(timeout_s):
        arguments = _httpx_arguments(Request(RequestKind.LEDGER, "GET", path, timeout_s))
        httpx_request = http.build_request(**arguments, extensions={"trace": watchdog.trace})
        response = http.send(httpx_request, stream=True)
    try:
        check_headers(response.headers, max_bytes)

        def chunks() -> Iterator[bytes]:
            waited_s, size, raw_chunks = 0.0, 0, response.iter_raw()
            while True:
                remaining_s = timeout_s + size / MIN_BYTES_PER_S - waited_s
                started_s = monotonic()
                with watchdog.limit(remaining_s):
                    chunk = next(raw_chunks, None)
                if chunk is None:
                    return
                waited_s += monotonic() - started_s
                size += len(chunk)
                check_size(size, max_bytes)
                yield chunk

        yield response, chunks()
    finally:
        with suppress(httpx.TransportError):
            response.close()


def _httpx_arguments(request: Request) -> dict[str, Any]:
    """Return the arguments with which httpx builds a request."""
    import httpx

    timeout_s = request.timeout_s
    return {
        "method": request.method,
        "url": request.path,
        "headers": {**request.headers, **NO_COMPRESSION},
        "content": request.body,
        "timeout": httpx.Timeout(timeout_s, connect=min(CONNECT_TIMEOUT_S, timeout_s), pool=None),
    }


class _Watchdog:
    """Closes the connections of a blocking client when a response takes too long.

    Shutting down a socket wakes the thread that reads from the socket. Trace events of httpx report
    new connections. The connections are recorded for each client, because later requests of the
    client reuse them.
    """

    def __init__(self, http: httpx.Client) -> None:
        with _CONNECTIONS_LOCK:
            self._connections = _CONNECTIONS.setdefault(http, WeakSet())

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Record a connection when TCP is connected, and again when TLS has started."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            with _CONNECTIONS_LOCK:
                self._connections.add(info["return_value"])

    @contextmanager
    def limit(self, timeout_s: float) -> Iterator[None]:
        """Raise ``ResponseRejected`` if the ``with`` block takes longer than ``timeout_s``."""
        import httpx

        timed_out = threading.Event()

        def on_timeout() -> None:
            timed_out.set()
            self._shut_down_connections()

        timer = threading.Timer(max(0.0, timeout_s), on_timeout)
        timer.daemon = True
        timer.start()
        try:
            yield
        except httpx.TransportError:
            if timed_out.is_set():
                raise _too_slow(timeout_s) from None
            raise
        finally:
            timer.cancel()
        # A body without Content-Length ends when the connection closes, so httpx saw no error.
        if timed_out.is_set():
            raise _too_slow(timeout_s)

    def _shut_down_connections(self) -> None:
        with _CONNECTIONS_LOCK:
            connections = list(self._connections)
        for connection in connections:
            sock = connection.get_extra_info("socket")
            if isinstance(sock, socket.socket):
                with suppress(OSError):
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)  # works on TLS sockets too


_CONNECTIONS_LOCK = threading.Lock()
_CONNECTIONS: WeakKeyDictionary[httpx.Client, WeakSet[Any]] = WeakKeyDictionary()


def check_headers(headers: Mapping[str, str], max_bytes: int) -> None:
    """Raise ``ResponseRejected`` if a body is compressed, or its Content-Length is too large.

    A compressed body that is small could become large when it is decompressed.
    """
    encoding, length = headers.get("content-encoding"), headers.get("content-length", "")
    if (encoding or "identity").strip().lower() != "identity":
        raise ResponseRejected(
            f"its response is compressed ({str(encoding)[:20]!r}), which is not allowed"
        )

    if length.isdigit():
        check_size(int(length), max_bytes)


def check_size(size: int, max_bytes: int) -> None:
    """Raise ``ResponseRejected`` if a body is too large."""
    if size > max_bytes:
        raise ResponseRejected(f"its response is larger than the limit of {max_bytes:,} bytes")


def _too_slow(timeout_s: float) -> ResponseRejected:
    return ResponseRejected(f"its response took longer than {timeout_s:.3g} s")
