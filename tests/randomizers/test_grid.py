"""The grid of reports: clipping in integers, and the total variation of integer noise."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath as mp
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from checkins.errors import InvalidValue
from checkins.randomizers import Gaussian, Laplace, PrivUnit, RandomizedResponse, grid
from checkins.randomizers import grid as grid_module
from checkins.randomizers.grid import (
    MAX_CLIP_UNITS,
    MAX_UNITS,
    Grid,
    NoDeviceSampler,
    Units,
    as_vector,
    clip_to_units,
    divide_toward_zero,
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
    Grid(1.0).clip(np.ones(2), float(MAX_CLIP_UNITS), order=2)
    with pytest.raises(InvalidValue, match=r"grid = 1\.0: is too fine"):
        Grid(1.0).clip(np.ones(2), float(MAX_CLIP_UNITS + 1), order=2)


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.floats(1e-9, 1e3))
def test_gaussian_noise_of_fewer_than_three_steps_is_refused(
    clip: float, multiplier: float, step: float
) -> None:
    scale = Fraction(multiplier) * Fraction(clip) / Fraction(step)
    if scale < 3:
        with pytest.raises(InvalidValue, match=r"grid = .*too coarse"):
            Grid(step).noise(Gaussian(clip=clip, noise_multiplier=multiplier))


def test_three_steps_are_just_enough() -> None:
    assert Grid(1.0).noise(Gaussian(clip=3.0, noise_multiplier=1.0)).largest_size == 41
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
    assert 1 / steps + noise.largest_size <= MAX_UNITS


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
    assert 0.99 * MAX_UNITS < int(Grid(coarse).clip_units(1.0)) + noise.largest_size <= MAX_UNITS


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


def test_coarse_grids_are_charged_for_sums() -> None:
    noise, grid = Gaussian(clip=3.0, noise_multiplier=1.0), Grid(1.0)
    alone = variation(noise, grid, reports=1000, capacity=None, dimension=1)
    summed = variation(noise, grid, reports=1000, capacity=10, dimension=1)
    expected = 100 * math.exp(-(math.pi**2) * 9)
    assert summed - alone < 1.01 * expected
    assert variation(noise, grid, reports=1000, capacity=1, dimension=1) == alone
    assert Fraction(summed) >= Fraction(alone) * (1 - Fraction(1, 2**52))


def test_pure_randomizers_are_charged_no_more_for_sums() -> None:
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


Array = npt.NDArray[np.float64]

steps = st.one_of(
    st.floats(1e-12, 1e6),
    st.sampled_from([1.0, 0.1, 1e-6, 2.0**-20, 5e-324, 2.0**-1060, 1e-310, 1e299]),
)
ordinary = st.lists(st.floats(-10, 10), min_size=1, max_size=12)
hostile = st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=12)
alike = st.builds(
    lambda x, n: [x] * n, st.floats(allow_nan=False, allow_infinity=False), st.integers(1, 40)
)


def power(values: Array | Units, order: int) -> Fraction:
    return sum((abs(Fraction(float(x))) ** order for x in values), Fraction(0))


def clip_onto(update: Array, *, clip: float, step: float, order: int) -> Units:
    bound = math.floor((Fraction(clip) / Fraction(step)) ** order)
    return clip_to_units(update, clip=clip, step=step, order=order, bound=bound)


@given(steps, st.one_of(st.floats(-(2.0**40), 2.0**40), st.integers(-(2**31), 2**31)))
@example(0.1, 3)
@example(0.1, 9)
@example(1e-6, 2**31 - 1)
@example(1e299, 1797693135.0)
def test_quotients_are_cut_exactly(step: float, quotient: float) -> None:
    with np.errstate(under="ignore", over="ignore"):
        value = float(np.float64(quotient) * step)
    for near in (value, math.nextafter(value, math.inf), math.nextafter(value, -math.inf)):
        if math.isfinite(near) and abs(near) / step < 2.0**45:
            exact = Fraction(near) / Fraction(step)
            assert divide_toward_zero(np.array([near]), step)[0] == math.trunc(exact)


@given(
    update=st.one_of(ordinary, hostile, alike),
    step=steps,
    length=st.floats(1.0, 2.0**30),
    order=st.sampled_from([1, 2]),
)
@example(update=[1e308] * 12, step=1.0, length=10.0, order=2)
@example(update=[1.7e308, -1.7e308], step=1e299, length=1.7e9, order=2)
@example(update=[5e-324] * 3, step=5e-324, length=2.0, order=2)
@example(update=[0.6, 0.8], step=0.1, length=10.0, order=2)
@example(update=[math.nan, 1.0], step=1.0, length=10.0, order=1)
def test_no_norm_is_above_its_bound_and_no_coordinate_grows(
    update: list[float], step: float, length: float, order: int
) -> None:
    clip = min(length, 2.0**30) * step
    if not 1 <= Fraction(clip) / Fraction(step) <= 2**30:
        return
    values = np.array(update)
    found = clip_onto(values, clip=clip, step=step, order=order)
    assert found.dtype == np.int32
    assert power(found, order) <= (Fraction(clip) / Fraction(step)) ** order
    if not np.isfinite(values).all():
        assert not found.any()
        return
    for k, x in zip(found.tolist(), update, strict=True):
        assert abs(k) * Fraction(step) <= abs(Fraction(x))
        assert k * x >= 0
    if power(values, order) <= Fraction(clip) ** order:
        assert found.tolist() == [math.trunc(Fraction(x) / Fraction(step)) for x in update]


@given(ordinary, st.floats(0.01, 5.0), st.sampled_from([1, 2]))
def test_what_is_too_long_keeps_its_direction_and_nearly_all_the_norm(
    update: list[float], clip: float, order: int
) -> None:
    values, step = np.array(update), 2.0**-24
    norm = float(np.linalg.norm(values, order))
    if norm <= clip:
        return
    found = clip_onto(values, clip=clip, step=step, order=order) * step
    np.testing.assert_allclose(found, values * (clip / norm), rtol=1e-12, atol=2 * step)


def test_exact_multiples_are_kept() -> None:
    step = 1e-6
    assert clip_onto(np.array([7 * step]), clip=1.0, step=step, order=2).tolist() == [
        math.trunc(Fraction(7 * step) / Fraction(step))
    ]
    powers = np.array([3 * 2.0**-20, -5 * 2.0**-20])
    assert clip_onto(powers, clip=1.0, step=2.0**-20, order=2).tolist() == [3, -5]


def test_an_update_a_hair_above_the_norm_is_shrunk_on_the_whole_numbers() -> None:
    values = np.array([0.6, math.nextafter(0.8, 1.0)]) * 1024
    assert power(values, 2) > 1024**2
    found = clip_onto(values, clip=1024.0, step=2.0**-20, order=2)
    assert power(found, 2) <= 2**60


def test_shrinking_ends_even_where_floats_cannot_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "sum_of_powers", lambda chunk, order: 2**70)
    assert clip_onto(np.array([1.0, 2.0]), clip=1.0, step=0.01, order=2).tolist() == [0, 0]


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("size", [1, 32_767, 32_768, 32_769, 100_000])
def test_pieces_make_no_difference(order: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(7).normal(size=size)
    found = clip_onto(values, clip=3.0, step=2.0**-26, order=order)
    total = sum(abs(k) ** order for k in found.tolist())
    assert total <= (3 * 2**26) ** order
    monkeypatch.setattr(grid, "_CHUNK", 1 << 20)
    whole = clip_onto(values, clip=3.0, step=2.0**-26, order=order)
    assert np.abs(found - whole).max() <= 1  # the float norm may differ in its last digit


@pytest.mark.parametrize("place", [0, 50_000, 99_999])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_bad_value_anywhere_makes_the_update_zero(place: int, bad: float) -> None:
    values = np.ones(100_000)
    values[place] = bad
    assert not clip_onto(values, clip=1.0, step=1e-6, order=2).any()


@given(st.lists(st.integers(-(2**31) + 1, 2**31 - 1), max_size=30), st.sampled_from([1, 2]))
def test_sums_of_powers_do_not_overflow(sizes: list[int], order: int) -> None:
    found = grid.sum_of_powers(np.array(sizes, dtype=np.int32), order)
    assert found == sum(abs(size) ** order for size in sizes)


@pytest.mark.parametrize("update", [1.0, [[1.0]], ["a"], [1j], [None], np.zeros((2, 2))], ids=str)
def test_what_is_no_vector_of_real_numbers_is_refused(update: npt.ArrayLike) -> None:
    with pytest.raises(InvalidValue, match="vector of real numbers"):
        as_vector(update)


@pytest.mark.parametrize(
    "update",
    [
        [1, 2],
        [True, False],
        np.array([1, 2], dtype=np.float16),
        np.array([1, 2], dtype=np.uint8),
        np.array([1, 2], dtype=np.longdouble),
        np.array([1, 2], dtype=">f4"),
    ],
    ids=repr,
)
def test_any_kind_of_real_number_is_taken(update: npt.ArrayLike) -> None:
    taken = as_vector(update)
    found = clip_onto(taken, clip=100.0, step=0.5, order=2)
    assert found.tolist() == [2 * int(x) for x in taken]


def test_a_long_double_beyond_doubles_is_an_infinity() -> None:
    values = np.array([1.0, np.finfo(np.longdouble).max], dtype=np.longdouble)
    assert not clip_onto(values, clip=1.0, step=0.5, order=2).any()


def test_the_update_itself_is_left_alone() -> None:
    values = np.array([3.0, 4.0])
    clip_onto(values, clip=1.0, step=0.01, order=2)
    assert values.tolist() == [3.0, 4.0]
