"""Functions that parse requests and describe routes for OpenAPI, and the route classes.

Routes parse requests themselves, because FastAPI's dependency injection takes more time than the
rest of a check-in. ``openapi_options`` therefore declares their parameters and responses for the
OpenAPI document.

``wire`` defines every JSON object that the service and its clients exchange. Where a docstring says
that a function raises ``invalid`` or another slug, it raises a ``Problem`` of this type.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
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

from checkins.ledger.operator_log import OPERATOR_NAME, TOKEN_FILE
from checkins.protocol import wire
from checkins.service import authentication
from checkins.service.http.problems import Problem, problem_responses
from checkins.service.runs.live_run import LiveRun
from checkins.service.runs.runner import Runner
from checkins.service.store import operators

MAX_SLOT = 10**12
"""Largest number of a slot that a path may contain."""
MAX_ENTRIES = 10**15
"""Largest number of a ledger line that a path or a query may contain."""
RECEIPT_PATTERN = r"[A-Za-z0-9_-]{8,64}"
Result = TypeVar("Result")

SECURITY_SCHEMES = {
    name: {"type": "http", "scheme": "bearer", "description": description}
    for name, description in {
        "operator": "The token of an operator",
        "enrolment": "The shared secret or a listed key, if enrolment requires one",
        "token": "The token of an enrolment",
        "receipt": "The receipt of a check-in",
    }.items()
}


def parameter(location: str, description: str, required: bool, **schema: Any) -> dict[str, Any]:
    """Return the OpenAPI description of a parameter whose location is path, query or header."""
    return {"in": location, "required": required, "description": description, "schema": schema}


_RUN_MEANING = "The id of a run: twelve digits of the campaign's seal, and the number of the run"
_KEY_MEANING = "A random string. A retry with the same key gets the same token"
_LINES_SCHEMA = {"type": "integer", "maximum": MAX_ENTRIES}
_WAIT_SCHEMA = {"minimum": 0, "maximum": 60, "default": 30}
_WITH_MODEL_MEANING = "Whether to respond with the outcome and, if you were chosen, with the model"
_KEY_SCHEMA = {"minLength": 16, "maxLength": 200, "pattern": "^[!-~]+$"}
PARAMETERS: dict[str, dict[str, Any]] = {
    "run": parameter("path", _RUN_MEANING, True, type="string", pattern=f"^{wire.RUN_ID}$"),
    "slot": parameter(
        "path", "The number of a slot, from 1", True, type="integer", minimum=1, maximum=MAX_SLOT
    ),
    "entries": parameter("path", "The number of a ledger line", True, **_LINES_SCHEMA, minimum=1),
    "receipt": parameter(
        "path", "The receipt of a check-in", True, type="string", pattern=f"^{RECEIPT_PATTERN}$"
    ),
    "Idempotency-Key": parameter("header", _KEY_MEANING, False, type="string", **_KEY_SCHEMA),
    "name": parameter(
        "path", "The name of an operator", True, type="string", pattern=f"^{OPERATOR_NAME.pattern}$"
    ),
    "wait": parameter("query", "Longest wait in seconds", False, type="number", **_WAIT_SCHEMA),
    "model": parameter("query", _WITH_MODEL_MEANING, False, type="boolean", default=False),
    "after": parameter(
        "query", "Number of lines to skip", False, **_LINES_SCHEMA, minimum=0, default=0
    ),
    "If-None-Match": parameter(
        "header", "The ETag of a model that you already have", False, type="string"
    ),
}


COMMON_PROBLEMS = ("too-slow", "too-large", "encoded", "too-many", "busy")
"""Slugs of problems that every route may return: a limit is exceeded, or the database is busy."""
BINARY_SCHEMA = {"type": "string", "format": "binary"}


def openapi_options(
    summary: str,
    response: type | UnionType | tuple[str, str] | None,
    parameters: str = "",
    *,
    security: str | None = None,
    body: str | type | None = None,
    problems: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the arguments of a route's decorator that describe the route in OpenAPI.

    ``response`` is a ``TypedDict`` of ``wire`` or a union of them if the response is JSON, a tuple
    of description and media type if it is other content, or None if it is empty. ``parameters``
    lists names in ``PARAMETERS``, separated by spaces. ``security`` is a name in
    ``SECURITY_SCHEMES``, or None if no credential is needed. ``body`` is the media type of the
    request's body, a ``TypedDict`` of ``wire`` if it is JSON, or None without a body. ``problems``
    are the slugs of problem types that the route may return. The problems of an unknown run, of a
    missing credential and ``COMMON_PROBLEMS`` are added.
    """
    options: dict[str, Any] = {"summary": summary}
    names = parameters.split()
    extra: dict[str, Any] = {"parameters": [{"name": name, **PARAMETERS[name]} for name in names]}
    if security is not None:
        extra["security"] = [{security: []}, {}] if security == "enrolment" else [{security: []}]
        problems = ("not-operator" if security == "operator" else "not-enrolled", *problems)
    if body is not None:
        media_type = body if isinstance(body, str) else wire.JSON_TYPE
        body_schema: dict[str, Any] = BINARY_SCHEMA
        if body == wire.CAMPAIGN_FILE_TYPE:
            body_schema = {"type": "string"}
        elif isinstance(body, type):
            body_schema = schema_of(body).model_json_schema()
        extra["requestBody"] = {"required": True, "content": {media_type: {"schema": body_schema}}}
    if names or security:
        options["openapi_extra"] = extra
    if "run" in names:
        problems = ("unknown-campaign", *problems)
    options["responses"] = problem_responses(*dict.fromkeys((*problems, *COMMON_PROBLEMS)))
    if isinstance(response, tuple):
        description, media_type = response
        schema = BINARY_SCHEMA if media_type == wire.BYTES_TYPE else {"type": "string"}
        content = {"description": description, "content": {media_type: {"schema": schema}}}
        options |= {"response_class": Response, "responses": {200: content} | options["responses"]}
    elif response is not None:
        options["response_model"] = _with_models(response)
    if "If-None-Match" in names:
        not_modified = {"description": "The latest model is the one in If-None-Match"}
        options["responses"][status.HTTP_304_NOT_MODIFIED] = not_modified
    return options


