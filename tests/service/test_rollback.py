"""A store and its progress file, put back together to an older state: only devices can tell."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checkins.client import ServiceFailed
from checkins.client.clock_and_randomness import DeviceRandomness
from checkins.client.drivers import AsyncDriver
from checkins.client.service_client import ServiceClient
from checkins.client.state import MemoryStore, SavedState
from checkins.ledger.verification import verify
from checkins.service.store.rollback_detection import ProgressFile, progress_of
from tests.support.clock import Clock
from tests.support.in_process import Living, play


async def looked(it: Living, kept: SavedState) -> SavedState:
    """What a device remembers after it looked at the service once more."""

    async def no_sleep(seconds: float) -> None:
        it.clock.now += seconds

    client = ServiceClient(
        "http://test", it.run, 5.0, monotonic=it.clock, randomness=DeviceRandomness()
    )
    driver = AsyncDriver(it.http, MemoryStore(), monotonic=it.clock, sleep=no_sleep)
    view = await driver.drive(client.fetch_view(kept))
    return client.with_rollback_evidence(kept, view)


@pytest.mark.parametrize("again", [False, True], ids=["went on", "set back"])
def test_slots_that_are_released_twice_are_noticed_by_devices(tmp_path: Path, again: bool) -> None:
    store, progress_file, clock = tmp_path / "store.db", tmp_path / "progress", Clock()
    kept: dict[str, Any] = {}

    def session(scenario: Any) -> None:
        play(f"sqlite:///{store}", tmp_path, scenario, clock=clock, progress_file=progress_file)

    async def first(it: Living) -> None:
        kept["run"] = await it.open(slots=12)
        await it.show(3)

    async def second(it: Living) -> None:
        it.run = kept["run"]
        await it.show(9)
        kept["seen"] = await looked(it, SavedState(it.run))

    async def third(it: Living) -> None:
        it.run = kept["run"]
        await it.show(10)
        progress_file_there = ProgressFile(progress_file)
        progress_file_there.check(it.runner.database)  # it has noticed nothing
        progress_file_there.record(progress_of(it.runner.database))
        lines = (await it.ask("GET", "/ledger")).content.splitlines(keepends=True)
        assert verify(lines).within_budget  # nor has anyone who recomputes the ledger
        if again:
            with pytest.raises(ServiceFailed, match="was rolled back"):
                await looked(it, kept["seen"])
        else:
            seen = await looked(it, kept["seen"])
            assert seen.entries == 11
            with pytest.raises(ServiceFailed, match="was rolled back"):
                await looked(it, replace(seen, head="0" * 64))

    session(first)
    for name in ("store.db", "progress"):
        shutil.copy(tmp_path / name, tmp_path / f"{name}.old")
    session(second)
    if again:
        for left in tmp_path.glob("store.db-*"):
            left.unlink()
        for name in ("store.db", "progress"):
            shutil.copy(tmp_path / f"{name}.old", tmp_path / name)
    session(third)
