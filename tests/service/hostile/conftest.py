"""One service for the hostile tests of a file, watched while they run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.postgres import open_postgres
from tests.service.hostile.coordinator import SOAK
from tests.service.hostile.world import World, open_world

STORES = ["sqlite", "postgresql"] if SOAK else ["sqlite"]


@pytest.fixture(scope="module", params=STORES)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Fails at the end when the process has complained of anything."""
    if request.param == "sqlite":
        measured = request.path.name == "test_storm.py"  # its own memory, and no other's
        with open_world(real=SOAK or measured) as made:
            yield made
            told = made.running.complaints.read_text()
    else:
        with open_postgres() as cluster, open_world("--store", cluster.create()) as made:
            yield made
            told = made.running.complaints.read_text()
    assert "Traceback" not in told, told[-4000:]
