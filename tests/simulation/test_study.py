"""A study: which clients there are, what is run, and what is said when only part of it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from checkins.campaign import Campaign, PartialRun, Spending, certify_runs
from checkins.errors import InvalidValue
from checkins.simulation.baselines import Baseline
from checkins.simulation.engine.outcome import Outcome
from checkins.simulation.population import Diurnal
from checkins.simulation.study import (
    FIXED_BEFOREHAND,
    BackgroundAccounting,
    PreparedStudy,
    ScenarioOptions,
    Study,
)
from tests.simulation import tiny

AVERAGED = tiny.text(
    protocol=tiny.PROTOCOL.replace("fixed", "averaged").replace("capacity = 12\n", "repeats = 3\n"),
    adjacency="replace-one",
).replace('"replace-one"\n', '"replace-one"\npopulation = [50, 70]\n')

Prepare = Callable[..., PreparedStudy]


def promised(low: int, high: int) -> Campaign:
    text = tiny.text().replace('"add-remove"\n', f'"add-remove"\npopulation = [{low}, {high}]\n')
    return tiny.campaign(text)


@pytest.fixture
def prepare(tmp_path: Path) -> Iterator[Prepare]:
    tiny.write(tmp_path)
    begun: list[PreparedStudy] = []

    def prepared(*campaigns: Campaign, **options: Any) -> PreparedStudy:
        settings = [{"n": number} for number in range(len(campaigns))] if campaigns[1:] else [{}]
        study = Study(
            tuple(zip(settings, campaigns, strict=True)), str(tmp_path), evaluations=3, **options
        )
        for campaign in campaigns:
            study.check(campaign)
        begun.append(study.prepare())
        return begun[-1]

    yield prepared
    for one in begun:
        one.close()


def partly(prepared: PreparedStudy, *slots: int | None) -> list[Outcome | None]:
    """Outcomes of jobs that were stopped once so many slots were over; None: never begun."""
    return [
        None if most is None else job.run(on_progress=lambda done, _, most=most: done < most)
        for job, most in zip(prepared.jobs, slots, strict=True)
    ]


@pytest.mark.parametrize(
    ("campaign", "options", "clients"),
    [
        (tiny.campaign(), ScenarioOptions(), 60),
        (tiny.campaign(), ScenarioOptions(7), 7),
        (tiny.campaign(), ScenarioOptions(60), 60),
        (tiny.campaign(), ScenarioOptions(10**8, reuse_clients=True), 10**8),
        (promised(50, 70), ScenarioOptions(), 60),
        (promised(50, 70), ScenarioOptions(reuse_clients=True), 60),
        (promised(50, 70), ScenarioOptions(51), 51),
        (promised(100, 200), ScenarioOptions(reuse_clients=True), 100),
        (promised(10, 20), ScenarioOptions(reuse_clients=True), 20),
        (promised(100, 200), ScenarioOptions(150, reuse_clients=True), 150),
    ],
)
def test_there_are_as_many_clients_as_said_or_as_in_the_data(
    campaign: Campaign, options: ScenarioOptions, clients: int
) -> None:
    assert options.scenario(campaign, 60).clients == clients


@pytest.mark.parametrize(
    ("campaign", "options", "said"),
    [
        (
            tiny.campaign(),
            ScenarioOptions(61),
            "clients = 61: the data has 60: use --reuse-clients",
        ),
        (promised(100, 200), ScenarioOptions(), "the data has 60 clients.*--reuse-clients"),
        (promised(10, 20), ScenarioOptions(), "the data has 60 clients.*--reuse-clients"),
        (
            promised(100, 200),
            ScenarioOptions(50),
            "clients = 50: the file's population is 100 to 200",
        ),
        (promised(100, 200), ScenarioOptions(150), "the data has 60: use --reuse-clients"),
    ],
)
def test_a_population_that_data_or_file_contradict_is_refused(
    campaign: Campaign, options: ScenarioOptions, said: str
) -> None:
    with pytest.raises(InvalidValue, match=said):
        options.scenario(campaign, 60)


@pytest.mark.parametrize(
    ("options", "name"),
    [({"dropout": float("nan")}, "dropout"), ({"dropout": 1.1}, "dropout")]
    + [({"clients": count}, "clients") for count in (0, -1, True, 10**30)],
)
def test_invalid_scenario_options_are_refused(options: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        ScenarioOptions(**options)
    assert caught.value.name == name


def test_the_scenario_options_reach_every_job(prepare: Prepare) -> None:
    options = ScenarioOptions(50, availability=Diurnal(3, 0.5), dropout=0.25)
    prepared = prepare(
        tiny.campaign(), scenario_options=options, seeds=(4, 5), baselines=(Baseline.NON_PRIVATE,)
    )
    assert {str(job.scenario) for job in prepared.jobs} == {
        str(options.scenario(tiny.campaign(), 60))
    }
    assert [job.seed for job in prepared.jobs] == [4, 5, 4, 5]
    assert prepared.labels == [
        "campaign, seed 4",
        "campaign, seed 5",
        "non-private, seed 4",
        "non-private, seed 5",
    ]


def test_epsilon_so_far_is_the_campaigns_and_never_too_low(prepare: Prepare) -> None:
    campaign = tiny.campaign()
    prepared = prepare(campaign, baselines=(Baseline.NON_PRIVATE,))
    curve = prepared.campaigns[0].accounting.curve()  # by now all of it is known
    assert [slots for slots, _ in curve] == [1, 2, 3, 4, 5, 6]
    for slots in range(1, 7):
        so_far = prepared.epsilon_so_far(0, slots)
        assert so_far is not None
        assert so_far >= Spending(campaign).after(slots).epsilon * (1 - 1e-12)
        assert prepared.epsilon_so_far(1, slots) is None


def test_the_certificate_of_a_stopped_campaign_covers_its_slots(prepare: Prepare) -> None:
    campaign = tiny.campaign()
    prepared = prepare(campaign, seeds=(1, 2))
    found = prepared.result(partly(prepared, 2, 4)).as_json()
    assert found is not None
    assert found["complete"] is False
    assert [one["slots_done"] for one in found["seeds"]] == [2, 4]
    certificate = found["certificate"]
    assert certificate["epsilon"] == Spending(campaign).after(4).epsilon  # that of the longer one
    assert certificate["epsilon"] < certify_runs([PartialRun.whole(campaign)]).epsilon
    assert all(slots <= 4 for slots in found["spent"]["slots"])
    assert found["dummies_expected"] < 6 * 12
    json.dumps(found, allow_nan=False)


def test_the_occupancy_of_the_second_seed_alone_is_its_own(prepare: Prepare) -> None:
    prepared = prepare(tiny.campaign(), seeds=(1, 2))
    alone = prepared.result(partly(prepared, None, 6))
    assert alone is not None
    assert (alone.complete, len(alone.seeds), alone.seeds[0].seed) == (False, 1, 2)
    bins = alone.occupancy
    assert bins.width == 1
    counted = sum(n * share for n, share in zip(bins.edges, bins.measured, strict=True))
    assert counted * 6 == pytest.approx(alone.check_ins)


def test_without_outcomes_there_is_no_result(prepare: Prepare) -> None:
    prepared = prepare(tiny.campaign())
    assert prepared.result([None]) is None


def test_a_baseline_that_was_not_reached_says_so(prepare: Prepare) -> None:
    prepared = prepare(tiny.campaign(), baselines=(Baseline.NON_PRIVATE,))
    found = prepared.result(partly(prepared, 6, None)).as_json()
    assert found is not None
    assert found["complete"] is False
    assert found["seeds"][0]["complete"] is True
    [baseline] = found["baselines"]
    assert (baseline["metrics"], baseline["curves"]) == ({}, [])
    assert baseline["unavailable"] == "the simulation was interrupted before this baseline"
    whole = certify_runs([PartialRun.whole(tiny.campaign())])
    assert found["certificate"]["epsilon"] == whole.epsilon


@pytest.mark.slow
def test_a_run_without_reports_does_not_lower_the_epsilon_of_other_seeds() -> None:
    campaign = tiny.campaign(AVERAGED)
    with ThreadPoolExecutor(1) as pool:
        accounting = BackgroundAccounting(campaign, pool, [(60, 0, 5), (60, 60, 0), (0, 50, 7)])
        alone = certify_runs([PartialRun(campaign, 6, contributors=5, times=2)])
        assert accounting.full_certificate.epsilon == alone.epsilon
        assert accounting.curve() == [(18, alone.epsilon)]


def test_baselines_of_averaged_updates_have_the_epsilon_of_what_is_run(prepare: Prepare) -> None:
    options = ScenarioOptions(dropout=0.5)
    prepared = prepare(
        tiny.campaign(AVERAGED), scenario_options=options, baselines=(Baseline.NO_AMPLIFICATION,)
    )
    found = prepared.result(prepared.run())
    assert found is not None
    assert found.baselines[0].baseline.epsilon == found.certificate.epsilon
    assert found.epsilon_by_slot[-1][1] == found.certificate.epsilon


def test_a_partial_certificate_says_that_stopping_was_decided_beforehand(prepare: Prepare) -> None:
    prepared = prepare(tiny.campaign())
    found = prepared.result(partly(prepared, 2))
    assert found is not None
    assert FIXED_BEFOREHAND in found.certificate.assumptions
    whole = prepared.result(prepared.run())
    assert whole is not None
    assert FIXED_BEFOREHAND not in whole.certificate.assumptions


def test_the_certificate_of_averaged_runs_uses_the_fewest_reports(prepare: Prepare) -> None:
    campaign = tiny.campaign(AVERAGED)
    prepared = prepare(campaign, seeds=(1, 2))
    stopped, whole = partly(prepared, 6, 18)
    assert stopped is not None
    assert whole is not None
    assert (len(stopped.contributors), len(whole.contributors)) == (1, 3)
    found = prepared.result([stopped, whole]).as_json()
    assert found is not None
    runs = [PartialRun(campaign, 6, contributors=count) for count in whole.contributors]
    assert found["certificate"]["epsilon"] == certify_runs(runs).epsilon
    assert "fewest reports" in found["notes"][0]


@pytest.mark.slow
def test_a_sweep_is_a_list_in_order_and_the_same_job_is_run_once(prepare: Prepare) -> None:
    campaigns = [tiny.campaign(), tiny.campaign(tiny.text().replace("1e-6", "1e-7"))]
    prepared = prepare(*campaigns)
    outcomes = prepared.run()
    assert outcomes[0] is outcomes[1]  # a budget affects nothing but the certificate
    found = prepared.result(outcomes)
    assert found is not None
    assert [one.settings for one in found.runs] == [{"n": 0}, {"n": 1}]
    first, second = (one.certificate.epsilon for one in found.runs)
    assert first < second
    part = prepared.result([None, outcomes[1]])
    assert part is not None
    assert [one.settings for one in part.runs] == [{"n": 1}]


def test_a_grid_too_coarse_for_delta_is_refused_before_anything_is_run(prepare: Prepare) -> None:
    coarse = tiny.GAUSSIAN + "grid = 0.16\n"
    with pytest.raises(InvalidValue, match="must be less than delta: use a finer grid"):
        prepare(tiny.campaign(tiny.text(randomizer=coarse).replace("1e-6", "1e-80")))


def test_a_campaign_without_a_task_is_refused(prepare: Prepare) -> None:
    with pytest.raises(InvalidValue, match=r"needs a \[task\]"):
        prepare(tiny.campaign(tiny.text(task="")))
