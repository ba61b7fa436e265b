"""A store of SQLite that several processes have open."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from sqlalchemy import text

from checkins.service.store.database import Database

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


def test_the_file_is_nobody_elses_to_read(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/store.db")
    with database.reading():
        assert (tmp_path / "store.db").stat().st_mode & 0o077 == 0
    database.close()
