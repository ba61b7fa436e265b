"""Liveness and readiness are two answers, and a campaign goes on whatever its log does."""

from __future__ import annotations

import asyncio
import re
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from checkins.service import logs
from checkins.service.routes import readiness
from checkins.service.runs import slot_transitions
from tests.support.coordinator import OPERATOR
from tests.support.in_process import Living, play, problem
from tests.support.waiting import PATIENCE_S


def here(tmp_path: Path, scenario: Any) -> None:
    play(f"sqlite:///{tmp_path}/store.db", tmp_path, scenario)


async def ready(it: Living) -> None:
    """Wait until it is, whatever it was."""
    async with asyncio.timeout(PATIENCE_S):
        while (await it.http.get("/readyz")).status_code != 200:
            await asyncio.sleep(0.005)


async def unready(it: Living, says: str) -> None:
    """Wait until it is not, for the reason that is expected; it stays alive."""
    async with asyncio.timeout(PATIENCE_S):
        while (answer := await it.http.get("/readyz")).status_code == 200:
            await asyncio.sleep(0.005)
    assert problem(answer) == (503, "not-ready")
    assert says in answer.json()["detail"]
    assert "retry-after" in answer.headers
    alive = await it.http.get("/healthz")
    assert alive.json() == {"status": "ok", "epoch": it.runner.epoch, "holding": None}


def test_a_coordinator_that_does_its_work_is_alive_and_ready(tmp_path: Path) -> None:
    async def scenario(it: Living) -> None:
        await ready(it)
        answer = await it.http.get("/readyz")
        assert answer.json() == {"status": "ready", "epoch": it.runner.epoch}
        await it.open(slots=2)
        await it.begin(1)
        await ready(it)
        await it.finish()
        await ready(it)

    here(tmp_path, scenario)


@pytest.mark.parametrize(
    ("late_s", "silent_s", "failing", "holding", "says"),
    [
        (0.0, 0.0, [], None, None),
        (readiness.LATE_AFTER_S, 0.0, [], None, None),
        (readiness.LATE_AFTER_S + 1.0, 0.0, [], None, "slots are not closed on time in run"),
        (float("nan"), 0.0, [], None, "slots are not closed on time in run"),
        (0.0, 3600.0, [], None, "the store has not answered for 10 s"),
        (0.0, 0.0, ["clock"], None, "background tasks keep dying: clock"),
        (60.0, 0.0, [], "the clock was set", "no slot is closed: the clock was set"),
    ],
)
def test_each_reason_is_enough(
    monkeypatch,
    late_s: float,
    silent_s: float,
    failing: list[str],
    holding: str | None,
    says: str | None,
) -> None:
    monkeypatch.setattr(slot_transitions, "next_due_time", lambda spec, state: 1000.0)
    live_run = SimpleNamespace(spec=None, snapshot=SimpleNamespace(state=None))

    async def main() -> list[str]:
        stand_in: Any = SimpleNamespace(
            stopping=asyncio.Event(),
            store_answered_at=asyncio.get_running_loop().time() - silent_s,
            database=SimpleNamespace(now=lambda: 1000.0 + late_s),
            live_runs={"run": live_run},
            background_tasks=SimpleNamespace(failing_kinds=failing),
            clock_jumps=SimpleNamespace(holding_reason=holding),
            progress_file_error=None,
        )
        return readiness.reasons_not_ready(stand_in)

    assert asyncio.run(main()) == ([] if says is None else [says])


def test_slots_that_are_not_closed_on_time_are_not_ready(tmp_path: Path, monkeypatch) -> None:
    """Nothing raises here: the clock just hangs."""
    go_on = threading.Event()
    advance = slot_transitions.advance

    def hanging(*given: Any) -> Any:
        assert go_on.wait(60)
        return advance(*given)

    async def scenario(it: Living) -> None:
        await it.open(slots=4)
        monkeypatch.setattr(slot_transitions, "advance", hanging)
        it.clock.now = it.live_run.spec.run_schedule.begins(1) + readiness.LATE_AFTER_S
        await ready(it)
        it.clock.now += 0.1
        try:
            await unready(it, f"slots are not closed on time in {it.run}")
        finally:
            go_on.set()
        await ready(it)

    here(tmp_path, scenario)


