"""A faulty network: a TCP proxy before the coordinator that delays, cuts and repeats requests.

It speaks as much HTTP as it takes to know where a request ends. Each request goes to the server on
a connection of its own; what befalls it is its ``Fate``, by a schedule that a seed decides. What
came by is kept, so that retries can be compared byte for byte.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

MAX_HEAD_BYTES = 2**16
CHUNK = 2**16
NAMES = (
    *("campaigns", "progress", "enrolments", "check-ins", "model", "report", "latest", "ledger"),
    *("events", "metrics", "healthz", "readyz"),
)
"""Names of resources; the last of them in a path is the requested one."""


class Fate(StrEnum):
    """Faults of a request."""

    PASS = "it passes"
    DELAY = "it is held up on its way"
    LOSE = "it is cut before it arrives"
    CUT_REQUEST = "it is cut in the middle of its body"
    HANG_UP = "it arrives, and the connection is cut before there is an answer"
    LOSE_ANSWER = "it arrives, and its answer is lost"
    CUT_ANSWER = "the answer is cut in the middle"
    REPEAT = "it arrives twice at once"
    REPLAY = "it arrives, and again after its answer"


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it was received; ``head`` ends with its empty line."""

    method: str
    path: str
    head: bytes
    body: bytes

    @property
    def route(self) -> str:
        """Method and resource without ids: PUT report, GET check-ins."""
        parts = self.path.partition("?")[0].strip("/").split("/")
        names = [part for part in parts if part in NAMES]
        return f"{self.method} {names[-1] if names else '/'}"

    def header(self, wanted: str) -> str | None:
        """The value of a header, if it is there."""
        for line in self.head.decode("latin-1").split("\r\n")[1:]:
            name, _, value = line.partition(":")
            if name.lower() == wanted:
                return value.strip()
        return None

    @property
    def key(self) -> str | None:
        """The bearer token; None without one."""
        found = self.header("authorization")
        return None if found is None else found.split()[-1]

    @property
    def forwarded(self) -> bytes:
        """Each on a connection of its own, so that an answer ends with it."""
        first, *rest = self.head[:-4].split(b"\r\n")
        kept = [line for line in rest if not line.lower().startswith(b"connection:")]
        return b"\r\n".join([first, *kept, b"Connection: close", b"", b""]) + self.body


@dataclass(slots=True)
class Seen:
    """The record of a request at the proxy."""

    method: str
    path: str
    route: str
    key: str | None
    body_sha256: str
    fate: Fate
    idempotency: str | None = None
    status: int | None = None
    """Of the answer, where the client was sent all of it."""


Schedule = Callable[[Request], Fate]


def seeded(seed: int, chances: Mapping[Fate, float]) -> Schedule:
    """A schedule that draws each fate with its probability; otherwise a request passes."""
    dice = random.Random(seed)
    fates, weights = list(chances), list(chances.values())
    fates.append(Fate.PASS)
    weights.append(1.0 - sum(weights))

    def fate(request: Request) -> Fate:
        return dice.choices(fates, weights)[0]

    return fate


def each_in_turn(fates: list[Fate], *, passes: int = 1) -> Schedule:
    """A schedule of one fate after another on every route, with ``passes`` requests between."""
    counts: dict[str, int] = {}

    def fate(request: Request) -> Fate:
        count = counts.get(request.route, 0)
        counts[request.route] = count + 1
        turn, rest = divmod(count, passes + 1)
        return fates[turn % len(fates)] if rest == 0 else Fate.PASS

    return fate


def no_faults(request: Request) -> Fate:
    """A schedule without faults."""
    return Fate.PASS


