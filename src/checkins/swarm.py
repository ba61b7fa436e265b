"""Thousands of devices in one process, for load tests. This is not part of the device SDK.

Each device is a real client of the protocol, with its own coin, slot, token and durable state. The
devices share only what is the same for all clients: the campaign with its model and sampler, its
view, the estimate of the server's clock, the head of the ledger, and the connections. A view is the
public description of a run that the service sends. The ledger is the service's append-only list of
releases, and its head is the hash of its last line.
"""

from __future__ import annotations

import asyncio
import math
import os
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

from checkins.client.actions import Action, NoResponse, Request, RequestKind, Response, Save
from checkins.client.bounded_http import (
    CONNECT_TIMEOUT_S,
    ResponseRejected,
    check_headers,
    check_size,
)
from checkins.client.clock_and_randomness import OS_RANDOMNESS, monotonic_s
from checkins.client.drivers import (
    HEADERS,
    AsyncDriver,
    Driver,
    Journal,
    Result,
    check_url,
    http_client,
    no_response,
    retry_after_s,
    tls_context,
)
from checkins.client.participant import next_run_flow
from checkins.client.participation import Participation, ParticipationConfig
from checkins.client.service_client import ServiceClient
from checkins.client.state import MemoryStore, StateFile, StateStore, file_lock, make_private_folder
from checkins.client.trainer import Trainer
from checkins.protocol.participant import Outcome

MAX_CONCURRENT_ENROLMENTS = 128
"""Largest number of concurrent enrolments. More of them would delay the clients in their slots."""
MAX_VIEW_AGE_S = 2.0
"""Largest age in seconds of a view or a ledger head that clients share."""
WORKER_THREADS = 4
"""Default number of threads that train and write to disk."""
RETRY_TIMEOUT_S = 600.0
"""Seconds for which an unreachable service is retried, because a test may restart it."""
MAX_IDLE_S = 3.0
"""Seconds after which an idle connection is closed. The service would close it later."""
MAX_HEAD_BYTES = 65_536
"""Largest size in bytes of the status line and headers of a response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swarm:
    """``clients`` devices in one run of a campaign, numbered from 0.

    ``campaign`` is the id of the run, and ``seal`` the hash that its parameters must have.
    ``trainer(i)`` returns the trainer of client i. ``key(i)`` returns the enrolment secret of
    client i, or None if the service requires none. ``state`` is the folder in which the clients
    store their states; None keeps the states in memory. ``journal`` is called with every event of a
    client. ``arrivals_per_s`` is the number of clients that start per second; None starts all at
    once. ``worker_threads`` is the number of threads that train and write to disk. If it is 0, this
    is done on the event loop, which takes less CPU time if both are quick. ``ca`` and
    ``plain_http`` are as in ``Participant``.
    """

    url: str
    campaign: str
    seal: str
    clients: int
    trainer: Callable[[int], Trainer]
    state: Path | None = None
    key: Callable[[int], str | None] = field(default=lambda client: None)
    journal: Journal | None = None
    retry_timeout_s: float = RETRY_TIMEOUT_S
    arrivals_per_s: float | None = None
    worker_threads: int = WORKER_THREADS
    ca: str | os.PathLike[str] | None = None
    plain_http: bool = False

    def __post_init__(self) -> None:
        check_url(self.url, plain_http=self.plain_http, ca=self.ca)

    @property
    def outcome_names(self) -> list[str]:
        """The names of all outcomes of a client."""
        return [outcome.name.lower() for outcome in Outcome]

    async def run(self, tally: Tally) -> None:
        """Let all clients take part, and count their progress and outcomes in ``tally``."""
        async with AsyncExitStack() as stack:
            folder = None
            if self.state is not None:
                folder = make_private_folder(make_private_folder(self.state) / self.campaign)
                stack.enter_context(file_lock(self.state / "swarm.lock"))
            connections = Connections(self.url, HEADERS, ca=self.ca)
            stack.callback(connections.close)
            executor = None
            if self.worker_threads:
                executor = stack.enter_context(ThreadPoolExecutor(self.worker_threads))
            view_fetcher = stack.enter_context(ViewFetcher(self.url, self.ca))
            shared = SharedResponses(tally, connections, view_fetcher)
            async with asyncio.TaskGroup() as tasks:
                start_s = monotonic_s()
                for client in range(self.clients):
                    if self.arrivals_per_s is not None:
                        early_s = start_s + client / self.arrivals_per_s - monotonic_s()
                        if early_s > 0.0:
                            await asyncio.sleep(early_s)
                    tasks.create_task(self._run_client(client, folder, shared, executor))

    async def _run_client(
        self, client: int, folder: Path | None, shared: SharedResponses, executor: Executor | None
    ) -> None:
        store = MemoryStore() if folder is None else StateFile(folder / f"{client:06}.json")
        tally = shared.tally

        def journal(fields: Mapping[str, object]) -> None:
            tally.record_event(client, str(fields["event"]))
            if self.journal is not None:
                self.journal({"client": client, **fields})

        config = ParticipationConfig(
            self.url,
            self.campaign,
            self.trainer(client),
            self.key(client),
            self.seal,
            retry_timeout_s=self.retry_timeout_s,
        )
        driver = SwarmDriver(store, shared=shared, journal=journal, executor=executor)
        try:
            participation = Participation(
                config, store.load(), monotonic=monotonic_s, randomness=OS_RANDOMNESS
            )
            outcome = await driver.drive(participation.flow())
        except Exception as error:  # a client that fails must not stop the other clients
            tally.failures[str(error)] += 1
        else:
            tally.outcomes[outcome.name.lower()] += 1
        tally.latest_events.pop(client, None)


class Tally:
    """Counts of a swarm: outcomes, requests, CPU time, and the latest event of active clients."""

    def __init__(self) -> None:
        self.latest_events: dict[int, str] = {}
        self.outcomes: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()  # by the text of the error
        self.requests = 0
        self.enrolled = 0
        self._start_s = time.monotonic()
        self._start_cpu_s = time.process_time()

    def record_event(self, client: int, event: str) -> None:
        """Record the latest event of a client."""
        self.latest_events[client] = event
        self.enrolled += event == "enrolled"

    @property
    def done(self) -> int:
        """The number of clients whose participation has ended, or has failed with an error."""
        return self.outcomes.total() + self.failures.total()

    @property
    def asleep(self) -> int:
        """The number of clients that wait for their slot."""
        return sum(event == "asleep" for event in self.latest_events.values())

    @property
    def seconds(self) -> float:
        """Seconds since the swarm started."""
        return time.monotonic() - self._start_s

    @property
    def cpu_s(self) -> float:
        """CPU seconds of this process since the swarm started."""
        return time.process_time() - self._start_cpu_s


class ViewFetcher:
    """Fetches views in a separate thread.

    The event loop of a swarm may be busy for a long time. If a view was fetched on the loop, this
    time would count as network latency and falsify the clock estimate of all clients.
    """

    def __init__(self, url: str, ca: str | os.PathLike[str] | None = None) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._driver = Driver(http_client(url, ca), MemoryStore())

    def __enter__(self) -> ViewFetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()
        self._driver.http.close()

    async def send(self, request: Request) -> Response | NoResponse:
        """Send one request. Its times are measured in the thread that sends it."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._driver.send, request)


