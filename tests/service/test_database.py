"""A store of SQLite that several processes have open, and the clock of PostgreSQL."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Thread

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import event, text
from sqlalchemy.exc import OperationalError

from checkins.service.authentication import hashed
from checkins.service.runs import runner
from checkins.service.store.database import (
    MAX_CRASHES_AT_START,
    WRITE_LOCK_TIMEOUT_S,
    Database,
    is_unavailable,
)
from checkins.service.store.time_source import nearest_offset
from tests.support.in_process import Living, play
from tests.support.postgres import Postgres
from tests.support.program import output_of

AHEAD = "SELECT extract(epoch FROM clock_timestamp()) + 3600"
OTHER = """
import sys
from sqlalchemy import text
from checkins.service.store.database import Database
database = Database(sys.argv[1])
with database.read_transaction() as connection:
    print(connection.execute(text("SELECT count(*) FROM kept")).scalar_one())
database.close()
"""


def written(database: Database) -> None:
    with database.exclusive_transaction("any") as connection:
        connection.execute(text("INSERT INTO kept VALUES (1)"))


def counted_elsewhere(url: str) -> int:
    """By a process that opens the store, reads it and goes, as the one that computes epsilons."""
    return int(output_of(OTHER, url))


def test_a_process_that_goes_leaves_the_log_to_those_that_stay(tmp_path: Path) -> None:
    """Opening and closing the file ourselves would drop SQLite's locks on it, all that this process
    has: the other would believe that nobody is left, and delete the log under our hands."""
    url = f"sqlite:///{tmp_path}/store.db"
    log = tmp_path / "store.db-wal"
    database = Database(url)
    with database.exclusive_transaction("any") as connection:
        connection.execute(text("CREATE TABLE kept (number INTEGER)"))
    # more connections than there were
    with database.read_transaction(), database.read_transaction():
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
    database.synchronise_clock()
    event.remove(database.engine, "before_cursor_execute", before)
    event.listen(database.engine, "after_cursor_execute", before)
    database.synchronise_clock()
    before_s, now, after_s = time.time(), database.now(), time.time()
    assert before_s - 0.01 <= now <= after_s + 0.01
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
        offset = nearest_offset(offset, before=0.0, reading=there_s + true, after=there_s + back_s)
        assert abs(offset - true) <= there_s + back_s + 1e-9
    assert abs(offset - true) <= min(sum(delay) for delay in delays) + 1e-9


def test_the_clock_of_another_machine_is_taken_over(postgres: Postgres, monkeypatch) -> None:
    database = Database(postgres.create())
    monkeypatch.setattr("checkins.service.store.database.CLOCK_QUERY", AHEAD)
    before_s = time.time()
    database.synchronise_clock()
    took_s = time.time() - before_s
    assert database.now() - time.time() == pytest.approx(3600.0, abs=1.0 + took_s)
    database.close()


def test_the_file_is_nobody_elses_to_read(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/store.db")
    with database.read_transaction():
        assert (tmp_path / "store.db").stat().st_mode & 0o077 == 0
    database.close()


READER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN")
connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
print("reading", flush=True)
sys.stdin.read()
"""


