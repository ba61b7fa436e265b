"""Thousands of devices in one process, for load tests. This is not part of the device SDK.

Each device is a real client of the protocol, with its own coin, slot, token and durable state. The
devices share only what is the same for all clients: the campaign with its model and sampler, its
view, the estimate of the server's clock, and the connections. A view is the public description of a
run that the service sends.
"""

from __future__ import annotations

import asyncio
import math
import ssl
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from checkins.client.actions import NoResponse, Request, RequestKind, Response
from checkins.client.bounded_http import CONNECT_S, ResponseRejected, check_head, check_size
from checkins.client.clock import OS_RANDOMNESS, steady_s
from checkins.client.drivers import (
    HEADERS,
    AsyncDriver,
    Driver,
    Journal,
    http_client,
    no_response,
    retry_after_s,
)
from checkins.client.participant import next_run_flow
from checkins.client.participation import Participation, ParticipationConfig
from checkins.client.service_client import ServiceClient
from checkins.client.state import MemoryStore, StateFile, StateStore, locked, make_folder
from checkins.client.trainer import Trainer
from checkins.protocol.participant import Outcome

MAX_ENROLLING = 32
"""Largest number of concurrent enrolments, so that they do not delay clients in their slot."""
MAX_VIEW_AGE_S = 2.0
"""Largest age in seconds of a view or ledger head that clients share."""
THREADS = 4
"""Number of threads that train and write to disk."""
PATIENCE_S = 600.0
"""Seconds for which an unreachable service is retried, because a test may restart it."""
IDLE_S = 3.0
"""Seconds after which an idle connection is closed. The service closes it later."""
MAX_HEAD_BYTES = 65_536
"""Largest size in bytes of the status line and headers of a response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swarm:
    """``clients`` devices in one run of a campaign, numbered from 0.

    ``trainer(i)`` returns the trainer of client i, and ``key(i)`` its enrolment secret, or None if
    the service requires none. ``state`` is the folder of the durable states; None keeps them in
    memory.
    """

    url: str
    campaign: str
    seal: str
    clients: int
    trainer: Callable[[int], Trainer]
    state: Path | None = None
    key: Callable[[int], str | None] = field(default=lambda client: None)
    journal: Journal | None = None
    patience_s: float = PATIENCE_S

    @property
    def possible(self) -> list[str]:
        """The names of all outcomes of a client."""
        return [outcome.name.lower() for outcome in Outcome]

    async def run(self, tally: Tally) -> None:
        """Let all clients take part, and count their progress and outcomes in ``tally``."""
        async with AsyncExitStack() as stack:
            folder = None
            if self.state is not None:
                folder = make_folder(make_folder(self.state) / self.campaign)
                stack.enter_context(locked(self.state / "swarm.lock"))
            connections = Connections(self.url, HEADERS)
            stack.callback(connections.close)
            executor = stack.enter_context(ThreadPoolExecutor(THREADS))
            shared = Shared(tally, connections, stack.enter_context(ViewFetcher(self.url)))
            await asyncio.gather(
                *(self._one(client, folder, shared, executor) for client in range(self.clients))
            )

    async def _one(
        self, client: int, folder: Path | None, shared: Shared, executor: Executor
    ) -> None:
        store = MemoryStore() if folder is None else StateFile(folder / f"{client:06}.json")
        tally = shared.tally

        def journal(fields: Mapping[str, object]) -> None:
            tally.moved(client, str(fields["event"]))
            if self.journal is not None:
                self.journal({"client": client, **fields})

        config = ParticipationConfig(
            self.url,
            self.campaign,
            self.trainer(client),
            self.key(client),
            self.seal,
            patience_s=self.patience_s,
        )
        driver = SwarmDriver(store, shared=shared, journal=journal, executor=executor)
        try:
            part = Participation(config, store.load(), steady=steady_s, randomness=OS_RANDOMNESS)
            outcome = await driver.drive(part.flow())
        except Exception as error:  # a failing client must not stop the others
            tally.failures[str(error)] += 1
        else:
            tally.outcomes[outcome.name.lower()] += 1
        tally.latest_events.pop(client, None)


class Tally:
    """Counts of a swarm: outcomes, requests, CPU time, and the latest event of active clients."""

    def __init__(self) -> None:
        self.latest_events: dict[int, str] = {}
        self.outcomes: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.requests = 0
        self.enrolled = 0
        self._began = time.monotonic()
        self._cpu = time.process_time()

    def moved(self, client: int, event: str) -> None:
        """Record the latest event of a client."""
        self.latest_events[client] = event
        self.enrolled += event == "enrolled"

    @property
    def done(self) -> int:
        """The number of clients that ended or failed."""
        return self.outcomes.total() + self.failures.total()

    @property
    def asleep(self) -> int:
        """The number of clients that wait for their slot."""
        return sum(event == "asleep" for event in self.latest_events.values())

    @property
    def seconds(self) -> float:
        """Seconds since the swarm started."""
        return time.monotonic() - self._began

    @property
    def cpu_s(self) -> float:
        """CPU seconds of this process since the swarm started."""
        return time.process_time() - self._cpu


class ViewFetcher:
    """Fetches campaign views in a separate thread.

    The event loop of a swarm may be busy for a long time. On the loop, this time would count as
    network latency and falsify the clock estimate of all clients.
    """

    def __init__(self, url: str) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._driver = Driver(http_client(url), MemoryStore())

    def __enter__(self) -> ViewFetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()
        self._driver.http.close()

    async def send(self, request: Request) -> Response | NoResponse:
        """Send one request. Its times are measured in the thread that sends it."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._driver.send, request)


