"""The proxy does to a request what its fate says, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx
import pytest

from tests.support.http_server import Handler, http_server
from tests.support.proxy import Fate, Proxy, Request, each_in_turn, seeded

BODY = b"x" * 5000


@dataclass(slots=True)
class Counter:
    """A server that counts what arrives whole, and answers with what it got."""

    port: int = 0
    arrived: list[bytes] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[Counter]:
    counter = Counter()

    class Counting(Handler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if len(body) == len(BODY):
                counter.arrived.append(body)
            self.say(200, body)

    with http_server(Counting) as url:
        counter.port = int(url.rpartition(":")[2])
        yield counter


def put(proxy: Proxy) -> httpx.Response:
    headers = {"Authorization": "Bearer secret"}
    return httpx.put(f"{proxy.url}/campaigns/c-1/slots/3/report", content=BODY, headers=headers)


ARRIVALS = {
    Fate.PASS: (1, True),
    Fate.DELAY: (1, True),
    Fate.LOSE: (0, False),
    Fate.CUT_REQUEST: (0, False),
    Fate.LOSE_ANSWER: (1, False),
    Fate.CUT_ANSWER: (1, False),
    Fate.REPEAT: (2, True),
    Fate.REPLAY: (2, True),
}


@pytest.mark.parametrize("fate", ARRIVALS)
def test_a_fate_does_what_it_says(server: Counter, fate: Fate) -> None:
    arrivals, answered = ARRIVALS[fate]
    with Proxy(server.port, lambda _: fate).open() as proxy:
        if answered:
            assert put(proxy).content == BODY
        else:
            with pytest.raises(httpx.TransportError):
                put(proxy)
    assert server.arrived == [BODY] * arrivals
    assert [(seen.key, seen.route, seen.fate) for seen in proxy.seen] == [
        ("secret", "PUT report", fate)
    ]


def test_a_client_whose_proxy_hangs_up_gets_no_answer(server: Counter) -> None:
    hang_up = Proxy(server.port, lambda _: Fate.HANG_UP)
    with hang_up.open() as proxy, pytest.raises(httpx.TransportError):
        put(proxy)


def test_a_server_that_is_down_looks_like_a_lost_request() -> None:
    with Proxy(1).open() as proxy, pytest.raises(httpx.TransportError):
        put(proxy)


def test_the_same_seed_gives_the_same_fates() -> None:
    request = Request("PUT", "/campaigns/c-1/slots/3/report", b"", b"")
    chances = {Fate.LOSE: 0.3, Fate.REPEAT: 0.3}
    one, other = seeded(5, chances), seeded(5, chances)
    fates = [one(request) for _ in range(50)]
    assert fates == [other(request) for _ in range(50)]
    assert set(fates) == {Fate.LOSE, Fate.REPEAT, Fate.PASS}


def test_fates_come_in_turn_on_each_route() -> None:
    put = Request("PUT", "/campaigns/c-1/slots/3/report", b"", b"")
    get = Request("GET", "/campaigns/c-1/check-ins/abc?wait=3", b"", b"")
    fate = each_in_turn([Fate.LOSE, Fate.REPEAT])
    assert put.route == "PUT report"
    assert get.route == "GET check-ins"
    assert [fate(put) for _ in range(4)] == [Fate.LOSE, Fate.PASS, Fate.REPEAT, Fate.PASS]
    assert fate(get) is Fate.LOSE
