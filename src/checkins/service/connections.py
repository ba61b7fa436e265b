"""Connections that are given up: slow senders, endless heads, slow readers, one too many.

A uvicorn protocol for ``uvicorn.Config(http=guarded(limits))``. It adds to uvicorn's own:

| what | limit | end of the connection |
|---|---|---|
| a request head, also a connection's first | ``head_s`` to arrive | 408; closed if nothing came |
| a head, or trailers and framing that carry no body | ``head_bytes`` | 431 |
| an answer that is not taken | 1 KiB a second, looked at every ``answer_s`` | aborted |
| connections in all, and of one address or IPv6 /64 | ``connections``, ``per_address`` | 503 |

A body's length and time are the guard's. An idle connection after an answer is uvicorn's
(``timeout_keep_alive``). Websockets are not spoken here. Counts are those of one process.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from httptools import HttpParserError
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from checkins.service.addresses import Proxies, bucket_of
from checkins.service.settings import Limits
from checkins.service.transport import JoiningTransport

Heard = Callable[[str], object]
SPOKEN = ("1.0", "1.1")
_LEAST_RATE = 1024  # bytes a second that a reader must take
_FRAMING = 9  # bytes around a chunk of one byte, and that byte: the most an honest sender spends


@dataclass(slots=True)
class Counts:
    """Connections that are open now, of one process."""

    limits: Limits
    proxies: Proxies = field(default_factory=Proxies)
    """Their connections count to the total alone: each carries the requests of many clients."""
    total: int = 0
    of_address: dict[str, int] = field(default_factory=dict)

    def admit(self, address: str) -> bool:
        """Count one more, if the limits allow it."""
        bucket = bucket_of(address)
        here = self.of_address.get(bucket, 0)
        if 0 < self.limits.connections <= self.total:
            return False
        if 0 < self.limits.per_address <= here and address not in self.proxies:
            return False
        self.total += 1
        self.of_address[bucket] = here + 1
        return True

    def release(self, address: str) -> None:
        """One that was admitted is gone."""
        bucket = bucket_of(address)
        self.total -= 1
        here = self.of_address.pop(bucket) - 1
        if here:
            self.of_address[bucket] = here


def guarded(
    limits: Limits,
    *,
    trusted_proxies: Iterable[str] = (),
    opened: Callable[[int], object] | None = None,
    refused: Heard | None = None,
) -> type[HttpToolsProtocol]:
    """The protocol class under these limits; those of one address are not for trusted proxies.

    ``opened`` hears the number of open connections when it changes, ``refused`` a reason each
    time: too-many-connections, slow-head, long-head, slow-reader or not-http.
    """
    counts = Counts(limits, Proxies(trusted_proxies))
    tell_open = opened or (lambda number: None)
    tell_refused = refused or (lambda reason: None)

    class GuardedProtocol(HttpToolsProtocol):
        """One connection."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.address: str | None = None  # of an admitted connection
            self.in_head = False
            self.heard = False
            self.head_too_long = False
            self.idle_bytes = 0  # that were neither body nor a complete head
            self.cycles: deque[RequestResponseCycle] = deque()  # from the one that is answered on
            self.head_timer: asyncio.TimerHandle | None = None
            self.answer_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            peer = transport.get_extra_info("peername")
            address = str(peer[0]) if isinstance(peer, tuple) and peer else ""
            if not counts.admit(address):
                tell_refused("too-many-connections")
                self.transport = transport
                self._end(b"503 Service Unavailable", b"retry-after: 5\r\n")
                return
            self.address = address
            tell_open(counts.total)
            self.joining = JoiningTransport(transport)
            super().connection_made(cast(asyncio.Transport, self.joining))
            self._expect_head()

        def connection_lost(self, exc: Exception | None) -> None:
            _cancel(self.head_timer)
            self.head_timer = None
            _cancel(self.answer_timer)
            self.answer_timer = None
            if self.address is not None:
                counts.release(self.address)
                self.address = None
                tell_open(counts.total)
            for cycle in self.cycles:  # uvicorn tells the last one only: others would go on
                cycle.disconnected = not cycle.response_complete
                cycle.message_event.set()
            self.cycles.clear()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing() or self.address is None:
                return
            self.heard = True
            start = 0
            while start < len(data):
                # No more at once than a head may have: it must end within these bytes.
                room = limits.head_bytes - self.idle_bytes
                if room <= 0:
                    self._refuse_head()
                    return
                piece = data[start : start + room]
                start += len(piece)
                self.idle_bytes += len(piece)
                super().data_received(piece)
                if self.transport.is_closing():
                    return
            if self.head_timer is None and (self.in_head or not self._answering()):
                # Also bytes that begin no head, or belong to a body nobody reads any more: uvicorn
                # stopped its keep-alive timer at them and would wait for ever.
                self._expect_head()

        def on_message_begin(self) -> None:
            self.in_head = True
            super().on_message_begin()

        def on_header(self, name: bytes, value: bytes) -> None:
            if self.in_head:  # a trailer must not change the head of the running request
                super().on_header(name, value)

        def on_headers_complete(self) -> None:
            self.in_head = False
            self.idle_bytes = 0
            _cancel(self.head_timer)
            self.head_timer = None
            if self.parser.get_http_version() not in SPOKEN:
                raise HttpParserError("a version of HTTP that is not spoken here")
            # One that began behind another request, in the same bytes, was not counted from there.
            length = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if length > limits.head_bytes:
                self.head_too_long = True
                raise HttpParserError("a head that is too long")
            super().on_headers_complete()
            self.cycles.append(self.cycle)

        def on_response_complete(self) -> None:
            self.joining.flush()
            while self.cycles and self.cycles[0].response_complete:
                self.cycles.popleft()  # those who pipeline would have all of theirs kept
            super().on_response_complete()

        def on_body(self, body: bytes) -> None:
            self.idle_bytes = max(0, self.idle_bytes - _FRAMING * len(body))
            super().on_body(body)

        def send_400_response(self, msg: str) -> None:
            if self.head_too_long:
                self._refuse_head()
                return
            tell_refused("not-http")
            super().send_400_response(msg)

        def pause_writing(self) -> None:
            super().pause_writing()
            if self.answer_timer is None:
                self._expect_taken()

        def resume_writing(self) -> None:
            _cancel(self.answer_timer)
            self.answer_timer = None
            super().resume_writing()

        def _should_upgrade_to_ws(self) -> bool:
            return False

        def _unsupported_upgrade_warning(self) -> None:
            """Nothing: a line for each such request is a line per client."""

        def _answering(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def _refuse_head(self) -> None:
            tell_refused("long-head")
            self._end(b"431 Request Header Fields Too Large")

        def _expect_head(self) -> None:
            self.head_timer = self.loop.call_later(limits.head_s, self._head_late)

        def _head_late(self) -> None:
            self.head_timer = None
            if self.transport.is_closing():
                return
            if self._answering():  # a pipelined head: reading may be paused by us
                self._expect_head()
                return
            tell_refused("slow-head")
            if self.heard:
                self._end(b"408 Request Timeout")
            else:
                self.transport.close()

        def _expect_taken(self) -> None:
            left = self.transport.get_write_buffer_size()
            self.answer_timer = self.loop.call_later(limits.answer_s, self._taken_late, left)

        def _taken_late(self, left_then: int) -> None:
            taken = left_then - self.transport.get_write_buffer_size()
            if taken >= _LEAST_RATE * limits.answer_s:
                self._expect_taken()
                return
            self.answer_timer = None
            tell_refused("slow-reader")
            self.transport.abort()

        def _end(self, status: bytes, headers: bytes = b"") -> None:
            if not self._answering():
                self.transport.write(
                    b"HTTP/1.1 " + status + b"\r\n" + headers
                    + b"content-length: 0\r\nconnection: close\r\n\r\n"
                )  # fmt: skip
            self.transport.close()

    return GuardedProtocol


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
