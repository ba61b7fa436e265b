"""All code that depends on internals of the web server uvicorn: limits, joined writes, shutdown.

``limited_protocol`` returns a protocol for ``uvicorn.Config(http=...)`` with these limits:

| what is limited | limit | what the client gets |
|---|---|---|
| time until a request head is complete | ``head_s`` | 408; no response if no byte arrived |
| size of a head, or of trailers and chunk framing | ``head_bytes`` | 431 |
| slow reading of a response | 1 KiB a second, checked every ``answer_s`` | connection aborted |
| connections in total, and per address or IPv6 /64 | ``connections``, ``per_address`` | 503 |

``request_limits`` limits the size of a body and the time until it is complete. uvicorn closes a
connection that stays idle after a response (``timeout_keep_alive``). WebSockets are not supported.
Each process counts only its own connections. A head is the request line and the headers.

``tests/service/test_uvicorn_hooks.py`` fails if uvicorn's code has changed. Read the changes, adapt
this module, and then update the digests in the test.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, cast

import uvicorn
from httptools import HttpParserError
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from checkins.service.http.request_limits import ConnectionCounts, Proxies
from checkins.service.settings import Limits

HTTP_VERSIONS = ("1.0", "1.1")
_STATUS_LINE_START, _LENGTH_HEADER = b"HTTP/1.", b"\r\ncontent-length: "
_MIN_READ_BYTES_PER_S = 1024  # a client that reads its response more slowly is disconnected
_BYTES_PER_BODY_BYTE = 9
"""For each byte of a body, this many received bytes do not count towards the limit of a head: the
byte itself, and up to eight bytes of chunk framing (in the worst case, every chunk has one
byte)."""


class JoiningTransport:
    """A transport that sends the head of a response together with its body.

    uvicorn writes head and body separately, and each write is a system call and a packet. A head
    without a content length begins a stream, so this head is sent at once. Writes to a closing
    connection are dropped, as asyncio's transports do; uvloop's transports would raise. All other
    methods are those of the wrapped transport.
    """

    __slots__ = ("_buffer", "_transport", "is_closing")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._buffer = b""
        self.is_closing = transport.is_closing  # avoids __getattr__ several times per request

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Buffer the head of a response that has a content length; send all other data.

        A buffered head is sent together with the next data. The protocol calls ``flush`` when a
        response is complete.
        """
        if self.is_closing():
            self._buffer = b""
        elif self._buffer:
            head, self._buffer = self._buffer, b""
            self._transport.writelines((head, data))
        elif data.startswith(_STATUS_LINE_START) and _LENGTH_HEADER in data:
            self._buffer = data
        else:
            self._transport.write(data)

    def flush(self) -> None:
        """Send a head that is still buffered because the response has no body."""
        head, self._buffer = self._buffer, b""
        if head and not self.is_closing():
            self._transport.write(head)

    def close(self) -> None:
        """Send a head that is still buffered, and close the connection."""
        self.flush()
        self._transport.close()


