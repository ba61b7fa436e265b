"""Answers within limits: so many bytes, so many seconds, nothing compressed.

httpx limits neither by itself: a few megabytes of gzip become gigabytes, and a byte now and then
never runs into a timeout, which is one for each read.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from checkins.errors import CheckinsError

if TYPE_CHECKING:
    import httpx

CONNECT_S = 10.0
LEAST_BYTES_PER_S = 1000.0
"""What a long answer must come with on average, once its first seconds are over."""
IDENTITY = {"Accept-Encoding": "identity"}


class AnswerRefused(CheckinsError):
    """An answer beyond a limit; nothing of it is used."""


def fetch(
    http: httpx.Client,
    method: str,
    path: str,
    *,
    most_bytes: int,
    within_s: float,
    headers: Mapping[str, str] | None = None,
    content: bytes | None = None,
) -> tuple[httpx.Response, bytes]:
    """One request by a blocking client: the answer's head, and its body of at most ``most_bytes``.

    All of it takes at most ``within_s``: then its connection is ended.
    """
    with _opened(http, method, path, within_s=within_s, headers=headers, content=content) as answer:
        _check_head(answer, most_bytes)
        if answer.is_stream_consumed:  # a transport of the caller's own had all of it
            check_size(len(answer.content), most_bytes)
            return answer, answer.content
        body = bytearray()
        for chunk in answer.iter_raw():
            body += chunk
            check_size(len(body), most_bytes)
    return answer, bytes(body)


async def fetch_async(
    http: httpx.AsyncClient,
    method: str,
    path: str,
    *,
    most_bytes: int,
    within_s: float,
    headers: Mapping[str, str] | None = None,
    content: bytes | None = None,
) -> tuple[httpx.Response, bytes]:
    """The same on an event loop."""
    try:
        async with (
            asyncio.timeout(within_s),
            http.stream(
                method,
                path,
                headers={**(headers or {}), **IDENTITY},
                content=content,
                timeout=_timeout(within_s),
            ) as answer,
        ):
            _check_head(answer, most_bytes)
            if answer.is_stream_consumed:
                check_size(len(answer.content), most_bytes)
                return answer, answer.content
            body = bytearray()
            async for chunk in answer.aiter_raw():
                body += chunk
                check_size(len(body), most_bytes)
    except TimeoutError:
        raise _too_slow(within_s) from None
    return answer, bytes(body)


@contextmanager
def stream(
    http: httpx.Client, path: str, *, most_bytes: int, within_s: float
) -> Iterator[tuple[httpx.Response, Iterator[bytes]]]:
    """An answer that may be long, piece by piece; what is done with a piece takes its own time.

    Its head comes within ``within_s``. Of its body so many seconds are waited for, and one more for
    every ``LEAST_BYTES_PER_S`` bytes of it that came.
    """
    import httpx

    watch = _Watch(http)
    with watch.for_(within_s):
        request = _request(http, "GET", path, within_s=within_s, watch=watch)
        answer = http.send(request, stream=True)
    try:
        _check_head(answer, most_bytes)

        def pieces() -> Iterator[bytes]:
            waited, size, raw = 0.0, 0, answer.iter_raw()
            while True:
                left = within_s + size / LEAST_BYTES_PER_S - waited
                began = monotonic()
                with watch.for_(left):
                    piece = next(raw, None)
                if piece is None:
                    return
                waited += monotonic() - began
                size += len(piece)
                check_size(size, most_bytes)
                yield piece

        yield answer, pieces()
    finally:
        with suppress(httpx.TransportError):
            answer.close()


@contextmanager
def _opened(
    http: httpx.Client, method: str, path: str, *, within_s: float, **sent: Any
) -> Iterator[httpx.Response]:
    watch = _Watch(http)
    with watch.for_(within_s):
        answer = http.send(
            _request(http, method, path, within_s=within_s, watch=watch, **sent), stream=True
        )
        try:
            yield answer
        finally:
            answer.close()


def _request(
    http: httpx.Client,
    method: str,
    path: str,
    *,
    within_s: float,
    watch: _Watch,
    headers: Mapping[str, str] | None = None,
    content: bytes | None = None,
) -> httpx.Request:
    return http.build_request(
        method,
        path,
        headers={**(headers or {}), **IDENTITY},
        content=content,
        timeout=_timeout(within_s),
        extensions={"trace": watch.trace},
    )


def _timeout(within_s: float) -> httpx.Timeout:
    import httpx

    return httpx.Timeout(within_s, connect=min(CONNECT_S, within_s), pool=None)


class _Watch:
    """Ends the connections of a blocking client when an answer takes too long.

    A socket that is shut down wakes whoever reads from it. Connections are known from the events
    that httpx tells of each request; they are kept by client, since a later request uses them too.
    """

    def __init__(self, http: httpx.Client) -> None:
        with _LOCK:
            self._streams = _STREAMS.setdefault(http, WeakSet())

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Remember a connection once it is made, or encrypted."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            with _LOCK:
                self._streams.add(info["return_value"])

    @contextmanager
    def for_(self, within_s: float) -> Iterator[None]:
        """Let what is done here take so long; raises ``AnswerRefused`` once time was up."""
        import httpx

        over = threading.Event()

        def end() -> None:
            over.set()
            self._end()

        timer = threading.Timer(max(0.0, within_s), end)
        timer.daemon = True
        timer.start()
        try:
            yield
        except httpx.TransportError:
            if over.is_set():
                raise _too_slow(within_s) from None
            raise
        finally:
            timer.cancel()
        if over.is_set():  # an answer whose length nobody told seems to end with its connection
            raise _too_slow(within_s)

    def _end(self) -> None:
        with _LOCK:
            streams = list(self._streams)
        for stream in streams:
            held = stream.get_extra_info("socket")
            if isinstance(held, socket.socket):
                with suppress(OSError):
                    socket.socket.shutdown(held, socket.SHUT_RDWR)  # of an encrypted one too


_LOCK = threading.Lock()
_STREAMS: WeakKeyDictionary[httpx.Client, WeakSet[Any]] = WeakKeyDictionary()


def check_encoding(encoding: str | None) -> None:
    """Refuse a body that is compressed: a small one could become a large one."""
    if (encoding or "identity").strip().lower() != "identity":
        raise AnswerRefused(f"its answer is encoded ({str(encoding)[:20]!r}), and must not be")


def check_length(length: str | None, most_bytes: int) -> None:
    """Refuse a body that is announced as too large."""
    if length is not None and length.isdigit():
        check_size(int(length), most_bytes)


def _check_head(answer: httpx.Response, most_bytes: int) -> None:
    check_encoding(answer.headers.get("content-encoding"))
    check_length(answer.headers.get("content-length"), most_bytes)


def check_size(size: int, most_bytes: int) -> None:
    """Refuse a body that is too large."""
    if size > most_bytes:
        raise AnswerRefused(f"its answer is larger than the {most_bytes:,} bytes that are taken")


def _too_slow(within_s: float) -> AnswerRefused:
    return AnswerRefused(f"its answer took longer than {within_s:.3g} s")
