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
from checkins.accounting.comparisons import poisson, shuffled
from checkins.accounting.design import LEAST_NOISE, MOST_EPSILON, MOST_NOISE
from checkins.accounting.solve import first_true
from checkins.errors import InvalidValue, NotCovered
from checkins.randomizers import Gaussian, Laplace, PrivUnit, Randomizer
from checkins.simulation.engine.evaluation import Evaluation, Metrics, Point
from checkins.simulation.engine.mechanism import Mechanism
from checkins.simulation.engine.outcome import Outcome
from checkins.simulation.population import Sampling
from checkins.tasks.loaded_task import LoadedTask
from checkins.tasks.model import unflatten
from checkins.validate import installed

_STEPS = 2**13
"""Number of noise multipliers that the search tries per doubling of the noise multiplier."""


class Baseline(StrEnum):
    """Other ways to learn from the same clients."""

    NON_PRIVATE = "non-private"
    POISSON = "poisson"
    SHUFFLING = "shuffling"
    NO_AMPLIFICATION = "no-amplification"


DESCRIPTIONS = {
    Baseline.NON_PRIVATE: "all rows in one place, neither clipped nor noised",
    Baseline.POISSON: "a server samples every client independently for each step (DP-SGD)",
    Baseline.SHUFFLING: "a trusted shuffler mixes one private report from each client",
    Baseline.NO_AMPLIFICATION: "the same check-ins, accounted for as if slots were public",
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
    """Return the baseline, calibrated to the epsilon and delta of a campaign's certificate."""
    if kind is Baseline.NON_PRIVATE:
        return CalibratedBaseline(kind, None, None, None)
    adjacency = certificate.adjacency
    if kind is Baseline.SHUFFLING:
        adjacency = Adjacency.REPLACE_ONE  # the adjacency of the shuffle model
    calibrated = CalibratedBaseline(kind, certificate.epsilon, certificate.delta, adjacency)
    try:
        match kind:
            case Baseline.POISSON:
                private = _poisson(mechanism, certificate)
            case Baseline.SHUFFLING:
                private = _shuffling(mechanism, certificate, clients, dimension)
            case Baseline.NO_AMPLIFICATION:
                private = _known_slot(mechanism, certificate, dimension)
    except InvalidValue as error:
        return replace(calibrated, unavailable=str(error))
    return replace(calibrated, mechanism=private)


def _poisson(mechanism: Mechanism, certificate: Certificate) -> Mechanism:
    """Return DP-SGD: every client is in each of m steps with probability p0/m.

    The server adds the noise.
    """
    if certificate.adjacency is not Adjacency.ADD_REMOVE:
        why = "Poisson accountants cover add-remove only"
        raise NotCovered("adjacency", str(certificate.adjacency), why)
    if mechanism.averaged or not isinstance(mechanism.randomizer, Gaussian):
        why = "DP-SGD adds Gaussian noise to sums"
        raise NotCovered("randomizer", type(mechanism.randomizer).__name__, why)

    def sampled(noise: float) -> Design:
        return Design(
            Protocol.FIXED,
            slots=mechanism.design.slots,
            participation=mechanism.design.participation,
            randomizer=GaussianNoise(noise, NoiseAt.SERVER),
        )

    def epsilon(noise: float) -> float:
        return poisson(sampled(noise), campaigns=mechanism.runs, delta=certificate.delta).epsilon

    noise = _least(epsilon, certificate.epsilon, low=LEAST_NOISE, high=MOST_NOISE)
    return replace(
        mechanism,
        design=sampled(noise),
        randomizer=Gaussian(mechanism.randomizer.clip, noise),
        noise_at=NoiseAt.SERVER,
        sampling=Sampling.POISSON,
    )


def _shuffling(
    mechanism: Mechanism, certificate: Certificate, clients: int, dimension: int
) -> Mechanism:
    """Return shuffling: every client sends one locally private report, in random order."""
    if mechanism.runs > 1:
        why = "the shuffling accountant covers only one report from each client"
        raise NotCovered("repeats", mechanism.runs, why)

    def spent(inverse: float) -> float:
        return shuffled(1.0 / inverse, clients=clients, delta=certificate.delta)

    # Epsilon grows with the local epsilon, so it falls with the inverse, as ``_least`` requires.
    local_epsilon = 1.0 / _least(spent, certificate.epsilon, low=0.02, high=1e6)
    slots = min(mechanism.design.slots, clients)
    each = -(-clients // slots)
    pure = LocalRandomizer(local_epsilon)
    design = Design(Protocol.FIXED, slots=slots, participation=1.0, randomizer=pure, capacity=each)
    return replace(
        mechanism,
        design=design,
        randomizer=_pure(mechanism.randomizer, local_epsilon, dimension),
        noise_at=NoiseAt.CLIENT,
        divide_by=each,
        sampling=Sampling.SHUFFLED,
    )


def _pure(randomizer: Randomizer, local_epsilon: float, dimension: int) -> Randomizer:
    """Return an ε-LDP randomizer: Laplace if ``randomizer`` is Laplace, else PrivUnit.

    Raises NotCovered if the randomizer reports categories instead of model updates.
    """
    if isinstance(randomizer, Laplace):
        return replace(randomizer, local_epsilon=local_epsilon)
    if isinstance(randomizer, Gaussian | PrivUnit):
        return PrivUnit(randomizer.clip, local_epsilon, dimension)
    why = "its reports are categories, not model updates"
    raise NotCovered("randomizer", type(randomizer).__name__, why)


def _known_slot(mechanism: Mechanism, certificate: Certificate, dimension: int) -> Mechanism:
    """Return the same check-ins with the noise of a slot whose clients are public.

    Gaussian noise is added to the sum of all clients of the slot, without a capacity. With a
    capacity, a client whose slot is known would change the sum twice: by its own report, and by
    the report of the client that it displaces.
    """
    randomizer: GaussianNoise | LocalRandomizer = LocalRandomizer(1.0)
    parameter = Parameter.LOCAL_EPSILON
    if isinstance(mechanism.randomizer, Gaussian):
        randomizer, parameter = GaussianNoise(1.0, NoiseAt.SERVER), Parameter.NOISE_MULTIPLIER
    solved = calibrate(
        Design(Protocol.FIXED, slots=1, participation=1.0, randomizer=randomizer),
        parameter=parameter,
        epsilon=certificate.epsilon,
        delta=certificate.delta,
        adjacency=certificate.adjacency,
        campaigns=mechanism.runs,
    )
    if not isinstance(mechanism.randomizer, Gaussian):
        return replace(mechanism, randomizer=_pure(mechanism.randomizer, solved.value, dimension))
    design = mechanism.design
    if not mechanism.averaged:
        noise = GaussianNoise(solved.value, NoiseAt.SERVER)
        design = replace(design, capacity=None, randomizer=noise)
    return replace(
        mechanism,
        design=design,
        randomizer=replace(mechanism.randomizer, noise_multiplier=solved.value),
        noise_at=NoiseAt.SERVER,
    )


def _least(epsilon: Callable[[float], float], target: float, *, low: float, high: float) -> float:
    """Return the smallest value with ``epsilon(value) <= target``, rounded up.

    ``epsilon`` must be a decreasing function.
    """
    if not target < MOST_EPSILON or epsilon(high) > target:
        raise NotCovered("epsilon", target, "no noise in the supported range is enough")

    def value(step: int) -> float:
        return min(low * math.exp2(step / _STEPS), high)

    def is_enough(step: int) -> bool:
        return epsilon(value(step)) <= target

    # Start at ``low`` and double, so that epsilon is never computed far from the target.
    last = next(step for step in itertools.count(0, _STEPS) if is_enough(step))
    return value(first_true(is_enough, false=last - _STEPS, true=last) if last else 0)


EPOCHS, BATCH, RATE = 20, 256, 0.01
"""Passes over the data, rows of a minibatch, and first step size of non-private learning."""
FEWEST_STEPS = 250
"""Least number of steps in a pass. If the data has few rows, a pass uses them more than once."""


def train_pooled(
    loaded: LoadedTask, *, seed: int, watch: Callable[[int, Metrics], bool] | None = None
) -> Outcome:
    """Learn without privacy, from all rows in one place, without clipping and without noise.

    The optimizer is Adam on minibatches of rows, for ``EPOCHS`` passes over the data. The step size
    falls to zero along a cosine, which needs no tuning for the models that campaigns train.
    ``watch`` is called with the number of finished passes. If it returns False, training stops.
    """
    began = time.perf_counter()
    rows, labels = jnp.asarray(loaded.data.features), jnp.asarray(loaded.data.labels)
    batch = min(BATCH, len(rows))
    steps = max(len(rows) // batch, FEWEST_STEPS)
    start, epoch = _compiled_epoch(loaded, steps)
    generator = np.random.default_rng([seed, 3])
    flat = jnp.asarray(loaded.model.start(seed), jnp.float32)
    state = (flat, start(flat))
    passes = 0
    while passes < EPOCHS:
        times = -(-steps * batch // len(rows))
        order = np.concatenate([generator.permutation(len(rows)) for _ in range(times)])
        some = jnp.asarray(order[: steps * batch].reshape(steps, batch))
        state = epoch(state, some, rows, labels)
        passes += 1
        if watch is not None and not watch(passes, {}):
            break
    learned = np.asarray(state[0], np.float32)
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
        curve=(Point(passes * steps, Evaluation(loaded)(learned)),),
        seconds=seconds,
        updates_per_second=updates / max(seconds, math.ulp(1.0)),
        model=learned,
    )


@lru_cache(maxsize=2)
def _compiled_epoch(loaded: LoadedTask, steps: int) -> tuple[Any, Any]:
    """Return the initial state of Adam, and one compiled pass of this number of steps.

    They are cached so that all seeds share the compiled pass.
    """
    optax = installed("optax", extra="sim", wanted_by="non-private", setting="baselines")
    optimizer = optax.adam(optax.cosine_decay_schedule(RATE, EPOCHS * steps))
    model = loaded.model

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

    return optimizer.init, epoch
