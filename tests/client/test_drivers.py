"""Blocking calls and an event loop perform the same actions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from checkins.client.actions import Action, Save
from checkins.client.drivers import HEADERS, AsyncDriver, Driver
from checkins.client.participation import Participation, ParticipationConfig
from checkins.client.state import MemoryStore
from checkins.protocol.participant import Outcome
from tests.client.world import URL, FixedRandomness, SlopeTrainer
from tests.support.clock import Clock
from tests.support.fake_service import START_S, FakeService, Script, campaign, transport


class Recorded:
    """A flow that keeps its actions."""

    def __init__(self, flow: Any, actions: list[Action]) -> None:
        self._flow = flow
        self._actions = actions

    def send(self, result: Any) -> Action:
        action: Action = self._flow.send(result)
        self._actions.append(action)
        return action

    def close(self) -> None:
        self._flow.close()


def lived(drive: Callable[..., Outcome], script: Script) -> tuple[Outcome, list[Action], list[Any]]:
    clock = Clock(777.0)
    service = FakeService(campaign(noise_at="server", slot_s=60.0, choose_s=20.0))
    service.now_s = lambda: START_S - 100.0 + clock.now - 777.0
    service.wait = lambda most_s, done: clock.sleep(0.0 if done() else min(most_s, 20.0))
    plan = ParticipationConfig(URL, service.id, SlopeTrainer())
    actions: list[Action] = []
    events_logged: list[Any] = []
    participation = Participation(plan, None, monotonic=clock, randomness=FixedRandomness(slot=2))
    flow = Recorded(participation.flow(), actions)
    outcome = drive(flow, transport(service, clock, script), clock, events_logged.append)
    return outcome, actions, events_logged


def blocking(flow: Any, carrier: Any, clock: Clock, journal: Any) -> Outcome:
    with httpx.Client(base_url=URL, transport=carrier, headers=HEADERS) as http:
        driver = Driver(http, MemoryStore(), journal=journal, monotonic=clock, sleep=clock.sleep)
        return driver.drive(flow)


def on_a_loop(flow: Any, carrier: Any, clock: Clock, journal: Any) -> Outcome:
    async def live() -> Outcome:
        async with httpx.AsyncClient(base_url=URL, transport=carrier, headers=HEADERS) as http:
            driver = AsyncDriver(
                http, MemoryStore(), journal=journal, monotonic=clock, sleep=clock.sleep_async
            )
            return await driver.drive(flow)

    return asyncio.run(live())


def gone(number: int) -> str:
    return "fine" if number < 4 else "lost"


SCRIPTS: dict[str, Script] = {
    "a quiet day": lambda number: "fine",
    "every third lost": lambda number: "lost" if number % 3 == 1 else "fine",
    "every third unanswered": lambda number: "unanswered" if number % 3 == 1 else "fine",
    "nobody after the check-in": gone,
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_sync_and_async_perform_the_same_actions(script: Script) -> None:
    outcome, actions, events_logged = lived(blocking, script)
    outcome_async, actions_async, stories_async = lived(on_a_loop, script)
    assert outcome is outcome_async
    assert [str(action) for action in actions if not hasattr(action, "make_report")] == [
        str(action) for action in actions_async if not hasattr(action, "make_report")
    ]
    assert [type(action) for action in actions] == [type(action) for action in actions_async]
    assert events_logged == stories_async
    assert outcome is (Outcome.LATE if script is gone else Outcome.REPORTED)


def test_a_disk_that_fails_stops_the_device_before_it_says_anything() -> None:
    class Full:
        def load(self) -> bytes | None:
            return None

        def save(self, kept: bytes) -> None:
            raise OSError(28, "no space left on device")

    clock = Clock(0.0)
    service = FakeService()
    service.now_s = lambda: START_S - 10.0
    plan = ParticipationConfig(URL, service.id, SlopeTrainer())
    flow = Participation(plan, None, monotonic=clock, randomness=FixedRandomness()).flow()
    with httpx.Client(base_url=URL, transport=transport(service, clock)) as http:
        driver = Driver(http, Full(), monotonic=clock, sleep=clock.sleep)
        with pytest.raises(OSError, match="no space"):
            driver.drive(flow)
    assert service.tokens == {}


def test_what_a_device_sends_does_not_tell_devices_apart() -> None:
    heads: list[httpx.Headers] = []
    clock = Clock(0.0)
    service = FakeService()
    service.now_s = lambda: START_S - 10.0 + clock.now
    carrier = transport(service, clock)

    def handle(request: httpx.Request) -> httpx.Response:
        heads.append(request.headers)
        return carrier.handle_request(request)

    plan = ParticipationConfig(URL, service.id, SlopeTrainer())
    flow = Participation(plan, None, monotonic=clock, randomness=FixedRandomness()).flow()
    assert blocking(flow, httpx.MockTransport(handle), clock, None) is Outcome.REPORTED
    known = {"host", "accept", "accept-encoding", "connection", "user-agent", "content-length"}
    for head in heads:
        assert set(head) <= known | {"authorization", "idempotency-key", "content-type"}
        assert head["user-agent"] == "checkins"


def test_save_is_the_only_action_that_touches_the_disk() -> None:
    class Counting(MemoryStore):
        saves = 0

        def save(self, kept: bytes) -> None:
            Counting.saves += 1
            super().save(kept)

    clock = Clock(0.0)
    service = FakeService()
    service.now_s = lambda: START_S - 10.0 + clock.now
    actions: list[Action] = []
    plan = ParticipationConfig(URL, service.id, SlopeTrainer())
    participation = Participation(plan, None, monotonic=clock, randomness=FixedRandomness())
    with httpx.Client(base_url=URL, transport=transport(service, clock)) as http:
        driver = Driver(http, Counting(), monotonic=clock, sleep=clock.sleep)
        driver.drive(Recorded(participation.flow(), actions))  # type: ignore[arg-type]
    assert Counting.saves == sum(isinstance(action, Save) for action in actions) == 4
