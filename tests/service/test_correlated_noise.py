"""Correlated noise in the store: which sums are kept, for how long, and what a crash leaves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from checkins.campaign import Spending
from checkins.errors import OutOfOrder
from checkins.protocol.server import Ending
from checkins.service import backup
from checkins.service.runs import slot_transitions
from checkins.service.store import ledgers, past_sums, run_state, schema
from checkins.service.store.database import Database
from checkins.service.store.rollback_detection import ProgressFile, RolledBack, progress_of
from checkins.service.store.run_state import RunSpec
from tests.support.campaigns import BANDS, CORRELATED, EVERYONE, campaign
from tests.support.store import House, total_of

CLIENTS = (2, 0, 3, 1, 0, 4)
"""The clients of each slot; each reports 1 in every coordinate."""


def expected_totals(drawn) -> list[list[int]]:
    """The totals of the slots so far: sums of this slot and of earlier ones, and one noise."""
    return [
        (
            sum(BANDS[age] * CLIENTS[slot - 1 - age] for age in range(min(slot, len(BANDS))))
            + drawn[slot].noise.values
        ).tolist()
        for slot in sorted(drawn)
    ]


def totals(house: House, spec) -> list[list[int]]:
    """The totals in the ledger."""
    lines = [entry for entry in house.entries(spec) if entry["kind"] == "slot-closed"]
    return [total_of(entry).tolist() for entry in lines]


def exact_sums(house: House) -> dict[int, int]:
    """The stored exact sums, by slot. All coordinates are equal."""
    return {row.slot: np.frombuffer(row.sum, "<i8")[0] for row in house.rows(schema.exact_sums)}


def test_invariant_16_totals_contain_earlier_sums_and_noise_of_their_own(house, drawn) -> None:
    spec = house.open(campaign(**CORRELATED))
    for slot, clients in enumerate(CLIENTS, start=1):
        house.play(spec, slot, clients)
        if slot % 2:
            house.restart()
    house.finish(spec)
    assert totals(house, spec) == expected_totals(drawn)
    noise = [event.noise.values.tobytes() for event in drawn.values()]
    assert len(set(noise)) == len(noise), "the same noise was drawn twice"
    assert house.verified(spec, require_closed=True).notes == ()


def test_invariant_16_the_exact_sums_that_are_needed_are_stored_and_no_others(house) -> None:
    spec = house.open(campaign(**CORRELATED))
    for slot, clients in enumerate(CLIENTS, start=1):
        house.play(spec, slot, clients)
        needed = range(max(1, slot - 2), slot + 1) if slot < len(CLIENTS) else ()
        assert exact_sums(house) == {number: CLIENTS[number - 1] for number in needed}


@pytest.mark.parametrize(
    "step", ["save_learner", "save_exact_sums", "save_noisy_sums", "add_release", "save_state"]
)
def test_invariant_16_a_crash_uses_no_noise_twice_and_forgets_no_sum(
    house: House, drawn, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """What was drawn before the crash is in no total, because the transaction was undone."""
    spec = house.open(campaign(**CORRELATED))
    modules = (run_state, past_sums, ledgers)
    module = next(module for module in modules if hasattr(module, step))
    discarded = []

    def crash(*_: object, **__: object) -> None:
        raise RuntimeError("the power fails")

    for slot, clients in enumerate(CLIENTS, start=1):
        house.begin(spec, slot)
        for _ in range(clients):
            house.check_in(spec, slot)
        house.choose(spec, slot)
        for receipt in house.chosen(spec):
            house.report(spec, slot, receipt)
        before = house.everything()
        with monkeypatch.context() as broken:
            broken.setattr(module, step, crash)
            with pytest.raises(RuntimeError):
                house.close(spec, slot)
        assert house.everything() == before
        discarded.append(drawn[slot].noise.values.tobytes())
        house.restart()
        house.close(spec, slot)
    house.finish(spec)
    assert totals(house, spec) == expected_totals(drawn)
    noise = [event.noise.values.tobytes() for event in drawn.values()]
    assert len({*noise, *discarded}) == 2 * len(CLIENTS), "the same noise was drawn twice"


def test_invariant_16_a_run_that_is_stopped_leaves_no_exact_sum(house: House) -> None:
    spec = house.open(campaign(**CORRELATED))
    house.play(spec, 1, 2)
    assert exact_sums(house) == {1: 2}
    slot_transitions.stop(house.database, spec, house.snapshot(spec))
    assert exact_sums(house) == {}


def test_invariant_16_every_run_begins_without_earlier_sums(house: House, drawn) -> None:
    again = campaign(**{**CORRELATED, "repeats": 2, "slots": 2, "epsilon": 90.0})
    first = house.open(again)
    for slot in (1, 2):
        house.play(first, slot, 5)
    house.finish(first)
    second = house.open(again)
    assert house.snapshot(second).learner.noisy_sums == ()
    house.play(second, 1, 0)
    assert totals(house, second)[-1] == drawn[1].noise.values.tolist()
    house.play(second, 2, 0)
    house.finish(second)
    assert house.verified(second, require_closed=True)


def test_invariant_16_nothing_about_exact_sums_is_logged_or_published(
    house: House, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """The ledger has the total and the hash of the model, as it has with independent noise."""
    caplog.set_level(0)
    spec, other = (
        house.open(campaign(population_id=name, **given))
        for name, given in (("one", CORRELATED), ("two", EVERYONE))
    )
    capfd.readouterr()  # that the runs are open
    for run in (spec, other):
        house.play(run, 1, 3)
    assert [record for record in caplog.records if record.name.startswith("checkins")] == []
    assert capfd.readouterr() == ("", "")
    assert house.entries(spec)[-1].keys() == house.entries(other)[-1].keys()
    released = house.rows(schema.releases)
    assert {row.model_hash for row in released} == {
        entry["model_hash"] for run in (spec, other) for entry in house.entries(run)[1:]
    }


def test_a_store_that_lost_its_exact_sums_closes_no_slot(house: House) -> None:
    spec = house.open(campaign(**CORRELATED))
    for slot in (1, 2):
        house.play(spec, slot, 1)
    with house.database.exclusive_transaction(spec.id) as connection:
        past_sums.erase_exact_sums(connection, spec.id)
    house.choose(spec, 3)
    before = house.everything()
    with pytest.raises(OutOfOrder, match="exact sums of the 2 slots before it, not 0"):
        house.close(spec, 3)
    assert house.everything() == before


def secret_house(folder: Path) -> tuple[House, RunSpec, bytes]:
    """A store whose first slot is closed, and the bytes of the exact sum of that slot."""
    house = House(f"sqlite:///{folder}/x.db", folder)
    spec = house.open(campaign(**CORRELATED))
    house.begin(spec, 1)
    house.check_in(spec, 1)
    house.choose(spec, 1)
    units = np.arange(1000, 1000 + spec.dimension)
    for receipt in house.chosen(spec):
        house.report(spec, 1, receipt, units)
    house.close(spec, 1)
    return house, spec, units.astype("<i8").tobytes()


def test_invariant_16_no_byte_of_a_sum_that_is_not_needed_is_in_the_files(tmp_path: Path) -> None:
    house, spec, secret = secret_house(tmp_path)
    held = []
    for slot in (1, 2, 3, 4):
        house.close(spec, slot)
        house.database.checkpoint()
        held.append(any(secret in path.read_bytes() for path in tmp_path.glob("x.db*")))
    assert held == [True, True, True, False]
    house.database.close()


def test_invariant_16_a_backup_has_no_exact_sum_and_is_priced_as_the_whole_run(
    tmp_path: Path,
) -> None:
    house, spec, secret = secret_house(tmp_path)
    house.database.checkpoint()
    assert secret in (tmp_path / "x.db").read_bytes()
    backup.back_up(house.url, tmp_path / "copy.db")
    assert secret not in (tmp_path / "copy.db").read_bytes()
    house.database.close()

    copy = Database(f"sqlite:///{tmp_path}/copy.db")
    with pytest.raises(RolledBack, match="it is a copy made by checkins backup"):
        ProgressFile(tmp_path / "w").check(copy)
    backup.end_runs(copy)
    snapshot = copy.read(run_state.load_snapshot, spec)
    assert (snapshot.state.ending, snapshot.state.closed) == (Ending.STOPPED, 1)
    assert snapshot.certificate["epsilon"] == Spending(spec.campaign).after(6).epsilon
    copy.close()


def test_invariant_16_a_store_that_lost_its_exact_sums_is_not_continued(
    house: House, tmp_path: Path
) -> None:
    """As after a restore from a dump without the table of exact sums."""
    spec = house.open(campaign(**CORRELATED))
    house.play(spec, 1, 1)
    ProgressFile(tmp_path / "w").record(progress_of(house.database))
    ProgressFile(tmp_path / "w").check(house.database)
    with house.database.exclusive_transaction(spec.id) as connection:
        past_sums.erase_exact_sums(connection)
    with pytest.raises(RolledBack, match=f"lacks the secret sums that later slots of {spec.id}"):
        ProgressFile(tmp_path / "w").check(house.database)
    ProgressFile(tmp_path / "w").check_restorable(house.database)
    backup.end_runs(house.database)
    ProgressFile(tmp_path / "w").check(house.database)
    assert house.snapshot(spec).state.ending is Ending.STOPPED


def test_a_run_that_was_stopped_but_not_finished_misses_no_sum(house: House) -> None:
    spec = house.open(campaign(**CORRELATED))
    house.play(spec, 1, 1)
    slot_transitions.stop(house.database, spec, house.snapshot(spec))
    assert house.database.read(run_state.runs_without_exact_sums) == []
