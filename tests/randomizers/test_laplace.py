"""Laplace noise: the density ratio, exactly."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkins.accounting import LocalRandomizer
from checkins.errors import InvalidValue
from checkins.randomizers import Laplace
from tests.randomizers import strategies

rationals = st.fractions(min_value=-3, max_value=3)
vectors = st.lists(st.tuples(rationals, rationals, rationals), min_size=1, max_size=4)


def l1(vector: list[Fraction]) -> Fraction:
    return sum((abs(x) for x in vector), Fraction(0))


def clipped(vector: list[Fraction], clip: Fraction) -> list[Fraction]:
    norm = l1(vector)
    return vector if norm <= clip else [x * clip / norm for x in vector]


@given(noise=strategies.laplaces, points=vectors)
def test_the_density_ratio_of_two_reports_is_never_above_epsilon_exactly(
    noise: Laplace, points: list[tuple[Fraction, Fraction, Fraction]]
) -> None:
    """Log densities differ by (|y - b| - |y - a|)/scale: rational, so no rounding is involved."""
    clip, scale = Fraction(noise.clip), Fraction(noise.scale)
    a = clipped([p[0] * clip for p in points], clip)
    b = clipped([p[1] * clip for p in points], clip)
    y = [5 * p[2] * clip for p in points]
    loss = (
        l1([s - t for s, t in zip(y, b, strict=True)])
        - l1([s - t for s, t in zip(y, a, strict=True)])
    ) / scale
    assert loss <= Fraction(noise.local_epsilon)


@given(noise=strategies.laplaces)
def test_epsilon_is_attained_but_for_rounding_and_half_of_it_by_a_dummy(noise: Laplace) -> None:
    attained = 2 * Fraction(noise.clip) / Fraction(noise.scale)
    assert attained <= Fraction(noise.local_epsilon)
    assert attained >= Fraction(noise.local_epsilon) * (1 - Fraction(1, 2**50))


def test_the_accountant_prices_a_pure_randomizer() -> None:
    assert Laplace(clip=3.0, local_epsilon=0.5).privacy_spec == LocalRandomizer(0.5)


def test_variance_is_that_of_every_coordinate_and_there_is_no_bias() -> None:
    noise = Laplace(clip=2.0, local_epsilon=0.5)
    assert noise.variance(dimension=3) == pytest.approx(3 * 2 * 8.0**2, rel=1e-14)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, "1", None, True])
@pytest.mark.parametrize("name", ["clip", "local_epsilon"])
def test_a_value_outside_its_range_is_refused_by_name(name: str, bad: object) -> None:
    with pytest.raises(InvalidValue, match=rf"^{name} = "):
        Laplace(**{"clip": 1.0, "local_epsilon": 1.0, name: bad})


@pytest.mark.parametrize(("clip", "local_epsilon"), [(1e300, 1e-300), (1.0, 101.0)])
def test_noise_that_cannot_be_priced_or_held_is_refused(clip: float, local_epsilon: float) -> None:
    with pytest.raises(InvalidValue):
        Laplace(clip=clip, local_epsilon=local_epsilon)
