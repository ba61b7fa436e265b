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
from checkins.protocol.model_update import average_weights
from checkins.randomizers import Randomizer
from checkins.simulation.engine import loop
from checkins.simulation.engine.evaluation import Diverged, Evaluation, Metrics
from checkins.simulation.engine.loop import (
    Coefficients,
    Server,
    SlotChunk,
    SlotSum,
    State,
    on_cpu,
    past_slots,
    server_of,
)
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
from checkins.simulation.population import (
    AlwaysAvailable,
    Availability,
    SimulatedPopulation,
    SlotCounts,
)
from checkins.tasks.loaded_task import LoadedTask

CPU_CHUNK_BYTES, ACCELERATOR_CHUNK_BYTES = 1 << 24, 1 << 28
"""Largest size of a chunk's inputs. On a CPU, they must fit into the cache. A GPU needs large
inputs to be busy."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Assumptions about the clients that are not in a campaign file.

    If ``clients`` is larger than the number n of clients in the data, client j holds the rows of
    client j mod n of the data. If it is smaller, each seed draws its own clients from the data.
    """

    clients: int
    availability: Availability = field(default_factory=AlwaysAvailable)
    dropout: float = 0.0

    def population(self, mechanism: Mechanism, seed: int) -> SimulatedPopulation:
        """Return the simulated population of a mechanism's runs."""
        clients = (self.clients, seed, self.availability, self.dropout)
        return SimulatedPopulation(mechanism.design, *clients, mechanism.sampling)


class Position(NamedTuple):
    """``slots`` slots of run ``run`` are finished; ``state`` is the state of the compiled loop."""

    run: int
    slots: int
    state: Any


