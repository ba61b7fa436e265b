"""A store of SQLite that several processes have open, and the clock of PostgreSQL."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import event, text

from checkins.service.store.clock import corrected
from checkins.service.store.database import Database
from tests.postgres import Postgres

AHEAD = "SELECT extract(epoch FROM clock_timestamp()) + 3600"
OTHER = """
import sys
from sqlalchemy import text
from checkins.service.store.database import Database
database = Database(sys.argv[1])
with database.reading() as connection:
    print(connection.execute(text("SELECT count(*) FROM kept")).scalar_one())
database.close()
"""


def written(database: Database) -> None:
    with database.exclusive("any") as connection:
        connection.execute(text("INSERT INTO kept VALUES (1)"))


def counted_elsewhere(url: str) -> int:
    """By a process that opens the store, reads it and goes, as the one that computes prices."""
    command = [sys.executable, "-c", OTHER, url]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_a_process_that_goes_leaves_the_log_to_those_that_stay(tmp_path: Path) -> None:
    """Opening and closing the file ourselves would drop SQLite's locks on it, all that this process
    has: the other would believe that nobody is left, and delete the log under our hands."""
    url = f"sqlite:///{tmp_path}/store.db"
    log = tmp_path / "store.db-wal"
    database = Database(url)
    with database.exclusive("any") as connection:
        connection.execute(text("CREATE TABLE kept (number INTEGER)"))
    with database.reading(), database.reading():  # more connections than there were
        written(database)
    same = log.stat().st_ino
    assert counted_elsewhere(url) == 1
    assert log.exists()
    assert log.stat().st_ino == same
    written(database)
    assert counted_elsewhere(url) == 2
    database.close()


def test_a_slow_answer_does_not_move_the_clock(postgres: Postgres) -> None:
    database = Database(postgres.create())

    def before(_: object, __: object, statement: str, *___: object) -> None:
        if "clock_timestamp" in statement:
            time.sleep(0.3)

    event.listen(database.engine, "before_cursor_execute", before)
    database.synchronise()
    event.remove(database.engine, "before_cursor_execute", before)
    event.listen(database.engine, "after_cursor_execute", before)
    database.synchronise()
    assert database.now() - time.time() == pytest.approx(0.0, abs=0.05)
    database.close()


@given(
    true=st.floats(-1e4, 1e4),
    delays=st.lists(st.tuples(st.floats(0, 60), st.floats(0, 60)), min_size=1, max_size=8),
)
def test_the_clock_is_never_further_off_than_the_quickest_answer_took(
    true: float, delays: list[tuple[float, float]]
) -> None:
    offset = 0.0
    for there_s, back_s in delays:
        offset = corrected(offset, before=0.0, there=there_s + true, after=there_s + back_s)
        assert abs(offset - true) <= there_s + back_s + 1e-9
    assert abs(offset - true) <= min(sum(delay) for delay in delays) + 1e-9


def test_the_clock_of_another_machine_is_taken_over(postgres: Postgres, monkeypatch) -> None:
    database = Database(postgres.create())
    monkeypatch.setattr("checkins.service.store.database.CLOCK", AHEAD)
    database.synchronise()
    assert database.now() - time.time() == pytest.approx(3600.0, abs=1.0)
    database.close()


def test_the_file_is_nobody_elses_to_read(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/store.db")
    with database.reading():
        assert (tmp_path / "store.db").stat().st_mode & 0o077 == 0
    database.close()
