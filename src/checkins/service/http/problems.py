"""Errors as problem documents: application/problem+json (RFC 9457).

The type of a problem is a slug such as ``too-early``. The ``detail`` of a document explains the
problem. It repeats no part of the request except short values of named parameters.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match

from checkins.errors import InvalidValue, ProtocolViolation
from checkins.protocol import wire
from checkins.protocol.report import MalformedReport
from checkins.service import logs
from checkins.service.authentication import NotAdmitted

MAX_DETAIL_CHARS = 600
MAX_VALUE_CHARS = 80  # longest value that a detail repeats
MAX_INVALID_FIELDS = 5  # most invalid fields that a detail lists
FAILED_DETAIL = "the operator's log says where the service failed; try again later"


@dataclass(frozen=True, slots=True)
class ProblemType:
    """The HTTP status and the title of one slug."""

    status: int
    title: str


PROBLEM_TYPES: Mapping[str, ProblemType] = {
    "unknown-campaign": ProblemType(404, "There is no such campaign"),
    "unknown-receipt": ProblemType(404, "There is no such receipt"),
    "unknown-entry": ProblemType(404, "The ledger has no such entry yet"),
    "unknown-operator": ProblemType(404, "There is no such operator"),
    "unknown-path": ProblemType(404, "There is nothing at this address"),
    "wrong-method": ProblemType(405, "This address does not take this method"),
    "refused": ProblemType(409, "The protocol does not allow it"),
    "too-early": ProblemType(409, "The slot has not begun"),
    "not-enrolled": ProblemType(401, "A credential is missing or not valid here"),
    "not-operator": ProblemType(401, "Only the operator may do this"),
    "over": ProblemType(410, "The campaign is over"),
    "invalid": ProblemType(422, "The request is not valid"),
    "too-large": ProblemType(413, "The body is too large"),
    "encoded": ProblemType(415, "The body must not be encoded"),
    "too-slow": ProblemType(408, "The request took too long to arrive"),
    "too-many": ProblemType(429, "Too many requests"),
    "busy": ProblemType(503, "The service is busy"),
    "not-ready": ProblemType(503, "The service is not ready"),
    "failed": ProblemType(500, "The service failed"),
}
_SLUGS_WITH_RETRY_AFTER = {"too-early", "too-many", "busy", "not-ready"}
_SLUG_BY_STATUS = {404: "unknown-path", 405: "wrong-method", 422: "invalid", 500: "failed"}


class Problem(Exception):
    """An error that is sent to the client.

    ``slug`` is a key of ``PROBLEM_TYPES``. An empty ``detail`` means the title of this type.
    ``retry_after`` is the number of seconds to wait before a retry, or None.
    """

    def __init__(self, slug: str, detail: str = "", *, retry_after: float | None = None) -> None:
        if slug not in PROBLEM_TYPES:
            raise InvalidValue("slug", slug, f"must be one of {', '.join(PROBLEM_TYPES)}")
        super().__init__(f"{slug}: {detail}")
        self.slug = slug
        self.status = PROBLEM_TYPES[slug].status
        self.detail = _shortened(detail or PROBLEM_TYPES[slug].title, MAX_DETAIL_CHARS)
        self.retry_after = retry_after

    def body(self) -> bytes:
        return _problem_json(self.slug, PROBLEM_TYPES[self.slug].title, self.status, self.detail)

    def headers(self) -> dict[str, str]:
        """Return the headers of the response: Content-Type, Retry-After, WWW-Authenticate."""
        headers = {"content-type": wire.PROBLEM_TYPE}
        if self.retry_after is not None:
            wait_s = self.retry_after if math.isfinite(self.retry_after) else 1.0
            headers["retry-after"] = str(max(1, math.ceil(wait_s)))
        if self.status == HTTPStatus.UNAUTHORIZED:
            headers["www-authenticate"] = "Bearer"
        return headers

    def response(self) -> Response:
        return Response(self.body(), status_code=self.status, headers=self.headers())


def install_handlers(app: FastAPI) -> None:
    """Make the app respond to every exception of its routes with a problem document."""

    def add_handler(error_type: type[Exception], problem_of: Callable[[Any], Problem]) -> None:
        async def handler(_: Request, error: Exception) -> Response:
            return problem_of(error).response()

        app.add_exception_handler(error_type, handler)

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        response = _problem_of_http_error(error)
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            # FastAPI lists only the methods of one route, and a path may have several routes.
            response.headers["allow"] = ", ".join(sorted(_allowed_methods(request)))
        return response

    async def on_failure(request: Request, error: Exception) -> Response:
        logs.failure(error, route=getattr(request.scope.get("route"), "path", None))
        # This response is not sent, because ``RequestLimits`` has already sent one.
        return Problem("failed", FAILED_DETAIL).response()

    def invalid_fields(error: RequestValidationError) -> Problem:
        return Problem("invalid", _describe_invalid_fields(error.errors()))

    disconnected = "the connection closed before the body was complete"
    add_handler(Problem, lambda error: error)
    add_handler(NotAdmitted, lambda error: Problem("not-enrolled", str(error)))
    add_handler(ProtocolViolation, lambda error: Problem("refused", str(error)))
    add_handler(MalformedReport, lambda error: Problem("invalid", str(error)))
    add_handler(InvalidValue, _invalid_value_problem)
    add_handler(RequestValidationError, invalid_fields)
    add_handler(ClientDisconnect, lambda _: Problem("too-slow", disconnected))
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(Exception, on_failure)


def _invalid_value_problem(error: InvalidValue) -> Problem:
    return Problem("invalid", f"{error.name}{_value_text(error.value)}: {error.expected}")


def problem_responses(*slugs: str) -> dict[int | str, dict[str, Any]]:
    """Return FastAPI's ``responses`` argument for a route that may return these problems.

    >>> sorted(problem_responses("refused", "too-early", "over"))
    [409, 410]
    """
    responses: dict[int | str, dict[str, Any]] = {}
    for status in sorted({Problem(slug).status for slug in slugs}):
        same_status = [slug for slug in slugs if PROBLEM_TYPES[slug].status == status]
        titles = (f"`{slug}`: {PROBLEM_TYPES[slug].title}" for slug in same_status)
        responses[status] = {
            "description": "; ".join(titles),
            "content": {wire.PROBLEM_TYPE: {"schema": _schema(status, same_status)}},
        }
        if _SLUGS_WITH_RETRY_AFTER & set(same_status):
            responses[status]["headers"] = {
                "Retry-After": {
                    "description": "Seconds to wait before trying again",
                    "schema": {"type": "integer", "minimum": 1},
                }
            }
    return responses


def _schema(status: int, slugs: Sequence[str]) -> dict[str, Any]:
    return {
        "title": "Problem",
        "type": "object",
        "required": list(wire.ProblemDocument.__annotations__),
        "properties": {
            "type": {"type": "string", "enum": [f"{wire.PROBLEM_URN}{slug}" for slug in slugs]},
            "title": {"type": "string"},
            "status": {"type": "integer", "const": status},
            "detail": {"type": "string"},
        },
    }


def _problem_json(slug: str, title: str, status: int, detail: str) -> bytes:
    kind = f"{wire.PROBLEM_URN}{slug}"
    document = wire.ProblemDocument(type=kind, title=title, status=status, detail=detail)
    return json.dumps(document).encode()  # ASCII, so a lone surrogate in the input does no harm


def _problem_of_http_error(error: HTTPException) -> Response:
    """Convert an HTTP error of FastAPI to a problem document, and keep its headers."""
    status, headers = error.status_code, dict(error.headers or {})
    if status in (204, 304) or status < 200:
        return Response(status_code=status, headers=headers)
    is_standard = status in HTTPStatus.__members__.values()
    phrase = HTTPStatus(status).phrase if is_standard else "Refused"
    slug = _SLUG_BY_STATUS.get(status) or phrase.lower().replace(" ", "-").replace("'", "")
    title = PROBLEM_TYPES[slug].title if slug in PROBLEM_TYPES else phrase
    detail = "" if status >= 500 or error.detail == phrase else str(error.detail)
    body = _problem_json(slug, title, status, _shortened(detail or title, MAX_DETAIL_CHARS))
    return Response(
        body, status_code=status, headers={**headers, "content-type": wire.PROBLEM_TYPE}
    )


def _allowed_methods(request: Request) -> set[str]:
    """Return every method that is allowed at the path of a request."""
    methods: set[str] = set()
    for route in request.app.routes:
        if route.matches(request.scope)[0] is not Match.NONE:
            methods |= (
                getattr(route, "accepted_methods", None) or getattr(route, "methods", None) or set()
            )
    return methods


def _describe_invalid_fields(errors: Sequence[Any]) -> str:
    """Return which fields of a request are not valid, and why, without their values.

    ``errors`` are those of a ``RequestValidationError``. The name of a field is shortened, because
    the client may have chosen the name.
    """
    descriptions = []
    for error in errors[:MAX_INVALID_FIELDS]:
        cause = (error.get("ctx") or {}).get("error")
        if isinstance(cause, InvalidValue):
            reason = cause.expected
        elif error.get("type") in ("value_error", "assertion_error"):
            reason = "is not valid"  # the message of a validator could repeat the input
        else:
            reason = str(error.get("msg", "is not valid"))
        parts = error.get("loc", ())[:6]
        field = ".".join(_shortened(str(part), MAX_VALUE_CHARS // 2) for part in parts)
        descriptions.append(f"{field}: {_shortened(reason, 2 * MAX_VALUE_CHARS)}")
    if len(errors) > MAX_INVALID_FIELDS:
        descriptions.append(f"and {len(errors) - MAX_INVALID_FIELDS} more")
    return "; ".join(descriptions)


def _value_text(value: object) -> str:
    """Return `` = value`` for a short text or number, and an empty text for anything else."""
    if not isinstance(value, str | int | float | None):
        return ""
    if isinstance(value, int) and value.bit_length() >= 256:
        return ""
    text = repr(value)
    return f" = {text}" if len(text) <= MAX_VALUE_CHARS else ""


def _shortened(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else text[: max_chars - 3] + "..."
