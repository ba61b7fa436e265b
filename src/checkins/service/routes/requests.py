"""Functions that parse requests and describe routes for OpenAPI, and the route classes.

Routes parse requests themselves, because FastAPI's dependency injection takes more time than the
rest of a check-in. ``described`` declares what they read, for the OpenAPI document.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Mapping
from functools import lru_cache, reduce
from operator import or_
from types import UnionType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints, is_typeddict

from fastapi import Request, Response, status
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field, create_model
from starlette.requests import ClientDisconnect
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from checkins.protocol import wire
from checkins.service.http.problems import Problem, problem_responses
from checkins.service.runs.live_run import LiveRun
from checkins.service.runs.runner import Runner

MAX_SLOT = 10**12
MAX_ENTRIES = 10**15
RECEIPT = r"[A-Za-z0-9_-]{8,64}"
T = TypeVar("T")

SECURITY = {
    name: {"type": "http", "scheme": "bearer", "description": description}
    for name, description in {
        "operator": "The operator's token",
        "enrolment": "The shared secret or a listed key, if enrolment requires one",
        "token": "The token of an enrolment",
        "receipt": "The receipt of a check-in",
    }.items()
}


def parameter(place: str, description: str, required: bool, **schema: Any) -> dict[str, Any]:
    """Return the OpenAPI description of a parameter in the path, the query or a header."""
    return {"in": place, "required": required, "description": description, "schema": schema}


_RUN = "The id of a run: twelve digits of the campaign's seal, and the number of the run"
_KEY = "A random string. A retry with the same key gets the same token"
_COUNT = {"type": "integer", "maximum": MAX_ENTRIES}
_WAIT = {"minimum": 0, "maximum": 60, "default": 30}
_VISIBLE = {"minLength": 16, "maxLength": 200, "pattern": "^[!-~]+$"}
PARAMETERS: dict[str, dict[str, Any]] = {
    "run": parameter("path", _RUN, True, type="string", pattern=f"^{wire.RUN_ID}$"),
    "slot": parameter(
        "path", "The number of a slot, from 1", True, type="integer", minimum=1, maximum=MAX_SLOT
    ),
    "entries": parameter("path", "The number of the line", True, **_COUNT, minimum=1),
    "receipt": parameter(
        "path", "The receipt of a check-in", True, type="string", pattern=f"^{RECEIPT}$"
    ),
    "Idempotency-Key": parameter("header", _KEY, False, type="string", **_VISIBLE),
    "wait": parameter("query", "Longest wait in seconds", False, type="number", **_WAIT),
    "after": parameter("query", "Number of lines to skip", False, **_COUNT, minimum=0, default=0),
    "If-None-Match": parameter(
        "header", "The ETag of a model that you already have", False, type="string"
    ),
}


COMMON_PROBLEMS = "too-slow too-large encoded too-many busy"
"""Problems that every route may return: exceeded limits, or a database that does not respond."""
BINARY = {"type": "string", "format": "binary"}


def described(
    summary: str,
    response: type | tuple[str, str] | None,
    parameters: str = "",
    *,
    security: str | None = None,
    body: str | None = None,
    problems: str = "",
) -> dict[str, Any]:
    """Return the arguments of a route's decorator that describe it in the OpenAPI document.

    ``response`` is a ``TypedDict`` of ``wire`` for JSON, the description and media type of other
    content, or None if the response is empty. ``parameters`` are names in ``PARAMETERS``,
    ``security`` is a name in ``SECURITY``, and ``body`` the media type of the body. ``problems``
    are slugs of problem types, to which those of the run, the credential and every route are added.
    """
    route: dict[str, Any] = {"summary": summary}
    names = parameters.split()
    extra: dict[str, Any] = {"parameters": [{"name": name, **PARAMETERS[name]} for name in names]}
    if security is not None:
        extra["security"] = [{security: []}, {}] if security == "enrolment" else [{security: []}]
        problems = f"{'not-operator' if security == 'operator' else 'not-enrolled'} {problems}"
    if body is not None:
        kind = {"type": "string"} if body == wire.CAMPAIGN_FILE else BINARY
        extra["requestBody"] = {"required": True, "content": {body: {"schema": kind}}}
    if names or security:
        route["openapi_extra"] = extra
    if "run" in names:
        problems = f"unknown-campaign {problems}"
    route["responses"] = problem_responses(*dict.fromkeys(f"{problems} {COMMON_PROBLEMS}".split()))
    if isinstance(response, tuple):
        description, media_type = response
        schema = BINARY if media_type == wire.BYTES else {"type": "string"}
        content = {"description": description, "content": {media_type: {"schema": schema}}}
        route |= {"response_class": Response, "responses": {200: content} | route["responses"]}
    elif response is not None:
        route["response_model"] = schema_of(response)
    if "If-None-Match" in names:
        not_modified = {"description": "The latest model is the one in If-None-Match"}
        route["responses"][status.HTTP_304_NOT_MODIFIED] = not_modified
    return route


def runner_of(request: Request) -> Runner:
    runner: Runner = request.app.state.runner
    return runner


async def live_run_of(request: Request) -> LiveRun:
    """Return the run in the path of a request; raise ``unknown-campaign`` if there is none."""
    run = request.path_params["run"]
    live_run = runner_of(request).live_runs.get(run)
    if live_run is None and re.fullmatch(wire.RUN_ID, run):
        live_run = await runner_of(request).find(run)  # another worker may have just opened the run
    if live_run is None:
        raise Problem("unknown-campaign", "this coordinator has no such run; see GET /campaigns")
    return live_run


def integer_of(request: Request, name: str) -> int:
    """Return an integer in the path of a request; raise ``invalid`` if it is malformed."""
    text, most = request.path_params[name], PARAMETERS[name]["schema"]["maximum"]
    if not re.fullmatch(r"[1-9][0-9]{0,15}", text) or int(text) > most:
        raise Problem("invalid", f"{name}: must be an integer from 1 to {most:,}")
    return int(text)


def credential_of(request: Request) -> str | None:
    """Return the Bearer credential of a request, or None if there is none."""
    scheme, _, credential = request.headers.get("authorization", "").partition(" ")
    credential = credential.strip()
    return credential if scheme.lower() == "bearer" and credential else None


def bearer_of(request: Request) -> str:
    """Return the Bearer credential of a request; raise ``not-enrolled`` if there is none."""
    credential = credential_of(request)
    if credential is None:
        raise Problem("not-enrolled", "send your token or receipt as Authorization: Bearer")
    return credential


def number_of(request: Request, name: str, *, whole: bool = False) -> float:
    """Return a number in the query, or its default; raise ``invalid`` if it is out of range."""
    schema = PARAMETERS[name]["schema"]
    given = request.query_params.getlist(name) or [str(schema["default"])]
    shape = r"[0-9]{1,16}" if whole else r"[0-9]{1,16}(\.[0-9]{0,16})?([eE][+-]?[0-9]{1,2})?"
    if len(given) == 1 and re.fullmatch(shape, given[0]):
        number = float(given[0])
        if schema["minimum"] <= number <= schema["maximum"]:
            return number
    raise Problem(
        "invalid", f"{name}: must be one number from {schema['minimum']} to {schema['maximum']:,}"
    )


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of slow work; raise ClientDisconnect as soon as the client disconnects.

    Without this function, the service would notice a disconnection only when it sends the response.
    """
    await request.body()  # receive() reports a disconnection only after the body
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(disconnected(request))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        watching.cancel()
        if working.cancel():
            await asyncio.wait({working})


