"""A canary from the task's own data: one client of unusual data, in real training.

The compiled updates and the server's own steps of ``checkins.simulation`` train the campaign's
model many times at once. The canary is the client whose update, with a wrong label, is farthest
from the others'. Each slot's sum is scored along the canary's clipped update at the model before
it; the adversary knows everyone's data, and not who is in which slot. Such an attack measures
little: it shows what ordinary training gives away, where the worst case shows what any could.
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
from checkins.audit.canaries.world import World
from checkins.audit.trials import Trials
from checkins.campaign import Campaign, Task
from checkins.errors import InvalidValue, NotCovered
from checkins.simulation.engine.loop import Server, server_of
from checkins.simulation.engine.mechanism import Mechanism
from checkins.simulation.engine.noise import NoiseKind
from checkins.simulation.engine.updates import LocalWork, client_updates, summed_updates
from checkins.tasks.data.dataset import Dataset
from checkins.tasks.loaded_task import LoadedTask

LOOKED_AT = 2048
"""Clients among whom the canary is sought."""
SAMPLE = 64
"""Clients from whom the adversary reckons what the others send."""
_WORK = 5e7
"""Multiplications, about, that a block of runs takes at most."""
_MOST_WORK = 4e9
"""Of one run: beyond it a few runs would take minutes."""
_MOST_BLOCK = 128
_START_SEED = 1
READY_S = 6.0
"""To find the canary and to compile the training: of every shape of it anew."""


@dataclass(frozen=True, eq=False)
class TrainingCanary:
    """One client with a wrong label, against nobody or against the same with its own label."""

    campaign: Campaign
    lesson: LoadedTask
    name: str = "own data"
    statistic: str = "likelihood ratio along the canary's own update, slot by slot"
    note: str = "real training: it measures what this task gives away, not what any could"
    ready_s: float = READY_S

    def __post_init__(self) -> None:
        if self.campaign.design.protocol is not Protocol.FIXED:
            raise NotCovered(
                "protocol",
                str(self.campaign.design.protocol),
                "canaries from the data are for the fixed protocol: use worst-case",
            )
        if self._method.noise_kind is NoiseKind.PER_REPORT:
            raise NotCovered(
                "randomizer",
                str(self.campaign.randomizer.kind),
                "canaries from the data need additive noise: use worst-case",
            )
        if self.lesson.data.clients < 3:
            raise InvalidValue("task", self.lesson.data.clients, "must have at least 3 clients")
        if self._work > _MOST_WORK:
            raise NotCovered(
                "task",
                self.campaign.name,
                "one run of this training takes too long to be repeated: use worst-case",
            )

    @property
    def explained(self) -> str:
        against = "the same with its own label" if self._replace_one else "nobody"
        return f"client {self._client:,} of the data with a wrong label, against {against}"

    @property
    def _replace_one(self) -> bool:
        return self.campaign.budget.adjacency is Adjacency.REPLACE_ONE

    @cached_property
    def _world(self) -> World:
        return World.of(self.campaign.design, repeats=self.campaign.repeats)

    @cached_property
    def _method(self) -> Mechanism:
        return Mechanism.of(self.campaign, self.lesson.model.dimension)

    @property
    def _load(self) -> float:
        """Others that a slot uses on average."""
        mean = (self.lesson.data.clients - 1) * self._world.participation / self._world.slots
        return mean if self._world.capacity is None else min(mean, self._world.capacity)

    @property
    def _width(self) -> int:
        if self._world.capacity is not None:
            return self._world.capacity
        return min(self.lesson.data.clients, math.ceil(self._load + 7 * math.sqrt(self._load) + 8))

    @property
    def _work(self) -> float:
        rows = self.lesson.data.most_rows * self._task.local_steps
        slots = self._world.slots * self._world.repeats
        return 2.0 * slots * (self._width + SAMPLE) * rows * self.lesson.model.dimension

    @property
    def block(self) -> int:
        return max(1, min(_MOST_BLOCK, int(_WORK / self._work)))

    @property
    def smallest_block(self) -> int:
        return self.block

    def trials(self, runs: int, generator: np.random.Generator) -> Trials:
        scores = self._scores(runs, generator)
        return Trials(scores[0], scores[1], self.name, self.statistic)

    # ---- who the canary is -------------------------------------------------------------------

    @cached_property
    def _client(self) -> int:
        """The client whose wrong label moves its update farthest from the average one."""
        data, method = self.lesson.data, self._method
        flat = jnp.asarray(self.lesson.model.start(_START_SEED), jnp.float32)
        some = jnp.arange(min(data.clients, LOOKED_AT))
        both = [
            client_updates(self.lesson.model, shown, work=self._local_work)
            for shown in (data, replace(data, labels=_wrong(data)))
        ]

        @jax.jit  # one program: compiled step by step it takes seconds
        def farthest(tables: list[Any], flat: Array, some: Array) -> Array:
            right, wrong = (
                method.clip.rows(found.function(table, flat, some))
                for found, table in zip(both, tables, strict=True)
            )
            return jnp.argmax(jnp.sum((wrong - jnp.mean(right, axis=0)) ** 2, axis=1))

        return int(farthest([found.table for found in both], flat, some))

    @property
    def _local_work(self) -> LocalWork:
        return LocalWork(self._task.local_steps, self._task.local_step_size)

    @cached_property
    def _data(self) -> Dataset:
        """The data with two clients more: the canary, and the same with its own label."""
        data = self.lesson.data
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
        for _ in range(self._world.repeats):
            seats = self._seats(runs, generator)
            key = jax.random.key(int(generator.integers(2**63)))
            keys = jax.random.split(key, (runs, self._world.slots))
            pairs = [
                self._train(state, seat, keys) for state, seat in zip(states, seats, strict=True)
            ]
            states = [after for after, _ in pairs]
            halves = halves + jnp.stack([self._ratio(seen) for _, seen in pairs])
        found = np.nan_to_num(np.asarray(halves, np.float64))  # a model that diverged says nothing
        return found[0], found[1]

    def _ratio(self, seen: Array) -> Array:
        """log f, less log f′ of the other data: ``seen`` is (runs, slots, 2) log-ratios."""
        reach = self._world.reach
        mean = jnp.mean(jnp.exp(jnp.clip(seen, -60.0, 60.0)), axis=1)
        logs = jnp.log(1.0 - reach + reach * mean)
        return logs[:, 0] - logs[:, 1] if self._replace_one else logs[:, 0]

    def _seats(self, runs: int, generator: np.random.Generator) -> list[NDArray[np.int32]]:
        """Whose updates a slot uses: (runs, slots, width) clients, −1 for nobody; twice."""
        world, clients = self._world, self.lesson.data.clients
        others = np.delete(np.arange(clients, dtype=np.int32), self._client)
        first = np.full((runs, world.slots, self._width), -1, np.int32)
        second = first.copy()
        for run in range(runs):
            takers = generator.binomial(others.size, world.participation)
            waiting = generator.multinomial(takers, np.full(world.slots, 1.0 / world.slots))
            used = np.minimum(waiting, self._width)
            sitting = generator.permutation(others)[: used.sum()]
            taken = np.arange(self._width) < used[:, np.newaxis]
            first[run][taken] = second[run][taken] = sitting
            slot = int(generator.integers(world.slots))
            order = int(generator.integers(waiting[slot] + 1))
            if generator.random() < world.participation and order < self._width:
                place = min(int(used[slot]), self._width - 1)
                first[run, slot, place] = clients  # with the wrong label
                if self._replace_one:
                    second[run, slot, place] = clients + 1
        return [first, second]

    def _start(self, runs: int) -> list[Any]:
        flat = jnp.asarray(self.lesson.model.start(_START_SEED), jnp.float32)
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
            self.lesson.model, self._data, clip=self._method.clip, work=self._local_work
        )

    @cached_property
    def _train(self) -> Callable[[Any, Any, Array], tuple[Any, Array]]:
        """(states, seats, keys) → states after the last slot, and every slot's log-ratios."""
        server, method, updates = self._server, self._method, self._updates
        alone = client_updates(self.lesson.model, self._data, work=self._local_work)
        clients, load = self.lesson.data.clients, self._load
        scale = float(method.scales(np.ones(1, np.int64))[0])
        reports = int(method.noises(np.ones(1, np.int64))[0])
        spread = (
            scale if method.noise_kind is NoiseKind.GAUSSIAN else scale * math.sqrt(2.0 * reports)
        )
        count = jnp.asarray(float(method.divide_by or 1), jnp.float32)
        known = np.random.default_rng(_START_SEED).choice(clients, min(SAMPLE, clients), False)
        whom = jnp.concatenate([jnp.asarray(known), jnp.array([clients, clients + 1])])

        def noise(key: Array, shape: tuple[int, ...]) -> Array:
            if method.noise_kind is NoiseKind.GAUSSIAN:
                return scale * jax.random.normal(key, shape)
            up, down = (jax.random.gamma(half, reports, shape) for half in jax.random.split(key))
            return scale * (up - down)

        def slot(tables: Any, state: Any, inputs: tuple[Array, Array]) -> tuple[Any, Array]:
            seats, key = inputs
            total = updates.function(tables[0], state.model, seats)
            total = total + noise(key, state.model.shape)
            flat = updates.unpack(state.model)
            rows = method.clip.rows(alone.function(tables[1], flat, whom))
            ratios = [
                _log_ratio(updates.unpack(total), rows, which, load, spread) for which in (0, 1)
            ]
            return server.apply_slot(state, total, count), jnp.stack(ratios)

        def one(tables: Any, state: Any, seats: Array, keys: Array) -> tuple[Any, Array]:
            after, seen = jax.lax.scan(lambda s, x: slot(tables, s, x), state, (seats, keys))
            return server.next_run(after), seen

        many = jax.jit(jax.vmap(one, in_axes=(None, 0, 0, 0)))
        tables = (updates.table, alone.table)
        return lambda states, seats, keys: many(tables, states, jnp.asarray(seats), keys)


def _log_ratio(total: Array, rows: Array, which: int, load: float, spread: float) -> Array:
    """Of the sum with the canary's update in it: Gaussian, with the others' variance known."""
    own, others = rows[rows.shape[0] - 2 + which], rows[:-2]
    along = others @ own
    length = jnp.sum(own * own)
    variance = spread**2 * length + load * jnp.var(along)
    seen = jnp.sum(total * own) - load * jnp.mean(along)
    return (seen * length - length * length / 2) / jnp.maximum(variance, 1e-30)


def _wrong(data: Dataset) -> NDArray[Any]:
    """Every label but the right one: the next class, or the opposite target."""
    return (data.labels + 1) % data.classes if data.classes else -data.labels
