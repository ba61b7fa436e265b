"""The server's optimizer: the steps of optax, or a clear refusal."""

from __future__ import annotations

import sys
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from checkins.campaign import Optimizer, StepSizes
from checkins.errors import CheckinsError, InvalidValue
from checkins.protocol.model_update import ModelUpdate
from checkins.simulation.engine.loop import Server, server_of

SLOPES = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)


def walked(server: Server, slopes: np.ndarray = SLOPES) -> np.ndarray:
    """The models after each slot."""
    state = server.start(jnp.full(slopes.shape[1], 0.5))
    found = []
    for slope in slopes:
        state = server.apply_slot(state, jnp.asarray(slope), jnp.asarray(1.0))
        found.append(np.asarray(state.model))
    return np.array(found)


@pytest.mark.parametrize("momentum", [None, 0.9])
@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_is_that_of_optax(momentum: float | None, nesterov: bool) -> None:
    optax = pytest.importorskip("optax", reason="OPTAX IS NOT TESTED: needs the extra sim")
    nesterov = nesterov and momentum is not None
    ours = server_of(Optimizer(0.3, momentum=momentum, nesterov=nesterov))
    theirs = optax.sgd(0.3, momentum=momentum, nesterov=nesterov)
    model = jnp.full(4, 0.5)
    state = theirs.init(model)
    for slope, found in zip(SLOPES, walked(ours), strict=True):
        change, state = theirs.update(jnp.asarray(slope), state, model)
        model = model + change
        assert np.allclose(found, model, rtol=1e-6)


@pytest.mark.parametrize(
    "choice",
    [
        Optimizer(0.3),
        Optimizer(0.3, minibatch=2, schedule=StepSizes.INVERSE_SQRT, diameter=1.2),
        Optimizer(0.3, minibatch=3, momentum=0.6, nesterov=True),
    ],
)
def test_steps_are_those_of_the_pure_protocol(choice: Optimizer) -> None:
    update = ModelUpdate(
        rate=choice.rate,
        minibatch=choice.minibatch,
        decay=choice.schedule.decay,
        diameter=choice.diameter,
        momentum=choice.momentum,
        nesterov=choice.nesterov,
    )
    learner = update.start(np.full(4, 0.5))
    for slope, found in zip(SLOPES, walked(server_of(choice)), strict=True):
        learner = update.apply(learner, slope.astype(np.float64))
        assert np.allclose(found, learner.model, rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("optax:adam", {"b1": 0.8}),
        ("optax:adamw", {"weight_decay": 0.1}),
        ("optax:yogi", {}),
        ("optax:sgd", {"momentum": 0.9, "nesterov": True}),
    ],
)
def test_an_optimizer_of_optax_takes_its_own_steps(kind: str, arguments: dict[str, Any]) -> None:
    optax = pytest.importorskip("optax", reason="OPTAX IS NOT TESTED: needs the extra sim")
    name = kind.removeprefix("optax:")
    theirs = getattr(optax, name)(0.05, **arguments)
    model = jnp.full(4, 0.5)
    state = theirs.init(model)
    ours = walked(server_of(Optimizer(0.05, kind=kind, arguments=arguments)))  # type: ignore[arg-type]
    for slope, found in zip(SLOPES, ours, strict=True):
        change, state = theirs.update(jnp.asarray(slope), state, model)
        model = model + change
        assert np.allclose(found, model, rtol=1e-5)


def test_a_skipped_slot_does_not_reach_the_optimizer() -> None:
    pytest.importorskip("optax", reason="OPTAX IS NOT TESTED: needs the extra sim")
    server = server_of(Optimizer(0.05, kind="optax:adam"))
    state = server.start(jnp.full(4, 0.5))
    once = server.apply_slot(state, jnp.asarray(SLOPES[0]), jnp.asarray(1.0))
    skipped = server.apply_slot(once, jnp.asarray(SLOPES[1]), jnp.asarray(0.0))
    assert np.array_equal(once.model, skipped.model)
    assert int(once.optimizer[0].count) == int(skipped.optimizer[0].count) == 1


@pytest.mark.parametrize(
    ("kind", "arguments", "why"),
    [
        ("optax:adamm", {}, "optax has no function of this name"),
        ("optax:adam", {"beta": 0.5}, "beta"),
        ("optax:clip", {"max_delta": 1.0}, "cannot be used"),
        ("optax:apply_updates", {}, "cannot be used"),
        ("optax:constant_schedule", {}, "cannot be used"),
        ("optax:lbfgs", {}, "cannot be used"),
    ],
)
def test_a_function_that_is_no_optimizer_is_refused_with_the_reason(
    kind: str, arguments: dict[str, float], why: str
) -> None:
    pytest.importorskip("optax", reason="OPTAX IS NOT TESTED: needs the extra sim")
    with pytest.raises(InvalidValue, match=kind) as caught:
        server_of(Optimizer(0.1, kind=kind, arguments=arguments))  # type: ignore[arg-type]
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_optax_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optax", None)
    server_of.cache_clear()
    with pytest.raises(CheckinsError, match="sim"):
        server_of(Optimizer(0.1, kind="optax:adam"))
    assert server_of(Optimizer(0.1, momentum=0.9)).rate == 0.1
