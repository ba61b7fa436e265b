"""The utility theorems, held against simulated campaigns on problems with a known optimum."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkins.accounting.paper import occupancy
from checkins.errors import InvalidValue, NotCovered
from checkins.protocol.model_update import ModelUpdate
from checkins.simulation import excess_risk as utility
from checkins.simulation import utility_sweep
from checkins.simulation.excess_risk import (
    MeasuredRisk,
    Scheme,
    Trial,
    draw_check_ins,
    measure,
    train_models,
)
from checkins.simulation.utility_sweep import SlotSeries, sweep
from checkins.tasks.data.synthetic import Loss, Problem

SIGMAS = 6.2
"""Standard errors that a normal mean exceeds, on either side, with probability below 1e-9."""

SMOOTH_LOSSES = (Loss.SQUARED, Loss.LOGISTIC)


def trial(loss: Loss, scheme: Scheme, **changed) -> Trial:
    given = {"slots": 12, "clients": 30, "noise_std": 0.4} | changed
    return Trial(Problem(loss, dimension=3, diameter=2.0, seed=1), scheme, **given)


CASES = [
    trial(loss, scheme)
    for loss in Loss
    for scheme in Scheme
    if scheme is not Scheme.SMOOTH or loss in SMOOTH_LOSSES
] + [trial(Loss.LOGISTIC, Scheme.FIXED, participation=0.3)]


def case(one: Trial) -> str:
    return f"{one.problem.loss_kind}-{one.scheme}-{one.participation}"


def test_counts_and_empty_slots_are_distributed_as_balls_in_bins() -> None:
    """4,000 runs; each of three facts fails with probability at most 1e-9.

    Empty slots of one run are negatively correlated: their number varies less than if independent.
    """
    one, runs = trial(Loss.ABSOLUTE, Scheme.FIXED, participation=0.7), 4000
    counts = draw_check_ins(one, np.random.default_rng(5), runs=runs)
    assert counts.shape == (one.slots, runs)
    chance = 0.7 / one.slots
    spread = math.sqrt(one.clients * chance * (1.0 - chance) / runs)
    assert np.abs(counts.mean(axis=1) - one.clients * chance).max() < (SIGMAS + 0.4) * spread
    assert int(counts.sum(axis=0).max()) <= one.clients
    dummies = occupancy.dummies_fixed(clients=30, slots=12, participation=0.7)
    share = dummies / one.slots
    error = math.sqrt(one.slots * share * (1.0 - share) / runs)
    assert abs((counts == 0).sum(axis=0).mean() - dummies) < SIGMAS * error
    everyone = draw_check_ins(
        trial(Loss.ABSOLUTE, Scheme.AVERAGED), np.random.default_rng(5), runs=50
    )
    assert (everyone.sum(axis=0) == 30).all()


def slowly(one: Trial, *, runs: int, seed: int) -> np.ndarray:
    """One slot, one campaign, one client at a time, through the protocol's own ModelUpdate."""
    generator = np.random.default_rng([seed, 3])
    counts = draw_check_ins(one, generator, runs=runs)
    noise = one.noise_std * generator.standard_normal((one.slots, runs, one.problem.dimension))
    decay = 0.0 if one.scheme is Scheme.SMOOTH else 0.5
    update = ModelUpdate(rate=one.rate, decay=decay, diameter=one.problem.diameter)
    learners = [update.start(one.problem.start()) for _ in range(runs)]
    visited, met = np.zeros((runs, one.problem.dimension)), 0
    for slot in range(one.slots):
        for run in range(runs):
            here, total = learners[run].model, np.zeros(one.problem.dimension)
            visited[run] += here
            count = int(counts[slot, run])
            used = min(count, 1) if one.scheme is Scheme.FIXED else count
            for client in range(met, met + used):
                row = one.problem.clients(np.array([client]), stream=f"utility:{seed}")
                total += one.problem.gradient(here, *row)
            met += used
            if one.scheme is Scheme.FIXED:
                learners[run] = update.apply(learners[run], total + noise[slot, run])
            else:
                total += math.sqrt(count) * noise[slot, run]
                learners[run] = update.apply(learners[run], total, contributors=count)
    if one.scheme is Scheme.SMOOTH:
        return visited / one.slots
    return np.array([learner.model for learner in learners])


@pytest.mark.parametrize("one", CASES, ids=case)
def test_the_models_are_those_of_the_pure_protocol(one: Trial) -> None:
    assert np.allclose(
        train_models(one, runs=10, seed=7), slowly(one, runs=10, seed=7), rtol=1e-12, atol=1e-13
    )


