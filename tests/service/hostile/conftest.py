"""One service for the hostile tests of a file, watched while they run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.service.hostile.world import World, open_world
from tests.soak import SOAK
from tests.support.postgres import open_postgres

STORES = ["sqlite", "postgresql"] if SOAK else ["sqlite"]


@pytest.fixture(scope="module", params=STORES)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Fails at the end when the process has complained of anything."""
    measured = request.path.name == "test_storm.py"  # its own memory, and no other's
    with contextlib.ExitStack() as stack:
        store = None
        if request.param == "postgresql":
            store = stack.enter_context(open_postgres()).create()
        made = stack.enter_context(open_world(store, real=SOAK or measured))
        yield made
        told = made.running.stderr.read_text()
    assert "Traceback" not in told, told[-4000:]
