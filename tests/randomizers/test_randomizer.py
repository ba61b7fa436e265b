"""Gaussian and Laplace noise and randomized response: their privacy, exactly."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_mechanism
from hypothesis import example, given
from hypothesis import strategies as st

from checkins.accounting import GaussianNoise, LocalRandomizer, NoiseAt
from checkins.errors import InvalidValue
from checkins.randomizers import Gaussian, Laplace, RandomizedResponse
from checkins.randomizers.randomizer import MIN_DELTA, RELATIVE_ROUND_OFF
from tests.randomizers import strategies

shares = st.floats(0.0, 1.0)


def precise_delta(noise_multiplier: float, epsilon: float) -> mpmath.mpf:
    with mpmath.workdps(80):
        s, e = 2 / mpmath.mpf(noise_multiplier), mpmath.mpf(epsilon)
        return mpmath.ncdf(s / 2 - e / s) - mpmath.exp(e) * mpmath.ncdf(-s / 2 - e / s)


@given(noise=strategies.gaussians, deviations=st.floats(-3.0, 40.0))
@example(noise=Gaussian(1.0, 1e-4), deviations=5.0)
def test_the_profile_is_that_of_high_precision_rounded_up(
    noise: Gaussian, deviations: float
) -> None:
    s = 2 / noise.noise_multiplier
    epsilon = max(0.0, s * s / 2 + deviations * s)
    true, found = precise_delta(noise.noise_multiplier, epsilon), noise.delta(epsilon=epsilon)
    assert found >= true * (1 - mpmath.mpf(2) ** -52) or found == 1.0
    slack = RELATIVE_ROUND_OFF + (abs(deviations) + 1.0) * s * 2.0**-50
    assert found <= max(true * (1 + 1.1 * slack), MIN_DELTA)


@pytest.mark.parametrize("noise_multiplier", [0.5, 1.0, 2.0, 8.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 4.0])
def test_the_profile_is_that_of_an_independent_accountant(
    noise_multiplier: float, epsilon: float
) -> None:
    other = privacy_loss_mechanism.GaussianPrivacyLoss(noise_multiplier, sensitivity=2.0)
    found = Gaussian(clip=1.0, noise_multiplier=noise_multiplier).delta(epsilon=epsilon)
    assert found == pytest.approx(other.get_delta_for_epsilon(epsilon), rel=1e-8)


@given(noise=strategies.gaussians, shares=st.tuples(shares, shares))
def test_the_profile_falls_in_epsilon(noise: Gaussian, shares: tuple[float, float]) -> None:
    s = 2 / noise.noise_multiplier
    less, more = sorted(share * (s * s / 2 + 10 * s) for share in shares)
    assert noise.delta(epsilon=more) <= noise.delta(epsilon=less) * (1 + RELATIVE_ROUND_OFF)


@given(noise=strategies.gaussians, times=st.floats(1.0, 100.0), deviations=st.floats(0.0, 10.0))
def test_more_noise_never_costs_more_delta(
    noise: Gaussian, times: float, deviations: float
) -> None:
    epsilon = deviations * 2 / noise.noise_multiplier
    noisier = dataclasses.replace(noise, noise_multiplier=times * noise.noise_multiplier)
    assert noisier.delta(epsilon=epsilon) <= noise.delta(epsilon=epsilon) * (1 + RELATIVE_ROUND_OFF)


@given(noise=strategies.gaussians)
def test_delta_at_zero_is_the_total_variation_of_two_opposite_updates(noise: Gaussian) -> None:
    variation = math.erf(1 / noise.noise_multiplier / math.sqrt(2))
    assert noise.delta(epsilon=0.0) == pytest.approx(variation, rel=1e-8)


@given(clip=strategies.clips)
def test_the_profile_does_not_depend_on_the_clip(clip: float) -> None:
    unit = Gaussian(clip=1.0, noise_multiplier=1.5)
    assert Gaussian(clip=clip, noise_multiplier=1.5).delta(epsilon=1.0) == unit.delta(epsilon=1.0)


@pytest.mark.parametrize("noise_multiplier", [1e-300, 1e-3, 1.0, 1e300])
@pytest.mark.parametrize("epsilon", [0.0, 1e-300, 1.0, 1e6, 1e300])
def test_extreme_values_give_a_probability(noise_multiplier: float, epsilon: float) -> None:
    delta = Gaussian(clip=1.0, noise_multiplier=noise_multiplier).delta(epsilon=epsilon)
    assert MIN_DELTA <= delta <= 1.0


def test_the_accountant_certifies_noise_at_the_client() -> None:
    noise = Gaussian(clip=3.0, noise_multiplier=0.7)
    assert noise.privacy_spec == GaussianNoise(0.7, NoiseAt.CLIENT)


def test_gaussian_variance_is_that_of_every_coordinate_and_there_is_no_bias() -> None:
    noise = Gaussian(clip=2.0, noise_multiplier=0.5)
    assert noise.variance(dimension=7) == 7.0
    assert noise.variance(dimension=7, norm=2.0) == 7.0


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, "1", None, True])
@pytest.mark.parametrize("name", ["clip", "noise_multiplier"])
def test_a_value_of_gaussian_outside_its_range_is_refused_by_name(name: str, bad: object) -> None:
    with pytest.raises(InvalidValue, match=rf"^{name} = "):
        Gaussian(**{"clip": 1.0, "noise_multiplier": 1.0, name: bad})


@pytest.mark.parametrize(("clip", "noise_multiplier"), [(1e-200, 1e-200), (1e200, 1e200)])
def test_noise_that_no_double_holds_is_refused(clip: float, noise_multiplier: float) -> None:
    with pytest.raises(InvalidValue, match="clip × noise_multiplier, would be"):
        Gaussian(clip=clip, noise_multiplier=noise_multiplier)


@pytest.mark.parametrize("bad", [-1e-9, math.nan, math.inf])
def test_an_epsilon_that_is_none_is_refused(bad: float) -> None:
    with pytest.raises(InvalidValue, match=r"^epsilon = "):
        Gaussian(clip=1.0, noise_multiplier=1.0).delta(epsilon=bad)


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


def test_the_accountant_certifies_a_pure_randomizer() -> None:
    assert Laplace(clip=3.0, local_epsilon=0.5).privacy_spec == LocalRandomizer(0.5)


def test_laplace_variance_is_that_of_every_coordinate_and_there_is_no_bias() -> None:
    noise = Laplace(clip=2.0, local_epsilon=0.5)
    assert noise.variance(dimension=3) == pytest.approx(3 * 2 * 8.0**2, rel=1e-14)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, "1", None, True])
@pytest.mark.parametrize("name", ["clip", "local_epsilon"])
def test_a_value_of_laplace_outside_its_range_is_refused_by_name(name: str, bad: object) -> None:
    with pytest.raises(InvalidValue, match=rf"^{name} = "):
        Laplace(**{"clip": 1.0, "local_epsilon": 1.0, name: bad})


@pytest.mark.parametrize(("clip", "local_epsilon"), [(1e300, 1e-300), (1.0, 101.0)])
def test_noise_that_cannot_be_certified_or_represented_is_refused(
    clip: float, local_epsilon: float
) -> None:
    with pytest.raises(InvalidValue):
        Laplace(clip=clip, local_epsilon=local_epsilon)


def exact_law(response: RandomizedResponse, true: int | None) -> list[Fraction]:
    """Probability of each reported category as the samplers use it; None is the dummy."""
    k, lie = response.categories, Fraction(response.lie_probability)
    if true is None:
        return [Fraction(1, k)] * k
    return [1 - lie if c == true else lie / (k - 1) for c in range(k)]


def log_ratio(above: Fraction, below: Fraction) -> mpmath.mpf:
    return mpmath.log(mpmath.mpf(above.numerator) / above.denominator) - mpmath.log(
        mpmath.mpf(below.numerator) / below.denominator
    )


@given(k=st.integers(2, 6), local_epsilon=strategies.local_epsilons)
def test_no_probability_ratio_is_above_epsilon_dummies_included(
    k: int, local_epsilon: float
) -> None:
    response = RandomizedResponse(k, local_epsilon)
    laws = [exact_law(response, true) for true in [*range(k), None]]
    assert all(sum(law) == 1 for law in laws)
    with mpmath.workdps(120):
        worst = max(
            log_ratio(here[c], there[c]) for here in laws for there in laws for c in range(k)
        )
        assert worst <= local_epsilon
        assert worst >= local_epsilon * (1 - 1e-8)


@given(response=strategies.responses)
def test_any_number_of_categories_keeps_its_promise(response: RandomizedResponse) -> None:
    lie = Fraction(response.lie_probability)
    with mpmath.workdps(120):
        assert log_ratio(1 - lie, lie / (response.categories - 1)) <= response.local_epsilon


@given(k=st.integers(2, 50), local_epsilon=strategies._powers(1e-3, 30.0))
def test_the_vector_is_unbiased_and_its_variance_is_the_documented_one(
    k: int, local_epsilon: float
) -> None:
    response = RandomizedResponse(k, local_epsilon)
    law = np.array([float(chance) for chance in exact_law(response, 0)])
    vectors = np.full((k, k), response.other_entry) + (
        response.reported_entry - response.other_entry
    ) * np.eye(k)
    truth = np.eye(k)[0]
    np.testing.assert_allclose(law @ vectors, truth, atol=1e-9)
    spread = law @ ((vectors - truth) ** 2).sum(axis=1)
    assert response.variance(dimension=k) == pytest.approx(spread, rel=1e-9)
    np.testing.assert_allclose(vectors.sum(axis=1), 1.0, atol=1e-9)


def test_two_categories_are_warners_coin() -> None:
    coin = RandomizedResponse(2, math.log(3.0))
    assert coin.truth_probability == pytest.approx(0.75)
    assert coin.privacy_spec == LocalRandomizer(math.log(3.0))


@pytest.mark.parametrize("bad", [0, 1, -3, 2.0, 2**31, True, None])
def test_too_few_or_too_many_categories_are_refused(bad: object) -> None:
    with pytest.raises(InvalidValue, match=r"^categories = "):
        RandomizedResponse(categories=bad, local_epsilon=1.0)


@pytest.mark.parametrize("bad", [0.0, 1e-7, -1.0, math.nan, math.inf, 101.0])
def test_an_epsilon_outside_its_range_is_refused(bad: float) -> None:
    with pytest.raises(InvalidValue, match=r"^local_epsilon = "):
        RandomizedResponse(categories=2, local_epsilon=bad)


def test_variance_is_for_one_hot_vectors_only() -> None:
    response = RandomizedResponse(3, 1.0)
    with pytest.raises(InvalidValue, match=r"^dimension = 4"):
        response.variance(dimension=4)
    with pytest.raises(InvalidValue, match=r"^norm = 0.5"):
        response.variance(dimension=3, norm=0.5)


def test_many_categories_and_little_budget_leave_little_bias() -> None:
    """A double below 1 has 2^-53 at most to tell a keep of 6e-10 by."""
    response = RandomizedResponse(1_655_281_773, 1.404973222103e-06)
    truth = (
        response.truth_probability * response.reported_entry
        + response.lie_probability * response.other_entry
    )
    assert abs(truth - 1.0) < 0.1
    assert response.truth_probability > 1.0 / response.categories * (1 - 1e-6)
