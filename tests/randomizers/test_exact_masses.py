"""Exponentials and masses of the rounded normal distribution, against 700-bit arithmetic."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from math import floor

import mpmath as mp
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from checkins.randomizers.exact_sampling import (
    EXPONENTIAL_ERROR,
    FRACTION_BITS,
    MASS_ERROR,
    MASS_RANGE_DEVIATIONS,
    MIN_SCALE,
    RoundedNormal,
    exp_minus,
    exp_minus_rounded_up,
    series_length,
)

losses = st.one_of(
    st.fractions(0, 1200, max_denominator=10**30),
    st.integers(0, 400).map(lambda power: Fraction(1, 2**power)),
    st.floats(0, 100).map(Fraction),
)


def exact_exponential(loss: Fraction) -> mp.mpf:
    return mp.exp(-mp.mpf(loss.numerator) / loss.denominator) * mp.mpf(2) ** FRACTION_BITS


@given(losses)
@example(Fraction(0))
@example(Fraction(1024))
@example(Fraction(1, 256))
@example(Fraction(1, 255))
@example(Fraction(2**400 - 1, 2**400))
def test_no_value_is_off_by_more_than_its_error(loss: Fraction) -> None:
    with mp.workprec(900):
        found = exp_minus(loss.numerator, loss.denominator)
        assert abs(found - exact_exponential(loss)) <= EXPONENTIAL_ERROR
    assert 0 <= found <= 1 << FRACTION_BITS


@given(losses)
def test_a_fraction_need_not_be_in_lowest_terms(loss: Fraction) -> None:
    a, b = loss.numerator, loss.denominator
    assert abs(exp_minus(6 * a, 6 * b) - exp_minus(a, b)) <= EXPONENTIAL_ERROR


@given(losses)
def test_the_upper_bound_is_above_and_close(loss: Fraction) -> None:
    with mp.workprec(900):
        above = exp_minus_rounded_up(loss) * (1 << FRACTION_BITS)
        assert above.denominator == 1
        assert (
            exact_exponential(loss)
            <= above.numerator
            <= exact_exponential(loss) + 2 * EXPONENTIAL_ERROR
        )


def test_nothing_decays_to_one() -> None:
    assert exp_minus(0, 1) == 1 << FRACTION_BITS


scales = st.one_of(
    st.integers(MIN_SCALE, 10**9).map(Fraction),
    st.floats(MIN_SCALE, 1e9).map(Fraction),
    st.floats(MIN_SCALE, 10.0).map(Fraction),
)


def exact(scale: Fraction, k: int) -> mp.mpf:
    """P(round(Y) = k), at any precision asked for."""
    s = mp.mpf(scale.numerator) / scale.denominator * mp.sqrt(2)
    low, high = (mp.mpf(2 * k - 1) / 2) / s, (mp.mpf(2 * k + 1) / 2) / s
    return (mp.erfc(low) - mp.erfc(high)) / 2


def exact_sizes(scale: Fraction, most: int) -> list[mp.mpf]:
    """P(|round(Y)| = k) for k = 0..most, and what is beyond."""
    s = mp.mpf(scale.numerator) / scale.denominator * mp.sqrt(2)
    tails = [mp.mpf(1), *(mp.erfc((k + mp.mpf(0.5)) / s) for k in range(most + 1))]
    return [high - low for high, low in pairwise(tails)] + [tails[-1]]


@given(
    scale=scales,
    at=st.fractions(-MASS_RANGE_DEVIATIONS, MASS_RANGE_DEVIATIONS, max_denominator=10**9),
)
@example(scale=Fraction(3), at=Fraction(0))
@example(scale=Fraction(3), at=Fraction(14))
@example(scale=Fraction(10**9), at=Fraction(14))
def test_no_mass_is_off_by_more_than_its_error(scale: Fraction, at: Fraction) -> None:
    k = floor(at * scale) if at >= 0 else -floor(-at * scale)
    with mp.workprec(900):
        assert abs(RoundedNormal(scale).mass(k) - exact(scale, k) * 2**FRACTION_BITS) <= MASS_ERROR


@given(scale=scales, at=st.fractions(0, MASS_RANGE_DEVIATIONS, max_denominator=10**9))
def test_the_law_is_symmetric(scale: Fraction, at: Fraction) -> None:
    law, k = RoundedNormal(scale), floor(at * scale)
    assert law.mass(k) == law.mass(-k)


@pytest.mark.parametrize("scale", [Fraction(3), Fraction(10, 3), Fraction(20)])
def test_the_masses_sum_to_one_but_for_the_tail(scale: Fraction) -> None:
    law, most = RoundedNormal(scale), floor(MASS_RANGE_DEVIATIONS * scale)
    total = law.mass(0) + 2 * sum(law.mass(k) for k in range(1, most + 1))
    with mp.workprec(900):
        beyond = mp.erfc((most + mp.mpf(0.5)) / mp.sqrt(2) / scale.numerator * scale.denominator)
        missing = (1 << FRACTION_BITS) - total
        assert abs(missing - beyond * 2**FRACTION_BITS) <= (2 * most + 1) * MASS_ERROR


@pytest.mark.parametrize("scale", [3, 4, 100, 10**8])
def test_the_series_stops_where_cramers_bound_is_below_a_unit(scale: int) -> None:
    n = series_length(scale) - 1
    with mp.workprec(900):
        assert n % 2 == 0
        assert mp.mpf(2 * scale) ** -n / mp.sqrt(mp.factorial(n)) < mp.mpf(2) ** -FRACTION_BITS
