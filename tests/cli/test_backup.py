"""checkins backup: a copy that says it is one."""

from __future__ import annotations

import json
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
