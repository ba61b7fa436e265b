"""Connections that are given up, tried with real sockets against a real server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
import uvicorn
from starlette.responses import StreamingResponse

from checkins.service import logs
from checkins.service.http.request_limits import ConnectionCounts, Proxies, RequestLimits
from checkins.service.http.uvicorn_hooks import limited_protocol
from checkins.service.settings import Limits
from tests.support.waiting import PATIENCE_S, wait_until

SOON = Limits(requests_per_s=0, head_s=0.2, body_s=0.2, answer_s=0.2)
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


async def app(scope, receive, send) -> None:
    """Says how long the body was; /large is 20 MB, /hold takes its time, /fail fails, /stream
    never comes to a body."""
    if scope["type"] != "http":
        return
    if scope["path"] == "/fail":
        raise RuntimeError(scope["query_string"])
    length = 0
    more = True
    while more:
        message = await receive()
        length += len(message.get("body", b""))
        more = message.get("more_body", False)
    names = b",".join(name for name, _ in scope["headers"])
    body = b"x" * 20_000_000 if scope["path"] == "/large" else b"%d %s" % (length, names)
    if scope["path"] == "/hold":
        await asyncio.sleep(0.6)
    headers = [(b"content-length", str(len(body)).encode())]
    if scope["path"] == "/stream":
        headers = []
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    if scope["path"] == "/stream":
        await receive()  # until the client has left
    await send({"type": "http.response.body", "body": body})


@dataclass
class Running:
    port: int
    server: uvicorn.Server
    refused: Counter[str] = field(default_factory=Counter)
    opened: list[int] = field(default_factory=lambda: [0])

    def connect(self, first: bytes = b"") -> socket.socket:
        line = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)
        line.sendall(first)
        return line


@contextlib.contextmanager
def serving(
    limits: Limits, *, trusted_proxies: Sequence[str] = (), **config: object
) -> Iterator[Running]:
    """A server in a thread, on a free port, with the request limits before the app."""
    running = Running(0, None)  # type: ignore[arg-type]

    def refused(reason: str) -> None:
        running.refused[reason] += 1

    protocol = limited_protocol(
        limits,
        trusted_proxies=trusted_proxies,
        on_connection_count=running.opened.append,
        on_refusal=refused,
    )
    before = RequestLimits(app, limits=limits, body_limit_of=lambda _: 10_000, on_refusal=refused)
    listening = socket.create_server(("127.0.0.1", 0), backlog=512)
    running.port = listening.getsockname()[1]
    settings = {**logs.UVICORN_OPTIONS, "lifespan": "off", "http": protocol, "ws": "none", **config}
    server = running.server = uvicorn.Server(uvicorn.Config(before, **settings))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield running
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)
        listening.close()
    assert not thread.is_alive()
    assert running.opened[-1] == 0


def heard(line: socket.socket) -> bytes:
    """Everything until the server closes the connection."""
    parts = []
    with line, contextlib.suppress(ConnectionResetError):
        while part := line.recv(65536):
            parts.append(part)
    return b"".join(parts)


def answered(line: socket.socket) -> bytes:
    """One answer; the connection stays open."""
    got = b""
    while b"\r\n\r\n" not in got:
        part = line.recv(65536)
        assert part, got
        got += part
    head, _, start = got.partition(b"\r\n\r\n")
    body = bytearray(start)
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    while len(body) < length:
        part = line.recv(65536)
        assert part, f"closed after {len(body)} bytes"
        body += part
    return head.split(b"\r\n")[0] + b" " + bytes(body)


def honest(running: Running) -> bool:
    with running.connect(GET) as line:
        return answered(line).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_head_that_does_not_arrive_is_given_up(loop):
    with serving(SOON, loop=loop) as running:
        silent, half = running.connect(), running.connect(b"GET / HTTP/1.1\r\nhost:")
        assert honest(running)
        assert heard(silent) == b""
        assert heard(half).startswith(b"HTTP/1.1 408 ")
        assert running.refused == {"slow-head": 2}
        assert honest(running)


def test_bytes_one_by_one_do_not_move_the_deadline():
    with serving(SOON) as running:
        line = running.connect(b"GET / HTTP/1.1\r\nx-slow: ")
        with contextlib.suppress(ConnectionError):
            while not running.refused["slow-head"]:
                line.sendall(b"x")
                time.sleep(0.01)
        heard(line)
        assert honest(running)


@pytest.mark.parametrize("drip", [b"\r\n", b"G"])
def test_a_later_head_on_the_same_connection_is_timed_too(drip):
    with serving(SOON, timeout_keep_alive=60) as running:
        line = running.connect(GET)
        assert b" 200 " in answered(line)
        line.sendall(drip)
        assert heard(line).startswith(b"HTTP/1.1 408 ")
        assert running.refused == {"slow-head": 1}


def test_an_idle_connection_after_an_answer_is_not_ours():
    with serving(SOON, timeout_keep_alive=60) as running:
        line = running.connect(GET)
        assert b" 200 " in answered(line)
        slow = running.connect(b"GET")
        heard(slow)  # head_s has passed
        line.sendall(GET)
        assert b" 200 " in answered(line)
        line.close()


def test_an_answer_that_takes_its_time_is_not_a_slow_head():
    with serving(SOON) as running:
        line = running.connect(GET.replace(b"/ ", b"/hold "))
        assert b" 200 " in answered(line)
        line.close()
        pipelined = running.connect(GET.replace(b"/ ", b"/hold ") + b"GET / HT")
        told = heard(pipelined)  # both answers: a busy machine may send them in one piece
        assert told.startswith(b"HTTP/1.1 200 ")
        assert b"HTTP/1.1 408 " in told


def test_pipelined_requests_are_all_answered():
    with serving(SOON) as running:
        line = running.connect(GET * 5)
        got = b""
        while got.count(b"200 OK") < 5:
            got += line.recv(65536)
        line.close()
        assert not running.refused


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_an_answer_is_one_piece_and_a_head_without_a_body_is_not_kept(loop):
    with serving(SOON, loop=loop) as running, running.connect(GET) as line:
        assert line.recv(65536).endswith(b"\r\n\r\n0 host")
        line.sendall(b"HEAD / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert line.recv(65536).endswith(b"\r\n\r\n")


def test_the_head_of_a_stream_arrives_before_its_body():
    with serving(SOON) as running, running.connect(GET.replace(b"/ ", b"/stream ")) as line:
        assert line.recv(65536).startswith(b"HTTP/1.1 200")


def test_nothing_is_kept_of_requests_that_were_answered():
    with serving(SOON) as running, running.connect(40 * GET) as line:
        got = b""
        while got.count(b"HTTP/1.1 200") < 40:
            got += line.recv(65536)
        (connection,) = running.server.server_state.connections
        wait_until(lambda: not connection.cycles)


def test_a_body_sent_byte_by_byte_is_given_up_and_others_are_served_meanwhile():
    with serving(SOON) as running:
        line = running.connect(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9999\r\n\r\n")
        answer = b""
        line.settimeout(0.01)
        while not answer:
            assert honest(running)
            with contextlib.suppress(ConnectionError):
                line.sendall(b"x")
            with contextlib.suppress(TimeoutError):
                answer = line.recv(65536)
        line.close()
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"urn:checkins:too-slow" in answer
        assert running.refused == {"too-slow": 1}


def test_a_body_nobody_reads_any_more_does_not_hold_the_connection():
    async def hasty(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 401, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    with serving(SOON, timeout_keep_alive=60) as running:
        running.server.config.loaded_app = hasty  # without the limits, which would close at once
        line = running.connect(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9999\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while not running.refused["slow-head"]:
                line.sendall(b"x")
                time.sleep(0.01)
        assert b" 401 " in heard(line)


@pytest.mark.parametrize(
    "start",
    [
        b"GET / HTTP/1.1\r\nx: ",
        b"GET /",
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: ",
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1;",
    ],
)
def test_a_head_or_trailer_without_end_is_given_up(start):
    patient = Limits(requests_per_s=0, head_bytes=4096)
    with serving(patient) as running:
        line = running.connect(start)
        with contextlib.suppress(ConnectionError):
            for _ in range(10_000):
                line.sendall(b"y" * 1000)
        heard(line)
        assert running.refused == {"long-head": 1}
        assert honest(running)


def head_of(length: int, *, first: bytes = b"GET / HTTP/1.1\r\nx: ") -> bytes:
    """A whole head of so many bytes."""
    return first + b"y" * (length - len(first) - 4) + b"\r\n\r\n"


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_head_may_have_so_many_bytes_and_not_one_more_however_it_arrives(loop):
    with serving(Limits(requests_per_s=0, head_bytes=4096), loop=loop) as running:
        line = running.connect(head_of(4096))
        assert b" 200 " in answered(line)
        line.sendall(head_of(4096))
        assert b" 200 " in answered(line)
        line.sendall(head_of(4097))
        assert heard(line).startswith(b"HTTP/1.1 431 ")
        for length in (4097, 5000, 33_000, 100_000):
            assert heard(running.connect(head_of(length))).startswith(b"HTTP/1.1 431 ")
        assert running.refused == {"long-head": 5}
        assert honest(running)


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"y" * 5000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 800 + b"\r\n",
        b"GET / HTTP/1.1\r\nx:" + b" " * 5000 + b"y\r\n\r\n",
    ],
    ids=["path", "headers", "blanks"],
)
def test_every_byte_of_a_head_counts(head):
    with serving(Limits(requests_per_s=0, head_bytes=4096)) as running:
        assert heard(running.connect(head)).startswith(b"HTTP/1.1 431 ")
        assert running.refused == {"long-head": 1}


def test_a_head_behind_another_request_in_the_same_bytes_is_counted_too():
    with serving(Limits(requests_per_s=0, head_bytes=4096)) as running:
        heard(running.connect(GET + head_of(5000)))
        assert running.refused == {"long-head": 1}
        line = running.connect(GET + head_of(3000) + head_of(3000))
        assert [answered(line)[:12] for _ in range(1)] == [b"HTTP/1.1 200"]
        line.close()
        assert running.refused == {"long-head": 1}


def test_a_body_is_no_head_however_long_it_is():
    with serving(Limits(requests_per_s=0, head_bytes=1024)) as running:
        head = b"POST / HTTP/1.1\r\ncontent-length: 9000\r\n\r\n"
        line = running.connect(head + b"x" * 9000)
        assert answered(line) == b"HTTP/1.1 200 OK 9000 content-length"
        line.close()


def test_small_chunks_are_no_endless_head_and_trailers_do_not_change_the_request():
    with serving(Limits(head_bytes=4096)) as running:
        line = running.connect(b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(20):
            line.sendall(b"1\r\nx\r\n" * 200)
        line.sendall(b"0\r\nauthorization: Bearer y\r\n\r\n")
        assert answered(line) == b"HTTP/1.1 200 OK 4000 transfer-encoding"
        line.close()
        assert not running.refused


def test_an_answer_that_is_not_taken_is_given_up():
    with serving(SOON) as running:
        line = running.connect(GET.replace(b"/ ", b"/large "))
        wait_until(lambda: running.refused["slow-reader"] == 1)
        assert len(heard(line)) < 20_000_000
        assert honest(running)


@pytest.mark.slow
def test_a_large_answer_that_is_taken_slowly_arrives_whole():
    limits = Limits(answer_s=2.0)
    with serving(limits) as running, running.connect(GET.replace(b"/ ", b"/large ")) as line:
        got = 0
        for _ in range(25):  # longer than answer_s in all, never so long without taking any
            got += len(line.recv(400_000))
            time.sleep(0.1)  # a busy machine may make it twenty times as long
        while got < 20_000_000:
            part = line.recv(400_000)
            assert part
            got += len(part)
        assert not running.refused


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_connections_in_all_are_bounded_and_counted_down(loop):
    with serving(Limits(connections=3), loop=loop) as running:
        lines = [running.connect() for _ in range(3)]
        wait_until(lambda: running.opened[-1] == 3)
        assert heard(running.connect()).startswith(b"HTTP/1.1 503 ")
        assert b" 200 " not in heard(running.connect(GET))
        assert running.refused == {"too-many-connections": 2}
        lines.pop().close()
        wait_until(lambda: running.opened[-1] == 2)
        assert honest(running)
        for line in lines:
            line.close()
        wait_until(lambda: running.opened[-1] == 0)


def test_connections_of_one_address_are_bounded():
    with serving(Limits(per_address=1)) as running:
        first = running.connect(GET)
        assert b" 200 " in answered(first)
        assert heard(running.connect()).startswith(b"HTTP/1.1 503 ")
        first.close()
        wait_until(lambda: running.opened[-1] == 0)
        assert honest(running)


def test_what_is_not_http_is_refused_and_counted():
    with serving(SOON) as running:
        assert heard(running.connect(b"\x16\x03\x01 not http\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
        assert running.refused == {"not-http": 1}


def test_an_upgrade_is_not_followed():
    wanted = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
    with serving(SOON, ws="auto") as running, running.connect(wanted) as line:
        assert b" 200 " in answered(line)


def test_a_server_under_all_this_logs_no_address_and_no_text(tmp_path):
    file = tmp_path / "log"
    with logs.configure(file, strict=True), serving(SOON) as running:
        heard(running.connect(b"sekret\r\n\r\n"))
        heard(running.connect(b"GET /sekret HTTP/1.1\r\n"))
        heard(running.connect(GET.replace(b"/ ", b"/fail?sekret=1 ")))
        assert honest(running)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["event"] for line in lines] == ["library", "stopping"]
    assert lines[0]["error"] == "RuntimeError"
    assert "127.0.0.1" not in file.read_text()
    assert "sekret" not in file.read_text()


def events_of(file) -> list[str]:
    return [json.loads(line)["event"] for line in file.read_text().splitlines()]


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_stream_ends_with_its_connection_also_with_a_request_behind_it(loop, tmp_path):
    """And it is no failure of ours: nobody may fill the operator's log by hanging up."""
    listening: list[int] = [0]

    async def streaming(scope, receive, send) -> None:
        async def events():
            listening.append(listening[-1] + 1)
            try:
                while True:
                    yield b"event"
                    await asyncio.sleep(0.001)
            finally:
                listening.append(listening[-1] - 1)

        await StreamingResponse(events())(scope, receive, send)

    file = tmp_path / "log"
    with logs.configure(file, strict=True), serving(SOON, loop=loop) as running:
        running.server.config.loaded_app = streaming
        for _ in range(5):
            line = running.connect(GET * 3)
            assert line.recv(65536)
            line.close()
        wait_until(lambda: len(listening) == 11)
        assert listening[-1] == 0
    assert events_of(file) == ["stopping"]


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_readers_that_never_read_what_they_asked_for_are_not_in_the_log(loop, tmp_path):
    file = tmp_path / "log"
    with logs.configure(file, strict=True), serving(SOON, loop=loop) as running:
        lines = [running.connect(GET.replace(b"/ ", b"/large ") * 4) for _ in range(5)]
        wait_until(lambda: running.refused["slow-reader"] == 5)
        wait_until(lambda: running.opened[-1] == 0)
        for line in lines:
            line.close()
    assert events_of(file) == ["stopping"]


