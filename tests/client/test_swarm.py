"""Many devices in one process are still each a device of its own."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from checkins.client.actions import Request, RequestKind, Response
from checkins.client.clock_and_randomness import monotonic_s
from checkins.client.trainer import Trainer
from checkins.swarm import Connections, Swarm, Tally, ViewFetcher
from tests.client.test_participant import soon
from tests.client.world import SlopeTrainer
from tests.support.fake_service import FakeService, on_a_socket


def swarm(url: str, service: FakeService, clients: int, **given: Any) -> Swarm:
    named = {"trainer": lambda client: SlopeTrainer(), **given}
    return Swarm(url=url, campaign=service.id, seal=service.campaign.seal, clients=clients, **named)


def test_every_device_has_its_own_token_slot_and_report(tmp_path: Path) -> None:
    service = soon()
    events_logged: list[dict[str, Any]] = []
    tally = Tally()
    with on_a_socket(service) as url:
        crowd = swarm(
            url, service, 40, state=tmp_path, journal=lambda s: events_logged.append(dict(s))
        )
        asyncio.run(crowd.run(tally))
        assert tally.outcomes == {"reported": 40}
        assert tally.done == 40
        assert len(service.tokens) == len(service.check_ins) == len(service.reports) == 40
        assert len(set(service.reports.values())) == 40
        looks = sum(path == f"/campaigns/{service.id}" for _, path in service.received)
        assert looks <= 3  # shared, not asked by each
        heads = sum("/ledger/heads/" in path for _, path in service.received)
        assert 0 < heads < 40  # shared too
        files = sorted((tmp_path / service.id).glob("*.json"))
        assert len(files) == 40
        assert {json.loads(file.read_text())["ended"] for file in files} == {"REPORTED"}
        told = {fields["client"] for fields in events_logged if fields["event"] == "acknowledged"}
        assert told == set(range(40))
        units = {
            tuple(fields["units"]) for fields in events_logged if fields["event"] == "reporting"
        }
        assert len(units) == 40
        before = len(service.received)
        asyncio.run(crowd.run(Tally()))  # all of them are done: no request is sent
        assert len(service.received) == before


def test_devices_arrive_at_a_rate_and_train_without_threads_if_asked() -> None:
    service, threads, enrolled_s = soon(), set[str](), list[float]()

    class Observed(SlopeTrainer):
        def update(self, model: Any) -> Any:
            threads.add(threading.current_thread().name)
            return super().update(model)

    def note(fields: Any) -> None:
        if fields["event"] == "enrolled":
            enrolled_s.append(time.monotonic())

    with on_a_socket(service) as url:
        given = {"trainer": lambda client: Observed(), "worker_threads": 0, "journal": note}
        crowd, started_s = swarm(url, service, 6, arrivals_per_s=20.0, **given), time.monotonic()
        asyncio.run(crowd.run(tally := Tally()))
    assert tally.outcomes == {"reported": 6}
    assert threads == {threading.current_thread().name}
    assert max(enrolled_s) >= started_s + 5 / 20.0


def test_a_device_that_fails_is_counted_and_stops_no_other() -> None:
    class Broken:
        def update(self, model: Any) -> Any:
            raise RuntimeError("no rows")

    def trainer(client: int) -> Trainer:
        return Broken() if client == 3 else SlopeTrainer()

    service, tally = soon(), Tally()
    with on_a_socket(service) as url:
        asyncio.run(swarm(url, service, 10, trainer=trainer).run(tally))
    assert tally.outcomes == {"reported": 9}
    assert tally.failures == {"no rows": 1}


def test_no_device_of_a_swarm_reports_to_a_service_that_was_rolled_back() -> None:
    service, tally = soon(), Tally()

    def fork_at_enrolment(method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        if path.endswith("/enrolments"):
            service.forked_after = 0  # after every device has looked

    service.override = fork_at_enrolment
    with on_a_socket(service) as url:
        asyncio.run(swarm(url, service, 10).run(tally))
    assert tally.failures.total() == 10
    assert all("was rolled back" in why for why in tally.failures)
    assert service.check_ins == {}


def test_a_busy_loop_does_not_set_the_clocks_wrong() -> None:
    async def look(url: str, left: list[bytes]) -> tuple[float, Response]:
        with ViewFetcher(url) as view_fetcher:
            coming = asyncio.ensure_future(
                view_fetcher.send(Request(RequestKind.VIEW, "GET", "/", 10.0))
            )
            await asyncio.sleep(0)
            while left:
                time.sleep(0.01)  # thousands of devices are started
            time.sleep(1.0)  # and the answer has arrived meanwhile
            free = monotonic_s()
            answer = await coming
            assert isinstance(answer, Response)
            return free, answer

    ok = [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"]
    with answering(*ok, left=ok) as (url, _):
        free, answer = asyncio.run(look(url, ok))
    assert answer.received_s < free


def test_each_device_enrols_with_its_own_key() -> None:
    service, tally = soon(), Tally()
    service.secret = "the second key"
    with on_a_socket(service) as url:
        crowd = swarm(url, service, 2, key=lambda client: ["the first", "the second key"][client])
        asyncio.run(crowd.run(tally))
    assert tally.outcomes == {"reported": 1}
    assert tally.failures.total() == 1


@contextmanager
def answering(*answers: bytes, left: list[bytes] | None = None) -> Iterator[tuple[str, list[int]]]:
    """A server that answers one request after the other with these bytes; b"" hangs up first.

    ``left`` are those that are still to be sent.
    """
    accepted: list[int] = []
    left = list(answers) if left is None else left
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while left:
                connection, _ = server.accept()
                accepted.append(1)
                with connection:
                    while left:
                        heard = b""
                        while b"\r\n\r\n" not in heard:
                            more = connection.recv(4096)
                            if not more:
                                break
                            heard += more
                        answer = left.pop(0)
                        if not answer:
                            break
                        connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", accepted
        thread.join(timeout=10)


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nRetry-After: 7\r\n\r\nhi"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nh\r\n1;x\r\ni\r\n0\r\n\r\n"
GET = Request(RequestKind.VIEW, "GET", "/x", 5.0)


def asked(url: str, times: int) -> list[Any]:
    async def ask() -> list[Any]:
        connections = Connections(url, {"A": "b"})
        try:
            return [await connections.send(GET) for _ in range(times)]
        finally:
            connections.close()

    return asyncio.run(ask())


def test_a_connection_is_used_again() -> None:
    with answering(OK, CHUNKED, OK) as (url, accepted):
        replies = asked(url, 3)
    assert [reply.body for reply in replies] == [b"hi"] * 3
    assert replies[0].retry_after_s == 7
    assert len(accepted) == 1


def test_an_idle_connection_that_was_closed_is_replaced() -> None:
    with answering(OK, b"", OK) as (url, accepted):
        assert [reply.body for reply in asked(url, 2)] == [b"hi", b"hi"]
    assert len(accepted) == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhi",
    ],
)
def test_a_malformed_response_is_an_error(answer: bytes) -> None:
    with answering(answer) as (url, _), pytest.raises((OSError, EOFError)):
        asked(url, 1)


def test_a_refused_connection_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        asked(f"http://127.0.0.1:{port}", 1)