class SharedResponses:
    """Responses that the clients of a swarm share (views and ledger heads), and shared limits."""

    def __init__(self, tally: Tally, connections: Connections, view_fetcher: ViewFetcher) -> None:
        self.tally = tally
        self.connections = connections
        self.enrolment_limit = asyncio.Semaphore(MAX_CONCURRENT_ENROLMENTS)
        self._view_fetcher = view_fetcher
        self._view_lock = asyncio.Lock()
        self._last_view: Response | None = None
        self._heads: dict[str, tuple[float, asyncio.Future[Response | NoResponse]]] = {}

    async def view(self, request: Request) -> Response | NoResponse:
        """Return a view that is at most ``MAX_VIEW_AGE_S`` old, and fetch one if there is none."""
        async with self._view_lock:
            last_view = self._last_view
            if last_view is not None and monotonic_s() - last_view.received_s < MAX_VIEW_AGE_S:
                return last_view
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
        sent_s, pending = self._heads.get(request.path, (-math.inf, None))
        if pending is None or monotonic_s() - sent_s >= MAX_VIEW_AGE_S:
            pending = asyncio.ensure_future(send(request))
            self._heads[request.path] = (monotonic_s(), pending)
        response = await asyncio.shield(pending)
        if isinstance(response, NoResponse) or response.status != 200:
            self._heads.pop(request.path, None)
        return response


class SwarmDriver(AsyncDriver):
    """Performs the actions of one device in a swarm.

    A request that is the same for all devices is sent once, and they share the response.
    """

    def __init__(self, store: StateStore, *, shared: SharedResponses, **kwargs: Any) -> None:
        super().__init__(None, store, **kwargs)
        self._shared = shared

    async def _in_executor(self, work: Callable[[], Result]) -> Result:
        """Call ``work`` on a worker thread, or on the event loop if there is no thread."""
        if self.executor is None:
            return work()
        return await super()._in_executor(work)

    async def perform(self, action: Action) -> Any:
        """Perform one action. A state in memory is saved without a thread."""
        if isinstance(action, Save) and isinstance(self.store, MemoryStore):
            return self.store.save(action.state)
        return await super().perform(action)

    async def send(self, request: Request) -> Response | NoResponse:
        """Send one request, or return the recent response to the same request of another client."""
        match request.kind:
            case RequestKind.VIEW:
                return await self._shared.view(request)
            case RequestKind.LEDGER:
                return await self._shared.head(request, self._send_counted)
            case RequestKind.ENROL:
                async with self._shared.enrolment_limit:
                    return await self._send_counted(request)
        return await self._send_counted(request)

    async def _send_counted(self, request: Request) -> Response | NoResponse:
        self._shared.tally.requests += 1
        try:
            return await self._shared.connections.send(request)
        except (OSError, EOFError, ValueError, ResponseRejected) as error:
            return no_response(error)


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
"""The two directions of one connection."""