def runner_of(request: Request) -> Runner:
    runner: Runner = request.app.state.runner
    return runner


async def live_run_of(request: Request) -> LiveRun:
    """Return the run whose id is in the path; raise ``unknown-campaign`` if there is none."""
    run = request.path_params["run"]
    live_run = runner_of(request).live_runs.get(run)
    if live_run is None and re.fullmatch(wire.RUN_ID, run):
        # Another worker process may have just opened the run, so look in the database.
        live_run = await runner_of(request).find(run)
    if live_run is None:
        raise Problem("unknown-campaign", "this coordinator has no such run; see GET /campaigns")
    return live_run


def integer_of(request: Request, name: str) -> int:
    """Return an integer in the path of a request; raise ``invalid`` if it is malformed."""
    text, maximum = request.path_params[name], PARAMETERS[name]["schema"]["maximum"]
    if not re.fullmatch(r"[1-9][0-9]{0,15}", text) or int(text) > maximum:
        raise Problem("invalid", f"{name}: must be an integer from 1 to {maximum:,}")
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


def number_of(request: Request, name: str, *, is_integer: bool = False) -> float:
    """Return a number in the query, or its default; raise ``invalid`` if it is out of range."""
    schema = PARAMETERS[name]["schema"]
    texts = request.query_params.getlist(name) or [str(schema["default"])]
    decimal = r"[0-9]{1,16}(\.[0-9]{0,16})?([eE][+-]?[0-9]{1,2})?"
    pattern = r"[0-9]{1,16}" if is_integer else decimal
    if len(texts) == 1 and re.fullmatch(pattern, texts[0]):
        number = float(texts[0])
        if schema["minimum"] <= number <= schema["maximum"]:
            return number
    raise Problem(
        "invalid", f"{name}: must be one number from {schema['minimum']} to {schema['maximum']:,}"
    )


