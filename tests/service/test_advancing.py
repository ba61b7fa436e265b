"""What the clock does to a run: begin, choose, close, finish; on every store."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from checkins.campaign import Spending
from checkins.ledger.entry import hashed as hash_of
from checkins.protocol.server import Ending, Phase
from checkins.protocol.slot import Phase as SlotPhase
from checkins.service import intake, randomness, slot_transitions
from checkins.service.store import records, tables
from tests.service.coordination import (
    AT_SERVER,
    AVERAGED,
    EVERYONE,
    SLIDING,
    START,
    House,
    campaign,
    total_of,
)

EVERY_KIND = [
    pytest.param({}, id="noise at the client"),
    pytest.param(AT_SERVER, id="noise at the server"),
    pytest.param(EVERYONE, id="everyone is used"),
    pytest.param(AVERAGED, id="averaged"),
    pytest.param(SLIDING, id="sliding"),
]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch):
    """The dummies and the noise of each slot, as they were drawn."""
    seen = {}
    draw = randomness.expiry

    def expiry(slot, sampler):
        event = seen[slot.number] = draw(slot, sampler)
        return event

    monkeypatch.setattr(randomness, "expiry", expiry)
    return seen


def test_nothing_happens_before_its_time(house: House) -> None:
    terms = house.open(campaign())
    first = START.timestamp()
    for early, due in ((0.001, first), (0.001, first + 4.0), (0.001, first + 10.0)):
        house.clock.now = due - early
        before = house.standing(terms).stage
        assert house.tick(terms).stage == before
        house.clock.now = due
        assert house.tick(terms).stage != before


def test_a_slot_begins_chooses_and_closes_in_this_order(house: House) -> None:
    terms = house.open(campaign())
    stages = [house.standing(terms).stage]
    house.clock.now = terms.begins(1)
    stages.append(house.tick(terms).stage)
    house.clock.now = terms.chooses(1)
    stages.append(house.tick(terms).stage)
    house.clock.now = terms.ends(1)
    stages.append(house.tick(terms).stage)
    assert [(stage.phase, stage.slot_phase, stage.closed) for stage in stages] == [
        (Phase.WAITING, None, 0),
        (Phase.OPEN, SlotPhase.COLLECTING, 0),
        (Phase.OPEN, SlotPhase.CHOOSING, 0),
        (Phase.OPEN, SlotPhase.COLLECTING, 1),  # slot 2 begins as slot 1 ends
    ]


def test_what_another_worker_has_done_is_not_done_again(house: House) -> None:
    terms = house.open(campaign())
    stale = house.standing(terms)
    house.close(terms, 1)
    found = slot_transitions.advance(house.database, terms, stale)
    assert found.stage == house.standing(terms).stage
    assert found.ledger == house.standing(terms).ledger
    assert len(house.lines(terms)) == 2


def test_invariant_4_the_choice_is_durable_before_anyone_is_told(house: House) -> None:
    terms = house.open(campaign())
    house.begin(terms, 1)
    receipts = {house.check_in(terms, 1) for _ in range(5)}
    assert slot_transitions.read_choice(house.database, terms.id) is None
    house.choose(terms, 1)
    choice = slot_transitions.read_choice(house.database, terms.id)
    assert choice is not None
    assert (choice.slot, choice.waiting, len(choice.chosen)) == (1, frozenset(receipts), 2)
    house.restart()
    assert slot_transitions.read_choice(house.database, terms.id) == choice
    house.run_until(terms, terms.ends(1) - 0.001)
    assert slot_transitions.read_choice(house.database, terms.id) == choice


def test_invariant_4_a_choice_that_was_not_committed_was_never_made(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms = house.open(campaign())
    house.begin(terms, 1)
    receipts = {house.check_in(terms, 1) for _ in range(5)}

    def crash(*_: object) -> None:
        raise RuntimeError("the power fails")

    with monkeypatch.context() as broken:
        broken.setattr(records, "save_stage", crash)
        with pytest.raises(RuntimeError):
            house.choose(terms, 1)
    assert slot_transitions.read_choice(house.database, terms.id) is None
    assert {row.chosen for row in house.rows(tables.check_ins)} == {None}
    house.choose(terms, 1)
    assert house.chosen(terms) < receipts


@pytest.mark.parametrize("step", ["append", "save_learner", "save_stage"])
def test_invariant_5_a_slot_closes_as_a_whole_or_not_at_all(
    house: House, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    terms = house.open(campaign())
    house.begin(terms, 1)
    house.check_in(terms, 1)
    house.choose(terms, 1)
    house.report(terms, 1, *house.chosen(terms))
    before = house.everything()
    done = getattr(records, step)

    def crash(*given: object, **named: object) -> None:
        done(*given, **named)
        raise RuntimeError("the power fails")

    with monkeypatch.context() as broken:
        broken.setattr(records, step, crash)
        with pytest.raises(RuntimeError):
            house.close(terms, 1)
    assert house.everything() == before
    house.restart()
    standing = house.close(terms, 1)
    assert standing.stage.closed == 1
    entry = house.entries(terms)[-1]
    assert entry["model_hash"] == hash_of(standing.learner.model)
    assert house.rows(tables.check_ins) == []


def test_invariant_6_a_lost_report_becomes_a_dummy(house: House, drawn) -> None:
    terms = house.open(campaign(capacity=3))
    house.begin(terms, 1)
    for _ in range(3):
        house.check_in(terms, 1)
    house.choose(terms, 1)
    first, second, _ = sorted(house.chosen(terms))
    house.report(terms, 1, first, 1000)
    house.report(terms, 1, second, 30)
    house.close(terms, 1)
    (dummy,) = drawn[1].dummies
    assert (total_of(house.entries(terms)[-1]) == 1030 + dummy.values).all()


def test_invariant_7_an_empty_slot_is_filled_with_dummies(house: House, drawn) -> None:
    terms = house.open(campaign(capacity=3))
    house.close(terms, 1)
    assert len(drawn[1].dummies) == 3
    total = sum(dummy.values.astype(np.int64) for dummy in drawn[1].dummies)
    assert (total_of(house.entries(terms)[-1]) == total).all()


def test_invariant_14_noise_at_the_server_is_one_draw_whoever_was_there(house, drawn) -> None:
    terms = house.open(campaign(**EVERYONE))
    for slot, clients in ((1, 0), (2, 1), (3, 5)):
        house.play(terms, slot, clients)
        assert drawn[slot].dummies == ()
        noise = drawn[slot].noise.values
        assert noise.dtype == np.int64
        assert (total_of(house.entries(terms)[-1]) == clients + noise).all()


def test_averaged_updates_skip_an_empty_slot_and_count_the_others(house: House) -> None:
    terms = house.open(campaign(**AVERAGED))
    start = house.standing(terms).learner.model
    house.play(terms, 1, 0)
    assert (house.standing(terms).learner.model == start).all()
    house.play(terms, 2, 3)
    moved = house.standing(terms).learner.model
    assert moved == pytest.approx(start - 0.5 * 1e-6)
    shown = [(entry.get("contributors"), entry.get("total")) for entry in house.entries(terms)[1:]]
    assert shown[0] == (0, None)
    assert shown[1][0] == 3
    assert house.standing(terms).stage.contributors == 3


def test_sliding_releases_nothing_while_it_warms_up(house: House) -> None:
    terms = house.open(campaign(**SLIDING))
    for slot in range(1, 6):
        house.play(terms, slot, 3)
    entries = house.entries(terms)[1:]
    assert [entry["total"] is None for entry in entries] == [True, True, False, False, False]
    assert entries[0]["model_hash"] == entries[1]["model_hash"] != entries[2]["model_hash"]


@pytest.mark.parametrize("given", EVERY_KIND)
def test_a_whole_run_verifies_and_costs_what_it_says(house: House, given) -> None:
    terms = house.open(campaign(**given))
    for slot in range(1, terms.rules.slots + 1):
        house.play(terms, slot, slot)
    standing = house.finish(terms)
    assert standing.stage.ending is Ending.COMPLETED
    verified = house.verified(terms, closed=True, head=standing.ledger.head)
    assert verified.within_budget
    assert verified.notes == ()
    assert verified.certificate.epsilon == pytest.approx(standing.certificate["epsilon"])
    assert not verified.simulated


def test_finishing_twice_changes_nothing(house: House) -> None:
    terms = house.open(campaign(slots=2))
    first = house.finish(terms)
    kept = house.everything()
    assert slot_transitions.finish(house.database, terms, first).stage == first.stage
    stale = house.standing(terms)
    slot_transitions.finish(house.database, terms, stale)
    slot_transitions.stop(house.database, terms, stale)
    assert house.everything() == kept


def test_a_run_is_not_finished_while_slots_are_left(house: House) -> None:
    terms = house.open(campaign())
    house.close(terms, 3)
    standing = slot_transitions.finish(house.database, terms, house.standing(terms))
    assert standing.stage.ending is None


def test_invariant_10_a_run_stops_before_the_release_that_its_budget_does_not_pay(
    house: House,
) -> None:
    terms = house.open(campaign(slots=6, epsilon=0.7))
    assert 0 < terms.affordable < 6
    standing = house.run_until(terms, terms.ends(6))
    assert (standing.stage.closed, standing.stage.phase) == (terms.affordable, Phase.DONE)
    assert len(house.lines(terms)) == 1 + terms.affordable
    standing = house.finish(terms)
    assert standing.stage.ending is Ending.STOPPED
    verified = house.verified(terms, closed=True)
    assert verified.within_budget
    assert standing.certificate["epsilon"] <= 0.7
    assert Spending(terms.campaign).epsilon_after(terms.affordable + 1) > 0.7


def test_a_run_that_is_stopped_early_is_priced_to_the_last_slot_it_could_have_paid_for(
    house: House,
) -> None:
    terms = house.open(campaign(slots=6))
    house.begin(terms, 3)
    receipt = house.check_in(terms, 3)
    standing = slot_transitions.stop(house.database, terms, house.standing(terms))
    assert standing.stage.phase is Phase.DONE
    assert receipt not in house.everything()
    ended = slot_transitions.finish(house.database, terms, standing)
    assert (ended.stage.ending, ended.stage.closed) == (Ending.STOPPED, 2)
    assert ended.certificate["epsilon"] == Spending(terms.campaign).after(6).epsilon
    assert house.verified(terms, closed=True).notes == ()


def test_a_late_restart_closes_every_missed_slot_with_dummies(house: House, drawn) -> None:
    terms = house.open(campaign(slots=5, capacity=2))
    house.play(terms, 1, 3)
    house.restart()
    standing = house.run_until(terms, terms.begins(5) + 1.0)
    assert (standing.stage.closed, standing.stage.slot_phase) == (4, SlotPhase.COLLECTING)
    assert [len(drawn[slot].dummies) for slot in (2, 3, 4)] == [2, 2, 2]
    house.check_in(terms, 5)


def test_a_late_restart_counts_what_was_durable_in_the_slot_in_progress(
    house: House, drawn
) -> None:
    terms = house.open(campaign(slots=5, capacity=3))
    house.begin(terms, 1)
    for _ in range(3):
        house.check_in(terms, 1)
    house.choose(terms, 1)
    one, two, _ = house.chosen(terms)
    house.report(terms, 1, one, 500)
    house.report(terms, 1, two, 7)
    house.restart()
    house.run_until(terms, terms.ends(3))
    assert [len(drawn[slot].dummies) for slot in (1, 2, 3)] == [1, 3, 3]
    assert (total_of(house.entries(terms)[1]) == 507 + drawn[1].dummies[0].values).all()


def test_a_restart_before_the_choice_chooses_among_those_who_wait(house: House) -> None:
    terms = house.open(campaign())
    house.begin(terms, 1)
    receipts = {house.check_in(terms, 1) for _ in range(6)}
    house.restart()
    standing = house.tick(terms)
    assert standing.stage.slot_phase is SlotPhase.COLLECTING
    house.clock.now = terms.ends(4)
    assert house.tick(terms).stage.slot_phase is SlotPhase.CHOOSING
    chosen = house.chosen(terms)
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
    assert second.begins(1) == first.ends(2)
    begun = house.standing(second).learner
    assert begun.slots == 0
    assert (begun.model == ended.learner.model).all()
    assert begun.velocity is not None
    assert (begun.velocity == ended.learner.velocity).all()
    for slot in (1, 2):
        house.play(second, slot, 2)
    house.finish(second)
    assert [run.number for run in house.verified(second, closed=True).ledger.runs] == [1, 2]


def test_a_gradient_in_the_making_does_not_cross_a_restart_or_a_run(house: House) -> None:
    terms = house.open(campaign(slots=3, optimizer='kind = "sgd", rate = 0.5, minibatch = 2'))
    start = house.standing(terms).learner.model
    house.play(terms, 1, 2)
    assert (house.standing(terms).learner.model == start).all()
    assert house.standing(terms).learner.gradient is not None
    house.restart()
    house.play(terms, 2, 2)
    assert (house.standing(terms).learner.model != start).any()
    house.play(terms, 3, 2)
    house.finish(terms)
    assert house.verified(terms, closed=True)


@pytest.mark.parametrize("given", [{}, AT_SERVER, EVERYONE, SLIDING])
def test_invariant_7_an_empty_slot_and_a_full_one_look_the_same(house: House, given) -> None:
    """Averaged updates are another matter: they divide by a count that shows."""
    terms = house.open(campaign(**given))
    slots = range(1, terms.rules.slots + 1)
    for slot in slots:
        house.play(terms, slot, 0 if slot % 2 else 9)
    lines = house.lines(terms)[1:]
    warm = terms.rules.warm_up
    for group in (lines[:warm], lines[warm:]):
        assert len({tuple(json.loads(line)) for line in group}) <= 1
        assert len({len(line) for line in group}) <= 1
    stages = {row.slot_phase for row in house.rows(tables.runs)}
    assert stages <= {None, "COLLECTING"}


def test_the_choice_is_uniform(tmp_path: Path) -> None:
    """Each of the 10 pairs of 5 receipts within what 600 draws make of 1/10.

    A fair choice fails with probability below 20 tails of 5e-12, which is 1e-10.
    """
    house = House(f"sqlite:///{tmp_path}/store.db", tmp_path)
    terms = house.open(campaign())
    house.begin(terms, 1)
    receipts = sorted(house.check_in(terms, 1) for _ in range(5))
    with house.database.reading() as connection:
        slot = slot_transitions._loaded(connection, terms, house.standing(terms).stage)
    house.database.close()
    found: Counter[frozenset[str]] = Counter()
    for _ in range(600):
        draws = randomness.choice(slot).draws
        left = list(receipts)
        found[frozenset(left.pop(draw) for draw in draws)] += 1
    assert len(found) == 10
    low, high = binom.ppf(5e-12, 600, 0.1), binom.isf(5e-12, 600, 0.1)
    assert all(low <= times <= high for times in found.values())


def test_invariant_13_the_servers_dice_are_the_operating_systems() -> None:
    """A seeded generator would be seen in what the module has."""
    import inspect

    source = inspect.getsource(randomness)
    assert "secrets." in source
    assert "random." not in source.replace("secrets.", "")
    drawn = set(randomness.receipts(1000)) | {randomness.token() for _ in range(1000)}
    assert len(drawn) == 2000
    assert min(map(len, drawn)) >= math.ceil(24 * 8 / 6)


def test_everyone_is_used_where_capacity_is_all(house: House) -> None:
    terms = house.open(campaign(**EVERYONE))
    house.begin(terms, 1)
    receipts = {house.check_in(terms, 1) for _ in range(7)}
    house.choose(terms, 1)
    assert house.chosen(terms) == receipts


def test_a_choice_of_more_than_a_statement_takes_is_recorded_whole(house: House) -> None:
    terms = house.open(campaign(capacity=700, epsilon=400.0))
    house.begin(terms, 1)
    tokens = [intake.hashed(str(number)) for number in range(900)]
    intake.take_enrolments(house.database, terms, [intake.Enrolment(token) for token in tokens])
    intake.take_check_ins(house.database, terms, [intake.CheckIn(1, token) for token in tokens])
    house.choose(terms, 1)
    assert len(house.chosen(terms)) == 700
    assert {row.chosen for row in house.rows(tables.check_ins)} == {True, False}
