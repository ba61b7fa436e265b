"""Load shedding: a coordinator accepts no more check-ins than it can serve, as far as it measured.

The clock is the test's. It moves while the store commits, so the store is as slow as a test says.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checkins.campaign import Campaign
from checkins.service.runs.load_shedding import SavingTimes, SlotLoad
from checkins.service.store import schema
from tests.support.campaigns import EVERYONE, SLIDING, campaign
from tests.support.in_process import Living, Scenario, play, problem
from tests.support.store import House
from tests.support.waiting import PATIENCE_S, until

SLOT_S, CHOOSE_S = 10.0, 6.0
SLOW: dict[str, Any] = {**EVERYONE, "slots": 4, "slot_s": SLOT_S, "choose_s": CHOOSE_S}


@pytest.fixture
def load(migrated_file: Path, tmp_path: Path):
    """The load of a run in which all check-ins are chosen, and the house of its store."""
    house = House(f"sqlite:///{tmp_path}/store.db", tmp_path)
    yield load_of(house, campaign(**SLOW))
    house.database.close()


def load_of(house: House, of: Campaign) -> SlotLoad:
    spec = house.open(of)
    return SlotLoad(spec.rules, spec.run_schedule)


def test_times_are_fitted_by_a_line() -> None:
    times = SavingTimes()
    assert (times.fixed_s, times.message_s, times.seconds_for(10)) == (0.0, 0.0, 0.0)
    for size in (5, 80, 20, 1, 100):
        times.record(size, 0.25 + 0.01 * size)
    assert times.message_s == pytest.approx(0.01)
    assert times.fixed_s == pytest.approx(0.25)
    assert times.seconds_for(250) == pytest.approx(0.25 + 250 * 0.01)


def test_short_periods_of_varying_length_are_no_evidence_against_long_ones() -> None:
    times, dice = SavingTimes(), random.Random(1)
    for _ in range(200):
        times.record(dice.choice((1, 2)), dice.uniform(0.0, 0.01))
        assert times.seconds_for(500) < 500 * 0.005  # a mean of 5 ms a message would say this


def test_later_measurements_count_more() -> None:
    times = SavingTimes()
    for _ in range(100):
        times.record(1, 20.0)  # the disk has failed for a while
    for _ in range(200):
        times.record(1, 0.01)
    assert times.seconds_for(1) < 0.02


def test_enrolments_go_on_after_a_store_that_stood_still(load) -> None:
    load.enrolments.record(3, 600.0)
    waiting = 0
    for _ in range(8):
        while waiting < 100 and load.accepts_enrolment(waiting=waiting):
            waiting += 1
        load.enrolments.record(waiting, 0.01 * waiting)
        waiting = 0
    assert load.accepts_enrolment(waiting=100)


def check_ins_until_full(load: SlotLoad, slot: int, *, now: float) -> int:
    """Return how many check-ins are accepted if each is durable at once."""
    accepted = 0
    while load.accepts_check_in(slot, accepted=accepted, waiting=0, now=now) and accepted < 10_000:
        accepted += 1
    return accepted


def test_as_many_check_ins_are_accepted_as_reports_fit_into_the_rest_of_the_slot(load) -> None:
    begins = load.run_schedule.begins(1)
    assert check_ins_until_full(load, 1, now=begins) == 10_000  # nothing is measured yet
    for size in (1, 10, 100):
        load.check_ins.record(size, 0.1 * size)
    assert check_ins_until_full(load, 1, now=begins) in (39, 40)  # 4 s are left for reports
    for size in (1, 10, 100):
        load.reports.record(size, 0.2 * size)
    assert check_ins_until_full(load, 1, now=begins) in (19, 20)


def test_a_check_in_that_could_not_be_durable_before_the_choice_is_refused(load) -> None:
    chooses = load.run_schedule.chooses(1)
    load.check_ins.record(1, 0.5)
    assert load.accepts_check_in(1, accepted=1, waiting=1, now=chooses - 0.6)
    assert not load.accepts_check_in(1, accepted=1, waiting=1, now=chooses - 0.4)


def test_the_first_check_in_of_a_slot_is_accepted_whatever_was_measured(load) -> None:
    load.check_ins.record(1, 1000.0)
    load.enrolments.record(1, 1000.0)
    begins = load.run_schedule.begins(1)
    assert load.accepts_check_in(1, accepted=0, waiting=0, now=begins)
    assert not load.accepts_check_in(1, accepted=1, waiting=0, now=begins)
    assert load.accepts_enrolment(waiting=0)
    assert not load.accepts_enrolment(waiting=1)


def test_enrolments_may_take_as_long_as_a_slot_gives_to_reports(load) -> None:
    for size in (1, 10, 100):
        load.enrolments.record(size, 0.1 * size)
    assert load.accepts_enrolment(waiting=38)
    assert not load.accepts_enrolment(waiting=40)


def play_reports(load: SlotLoad, slot: int, delays_s: list[float]) -> None:
    """Let devices report so many seconds after the choice, and close the slot."""
    chosen_at = load.run_schedule.chooses(slot)
    load.choice_was_read(slot, expected=len(delays_s))
    for receipt, delay_s in enumerate(sorted(delays_s)):
        load.report_arrived(slot, str(receipt), now=chosen_at + delay_s)
        load.report_was_saved(slot, str(receipt), now=chosen_at + delay_s)
    load.slot_was_closed(slot)


def test_the_time_of_devices_is_left_to_them_and_stragglers_do_not_count(load) -> None:
    for size in (1, 10, 100):
        load.check_ins.record(size, 0.1 * size)
    play_reports(load, 1, [2.0, 2.0, 2.3, 3.9, 3.9])
    assert load.device_s == pytest.approx(2.0)  # 0.3 s of the third are those of three reports
    assert check_ins_until_full(load, 2, now=load.run_schedule.begins(2)) in (19, 20)
    play_reports(load, 2, [0.1])
    assert load.device_s == pytest.approx(1.5)
    play_reports(load, 3, [])
    assert 1.0 < load.device_s < 1.5


def test_reports_that_were_left_at_the_end_of_a_slot_limit_the_next(load) -> None:
    for size in (1, 10, 100):
        load.check_ins.record(size, 0.01 * size)
    load.choice_was_read(1, expected=500)
    for receipt in range(200):
        load.report_arrived(1, str(receipt), now=load.run_schedule.chooses(1))
    for receipt in range(80):
        load.report_was_saved(1, str(receipt), now=load.run_schedule.ends(1))
    load.slot_was_closed(1)
    assert check_ins_until_full(load, 2, now=load.run_schedule.begins(2)) in (79, 80)


def test_a_report_that_is_sent_again_counts_once(load) -> None:
    load.choice_was_read(1, expected=9)
    now = load.run_schedule.chooses(1) + 2.0
    for _ in range(20):
        load.report_arrived(1, "receipt", now=now)
        load.report_was_saved(1, "receipt", now=now)
    load.slot_was_closed(1)
    assert load.device_s == 0.0  # one report of nine is no median


def test_a_report_of_the_last_moment_is_no_sign_of_overload(load) -> None:
    load.choice_was_read(1, expected=9)
    load.report_arrived(1, "receipt", now=load.run_schedule.ends(1) - 0.01)
    load.slot_was_closed(1)
    assert load.device_s == 0.0


def test_reports_of_which_none_was_saved_are_all_left(load) -> None:
    load.choice_was_read(1, expected=9)
    load.report_arrived(1, "receipt", now=load.run_schedule.chooses(1))
    load.slot_was_closed(1)  # although nothing was measured yet
    assert load.device_s == pytest.approx(0.9 * (SLOT_S - CHOOSE_S))


def test_slow_clients_that_come_first_do_not_keep_out_all_others(load) -> None:
    for size in (1, 10, 100):
        load.check_ins.record(size, 0.001 * size)
    for slot in (1, 2, 3):
        play_reports(load, slot, [SLOT_S - CHOOSE_S])
    room = check_ins_until_full(load, 4, now=load.run_schedule.begins(4))
    assert room > 0.09 * (SLOT_S - CHOOSE_S) / 0.001


def test_a_store_that_stood_still_once_does_not_limit_slots_for_long(load) -> None:
    begins = load.run_schedule.begins
    for times in (load.check_ins, load.reports):
        times.record(3, 600.0)
    room = []
    for slot in range(1, 9):
        room.append(min(100, check_ins_until_full(load, slot, now=begins(slot))))
        for times in (load.check_ins, load.reports):
            times.record(1, 0.01)
        play_reports(load, slot, [0.1] * room[-1])
    assert room == [1, 2, 4, 8, 16, 32, 64, 100]


def test_a_slow_store_does_not_get_more_than_it_can_save(load) -> None:
    for size in (1, 10, 100):
        load.check_ins.record(size, 0.1 * size)
    begins = load.run_schedule.begins
    for slot in (1, 2, 3, 4):
        assert check_ins_until_full(load, slot, now=begins(slot)) == 40
        play_reports(load, slot, [0.1 * number for number in range(1, 41)])


def test_check_ins_that_send_no_report_are_not_limited(migrated_file: Path, tmp_path: Path) -> None:
    house = House(f"sqlite:///{tmp_path}/store.db", tmp_path)
    warming_up = campaign(**{**SLIDING, **SLOW}, population_id="a")
    dismissing = campaign(slots=4, capacity=3, population_id="b")
    sliding, few = (load_of(house, each) for each in (warming_up, dismissing))
    house.database.close()
    for each in (sliding, few):
        for size in (1, 10, 100):
            each.reports.record(size, 0.5 * size)
    warm_up, released = (sliding.run_schedule.begins(slot) for slot in (1, 3))
    assert check_ins_until_full(sliding, 1, now=warm_up) == 10_000
    assert check_ins_until_full(sliding, 3, now=released) < 10
    assert check_ins_until_full(few, 1, now=few.run_schedule.begins(1)) == 10_000


@pytest.fixture
def here(tmp_path: Path) -> Callable[[Scenario], None]:
    def run(scenario: Scenario) -> None:
        play(f"sqlite:///{tmp_path}/store.db", tmp_path, scenario)

    return run


def slow_down(it: Living, message_s: float) -> None:
    """Let the clock move by so many seconds for each message that is saved.

    The times of some commits are known already, because the sizes of the next ones may be equal.
    """

    def wait() -> None:
        committing = sum(len(each.committing) for each in it.live_run.group_commits)
        it.clock.sleep(message_s * committing)

    it.faults["shared"] = wait
    load = it.live_run.load
    for times in (load.enrolments, load.check_ins, load.reports):
        for size in (1, 10, 100):
            times.record(size, message_s * size)


def test_whoever_is_accepted_by_a_slow_coordinator_is_in_time(here) -> None:
    async def scenario(it: Living) -> None:
        await it.open(**SLOW)
        tokens = [await it.enrol() for _ in range(20)]
        await it.begin(1)
        slow_down(it, 0.45)
        asked = (it.ask("POST", "/slots/1/check-ins", token) for token in tokens)
        answers = await asyncio.gather(*asked)
        accepted = [answer.json()["receipt"] for answer in answers if answer.status_code == 202]
        refused = [answer for answer in answers if answer.status_code != 202]
        assert len(accepted) in (7, 8)  # there are 4 s for reports
        assert len(accepted) + len(refused) == 20
        for answer in refused:
            assert problem(answer) == (503, "busy")
            assert 1 <= int(answer.headers["retry-after"]) <= SLOT_S
        with it.runner.database.read_transaction() as connection:
            unspent = connection.execute(schema.tokens.select()).all()
        assert len(unspent) == len(refused)  # whoever was refused has used nothing up
        first = next(at for at, answer in enumerate(answers) if answer.status_code == 202)
        again = await it.ask("POST", "/slots/1/check-ins", tokens[first])
        assert (again.status_code, again.json()["receipt"]) == (202, accepted[0])  # also when full
        stranger = await it.ask("POST", "/slots/1/check-ins", "a" * 43)
        assert problem(stranger) == (409, "refused")  # as in a slot that has room
        await it.choose(1)
        reported = await asyncio.gather(*(it.report(1, receipt) for receipt in accepted))
        assert {answer.status_code for answer in reported} == {200}
        assert it.clock.now <= it.live_run.spec.run_schedule.ends(1)

    here(scenario)


def test_a_report_that_is_refused_does_not_keep_out_the_clients_of_later_slots(here) -> None:
    async def scenario(it: Living) -> None:
        await it.open(**SLOW)
        slow_down(it, 0.001)
        await it.begin(1)
        receipts = [await it.check_in(1) for _ in range(3)]
        await it.choose(1)
        assert problem(await it.report(1, receipts[0], 2**30)) == (409, "refused")
        for receipt in receipts[1:]:
            assert (await it.report(1, receipt)).status_code == 200
        await it.show(1)
        load = it.live_run.load
        assert check_ins_until_full(load, 2, now=load.run_schedule.begins(2)) > 1000

    here(scenario)


def test_enrolments_that_would_delay_a_slot_are_refused_before_a_token_exists(here) -> None:
    async def scenario(it: Living) -> None:
        await it.open(**SLOW)
        slow_down(it, 0.49)
        commits = threading.Event()
        it.faults["shared"] = lambda: commits.wait(PATIENCE_S)
        tasks = [asyncio.create_task(it.ask("POST", "/enrolments")) for _ in range(20)]
        await until(lambda: sum(task.done() for task in tasks) >= 12)
        refused = [task.result() for task in tasks if task.done()]
        assert {problem(answer) for answer in refused} == {(503, "busy")}
        assert {answer.headers["retry-after"] for answer in refused} == {f"{SLOT_S:.0f}"}
        commits.set()
        answers = await asyncio.gather(*tasks)
        assert sum(answer.status_code == 201 for answer in answers) in (7, 8)
        with it.runner.database.read_transaction() as connection:
            unspent = connection.execute(schema.tokens.select()).all()
        assert len(unspent) == sum(answer.status_code == 201 for answer in answers)

    here(scenario)


def test_a_process_remembers_nothing_of_the_devices_of_earlier_slots(here) -> None:
    async def scenario(it: Living) -> None:
        await it.open(**{**SLOW, "slots": 3})
        for slot in (1, 2, 3):
            tokens = [await it.enrol(**{"idempotency-key": f"{slot}-{n:020}"}) for n in range(6)]
            await it.begin(slot)
            asked = (it.ask("POST", f"/slots/{slot}/check-ins?wait=0", token) for token in tokens)
            receipts = [answer.json()["receipt"] for answer in await asyncio.gather(*asked)]
            await it.choose(slot)
            for receipt in receipts:
                path = f"/check-ins/{receipt}?model=true"
                assert (await it.ask("GET", path)).json()["outcome"] == "chosen"
            reported = await asyncio.gather(*(it.report(slot, receipt) for receipt in receipts))
            assert {answer.status_code for answer in reported} == {200}
            await it.show(slot)
            live_run = it.live_run
            assert live_run.slots_of_receipts == {}
            assert live_run._report_locks == {}
            assert [each.waiting for each in live_run.group_commits] == [0, 0, 0, 0]
            assert len(live_run.cached_models) <= 1
            assert len(live_run.cached_outcomes) <= 3

    here(scenario)