def with_model_of(request: Request) -> bool:
    """Return the parameter ``model`` of the query; raise ``invalid`` if it is no boolean."""
    texts = request.query_params.getlist("model") or ["false"]
    if len(texts) == 1 and texts[0] in ("true", "false"):
        return texts[0] == "true"
    raise Problem("invalid", "model: must be true or false")


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of slow work; raise ClientDisconnect as soon as the client disconnects.

    Without this function, the service would notice a disconnection only when it sends the response.
    """
    await request.body()  # receive() reports a disconnection only after the body
    work_task = asyncio.ensure_future(work)
    disconnect_task = asyncio.ensure_future(wait_for_disconnect(request))
    try:
        await asyncio.wait({work_task, disconnect_task}, return_when=asyncio.FIRST_COMPLETED)
        if not work_task.done():
            raise ClientDisconnect
        return work_task.result()
    finally:
        disconnect_task.cancel()
        if work_task.cancel():
            await asyncio.wait({work_task})


async def wait_for_disconnect(request: Request) -> None:
    """Return once the client has disconnected. The body must have been read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def require_operator(request: Request, *, only_metrics: bool = False) -> str:
    """Return the name of the operator whose token a request has; raise ``not-operator`` if none.

    If ``only_metrics``, a token that may only read the metrics is enough. The store decides for
    each request whether a token is valid, so a revoked token is valid nowhere.
    """
    runner, credential = runner_of(request), credential_of(request)
    if authentication.is_operator(credential, runner.settings.operator_token):
        return TOKEN_FILE
    found = None
    if credential is not None:
        token = authentication.hashed(credential)
        found = await runner.read_store(operators.operator_with, token)
    if found is None:
        raise Problem("not-operator", "send an operator's token as Authorization: Bearer")
    name, role = found
    if role != "operator" and not only_metrics:
        raise Problem("not-operator", "this token may only read the metrics")
    return name


def json_response(body: Mapping[str, object], *, code: int = status.HTTP_200_OK) -> Response:
    """Return a ``TypedDict`` of ``wire`` as a JSON response."""
    return Response(wire.to_json(body), status_code=code, media_type=wire.JSON_TYPE)


@lru_cache
def schema_of(wire_type: type) -> type[BaseModel]:
    """Return the pydantic model that describes a ``TypedDict`` of ``wire`` in OpenAPI."""
    fields: dict[str, Any] = {}
    for name, hint in get_type_hints(wire_type, include_extras=True).items():
        is_annotated = get_origin(hint) is Annotated
        kind, text = get_args(hint) if is_annotated else (hint, None)
        fields[name] = (_with_models(kind), Field(description=text))
    return create_model(wire_type.__name__, __doc__=wire_type.__doc__, **fields)


def _with_models(kind: Any) -> Any:
    """Replace every ``TypedDict`` in a type, such as ``list[Summary]``, by its pydantic model."""
    if is_typeddict(kind):
        return schema_of(kind)
    if get_origin(kind) is list:
        return list[_with_models(*get_args(kind))]  # type: ignore[misc]
    if get_origin(kind) is UnionType:
        return reduce(or_, map(_with_models, get_args(kind)))
    return kind


Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


def also_head(endpoint: Endpoint) -> Endpoint:
    """Decorator of an endpoint: its GET route responds to HEAD too. The server omits the body.

    Routes that wait or stream do not have this decorator. The OpenAPI document does not list HEAD,
    because the operation would appear twice.
    """
    endpoint.also_head = True  # type: ignore[attr-defined]
    return endpoint


class OptionalHeadRoute(APIRoute):
    """FastAPI's route. It accepts HEAD too if its endpoint has the decorator ``also_head``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.accepted_methods = frozenset(self.methods or ())
        if getattr(self.endpoint, "also_head", False):
            self.accepted_methods |= {"HEAD"}

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child_scope = super().matches(scope)
        if match is Match.PARTIAL and scope["method"] in self.accepted_methods:
            return Match.FULL, child_scope
        return match, child_scope

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] in self.accepted_methods:
            await self.app(scope, receive, send)
        else:
            await super().handle(scope, receive, send)


class PlainRoute(OptionalHeadRoute):
    """A route that FastAPI matches and documents, without dependency injection and validation.

    The endpoint receives the request and returns a response. FastAPI's own handling takes more time
    than the rest of a check-in.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] in self.accepted_methods:
            response = await self.endpoint(Request(scope, receive, send))
            await response(scope, receive, send)
        else:
            await super().handle(scope, receive, send)
