"""A number that was asked for is printed as it was asked for; another is rounded to one side."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkins import formatting

ASKED = ["0.1", "0.3", "0.7", "0.8", "1.1", "2.3", "0.05", "0.001", "4.35", "8.41", "12.5"]


@pytest.mark.parametrize("text", ASKED)
def test_what_was_asked_for_is_printed_as_it_was_asked_for(text: str) -> None:
    epsilon = float(text)
    assert formatting.up(epsilon) == formatting.down(epsilon) == text
    assert formatting.up_in_full(epsilon) == formatting.up_for_page(epsilon) == text
    assert formatting.down_for_page(epsilon) == formatting.up(epsilon, 3) == text


@given(value=st.floats(1e-12, 1e6), digits=st.integers(2, 6))
def test_an_upper_bound_is_printed_no_smaller_than_it_is_written(value: float, digits: int) -> None:
    written, above = Decimal(repr(value)), Decimal(formatting.up(value, digits))
    assert above >= written >= Decimal(formatting.down(value, digits))
    assert Decimal(formatting.up_in_full(value, digits)) == above


@given(value=st.floats(1e-4, 1e6))
def test_a_page_shows_the_digits_of_a_terminal(value: float) -> None:
    shown = formatting.up_for_page(value), formatting.down_for_page(value)
    above, below = (Decimal(text.replace(",", "")) for text in shown)
    assert (above, below) == (Decimal(formatting.up(value)), Decimal(formatting.down(value)))
