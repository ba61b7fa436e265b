"""Pairs of hypotheses: composition by enumeration and in closed form, rounding, other accountants.

Every comparison with an oracle goes through delta at fixed epsilons: UP must be above, DOWN below.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_ndtr
from scipy.stats import binom

from checkins.accounting.exact import gaussian, pure
from checkins.accounting.exact.dominating_pair import (
    ROUND_OFF,
    DominatingPair,
    from_curve,
    from_ratios,
)
from checkins.accounting.exact.grid_distribution import Rounding, Side

pytestmark = pytest.mark.slow

CELLS = 512
UP = Rounding(side=Side.UP, cells=CELLS, tolerance=1e-20)
DOWN = Rounding(side=Side.DOWN, cells=CELLS, tolerance=1e-20)
NEAR = 1 + 1e-9
TINY = 1e-13
"""What doubles may lose in masses of order 1."""
EPSILONS = (0.0, 1e-6, 0.01, 0.1, 0.3, 1.0, 2.0, 5.0, 20.0)


def pair_of(present: np.ndarray, absent: np.ndarray) -> DominatingPair:
    """Any two distributions on one finite list of outcomes."""
    both = (present > 0) & (absent > 0)
    order = np.argsort(np.log(present[both]) - np.log(absent[both]), kind="stable")
    q, p = absent[both][order], present[both][order]
    return DominatingPair(
        q, p, p - q, float(present[absent == 0].sum()), float(absent[(present == 0)].sum())
    )


def hockey_stick(one: np.ndarray, other: np.ndarray, epsilon: float) -> float:
    return math.fsum(np.maximum(one - math.exp(epsilon) * other, 0.0))


def product(distributions: list[np.ndarray]) -> np.ndarray:
    return np.array([math.prod(masses) for masses in itertools.product(*distributions)])


def above(pair: DominatingPair, remove: float, add: float, epsilon: float) -> None:
    assert pair.remove(epsilon) >= remove / NEAR - TINY
    assert pair.add(epsilon) >= add / NEAR - TINY * math.exp(epsilon)


def below(pair: DominatingPair, remove: float, add: float, epsilon: float) -> None:
    assert pair.remove(epsilon) <= remove * NEAR + TINY
    assert pair.add(epsilon) <= add * NEAR + TINY * math.exp(epsilon)


@st.composite
def distributions(draw: st.DrawFn, most: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Two distributions on a few outcomes; some outcomes only one of them has."""
    size = draw(st.integers(1, most))
    weights = st.one_of(st.just(0.0), st.floats(-8.0, 0.0).map(lambda power: 10.0**power))
    one = np.array(draw(st.lists(weights, min_size=size, max_size=size)))
    other = np.array(draw(st.lists(weights, min_size=size, max_size=size)))
    one[draw(st.integers(0, size - 1))] += 1.0
    other[draw(st.integers(0, size - 1))] += 1.0
    return one / one.sum(), other / other.sum()


def response(local_epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    r = 1.0 / (1.0 + math.exp(local_epsilon))
    return np.array([1 - r, r]), np.array([r, 1 - r])


def gaussian_delta(shift: float, epsilon: float) -> float:
    """[BW18, Thm 8] with sensitivity over noise = ``shift``."""
    upper = log_ndtr(shift / 2 - epsilon / shift)
    lower = epsilon + log_ndtr(-shift / 2 - epsilon / shift)
    return -math.exp(upper) * math.expm1(min(0.0, lower - upper))


def release(shift: float, rounding: Rounding) -> DominatingPair:
    """One Gaussian release: a campaign of one slot that everybody takes part in."""
    return gaussian.GaussianCampaign(1.0 / shift, 1, 1.0).pair(rounding)


# Composition


@given(one=distributions(), other=distributions())
def test_two_campaigns_bracket_their_exact_product(
    one: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray]
) -> None:
    present, absent = product([one[0], other[0]]), product([one[1], other[1]])
    for epsilon in EPSILONS:
        exact = hockey_stick(present, absent, epsilon), hockey_stick(absent, present, epsilon)
        above(pair_of(*one).compose(pair_of(*other), UP), *exact, epsilon)
        below(pair_of(*one).compose(pair_of(*other), DOWN), *exact, epsilon)


