"""Every answer is bounded in size and time, whoever asks and however the service misbehaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import httpx
import pytest

from checkins.client.actions import NoResponse, Request, RequestKind, Response
from checkins.client.drivers import HEADERS, AsyncDriver, Driver, async_http_client, http_client
from checkins.client.state import MemoryStore
from checkins.protocol import wire
from checkins.swarm import Connections, SharedResponses, SwarmDriver, Tally, ViewFetcher
from tests.support.fake_service import FakeService, on_a_socket
from tests.support.hostile_service import ATTACKS, LARGE, Attack, hostile

ASKED = Request(RequestKind.OUTCOME, "GET", "/campaigns/x", 0.3)
PATIENT = Request(RequestKind.OUTCOME, "GET", "/campaigns/x", 60.0)


def blocking(url: str, request: Request) -> Response | NoResponse:
    with http_client(url) as http:
        answer: Response | NoResponse = Driver(http, MemoryStore()).perform(request)
        return answer


def of_its_own(url: str, request: Request) -> Response | NoResponse:
    """With a client that the caller made, which asks for gzip by default."""
    with httpx.Client(base_url=url) as http:
        answer: Response | NoResponse = Driver(http, MemoryStore()).perform(request)
        return answer


def on_a_loop(url: str, request: Request) -> Response | NoResponse:
    async def ask() -> Response | NoResponse:
        async with async_http_client(url) as http:
            return await AsyncDriver(http, MemoryStore()).send(request)

    return asyncio.run(ask())


def in_a_swarm(url: str, request: Request) -> Response | NoResponse:
    async def ask() -> Response | NoResponse:
        connections = Connections(url, HEADERS)
        try:
            with ViewFetcher(url) as view_fetcher:
                shared = SharedResponses(Tally(), connections, view_fetcher)
                return await SwarmDriver(MemoryStore(), shared=shared).send(request)
        finally:
            connections.close()

    return asyncio.run(ask())


WAYS = {way.__name__: way for way in (blocking, of_its_own, on_a_loop, in_a_swarm)}
Way = Callable[[str, Request], Response | NoResponse]


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_a_response_beyond_its_limits_counts_as_none(way: Way, attack: Attack) -> None:
    with hostile(attack) as url:
        answer = way(url, PATIENT if attack.__name__ in LARGE else ASKED)
    assert isinstance(answer, NoResponse), f"{len(answer.body):,} bytes"


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_response_within_its_limits_is_accepted(way: Way) -> None:
    service = FakeService()
    request = Request(RequestKind.OUTCOME, "GET", f"/campaigns/{service.id}", 60.0)
    with on_a_socket(service) as url:
        answer = way(url, request)
    assert isinstance(answer, Response)
    assert json.loads(answer.body)["id"] == service.id


def test_a_connection_that_was_ended_is_not_used_again() -> None:
    """A device that met a slow answer goes on with the next request."""
    service = FakeService()
    path = f"/campaigns/{service.id}"
    honest = {path: json.dumps(service.view()).encode()}
    with hostile(ATTACKS["slow_body"], honest) as url, http_client(url) as http:
        driver = Driver(http, MemoryStore())
        for _ in range(2):
            assert isinstance(
                driver.perform(Request(RequestKind.OUTCOME, "GET", path, 60.0)), Response
            )
            assert isinstance(driver.perform(ASKED), NoResponse)


def test_every_request_of_a_device_has_a_limit_of_its_own() -> None:
    from tests.client.world import World

    world = World()
    world.live()
    limits = {request.kind: request.max_bytes for request in world.sent}
    assert limits[RequestKind.OUTCOME] == wire.MAX_OUTCOME_BYTES  # it may bring the model
    assert limits[RequestKind.REPORT] == limits[RequestKind.ENROL] == 65_536
    assert limits[RequestKind.VIEW] == 8 * 2**20
