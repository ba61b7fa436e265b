"""Train a model by one mechanism from one seed, in chunks of compiled slots.

A seed determines the noise of every slot and the check-ins of every run. The model therefore does
not depend on how interruptions and evaluations divide the slots into chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from checkins.campaign import Task
from checkins.errors import InvalidValue
from checkins.randomizers import Randomizer
from checkins.simulation.engine import loop
from checkins.simulation.engine.evaluation import Diverged, Evaluation, Metrics
from checkins.simulation.engine.loop import Server, SlotChunk, Total, on_host, server_of
from checkins.simulation.engine.mechanism import (
    BufferRing,
    Mechanism,
    NoiseKind,
    block_slots,
    draw_noise,
    prefetched,
)
from checkins.simulation.engine.updates import (
    Clip,
    LocalWork,
    Updates,
    client_updates,
    summed_updates,
)
from checkins.simulation.population import Always, Availability, SimulatedPopulation, SlotCounts
from checkins.tasks.loaded_task import LoadedTask

HOST_BYTES, DEVICE_BYTES = 1 << 24, 1 << 28
"""Largest size of a chunk's inputs. A CPU needs small inputs because of its cache; a GPU needs
large inputs to be busy."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Assumptions about the clients that are not in a campaign file.

    If ``clients`` is larger than the number n of clients in the data, client j holds the rows of
    client j mod n of the data. If it is smaller, each seed draws its own clients from the data.
    """

    clients: int
    availability: Availability = field(default_factory=Always)
    dropout: float = 0.0

    def population(self, mechanism: Mechanism, seed: int) -> SimulatedPopulation:
        """Return the simulated population of a mechanism's runs."""
        clients = (self.clients, seed, self.availability, self.dropout)
        return SimulatedPopulation(mechanism.design, *clients, mechanism.sampling)


