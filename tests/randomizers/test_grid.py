"""The grid: what it refuses, what fits it, and how far reports are from what is priced."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from checkins.errors import InvalidValue
from checkins.randomizers import Gaussian, Laplace, PrivUnit, RandomizedResponse
from checkins.randomizers import grid as grid_module
from checkins.randomizers.grid import (
    MOST_CLIP,
    MOST_UNITS,
    Grid,
    NoDeviceSampler,
    variation,
    variation_of_sum,
)

PATIENTS = Gaussian(clip=1.0, noise_multiplier=0.1), Grid(1e-6)


@pytest.mark.parametrize("step", [0.0, -1.0, math.nan, math.inf, "1e-6", None, True])
def test_a_step_is_a_positive_number(step: object) -> None:
    with pytest.raises(InvalidValue, match="grid"):
        Grid(step)  # type: ignore[arg-type]  # refused


def test_grids_are_equal_by_their_step() -> None:
    assert Grid(0.5) == Grid(0.5) != Grid(0.25)
    assert len({Grid(0.5), Grid(0.5)}) == 1


def test_lengths_are_exact_quotients_of_the_floats_given() -> None:
    assert Grid(1e-6).clip_units(1.0) == 1 / Fraction(1e-6) != 10**6


def test_each_norm_has_its_bound() -> None:
    update = np.array([3.0, 4.0])
    assert Grid(1.0).clip(update, 5.0, order=2).tolist() == [3, 4]
    assert Grid(1.0).clip(update, 7.0, order=1).tolist() == [3, 4]
    assert Grid(1.0).clip(update, 5.0, order=1).tolist() == [2, 2]
    assert Grid(1.0).clip(update, 1.0, order=2).tolist() == [0, 0]


def test_a_bound_is_rounded_down_and_checked_on_whole_numbers() -> None:
    """The float norm of these is the clip; only the whole numbers tell that they are too long."""
    for order, update in ((2, np.array([3.0, 4.0])), (1, np.array([2.0, 3.0]))):
        grid, clip = Grid(1.0), math.nextafter(5.0, 0.0)
        found = grid.clip(update, clip, order=order)
        assert sum(abs(k) ** order for k in found.tolist()) <= 5**order - 1
        assert found.any()


# Refusals


@pytest.mark.parametrize("clip", [0.0, -1.0, math.nan, math.inf])
def test_a_clip_is_a_positive_number(clip: float) -> None:
    with pytest.raises(InvalidValue, match="clip"):
        Grid(1.0).clip(np.ones(2), clip, order=2)


def test_a_grid_on_which_every_update_is_zero_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"grid = 2\.0: is too coarse: must be at most the clip"):
        Grid(2.0).clip(np.ones(2), 1.0, order=2)


def test_a_clip_of_too_many_steps_is_refused() -> None:
    Grid(1.0).clip(np.ones(2), float(MOST_CLIP), order=2)
    with pytest.raises(InvalidValue, match=r"grid = 1\.0: is too fine"):
        Grid(1.0).clip(np.ones(2), float(MOST_CLIP + 1), order=2)


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.floats(1e-9, 1e3))
def test_gaussian_noise_of_fewer_than_three_steps_is_refused(
    clip: float, multiplier: float, step: float
) -> None:
    scale = Fraction(multiplier) * Fraction(clip) / Fraction(step)
    if scale < 3:
        with pytest.raises(InvalidValue, match=r"grid = .*too coarse"):
            Grid(step).noise(Gaussian(clip=clip, noise_multiplier=multiplier))


def test_three_steps_are_just_enough() -> None:
    assert Grid(1.0).noise(Gaussian(clip=3.0, noise_multiplier=1.0)).most == 41
    with pytest.raises(InvalidValue, match=r"must be at most 0\.999"):
        Grid(1.0).noise(Gaussian(clip=math.nextafter(3.0, 0.0), noise_multiplier=1.0))


@pytest.mark.parametrize(
    "randomizer",
    [Gaussian(clip=1.0, noise_multiplier=1.0), Laplace(clip=1.0, local_epsilon=1.0)],
    ids=lambda randomizer: type(randomizer).__name__,
)
def test_a_grid_too_fine_for_32_bits_is_refused_and_the_remedy_works(
    randomizer: Gaussian | Laplace,
) -> None:
    for step in (1e-9, 1e-12, 1e-300):
        with pytest.raises(InvalidValue, match="too fine") as refusal:
            Grid(step).noise(randomizer)
    least = float(str(refusal.value).rsplit(" ", 1)[1])
    steps = least if least > 1e-8 else 2e-7
    noise = Grid(steps).noise(randomizer)
    assert 1 / steps + noise.most <= MOST_UNITS


@pytest.mark.parametrize("name", ["rounded_gaussian", "rounded_laplace"])
def test_the_finest_grid_that_is_taken_leaves_room_for_every_report(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    randomizer = Gaussian(1.0, 1.0) if name == "rounded_gaussian" else Laplace(1.0, 20.0)
    fine, coarse = 1e-12, 1e-3
    with monkeypatch.context() as patched:
        patched.setattr(grid_module, name, lambda scale: None)  # a search without tables
        while coarse > fine * (1 + 1e-12):
            step = math.sqrt(fine * coarse)
            try:
                Grid(step).noise(randomizer)
            except InvalidValue:
                fine = step
            else:
                coarse = step
    noise = Grid(coarse).noise(randomizer)
    assert 0.99 * MOST_UNITS < int(Grid(coarse).clip_units(1.0)) + noise.most <= MOST_UNITS


# Total variation


def distance_of_sum(scale: int, count: int) -> mp.mpf:
    """Total variation between a sum of roundings and the post-processing of one Gaussian.

    Both laws by their Fourier series: rounding multiplies the characteristic function of the
    normal law by sinc and folds it; the sum folds first, the post-processing last.
    """
    points = 2 * (16 * scale * count + 8)

    def factor(t: mp.mpf) -> mp.mpf:
        return mp.exp(-((scale * t) ** 2) / 2) * mp.sinc(t / 2)

    gaps = []
    for j in range(points):
        folds = [factor(2 * mp.pi * (mp.mpf(j) / points + m)) for m in range(-4, 5)]
        gaps.append(mp.fsum(folds) ** count - mp.fsum(f**count for f in folds))
    waves = [mp.cospi(2 * mp.mpf(j) / points) for j in range(points)]
    masses = [
        mp.fsum(gap * waves[j * n % points] for j, gap in enumerate(gaps)) / points
        for n in range(points)
    ]
    return mp.fsum(abs(mass) for mass in masses) / 2


@pytest.mark.parametrize(
    ("scale", "count", "published"),
    [(1, 2, 2e-5), (2, 2, 3e-18), (3, 2, 1e-39), (1, 3, None), (2, 3, None), (1, 5, None)],
)
def test_the_bound_for_sums_is_above_the_truth_and_close_for_two(
    scale: int, count: int, published: float | None
) -> None:
    with mp.workdps(70):
        truth = distance_of_sum(scale, count)
    bound = variation_of_sum(Fraction(scale), count)
    assert truth <= float(bound)
    if published is not None:
        assert float(bound) <= 4 * float(truth)
        assert float(truth) == pytest.approx(published, rel=0.5)


def test_a_single_report_is_a_post_processing() -> None:
    assert variation_of_sum(Fraction(3), 1) == 0


@given(st.one_of(st.just(1.0), st.floats(1, 100)), st.integers(2, 10**6))
@example(1.0, 10**6)
def test_the_bound_for_sums_is_the_series_of_the_theory(scale: float, count: int) -> None:
    with mp.workdps(60):
        square = (mp.pi * mp.mpf(scale)) ** 2
        few = min(count, 40)
        series = mp.fsum(
            mp.exp(-2 * square * n**2 * (1 - mp.mpf(1) / j))
            for j in range(2, few + 1)
            for n in (1, 2)
        )
        series += (count - few) * mp.exp(-2 * square * (1 - mp.mpf(1) / few))
        bound = variation_of_sum(Fraction(scale), count)
        assert bound.numerator / mp.mpf(bound.denominator) >= series * (1 - mp.mpf(10) ** -40)


def test_the_variation_of_a_large_campaign_is_far_below_any_delta() -> None:
    found = variation(*PATIENTS, reports=200 * 176, capacity=176, dimension=10**6)
    assert 0.0 < found < 1e-28


def test_draws_add_up() -> None:
    one = variation(*PATIENTS, reports=1, capacity=None, dimension=1)
    many = variation(*PATIENTS, reports=1000, capacity=None, dimension=50)
    assert 0.0 < one < 2.0**-130
    assert many == pytest.approx(50_000 * one)


def test_coarse_grids_pay_for_sums() -> None:
    noise, grid = Gaussian(clip=3.0, noise_multiplier=1.0), Grid(1.0)
    alone = variation(noise, grid, reports=1000, capacity=None, dimension=1)
    summed = variation(noise, grid, reports=1000, capacity=10, dimension=1)
    expected = 100 * math.exp(-(math.pi**2) * 9)
    assert summed - alone < 1.01 * expected
    assert variation(noise, grid, reports=1000, capacity=1, dimension=1) == alone
    assert Fraction(summed) >= Fraction(alone) * (1 - Fraction(1, 2**52))


def test_pure_randomizers_pay_no_more_for_sums() -> None:
    laplace = Laplace(clip=1.0, local_epsilon=1.0)
    alone = variation(laplace, Grid(0.1), reports=10, capacity=None, dimension=3)
    assert alone == variation(laplace, Grid(0.1), reports=10, capacity=5, dimension=3) > 0.0


def test_randomized_response_keeps_its_promise_exactly() -> None:
    response = RandomizedResponse(categories=3, local_epsilon=1.0)
    assert variation(response, Grid(1.0), reports=10**6, capacity=None, dimension=3) == 0.0


def test_a_variation_is_never_above_one() -> None:
    noise, grid = Gaussian(clip=3.0, noise_multiplier=1.0), Grid(1.0)
    found = variation(noise, grid, reports=10**12, capacity=10**12, dimension=10**9)
    assert found <= 1.0


def test_what_has_no_device_sampler_has_no_variation() -> None:
    with pytest.raises(NoDeviceSampler, match="Gaussian or Laplace"):
        variation(PrivUnit(1.0, 1.0, 8), Grid(1e-3), reports=1, capacity=None, dimension=8)


@pytest.mark.parametrize("name", ["reports", "capacity", "dimension"])
def test_counts_are_checked(name: str) -> None:
    counts = {"reports": 1, "capacity": 1, "dimension": 1} | {name: 0}
    with pytest.raises(InvalidValue, match=f"{name} = 0"):
        variation(*PATIENTS, **counts)  # type: ignore[arg-type]  # the names are those above
