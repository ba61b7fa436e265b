"""No honest report is longer than the bounds say, and what is longer is found out exactly."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import chi2, gamma

from checkins.randomizers import DeviceSampler, Gaussian, Grid, Laplace, PrivUnit
from checkins.randomizers.device import NormBound, clipped_bound, report_bound
from checkins.randomizers.grid import (
    REFUSAL_EXPONENT,
    REFUSAL_PROBABILITY,
    NoDeviceSampler,
    variation,
)
from checkins.randomizers.randomizer import RandomizedResponse

GRID = Grid(2**-10)
GAUSSIAN = Gaussian(clip=1.0, noise_multiplier=0.5)
LAPLACE = Laplace(clip=1.0, local_epsilon=2.0)
DIMENSIONS = [1, 2, 11, 300, 20_000, 10**6]


def test_the_probability_of_a_refusal_is_below_what_is_charged() -> None:
    assert math.exp(-REFUSAL_EXPONENT) < REFUSAL_PROBABILITY < 1e-12


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_gaussian_noise_alone_exceeds_its_share_with_less_than_that_probability(
    dimension: int,
) -> None:
    bound = report_bound(GAUSSIAN, GRID, dimension=dimension)
    clip, scale = 1024.0, 512.0
    share = math.sqrt(bound.most) - clip - math.sqrt(dimension) / 2
    assert chi2.logsf((share / scale) ** 2, dimension) <= -REFUSAL_EXPONENT


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_laplace_noise_alone_exceeds_its_share_with_less_than_that_probability(
    dimension: int,
) -> None:
    bound = report_bound(LAPLACE, GRID, dimension=dimension)
    clip, scale = 1024.0, 1024.0
    share = bound.most - clip - dimension / 2
    assert gamma.logsf(share / scale, dimension) <= -REFUSAL_EXPONENT


@pytest.mark.parametrize(("dimension", "most"), [(300, 1.5), (20_000, 1.1), (10**6, 1.05)])
def test_a_bound_is_not_much_longer_than_what_honest_clients_send(
    dimension: int, most: float
) -> None:
    honest = 1024.0 + 512.0 * math.sqrt(chi2.isf(1e-12, dimension))
    assert math.sqrt(report_bound(GAUSSIAN, GRID, dimension=dimension).most) < most * honest
    honest = 1024.0 + 1024.0 * gamma.isf(1e-12, dimension)
    assert report_bound(LAPLACE, GRID, dimension=dimension).most < most * honest


@pytest.mark.parametrize("randomizer", [GAUSSIAN, LAPLACE])
def test_reports_of_the_longest_updates_are_within_the_bounds(randomizer) -> None:
    sampler = DeviceSampler(randomizer, GRID, 300)
    along, spread = np.zeros(300), np.full(300, 1e300)
    along[7] = -1e300
    for update in (along, spread):
        for _ in range(20):
            assert sampler.bound(noise_at_server=False).holds(sampler.privatize(update).units)
            assert sampler.bound(noise_at_server=True).holds(sampler.encode(update).units)


def test_without_noise_the_bound_is_the_clip_to_the_last_unit() -> None:
    exact = clipped_bound(GAUSSIAN, GRID)
    long = np.array([1024, 0], dtype=np.int32)
    assert exact.holds(long)
    assert not exact.holds(np.array([1024, 1], dtype=np.int32))
    assert clipped_bound(LAPLACE, GRID).holds(long)
    assert not clipped_bound(LAPLACE, GRID).holds(np.array([1024, -1], dtype=np.int32))


def test_randomized_response_is_a_single_one() -> None:
    bound = report_bound(RandomizedResponse(3, local_epsilon=1.0), Grid(1.0), dimension=3)
    assert bound.holds(np.array([0, 1, 0], dtype=np.int32))
    assert not bound.holds(np.array([1, 1, 0], dtype=np.int32))


def test_what_no_device_samples_has_no_bound() -> None:
    private = PrivUnit(clip=1.0, local_epsilon=1.0, dimension=3)
    with pytest.raises(NoDeviceSampler):
        report_bound(private, GRID, dimension=3)
    with pytest.raises(NoDeviceSampler):
        clipped_bound(private, GRID)


def test_the_largest_integers_do_not_overflow() -> None:
    worst = np.full(1000, -(2**31), dtype=np.int32)
    assert NormBound(2, 1000 * 2**62).holds(worst)
    assert not NormBound(2, 1000 * 2**62 - 1).holds(worst)
    assert NormBound(1, 1000 * 2**31).holds(worst)
    assert not NormBound(1, 1000 * 2**31 - 1).holds(worst)


def test_a_refusal_is_charged_to_delta() -> None:
    noise = GRID.noise(GAUSSIAN).variation
    charged = variation(GAUSSIAN, GRID, reports=1000, capacity=None, dimension=1)
    assert charged >= float(1000 * (noise + REFUSAL_PROBABILITY))
