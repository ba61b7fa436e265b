"""A number that was asked for is printed as it was asked for; another is rounded to one side."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkins.cli import digits
from checkins.planning import sensitivity
from checkins.service import view
from checkins.simulation.report import numbers

ASKED = ["0.1", "0.3", "0.7", "0.8", "1.1", "2.3", "0.05", "0.001", "4.35", "8.41", "12.5"]


@pytest.mark.parametrize("text", ASKED)
def test_what_was_asked_for_is_printed_as_it_was_asked_for(text: str) -> None:
    epsilon = float(text)
    assert digits.up(epsilon) == digits.down(epsilon) == text
    assert view.rounded_up(epsilon) == numbers.up(epsilon) == text
    assert sensitivity.rounded_up(epsilon) == text


@given(value=st.floats(1e-12, 1e6), figures=st.integers(2, 6))
def test_an_upper_bound_is_printed_no_smaller_than_it_is_written(
    value: float, figures: int
) -> None:
    written = Decimal(repr(value))
    assert Decimal(digits.up(value, figures)) >= written >= Decimal(digits.down(value, figures))
    assert Decimal(view.rounded_up(value, digits=figures)) >= written
    assert Decimal(sensitivity.rounded_up(value)) >= written


@given(value=st.floats(1e-12, 1e6))
def test_every_place_rounds_up_to_the_same_digits(value: float) -> None:
    shown = Decimal(digits.up(value))
    assert Decimal(view.rounded_up(value)) == shown
    assert Decimal(sensitivity.rounded_up(value)) == Decimal(digits.up(value, 3))
