"""A store that falls silent, or away: every request is told to come again, and nothing hangs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from checkins.service.workers import background_tasks
from tests.support.in_process import Living, play, problem

PATHS = ("/progress", "/ledger", "/check-ins/abcdefgh12345678?wait=0")


def here(tmp_path: Path, scenario: Any) -> None:
    play(f"sqlite:///{tmp_path}/store.db", tmp_path, scenario)


@pytest.mark.parametrize("path", PATHS)
def test_a_silent_store_is_busy(tmp_path: Path, monkeypatch, path: str) -> None:
    spoken = threading.Event()

    async def scenario(it: Living) -> None:
        await it.open(slots=2)
        await it.begin(1)

        def silent() -> None:
            assert spoken.wait(60)
            raise OperationalError("none", None, Exception("silent"))

        with monkeypatch.context() as patch:
            it.faults["reading"] = silent
            patch.setattr(background_tasks, "STORE_TIMEOUT_S", 0.05)
            try:
                assert problem(await it.ask("GET", path)) == (503, "busy")
            finally:
                del it.faults["reading"]
                spoken.set()
        answer = await it.ask("GET", path)
        assert answer.status_code == (404 if "check-ins" in path else 200)

    here(tmp_path, scenario)


@pytest.mark.parametrize("path", PATHS)
def test_a_store_that_is_away_is_busy(tmp_path: Path, path: str) -> None:
    async def scenario(it: Living) -> None:
        await it.open(slots=2)

        def away() -> None:
            raise OperationalError("none", None, Exception("refused"))

        it.faults["reading"] = away
        assert problem(await it.ask("GET", path)) == (503, "busy")
        del it.faults["reading"]

    here(tmp_path, scenario)