@pytest.mark.parametrize("one", CASES[:3], ids=case)
def test_the_number_of_slots_in_memory_does_not_change_the_models(
    one: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train_models(one, runs=10, seed=7)
    monkeypatch.setattr(utility, "_MAX_ROWS", 37)
    assert np.array_equal(train_models(one, runs=10, seed=7), whole)


def test_a_seed_repeats_and_another_differs() -> None:
    one = CASES[0]
    assert measure(one, runs=10, seed=1) == measure(one, runs=10, seed=1)
    assert measure(one, runs=10, seed=1).risk != measure(one, runs=10, seed=2).risk


@given(
    st.sampled_from(Loss),
    st.integers(1, 6),
    st.floats(0.1, 30.0),
    st.integers(0, 10**6),
    st.floats(0.0, 1.0),
)
@settings(max_examples=60)
def test_no_model_of_the_ball_is_worse_than_the_farthest(
    loss: Loss, dimension: int, diameter: float, seed: int, share: float
) -> None:
    problem = Problem(loss, dimension=dimension, diameter=diameter, seed=seed)
    direction = np.random.default_rng(seed).normal(size=dimension)
    model = direction / np.linalg.norm(direction) * (share * diameter / 2.0)
    assert problem.excess_risk(model) <= utility.worst_risk(problem) * (1.0 + 1e-9)


@pytest.mark.parametrize("scheme", [Scheme.FIXED, Scheme.AVERAGED])
def test_at_a_kink_the_last_risk_is_half_the_step_times_the_second_moment_of_reports(
    scheme: Scheme,
) -> None:
    """A check of constants: D = ‖θ − c‖² neither grows nor falls, and 2η(F − F*) = η²E‖g‖².

    For F a cone, ⟨∇F, θ − c⟩ is F − F*. One client's gradient has length 1; a mean of S has that of
    ∇F, 3/4 · 2/π, and 1/S of the rest. Within 6.2 standard errors (1e-9), and 5% as η still falls.
    """
    one = Trial(Problem(Loss.ABSOLUTE, 2, 2.0, 1), scheme, 1024, 8 * 1024, 0.35)
    share, common = 1.0, (0.75 * 2.0 / math.pi) ** 2
    if scheme is Scheme.AVERAGED:
        share = occupancy.expected_inverse_load(clients=one.clients, slots=one.slots)
    moment = common + share * (1.0 - common + 2 * 0.35**2)
    seen = measure(one, runs=400, seed=3)
    expected = one.rate * moment / (2.0 * math.sqrt(one.slots))
    assert abs(seen.risk - expected) < SIGMAS * seen.standard_error + 0.05 * expected
    assert seen.standard_error < 0.04 * expected


@pytest.mark.parametrize("scheme", [Scheme.FIXED, Scheme.AVERAGED])
def test_the_risk_of_a_kink_falls_as_one_by_the_root_of_the_slots(scheme: Scheme) -> None:
    """Fails with probability below 1e-9: 6.2 standard errors, and 0.04 for what the ball bends."""
    problem = Problem(Loss.ABSOLUTE, 2, 2.0, 1)
    measurements = tuple(
        measure(Trial(problem, scheme, slots, 2 * slots, 0.35), runs=300, seed=slots)
        for slots in (64, 128, 512, 2048)
    )
    series = SlotSeries(measurements)
    assert series.slope_error < 0.03
    assert abs(series.slope + 0.5) < SIGMAS * series.slope_error + 0.04
    assert -0.5 < series.bound_slope < -0.3


def test_a_slope_is_that_of_a_straight_line() -> None:
    measurements = tuple(
        MeasuredRisk(
            trial(Loss.ABSOLUTE, Scheme.FIXED, slots=m, clients=4 * m), 50, risk, 0.1 * risk
        )
        for m, risk in ((10, 9.0), (40, 3.0 * 40**-0.7), (160, 3.0 * 160**-0.7))
    )
    assert SlotSeries(measurements).slope == pytest.approx(-0.7)
    # Two points of relative error e have the slope's error e√2/log(4).
    assert SlotSeries(measurements).slope_error == pytest.approx(
        0.1 * math.sqrt(2.0) / math.log(4.0)
    )


@pytest.fixture(scope="module")
def swept() -> utility_sweep.UtilitySweep:
    return sweep(slots=256, runs=40, seed=2)


def test_every_measurement_lies_under_its_bound(swept: utility_sweep.UtilitySweep) -> None:
    """Means plus six standard errors; the bounds leave so much room that chance has none."""
    assert swept.all_bounds_hold
    assert len(swept.measured_risks) > 100
    for why, one in swept.measured_risks:
        assert 0.0 < one.risk < one.upper_limit, why
        assert one.risk + 6.0 * one.standard_error < one.trial.bound <= one.trial.paper_bound, why
        assert one.risk <= one.trial.worst_risk


def test_the_sweep_tries_every_loss_and_scheme(swept: utility_sweep.UtilitySweep) -> None:
    tried = {(one.trial.problem.loss_kind, one.trial.scheme) for _, one in swept.measured_risks}
    assert tried == {
        (loss, scheme)
        for loss in Loss
        for scheme in Scheme
        if scheme is not Scheme.SMOOTH or loss in SMOOTH_LOSSES
    }
    assert {one.trial.slots for series in swept.slot_series for one in series.measurements} == {
        4,
        16,
        64,
        256,
    }
    assert len({one.risk for _, one in swept.measured_risks}) == len(swept.measured_risks)


def test_a_measurement_above_its_bound_is_reported() -> None:
    one = MeasuredRisk(CASES[0], 20, 1.01 * CASES[0].bound, 0.0)
    found = utility_sweep.UtilitySweep(256, 20, (), (("bad", one),), ())
    assert not found.all_bounds_hold
    assert found.closest_to_bound is one
    unsure = MeasuredRisk(CASES[0], 20, float("nan"), 0.0)
    assert not utility_sweep.UtilitySweep(256, 20, (), (("nan", unsure),), ()).all_bounds_hold


def test_the_paper_ratios_are_those_of_the_papers_displays(
    swept: utility_sweep.UtilitySweep,
) -> None:
    """√(L²/m + p/(ε²n²)) against √(L²/m + p/(ε²nm)), or √(L²/n + p/(ε²nm)) + βR/m if smooth."""
    seen = 0
    for pair in swept.comparisons:
        averaged = pair.averaged.trial
        m, n, problem = averaged.slots, averaged.clients, averaged.problem
        if pair.equal_quantity != "epsilon":
            assert pair.fixed.trial.noise_std == averaged.noise_std
            continue
        epsilon = 1.0 / (averaged.noise_std * math.sqrt(m))
        assert pair.fixed.trial.noise_std == pytest.approx(m / n / (epsilon * math.sqrt(m)))
        assert pair.fixed.trial.participation == pytest.approx(m / n)
        p, length = problem.dimension, problem.lipschitz
        fixed = math.sqrt(length**2 / m + p / (epsilon * n) ** 2)
        if averaged.scheme is Scheme.SMOOTH:
            other = math.sqrt(length**2 / n + p / (epsilon**2 * n * m))
            other += (problem.smoothness or 0.0) * problem.diameter / m
        else:
            other = math.sqrt(length**2 / m + p / (epsilon**2 * n * m))
        assert pair.paper_ratio == pytest.approx(other / fixed)
        seen += 1
    assert seen == 5


def test_fixed_does_better_at_the_same_epsilon_and_averaged_with_the_same_noise() -> None:
    """n = 16m, as the paper's displays say; six standard errors of each risk apart."""
    problem, m, k = Problem(Loss.ABSOLUTE, 2, 2.0, 1), 256, 16

    def seen(scheme: Scheme, noise: float, participation: float = 1.0) -> MeasuredRisk:
        one = Trial(problem, scheme, m, k * m, noise / math.sqrt(2.0), participation)
        return measure(one, runs=150, seed=9)

    averaged, fixed = seen(Scheme.AVERAGED, 8.0), seen(Scheme.FIXED, 8.0 / k, 1.0 / k)
    assert averaged.risk - 6.0 * averaged.standard_error > fixed.risk + 6.0 * fixed.standard_error
    averaged, fixed = seen(Scheme.AVERAGED, 4.0), seen(Scheme.FIXED, 4.0)
    assert averaged.risk + 6.0 * averaged.standard_error < fixed.risk - 6.0 * fixed.standard_error


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"scheme": Scheme.AVERAGED, "participation": 0.5}, "participation"),
        ({"scheme": Scheme.SMOOTH}, "problem"),
        ({"scheme": "fixed"}, "scheme"),
        ({"slots": 0}, "slots"),
        ({"clients": 2.5}, "clients"),
        ({"noise_std": math.nan}, "noise_std"),
        ({"participation": math.nan}, "participation"),
    ],
)
def test_a_trial_that_no_theorem_covers_is_refused(changed: dict[str, object], name: str) -> None:
    with pytest.raises(InvalidValue) as refusal:
        trial(Loss.ABSOLUTE, **({"scheme": Scheme.FIXED} | changed))
    assert refusal.value.name == name


def test_too_few_runs_or_slots_are_refused() -> None:
    with pytest.raises(InvalidValue, match="runs = 9"):
        measure(CASES[0], runs=9, seed=1)
    with pytest.raises(InvalidValue, match="slots = 255"):
        sweep(slots=255, runs=10, seed=1)
    with pytest.raises(NotCovered):
        measure(trial(Loss.ABSOLUTE, Scheme.FIXED, clients=8), runs=10, seed=1)
