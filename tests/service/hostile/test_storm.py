"""Hundreds of hostile connections at once, of every kind: memory stays, honest clients are served.

Slow senders hold their connections until the service gives them up, which ends the storm;
unreading ones hold theirs until their buffers are full. In `make test` the number of hostile
requests is fixed, and honest clients must be answered, however long it takes on a busy machine. The
soak, on a machine that does nothing else, shouts until the end and bounds honest clients' latency.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.service.hostile import attacks
from tests.service.hostile.reports import malformed
from tests.service.hostile.world import World
from tests.soak import SOAK
from tests.support.raw_http import answers, exchange, request

pytestmark = pytest.mark.slow

MIB = 2**20
MAX_GROWTH = 50 * MIB
HONEST_P99_S = 1.0 if SOAK else float("inf")
SLOW, UNREADING, SHOUTED = (800, 300, None) if SOAK else (120, 40, 300)
"""Connections of slow senders and of unreading clients; other hostile requests, None: no limit."""
MIN_HONEST, LASTS_S = (1000, 60.0) if SOAK else (60, 0.0)
"""Honest requests, and seconds: the storm does not end before."""
HONEST_PAUSE_S, POLLS_PAUSE_S = (0.02, 0.2) if SOAK else (0.2, 1.0)
"""Pauses of the honest client and of clients that abandon polls, who go on until the storm ends."""
GIVEN_UP_S = 300.0
"""How long slow senders wait until the service closes their connections, which it does after 10."""


def slow_senders(world: World, over: threading.Event) -> dict[str, int]:
    """Half a head, or a body that trickles; how many connections the service ended.

    Goes on after the storm until all are closed by the other side, as the service must.
    """
    path = f"/campaigns/{world.main}/slots/1/report"
    head = {"Content-Length": "1000", "Content-Type": "application/octet-stream"}
    openings = [
        b"",
        b"GET /heal",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: ",
        request("PUT", path, token=world.guests.chosen[0], headers=head),
        request("POST", "/campaigns", token="x", headers={**head, "Content-Length": "100000"}),
        b"PUT %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3e8\r\n" % path.encode(),
    ]
    lines = []
    for _, opening in zip(range(SLOW), itertools.cycle(openings), strict=False):
        line = socket.create_connection(world.running.address, timeout=60)
        line.sendall(opening)
        line.setblocking(False)
        lines.append(line)
    return _trickle(lines)


def _trickle(lines: list[socket.socket]) -> dict[str, int]:
    """A byte now and then on each line, until all are closed by the other side."""
    until = time.monotonic() + GIVEN_UP_S
    ended = {"closed": 0, "left open": 0, "5xx": 0}
    received = dict.fromkeys(lines, b"")
    with selectors.DefaultSelector() as selector:
        for line in lines:
            selector.register(line, selectors.EVENT_READ)
        while received and time.monotonic() < until:
            for key, _ in selector.select(timeout=0.5):
                line = key.fileobj
                assert isinstance(line, socket.socket)
                try:
                    piece = line.recv(65536)
                except ConnectionError:
                    piece = b""
                received[line] += piece
                if not piece:
                    selector.unregister(line)
                    line.close()
                    ended["closed"] += 1
                    ended["5xx"] += received.pop(line)[9:10] == b"5"
            for line in list(received):
                with contextlib.suppress(OSError):
                    line.send(b"a")
            time.sleep(0.5)
    ended["left open"] = len(received)
    for line in received:
        line.close()
    return ended


def unreading_clients(world: World, over: threading.Event) -> dict[str, int]:
    """Ask for the largest things there are, many times on each line, and read none of it."""
    asked = [
        request("GET", path, close=False) * 40
        for path in (
            "/page/page.js",
            f"/campaigns/{world.main}",
            f"/campaigns/{world.quick}/ledger",
            "/openapi.json",
        )
    ]
    asked.append(request("GET", f"/campaigns/{world.quick}/events", close=False))
    lines = []
    for _, raw in zip(range(UNREADING), itertools.cycle(asked), strict=False):
        line = socket.create_connection(world.running.address, timeout=60)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.sendall(raw)
        lines.append(line)
    over.wait()
    for line in lines:
        line.close()
    return {"lines": len(lines), "5xx": 0}


def abandoned_polls(world: World, over: threading.Event) -> dict[str, int]:
    """Long polls whose clients vanish without a word."""
    receipts = [world.check_in(world.open, 1).json()["receipt"] for _ in range(10)]
    count = 0
    while not over.wait(POLLS_PAUSE_S):
        lines = []
        for receipt in receipts:
            path = f"/campaigns/{world.open}/check-ins/{receipt}?wait=60"
            line = socket.create_connection(world.running.address, timeout=60)
            line.sendall(request("GET", path))
            lines.append(line)
        count += len(lines)
        for line in lines:
            line.close()
    return {"polls": count, "5xx": 0}


def shouting(world: World, over: threading.Event) -> dict[str, int]:
    """Everything else that is wrong, one after the other, as fast as it goes."""
    path, receipt = f"/campaigns/{world.main}/slots/1/report", world.guests.chosen[0]
    bad = list(malformed(world.dimension).values())
    wrong = [request("PUT", path, token=receipt, body=body) for body in bad]
    wrong += [*attacks.garbage().values(), *attacks.smuggling().values()]
    wrong += attacks.odd_heads().values()
    wrong += [request("GET", odd) for odd in attacks.odd_paths(world.main).values()]
    bomb = {"Content-Encoding": "gzip"}
    wrong.append(request("PUT", path, token=receipt, body=attacks.BOMB, headers=bomb))
    random.Random(1).shuffle(wrong)
    found = {"sent": 0, "5xx": 0}
    for raw in itertools.cycle(wrong):
        if over.is_set() or found["sent"] == SHOUTED:
            return found
        for answer in _shouted(world, raw):
            found["5xx"] += answer >= 500
        found["sent"] += 1
        if found["sent"] % 100 == 0:
            stream = attacks.endless_chunks(path, receipt)
            found["5xx"] += any(a.status >= 500 for a in exchange(world.running.address, *stream))
    return found


def _shouted(world: World, raw: bytes) -> list[int]:
    received = b""
    with (
        contextlib.suppress(OSError),
        socket.create_connection(world.running.address, timeout=60) as line,
    ):
        with contextlib.suppress(OSError):
            line.sendall(raw)
            line.shutdown(socket.SHUT_WR)
        while piece := line.recv(65536):
            received += piece
    return [answer.status for answer in answers(received)]


def honest(world: World, over: Callable[[], bool], latencies: list[float]) -> None:
    """Enrol, check in, look at the campaign: as clients do, one request at a time."""
    while not over():
        time.sleep(HONEST_PAUSE_S)
        for action, status in (
            (lambda: world.check_in(world.open, 1), 202),
            (lambda: world.ask("GET", f"/campaigns/{world.main}"), 200),
            (lambda: world.ask("GET", "/healthz"), 200),
        ):
            began = time.monotonic()
            answer = action()
            latencies.append(time.monotonic() - began)
            assert answer.status == status, answer


@contextlib.contextmanager
def raging(
    world: World, *kinds: Callable[[World, threading.Event], dict[str, int]]
) -> Iterator[dict[str, dict[str, int]]]:
    """All kinds at once, each on a thread, until the block ends; what those saw that have ended."""
    over, found, failed = threading.Event(), {}, []

    def run(kind: Callable[[World, threading.Event], dict[str, int]]) -> None:
        try:
            found[kind.__name__] = kind(world, over)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(kind,)) for kind in kinds]
    for thread in threads:
        thread.start()
    try:
        yield found
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert failed == []


def test_honest_clients_are_served_and_memory_stays_while_hostile_ones_rage(world: World) -> None:
    for _ in range(50):  # what a first request of each kind allocates is no growth
        assert world.ask("GET", f"/campaigns/{world.main}").status == 200
    world.running.forget_peak()
    before = world.running.resident_bytes()
    latencies: list[float] = []
    kinds = (slow_senders, unreading_clients, abandoned_polls, shouting)
    least = time.monotonic() + LASTS_S
    with raging(world, *kinds) as found:

        def over() -> bool:
            enough = len(latencies) >= MIN_HONEST and time.monotonic() > least
            return enough and "slow_senders" in found

        honest(world, over, latencies)
    growth = world.running.peak_bytes() - before
    latencies.sort()
    p99 = latencies[int(0.99 * len(latencies))]
    told = f"{found}, {len(latencies)} honest, p99 {p99:.3f} s, growth {growth / MIB:.1f} MiB"
    assert sum(one["5xx"] for one in found.values()) == 0, told
    assert found["slow_senders"]["closed"] == SLOW, told
    assert growth < MAX_GROWTH, told
    assert p99 < HONEST_P99_S, told
    print(told)
