"""Actions that a device's flow asks its driver to perform, their results, and the SDK's errors.

A flow is a generator that yields actions and receives their results. It uses no sockets, files or
threads itself, so the same flow runs with blocking calls, on an event loop and in tests.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar, cast

from checkins.errors import CheckinsError, InvalidValue
from checkins.protocol.wire import PROBLEM_URN
from checkins.randomizers import DeviceReport

Shape = TypeVar("Shape")
"""A ``TypedDict`` of ``checkins.protocol.wire``."""
MAX_SHORT_RESPONSE_BYTES = 64 * 1024
"""Largest body in bytes of a response with a token, a receipt, an outcome or a problem."""


class ServiceFailed(CheckinsError, OSError):
    """The service cannot be reached, responds incorrectly, or was rolled back to an older state.

    The device's durable state is kept. A later call continues from it if the slot has not passed.
    """

    def __init__(self, url: str, why: str) -> None:
        OSError.__init__(self, errno.EIO, why, url)

    def __reduce__(self) -> tuple[object, ...]:
        """Return what pickle needs to raise the error in another process."""
        return type(self), (self.filename, self.strerror)


class CampaignRefused(InvalidValue):
    """The device does not take part in this campaign, and sends nothing more for it."""


class RequestKind(StrEnum):
    """The purpose of a request. Error messages show the value after "refused to"."""

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

    Sending the request and receiving the response take at most ``timeout_s`` seconds together. The
    body of the response has at most ``max_bytes`` bytes.
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
    """A response. ``sent`` and ``received`` are the monotonic times of request and response."""

    status: int
    body: bytes
    sent: float
    received: float
    retry_after_s: float | None = None

    def read(self, shape: type[Shape], *statuses: int) -> Shape | None:
        """Return the body if it is a JSON object with every key of ``shape``, else None.

        None is returned too if the status code is not one of ``statuses``. The types of the values
        are not checked.
        """
        if self.status not in statuses:
            return None
        found = self._object()
        return cast(Shape, found) if shape.__annotations__.keys() <= found.keys() else None

    def _object(self) -> dict[str, Any]:
        """Return the JSON object in the body, or an empty dict if the body is no JSON object."""
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def problem(self) -> str | None:
        """The problem type without its prefix, or None if the body is no problem document."""
        kind = str(self._object().get("type")) if 400 <= self.status < 500 else ""
        return kind.removeprefix(PROBLEM_URN) if kind.startswith(PROBLEM_URN) else None

    @property
    def detail(self) -> str:
        """The service's explanation of a problem, or the status code if it gave none."""
        problem = self._object()
        return str(problem.get("detail") or problem.get("title") or f"status {self.status}")


RETRYABLE = frozenset({"too-many", "too-slow", "too-early"})
"""Problem types for which the same request may succeed later."""


@dataclass(frozen=True, slots=True)
class NoResponse:
    """No response came. The service may have received the request nevertheless."""

    why: str


@dataclass(frozen=True, slots=True)
class SleepUntil:
    """Sleep until the device's monotonic clock shows ``steady_s``."""

    steady_s: float


@dataclass(frozen=True, slots=True)
class Save:
    """Replace the stored state of the device. The driver continues once the bytes are durable."""

    state: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Train:
    """Call ``make``, which trains, clips and draws noise. The result is a ``DeviceReport``."""

    make: Callable[[], DeviceReport]


@dataclass(frozen=True, slots=True)
class LogEvent:
    """Write an event to the owner's journal, which never leaves the device."""

    fields: Mapping[str, object]


Action = Request | SleepUntil | Save | Train | LogEvent
Result = TypeVar("Result")
Flow = Generator[Action, Any, Result]
"""A generator that yields actions, receives their results, and returns a ``Result``."""
