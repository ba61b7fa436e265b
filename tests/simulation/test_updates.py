"""Sums of clipped updates: every way to compute them gives what numpy gives."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.extend.core import jaxprs_in_params

from checkins.randomizers import clip_l1, clip_l2
from checkins.simulation.engine import updates as module
from checkins.simulation.engine.updates import (
    Clip,
    LocalWork,
    Updates,
    client_updates,
    summed_general_updates,
    summed_linear_updates,
    summed_updates,
)
from checkins.tasks.built_in_models import MLP, Logistic, Softmax
from checkins.tasks.data import Dataset
from checkins.tasks.model import LinearModel, Model
from tests.simulation.campaigns import CLASSES, FEATURES, dataset

CLIENTS = 40
SOFTMAX, LOGISTIC = Softmax(FEATURES, CLASSES), Logistic(FEATURES)
WHOM = [0, 5, -1, 7, 39, 5, -1]
clips = pytest.mark.parametrize("clip", [Clip(0.4), Clip(0.9, is_l1=True)])


def by_numpy(
    model: Model,
    data: Dataset,
    flat: np.ndarray,
    *,
    clip: Clip,
    work: LocalWork | None = None,
    whom: list[int] = WHOM,
) -> np.ndarray:
    """Client after client, with the gradient that devices use."""
    work = work or LocalWork()
    total = np.zeros(model.dimension)
    for client in whom:
        if client < 0:
            continue
        rows = data.rows_of(client)
        here = flat
        for _ in range(work.steps):
            slope = model.gradient(here, data.features[rows], data.labels[rows])
            here = here - work.rate * slope
        update = slope if work.steps == 1 else (flat - here) / work.rate
        total += (clip_l1 if clip.is_l1 else clip_l2)(update, clip.bound)
    return total


def weights(model: Model) -> np.ndarray:
    return np.random.default_rng(3).normal(size=model.dimension)


def in_double(found: Updates, flat: np.ndarray, whom: list[int] = WHOM) -> np.ndarray:
    return np.asarray(jax.jit(found.__call__)(jnp.asarray(flat), jnp.asarray(whom)))


@clips
@pytest.mark.parametrize(("model", "classes"), [(SOFTMAX, CLASSES), (LOGISTIC, 2)])
def test_the_linear_and_the_general_sum_are_equal(
    model: LinearModel, classes: int, clip: Clip
) -> None:
    data, flat = dataset(CLIENTS, classes=classes), weights(model)
    expected = by_numpy(model, data, flat, clip=clip)
    with jax.enable_x64(True):
        for way in (summed_linear_updates, summed_general_updates):
            found = in_double(way(model, data, clip=clip, dtype=np.float64), flat)
            assert np.allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("work", [LocalWork(), LocalWork(4, 0.3)])
def test_clients_with_different_numbers_of_rows_have_equal_weight(work: LocalWork) -> None:
    """Each client's mean over its own rows, clipped as a whole: nobody weighs more."""
    model, data = MLP(FEATURES, CLASSES, width=3), dataset(CLIENTS, sizes=(1, 4, 2))
    flat, clip = weights(model), Clip(0.4)
    with jax.enable_x64(True):
        found = in_double(
            summed_general_updates(model, data, clip=clip, work=work, dtype=np.float64), flat
        )
    assert np.allclose(found, by_numpy(model, data, flat, clip=clip, work=work), rtol=1e-9)


def test_several_local_steps_add_up_to_a_sum_of_gradients() -> None:
    """As the local rate goes to 0 the update goes to steps × the gradient."""
    data, flat, clip = dataset(CLIENTS), weights(SOFTMAX), Clip(1e6)
    with jax.enable_x64(True):
        several = summed_general_updates(
            SOFTMAX, data, clip=clip, work=LocalWork(3, 1e-7), dtype=np.float64
        )
        found = in_double(several, flat)
    assert np.allclose(found, 3 * by_numpy(SOFTMAX, data, flat, clip=clip), rtol=1e-5)


