"""The power of an attack: exact rates against the accountant, and the runs it needs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkins.accounting import Adjacency, NoiseAt, certify
from checkins.accounting.exact.pure import PureCampaign, ThreePointSum, attained_three_points
from checkins.audit.bounds import SELECTION_SHARE, Direction
from checkins.audit.canaries import Canary, worst_case_canaries
from checkins.audit.runner import RunBudget, run_attack
from checkins.audit.statistics import (
    TradeOffCurve,
    exact_epsilon,
    exact_rates,
    rates_from_outcomes,
    runs_needed,
)
from checkins.campaign import Campaign
from tests.audit.campaigns import ADD_REMOVE, REPLACE_ONE, gaussian, pure


def canaries(campaign: Campaign) -> dict[str, Canary]:
    return {one.name: one for one in worst_case_canaries(campaign, uses_population=False)}


def exact(canary: Canary, delta: float) -> float:
    rates = exact_rates(canary)
    assert rates is not None
    return exact_epsilon(rates, delta)


@given(
    local_epsilon=st.floats(0.1, 8.0),
    slots=st.integers(1, 40),
    participation=st.one_of(st.just(1.0), st.floats(0.05, 1.0)),
    delta=st.sampled_from([1e-6, 1e-3, 0.02]),
)
def test_two_outcomes_attain_the_exact_epsilon(
    local_epsilon: float, slots: int, participation: float, delta: float
) -> None:
    campaign = pure(local_epsilon, slots=slots, participation=participation, delta=delta)
    certificate = certify(campaign.design, delta=delta, adjacency=ADD_REMOVE, compare=False)
    found = exact(canaries(campaign)["binary response"], delta)
    between = certificate.epsilon_lower * (1 - 1e-5), certificate.epsilon * (1 + 1e-5)
    assert between[0] - 1e-9 <= found <= between[1] + 1e-9


@given(local_epsilon=st.floats(0.3, 5.0), slots=st.integers(1, 12), capacity=st.integers(2, 4))
def test_capacity_and_slots_give_the_same_rates(
    local_epsilon: float, slots: int, capacity: int
) -> None:
    """A report among K dummies of its slot: the epsilon of m K slots, not of m."""
    several = canaries(pure(local_epsilon, slots=slots, capacity=capacity))["binary response"]
    more = canaries(pure(local_epsilon, slots=slots * capacity))["binary response"]
    assert exact(several, 1e-3) == pytest.approx(exact(more, 1e-3))


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize(("slots", "participation"), [(5, 1.0), (12, 0.4)])
def test_three_outcomes_have_the_accountants_divergence(
    number: int, slots: int, participation: float
) -> None:
    campaign = pure(2.0, slots=slots, participation=participation, adjacency=REPLACE_ONE)
    name = ("ternary response", "mirrored ternary response")[number]
    epsilon = exact(canaries(campaign)[name], 1e-3)
    law = ThreePointSum(
        PureCampaign(2.0, slots, participation), attained_three_points(2.0)[number], delta=1e-6
    )
    assert law.lower(epsilon * 0.999) < law.upper(epsilon * 0.999)
    assert law.upper(epsilon * 1.001) < 1e-3 < law.lower(epsilon * 0.999)


@pytest.mark.parametrize("contributors", [2, 30])
def test_averaged_updates_have_the_epsilon_of_shuffled_reports(contributors: int) -> None:
    campaign = pure(2.0, contributors=contributors, adjacency=REPLACE_ONE)
    certificate = certify(campaign.design, delta=1e-3, adjacency=REPLACE_ONE, compare=False)
    best = max(exact(canary, 1e-3) for canary in canaries(campaign).values())
    assert best == pytest.approx(certificate.epsilon_lower, rel=1e-6)
    assert best <= certificate.epsilon


@pytest.mark.parametrize(("noise", "slots"), [(1.0, 10), (2.0, 50), (0.5, 3)])
@pytest.mark.parametrize("participation", [1.0, 0.3])
def test_a_client_alone_attains_the_exact_epsilon(
    noise: float, slots: int, participation: float
) -> None:
    campaign = gaussian(noise, slots=slots, participation=participation)
    certificate = certify(campaign.design, delta=1e-3, adjacency=ADD_REMOVE, compare=False)
    found = exact(canaries(campaign)["alone"], 1e-3)
    assert found == pytest.approx(certificate.epsilon_lower, rel=5e-3)


@pytest.mark.parametrize("capacity", [1, 4])
def test_a_client_that_displaces_its_opposite_stays_below_the_certificate(capacity: int) -> None:
    """And comes close: the envelope of the accountant is nearly attained."""
    campaign = gaussian(1.0, slots=10, capacity=capacity, at=NoiseAt.CLIENT)
    certificate = certify(campaign.design, delta=1e-3, adjacency=ADD_REMOVE, compare=False)
    found = exact(canaries(campaign)["displacing"], 1e-3)
    assert 0.9 * certificate.epsilon < found < certificate.epsilon * 1.001


KNOWN = {
    "binary": (pure(2.0, slots=5, participation=0.5), "binary response"),
    "ternary": (pure(2.0, slots=5, adjacency=REPLACE_ONE), "ternary response"),
    "alone": (gaussian(1.0, slots=5), "alone"),
    "displacing": (gaussian(1.0, slots=4, capacity=2, at=NoiseAt.CLIENT), "displacing"),
    "averaged": (pure(1.5, contributors=8, adjacency=REPLACE_ONE), "binary response"),
    "sliding": (pure(2.0, slots=5, window=4), "binary response"),
}


@pytest.mark.parametrize("name", KNOWN)
def test_runs_follow_the_exact_distributions(name: str) -> None:
    """At each exact false positive rate true positives differ by at most 7 deviations and 1%."""
    campaign, which = KNOWN[name]
    canary = canaries(campaign)[which]
    runs = 200_000
    trials = canary.trials(runs, np.random.default_rng(11))
    rates = exact_rates(canary)
    assert rates is not None
    for one in rates:
        remove = one.direction is Direction.REMOVE
        likely = trials.scores_with if remove else -trials.scores_without
        unlikely = trials.scores_without if remove else -trials.scores_with
        for threshold in np.quantile(unlikely, [0.1, 0.4, 0.7, 0.95, 0.999], method="nearest"):
            true_positives, false_positives = (
                np.mean(likely >= threshold),
                np.mean(unlikely >= threshold),
            )
            slack = 7 * np.sqrt(0.25 / runs)
            expected = np.interp(
                [false_positives - slack, false_positives + slack],
                np.concatenate([[0.0], one.false_positive]),
                np.concatenate([[0.0], one.true_positive]),
            )
            assert expected[0] - slack - 0.01 < true_positives < expected[1] + slack + 0.01


def test_the_needed_runs_are_enough_and_a_tenth_is_not() -> None:
    """By the exact rates: all of them reach the bound, a tenth of them does not."""
    canary = canaries(pure(2.0, slots=10, participation=0.5))["binary response"]
    rates = exact_rates(canary)
    assert rates is not None
    target = 0.8 * exact_epsilon(rates, 1e-3)
    needed = runs_needed(rates, delta=1e-3, epsilon=target, failure=5e-5)
    assert needed is not None

    def measured(times: float) -> float:
        runs = int(times * needed / (1 - SELECTION_SHARE))
        budget = RunBudget(seconds=60.0, runs=runs, seed=(3, 0))
        found = run_attack(canary, deltas=[1e-3], failure=1e-4, budget=budget)
        return max(bound.epsilon for bound in found.bounds)

    assert measured(1.0) >= target > measured(0.1)


def test_no_number_of_runs_measures_more_than_the_exact_epsilon() -> None:
    rates = exact_rates(canaries(pure(2.0))["binary response"])
    assert rates is not None
    top = exact_epsilon(rates, 1e-3)
    assert runs_needed(rates, delta=1e-3, epsilon=top * 1.01, failure=1e-4) is None
    assert runs_needed((), delta=1e-3, epsilon=0.1, failure=1e-4) is None


def test_an_outcome_of_one_side_only_comes_first() -> None:
    remove, add = rates_from_outcomes(np.array([0.5, 0.5, 0.0]), np.array([0.0, 0.5, 0.5]))
    assert remove.true_positive[0] == 0.5
    assert remove.false_positive[0] == 0.0
    assert add.true_positive[0] == 0.5
    assert remove.epsilon(0.6) == pytest.approx(np.log(0.4 / 0.5), abs=1.0)


def test_observed_rates_are_those_of_the_distribution() -> None:
    canary = canaries(pure(2.0, slots=4))["binary response"]
    seen = TradeOffCurve.rates(canary.trials(300_000, np.random.default_rng(1)))
    known = exact_rates(canary)
    assert known is not None
    assert exact_epsilon(seen, 1e-3) == pytest.approx(exact_epsilon(known, 1e-3), rel=0.05)


@pytest.mark.parametrize("adjacency", Adjacency)
def test_unknown_distributions_have_no_exact_rates(adjacency: Adjacency) -> None:
    twice = canaries(pure(2.0, repeats=2, adjacency=adjacency))["binary response"]
    assert exact_rates(twice) is None