@settings(max_examples=25)
@given(
    distribution=distributions(most=3), times=st.integers(1, 6), cells=st.sampled_from([3, 40, 512])
)
def test_repetitions_bracket_their_exact_product_on_any_grid(
    distribution: tuple[np.ndarray, np.ndarray], times: int, cells: int
) -> None:
    present, absent = (product([one] * times) for one in distribution)
    for epsilon in EPSILONS:
        exact = hockey_stick(present, absent, epsilon), hockey_stick(absent, present, epsilon)
        up, down = (Rounding(side, cells, 1e-20) for side in Side)
        above(pair_of(*distribution).repeat(times, up), *exact, epsilon)
        below(pair_of(*distribution).repeat(times, down), *exact, epsilon)


@given(distribution=distributions(), other=distributions())
def test_the_order_of_two_campaigns_does_not_matter(
    distribution: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray]
) -> None:
    one, two = pair_of(*distribution), pair_of(*other)
    for rounding in (UP, DOWN):
        for epsilon in EPSILONS:
            forth = one.compose(two, rounding).remove(epsilon)
            assert two.compose(one, rounding).remove(epsilon) == pytest.approx(forth, abs=1e-9)


@pytest.mark.parametrize("times", [2, 7, 100, 10_000])
def test_repeated_gaussian_releases_are_one_with_less_noise(times: int) -> None:
    """R releases with noise sigma are one with noise sigma / sqrt(R)."""
    shift = 1.5 / math.sqrt(times)
    up, down = (release(shift, r).repeat(times, r) for r in (UP, DOWN))
    for epsilon in (0.0, 0.1, 1.0, 3.0, 6.0):
        exact = gaussian_delta(1.5, epsilon)
        above(up, exact, exact, epsilon)
        below(down, exact, exact, epsilon)
        assert up.remove(epsilon) == pytest.approx(exact, rel=0.02)
        assert up.add(epsilon) == pytest.approx(exact, rel=0.02)
        assert down.remove(epsilon) == pytest.approx(exact, rel=0.02)
        assert down.add(epsilon) == pytest.approx(exact, rel=0.02)


@pytest.mark.parametrize("times", [2, 9, 64, 1000, 10**6])
@pytest.mark.parametrize("total", [0.3, 3.0])
def test_repeated_randomized_response_is_binomial(times: int, total: float) -> None:
    local = total / math.sqrt(times)
    r = 1.0 / (1.0 + math.exp(local))
    counts = np.arange(times + 1)
    present, absent = binom(times, 1 - r).pmf(counts), binom(times, r).pmf(counts)
    once = pair_of(*response(local))
    up, down = once.repeat(times, UP), once.repeat(times, DOWN)
    slack = 2e-9  # of scipy's masses, for a million trials
    for epsilon in (0.0, 0.1 * total, total, 3 * total):
        exact = hockey_stick(present, absent, epsilon)
        above(up, exact * (1 - slack), exact * (1 - slack), epsilon)
        below(down, exact * (1 + slack), exact * (1 + slack), epsilon)
        a_little_less = hockey_stick(present, absent, max(0.0, epsilon - 0.03 * total))
        a_little_more = hockey_stick(present, absent, epsilon + 0.03 * total)
        assert up.remove(epsilon) <= 1.02 * a_little_less + 1e-12
        assert down.remove(epsilon) >= 0.98 * a_little_more - 1e-12


@given(distribution=distributions(), times=st.sampled_from([2, 5, 1000, 10**6]))
def test_masses_are_conserved(distribution: tuple[np.ndarray, np.ndarray], times: int) -> None:
    """UP never has less than all of the mass; DOWN never more."""
    up, down = pair_of(*distribution).repeat(times, UP), pair_of(*distribution).repeat(times, DOWN)
    for masses, only in ((up.present, up.only_present), (up.absent, up.only_absent)):
        assert math.fsum(masses) + only >= 1 - 1e-8
        assert math.fsum(masses) + only <= 2.0
    for masses, only in ((down.present, down.only_present), (down.absent, down.only_absent)):
        assert math.fsum(masses) + only <= 1 + 1e-8


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("times", [1, 10, 1000])
def test_a_short_tail_loses_no_mass(side: Side, times: int) -> None:
    rounding = Rounding(side, CELLS, 1e-20)
    pair = release(0.05, rounding).repeat(times, rounding)
    assert math.fsum(pair.present) + pair.only_present == pytest.approx(1.0, abs=1e-10)
    assert math.fsum(pair.absent) + pair.only_absent == pytest.approx(1.0, abs=1e-10)
    assert pair.only_present < 1e-12
    assert pair.only_absent < 1e-12


