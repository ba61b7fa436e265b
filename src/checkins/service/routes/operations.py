"""What an operator's machines ask: is it alive, is it ready, how is it doing."""

from __future__ import annotations

import math

from fastapi import APIRouter, Request, Response

from checkins.service import readiness, wire
from checkins.service.problems import Problem
from checkins.service.routes.requests import refusals, require_operator, runner_of, takes
from checkins.service.routes.routing import HeadRoute, also_head

router = APIRouter(tags=["operations"], route_class=HeadRoute)


@router.get("/healthz", summary="Is it alive", responses=refusals())
@also_head
async def healthz(request: Request) -> wire.Health:
    """Answers as long as the process does, whatever its store does: restarting it helps only if it
    does not."""
    runner = runner_of(request)
    return wire.Health(epoch=runner.epoch, holding=runner.clock_watch.holding)


@router.get("/readyz", summary="Is it ready", responses=refusals("not-ready"))
@also_head
async def readyz(request: Request) -> wire.Readiness:
    """Answers 200 while slots are closed on time, the store answers and every background task runs;
    else the problem document says what does not."""
    runner = runner_of(request)
    if faults := readiness.faults(runner):
        raise Problem("not-ready", "; ".join(faults), retry_after=1)
    return wire.Readiness(epoch=runner.epoch)


@router.get(
    "/metrics",
    response_class=Response,
    summary="Prometheus metrics",
    openapi_extra=takes(security="operator"),
    responses={
        200: {"description": "Metrics", "content": {"text/plain": {"schema": {"type": "string"}}}},
        **refusals("not-operator"),
    },
)
async def metrics(request: Request) -> Response:
    """Counts of requests over time are no public matter."""
    require_operator(request)
    runner = runner_of(request)
    for desk in runner.desks.values():
        spent = desk.spent
        runner.metrics.campaign(
            desk.terms.id,
            slots_closed=desk.public.stage.closed,
            epsilon_spent=math.nan if spent is None else spent["epsilon"],
            epsilon_budget=desk.terms.campaign.budget.epsilon,
        )
    body, media_type = runner.metrics.render()
    return Response(body, media_type=media_type)
