"""checkins backup: a copy that says it is one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from checkins.service.store import ledgers, metadata
from checkins.service.store.database import Database
from tests.support.campaigns import campaign
from tests.support.program import refused
from tests.support.store import House


@pytest.fixture
def house(tmp_path: Path):
    made = House(f"sqlite:///{tmp_path}/store.db", tmp_path)
    yield made
    made.database.close()


def test_a_store_in_use_is_copied_whole_and_marked(checkins, house: House, tmp_path: Path) -> None:
    spec = house.open(campaign())
    house.close(spec, 2)
    copy = tmp_path / "copy.db"
    outcome = checkins("backup", "--store", house.url, "--out", str(copy), "--json")
    assert (outcome.code, outcome.err) == (0, "")
    told = json.loads(outcome.out)
    assert told == {"path": str(copy), "epoch": 1, "bytes": copy.stat().st_size}
    database = Database(f"sqlite:///{copy}")
    with database.read_transaction() as connection:
        assert metadata.read(connection, metadata.COPY_ENTRY) == "yes"
        held = ledgers.ledger_lines(connection, spec.population, after=0, limit=99)
    database.close()
    assert held == house.lines(spec)
    with house.database.read_transaction() as connection:
        assert metadata.read(connection, metadata.COPY_ENTRY) is None


def test_the_text_says_how_to_use_the_copy(checkins, house: House, tmp_path: Path) -> None:
    house.open(campaign())
    outcome = checkins("backup", "--store", house.url, "--out", str(tmp_path / "copy.db"))
    assert outcome.code == 0
    assert "--restore" in outcome.out


KILLED_BACKUP = """
import os, signal, sys
from pathlib import Path
from checkins.service.backup import back_up
from checkins.service.store import participants

def die(*_): os.kill(os.getpid(), signal.SIGKILL)

store, copy, moment = sys.argv[1:]
if moment == "the secrets are deleted":
    participants.erase_clients = die
else:
    os.fsync = die
back_up(store, Path(copy))
"""


@pytest.mark.parametrize("moment", ["the secrets are deleted", "the copy is written"])
def test_a_backup_that_is_killed_leaves_no_secret_in_a_file(tmp_path: Path, moment: str) -> None:
    """A process makes the backup and kills itself with the whole store in hand, or at the end."""
    stores, copies = tmp_path / "stores", tmp_path / "copies"
    stores.mkdir()
    copies.mkdir()
    house = House(f"sqlite:///{stores}/store.db", stores)
    spec = house.open(campaign())
    token = house.enrol(spec).encode()
    key = metadata.secret_key_of(house.database).hex().encode()
    house.database.close()
    assert all(secret in (stores / "store.db").read_bytes() for secret in (token, key))
    command = [sys.executable, "-c", KILLED_BACKUP, house.url, str(copies / "copy.db"), moment]
    assert subprocess.run(command, timeout=300, check=False).returncode == -signal.SIGKILL
    left = {path.name: path.read_bytes() for path in copies.iterdir()}
    assert list(left) == ([] if "secrets" in moment else ["copy.db.part"])
    assert not any(secret in content for content in left.values() for secret in (token, key))


def test_mistakes_are_told_in_one_line(checkins, house: House, tmp_path: Path) -> None:
    out = ("--out", str(tmp_path / "copy.db"))
    refused(checkins("backup", *out), says="--store")
    refused(checkins("backup", "--store", house.url), says="--out")
    refused(
        checkins("backup", "--store", house.url, "--out", str(tmp_path / "store.db")), says="exists"
    )
    refused(
        checkins("backup", "--store", f"sqlite:///{tmp_path}/none.db", *out), says="no such file"
    )
    away = "postgresql://ann:hidden-word@db/x"
    outcome = checkins("backup", "--store", away, *out)
    refused(outcome, says="use pg_dump")
    assert "hidden-word" not in outcome.err
    assert not (tmp_path / "copy.db").exists()


def test_a_file_that_is_no_store_is_refused_and_nothing_is_left(checkins, tmp_path: Path) -> None:
    (tmp_path / "x.db").write_bytes(b"no database, but long enough to be looked at " * 9)
    words = ("--store", f"sqlite:///{tmp_path}/x.db", "--out", str(tmp_path / "copy.db"))
    refused(checkins("backup", *words), says="x.db")
    assert [path.name for path in tmp_path.iterdir()] == ["x.db"]


def test_a_store_whose_name_has_odd_characters_is_copied(checkins, tmp_path: Path) -> None:
    folder = tmp_path / "a b ü"
    folder.mkdir()
    house = House(f"sqlite:///{folder}/store.db", folder)
    house.open(campaign())
    house.database.close()
    words = ("--store", f"sqlite:///{folder}/store.db", "--out", str(tmp_path / "copy.db"))
    assert checkins("backup", *words).code == 0