@given(distribution=distributions(), cells=st.integers(2, 600), times=st.integers(2, 40))
def test_the_sides_are_nested_on_any_grid(
    distribution: tuple[np.ndarray, np.ndarray], cells: int, times: int
) -> None:
    up, down = (pair_of(*distribution).repeat(times, Rounding(side, cells, 1e-20)) for side in Side)
    for epsilon in EPSILONS:
        above(up, down.remove(epsilon), down.add(epsilon), epsilon)


@settings(max_examples=20)
@given(distribution=distributions())
def test_a_million_repetitions_never_cross(distribution: tuple[np.ndarray, np.ndarray]) -> None:
    up, down = pair_of(*distribution).repeat(10**6, UP), pair_of(*distribution).repeat(10**6, DOWN)
    for epsilon in (*EPSILONS, 100.0, 400.0):
        assert up.remove(epsilon) * (1 + 1e-7) >= down.remove(epsilon) * (1 - 1e-7)
        assert up.add(epsilon) * (1 + 1e-7) >= down.add(epsilon) * (1 - 1e-7)


@given(distribution=distributions(), times=st.integers(2, 50), more=st.integers(1, 50))
def test_more_repetitions_never_show_less(
    distribution: tuple[np.ndarray, np.ndarray], times: int, more: int
) -> None:
    fewer = pair_of(*distribution).repeat(times, DOWN)
    all_of_them = pair_of(*distribution).repeat(times + more, UP)
    for epsilon in EPSILONS:
        above(all_of_them, fewer.remove(epsilon), fewer.add(epsilon), epsilon)


# Degenerate pairs


@pytest.mark.parametrize("rounding", [UP, DOWN])
@pytest.mark.parametrize("times", [1, 2, 10**6])
def test_identical_hypotheses_stay_identical(rounding: Rounding, times: int) -> None:
    same = pair_of(np.array([0.25, 0.75]), np.array([0.25, 0.75])).repeat(times, rounding)
    assert same.remove(0.0) <= 1e-6
    assert same.add(0.0) <= 1e-6
    assert same.remove(1e-3) == same.add(1e-3) == 0.0


@pytest.mark.parametrize("rounding", [UP, DOWN])
@pytest.mark.parametrize("times", [1, 2, 10**6])
def test_disjoint_hypotheses_stay_disjoint(rounding: Rounding, times: int) -> None:
    apart = pair_of(np.array([1.0, 0.0]), np.array([0.0, 1.0])).repeat(times, rounding)
    assert len(apart.absent) == 0
    for epsilon in (0.0, 1.0, 400.0):
        assert apart.remove(epsilon) == apart.add(epsilon) == 1.0
    some = pair_of(*response(1.0))
    assert some.compose(apart, rounding).remove(5.0) == 1.0
    assert apart.compose(some, rounding).add(5.0) == 1.0


@pytest.mark.parametrize("local", [50.0, 300.0, 600.0])
@pytest.mark.parametrize("times", [2, 3, 1000, 10**6])
def test_extreme_losses_neither_overflow_nor_vanish(local: float, times: int) -> None:
    once = from_ratios(
        np.exp([-local, local]), np.expm1([-local, local]), np.array([1.0, math.exp(-local)])
    )
    up, down = once.repeat(times, UP), once.repeat(times, DOWN)
    for epsilon in (0.0, 10.0, 400.0):
        assert down.remove(epsilon) <= up.remove(epsilon) <= 1 + 1e-6
        assert down.add(epsilon) <= up.add(epsilon) <= 1 + 1e-6
    assert up.remove(10.0) == pytest.approx(1.0, abs=1e-6)
    assert up.add(10.0) == pytest.approx(1.0, abs=1e-6)


