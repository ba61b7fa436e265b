"""Whole numbers of a step: exact quotients, and norms that hold for any input at all."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from checkins.errors import InvalidValue
from checkins.randomizers import grid
from checkins.randomizers.grid import Units, clipped, toward_zero, vector

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
    return clipped(update, clip=clip, step=step, order=order, bound=bound)


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
            assert toward_zero(np.array([near]), step)[0] == math.trunc(exact)


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
        vector(update)


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
    taken = vector(update)
    found = clip_onto(taken, clip=100.0, step=0.5, order=2)
    assert found.tolist() == [2 * int(x) for x in taken]


def test_a_long_double_beyond_doubles_is_an_infinity() -> None:
    values = np.array([1.0, np.finfo(np.longdouble).max], dtype=np.longdouble)
    assert not clip_onto(values, clip=1.0, step=0.5, order=2).any()


def test_the_update_itself_is_left_alone() -> None:
    values = np.array([3.0, 4.0])
    clip_onto(values, clip=1.0, step=0.01, order=2)
    assert values.tolist() == [3.0, 4.0]
