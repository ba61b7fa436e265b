"""Routes to list, open and stop campaigns, and to read the model, ledger and events of a run.

The docstring of a route is its description in the OpenAPI document.
"""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter, Request, Response, status
from fastapi.responses import StreamingResponse

from checkins.campaign import InvalidCampaign
from checkins.protocol import wire
from checkins.service.http.problems import Problem
from checkins.service.routes.requests import (
    PlainRoute,
    also_head,
    integer_of,
    json_response,
    live_run_of,
    number_of,
    openapi_options,
    require_operator,
    runner_of,
)
from checkins.service.runs import cached_responses, client_requests, server_sent_events
from checkins.service.runs.cached_responses import cached_model
from checkins.service.runs.live_run import LiveRun
from checkins.service.runs.runner import Runner

router = APIRouter(tags=["campaigns"], route_class=PlainRoute)
public_router = APIRouter(tags=["public"], route_class=PlainRoute)
EVENT_STREAM = "text/event-stream"


@router.get(
    wire.CAMPAIGNS_PATH, **openapi_options("The campaigns of this coordinator", wire.Campaigns)
)
@also_head
async def campaigns(request: Request) -> Response:
    """The list contains every run, newest first."""
    runner = runner_of(request)
    runs = [cached_responses.summary(run) for run in reversed(runner.live_runs.values())]
    return json_response(
        wire.Campaigns(campaigns=runs, server_time=wire.format_time(runner.database.now()))
    )


@router.post(
    wire.CAMPAIGNS_PATH,
    status_code=status.HTTP_201_CREATED,
    **openapi_options(
        "Open a campaign",
        wire.CampaignView,
        security="operator",
        body=wire.CAMPAIGN_FILE_TYPE,
        problems=("invalid", "refused", "too-large"),
    ),
)
async def open_campaign(request: Request) -> Response:
    """The body is a campaign.toml. The coordinator seals it and opens its next run. If a run of the
    campaign is already open, the response describes that run."""
    operator, runner = await require_operator(request), runner_of(request)
    try:
        campaign = await runner.parse_campaign(await request.body())
    except InvalidCampaign as error:
        raise Problem("invalid", str(error)) from None
    live_run = await runner.open(campaign, operator=operator)
    await runner.write_progress_file()
    return _view(live_run, runner, code=status.HTTP_201_CREATED)


@router.get(wire.RUN_PATH, **openapi_options("One run of a campaign", wire.CampaignView, "run"))
@also_head
async def campaign(request: Request) -> Response:
    """The response contains the sealed parameters, the schedule, the status and the certificate."""
    return _view(await live_run_of(request), runner_of(request))


@router.delete(
    wire.RUN_PATH, **openapi_options("Stop a run", wire.CampaignView, "run", security="operator")
)
async def stop_campaign(request: Request) -> Response:
    """No further slot is released, and no further run of the campaign follows. The epsilon is
    computed as if the run had reached the last slot that the budget allows, because the decision to
    stop may depend on the releases."""
    operator = await require_operator(request)
    live_run, runner = await live_run_of(request), runner_of(request)
    await runner.stop_run(live_run, operator=operator)
    await runner.write_progress_file()
    return _view(live_run, runner)


@router.get(
    wire.PROGRESS_PATH, **openapi_options("Learning curve and epsilons", wire.Progress, "run")
)
async def progress(request: Request) -> Response:
    """The response contains the data that the web page of the run draws as charts."""
    live_run, runner = await live_run_of(request), runner_of(request)
    return json_response(await client_requests.progress(runner, live_run))


def _view(live_run: LiveRun, runner: Runner, *, code: int = status.HTTP_200_OK) -> Response:
    body = cached_responses.cached_view(
        live_run,
        epoch=runner.epoch,
        enrolment=str(runner.settings.enrolment.kind),
        holding=runner.clock_jumps.holding_reason,
        signing_key=runner.signing_key and runner.signing_key.public_key,
        now=runner.database.now(),
    )
    return Response(body, status_code=code, media_type=wire.JSON_TYPE)


