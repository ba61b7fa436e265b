"""Many devices in one process, each with its own coin, slot, token and durable state.

They are real clients of the protocol and share only what is the same for everyone: the campaign,
its model, its sampler, the view of the campaign and the server's clock, and the connections.
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

from checkins.client.actions import Answer, Kind, NoResponse, Request
from checkins.client.answers import AnswerRefused
from checkins.client.clock import steady_s
from checkins.client.drivers import HEADERS, AsyncDriver, Driver, Journal, connected, retry_after_s
from checkins.client.following import following
from checkins.client.participation import Participation, ParticipationConfig
from checkins.client.randomness import DeviceRandomness
from checkins.client.service_client import ServiceClient
from checkins.client.state_file import Keeper, Memory, StateFile, locked, make_folder
from checkins.client.trainer import Trainer
from checkins.protocol.participant import Outcome
from checkins.swarm.connections import Connections

ENROLLING = 32
"""Enrolments under way at once: a steady stream, behind those whose slot has come."""
FRESH_S = 2.0
"""How old a view of the campaign may be that clients share."""
THREADS = 4
PATIENCE_S = 600.0
"""A service that is tried may be killed and started again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swarm:
    """``clients`` devices in one run of a campaign; ``trainer`` makes the one of client i.

    ``key`` is what client i enrols with. Without ``state`` nothing outlives the process.
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
        """Every way it may end for a client."""
        return [outcome.name.lower() for outcome in Outcome]

    async def run(self, tally: Tally) -> None:
        """Let all of them take part; ``tally`` counts meanwhile. A client that fails is counted."""
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
        self,
        client: int,
        folder: Path | None,
        shared: Shared,
        executor: Executor,
    ) -> None:
        keeper: Keeper = Memory() if folder is None else StateFile(folder / f"{client:06}.json")
        tally = shared.tally

        def journal(story: Mapping[str, object]) -> None:
            tally.moved(client, str(story["event"]))
            if self.journal is not None:
                self.journal({"client": client, **story})

        plan = ParticipationConfig(
            self.url,
            self.campaign,
            self.trainer(client),
            self.key(client),
            self.seal,
            patience_s=self.patience_s,
        )
        hands = SwarmDriver(keeper, shared=shared, journal=journal, executor=executor)
        try:
            flow = Participation(
                plan, keeper.load(), steady=hands.steady, dice=DeviceRandomness()
            ).flow()
            outcome = await hands.drive(flow)
        except Exception as error:  # one client's failure is not another's
            tally.failed(client, error)
        else:
            tally.ended(client, outcome.name.lower())


class Tally:
    """Where the clients of a swarm are, how they ended, and what it took."""

    def __init__(self) -> None:
        self.at: dict[int, str] = {}
        self.outcomes: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.requests = 0
        self.enrolled = 0
        self._began = time.monotonic()
        self._cpu = time.process_time()

    def moved(self, client: int, event: str) -> None:
        """A client did something."""
        self.at[client] = event
        self.enrolled += event == "enrolled"

    def ended(self, client: int, outcome: str) -> None:
        """A client came to its end."""
        self.at.pop(client, None)
        self.outcomes[outcome] += 1

    def failed(self, client: int, error: Exception) -> None:
        """A client could not go on."""
        self.at.pop(client, None)
        self.failures[str(error)] += 1

    @property
    def done(self) -> int:
        """How many came to their end, or failed."""
        return self.outcomes.total() + self.failures.total()

    @property
    def asleep(self) -> int:
        """How many wait for their slot."""
        return sum(event == "asleep" for event in self.at.values())

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._began

    @property
    def cpu_s(self) -> float:
        """What this process worked since then."""
        return time.process_time() - self._cpu


class ViewFetcher:
    """Looks at the service from a thread of its own.

    The event loop of a swarm may be busy for long. What a request waits for it would pass for the
    way of an answer, and set the clocks of all clients wrong.
    """

    def __init__(self, url: str) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._http = connected(url)
        self._hands = Driver(self._http, Memory())

    def __enter__(self) -> ViewFetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()
        self._http.close()

    async def send(self, request: Request) -> Answer | NoResponse:
        """One request, timed in the thread that sends it."""
        loop = asyncio.get_running_loop()
        answer: Answer | NoResponse = await loop.run_in_executor(
            self._thread, self._hands.perform, request
        )
        return answer


class Shared:
    """What the clients of a swarm share: one look at a time, and a place in the queue."""

    def __init__(self, tally: Tally, connections: Connections, lookout: ViewFetcher) -> None:
        self.tally = tally
        self.connections = connections
        self.enrolling = asyncio.Semaphore(ENROLLING)
        self._lookout = lookout
        self._look = asyncio.Lock()
        self._seen: Answer | None = None
        self._heads: dict[str, tuple[float, asyncio.Future[Answer | NoResponse]]] = {}

    async def look(self, request: Request) -> Answer | NoResponse:
        """A view that is fresh enough: the first client fetches it, the others take it."""
        async with self._look:
            if self._seen is not None and steady_s() - self._seen.received < FRESH_S:
                return self._seen
            self.tally.requests += 1
            answer = await self._lookout.send(request)
            if isinstance(answer, Answer) and answer.status == 200:
                self._seen = answer
            return answer

    async def head(
        self, request: Request, send: Callable[[Request], Coroutine[Any, Any, Answer | NoResponse]]
    ) -> Answer | NoResponse:
        """A head of the ledger that is fresh enough; clients that saw the same ask once."""
        began, asking = self._heads.get(request.path, (-math.inf, None))
        if asking is None or steady_s() - began >= FRESH_S:
            asking = asyncio.ensure_future(send(request))
            self._heads[request.path] = (steady_s(), asking)
        answer = await asyncio.shield(asking)
        if isinstance(answer, NoResponse) or answer.status != 200:
            self._heads.pop(request.path, None)
        return answer


class SwarmDriver(AsyncDriver):
    """As one device's, but what is the same for all is asked once."""

    def __init__(self, keeper: Keeper, *, shared: Shared, **named: Any) -> None:
        super().__init__(None, keeper, **named)
        self._shared = shared

    async def send(self, request: Request) -> Answer | NoResponse:
        """One request; a look may be answered by another client's."""
        match request.kind:
            case Kind.LOOK:
                return await self._shared.look(request)
            case Kind.LEDGER:
                return await self._shared.head(request, self._counted)
            case Kind.ENROL:
                async with self._shared.enrolling:
                    return await self._counted(request)
        return await self._counted(request)

    async def _counted(self, request: Request) -> Answer | NoResponse:
        self._shared.tally.requests += 1
        sent = self.steady()
        try:
            reply = await self._shared.connections.send(request)
        except (OSError, EOFError, ValueError, AnswerRefused) as error:
            return NoResponse(f"{type(error).__name__}: {error}".rstrip(": "))
        after = retry_after_s(reply.headers.get("retry-after"))
        return Answer(reply.status, reply.body, sent, self.steady(), retry_after_s=after)


def next_run(url: str, campaign: str) -> str | None:
    """The run that follows one that is over; None after the last."""
    contact = ServiceClient(url, campaign, PATIENCE_S, steady=steady_s, dice=DeviceRandomness())
    with connected(url) as http:
        return Driver(http, Memory()).drive(following(contact, campaign))


def raise_open_files(wanted: int) -> None:
    """Let this process hold that many connections, as far as the system allows."""
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
