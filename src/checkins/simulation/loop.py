"""The compiled loop: a stretch of slots as one ``lax.scan``, fed with bulk noise from the host.

A slot is: the sum of the clipped updates of those who are used, plus noise, divided by a public
count, through the server's optimizer. What a report looks like alone matters to PrivUnit only;
all other noise is that of the sum (``checkins.simulation.noise``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from checkins.randomizers import Randomizer
from checkins.randomizers.compiled import compiled_dummies, compiled_reports
from checkins.simulation.permutation import digits, mixed
from checkins.simulation.updates import Updates

SKIPPED, OVER = 0.0, -1.0
"""Instead of a count: a slot that moves nothing; a row that the learner never hears of, as while
the server warms up, or where a stretch is filled up."""

UNROLLED, UNROLLED_ON_HOST = 8, 2
"""Slots that an accelerator is told of at a time: telling it takes longer than doing them."""


class State(NamedTuple):
    """What a slot hands to the next one."""

    model: Array
    gradient: Array
    """The accumulator g of ModelUpdate; empty when a step is made in every slot."""
    optimizer: Any
    slots: Array
    """How many slots of this run have been taken in."""


class SlotChunk(NamedTuple):
    """The inputs of some consecutive slots, one row for each."""

    clients: Array
    """Whose updates are used: rows of the data, −1 for nobody."""
    noise: Array
    """One noise for the sum; or a key, where each report is drawn by itself."""
    scales: Array
    """What the noise is multiplied by."""
    counts: Array
    """What the sum of a slot is divided by; ``SKIPPED`` or ``OVER``."""


Total = Callable[[Any, Array, SlotChunk], Array]
"""(the data's table, packed model, one slot) → the sum that the server sees."""


class Optimizer(NamedTuple):
    """A direction to step in, for a step size of 1; an optax transformation is one."""

    init: Callable[[Array], Any]
    update: Callable[[Array, Any, Array], tuple[Array, Any]]


@dataclass(frozen=True, slots=True)
class Server:
    """What the server does with a slot's sum: ModelUpdate of Algorithm 1 with any optimizer."""

    optimizer: Optimizer
    rate: float
    decay: float = 0.0
    minibatch: int = 1
    diameter: float | None = None

    def start(self, model: Array) -> State:
        empty = jnp.zeros_like(model) if self.minibatch > 1 else jnp.zeros(0, model.dtype)
        return State(model, empty, self.optimizer.init(model), jnp.zeros((), jnp.int32))

    def next_run(self, state: State) -> State:
        """The same model and velocity; slots and their accumulator begin anew."""
        return state._replace(
            gradient=jnp.zeros_like(state.gradient), slots=jnp.zeros((), jnp.int32)
        )

    def take_in(self, state: State, total: Array, count: Array) -> State:
        """One slot."""
        skipped = count <= SKIPPED
        slots = state.slots + (count > OVER).astype(jnp.int32)
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
        model, optimizer = _where(due, moved, (state.model, state.optimizer))
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


def noisy(updates: Updates) -> Total:
    """The sum of the updates and one noise."""

    def total(table: Any, model: Array, slot: SlotChunk) -> Array:
        noise = slot.noise.reshape(model.shape)
        return updates.function(table, model, slot.clients) + slot.scales * noise

    return total


def report_by_report(updates: Updates, randomizer: Randomizer, dimension: int) -> Total:
    """The sum of reports that are drawn one by one; ``updates`` gives each client's, unclipped.

    Nobody's place holds a dummy.
    """
    private = compiled_reports(randomizer, dimension)

    def total(table: Any, model: Array, slot: SlotChunk) -> Array:
        ours, dummies = jax.random.split(jax.random.wrap_key_data(slot.noise))
        places = len(slot.clients)
        nobody = compiled_dummies(randomizer, dimension, count=places, dtype=model.dtype)
        reports = private(ours, updates.function(table, model, slot.clients)).values
        used = (slot.clients >= 0)[:, None]
        return jnp.sum(jnp.where(used, reports, slot.scales * nobody(dummies).values), axis=0)

    return total


Advance = Callable[[State, SlotChunk, Any], tuple[State, Array]]


def compiled(total: Total, server: Server) -> Advance:
    """One stretch of slots: (state before, inputs, the data's table) → state after, a token.

    The state before is used up. The token is there once the stretch is over, and outlives the next.
    """

    def stretch(state: State, inputs: SlotChunk, table: Any) -> tuple[State, Array]:
        def slot(state: State, inputs: SlotChunk) -> tuple[State, None]:
            return server.take_in(state, total(table, state.model, inputs), inputs.counts), None

        unroll = UNROLLED_ON_HOST if on_host() else UNROLLED
        after: State = jax.lax.scan(slot, state, inputs, unroll=unroll)[0]
        return after, after.slots + 0

    return jax.jit(stretch, donate_argnums=0)


def on_host() -> bool:
    """Whether the loop runs on a CPU."""
    return bool(jax.default_backend() == "cpu")


def seating(clients: int, rows: int, width: int) -> Callable[[Array, Array, Array], Array]:
    """Who is used: (keys, first positions, reports of the slots) → (slots, ``width``) row numbers.

    Clients stand in the order of ``Permutation``; client j holds what row j mod ``rows`` of the
    data holds. Nobody is −1.
    """
    high, low = digits(clients)

    def seated(keys: Array, first: Array, reports: Array) -> Array:
        most = jnp.uint32(clients)  # a plain number above 2^31 would not fit
        places = jnp.arange(width, dtype=jnp.uint32)
        used = places[None, :] < reports.astype(jnp.uint32)[:, None]
        found = mixed(first.astype(jnp.uint32)[:, None] + places[None, :], keys, high, low)

        def outside(words: Array) -> Array:
            return jnp.any(words >= most)

        def again(words: Array) -> Array:
            sent: Array = mixed(words, keys, high, low)
            return jnp.where(words >= most, sent, words)

        # A position past the last client belongs to nobody, and may lie outside the digits.
        found = jax.lax.while_loop(outside, again, jnp.where(used, found, 0))
        return jnp.where(used, (found % jnp.uint32(rows)).astype(jnp.int32), -1)

    return jax.jit(seated)


def _where(condition: Array, first: Any, second: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), first, second)
