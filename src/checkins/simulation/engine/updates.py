"""The sum of the clipped updates of the clients that a slot uses.

With a linear model, a client's gradient is an outer product, and its norm is the product of two
norms. Clipping therefore scales a row, and the sum is one matrix product, without computing the
gradient of any client. With other models, the gradient of every client is computed, in blocks of
clients. A client of −1 is an empty place, which adds nothing.
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
from checkins.tasks.data.dataset import Dataset
from checkins.tasks.model import LinearModel, Model, unflatten


def _identity(flat: Array) -> Array:
    return flat


Function = Callable[[Any, Array, Array], Array]


@dataclass(frozen=True, slots=True, eq=False)
class Updates:
    """A function (table, model, clients) → update, and its table, which is the data on the device.

    The table is an argument because a constant would be compiled into the loop. ``pack`` turns a
    flat model into the array that computes fastest, and ``unpack`` is its inverse. Noise can be
    added to either form, because its coordinates are i.i.d.
    """

    table: Any
    function: Function
    pack: Callable[[Array], Array] = _identity
    unpack: Callable[[Array], Array] = _identity

    def __call__(self, flat: Array, clients: Array) -> Array:
        """Return the update as a flat vector, given a flat model."""
        return self.unpack(self.function(self.table, self.pack(flat), clients))


BLOCK_BYTES, ROW_BYTES = 1 << 26, 1 << 28
"""Largest memory of the gradients in ``general`` and of the clients' rows in ``linear``."""


@dataclass(frozen=True, slots=True)
class Clip:
    """The largest norm of an update. It is the L2 norm, or the L1 norm with Laplace noise."""

    bound: float
    l1: bool = False

    def rows(self, updates: Array) -> Array:
        """Scale each row down to a norm of at most the bound."""
        return clip_l1(updates, self.bound) if self.l1 else clip_l2(updates, self.bound)

    def norms(self, rows: Array) -> Array:
        """Return the norm of each row."""
        return jnp.sum(jnp.abs(rows), axis=1) if self.l1 else jnp.sqrt(jnp.sum(rows * rows, axis=1))


@dataclass(frozen=True, slots=True)
class LocalWork:
    """What a client computes: one gradient, or several local steps (FedAvg).

    With several steps, the update is the change of the client's model divided by the local rate.
    This is a sum of gradients, so the server's rate means the same in both cases.
    """

    steps: int = 1
    rate: float = 1.0


ONE_STEP = LocalWork()


def summed_updates(
    model: Model, data: Dataset, *, clip: Clip, work: LocalWork = ONE_STEP, dtype: Any = np.float32
) -> Updates:
    """Return the function that sums clipped updates, in the fastest form for model and data."""
    if data.max_rows_per_client == 1 and work.steps == 1 and isinstance(model, LinearModel):
        return linear(model, data, clip=clip, dtype=dtype)
    return general(model, data, clip=clip, work=work, dtype=dtype)


def linear(model: LinearModel, data: Dataset, *, clip: Clip, dtype: Any = np.float32) -> Updates:
    """Return the function that sums clipped updates of a linear model, with one row per client.

    The packed model has one row per class, with the bias last, and every client's row ends in a 1.
    The sum is then one matrix product, which is ten times faster for a single client.
    """
    shapes = model.shapes
    [features, *_], one_score = shapes["weights"], len(shapes["weights"]) == 1
    whole = np.ones((len(data.features), features + 1), dtype)
    whole[:, :-1] = data.features.reshape(len(whole), features)
    rows = jnp.asarray(whole)
    table = (rows, jnp.asarray(data.labels), clip.norms(rows))

    def pack(flat: Array) -> Array:
        tensors = unflatten(flat, shapes)
        weights = tensors["weights"].reshape(features, -1)
        return jnp.concatenate([weights.T, tensors["bias"].reshape(-1, 1)], axis=1)

    def unpack(by_class: Array) -> Array:
        return jnp.concatenate([by_class[:, :-1].T.ravel(), by_class[:, -1]])

    def summed(table: Any, by_class: Array, clients: Array) -> Array:
        rows, labels, lengths = table
        here = jnp.maximum(clients, 0)
        x = rows[here]
        scores = x @ by_class.T
        residuals = model.residuals(scores[:, 0] if one_score else scores, labels[here])
        residuals = residuals.reshape(scores.shape)
        norms = clip.norms(residuals) * lengths[here]
        scale = jnp.minimum(1.0, clip.bound / jnp.maximum(norms, 1e-30))
        clipped: Array = residuals * jnp.where(clients >= 0, scale, 0.0)[:, None]
        total: Array = clipped.T @ x
        return total

    updates = _in_blocks(summed, ROW_BYTES // (4 * (features + 1)))
    return Updates(table, updates, jax.jit(pack), jax.jit(unpack))


def general(
    model: Model, data: Dataset, *, clip: Clip, work: LocalWork = ONE_STEP, dtype: Any = np.float32
) -> Updates:
    """Return the function that sums clipped updates, for any loss, rows and local work."""
    each = client_updates(model, data, work=work, dtype=dtype)
    # The memory of a client is that of its gradient or of its rows, whichever is larger.
    numbers = max(model.dimension, data.max_rows_per_client * data.dimension)

    def summed(table: Any, flat: Array, clients: Array) -> Array:
        clipped = clip.rows(each.function(table, flat, clients))
        return jnp.sum(jnp.where((clients >= 0)[:, None], clipped, 0.0), axis=0)

    return Updates(each.table, _in_blocks(summed, BLOCK_BYTES // (4 * numbers)))


def _in_blocks(summed: Function, most: int) -> Function:
    """Return a function with the same sum that processes at most ``most`` clients at a time."""
    most = max(1, most)

    def updates(table: Any, model: Array, clients: Array) -> Array:
        if len(clients) <= most:
            return summed(table, model, clients)
        short = -len(clients) % most
        blocks = jnp.concatenate([clients, jnp.full(short, -1, clients.dtype)]).reshape(-1, most)

        def block(total: Array, some: Array) -> tuple[Array, None]:
            return total + summed(table, model, some), None

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
    most, last, shapes = data.max_rows_per_client, len(data.features) - 1, model.shapes

    def loss(flat: Array, features: Array, label: Array) -> Array:
        return model.loss(unflatten(flat, shapes), features, label)

    def mean_loss(flat: Array, client: Array, table: Any) -> Array:
        rows, labels, starts, sizes = table
        places = jnp.minimum(starts[client] + jnp.arange(most), last)
        losses: Array = jax.vmap(loss, (None, 0, 0))(flat, rows[places], labels[places])
        mine = jnp.arange(most) < sizes[client]
        mean: Array = jnp.sum(jnp.where(mine, losses, 0.0)) / sizes[client]
        return mean

    gradient = jax.grad(mean_loss)

    def update(flat: Array, client: Array, table: Any) -> Array:
        if work.steps == 1:
            one: Array = gradient(flat, client, table)
            return one

        def step(_: Any, here: Array) -> Any:
            return here - work.rate * gradient(here, client, table)

        end: Array = jax.lax.fori_loop(0, work.steps, step, flat)
        return (flat - end) / work.rate

    def updates(table: Any, flat: Array, clients: Array) -> Array:
        here = jnp.maximum(clients, 0)
        each: Array = jax.vmap(update, (None, 0, None))(flat, here, table)
        return each

    return Updates(table, updates)
