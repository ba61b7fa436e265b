"""The compiled loop: a stretch of slots as one ``lax.scan``, fed with bulk noise from the host.

A slot is: the sum of the clipped updates of those who are used, plus noise, divided by a public
count, through the server's optimizer. The noise of the K Gaussian reports of a slot, dummies
included, is drawn as one Gaussian of their sum's law: the sum is all that anyone ever sees of them.
Host noise keeps the scan free of the random bits that would take most of its time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from checkins.simulation.updates import Updates


class State(NamedTuple):
    """What a slot hands to the next one."""

    model: Array
    gradient: Array
    """The accumulator g of ModelUpdate; empty when a step is made in every slot."""
    optimizer: Any
    slots: Array
    """How many slots have been taken in."""


class Stretch(NamedTuple):
    """The inputs of some consecutive slots, one row for each."""

    clients: Array
    noise: Array
    counts: Array
    """What the sum of a slot is divided by; 0 where averaged updates skip it."""


class Optimizer(NamedTuple):
    """An optax transformation, or anything with its two functions."""

    init: Callable[[Array], Any]
    update: Callable[[Array, Any, Array], tuple[Array, Any]]


@dataclass(frozen=True, slots=True)
class Server:
    """What the server does with a slot's sum: ModelUpdate of Algorithm 1 with any optimizer."""

    optimizer: Optimizer
    minibatch: int = 1
    diameter: float | None = None

    def start(self, model: Array) -> State:
        empty = jnp.zeros_like(model) if self.minibatch > 1 else jnp.zeros(0, model.dtype)
        return State(model, empty, self.optimizer.init(model), jnp.zeros((), jnp.int32))

    def take_in(self, state: State, mean: Array, skipped: Array) -> State:
        """One slot; a skipped one leaves the model as it was."""
        slots = state.slots + 1
        if self.minibatch == 1:
            moved = self._stepped(state.model, mean, state.optimizer)
            model, optimizer = _where(skipped, (state.model, state.optimizer), moved)
            return State(model, state.gradient, optimizer, slots)
        gradient = state.gradient + mean
        due = slots % self.minibatch == 0
        moved = self._stepped(state.model, gradient / self.minibatch, state.optimizer)
        model, optimizer = _where(~due, (state.model, state.optimizer), moved)
        return State(model, jnp.where(due, 0.0, gradient), optimizer, slots)

    def _stepped(self, model: Array, gradient: Array, optimizer: Any) -> tuple[Array, Any]:
        change, after = self.optimizer.update(gradient, optimizer, model)
        model = model + change
        if self.diameter is None:
            return model, after
        norm = jnp.sqrt(jnp.sum(model * model))
        return model * jnp.minimum(1.0, 0.5 * self.diameter / jnp.maximum(norm, 1e-30)), after


def compiled(
    updates: Updates, server: Server, *, noise: float
) -> Callable[[State, Stretch], State]:
    """One stretch of slots; ``noise`` is the deviation of a slot's noise in the model's units."""

    def slot(state: State, inputs: Stretch) -> tuple[State, None]:
        total = updates(state.model, inputs.clients) + noise * inputs.noise
        mean = total / jnp.maximum(inputs.counts, 1.0)
        return server.take_in(state, mean, inputs.counts == 0), None

    def stretch(state: State, inputs: Stretch) -> State:
        return jax.lax.scan(slot, state, inputs)[0]

    return jax.jit(stretch, donate_argnums=0)


def _where(condition: Array, first: Any, second: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), first, second)