def limited_protocol(
    limits: Limits,
    *,
    trusted_proxies: Iterable[str] = (),
    on_connection_count: Callable[[int], object] | None = None,
    on_refusal: Callable[[str], object] | None = None,
) -> type[HttpToolsProtocol]:
    """Return a subclass of uvicorn's HTTP protocol that enforces ``limits``.

    The limit per address does not apply to ``trusted_proxies``. ``on_connection_count`` is
    called with the number of open connections each time it changes. ``on_refusal`` is called with
    the reason of each refusal: too-many-connections, slow-head, long-head, slow-reader or not-http.
    """
    counts = ConnectionCounts(limits, Proxies(trusted_proxies))
    report_connections = on_connection_count or (lambda number: None)
    report_refusal = on_refusal or (lambda reason: None)

    class LimitedProtocol(HttpToolsProtocol):
        """The protocol of one connection."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.address: str | None = None  # None if the connection is not admitted
            self.in_head = False
            self.has_received = False
            self.head_too_long = False
            self.non_body_bytes = 0  # received since the last head, without bodies and framing
            self.cycles: deque[RequestResponseCycle] = deque()  # requests without full response
            self.head_timer: asyncio.TimerHandle | None = None
            self.slow_reader_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            peer = transport.get_extra_info("peername")
            address = str(peer[0]) if isinstance(peer, tuple) and peer else ""
            if not counts.admit(address):
                report_refusal("too-many-connections")
                self.transport = transport
                self._close_with(b"503 Service Unavailable", b"retry-after: 5\r\n")
                return
            self.address = address
            report_connections(counts.total)
            self.joining_transport = JoiningTransport(transport)
            super().connection_made(cast(asyncio.Transport, self.joining_transport))
            self._start_head_timer()

        def connection_lost(self, exc: Exception | None) -> None:
            self.head_timer = _cancel(self.head_timer)
            self.slow_reader_timer = _cancel(self.slow_reader_timer)
            if self.address is not None:
                counts.release(self.address)
                self.address = None
                report_connections(counts.total)
            for cycle in self.cycles:  # uvicorn marks only the last request as disconnected
                cycle.disconnected = not cycle.response_complete
                cycle.message_event.set()
            self.cycles.clear()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing() or self.address is None:
                return
            self.has_received = True
            start = 0
            while start < len(data):
                # Parse at most as many bytes as the limit of a head still allows.
                max_bytes = limits.head_bytes - self.non_body_bytes
                if max_bytes <= 0:
                    self._refuse_head()
                    return
                piece = data[start : start + max_bytes]
                start += len(piece)
                self.non_body_bytes += len(piece)
                super().data_received(piece)
                if self.transport.is_closing():
                    return
            if self.head_timer is None and (self.in_head or not self._is_responding()):
                # uvicorn stops its keep-alive timer when any bytes arrive. So this timer is needed
                # after any bytes: also if they begin no head, or are the rest of a body that was
                # already answered.
                self._start_head_timer()

        def on_message_begin(self) -> None:
            self.in_head = True
            super().on_message_begin()

        def on_header(self, name: bytes, value: bytes) -> None:
            if self.in_head:  # else it is a trailer, which must not change the request's headers
                super().on_header(name, value)

        def on_headers_complete(self) -> None:
            self.in_head = False
            self.non_body_bytes = 0
            self.head_timer = _cancel(self.head_timer)
            if self.parser.get_http_version() not in HTTP_VERSIONS:
                raise HttpParserError("this version of HTTP is not supported")
            # Check the length again, because ``non_body_bytes`` does not count a head that arrived
            # in the same read as another request.
            length = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if length > limits.head_bytes:
                self.head_too_long = True
                raise HttpParserError("the head is too long")
            super().on_headers_complete()
            self.cycles.append(self.cycle)

        def on_response_complete(self) -> None:
            self.joining_transport.flush()
            while self.cycles and self.cycles[0].response_complete:
                self.cycles.popleft()  # otherwise pipelined requests would accumulate
            super().on_response_complete()

        def on_body(self, body: bytes) -> None:
            self.non_body_bytes = max(0, self.non_body_bytes - _BYTES_PER_BODY_BYTE * len(body))
            super().on_body(body)

        def send_400_response(self, msg: str) -> None:
            if self.head_too_long:
                self._refuse_head()
                return
            report_refusal("not-http")
            super().send_400_response(msg)

        def pause_writing(self) -> None:
            super().pause_writing()
            if self.slow_reader_timer is None:
                self._start_slow_reader_timer()

        def resume_writing(self) -> None:
            self.slow_reader_timer = _cancel(self.slow_reader_timer)
            super().resume_writing()

        def _should_upgrade_to_ws(self) -> bool:
            return False

        def _unsupported_upgrade_warning(self) -> None:
            """Do nothing. uvicorn would log each such request, so a client could fill the log."""

        def _is_responding(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def _refuse_head(self) -> None:
            report_refusal("long-head")
            self._close_with(b"431 Request Header Fields Too Large")

        def _start_head_timer(self) -> None:
            self.head_timer = self.loop.call_later(limits.head_s, self._head_timed_out)

        def _head_timed_out(self) -> None:
            self.head_timer = None
            if self.transport.is_closing():
                return
            if self._is_responding():  # this server may have paused reading the next head
                self._start_head_timer()
                return
            report_refusal("slow-head")
            if self.has_received:
                self._close_with(b"408 Request Timeout")
            else:
                self.transport.close()

        def _start_slow_reader_timer(self) -> None:
            unread_bytes = self.transport.get_write_buffer_size()
            self.slow_reader_timer = self.loop.call_later(
                limits.answer_s, self._check_slow_reader, unread_bytes
            )

        def _check_slow_reader(self, unread_bytes_before: int) -> None:
            read_bytes = unread_bytes_before - self.transport.get_write_buffer_size()
            if read_bytes >= _MIN_READ_BYTES_PER_S * limits.answer_s:
                self._start_slow_reader_timer()
                return
            self.slow_reader_timer = None
            report_refusal("slow-reader")
            self.transport.abort()

        def _close_with(self, status: bytes, headers: bytes = b"") -> None:
            if not self._is_responding():
                self.transport.write(
                    b"HTTP/1.1 " + status + b"\r\n" + headers
                    + b"content-length: 0\r\nconnection: close\r\n\r\n"
                )  # fmt: skip
            self.transport.close()

    return LimitedProtocol


def _cancel(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """Cancel a timer if there is one. Return None, which the caller assigns to the attribute."""
    if timer is not None:
        timer.cancel()
    return None


class GracefulServer(uvicorn.Server):
    """uvicorn's server, except that it ends all long polls when it is asked to stop.

    ``ready`` is called once the server accepts connections. ``release_waiters`` is called when the
    server is asked to stop, and must make every long poll return at once. ``tls`` is the context of
    TLS; None means plain HTTP.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        release_waiters: Callable[[], None],
        ready: Callable[[], None] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(config)
        self._tls = tls
        self._ready = ready
        self._release_waiters = release_waiters
        self._loop: asyncio.AbstractEventLoop | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals as uvicorn does, but do not raise them again, so the exit code is 0.

        If SIGINT was ignored at the start, as in a background job, it stays ignored.
        """
        sigint_handler = signal.getsignal(signal.SIGINT)
        with super().capture_signals():
            if sigint_handler is signal.SIG_IGN:
                signal.signal(signal.SIGINT, sigint_handler)
            yield
            self._captured_signals.clear()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop as uvicorn does, and call ``release_waiters`` at once.

        Otherwise an app that is still starting would go on waiting for the database.
        """
        super().handle_exit(sig, frame)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._release_waiters)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start as uvicorn does, then exclude all loaded objects from garbage collection."""
        self._loop = asyncio.get_running_loop()
        self.config.ssl = self._tls  # uvicorn could only load files, once
        await super().startup(sockets)
        gc.collect()
        gc.freeze()  # examining these objects at every collection would halve the request rate
        gc.set_threshold(20_000, 20, 50)
        if self.started and not self.should_exit and self._ready is not None:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Make long polls return, then shut down as uvicorn does."""
        self._release_waiters()
        await super().shutdown(sockets)
