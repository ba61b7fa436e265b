"""Learning without privacy: all rows in one place, no clipping, no noise. What privacy is held to.

Adam on minibatches of rows, with a step size that falls to zero along a cosine: it needs no tuning
for models of the kinds that campaigns train.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from checkins.simulation.evaluation import Evaluation, Metrics, Point
from checkins.simulation.outcome import Outcome
from checkins.tasks.loaded_task import LoadedTask
from checkins.tasks.optional_import import package
from checkins.tasks.tensors import unflatten

EPOCHS, BATCH, RATE = 20, 256, 0.01
FEWEST_STEPS = 250
"""Of a pass: few rows are gone over more than once in it."""


def pooled(
    lesson: LoadedTask, *, seed: int, watch: Callable[[int, Metrics], bool] | None = None
) -> Outcome:
    """The last model of ``EPOCHS`` passes over the clients' rows, of many steps each.

    ``watch`` is told how many passes are over; False stops there.
    """
    began = time.perf_counter()
    optax = package("optax", extra="sim", wanted_by="non-private", setting="baselines")
    data, model = lesson.data, lesson.model
    rows, labels = jnp.asarray(data.features), jnp.asarray(data.labels)
    batch = min(BATCH, len(rows))
    steps = max(len(rows) // batch, FEWEST_STEPS)
    optimizer = optax.adam(optax.cosine_decay_schedule(RATE, EPOCHS * steps))

    def mean_loss(flat: Any, some: Any, rows: Any, labels: Any) -> Any:
        tensors = unflatten(flat, model.shapes)
        return jnp.mean(jax.vmap(lambda x, y: model.loss(tensors, x, y))(rows[some], labels[some]))

    @jax.jit
    def epoch(state: Any, order: Any, rows: Any, labels: Any) -> Any:
        def step(state: Any, some: Any) -> Any:
            flat, inner = state
            slope = jax.grad(mean_loss)(flat, some, rows, labels)
            change, inner = optimizer.update(slope, inner, flat)
            return (flat + change, inner), None

        return jax.lax.scan(step, state, order)[0]

    generator = np.random.default_rng([seed, 3])
    flat = jnp.asarray(model.start(seed), jnp.float32)
    state = (flat, optimizer.init(flat))
    passes = 0
    while passes < EPOCHS:
        times = -(-steps * batch // len(rows))
        order = np.concatenate([generator.permutation(len(rows)) for _ in range(times)])
        some = jnp.asarray(order[: steps * batch].reshape(steps, batch))
        state = epoch(state, some, rows, labels)
        passes += 1
        if watch is not None and not watch(passes, {}):
            break
    found = np.asarray(state[0], np.float32)
    seconds = time.perf_counter() - began
    updates = passes * steps * batch
    return Outcome(
        seed=seed,
        complete=passes == EPOCHS,
        slots=passes * steps,
        check_ins=0,
        client_updates=updates,
        dummies=0,
        contributors=(),
        curve=(Point(passes * steps, Evaluation(lesson)(found)),),
        seconds=seconds,
        updates_per_second=updates / max(seconds, math.ulp(1.0)),
        model=found,
    )
