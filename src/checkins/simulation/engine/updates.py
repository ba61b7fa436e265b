"""The sum of the clipped updates of the clients that a slot uses.

With a linear model, a client's gradient is an outer product, and its norm is the product of two
norms. Clipping therefore scales a row, and the sum is one matrix product, without computing the
gradient of any client. With other models, the gradient of every client is computed, in blocks of
clients. In an array of clients, −1 marks a place without a client, which adds nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from checkins.randomizers.compiled import clip_l1, clip_l2
from checkins.tasks.data import Dataset
from checkins.tasks.model import LinearModel, Model, unflatten


def _identity(flat: Array) -> Array:
    return flat


UpdateFunction = Callable[[Any, Array, Array], Array]


@dataclass(frozen=True, slots=True, eq=False)
class Updates:
    """A function (table, model, clients) → update, and its table, which holds the clients' data.

    The table is an argument because a constant would be compiled into the loop. ``pack`` turns a
    flat model into the array that computes fastest, and ``unpack`` is its inverse. Updates have the
    form of the model. Noise may be added to either form, because its coordinates are i.i.d.
    """

    table: Any
    function: UpdateFunction
    pack: Callable[[Array], Array] = _identity
    unpack: Callable[[Array], Array] = _identity

    def __call__(self, flat: Array, clients: Array) -> Array:
        """Return the update as a flat vector, given a flat model."""
        return self.unpack(self.function(self.table, self.pack(flat), clients))


MAX_GRADIENT_BYTES, MAX_ROW_BYTES = 1 << 26, 1 << 28
"""Largest memory of the gradients of a block of clients, and of their rows for a linear model."""


@dataclass(frozen=True, slots=True)
class Clip:
    """A bound on the norm of an update: on the L1 norm (for Laplace noise), or on the L2 norm."""

    bound: float
    is_l1: bool = False

    def clip_rows(self, updates: Array) -> Array:
        """Scale each row down to a norm of at most the bound."""
        return clip_l1(updates, self.bound) if self.is_l1 else clip_l2(updates, self.bound)

    def norms(self, rows: Array) -> Array:
        """Return the norm of each row."""
        if self.is_l1:
            return jnp.sum(jnp.abs(rows), axis=1)
        return jnp.sqrt(jnp.sum(rows * rows, axis=1))


@dataclass(frozen=True, slots=True)
class LocalWork:
    """What a client computes: one gradient, or several local steps (FedAvg).

    With several steps, the update is the change of the client's model divided by the local rate.
    This update is a sum of gradients, so the server's rate means the same as with one gradient.
    """

    steps: int = 1
    rate: float = 1.0


ONE_STEP = LocalWork()


def summed_updates(
    model: Model, data: Dataset, *, clip: Clip, work: LocalWork = ONE_STEP, dtype: Any = np.float32
) -> Updates:
    """Return the function that sums clipped updates: the fastest one for this model and data."""
    if data.max_rows_per_client == 1 and work.steps == 1 and isinstance(model, LinearModel):
        return summed_linear_updates(model, data, clip=clip, dtype=dtype)
    return summed_general_updates(model, data, clip=clip, work=work, dtype=dtype)


def summed_linear_updates(
    model: LinearModel, data: Dataset, *, clip: Clip, dtype: Any = np.float32
) -> Updates:
    """Return the function that sums clipped updates of a linear model, with one row per client.

    The packed model has one row per class, with the bias last, and every client's row ends in a 1.
    The sum is then one matrix product. With one client per slot, this is ten times as fast as
    separate weights and biases.
    """
    shapes = model.shapes
    [features, *_], has_one_score = shapes["weights"], len(shapes["weights"]) == 1
    extended_rows = np.ones((len(data.features), features + 1), dtype)
    extended_rows[:, :-1] = data.features.reshape(len(extended_rows), features)
    rows = jnp.asarray(extended_rows)
    table = (rows, jnp.asarray(data.labels), clip.norms(rows))

    def pack(flat: Array) -> Array:
        tensors = unflatten(flat, shapes)
        weights = tensors["weights"].reshape(features, -1)
        return jnp.concatenate([weights.T, tensors["bias"].reshape(-1, 1)], axis=1)

    def unpack(by_class: Array) -> Array:
        return jnp.concatenate([by_class[:, :-1].T.ravel(), by_class[:, -1]])

    def sum_block(table: Any, by_class: Array, clients: Array) -> Array:
        rows, labels, row_norms = table
        indices = jnp.maximum(clients, 0)
        x = rows[indices]
        scores = x @ by_class.T
        residuals = model.residuals(scores[:, 0] if has_one_score else scores, labels[indices])
        residuals = residuals.reshape(scores.shape)
        norms = clip.norms(residuals) * row_norms[indices]
        scale = jnp.minimum(1.0, clip.bound / jnp.maximum(norms, 1e-30))
        clipped: Array = residuals * jnp.where(clients >= 0, scale, 0.0)[:, None]
        total: Array = clipped.T @ x
        return total

    updates = _in_blocks(sum_block, MAX_ROW_BYTES // (4 * (features + 1)))
    return Updates(table, updates, jax.jit(pack), jax.jit(unpack))


def summed_general_updates(
    model: Model, data: Dataset, *, clip: Clip, work: LocalWork = ONE_STEP, dtype: Any = np.float32
) -> Updates:
    """Return the function that sums clipped updates, for any loss, rows and local work."""
    single_updates = client_updates(model, data, work=work, dtype=dtype)
    # The memory of a client is the size of its gradient or of its rows, whichever is larger.
    values_per_client = max(model.dimension, data.max_rows_per_client * data.dimension)

    def sum_block(table: Any, flat: Array, clients: Array) -> Array:
        clipped = clip.clip_rows(single_updates.function(table, flat, clients))
        return jnp.sum(jnp.where((clients >= 0)[:, None], clipped, 0.0), axis=0)

    max_block = MAX_GRADIENT_BYTES // (4 * values_per_client)
    return Updates(single_updates.table, _in_blocks(sum_block, max_block))


def _in_blocks(sum_block: UpdateFunction, max_block: int) -> UpdateFunction:
    """Return a function with the same sum, which processes ``max_block`` clients at a time."""
    max_block = max(1, max_block)

    def updates(table: Any, model: Array, clients: Array) -> Array:
        if len(clients) <= max_block:
            return sum_block(table, model, clients)
        padding = -len(clients) % max_block
        padded = jnp.concatenate([clients, jnp.full(padding, -1, clients.dtype)])
        blocks = padded.reshape(-1, max_block)

        def block(total: Array, block_clients: Array) -> tuple[Array, None]:
            return total + sum_block(table, model, block_clients), None

        total: Array = jax.lax.scan(block, jnp.zeros_like(model), blocks)[0]
        return total

    return updates


def client_updates(
    model: Model, data: Dataset, *, work: LocalWork, dtype: Any = np.float32
) -> Updates:
    """Return the function that computes unclipped updates, one row per client."""
    table = (
        jnp.asarray(data.features, dtype),
        jnp.asarray(data.labels),
        jnp.asarray(data.offsets[:-1], jnp.int32),
        jnp.asarray(np.diff(data.offsets), jnp.int32),
    )
    max_rows, last_row, shapes = data.max_rows_per_client, len(data.features) - 1, model.shapes

    def loss(flat: Array, features: Array, label: Array) -> Array:
        return model.loss(unflatten(flat, shapes), features, label)

    def mean_loss(flat: Array, client: Array, table: Any) -> Array:
        rows, labels, starts, sizes = table
        row_indices = jnp.minimum(starts[client] + jnp.arange(max_rows), last_row)
        losses: Array = jax.vmap(loss, (None, 0, 0))(flat, rows[row_indices], labels[row_indices])
        is_own_row = jnp.arange(max_rows) < sizes[client]
        mean: Array = jnp.sum(jnp.where(is_own_row, losses, 0.0)) / sizes[client]
        return mean

    gradient = jax.grad(mean_loss)

    def update(flat: Array, client: Array, table: Any) -> Array:
        if work.steps == 1:
            single_gradient: Array = gradient(flat, client, table)
            return single_gradient

        def step(_: Any, local_model: Array) -> Any:
            return local_model - work.rate * gradient(local_model, client, table)

        local_model: Array = jax.lax.fori_loop(0, work.steps, step, flat)
        return (flat - local_model) / work.rate

    def updates(table: Any, flat: Array, clients: Array) -> Array:
        indices = jnp.maximum(clients, 0)
        all_updates: Array = jax.vmap(update, (None, 0, None))(flat, indices, table)
        return all_updates

    return Updates(table, updates)
