"""What the tests of the coordinator share: every store, and a house on it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkins.service.runs import slot_transitions
from checkins.service.store import schema
from checkins.service.store.database import Database
from checkins.service.store.schema import migrate
from tests.support.postgres import Postgres
from tests.support.store import House


def _migrated(url: str) -> str:
    database = Database(url)
    migrate(database)
    database.checkpoint()
    database.close()
    return url


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of SQLite with empty schema, to copy."""
    path = tmp_path_factory.mktemp("migrated") / "store.db"
    _migrated(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def migrated_postgres(postgres: Postgres) -> str:
    """A database of PostgreSQL with tables that each test leaves empty: making one takes long."""
    return _migrated(postgres.create())


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of a store without rows: each test runs on SQLite and on PostgreSQL."""
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("migrated_file"), tmp_path / "store.db")
        yield f"sqlite:///{tmp_path}/store.db"
        return
    url: str = request.getfixturevalue("migrated_postgres")
    yield url
    database = Database(url)
    with database.exclusive_transaction("tests") as connection:
        for table in reversed(schema.metadata.sorted_tables):
            connection.execute(table.delete())
    database.close()


@pytest.fixture
def house(store: str, tmp_path: Path) -> Iterator[House]:
    """A store in its first epoch whose clock stands before the first slot."""
    made = House(store, tmp_path)
    yield made
    made.database.close()


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch):
    """The dummies and the noise of each slot, as they were drawn."""
    seen = {}
    draw = slot_transitions.draw_expiry

    def draw_expiry(slot, sampler):
        event = seen[slot.number] = draw(slot, sampler)
        return event

    monkeypatch.setattr(slot_transitions, "draw_expiry", draw_expiry)
    return seen