class Shared:
    """What the clients of a swarm share: views, ledger heads and the limit of enrolments."""

    def __init__(self, tally: Tally, connections: Connections, view_fetcher: ViewFetcher) -> None:
        self.tally = tally
        self.connections = connections
        self.enrolling = asyncio.Semaphore(MAX_ENROLLING)
        self._view_fetcher = view_fetcher
        self._view_lock = asyncio.Lock()
        self._last_view: Response | None = None
        self._heads: dict[str, tuple[float, asyncio.Future[Response | NoResponse]]] = {}

    async def view(self, request: Request) -> Response | NoResponse:
        """Return a recent view. The first client fetches it, and the others reuse it."""
        async with self._view_lock:
            last = self._last_view
            if last is not None and steady_s() - last.received < MAX_VIEW_AGE_S:
                return last
            self.tally.requests += 1
            response = await self._view_fetcher.send(request)
            if isinstance(response, Response) and response.status == 200:
                self._last_view = response
            return response

    async def head(
        self,
        request: Request,
        send: Callable[[Request], Coroutine[Any, Any, Response | NoResponse]],
    ) -> Response | NoResponse:
        """Return a recent head of the ledger. Clients with the same request share one response."""
        began, pending = self._heads.get(request.path, (-math.inf, None))
        if pending is None or steady_s() - began >= MAX_VIEW_AGE_S:
            pending = asyncio.ensure_future(send(request))
            self._heads[request.path] = (steady_s(), pending)
        response = await asyncio.shield(pending)
        if isinstance(response, NoResponse) or response.status != 200:
            self._heads.pop(request.path, None)
        return response


