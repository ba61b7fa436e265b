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
    OptionalHeadRoute,
    also_head,
    openapi_options,
    require_operator,
    runner_of,
)
from checkins.service.runs import slot_transitions
from checkins.service.runs.runner import Runner
from checkins.service.workers.background_tasks import STORE_TIMEOUT_S

LATE_AFTER_S = 5.0
"""Seconds after which a slot that should have begun, chosen or closed counts as late."""

router = APIRouter(tags=["operations"], route_class=OptionalHeadRoute)


@router.get("/healthz", **openapi_options("Liveness", wire.Health))
@also_head
async def healthz(request: Request) -> wire.Health:
    """The process responds while it runs, even if its database does not respond. Restart the
    process only if there is no response."""
    runner = runner_of(request)
    return wire.Health(status="ok", epoch=runner.epoch, holding=runner.clock_jumps.holding_reason)


@router.get("/readyz", **openapi_options("Readiness", wire.Readiness, problems=("not-ready",)))
@also_head
async def readyz(request: Request) -> wire.Readiness:
    """The response is 200 if slots are closed on time, the database responds and every background
    task runs. Otherwise the problem document lists what fails."""
    runner = runner_of(request)
    if reasons := reasons_not_ready(runner):
        raise Problem("not-ready", "; ".join(reasons), retry_after=1)
    return wire.Readiness(status="ready", epoch=runner.epoch)


@router.get(
    "/metrics",
    **openapi_options("Prometheus metrics", ("Metrics", "text/plain"), security="operator"),
)
async def metrics(request: Request) -> Response:
    """Only operators may read the metrics, because the number of requests at a time is not
    public. A token with the role `metrics` is enough."""
    await require_operator(request, only_metrics=True)
    runner = runner_of(request)
    for live_run in runner.live_runs.values():
        spent = live_run.spent and live_run.spent["epsilon"]
        runner.metrics.record_run(
            live_run.spec.id,
            slots_closed=live_run.public_snapshot.state.closed,
            epsilon_spent=math.nan if spent is None else spent,
            epsilon_budget=live_run.spec.campaign.budget.epsilon,
        )
    runner.metrics.set_slot_lateness(max(lateness_of_runs(runner).values(), default=0.0))
    runner.metrics.set_free_bytes(runner.database.free_bytes)
    body, media_type = runner.metrics.render()
    return Response(body, media_type=media_type)


def reasons_not_ready(runner: Runner) -> list[str]:
    """Return the reasons why this process is not ready, or an empty list if it is ready."""
    reasons = []
    if runner.stopping.is_set():
        reasons.append("the service is stopping")
    now, answered_at = asyncio.get_running_loop().time(), runner.store_answered_at
    if answered_at is None or not now - answered_at <= STORE_TIMEOUT_S:
        reasons.append(f"the store has not answered for {STORE_TIMEOUT_S:.0f} s")
    if runner.clock_jumps.holding_reason is not None:
        reasons.append(f"no slot is closed: {runner.clock_jumps.holding_reason}")
    elif late_runs := [
        run for run, late_s in lateness_of_runs(runner).items() if not late_s <= LATE_AFTER_S
    ]:
        reasons.append(f"slots are not closed on time in {', '.join(late_runs)}")
    if runner.progress_file_error is not None:
        reasons.append(runner.progress_file_error)
    if failing := runner.background_tasks.failing_kinds:
        reasons.append(f"background tasks keep dying: {', '.join(failing)}")
    return reasons


def lateness_of_runs(runner: Runner) -> dict[str, float]:
    """Return by how many seconds the next transition of each open run is late.

    A transition begins a slot, chooses its clients or closes it. A number is negative if the
    transition is not due yet.
    """
    now, found = runner.database.now(), {}
    for run, live_run in runner.live_runs.items():
        due_at = slot_transitions.next_due_time(live_run.spec, live_run.snapshot.state)
        if due_at is not None:
            found[run] = now - due_at
    return found
