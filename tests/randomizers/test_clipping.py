"""Clipping never leaves a norm above the clip: checked in exact rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from checkins.errors import InvalidValue
from checkins.randomizers import clip_l1, clip_l2

TINY = 5e-324
HUGE = 1.7976931348623157e308
DTYPES = [np.float32, np.float64]

any_clip = st.one_of(
    st.sampled_from([TINY, 1e-310, 1e-38, 1.0, 3.0, 1e38, HUGE]),
    st.floats(TINY, HUGE),
    st.floats(-300.0, 300.0).map(lambda power: 10.0**power),
)
shapes = st.one_of(st.tuples(st.integers(0, 20)), st.tuples(st.integers(0, 3), st.integers(0, 6)))


def any_update() -> st.SearchStrategy[np.ndarray]:
    """Anything a device may hand over: NaN, infinities, subnormals, rows of one magnitude."""
    return st.one_of(
        [hnp.arrays(dtype, shapes, elements={"allow_subnormal": True}) for dtype in DTYPES]
        + [
            hnp.arrays(dtype, shapes, elements=st.floats(-2.0, 2.0, width=32).map(dtype))
            for dtype in DTYPES
        ]
    )


def rows(array: np.ndarray) -> list[list[Fraction]]:
    return [[Fraction(float(x)) for x in row] for row in np.atleast_2d(array)]


def fits_l2(row: list[Fraction], clip: float) -> bool:
    return sum(x * x for x in row) <= Fraction(clip) ** 2


def fits_l1(row: list[Fraction], clip: float) -> bool:
    return sum(abs(x) for x in row) <= Fraction(clip)


KINDS = pytest.mark.parametrize(("clipped", "fits"), [(clip_l2, fits_l2), (clip_l1, fits_l1)])


@KINDS
@given(update=any_update(), clip=any_clip)
@example(update=np.full((2, 5), HUGE), clip=HUGE)
@example(update=np.full(7, TINY), clip=TINY)
@example(update=np.full(9, TINY), clip=3 * TINY)
@example(update=np.array([1.0] + [0.6] * 20), clip=20 * TINY)  # rounding to nearest adds up
@example(update=np.full(3, 1e-45, np.float32), clip=1e-45)
@example(update=np.full(3, np.finfo(np.float32).max), clip=1e39)
@example(update=np.array([HUGE, TINY]), clip=1.0)
@example(update=np.array([2.0**1023] * 4), clip=HUGE)
@example(update=np.array([math.nan, math.inf, 1.0]), clip=1.0)
def test_no_input_leaves_above_its_norm_exactly(clipped, fits, update, clip) -> None:
    result = clipped(update, clip)
    assert (result.dtype, result.shape) == (update.dtype, update.shape)
    assert np.isfinite(result).all()
    assert all(fits(row, clip) for row in rows(result))


@KINDS
@given(update=any_update(), clip=any_clip, share=st.floats(0.0, 1.0))
def test_scaled_to_the_edge_no_input_leaves_above_its_norm(
    clipped, fits, update, clip, share
) -> None:
    """Near the edge is where rounding could do harm: clip a result by almost its own norm."""
    first = clipped(update, clip)
    if not first.any():
        return
    size = float(np.max(np.abs(first)))
    again = max(min(size * (1 + share * 2.0**-50), HUGE), TINY)
    assert all(fits(row, again) for row in rows(clipped(first, again)))


@KINDS
@given(update=any_update(), clip=st.floats(-290.0, 300.0).map(lambda power: 10.0**power))
def test_clipping_twice_changes_nothing(clipped, fits, update, clip) -> None:
    once = clipped(update, clip)
    np.testing.assert_array_equal(clipped(once, clip), once)


@KINDS
@given(update=any_update(), clip=st.floats(-290.0, 300.0).map(lambda power: 10.0**power))
def test_what_is_safely_inside_is_returned_bit_for_bit(clipped, fits, update, clip) -> None:
    result = clipped(update, clip)
    safe = clip * (1 - 1e-12)
    for row, given_row in zip(np.atleast_2d(result), np.atleast_2d(update), strict=True):
        if np.isfinite(given_row).all() and fits(rows(given_row)[0], safe):
            assert row.tobytes() == given_row.tobytes()


@KINDS
@given(update=any_update(), clip=st.floats(-30.0, 30.0).map(lambda power: 10.0**power))
def test_what_is_outside_keeps_its_direction_and_almost_the_whole_clip(
    clipped, fits, update, clip
) -> None:
    order = 2 if clipped is clip_l2 else 1
    for given_row in np.atleast_2d(update):
        wide = given_row.astype(np.float64)
        if not wide.size or not np.isfinite(wide).all() or fits(rows(given_row)[0], clip):
            continue
        scaled = wide / np.max(np.abs(wide))
        expected = scaled / np.linalg.norm(scaled, order) * clip
        slack = 1e-6 if update.dtype == np.float32 else 1e-12
        np.testing.assert_allclose(clipped(given_row, clip), expected, rtol=slack, atol=1e-38)


@KINDS
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_without_a_direction_becomes_zero_and_its_neighbours_do_not(
    clipped, fits, dtype, bad
) -> None:
    result = clipped(np.array([[1.0, bad, 0.0], [0.1, 0.2, 0.3]], dtype), 1.0)
    np.testing.assert_array_equal(result[0], 0.0)
    np.testing.assert_array_equal(result[1], np.array([0.1, 0.2, 0.3], dtype))


@pytest.mark.parametrize("clipped", [clip_l2, clip_l1])
def test_long_rows_are_clipped_exactly(clipped) -> None:
    update = np.random.default_rng(5).standard_normal((1, 20_000)).astype(np.float32)
    row = rows(clipped(update, 1.0))[0]
    norm = sum(x * x for x in row) if clipped is clip_l2 else sum(abs(x) for x in row)
    assert 1 - 1e-6 < norm <= 1


def test_the_input_is_never_changed_nor_shared() -> None:
    update = np.array([0.1, 0.2])
    result = clip_l2(update, 10.0)
    result[0] = 7.0
    np.testing.assert_array_equal(update, [0.1, 0.2])


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, None, True])
@pytest.mark.parametrize("clipped", [clip_l2, clip_l1])
def test_a_clip_that_is_none_is_refused(clipped, bad) -> None:
    with pytest.raises(InvalidValue, match=r"^clip = "):
        clipped(np.zeros(2), bad)


@pytest.mark.parametrize(
    "bad", [np.zeros(2, np.int64), np.zeros(2, np.complex128), np.float64(1.0), np.zeros(2, "f2")]
)
def test_an_update_that_is_no_float_vector_is_refused(bad) -> None:
    with pytest.raises(InvalidValue, match=r"^update = "):
        clip_l2(bad, 1.0)