class SwarmDriver(AsyncDriver):
    """The driver of one device in a swarm. Requests that are the same for all are sent once."""

    def __init__(self, store: StateStore, *, shared: Shared, **named: Any) -> None:
        super().__init__(None, store, **named)
        self._shared = shared

    async def send(self, request: Request) -> Response | NoResponse:
        """Send one request, or return the recent response to another client's equal request."""
        match request.kind:
            case RequestKind.VIEW:
                return await self._shared.view(request)
            case RequestKind.LEDGER:
                return await self._shared.head(request, self._counted)
            case RequestKind.ENROL:
                async with self._shared.enrolling:
                    return await self._counted(request)
        return await self._counted(request)

    async def _counted(self, request: Request) -> Response | NoResponse:
        self._shared.tally.requests += 1
        try:
            return await self._shared.connections.send(request)
        except (OSError, EOFError, ValueError, ResponseRejected) as error:
            return no_response(error)


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Connections:
    """A pool of keep-alive HTTP/1.1 connections to one service, for thousands of devices.

    A request takes about 0.1 ms of CPU time. httpx takes ten times as long, and longer with more
    connections. Each connection carries one request at a time, without proxies, redirects or
    compression.
    """

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if secure else 80)
        self._ssl = ssl.create_default_context() if secure else None
        self._prefix = parts.path.rstrip("/")
        shared = {"Host": parts.netloc.rpartition("@")[2], **headers}
        self._head = "".join(f"{name}: {value}\r\n" for name, value in shared.items())
        self._idle: list[tuple[float, Streams]] = []

    async def send(self, request: Request) -> Response:
        """Send a request and return the response; raise OSError or EOFError if none comes.

        If a reused connection turns out to be closed, the request is sent again on a new
        connection. This is safe because every request to the service is idempotent.
        """
        sent = steady_s()
        async with asyncio.timeout(request.timeout_s):
            idle = self._idle_connection()
            if idle is not None:
                try:
                    return await self._exchange(request, sent, idle)
                except TimeoutError:
                    raise
                except (OSError, EOFError):
                    pass
            async with asyncio.timeout(CONNECT_S):
                streams = await asyncio.open_connection(
                    self._host, self._port, ssl=self._ssl, limit=MAX_HEAD_BYTES
                )
            return await self._exchange(request, sent, streams)

    def _idle_connection(self) -> Streams | None:
        oldest = time.monotonic() - IDLE_S
        while self._idle:
            since, (reader, writer) = self._idle.pop()
            if since >= oldest and not reader.at_eof():
                return reader, writer
            writer.close()
        return None

    async def _exchange(self, request: Request, sent: float, streams: Streams) -> Response:
        reader, writer = streams
        keep = False
        try:
            writer.write(self._bytes(request))
            version, status, headers = await _read_head(reader)
            body = await _read_body(reader, status, headers, request.max_bytes)
            keep = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
            after = retry_after_s(headers.get("retry-after"))
            return Response(status, body, sent, steady_s(), retry_after_s=after)
        finally:
            if keep:
                self._idle.append((time.monotonic(), streams))
            else:
                writer.close()

    def _bytes(self, request: Request) -> bytes:
        head = f"{request.method} {self._prefix}{request.path} HTTP/1.1\r\n{self._head}"
        head += "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
        body = request.body or b""
        if body or request.method in ("POST", "PUT"):
            head += f"Content-Length: {len(body)}\r\n"
        return head.encode("latin-1") + b"\r\n" + body

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            _, (_, writer) = self._idle.pop()
            writer.close()


async def _read_head(reader: asyncio.StreamReader) -> tuple[str, int, dict[str, str]]:
    """Return version, status and headers of a response; raise OSError if it is not HTTP."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.LimitOverrunError as error:
        raise OSError("the head of the response is too long") from error
    first, *lines = head.split("\r\n")[:-2]
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
        raise OSError("the response is not HTTP")
    pairs = (line.partition(":") for line in lines)
    return version, int(rest[:3]), {name.lower(): value.strip() for name, _, value in pairs}


async def _read_body(
    reader: asyncio.StreamReader, status: int, headers: Mapping[str, str], max_bytes: int
) -> bytes:
    """Return the body of a response; raise ``ResponseRejected`` if it exceeds a limit."""
    check_head(headers, max_bytes)
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = bytearray()
        while size := int((await reader.readline()).partition(b";")[0], 16):
            if size < 0:
                raise OSError("a chunk of the response has no size")
            check_size(len(body) + size, max_bytes)
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)
        return bytes(body)
    if status == 204:
        return b""
    length = headers.get("content-length", "")
    if not length.isdigit():
        raise OSError("the response has no length")
    return await reader.readexactly(int(length))


def next_run(url: str, campaign: str) -> str | None:
    """Wait for the run that follows ``campaign``; return its id, or None if none follows."""
    service = ServiceClient(url, campaign, PATIENCE_S)
    with http_client(url) as http:
        return Driver(http, MemoryStore()).drive(next_run_flow(service))


def raise_open_files(wanted: int) -> None:
    """Raise the limit of open files of this process to ``wanted`` if the system allows it."""
    try:
        import resource
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = hard == resource.RLIM_INFINITY
    target = wanted if unlimited else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < target:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
