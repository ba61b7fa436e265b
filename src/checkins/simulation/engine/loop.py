"""The compiled loop: a chunk of slots is one ``lax.scan``, and its noise is drawn before.

In each slot, the clipped updates of its clients are summed, noise is added, the sum is divided by a
public count, and the server's optimizer makes a step. With PrivUnit, reports are drawn one by one.
Otherwise noise is drawn once for the sum (``checkins.simulation.engine.mechanism``).

The clients of a slot are an array of fixed width. An element of −1 is an empty place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from checkins.campaign import Optimizer
from checkins.errors import InvalidValue, first_line
from checkins.randomizers import Randomizer
from checkins.randomizers.compiled import compiled_dummies, compiled_reports
from checkins.simulation.engine.updates import Updates
from checkins.simulation.population import digit_sizes, feistel
from checkins.validate import installed

SKIPPED, IGNORED = 0.0, -1.0
"""Special values of a slot's count. In a skipped slot the server makes no step. An ignored row is
not counted as a slot: it is a warm-up slot of the server, or pads a chunk."""

UNROLLED, UNROLLED_ON_HOST = 8, 2
"""Slots per iteration of the scan, on an accelerator and on a CPU. An accelerator needs more,
because launching a slot takes longer than running it."""


class State(NamedTuple):
    """The state between two slots."""

    model: Array
    gradient: Array
    """The accumulator g of ModelUpdate; empty if the server makes a step in every slot."""
    optimizer: Any
    slots: Array
    """Number of finished slots of this run."""


class SlotChunk(NamedTuple):
    """The inputs of consecutive slots, one row per slot."""

    clients: Array
    """Numbers of the clients whose updates are used; −1 for an empty place."""
    noise: Array
    """The noise of the sum, or a random key if each report is drawn separately."""
    scales: Array
    """Factor of the noise."""
    counts: Array
    """The number that the sum of a slot is divided by, or ``SKIPPED`` or ``IGNORED``."""


Total = Callable[[Any, Array, SlotChunk], Array]
"""(table of the data, packed model, one slot) → the noisy sum of the slot."""


class StepDirection(NamedTuple):
    """An optimizer with step size 1, with the two functions of an optax transformation."""

    init: Callable[[Array], Any]
    update: Callable[[Array, Any, Array], tuple[Array, Any]]


@dataclass(frozen=True, slots=True)
class Server:
    """The server's model update: ModelUpdate of Algorithm 1, with any optimizer."""

    optimizer: StepDirection
    rate: float
    decay: float = 0.0
    minibatch: int = 1
    diameter: float | None = None

    def start(self, model: Array) -> State:
        empty = jnp.zeros_like(model) if self.minibatch > 1 else jnp.zeros(0, model.dtype)
        return State(model, empty, self.optimizer.init(model), jnp.zeros((), jnp.int32))

    def next_run(self, state: State) -> State:
        """Return the state at the start of the next run.

        The model and the optimizer's state are kept. Slots and accumulator are reset.
        """
        none = jnp.zeros((), jnp.int32)
        return state._replace(gradient=jnp.zeros_like(state.gradient), slots=none)

    def apply_slot(self, state: State, total: Array, count: Array) -> State:
        """Return the state after a slot with this noisy sum and count."""
        skipped = count <= SKIPPED
        slots = state.slots + (count > IGNORED).astype(jnp.int32)
        mean = total / jnp.maximum(count, 1.0)
        if self.minibatch == 1:
            due, gradient, left = ~skipped, mean, state.gradient
        else:
            gradient = jnp.where(skipped, state.gradient, state.gradient + mean)
            due = (slots % self.minibatch == 0) & ~skipped
            left = jnp.where(due, 0.0, gradient)
            gradient = gradient / self.minibatch
        step = slots // self.minibatch
        moved = self._stepped(state.model, gradient, state.optimizer, step)
        before = (state.model, state.optimizer)
        model, optimizer = jax.tree.map(lambda new, old: jnp.where(due, new, old), moved, before)
        return State(model, left, optimizer, slots)

    def _stepped(
        self, model: Array, gradient: Array, optimizer: Any, step: Array
    ) -> tuple[Array, Any]:
        change, after = self.optimizer.update(gradient, optimizer, model)
        rate: Any = self.rate
        if self.decay > 0.0:
            rate = self.rate / jnp.maximum(step, 1).astype(model.dtype) ** self.decay
        model = model + rate * change
        if self.diameter is None:
            return model, after
        norm = jnp.sqrt(jnp.sum(model * model))
        return model * jnp.minimum(1.0, 0.5 * self.diameter / jnp.maximum(norm, 1e-30)), after


def noisy_sum(updates: Updates) -> Total:
    """Return the function that adds noise to the sum of the clipped updates."""

    def total(table: Any, model: Array, slot: SlotChunk) -> Array:
        noise = slot.noise.reshape(model.shape)
        return updates.function(table, model, slot.clients) + slot.scales * noise

    return total