async def disconnected(request: Request) -> None:
    """Return once the client has disconnected. The body must have been read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def require_operator(request: Request) -> None:
    """Raise ``not-operator`` unless the request has the operator's token."""
    if not runner_of(request).settings.is_operator(credential_of(request)):
        raise Problem("not-operator", "send the operator's token as Authorization: Bearer")


def json_response(shape: Mapping[str, object], *, code: int = status.HTTP_200_OK) -> Response:
    """Return a ``TypedDict`` of ``wire`` as a JSON response."""
    return Response(wire.to_json(shape), status_code=code, media_type=wire.JSON)


@lru_cache
def schema_of(shape: type) -> type[BaseModel]:
    """Return the pydantic model that describes a ``TypedDict`` of ``wire`` in OpenAPI."""
    fields: dict[str, Any] = {}
    for name, hint in get_type_hints(shape, include_extras=True).items():
        described = get_origin(hint) is Annotated
        kind, text = get_args(hint) if described else (hint, None)
        fields[name] = (_with_models(kind), Field(description=text))
    return create_model(shape.__name__, __doc__=shape.__doc__, **fields)


def _with_models(kind: Any) -> Any:
    """Replace every ``TypedDict`` in a type, such as ``list[Summary]``, by its model."""
    if is_typeddict(kind):
        return schema_of(kind)
    if get_origin(kind) is list:
        return list[_with_models(*get_args(kind))]  # type: ignore[misc]
    if get_origin(kind) is UnionType:
        return reduce(or_, map(_with_models, get_args(kind)))
    return kind


Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


def also_head(endpoint: Endpoint) -> Endpoint:
    """Let a GET route respond to HEAD too. The server omits the body.

    Routes that wait or stream do not use it. The OpenAPI document does not list HEAD, because the
    operation would appear twice.
    """
    endpoint.also_head = True  # type: ignore[attr-defined]
    return endpoint


class HeadRoute(APIRoute):
    """FastAPI's route. It accepts HEAD too if its endpoint has the decorator ``also_head``."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.allowed = frozenset(self.methods or ())
        if getattr(self.endpoint, "also_head", False):
            self.allowed |= {"HEAD"}

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child_scope = super().matches(scope)
        if match is Match.PARTIAL and scope["method"] in self.allowed:
            return Match.FULL, child_scope
        return match, child_scope

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] in self.allowed:
            await self.app(scope, receive, send)
        else:
            await super().handle(scope, receive, send)


class PlainRoute(HeadRoute):
    """A route that FastAPI matches and documents, without dependency injection and validation.

    The endpoint receives the request and returns a response. FastAPI's own handling takes more time
    than the rest of a check-in.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] in self.allowed:
            response = await self.endpoint(Request(scope, receive, send))
            await response(scope, receive, send)
        else:
            await super().handle(scope, receive, send)