class Position(NamedTuple):
    """The position of a training: ``slots`` slots of run ``run`` are finished."""

    run: int
    slots: int
    state: Any


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts over the finished slots."""

    slots: int = 0
    check_ins: int = 0
    reports: int = 0
    dummies: int = 0
    contributors: tuple[int, ...] = ()
    """Number of reports in each run. The certificate of averaged updates depends on it."""

    def plus(self, slot_counts: SlotCounts, mechanism: Mechanism) -> Tally:
        """Return the counts with one more run."""
        reports = int(slot_counts.reports.sum())
        return Tally(
            self.slots + slot_counts.reports.size,
            self.check_ins + int(slot_counts.check_ins.sum()),
            self.reports + reports,
            self.dummies + mechanism.dummies(slot_counts.reports),
            (*self.contributors, reports),
        )


@dataclass(frozen=True, slots=True)
class Progress:
    """The position after a chunk. ``metrics`` is None if the model was not evaluated."""

    position: Position
    slots: int
    metrics: Metrics | None


@dataclass(frozen=True, eq=False)
class Training:
    """Everything that determines a simulation: mechanism, task, scenario, seed and optimizer."""

    mechanism: Mechanism
    loaded: LoadedTask
    server: Server
    scenario: Scenario
    seed: int
    work: LocalWork = field(default_factory=LocalWork)
    evaluations: int = 50
    """Number of evaluations of the model, evenly spaced; 0 means only at the end."""
    dtype: Any = np.float32

    @classmethod
    def of(
        cls,
        task: Task,
        mechanism: Mechanism,
        loaded: LoadedTask,
        scenario: Scenario,
        *,
        seed: int,
        evaluations: int,
    ) -> Training:
        """Return the training, with the optimizer and the local steps of the task."""
        work = LocalWork(task.local_steps, task.local_step_size)
        server = server_of(task.optimizer)
        return cls(mechanism, loaded, server, scenario, seed, work, evaluations)

    @property
    def slots(self) -> int:
        """Number of slots of all runs together."""
        return self.mechanism.runs * self.mechanism.design.slots

    @cached_property
    def population(self) -> SimulatedPopulation:
        return self.scenario.population(self.mechanism, self.seed)

    @cached_property
    def evaluation(self) -> Evaluation:
        return Evaluation(self.loaded)

    def start(self) -> Position:
        """Return the position before the first slot."""
        model = jnp.asarray(self.loaded.model.start(self.seed), self.dtype)
        return Position(1, 0, self.server.start(self._updates.pack(model)))

    def model(self, position: Position) -> NDArray[Any]:
        """Return the model at a position, as one flat vector."""
        return np.asarray(self._updates.unpack(position.state.model))

    def tally(self, position: Position) -> Tally:
        """Return the counts over all slots before ``position``."""
        tally = Tally()
        for run in range(1, position.run + 1):
            slot_counts = self.population.run(run)
            if run == position.run:
                check_ins = slot_counts.check_ins[: position.slots]
                reports = slot_counts.reports[: position.slots]
                slot_counts = replace(slot_counts, check_ins=check_ins, reports=reports)
            if slot_counts.reports.size:
                tally = tally.plus(slot_counts, self.mechanism)
        return tally

    def measured(self, position: Position) -> Metrics:
        try:
            return self.evaluation(self.model(position))
        except Diverged as error:
            if (position.run, position.slots) == (1, 0):
                name = type(self.loaded.model).__name__
                why = "has a loss that is not finite at its initial weights"
                raise InvalidValue("model", name, f"{why}: check the model and the data") from error
            raise Diverged("rate", self.server.rate, error.expected) from error

    def steps(self, start: Position | None = None) -> Iterator[Progress]:
        """Run the chunks after ``start`` and yield the progress after each of them.

        A yielded position must not be used after the next one is requested.
        """
        position = self.start() if start is None else start
        state, updates = position.state, self._updates
        before: Array | None = None
        every = self.slots / self.evaluations if self.evaluations else self.slots
        done = (position.run - 1) * self.mechanism.design.slots + position.slots
        due = (int(done / every) + 1) * every
        for spec, inputs in prefetched(self._chunk_specs(position), self._inputs):
            if spec.first == 0 and spec.run > 1:
                state = self.server.next_run(state)
            state, token = self._advance(state, inputs, updates.table)
            # Wait for the first chunk, which compiles, because timing starts after it. Afterwards
            # wait for the previous chunk only, so that one runs while the next is prepared.
            (token if before is None else before).block_until_ready()
            before = token
            done += spec.slots
            here = Position(spec.run, spec.first + spec.slots, state)
            metrics = None
            if done >= due or done == self.slots:
                metrics, due = self.measured(here), (int(done / every) + 1) * every
            yield Progress(here, done, metrics)

    @cached_property
    def _drawn_clients(self) -> Array | None:
        """Numbers of the clients of the data that take part; None if all take part."""
        in_data, wanted = self.loaded.data.clients, self.scenario.clients
        if wanted >= in_data:
            return None
        drawn = np.random.default_rng([self.seed, 4]).choice(in_data, wanted, replace=False)
        return jnp.asarray(drawn, jnp.int32)

    @cached_property
    def _ring(self) -> BufferRing:
        return BufferRing()

    @property
    def _updates(self) -> Updates:
        clip = None if self.mechanism.noise_kind is NoiseKind.PER_REPORT else self.mechanism.clip
        return _updates_of(self.loaded, clip, self.work, self.dtype)

    @cached_property
    def _advance(self) -> Any:
        per_report = self.mechanism.noise_kind is NoiseKind.PER_REPORT
        randomizer = self.mechanism.randomizer if per_report else None
        return _compiled_of(self._updates, self.server, randomizer, self.loaded.model.dimension)

    def _chunk_specs(self, position: Position) -> Iterator[_ChunkSpec]:
        for run in range(position.run, self.mechanism.runs + 1):
            slot_counts = self.population.run(run)
            begin = position.slots if run == position.run else 0
            reports, width = slot_counts.reports, self._width(slot_counts)
            scales, counts = self.mechanism.scales(reports), self.mechanism.counts(reports)
            noises, length = self.mechanism.noises(reports), self._length(width)
            for first in range(begin, reports.size, length):
                slots = min(length, reports.size - first)
                place = (run, first, slots, length, width)
                yield _ChunkSpec(*place, slot_counts, noises, scales, counts)

    def _width(self, slot_counts: SlotCounts) -> int:
        """Return the number of places of a slot, enough for every slot of the run.

        It is rounded up, so that most runs have the same width and share a compiled program.
        """
        capacity, most = self.mechanism.design.capacity, max(1, int(slot_counts.reports.max()))
        per_report = self.mechanism.noise_kind is NoiseKind.PER_REPORT
        if per_report and capacity and not self.mechanism.averaged:
            return capacity  # every place has a report, real or dummy
        step = 1 << max(0, most.bit_length() - 4)
        wide = -(-most // step) * step
        return wide if capacity is None else min(wide, capacity)

    def _length(self, width: int) -> int:
        """Return the number of slots of a chunk.

        It is limited by memory and by the number of slots between two evaluations.
        """
        room = HOST_BYTES if on_host() else DEVICE_BYTES
        slots = self.mechanism.design.slots
        # An accelerator draws Gaussian noise from the slot's number, so blocks do not matter.
        drawn_in_blocks = on_host() or self.mechanism.noise_kind is not NoiseKind.GAUSSIAN
        block = block_slots(self.loaded.model.dimension) if drawn_in_blocks else 1
        most = max(1, room // (4 * max(self.loaded.model.dimension, width)))
        most = max(most - most % block, min(most, block))
        if self.evaluations:
            most = min(most, max(1, -(-self.slots // self.evaluations)))
        if most >= slots:
            return slots
        even = -(-slots // -(-slots // most))  # the length of the longest of equal chunks
        return even if even % block == 0 or most < block else most

    def _inputs(self, spec: _ChunkSpec) -> SlotChunk:
        with jax.enable_x64(np.dtype(self.dtype) == np.float64):  # each thread has its own setting
            return spec.inputs(self._noise(spec), self)

    def _noise(self, spec: _ChunkSpec) -> Any:
        """Return the noise of a chunk. An accelerator draws Gaussian noise; else the CPU draws."""
        seeds = (self.seed, spec.run, 2)
        dimension = self.loaded.model.dimension
        if self.mechanism.noise_kind is NoiseKind.GAUSSIAN and not on_host():
            words = np.random.SeedSequence(seeds).generate_state(2)
            shape = (spec.length, dimension)
            return _normal(words, spec.first, shape, np.dtype(self.dtype).name)
        return draw_noise(
            self.mechanism.noise_kind,
            spec.noises,
            dimension,
            seeds=seeds,
            first=spec.first,
            rows=spec.length,
            dtype=self.dtype,
            ring=self._ring,
        )


class _ChunkSpec(NamedTuple):
    """A chunk: ``slots`` slots of a run, from slot ``first`` on, padded to ``length`` rows."""

    run: int
    first: int
    slots: int
    length: int
    width: int
    slot_counts: SlotCounts
    noises: NDArray[np.int64]
    scales: NDArray[np.float64]
    counts: NDArray[np.float64]

    def padded(self, values: Any, filler: float) -> Any:
        rows = np.full(self.length, filler, dtype=values.dtype)
        rows[: self.slots] = values[self.first : self.first + self.slots]
        return rows

    def inputs(self, noise: Any, training: Training) -> SlotChunk:
        slot_counts = self.slot_counts
        keys = slot_counts.keys
        if keys.shape[1] > 1:  # each slot has its own order of clients
            keys = np.stack([self.padded(row, 0) for row in keys])
        slot_clients = _slot_clients(
            training.scenario.clients, training.loaded.data.clients, self.width
        )
        first, reports = (self.padded(each, 0) for each in (slot_counts.first, slot_counts.reports))
        clients = slot_clients(keys[:, :, np.newaxis], first, reports)
        if (drawn := training._drawn_clients) is not None:
            clients = jnp.where(clients >= 0, drawn[jnp.maximum(clients, 0)], -1)
        return SlotChunk(
            clients,
            jax.device_put(noise),  # without a copy on a CPU
            jnp.asarray(self.padded(self.scales, 0.0), training.dtype),
            jnp.asarray(self.padded(self.counts, loop.IGNORED), training.dtype),
        )


@lru_cache(maxsize=2)
def _updates_of(loaded: LoadedTask, clip: Clip | None, work: LocalWork, dtype: Any) -> Updates:
    """Return the update function, cached so that all seeds share the data on the device."""
    if clip is None:
        return client_updates(loaded.model, loaded.data, work=work, dtype=dtype)
    return summed_updates(loaded.model, loaded.data, clip=clip, work=work, dtype=dtype)


@lru_cache(maxsize=4)
def _compiled_of(
    updates: Updates, server: Server, randomizer: Randomizer | None, dimension: int
) -> Any:
    """Return the compiled loop, cached so that all seeds share it.

    ``randomizer`` draws each report separately. If it is None, noise is drawn once for the sum.
    """
    total: Total = loop.noisy_sum(updates)
    if randomizer is not None:
        total = loop.sum_of_reports(updates, randomizer, dimension)
    return loop.compiled(total, server)


_slot_clients: Any = lru_cache(maxsize=16)(loop.slot_clients)


@partial(jax.jit, static_argnums=(2, 3))
def _normal(words: Any, first: Any, shape: tuple[int, int], dtype: str) -> Any:
    """Return one row of noise per slot, from slot ``first`` on, each from its own key."""
    key = jax.random.wrap_key_data(words)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, first + jnp.arange(shape[0]))
    return jax.vmap(lambda own: jax.random.normal(own, shape[1:], dtype))(keys)