@contextmanager
def a_reader(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process, in a transaction that reads and does not end before its standard input."""
    command = [sys.executable, "-c", READER, str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "reading\n"
        yield process


def test_a_reader_that_never_ends_delays_no_slot_and_refuses_no_enrolment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its going empties the log: what slots have erased is gone from the files."""
    monkeypatch.setattr(runner, "EMPTY_WAL_INTERVAL_S", 0.0)  # a checkpoint is due all the time
    path = tmp_path / "store.db"
    log = tmp_path / "store.db-wal"
    spent: list[bytes] = []

    async def scenario(it: Living) -> None:
        await it.open(slots=4, capacity=2)
        with a_reader(path) as reader:
            for slot in range(1, 5):
                await it.begin(slot)
                token = await it.enrol()
                receipt = await it.check_in(slot, token)
                spent.append(hashed(token).encode())
                await it.choose(slot)
                assert await it.outcome(receipt) == "chosen"
                assert (await it.report(slot, receipt)).status_code == 200
                await it.show(slot)
            assert not it.runner.database.checkpoint()
            assert log.stat().st_size > 0
            reader.communicate()
        await it.turn(it.clock.now, lambda: log.stat().st_size == 0)
        held = path.read_bytes() + log.read_bytes()
        assert not any(trace in held for trace in spent)

    play(f"sqlite:///{path}", tmp_path, scenario)


def test_writers_do_not_wait_for_a_checkpoint_that_waits_for_a_reader(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    database = Database(f"sqlite:///{path}")
    with database.exclusive_transaction("any") as connection:
        connection.execute(text("CREATE TABLE written (number INTEGER)"))
    with a_reader(path) as reader:
        with database.exclusive_transaction("any") as connection:
            connection.execute(text("INSERT INTO written VALUES (1)"))
        checkpoint = Thread(target=database.checkpoint, daemon=True)
        checkpoint.start()
        wait_s = WRITE_LOCK_TIMEOUT_S / 4
        with closing(sqlite3.connect(path, timeout=wait_s, isolation_level=None)) as other:
            while checkpoint.is_alive():
                other.execute("INSERT INTO written VALUES (2)")
        reader.communicate()
    database.close()


def test_a_checkpoint_leaves_how_long_writers_wait_as_it_was(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/store.db")
    for _ in range(2):
        with database.read_transaction() as connection:
            waits = connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one()
        assert waits == 1000 * WRITE_LOCK_TIMEOUT_S
        assert database.checkpoint()
    database.close()


def test_a_checkpoint_does_not_wait_for_a_writer_that_hangs(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("checkins.service.store.database.CHECKPOINT_WRITERS_TIMEOUT_S", 0.0)
    database = Database(f"sqlite:///{tmp_path}/store.db")
    with database.exclusive_transaction("any") as connection:
        connection.execute(text("CREATE TABLE kept (number INTEGER)"))
        assert not database.checkpoint()
    assert database.checkpoint()
    database.close()


def refusal(words: str, *, state: str | None = None) -> OperationalError:
    given = psycopg.OperationalError(words)
    given.sqlstate = state
    return OperationalError("none", None, given)


@pytest.mark.parametrize(
    ("error", "away"),
    [
        (refusal("FATAL:  the database system is starting up"), True),
        (refusal("FATAL:  the database system is in recovery mode"), True),
        (refusal("FATAL:  das Datenbanksystem startet"), True),
        (refusal("connection failed: Connection refused"), True),
        (refusal("connection timeout expired"), True),
        (refusal("terminating connection due to crash", state="57P02"), True),
        (refusal("terminating connection", state="57P01"), True),
        (refusal('FATAL:  password authentication failed for user "ann"'), False),
        (refusal('FATAL:  database "x" does not exist'), False),
        (refusal("fe_sendauth: no password supplied"), False),
        (refusal("could not extend file: No space left on device", state="53100"), False),
    ],
)
def test_a_postgresql_that_may_come_back_is_told_from_one_that_refuses(
    error: OperationalError, away: bool
) -> None:
    assert is_unavailable(error) is away


class Answering(Database):
    """A database that is never waited for."""

    def wait_until_available(self) -> None:
        """Nothing."""


def test_what_a_start_does_is_done_again_after_a_crash() -> None:
    database = Answering("postgresql://ann@nowhere/x")
    outcomes = [refusal("crash", state="57P02"), refusal("starting up", state="57P03")]

    def work() -> str:
        if outcomes:
            raise outcomes.pop()
        return "done"

    assert database.run_when_available(work) == "done"


def test_a_start_on_a_postgresql_that_keeps_crashing_ends() -> None:
    database = Answering("postgresql://ann@nowhere/x")
    crashes = 0

    def work() -> None:
        nonlocal crashes
        crashes += 1
        raise refusal("crash", state="57P02")

    with pytest.raises(OperationalError, match="crash"):
        database.run_when_available(work)
    assert crashes == 1 + MAX_CRASHES_AT_START
