"""What anyone may fetch: the latest model, the ledger, events as they happen."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from checkins.protocol.report import MEDIA_TYPE
from checkins.service import view, wire
from checkins.service.live_run import LiveRun
from checkins.service.problems import Problem
from checkins.service.released import released_model
from checkins.service.routes.requests import (
    BINARY,
    answer,
    desk_of,
    entries_of,
    number_of,
    refusals,
    runner_of,
    takes,
)
from checkins.service.routes.routing import PlainRoute, also_head
from checkins.service.runner import Runner
from checkins.service.store import records
from checkins.service.store.records import RunSnapshot

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
    "/ledger/heads/{entries}",
    response_model=wire.LedgerPlace,
    summary="The head of the ledger when it had so many entries",
    openapi_extra=takes("run", "entries"),
    responses=refusals("unknown-campaign", "unknown-entry", "invalid"),
)
@also_head
async def head(request: Request) -> Response:
    """A ledger only grows: whoever saw this head before sees that the service was not set back."""
    desk, runner = await desk_of(request), runner_of(request)
    entries = entries_of(request)
    if entries > desk.public.ledger.entries:  # what is not shown yet is not told here either
        raise Problem("unknown-entry", f"it has {desk.public.ledger.entries:,} entries so far")

    def found() -> list[str]:
        with runner.database.reading() as connection:
            return records.ledger_heads(
                connection, desk.terms.population, after=entries - 1, most=1
            )

    (there,) = await runner.ask(found)
    return answer({"entries": entries, "head": there})


@router.get(
    "/events",
    response_class=Response,
    summary="Events as they happen",
    openapi_extra=takes("run"),
    responses={
        200: {
            "description": "Server-sent events: state, release, curve, status",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
        **refusals("unknown-campaign"),
    },
)
async def events(request: Request) -> Response:
    """`state` says where the run stands, `release` comes once for each release, `curve` for each
    point of the learning curve, `status` when it changes. What is told of a slot does not depend on
    who was in it."""
    desk, runner = await desk_of(request), runner_of(request)
    if runner.listeners >= runner.settings.limits.listeners:
        raise Problem("busy", "too many listen already: ask again, or now and then", retry_after=30)
    told = _told(desk, runner)
    return StreamingResponse(told, media_type="text/event-stream")


async def _told(desk: LiveRun, runner: Runner) -> AsyncIterator[bytes]:
    """Events, counted as long as somebody listens."""
    runner.listeners += 1
    try:
        with runner.metrics.waiters.track_inprogress():
            async for event in _events(desk, runner):
                yield event
    finally:
        runner.listeners -= 1


async def _events(desk: LiveRun, runner: Runner) -> AsyncIterator[bytes]:
    listener = _Listener(desk, runner)
    while not runner.stopping.is_set():
        events = await listener.news()
        for event in events:
            yield event
        # Nothing can change unnoticed between having no news and waiting for some.
        if not events and not await desk.change(most_s=KEEP_ALIVE_S):
            yield b": still here\n\n"


class _Listener:
    """One who listens to a run, and what was told so far."""

    def __init__(self, desk: LiveRun, runner: Runner) -> None:
        self._desk = desk
        self._runner = runner
        self._status: dict[str, str | None] = {}
        self._state: dict[str, Any] = {}
        self._slots = desk.public.stage.closed
        self._entries = desk.public.ledger.entries
        self._points = len(desk.shown_curve)

    async def news(self) -> list[bytes]:
        """The events that were not told yet, in their order."""
        desk, public, told = self._desk, self._desk.public, []
        now = public.stage.closed
        status = {"status": desk.status, "holding": self._runner.clock_watch.holding}
        if status != self._status:
            self._status = status
            told.append(_event("status", now, {**status, "next": desk.next_run}))
        if now > self._slots:
            for release in await self._releases(public):
                told.append(_event("release", release["slot"], release))
                self._state = {name: release[name] for name in release if name != "slot"}
            self._entries += now - self._slots
            self._slots = now
        if desk.public is public:  # else there is another release to tell first
            state = view.state(desk)
            if state != self._state:
                self._state = state
                told.append(_event("state", now, state))
        for slots, metrics in desk.shown_curve[self._points :]:
            self._points += 1
            told.append(_event("curve", now, {"slots": slots, "metrics": metrics}))
        return told

    async def _releases(self, public: RunSnapshot) -> list[dict[str, Any]]:
        """The releases since the last one that was told; a slow reader may have missed some.

        Each slot of a run that is open has the next line of the ledger.
        """
        desk, first, closed = self._desk, self._slots + 1, public.stage.closed
        if first == closed and public.stage.ending is None:
            hashes, heads = [(closed, public.model_hash)], [public.ledger.head]
        else:
            hashes, heads = await self._runner.ask(self._stored, first, closed)
        return [
            view.release(
                desk,
                slot,
                model_hash=model_hash,
                head=heads[slot - first],
                entries=self._entries + slot - first + 1,
            )
            for slot, model_hash in hashes
            if desk.terms.rules.releases(slot)
        ]

    def _stored(self, first: int, closed: int) -> tuple[list[tuple[int, str]], list[str]]:
        terms, most = self._desk.terms, closed - first + 1
        with self._runner.database.reading() as connection:
            hashes = records.last_releases(connection, terms.id, closed=closed, most=most)
            heads = records.ledger_heads(
                connection, terms.population, after=self._entries, most=most
            )
        return hashes, heads


def _event(name: str, number: int, data: dict[str, Any]) -> bytes:
    return f"event: {name}\nid: {number}\ndata: {json.dumps(data)}\n\n".encode()
