"""A store that was rolled back is noticed, and restored only by ending what ran in it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from checkins.campaign import Spending
from checkins.errors import InvalidValue
from checkins.ledger.verification import verify
from checkins.protocol.server import Ending
from checkins.service import startup
from checkins.service.backup import back_up
from checkins.service.runs import operator_actions
from checkins.service.settings import Enrolment, Settings
from checkins.service.startup import Start, parse_start
from checkins.service.store import ledgers, metadata, run_state
from checkins.service.store.database import Database
from checkins.service.store.rollback_detection import (
    NotRolledBack,
    ProgressFile,
    RolledBack,
    StoreProgress,
    progress_of,
)
from tests.support.campaigns import AVERAGED, START, campaign
from tests.support.clock import Clock
from tests.support.store import FaultyDatabase, House

OPERATOR = "operator-token-of-these-tests"


def settings(store: str, progress_file: Path | None, folder: Path) -> Settings:
    return Settings(
        store=store,
        enrolment=Enrolment.open(),
        operator_token=OPERATOR,
        progress_file=progress_file,
        folder=folder,
    )


def test_a_progress_file_that_has_seen_nothing_accepts_anything(
    house: House, tmp_path: Path
) -> None:
    ProgressFile(tmp_path / "w").check(house.database)


def test_a_store_that_went_on_is_accepted(house: House, tmp_path: Path) -> None:
    spec = house.open(campaign())
    progress_file = ProgressFile(tmp_path / "w")
    progress_file.record(progress_of(house.database))
    house.close(spec, 2)
    house.restart()
    ProgressFile(tmp_path / "w").check(house.database)
    progress_file.record(progress_of(house.database))
    ProgressFile(tmp_path / "w").check(house.database)


def test_a_ledger_that_became_shorter_is_noticed(house: House, tmp_path: Path) -> None:
    spec = house.open(campaign())
    older = progress_of(house.database)
    house.close(spec, 2)
    ProgressFile(tmp_path / "w").record(progress_of(house.database))
    held = ProgressFile(tmp_path / "w")._recorded_progress
    assert held.losses_in(older) == ["the ledger of population clinic has 1 entries, and had 3"]
    assert held.losses_in(progress_of(house.database)) == []


def test_an_older_epoch_is_noticed_even_without_a_release() -> None:
    assert StoreProgress(3).losses_in(StoreProgress(2)) == ["it is in epoch 2, and was in 3"]
    assert (
        StoreProgress(3).losses_in(StoreProgress(3))
        == StoreProgress(3).losses_in(StoreProgress(4))
        == []
    )


def test_a_population_that_is_gone_is_noticed() -> None:
    (lost,) = StoreProgress(1, {"population clinic": 4}).losses_in(StoreProgress(1))
    assert "has 0 entries, and had 4" in lost


def test_a_progress_file_never_says_less_than_before(tmp_path: Path) -> None:
    path = tmp_path / "w"
    ProgressFile(path).record(StoreProgress(5, {"a": 9}))
    ProgressFile(path).record(StoreProgress(4, {"a": 3, "b": 1}))
    written = json.loads(path.read_text())
    assert written == {"epoch": 5, "entries": {"a": 9, "b": 1}, "runs": {}, "actions": 0}
    assert list(tmp_path.iterdir()) == [path]


def test_a_log_of_actions_that_became_shorter_is_a_loss() -> None:
    lost = StoreProgress(5, actions=3).losses_in(StoreProgress(5, actions=2))
    assert lost == ["its log of operators' actions has 2 entries, and had 3"]
    assert StoreProgress(5, actions=3).losses_in(StoreProgress(5, actions=3)) == []


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"epoch": "x", "entries": {}}', "\0"])
def test_a_progress_file_that_cannot_be_read_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "w").write_text(text)
    with pytest.raises(InvalidValue, match="is not a progress file that a coordinator wrote"):
        ProgressFile(tmp_path / "w")


def test_invariant_1_an_older_copy_put_in_the_place_of_the_store_is_not_continued(
    tmp_path: Path,
) -> None:
    house = House(f"sqlite:///{tmp_path}/x.db", tmp_path)
    spec = house.open(campaign())
    house.database.checkpoint()
    shutil.copy(tmp_path / "x.db", tmp_path / "old.db")
    progress_file = tmp_path / "w"
    house.close(spec, 1)
    ProgressFile(progress_file).record(progress_of(house.database))
    house.database.close()
    for left in tmp_path.glob("x.db*"):
        left.unlink()
    shutil.copy(tmp_path / "old.db", tmp_path / "x.db")
    chosen = settings(house.url, progress_file, tmp_path)
    with pytest.raises(RolledBack, match="has 1 entries, and had 2"):
        startup.prepare(chosen, campaign(), start=Start())
    database = Database(house.url)
    assert metadata.epoch_of(database) == 1  # it was left alone
    database.close()


def prepared(chosen: Settings, clock: Clock, **how: object):
    """``prepare`` on our clock."""
    database = FaultyDatabase(chosen.store, clock)
    return startup.prepare(
        chosen, how.pop("campaign", None), start=Start(), database=database, **how
    )


def test_a_backup_is_not_continued_as_if_it_were_the_store(tmp_path: Path) -> None:
    house = House(f"sqlite:///{tmp_path}/x.db", tmp_path)
    house.open(campaign())
    copy = tmp_path / "copy.db"
    assert back_up(house.url, copy) == 1
    assert sorted(path.name for path in tmp_path.glob("copy*")) == ["copy.db"]
    chosen = settings(f"sqlite:///{copy}", tmp_path / "fresh.progress", tmp_path)
    with pytest.raises(RolledBack, match="it is a copy made by checkins backup"):
        prepared(chosen, house.clock)
    house.database.close()


def test_a_backup_is_its_owners_alone_and_does_not_hold_what_tokens_derive_from(
    tmp_path: Path,
) -> None:
    house = House(f"sqlite:///{tmp_path}/x.db", tmp_path)
    house.open(campaign())
    key = metadata.secret_key_of(house.database)
    house.database.close()
    copy = tmp_path / "copy.db"
    back_up(house.url, copy)
    assert copy.stat().st_mode & 0o077 == 0
    assert key
    assert key.hex().encode() not in copy.read_bytes()
    database, _ = restored(house, copy)
    assert metadata.secret_key_of(database) not in (b"", key)
    database.close()


def test_a_healthy_store_is_not_restored_and_its_campaign_runs_on(tmp_path: Path) -> None:
    house = House(f"sqlite:///{tmp_path}/x.db", tmp_path)
    spec = house.open(campaign())
    house.close(spec, 1)
    progress_file = tmp_path / "w"
    ProgressFile(progress_file).record(progress_of(house.database))
    before, remembered = house.everything(), progress_file.read_text()
    chosen = settings(house.url, progress_file, tmp_path)
    with pytest.raises(NotRolledBack, match="1 of them open; start without --restore"):
        prepared(chosen, house.clock, restore=True)
    assert house.snapshot(spec).state.ending is None
    assert progress_file.read_text() == remembered
    kept = [line for line in before.splitlines() if line in house.everything().splitlines()]
    assert kept == before.splitlines()
    house.database.close()


def test_a_store_is_restored_once(tmp_path: Path) -> None:
    """A supervisor whose command still says --restore does not end the next campaign."""
    house = House(f"sqlite:///{tmp_path}/x.db", tmp_path)
    house.open(campaign())
    house.database.close()
    copy = tmp_path / "copy.db"
    back_up(house.url, copy)
    restored(house, copy)[0].close()
    with pytest.raises(NotRolledBack, match="none of them open"):
        restored(house, copy)


def restored(house: House, copy: Path, **how: object) -> tuple[Database, object]:
    chosen = settings(f"sqlite:///{copy}", copy.with_name("w"), copy.parent)
    spec = prepared(chosen, house.clock, restore=True, **how)
    return FaultyDatabase(chosen.store, house.clock), spec


def test_restore_ends_what_was_running_and_charges_it_to_the_last_affordable_slot(
    tmp_path: Path,
) -> None:
    house = House(f"sqlite:///{tmp_path}/x.db", tmp_path)
    spec = house.open(campaign(slots=6))
    house.close(spec, 2)
    copy = tmp_path / "copy.db"
    back_up(house.url, copy)
    house.close(spec, 5)  # three more releases that the copy knows nothing of
    token = house.enrol(spec)
    ProgressFile(tmp_path / "w").record(progress_of(house.database))
    house.database.close()

    database, found = restored(house, copy, campaign=spec.campaign)
    assert found is not None
    with database.read_transaction() as connection:
        snapshot = run_state.load_snapshot(connection, spec)
        lines = ledgers.ledger_lines(connection, spec.population, after=0, limit=99)
    assert (snapshot.state.ending, snapshot.state.closed) == (Ending.STOPPED, 2)
    assert snapshot.certificate["epsilon"] == Spending(spec.campaign).after(6).epsilon
    assert verify(lines, require_closed=True).within_budget
    assert token not in snapshot.certificate
    with database.read_transaction() as connection:
        assert metadata.read(connection, metadata.COPY_ENTRY) is None
    ProgressFile(tmp_path / "w").check(database)
    database.close()
    prepared(  # from now on it is the store
        settings(f"sqlite:///{copy}", tmp_path / "w", tmp_path), house.clock
    )


def test_restore_warns_of_revocations_that_the_copy_does_not_know_of(tmp_path: Path) -> None:
    house, copy = House(f"sqlite:///{tmp_path}/x.db", tmp_path), tmp_path / "copy.db"
    operator_actions.add_operator(
        house.database, "ann", "0" * 64, "operator", operator="token-file"
    )
    back_up(house.url, copy)
    operator_actions.revoke_operator(house.database, "ann", operator="token-file")
    ProgressFile(tmp_path / "w").record(progress_of(house.database))
    house.database.close()
    warnings: list[str] = []
    restored(house, copy, warn=warnings.append)[0].close()
    [warning] = [each for each in warnings if "valid again" in each]
    assert "had 2 entries, and has 1" in warning


def test_restore_before_the_first_slot_charges_the_whole_run_too(tmp_path: Path) -> None:
    house = House(f"sqlite:///{tmp_path}/x.db", tmp_path)
    spec = house.open(campaign(slots=6, epsilon=0.7))
    back_up(house.url, tmp_path / "copy.db")
    house.database.close()
    database, _ = restored(house, tmp_path / "copy.db")
    with database.read_transaction() as connection:
        snapshot = run_state.load_snapshot(connection, spec)
    expected = Spending(spec.campaign).after(spec.affordable).epsilon
    assert snapshot.certificate["epsilon"] == expected > 0.0
    database.close()


def test_restore_charges_averaged_updates_that_the_copy_does_not_know_of(tmp_path: Path) -> None:
    """The copy was made before the first report; reports came after it."""
    house = House(f"sqlite:///{tmp_path}/x.db", tmp_path)
    spec = house.open(campaign(**AVERAGED))
    back_up(house.url, tmp_path / "copy.db")
    house.play(spec, 1, 5)
    house.database.close()
    database, _ = restored(house, tmp_path / "copy.db")
    with database.read_transaction() as connection:
        snapshot = run_state.load_snapshot(connection, spec)
    assert snapshot.certificate["epsilon"] > 0.0
    database.close()


def test_restore_does_not_open_a_repeat_that_may_have_run_already(tmp_path: Path) -> None:
    """After the copy run 1 ended and run 2 began: opened again, it would be released twice."""
    house = House(f"sqlite:///{tmp_path}/x.db", tmp_path)
    again = campaign(slots=2, repeats=3)
    first = house.open(again)
    house.close(first, 1)
    back_up(house.url, tmp_path / "copy.db")
    house.finish(first)
    second = house.open(again)
    house.play(second, 1, 2)
    house.database.close()
    database, _ = restored(house, tmp_path / "copy.db", campaign=again)
    with database.read_transaction() as connection:
        known = [run.id for run in run_state.load_specs_except(connection, ())]
    database.close()
    assert second.id not in known


def test_preparing_counts_an_epoch_and_opens_or_finds_the_campaign(
    store: str, tmp_path: Path
) -> None:
    chosen, clock = settings(store, tmp_path / "w", tmp_path), Clock()
    first = prepared(chosen, clock, campaign=campaign())
    assert json.loads((tmp_path / "w").read_text()) == {
        "epoch": 1,
        "entries": {"population clinic": 1},
        "runs": {"population clinic": 1},
        "actions": 1,
    }
    second = prepared(chosen, clock, campaign=campaign())
    assert first.id == second.id
    assert json.loads((tmp_path / "w").read_text())["epoch"] == 2


def test_a_start_that_is_given_goes_on_with_the_open_run_of_the_same_file(
    house: House, tmp_path: Path
) -> None:
    what = campaign()
    spec = house.open(what)
    chosen = settings(house.url, None, tmp_path)
    moved = Start(moment=START + timedelta(days=1))
    assert startup._open_campaign(house.database, chosen, what, moved).id == spec.id
    house.finish(spec)
    again = startup._open_campaign(house.database, chosen, what, moved)
    assert again.id != spec.id
    assert again.run_schedule.begins(1) == (START + timedelta(days=1)).timestamp()


@pytest.mark.parametrize(
    "text", ["", "tomorrow", "+", "+x", "+nan", "+inf", "-5", "+-5", "2030-01-01", "1e3", "+1e10"]
)
def test_a_start_is_now_or_later_or_an_instant(text: str) -> None:
    with pytest.raises(InvalidValue, match="must be now"):
        parse_start(text)


def test_an_instant_is_sealed_as_it_was_given() -> None:
    start = parse_start("2041-02-03T04:05:06+02:00")
    sealed = start.apply_to(campaign())
    assert sealed.schedule is not None
    assert sealed.schedule.start.isoformat() == "2041-02-03T02:05:06+00:00"
    assert sealed.seal != campaign().seal
    same = replace(sealed, schedule=campaign().schedule)
    assert same.seal == campaign().seal
