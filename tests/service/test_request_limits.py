"""What stands before the app."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import replace

import httpx
import pytest
from fastapi import FastAPI, Request
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from checkins.errors import InvalidValue
from checkins.service import logs
from checkins.service.http import problems
from checkins.service.http.request_limits import (
    CONTENT_SECURITY_POLICY,
    RequestLimits,
    RequestRates,
)
from checkins.service.settings import Limits

FREE = Limits(requests_per_s=0)
LIMIT = 100


class Body(BaseModel):
    x: int


class Wire:
    """One request given chunk by chunk, and the answer that comes back."""

    def __init__(self, chunks: Iterable[bytes] = (), *, headers: object = (), **scope: object):
        self.chunks = list(chunks)
        self.sent: list[dict] = []
        self.read = 0
        given = [(name.encode(), value.encode()) for name, value in dict(headers).items()]
        self.scope = {
            "type": "http",
            "method": "POST",
            "path": "/",
            "headers": given,
            "client": ("192.0.2.1", 1234),
            **scope,
        }

    async def receive(self) -> dict:
        if not self.chunks:
            await asyncio.Event().wait()  # nothing more ever comes
        body = self.chunks.pop(0)
        self.read += len(body)
        return {"type": "http.request", "body": body, "more_body": bool(self.chunks)}

    async def send(self, message: dict) -> None:
        self.sent.append(message)

    @property
    def status(self) -> int:
        return self.sent[0]["status"]

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def slug(self) -> str:
        assert self.headers["content-type"] == "application/problem+json"
        assert int(self.headers["content-length"]) == len(self.sent[1]["body"])
        return json.loads(self.sent[1]["body"])["type"].removeprefix("urn:checkins:")


class Reader:
    """An app that reads the whole body and answers 200; it remembers what it saw."""

    def __init__(self, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self.body = b""
        self.calls = 0
        self.complete = False
        self.headers = list(headers)

    async def __call__(self, scope, receive, send) -> None:
        self.calls += 1
        while scope["type"] == "http":
            message = await receive()
            self.body += message["body"]
            if not message["more_body"]:
                break
        self.complete = True
        await send({"type": "http.response.start", "status": 200, "headers": self.headers})
        await send({"type": "http.response.body", "body": b"done"})


def run(app, wire: Wire, *, limits: Limits = FREE, **how: object) -> list[str]:
    """Send the request through a middleware; the slugs it told as refused."""
    told: list[str] = []
    how.setdefault("body_limit_of", lambda scope: LIMIT)
    middleware = RequestLimits(app, limits=limits, on_refusal=told.append, **how)
    asyncio.run(middleware(wire.scope, wire.receive, wire.send))
    return told


chunked = {"transfer-encoding": "chunked"}


@given(chunks=st.lists(st.binary(max_size=60), min_size=1, max_size=12))
def test_the_app_never_sees_more_than_the_limit_however_the_body_is_cut(chunks):
    whole, app, wire = b"".join(chunks), Reader(), Wire(chunks, headers=chunked)
    told = run(app, wire)
    assert len(app.body) <= LIMIT
    assert whole.startswith(app.body)
    if len(whole) <= LIMIT:
        assert (wire.status, app.body, told) == (200, whole, [])
    else:
        assert (wire.status, wire.slug, app.complete, told) == (
            413,
            "too-large",
            False,
            ["too-large"],
        )
        assert wire.read <= LIMIT + 60  # it stops reading at the chunk that is too much
        assert wire.headers["connection"] == "close"


@given(chunks=st.lists(st.binary(max_size=60), min_size=1, max_size=8), claimed=st.integers(0, 100))
def test_a_length_that_lies_does_not_help(chunks, claimed):
    app, wire = Reader(), Wire(chunks, headers={"content-length": str(claimed + 1)})
    run(app, wire)
    assert len(app.body) <= LIMIT


@pytest.mark.parametrize("length", ["101", "9" * 18, "9" * 5000])
def test_a_body_announced_too_large_is_refused_before_the_app_is_asked(length):
    app, wire = Reader(), Wire([b"x"], headers={"content-length": length})
    assert run(app, wire) == ["too-large"]
    assert (wire.status, wire.slug, app.calls, wire.read) == (413, "too-large", 0, 0)


@pytest.mark.parametrize("length", ["-1", "1.5", "", "x"])
def test_a_length_that_is_no_number_is_refused(length):
    wire = Wire([b"x"], headers={"content-length": length})
    assert run(Reader(), wire) == ["invalid"]


def test_the_limit_is_the_paths_own():
    sizes = {"/campaigns": 1000}
    for path, status in (("/campaigns", 200), ("/other", 413)):
        wire = Wire([b"x" * 500], headers={"content-length": "500"}, path=path)
        run(Reader(), wire, body_limit_of=lambda scope: sizes.get(scope["path"], 100))
        assert wire.status == status


@pytest.mark.parametrize(
    "headers",
    [
        {"content-encoding": "gzip"},
        {"content-encoding": "Identity, br"},
        {"content-encoding": "zstd", "content-length": "3"},
        {"transfer-encoding": "gzip, chunked"},
    ],
)
def test_an_encoded_body_is_refused(headers):
    app, wire = Reader(), Wire([b"abc"], headers=headers)
    assert run(app, wire) == ["encoded"]
    assert (wire.status, wire.slug, app.calls) == (415, "encoded", 0)


@pytest.mark.parametrize("encoding", ["identity", " Identity ", ""])
def test_a_plain_body_may_say_so(encoding):
    wire = Wire([b"abc"], headers={"content-encoding": encoding, "content-length": "3"})
    run(Reader(), wire)
    assert wire.status == 200


def test_a_body_that_never_ends_is_given_up():
    class Stalled(Wire):
        async def receive(self) -> dict:
            if not self.chunks:
                await asyncio.Event().wait()
            return {"type": "http.request", "body": self.chunks.pop(), "more_body": True}

    app, wire = Reader(), Stalled([b"x", b"y"], headers={"content-length": "3"})
    assert run(app, wire, limits=replace(FREE, body_s=0.02)) == ["too-slow"]
    assert (wire.status, wire.slug, app.body, app.complete) == (408, "too-slow", b"yx", False)


def test_a_drip_does_not_move_the_deadline():
    class Drip(Wire):
        async def receive(self) -> dict:
            await asyncio.sleep(0.001)
            return {"type": "http.request", "body": b"", "more_body": True}

    wire = Drip(headers=chunked)
    assert run(Reader(), wire, limits=replace(FREE, body_s=0.05)) == ["too-slow"]


def test_waiting_for_a_client_to_leave_has_no_deadline():
    left = asyncio.Event()

    class Leaving(Wire):
        async def receive(self) -> dict:
            if self.chunks:
                return await super().receive()
            await left.wait()
            return {"type": "http.disconnect"}

    async def app(scope, receive, send) -> None:
        await receive()
        asyncio.get_running_loop().call_later(0.05, left.set)
        assert (await receive())["type"] == "http.disconnect"
        await Reader()({"type": "none"}, receive, send)

    wire = Leaving([b"x"], headers={"content-length": "1"})
    assert run(app, wire, limits=replace(FREE, body_s=0.01)) == []
    assert wire.status == 200


def test_a_framework_that_swallows_the_cut_cannot_answer_it():
    app = FastAPI()
    problems.install_handlers(app)

    @app.post("/parsed")
    async def parsed(body: Body) -> None: ...

    @app.post("/raw")
    async def raw(request: Request) -> int:
        return len(await request.body())

    for path in ("/parsed", "/raw"):
        headers = {**chunked, "content-type": "application/json"}
        wire = Wire([b"{" + b" " * 90, b" " * 20, b"}"], headers=headers)
        wire.scope |= {
            "path": path,
            "query_string": b"",
            "raw_path": path.encode(),
            "root_path": "",
        }
        assert run(app, wire) == ["too-large"]
        assert (wire.status, wire.slug) == (413, "too-large")
        assert len(wire.sent) == 2


def test_a_half_sent_answer_is_broken_off_not_repaired():
    async def app(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while (await receive())["more_body"]:
            pass

    wire = Wire([b"x" * 60] * 3, headers=chunked)
    with pytest.raises(ConnectionAbortedError):
        run(app, wire)
    assert len(wire.sent) == 1


def test_a_failure_of_the_app_passes_through():
    async def app(scope, receive, send) -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        run(app, Wire([b"x"], headers={"content-length": "1"}))


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_failure_is_answered_with_safe_headers_and_told_to_the_log_once(method, tmp_path):
    app = FastAPI()
    problems.install_handlers(app)
    app.add_middleware(RequestLimits, limits=FREE, body_limit_of=lambda _: LIMIT)

    @app.api_route("/x", methods=["GET", "POST"])
    async def x() -> None:
        raise KeyError("sekret")

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, "/x", content=b"x" if method == "POST" else None)

    with logs.configure(tmp_path / "log"):
        answer = asyncio.run(ask())
    assert (answer.status_code, answer.json()["type"]) == (500, "urn:checkins:failed")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["connection"] == "close"
    (line,) = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert (line["event"], line["error"], line["route"]) == ("failed", "KeyError", "/x")


def test_a_failure_in_half_an_answer_is_not_answered_again():
    async def app(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise KeyError("x")

    wire = Wire()
    with pytest.raises(KeyError):
        run(app, wire)
    assert [message["type"] for message in wire.sent] == ["http.response.start"]


def test_an_answer_before_the_body_was_read_closes_the_connection():
    async def refusing(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 401, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    unread, none = (
        Wire([b"x"], headers={"content-length": "1"}),
        Wire(headers={"content-length": "0"}),
    )
    run(refusing, unread)
    run(refusing, none)
    assert unread.headers["connection"] == "close"
    assert "connection" not in none.headers


def test_other_protocols_pass_untouched():
    for kind in ("lifespan", "websocket"):
        app, wire = Reader(), Wire()
        wire.scope = {"type": kind}
        run(app, wire)
        assert app.calls == 1
        assert wire.sent[0]["headers"] == []


def test_every_answer_is_safe_to_show():
    plain, page, kept = Wire([b""]), Wire([b""]), Wire([b""])
    run(Reader([(b"content-type", b"application/json")]), plain)
    run(Reader([(b"content-type", b"text/html; charset=utf-8")]), page)
    run(Reader([(b"cache-control", b"max-age=60")]), kept)
    for wire in (plain, page, kept):
        assert wire.headers["x-content-type-options"] == "nosniff"
        assert wire.headers["referrer-policy"] == "no-referrer"
    assert plain.headers["cache-control"] == "no-store"
    assert kept.headers["cache-control"] == "max-age=60"
    assert page.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert "content-security-policy" not in plain.headers
    assert Reader([(b"x", b"y")]).headers == [(b"x", b"y")]


def test_an_apps_own_header_list_is_not_changed():
    app = Reader([(b"x", b"y")])
    run(app, Wire([b""]))
    assert app.headers == [(b"x", b"y")]


@given(
    steps=st.lists(st.tuples(st.floats(0, 3), st.integers(0, 3)), min_size=1, max_size=200),
    per_s=st.floats(0.1, 50),
    burst=st.integers(1, 20),
)
def test_no_address_passes_more_than_its_burst_and_its_rate(steps, per_s, burst):
    now = 0.0
    rates = RequestRates(per_s=per_s, burst=burst, clock=lambda: now)
    passed: dict[str, list[float]] = {}
    for pause, who in steps:
        now += pause
        if rates.wait_s(str(who)) == 0:
            passed.setdefault(str(who), []).append(now)
    for times in passed.values():
        for start in range(len(times)):
            for end in range(start, len(times)):
                most = burst + per_s * (times[end] - times[start])
                assert end - start + 1 <= most + 1e-6


@given(per_s=st.floats(0.1, 100), burst=st.integers(1, 50))
def test_a_burst_passes_and_waiting_as_told_is_enough(per_s, burst):
    now = 1e6
    rates = RequestRates(per_s=per_s, burst=burst, clock=lambda: now)
    assert all(rates.wait_s("a") == 0 for _ in range(burst))
    wait_s = rates.wait_s("a")
    assert 0 < wait_s <= 1 / per_s + 1e-6
    assert rates.wait_s("b") == 0
    now += wait_s + 1e-6
    assert rates.wait_s("a") == 0


def test_addresses_that_are_remembered_are_bounded_and_the_oldest_goes_first():
    rates = RequestRates(per_s=1e-9, burst=1, max_addresses=3, clock=lambda: 0.0)
    assert [rates.wait_s(who) == 0 for who in "abcabc"] == [True] * 3 + [False] * 3
    assert rates.wait_s("d") == 0
    assert len(rates.full_at) == 3
    assert rates.wait_s("c") > 0
    assert rates.wait_s("a") == 0


def test_a_hurried_address_is_told_to_wait_and_others_are_not():
    now = 0.0
    told: list[str] = []
    app = Reader()
    limits = Limits(requests_per_s=0.5, burst=2)
    middleware = RequestLimits(
        app, limits=limits, body_limit_of=lambda _: LIMIT, on_refusal=told.append, clock=lambda: now
    )

    def ask(host: str, **headers: str) -> Wire:
        wire = Wire([b""], client=(host, 1), headers={"x-forwarded-for": "203.0.113.9"} | headers)
        asyncio.run(middleware(wire.scope, wire.receive, wire.send))
        return wire

    assert [ask("192.0.2.1").status for _ in range(3)] == [200, 200, 429]
    refused = ask("192.0.2.1")
    assert refused.slug == "too-many"
    assert refused.headers["retry-after"] == "2"
    assert ask("192.0.2.2").status == 200
    assert ask("::ffff:192.0.2.1").status == 429
    now = 2.0
    assert ask("192.0.2.1").status == 200
    assert told == ["too-many"] * 3


def test_one_customers_network_is_one_address():
    limits = Limits(requests_per_s=1e-9, burst=1)
    middleware = RequestLimits(Reader(), limits=limits, body_limit_of=lambda _: LIMIT)
    answers = []
    for host in ("2001:db8::1", "2001:db8::ffff:2", "2001:db8:0:1::1", "unix", None):
        wire = Wire([b""], client=host and (host, 1))
        asyncio.run(middleware(wire.scope, wire.receive, wire.send))
        answers.append(wire.status)
    assert answers == [200, 429, 200, 200, 200]


@pytest.mark.parametrize(
    ("peer", "forwarded", "counted"),
    [
        ("192.0.2.1", "203.0.113.9", "192.0.2.1"),  # not our proxy: not believed
        ("10.0.0.1", "203.0.113.9", "203.0.113.9"),
        ("10.0.0.1", "198.51.100.7, 203.0.113.9", "203.0.113.9"),  # the left one may be invented
        ("10.0.0.1", "203.0.113.9, 10.0.0.2", "203.0.113.9"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "garbage", "10.0.0.1"),
        ("10.0.0.1", "203.0.113.9, garbage", "10.0.0.1"),
    ],
)
def test_a_forwarded_address_is_believed_of_our_proxies_only(peer, forwarded, counted):
    middleware = RequestLimits(
        Reader(), limits=Limits(), body_limit_of=lambda _: LIMIT, trusted_proxies=["10.0.0.0/8"]
    )
    wire = Wire([b""], client=(peer, 1), headers={"x-forwarded-for": forwarded})
    asyncio.run(middleware(wire.scope, wire.receive, wire.send))
    assert list(middleware.rates.full_at) == [counted]


def test_a_proxy_that_is_no_address_is_refused():
    with pytest.raises(InvalidValue, match="trusted_proxies"):
        RequestLimits(
            Reader(), limits=FREE, body_limit_of=lambda _: LIMIT, trusted_proxies=["proxy.local"]
        )


def test_a_real_client_reads_a_refusal():
    async def ask() -> httpx.Response:
        middleware = RequestLimits(Reader(), limits=FREE, body_limit_of=lambda _: LIMIT)
        transport = httpx.ASGITransport(middleware)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.post("/", content=b"x" * 101)

    answer = asyncio.run(ask())
    assert (answer.status_code, answer.json()["type"]) == (413, "urn:checkins:too-large")
