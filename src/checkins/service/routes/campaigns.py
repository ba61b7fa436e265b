"""Campaigns: what runs here, what is public about it, and the operator's word."""

from __future__ import annotations

import json

from fastapi import APIRouter, Request, Response, status

from checkins.campaign import InvalidCampaign
from checkins.service import view, wire
from checkins.service.live_run import LiveRun
from checkins.service.problems import Problem
from checkins.service.routes.requests import (
    JSON,
    answer,
    desk_of,
    refusals,
    require_operator,
    runner_of,
    takes,
)
from checkins.service.routes.routing import PlainRoute, also_head
from checkins.service.runner import Runner
from checkins.service.store import records

router = APIRouter(prefix="/campaigns", tags=["campaigns"], route_class=PlainRoute)


@router.get(
    "",
    response_model=wire.Campaigns,
    summary="The campaigns of this coordinator",
    responses=refusals(),
)
@also_head
async def campaigns(request: Request) -> Response:
    """Every run, newest first."""
    runner = runner_of(request)
    return answer(
        {
            "campaigns": [view.summary(desk) for desk in reversed(runner.desks.values())],
            "server_time": view.instant(runner.database.now()),
        }
    )


@router.post(
    "",
    response_model=wire.CampaignView,
    status_code=status.HTTP_201_CREATED,
    summary="Open a campaign",
    openapi_extra=takes(security="operator", body="application/toml"),
    responses=refusals("not-operator", "invalid", "refused", "too-large"),
)
async def open_campaign(request: Request) -> Response:
    """Seal a campaign.toml and open its next run; one that is open already is answered again."""
    require_operator(request)
    runner = runner_of(request)
    try:
        campaign = await runner.read(await request.body())
    except InvalidCampaign as error:
        raise Problem("invalid", str(error)) from None
    desk = await runner.open(campaign)
    return _shown(desk, runner, code=status.HTTP_201_CREATED)


@router.get(
    "/{run}",
    response_model=wire.CampaignView,
    summary="One run of a campaign",
    openapi_extra=takes("run"),
    responses=refusals("unknown-campaign"),
)
@also_head
async def campaign(request: Request) -> Response:
    """Sealed parameters, schedule, status and certificate."""
    return _shown(await desk_of(request), runner_of(request))


@router.delete(
    "/{run}",
    response_model=wire.CampaignView,
    summary="Stop a run",
    openapi_extra=takes("run", security="operator"),
    responses=refusals("unknown-campaign", "not-operator"),
)
async def stop_campaign(request: Request) -> Response:
    """No slot is released any more. It is priced as if the budget had been spent to its last slot:
    whoever stops a run may have looked at its releases."""
    require_operator(request)
    desk, runner = await desk_of(request), runner_of(request)
    await runner.end(desk)
    return _shown(desk, runner)


@router.get(
    "/{run}/progress",
    response_model=wire.Progress,
    summary="Learning curve and prices",
    openapi_extra=takes("run"),
    responses=refusals("unknown-campaign"),
)
async def progress(request: Request) -> Response:
    """What the page draws."""
    desk, runner = await desk_of(request), runner_of(request)
    closed = desk.public.stage.closed

    def releases() -> list[tuple[int, str]]:
        with runner.database.reading() as connection:
            return records.last_releases(
                connection, desk.terms.id, closed=closed, most=view.MOST_RELEASES
            )

    return answer(view.progress(desk, await runner.ask(releases)))


def _shown(desk: LiveRun, runner: Runner, *, code: int = status.HTTP_200_OK) -> Response:
    """The view, made once for as long as nothing changes; thousands of clients ask for it."""
    kind = str(runner.settings.enrolment.kind)
    holding = runner.clock_watch.holding
    body = desk.shown.get(
        lambda: json.dumps(
            view.view(desk, epoch=runner.epoch, enrolment=kind, holding=holding)
        ).encode()
    )
    clock = b', "server_time": "%b"}' % view.instant(runner.database.now()).encode()
    return Response(body[:-1] + clock, status_code=code, media_type=JSON)
