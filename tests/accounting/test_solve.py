"""The inverse of a falling function: always the safe side, whatever the function's shape."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkins.accounting.design import MOST_EPSILON
from checkins.accounting.exact.campaign_divergence import UnlessOverflow
from checkins.accounting.solve import Interval, crossing

Curve = Callable[[float], float]
targets = st.floats(-300.0, -0.01).map(lambda power: 10.0**power)
guesses = st.floats(-14.0, 3.9).map(lambda power: 10.0**power)
precisions = st.sampled_from([1e-3, 1e-6, 1e-9])


class Counted:
    """Remembers how often a curve was asked."""

    def __init__(self, curve: Curve) -> None:
        self.curve, self.asked = curve, 0

    def __call__(self, x: float) -> float:
        assert x >= 0.0
        self.asked += 1
        assert self.asked < 10_000, "the search does not end"
        return self.curve(x)


@st.composite
def falling_curves(draw: st.DrawFn) -> Curve:
    """Smooth, stepped, flat in places, or exactly zero beyond a point."""
    scale = 10.0 ** draw(st.floats(-12.0, 3.0))
    power = draw(st.sampled_from([0.3, 1.0, 2.0, 8.0]))
    shape = draw(st.sampled_from(["smooth", "steps", "zero tail", "cliff", "flat then smooth"]))
    if shape == "smooth":
        return lambda x: math.exp(-((x / scale) ** power)) if x / scale < 1e30 else 0.0
    if shape == "steps":
        return lambda x: 2.0 ** -math.floor(min(x / scale, 1500.0))
    if shape == "zero tail":
        return lambda x: max(0.0, 1.0 - x / scale)
    if shape == "cliff":
        return lambda x: 1.0 if x < scale else 0.0
    return lambda x: math.exp(-max(0.0, min(x / scale - 1.0, 1500.0)))


@given(curve=falling_curves(), target=targets, guess=guesses, precision=precisions)
def test_the_bracket_is_on_the_safe_side_for_every_falling_function(
    curve: Curve, target: float, guess: float, precision: float
) -> None:
    found = crossing(curve, target, guess=guess, precision=precision)
    assert 0.0 <= found.lower <= found.upper
    if math.isfinite(found.upper):
        assert curve(found.upper) <= target
        assert found.upper - found.lower <= precision * found.upper
    else:
        assert curve(found.lower) > target
        assert curve(MOST_EPSILON / 4) > target
    if found.lower > 0.0:
        assert curve(found.lower) > target


@given(curve=falling_curves(), target=targets, guess=guesses)
def test_no_search_is_long(curve: Curve, target: float, guess: float) -> None:
    counted = Counted(curve)
    crossing(counted, target, guess=guess, precision=1e-9)
    assert counted.asked <= 160


@pytest.mark.parametrize("precision", [1e-4, 1e-9])
@pytest.mark.parametrize("off", [0.5, 0.9, 1.0, 1.1, 2.0])
def test_a_fair_guess_of_a_smooth_curve_needs_few_evaluations(precision: float, off: float) -> None:
    """Every evaluation of a replace-one curve builds a distribution: they must be few."""
    counted = Counted(lambda x: math.erfc(3.0 * x))
    root = crossing(counted.curve, 1e-6, guess=1.0, precision=1e-12).upper
    counted.asked = 0
    crossing(counted, 1e-6, guess=off * root, precision=precision)
    assert counted.asked <= 16


def test_nothing_is_needed_where_zero_already_suffices() -> None:
    assert crossing(lambda x: 1e-7, 1e-6, guess=1.0, precision=1e-9) == Interval(0.0, 0.0)


def test_a_curve_that_never_falls_far_enough_has_no_epsilon() -> None:
    assert crossing(lambda x: 0.5, 0.1, guess=1.0, precision=1e-9).upper == math.inf


def test_a_curve_exactly_at_the_target_counts_as_there() -> None:
    found = crossing(lambda x: 0.5 if x < 3.0 else 0.25, 0.25, guess=1.0, precision=1e-9)
    assert found.lower < 3.0 <= found.upper <= 3.0 * (1 + 1e-9)


def test_a_curve_that_drops_at_once_costs_next_to_nothing() -> None:
    curve = Counted(lambda x: 1.0 if x <= 0.0 else 0.0)
    found = crossing(curve, 0.5, guess=1.0, precision=1e-9)
    assert 0.0 <= found.lower <= found.upper < 1e-9


def test_a_search_given_wrongly_that_zero_is_above_still_ends() -> None:
    """A calibration learns it from a coarse grid; on the fine one it may no longer be so."""
    curve = Counted(lambda x: 1e-7)
    found = crossing(curve, 1e-6, guess=1.0, precision=1e-5, surely_above_at_zero=True)
    assert found.lower == 0.0
    assert found.upper < 1e-5


class Curves:
    """A divergence with a given curve above and the same, a little smaller, below."""

    def __init__(self, curve: Curve, gap: float) -> None:
        self.curve, self.gap = curve, gap

    def upper(self, epsilon: float) -> float:
        return self.curve(epsilon)

    def lower(self, epsilon: float) -> float:
        return self.curve(epsilon) * (1.0 - self.gap)

    def epsilon(self, delta: float) -> Interval:
        upper = crossing(self.upper, delta, guess=1.0, precision=1e-6).upper
        return Interval(crossing(self.lower, delta, guess=1.0, precision=1e-6).lower, upper)

    def upper_epsilon(self, delta: float) -> float:
        return self.epsilon(delta).upper


def test_a_rare_case_adds_its_share_of_delta_above_and_nothing_below() -> None:
    usual, rare = Curves(lambda x: math.exp(-x), 0.0), Curves(lambda x: 0.5, 0.0)
    mixed = UnlessOverflow(usual, rare, probability=0.1)
    assert mixed.upper(1.0) == pytest.approx(math.exp(-1.0) + 0.05)
    assert mixed.lower(1.0) == pytest.approx(math.exp(-1.0))


@given(
    scale=st.floats(0.1, 5.0),
    more=st.floats(1.0, 10.0),
    probability=st.one_of(st.just(0.0), st.floats(-20.0, 0.0).map(lambda power: 10.0**power)),
    gap=st.floats(0.0, 0.5),
    target=st.sampled_from([1e-3, 1e-6, 1e-12]),
)
def test_a_rare_case_is_rounded_to_the_safe_side(
    scale: float, more: float, probability: float, gap: float, target: float
) -> None:
    """Either the sum of both shares is small enough, or the rare case alone is."""
    usual = Curves(lambda x: math.exp(-x / scale), gap)
    rare = Curves(lambda x: math.exp(-x / (scale * more)), gap)
    mixed = UnlessOverflow(usual, rare, probability)
    found = mixed.epsilon(target)
    assert min(mixed.upper(found.upper), rare.upper(found.upper)) <= target
    assert found.upper >= usual.epsilon(target).upper * (1 - 1e-3)
    assert found.lower <= usual.epsilon(target).upper
    assert found.lower == 0.0 or usual.lower(found.lower) > target
