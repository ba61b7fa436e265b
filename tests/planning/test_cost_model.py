"""What a design is worth moves as it should."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkins.accounting import NoiseAt, Population, Protocol
from checkins.campaign import RandomizerKind
from checkins.planning import Devices, Server
from checkins.planning.candidate import shortest_slot_s, slot_load
from checkins.planning.cost_model import design_metrics, theorem_risk
from tests.planning.plans import REPLACE_ONE, ask
from tests.planning.test_noise import CLIENT, candidate


def test_noise_per_step_is_the_noise_of_a_sum_over_the_reports_in_it() -> None:
    asked = ask(population=(10_000, 10_000))
    found = design_metrics(candidate(100), 1.5, asked)
    assert found.clients_per_step == pytest.approx(100.0)
    assert found.noise_per_step == pytest.approx(1.5 / 100.0)
    carried = candidate(100, capacity=144, population=Population(10_000, 10_000), **CLIENT)
    assert design_metrics(carried, 1.5 / 12, asked).noise_per_step == pytest.approx(
        1.5 / 100.0, rel=1e-3
    )


@given(st.floats(0.3, 50.0), st.floats(1.01, 3.0))
def test_more_noise_is_worse(level: float, times: float) -> None:
    asked = ask()
    assert (
        design_metrics(candidate(), level, asked).proxy
        < design_metrics(candidate(), times * level, asked).proxy
    )


def test_a_minibatch_changes_steps_and_not_the_variance() -> None:
    asked = ask()
    one, four = (design_metrics(candidate(100, minibatch=size), 1.0, asked) for size in (1, 4))
    assert (one.steps, four.steps) == (100, 25)
    assert four.variance == pytest.approx(one.variance)
    assert four.proxy > one.proxy


def test_the_gain_of_correlated_noise_is_its_mean_square_in_the_models_of_a_run() -> None:
    slots, bands = 60, 8
    coefficients = candidate(slots, bands=bands).design(1.0).randomizer.strategy.coefficients
    strategy = np.zeros((slots, slots))
    for lag, coefficient in enumerate(coefficients):
        strategy += coefficient * np.eye(slots, k=-lag)
    strategy /= np.linalg.norm(coefficients)
    sums = np.tril(np.ones((slots, slots)))
    correlated, independent = sums @ np.linalg.inv(strategy), sums
    gain = candidate(slots, bands=bands).noise_gain
    assert gain == pytest.approx((correlated**2).sum() / (independent**2).sum())
    assert gain < 0.5
    one = design_metrics(candidate(slots), 1.0, ask())
    several = design_metrics(candidate(slots, bands=bands), 1.0, ask())
    assert several.noise_per_step == one.noise_per_step
    assert several.variance < one.variance


def test_dropouts_and_dismissed_check_ins_make_noise_larger() -> None:
    plain = design_metrics(candidate(), 1.0, ask())
    dropped = design_metrics(candidate(), 1.0, ask(devices=Devices(dropout=0.5)))
    dismissed = design_metrics(candidate(capacity=50), 1.0, ask())
    assert dropped.noise_per_step == pytest.approx(2.0 * plain.noise_per_step)
    assert dismissed.noise_per_step == pytest.approx(2.0 * plain.noise_per_step, rel=0.02)


def test_dummies_fill_the_empty_places() -> None:
    asked = ask(population=(10_000, 10_000))
    one_each = candidate(10_000, capacity=1, randomizer=RandomizerKind.LAPLACE, **CLIENT)
    assert slot_load(one_each, asked, clients=10_000).dummies_share == pytest.approx(1 / math.e)
    assert slot_load(candidate(10_000), asked, clients=10_000).dummies_share == pytest.approx(
        1 / math.e
    )


def test_reports_within_a_capacity_are_a_truncated_mean() -> None:
    asked = ask(population=(10_000, 10_000))
    found = slot_load(candidate(1_000, capacity=8), asked, clients=10_000).reports
    draws = np.random.default_rng(1).poisson(10.0, 200_000)  # fails with probability below 1e-9
    assert found == pytest.approx(np.minimum(draws, 8).mean(), abs=0.02)


def test_a_slot_is_long_enough_for_uplink_and_server() -> None:
    slow = ask(dimension=10**6, devices=Devices(uplink_bytes_per_s=1e5))
    assert shortest_slot_s(candidate(), slow) >= 2 * 40.0
    busy = ask(server=Server(updates_per_s=1.0))
    assert shortest_slot_s(candidate(), busy) >= 110.0
    assert shortest_slot_s(candidate(), ask()) == 1.0


def test_a_run_that_outlasts_its_devices_loses_check_ins() -> None:
    stays = ask(devices=Devices(availability_s=25.0))
    assert slot_load(candidate(100), stays, clients=10_000).reports == pytest.approx(25.0)
    window = candidate(100, protocol=Protocol.SLIDING, window=20)
    assert slot_load(window, stays, clients=10_000).reports == pytest.approx(100.0)
    assert window.steps == 81


def test_repeated_runs_learn_from_the_same_people() -> None:
    asked = ask(population=(10_000, 10_000))
    once, often = (design_metrics(candidate(100, repeats=count), 1e-9, asked) for count in (1, 50))
    assert often.variance == pytest.approx(once.variance)
    assert often.slot_load.upload_bytes_per_client(candidate(100, repeats=50)) == pytest.approx(
        50 * once.slot_load.upload_bytes_per_client(candidate(100))
    )


def test_the_papers_risk_is_given_if_its_theorems_hold() -> None:
    asked = ask(adjacency=REPLACE_ONE)
    alone = candidate(100, capacity=1, noise_at=NoiseAt.CLIENT)
    fixed = theorem_risk(alone, 2.0, asked)
    averaged = theorem_risk(
        candidate(100, protocol=Protocol.AVERAGED, population=asked.population, **CLIENT),
        2.0,
        asked,
    )
    assert fixed is not None
    assert averaged is not None
    assert (fixed.theorem, averaged.theorem) == ("paper, Theorem 3.5", "paper, Theorem 4.2")
    assert averaged.risk < fixed.risk
    assert theorem_risk(candidate(100), 2.0, asked) is None
    assert theorem_risk(replace(alone, repeats=2), 2.0, asked) is None
    assert theorem_risk(replace(alone, slots=50_000), 2.0, asked) is None
