"""A canary from the task's own data: one client with unusual data, in real training.

An audit tries to detect whether the canary took part in a run. The compiled training of
``checkins.simulation`` trains the campaign's model in many runs at once. The canary is the client
whose update with a wrong label differs most from the average update. Each slot's sum is projected
on the canary's clipped update at the current model, and scored. The adversary knows the data of all
clients, but not the slot of any client. Such an attack measures a smaller epsilon than a worst-case
canary, because it shows the leakage of ordinary training.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from checkins.accounting import Adjacency, Protocol
from checkins.audit.bounds import Trials
from checkins.audit.releases import RunParameters
from checkins.campaign import Campaign, Task
from checkins.errors import InvalidValue, NotCovered
from checkins.simulation.engine.loop import Server, server_of
from checkins.simulation.engine.mechanism import Mechanism, NoiseKind
from checkins.simulation.engine.updates import LocalWork, client_updates, summed_updates
from checkins.tasks.data import Dataset
from checkins.tasks.loaded_task import LoadedTask

MAX_CANDIDATES = 2048
"""Largest number of clients among whom the canary is chosen."""
SAMPLED_CLIENTS = 64
"""Number of clients from whose updates the adversary estimates the mean of all updates."""
_BATCH_MULTIPLICATIONS = 5e7
"""Approximate number of multiplications in a batch of runs."""
_MAX_RUN_MULTIPLICATIONS = 4e9
"""Largest number of multiplications of one run. With more, a few runs would take minutes."""
_MAX_BATCH_SIZE = 128  # largest number of runs per batch
_START_SEED = 1  # seed of the model's initial weights and of the sampled clients
WARMUP_S = 6.0
"""Estimated seconds to find the canary and to compile the training."""


@dataclass(frozen=True, eq=False)
class TrainingCanary:
    """One client with a wrong label.

    For add/remove it is compared with a missing client, for replace-one with the same client with
    its right label.
    """

    campaign: Campaign
    loaded: LoadedTask
    """The campaign's task: its data and its model."""
    name: str = "own data"
    statistic: str = "likelihood ratio along the canary's own update, slot by slot"
    note: str = "the attack observes real training, so it measures this task and not the worst case"
    warmup_s: float = WARMUP_S

    def __post_init__(self) -> None:
        if self.campaign.design.protocol is not Protocol.FIXED:
            problem = "canaries from the data need the fixed protocol: use worst-case"
            raise NotCovered("protocol", str(self.campaign.design.protocol), problem)
        if self.campaign.strategy is not None:
            problem = "canaries from the data need independent noise in every slot: use worst-case"
            raise NotCovered("strategy", f"{self.campaign.strategy.bands} bands", problem)
        if self._mechanism.noise_kind is NoiseKind.PER_REPORT:
            problem = "canaries from the data need additive noise: use worst-case"
            raise NotCovered("randomizer", str(self.campaign.randomizer.kind), problem)
        if self.loaded.data.clients < 3:
            raise InvalidValue("task", self.loaded.data.clients, "must have at least 3 clients")
        if self._run_multiplications > _MAX_RUN_MULTIPLICATIONS:
            problem = "one run of this training takes too long to be repeated: use worst-case"
            raise NotCovered("task", self.campaign.name, problem)

    @property
    def explained(self) -> str:
        against = (
            "the same client with its right label" if self._replace_one else "a missing client"
        )
        client = f"client {self._canary_client:,} of the data"
        return f"{client} with a wrong label. The attack distinguishes it from {against}"

    @property
    def _replace_one(self) -> bool:
        return self.campaign.budget.adjacency is Adjacency.REPLACE_ONE

    @cached_property
    def _run(self) -> RunParameters:
        return RunParameters.of(self.campaign.design, repeats=self.campaign.repeats)

    @cached_property
    def _mechanism(self) -> Mechanism:
        return Mechanism.of(self.campaign, self.loaded.model.dimension)

    @property
    def _mean_load(self) -> float:
        """The average number of other clients that a slot uses."""
        mean = (self.loaded.data.clients - 1) * self._run.participation / self._run.slots
        return mean if self._run.capacity is None else min(mean, self._run.capacity)

    @property
    def _places_per_slot(self) -> int:
        """Largest number of clients per slot that the arrays of a run can hold."""
        if self._run.capacity is not None:
            return self._run.capacity
        load = self._mean_load
        return min(self.loaded.data.clients, math.ceil(load + 7 * math.sqrt(load) + 8))

    @property
    def _run_multiplications(self) -> float:
        """Approximate number of multiplications of one run of the training."""
        rows = self.loaded.data.max_rows_per_client * self._task.local_steps
        slots = self._run.slots * self._run.repeats
        clients_per_slot = self._places_per_slot + SAMPLED_CLIENTS
        return 2.0 * slots * clients_per_slot * rows * self.loaded.model.dimension

    @property
    def batch_size(self) -> int:
        runs = int(_BATCH_MULTIPLICATIONS / self._run_multiplications)
        return max(1, min(_MAX_BATCH_SIZE, runs))

    @property
    def smallest_batch_size(self) -> int:
        return self.batch_size

    def trials(self, runs: int, generator: np.random.Generator) -> Trials:
        scores = self._scores(runs, generator)
        return Trials(scores[0], scores[1], self.name, self.statistic)

    # ---- choice of the canary -------------------------------------------------------------------

    @cached_property
    def _canary_client(self) -> int:
        """The client whose update with a wrong label is farthest from the average update."""
        data, mechanism = self.loaded.data, self._mechanism
        flat_model = jnp.asarray(self.loaded.model.start(_START_SEED), jnp.float32)
        candidates = jnp.arange(min(data.clients, MAX_CANDIDATES))
        update_functions = [
            client_updates(self.loaded.model, labelled, work=self._local_work)
            for labelled in (data, replace(data, labels=_wrong_labels(data)))
        ]

        @jax.jit  # compiled at once, because separate operations take seconds to compile
        def farthest_client(tables: list[Any], flat_model: Array, candidates: Array) -> Array:
            right, wrong = (
                mechanism.clip.clip_rows(updates.function(table, flat_model, candidates))
                for updates, table in zip(update_functions, tables, strict=True)
            )
            return jnp.argmax(jnp.sum((wrong - jnp.mean(right, axis=0)) ** 2, axis=1))

        tables = [updates.table for updates in update_functions]
        return int(farthest_client(tables, flat_model, candidates))

    @property
    def _local_work(self) -> LocalWork:
        return LocalWork(self._task.local_steps, self._task.local_step_size)

    @cached_property
    def _data(self) -> Dataset:
        """The data with two more clients: the canary, and the same client with its right label."""
        data = self.loaded.data
        rows = data.rows_of(self._canary_client)
        row_count = rows.stop - rows.start
        offsets = [data.offsets[-1] + row_count, data.offsets[-1] + 2 * row_count]
        wrong = _wrong_labels(data)[rows]
        return replace(
            data,
            features=np.concatenate([data.features, data.features[rows], data.features[rows]]),
            labels=np.concatenate([data.labels, wrong, data.labels[rows]]),
            offsets=np.concatenate([data.offsets, offsets]),
        )

    # ---- many runs at once -------------------------------------------------------------------

    def _scores(self, runs: int, generator: np.random.Generator) -> tuple[Any, Any]:
        """Return the scores of ``runs`` runs with the canary, and of the same runs without it."""
        scores = jnp.zeros((2, runs))
        states = self._start_states(runs)
        for _ in range(self._run.repeats):
            slot_clients = self._clients_of_slots(runs, generator)
            key = jax.random.key(int(generator.integers(2**63)))
            keys = jax.random.split(key, (runs, self._run.slots))
            pairs = [self._train(*half, keys) for half in zip(states, slot_clients, strict=True)]
            states = [after for after, _ in pairs]
            scores = scores + jnp.stack([self._scores_of_runs(ratios) for _, ratios in pairs])
        present, missing = np.nan_to_num(np.asarray(scores, np.float64))  # 0 if the model diverged
        return present, missing

    def _scores_of_runs(self, log_ratios: Array) -> Array:
        """Return the score of each run from log-ratios of the shape (runs, slots, 2).

        The last axis is for the canary's wrong and right label. The score is the log-likelihood
        ratio of the wrong label and a missing client or, for replace-one, of the two labels.
        """
        p = self._run.check_in_probability
        mean = jnp.mean(jnp.exp(jnp.clip(log_ratios, -60.0, 60.0)), axis=1)
        logs = jnp.log(1.0 - p + p * mean)
        return logs[:, 0] - logs[:, 1] if self._replace_one else logs[:, 0]

    def _clients_of_slots(
        self, runs: int, generator: np.random.Generator
    ) -> list[NDArray[np.int32]]:
        """Return the clients of each slot, with the canary and without it.

        Both arrays have the shape (runs, slots, places), and −1 marks an unused place.
        """
        run, clients = self._run, self.loaded.data.clients
        others = np.delete(np.arange(clients, dtype=np.int32), self._canary_client)
        present = np.full((runs, run.slots, self._places_per_slot), -1, np.int32)
        missing = present.copy()
        for row in range(runs):
            participants = generator.binomial(others.size, run.participation)
            check_ins = generator.multinomial(participants, np.full(run.slots, 1.0 / run.slots))
            used = np.minimum(check_ins, self._places_per_slot)
            used_clients = generator.permutation(others)[: used.sum()]
            is_used = np.arange(self._places_per_slot) < used[:, np.newaxis]
            present[row][is_used] = missing[row][is_used] = used_clients
            slot = int(generator.integers(run.slots))
            rank = int(generator.integers(check_ins[slot] + 1))
            if generator.random() < run.participation and rank < self._places_per_slot:
                place = min(int(used[slot]), self._places_per_slot - 1)
                present[row, slot, place] = clients  # the canary, see ``_data``
                if self._replace_one:
                    missing[row, slot, place] = clients + 1
        return [present, missing]

    def _start_states(self, runs: int) -> list[Any]:
        flat_model = jnp.asarray(self.loaded.model.start(_START_SEED), jnp.float32)
        state = self._server.start(self._summed_updates.pack(flat_model))
        states = jax.tree.map(lambda part: jnp.broadcast_to(part, (runs, *part.shape)), state)
        return [states, states]

    @property
    def _server(self) -> Server:
        return server_of(self._task.optimizer)

    @property
    def _task(self) -> Task:
        if self.campaign.task is None:
            raise InvalidValue("task", None, "canaries from the data need a [task]")
        return self.campaign.task

    @cached_property
    def _summed_updates(self) -> Any:
        return summed_updates(
            self.loaded.model, self._data, clip=self._mechanism.clip, work=self._local_work
        )

    @cached_property
    def _train(self) -> Callable[[Any, Any, Array], tuple[Any, Array]]:
        """The compiled training of many runs, from (states, clients of slots, keys).

        It returns the final states, and the log-ratios of all slots for the canary's two labels.
        """
        server, mechanism, updates = self._server, self._mechanism, self._summed_updates
        single_updates = client_updates(self.loaded.model, self._data, work=self._local_work)
        clients, mean_load = self.loaded.data.clients, self._mean_load
        scale = float(mechanism.noise_scales(np.ones(1, np.int64))[0])
        reports = int(mechanism.noise_terms(np.ones(1, np.int64))[0])
        gaussian = mechanism.noise_kind is NoiseKind.GAUSSIAN
        noise_deviation = scale if gaussian else scale * math.sqrt(2.0 * reports)
        divisor = jnp.asarray(float(mechanism.divide_by or 1), jnp.float32)
        sampled_count = min(SAMPLED_CLIENTS, clients)
        sampled = np.random.default_rng(_START_SEED).choice(clients, sampled_count, False)
        scored_clients = jnp.concatenate([jnp.asarray(sampled), jnp.array([clients, clients + 1])])

        def noise(key: Array, shape: tuple[int, ...]) -> Array:
            if gaussian:
                return scale * jax.random.normal(key, shape)
            gammas = [jax.random.gamma(half, reports, shape) for half in jax.random.split(key)]
            return scale * (gammas[0] - gammas[1])

        def one_slot(tables: Any, state: Any, inputs: tuple[Array, Array]) -> tuple[Any, Array]:
            slot_clients, key = inputs
            total = updates.function(tables[0], state.model, slot_clients)
            total = total + noise(key, state.model.shape)
            flat_model = updates.unpack(state.model)
            rows = mechanism.clip.clip_rows(
                single_updates.function(tables[1], flat_model, scored_clients)
            )
            ratios = [
                _log_ratio(updates.unpack(total), rows[:-2], canary, mean_load, noise_deviation)
                for canary in (rows[-2], rows[-1])
            ]
            return server.apply_slot(state, total, divisor), jnp.stack(ratios)

        def one_run(tables: Any, state: Any, slot_clients: Array, keys: Array) -> tuple[Any, Array]:
            inputs = (slot_clients, keys)
            after, log_ratios = jax.lax.scan(lambda s, x: one_slot(tables, s, x), state, inputs)
            return server.next_run(after), log_ratios

        all_runs = jax.jit(jax.vmap(one_run, in_axes=(None, 0, 0, 0)))
        tables = (updates.table, single_updates.table)
        return lambda states, clients, keys: all_runs(tables, states, jnp.asarray(clients), keys)


def _log_ratio(
    total: Array, sampled: Array, canary: Array, mean_load: float, noise_deviation: float
) -> Array:
    """Return the log-likelihood ratio of a slot's sum with the canary's update and without it.

    The sum of the ``mean_load`` other updates is treated as Gaussian. Its mean and variance are
    estimated from the ``sampled`` updates.
    """
    projections = sampled @ canary
    squared_norm = jnp.sum(canary * canary)
    variance = noise_deviation**2 * squared_norm + mean_load * jnp.var(projections)
    above_mean = jnp.sum(total * canary) - mean_load * jnp.mean(projections)
    log_ratio = above_mean * squared_norm - squared_norm * squared_norm / 2
    return log_ratio / jnp.maximum(variance, 1e-30)


def _wrong_labels(data: Dataset) -> NDArray[Any]:
    """Return wrong labels: the next class in classification, the negative target in regression."""
    return (data.labels + 1) % data.classes if data.classes else -data.labels
