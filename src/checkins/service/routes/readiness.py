"""Routes for monitoring: liveness, readiness and Prometheus metrics.

Readiness is computed from the last results of the background tasks. It sends no query to the
database, so the response is immediate even if the database does not respond.
"""

from __future__ import annotations

import asyncio
import math

from fastapi import APIRouter, Request, Response

from checkins.protocol import wire
from checkins.service.http.problems import Problem
from checkins.service.routes.requests import (
    HeadRoute,
    also_head,
    described,
    require_operator,
    runner_of,
)
from checkins.service.runs import run_state_machine
from checkins.service.runs.runner import Runner
from checkins.service.workers.background_tasks import STORE_TIMEOUT_S

LATE_S = 5.0
"""A transition of a slot counts as late this many seconds after its time."""

router = APIRouter(tags=["operations"], route_class=HeadRoute)


@router.get("/healthz", **described("Liveness", wire.Health))
@also_head
async def healthz(request: Request) -> wire.Health:
    """The process responds while it runs, even if its database does not respond. Restart it only if
    there is no response."""
    runner = runner_of(request)
    return wire.Health(status="ok", epoch=runner.epoch, holding=runner.clock_watch.holding_reason)


@router.get("/readyz", **described("Readiness", wire.Readiness, problems="not-ready"))
@also_head
async def readyz(request: Request) -> wire.Readiness:
    """The response is 200 if slots are closed on time, the database responds and every background
    task runs. Otherwise the problem document lists what fails."""
    runner = runner_of(request)
    if found := faults(runner):
        raise Problem("not-ready", "; ".join(found), retry_after=1)
    return wire.Readiness(status="ready", epoch=runner.epoch)


@router.get(
    "/metrics", **described("Prometheus metrics", ("Metrics", "text/plain"), security="operator")
)
async def metrics(request: Request) -> Response:
    """Only the operator may read them, because counts of requests over time are not public."""
    require_operator(request)
    runner = runner_of(request)
    for live_run in runner.live_runs.values():
        spent = live_run.spent and live_run.spent["epsilon"]
        runner.metrics.campaign(
            live_run.spec.id,
            slots_closed=live_run.public_snapshot.state.closed,
            epsilon_spent=math.nan if spent is None else spent,
            epsilon_budget=live_run.spec.campaign.budget.epsilon,
        )
    body, media_type = runner.metrics.render()
    return Response(body, media_type=media_type)


def faults(runner: Runner) -> list[str]:
    """Return the reasons why this process is not ready, or an empty list if it is ready."""
    found = []
    if runner.stopping.is_set():
        found.append("the service is stopping")
    now, answered = asyncio.get_running_loop().time(), runner.store_answered_at
    if answered is None or not now - answered <= STORE_TIMEOUT_S:
        found.append(f"the store has not answered for {STORE_TIMEOUT_S:.0f} s")
    if runner.clock_watch.holding_reason is not None:
        found.append(f"no slot is closed: {runner.clock_watch.holding_reason}")
    elif late := _late(runner):
        found.append(f"slots are not closed on time in {', '.join(late)}")
    if runner.witness_error is not None:
        found.append(runner.witness_error)
    if failing := runner.background_tasks.failing_kinds:
        found.append(f"background tasks keep dying: {', '.join(failing)}")
    return found


def _late(runner: Runner) -> list[str]:
    """Return the ids of the runs in which a transition is late."""
    now = runner.database.now()
    late = []
    for run, live_run in runner.live_runs.items():
        moment = run_state_machine.next_due_time(live_run.spec, live_run.snapshot.state)
        if moment is not None and not now - moment <= LATE_S:
            late.append(run)
    return late
