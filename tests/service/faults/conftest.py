"""What the tests with real processes share."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.campaigns import Plan
from tests.support.coordinator import Coordinator
from tests.support.forks import Forked

TIMES_A_FORK = 4.0
"""How much longer the command takes to start, with its imports, than a fork of it, about."""


@pytest.fixture(scope="session")
def start_s(tmp_path_factory: pytest.TempPathFactory) -> float:
    """How long `checkins serve` takes to start on this machine, now: campaigns are timed by it."""
    with Forked(["--version"]) as first:  # its parent loads everything
        first.wait()
    folder: Path = tmp_path_factory.mktemp("start")
    coordinator = Coordinator(Plan(slots=10).write(folder), f"sqlite:///{folder}/store.db")
    began = time.monotonic()
    with coordinator.running():
        return TIMES_A_FORK * (time.monotonic() - began)
