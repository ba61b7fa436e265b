"""Routes for an operator's machines: liveness, readiness and Prometheus metrics.

Readiness asks nothing of the store: it is computed from what the background tasks last did, so the
response is immediate while the store is silent.
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
    refusals,
    require_operator,
    returns,
    runner_of,
    schema_of,
    takes,
)
from checkins.service.runs import run_state_machine
from checkins.service.runs.runner import Runner
from checkins.service.workers.threads import PATIENCE_S

LATE_S = 5.0
"""Seconds after which a transition of a slot that is due counts as late."""

router = APIRouter(tags=["operations"], route_class=HeadRoute)


@router.get(
    "/healthz", response_model=schema_of(wire.Health), summary="Is it alive", responses=refusals()
)
@also_head
async def healthz(request: Request) -> wire.Health:
    """Answers while the process works, whatever its store does: restart it only if it does not
    answer."""
    runner = runner_of(request)
    return wire.Health(status="ok", epoch=runner.epoch, holding=runner.clock_watch.holding)


@router.get(
    "/readyz",
    response_model=schema_of(wire.Readiness),
    summary="Is it ready",
    responses=refusals("not-ready"),
)
@also_head
async def readyz(request: Request) -> wire.Readiness:
    """Answers 200 while slots are closed on time, the store answers and every background task runs;
    else the problem document says what does not."""
    runner = runner_of(request)
    if found := faults(runner):
        raise Problem("not-ready", "; ".join(found), retry_after=1)
    return wire.Readiness(status="ready", epoch=runner.epoch)


@router.get(
    "/metrics",
    response_class=Response,
    summary="Prometheus metrics",
    openapi_extra=takes(security="operator"),
    responses=returns("Metrics", "text/plain") | refusals("not-operator"),
)
async def metrics(request: Request) -> Response:
    """For the operator only: counts of requests over time are not public."""
    require_operator(request)
    runner = runner_of(request)
    for live_run in runner.live_runs.values():
        spent = live_run.spent and live_run.spent["epsilon"]
        runner.metrics.campaign(
            live_run.spec.id,
            slots_closed=live_run.public.state.closed,
            epsilon_spent=math.nan if spent is None else spent,
            epsilon_budget=live_run.spec.campaign.budget.epsilon,
        )
    body, media_type = runner.metrics.render()
    return Response(body, media_type=media_type)


def faults(runner: Runner) -> list[str]:
    """Return why this process is not ready, in words for its operator; empty if it is ready."""
    found = []
    if runner.stopping.is_set():
        found.append("the service is stopping")
    now, answered = asyncio.get_running_loop().time(), runner.answered
    if answered is None or not now - answered <= PATIENCE_S:
        found.append(f"the store has not answered for {PATIENCE_S:.0f} s")
    if runner.clock_watch.holding is not None:
        found.append(f"no slot is closed: {runner.clock_watch.holding}")
    elif late := _late(runner):
        found.append(f"slots are not closed on time in {', '.join(late)}")
    if runner.witness_fault is not None:
        found.append(runner.witness_fault)
    if failing := runner.background.failing:
        found.append(f"background tasks keep dying: {', '.join(failing)}")
    return found


def _late(runner: Runner) -> list[str]:
    """Return the runs in which a transition is late."""
    now = runner.database.now()
    late = []
    for run, live_run in runner.live_runs.items():
        moment = run_state_machine.due(live_run.spec, live_run.snapshot.state)
        if moment is not None and not now - moment <= LATE_S:
            late.append(run)
    return late
