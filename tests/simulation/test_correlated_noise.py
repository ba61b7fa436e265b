"""Correlated noise: computed in blocks, it is the noise of the recursion, in every division."""

from __future__ import annotations

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkins.simulation.engine.loop import (
    BLOCK_SLOTS,
    close_window,
    correlate,
    open_window,
    past_slots,
)


@st.composite
def coefficients(draw: st.DrawFn) -> tuple[float, ...]:
    """Coefficients that do not increase, with squares that sum to 1."""
    bands = draw(st.sampled_from([1, 2, 3, BLOCK_SLOTS, BLOCK_SLOTS + 1, BLOCK_SLOTS + 2, 50]))
    seed = draw(st.integers(0, 2**32 - 1))
    values = -np.sort(-np.random.default_rng(seed).uniform(0.01, 1.0, bands))
    return tuple((values / np.linalg.norm(values)).tolist())


def by_recursion(coefficients: tuple[float, ...], noise: np.ndarray) -> np.ndarray:
    """The definition, slot by slot."""
    found: list[np.ndarray] = []
    for vector in noise:
        for lag, coefficient in enumerate(coefficients[1:], start=1):
            if lag <= len(found):
                vector = vector - coefficient * found[-lag]
        found.append(vector / coefficients[0])
    return np.array(found)


def in_chunks(coefficients: tuple[float, ...], noise: np.ndarray, ends: list[int]) -> np.ndarray:
    """The same in blocks, with chunks that end after these slots."""
    past, found = jnp.zeros((past_slots(coefficients), noise.shape[1])), []
    for start, end in pairwise([0, *ends, len(noise)]):
        window = open_window(past)
        for number, first in enumerate(range(start, end, BLOCK_SLOTS)):
            rows = min(BLOCK_SLOTS, end - first)
            padded = np.zeros((BLOCK_SLOTS, noise.shape[1]))
            padded[:rows] = noise[first : first + rows]
            window, block = correlate(coefficients, window, number, jnp.asarray(padded))
            found.append(np.asarray(block)[:rows])
        past = close_window(window, end - start)
    return np.concatenate(found)


@given(coefficients(), st.lists(st.integers(0, 150), max_size=4), st.integers(0, 2**32 - 1))
def test_blocks_give_the_noise_of_the_recursion_in_every_division_into_chunks(
    coefficients: tuple[float, ...], ends: list[int], seed: int
) -> None:
    noise = np.random.default_rng(seed).normal(size=(150, 2))
    expected = by_recursion(coefficients, noise)
    with jax.enable_x64(True):
        found = in_chunks(coefficients, noise, sorted(ends))
    assert found == pytest.approx(expected, abs=1e-9 * np.abs(expected).max())


def test_one_band_scales_the_noise() -> None:
    noise = np.random.default_rng(1).normal(size=(40, 2))
    with jax.enable_x64(True):
        assert in_chunks((0.5,), noise, []) == pytest.approx(2.0 * noise)