def test_losses_next_to_zero_keep_their_relative_accuracy() -> None:
    """Two distributions that differ by 1e-12: R of them are a Gaussian of R times that variance."""
    gap, times = 1e-12, 10**6
    once = from_ratios(np.array([1 - gap, 1 + gap]), np.array([-gap, gap]), np.array([0.5, 0.5]))
    up, down = once.repeat(times, UP), once.repeat(times, DOWN)
    exact = gap * math.sqrt(times / (2 * math.pi))
    assert down.remove(0.0) <= exact * (1 + 1e-6)
    assert exact * (1 - 1e-6) <= up.remove(0.0)
    assert up.remove(0.0) == pytest.approx(exact, rel=5e-3)
    assert down.add(0.0) == pytest.approx(exact, rel=5e-3)


@given(distribution=distributions())
def test_losses_rise_and_are_the_logarithm_of_the_ratio(
    distribution: tuple[np.ndarray, np.ndarray],
) -> None:
    pair = pair_of(*distribution)
    assert pair.losses == pytest.approx(np.log(pair.present / pair.absent), abs=1e-12)
    composed = pair.compose(pair, UP)
    assert np.all(np.diff(composed.losses) > 0)


# From a curve


shifts = st.floats(0.02, 4.0)


@given(shift=shifts, nodes=st.integers(2, 120), reach=st.floats(0.5, 8.0))
def test_a_curve_is_met_at_its_nodes_and_exceeded_between_them(
    shift: float, nodes: int, reach: float
) -> None:
    epsilons = np.linspace(0.0, shift * (shift / 2 + reach), nodes)
    deltas = np.array([gaussian_delta(shift, float(e)) for e in epsilons])
    pair = from_curve(epsilons, deltas)
    for epsilon, delta in zip(epsilons.tolist(), deltas.tolist(), strict=True):
        assert pair.remove(epsilon) == pytest.approx(delta, rel=1e-9, abs=TINY)
        assert pair.add(epsilon) == pytest.approx(delta, rel=1e-9, abs=TINY * math.exp(epsilon))
    for epsilon in np.linspace(0.0, 1.5 * float(epsilons[-1]), 97).tolist():
        exact = gaussian_delta(shift, epsilon)
        above(pair, exact, exact, epsilon)


@given(shift=shifts, bumps=st.lists(st.floats(1.0, 3.0), min_size=12, max_size=12))
def test_points_that_are_not_convex_still_give_a_pair_above_the_truth(
    shift: float, bumps: list[float]
) -> None:
    """A bound computed at each epsilon alone need not be convex; what lies under it is."""
    epsilons = np.linspace(0.0, shift * (shift / 2 + 4.0), 12)
    true = np.array([gaussian_delta(shift, float(e)) for e in epsilons])
    given_ = np.minimum(true * np.array(bumps), 1.0)
    pair = from_curve(epsilons, given_)
    for epsilon, bound in zip(epsilons.tolist(), given_.tolist(), strict=True):
        assert pair.remove(epsilon) <= bound * NEAR + TINY
    for epsilon in np.linspace(0.0, 1.2 * float(epsilons[-1]), 50).tolist():
        above(pair, gaussian_delta(shift, epsilon), gaussian_delta(shift, epsilon), epsilon)


@pytest.mark.parametrize("shift", [1e-6, 1e-3, 1.0])
def test_a_curve_keeps_its_tail(shift: float) -> None:
    epsilons = np.linspace(0.0, 8.0 * shift + shift**2 / 2, 200)
    deltas = np.array([gaussian_delta(shift, float(e)) for e in epsilons])
    pair = from_curve(epsilons, deltas)
    for epsilon, delta in zip(epsilons.tolist(), deltas.tolist(), strict=True):
        assert pair.remove(epsilon) == pytest.approx(delta, rel=1e-6)


def test_a_curve_composes_above_the_truth_and_close_to_it() -> None:
    shift, times = 0.3, 16
    epsilons = np.linspace(0.0, 3.0, 200)
    deltas = np.array([gaussian_delta(shift, float(e)) for e in epsilons])
    pair = from_curve(epsilons, deltas).repeat(times, UP)
    for epsilon in (0.0, 0.5, 2.0, 4.0):
        exact = gaussian_delta(shift * math.sqrt(times), epsilon)
        assert exact <= pair.remove(epsilon) * NEAR
        assert pair.remove(epsilon) == pytest.approx(exact, rel=0.02)


