"""What the tests with real processes share."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.service.faults.campaigns import Plan
from tests.service.faults.coordinator import Coordinator


@pytest.fixture(scope="session")
def start_s(tmp_path_factory: pytest.TempPathFactory) -> float:
    """How long a coordinator takes to start on this machine, now: campaigns are timed by it."""
    folder: Path = tmp_path_factory.mktemp("start")
    coordinator = Coordinator(Plan(slots=10).write(folder), f"sqlite:///{folder}/store.db")
    began = time.monotonic()
    with coordinator.running():
        return time.monotonic() - began
