"""Bytes that no client of ours sends, over real sockets: refused or cut off, never our own error.

A request that can be read as HTTP gets a 4xx with a problem that says why. Where there is nothing
to answer, the HTTP parser says 400 or the connection is closed.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.service.hostile import attacks
from tests.service.hostile.world import World
from tests.soak import SOAK
from tests.support.coordinator import OPERATOR
from tests.support.raw_http import Answer, answers, ask, chunked, exchange, read_all, request

pytestmark = pytest.mark.slow

EXAMPLES = 5_000 if SOAK else 100
GARBAGE, SMUGGLING = sorted(attacks.garbage()), sorted(attacks.smuggling())
HEADS, PATHS = sorted(attacks.odd_heads()), sorted(attacks.odd_paths("x"))


def not_understood(found: Iterable[Answer]) -> None:
    """One refusal at most, from the parser or from the service."""
    found = list(found)
    assert len(found) <= 1, found
    for answer in found:
        assert 400 <= answer.status < 500, answer


def refused(answer: Answer, *problems: str) -> None:
    assert 400 <= answer.status < 500, answer
    assert answer.problem in problems, answer


def report_path(world: World) -> str:
    return f"/campaigns/{world.main}/slots/1/report"


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_is_cut_off(world: World, name: str) -> None:
    not_understood(ended(world, attacks.garbage()[name]))


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_behind_a_request_is_cut_off(world: World, name: str) -> None:
    """In one piece the parser may refuse both; the request is never answered twice."""
    good = request("GET", "/healthz", close=False)
    found = ended(world, good + attacks.garbage()[name])
    not_understood(found[1:] if found[:1] and found[0].status == 200 else found)
    with socket.create_connection(world.running.address, timeout=60) as connection:
        connection.sendall(good)
        received = b""
        while not received.endswith(b"}"):
            received += connection.recv(65536)
        assert [answer.status for answer in answers(received)] == [200]
        not_understood(finished(connection, attacks.garbage()[name]))


def ended(world: World, raw: bytes) -> list[Answer]:
    """What comes back to these bytes and no more."""
    with socket.create_connection(world.running.address, timeout=60) as connection:
        return finished(connection, raw)


def finished(connection: socket.socket, raw: bytes) -> list[Answer]:
    """Send and say that it is all: the service would wait for more of some of it."""
    with contextlib.suppress(OSError):  # it was closed before all was said
        connection.sendall(raw)
        connection.shutdown(socket.SHUT_WR)
    return list(answers(read_all(connection)))


@pytest.mark.parametrize("name", SMUGGLING)
def test_nothing_is_smuggled_behind_a_request(world: World, name: str) -> None:
    found = ended(world, attacks.smuggling()[name])
    assert [answer for answer in found if answer.status < 400] == []
    not_understood(found)


@pytest.mark.parametrize("name", HEADS)
def test_an_odd_head_is_refused_or_harmless(world: World, name: str) -> None:
    for answer in exchange(world.running.address, attacks.odd_heads()[name]):
        assert answer.status < 500, answer
        if answer.status == 200:
            assert answer.json()["status"] == "ok"


@pytest.mark.parametrize("name", PATHS)
def test_an_odd_path_leads_nowhere(world: World, name: str) -> None:
    path = attacks.odd_paths(world.main)[name]
    for method in ("GET", "POST", "PUT", "DELETE", "HEAD"):
        for answer in exchange(world.running.address, request(method, path)):
            assert 400 <= answer.status < 500 or answer.status == 307, answer
            assert "x-injected" not in answer.headers
            if answer.headers.get("content-type") != "text/plain; charset=utf-8":
                assert method == "HEAD" or answer.status == 307 or answer.problem, answer


@pytest.mark.parametrize("slot", attacks.SLOTS, ids=lambda slot: slot[:24])
def test_a_slot_that_cannot_be_is_refused(world: World, slot: str) -> None:
    known = ("invalid", "refused", "too-early", "not-found", "not-enrolled", "unknown-receipt")
    base = f"/campaigns/{world.main}/slots/{slot}"
    refused(world.ask("POST", f"{base}/check-ins", token=world.token, body=b""), *known)
    receipt = world.guests.chosen[0]
    refused(world.ask("GET", f"{base}/model", token=receipt), *known)
    body = world.honest_report()
    refused(world.ask("PUT", f"{base}/report", token=receipt, body=body), *known)


@pytest.mark.parametrize("wait", attacks.WAITS, ids=lambda wait: wait[:24])
def test_a_wait_that_cannot_be_is_refused(world: World, wait: str) -> None:
    receipt = world.guests.chosen[0]
    path = f"/campaigns/{world.main}/check-ins/{receipt}?wait={wait}"
    refused(world.ask("GET", path), "invalid")


@pytest.mark.parametrize("after", attacks.AFTERS, ids=lambda after: after[:24])
def test_an_entry_that_cannot_be_is_refused(world: World, after: str) -> None:
    answer = world.ask("GET", f"/campaigns/{world.main}/ledger?after={after}")
    if answer.status == 200:
        assert int(after) > 0, "no bytes follow"
        assert answer.body == b""
        return
    refused(answer, "invalid")


@pytest.mark.parametrize("authorization", attacks.AUTHORIZATIONS, ids=lambda text: repr(text[:24]))
def test_an_odd_authorization_opens_nothing(world: World, authorization: bytes) -> None:
    places = {
        "POST /campaigns": ("not-operator", "invalid"),
        "GET /metrics": ("not-operator", "invalid"),
        f"POST /campaigns/{world.open}/slots/1/check-ins": ("not-enrolled", "refused", "invalid"),
        f"DELETE /campaigns/{world.main}/enrolments": ("not-enrolled", "refused", "invalid"),
    }
    for place, problems in places.items():
        raw = f"{place} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n".encode()
        answer = ask(world.running.address, raw + b"Authorization: " + authorization + b"\r\n\r\n")
        refused(answer, *problems)


@pytest.mark.parametrize("key", ["", " ", "a" * 20_000, "\u00ff", "'", "a\tb", "0"])
def test_an_odd_key_enrols_at_most(world: World, key: str) -> None:
    path = f"/campaigns/{world.main}/enrolments"
    answer = world.ask("POST", path, body=b"", headers={"Idempotency-Key": key})
    if answer.status != 201:
        refused(answer, "invalid", "too-large")


@pytest.mark.parametrize("length", [16_385, 10**6, 10**10, 10**17, 2**63 - 1])
def test_a_body_that_says_it_is_too_large_is_not_read(world: World, length: int) -> None:
    for method, path, token in (
        ("PUT", report_path(world), world.guests.chosen[0]),
        ("POST", f"/campaigns/{world.main}/enrolments", ""),
        ("POST", f"/campaigns/{world.main}/slots/1/check-ins", world.token),
        ("DELETE", f"/campaigns/{world.main}/enrolments", "x"),
        ("GET", "/healthz", ""),
    ):
        raw = request(method, path, token=token, headers={"Content-Length": str(length)})
        refused(ask(world.running.address, raw), "too-large")


def test_a_body_that_grows_too_large_is_cut_off(world: World) -> None:
    for path, token, method in (
        (report_path(world), world.guests.chosen[0], "PUT"),
        ("/campaigns", OPERATOR, "POST"),
    ):
        stream = attacks.endless_chunks(path, token, method=method)
        for answer in exchange(world.running.address, *stream):
            refused(answer, "too-large")


def test_a_body_where_none_belongs_is_not_read(world: World) -> None:
    """The answer may be that of a request without it, and ends the connection."""
    path = f"/campaigns/{world.main}/enrolments"
    for answer in exchange(world.running.address, *attacks.endless_chunks(path, "", method="POST")):
        assert answer.headers["connection"] == "close"
        if answer.status != 201:
            refused(answer, "too-large", "invalid")


def test_what_has_no_end_is_cut_off(world: World) -> None:
    address, path, receipt = world.running.address, report_path(world), world.guests.chosen[0]
    for stream in (
        attacks.endless_head(),
        attacks.endless_extension(path, receipt),
        attacks.endless_trailer(path, receipt),
    ):
        not_understood(exchange(address, *stream))


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "gzip, gzip", "x", "GZIP"])
def test_a_compressed_body_is_refused_unread(world: World, coding: str) -> None:
    encoded = {"Content-Encoding": coding}
    receipt = world.guests.chosen[0]
    answer = world.ask("PUT", report_path(world), token=receipt, body=attacks.BOMB, headers=encoded)
    refused(answer, "encoded")
    answer = world.ask("POST", "/campaigns", token=OPERATOR, body=attacks.BOMB, headers=encoded)
    refused(answer, "encoded")


def test_a_body_compressed_for_its_way_is_refused(world: World) -> None:
    head = {"Transfer-Encoding": "gzip, chunked"}
    raw = request("PUT", report_path(world), token=world.guests.chosen[0], body=b"", headers=head)
    found = ended(world, raw + b"".join(chunked([attacks.BOMB])))
    assert all(400 <= answer.status < 500 for answer in found), found


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff\xfe",
        b"not toml [",
        b"schema = 1",
        b"schema = 2\nname = 'x'",
        b"a = " + b"[" * 5_000,
        b"a." * 5_000 + b"b = 1",
        b"a = " + b"9" * 5_000,
        b"a = 1e999999",
        b"a = 0x" + b"f" * 10_000,
        b"\0" * 1_000,
        b"a = 1979-13-45T99:99:99Z",
        b"".join(b"k%d = 1\n" % number for number in range(20_000)),
    ],
    ids=lambda text: repr(text[:16]),
)
def test_a_campaign_that_is_none_is_refused(world: World, text: bytes) -> None:
    kind = {"Content-Type": "application/toml"}
    answer = world.ask("POST", "/campaigns", token=OPERATOR, body=text, headers=kind)
    refused(answer, "invalid", "too-large")


def test_a_campaign_is_not_taken_from_a_stranger(world: World) -> None:
    for token in (None, "x", world.token, world.guests.chosen[0]):
        answer = world.ask("POST", "/campaigns", token=token, body=b"schema = 1")
        refused(answer, "not-operator")


@given(raw=st.binary(max_size=400))
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_no_bytes_get_an_error_of_ours(world: World, raw: bytes) -> None:
    not_understood(ended(world, raw))
    found = ended(world, b"GET /healthz HTTP/1.1\r\n" + raw + b"\r\n\r\n")
    assert [answer for answer in found if answer.status >= 500] == []
