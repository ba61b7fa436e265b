"""What routes share: how they read a request, and how they say so in the OpenAPI document.

Routes read the request themselves: it is declared in ``takes`` and not as FastAPI's dependencies,
which cost more than all the rest of a check-in.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request, Response, status
from starlette.requests import ClientDisconnect

from checkins.service.live_run import LiveRun
from checkins.service.problems import Problem, documented
from checkins.service.runner import Runner

MOST_SLOT = 10**12
MOST_ENTRIES = 10**15
RUN, SLOT, RECEIPT = r"[0-9a-f]{12}-[0-9]{1,7}", r"[1-9][0-9]{0,12}", r"[A-Za-z0-9_-]{8,64}"
JSON = "application/json"
T = TypeVar("T")

SECURITY = {
    "operator": {"type": "http", "scheme": "bearer", "description": "The operator's token"},
    "enrolment": {
        "type": "http",
        "scheme": "bearer",
        "description": "The shared secret or a listed key, where enrolment asks for one",
    },
    "token": {"type": "http", "scheme": "bearer", "description": "What enrolment gave"},
    "receipt": {"type": "http", "scheme": "bearer", "description": "What a check-in gave"},
}
PARAMETERS: dict[str, dict[str, Any]] = {
    "run": {
        "in": "path",
        "required": True,
        "description": "A run of a campaign: twelve digits of its seal, and its number",
        "schema": {"type": "string", "pattern": f"^{RUN}$"},
    },
    "slot": {
        "in": "path",
        "required": True,
        "description": "1, 2, ... of the run's slots",
        "schema": {"type": "integer", "minimum": 1, "maximum": MOST_SLOT},
    },
    "entries": {
        "in": "path",
        "required": True,
        "description": "How many entries the ledger had",
        "schema": {"type": "integer", "minimum": 1, "maximum": MOST_ENTRIES},
    },
    "receipt": {
        "in": "path",
        "required": True,
        "description": "What a check-in gave",
        "schema": {"type": "string", "pattern": f"^{RECEIPT}$"},
    },
    "Idempotency-Key": {
        "in": "header",
        "required": False,
        "description": "Anything random: the same key gets the same token, if an answer is lost",
        "schema": {"type": "string", "minLength": 16, "maxLength": 200, "pattern": "^[!-~]+$"},
    },
    "wait": {
        "in": "query",
        "required": False,
        "description": "Seconds to wait at most",
        "schema": {"type": "number", "minimum": 0, "maximum": 60, "default": 30},
    },
    "after": {
        "in": "query",
        "required": False,
        "description": "Leave out so many entries",
        "schema": {"type": "integer", "minimum": 0, "maximum": MOST_ENTRIES, "default": 0},
    },
    "If-None-Match": {
        "in": "header",
        "required": False,
        "description": "The ETag of a model that is already here",
        "schema": {"type": "string"},
    },
}


def takes(*names: str, security: str | None = None, body: str | None = None) -> dict[str, Any]:
    """What a route reads, as OpenAPI says it; ``body`` is a media type."""
    extra: dict[str, Any] = {
        "parameters": [{"name": name, **PARAMETERS[name]} for name in names],
    }
    if security is not None:
        extra["security"] = [{security: []}, {}] if security == "enrolment" else [{security: []}]
    if body is not None:
        kind = {"type": "string"} if body == "application/toml" else BINARY
        extra["requestBody"] = {"required": True, "content": {body: {"schema": kind}}}
    return extra


def refusals(*slugs: str) -> dict[int | str, dict[str, Any]]:
    """The problems that a route answers with, those that any request may meet among them."""
    return documented(*slugs, *(slug for slug in ALWAYS if slug not in slugs))


ALWAYS = ("too-slow", "too-large", "encoded", "too-many", "busy")
"""What the guard says before a route is reached, and a store that is away."""
BINARY = {"type": "string", "format": "binary"}


def runner_of(request: Request) -> Runner:
    runner: Runner = request.app.state.runner
    return runner


async def desk_of(request: Request) -> LiveRun:
    """The run that a request is about."""
    run = request.path_params["run"]
    desk = runner_of(request).desks.get(run)
    if desk is None and re.fullmatch(RUN, run):
        desk = await runner_of(request).find(run)  # another worker may have opened it just now
    if desk is None:
        raise Problem("unknown-campaign", "this coordinator has no such run; see GET /campaigns")
    return desk


def slot_of(request: Request) -> int:
    """The slot that a request is about."""
    text = request.path_params["slot"]
    if not re.fullmatch(SLOT, text) or int(text) > MOST_SLOT:
        raise Problem("invalid", f"slot: must be an integer from 1 to {MOST_SLOT:,}")
    return int(text)


def entries_of(request: Request) -> int:
    """How many entries of a ledger a request is about."""
    text = request.path_params["entries"]
    if not re.fullmatch(r"[1-9][0-9]{0,15}", text) or int(text) > MOST_ENTRIES:
        raise Problem("invalid", f"entries: must be an integer from 1 to {MOST_ENTRIES:,}")
    return int(text)


def credential_of(request: Request) -> str | None:
    """What stands after Bearer; None if nothing does."""
    scheme, _, credential = request.headers.get("authorization", "").partition(" ")
    credential = credential.strip()
    return credential if scheme.lower() == "bearer" and credential else None


def bearer_of(request: Request) -> str:
    """The token or receipt that a request must carry."""
    credential = credential_of(request)
    if credential is None:
        raise Problem("not-enrolled", "send your token or receipt as Authorization: Bearer")
    return credential


def number_of(request: Request, name: str, *, whole: bool = False) -> float:
    """A number of the query, within what ``PARAMETERS`` says."""
    schema = PARAMETERS[name]["schema"]
    given = request.query_params.getlist(name) or [str(schema["default"])]
    shape = r"[0-9]{1,16}" if whole else r"[0-9]{1,16}(\.[0-9]{0,16})?([eE][+-]?[0-9]{1,2})?"
    if len(given) == 1 and re.fullmatch(shape, given[0]):
        number = float(given[0])
        if schema["minimum"] <= number <= schema["maximum"]:
            return number
    raise Problem(
        "invalid",
        f"{name}: must be one number from {schema['minimum']} to {schema['maximum']:,}",
    )


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of work that may take long; ClientDisconnect once the client has hung up.

    Nobody else would notice before there is an answer to send.
    """
    await request.body()  # the end of the connection is heard after it
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(hung_up(request))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        watching.cancel()
        if working.cancel():
            await asyncio.wait({working})


async def hung_up(request: Request) -> None:
    """Returns once the client has; a body must have been read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def require_operator(request: Request) -> None:
    """Only the operator goes on."""
    if not runner_of(request).settings.is_operator(credential_of(request)):
        raise Problem("not-operator", "send the operator's token as Authorization: Bearer")


def refuse_if_over(desk: LiveRun) -> None:
    """Nothing is taken in any more."""
    if desk.is_over:
        raise Problem("over", "this run is over; its models and its ledger stay")


def answer(content: dict[str, Any], *, code: int = status.HTTP_200_OK) -> Response:
    """An object as JSON."""
    body = json.dumps(content, allow_nan=False).encode()
    return Response(body, status_code=code, media_type=JSON)
