"""Binomial windows and tails against 40-digit sums."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import binom

from checkins.accounting.exact.lattice_sum import ROUND_OFF, half_binomial_put, window
from checkins.accounting.exact.pure import PureAddRemove, PureCampaign

pytestmark = pytest.mark.slow

probabilities = st.one_of(st.floats(1e-6, 0.5), st.floats(0.5, 1 - 1e-6), st.just(0.5))


def shortfall(trials: float, y: float) -> float:
    return float(half_binomial_put(np.array([float(trials)]), np.array([float(y)]))[0])


def naive_shortfall(trials: int, y: float) -> mp.mpf:
    """E(y - B)+ from floor(y) downwards, until nothing more is added."""
    with mp.workdps(40):
        top = min(trials, math.floor(y))
        if top < 0:
            return mp.mpf(0)
        if trials == top:
            return mp.mpf(y) - mp.mpf(trials) / 2
        log_ways = mp.loggamma(trials + 1) - mp.loggamma(top + 1) - mp.loggamma(trials - top + 1)
        mass, total = mp.exp(log_ways - trials * mp.log(2)), mp.mpf(0)
        for count in range(top, -1, -1):
            term = mass * (mp.mpf(y) - count)
            total += term
            if count < top and term < total * mp.mpf(10) ** -22:
                break
            mass = mass * count / (trials - count + 1)
        return total


# Windows


@given(trials=st.integers(1, 3000), probability=probabilities, tail_exponent=st.floats(1.0, 100.0))
def test_a_window_leaves_out_no_more_than_it_says(
    trials: int, probability: float, tail_exponent: float
) -> None:
    seen = window(trials=trials, probability=probability, tail_exponent=tail_exponent)
    last = seen.first + len(seen.masses) - 1
    assert 0 <= seen.first <= last <= trials
    distribution = binom(trials, probability)
    allowed = math.exp(-tail_exponent) * (1 + 1e-9)
    assert distribution.cdf(seen.first - 1) <= allowed
    assert distribution.sf(last) <= allowed


def exact_masses(trials: int, probability: float) -> list[Fraction]:
    """The binomial distribution in exact fractions; a float is one."""
    p = Fraction(probability)
    return [math.comb(trials, k) * p**k * (1 - p) ** (trials - k) for k in range(trials + 1)]


@given(trials=st.integers(1, 60), probability=probabilities, tail_exponent=st.floats(1.0, 100.0))
@example(trials=60, probability=0.5, tail_exponent=1.0)
def test_each_end_outside_a_window_is_below_what_it_says_in_exact_fractions(
    trials: int, probability: float, tail_exponent: float
) -> None:
    seen = window(trials=trials, probability=probability, tail_exponent=tail_exponent)
    distribution = exact_masses(trials, probability)
    last = seen.first + len(seen.masses) - 1
    with mp.workdps(60):
        allowed = mp.exp(-mp.mpf(tail_exponent))
        for outside in (distribution[: seen.first], distribution[last + 1 :]):
            left_out = sum(outside, Fraction(0))
            assert mp.mpf(left_out.numerator) / left_out.denominator <= allowed


@given(trials=st.integers(1, 10**6), probability=probabilities, tail_exponent=st.floats(1.0, 100.0))
def test_a_window_ends_with_the_first_count_whose_exponent_exceeds_what_is_left_out(
    trials: int, probability: float, tail_exponent: float
) -> None:
    seen = window(trials=trials, probability=probability, tail_exponent=tail_exponent)
    last = seen.first + len(seen.masses) - 1

    def exponent(count: int) -> mp.mpf:
        with mp.workdps(40):
            share, p = mp.mpf(count) / trials, mp.mpf(probability)
            ways = ((share, p), (1 - share, 1 - p))
            return trials * sum((s * mp.log(s / q) for s, q in ways if s > 0), mp.mpf(0))

    slack = 1e-6 * tail_exponent
    if seen.first > 0:
        assert exponent(seen.first) > tail_exponent - slack
    if last < trials:
        assert exponent(last) > tail_exponent - slack
    if last > seen.first + 2:  # each end but the count that ends it is within
        assert exponent(seen.first + 1) <= tail_exponent + slack
        assert exponent(last - 1) <= tail_exponent + slack


@given(
    trials=st.integers(1, 40),
    local_epsilon=st.floats(0.01, 6.0),
    participation=st.floats(1e-3, 1.0),
    delta=st.floats(-15.0, -1.0).map(lambda power: 10.0**power),
)
def test_an_epsilon_from_a_window_is_true_of_the_whole_distribution(
    trials: int, local_epsilon: float, participation: float, delta: float
) -> None:
    """Every count, inside the window or not, in 60 digits."""
    found = PureAddRemove(PureCampaign(local_epsilon, trials, participation), delta=delta)
    with mp.workdps(60):
        b, p0 = mp.exp(mp.mpf(local_epsilon)), mp.mpf(participation)
        e, r = mp.exp(mp.mpf(found.upper_epsilon(delta))), 1 / (1 + b)
        removed = added = mp.mpf(0)
        for k in range(trials + 1):
            mass = mp.binomial(trials, k) * r**k * (1 - r) ** (trials - k)
            ratio = 1 - p0 + p0 * (k * b + (trials - k) / b) / trials
            removed += mass * max(mp.mpf(0), ratio - e)
            added += mass * max(mp.mpf(0), 1 - e * ratio)
        assert max(removed, added) <= delta


@given(trials=st.integers(1, 3000), probability=probabilities)
def test_masses_are_those_of_the_binomial_distribution(trials: int, probability: float) -> None:
    seen = window(trials=trials, probability=probability, tail_exponent=60.0)
    assert np.all(seen.masses >= 0.0)
    assert seen.masses.sum() == pytest.approx(1.0, abs=1e-12)
    assert seen.masses @ seen.counts == pytest.approx(trials * probability, rel=1e-9)
    np.testing.assert_allclose(
        seen.masses, binom(trials, probability).pmf(seen.counts), rtol=1e-8, atol=1e-250
    )


@pytest.mark.parametrize("trials", [10**6, 10**9])
@pytest.mark.parametrize("probability", [0.5, 0.25, 1e-5])
def test_masses_stay_accurate_for_a_billion_trials(trials: int, probability: float) -> None:
    seen = window(trials=trials, probability=probability, tail_exponent=60.0)
    with mp.workdps(40):
        p = mp.mpf(probability)
        for share in (0.3, 0.5, 0.8):
            at = int(share * (len(seen.masses) - 1))
            count = seen.first + at
            log_ways = (
                mp.loggamma(trials + 1) - mp.loggamma(count + 1) - mp.loggamma(trials - count + 1)
            )
            exact = mp.exp(log_ways + count * mp.log(p) + (trials - count) * mp.log(1 - p))
            assert float(seen.masses[at] / exact) == pytest.approx(1.0, abs=1e-8)


def test_a_window_of_a_billion_trials_is_short() -> None:
    assert len(window(trials=10**9, probability=0.3, tail_exponent=60.0).masses) < 350_000


@pytest.mark.parametrize("probability", [1e-130, 1e-16, 1 - 1e-16])
def test_extreme_probabilities_give_a_window_too(probability: float) -> None:
    seen = window(trials=1000, probability=probability, tail_exponent=60.0)
    assert np.all(np.isfinite(seen.masses))
    assert seen.masses.sum() == pytest.approx(1.0)


# Shortfalls


@given(trials=st.integers(0, 400), share=st.floats(-0.2, 1.2))
def test_the_shortfall_is_the_naive_sum(trials: int, share: float) -> None:
    y = share * trials
    expected = float(naive_shortfall(trials, y))
    assert shortfall(trials, y) == pytest.approx(expected, rel=ROUND_OFF / 10, abs=1e-200)


@given(trials=st.integers(1, 60), count=st.integers(0, 60), nudge=st.floats(-1e-9, 1e-9))
def test_the_shortfall_is_continuous_at_integers(trials: int, count: int, nudge: float) -> None:
    assert shortfall(trials, count + nudge) == pytest.approx(
        float(naive_shortfall(trials, count + nudge)), rel=1e-9, abs=1e-30
    )


@pytest.mark.parametrize(
    "trials", [10**4, 10**6, 10**8, pytest.param(10**9, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("deviates", [4.0, 8.0])
def test_the_shortfall_keeps_its_round_off_far_in_the_tail(trials: int, deviates: float) -> None:
    """What ROUND_OFF promises, down to 1e-16 and up to a billion trials."""
    y = trials / 2 - deviates * math.sqrt(trials) / 2 + 0.37
    exact = naive_shortfall(trials, y)
    assert shortfall(trials, y) == pytest.approx(float(exact), rel=ROUND_OFF)


@given(trials=st.integers(0, 10**6), y=st.floats(-10.0, 10**6))
def test_the_shortfall_lies_between_its_jensen_bound_and_its_reach(trials: int, y: float) -> None:
    found = shortfall(trials, y)
    assert max(0.0, y - trials / 2) * (1 - 1e-12) <= found <= max(0.0, y)


@given(trials=st.integers(0, 10**6), share=st.floats(-0.1, 1.1), more=st.integers(0, 1000))
def test_more_trials_around_one_centre_fall_short_by_more(
    trials: int, share: float, more: int
) -> None:
    """The blocks of counts rely on it: centred, the distribution grows with the trials."""
    y = share * trials
    fewer, longer = shortfall(trials, y), shortfall(trials + more, y + more / 2)
    assert fewer <= longer * (1 + 1e-9) + 1e-12