@public_router.get(
    wire.LATEST_MODEL_PATH,
    **openapi_options(
        "The latest release",
        ("Named float64 tensors as safetensors", wire.BYTES_TYPE),
        "run If-None-Match",
    ),
)
@also_head
async def latest(request: Request) -> Response:
    """Before the first release, this is the initial model of the run."""
    live_run = await live_run_of(request)
    # The ETag is weak, because two workers may write the fields of the safetensors header in
    # different orders. The tensors are the same.
    tag = f'W/"{live_run.public_snapshot.model_hash}"'
    headers = {"etag": tag, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(
        cached_model(live_run, live_run.public_snapshot),
        media_type=wire.BYTES_TYPE,
        headers=headers,
    )


@public_router.get(
    wire.LEDGER_PATH,
    **openapi_options(
        "The ledger of the population",
        ("The lines of ledger.jsonl, byte for byte", wire.LEDGER_TYPE),
        "run after",
        problems=("invalid",),
    ),
)
async def ledger(request: Request) -> Response:
    """`checkins verify` recomputes every model, epsilon and certificate from the ledger."""
    live_run, runner = await live_run_of(request), runner_of(request)
    after = int(number_of(request, "after", is_integer=True))
    lines = await client_requests.ledger_parts(runner, live_run, after=after)
    headers = {"content-disposition": 'attachment; filename="ledger.jsonl"'}
    return StreamingResponse(lines, media_type=wire.LEDGER_TYPE, headers=headers)


@public_router.get(
    wire.LEDGER_HEAD_PATH,
    **openapi_options(
        "The hash of one line of the ledger",
        wire.LedgerPlace,
        "run entries",
        problems=("unknown-entry", "invalid"),
    ),
)
@also_head
async def head(request: Request) -> Response:
    """The response contains the hash of line number `entries`. This hash was the head of the ledger
    when the ledger had exactly `entries` lines. A device compares this hash with the head that it
    recorded then. If the hashes differ, the service was rolled back."""
    live_run, runner = await live_run_of(request), runner_of(request)
    entries = integer_of(request, "entries")
    head = await client_requests.ledger_head(runner, live_run, entries=entries)
    return json_response(wire.LedgerPlace(entries=entries, head=head))


@public_router.get(
    wire.SIGNED_HEAD_PATH,
    **openapi_options(
        "The signed hash of one line of the ledger",
        wire.SignedHead,
        "run entries",
        problems=("unknown-entry", "unknown-path", "invalid"),
    ),
)
@also_head
async def signed_head(request: Request) -> Response:
    """The response states which hash the ledger had when it had exactly `entries` lines, signed
    with the key of the coordinator. If the coordinator has no key, the problem is `unknown-path`.
    `checkins verify --key` checks the signature."""
    live_run, runner = await live_run_of(request), runner_of(request)
    entries = integer_of(request, "entries")
    if runner.signing_key is None:
        raise Problem("unknown-path", "this coordinator has no key, so it signs no ledger")
    head = await client_requests.ledger_head(runner, live_run, entries=entries)
    signed = runner.signing_key.sign_head(
        population=live_run.spec.population, entries=entries, head=head
    )
    return json_response(asdict(signed))


@public_router.get(
    wire.EVENTS_PATH,
    **openapi_options(
        "Events as they happen",
        ("Server-sent events: state, release, curve, status", EVENT_STREAM),
        "run",
    ),
)
async def events(request: Request) -> Response:
    """A `state` event contains the current position of the run. A `release` event is sent for each
    release, a `curve` event for each point of the learning curve, and a `status` event when the
    status changes. Events reveal nothing about the clients of a slot except the released model."""
    live_run, runner = await live_run_of(request), runner_of(request)
    if runner.listeners >= runner.settings.limits.listeners:
        raise Problem(
            "busy", "too many event streams are open: try again later, or poll", retry_after=30
        )
    return StreamingResponse(server_sent_events.events(live_run, runner), media_type=EVENT_STREAM)
