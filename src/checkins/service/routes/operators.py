"""Routes for operators: keys that may enrol, operators' tokens, and the log of their actions.

The docstring of a route is its description in the OpenAPI document.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request, Response, status
from pydantic import ValidationError

from checkins.ledger.operator_log import OPERATOR_NAME
from checkins.protocol import wire
from checkins.service.authentication import parse_hash
from checkins.service.http.problems import Problem
from checkins.service.routes.requests import (
    PlainRoute,
    json_response,
    number_of,
    openapi_options,
    require_operator,
    runner_of,
    schema_of,
)
from checkins.service.runs import operator_actions
from checkins.service.store import operators as queries

router = APIRouter(tags=["operators"], route_class=PlainRoute)
MAX_LOG_LINES = 1000
"""Largest number of lines of the log in one response."""


@router.get(
    wire.ALLOW_LIST_PATH,
    **openapi_options(
        "The number of keys that may enrol",
        wire.AllowList,
        security="operator",
        problems=("refused",),
    ),
)
async def allow_list(request: Request) -> Response:
    """The number of keys in the coordinator's file and of keys that operators have added, minus the
    number of keys that operators have revoked."""
    await require_operator(request)
    size = await runner_of(request).read_store(queries.allow_list_size, _file_keys(request))
    return json_response(wire.AllowList(keys=size))


@router.post(
    wire.ADDED_KEYS_PATH,
    **openapi_options(
        "Add keys to the allow-list",
        wire.AllowListChange,
        security="operator",
        body=wire.KeyHashes,
        problems=("invalid", "refused"),
    ),
)
async def add_keys(request: Request) -> Response:
    """The keys may enrol from now on, at every coordinator of the store. If an open run declares a
    smaller population, the request is refused and changes nothing."""
    return await _change_keys(request, operator_actions.add_keys)


@router.post(
    wire.REVOKED_KEYS_PATH,
    **openapi_options(
        "Revoke keys",
        wire.AllowListChange,
        security="operator",
        body=wire.KeyHashes,
        problems=("invalid", "refused"),
    ),
)
async def revoke_keys(request: Request) -> Response:
    """The keys may no longer enrol, even if they are in the file of the coordinator. A device that
    has enrolled in the open run may still take part in it, because nothing links its token to its
    key."""
    return await _change_keys(request, operator_actions.revoke_keys)


async def _change_keys(request: Request, change: Callable[..., tuple[int, int]]) -> Response:
    operator, runner = await require_operator(request), runner_of(request)
    listed = _file_keys(request)
    body = await _json_body(request, wire.KeyHashes)
    keys = {parse_hash("keys", key) for key in body["keys"]}
    changed, size = await runner.in_thread_or_busy(
        change, runner.database, keys, listed=listed, operator=operator
    )
    await runner.write_progress_file()
    return json_response(wire.AllowListChange(keys=size, changed=changed))


def _file_keys(request: Request) -> frozenset[str]:
    """Return the keys of the coordinator's file; raise ``refused`` if it has no allow-list."""
    keys = runner_of(request).settings.enrolment.file_keys
    if keys is None:
        detail = "this coordinator has no allow-list: start it with --enrolment allow-list"
        raise Problem("refused", detail)
    return keys


@router.get(
    wire.OPERATORS_PATH, **openapi_options("The operators", wire.Operators, security="operator")
)
async def operators(request: Request) -> Response:
    """The list has the operators that were added, without their tokens. The token with which the
    coordinator was started is not in the list."""
    await require_operator(request)
    found = await runner_of(request).read_store(queries.list_operators)
    listed = [wire.Operator(name=name, role=role) for name, role in found]
    return json_response(wire.Operators(operators=listed))


@router.put(
    wire.OPERATOR_PATH,
    **openapi_options(
        "Add an operator",
        wire.Operator,
        "name",
        security="operator",
        body=wire.NewOperator,
        problems=("invalid", "refused"),
    ),
)
async def add_operator(request: Request) -> Response:
    """The token whose hash is sent is valid from now on. To replace a token, add one with another
    name, and then revoke the old one. A repeated request changes nothing."""
    operator, runner = await require_operator(request), runner_of(request)
    name = _name_of(request)
    body = await _json_body(request, wire.NewOperator)
    token, role = parse_hash("token", body["token"]), body["role"]
    await runner.in_thread_or_busy(
        operator_actions.add_operator, runner.database, name, token, role, operator=operator
    )
    await runner.write_progress_file()
    return json_response(wire.Operator(name=name, role=role))


@router.delete(
    wire.OPERATOR_PATH,
    status_code=status.HTTP_204_NO_CONTENT,
    **openapi_options(
        "Revoke the token of an operator",
        None,
        "name",
        security="operator",
        problems=("unknown-operator", "invalid"),
    ),
)
async def revoke_operator(request: Request) -> Response:
    """The token is no longer valid, at no coordinator of the store."""
    operator, runner = await require_operator(request), runner_of(request)
    name = _name_of(request)
    await runner.in_thread_or_busy(
        operator_actions.revoke_operator, runner.database, name, operator=operator
    )
    await runner.write_progress_file()
    return Response(status_code=status.HTTP_204_NO_CONTENT)


@router.get(
    wire.OPERATOR_LOG_PATH,
    **openapi_options(
        "The log of operators' actions",
        ("At most 1,000 lines of JSON, each with the hash of the line before", wire.LEDGER_TYPE),
        "after",
        security="operator",
        problems=("invalid",),
    ),
)
async def operator_log(request: Request) -> Response:
    """Each line says who did what and when. `checkins operators URL --log` checks the chain of
    hashes. No line contains anything about a client."""
    await require_operator(request)
    after = int(number_of(request, "after", is_integer=True))
    lines = await runner_of(request).read_store(queries.log_lines, after=after, limit=MAX_LOG_LINES)
    return Response(b"".join(lines), media_type=wire.LEDGER_TYPE)


async def _json_body(request: Request, wire_type: type) -> dict[str, Any]:
    """Return the body, which is a JSON object of a ``TypedDict`` of ``wire``; raise ``invalid``."""
    try:
        return schema_of(wire_type).model_validate_json(await request.body()).model_dump()
    except ValidationError:
        fields = ", ".join(wire_type.__annotations__)
        raise Problem("invalid", f"body: must be a JSON object with {fields}") from None


def _name_of(request: Request) -> str:
    name: str = request.path_params["name"]
    if not re.fullmatch(OPERATOR_NAME, name):
        raise Problem("invalid", "name: must be 1 to 40 of a-z, 0-9, '.', '_' and '-'")
    return name
