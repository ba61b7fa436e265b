"""A canary from the task's own data: one client with unusual data, in real training.

The compiled training of ``checkins.simulation`` trains the campaign's model in many runs at once.
For every client, the update with a wrong label is compared with the average update. The canary is
the client for which the two differ most. Each slot's sum is projected on the canary's clipped
update at the current model and scored. The adversary knows the data of all clients, but not the
slot of any client. Such an attack measures a small epsilon, because it shows the leakage of
ordinary training. A worst-case canary shows the largest possible leakage.
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
from checkins.tasks.data.dataset import Dataset
from checkins.tasks.loaded_task import LoadedTask

MAX_CANDIDATES = 2048
"""Largest number of clients among whom the canary is chosen."""
SAMPLE = 64
"""Number of clients from whose updates the adversary estimates the mean of all updates."""
_WORK = 5e7
"""Approximate number of multiplications in a batch of runs."""
_MOST_WORK = 4e9
"""Largest number of multiplications of one run. With more, a few runs would take minutes."""
_MOST_BLOCK = 128
_START_SEED = 1
WARMUP_S = 6.0
"""Estimated seconds to find the canary and to compile the training."""


@dataclass(frozen=True, eq=False)
class TrainingCanary:
    """One client with a wrong label.

    For add/remove it is compared with a missing client, for replace-one with the same client and
    its right label.
    """

    campaign: Campaign
    loaded: LoadedTask
    name: str = "own data"
    statistic: str = "likelihood ratio along the canary's own update, slot by slot"
    note: str = "real training. It measures the leakage of this task, not of the worst case"
    warmup_s: float = WARMUP_S

    def __post_init__(self) -> None:
        if self.campaign.design.protocol is not Protocol.FIXED:
            why = "canaries from the data are for the fixed protocol: use worst-case"
            raise NotCovered("protocol", str(self.campaign.design.protocol), why)
        if self._method.noise_kind is NoiseKind.PER_REPORT:
            why = "canaries from the data need additive noise: use worst-case"
            raise NotCovered("randomizer", str(self.campaign.randomizer.kind), why)
        if self.loaded.data.clients < 3:
            raise InvalidValue("task", self.loaded.data.clients, "must have at least 3 clients")
        if self._work > _MOST_WORK:
            why = "one run of this training takes too long to be repeated: use worst-case"
            raise NotCovered("task", self.campaign.name, why)

    @property
    def explained(self) -> str:
        against = "its right label" if self._replace_one else "a missing client"
        return f"client {self._client:,} of the data with a wrong label, compared with {against}"

    @property
    def _replace_one(self) -> bool:
        return self.campaign.budget.adjacency is Adjacency.REPLACE_ONE

    @cached_property
    def _run(self) -> RunParameters:
        return RunParameters.of(self.campaign.design, repeats=self.campaign.repeats)

    @cached_property
    def _method(self) -> Mechanism:
        return Mechanism.of(self.campaign, self.loaded.model.dimension)

    @property
    def _load(self) -> float:
        """The average number of other clients that a slot uses."""
        mean = (self.loaded.data.clients - 1) * self._run.participation / self._run.slots
        return mean if self._run.capacity is None else min(mean, self._run.capacity)

    @property
    def _width(self) -> int:
        if self._run.capacity is not None:
            return self._run.capacity
        return min(self.loaded.data.clients, math.ceil(self._load + 7 * math.sqrt(self._load) + 8))

    @property
    def _work(self) -> float:
        rows = self.loaded.data.max_rows_per_client * self._task.local_steps
        slots = self._run.slots * self._run.repeats
        return 2.0 * slots * (self._width + SAMPLE) * rows * self.loaded.model.dimension

    @property
    def batch(self) -> int:
        return max(1, min(_MOST_BLOCK, int(_WORK / self._work)))

    @property
    def smallest_batch(self) -> int:
        return self.batch

    def trials(self, runs: int, generator: np.random.Generator) -> Trials:
        scores = self._scores(runs, generator)
        return Trials(scores[0], scores[1], self.name, self.statistic)

    # ---- who the canary is -------------------------------------------------------------------

    @cached_property
    def _client(self) -> int:
        """The client whose update with a wrong label is farthest from the average update."""
        data, method = self.loaded.data, self._method
        flat = jnp.asarray(self.loaded.model.start(_START_SEED), jnp.float32)
        some = jnp.arange(min(data.clients, MAX_CANDIDATES))
        both = [
            client_updates(self.loaded.model, labelled, work=self._local_work)
            for labelled in (data, replace(data, labels=_wrong(data)))
        ]

        @jax.jit  # compiled at once, because separate operations take seconds to compile
        def farthest(tables: list[Any], flat: Array, some: Array) -> Array:
            right, wrong = (
                method.clip.clip_rows(found.function(table, flat, some))
                for found, table in zip(both, tables, strict=True)
            )
            return jnp.argmax(jnp.sum((wrong - jnp.mean(right, axis=0)) ** 2, axis=1))

        return int(farthest([found.table for found in both], flat, some))

    @property
    def _local_work(self) -> LocalWork:
        return LocalWork(self._task.local_steps, self._task.local_step_size)

    @cached_property
    def _data(self) -> Dataset:
        """The data with two more clients: the canary, and the same client with its right label."""
        data = self.loaded.data
        rows = data.rows_of(self._client)
        more = rows.stop - rows.start
        offsets = [data.offsets[-1] + more, data.offsets[-1] + 2 * more]
        wrong = _wrong(data)[rows]
        return replace(
            data,
            features=np.concatenate([data.features, data.features[rows], data.features[rows]]),
            labels=np.concatenate([data.labels, wrong, data.labels[rows]]),
            offsets=np.concatenate([data.offsets, offsets]),
        )

    # ---- many runs at once -------------------------------------------------------------------

    def _scores(self, runs: int, generator: np.random.Generator) -> tuple[Any, Any]:
        halves = jnp.zeros((2, runs))
        states = self._start(runs)
        for _ in range(self._run.repeats):
            seats = self._seats(runs, generator)
            key = jax.random.key(int(generator.integers(2**63)))
            keys = jax.random.split(key, (runs, self._run.slots))
            pairs = [self._train(*half, keys) for half in zip(states, seats, strict=True)]
            states = [after for after, _ in pairs]
            halves = halves + jnp.stack([self._ratio(log_ratios) for _, log_ratios in pairs])
        found = np.nan_to_num(np.asarray(halves, np.float64))  # a diverged model gives score 0
        return found[0], found[1]

    def _ratio(self, log_ratios: Array) -> Array:
        """Return the score of each run from log-ratios of the shape (runs, slots, 2).

        The score is log f. For replace-one, log f′ of the other data is subtracted.
        """
        reach = self._run.reach
        mean = jnp.mean(jnp.exp(jnp.clip(log_ratios, -60.0, 60.0)), axis=1)
        logs = jnp.log(1.0 - reach + reach * mean)
        return logs[:, 0] - logs[:, 1] if self._replace_one else logs[:, 0]

    def _seats(self, runs: int, generator: np.random.Generator) -> list[NDArray[np.int32]]:
        """Return the clients of each slot, with the canary and without it.

        Both arrays have the shape (runs, slots, width). −1 marks an unused place.
        """
        run, clients = self._run, self.loaded.data.clients
        others = np.delete(np.arange(clients, dtype=np.int32), self._client)
        first = np.full((runs, run.slots, self._width), -1, np.int32)
        second = first.copy()
        for row in range(runs):
            takers = generator.binomial(others.size, run.participation)
            waiting = generator.multinomial(takers, np.full(run.slots, 1.0 / run.slots))
            used = np.minimum(waiting, self._width)
            sitting = generator.permutation(others)[: used.sum()]
            taken = np.arange(self._width) < used[:, np.newaxis]
            first[row][taken] = second[row][taken] = sitting
            slot = int(generator.integers(run.slots))
            order = int(generator.integers(waiting[slot] + 1))
            if generator.random() < run.participation and order < self._width:
                place = min(int(used[slot]), self._width - 1)
                first[row, slot, place] = clients  # with the wrong label
                if self._replace_one:
                    second[row, slot, place] = clients + 1
        return [first, second]

    def _start(self, runs: int) -> list[Any]:
        flat = jnp.asarray(self.loaded.model.start(_START_SEED), jnp.float32)
        state = self._server.start(self._updates.pack(flat))
        many = jax.tree.map(lambda part: jnp.broadcast_to(part, (runs, *part.shape)), state)
        return [many, many]

    @property
    def _server(self) -> Server:
        return server_of(self._task.optimizer)

    @property
    def _task(self) -> Task:
        if self.campaign.task is None:
            raise InvalidValue("task", None, "canaries from the data need a [task]")
        return self.campaign.task

    @cached_property
    def _updates(self) -> Any:
        return summed_updates(
            self.loaded.model, self._data, clip=self._method.clip, work=self._local_work
        )

    @cached_property
    def _train(self) -> Callable[[Any, Any, Array], tuple[Any, Array]]:
        """The compiled function (states, seats, keys) → (final states, log-ratio of each slot)."""
        server, method, updates = self._server, self._method, self._updates
        alone = client_updates(self.loaded.model, self._data, work=self._local_work)
        clients, load = self.loaded.data.clients, self._load
        scale = float(method.noise_scales(np.ones(1, np.int64))[0])
        reports = int(method.noise_terms(np.ones(1, np.int64))[0])
        gaussian = method.noise_kind is NoiseKind.GAUSSIAN
        spread = scale if gaussian else scale * math.sqrt(2.0 * reports)
        count = jnp.asarray(float(method.divide_by or 1), jnp.float32)
        known = np.random.default_rng(_START_SEED).choice(clients, min(SAMPLE, clients), False)
        whom = jnp.concatenate([jnp.asarray(known), jnp.array([clients, clients + 1])])

        def noise(key: Array, shape: tuple[int, ...]) -> Array:
            if gaussian:
                return scale * jax.random.normal(key, shape)
            up, down = (jax.random.gamma(half, reports, shape) for half in jax.random.split(key))
            return scale * (up - down)

        def slot(tables: Any, state: Any, inputs: tuple[Array, Array]) -> tuple[Any, Array]:
            seats, key = inputs
            total = updates.function(tables[0], state.model, seats)
            total = total + noise(key, state.model.shape)
            flat = updates.unpack(state.model)
            rows = method.clip.clip_rows(alone.function(tables[1], flat, whom))
            ratios = [
                _log_ratio(updates.unpack(total), rows, which, load, spread) for which in (0, 1)
            ]
            return server.apply_slot(state, total, count), jnp.stack(ratios)

        def one(tables: Any, state: Any, seats: Array, keys: Array) -> tuple[Any, Array]:
            after, log_ratios = jax.lax.scan(lambda s, x: slot(tables, s, x), state, (seats, keys))
            return server.next_run(after), log_ratios

        many = jax.jit(jax.vmap(one, in_axes=(None, 0, 0, 0)))
        tables = (updates.table, alone.table)
        return lambda states, seats, keys: many(tables, states, jnp.asarray(seats), keys)


def _log_ratio(total: Array, rows: Array, which: int, load: float, spread: float) -> Array:
    """Return the log-likelihood ratio of a slot's sum with the canary's update and without it.

    The sum of the other updates is treated as Gaussian, with the estimated mean and variance.
    """
    own, others = rows[rows.shape[0] - 2 + which], rows[:-2]
    along = others @ own
    length = jnp.sum(own * own)
    variance = spread**2 * length + load * jnp.var(along)
    above_mean = jnp.sum(total * own) - load * jnp.mean(along)
    return (above_mean * length - length * length / 2) / jnp.maximum(variance, 1e-30)


def _wrong(data: Dataset) -> NDArray[Any]:
    """Return wrong labels: the next class in classification, the negative target in regression."""
    return (data.labels + 1) % data.classes if data.classes else -data.labels