@pytest.mark.parametrize("hidden", [0.0, 1e-9, 0.3, 1.0])
def test_a_curve_of_one_point_is_all_or_nothing(hidden: float) -> None:
    pair = from_curve(np.zeros(1), np.array([hidden]))
    for epsilon in (0.0, 0.5, 5.0):
        assert pair.remove(epsilon) == pytest.approx(hidden, abs=1e-15)
        assert pair.add(epsilon) == pytest.approx(hidden, abs=1e-15)


# Into dp_accounting


@given(distribution=distributions(), interval=st.sampled_from([1e-3, 0.01, 0.3]))
def test_dp_accounting_says_no_less_of_the_same_pair(
    distribution: tuple[np.ndarray, np.ndarray], interval: float
) -> None:
    pair = pair_of(*distribution)
    if not len(pair.absent):
        return
    theirs = pair.to_dp_accounting(interval=interval)
    for epsilon in EPSILONS:
        ours = max(pair.remove(epsilon), pair.add(epsilon))
        found = theirs.get_delta_for_epsilon(epsilon)
        assert found >= ours * (1 + ROUND_OFF) - 1e-12 * math.exp(epsilon)
        # the split moves a loss by an interval at most
        shorter = max(0.0, epsilon - interval)
        assert found <= max(pair.remove(shorter), pair.add(shorter)) * (1 + ROUND_OFF) + 1e-9


def test_dp_accounting_is_close_on_a_fine_grid() -> None:
    pair = release(1.0, UP)
    theirs = pair.to_dp_accounting(interval=1e-4)
    for epsilon in (0.0, 0.5, 2.0, 4.0):
        found = theirs.get_delta_for_epsilon(epsilon)
        assert found == pytest.approx(gaussian_delta(1.0, epsilon), rel=5e-3)


@pytest.mark.parametrize("times", [2, 5, 30])
def test_dp_accounting_composes_to_the_same(times: int) -> None:
    campaign = pure.PureAddRemove(pure.PureCampaign(1.0, 20, 0.7), delta=1e-12).pair()
    theirs = campaign.to_dp_accounting(interval=1e-4).self_compose(times)
    up, down = campaign.repeat(times, UP), campaign.repeat(times, DOWN)
    for epsilon in (0.0, 0.2, 0.5, 1.0):
        found = theirs.get_delta_for_epsilon(epsilon)
        lower, upper = (max(one.remove(epsilon), one.add(epsilon)) for one in (down, up))
        assert lower <= found * (1 + 1e-6) + 1e-12
        assert found == pytest.approx(upper, rel=0.01, abs=1e-11)


def test_dp_accounting_composes_with_its_own_mechanisms() -> None:
    """Our Gaussian release and its Gaussian mechanism: together one with less noise."""
    shift = 0.6
    ours = release(shift, UP).to_dp_accounting(interval=1e-4)
    theirs = privacy_loss_distribution.from_gaussian_mechanism(
        1.0 / shift, value_discretization_interval=1e-4
    )
    both = ours.compose(theirs)
    for epsilon in (0.1, 1.0, 3.0):
        exact = gaussian_delta(shift * math.sqrt(2), epsilon)
        assert both.get_delta_for_epsilon(epsilon) >= exact * (1 - 1e-9)
        assert both.get_delta_for_epsilon(epsilon) == pytest.approx(exact, rel=0.01)


def test_dp_accounting_takes_hypotheses_that_never_differ() -> None:
    same = pair_of(np.ones(1), np.ones(1)).to_dp_accounting(interval=1e-3)
    assert same.get_delta_for_epsilon(0.0) == pytest.approx(0.0, abs=1e-12)


def test_dp_accounting_takes_hypotheses_that_always_differ() -> None:
    apart = pair_of(np.array([1.0, 0.0]), np.array([0.0, 1.0]))
    assert apart.to_dp_accounting(interval=1e-3).get_delta_for_epsilon(5.0) == 1.0
