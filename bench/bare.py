"""The same work written by hand in JAX: what the simulator is held against.

One softmax regression of 784 features and 10 classes, a row for each client. A slot adds up the
clipped gradients of some clients, adds noise and steps. Nothing else is done: who is used is drawn
beforehand, there are no dummies, no options and no measurements.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

ROWS, FEATURES, CLASSES = 60_000, 784, 10
DIMENSION = (FEATURES + 1) * CLASSES
CLIP, NOISE, RATE = 1.0, 1.0, 0.5
CORES = os.cpu_count() or 1


class Table(NamedTuple):
    """The data where the loop runs: rows with a 1 for the bias, labels, lengths of the rows."""

    rows: Array
    labels: Array
    lengths: Array


def data(rows: int = ROWS) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Features and labels that mean nothing."""
    generator = np.random.default_rng(1)
    features = generator.standard_normal((rows, FEATURES), np.float32)
    return features, generator.integers(0, CLASSES, rows)


def table(features: NDArray[np.float32], labels: NDArray[np.int64]) -> Table:
    rows = jnp.asarray(np.column_stack([features, np.ones(len(features), np.float32)]))
    return Table(rows, jnp.asarray(labels, jnp.int32), jnp.sqrt(jnp.sum(rows * rows, axis=1)))


Slot = Callable[[Table, Array, Array, Array], Array]
"""(table, model, clients (K,), noise (7,850,)) → the next model."""


def _pulls(scores: Array, labels: Array, lengths: Array) -> Array:
    """What each client pulls each class by, clipped, times the step size."""
    residuals = jax.nn.softmax(scores) - jax.nn.one_hot(labels, CLASSES, dtype=scores.dtype)
    norms = jnp.sqrt(jnp.sum(residuals * residuals, axis=1)) * lengths
    scale = jnp.minimum(1.0, CLIP / jnp.maximum(norms, 1e-30))
    return residuals * (RATE / len(labels) * scale)[:, None]


def by_class(table: Table, model: Array, clients: Array, noise: Array) -> Array:
    """The model as 10 rows of 785: on a CPU up to ten times faster than 785 rows of 10."""
    x = table.rows[clients]
    pulls = _pulls(x @ model.T, table.labels[clients], table.lengths[clients])
    return model - (pulls.T @ x + RATE * NOISE / len(clients) * noise.reshape(model.shape))


def by_feature(table: Table, model: Array, clients: Array, noise: Array) -> Array:
    """The model as 785 rows of 10."""
    x = table.rows[clients]
    pulls = _pulls(x @ model, table.labels[clients], table.lengths[clients])
    return model - (x.T @ pulls + RATE * NOISE / len(clients) * noise.reshape(model.shape))


def elementwise(table: Table, model: Array, clients: Array, noise: Array) -> Array:
    """By class, products and sums left to the compiler's fusion: no calls of a matrix library."""
    x = table.rows[clients]
    scores = jnp.sum(x[:, None, :] * model[None], axis=2)
    pulls = _pulls(scores, table.labels[clients], table.lengths[clients])
    change = jnp.sum(pulls[:, :, None] * x[:, None, :], axis=0)
    return model - (change + RATE * NOISE / len(clients) * noise.reshape(model.shape))


def threefry_inside(table: Table, model: Array, clients: Array, noise: Array) -> Array:
    """By class; ``noise`` is a key, and random bits are drawn in the loop."""
    drawn = jax.random.normal(jax.random.wrap_key_data(noise), (DIMENSION,))
    return by_class(table, model, clients, drawn)


SHAPES = {by_feature: (FEATURES + 1, CLASSES)}

Draw = Callable[[int, int], Any]
"""(which stretch, its slots) → a row of noise for each slot."""


def sfc64(stretch: int, slots: int) -> Any:
    """By numpy, on the host."""
    generator = np.random.Generator(np.random.SFC64([3, stretch]))
    return generator.standard_normal((slots, DIMENSION), np.float32)


