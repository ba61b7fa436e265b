"""What the clock does to a run: begin, choose, close, finish; on every store."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy.stats import binom

from checkins.campaign import Spending
from checkins.ledger.entry import hash_model as hash_of
from checkins.protocol.server import Ending, Phase
from checkins.protocol.slot import Phase as SlotPhase
from checkins.protocol.slot import Slot
from checkins.service.authentication import hashed, new_token
from checkins.service.runs import intake, slot_transitions
from checkins.service.store import ledgers, participants, past_sums, run_state, schema
from tests.support.campaigns import (
    AT_LEAST_THREE,
    AT_SERVER,
    AVERAGED,
    CORRELATED,
    EVERYONE,
    SLIDING,
    START,
    campaign,
)
from tests.support.store import House, total_of

EVERY_KIND = [
    pytest.param({}, id="noise at the client"),
    pytest.param(AT_SERVER, id="noise at the server"),
    pytest.param(EVERYONE, id="everyone is used"),
    pytest.param(AVERAGED, id="averaged"),
    pytest.param(AT_LEAST_THREE, id="averaged, at least three"),
    pytest.param(SLIDING, id="sliding"),
    pytest.param(CORRELATED, id="correlated noise"),
]


def test_nothing_happens_before_its_time(house: House) -> None:
    spec = house.open(campaign())
    first = START.timestamp()
    for early, due in ((0.001, first), (0.001, first + 4.0), (0.001, first + 10.0)):
        house.clock.now = due - early
        before = house.snapshot(spec).state
        assert house.tick(spec).state == before
        house.clock.now = due
        assert house.tick(spec).state != before


def test_a_slot_begins_chooses_and_closes_in_this_order(house: House) -> None:
    spec = house.open(campaign())
    stages = [house.snapshot(spec).state]
    house.clock.now = spec.run_schedule.begins(1)
    stages.append(house.tick(spec).state)
    house.clock.now = spec.run_schedule.chooses(1)
    stages.append(house.tick(spec).state)
    house.clock.now = spec.run_schedule.ends(1)
    stages.append(house.tick(spec).state)
    assert [(state.phase, state.slot_phase, state.closed) for state in stages] == [
        (Phase.WAITING, None, 0),
        (Phase.OPEN, SlotPhase.COLLECTING, 0),
        (Phase.OPEN, SlotPhase.CHOOSING, 0),
        (Phase.OPEN, SlotPhase.COLLECTING, 1),  # slot 2 begins as slot 1 ends
    ]


def test_what_another_worker_has_done_is_not_done_again(house: House) -> None:
    spec = house.open(campaign())
    stale = house.snapshot(spec)
    house.close(spec, 1)
    found = slot_transitions.advance(house.database, spec, stale)
    assert found.state == house.snapshot(spec).state
    assert found.ledger == house.snapshot(spec).ledger
    assert len(house.lines(spec)) == 2


def test_invariant_4_the_choice_is_durable_before_anyone_is_told(house: House) -> None:
    spec = house.open(campaign())
    house.begin(spec, 1)
    receipts = {house.check_in(spec, 1) for _ in range(5)}
    assert slot_transitions.read_choice(house.database, spec.id) is None
    house.choose(spec, 1)
    choice = slot_transitions.read_choice(house.database, spec.id)
    assert choice is not None
    assert (choice.slot, choice.waiting, len(choice.chosen)) == (1, frozenset(receipts), 2)
    house.restart()
    assert slot_transitions.read_choice(house.database, spec.id) == choice
    house.run_until(spec, spec.run_schedule.ends(1) - 0.001)
    assert slot_transitions.read_choice(house.database, spec.id) == choice


def test_invariant_4_a_choice_that_was_not_committed_was_never_made(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = house.open(campaign())
    house.begin(spec, 1)
    receipts = {house.check_in(spec, 1) for _ in range(5)}

    def crash(*_: object) -> None:
        raise RuntimeError("the power fails")

    with monkeypatch.context() as broken:
        broken.setattr(run_state, "save_state", crash)
        with pytest.raises(RuntimeError):
            house.choose(spec, 1)
    assert slot_transitions.read_choice(house.database, spec.id) is None
    assert {row.chosen for row in house.rows(schema.check_ins)} == {None}
    house.choose(spec, 1)
    assert house.chosen(spec) < receipts


@pytest.mark.parametrize(
    ("module", "step"),
    [
        (ledgers, "append"),
        (run_state, "save_learner"),
        (past_sums, "save_exact_sums"),
        (run_state, "save_state"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_invariant_5_a_slot_closes_as_a_whole_or_not_at_all(
    house: House, monkeypatch: pytest.MonkeyPatch, module: ModuleType, step: str
) -> None:
    spec = house.open(campaign(**(CORRELATED if module is past_sums else {})))
    house.begin(spec, 1)
    house.check_in(spec, 1)
    house.choose(spec, 1)
    house.report(spec, 1, *house.chosen(spec))
    before = house.everything()
    done = getattr(module, step)

    def crash(*given: object, **named: object) -> None:
        done(*given, **named)
        raise RuntimeError("the power fails")

    with monkeypatch.context() as broken:
        broken.setattr(module, step, crash)
        with pytest.raises(RuntimeError):
            house.close(spec, 1)
    assert house.everything() == before
    house.restart()
    snapshot = house.close(spec, 1)
    assert snapshot.state.closed == 1
    entry = house.entries(spec)[-1]
    assert entry["model_hash"] == hash_of(snapshot.learner.model)
    assert house.rows(schema.check_ins) == []


def test_invariant_6_a_lost_report_becomes_a_dummy(house: House, drawn) -> None:
    spec = house.open(campaign(capacity=3))
    house.begin(spec, 1)
    for _ in range(3):
        house.check_in(spec, 1)
    house.choose(spec, 1)
    first, second, _ = sorted(house.chosen(spec))
    house.report(spec, 1, first, 1000)
    house.report(spec, 1, second, 30)
    house.close(spec, 1)
    (dummy,) = drawn[1].dummies
    assert (total_of(house.entries(spec)[-1]) == 1030 + dummy.values).all()


def test_invariant_7_an_empty_slot_is_filled_with_dummies(house: House, drawn) -> None:
    spec = house.open(campaign(capacity=3))
    house.close(spec, 1)
    assert len(drawn[1].dummies) == 3
    total = sum(dummy.values.astype(np.int64) for dummy in drawn[1].dummies)
    assert (total_of(house.entries(spec)[-1]) == total).all()


def test_invariant_14_noise_at_the_server_is_one_draw_whoever_was_there(house, drawn) -> None:
    spec = house.open(campaign(**EVERYONE))
    for slot, clients in ((1, 0), (2, 1), (3, 5)):
        house.play(spec, slot, clients)
        assert drawn[slot].dummies == ()
        noise = drawn[slot].noise.values
        assert noise.dtype == np.int64
        assert (total_of(house.entries(spec)[-1]) == clients + noise).all()


def test_averaged_updates_skip_an_empty_slot_and_count_the_others(house: House) -> None:
    spec = house.open(campaign(**AVERAGED))
    start = house.snapshot(spec).learner.model
    house.play(spec, 1, 0)
    assert (house.snapshot(spec).learner.model == start).all()
    house.play(spec, 2, 3)
    moved = house.snapshot(spec).learner.model
    assert moved == pytest.approx(start - 0.5 * 1e-6)
    shown = [(entry.get("contributors"), entry.get("total")) for entry in house.entries(spec)[1:]]
    assert shown[0] == (0, None)
    assert shown[1][0] == 3
    assert house.snapshot(spec).state.contributors == 3


def test_invariant_15_a_slot_with_too_few_reports_moves_nothing(house: House) -> None:
    spec = house.open(campaign(**AT_LEAST_THREE))
    start = house.snapshot(spec).learner.model
    house.play(spec, 1, 2)
    assert (house.snapshot(spec).learner.model == start).all()
    house.play(spec, 2, 3)
    assert (house.snapshot(spec).learner.model != start).any()
    shown = [(entry["contributors"], entry["total"] is None) for entry in house.entries(spec)[1:]]
    assert shown == [(2, True), (3, False)]


def test_sliding_releases_nothing_while_it_warms_up(house: House) -> None:
    spec = house.open(campaign(**SLIDING))
    for slot in range(1, 6):
        house.play(spec, slot, 3)
    entries = house.entries(spec)[1:]
    assert [entry["total"] is None for entry in entries] == [True, True, False, False, False]
    assert entries[0]["model_hash"] == entries[1]["model_hash"] != entries[2]["model_hash"]


@pytest.mark.parametrize("given", EVERY_KIND)
def test_a_whole_run_verifies_and_costs_what_it_says(house: House, given) -> None:
    spec = house.open(campaign(**given))
    for slot in range(1, spec.rules.slots + 1):
        house.play(spec, slot, slot)
    snapshot = house.finish(spec)
    assert snapshot.state.ending is Ending.COMPLETED
    verified = house.verified(spec, require_closed=True, head=snapshot.ledger.head)
    assert verified.within_budget
    assert verified.notes == ()
    assert verified.certificate.epsilon == pytest.approx(snapshot.certificate["epsilon"])
    assert not verified.simulated


def test_finishing_twice_changes_nothing(house: House) -> None:
    spec = house.open(campaign(slots=2))
    first = house.finish(spec)
    kept = house.everything()
    assert slot_transitions.finish(house.database, spec, first).state == first.state
    stale = house.snapshot(spec)
    slot_transitions.finish(house.database, spec, stale)
    slot_transitions.stop(house.database, spec, stale)
    assert house.everything() == kept


def test_a_run_is_not_finished_while_slots_are_left(house: House) -> None:
    spec = house.open(campaign())
    house.close(spec, 3)
    snapshot = slot_transitions.finish(house.database, spec, house.snapshot(spec))
    assert snapshot.state.ending is None


def test_invariant_10_a_run_stops_before_the_release_that_its_budget_does_not_allow(
    house: House,
) -> None:
    spec = house.open(campaign(slots=6, epsilon=0.5))
    assert 0 < spec.affordable < 6
    snapshot = house.run_until(spec, spec.run_schedule.ends(6))
    assert (snapshot.state.closed, snapshot.state.phase) == (spec.affordable, Phase.DONE)
    assert len(house.lines(spec)) == 1 + spec.affordable
    snapshot = house.finish(spec)
    assert snapshot.state.ending is Ending.STOPPED
    verified = house.verified(spec, require_closed=True)
    assert verified.within_budget
    assert snapshot.certificate["epsilon"] <= 0.5
    assert Spending(spec.campaign).epsilon_after(spec.affordable + 1) > 0.5


def test_a_run_that_is_stopped_early_is_charged_to_the_last_slot_that_its_budget_allows(
    house: House,
) -> None:
    spec = house.open(campaign(slots=6))
    house.begin(spec, 3)
    receipt = house.check_in(spec, 3)
    snapshot = slot_transitions.stop(house.database, spec, house.snapshot(spec))
    assert snapshot.state.phase is Phase.DONE
    assert receipt not in house.everything()
    ended = slot_transitions.finish(house.database, spec, snapshot)
    assert (ended.state.ending, ended.state.closed) == (Ending.STOPPED, 2)
    assert ended.certificate["epsilon"] == Spending(spec.campaign).after(6).epsilon
    assert house.verified(spec, require_closed=True).notes == ()


def test_a_late_restart_closes_every_missed_slot_with_dummies(house: House, drawn) -> None:
    spec = house.open(campaign(slots=5, capacity=2))
    house.play(spec, 1, 3)
    house.restart()
    snapshot = house.run_until(spec, spec.run_schedule.begins(5) + 1.0)
    assert (snapshot.state.closed, snapshot.state.slot_phase) == (4, SlotPhase.COLLECTING)
    assert [len(drawn[slot].dummies) for slot in (2, 3, 4)] == [2, 2, 2]
    house.check_in(spec, 5)


def test_a_late_restart_counts_what_was_durable_in_the_slot_in_progress(
    house: House, drawn
) -> None:
    spec = house.open(campaign(slots=5, capacity=3))
    house.begin(spec, 1)
    for _ in range(3):
        house.check_in(spec, 1)
    house.choose(spec, 1)
    one, two, _ = house.chosen(spec)
    house.report(spec, 1, one, 500)
    house.report(spec, 1, two, 7)
    house.restart()
    house.run_until(spec, spec.run_schedule.ends(3))
    assert [len(drawn[slot].dummies) for slot in (1, 2, 3)] == [1, 3, 3]
    assert (total_of(house.entries(spec)[1]) == 507 + drawn[1].dummies[0].values).all()


def test_a_restart_before_the_choice_chooses_among_those_who_wait(house: House) -> None:
    spec = house.open(campaign())
    house.begin(spec, 1)
    receipts = {house.check_in(spec, 1) for _ in range(6)}
    house.restart()
    snapshot = house.tick(spec)
    assert snapshot.state.slot_phase is SlotPhase.COLLECTING
    house.clock.now = spec.run_schedule.ends(4)
    assert house.tick(spec).state.slot_phase is SlotPhase.CHOOSING
    chosen = house.chosen(spec)
    assert len(chosen) == 2
    assert chosen < receipts


def test_repeats_go_on_with_model_and_velocity(house: House) -> None:
    again = campaign(
        slots=2, repeats=3, optimizer='kind = "sgd", rate = 0.5, momentum = 0.9', epsilon=90.0
    )
    first = house.open(again)
    for slot in (1, 2):
        house.play(first, slot, 2)
    ended = house.finish(first)
    second = house.open(again)
    assert (second.number, second.id) == (2, first.id[:-1] + "2")
    assert second.run_schedule.begins(1) == first.run_schedule.ends(2)
    begun = house.snapshot(second).learner
    assert begun.slots == 0
    assert (begun.model == ended.learner.model).all()
    assert begun.velocity is not None
    assert (begun.velocity == ended.learner.velocity).all()
    for slot in (1, 2):
        house.play(second, slot, 2)
    house.finish(second)
    assert [run.number for run in house.verified(second, require_closed=True).ledger.runs] == [1, 2]


def test_a_gradient_in_the_making_does_not_cross_a_restart_or_a_run(house: House) -> None:
    spec = house.open(campaign(slots=3, optimizer='kind = "sgd", rate = 0.5, minibatch = 2'))
    start = house.snapshot(spec).learner.model
    house.play(spec, 1, 2)
    assert (house.snapshot(spec).learner.model == start).all()
    assert house.snapshot(spec).learner.gradient is not None
    house.restart()
    house.play(spec, 2, 2)
    assert (house.snapshot(spec).learner.model != start).any()
    house.play(spec, 3, 2)
    house.finish(spec)
    assert house.verified(spec, require_closed=True)


@pytest.mark.parametrize("given", [{}, AT_SERVER, EVERYONE, SLIDING, CORRELATED])
def test_invariant_7_an_empty_slot_and_a_full_one_look_the_same(house: House, given) -> None:
    """Averaged updates are another matter: they divide by a count that shows."""
    spec = house.open(campaign(**given))
    slots = range(1, spec.rules.slots + 1)
    for slot in slots:
        house.play(spec, slot, 0 if slot % 2 else 9)
    lines = house.lines(spec)[1:]
    warm = spec.rules.warm_up
    for group in (lines[:warm], lines[warm:]):
        assert len({tuple(json.loads(line)) for line in group}) <= 1
        assert len({len(line) for line in group}) <= 1
    stages = {row.slot_phase for row in house.rows(schema.runs)}
    assert stages <= {None, "COLLECTING"}


def test_the_choice_is_uniform(tmp_path: Path) -> None:
    """Each of the 10 pairs of 5 receipts within what 600 draws make of 1/10.

    A fair choice fails with probability below 20 tails of 5e-12, which is 1e-10.
    """
    house = House(f"sqlite:///{tmp_path}/store.db", tmp_path)
    spec = house.open(campaign())
    house.begin(spec, 1)
    receipts = sorted(house.check_in(spec, 1) for _ in range(5))
    waiting = house.database.read(participants.receipts_by_token, spec.id)
    slot = Slot(1, spec.rules, SlotPhase.COLLECTING, waiting)
    house.database.close()
    found: Counter[frozenset[str]] = Counter()
    for _ in range(600):
        draws = slot_transitions.draw_choice(slot).draws
        left = list(receipts)
        found[frozenset(left.pop(draw) for draw in draws)] += 1
    assert len(found) == 10
    low, high = binom.ppf(5e-12, 600, 0.1), binom.isf(5e-12, 600, 0.1)
    assert all(low <= times <= high for times in found.values())


def test_invariant_13_the_servers_dice_are_the_operating_systems() -> None:
    """A seeded generator would be seen in what the modules have."""
    import inspect

    source = inspect.getsource(slot_transitions) + inspect.getsource(intake)
    assert "secrets." in source
    assert "random." not in source.replace("secrets.", "")
    drawn = set(intake.draw_receipts(1000)) | {new_token() for _ in range(1000)}
    assert len(drawn) == 2000
    assert min(map(len, drawn)) >= math.ceil(24 * 8 / 6)


def test_everyone_is_used_where_capacity_is_all(house: House) -> None:
    spec = house.open(campaign(**EVERYONE))
    house.begin(spec, 1)
    receipts = {house.check_in(spec, 1) for _ in range(7)}
    house.choose(spec, 1)
    assert house.chosen(spec) == receipts


def test_a_choice_of_more_than_a_statement_takes_is_recorded_whole(house: House) -> None:
    spec = house.open(campaign(capacity=700, epsilon=400.0))
    house.begin(spec, 1)
    tokens = [hashed(str(number)) for number in range(900)]
    intake.take_enrolments(
        house.database, spec, [intake.EnrolmentRequest(token) for token in tokens]
    )
    intake.take_check_ins(house.database, spec, [intake.CheckIn(1, token) for token in tokens])
    house.choose(spec, 1)
    assert len(house.chosen(spec)) == 700
    assert {row.chosen for row in house.rows(schema.check_ins)} == {True, False}
