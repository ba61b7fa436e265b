"""The server's optimizer as the compiled loop takes it: a direction, for a step size of 1."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from checkins.campaign import Optimizer as Choice
from checkins.errors import InvalidValue
from checkins.simulation.loop import Optimizer, Server
from checkins.tasks.optional_import import package


@lru_cache(maxsize=8)
def server_of(choice: Choice) -> Server:
    """What a campaign's file says of the server's steps; the same object for the same words."""
    return Server(
        optimizer=_direction(choice),
        rate=choice.rate,
        decay=choice.schedule.decay,
        minibatch=choice.minibatch,
        diameter=choice.diameter,
    )


def _direction(choice: Choice) -> Optimizer:
    if choice.optax is not None:
        return _from_optax(choice)
    if choice.momentum is None:
        return Optimizer(init=lambda model: (), update=lambda slope, state, model: (-slope, state))
    momentum, nesterov = choice.momentum, choice.nesterov

    def update(slope: Array, velocity: Any, model: Array) -> tuple[Array, Any]:
        velocity = slope + momentum * velocity
        return -(slope + momentum * velocity if nesterov else velocity), velocity

    return Optimizer(init=jnp.zeros_like, update=update)


def _from_optax(choice: Choice) -> Optimizer:
    """An optimizer of optax with a rate of 1; the rate and its schedule multiply what it says."""
    optax = package("optax", extra="sim", wanted_by=choice.kind, setting="optimizer")
    maker = getattr(optax, choice.optax or "", None)
    if not callable(maker):
        raise InvalidValue("optimizer", choice.kind, "optax has no such function")
    try:
        found = maker(learning_rate=1.0, **dict(choice.arguments))
        change, _ = jax.eval_shape(
            lambda model: found.update(model, found.init(model), model), jnp.zeros(2)
        )
    except Exception as error:
        raise InvalidValue(
            "optimizer", choice.kind, f"cannot be used as an optimizer: {_first_line(error)}"
        ) from error
    if getattr(change, "shape", None) != (2,):
        raise InvalidValue("optimizer", choice.kind, "is no optimizer of optax")
    return Optimizer(found.init, found.update)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).partition("\n")[0]
