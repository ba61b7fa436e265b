"""Heads that wait for their bodies: what is written comes out whole, in order, and never late."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkins.service.http.uvicorn_hooks import JoiningTransport

HEAD = b"HTTP/1.1 202 Accepted\r\ncontent-length: 4\r\n\r\n"
STREAM = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclass
class Wire:
    """What a transport was given, call by call."""

    calls: list[bytes] = field(default_factory=list)
    closed: bool = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.calls.append(bytes(data))

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 7


@pytest.fixture
def wire() -> Wire:
    return Wire()


def joining(wire: Wire) -> JoiningTransport:
    return JoiningTransport(cast(Any, wire))


def test_a_head_and_its_body_are_one_write(wire):
    line = joining(wire)
    line.write(HEAD)
    assert wire.calls == []
    line.write(b"body")
    assert wire.calls == [HEAD + b"body"]


def test_the_head_of_a_stream_is_sent_at_once(wire):
    line = joining(wire)
    line.write(STREAM)
    line.write(b"4\r\nbody\r\n")
    assert wire.calls == [STREAM, b"4\r\nbody\r\n"]


def test_an_answer_without_a_body_is_sent_when_it_is_complete(wire):
    line = joining(wire)
    line.write(HEAD)
    line.flush()
    line.flush()
    assert wire.calls == [HEAD]


def test_closing_sends_what_was_held(wire):
    line = joining(wire)
    line.write(HEAD)
    line.close()
    assert (wire.calls, wire.closed, line.is_closing()) == ([HEAD], True, True)


def test_all_else_is_the_transports_own(wire):
    assert joining(wire).get_write_buffer_size() == 7


@given(st.lists(st.sampled_from([HEAD, STREAM, b"body", b"", b"x" * 70_000, None]), max_size=12))
def test_every_byte_comes_out_once_and_in_order(written):
    wire = Wire()
    line = joining(wire)
    for data in written:
        if data is None:
            line.flush()
        else:
            line.write(data)
    line.close()
    assert b"".join(wire.calls) == b"".join(data for data in written if data is not None)


@pytest.mark.parametrize("before", [b"", HEAD])
def test_what_is_written_once_nobody_is_there_is_dropped(wire, before):
    line = joining(wire)
    if before:
        line.write(before)
    wire.closed = True
    for data in (HEAD, b"body", STREAM, b"more"):
        line.write(data)
    line.flush()
    line.close()
    assert wire.calls == []
