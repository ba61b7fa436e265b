"""One run with many canaries: how many guesses can be right if a certificate is true."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from checkins.accounting import Adjacency
from checkins.audit import certificate_at
from checkins.audit.one_run import GuessedBound, OneRunAudit, tail_probability
from checkins.errors import InvalidValue, NotCovered
from tests.audit.campaigns import BANDS, gaussian, pure


def written_out(correct: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """The theorem as its text has it, sum by sum."""
    law = binom(guesses, math.exp(epsilon) / (1 + math.exp(epsilon)))
    beta = sum(law.pmf(w) for w in range(correct, guesses + 1))
    shares = [
        sum(law.pmf(w) for w in range(max(0, correct - i), correct)) / i
        for i in range(1, correct + 1)
    ]
    chance = beta + 2 * canaries * delta * max(shares, default=0.0)
    return 1.0 if delta > 0.0 and chance >= 0.5 else chance  # the lower tail is not covered


@given(
    canaries=st.integers(1, 40),
    share=st.floats(0.0, 1.0),
    right=st.floats(0.0, 1.0),
    epsilon=st.floats(0.0, 6.0),
    delta=st.sampled_from([0.0, 1e-6, 1e-3, 0.1]),
)
def test_the_tail_probability_is_the_theorems(
    canaries: int, share: float, right: float, epsilon: float, delta: float
) -> None:
    guesses = round(share * canaries)
    correct = round(right * guesses)
    found = tail_probability(
        correct, guesses=guesses, canaries=canaries, epsilon=epsilon, delta=delta
    )
    expected = written_out(correct, guesses, canaries, epsilon, delta) if correct else 1.0
    if expected < 0.4999 or delta == 0.0:  # at the edge of the tail either is right
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-300)
    else:
        assert found == 1.0 or found == pytest.approx(expected)


@pytest.mark.parametrize("epsilon", [0.0, 0.7, 2.0])
def test_independent_responses_attain_it(epsilon: float) -> None:
    """All coins and all answers of five canaries, enumerated; each answer is guessed."""
    keep = math.exp(epsilon) / (1 + math.exp(epsilon))
    for correct in range(6):
        exact = 0.0
        for truth in itertools.product((0, 1), repeat=5):
            for told in itertools.product((0, 1), repeat=5):
                same = sum(a == b for a, b in zip(truth, told, strict=True))
                if same >= correct:
                    exact += keep**same * (1 - keep) ** (5 - same) / 32
        found = tail_probability(correct, guesses=5, canaries=5, epsilon=epsilon, delta=0.0)
        assert found == pytest.approx(exact)


def test_a_mechanism_that_fails_with_probability_delta_stays_below_it() -> None:
    """Names all coins with probability δ', else answers at random: (0, δ')-DP, and allowed for."""
    delta, canaries = 0.01, 6
    for correct in range(1, canaries + 1):
        fair = binom.sf(correct - 1, canaries, 0.5)
        told = delta + (1 - delta) * fair
        allowed = tail_probability(
            correct, guesses=canaries, canaries=canaries, epsilon=0.0, delta=delta
        )
        assert told <= allowed


@given(correct=st.integers(1, 30), epsilon=st.floats(0.0, 4.0), more=st.floats(0.0, 2.0))
def test_a_larger_epsilon_and_a_larger_delta_allow_more(
    correct: int, epsilon: float, more: float
) -> None:
    def chance(epsilon: float, delta: float) -> float:
        return tail_probability(correct, guesses=30, canaries=40, epsilon=epsilon, delta=delta)

    assert chance(epsilon, 0.0) <= chance(epsilon + more, 0.0) + 1e-12
    assert chance(epsilon, 1e-5) <= chance(epsilon, 1e-3) + 1e-12


@given(correct=st.integers(0, 50), failure=st.sampled_from([0.05, 1e-4]))
def test_the_bound_is_where_the_tail_probability_falls_below_the_failure(
    correct: int, failure: float
) -> None:
    asked = {"guesses": 50, "canaries": 80, "delta": 1e-6}
    bound = GuessedBound(correct, failure=failure, canary="x", **asked)  # type: ignore[arg-type]
    if bound.epsilon > 0.0:
        below, above = bound.epsilon * (1 - 1e-6), bound.epsilon * (1 + 1e-6)
        assert tail_probability(correct, epsilon=below, **asked) < failure  # type: ignore[arg-type]
        assert tail_probability(correct, epsilon=above, **asked) >= failure * (1 - 1e-6)  # type: ignore[arg-type]
    else:
        assert tail_probability(correct, epsilon=0.0, **asked) >= failure  # type: ignore[arg-type]


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(InvalidValue, match="correct = 6"):
        tail_probability(6, guesses=5, canaries=9, epsilon=1.0, delta=0.0)


CAMPAIGNS = {
    "loud": gaussian(0.25, slots=4, delta=1e-6),
    "opposites": gaussian(0.25, slots=4, delta=1e-6, adjacency=Adjacency.REPLACE_ONE),
    "capacity": gaussian(0.5, slots=5, capacity=50, delta=1e-6),
    "half": gaussian(0.5, slots=3, participation=0.5, delta=1e-6),
    "response": pure(6.0, slots=40, capacity=10, delta=1e-6),
    "other data": pure(6.0, slots=40, capacity=10, delta=1e-6, adjacency=Adjacency.REPLACE_ONE),
    "privunit": pure(6.0, slots=40, capacity=10, dimension=3, delta=1e-6),
    "privunit, other data": pure(
        6.0, slots=40, capacity=10, dimension=1, delta=1e-6, adjacency=Adjacency.REPLACE_ONE
    ),
    "sliding": pure(3.0, slots=20, window=5, capacity=20, delta=1e-6),
    "twice": gaussian(0.5, slots=3, delta=1e-6, repeats=2),
    "correlated": gaussian(0.5, slots=6, delta=1e-6, strategy=BANDS),
    "correlated, loud": gaussian(0.25, slots=4, delta=1e-6, strategy=BANDS),
}


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_a_correct_run_never_contradicts_its_certificate(name: str) -> None:
    """Twelve campaigns; a fresh seed fails with probability below 1e-10 for each."""
    campaign = CAMPAIGNS[name]
    attack = OneRunAudit.of(campaign, canaries=300)
    bounds = attack.bounds(deltas=[1e-6], failure=1e-10, generator=np.random.default_rng(5))
    certified = certificate_at(campaign, 1e-6).epsilon
    assert max(bound.epsilon for bound in bounds) <= certified


@pytest.mark.parametrize("name", ["loud", "opposites", "correlated, loud"])
def test_little_noise_is_seen_in_one_run(name: str) -> None:
    attack = OneRunAudit.of(CAMPAIGNS[name])
    bounds = attack.bounds(deltas=[1e-6], failure=1e-4, generator=np.random.default_rng(5))
    assert max(bound.epsilon for bound in bounds) > 2.0


def test_a_run_with_privunit_counts_the_reports_in_each_cap() -> None:
    """Without dummies and with every client used, a cap has its own reports, and lies."""
    campaign = pure(50.0, slots=1, capacity=100, dimension=1, adjacency=Adjacency.REPLACE_ONE)
    attack = OneRunAudit(campaign, 100)
    coins = np.arange(100) < 30  # 15 canaries of each cap stay, 35 of each change to the other
    scores = attack.scores(coins, np.random.default_rng(1))
    assert np.all(scores == 0.0)
    coins[1:30:2] = False  # now 15 + 35 + 15 canaries are in the first cap
    scores = attack.scores(coins, np.random.default_rng(1))
    assert np.all(scores == np.where(np.arange(100) % 2 == 0, 30.0, -30.0))


def test_there_are_no_more_canaries_than_clients_declared() -> None:
    from checkins.accounting import Population

    campaign = gaussian(1.0, capacity=50, population=Population(20, 30))
    assert OneRunAudit.of(campaign).canaries == 30


def test_averaged_updates_are_refused() -> None:
    campaign = pure(contributors=10, adjacency=Adjacency.REPLACE_ONE)
    with pytest.raises(NotCovered, match="averaged"):
        OneRunAudit.of(campaign)
