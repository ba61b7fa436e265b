"""Campaigns: what runs here, what is public about it, and the operator's word."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter, Request, Response, status

from checkins.errors import InvalidValue
from checkins.protocol.campaign import InvalidCampaign, parse_campaign
from checkins.service import view, wire
from checkins.service.problems import Problem, documented
from checkins.service.routes.parts import Operator, TheDesk, TheRunner
from checkins.service.runner import Runner
from checkins.service.store import records

router = APIRouter(prefix="/campaigns", tags=["campaigns"])


@router.get("", response_model=wire.Campaigns, summary="The campaigns of this coordinator")
async def campaigns(runner: TheRunner) -> Response:
    """Every run, newest first."""
    return _json(
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
    dependencies=[Operator],
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/toml": {"schema": {"type": "string"}}},
        }
    },
    responses=documented("not-operator", "invalid", "refused", "too-large"),
)
async def open_campaign(request: Request, runner: TheRunner) -> Response:
    """Seal a campaign.toml and open its next run; one that is open already is answered again."""
    body = await request.body()
    try:
        campaign = parse_campaign(body.decode("utf-8")).campaign
    except UnicodeDecodeError:
        raise InvalidValue("body", "...", "must be the UTF-8 text of a campaign.toml") from None
    except InvalidCampaign as error:
        raise Problem("invalid", str(error)) from None
    desk = await runner.open(campaign)
    return _json(_view(desk, runner), code=status.HTTP_201_CREATED)


@router.get(
    "/{run}",
    response_model=wire.CampaignView,
    summary="One run of a campaign",
    responses=documented("unknown-campaign"),
)
async def campaign(desk: TheDesk, runner: TheRunner) -> Response:
    """Sealed parameters, schedule, status and certificate."""
    return _json(_view(desk, runner))


@router.delete(
    "/{run}",
    response_model=wire.CampaignView,
    summary="Stop a run",
    dependencies=[Operator],
    responses=documented("unknown-campaign", "not-operator"),
)
async def stop_campaign(desk: TheDesk, runner: TheRunner) -> Response:
    """No slot is released any more. It is priced as if the budget had been spent to its last slot:
    whoever stops a run may have looked at its releases."""
    await runner.end(desk)
    return _json(_view(desk, runner))


@router.get(
    "/{run}/progress",
    response_model=wire.Progress,
    summary="Learning curve and prices",
    responses=documented("unknown-campaign"),
)
async def progress(desk: TheDesk, runner: TheRunner) -> Response:
    """What the page draws."""
    after = max(0, desk.standing.ledger.entries - view.MOST_RELEASES)

    def last_lines() -> list[bytes]:
        with runner.database.reading() as connection:
            return records.ledger_lines(
                connection, desk.terms.population, after=after, most=view.MOST_RELEASES
            )

    return _json(view.progress(desk, await runner.thread(last_lines)))


def _view(desk: Any, runner: Runner) -> dict[str, Any]:
    return view.view(desk, epoch=runner.epoch, now=runner.database.now())


def _json(content: dict[str, Any], *, code: int = status.HTTP_200_OK) -> Response:
    body = json.dumps(content, allow_nan=False).encode()
    return Response(body, status_code=code, media_type="application/json")
