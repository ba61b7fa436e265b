"""Every answer is bounded in size and time, whoever asks and however the service misbehaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import httpx
import pytest

from checkins.client.actions import Answer, Kind, NoResponse, Request
from checkins.client.drivers import HEADERS, AsyncDriver, Driver, connected, connected_async
from checkins.client.state_file import Memory
from checkins.swarm.connections import Connections
from checkins.swarm.swarm import Shared, SwarmDriver, Tally, ViewFetcher
from tests.client.fake_service import FakeService
from tests.client.hostile_service import ATTACKS, LARGE, Attack, hostile
from tests.client.http_service import on_a_socket

ASKED = Request(Kind.OUTCOME, "GET", "/campaigns/x", 0.3)
PATIENT = Request(Kind.OUTCOME, "GET", "/campaigns/x", 60.0)


def blocking(url: str, request: Request) -> Answer | NoResponse:
    with connected(url) as http:
        answer: Answer | NoResponse = Driver(http, Memory()).perform(request)
        return answer


def of_its_own(url: str, request: Request) -> Answer | NoResponse:
    """With a client that the caller made, which asks for gzip unless it is told otherwise."""
    with httpx.Client(base_url=url) as http:
        answer: Answer | NoResponse = Driver(http, Memory()).perform(request)
        return answer


def on_a_loop(url: str, request: Request) -> Answer | NoResponse:
    async def ask() -> Answer | NoResponse:
        async with connected_async(url) as http:
            return await AsyncDriver(http, Memory()).send(request)

    return asyncio.run(ask())


def in_a_swarm(url: str, request: Request) -> Answer | NoResponse:
    async def ask() -> Answer | NoResponse:
        connections = Connections(url, HEADERS)
        try:
            with ViewFetcher(url) as lookout:
                shared = Shared(Tally(), connections, lookout)
                return await SwarmDriver(Memory(), shared=shared).send(request)
        finally:
            await connections.close()

    return asyncio.run(ask())


WAYS = {way.__name__: way for way in (blocking, of_its_own, on_a_loop, in_a_swarm)}
Way = Callable[[str, Request], Answer | NoResponse]


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_an_answer_beyond_its_limits_is_none(way: Way, attack: Attack) -> None:
    with hostile(attack) as url:
        answer = way(url, PATIENT if attack.__name__ in LARGE else ASKED)
    assert isinstance(answer, NoResponse), f"{len(answer.body):,} bytes"


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_an_answer_within_its_limits_is_taken(way: Way) -> None:
    service = FakeService()
    request = Request(Kind.OUTCOME, "GET", f"/campaigns/{service.id}", 60.0)
    with on_a_socket(service) as url:
        answer = way(url, request)
    assert isinstance(answer, Answer)
    assert answer.value()["id"] == service.id


def test_a_connection_that_was_ended_is_not_used_again() -> None:
    """A device that met a slow answer goes on with the next request."""
    service = FakeService()
    path = f"/campaigns/{service.id}"
    honest = {path: json.dumps(service.view()).encode()}
    with hostile(ATTACKS["slow_body"], honest) as url, connected(url) as http:
        hands = Driver(http, Memory())
        for _ in range(2):
            assert isinstance(hands.perform(Request(Kind.OUTCOME, "GET", path, 60.0)), Answer)
            assert isinstance(hands.perform(ASKED), NoResponse)


def test_every_request_of_a_device_has_a_limit_of_its_own() -> None:
    from tests.client.world import World

    world = World()
    world.live()
    limits = {request.kind: request.most_bytes for request in world.sent}
    assert limits[Kind.MODEL] < 100_000  # 14 numbers, and what is said of them
    assert limits[Kind.CHECK_IN] == limits[Kind.REPORT] == limits[Kind.ENROL] == 65_536
    assert limits[Kind.LOOK] == 8 * 2**20
