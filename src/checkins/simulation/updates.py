"""The sum of the clipped updates of the clients that a slot uses.

Linear models never materialise a client's gradient: it is an outer product, its norm the product
of two norms, so clipping scales a row and the sum is one matrix product. Any other loss takes the
general way, a gradient for each client.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from checkins.tasks.dataset import Dataset
from checkins.tasks.model import LinearModel, Model
from checkins.tasks.tensors import unflatten

Updates = Callable[[Array, Array], Array]
"""(flat model, clients (K,), −1 for nobody) → the sum of their clipped updates."""
Clip = Callable[[Array], Array]
"""Shortens each row of a matrix of updates."""


def updates_of(
    model: Model,
    data: Dataset,
    *,
    clip: float | None,
    local_steps: int = 1,
    local_rate: float = 1.0,
    dtype: Any = np.float32,
) -> Updates:
    """The fastest way for this model and these data; ``clip`` None is for runs without privacy."""
    alone = data.most_rows == 1 and local_steps == 1
    if alone and isinstance(model, LinearModel):
        return linear(model, data, clip=clip, dtype=dtype)
    return general(
        model, data, clip=clip, local_steps=local_steps, local_rate=local_rate, dtype=dtype
    )


def linear(
    model: LinearModel, data: Dataset, *, clip: float | None, dtype: Any = np.float32
) -> Updates:
    """A linear model and one row for each client."""
    rows = jnp.asarray(data.features.reshape(len(data.features), -1), dtype)
    labels = jnp.asarray(data.labels)
    lengths = jnp.sqrt(jnp.sum(rows * rows, axis=1) + 1.0)
    shapes = model.shapes

    def updates(flat: Array, clients: Array) -> Array:
        tensors = unflatten(flat, shapes)
        here = jnp.maximum(clients, 0)
        x = rows[here]
        residuals = model.residuals(x @ tensors["weights"] + tensors["bias"], labels[here])
        residuals = residuals.reshape(len(clients), -1)
        scale = (clients >= 0).astype(rows.dtype)
        if clip is not None:
            norms = jnp.sqrt(jnp.sum(residuals * residuals, axis=1)) * lengths[here]
            scale = scale * jnp.minimum(1.0, clip / jnp.maximum(norms, 1e-30))
        residuals = residuals * scale[:, None]
        return jnp.concatenate([(x.T @ residuals).ravel(), jnp.sum(residuals, axis=0)])

    return updates


def general(
    model: Model,
    data: Dataset,
    *,
    clip: float | None,
    local_steps: int = 1,
    local_rate: float = 1.0,
    dtype: Any = np.float32,
) -> Updates:
    """Any loss, any number of rows per client, one gradient or several local steps (FedAvg).

    With several steps the update is what the client's model lost on the way, over the local rate:
    a sum of gradients, so that the server's rate means the same.
    """
    rows, labels = jnp.asarray(data.features, dtype), jnp.asarray(data.labels)
    starts = jnp.asarray(data.offsets[:-1], jnp.int32)
    sizes = jnp.asarray(np.diff(data.offsets), jnp.int32)
    most, last, shapes = data.most_rows, len(data.features) - 1, model.shapes

    def loss(flat: Array, features: Array, label: Array) -> Array:
        return model.loss(unflatten(flat, shapes), features, label)

    def mean_loss(flat: Array, client: Array) -> Array:
        places = jnp.minimum(starts[client] + jnp.arange(most), last)
        losses: Array = jax.vmap(loss, (None, 0, 0))(flat, rows[places], labels[places])
        mine = jnp.arange(most) < sizes[client]
        return jnp.sum(jnp.where(mine, losses, 0.0)) / sizes[client]

    gradient = jax.grad(mean_loss)

    def update(flat: Array, client: Array) -> Array:
        if local_steps == 1:
            one: Array = gradient(flat, client)
            return one
        end: Array = jax.lax.fori_loop(
            0, local_steps, lambda _, here: here - local_rate * gradient(here, client), flat
        )
        return (flat - end) / local_rate

    def updates(flat: Array, clients: Array) -> Array:
        each = jax.vmap(update, (None, 0))(flat, jnp.maximum(clients, 0))
        used = (clients >= 0)[:, None]
        return jnp.sum(jnp.where(used, _clipped(each, clip), 0.0), axis=0)

    return updates


def _clipped(each: Any, clip: float | None) -> Any:
    if clip is None:
        return each
    from checkins.randomizers.compiled import clip_l2

    return clip_l2(each, clip)