def words(stretch: int, slots: int) -> Any:
    """Random words by numpy, made normal by compiled code: how checkins itself does it."""
    count = slots * DIMENSION
    raw = np.random.SFC64([3, stretch]).random_raw(-(-count // 2)).view(np.uint32)
    return _normals(raw[:count].reshape(slots, DIMENSION)).block_until_ready()


@jax.jit
def _normals(words: Array) -> Array:
    uniform = ((words >> 9).astype(jnp.float32) + 0.5) * np.float32(2.0**-22) - 1.0
    return np.float32(2**0.5) * jax.lax.erf_inv(uniform)


def lanes(stretch: int, slots: int) -> Any:
    """By xoshiro128++, compiled: 7,850 of them side by side, each with a state of its own."""
    words = np.random.Generator(np.random.SFC64([3, stretch])).integers(
        0, 2**32, (4, DIMENSION), np.uint32
    )
    return _lanes(slots)(words).block_until_ready()


@cache
def _lanes(slots: int) -> Callable[[Any], Array]:
    def turned(words: Array, bits: int) -> Array:
        return (words << bits) | (words >> (32 - bits))

    def step(state: tuple[Array, ...], _: None) -> tuple[tuple[Array, ...], Array]:
        a, b, c, d = state
        found = turned(a + d, 7) + a
        shifted = b << 9
        c, d = c ^ a, d ^ b
        b, a = b ^ c, a ^ d
        uniform = (found >> 8).astype(jnp.int32).astype(jnp.float32) * 2.0**-23 - (1.0 - 2.0**-24)
        return (a, b, c ^ shifted, turned(d, 11)), np.float32(2**0.5) * jax.lax.erf_inv(uniform)

    def draw(words: Array) -> Array:
        return jax.lax.scan(step, tuple(words), None, length=slots)[1]

    return jax.jit(draw)


def on_device(stretch: int, slots: int, *, kind: str) -> Any:
    """By jax.random, all at once, where the loop runs."""
    return _normal(jax.random.key(stretch, impl=kind), slots)


@partial(jax.jit, static_argnums=1)
def _normal(key: Array, slots: int) -> Array:
    return jax.random.normal(key, (slots, DIMENSION))


def keys(stretch: int, slots: int) -> Any:
    """A key for each slot."""
    return jax.random.key_data(jax.random.split(jax.random.key(stretch), slots))


@dataclass(frozen=True)
class Bare:
    """One way to write it. With ``threads``, noise is drawn ahead in as many."""

    name: str
    slot: Slot = by_class
    draw: Draw = sfc64
    threads: int = 0
    unroll: int = 1

    def ready(self, table: Table, *, per_slot: int, stretch: int) -> Callable[[int], float]:
        """Compile; the result runs so many stretches and says how many slots a second it did."""
        shape = SHAPES.get(self.slot, (CLASSES, FEATURES + 1))
        people = np.random.default_rng(2).integers(0, len(table.rows), (8, stretch, per_slot))
        clients = [jnp.asarray(some, jnp.int32) for some in people]

        def advance(table: Table, model: Array, clients: Array, noise: Array) -> Array:
            def slot(model: Array, inputs: tuple[Array, Array]) -> tuple[Array, None]:
                return self.slot(table, model, *inputs), None

            return jax.lax.scan(slot, model, (clients, noise), unroll=self.unroll)[0]

        compiled = jax.jit(advance, donate_argnums=1)

        def run(stretches: int) -> float:
            model = jnp.zeros(shape)
            began = time.perf_counter()
            for number, noise in enumerate(self._noises(stretches, stretch)):
                model = compiled(table, model, clients[number % len(clients)], noise)
            model.block_until_ready()
            return stretches * stretch / (time.perf_counter() - began)

        run(2)
        return run

    def _noises(self, stretches: int, slots: int) -> Iterator[Any]:
        if not self.threads:
            for number in range(stretches):
                yield self.draw(number, slots)
            return
        with ThreadPoolExecutor(self.threads) as pool:
            ahead = self.threads + 1
            waiting = [pool.submit(self.draw, n, slots) for n in range(min(ahead, stretches))]
            for number in range(stretches):
                noise = waiting.pop(0).result()
                if number + ahead < stretches:
                    waiting.append(pool.submit(self.draw, number + ahead, slots))
                yield noise


ON_HOST = (
    Bare("numpy's noise, one thread ahead", threads=1),
    Bare("numpy's noise, a thread for each core", threads=CORES),
    Bare("numpy's words, a thread for each core", draw=words, threads=CORES),
    Bare("numpy's words, the same, 2 slots unrolled", draw=words, threads=CORES, unroll=2),
    Bare("compiled noise, one thread ahead", draw=lanes, threads=1),
    Bare("compiled noise, a thread for each core", draw=lanes, threads=CORES),
)
INSIDE = Bare("threefry inside the loop", slot=threefry_inside, draw=keys)
ON_DEVICE = (
    Bare("by class", draw=partial(on_device, kind="threefry2x32")),
    Bare("by feature", slot=by_feature, draw=partial(on_device, kind="threefry2x32")),
    Bare("by class, rbg", draw=partial(on_device, kind="rbg")),
    Bare("by feature, rbg", slot=by_feature, draw=partial(on_device, kind="rbg")),
    Bare("by class, rbg, 8 slots unrolled", draw=partial(on_device, kind="rbg"), unroll=8),
    Bare("elementwise, rbg", slot=elementwise, draw=partial(on_device, kind="rbg")),
)
