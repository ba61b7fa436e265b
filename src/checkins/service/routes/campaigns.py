"""Routes of campaigns: list, open, stop; and what is public of a run: model, ledger, events."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response, status
from fastapi.responses import StreamingResponse

from checkins.campaign import InvalidCampaign
from checkins.protocol import wire
from checkins.service.http.problems import Problem
from checkins.service.routes.requests import (
    PlainRoute,
    also_head,
    answer,
    integer_of,
    live_run_of,
    number_of,
    refusals,
    require_operator,
    returns,
    runner_of,
    schema_of,
    takes,
)
from checkins.service.runs import cached_responses, client_requests, event_stream
from checkins.service.runs.cached_responses import cached_model
from checkins.service.runs.live_run import LiveRun
from checkins.service.runs.runner import Runner

router = APIRouter(tags=["campaigns"], route_class=PlainRoute)
public_router = APIRouter(tags=["public"], route_class=PlainRoute)
EVENT_STREAM = "text/event-stream"


@router.get(
    wire.CAMPAIGNS_PATH,
    response_model=schema_of(wire.Campaigns),
    summary="The campaigns of this coordinator",
    responses=refusals(),
)
@also_head
async def campaigns(request: Request) -> Response:
    """Every run, newest first."""
    runner = runner_of(request)
    runs = [cached_responses.summary(run) for run in reversed(runner.live_runs.values())]
    return answer(
        wire.Campaigns(campaigns=runs, server_time=wire.format_time(runner.database.now()))
    )


@router.post(
    wire.CAMPAIGNS_PATH,
    response_model=schema_of(wire.CampaignView),
    status_code=status.HTTP_201_CREATED,
    summary="Open a campaign",
    openapi_extra=takes(security="operator", body=wire.CAMPAIGN_FILE),
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
    live_run = await runner.open(campaign)
    return _view(live_run, runner, code=status.HTTP_201_CREATED)


@router.get(
    wire.RUN_PATH,
    response_model=schema_of(wire.CampaignView),
    summary="One run of a campaign",
    openapi_extra=takes("run"),
    responses=refusals("unknown-campaign"),
)
@also_head
async def campaign(request: Request) -> Response:
    """Sealed parameters, schedule, status and certificate."""
    return _view(await live_run_of(request), runner_of(request))


@router.delete(
    wire.RUN_PATH,
    response_model=schema_of(wire.CampaignView),
    summary="Stop a run",
    openapi_extra=takes("run", security="operator"),
    responses=refusals("unknown-campaign", "not-operator"),
)
async def stop_campaign(request: Request) -> Response:
    """No slot is released any more. The run is accounted as if it had reached its last affordable
    slot: the decision to stop may depend on its releases."""
    require_operator(request)
    live_run, runner = await live_run_of(request), runner_of(request)
    await runner.end(live_run)
    return _view(live_run, runner)


@router.get(
    wire.PROGRESS_PATH,
    response_model=schema_of(wire.Progress),
    summary="Learning curve and epsilons",
    openapi_extra=takes("run"),
    responses=refusals("unknown-campaign"),
)
async def progress(request: Request) -> Response:
    """The data of the page's charts."""
    live_run, runner = await live_run_of(request), runner_of(request)
    return answer(await client_requests.progress(runner, live_run))


def _view(live_run: LiveRun, runner: Runner, *, code: int = status.HTTP_200_OK) -> Response:
    body = cached_responses.cached_view(
        live_run,
        epoch=runner.epoch,
        enrolment=str(runner.settings.enrolment.kind),
        holding=runner.clock_watch.holding,
        now=runner.database.now(),
    )
    return Response(body, status_code=code, media_type=wire.JSON)


@public_router.get(
    wire.LATEST_MODEL_PATH,
    response_class=Response,
    summary="The latest release",
    openapi_extra=takes("run", "If-None-Match"),
    responses=returns("Named float64 tensors as safetensors", wire.BYTES)
    | {304: {"description": "It is still the model of If-None-Match"}}
    | refusals("unknown-campaign"),
)
@also_head
async def latest(request: Request) -> Response:
    """Before the first release, the model that the campaign starts from."""
    live_run = await live_run_of(request)
    # Weak: the tensors are the same, and the order of the header may differ between workers.
    tag = f'W/"{live_run.public.model_hash}"'
    headers = {"etag": tag, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(cached_model(live_run, live_run.public), media_type=wire.BYTES, headers=headers)


@public_router.get(
    wire.LEDGER_PATH,
    response_class=Response,
    summary="The ledger of the population",
    openapi_extra=takes("run", "after"),
    responses=returns("ledger.jsonl, byte for byte", wire.LEDGER)
    | refusals("unknown-campaign", "invalid"),
)
async def ledger(request: Request) -> Response:
    """`checkins verify` recomputes everything from it."""
    live_run, runner = await live_run_of(request), runner_of(request)
    after = int(number_of(request, "after", whole=True))
    lines = await client_requests.ledger_parts(runner, live_run, after=after)
    name = 'attachment; filename="ledger.jsonl"'
    return StreamingResponse(lines, media_type=wire.LEDGER, headers={"content-disposition": name})


@public_router.get(
    wire.LEDGER_HEAD_PATH,
    response_model=schema_of(wire.LedgerPlace),
    summary="The head of the ledger when it had so many entries",
    openapi_extra=takes("run", "entries"),
    responses=refusals("unknown-campaign", "unknown-entry", "invalid"),
)
@also_head
async def head(request: Request) -> Response:
    """A ledger only grows: a device that saw this head before sees that nothing was rolled back."""
    live_run, runner = await live_run_of(request), runner_of(request)
    entries = integer_of(request, "entries")
    head = await client_requests.ledger_head(runner, live_run, entries=entries)
    return answer(wire.LedgerPlace(entries=entries, head=head))


@public_router.get(
    wire.EVENTS_PATH,
    response_class=Response,
    summary="Events as they happen",
    openapi_extra=takes("run"),
    responses=returns("Server-sent events: state, release, curve, status", EVENT_STREAM)
    | refusals("unknown-campaign"),
)
async def events(request: Request) -> Response:
    """`state` says where the run stands, `release` comes once for each release, `curve` for each
    point of the learning curve, `status` when it changes. What is sent about a slot does not depend
    on who was in it."""
    live_run, runner = await live_run_of(request), runner_of(request)
    if runner.listeners >= runner.settings.limits.listeners:
        raise Problem("busy", "too many listen already: ask again, or now and then", retry_after=30)
    return StreamingResponse(event_stream.events(live_run, runner), media_type=EVENT_STREAM)
