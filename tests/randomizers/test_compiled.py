"""The samplers of the compiled loop have the laws of those in numpy, and clip safely."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import ks_2samp

from checkins.errors import InvalidValue
from checkins.randomizers import (
    Gaussian,
    Laplace,
    PrivUnit,
    RandomizedResponse,
    Simulated,
    simulate_dummies,
    simulate_reports,
)
from checkins.randomizers.compiled import (
    _component_quantile,
    _cosine_sampler,
    _quantiles_and_slopes,
    clip_l1,
    clip_l2,
    compiled_dummies,
    compiled_reports,
)
from checkins.randomizers.simulated import _draw_components as simulated_components
from tests.randomizers.evidence import FAILURE, proportion, proven_epsilon
from tests.support.program import output_of

DRAWS = 30_000
RANDOMIZERS = [Gaussian(2.0, 0.7), Laplace(2.0, 3.0), PrivUnit(2.0, 6.0, 4)]


UNIT = RANDOMIZERS[2]
BOTH = [*((randomizer, np.float32) for randomizer in RANDOMIZERS), (UNIT, np.float64)]
"""Compiling takes most of the time, so not every pair."""


@pytest.fixture(params=[np.float32, np.float64], ids=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> Iterator[type]:
    with jax.enable_x64(request.param is np.float64):
        yield request.param


@cache
def sampler_of(randomizer):
    """Compiled once for all tests that draw as many rows."""
    return jax.jit(compiled_reports(randomizer, getattr(randomizer, "dimension", 4)))


def name_of(value: object) -> str:
    return repr(value)


def same_law(here: np.ndarray, there: np.ndarray) -> bool:
    """Two-sample Kolmogorov-Smirnov: false with probability FAILURE at most if the laws agree."""
    return bool(ks_2samp(here, there).pvalue > FAILURE)


# The same laws as in numpy


@pytest.mark.slow
@pytest.mark.parametrize(("randomizer", "dtype"), BOTH, ids=name_of, indirect=["dtype"])
def test_reports_have_the_law_of_the_numpy_sampler(randomizer, dtype) -> None:
    """Of a zero update, one inside the clip and one far outside; FAILURE for each comparison."""
    updates = np.array([[0.0], [0.8], [50.0]]) * np.array([0.1, -0.7, 0.5, 0.5])
    rows = np.repeat(updates, DRAWS, axis=0)
    there = simulate_reports(randomizer, rows, np.random.default_rng(1)).values
    found = sampler_of(randomizer)(jax.random.key(2), jnp.asarray(rows, dtype))
    assert isinstance(found, Simulated)
    assert found.simulated is True
    assert found.values.dtype == dtype
    here = np.asarray(found.values, np.float64)
    for part in (slice(i * DRAWS, (i + 1) * DRAWS) for i in range(3)):
        for axis in ([0.1, -0.7, 0.5, 0.5], [1.0, 0.0, 0.0, 0.0], [0.7, 0.1, 0.0, 0.0]):
            assert same_law(here[part] @ axis, there[part] @ axis)
        assert same_law(np.abs(here[part]).max(axis=1), np.abs(there[part]).max(axis=1))
    if isinstance(randomizer, PrivUnit):
        np.testing.assert_allclose(np.linalg.norm(here, axis=1), randomizer.report_norm, rtol=1e-5)


@pytest.mark.parametrize(("dimension", "local_epsilon"), [(2, 8.0), (1000, 30.0), (10**6, 100.0)])
def test_the_component_along_the_direction_has_the_law_of_the_numpy_sampler(
    dimension: int, local_epsilon: float, dtype
) -> None:
    unit, draw = PrivUnit(1.0, local_epsilon, dimension), np.random.default_rng(7)
    there = simulated_components(unit, DRAWS, draw)[0]
    coins, shares = jnp.asarray(draw.random((2, DRAWS)), dtype)
    here = jax.jit(_cosine_sampler(unit))(coins, 1.0 - shares)
    assert same_law(np.asarray(here, np.float64), there)


@pytest.mark.parametrize("randomizer", RANDOMIZERS, ids=name_of)
def test_dummies_have_the_law_of_the_numpy_sampler(randomizer) -> None:
    draw = np.random.default_rng(3)
    there = simulate_dummies(randomizer, count=DRAWS, dimension=4, generator=draw).values
    found = jax.jit(compiled_dummies(randomizer, 4, count=DRAWS, dtype="float32"))(
        jax.random.key(4)
    )
    assert found.values.dtype == np.float32
    here = np.asarray(found.values, np.float64)
    for axis in ([0.1, -0.7, 0.5, 0.5], [1.0, 0.0, 0.0, 0.0]):
        assert same_law(here @ axis, there @ axis)


@pytest.mark.parametrize(("k", "local_epsilon"), [(2, 0.5), (5, 3.0)])
def test_responses_have_the_documented_probabilities(k: int, local_epsilon: float) -> None:
    """Clopper-Pearson on every category; FAILURE for each test."""
    response = RandomizedResponse(k, local_epsilon)
    true = jnp.full((DRAWS,), 1)
    reports = np.asarray(compiled_reports(response, k)(jax.random.key(5), true).values)
    dummies = np.asarray(
        compiled_dummies(response, k, count=DRAWS, dtype=np.float32)(jax.random.key(6)).values
    )
    np.testing.assert_allclose(
        np.unique(reports), [response.other_entry, response.reported_entry], rtol=1e-6
    )
    for c in range(k):
        chance = response.truth_probability if c == 1 else response.lie_probability / (k - 1)
        low, high = proportion(reports[:, c] > 0.5, failure=FAILURE / (2 * k))
        assert low <= chance <= high
        low, high = proportion(dummies[:, c] > 0.5, failure=FAILURE / (2 * k))
        assert low <= 1 / k <= high


@pytest.mark.slow
@pytest.mark.parametrize("unit", [PrivUnit(2.0, 2.0, 1), UNIT], ids=name_of)
def test_no_cap_tells_opposite_directions_apart_by_more_than_epsilon(unit: PrivUnit) -> None:
    """Exact binomial bounds; FAILURE for each test."""
    rows = np.zeros((3 * DRAWS, unit.dimension), np.float32)
    rows[:, 0] = 2.0
    there_key, back_key = jax.random.split(jax.random.key(8))
    edge = unit.cap.threshold * unit.report_norm
    there = np.asarray(sampler_of(unit)(there_key, rows).values)[:, 0] >= edge
    back = np.asarray(sampler_of(unit)(back_key, -rows).values)[:, 0] >= edge
    assert 0.7 * unit.local_epsilon <= proven_epsilon(there, back) <= unit.local_epsilon


@pytest.mark.parametrize("d", [2, 3, 10, 1000, 10**6])
@pytest.mark.parametrize("max_logit", [40.0, 140.0])
def test_components_between_knots_are_those_of_the_inverse_beta_law(
    d: int, max_logit: float
) -> None:
    logits = np.linspace(0.0, max_logit, 20_011)
    with jax.enable_x64(True):
        found = np.asarray(_component_quantile(d, max_logit=max_logit)(jnp.asarray(logits)))
        mirrored = np.asarray(_component_quantile(d, max_logit=max_logit)(jnp.asarray(-logits)))
    error = np.abs(found - _quantiles_and_slopes(d, logits)[0]).max()
    assert error * math.sqrt(d) < 1e-8
    np.testing.assert_array_equal(mirrored, -found)


# Clipping


def fits(row: np.ndarray, clip: float, order: int) -> bool:
    exact = [abs(Fraction(float(x))) for x in row]
    return sum(x**order for x in exact) <= Fraction(clip) ** order


NORMS = pytest.mark.parametrize(("clipped", "order"), [(clip_l2, 2), (clip_l1, 1)])
floats = {
    np.float32: [st.floats(width=32), st.floats(-1.0, 1.0, width=32, allow_subnormal=False)],
    np.float64: [st.floats(), st.floats(-1.0, 1.0, allow_subnormal=False)],
}


@pytest.mark.parametrize(
    ("clipped", "order", "clip"), [(clip_l2, 2, 0.7), (clip_l1, 1, 0.7), (clip_l2, 2, 1e-30)]
)
def test_no_input_leaves_above_its_norm_exactly(clipped, order, clip, dtype) -> None:
    shrink = jax.jit(lambda x: clipped(x, clip))
    arrays = st.one_of(hnp.arrays(dtype, (4, 5), elements=some) for some in floats[dtype])
    big = np.finfo(dtype).max

    @given(update=arrays)
    @example(update=np.full((4, 5), big, dtype))
    @example(update=np.full((4, 5), -big / 4, dtype))
    @example(update=np.full((4, 5), np.finfo(dtype).tiny, dtype))
    @example(update=np.full((4, 5), np.finfo(dtype).smallest_subnormal, dtype))
    def check(update: np.ndarray) -> None:
        result = np.asarray(shrink(update))
        assert result.dtype == dtype
        for row, given_row in zip(result, update, strict=True):
            assert fits(row, clip, order)
            if not np.isfinite(given_row).all():
                np.testing.assert_array_equal(row, 0.0)
            elif fits(given_row, clip * (1 - 1e-4), order) and np.abs(given_row).max() > 1e-37:
                np.testing.assert_array_equal(flushed(row), flushed(given_row))

    check()


def flushed(row: np.ndarray) -> np.ndarray:
    """Compiled code may take subnormal numbers for zero."""
    return np.where(np.abs(row) >= np.finfo(row.dtype).tiny, row, 0.0)


@NORMS
@pytest.mark.parametrize("size", [33, 100_003])
def test_long_and_huge_rows_lose_little_to_the_safe_side(clipped, order, size) -> None:
    update = np.random.default_rng(9).standard_normal(size).astype(np.float32) * np.float32(5e37)
    row = np.asarray(jax.jit(lambda x: clipped(x, 1.0))(jnp.asarray(update)), np.float64)
    norm = np.linalg.norm(row, order)
    assert 1 - 1e-4 < norm <= 1


# Inside the transformations of JAX


@pytest.mark.slow
def test_scan_of_vmap_gives_what_a_plain_call_gives() -> None:
    keys = jax.random.split(jax.random.key(10), (2, 2))
    rows = np.random.default_rng(11).standard_normal((2, 2, 3 * DRAWS, 4))
    updates, many = jnp.asarray(rows, jnp.float32), jax.vmap(compiled_reports(UNIT, 4))
    _, found = jax.lax.scan(lambda carry, ku: (carry, many(*ku)), 0, (keys, updates))
    assert isinstance(found, Simulated)
    plain = sampler_of(UNIT)(keys[1, 0], updates[1, 0])  # compiled for other tests too
    np.testing.assert_allclose(found.values[1, 0], plain.values, rtol=1e-4, atol=1e-4)


def test_responses_run_in_jit_and_vmap_and_stray_categories_move_to_the_nearest() -> None:
    response = RandomizedResponse(3, 100.0)
    sampler = jax.jit(jax.vmap(compiled_reports(response, 3)))
    values = sampler(jax.random.split(jax.random.key(12), 4), jnp.array([-5, 0, 2, 9])).values
    np.testing.assert_array_equal(np.asarray(values).argmax(axis=1), [0, 0, 2, 2])


def test_dummies_run_in_scan() -> None:
    sampler = compiled_dummies(UNIT, 4, count=2, dtype=np.float32)
    keys = jax.random.split(jax.random.key(13), 3)
    _, rows = jax.lax.scan(lambda carry, key: (carry, sampler(key)), 0, keys)
    assert rows.values.shape == (3, 2, 4)


@pytest.mark.slow
def test_strange_updates_give_ordinary_reports() -> None:
    strange = np.array([math.nan, math.inf, 3e38, 1e-45, -0.0, 2.0], np.float32)
    rows = np.repeat(strange, 4 * DRAWS // 2).reshape(3 * DRAWS, 4)
    for randomizer in (RANDOMIZERS[0], UNIT):
        values = np.asarray(sampler_of(randomizer)(jax.random.key(14), rows).values)
        assert np.isfinite(values).all()
        assert np.abs(values).max() < 100.0


def test_what_does_not_fit_is_refused_while_tracing() -> None:
    key, rows = jax.random.key(15), jnp.zeros((2, 4), jnp.float32)
    with pytest.raises(InvalidValue, match="do not fit float32"):
        compiled_reports(Gaussian(1e-50, 1.0), 4)(key, rows)
    with pytest.raises(InvalidValue, match="do not fit float32"):
        jax.jit(compiled_reports(PrivUnit(1e38, 1e-3, 4), 4))(key, rows)
    with pytest.raises(InvalidValue, match=r"^updates = .*last axis of 3"):
        compiled_reports(Gaussian(1.0, 1.0), 3)(key, rows)
    with pytest.raises(InvalidValue, match=r"^updates = .*float32 or float64"):
        compiled_reports(Gaussian(1.0, 1.0), 4)(key, rows.astype(jnp.bfloat16))
    with pytest.raises(InvalidValue, match=r"^dimension = 5: must be 4"):
        compiled_reports(PrivUnit(1.0, 1.0, 4), 5)
    with pytest.raises(InvalidValue, match=r"^dimension = 5: must be 4"):
        compiled_dummies(PrivUnit(1.0, 1.0, 4), 5, count=1, dtype=np.float32)


def test_the_package_does_not_import_jax_by_itself() -> None:
    output_of("import sys, checkins.randomizers; sys.exit('jax' in sys.modules)")
