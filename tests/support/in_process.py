"""The app of a coordinator in this process, without a socket, on a clock that tests move.

The runner looks at our clock every few milliseconds, so that turning it is all it takes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from checkins.protocol.report import report_to_bytes
from checkins.service.app import create_app
from checkins.service.runs import runner as runners
from checkins.service.runs.live_run import LiveRun
from checkins.service.runs.runner import Runner
from checkins.service.settings import Enrolment, Limits, Settings
from checkins.service.store import metadata
from checkins.service.store.schema import migrate
from checkins.service.workers.planner import Planner
from tests.support.campaigns import campaign
from tests.support.clock import Clock
from tests.support.coordinator import OPERATOR
from tests.support.store import FaultyDatabase, NoEpsilonProcesses
from tests.support.waiting import until as wait_for


@dataclass
class Living:
    """A coordinator in this process, and a client of it."""

    http: httpx.AsyncClient
    runner: Runner
    clock: Clock
    run: str = ""
    names: dict[str, str] = field(default_factory=dict)

    async def open(self, **given: Any) -> str:
        """Open a campaign; all other methods are about its run."""
        live_run = await self.runner.open(campaign(**given))
        self.run = live_run.spec.id
        return self.run

    @property
    def live_run(self) -> LiveRun:
        return self.runner.live_runs[self.run]

    @property
    def waiters(self) -> int:
        """How many long polls and event streams wait for an answer."""
        (metric,) = self.runner.metrics.waiters.collect()
        return int(metric.samples[0].value)

    @property
    def faults(self) -> dict[str, Callable[[], object]]:
        """Faults of transactions by kind; see ``FaultyDatabase``."""
        assert isinstance(self.runner.database, FaultyDatabase)
        return self.runner.database.faults

    async def ask(self, method: str, path: str, bearer: str | None = None, **how: Any) -> Any:
        """Send a request below /campaigns/RUN, or at a path that begins with //."""
        headers = how.pop("headers", {})
        if bearer is not None:
            headers = {**headers, "authorization": f"Bearer {bearer}"}
        path = path if path.startswith("//") else f"/campaigns/{self.run}{path}"
        return await self.http.request(method, path.replace("//", "/"), headers=headers, **how)

    async def enrol(self, **headers: str) -> str:
        answer = await self.ask("POST", "/enrolments", headers=headers)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["token"])

    async def check_in(self, slot: int, token: str | None = None) -> str:
        answer = await self.ask("POST", f"/slots/{slot}/check-ins", token or await self.enrol())
        assert answer.status_code == 202, answer.text
        return str(answer.json()["receipt"])

    async def outcome(self, receipt: str, wait: float = 30) -> str:
        answer = await self.ask("GET", f"/check-ins/{receipt}?wait={wait}")
        assert answer.status_code == 200, answer.text
        return str(answer.json()["outcome"])

    async def report(self, slot: int, receipt: str, units: int = 1) -> httpx.Response:
        values = np.full(self.live_run.spec.dimension, units, dtype=np.int32)
        answer: httpx.Response = await self.ask(
            "PUT", f"/slots/{slot}/report", receipt, content=report_to_bytes(values)
        )
        return answer

    async def turn(self, moment: float, until: Callable[[], bool]) -> None:
        """Set the clock, and wait until the condition holds."""
        self.clock.now = moment
        await wait_for(until)

    async def begin(self, slot: int) -> None:
        def begun() -> bool:
            state = self.live_run.snapshot.state
            return (state.slot, state.phase.name) == (slot, "OPEN")

        await self.turn(self.live_run.spec.run_schedule.begins(slot), begun)

    async def choose(self, slot: int) -> None:
        def chosen() -> bool:
            state = self.live_run.snapshot.state
            return state.slot_phase is not None and not (
                self.live_run.choice_is_unread or state.slot_phase.name == "COLLECTING"
            )

        await self.turn(self.live_run.spec.run_schedule.chooses(slot), chosen)

    async def show(self, slot: int) -> None:
        """Set the clock past the end of a slot, and wait until its release is public."""
        await self.turn(
            self.live_run.spec.run_schedule.ends(slot) + 1.0,
            lambda: self.live_run.public_snapshot.state.closed >= slot,
        )

    async def finish(self) -> None:
        spec = self.live_run.spec
        over = spec.run_schedule.ends(spec.rules.slots) + 1.0
        await self.turn(over, lambda: self.live_run.public_snapshot.state.ending is not None)


def problem(answer: httpx.Response) -> tuple[int, str]:
    """Return the status and the slug of a refusal."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    body = json.loads(answer.content)
    assert body["status"] == answer.status_code
    return answer.status_code, str(body["type"]).removeprefix("urn:checkins:")


def settings(store: str, folder: Path, **given: Any) -> Settings:
    chosen = {"enrolment": Enrolment.open(), "limits": Limits(requests_per_s=0.0)} | given
    return Settings(store=store, operator_token=OPERATOR, folder=folder, **chosen)


@asynccontextmanager
async def living(
    chosen: Settings, clock: Clock, *, with_epsilons: bool = False, planner: Planner | None = None
) -> AsyncIterator[Living]:
    """Run a coordinator from its start to its end."""
    database = FaultyDatabase(chosen.store, clock)
    migrate(database)
    metadata.begin_epoch(database)
    database.close()
    app = create_app(
        chosen,
        database=FaultyDatabase(chosen.store, clock),
        epsilon_processes=None if with_epsilons else NoEpsilonProcesses(chosen.store),
        planner=planner,
    )
    runner: Runner = app.state.runner
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60) as http,
    ):
        yield Living(http, runner, clock)


Scenario = Callable[[Living], Awaitable[None]]


def play(
    store: str,
    folder: Path,
    scenario: Scenario,
    *,
    clock: Clock | None = None,
    with_epsilons: bool = False,
    planner: Planner | None = None,
    **given: Any,
) -> None:
    """Run a scenario on a coordinator of its own, which computes epsilons if ``with_epsilons``."""

    async def main() -> None:
        chosen = settings(store, folder, **given)
        async with living(
            chosen, clock or Clock(), with_epsilons=with_epsilons, planner=planner
        ) as coordinator:
            await scenario(coordinator)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runners, "MAX_SLEEP_S", 0.003)
        patch.setattr(runners, "POLL_INTERVAL_S", 0.05)
        asyncio.run(main())