def test_a_progress_file_that_cannot_be_written_is_not_ready_and_stops_nothing(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()

    async def scenario(it: Living) -> None:
        await it.open(slots=2)

        shutil.rmtree(folder)
        await it.show(1)
        await unready(it, "the progress file cannot be written: No such file or directory")
        assert it.runner.background_tasks.failing_kinds == []
        folder.mkdir()
        await ready(it)  # tried again without another release
        await it.finish()

    play(f"sqlite:///{tmp_path}/store.db", tmp_path, scenario, progress_file=folder / "progress")


def test_a_store_that_is_silent_is_not_ready(tmp_path: Path, monkeypatch) -> None:
    go_on = threading.Event()

    async def scenario(it: Living) -> None:
        await it.open(slots=2)

        def silent() -> None:
            assert go_on.wait(60)
            raise OperationalError("none", None, Exception("silent"))

        with monkeypatch.context() as patch:
            it.faults["reading"] = silent
            patch.setattr(readiness, "STORE_TIMEOUT_S", 0.05)
            try:
                await unready(it, "the store has not answered")
            finally:
                del it.faults["reading"]
                go_on.set()
        await ready(it)

    here(tmp_path, scenario)


def test_a_background_task_that_keeps_dying_is_not_ready(tmp_path: Path) -> None:
    async def scenario(it: Living) -> None:
        def broken() -> None:
            raise RuntimeError

        await ready(it)
        it.faults["reading"] = broken
        await unready(it, "background tasks keep dying: watch")
        del it.faults["reading"]
        await ready(it)
        bearer = {"authorization": f"Bearer {OPERATOR}"}
        metrics = (await it.http.get("/metrics", headers=bearer)).text
        assert 'checkins_task_restarts_total{task="watch"}' in metrics

    here(tmp_path, scenario)


def test_a_campaign_goes_on_while_its_log_cannot_be_written(tmp_path: Path, monkeypatch) -> None:
    """A full disk, and a failure of the clock that would be logged on it."""
    advance, failures = slot_transitions.advance, 0

    def failing(*given: Any) -> Any:
        nonlocal failures
        failures += 1
        if failures % 3 == 1:
            raise OSError("the disk is full")
        return advance(*given)

    monkeypatch.setattr(slot_transitions, "advance", failing)

    async def scenario(it: Living) -> None:
        await it.open(slots=2)
        for slot in (1, 2):
            await it.begin(slot)
            receipt = await it.check_in(slot)
            await it.choose(slot)
            assert await it.outcome(receipt) == "chosen"
            await it.show(slot)
        await it.finish()
        await ready(it)
        bearer = {"authorization": f"Bearer {OPERATOR}"}
        metrics = (await it.http.get("/metrics", headers=bearer)).text
        lost = [line for line in metrics.splitlines() if line.startswith("checkins_log_lines_lost")]
        assert float(lost[0].split()[1]) > 0.0
        assert failures > 3

    with logs.configure(Path("/dev/full")):
        here(tmp_path, scenario)


def test_the_clock_of_a_run_is_started_whatever_the_store_does_while_it_is_found(
    tmp_path: Path, monkeypatch
) -> None:
    """A run that was found half-way would be known, and nobody would drive it."""

    async def scenario(it: Living) -> None:
        read = slot_transitions.read_choice
        asked = 0

        def failing(*given: Any) -> Any:
            nonlocal asked
            asked += 1
            if asked == 1:
                raise OperationalError("none", None, Exception("away"))
            return read(*given)

        await it.open(slots=2)
        await it.begin(1)
        await it.choose(1)
        await it.runner.background_tasks.stop()
        it.runner.background_tasks = type(it.runner.background_tasks)(
            it.runner.metrics.count_task_restart
        )
        it.runner.live_runs.clear()  # as after a start
        monkeypatch.setattr(slot_transitions, "read_choice", failing)
        with pytest.raises(OperationalError):
            await it.runner._find_new_runs()
        await it.runner._find_new_runs()
        assert asked == 2
        await it.show(1)

    here(tmp_path, scenario)


def test_lateness_and_free_space_are_metrics(tmp_path: Path, monkeypatch: Any) -> None:
    async def scenario(it: Living) -> None:
        await it.open()

        async def gauges() -> dict[str, float]:
            text = (await it.ask("GET", "//metrics", OPERATOR)).text
            found = re.findall(
                r"^(checkins_(?:slot_late|store_free)\w+) (\S+)$", text, re.MULTILINE
            )
            return {name: float(value) for name, value in found}

        first = await gauges()
        assert first["checkins_slot_late_seconds"] == 0.0
        assert first["checkins_store_free_bytes"] > 0.0
        monkeypatch.setattr(readiness, "lateness_of_runs", lambda runner: {"a": 7.0, "b": -3.0})
        assert (await gauges())["checkins_slot_late_seconds"] == 7.0

    play(f"sqlite:///{tmp_path}/store.db", tmp_path, scenario)
