"""What a device does in the world: the flow asks for one action at a time and gets its result.

The flow knows no sockets, files or threads, so the same flow runs sync, async and in tests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from checkins.randomizers import DeviceReport

SHORT_BYTES = 64 * 1024
"""What an answer may have that is a few words: a token, a receipt, an outcome, a refusal."""


class Kind(StrEnum):
    """What a request is for."""

    LOOK = "look"
    ENROL = "enrol"
    CHECK_IN = "check-in"
    OUTCOME = "outcome"
    MODEL = "model"
    REPORT = "report"
    LEDGER = "show its ledger"
    WITHDRAW = "withdraw"


@dataclass(frozen=True, slots=True)
class Request:
    """Send it once. The result is an ``Answer``, or ``Lost`` if none came within its limits.

    The whole exchange takes at most ``timeout_s``, and the answer's body at most ``most_bytes``.
    """

    kind: Kind
    method: str
    path: str
    timeout_s: float
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    most_bytes: int = SHORT_BYTES


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, with the steady clock when the request left and when the answer was here."""

    status: int
    body: bytes
    sent: float
    received: float
    retry_after_s: float | None = None

    def value(self) -> dict[str, Any]:
        """The JSON object it holds; an empty one if it holds none."""
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def problem(self) -> str | None:
        """The service's own word for what it refuses; None if somebody else refused."""
        kind = self.value().get("type") if 400 <= self.status < 500 else None
        ours = isinstance(kind, str) and kind.startswith(URN)
        return kind.removeprefix(URN) if ours and isinstance(kind, str) else None

    @property
    def detail(self) -> str:
        """What the service says of it, in words."""
        said = self.value()
        return str(said.get("detail") or said.get("title") or f"status {self.status}")


URN = "urn:checkins:"
PASSING = frozenset({"too-many", "too-slow", "too-early"})
"""Problems that time mends."""


@dataclass(frozen=True, slots=True)
class NoResponse:
    """No answer came; the request may have arrived all the same."""

    why: str


@dataclass(frozen=True, slots=True)
class SleepUntil:
    """Until the steady clock shows this."""

    steady_s: float


@dataclass(frozen=True, slots=True)
class Save:
    """Make these bytes, and no others, the state of the device. Durable once it returns."""

    kept: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Train:
    """Call it: it trains, clips and draws noise. The result is a ``DeviceReport``."""

    make: Callable[[], DeviceReport]


@dataclass(frozen=True, slots=True)
class LogEvent:
    """Let the owner know; nothing of it leaves the device."""

    story: Mapping[str, object]


Action = Request | SleepUntil | Save | Train | LogEvent
Result = TypeVar("Result")
Flow = Generator[Action, Any, Result]
"""Yields actions, is sent their results, returns what came of it."""
