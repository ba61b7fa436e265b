"""Gaussian noise on a clipped update: its exact profile."""

from __future__ import annotations

import dataclasses
import math

import mpmath
import pytest
from dp_accounting.pld import privacy_loss_mechanism
from hypothesis import example, given
from hypothesis import strategies as st

from checkins.accounting import GaussianNoise, NoiseAt
from checkins.errors import InvalidValue
from checkins.randomizers import Gaussian
from checkins.randomizers.randomizer import LEAST_DELTA, ROUND_OFF
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
    slack = ROUND_OFF + (abs(deviations) + 1.0) * s * 2.0**-50
    assert found <= max(true * (1 + 1.1 * slack), LEAST_DELTA)


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
    assert noise.delta(epsilon=more) <= noise.delta(epsilon=less) * (1 + ROUND_OFF)


@given(noise=strategies.gaussians, times=st.floats(1.0, 100.0), deviations=st.floats(0.0, 10.0))
def test_more_noise_never_costs_more_delta(
    noise: Gaussian, times: float, deviations: float
) -> None:
    epsilon = deviations * 2 / noise.noise_multiplier
    noisier = dataclasses.replace(noise, noise_multiplier=times * noise.noise_multiplier)
    assert noisier.delta(epsilon=epsilon) <= noise.delta(epsilon=epsilon) * (1 + ROUND_OFF)


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
    assert LEAST_DELTA <= delta <= 1.0


def test_the_accountant_prices_noise_at_the_client() -> None:
    noise = Gaussian(clip=3.0, noise_multiplier=0.7)
    assert noise.privacy_spec == GaussianNoise(0.7, NoiseAt.CLIENT)


def test_variance_is_that_of_every_coordinate_and_there_is_no_bias() -> None:
    noise = Gaussian(clip=2.0, noise_multiplier=0.5)
    assert noise.variance(dimension=7) == 7.0
    assert noise.variance(dimension=7, norm=2.0) == 7.0


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, "1", None, True])
@pytest.mark.parametrize("name", ["clip", "noise_multiplier"])
def test_a_value_outside_its_range_is_refused_by_name(name: str, bad: object) -> None:
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
