"""Logs that cannot say who took part."""

from __future__ import annotations

import asyncio
import base64
import errno
import gc
import io
import json
import logging
import os
import secrets
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkins import validate
from checkins.errors import InvalidValue
from checkins.service import logs

CAMPAIGN = "3ca5f3a7c1d2-1"


@pytest.fixture
def file(tmp_path):
    return tmp_path / "service.log"


def lines(file) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


def test_an_event_is_one_json_object_with_its_second(file):
    with logs.configure(file, strict=True):
        logs.event("slot-closed", campaign=CAMPAIGN, slot=3, seconds=0.25, head="ab" * 32)
        logs.warning("closed-late", campaign=CAMPAIGN, slot=4, late_s=2.5, cause=None)
    first, second = lines(file)
    assert first.pop("time")[-1] == "Z"
    assert first == {
        "level": "info",
        "event": "slot-closed",
        "campaign": CAMPAIGN,
        "slot": 3,
        "seconds": 0.25,
        "head": "ab" * 32,
    }
    assert second["level"] == "warning"


def test_the_file_is_its_owners_alone(file):
    with logs.configure(file):
        logs.event("ready")
    assert file.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"token": "x"},
        {"receipt": "x"},
        {"client": "10.0.0.1"},
        {"address": "10.0.0.1"},
        {"report": [1, 2]},
        {"body": b"x"},
        {"message": "anything"},
        {"campaign": "10.0.0.1"},
        {"error": "IntegrityError: token abc"},
        {"route": "/campaigns/3ca5f3a7c1d2-1/check-ins/abcdef"},
        {"reason": "10.0.0.1"},
        {"slot": [3]},
        {"slot": True},
        {"slot": 10**30},
        {"seconds": "10.0.0.1"},
        {"store": "postgresql://ann:pw@db/x"},
    ],
)
def test_a_field_that_could_name_somebody_is_refused(file, fields):
    with logs.configure(file, strict=True), pytest.raises(InvalidValue):
        logs.event("mistake", **fields)
    with logs.configure(file):
        logs.event("mistake", **fields)
    (line,) = lines(file)
    assert set(line) == {"time", "level", "event", "field"}
    assert line["field"] == next(iter(fields))


def test_before_it_is_configured_a_mistake_is_an_error():
    with pytest.raises(InvalidValue, match="token"):
        logs.event("mistake", token="x")


@given(data=st.binary(min_size=16, max_size=32), name=st.sampled_from(sorted(logs.FIELDS)))
def test_no_field_takes_a_token_a_receipt_or_an_address(data, name):
    token = base64.urlsafe_b64encode(data).rstrip(b"=").decode()
    assert not logs._is_allowed(name, token)
    assert not logs._is_allowed(name, f"10.0.{data[0]}.{data[1]}")
    assert not logs._is_allowed(name, f"2001:db8::{data[0]:x}")
    if len(data) < 32:  # 64 hex digits have the shape of a hash, which tokens must not have
        assert not logs._is_allowed(name, data.hex())


@pytest.mark.parametrize("name", sorted(logs.SOURCE_CODE_FIELDS))
def test_a_name_of_code_cannot_be_given_as_text(file, name):
    with logs.configure(file, strict=True), pytest.raises(InvalidValue):
        logs.event("mistake", **{name: "LooksLikeAName"})


def test_an_exception_may_be_given_and_is_told_by_its_type(file):
    with logs.configure(file, strict=True):
        logs.warning("store-lost", error=raised(OSError("sekret")))
    (line,) = lines(file)
    assert line["error"] == "OSError"
    assert line["place"].startswith("test_logs.py:")
    assert "sekret" not in file.read_text()


def test_a_name_of_an_event_is_a_word():
    for name in ("", "Token", "a b", "x" * 41, secrets.token_hex()):
        with pytest.raises(InvalidValue, match="event"):
            logs.event(name)


def test_every_route_of_the_wire_may_be_named():
    for route in (
        "/",
        "/campaigns",
        "/campaigns/{id}/slots/{i}/check-ins",
        "/campaigns/{campaign_id}/check-ins/{receipt}",
        "/page/page.js",
        "/openapi.json",
    ):
        assert logs._is_allowed("route", route)