@dataclass(slots=True)
class Proxy:
    """Listens on ``port`` while it is open; ``schedule`` may be changed at any time."""

    target: int
    schedule: Schedule = no_faults
    drops_model: bool = False
    """Remove ``model=true`` from three of four requests, as if the service did not know it. Devices
    then fetch the model with a request of its own."""
    delay_s: float = 0.05
    port: int = 0
    seen: list[Seen] = field(default_factory=list)
    _connections: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextlib.contextmanager
    def open(self) -> Iterator[Proxy]:
        """Serve from a thread of its own."""
        ready, loop = threading.Event(), asyncio.new_event_loop()
        stop = asyncio.Event()

        async def serve() -> None:
            server = await asyncio.start_server(
                self._connected, "127.0.0.1", self.port, limit=MAX_HEAD_BYTES
            )
            self.port = server.sockets[0].getsockname()[1]
            ready.set()
            await stop.wait()
            server.close()
            for connection in list(self._connections):
                connection.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

        thread = threading.Thread(target=lambda: _run(loop, serve()), daemon=True)
        thread.start()
        try:
            if not ready.wait(30):
                raise RuntimeError("the proxy did not start")
            yield self
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join(30)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        await asyncio.wait({task})

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._met(reader, writer)
        finally:
            writer.transport.abort()  # what was not drained by now is lost, as on a bad network

    async def _met(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            request = await _read_request(reader)
            fate = self.schedule(request)
            seen = _seen(request, fate)
            self.seen.append(seen)
            if self.drops_model and len(self.seen) % 4:
                request = without_model(request)
            await self._suffer(request, seen, reader, writer)

    async def _suffer(
        self,
        request: Request,
        seen: Seen,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        sent = request.forwarded
        match seen.fate:
            case Fate.LOSE:
                return
            case Fate.CUT_REQUEST:
                await self._send(sent[: len(sent) - max(1, len(request.body) // 2)], wait=False)
            case Fate.HANG_UP:
                await self._send(sent, wait=False)
            case Fate.LOSE_ANSWER:
                await self._send(sent)
            case Fate.CUT_ANSWER:
                answer = await self._send(sent)
                writer.write(answer[: len(answer) // 2])
                await writer.drain()
            case Fate.REPEAT:
                answers = await asyncio.gather(self._send(sent), self._send(sent))
                await _answer(writer, answers[1])
            case Fate.REPLAY:
                await self._send(sent)
                await _answer(writer, await self._send(sent))
            case _:
                if seen.fate is Fate.DELAY:
                    await asyncio.sleep(self.delay_s)
                seen.status = await self._relay(sent, reader, writer)

    async def _send(self, data: bytes, *, wait: bool = True) -> bytes:
        """Over a connection of its own; the whole answer, or nothing."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.target)
        try:
            writer.write(data)
            await writer.drain()
            if not wait:
                return b""
            return await reader.read()
        finally:
            writer.transport.abort()

    async def _relay(
        self, data: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> int | None:
        """As it comes: an answer may be a stream without an end. Its status, if it had one."""
        status = None
        upstream, to_server = await asyncio.open_connection("127.0.0.1", self.target)
        gone = asyncio.ensure_future(reader.read(1))
        try:
            to_server.write(data)
            await to_server.drain()
            while True:
                piece = asyncio.ensure_future(upstream.read(CHUNK))
                await asyncio.wait({piece, gone}, return_when=asyncio.FIRST_COMPLETED)
                if not piece.done():
                    piece.cancel()
                    return status  # the client has hung up, perhaps with all it wanted: so do we
                if not piece.result():
                    await _answer(writer, b"")
                    return status
                if status is None:
                    status = int(piece.result().split(b" ", 2)[1])
                writer.write(piece.result())
                await writer.drain()
        finally:
            gone.cancel()
            to_server.transport.abort()


def without_model(request: Request) -> Request:
    """Return a request for an outcome without the parameter that asks for the model too."""
    path = request.path.replace("model=true&", "")
    head = request.head.replace(request.path.encode("latin-1"), path.encode("latin-1"), 1)
    return replace(request, path=path, head=head)


def _seen(request: Request, fate: Fate) -> Seen:
    return Seen(
        request.method,
        request.path,
        request.route,
        request.key,
        hashlib.sha256(request.body).hexdigest(),
        fate,
        request.header("idempotency-key"),
    )


async def _answer(writer: asyncio.StreamWriter, data: bytes) -> None:
    """All of it, and a proper end."""
    writer.write(data)
    await writer.drain()
    writer.close()
    await writer.wait_closed()


async def _read_request(reader: asyncio.StreamReader) -> Request:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *rest = head[:-4].decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (h.partition(":") for h in rest)}
    if "transfer-encoding" in headers:
        raise OSError("this proxy takes bodies of a known length only")
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(method, path, head, body)


def _run(loop: asyncio.AbstractEventLoop, main: Coroutine[None, None, None]) -> None:
    try:
        loop.run_until_complete(main)
        loop.run_until_complete(asyncio.sleep(0.01))  # transports close a turn later
    finally:
        loop.close()
