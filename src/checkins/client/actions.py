"""Actions that a device's flow asks its driver to perform, and their results.

A flow is a generator without sockets, files or threads, so the same flow runs blocking, on an event
loop and in tests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar, cast

from checkins.protocol.wire import PROBLEM_URN
from checkins.randomizers import DeviceReport

Shape = TypeVar("Shape")
"""A shape of ``checkins.protocol.wire``."""
MAX_SHORT_RESPONSE_BYTES = 64 * 1024
"""Largest body of a short response: a token, a receipt, an outcome or a problem."""


class RequestKind(StrEnum):
    """The purpose of a request; the value completes "refused to ..." in error messages."""

    VIEW = "show the campaign"
    ENROL = "enrol"
    CHECK_IN = "check-in"
    OUTCOME = "outcome"
    MODEL = "model"
    REPORT = "report"
    LEDGER = "show its ledger"
    WITHDRAW = "withdraw"


@dataclass(frozen=True, slots=True)
class Request:
    """Send a request once. The result is a ``Response``, or ``NoResponse`` if none came in time.

    The whole exchange takes at most ``timeout_s``; the response body has at most ``max_bytes``.
    """

    kind: RequestKind
    method: str
    path: str
    timeout_s: float
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    max_bytes: int = MAX_SHORT_RESPONSE_BYTES


@dataclass(frozen=True, slots=True)
class Response:
    """A response, with the steady clock's readings when the request left and when it arrived."""

    status: int
    body: bytes
    sent: float
    received: float
    retry_after_s: float | None = None

    def read(self, shape: type[Shape], *statuses: int) -> Shape | None:
        """Return the body if it is a JSON object with every key of ``shape``, else None.

        The types of the values are not checked. ``statuses`` are those that such a body comes with.
        """
        if self.status not in statuses:
            return None
        found = self._object()
        return cast(Shape, found) if shape.__annotations__.keys() <= found.keys() else None

    def _object(self) -> dict[str, Any]:
        """Return the JSON object in the body; an empty one if the body is no JSON object."""
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def problem(self) -> str | None:
        """The service's problem type; None if the response is not a problem of this service."""
        kind = str(self._object().get("type")) if 400 <= self.status < 500 else ""
        return kind.removeprefix(PROBLEM_URN) if kind.startswith(PROBLEM_URN) else None

    @property
    def detail(self) -> str:
        """The service's explanation of a problem, or the status code."""
        problem = self._object()
        return str(problem.get("detail") or problem.get("title") or f"status {self.status}")


RETRYABLE = frozenset({"too-many", "too-slow", "too-early"})
"""Problem types for which the same request may succeed later."""


@dataclass(frozen=True, slots=True)
class NoResponse:
    """No response came; the request may still have arrived."""

    why: str


@dataclass(frozen=True, slots=True)
class SleepUntil:
    """Sleep until the steady clock shows ``steady_s``."""

    steady_s: float


@dataclass(frozen=True, slots=True)
class Save:
    """Replace the durable state of the device by these bytes; durable once it returns."""

    state: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Train:
    """Call ``make``, which trains, clips and draws noise. The result is a ``DeviceReport``."""

    make: Callable[[], DeviceReport]


@dataclass(frozen=True, slots=True)
class LogEvent:
    """Write an event to the owner's journal; it never leaves the device."""

    fields: Mapping[str, object]


Action = Request | SleepUntil | Save | Train | LogEvent
Result = TypeVar("Result")
Flow = Generator[Action, Any, Result]
"""A generator that yields actions, is sent their results, and returns its outcome."""