@pytest.mark.slow
def test_many_idle_connections_leave_honest_ones_served():
    with serving(Limits(requests_per_s=0, head_s=2.0)) as running:
        idle = [running.connect(b"G") for _ in range(400)]
        wait_until(lambda: running.opened[-1] == 400)
        assert all(honest(running) for _ in range(50))
        wait_until(lambda: running.refused["slow-head"] == 400)
        wait_until(lambda: running.opened[-1] == 0)
        for line in idle:
            line.close()


def test_one_address_takes_no_more_than_its_share_of_all_connections_by_default():
    counts = ConnectionCounts(Limits())
    alone = sum(counts.admit("192.0.2.1") for _ in range(Limits().connections))
    assert alone == Limits().per_address == 1000
    assert counts.admit("192.0.2.2")


def test_a_network_of_ipv6_is_one_address_and_ipv4_in_ipv6_is_its_own():
    counts = ConnectionCounts(Limits(per_address=2))
    assert counts.admit("2001:db8::1")
    assert counts.admit("2001:db8::ffff:2")
    assert not counts.admit("2001:db8::3")
    assert counts.admit("2001:db8:0:1::3")
    assert counts.admit("::ffff:192.0.2.1")
    assert counts.admit("192.0.2.1")
    assert not counts.admit("::ffff:192.0.2.1")
    assert counts.admit("::ffff:192.0.2.2")


def test_a_trusted_proxy_carries_many_and_is_bounded_by_the_total():
    counts = ConnectionCounts(Limits(connections=5, per_address=2), Proxies(["10.0.0.0/8"]))
    assert [counts.admit("10.1.2.3") for _ in range(6)] == [True] * 5 + [False]
    for _ in range(5):
        counts.release("10.1.2.3")
    assert [counts.admit("192.0.2.1") for _ in range(3)] == [True, True, False]


def test_connections_of_a_trusted_proxy_are_admitted():
    with serving(Limits(per_address=1), trusted_proxies=["127.0.0.0/8"]) as running:
        lines = [running.connect(GET) for _ in range(3)]
        assert all(b" 200 " in answered(line) for line in lines)
        for line in lines:
            line.close()


def test_nothing_is_remembered_of_an_address_that_left():
    counts = ConnectionCounts(Limits(connections=0, per_address=2))
    assert [counts.admit("a"), counts.admit("a"), counts.admit("a")] == [True, True, False]
    assert counts.admit("b")
    for address in ("a", "b", "a"):
        counts.release(address)
    assert (counts.total, counts.by_address) == (0, {})
