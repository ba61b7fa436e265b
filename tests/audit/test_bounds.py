"""From scores to a lower bound: Clopper-Pearson's ends, fresh runs, one confidence for all."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from checkins.audit.bounds import (
    SELECTION_SHARE,
    Counts,
    Direction,
    Event,
    Trials,
    best_at_each_delta,
    choose_events,
    interval_high,
    interval_low,
    lower_bounds,
)
from checkins.errors import InvalidValue

SURE = 1.0 - 1e-11
"""A test that asks for so much fails by chance once in 1e9 times, counted generously."""


def gaussian_trials(shift: float, runs: int, seed: int = 1) -> Trials:
    generator = np.random.default_rng(seed)
    noise = generator.standard_normal((2, runs))
    return Trials(noise[0] + shift, noise[1], "shifted")


@given(runs=st.integers(1, 400), share=st.floats(0.0, 1.0), failure=st.floats(1e-6, 0.4))
def test_the_ends_are_clopper_and_pearsons(runs: int, share: float, failure: float) -> None:
    count = round(share * runs)
    ends = binomtest(count, runs).proportion_ci(1.0 - 2 * failure, method="exact")
    assert interval_low(count, runs, failure=failure) == pytest.approx(
        ends.low, rel=1e-6, abs=1e-12
    )
    assert interval_high(count, runs, failure=failure) == pytest.approx(ends.high, rel=1e-6)


@given(
    runs=st.integers(1, 60),
    chance=st.floats(0.001, 0.999),
    failure=st.sampled_from([0.3, 0.05, 1e-3, 1e-6]),
)
def test_an_end_is_on_the_wrong_side_no_more_often_than_it_may(
    runs: int, chance: float, failure: float
) -> None:
    """By every count that can be, not by chance."""
    counts = np.arange(runs + 1)
    masses = binom.pmf(counts, runs, chance)
    low = np.array([interval_low(int(k), runs, failure=failure) for k in counts])
    high = np.array([interval_high(int(k), runs, failure=failure) for k in counts])
    assert masses[low > chance].sum() <= failure * (1 + 1e-9)
    assert masses[high < chance].sum() <= failure * (1 + 1e-9)


@pytest.mark.parametrize("failure", [0.2, 0.02])
def test_the_bound_exceeds_the_truth_no_more_often_than_it_may(failure: float) -> None:
    """Randomized response at eps 1: one event, every pair of counts of 40 runs each."""
    runs, epsilon = 40, 1.0
    keep = math.exp(epsilon) / (1 + math.exp(epsilon))
    event = Event(Direction.REMOVE, 0.5, 1e-6)
    wrong = 0.0
    for true_positives in range(runs + 1):
        for false_positives in range(runs + 1):
            counts = Counts(event, "x", true_positives, runs, false_positives, runs)
            if counts.bound(failure=failure).epsilon > epsilon:
                wrong += binom.pmf(true_positives, runs, keep) * binom.pmf(
                    false_positives, runs, 1 - keep
                )
    assert 0.0 < wrong <= failure


def test_equal_distributions_give_the_bound_zero() -> None:
    """Both halves of one distribution; fails for another seed with probability below 1e-9."""
    bounds = lower_bounds(gaussian_trials(0.0, 20_000), deltas=[1e-6, 1e-2], confidence=SURE)
    assert [bound.epsilon for bound in bounds] == [0.0, 0.0]


@pytest.mark.parametrize("delta", [1e-4, 1e-3, 1e-2, 0.1])
def test_a_gaussian_shift_is_measured_from_below_and_closely(delta: float) -> None:
    """Against [BW18, Thm 8]; a fresh seed exceeds it with probability below 1e-9."""
    from checkins.randomizers import Gaussian

    trials = gaussian_trials(1.0, 400_000)
    [bound] = lower_bounds(trials, deltas=[delta], confidence=SURE)
    law = Gaussian(1.0, 2.0)  # two updates 2C apart are one deviation apart
    low, high = 0.0, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if law.delta(epsilon=middle) > delta else (low, middle)
    assert 0.6 * high < bound.epsilon < high


@pytest.mark.parametrize("direction", Direction)
def test_both_directions_are_tried(direction: Direction) -> None:
    """A rare sign of the canary, and a rare sign that it is missing."""
    rare = np.zeros(4000)
    rare[::5] = 7.0
    common = np.zeros(4000)
    halves = (rare, common) if direction is Direction.REMOVE else (-common, -rare)
    [bound] = lower_bounds(Trials(*halves, "rare"), deltas=[1e-6], confidence=0.999)
    assert bound.direction is direction
    assert bound.epsilon > 3.0


def test_a_certain_sign_gives_a_bound_that_grows_with_the_runs() -> None:
    for runs in (400, 4000):
        trials = Trials(np.full(runs, math.inf), np.full(runs, -math.inf), "seen")
        [bound] = lower_bounds(trials, deltas=[1e-9], confidence=0.99)
        fresh = runs * (1 - SELECTION_SHARE)
        assert bound.epsilon == pytest.approx(math.log(fresh / math.log(400.0)), abs=0.2)


def test_events_are_chosen_on_other_runs_than_they_are_counted_on() -> None:
    trials = gaussian_trials(1.0, 1000)
    first, fresh = trials.split(SELECTION_SHARE)
    assert first.fewest_runs + fresh.fewest_runs == trials.fewest_runs
    events = choose_events(first, deltas=[1e-3], failure=1e-4, counted_runs=fresh.fewest_runs)
    other = Trials(
        np.concatenate([first.scores_with, np.full(fresh.fewest_runs, -9.0)]),
        np.concatenate([first.scores_without, np.full(fresh.fewest_runs, 9.0)]),
        "swapped",
    )
    [bound] = lower_bounds(other, deltas=[1e-3], confidence=0.9999)
    assert bound.epsilon == 0.0
    assert bound.threshold in [event.threshold for event in events]


def test_counts_of_batches_add_up() -> None:
    trials, event = gaussian_trials(1.0, 999), Event(Direction.ADD, 0.3, 1e-3)
    whole = Counts(event, "x").plus(trials)
    halves = trials.split(0.37)
    assert Counts(event, "x").plus(halves[0]).plus(halves[1]) == whole


def test_more_attacks_share_one_confidence() -> None:
    trials = gaussian_trials(1.0, 10_000)
    [alone] = lower_bounds(trials, deltas=[1e-3], confidence=0.9999)
    [among] = lower_bounds([trials] * 50, deltas=[1e-3], confidence=0.9999)
    [surer] = lower_bounds(trials, deltas=[1e-3], confidence=1.0 - 1e-4 / 50)
    assert among.epsilon == pytest.approx(surer.epsilon)
    assert among.epsilon < alone.epsilon


@given(seed=st.integers(0, 99))
def test_a_larger_delta_gives_a_smaller_bound(seed: int) -> None:
    deltas = [1e-6, 1e-3, 1e-2, 0.3]
    bounds = lower_bounds(gaussian_trials(1.5, 500, seed), deltas=deltas, confidence=0.99)
    epsilons = [bound.epsilon for bound in bounds]
    assert epsilons == sorted(epsilons, reverse=True)
    assert [bound.delta for bound in bounds] == deltas


def test_counts_read_at_any_delta_keep_their_ends() -> None:
    [bound] = lower_bounds(gaussian_trials(1.0, 5000), deltas=[1e-3], confidence=0.99)
    again = bound.at(0.02)
    assert again.true_positive_rate_low == bound.true_positive_rate_low
    assert best_at_each_delta([bound], [0.02]) == [again]


def test_too_few_runs_give_the_bound_zero() -> None:
    trials = Trials(np.ones(3), np.zeros(3), "x")
    assert lower_bounds(trials, deltas=[1e-3], confidence=0.99)[0].epsilon == 0.0


@pytest.mark.parametrize("scores", [np.array([math.nan]), np.zeros((2, 2)), np.array(["a"])])
def test_scores_that_are_not_numbers_are_refused(scores: np.ndarray) -> None:
    with pytest.raises(InvalidValue, match="scores_with"):
        Trials(scores, np.zeros(3), "x")


@pytest.mark.parametrize(
    ("deltas", "confidence"), [([], 0.99), ([0.0], 0.99), ([1e-3], 1.0), ([math.nan], 0.9)]
)
def test_deltas_and_confidences_out_of_range_are_refused(
    deltas: list[float], confidence: float
) -> None:
    with pytest.raises(InvalidValue):
        lower_bounds(gaussian_trials(1.0, 100), deltas=deltas, confidence=confidence)


def test_integers_are_scores_too() -> None:
    trials = Trials(np.arange(3), np.arange(4), "counts")  # type: ignore[arg-type]
    assert trials.fewest_runs == 3
    assert trials.scores_with.dtype == np.float64