@pytest.mark.parametrize("most", [1, 3])
@pytest.mark.parametrize("way", [summed_linear_updates, summed_general_updates])
def test_blocks_of_clients_add_up_to_the_slot(
    way: Any, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, flat, clip = dataset(CLIENTS), weights(SOFTMAX), Clip(0.4)
    monkeypatch.setattr(module, "MAX_GRADIENT_BYTES", most * 4 * SOFTMAX.dimension)
    monkeypatch.setattr(module, "MAX_ROW_BYTES", most * 4 * (FEATURES + 1))
    with jax.enable_x64(True):
        found = in_double(way(SOFTMAX, data, clip=clip, dtype=np.float64), flat)
    assert np.allclose(found, by_numpy(SOFTMAX, data, flat, clip=clip), rtol=1e-9)


def _largest(jaxpr: Any) -> int:
    """Numbers of the largest array anywhere inside a function."""
    most = 0
    for equation in jaxpr.eqns:
        for variable in equation.outvars:
            most = max(most, int(np.prod(variable.aval.shape, dtype=np.int64)))
        for inner in jaxprs_in_params(equation.params):
            most = max(most, _largest(inner))
    return most


@pytest.mark.parametrize(
    ("way", "sizes"),
    [
        (summed_linear_updates, (1,)),
        (summed_general_updates, (1,)),
        (summed_general_updates, (5000, 1)),
    ],
)
def test_memory_is_bounded_in_a_slot_with_many_clients_or_rows(
    way: Any, sizes: tuple[int, ...]
) -> None:
    """Ten million clients in one slot, by the shapes inside the function: nothing is run."""
    data, many = dataset(CLIENTS, sizes=sizes), 10**7
    found = way(SOFTMAX, data, clip=Clip(0.4))
    traced = jax.make_jaxpr(found.function)(
        found.table,
        jax.eval_shape(found.pack, jnp.zeros(SOFTMAX.dimension)),
        jax.ShapeDtypeStruct((many,), jnp.int32),
    )
    assert 4 * _largest(traced.jaxpr) <= max(2 * module.MAX_ROW_BYTES, 8 * many)


@pytest.mark.parametrize("way", [summed_linear_updates, summed_general_updates])
def test_an_empty_place_adds_no_update(way: Any) -> None:
    found = way(SOFTMAX, dataset(CLIENTS), clip=Clip(0.5))
    assert not in_double(found, np.zeros(SOFTMAX.dimension, np.float32), [-1, -1]).any()


@given(seed=st.integers(0, 2**32 - 1), l1=st.booleans())
def test_no_update_is_longer_than_the_clip(seed: int, l1: bool) -> None:
    """In float32, to its precision."""
    flat = np.random.default_rng(seed).normal(0.0, 3.0, SOFTMAX.dimension).astype(np.float32)
    found = np.asarray(SINGLE_THREAD[l1](jnp.asarray(flat), jnp.array([seed % CLIENTS])))
    assert np.linalg.norm(found, 1 if l1 else 2) <= 0.3 * (1 + 1e-5)


SINGLE_THREAD = {
    l1: jax.jit(summed_linear_updates(SOFTMAX, dataset(CLIENTS), clip=Clip(0.3, is_l1=l1)).__call__)
    for l1 in (False, True)
}


def test_client_updates_are_unclipped() -> None:
    data, flat = dataset(CLIENTS), weights(SOFTMAX)
    with jax.enable_x64(True):
        rows = in_double(
            client_updates(SOFTMAX, data, work=LocalWork(), dtype=np.float64), flat, [3, 9]
        )
    for row, client in zip(rows, (3, 9), strict=True):
        alone = by_numpy(SOFTMAX, data, flat, clip=Clip(1e9), whom=[client])
        assert np.allclose(row, alone, rtol=1e-9)


@pytest.mark.parametrize("model", [SOFTMAX, LOGISTIC])
def test_a_packed_model_is_the_same_numbers(model: LinearModel) -> None:
    classes = 2 if model is LOGISTIC else CLASSES
    found = summed_linear_updates(model, dataset(CLIENTS, classes=classes), clip=Clip(1.0))
    flat = np.arange(model.dimension, dtype=np.float32)
    assert np.array_equal(found.unpack(found.pack(jnp.asarray(flat))), flat)


def test_linear_models_with_one_row_each_use_the_fast_sum() -> None:
    one, many = dataset(CLIENTS), dataset(CLIENTS, sizes=(2,))
    packed = SOFTMAX.shapes["bias"] + (FEATURES + 1,)
    flat = jnp.zeros(SOFTMAX.dimension)
    assert summed_updates(SOFTMAX, one, clip=Clip(1.0)).pack(flat).shape == packed
    for data, work in ((many, LocalWork()), (one, LocalWork(2, 0.1))):
        assert summed_updates(SOFTMAX, data, clip=Clip(1.0), work=work).pack(flat) is flat
