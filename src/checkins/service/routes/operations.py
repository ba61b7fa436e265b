"""What an operator's machines ask: is it alive, how is it doing."""

from __future__ import annotations

import math

from fastapi import APIRouter, Request, Response

from checkins.service import wire
from checkins.service.routes.parts import refusals, require_operator, runner_of, takes
from checkins.service.routes.plain import HeadRoute, also_head
from checkins.service.store import facts

router = APIRouter(tags=["operations"], route_class=HeadRoute)


@router.get("/healthz", summary="Is it alive", responses=refusals("busy"))
@also_head
async def healthz(request: Request) -> wire.Health:
    """Answers as long as the store does."""
    runner = runner_of(request)
    epoch = await runner.ask(facts.epoch_of, runner.database)
    return wire.Health(epoch=epoch, holding=runner.clock_watch.holding)


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
