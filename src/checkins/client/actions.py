"""Actions that the flow of a device asks a driver to perform, their results, and the SDK's errors.

A flow is a generator that yields actions and receives their results. A driver performs the actions.
The flow itself uses no sockets, files or threads, so the same flow runs with blocking calls, on an
event loop and in tests.
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

WireType = TypeVar("WireType")
"""A ``TypedDict`` of ``checkins.protocol.wire``, which describes one JSON object."""
MAX_SHORT_RESPONSE_BYTES = 64 * 1024
"""Largest body in bytes of a response with a token, a receipt, an outcome or a problem document."""


class ServiceFailed(CheckinsError, OSError):
    """The service cannot be reached, responds incorrectly, or was rolled back to an older state.

    The stored state of the device remains. A later call continues from it if the device's
    slot has not passed.
    """

    def __init__(self, url: str, reason: str) -> None:
        OSError.__init__(self, errno.EIO, reason, url)

    def __reduce__(self) -> tuple[object, ...]:
        """Return the class and its arguments, so that pickle can pass the error to a process."""
        return type(self), (self.filename, self.strerror)


UNTRUSTED_CERTIFICATE = "CERTIFICATE_VERIFY_FAILED"
"""Part of the message of an error of TLS, if no trusted authority signed the certificate."""


class CampaignRefused(InvalidValue):
    """The device does not take part in this campaign, and sends nothing more for it."""


class RequestKind(StrEnum):
    """The purpose of a request. The value completes error messages: the service refused to ..."""

    VIEW = "show the campaign"
    ENROL = "enrol this device"
    CHECK_IN = "accept the check-in"
    OUTCOME = "show the outcome"
    MODEL = "send the model"
    REPORT = "accept the report"
    LEDGER = "show its ledger"
    WITHDRAW = "accept the withdrawal"
    OPERATE = "accept the operator's request"


@dataclass(frozen=True, slots=True)
class Request:
    """Send a request once. The result is a ``Response``, or ``NoResponse`` if none came in time.

    Sending the request and receiving the response may take ``timeout_s`` seconds together. A
    response whose body has more than ``max_bytes`` bytes is rejected.
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
    """A response, with the monotonic times when its request was sent and when it was received.

    ``retry_after_s`` is the value of its Retry-After header in seconds, or None if it has none.
    """

    status: int
    body: bytes
    sent_s: float
    received_s: float
    retry_after_s: float | None = None

    def parse_json(self, wire_type: type[WireType], *statuses: int) -> WireType | None:
        """Return the body if it is a JSON object with every key of ``wire_type``, else None.

        None is returned too if the status code is not one of ``statuses``. The types of the values
        are not checked.
        """
        if self.status not in statuses:
            return None
        body = self._json_object()
        return cast(WireType, body) if wire_type.__annotations__.keys() <= body.keys() else None

    def _json_object(self) -> dict[str, Any]:
        """Return the JSON object in the body, or an empty dict if the body is no JSON object."""
        try:
            parsed = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return parsed if isinstance(parsed, dict) else {}

    @property
    def problem(self) -> str | None:
        """The problem type (RFC 9457) without its prefix; None if the body is no such document."""
        kind = str(self._json_object().get("type")) if 400 <= self.status < 500 else ""
        return kind.removeprefix(PROBLEM_URN) if kind.startswith(PROBLEM_URN) else None

    @property
    def detail(self) -> str:
        """The explanation in a problem document, or the status code if there is none."""
        problem = self._json_object()
        return str(problem.get("detail") or problem.get("title") or f"status {self.status}")


RETRYABLE_PROBLEMS = frozenset({"too-many", "too-slow", "too-early"})
"""Problem types for which the same request may succeed later."""


@dataclass(frozen=True, slots=True)
class NoResponse:
    """No usable response came, although the service may have received the request."""

    reason: str


@dataclass(frozen=True, slots=True)
class SleepUntil:
    """Sleep until the device's monotonic clock shows ``monotonic_s``."""

    monotonic_s: float


@dataclass(frozen=True, slots=True)
class Save:
    """Replace the stored state of the device. The flow continues once the bytes are durable."""

    state: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Train:
    """Call ``make_report``, which trains, clips and draws noise. The result is its report."""

    make_report: Callable[[], DeviceReport]


@dataclass(frozen=True, slots=True, eq=False)
class UseFiles:
    """Call ``work``, which reads or writes files of the device. The result is what it returns."""

    work: Callable[[], object]


@dataclass(frozen=True, slots=True)
class LogEvent:
    """Write an event to the journal, a log for the device's owner that never leaves the device."""

    fields: Mapping[str, object]


Action = Request | SleepUntil | Save | Train | UseFiles | LogEvent
Result = TypeVar("Result")
Flow = Generator[Action, Any, Result]
"""A generator that yields actions, receives their results, and returns a ``Result``."""