def test_a_failure_tells_type_cause_and_place_and_nothing_else(file):
    try:
        try:
            raise KeyError("token sekret")
        except KeyError as inner:
            raise RuntimeError("from 10.1.2.3: sekret") from inner
    except RuntimeError as caught:
        error = caught
    with logs.configure(file, strict=True):
        logs.failure(error, route="/campaigns/{id}")
    (line,) = lines(file)
    assert (line["error"], line["cause"]) == ("RuntimeError", "KeyError")
    assert line["route"] == "/campaigns/{id}"
    assert line["place"].startswith("test_logs.py:")
    assert line["time"].endswith(":00Z")  # the minute only
    assert "sekret" not in file.read_text()


def test_our_own_frames_are_named_by_their_file(file):
    with pytest.raises(InvalidValue) as caught:
        validate.positive(x=-1)
    with logs.configure(file):
        logs.failure(caught.value)
    assert lines(file)[0]["place"].startswith("validate.py:")


def test_a_route_with_values_in_it_is_left_out(file):
    with logs.configure(file, strict=True):
        logs.failure(raised(ValueError()), route=f"/campaigns/{CAMPAIGN}/check-ins/x1")
    assert "route" not in lines(file)[0]


def test_the_same_failure_is_written_once_a_minute_with_its_count(file, monkeypatch):
    now = 1_800_000_030.0
    monkeypatch.setattr(time, "time", lambda: now)

    def fail() -> None:
        logs.failure(raised(ValueError("x")))

    with logs.configure(file):
        for _ in range(100):
            fail()
        now += 60
        fail()
    assert [line["count"] for line in lines(file)] == [1, 100]


def test_one_exception_is_told_once(file):
    error = raised(ValueError("x"))
    with logs.configure(file):
        logs.failure(error)
        logs.failure(error)
        logging.getLogger("uvicorn.error").error("Exception in ASGI application", exc_info=error)
    assert len(lines(file)) == 1


def test_a_librarys_message_is_kept_by_place_and_never_by_text(file):
    error = raised(ValueError("parameters: ('sekret',)"))
    with logs.configure(file, strict=True):
        logging.getLogger("sqlalchemy.pool").warning("sekret %s", "10.1.2.3")
        logging.getLogger("asyncio").error("Task sekret failed", exc_info=error)
        logging.getLogger("uvicorn.error").error("ASGI callable returned '%s'.", "sekret")
        logging.getLogger("uvicorn.error").error(error)
        logging.getLogger("uvicorn.access").warning('10.1.2.3 - "GET /sekret"')
        logging.getLogger("x y").warning("sekret")
        logging.getLogger("sqlalchemy.engine").info("INSERT sekret")
    told = lines(file)
    assert [line.get("library") for line in told] == [
        "sqlalchemy.pool",
        "asyncio",
        "uvicorn.error",
        "uvicorn.error",
        None,
    ]
    assert all(line["place"].startswith("test_logs.py:") for line in told)
    assert told[1]["error"] == "ValueError"
    assert "sekret" not in file.read_text()
    assert "10.1.2.3" not in file.read_text()


def test_a_bad_request_leaves_no_line(file):
    with logs.configure(file):
        logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
        logging.getLogger("uvicorn.error").warning("Exceeded concurrency limit.")
    assert lines(file) == []


def test_the_life_of_the_server_is_told(file):
    with logs.configure(file):
        logging.getLogger("uvicorn.error").info("Application startup complete.")
        logging.getLogger("uvicorn.error").info("Shutting down")
        logging.getLogger("uvicorn.error").info("Uvicorn running on %s", "http://10.1.2.3")
    assert [line["event"] for line in lines(file)] == ["ready", "stopping"]


def test_a_lost_task_says_nothing_of_its_values(file):
    async def lose() -> None:
        async def broken() -> None:
            raise ValueError("sekret")

        task = asyncio.get_running_loop().create_task(broken())
        await asyncio.wait([task])
        del task

    with logs.configure(file):
        asyncio.run(lose())
        gc.collect()
    (line,) = lines(file)
    assert (line["library"], line["error"]) == ("asyncio", "ValueError")
    assert "sekret" not in file.read_text()


def test_without_a_file_lines_go_to_stderr(capsys):
    with logs.configure(None):
        logs.event("ready", workers=2)
    assert json.loads(capsys.readouterr().err)["workers"] == 2


