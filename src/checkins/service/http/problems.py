"""Errors as problem documents: application/problem+json (RFC 9457).

A slug such as ``too-early`` names the reason. The ``detail`` of a document repeats no part of the
request except short values of named parameters.
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
from checkins.protocol.report import Malformed
from checkins.service import logs
from checkins.service.authentication import NotAdmitted

MAX_DETAIL = 600
MAX_VALUE = 80
MAX_FAULTS = 5
FAILED = "the operator's log says where the service failed; try again later"


@dataclass(frozen=True, slots=True)
class ProblemType:
    """The HTTP status and the title of one slug."""

    status: int
    title: str


PROBLEM_TYPES: Mapping[str, ProblemType] = {
    "unknown-campaign": ProblemType(404, "There is no such campaign"),
    "unknown-receipt": ProblemType(404, "There is no such receipt"),
    "unknown-entry": ProblemType(404, "The ledger has no such entry yet"),
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
_WITH_RETRY = {"too-early", "too-many", "busy", "not-ready"}
_BY_STATUS = {404: "unknown-path", 405: "wrong-method", 422: "invalid", 500: "failed"}


class Problem(Exception):
    """An error that is sent to the client; ``slug`` is a key of ``PROBLEM_TYPES``."""

    def __init__(self, slug: str, detail: str = "", *, retry_after: float | None = None) -> None:
        if slug not in PROBLEM_TYPES:
            raise InvalidValue("slug", slug, f"must be one of {', '.join(PROBLEM_TYPES)}")
        super().__init__(f"{slug}: {detail}")
        self.slug = slug
        self.status = PROBLEM_TYPES[slug].status
        self.detail = _shortened(detail or PROBLEM_TYPES[slug].title, MAX_DETAIL)
        self.retry_after = retry_after

    def body(self) -> bytes:
        return _document(self.slug, PROBLEM_TYPES[self.slug].title, self.status, self.detail)

    def headers(self) -> dict[str, str]:
        """Return the headers: content type, when to retry, and whether a credential is needed."""
        headers = {"content-type": wire.PROBLEM}
        if self.retry_after is not None:
            wait_s = self.retry_after if math.isfinite(self.retry_after) else 1.0
            headers["retry-after"] = str(max(1, math.ceil(wait_s)))
        if self.status == HTTPStatus.UNAUTHORIZED:
            headers["www-authenticate"] = "Bearer"
        return headers

    def response(self) -> Response:
        return Response(self.body(), status_code=self.status, headers=self.headers())


def install(app: FastAPI) -> None:
    """Make the app answer every exception of its routes with a problem document."""

    def answer_with(kind: type[Exception], problem: Callable[[Any], Problem]) -> None:
        async def handler(_: Request, error: Exception) -> Response:
            return problem(error).response()

        app.add_exception_handler(kind, handler)

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        response = _from_http(error)
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            # The framework names the methods of one route; a path may have several routes.
            response.headers["allow"] = ", ".join(sorted(_allowed(request)))
        return response

    async def on_failure(request: Request, error: Exception) -> Response:
        logs.failure(error, route=getattr(request.scope.get("route"), "path", None))
        return Problem("failed", FAILED).response()  # not sent: the middleware has answered

    cut_off = "the connection closed before the body was complete"
    answer_with(Problem, lambda error: error)
    answer_with(NotAdmitted, lambda error: Problem("not-enrolled", str(error)))
    answer_with(ProtocolViolation, lambda error: Problem("refused", str(error)))
    answer_with(Malformed, lambda error: Problem("invalid", str(error)))
    answer_with(InvalidValue, _invalid)
    answer_with(RequestValidationError, lambda error: Problem("invalid", _faults(error.errors())))
    answer_with(ClientDisconnect, lambda _: Problem("too-slow", cut_off))
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(Exception, on_failure)


def _invalid(error: InvalidValue) -> Problem:
    return Problem("invalid", f"{error.name}{_value_text(error.value)}: {error.expected}")


def problem_responses(*slugs: str) -> dict[int | str, dict[str, Any]]:
    """Return FastAPI's ``responses`` argument for a route that may return these problems.

    >>> sorted(problem_responses("refused", "too-early", "over"))
    [409, 410]
    """
    responses: dict[int | str, dict[str, Any]] = {}
    for status in sorted({Problem(slug).status for slug in slugs}):
        here = [slug for slug in slugs if PROBLEM_TYPES[slug].status == status]
        responses[status] = {
            "description": "; ".join(f"`{slug}`: {PROBLEM_TYPES[slug].title}" for slug in here),
            "content": {wire.PROBLEM: {"schema": _schema(status, here)}},
        }
        if _WITH_RETRY & set(here):
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


def _document(slug: str, title: str, status: int, detail: str) -> bytes:
    kind = f"{wire.PROBLEM_URN}{slug}"
    document = wire.ProblemDocument(type=kind, title=title, status=status, detail=detail)
    return json.dumps(document).encode()  # ASCII, so a lone surrogate in the input does no harm


def _from_http(error: HTTPException) -> Response:
    """Convert an error of the framework to a problem document, and keep its headers."""
    status, headers = error.status_code, dict(error.headers or {})
    if status in (204, 304) or status < 200:
        return Response(status_code=status, headers=headers)
    known = status in HTTPStatus.__members__.values()
    phrase = HTTPStatus(status).phrase if known else "Refused"
    slug = _BY_STATUS.get(status) or phrase.lower().replace(" ", "-").replace("'", "")
    title = PROBLEM_TYPES[slug].title if slug in PROBLEM_TYPES else phrase
    detail = "" if status >= 500 or error.detail == phrase else str(error.detail)
    body = _document(slug, title, status, _shortened(detail or title, MAX_DETAIL))
    return Response(body, status_code=status, headers={**headers, "content-type": wire.PROBLEM})


def _allowed(request: Request) -> set[str]:
    """Return every method that is allowed at the path of a request."""
    found: set[str] = set()
    for route in request.app.routes:
        if route.matches(request.scope)[0] is not Match.NONE:
            found |= getattr(route, "allowed", None) or getattr(route, "methods", None) or set()
    return found


def _faults(errors: Sequence[Any]) -> str:
    """Return which fields of a request are not valid, and why, without their values.

    The name of a field is shortened, because a client may have chosen it.
    """
    faults = []
    for error in errors[:MAX_FAULTS]:
        cause = (error.get("ctx") or {}).get("error")
        if isinstance(cause, InvalidValue):
            why = cause.expected
        elif error.get("type") in ("value_error", "assertion_error"):
            why = "is not valid"  # the message of a validator could repeat the input
        else:
            why = str(error.get("msg", "is not valid"))
        place = ".".join(_shortened(str(part), MAX_VALUE // 2) for part in error.get("loc", ())[:6])
        faults.append(f"{place}: {_shortened(why, 2 * MAX_VALUE)}")
    if len(errors) > MAX_FAULTS:
        faults.append(f"and {len(errors) - MAX_FAULTS} more")
    return "; ".join(faults)


def _value_text(value: object) -> str:
    """Return `` = value`` for a short text or number, and an empty text for anything else."""
    if not isinstance(value, str | int | float | None):
        return ""
    if isinstance(value, int) and value.bit_length() >= 256:
        return ""
    text = repr(value)
    return f" = {text}" if len(text) <= MAX_VALUE else ""


def _shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 3] + "..."