def sum_of_reports(updates: Updates, randomizer: Randomizer, dimension: int) -> Total:
    """Return the function that draws the reports of a slot one by one and returns their sum.

    Empty places are filled with dummies. ``updates`` returns each client's unclipped update.
    """
    private = compiled_reports(randomizer, dimension)

    def total(table: Any, model: Array, slot: SlotChunk) -> Array:
        ours, dummies = jax.random.split(jax.random.wrap_key_data(slot.noise))
        places = len(slot.clients)
        dummies_of = compiled_dummies(randomizer, dimension, count=places, dtype=model.dtype)
        reports = private(ours, updates.function(table, model, slot.clients)).values
        used = (slot.clients >= 0)[:, None]
        return jnp.sum(jnp.where(used, reports, slot.scales * dummies_of(dummies).values), axis=0)

    return total


Advance = Callable[[State, SlotChunk, Any], tuple[State, Array]]


def compiled(total: Total, server: Server) -> Advance:
    """Compile a chunk of slots: (state before, inputs, table of the data) → (state after, token).

    The state before is donated to JAX, so it must not be used again. The token can be waited for:
    it is ready when the chunk is finished.
    """

    def chunk(state: State, inputs: SlotChunk, table: Any) -> tuple[State, Array]:
        def slot(state: State, inputs: SlotChunk) -> tuple[State, None]:
            return server.apply_slot(state, total(table, state.model, inputs), inputs.counts), None

        unroll = UNROLLED_ON_HOST if on_host() else UNROLLED
        after: State = jax.lax.scan(slot, state, inputs, unroll=unroll)[0]
        return after, after.slots + 0

    return jax.jit(chunk, donate_argnums=0)


def on_host() -> bool:
    """Return True if the loop runs on a CPU, False if on an accelerator."""
    return bool(jax.default_backend() == "cpu")


def slot_clients(clients: int, rows: int, width: int) -> Callable[[Array, Array, Array], Array]:
    """Compile (keys, first positions, numbers of reports) → clients, one row per slot.

    A row has ``width`` places; an empty place is −1. Clients are in the order of ``Permutation``.
    Client j is returned as j mod ``rows``, where ``rows`` is the number of clients in the data.
    """
    high, low = digit_sizes(clients)

    def clients_of(keys: Array, first: Array, reports: Array) -> Array:
        most = jnp.uint32(clients)  # JAX makes Python integers signed, and some would not fit
        places = jnp.arange(width, dtype=jnp.uint32)
        used = places[None, :] < reports.astype(jnp.uint32)[:, None]

        def permuted(state: tuple[Array, Array]) -> tuple[Array, Array]:
            words, pending = state
            words = jnp.where(pending, feistel(words, keys, high, low), words)
            return words, words >= most

        # Empty places become 0 here: their positions may be too large for the Feistel network.
        words = jnp.where(used, first.astype(jnp.uint32)[:, None] + places[None, :], 0)
        words, _ = jax.lax.while_loop(lambda state: jnp.any(state[1]), permuted, (words, used))
        return jnp.where(used, (words % jnp.uint32(rows)).astype(jnp.int32), -1)

    return jax.jit(clients_of)


@lru_cache(maxsize=8)
def server_of(choice: Optimizer) -> Server:
    """Return the server for a campaign's optimizer. Equal optimizers share one object."""
    steps = (choice.rate, choice.schedule.decay, choice.minibatch, choice.diameter)
    return Server(_direction(choice), *steps)


def _direction(choice: Optimizer) -> StepDirection:
    if choice.optax is not None:
        return _from_optax(choice)
    if choice.momentum is None:
        return StepDirection(lambda model: (), lambda slope, state, model: (-slope, state))
    momentum, nesterov = choice.momentum, choice.nesterov

    def update(slope: Array, velocity: Any, model: Array) -> tuple[Array, Any]:
        velocity = slope + momentum * velocity
        return -(slope + momentum * velocity if nesterov else velocity), velocity

    return StepDirection(jnp.zeros_like, update)


def _from_optax(choice: Optimizer) -> StepDirection:
    """Return an optax optimizer with rate 1. ``Server`` multiplies its steps by the rate."""
    optax = installed("optax", extra="sim", wanted_by=choice.kind, setting="optimizer")
    maker = getattr(optax, choice.optax or "", None)
    if not callable(maker):
        raise InvalidValue("optimizer", choice.kind, "optax has no such function")
    try:
        optimizer = maker(learning_rate=1.0, **dict(choice.arguments))
        change, _ = jax.eval_shape(
            lambda model: optimizer.update(model, optimizer.init(model), model), jnp.zeros(2)
        )
    except Exception as error:
        why = f"cannot be used as an optimizer: {first_line(error)}"
        raise InvalidValue("optimizer", choice.kind, why) from error
    if getattr(change, "shape", None) != (2,):
        raise InvalidValue("optimizer", choice.kind, "is not an optimizer of optax")
    return StepDirection(optimizer.init, optimizer.update)
