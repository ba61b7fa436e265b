"""What a process knows of a run, and when it tells those who wait."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from checkins.service import slot_transitions
from checkins.service.live_run import LiveRun
from checkins.service.pricing import marks, price_marks
from checkins.service.store import progress
from tests.service.coordination import House, campaign


@pytest.fixture
def house(migrated_file: Path, tmp_path: Path):
    """A desk holds what was read, whatever the store: SQLite will do."""
    made = House(f"sqlite:///{tmp_path}/store.db", tmp_path)
    yield made
    made.database.close()


def desk_at(house: House, terms) -> LiveRun:
    nothing: Any = None
    return LiveRun(
        terms, house.standing(terms), enrolments=nothing, check_ins=nothing, reports=nothing
    )


def told(desk: LiveRun, house: House, terms) -> None:
    """The desk reads all there is, and shows it."""
    choice = slot_transitions.read_choice(house.database, terms.id)
    desk.moved(house.standing(terms), choice)
    desk.publish(house.standing(terms))


def test_invariant_4_nobody_is_told_before_the_choice_is_read_back(house: House) -> None:
    terms = house.open(campaign(capacity=1))
    house.begin(terms, 1)
    receipts = [house.check_in(terms, 1) for _ in range(3)]
    desk = desk_at(house, terms)
    assert [desk.outcome(1, receipt) for receipt in receipts] == ["waiting"] * 3
    house.choose(terms, 1)
    desk.moved(house.standing(terms))
    assert desk.needs_choice
    assert [desk.outcome(1, receipt) for receipt in receipts] == ["waiting"] * 3
    told(desk, house, terms)
    assert not desk.needs_choice
    assert sorted(desk.outcome(1, r) for r in receipts) == ["chosen", "dismissed", "dismissed"]
    assert desk.outcome(1, *house.chosen(terms)) == "chosen"


def test_a_receipt_is_worth_nothing_in_another_slot_or_once_its_slot_is_over(
    house: House,
) -> None:
    terms = house.open(campaign(capacity=1))
    house.begin(terms, 1)
    receipt = house.check_in(terms, 1)
    house.choose(terms, 1)
    desk = desk_at(house, terms)
    told(desk, house, terms)
    assert desk.outcome(2, receipt) is None
    assert desk.outcome(1, "somebody else's") is None
    house.begin(terms, 2)
    told(desk, house, terms)
    assert desk.outcome(1, receipt) is None
    house.check_in(terms, 2)
    house.choose(terms, 2)
    told(desk, house, terms)
    assert desk.outcome(2, receipt) is None


def test_an_old_choice_is_not_taken_for_the_new_one(house: House) -> None:
    terms = house.open(campaign(capacity=1))
    house.begin(terms, 1)
    house.check_in(terms, 1)
    house.choose(terms, 1)
    desk = desk_at(house, terms)
    told(desk, house, terms)
    house.begin(terms, 2)
    receipt = house.check_in(terms, 2)
    desk.moved(house.standing(terms))
    assert desk.outcome(2, receipt) == "waiting"
    house.choose(terms, 2)
    desk.moved(house.standing(terms))
    assert desk.needs_choice
    assert desk.outcome(2, receipt) == "waiting"


def test_invariant_8_receipts_that_were_given_out_are_forgotten_with_their_slot(
    house: House,
) -> None:
    terms = house.open(campaign())
    desk = desk_at(house, terms)
    desk.issued["receipt"] = 1
    house.begin(terms, 1)
    told(desk, house, terms)
    assert desk.issued
    house.close(terms, 1)
    told(desk, house, terms)
    assert desk.issued == {}


def test_early_is_before_the_slot_has_begun(house: House) -> None:
    terms = house.open(campaign(slots=2))
    desk = desk_at(house, terms)
    assert desk.is_early(1)
    house.begin(terms, 1)
    told(desk, house, terms)
    assert (desk.is_early(1), desk.is_early(2)) == (False, True)
    house.close(terms, 2)
    told(desk, house, terms)
    assert not desk.is_early(3)
    assert desk.status == "running"
    house.finish(terms)
    told(desk, house, terms)
    assert (desk.is_early(3), desk.is_over, desk.status) == (False, True, "completed")


def test_a_release_that_is_durable_is_not_shown_before_it_is_published(house: House) -> None:
    terms = house.open(campaign())
    desk = desk_at(house, terms)
    house.begin(terms, 1)
    desk.moved(house.standing(terms))
    assert (desk.status, desk.public.stage.closed) == ("running", 0)
    house.close(terms, 1)
    closed = house.standing(terms)
    desk.curve = [(1, {"loss": 1.0})]
    desk.moved(closed)
    assert (desk.standing.stage.closed, desk.public.stage.closed) == (1, 0)
    assert desk.shown_curve == []
    house.close(terms, 2)
    desk.moved(house.standing(terms))
    desk.publish(house.standing(terms))
    desk.publish(closed)  # late, and older than what is shown
    assert desk.public.stage.closed == 2
    assert desk.shown_curve == [(1, {"loss": 1.0})]


def test_everyone_who_waits_is_woken_by_a_change(house: House) -> None:
    terms = house.open(campaign())

    async def main() -> None:
        desk = desk_at(house, terms)
        waiters = [asyncio.create_task(desk.change(most_s=60)) for _ in range(100)]
        await asyncio.sleep(0)
        desk.wake()
        assert await asyncio.gather(*waiters) == [True] * 100
        assert await desk.change(most_s=0.001) is False

    asyncio.run(main())


def test_what_is_shown_is_made_once_until_something_changes(house: House) -> None:
    terms = house.open(campaign())
    desk = desk_at(house, terms)
    made = iter([b"one", b"two"])
    assert [desk.shown.get(lambda: next(made)) for _ in range(3)] == [b"one"] * 3
    desk.moved(house.standing(terms))
    assert desk.shown.get(lambda: next(made)) == b"two"


def test_invariant_10_what_is_spent_is_never_told_below_its_price(house: House) -> None:
    terms = house.open(campaign(slots=30))
    desk = desk_at(house, terms)
    assert desk.spent == {"epsilon": 0.0, "slots": 0}
    house.close(terms, 3)
    told(desk, house, terms)
    assert desk.spent == {"epsilon": desk.public.certificate["epsilon"], "slots": 30}
    price_marks(house.database, terms.id)
    desk.prices = progress.load_prices(house.database, terms.id)
    assert [slots for slots, _ in desk.prices] == list(marks(terms))
    epsilons = [epsilon for _, epsilon in desk.prices]
    assert epsilons == sorted(epsilons)
    spent = desk.spent
    assert spent is not None
    assert spent["slots"] >= 3
    verified = house.verified(terms)
    assert spent["epsilon"] >= verified.certificate.epsilon * (1 - 1e-12)
    ended = house.finish(terms)
    told(desk, house, terms)
    assert desk.spent == {"epsilon": ended.certificate["epsilon"], "slots": 30}
    assert epsilons[-1] == pytest.approx(ended.certificate["epsilon"])


def test_prices_of_a_second_run_hold_what_the_first_one_spent(house: House) -> None:
    again = campaign(slots=2, repeats=2)
    first = house.open(again)
    spent = house.finish(first).certificate["epsilon"]
    second = house.open(again)
    desk = desk_at(house, second)
    whole = desk.public.certificate["epsilon"]  # not priced yet: no more than all of it
    assert desk.spent == {"epsilon": whole, "slots": 2}
    assert whole > spent
    price_marks(house.database, second.id)
    prices = progress.load_prices(house.database, second.id)
    assert all(epsilon > spent for _, epsilon in prices)
    price_marks(house.database, first.id)  # is over: its certificate says it
    assert progress.load_prices(house.database, first.id) == []


@pytest.mark.parametrize("affordable", [1, 2, 19, 20, 21, 200, 1013])
def test_marks_end_with_the_last_slot_that_is_paid_for(house: House, affordable: int) -> None:
    terms = house.open(campaign(slots=affordable, population_id=f"{affordable}"))
    found = marks(terms)
    assert found[-1] == affordable
    assert found[0] >= 1
    assert len(found) == min(20, affordable)
