"""Many devices in one process, each with its own coin, slot, token and durable state.

The devices are real clients of the protocol. They share only what is the same for all clients: the
campaign with its model and sampler, its view, the estimate of the server's clock, and the
connections. A view is the public description of a run that the service sends.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checkins.client.actions import NoResponse, Request, RequestKind, Response
from checkins.client.bounded_http import ResponseRejected
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
from checkins.swarm.connections import Connections

MAX_ENROLLING = 32
"""Largest number of concurrent enrolments, so that they do not delay clients in their slot."""
MAX_VIEW_AGE_S = 2.0
"""Largest age in seconds of a view or ledger head that clients share."""
THREADS = 4
"""Number of threads that train and write to disk."""
PATIENCE_S = 600.0
"""Seconds for which an unreachable service is retried, because a test may restart it."""


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
            stack.push_async_callback(connections.close)
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
            tally.failed(client, error)
        else:
            tally.ended(client, outcome.name.lower())


class Tally:
    """Counts of a swarm: the latest event of each client, outcomes, requests and CPU time."""

    def __init__(self) -> None:
        self.at: dict[int, str] = {}
        self.outcomes: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.requests = 0
        self.enrolled = 0
        self._began = time.monotonic()
        self._cpu = time.process_time()

    def moved(self, client: int, event: str) -> None:
        """Record the latest event of a client."""
        self.at[client] = event
        self.enrolled += event == "enrolled"

    def ended(self, client: int, outcome: str) -> None:
        """Record the outcome of a client."""
        self.at.pop(client, None)
        self.outcomes[outcome] += 1

    def failed(self, client: int, error: Exception) -> None:
        """Record the failure of a client."""
        self.at.pop(client, None)
        self.failures[str(error)] += 1

    @property
    def done(self) -> int:
        """The number of clients that ended or failed."""
        return self.outcomes.total() + self.failures.total()

    @property
    def asleep(self) -> int:
        """The number of clients that wait for their slot."""
        return sum(event == "asleep" for event in self.at.values())

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
        sent = self.steady()
        try:
            reply = await self._shared.connections.send(request)
        except (OSError, EOFError, ValueError, ResponseRejected) as error:
            return no_response(error)
        after = retry_after_s(reply.headers.get("retry-after"))
        return Response(reply.status, reply.body, sent, self.steady(), retry_after_s=after)


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
