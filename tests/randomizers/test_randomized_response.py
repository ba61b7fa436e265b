"""k-ary randomized response: every probability ratio, enumerated."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkins.accounting import LocalRandomizer
from checkins.errors import InvalidValue
from checkins.randomizers import RandomizedResponse
from tests.randomizers import strategies


def exact_law(response: RandomizedResponse, true: int | None) -> list[Fraction]:
    """Probability of each reported category as the samplers use it; None is the dummy."""
    k, lie = response.categories, Fraction(response.lie_probability)
    if true is None:
        return [Fraction(1, k)] * k
    return [1 - lie if c == true else lie / (k - 1) for c in range(k)]


def log_ratio(above: Fraction, below: Fraction) -> mpmath.mpf:
    return mpmath.log(mpmath.mpf(above.numerator) / above.denominator) - mpmath.log(
        mpmath.mpf(below.numerator) / below.denominator
    )


@given(k=st.integers(2, 6), local_epsilon=strategies.local_epsilons)
def test_no_probability_ratio_is_above_epsilon_dummies_included(
    k: int, local_epsilon: float
) -> None:
    response = RandomizedResponse(k, local_epsilon)
    laws = [exact_law(response, true) for true in [*range(k), None]]
    assert all(sum(law) == 1 for law in laws)
    with mpmath.workdps(120):
        worst = max(
            log_ratio(here[c], there[c]) for here in laws for there in laws for c in range(k)
        )
        assert worst <= local_epsilon
        assert worst >= local_epsilon * (1 - 1e-8)


@given(response=strategies.responses)
def test_any_number_of_categories_keeps_its_promise(response: RandomizedResponse) -> None:
    lie = Fraction(response.lie_probability)
    with mpmath.workdps(120):
        assert log_ratio(1 - lie, lie / (response.categories - 1)) <= response.local_epsilon


@given(k=st.integers(2, 50), local_epsilon=strategies._powers(1e-3, 30.0))
def test_the_vector_is_unbiased_and_its_variance_is_the_documented_one(
    k: int, local_epsilon: float
) -> None:
    response = RandomizedResponse(k, local_epsilon)
    law = np.array([float(chance) for chance in exact_law(response, 0)])
    vectors = np.full((k, k), response.other_entry) + (
        response.reported_entry - response.other_entry
    ) * np.eye(k)
    truth = np.eye(k)[0]
    np.testing.assert_allclose(law @ vectors, truth, atol=1e-9)
    spread = law @ ((vectors - truth) ** 2).sum(axis=1)
    assert response.variance(dimension=k) == pytest.approx(spread, rel=1e-9)
    np.testing.assert_allclose(vectors.sum(axis=1), 1.0, atol=1e-9)


def test_two_categories_are_warners_coin() -> None:
    coin = RandomizedResponse(2, math.log(3.0))
    assert coin.truth_probability == pytest.approx(0.75)
    assert coin.privacy_spec == LocalRandomizer(math.log(3.0))


@pytest.mark.parametrize("bad", [0, 1, -3, 2.0, 2**31, True, None])
def test_too_few_or_too_many_categories_are_refused(bad: object) -> None:
    with pytest.raises(InvalidValue, match=r"^categories = "):
        RandomizedResponse(categories=bad, local_epsilon=1.0)


@pytest.mark.parametrize("bad", [0.0, 1e-7, -1.0, math.nan, math.inf, 101.0])
def test_an_epsilon_outside_its_range_is_refused(bad: float) -> None:
    with pytest.raises(InvalidValue, match=r"^local_epsilon = "):
        RandomizedResponse(categories=2, local_epsilon=bad)


def test_variance_is_for_one_hot_vectors_only() -> None:
    response = RandomizedResponse(3, 1.0)
    with pytest.raises(InvalidValue, match=r"^dimension = 4"):
        response.variance(dimension=4)
    with pytest.raises(InvalidValue, match=r"^norm = 0.5"):
        response.variance(dimension=3, norm=0.5)


def test_many_categories_and_little_budget_leave_little_bias() -> None:
    """A double below 1 has 2^-53 at most to tell a keep of 6e-10 by."""
    response = RandomizedResponse(1_655_281_773, 1.404973222103e-06)
    truth = (
        response.truth_probability * response.reported_entry
        + response.lie_probability * response.other_entry
    )
    assert abs(truth - 1.0) < 0.1
    assert response.truth_probability > 1.0 / response.categories * (1 - 1e-6)