class Connections:
    """A pool of keep-alive HTTP/1.1 connections to one service, for thousands of devices.

    A request takes about 0.1 ms of CPU time. httpx would take ten times as long, and longer with
    more connections. Each connection carries one request at a time. Proxies, redirects and
    compression are not supported.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        ca: str | os.PathLike[str] | None = None,
    ) -> None:
        parts = urlsplit(url)
        is_tls = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if is_tls else 80)
        self._ssl = (tls_context(ca) or ssl.create_default_context()) if is_tls else None
        self._path_prefix = parts.path.rstrip("/")
        headers = {"Host": parts.netloc.rpartition("@")[2], **headers}
        self._header_lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._idle: list[tuple[float, Streams]] = []  # each with the time when it became idle

    async def send(self, request: Request) -> Response:
        """Send a request and return the response; raise OSError or EOFError if none comes.

        If a reused connection turns out to be closed, the request is sent again on a new
        connection. This is safe because every request to the service is idempotent.
        """
        sent_s = monotonic_s()
        async with asyncio.timeout(request.timeout_s):
            idle = self._idle_connection()
            if idle is not None:
                try:
                    return await self._exchange(request, sent_s, idle)
                except TimeoutError:
                    raise
                except (OSError, EOFError):
                    pass
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                streams = await asyncio.open_connection(
                    self._host, self._port, ssl=self._ssl, limit=MAX_HEAD_BYTES
                )
            return await self._exchange(request, sent_s, streams)

    def _idle_connection(self) -> Streams | None:
        earliest_s = time.monotonic() - MAX_IDLE_S
        while self._idle:
            idle_since_s, (reader, writer) = self._idle.pop()
            if idle_since_s >= earliest_s and not reader.at_eof():
                return reader, writer
            self._close(writer)
        return None

    async def _exchange(self, request: Request, sent_s: float, streams: Streams) -> Response:
        reader, writer = streams
        keep_alive = False
        try:
            writer.write(self._request_bytes(request))
            version, status, headers = await _read_head(reader)
            body = await _read_body(reader, status, headers, request.max_bytes)
            keep_alive = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
            delay_s = retry_after_s(headers.get("retry-after"))
            return Response(status, body, sent_s, monotonic_s(), retry_after_s=delay_s)
        finally:
            if keep_alive:
                self._idle.append((time.monotonic(), streams))
            else:
                self._close(writer)

    def _request_bytes(self, request: Request) -> bytes:
        head = (
            f"{request.method} {self._path_prefix}{request.path} HTTP/1.1\r\n{self._header_lines}"
        )
        head += "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
        body = request.body or b""
        if body or request.method in ("POST", "PUT"):
            head += f"Content-Length: {len(body)}\r\n"
        return head.encode("latin-1") + b"\r\n" + body

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            _, (_, writer) = self._idle.pop()
            self._close(writer)

    def _close(self, writer: asyncio.StreamWriter) -> None:
        """Close a connection. The end of TLS is not awaited, because every response is complete."""
        if self._ssl is None:
            writer.close()
        else:
            writer.transport.abort()


async def _read_head(reader: asyncio.StreamReader) -> tuple[str, int, dict[str, str]]:
    """Return HTTP version, status and headers of a response; raise OSError if it is not HTTP."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.LimitOverrunError as error:
        raise OSError("the head of the response is too long") from error
    status_line, *lines = head.split("\r\n")[:-2]
    version, _, rest = status_line.partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
        raise OSError("the response is not HTTP")
    pairs = (line.partition(":") for line in lines)
    return version, int(rest[:3]), {name.lower(): value.strip() for name, _, value in pairs}


async def _read_body(
    reader: asyncio.StreamReader, status: int, headers: Mapping[str, str], max_bytes: int
) -> bytes:
    """Return the body of a response; raise ``ResponseRejected`` if it exceeds a limit."""
    check_headers(headers, max_bytes)
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = bytearray()
        while size := int((await reader.readline()).partition(b";")[0], 16):
            if size < 0:
                raise OSError("a chunk of the response has a negative size")
            check_size(len(body) + size, max_bytes)
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)
        return bytes(body)
    if status == 204:
        return b""
    length = headers.get("content-length", "")
    if not length.isdigit():
        raise OSError("the response has no Content-Length")
    return await reader.readexactly(int(length))


def next_run(url: str, run_id: str, *, ca: str | os.PathLike[str] | None = None) -> str | None:
    """Wait for the run that follows the run ``run_id``; return its id, or None if none follows."""
    service = ServiceClient(url, run_id, RETRY_TIMEOUT_S)
    with http_client(url, ca) as http:
        return Driver(http, MemoryStore()).drive(next_run_flow(service))


def raise_open_file_limit(open_files: int) -> None:
    """Raise the limit of open files of this process to ``open_files`` if the system allows it."""
    try:
        import resource
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    is_unlimited = hard == resource.RLIM_INFINITY
    target = open_files if is_unlimited else min(open_files, hard)
    if soft != resource.RLIM_INFINITY and soft < target:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
