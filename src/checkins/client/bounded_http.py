"""HTTP responses within limits: bounded size, bounded time, no compression.

httpx alone does not enforce these limits. It would decompress a few megabytes of gzip to gigabytes.
Its timeout applies to each read, so a server that sends one byte now and then never exceeds it.
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

CONNECT_S = 10.0
"""Longest time in seconds to open a connection."""
MIN_BYTES_PER_S = 1000.0
"""Lowest average rate in bytes per second of a long response after the first ``timeout_s``."""
IDENTITY = {"Accept-Encoding": "identity"}


class ResponseRejected(CheckinsError):
    """A response that exceeds a limit. No part of it is used."""


def fetch(http: httpx.Client, request: Request) -> tuple[httpx.Response, bytes]:
    """Send one request with a blocking client; return the response and its body.

    Raise ``ResponseRejected`` if a limit of the request is exceeded. At its time limit the
    connection is closed.
    """
    watchdog, body, most = _Watchdog(http), bytearray(), request.max_bytes
    with watchdog.limit(request.timeout_s):
        built = http.build_request(**_parts(request), extensions={"trace": watchdog.trace})
        with closing(http.send(built, stream=True)) as response:
            check_head(response.headers, most)
            if response.is_stream_consumed:  # the caller's transport has read the body
                check_size(len(response.content), most)
                return response, response.content
            for chunk in response.iter_raw():
                body += chunk
                check_size(len(body), most)
    return response, bytes(body)


async def fetch_async(http: httpx.AsyncClient, request: Request) -> tuple[httpx.Response, bytes]:
    """Do the same as ``fetch`` on an event loop."""
    body, most = bytearray(), request.max_bytes
    try:
        async with (
            asyncio.timeout(request.timeout_s),
            http.stream(**_parts(request)) as response,
        ):
            check_head(response.headers, most)
            if response.is_stream_consumed:
                check_size(len(response.content), most)
                return response, response.content
            async for chunk in response.aiter_raw():
                body += chunk
                check_size(len(body), most)
    except TimeoutError:
        raise _too_slow(request.timeout_s) from None
    return response, bytes(body)


@contextmanager
def stream(
    http: httpx.Client, path: str, *, max_bytes: int, timeout_s: float
) -> Iterator[tuple[httpx.Response, Iterator[bytes]]]:
    """Yield a long response and an iterator of its chunks.

    The head must arrive within ``timeout_s``. The body may take ``timeout_s`` and one more second
    for every ``MIN_BYTES_PER_S`` bytes received. Time that the caller spends on a chunk does not
    count.
    """
    import httpx

    watchdog = _Watchdog(http)
    with watchdog.limit(timeout_s):
        parts = _parts(Request(RequestKind.LEDGER, "GET", path, timeout_s))
        built = http.build_request(**parts, extensions={"trace": watchdog.trace})
        response = http.send(built, stream=True)
    try:
        check_head(response.headers, max_bytes)

        def chunks() -> Iterator[bytes]:
            waited, size, raw = 0.0, 0, response.iter_raw()
            while True:
                left = timeout_s + size / MIN_BYTES_PER_S - waited
                began = monotonic()
                with watchdog.limit(left):
                    chunk = next(raw, None)
                if chunk is None:
                    return
                waited += monotonic() - began
                size += len(chunk)
                check_size(size, max_bytes)
                yield chunk

        yield response, chunks()
    finally:
        with suppress(httpx.TransportError):
            response.close()


def _parts(request: Request) -> dict[str, Any]:
    """Return the arguments of httpx for a request."""
    import httpx

    limit_s = request.timeout_s
    return {
        "method": request.method,
        "url": request.path,
        "headers": {**request.headers, **IDENTITY},
        "content": request.body,
        "timeout": httpx.Timeout(limit_s, connect=min(CONNECT_S, limit_s), pool=None),
    }


class _Watchdog:
    """Closes the connections of a blocking client when a response takes too long.

    Shutting down a socket wakes the thread that reads from it. Trace events of httpx tell which
    connections are open. They are recorded per client, because later requests reuse them.
    """

    def __init__(self, http: httpx.Client) -> None:
        with _LOCK:
            self._streams = _STREAMS.setdefault(http, WeakSet())

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Record a connection when TCP is connected, and again when TLS has started."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            with _LOCK:
                self._streams.add(info["return_value"])

    @contextmanager
    def limit(self, timeout_s: float) -> Iterator[None]:
        """Raise ``ResponseRejected`` if the block takes longer than ``timeout_s``."""
        import httpx

        over = threading.Event()

        def end() -> None:
            over.set()
            self._end()

        timer = threading.Timer(max(0.0, timeout_s), end)
        timer.daemon = True
        timer.start()
        try:
            yield
        except httpx.TransportError:
            if over.is_set():
                raise _too_slow(timeout_s) from None
            raise
        finally:
            timer.cancel()
        if over.is_set():  # without a length, a closed connection looks like the end
            raise _too_slow(timeout_s)

    def _end(self) -> None:
        with _LOCK:
            streams = list(self._streams)
        for stream in streams:
            held = stream.get_extra_info("socket")
            if isinstance(held, socket.socket):
                with suppress(OSError):
                    socket.socket.shutdown(held, socket.SHUT_RDWR)  # works on encrypted sockets too


_LOCK = threading.Lock()
_STREAMS: WeakKeyDictionary[httpx.Client, WeakSet[Any]] = WeakKeyDictionary()


def check_head(headers: Mapping[str, str], max_bytes: int) -> None:
    """Raise ``ResponseRejected`` if a body is compressed, or its Content-Length is too large.

    A compressed body could become large when it is decompressed.
    """
    encoding, length = headers.get("content-encoding"), headers.get("content-length", "")
    if (encoding or "identity").strip().lower() != "identity":
        raise ResponseRejected(
            f"its response is encoded ({str(encoding)[:20]!r}), which is not allowed"
        )

    if length.isdigit():
        check_size(int(length), max_bytes)


def check_size(size: int, max_bytes: int) -> None:
    """Raise ``ResponseRejected`` if a body is too large."""
    if size > max_bytes:
        raise ResponseRejected(f"its response is larger than the limit of {max_bytes:,} bytes")


def _too_slow(timeout_s: float) -> ResponseRejected:
    return ResponseRejected(f"its response took longer than {timeout_s:.3g} s")
