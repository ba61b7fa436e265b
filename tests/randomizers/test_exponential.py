"""Exponentials in whole numbers, against 700-bit arithmetic."""

from __future__ import annotations

from fractions import Fraction

import mpmath as mp
from hypothesis import example, given
from hypothesis import strategies as st

from checkins.randomizers.exact_sampling import BITS, DECAY_ERROR, at_most_decay, decay

losses = st.one_of(
    st.fractions(0, 1200, max_denominator=10**30),
    st.integers(0, 400).map(lambda power: Fraction(1, 2**power)),
    st.floats(0, 100).map(Fraction),
)


def exact(loss: Fraction) -> mp.mpf:
    return mp.exp(-mp.mpf(loss.numerator) / loss.denominator) * mp.mpf(2) ** BITS


@given(losses)
@example(Fraction(0))
@example(Fraction(1024))
@example(Fraction(1, 256))
@example(Fraction(1, 255))
@example(Fraction(2**400 - 1, 2**400))
def test_no_value_is_off_by_more_than_its_error(loss: Fraction) -> None:
    with mp.workprec(900):
        found = decay(loss.numerator, loss.denominator)
        assert abs(found - exact(loss)) <= DECAY_ERROR
    assert 0 <= found <= 1 << BITS


@given(losses)
def test_a_fraction_need_not_be_in_lowest_terms(loss: Fraction) -> None:
    a, b = loss.numerator, loss.denominator
    assert abs(decay(6 * a, 6 * b) - decay(a, b)) <= DECAY_ERROR


@given(losses)
def test_the_upper_bound_is_above_and_close(loss: Fraction) -> None:
    with mp.workprec(900):
        above = at_most_decay(loss) * (1 << BITS)
        assert above.denominator == 1
        assert exact(loss) <= above.numerator <= exact(loss) + 2 * DECAY_ERROR


def test_nothing_decays_to_one() -> None:
    assert decay(0, 1) == 1 << BITS