def test_closing_gives_the_loggers_back(file):
    names = ("", "uvicorn", "uvicorn.error", "uvicorn.access")
    loggers = [logging.getLogger(name) for name in names]
    before = [(list(each.handlers), each.level, each.propagate) for each in loggers]
    logs.configure(file).close()
    assert [(list(each.handlers), each.level, each.propagate) for each in loggers] == before


def test_a_full_disk_raises_nothing_and_is_counted() -> None:
    lost: list[int] = []
    with logs.configure(Path("/dev/full")):
        logs.on_lost_line(lambda: lost.append(1))
        logs.event("ready")
        logs.warning("worker-died")
        logs.failure(raised(ValueError("x")))
        logging.getLogger("uvicorn.error").error("library")
    assert len(lost) == 4


def test_a_reader_of_standard_error_that_is_gone_raises_nothing(monkeypatch) -> None:
    lost: list[int] = []
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as broken, logs.configure(None):
        monkeypatch.setattr(sys, "stderr", broken)
        logs.on_lost_line(lambda: lost.append(1))
        logs.event("ready")
        logs.event("ready")
    assert len(lost) == 2


def test_a_reader_of_standard_error_that_does_not_read_is_not_waited_for(monkeypatch) -> None:
    lost: list[int] = []
    read, write = os.pipe()
    with os.fdopen(read, "rb") as reader, os.fdopen(write, "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        with logs.configure(None):
            logs.on_lost_line(lambda: lost.append(1))
            while not lost:
                logs.event("ready")
            os.set_blocking(reader.fileno(), False)
            told = reader.read()
            logs.event("again")
            after = [json.loads(line) for line in reader.read().splitlines()]
    assert all(json.loads(line)["event"] == "ready" for line in told.splitlines())
    assert [(line["event"], line.get("count")) for line in after] == [
        ("log-lines-lost", 1),
        ("again", None),
    ]


@pytest.mark.parametrize("stream", [None, io.TextIOWrapper(io.BytesIO())])
def test_a_process_without_standard_error_goes_on(monkeypatch, stream) -> None:
    if stream is not None:
        stream.close()
    lost: list[int] = []
    monkeypatch.setattr(sys, "stderr", stream)
    with logs.configure(None):
        logs.on_lost_line(lambda: lost.append(1))
        logs.event("ready")
    assert lost == [1]


def test_what_could_not_be_written_is_reported_once_it_works_again(file, monkeypatch) -> None:
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with logs.configure(file):
        logs.event("ready")
        monkeypatch.setattr(os, "write", full)
        for _ in range(3):
            logs.event("lost")
        monkeypatch.setattr(os, "write", write)
        logs.event("back")
        logs.event("back")
    assert [(line["event"], line.get("count")) for line in lines(file)] == [
        ("ready", None),
        ("log-lines-lost", 3),
        ("back", None),
        ("back", None),
    ]


def test_a_line_that_was_cut_off_by_a_full_disk_does_not_spoil_the_next(file, monkeypatch) -> None:
    write, room = os.write, 10

    def almost_full(descriptor: int, data: bytes) -> int:
        nonlocal room
        if room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        room, some = 0, room
        return write(descriptor, data[:some])

    with logs.configure(file):
        monkeypatch.setattr(os, "write", almost_full)
        logs.event("lost")
        monkeypatch.setattr(os, "write", write)
        logs.event("back")
    cut, *rest = file.read_text().splitlines()
    assert len(cut) == 10
    assert [json.loads(line)["event"] for line in rest] == ["log-lines-lost", "back"]


def test_a_mistake_in_an_events_name_stops_nothing_in_service(file) -> None:
    with logs.configure(file):
        logs.event("Not A Name")
    assert [line["event"] for line in lines(file)] == ["unnamed"]


def test_a_failure_is_an_error_line(file):
    with logs.configure(file):
        logs.failure(raised(ValueError()))
    assert [line["level"] for line in lines(file)] == ["error"]


def test_a_log_file_that_cannot_be_opened_is_refused(file):
    file.touch()
    with pytest.raises(InvalidValue, match="log_file"):
        logs.configure(file / "under" / "a-file")
