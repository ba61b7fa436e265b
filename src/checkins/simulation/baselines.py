"""Baselines: other mechanisms at the same epsilon and delta, and learning without privacy.

Each private baseline is calibrated to the epsilon and delta of the campaign's certificate. It takes
as many steps as the campaign, with the same step size. The baselines are only simulated; the
service cannot run them.

Rounding:    noise up, so that no baseline has a larger epsilon than the campaign.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from checkins.accounting import (
    Adjacency,
    Certificate,
    Design,
    GaussianNoise,
    LocalRandomizer,
    NoiseAt,
    Parameter,
    Protocol,
    calibrate,
)
from checkins.accounting.comparisons import poisson, shuffling_epsilon
from checkins.accounting.design import LEAST_SLOT_NOISE, MOST_EPSILON, MOST_SLOT_NOISE
from checkins.accounting.solve import first_true
from checkins.errors import InvalidValue, NotCovered
from checkins.optional_imports import import_optional
from checkins.randomizers import Gaussian, Laplace, PrivUnit, Randomizer
from checkins.simulation.engine.evaluation import CurvePoint, Evaluation, Metrics
from checkins.simulation.engine.mechanism import Mechanism
from checkins.simulation.engine.outcome import Outcome
from checkins.simulation.population import Sampling
from checkins.tasks.loaded_task import LoadedTask
from checkins.tasks.model import unflatten

_STEPS_PER_DOUBLING = 2**13
"""Number of candidate values between a value and its double, in the search for noise."""


class Baseline(StrEnum):
    """Other ways to learn from the same clients."""

    NON_PRIVATE = "non-private"
    POISSON = "poisson"
    SHUFFLING = "shuffling"
    NO_AMPLIFICATION = "no-amplification"


BASELINE_DESCRIPTIONS = {
    Baseline.NON_PRIVATE: "all rows in one place, neither clipped nor noised",
    Baseline.POISSON: "a server samples every client independently for each step (DP-SGD)",
    Baseline.SHUFFLING: "a trusted shuffler mixes one private report from each client",
    Baseline.NO_AMPLIFICATION: "the same check-ins, accounted for as if all slots were public",
}


@dataclass(frozen=True, slots=True)
class CalibratedBaseline:
    """A baseline with noise calibrated to the campaign's certificate.

    ``epsilon``, ``delta``, ``adjacency`` and ``mechanism`` are None for non-private learning.
    """

    kind: Baseline
    epsilon: float | None
    delta: float | None
    adjacency: Adjacency | None
    mechanism: Mechanism | None = None
    unavailable: str | None = None
    """Why the baseline cannot be run; None if it can."""


def calibrate_baseline(
    kind: Baseline, mechanism: Mechanism, certificate: Certificate, *, clients: int, dimension: int
) -> CalibratedBaseline:
    """Return the baseline, calibrated to the epsilon and delta of a campaign's certificate.

    ``mechanism`` is the campaign's mechanism. ``dimension`` is the number of weights of its model.
    """
    if kind is Baseline.NON_PRIVATE:
        return CalibratedBaseline(kind, None, None, None)
    adjacency = certificate.adjacency
    if kind is Baseline.SHUFFLING:
        adjacency = Adjacency.REPLACE_ONE  # theorems on shuffling are for this adjacency
    baseline = CalibratedBaseline(kind, certificate.epsilon, certificate.delta, adjacency)
    try:
        match kind:
            case Baseline.POISSON:
                calibrated = _poisson_mechanism(mechanism, certificate)
            case Baseline.SHUFFLING:
                calibrated = _shuffling_mechanism(mechanism, certificate, clients, dimension)
            case Baseline.NO_AMPLIFICATION:
                calibrated = _public_slot_mechanism(mechanism, certificate, dimension)
    except InvalidValue as error:
        return replace(baseline, unavailable=str(error))
    return replace(baseline, mechanism=calibrated)


def _poisson_mechanism(mechanism: Mechanism, certificate: Certificate) -> Mechanism:
    """Return the mechanism of DP-SGD: each of m steps samples every client with probability p0/m.

    The server adds the noise.
    """
    if certificate.adjacency is not Adjacency.ADD_REMOVE:
        why = "Poisson accountants cover add-remove only"
        raise NotCovered("adjacency", str(certificate.adjacency), why)
    if mechanism.is_averaged or not isinstance(mechanism.randomizer, Gaussian):
        why = "DP-SGD adds Gaussian noise to sums"
        raise NotCovered("randomizer", type(mechanism.randomizer).__name__, why)

    def design_with_noise(noise: float) -> Design:
        return Design(
            Protocol.FIXED,
            slots=mechanism.design.slots,
            participation=mechanism.design.participation,
            randomizer=GaussianNoise(noise, NoiseAt.SERVER),
        )

    def epsilon_at(noise: float) -> float:
        runs, delta = mechanism.runs, certificate.delta
        return poisson(design_with_noise(noise), campaigns=runs, delta=delta).epsilon

    noise = _least_value(
        epsilon_at, certificate.epsilon, low=LEAST_SLOT_NOISE, high=MOST_SLOT_NOISE
    )
    return replace(
        mechanism,
        design=design_with_noise(noise),
        randomizer=Gaussian(mechanism.randomizer.clip, noise),
        noise_at=NoiseAt.SERVER,
        sampling=Sampling.POISSON,
    )


def _shuffling_mechanism(
    mechanism: Mechanism, certificate: Certificate, clients: int, dimension: int
) -> Mechanism:
    """Return the mechanism of shuffling: one locally private report per client, in random order."""
    if mechanism.runs > 1:
        why = "the shuffling accountant covers only one report from each client"
        raise NotCovered("repeats", mechanism.runs, why)

    def epsilon_at(inverse_local_epsilon: float) -> float:
        return shuffling_epsilon(
            1.0 / inverse_local_epsilon, clients=clients, delta=certificate.delta
        )

    # Epsilon grows with the local epsilon, so it falls with the inverse, as ``_least_value`` needs.
    local_epsilon = 1.0 / _least_value(epsilon_at, certificate.epsilon, low=0.02, high=1e6)
    slots = min(mechanism.design.slots, clients)
    reports_per_slot = -(-clients // slots)
    design = Design(
        Protocol.FIXED,
        slots=slots,
        participation=1.0,
        randomizer=LocalRandomizer(local_epsilon),
        capacity=reports_per_slot,
    )
    return replace(
        mechanism,
        design=design,
        randomizer=_local_randomizer(mechanism.randomizer, local_epsilon, dimension),
        noise_at=NoiseAt.CLIENT,
        divide_by=reports_per_slot,
        sampling=Sampling.SHUFFLED,
    )


def _local_randomizer(randomizer: Randomizer, local_epsilon: float, dimension: int) -> Randomizer:
    """Return an ε-LDP randomizer: Laplace if ``randomizer`` is Laplace, else PrivUnit.

    Raises NotCovered if the randomizer reports categories instead of model updates.
    """
    if isinstance(randomizer, Laplace):
        return replace(randomizer, local_epsilon=local_epsilon)
    if isinstance(randomizer, Gaussian | PrivUnit):
        return PrivUnit(randomizer.clip, local_epsilon, dimension)
    why = "its reports are categories, not model updates"
    raise NotCovered("randomizer", type(randomizer).__name__, why)


def _public_slot_mechanism(
    mechanism: Mechanism, certificate: Certificate, dimension: int
) -> Mechanism:
    """Return the campaign's mechanism with enough noise even if every client's slot is public.

    Gaussian noise is added to the sum of all clients of the slot, without a capacity. With a
    capacity, a client whose slot is known would change the sum twice: by its own report, and by
    the report of the client that it displaces.
    """
    randomizer: GaussianNoise | LocalRandomizer = LocalRandomizer(1.0)
    parameter = Parameter.LOCAL_EPSILON
    if isinstance(mechanism.randomizer, Gaussian):
        randomizer, parameter = GaussianNoise(1.0, NoiseAt.SERVER), Parameter.NOISE_MULTIPLIER
    calibrated = calibrate(
        Design(Protocol.FIXED, slots=1, participation=1.0, randomizer=randomizer),
        parameter=parameter,
        epsilon=certificate.epsilon,
        delta=certificate.delta,
        adjacency=certificate.adjacency,
        campaigns=mechanism.runs,
    )
    if not isinstance(mechanism.randomizer, Gaussian):
        local_randomizer = _local_randomizer(mechanism.randomizer, calibrated.value, dimension)
        return replace(mechanism, randomizer=local_randomizer)
    design = replace(mechanism.design, least_reports=None)
    if not mechanism.is_averaged:
        noise = GaussianNoise(calibrated.value, NoiseAt.SERVER)
        design = replace(design, capacity=None, randomizer=noise)
    return replace(
        mechanism,
        design=design,
        randomizer=replace(mechanism.randomizer, noise_multiplier=calibrated.value),
        noise_at=NoiseAt.SERVER,
    )


def _least_value(
    epsilon_of: Callable[[float], float], target: float, *, low: float, high: float
) -> float:
    """Return the smallest value with ``epsilon_of(value) <= target``, rounded up.

    ``epsilon_of`` must be a decreasing function.
    """
    if not target < MOST_EPSILON or epsilon_of(high) > target:
        raise NotCovered("epsilon", target, "no noise in the supported range is enough")

    def value_at(step: int) -> float:
        return min(low * math.exp2(step / _STEPS_PER_DOUBLING), high)

    def is_enough(step: int) -> bool:
        return epsilon_of(value_at(step)) <= target

    # Start at ``low`` and double, so that epsilon is never computed far from the target.
    upper = next(step for step in itertools.count(0, _STEPS_PER_DOUBLING) if is_enough(step))
    lower = upper - _STEPS_PER_DOUBLING
    return value_at(first_true(is_enough, false=lower, true=upper) if upper else 0)


EPOCHS, BATCH, RATE = 20, 256, 0.01
"""Epochs (passes over the data), rows of a minibatch, and first step size, without privacy."""
MIN_STEPS_PER_EPOCH = 250
"""Least number of steps in an epoch. With few rows, an epoch uses every row more than once."""


def train_pooled(
    loaded: LoadedTask, *, seed: int, on_progress: Callable[[int, Metrics], bool] | None = None
) -> Outcome:
    """Learn without privacy, from all rows in one place, without clipping and without noise.

    The optimizer is Adam on minibatches of rows, for ``EPOCHS`` epochs. The step size falls to zero
    along a cosine. This schedule needs no tuning for the models that campaigns train.
    ``on_progress`` is called with the number of finished epochs and no metrics. If it returns
    False, training stops.
    """
    start_time = time.perf_counter()
    rows, labels = jnp.asarray(loaded.data.features), jnp.asarray(loaded.data.labels)
    batch = min(BATCH, len(rows))
    steps = max(len(rows) // batch, MIN_STEPS_PER_EPOCH)
    init_optimizer, run_epoch = _compiled_epoch(loaded, steps)
    generator = np.random.default_rng([seed, 3])
    flat = jnp.asarray(loaded.model.start(seed), jnp.float32)
    state = (flat, init_optimizer(flat))
    epochs = 0
    while epochs < EPOCHS:
        permutations = -(-steps * batch // len(rows))
        order = np.concatenate([generator.permutation(len(rows)) for _ in range(permutations)])
        batches = jnp.asarray(order[: steps * batch].reshape(steps, batch))
        state = run_epoch(state, batches, rows, labels)
        epochs += 1
        if on_progress is not None and not on_progress(epochs, {}):
            break
    model = np.asarray(state[0], np.float32)
    seconds = time.perf_counter() - start_time
    updates = epochs * steps * batch
    return Outcome(
        seed=seed,
        complete=epochs == EPOCHS,
        slots=epochs * steps,
        check_ins=0,
        client_updates=updates,
        dummies=0,
        contributors=(),
        curve=(CurvePoint(epochs * steps, Evaluation(loaded)(model)),),
        seconds=seconds,
        updates_per_second=updates / max(seconds, math.ulp(1.0)),
        model=model,
    )


@lru_cache(maxsize=2)
def _compiled_epoch(loaded: LoadedTask, steps: int) -> tuple[Any, Any]:
    """Return the function that initialises Adam, and a compiled epoch of ``steps`` steps.

    The two functions are cached, so that all seeds share the compiled epoch.
    """
    optax = import_optional("optax", value="non-private", setting="baselines")
    optimizer = optax.adam(optax.cosine_decay_schedule(RATE, EPOCHS * steps))
    model = loaded.model

    def mean_loss(flat: Any, batch: Any, rows: Any, labels: Any) -> Any:
        tensors = unflatten(flat, model.shapes)
        losses: Any = jax.vmap(lambda x, y: model.loss(tensors, x, y))
        return jnp.mean(losses(rows[batch], labels[batch]))

    @jax.jit
    def epoch(state: Any, batches: Any, rows: Any, labels: Any) -> Any:
        def step(state: Any, batch: Any) -> Any:
            flat, optimizer_state = state
            gradient = jax.grad(mean_loss)(flat, batch, rows, labels)
            direction, optimizer_state = optimizer.update(gradient, optimizer_state, flat)
            return (flat + direction, optimizer_state), None

        return jax.lax.scan(step, state, batches)[0]

    return optimizer.init, epoch