@dataclass(frozen=True, slots=True)
class Tally:
    """Total counts over the finished slots."""

    slots: int = 0
    check_ins: int = 0
    reports: int = 0
    dummies: int = 0
    contributors: tuple[int, ...] = ()
    """Number of reports in each run. The certificate of the averaged protocol depends on it."""

    def with_run(self, slot_counts: SlotCounts, mechanism: Mechanism) -> Tally:
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
    """The position after a chunk.

    ``metrics`` is None if the model was not evaluated. ``average_metrics`` are the metrics of the
    average of the models. They are None if the model was not evaluated, or without an average.
    """

    position: Position
    slots: int
    metrics: Metrics | None
    average_metrics: Metrics | None = None


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
    average: float | None = None
    """The share of the slots that the average of the models covers; None for no average."""

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
        """Return the training, with the optimizer, local steps and average of the task."""
        work = LocalWork(task.local_steps, task.local_step_size)
        server = server_of(task.optimizer)
        arguments = (mechanism, loaded, server, scenario, seed, work, evaluations)
        return cls(*arguments, average=task.average)

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
        state = self.server.start(self._updates.pack(model))
        if self.average is not None:
            state = state._replace(average=jnp.copy(state.model))
        state = self._without_past_noise(state)
        return Position(1, 0, state)

    def model(self, position: Position) -> NDArray[Any]:
        """Return the model at a position, as one flat vector."""
        return np.asarray(self._updates.unpack(position.state.model))

    def average_model(self, position: Position) -> NDArray[Any] | None:
        """Return the average of the models up to a position; None if the task declares none.

        Before the first slot, it is the initial model.
        """
        if self.average is None:
            return None
        return np.asarray(self._updates.unpack(position.state.average))

    def tally(self, position: Position) -> Tally:
        """Return the counts over all slots before ``position``."""
        tally = Tally()
        for run in range(1, position.run + 1):
            slot_counts = self.population.draw_run(run)
            if run == position.run:
                check_ins = slot_counts.check_ins[: position.slots]
                reports = slot_counts.reports[: position.slots]
                slot_counts = replace(slot_counts, check_ins=check_ins, reports=reports)
            if slot_counts.reports.size:
                tally = tally.with_run(slot_counts, self.mechanism)
        return tally

    def evaluate(self, position: Position) -> Metrics:
        """Return the metrics at a position. Raises InvalidValue if the model is not finite."""
        try:
            return self.evaluation(self.model(position))
        except Diverged as error:
            if (position.run, position.slots) == (1, 0):
                name = type(self.loaded.model).__name__
                why = "has a loss that is not finite at its initial weights"
                raise InvalidValue("model", name, f"{why}: check the model and the data") from error
            raise Diverged("rate", self.server.rate, error.expected) from error

    def evaluate_average(self, position: Position) -> Metrics | None:
        """Return the metrics of the average of the models; None if the task declares none."""
        average = self.average_model(position)
        return None if average is None else self.evaluation(average)

    def run_chunks(self, start: Position | None = None) -> Iterator[Progress]:
        """Run the chunks after ``start`` and yield the progress after each chunk.

        A yielded position must not be used after the next progress is requested.
        """
        position = self.start() if start is None else start
        state, updates = position.state, self._updates
        previous_token: Array | None = None
        interval = self.slots / self.evaluations if self.evaluations else self.slots
        finished_slots = (position.run - 1) * self.mechanism.design.slots + position.slots
        next_evaluation = (int(finished_slots / interval) + 1) * interval
        for spec, inputs in prefetched(self._chunk_specs(position), self._inputs):
            if spec.first == 0 and spec.run > 1:
                state = self.server.next_run(state)
            if spec.first == self.mechanism.warm_up:  # noise is correlated within a run only
                state = self._without_past_noise(state)
            state, token = self._run_chunk(state, inputs, updates.table)
            # Wait for the first chunk, which compiles, because timing starts after it. Later, wait
            # only for the previous chunk, so that one chunk runs while the next is prepared.
            (token if previous_token is None else previous_token).block_until_ready()
            previous_token = token
            finished_slots += spec.slots
            new_position = Position(spec.run, spec.first + spec.slots, state)
            metrics = average_metrics = None
            if finished_slots >= next_evaluation or finished_slots == self.slots:
                metrics = self.evaluate(new_position)
                average_metrics = self.evaluate_average(new_position)
                next_evaluation = (int(finished_slots / interval) + 1) * interval
            yield Progress(new_position, finished_slots, metrics, average_metrics)

    @cached_property
    def _drawn_clients(self) -> Array | None:
        """Numbers of the clients of the data that take part; None if all take part."""
        in_data, simulated = self.loaded.data.clients, self.scenario.clients
        if simulated >= in_data:
            return None
        numbers = np.random.default_rng([self.seed, 4]).choice(in_data, simulated, replace=False)
        return jnp.asarray(numbers, jnp.int32)

    @cached_property
    def _ring(self) -> BufferRing:
        return BufferRing()

    @property
    def _updates(self) -> Updates:
        clip = None if self.mechanism.noise_kind is NoiseKind.PER_REPORT else self.mechanism.clip
        return _updates_of(self.loaded, clip, self.work, self.dtype)

    @cached_property
    def _run_chunk(self) -> Any:
        is_per_report = self.mechanism.noise_kind is NoiseKind.PER_REPORT
        randomizer = self.mechanism.randomizer if is_per_report else None
        arguments = (self._updates, self.server, randomizer, self.loaded.model.dimension)
        return _compiled_loop(*arguments, self.mechanism.coefficients)

    def _without_past_noise(self, state: State) -> State:
        """Return the state before the first release of a run."""
        coefficients = self.mechanism.coefficients
        if coefficients is None:
            return state
        shape = (past_slots(coefficients), self.loaded.model.dimension)
        return state._replace(past_noise=jnp.zeros(shape, self.dtype))

    def _chunk_specs(self, position: Position) -> Iterator[_ChunkSpec]:
        for run in range(position.run, self.mechanism.runs + 1):
            slot_counts = self.population.draw_run(run)
            start = position.slots if run == position.run else 0
            reports, width = slot_counts.reports, self._width(slot_counts)
            mechanism, length = self.mechanism, self._chunk_length(width)
            noise_terms, divisors = mechanism.noise_terms(reports), mechanism.divisors(reports)
            scales, average = mechanism.noise_scales(reports), self._average_weights(run)
            # A chunk has either warm-up slots or slots with a release, but not both.
            warm_up = range(start, mechanism.warm_up, length)
            for first in (*warm_up, *range(max(start, mechanism.warm_up), reports.size, length)):
                end = mechanism.warm_up if first < mechanism.warm_up else reports.size
                slots = min(length, end - first)
                extent = (run, first, slots, length, width)
                yield _ChunkSpec(*extent, slot_counts, noise_terms, scales, divisors, average)

    def _average_weights(self, run: int) -> NDArray[np.float64] | None:
        """Return the weight of each slot's model in the average of the models of all runs so far.

        Warm-up slots release no model, so their weight is 0. Without an average, return None.
        """
        if self.average is None:
            return None
        slots, warm_up = self.mechanism.design.slots, self.mechanism.warm_up
        weights = np.zeros(slots)
        first_model = (run - 1) * (slots - warm_up) + 1
        numbers = first_model + np.arange(slots - warm_up)
        weights[warm_up:] = average_weights(numbers, share=self.average)
        return weights

    def _width(self, slot_counts: SlotCounts) -> int:
        """Return the number of places for clients in a slot, enough for every slot of the run.

        It is rounded up, so that most runs have the same width and share a compiled program.
        """
        capacity = self.mechanism.design.capacity
        max_reports = max(1, int(slot_counts.reports.max()))
        is_per_report = self.mechanism.noise_kind is NoiseKind.PER_REPORT
        if is_per_report and capacity and not self.mechanism.is_averaged:
            return capacity  # every place has a report, real or dummy
        granularity = 1 << max(0, max_reports.bit_length() - 4)
        rounded_reports = -(-max_reports // granularity) * granularity
        return rounded_reports if capacity is None else min(rounded_reports, capacity)

    def _chunk_length(self, width: int) -> int:
        """Return the number of slots of a chunk.

        It is limited by memory and by the number of slots between two evaluations.
        """
        memory_bytes = CPU_CHUNK_BYTES if on_cpu() else ACCELERATOR_CHUNK_BYTES
        slots = self.mechanism.design.slots
        # On an accelerator, each slot's Gaussian noise has its own key, so it needs no blocks.
        drawn_in_blocks = on_cpu() or self.mechanism.noise_kind is not NoiseKind.GAUSSIAN
        block = block_slots(self.loaded.model.dimension) if drawn_in_blocks else 1
        length = max(1, memory_bytes // (4 * max(self.loaded.model.dimension, width)))
        length = max(length - length % block, min(length, block))
        if self.evaluations:
            length = min(length, max(1, -(-self.slots // self.evaluations)))
        if length >= slots:
            return slots
        equal_length = -(-slots // -(-slots // length))  # for chunks of equal length
        return equal_length if equal_length % block == 0 or length < block else length

    def _inputs(self, spec: _ChunkSpec) -> SlotChunk:
        with jax.enable_x64(np.dtype(self.dtype) == np.float64):  # a setting of this thread only
            return spec.inputs(self._noise(spec), self)

    def _noise(self, spec: _ChunkSpec) -> Any:
        """Return the noise of a chunk. An accelerator draws only Gaussian noise."""
        seeds = (self.seed, spec.run, 2)
        dimension = self.loaded.model.dimension
        if self.mechanism.noise_kind is NoiseKind.GAUSSIAN and not on_cpu():
            key_words = np.random.SeedSequence(seeds).generate_state(2)
            shape = (spec.length, dimension)
            return _gaussian_rows(key_words, spec.first, shape, np.dtype(self.dtype).name)
        return draw_noise(
            self.mechanism.noise_kind,
            spec.noise_terms,
            dimension,
            seeds=seeds,
            first=spec.first,
            rows=spec.length,
            dtype=self.dtype,
            ring=self._ring,
        )


class _ChunkSpec(NamedTuple):
    """``slots`` slots of a run, from index ``first`` on, padded to ``length`` rows.

    Every row has ``width`` places for clients.
    """

    run: int
    first: int
    slots: int
    length: int
    width: int
    slot_counts: SlotCounts
    noise_terms: NDArray[np.int64]
    noise_scales: NDArray[np.float64]
    divisors: NDArray[np.float64]
    average_weights: NDArray[np.float64] | None

    def padded(self, values: Any, filler: float) -> Any:
        rows = np.full(self.length, filler, dtype=values.dtype)
        rows[: self.slots] = values[self.first : self.first + self.slots]
        return rows

    def inputs(self, noise: Any, training: Training) -> SlotChunk:
        slot_counts = self.slot_counts
        keys = slot_counts.keys
        if keys.shape[1] > 1:  # each slot has its own order of clients
            keys = np.stack([self.padded(row, 0) for row in keys])
        slot_clients = _compiled_slot_clients(
            training.scenario.clients, training.loaded.data.clients, self.width
        )
        first_position = self.padded(slot_counts.first_position, 0)
        reports = self.padded(slot_counts.reports, 0)
        clients = slot_clients(keys[:, :, np.newaxis], first_position, reports)
        if (drawn_clients := training._drawn_clients) is not None:
            clients = jnp.where(clients >= 0, drawn_clients[jnp.maximum(clients, 0)], -1)
        weights = self.average_weights
        return SlotChunk(
            clients,
            jax.device_put(noise),  # without a copy on a CPU
            jnp.asarray(self.padded(self.noise_scales, 0.0), training.dtype),
            jnp.asarray(self.padded(self.divisors, loop.IGNORED_ROW), training.dtype),
            None if weights is None else jnp.asarray(self.padded(weights, 0.0), training.dtype),
        )


@lru_cache(maxsize=2)
def _updates_of(loaded: LoadedTask, clip: Clip | None, work: LocalWork, dtype: Any) -> Updates:
    """Return the update function, cached so that all seeds share one copy of the data."""
    if clip is None:
        return client_updates(loaded.model, loaded.data, work=work, dtype=dtype)
    return summed_updates(loaded.model, loaded.data, clip=clip, work=work, dtype=dtype)


@lru_cache(maxsize=4)
def _compiled_loop(
    updates: Updates,
    server: Server,
    randomizer: Randomizer | None,
    dimension: int,
    coefficients: Coefficients | None,
) -> Any:
    """Return the compiled loop, cached so that all seeds share it.

    ``randomizer`` draws each report separately. If it is None, noise is drawn once for the sum.
    """
    slot_sum: SlotSum = loop.noisy_sum(updates)
    if randomizer is not None:
        slot_sum = loop.sum_of_reports(updates, randomizer, dimension)
    return loop.compile_chunk(slot_sum, server, coefficients)


_compiled_slot_clients: Any = lru_cache(maxsize=16)(loop.compile_slot_clients)


@partial(jax.jit, static_argnums=(2, 3))
def _gaussian_rows(key_words: Any, first: Any, shape: tuple[int, int], dtype: str) -> Any:
    """Return one row of Gaussian noise per slot, from index ``first`` on, each from its own key."""
    key = jax.random.wrap_key_data(key_words)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, first + jnp.arange(shape[0]))
    return jax.vmap(lambda slot_key: jax.random.normal(slot_key, shape[1:], dtype))(keys)
