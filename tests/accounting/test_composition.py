"""Several campaigns: two ways for replace-one, and both are upper bounds."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkins.accounting import composition
from checkins.accounting.exact.dominating_pair import triangle_bound
from tests.accounting.designs import ADD_REMOVE, REPLACE_ONE, at_server


@settings(max_examples=200, deadline=None)
@given(
    absent=st.lists(st.floats(0.01, 1.0), min_size=3, max_size=3),
    first=st.lists(st.floats(0.01, 1.0), min_size=3, max_size=3),
    other=st.lists(st.floats(0.01, 1.0), min_size=3, max_size=3),
    epsilon=st.floats(0.0, 5.0),
)
def test_the_detour_is_no_smaller_than_the_way_between_any_two(
    absent: list[float], first: list[float], other: list[float], epsilon: float
) -> None:
    """Three distributions on three outcomes: the triangle of hockey sticks, by its definition."""
    nobody, one, two = (
        [each / sum(distribution) for each in distribution]
        for distribution in (absent, first, other)
    )

    def apart(a: list[float], b: list[float], at: float) -> float:
        return sum(max(0.0, x - math.exp(at) * y) for x, y in zip(a, b, strict=True))

    class Known:
        def remove(self, at: float) -> float:
            return max(apart(one, nobody, at), apart(two, nobody, at))

        def add(self, at: float) -> float:
            return max(apart(nobody, one, at), apart(nobody, two, at))

    most = triangle_bound(Known())(epsilon)  # type: ignore[arg-type]
    assert most >= apart(one, two, epsilon) - 1e-12
    assert most >= apart(two, one, epsilon) - 1e-12


@pytest.mark.parametrize("delta", [0.5, 0.9])
def test_a_large_delta_has_an_epsilon_too(delta: float) -> None:
    found = composition.Composition((at_server(1.0, 10),), REPLACE_ONE, 2).epsilon(delta)
    added = composition.Composition((at_server(1.0, 10),), ADD_REMOVE, 2).epsilon(delta)
    assert added.lower <= found.upper < 1.0


def test_clients_that_hardly_ever_come_cost_hardly_more_than_coming_and_leaving() -> None:
    """Composing curves loses here: 0.0465, where the detour proves 0.0134."""
    design = at_server(0.4646, slots=1, participation=4.42121e-06)
    found = composition.Composition((design,), REPLACE_ONE, 100).upper_epsilon(1.5e-6)
    assert found < 0.02
