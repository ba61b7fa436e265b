"""PrivUnit: its two densities, and the best split of its budget."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkins.accounting import LocalRandomizer
from checkins.accounting.privunit_cap import Cap, best_cap, cap_at, tail_moments
from checkins.errors import InvalidValue
from checkins.randomizers import PrivUnit
from tests.randomizers import strategies

CASES = [
    (dimension, local_epsilon)
    for dimension in (2, 3, 5, 30, 1000, 10**6)
    for local_epsilon in (0.01, 1.0, 4.0, 16.0, 100.0)
]


def precise_tail(threshold: float, dimension: int) -> tuple[mpmath.mpf, mpmath.mpf]:
    """Mass and first moment of a cap, to 40 digits."""
    g, a, half = mpmath.mpf(threshold), mpmath.mpf(dimension - 1) / 2, mpmath.mpf(1) / 2
    rest = (1 - g) * (1 + g)
    whole = mpmath.beta(half, a)
    mass = half * rest**a * g / (a * whole) * mpmath.hyp2f1(a + half, 1, a + 1, rest)
    return mass, rest**a / ((dimension - 1) * whole)


def loss(cap: Cap) -> mpmath.mpf:
    """Log-ratio of the two values of the density, from the floats that define the mechanism."""
    q, out = mpmath.mpf(cap.mass), mpmath.mpf(cap.outside)
    return mpmath.log((1 - out) / q) - mpmath.log(out / (1 - q))


@given(unit=strategies.privunits)
def test_the_density_ratio_is_never_above_epsilon_and_little_is_left_unused(unit: PrivUnit) -> None:
    with mpmath.workdps(120):
        found = loss(unit.cap)
        assert found <= unit.local_epsilon
        assert found >= unit.local_epsilon * (1 - 1e-8)


@given(unit=strategies.privunits)
def test_the_dummys_density_lies_between_the_two_of_a_report(unit: PrivUnit) -> None:
    cap = unit.cap
    assert cap.outside / (1 - cap.mass) < 1.0 < (1 - cap.outside) / cap.mass


@given(unit=strategies.privunits)
def test_the_split_adds_up_to_the_budget_and_gives_something_to_both(unit: PrivUnit) -> None:
    cap = unit.cap
    spent = cap.cap_epsilon + cap.membership_epsilon
    assert spent == pytest.approx(unit.local_epsilon, rel=1e-8)
    assert cap.membership_epsilon > 0.0
    assert (cap.cap_epsilon > 0.0) == (unit.dimension > 1)


@pytest.mark.parametrize(("dimension", "local_epsilon"), CASES)
def test_mass_and_mean_agree_with_high_precision(dimension: int, local_epsilon: float) -> None:
    cap = best_cap(local_epsilon=local_epsilon, dimension=dimension)
    with mpmath.workdps(40):
        mass, moment = precise_tail(cap.threshold, dimension)
        out = mpmath.mpf(cap.outside)
        mean = moment * ((1 - out) / mass - out / (1 - mass))
        assert abs(cap.mass / mass - 1) < 1e-12
        assert abs(cap.mean / mean - 1) < 1e-11


@pytest.mark.parametrize("dimension", [2, 3, 8, 101, 4000])
@pytest.mark.parametrize("threshold", [0.0, 1e-6, 0.01, 0.3, 0.7, 0.72, 0.99])
def test_a_cap_is_integrated_right(dimension: int, threshold: float) -> None:
    """Against quadrature of the density of one coordinate, a way that shares no formula."""
    with mpmath.workdps(30):
        top = mpmath.acos(threshold)

        def density(angle: mpmath.mpf) -> mpmath.mpf:
            return mpmath.sin(angle) ** (dimension - 2)

        whole = 2 * mpmath.quad(density, mpmath.linspace(0, mpmath.pi / 2, 9))
        steps = mpmath.linspace(0, top, 9)
        mass = mpmath.quad(density, steps) / whole
        moment = mpmath.quad(lambda t: mpmath.cos(t) * density(t), steps) / whole
        found_mass, found_moment = tail_moments(threshold, dimension)
        assert found_mass == pytest.approx(float(mass), rel=1e-11)
        assert found_moment == pytest.approx(float(moment), rel=1e-11)


@pytest.mark.parametrize(("dimension", "local_epsilon"), CASES)
def test_no_other_split_has_a_smaller_error(dimension: int, local_epsilon: float) -> None:
    best = best_cap(local_epsilon=local_epsilon, dimension=dimension)
    spread = min(1.0, 20 / math.sqrt(dimension))
    thresholds = np.concatenate(
        [
            np.linspace(0.0, spread, 4000, endpoint=False),
            best.threshold * np.linspace(0.99, 1.01, 400),
            1.0 - np.geomspace(1e-16, 1.0, 400),
        ]
    )
    for threshold in thresholds[(thresholds >= 0.0) & (thresholds < 1.0)]:
        if tail_moments(float(threshold), dimension)[0] < 1e-300:
            continue
        other = cap_at(local_epsilon=local_epsilon, threshold=float(threshold), dimension=dimension)
        assert other.mean <= best.mean * (1 + 1e-12)


@pytest.mark.parametrize(("dimension", "local_epsilon"), CASES)
def test_at_the_best_split_the_mean_component_is_the_threshold(
    dimension: int, local_epsilon: float
) -> None:
    cap = best_cap(local_epsilon=local_epsilon, dimension=dimension)
    assert cap.mean == pytest.approx(cap.threshold, rel=1e-10)


@pytest.mark.parametrize("dimension", [10, 100, 1000, 10**6])
@pytest.mark.parametrize("local_epsilon", [1.0, 4.0, 16.0])
@pytest.mark.parametrize("membership", [0.01, 0.1, 0.5, 0.9])
def test_a_fixed_split_with_the_first_papers_sufficient_caps_does_worse(
    dimension: int, local_epsilon: float, membership: float
) -> None:
    """[BDFKR18] fixes the share of membership and gives closed conditions for a safe threshold."""
    cap_epsilon = (1 - membership) * local_epsilon
    safe = math.tanh(cap_epsilon / 2) * math.sqrt(math.pi / (2 * (dimension - 1)))
    for threshold in np.linspace(math.sqrt(2 / dimension), 1.0, 4000, endpoint=False):
        needed = (
            0.5 * math.log(dimension)
            + math.log(6.0)
            - (dimension - 1) / 2 * math.log1p(-(threshold**2))
            + math.log(threshold)
        )
        if needed <= cap_epsilon:
            safe = max(safe, threshold)
    mass, moment = tail_moments(safe, dimension)
    p = 1 / (1 + math.exp(-membership * local_epsilon))
    mean = moment * (p / mass - (1 - p) / (1 - mass))
    assert mean < best_cap(local_epsilon=local_epsilon, dimension=dimension).mean


@given(local_epsilon=strategies._powers(1e-4, 30.0))
def test_in_three_dimensions_the_budget_is_split_in_half(local_epsilon: float) -> None:
    """There a coordinate is uniform and the best threshold is tanh(eps0/4), by hand."""
    cap = best_cap(local_epsilon=local_epsilon, dimension=3)
    assert cap.threshold == pytest.approx(math.tanh(local_epsilon / 4), rel=1e-9)
    assert cap.cap_epsilon == pytest.approx(local_epsilon / 2, rel=1e-8)


@given(local_epsilon=strategies.local_epsilons)
def test_in_one_dimension_it_is_randomized_response_on_the_sign(local_epsilon: float) -> None:
    cap = best_cap(local_epsilon=local_epsilon, dimension=1)
    assert (cap.mass, cap.cap_epsilon) == (0.5, 0.0)
    assert cap.mean == pytest.approx(math.tanh(local_epsilon / 2), rel=1e-8)


@given(local_epsilon=st.floats(0.01, 20.0))
def test_in_two_dimensions_the_cap_is_an_arc(local_epsilon: float) -> None:
    cap = best_cap(local_epsilon=local_epsilon, dimension=2)
    assert cap.mass == pytest.approx(math.acos(cap.threshold) / math.pi, rel=1e-9)


@given(unit=strategies.privunits, more=st.floats(1.001, 10.0))
def test_a_larger_budget_errs_less(unit: PrivUnit, more: float) -> None:
    larger = PrivUnit(unit.clip, min(100.0, unit.local_epsilon * more), unit.dimension)
    assert larger.report_norm <= unit.report_norm * (1 + 1e-12)


@given(unit=strategies.privunits)
def test_variance_falls_to_the_spread_of_the_sphere(unit: PrivUnit) -> None:
    d, clip = unit.dimension, unit.clip
    assert unit.report_norm >= clip
    assert unit.variance(dimension=d) == unit.report_norm**2
    assert unit.variance(dimension=d, norm=clip) == pytest.approx(unit.report_norm**2 - clip**2)
    assert unit.privacy_spec == LocalRandomizer(unit.local_epsilon)


@pytest.mark.parametrize("dimension", [1, 2, 3, 4])
@pytest.mark.parametrize("local_epsilon", [50.0, 80.0, 100.0])
def test_a_threshold_that_rounds_to_one_still_is_private_and_no_report_shrinks(
    dimension: int, local_epsilon: float
) -> None:
    unit = PrivUnit(1.0, local_epsilon, dimension)
    with mpmath.workdps(120):
        assert loss(unit.cap) <= local_epsilon
    assert 1.0 <= unit.report_norm <= 1.0 + 1e-8


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("clip", 0.0),
        ("clip", math.nan),
        ("clip", 1e306),  # no finite report
        ("local_epsilon", 1e-7),
        ("local_epsilon", math.nan),
        ("local_epsilon", 101.0),
        ("dimension", 0),
        ("dimension", 2.0),
        ("dimension", 10**8 + 1),
    ],
)
def test_a_value_outside_its_range_is_refused_by_name(name: str, bad: object) -> None:
    with pytest.raises(InvalidValue, match=rf"^{name} = "):
        PrivUnit(**{"clip": 1.0, "local_epsilon": 1e-5, "dimension": 10, name: bad})


def test_variance_refuses_another_dimension() -> None:
    with pytest.raises(InvalidValue, match=r"^dimension = 4: must be 3"):
        PrivUnit(1.0, 1.0, 3).variance(dimension=4)
