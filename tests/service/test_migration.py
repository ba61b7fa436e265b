"""Stores of this version, of none, and of a newer one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import inspect

from checkins.errors import InvalidValue
from checkins.service.store import metadata, schema
from checkins.service.store.database import Database
from checkins.service.store.schema import MIGRATIONS_FOLDER, NEWEST_REVISION, migrate
from tests.support.campaigns import campaign
from tests.support.store import House


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A database without a single table."""
    if request.param == "sqlite":
        database = Database(f"sqlite:///{tmp_path}/empty.db")
    else:
        database = Database(request.getfixturevalue("postgres_url"))
    yield database
    database.close()


def test_an_empty_database_gets_the_tables_that_the_code_knows(empty: Database) -> None:
    migrate(empty)
    with empty.read_transaction() as connection:
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, schema.metadata) == []
        assert context.get_current_revision() == NEWEST_REVISION


def test_a_store_from_before_filters_has_runs_without_one(empty: Database) -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS_FOLDER).replace("%", "%%"))
    with empty.exclusive_transaction("migrations") as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
    with empty.read_transaction() as connection:
        assert "filter" not in {
            column["name"] for column in inspect(connection).get_columns("runs")
        }
    migrate(empty)
    with empty.read_transaction() as connection:
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, schema.metadata) == []


def test_migrating_again_changes_nothing(empty: Database) -> None:
    migrate(empty)
    metadata.begin_epoch(empty)
    migrate(empty)
    assert metadata.epoch_of(empty) == 1


def test_a_newer_schema_is_refused_and_left_as_it_is(empty: Database) -> None:
    migrate(empty)
    with empty.exclusive_transaction("test") as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(InvalidValue, match="newer version of checkins"):
        migrate(empty)
    with empty.read_transaction() as connection:
        assert MigrationContext.configure(connection).get_current_revision() == "9999"


def test_a_migration_that_fails_leaves_no_table_behind(
    empty: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    from alembic import op

    done: Callable[..., object] = op.create_table

    def failing(name: str, *columns: object, **how: object) -> object:
        if name == "curve":
            raise RuntimeError("the disk is full")
        return done(name, *columns, **how)

    with monkeypatch.context() as broken:
        broken.setattr(op, "create_table", failing)
        with pytest.raises(RuntimeError):
            migrate(empty)
    with empty.read_transaction() as connection:
        assert not set(inspect(connection).get_table_names()) - {"alembic_version"}
    migrate(empty)


def test_several_may_migrate_at_once(empty: Database) -> None:
    failures: list[BaseException] = []

    def one() -> None:
        database = Database(empty.url)
        try:
            migrate(database)
            metadata.begin_epoch(database)
        except BaseException as error:
            failures.append(error)
        finally:
            database.close()

    threads = [Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert metadata.epoch_of(empty) == 4


def test_the_epoch_grows_with_each_start_and_the_key_stays(house: House) -> None:
    key = metadata.secret_key_of(house.database)
    assert len(key) == 32
    for epoch in (2, 3):
        house.restart()
        assert metadata.epoch_of(house.database) == epoch
        assert metadata.secret_key_of(house.database) == key


def test_a_store_of_sqlite_is_durable_and_overwrites_what_it_deletes(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/x.db")
    with database.read_transaction() as connection:
        found = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in ("journal_mode", "synchronous", "secure_delete", "foreign_keys")
        }
    assert found == {"journal_mode": "wal", "synchronous": 2, "secure_delete": 1, "foreign_keys": 1}
    database.close()


def test_invariant_8_after_a_checkpoint_no_byte_of_a_closed_slot_is_in_the_files(
    tmp_path: Path,
) -> None:
    house = House(f"sqlite:///{tmp_path}/x.db", tmp_path)
    spec = house.open(campaign())
    house.begin(spec, 1)
    tokens = [house.enrol(spec) for _ in range(3)]
    receipts = [house.check_in(spec, 1, token) for token in tokens]
    house.choose(spec, 1)
    house.database.checkpoint()
    held = b"".join(path.read_bytes() for path in tmp_path.glob("x.db*"))
    assert all(word.encode() in held for word in [*tokens, *receipts])
    house.close(spec, 1)
    house.database.checkpoint()
    held = b"".join(path.read_bytes() for path in tmp_path.glob("x.db*"))
    assert not any(word.encode() in held for word in [*tokens, *receipts])
    house.database.close()
