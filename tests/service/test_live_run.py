"""What a process knows of a run, and when it tells those who wait."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from checkins.service.runs import slot_transitions
from checkins.service.runs.cached_responses import cached_view
from checkins.service.runs.live_run import LiveRun
from checkins.service.runs.load_shedding import SlotLoad
from checkins.service.store import run_state
from checkins.service.workers.epsilon_process import compute_epsilons, slot_counts
from tests.support.campaigns import campaign
from tests.support.store import House


@pytest.fixture
def house(migrated_file: Path, tmp_path: Path):
    """A live run holds what was read, whatever the store: SQLite is enough."""
    made = House(f"sqlite:///{tmp_path}/store.db", tmp_path)
    yield made
    made.database.close()


def live_run_at(house: House, spec) -> LiveRun:
    nothing: Any = None
    messages = dict.fromkeys(("enrolments", "check_ins", "reports", "retries"), nothing)
    load = SlotLoad(spec.rules, spec.run_schedule)
    return LiveRun(spec, house.snapshot(spec), load=load, **messages)


def told(live_run: LiveRun, house: House, spec) -> None:
    """Return a live run that has read all there is."""
    choice = slot_transitions.read_choice(house.database, spec.id)
    live_run.update(house.snapshot(spec), choice)
    live_run.publish(house.snapshot(spec))


def test_invariant_4_nobody_is_told_before_the_choice_is_read_back(house: House) -> None:
    spec = house.open(campaign(capacity=1))
    house.begin(spec, 1)
    receipts = [house.check_in(spec, 1) for _ in range(3)]
    live_run = live_run_at(house, spec)
    assert [live_run.outcome(1, receipt) for receipt in receipts] == ["waiting"] * 3
    house.choose(spec, 1)
    live_run.update(house.snapshot(spec))
    assert live_run.choice_is_unread
    assert [live_run.outcome(1, receipt) for receipt in receipts] == ["waiting"] * 3
    told(live_run, house, spec)
    assert not live_run.choice_is_unread
    assert sorted(live_run.outcome(1, r) for r in receipts) == ["chosen", "dismissed", "dismissed"]
    assert live_run.outcome(1, *house.chosen(spec)) == "chosen"


def test_a_receipt_is_worth_nothing_in_another_slot_or_once_its_slot_is_over(house: House) -> None:
    spec = house.open(campaign(capacity=1))
    house.begin(spec, 1)
    receipt = house.check_in(spec, 1)
    house.choose(spec, 1)
    live_run = live_run_at(house, spec)
    told(live_run, house, spec)
    assert live_run.outcome(2, receipt) is None
    assert live_run.outcome(1, "somebody else's") is None
    house.begin(spec, 2)
    told(live_run, house, spec)
    assert live_run.outcome(1, receipt) is None
    house.check_in(spec, 2)
    house.choose(spec, 2)
    told(live_run, house, spec)
    assert live_run.outcome(2, receipt) is None


def test_an_old_choice_is_not_taken_for_the_new_one(house: House) -> None:
    spec = house.open(campaign(capacity=1))
    house.begin(spec, 1)
    house.check_in(spec, 1)
    house.choose(spec, 1)
    live_run = live_run_at(house, spec)
    told(live_run, house, spec)
    house.begin(spec, 2)
    receipt = house.check_in(spec, 2)
    live_run.update(house.snapshot(spec))
    assert live_run.outcome(2, receipt) == "waiting"
    house.choose(spec, 2)
    live_run.update(house.snapshot(spec))
    assert live_run.choice_is_unread
    assert live_run.outcome(2, receipt) == "waiting"


def test_invariant_8_receipts_that_were_given_out_are_forgotten_with_their_slot(
    house: House,
) -> None:
    spec = house.open(campaign())
    live_run = live_run_at(house, spec)
    live_run.slots_of_receipts["receipt"] = 1
    house.begin(spec, 1)
    told(live_run, house, spec)
    assert live_run.slots_of_receipts
    house.close(spec, 1)
    told(live_run, house, spec)
    assert live_run.slots_of_receipts == {}


def test_early_is_before_the_slot_has_begun(house: House) -> None:
    spec = house.open(campaign(slots=2))
    live_run = live_run_at(house, spec)
    assert live_run.is_early(1)
    house.begin(spec, 1)
    told(live_run, house, spec)
    assert (live_run.is_early(1), live_run.is_early(2)) == (False, True)
    house.close(spec, 2)
    told(live_run, house, spec)
    assert not live_run.is_early(3)
    assert live_run.status == "running"
    house.finish(spec)
    told(live_run, house, spec)
    assert (live_run.is_early(3), live_run.is_over, live_run.status) == (False, True, "completed")


def test_a_release_that_is_durable_is_not_shown_before_it_is_published(house: House) -> None:
    spec = house.open(campaign())
    live_run = live_run_at(house, spec)
    house.begin(spec, 1)
    live_run.update(house.snapshot(spec))
    assert (live_run.status, live_run.public_snapshot.state.closed) == ("running", 0)
    house.close(spec, 1)
    closed = house.snapshot(spec)
    live_run.curve = [(1, {"loss": 1.0})]
    live_run.update(closed)
    assert (live_run.snapshot.state.closed, live_run.public_snapshot.state.closed) == (1, 0)
    assert live_run.public_curve == []
    house.close(spec, 2)
    live_run.update(house.snapshot(spec))
    live_run.publish(house.snapshot(spec))
    live_run.publish(closed)  # late, and older than what is shown
    assert live_run.public_snapshot.state.closed == 2
    assert live_run.public_curve == [(1, {"loss": 1.0})]


def test_everyone_who_waits_is_woken_by_a_change(house: House) -> None:
    spec = house.open(campaign())

    async def main() -> None:
        live_run = live_run_at(house, spec)
        waiters = [asyncio.create_task(live_run.wait_for_change(timeout_s=60)) for _ in range(100)]
        await asyncio.sleep(0)
        live_run.wake()
        assert await asyncio.gather(*waiters) == [True] * 100
        assert await live_run.wait_for_change(timeout_s=0.001) is False

    asyncio.run(main())


def test_what_is_shown_is_made_once_until_something_changes(house: House) -> None:
    spec = house.open(campaign())
    live_run = live_run_at(house, spec)

    def shown(epoch: int) -> int:
        view = cached_view(live_run, epoch=epoch, enrolment="open", holding=None, now=0.0)
        return json.loads(view)["epoch"]

    assert [shown(epoch) for epoch in (1, 2, 3)] == [1, 1, 1]
    live_run.update(house.snapshot(spec))
    assert shown(4) == 4


def test_invariant_10_what_is_spent_is_never_shown_below_its_epsilon(house: House) -> None:
    spec = house.open(campaign(slots=30))
    live_run = live_run_at(house, spec)
    assert live_run.spent == {"epsilon": 0.0, "slots": 0}
    house.close(spec, 3)
    told(live_run, house, spec)
    certified = live_run.public_snapshot.certificate["epsilon"]
    assert live_run.spent == {"epsilon": certified, "slots": 30}
    compute_epsilons(house.database, spec.id)
    live_run.epsilons = run_state.load_epsilons(house.database, spec.id)
    assert [slots for slots, _ in live_run.epsilons] == list(slot_counts(spec))
    epsilons = [epsilon for _, epsilon in live_run.epsilons]
    assert epsilons == sorted(epsilons)
    spent = live_run.spent
    assert spent is not None
    assert spent["slots"] >= 3
    verified = house.verified(spec)
    assert spent["epsilon"] >= verified.certificate.epsilon * (1 - 1e-12)
    ended = house.finish(spec)
    told(live_run, house, spec)
    assert live_run.spent == {"epsilon": ended.certificate["epsilon"], "slots": 30}
    assert epsilons[-1] == pytest.approx(ended.certificate["epsilon"])


def test_epsilons_of_a_second_run_include_the_first_run(house: House) -> None:
    again = campaign(slots=2, repeats=2)
    first = house.open(again)
    spent = house.finish(first).certificate["epsilon"]
    second = house.open(again)
    live_run = live_run_at(house, second)
    # not computed yet: at most the epsilon of the whole run
    whole = live_run.public_snapshot.certificate["epsilon"]
    assert live_run.spent == {"epsilon": whole, "slots": 2}
    assert whole > spent
    compute_epsilons(house.database, second.id)
    epsilons = run_state.load_epsilons(house.database, second.id)
    assert all(epsilon > spent for _, epsilon in epsilons)
    compute_epsilons(house.database, first.id)  # is over: its certificate says it
    assert run_state.load_epsilons(house.database, first.id) == []


@pytest.mark.parametrize("affordable", [1, 2, 19, 20, 21, 200, 1013])
def test_marks_end_with_the_last_slot_that_the_budget_allows(house: House, affordable: int) -> None:
    spec = house.open(campaign(slots=affordable, population_id=f"{affordable}"))
    found = slot_counts(spec)
    assert found[-1] == affordable
    assert found[0] >= 1
    assert len(found) == min(20, affordable)
