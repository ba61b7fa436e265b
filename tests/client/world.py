"""A world of one device: a virtual clock, a network with faults, a disk that survives crashes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from checkins.client.actions import (
    Action,
    Flow,
    LogEvent,
    NoResponse,
    Request,
    RequestKind,
    Response,
    Save,
    SleepUntil,
    Train,
    UseFiles,
)
from checkins.client.clock_and_randomness import DeviceRandomness
from checkins.client.odometer import OdometerFile
from checkins.client.participation import Participation, ParticipationConfig
from checkins.client.state import SavedState
from checkins.protocol.participant import Outcome
from tests.support.fake_service import START_S, FakeService, Reply, problem

URL = "http://service.test"


class Crash(Exception):
    """The device stops here and forgets everything but its disk."""


def slope(model: Any) -> Any:
    """An update that depends on the model."""
    return {name: 0.1 + np.asarray(tensor) for name, tensor in model.items()}


@dataclass(eq=False)
class SlopeTrainer:
    """A trainer that counts its calls."""

    make: Callable[[Any], Any] = slope
    calls: int = 0

    def update(self, model: Any) -> Any:
        self.calls += 1
        return self.make(model)


@dataclass
class FixedRandomness(DeviceRandomness):
    """Dice that fall as the test says; only a test has such."""

    slot: int = 1
    tails: bool = False
    drawn: int = 0
    keys: int = 0

    def coin(self) -> int:
        self.drawn += 1
        return 2**64 - 1 if self.tails else 0

    def pick(self, size: int) -> int:
        return self.slot - 1

    def idempotency_key(self) -> str:
        self.keys += 1
        return f"key-{self.keys}"

    def jitter(self) -> float:
        return 0.5


Fault = Callable[[Request], str]


def no_fault(request: Request) -> str:
    return "fine"


@dataclass
class World:
    """One device and its service. The monotonic clock starts anywhere; no calendar is read."""

    service: FakeService = field(default_factory=FakeService)
    randomness: DeviceRandomness = field(default_factory=FixedRandomness)
    trainer: SlopeTrainer = field(default_factory=SlopeTrainer)
    fault: Fault = no_fault
    begins_s: float = -30.0
    booted_s: float = 1234.5
    clock_rate: float = 1.0
    """Seconds that the device's monotonic clock counts in a second."""
    latency_s: float = 0.01
    train_s: float = 0.1
    plan: dict[str, Any] = field(default_factory=dict)
    disk: bytes | None = None
    odometer: OdometerFile | None = None
    saved: list[SavedState] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    sent: list[Request] = field(default_factory=list)
    events_logged: list[dict[str, object]] = field(default_factory=list)
    steps: int = 0
    crash_before: int | None = None
    crash_after: int | None = None

    def __post_init__(self) -> None:
        self.server_s = START_S + self.begins_s
        self.service.now_s = lambda: self.server_s
        self.service.wait = self._wait

    def _wait(self, most_s: float, done: Callable[[], bool]) -> None:
        """A long poll: virtual time passes until the choice, or until the wait is over."""
        until = self.server_s + most_s
        while not done() and self.server_s < until:
            self.server_s = min(until, self.server_s + 0.05)

    def monotonic(self) -> float:
        return self.clock_rate * (self.booted_s + self.server_s - START_S)

    def flow(self) -> Flow[Outcome]:
        plan = ParticipationConfig(URL, self.service.id, self.trainer, **self.plan)
        return Participation(
            plan,
            self.disk,
            monotonic=self.monotonic,
            randomness=self.randomness,
            odometer=self.odometer,
        ).flow()

    def live(self) -> Outcome:
        """Start the device, or start it again, and let it run to its end or to a crash."""
        flow = self.flow()
        try:
            result: Any = None
            while True:
                action = flow.send(result)
                self.steps += 1
                if self.steps > 5000:
                    raise AssertionError("a device that never ends")
                self.actions.append(action)
                if self.steps == self.crash_before:
                    raise Crash
                result = self.perform(action)
                if self.steps == self.crash_after:
                    raise Crash
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome
        finally:
            flow.close()

    def perform(self, action: Action) -> Any:
        match action:
            case Request():
                return self._send(action)
            case SleepUntil(until):
                self.server_s += max(0.0, until - self.monotonic())
            case Save(state):
                self.disk = state
                self.saved.append(SavedState.from_bytes(state))
            case LogEvent(fields):
                self.events_logged.append(dict(fields))
            case UseFiles(work):
                return work()
            case Train(make):
                self.server_s += self.train_s
                return make()
        return None

    def _send(self, request: Request) -> Response | NoResponse:
        sent = self.monotonic()
        self.sent.append(request)
        what = self.fault(request)
        self.server_s += self.latency_s / 2
        if what == "lost":
            self.server_s += request.timeout_s
            return NoResponse("lost on the way")
        if what in ("busy", "broken"):
            reply = problem(503, "busy", Retry_After="1") if what == "busy" else Reply(502, b"<p>")
        elif what == "portal":
            reply = Reply(200, b"<html>please log in</html>")
        else:
            reply = self._reply(request)
        if what == "twice":
            reply = self._reply(request)
        if what == "slow":
            self.server_s += 3.0
        self.server_s += self.latency_s / 2
        if what == "unanswered":
            self.server_s += max(0.0, sent + request.timeout_s - self.monotonic())
            return NoResponse("the answer was lost")
        after = reply.headers.get("Retry-After")
        return Response(
            reply.status,
            reply.body,
            sent,
            self.monotonic(),
            retry_after_s=None if after is None else float(after),
        )

    def _reply(self, request: Request) -> Reply:
        headers = dict(request.headers)
        return self.service.handle(request.method, request.path, headers, request.body or b"")

    def requests(self, kind: RequestKind) -> list[Request]:
        return [request for request in self.sent if request.kind is kind]

    def events(self) -> list[str]:
        return [str(fields["event"]) for fields in self.events_logged]


def faults(*kinds: str, on: RequestKind | None = None) -> Fault:
    """These faults one after the other, on requests of one kind or of any; then none."""
    left: Iterator[str] = iter(kinds)

    def fault(request: Request) -> str:
        return next(left, "fine") if on in (None, request.kind) else "fine"

    return fault
