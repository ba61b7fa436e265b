"""Masses of the rounded normal law, against 700-bit arithmetic."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from math import floor

import mpmath as mp
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from checkins.randomizers.exact_sampling import (
    BITS,
    LEAST_SCALE,
    MASS_ERROR,
    REACH,
    RoundedNormal,
    terms,
)

scales = st.one_of(
    st.integers(LEAST_SCALE, 10**9).map(Fraction),
    st.floats(LEAST_SCALE, 1e9).map(Fraction),
    st.floats(LEAST_SCALE, 10.0).map(Fraction),
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


@given(scale=scales, at=st.fractions(-REACH, REACH, max_denominator=10**9))
@example(scale=Fraction(3), at=Fraction(0))
@example(scale=Fraction(3), at=Fraction(14))
@example(scale=Fraction(10**9), at=Fraction(14))
def test_no_mass_is_off_by_more_than_its_error(scale: Fraction, at: Fraction) -> None:
    k = floor(at * scale) if at >= 0 else -floor(-at * scale)
    with mp.workprec(900):
        assert abs(RoundedNormal(scale).mass(k) - exact(scale, k) * 2**BITS) <= MASS_ERROR


@given(scale=scales, at=st.fractions(0, REACH, max_denominator=10**9))
def test_the_law_is_symmetric(scale: Fraction, at: Fraction) -> None:
    law, k = RoundedNormal(scale), floor(at * scale)
    assert law.mass(k) == law.mass(-k)


@pytest.mark.parametrize("scale", [Fraction(3), Fraction(10, 3), Fraction(20)])
def test_the_masses_sum_to_one_but_for_the_tail(scale: Fraction) -> None:
    law, most = RoundedNormal(scale), floor(REACH * scale)
    total = law.mass(0) + 2 * sum(law.mass(k) for k in range(1, most + 1))
    with mp.workprec(900):
        beyond = mp.erfc((most + mp.mpf(0.5)) / mp.sqrt(2) / scale.numerator * scale.denominator)
        missing = (1 << BITS) - total
        assert abs(missing - beyond * 2**BITS) <= (2 * most + 1) * MASS_ERROR


@pytest.mark.parametrize("scale", [3, 4, 100, 10**8])
def test_the_series_stops_where_cramers_bound_is_below_a_unit(scale: int) -> None:
    n = terms(scale) - 1
    with mp.workprec(900):
        assert n % 2 == 0
        assert mp.mpf(2 * scale) ** -n / mp.sqrt(mp.factorial(n)) < mp.mpf(2) ** -BITS
