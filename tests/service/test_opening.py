"""Opening a run: its ledger entry, the slots that its budget allows, who has the population."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from checkins.errors import InvalidValue
from checkins.protocol.server import Ending
from checkins.service import startup
from checkins.service.runs.opening import PopulationBusy
from checkins.service.store import schema
from tests.support.campaigns import SERVER_NOISE, START, campaign
from tests.support.in_process import settings
from tests.support.store import House


def test_a_run_is_named_by_its_seal_and_its_number(house: House) -> None:
    what = campaign()
    spec = house.open(what)
    assert spec.id == f"{what.seal.removeprefix('sha256:')[:12]}-1"
    (opened,) = house.entries(spec)
    assert opened["kind"] == "opened"
    assert opened["seal"] == what.seal
    assert opened["campaign"] == what.canonical()


def test_opening_what_is_open_finds_it(house: House) -> None:
    first = house.open(campaign())
    kept = house.everything()
    house.restart()
    assert house.open(campaign()).id == first.id
    house.begin(first, 2)  # also when its start has passed
    assert house.open(campaign()).id == first.id
    assert house.everything() != kept
    assert len(house.rows(schema.runs)) == 1


def test_opening_what_is_over_finds_it(house: House) -> None:
    first = house.open(campaign(slots=2))
    house.finish(first)
    assert house.open(campaign(slots=2)).id == first.id
    assert len(house.rows(schema.runs)) == 1


def test_a_start_that_has_passed_is_refused_and_leaves_nothing(house: House) -> None:
    house.clock.now = START.timestamp() + 0.001
    with pytest.raises(InvalidValue, match="has passed"):
        house.open(campaign())
    assert house.rows(schema.runs) == house.rows(schema.populations) == []


def test_invariant_9_a_changed_file_is_another_campaign(house: House) -> None:
    house.open(campaign())
    for changed in (
        campaign(capacity=3),
        campaign(epsilon=49.0),
        campaign(name="renamed"),
        campaign(start=START + timedelta(seconds=1)),
    ):
        with pytest.raises(PopulationBusy, match="is open on this population"):
            house.open(changed)
    assert len(house.rows(schema.runs)) == 1


def test_invariant_9_campaigns_on_one_population_come_one_after_another_and_compose(
    house: House,
) -> None:
    first = house.open(campaign(name="first", slots=3, epsilon=10.0))
    second = campaign(name="second", slots=3, epsilon=10.0, start=START + timedelta(hours=1))
    with pytest.raises(PopulationBusy):
        house.open(second)
    alone = house.finish(first).certificate["epsilon"]
    spec = house.open(second)
    assert spec.number == 1
    assert spec.population == first.population
    both = house.finish(spec).certificate["epsilon"]
    assert alone < both <= 2 * alone * 1.05
    verified = house.verified(spec, require_closed=True)
    filters = {run.filter for run in verified.ledger.runs}
    assert len(filters) == 1
    assert verified.rule == f"chosen after earlier releases: filter {filters.pop()}"
    assert [run.campaign.name for run in verified.ledger.runs] == ["first", "second"]
    assert verified.certificate.epsilon == pytest.approx(both)


def test_invariant_9_what_was_spent_before_is_gone_from_the_budget(house: House) -> None:
    first = house.open(campaign(name="first", slots=4, epsilon=10.0))
    spent = house.finish(first).certificate["epsilon"]
    tight = spent * 1.75
    second = campaign(name="second", slots=4, epsilon=tight, start=START + timedelta(hours=1))
    spec = house.open(second)
    assert 0 < spec.affordable < 4
    ended = house.finish(spec)
    assert (ended.state.ending, ended.state.closed) == (Ending.STOPPED, spec.affordable)
    assert ended.certificate["epsilon"] <= tight
    assert house.verified(spec, require_closed=True).within_budget
    third = replace(second, name="third")
    with pytest.raises(InvalidValue, match="allows no slot of this campaign, after its earlier"):
        house.open(replace(third, budget=replace(third.budget, epsilon=spent * 1.01)))


def test_other_populations_have_ledgers_of_their_own(house: House) -> None:
    first = house.open(campaign())
    other = house.open(campaign(population_id="other"))
    nobody = house.open(campaign(population_id=None))
    house.finish(first)
    house.finish(other)
    house.finish(nobody)
    assert len({spec.population for spec in (first, other, nobody)}) == 3
    for spec in (first, other, nobody):
        assert len(house.verified(spec, require_closed=True).ledger.runs) == 1


def test_what_does_not_fit_the_ledger_of_its_population_is_refused(house: House) -> None:
    house.finish(house.open(campaign(slots=1)))
    later = campaign(name="later", start=START + timedelta(hours=1))
    budget = replace(later.budget, delta=1e-7)
    with pytest.raises(InvalidValue, match="delta"):
        house.open(replace(later, budget=budget))
    assert len(house.rows(schema.runs)) == 1


def test_a_budget_that_allows_no_slot_is_refused(house: House) -> None:
    with pytest.raises(InvalidValue, match="allows no slot"):
        house.open(campaign(epsilon=0.01))
    assert house.rows(schema.populations) == []


def test_a_campaign_without_a_schedule_cannot_be_opened(house: House) -> None:
    with pytest.raises(InvalidValue, match=r"needs \[schedule\]"):
        house.open(replace(campaign(), schedule=None))


def test_invariant_11_what_no_theorem_covers_is_refused(house: House) -> None:
    """No device draws PrivUnit exactly or on a grid, so no real campaign may run with it."""
    private = campaign(randomizer='kind = "privunit"\nlocal_epsilon = 1.0', grid=None)
    with pytest.raises(InvalidValue, match="on a grid"):
        house.open(private)
    assert house.rows(schema.runs) == []


def test_every_repeat_is_opened_once_and_then_no_more(house: House) -> None:
    again = campaign(slots=1, repeats=3)
    ids = []
    for _ in range(3):
        spec = house.open(again)
        ids.append(spec.id)
        house.finish(spec)
    assert [run[-2:] for run in ids] == ["-1", "-2", "-3"]
    assert house.open(again).id == ids[-1]
    assert len(house.verified(spec, require_closed=True).ledger.runs) == 3


def test_a_late_repeat_is_opened_all_the_same_and_its_slots_are_dummies(house: House) -> None:
    again = campaign(slots=2, repeats=2)
    first = house.open(again)
    house.finish(first)
    house.clock.now += 1e6
    second = house.open(again)
    snapshot = house.finish(second)
    assert snapshot.state.ending is Ending.COMPLETED


def test_the_second_run_is_composed_with_the_first(house: House) -> None:
    again = campaign(slots=2, repeats=2, randomizer=SERVER_NOISE)
    first = house.open(again)
    promised = house.snapshot(first).certificate["epsilon"]
    house.finish(first)
    second = house.open(again)
    assert house.snapshot(second).certificate["epsilon"] > promised


def test_the_log_tells_of_a_campaign_that_a_coordinator_is_started_with(tmp_path: Path) -> None:
    store, log = f"sqlite:///{tmp_path}/store.db", tmp_path / "log"
    chosen = settings(store, tmp_path, log_file=log)
    spec = startup.prepare(chosen, campaign(), start=startup.Start())
    startup.prepare(chosen, campaign(), start=startup.Start())  # it is open already
    (line,) = [json.loads(line) for line in log.read_text().splitlines()]
    assert spec is not None
    assert (line["event"], line["campaign"]) == ("opened", spec.id)
