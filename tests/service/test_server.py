"""`checkins serve` as real processes: how it stops, goes on, and looks after its workers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from checkins.service import server
from checkins.service.server import bind
from checkins.service.store.rollback_detection import default_progress_file
from tests.support.campaigns import campaign_text, write_campaign
from tests.support.coordinator import OPERATOR, UNLIMITED, Coordinator
from tests.support.in_process import Living, play, settings
from tests.support.store import House
from tests.support.waiting import PATIENCE_S, wait_until


def written(folder: Path, **given: Any) -> Path:
    return write_campaign(folder, campaign_text(**given))


def until(done: Callable[[], Any], what: str) -> Any:
    """The first true answer, also where connections fail meanwhile."""

    def attempt() -> Any:
        with contextlib.suppress(httpx.TransportError):
            return done()

    return wait_until(attempt, what, every_s=0.02)


def checked_in(http: httpx.Client, run: str, slot: int, token: str) -> str:
    """A receipt, however early we are."""

    def attempt() -> str | None:
        bearer = {"authorization": f"Bearer {token}"}
        answer = http.post(f"/campaigns/{run}/slots/{slot}/check-ins", headers=bearer)
        if answer.status_code == 202:
            return str(answer.json()["receipt"])
        assert answer.json()["type"] in ("urn:checkins:too-early", "urn:checkins:busy"), answer.text
        return None

    return str(until(attempt, "a check-in"))


def enrolled(http: httpx.Client, run: str) -> str:
    return str(http.post(f"/campaigns/{run}/enrolments").raise_for_status().json()["token"])


@pytest.mark.slow
def test_asked_to_stop_it_answers_everyone_and_started_again_it_goes_on(tmp_path: Path) -> None:
    path = written(tmp_path, slot_s=3600.0, choose_s=3000.0)
    served = Coordinator(path, f"sqlite:///{tmp_path}/store.db")
    heard: dict[str, Any] = {}
    with served.running(), httpx.Client(base_url=served.url, timeout=90) as http:
        run = served.told["campaign"]
        token = enrolled(http, run)
        receipt = checked_in(http, run, 1, token)
        listening = threading.Event()

        def poll() -> None:
            heard["poll"] = httpx.get(
                f"{served.url}/campaigns/{run}/check-ins/{receipt}?wait=60", timeout=90
            ).json()

        def listen() -> None:
            with httpx.stream("GET", f"{served.url}/campaigns/{run}/events", timeout=90) as stream:
                for line in stream.iter_lines():
                    listening.set()
                    heard.setdefault("lines", []).append(line)
            heard["ended"] = True  # and not cut off: that would be an error

        threads = [threading.Thread(target=work) for work in (poll, listen)]
        for thread in threads:
            thread.start()
        assert listening.wait(PATIENCE_S)
        until(lambda: waiters(http) == 2, "both wait")
        assert served.stop() == 0
        for thread in threads:
            thread.join(PATIENCE_S)
        assert heard["poll"] == {"outcome": "waiting", "slot": 1}
        assert heard["ended"]
        assert "event: status" in heard["lines"]
        served.begin()
        assert served.told["campaign"] == run
        view = http.get(f"/campaigns/{run}").json()
        assert (view["epoch"], view["status"]) == (2, "running")
        assert checked_in(http, run, 1, token) == receipt
        assert served.stop() == 0


@pytest.mark.slow
def test_nothing_is_kept_for_a_client_that_vanished_while_it_waited(tmp_path: Path) -> None:
    path = written(tmp_path, slot_s=3600.0, choose_s=3000.0)
    served = Coordinator(path, f"sqlite:///{tmp_path}/store.db")
    with served.running(), httpx.Client(base_url=served.url, timeout=90) as http:
        run = served.told["campaign"]
        receipt = checked_in(http, run, 1, enrolled(http, run))
        ask = f"GET /campaigns/{run}/check-ins/{receipt}?wait=60 HTTP/1.1\r\nHost: x\r\n\r\n"
        address = (http.base_url.host, http.base_url.port or 80)
        lines = [socket.create_connection(address, timeout=60) for _ in range(20)]
        for line in lines:
            line.sendall(ask.encode())
        until(lambda: waiters(http) == 20, "all wait")
        for line in lines:
            line.close()
        until(lambda: waiters(http) == 0, "none is waited for")


def waiters(http: httpx.Client) -> int:
    """How many wait for an answer, as the metrics tell it."""
    bearer = {"authorization": f"Bearer {OPERATOR}"}
    found = re.search(r"waiters(?:\{.*?\})? (\d+)", http.get("/metrics", headers=bearer).text)
    assert found is not None
    return int(found[1])


@pytest.mark.slow
def test_until_done_leaves_when_every_repeat_is_over(tmp_path: Path) -> None:
    path = written(tmp_path, slots=2, repeats=2, slot_s=0.3, choose_s=0.1)
    served = Coordinator(path, f"sqlite:///{tmp_path}/store.db", more=(*UNLIMITED, "--until-done"))
    with served.running():
        assert served.process.wait(PATIENCE_S) == 0
    from checkins.service.store import run_state
    from checkins.service.store.database import Database

    database = Database(served.store)
    with database.read_transaction() as connection:
        runs = run_state.load_specs_except(connection, ())
        endings = [run_state.load_state(connection, run.id).ending for run in runs]
    database.close()
    assert [str(ending) for ending in endings] == ["completed", "completed"]


def ends(it: Living, run: str) -> Any:
    """What ``--until-done`` waits for, on a coordinator without a socket."""
    stand_in: Any = SimpleNamespace(runner=it.runner, should_exit=False)
    return asyncio.create_task(server._stop_after(stand_in, run))


def test_until_done_leaves_when_the_budget_allows_no_further_repeat(tmp_path: Path) -> None:
    async def scenario(it: Living) -> None:
        run = await it.open(slots=2, repeats=2, epsilon=1.1)
        assert it.live_run.spec.affordable == 2
        task = ends(it, run)
        await it.finish()
        async with asyncio.timeout(PATIENCE_S):
            await task

    play(f"sqlite:///{tmp_path}/store.db", tmp_path, scenario)


def test_until_done_leaves_when_the_budget_stops_the_run(tmp_path: Path) -> None:
    async def scenario(it: Living) -> None:
        run = await it.open(slots=6, epsilon=0.7)
        task = ends(it, run)
        await it.finish()
        async with asyncio.timeout(PATIENCE_S):
            await task

    play(f"sqlite:///{tmp_path}/store.db", tmp_path, scenario)


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return True
    return state == "Z"


@pytest.mark.slow
def test_a_worker_that_is_killed_is_started_again_and_all_leave_with_their_parent(
    tmp_path: Path, postgres_url: str
) -> None:
    path = written(tmp_path, slot_s=3600.0, choose_s=3000.0)
    served = Coordinator(path, postgres_url, workers=2)
    with served.running(), httpx.Client(base_url=served.url, timeout=60) as http:
        run = served.told["campaign"]
        tokens = [enrolled(http, run) for _ in range(3)]
        receipt = checked_in(http, run, 1, tokens[0])
        ready = '"event": "ready"'
        until(lambda: served.log.read_text().count(ready) == 2, "two workers")
        before = set(served.worker_processes())
        assert served.kill_one_worker(random.Random(0))
        after = set(
            until(
                lambda: (now := set(served.worker_processes())) != before and len(now) == 2 and now,
                "another worker",
            )
        )
        assert len(before & after) == 1
        for token in tokens:  # whoever answers
            got = until(lambda token=token: checked_in(http, run, 1, token), "an answer")
            assert token != tokens[0] or got == receipt
        until(lambda: served.log.read_text().count(ready) == 3, "the new worker answers")
        os.kill(served.process.pid, signal.SIGKILL)  # the parent alone
        until(lambda: all(gone(pid) for pid in after), "no worker without its parent")


PARENT = """\
import os, sys
from checkins.service.server import _Workers, bind
from checkins.service.settings import Settings

