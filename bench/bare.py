"""Training loops written by hand in JAX, with which the simulator is compared.

Each loop trains softmax regression with 784 features and 10 classes; a client has one row. A slot
sums the clipped gradients of some clients, adds noise and updates the model. The clients of each
slot are drawn beforehand. There are no dummies, options or evaluations. A stretch is a number of
slots that one compiled call runs.
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
    """The data on the device: rows with a 1 for the bias, labels, and norms of the rows."""

    rows: Array
    labels: Array
    lengths: Array


def data(rows: int = ROWS) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return random features and labels."""
    generator = np.random.default_rng(1)
    features = generator.standard_normal((rows, FEATURES), np.float32)
    return features, generator.integers(0, CLASSES, rows)


def table(features: NDArray[np.float32], labels: NDArray[np.int64]) -> Table:
    rows = jnp.asarray(np.column_stack([features, np.ones(len(features), np.float32)]))
    return Table(rows, jnp.asarray(labels, jnp.int32), jnp.sqrt(jnp.sum(rows * rows, axis=1)))


Slot = Callable[[Table, Array, Array, Array], Array]
"""One slot: (table, model, clients (K,), noise (7,850,)) → the next model."""


def _pulls(scores: Array, labels: Array, lengths: Array) -> Array:
    """Return each client's clipped gradient of the scores, times the step size."""
    residuals = jax.nn.softmax(scores) - jax.nn.one_hot(labels, CLASSES, dtype=scores.dtype)
    norms = jnp.sqrt(jnp.sum(residuals * residuals, axis=1)) * lengths
    scale = jnp.minimum(1.0, CLIP / jnp.maximum(norms, 1e-30))
    return residuals * (RATE / len(labels) * scale)[:, None]


def by_class(table: Table, model: Array, clients: Array, noise: Array) -> Array:
    """The model is 10 rows of 785. On a CPU it is up to ten times faster than 785 rows of 10."""
    x = table.rows[clients]
    pulls = _pulls(x @ model.T, table.labels[clients], table.lengths[clients])
    return model - (pulls.T @ x + RATE * NOISE / len(clients) * noise.reshape(model.shape))


def by_feature(table: Table, model: Array, clients: Array, noise: Array) -> Array:
    """The model is 785 rows of 10."""
    x = table.rows[clients]
    pulls = _pulls(x @ model, table.labels[clients], table.lengths[clients])
    return model - (x.T @ pulls + RATE * NOISE / len(clients) * noise.reshape(model.shape))


def elementwise(table: Table, model: Array, clients: Array, noise: Array) -> Array:
    """As ``by_class``, but the compiler fuses products and sums; no matrix library is called."""
    x = table.rows[clients]
    scores = jnp.sum(x[:, None, :] * model[None], axis=2)
    pulls = _pulls(scores, table.labels[clients], table.lengths[clients])
    change = jnp.sum(pulls[:, :, None] * x[:, None, :], axis=0)
    return model - (change + RATE * NOISE / len(clients) * noise.reshape(model.shape))


def threefry_inside(table: Table, model: Array, clients: Array, noise: Array) -> Array:
    """As ``by_class``, but ``noise`` is a key, and the noise is drawn inside the loop."""
    drawn = jax.random.normal(jax.random.wrap_key_data(noise), (DIMENSION,))
    return by_class(table, model, clients, drawn)


SHAPES = {by_feature: (FEATURES + 1, CLASSES)}

Draw = Callable[[int, int], Any]
"""(number of the stretch, its slots) → a row of noise for each slot."""


def sfc64(stretch: int, slots: int) -> Any:
    """Draw the noise with numpy on the host."""
    generator = np.random.Generator(np.random.SFC64([3, stretch]))
    return generator.standard_normal((slots, DIMENSION), np.float32)


def words(stretch: int, slots: int) -> Any:
    """Draw random words with numpy and transform them to normals, as checkins does."""
    count = slots * DIMENSION
    raw = np.random.SFC64([3, stretch]).random_raw(-(-count // 2)).view(np.uint32)
    return _normals(raw[:count].reshape(slots, DIMENSION)).block_until_ready()


@jax.jit
def _normals(words: Array) -> Array:
    uniform = ((words >> 9).astype(jnp.float32) + 0.5) * np.float32(2.0**-22) - 1.0
    return np.float32(2**0.5) * jax.lax.erf_inv(uniform)


def lanes(stretch: int, slots: int) -> Any:
    """Draw with 7,850 compiled xoshiro128++ generators in parallel, each with its own state."""
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
    """Draw the noise of all slots at once with jax.random, on the device of the loop."""
    return _normal(jax.random.key(stretch, impl=kind), slots)


@partial(jax.jit, static_argnums=1)
def _normal(key: Array, slots: int) -> Array:
    return jax.random.normal(key, (slots, DIMENSION))


def keys(stretch: int, slots: int) -> Any:
    """Return a key for each slot."""
    return jax.random.key_data(jax.random.split(jax.random.key(stretch), slots))


@dataclass(frozen=True)
class Bare:
    """One variant of the loop. ``threads`` is the number of threads that draw noise ahead."""

    name: str
    slot: Slot = by_class
    draw: Draw = sfc64
    threads: int = 0
    unroll: int = 1

    def ready(self, table: Table, *, per_slot: int, stretch: int) -> Callable[[int], float]:
        """Compile. The returned function runs some stretches and returns slots per second."""
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
