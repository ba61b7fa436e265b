"""What anyone may fetch: the latest model, the ledger, events as they happen."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from checkins.protocol.encoding import MEDIA_TYPE
from checkins.service import view
from checkins.service.desk import Desk
from checkins.service.problems import Problem
from checkins.service.released import released_model
from checkins.service.routes.parts import BINARY, desk_of, number_of, refusals, runner_of, takes
from checkins.service.routes.plain import PlainRoute, also_head
from checkins.service.runner import Runner
from checkins.service.store import records

router = APIRouter(prefix="/campaigns/{run}", tags=["public"], route_class=PlainRoute)
KEEP_ALIVE_S = 15.0
MOST_AT_A_TIME = 4_000_000
"""Bytes of a ledger held for one reader, about."""
LINE_BYTES, NUMBER_BYTES = 500, 11
"""Of a line without its sum; of each number of the sum."""
LEDGER = "application/x-ndjson"


@router.get(
    "/models/latest",
    response_class=Response,
    summary="The latest release",
    openapi_extra=takes("run", "If-None-Match"),
    responses={
        200: {
            "description": "Named float64 tensors as safetensors",
            "content": {MEDIA_TYPE: {"schema": BINARY}},
        },
        304: {"description": "It is still the model of If-None-Match"},
        **refusals("unknown-campaign"),
    },
)
@also_head
async def latest(request: Request) -> Response:
    """Before the first release, the model that the campaign starts from."""
    desk = await desk_of(request)
    tag = f'W/"{desk.public.model_hash}"'  # the same tensors; workers order the header as they like
    headers = {"etag": tag, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(released_model(desk, desk.public), media_type=MEDIA_TYPE, headers=headers)


@router.get(
    "/ledger",
    response_class=Response,
    summary="The ledger of the population",
    openapi_extra=takes("run", "after"),
    responses={
        200: {
            "description": "ledger.jsonl, byte for byte",
            "content": {LEDGER: {"schema": {"type": "string"}}},
        },
        **refusals("unknown-campaign", "invalid"),
    },
)
async def ledger(request: Request) -> Response:
    """`checkins verify` recomputes everything from it."""
    desk, runner = await desk_of(request), runner_of(request)
    after = int(number_of(request, "after", whole=True))
    last = desk.public.ledger.entries
    line_bytes = LINE_BYTES + NUMBER_BYTES * desk.terms.dimension
    at_a_time = max(1, MOST_AT_A_TIME // line_bytes)

    def some(done: int) -> list[bytes]:
        with runner.database.reading() as connection:
            most = max(0, min(at_a_time, last - done))
            return records.ledger_lines(connection, desk.terms.population, after=done, most=most)

    first = await runner.ask(some, after)  # a store that is away is noticed before the head is sent

    async def lines() -> AsyncIterator[bytes]:
        found, done = first, after
        while found:
            yield b"".join(found)
            done += len(found)
            found = await runner.ask(some, done) if done < last else []

    name = 'attachment; filename="ledger.jsonl"'
    return StreamingResponse(lines(), media_type=LEDGER, headers={"content-disposition": name})


@router.get(
    "/events",
    response_class=Response,
    summary="Events as they happen",
    openapi_extra=takes("run"),
    responses={
        200: {
            "description": "Server-sent events: release, curve, status",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
        **refusals("unknown-campaign"),
    },
)
async def events(request: Request) -> Response:
    """`release` after each release, `curve` for each point of the learning curve, `status` when it
    changes. What is told of a slot does not depend on who was in it."""
    desk, runner = await desk_of(request), runner_of(request)
    if runner.listeners >= runner.settings.limits.listeners:
        raise Problem("busy", "too many listen already: ask again, or now and then", retry_after=30)
    told = _told(desk, runner)
    return StreamingResponse(told, media_type="text/event-stream")


async def _told(desk: Desk, runner: Runner) -> AsyncIterator[bytes]:
    """Events, counted as long as somebody listens."""
    runner.listeners += 1
    try:
        with runner.metrics.waiters.track_inprogress():
            async for event in _events(desk, runner):
                yield event
    finally:
        runner.listeners -= 1


async def _events(desk: Desk, runner: Runner) -> AsyncIterator[bytes]:
    status: tuple[str, str | None] = ("", None)
    told, points = ("", -1), len(desk.shown_curve)
    while not runner.stopping.is_set():
        now = desk.public.stage.closed
        holding = runner.clock_watch.holding
        if status != (desk.status, holding):
            status = (desk.status, holding)
            tells = {"status": desk.status, "next": desk.next_run, "holding": holding}
            yield _event("status", now, tells)
        if told != (desk.public.ledger.head, len(desk.prices)):
            told = (desk.public.ledger.head, len(desk.prices))
            yield _event("release", now, view.release(desk))
        for slots, metrics in desk.shown_curve[points:]:
            points += 1
            yield _event("curve", now, {"slots": slots, "metrics": metrics})
        if not await desk.change(most_s=KEEP_ALIVE_S):
            yield b": still here\n\n"


def _event(name: str, number: int, data: dict[str, Any]) -> bytes:
    return f"event: {name}\nid: {number}\ndata: {json.dumps(data)}\n\n".encode()