crew = _Workers(Settings.from_json(sys.stdin.read()), bind("127.0.0.1", 0))
crew.spawn()
with open(sys.argv[1], "w") as file:
    file.write(str(crew.processes[0].pid))
os._exit(0)
"""


@pytest.mark.slow
def test_a_worker_whose_parent_died_while_it_started_leaves_too(tmp_path: Path) -> None:
    """Otherwise it would hold the port, and serve, for ever."""
    store = f"sqlite:///{tmp_path}/store.db"
    House(store, tmp_path).database.close()
    given = settings(store, tmp_path, log_file=tmp_path / "log").to_json()
    told = tmp_path / "pid"
    subprocess.run(  # no pipe: the worker would keep it open
        [sys.executable, "-c", PARENT, str(told)], input=given, text=True, check=True
    )
    worker = int(told.read_text())
    try:
        until(lambda: gone(worker), "no worker without its parent")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)


@pytest.mark.slow
def test_workers_stop_gracefully_too(tmp_path: Path, postgres_url: str) -> None:
    path = written(tmp_path, slot_s=3600.0, choose_s=3000.0)
    served = Coordinator(path, postgres_url, workers=2)
    with served.running(), httpx.Client(base_url=served.url, timeout=60) as http:
        run = served.told["campaign"]
        token = enrolled(http, run)
        receipt = checked_in(http, run, 1, token)
        workers = served.worker_processes()
        assert served.stop() == 0
        assert all(gone(pid) for pid in workers)
        served.begin()
        assert checked_in(http, run, 1, token) == receipt
        assert served.stop() == 0


@pytest.mark.usefixtures("ignored_interrupt")
def test_an_interrupt_that_was_ignored_at_the_start_stays_ignored(tmp_path: Path) -> None:
    given = settings(f"sqlite:///{tmp_path}/store.db", tmp_path)
    House(given.store, tmp_path).database.close()
    with contextlib.closing(bind("127.0.0.1", 0)) as listener:
        for signals in (
            server.Coordinator(given).capture_signals(),
            server._Workers(given, listener),
        ):
            with signals:
                assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
                assert callable(signal.getsignal(signal.SIGTERM))
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_port_that_is_taken_is_refused_with_its_number() -> None:
    from checkins.errors import InvalidValue

    with contextlib.closing(bind("127.0.0.1", 0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(InvalidValue, match=f"port = {port}: cannot be used"):
            bind("127.0.0.1", port)


def test_every_store_has_a_progress_file_of_its_own_outside_of_it(tmp_path: Path) -> None:
    """Not beside it either: whoever puts a folder back would put back both."""
    for name, other in (("a/b.db", "b.db"), ("b.db", "c.db")):
        progress_file = default_progress_file(f"sqlite:///{tmp_path}/{name}", tmp_path)
        assert progress_file.parent == Path(os.environ["XDG_STATE_HOME"]) / "checkins"
        assert progress_file == default_progress_file(f"sqlite:///{tmp_path}/x/../{name}", tmp_path)
        assert progress_file != default_progress_file(f"sqlite:///{tmp_path}/{other}", tmp_path)
    one, same, other = (
        default_progress_file(f"postgresql://{place}", tmp_path)
        for place in ("ann:secret@db/x", "bob:other@db/x?sslmode=require", "ann:secret@db/y")
    )
    assert one == same != other
    assert one.parent == progress_file.parent
    assert "secret" not in one.name


def test_the_state_folder_is_in_the_home_unless_the_environment_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for ignored in ("", "relative/folder"):
        monkeypatch.setenv("XDG_STATE_HOME", ignored)
        progress_file = default_progress_file("sqlite:///x.db", tmp_path)
        assert progress_file.parent == tmp_path / ".local" / "state" / "checkins"


def test_a_progress_file_of_an_earlier_version_is_used(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/x.db"
    newest = default_progress_file(store, tmp_path)
    newest.parent.mkdir(parents=True, exist_ok=True)
    # in the order in which versions named it: each one takes precedence over those before it
    for path in (tmp_path / "x.db.witness", newest.with_suffix(".witness"), newest):
        path.write_text('{"epoch": 3, "entries": {}, "runs": {}}')
        assert default_progress_file(store, tmp_path) == path
