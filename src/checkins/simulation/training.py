"""One simulated campaign: stretch after stretch of compiled slots, from one seed.

The same seed gives the same campaign however it is cut into stretches, by an interruption or to
be measured: every slot has its own noise, every run its own draw of check-ins.
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

from checkins.errors import InvalidValue
from checkins.randomizers import Randomizer
from checkins.simulation.availability import Always, Availability
from checkins.simulation.evaluation import Diverged, Evaluation, Metrics
from checkins.simulation.loop import (
    OVER,
    Server,
    SlotChunk,
    Total,
    compiled,
    noisy,
    on_host,
    report_by_report,
    seating,
)
from checkins.simulation.mechanism import Mechanism
from checkins.simulation.noise import Law, Ring, ahead, block_slots, drawn
from checkins.simulation.population import Counts, SimulatedPopulation, SlotCounts
from checkins.simulation.updates import Clip, LocalWork, Updates, each, updates_of
from checkins.tasks.loaded_task import LoadedTask

HOST_BYTES, DEVICE_BYTES = 1 << 24, 1 << 28
"""Inputs of a stretch: small enough for a CPU's cache, large enough to keep a GPU busy."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What the world does, which no file seals: who there is, and who can be reached.

    ``clients`` may be more than the data has: client j then holds what client j mod n of the data
    holds. If they are fewer, each seed draws its own among those of the data.
    """

    clients: int
    availability: Availability = field(default_factory=Always)
    dropout: float = 0.0

    def crowd(self, method: Mechanism, seed: int) -> SimulatedPopulation:
        """Who takes part in a method's runs."""
        return SimulatedPopulation(
            method.design, self.clients, seed, self.availability, self.dropout, method.sampling
        )


class Position(NamedTuple):
    """Where a campaign stands: ``slots`` of run ``run`` are over. Numbers only: it can be saved."""

    run: int
    slots: int
    state: Any


@dataclass(frozen=True, slots=True)
class Tally:
    """What has been counted so far."""

    slots: int = 0
    check_ins: int = 0
    reports: int = 0
    dummies: int = 0
    contributors: tuple[int, ...] = ()
    """Reports of each run: averaged updates are priced by them."""

    def plus(self, turnout: SlotCounts, method: Mechanism) -> Tally:
        """With one more run."""
        reports = int(turnout.reports.sum())
        return Tally(
            self.slots + turnout.reports.size,
            self.check_ins + int(turnout.check_ins.sum()),
            self.reports + reports,
            self.dummies + method.dummies(turnout.reports),
            (*self.contributors, reports),
        )


@dataclass(frozen=True, slots=True)
class Progress:
    """After a stretch: where it stands, and what the model is worth where it was measured."""

    position: Position
    slots: int
    metrics: Metrics | None


@dataclass(frozen=True, eq=False)
class Training:
    """A method, on a lesson, in a scenario, from a seed."""

    method: Mechanism
    lesson: LoadedTask
    server: Server
    scenario: Scenario
    seed: int
    work: LocalWork = field(default_factory=LocalWork)
    evaluations: int = 50
    """How often the model is measured on the way; 0: only at the end."""
    dtype: Any = np.float32

    @property
    def slots(self) -> int:
        """Of all runs together."""
        return self.method.runs * self.method.design.slots

    @cached_property
    def crowd(self) -> SimulatedPopulation:
        return self.scenario.crowd(self.method, self.seed)

    @cached_property
    def evaluation(self) -> Evaluation:
        return Evaluation(self.lesson)

    def start(self) -> Position:
        """Before the first slot."""
        model = jnp.asarray(self.lesson.model.start(self.seed), self.dtype)
        return Position(1, 0, self.server.start(self._updates.pack(model)))

    def model(self, position: Position) -> NDArray[Any]:
        """The model there, as one flat vector."""
        return np.asarray(self._updates.unpack(position.state.model))

    def tally(self, position: Position) -> Tally:
        """What was counted until there; whole runs, and the slots of the one that is under way."""
        found = Tally()
        for run in range(1, position.run + 1):
            turnout = self.crowd.run(run)
            if run == position.run:
                turnout = replace(
                    turnout,
                    check_ins=turnout.check_ins[: position.slots],
                    reports=turnout.reports[: position.slots],
                )
            if turnout.reports.size:
                found = found.plus(turnout, self.method)
        return found

    def measured(self, position: Position) -> Metrics:
        try:
            return self.evaluation(self.model(position))
        except Diverged as error:
            if (position.run, position.slots) == (1, 0):
                raise InvalidValue(
                    "model",
                    type(self.lesson.model).__name__,
                    "has a loss that is not finite at"
                    " its initial weights: check the model and the data",
                ) from error
            raise Diverged("rate", self.server.rate, error.expected) from error

    def steps(self, start: Position | None = None) -> Iterator[Progress]:
        """Every stretch from there on. A position is good until the next one is asked for."""
        position = self.start() if start is None else start
        state, updates = position.state, self._updates
        before: Array | None = None
        every = self.slots / self.evaluations if self.evaluations else self.slots
        done = (position.run - 1) * self.method.design.slots + position.slots
        due = (int(done / every) + 1) * every
        for piece, inputs in ahead(self._pieces(position), self._inputs):
            if piece.first == 0 and piece.run > 1:
                state = self.server.next_run(state)
            state, token = self._advance(state, inputs, updates.table)
            # The first stretch is waited for: it compiles, and what follows is timed from its end.
            # From then on one stretch is under way while the next is made ready.
            (token if before is None else before).block_until_ready()
            before = token
            done += piece.slots
            here = Position(piece.run, piece.first + piece.slots, state)
            found = None
            if done >= due or done == self.slots:
                found, due = self.measured(here), (int(done / every) + 1) * every
            yield Progress(here, done, found)

    @cached_property
    def _present(self) -> Array | None:
        """Who of the data takes part, where not everyone does."""
        in_data, wanted = self.lesson.data.clients, self.scenario.clients
        if wanted >= in_data:
            return None
        drawn = np.random.default_rng([self.seed, 4]).choice(in_data, wanted, replace=False)
        return jnp.asarray(drawn, jnp.int32)

    @cached_property
    def _ring(self) -> Ring:
        return Ring()

    @property
    def _updates(self) -> Updates:
        clip = None if self.method.law is Law.KEYS else self.method.clip
        return _updates_of(self.lesson, clip, self.work, self.dtype)

    @cached_property
    def _advance(self) -> Any:
        alone = self.method.randomizer if self.method.law is Law.KEYS else None
        return _compiled_of(self._updates, self.server, alone, self.lesson.model.dimension)

    def _pieces(self, position: Position) -> Iterator[_Piece]:
        for run in range(position.run, self.method.runs + 1):
            turnout = self.crowd.run(run)
            begin = position.slots if run == position.run else 0
            reports, width = turnout.reports, self._width(turnout)
            scales, counts = self.method.scales(reports), self.method.counts(reports)
            noises, length = self.method.noises(reports), self._length(width)
            for first in range(begin, reports.size, length):
                slots = min(length, reports.size - first)
                yield _Piece(run, first, slots, length, width, turnout, noises, scales, counts)

    def _width(self, turnout: SlotCounts) -> int:
        """How many places a slot has: enough for all, and the same from run to run if it can be."""
        capacity, most = self.method.design.capacity, max(1, int(turnout.reports.max()))
        if self.method.law is Law.KEYS and capacity and not self.method.averaged:
            return capacity  # dummies take places too
        step = 1 << max(0, most.bit_length() - 4)
        wide = -(-most // step) * step
        return wide if capacity is None else min(wide, capacity)

    def _length(self, width: int) -> int:
        """Slots of a stretch: what memory allows, at most what lies between two measurements."""
        room = HOST_BYTES if on_host() else DEVICE_BYTES
        slots = self.method.design.slots
        # An accelerator derives the noise of each slot from its number and needs no whole blocks.
        drawn_in_blocks = on_host() or self.method.law is not Law.GAUSSIAN
        block = block_slots(self.lesson.model.dimension) if drawn_in_blocks else 1
        most = max(1, room // (4 * max(self.lesson.model.dimension, width)))
        most = max(most - most % block, min(most, block))
        if self.evaluations:
            most = min(most, max(1, -(-self.slots // self.evaluations)))
        if most >= slots:
            return slots
        even = -(-slots // -(-slots // most))  # stretches of one length, if blocks allow it
        return even if even % block == 0 or most < block else most

    def _inputs(self, piece: _Piece) -> SlotChunk:
        with jax.enable_x64(np.dtype(self.dtype) == np.float64):  # each thread has its own setting
            return piece.inputs(self._noise(piece), self)

    def _noise(self, piece: _Piece) -> Any:
        """In a thread of its own on a host; an accelerator draws Gaussian noise itself."""
        seeds = (self.seed, piece.run, 2)
        dimension = self.lesson.model.dimension
        if self.method.law is Law.GAUSSIAN and not on_host():
            words = np.random.SeedSequence(seeds).generate_state(2)
            shape = (piece.length, dimension)
            return _normal(words, piece.first, shape, np.dtype(self.dtype).name)
        return drawn(
            self.method.law,
            piece.noises,
            dimension,
            seeds=seeds,
            first=piece.first,
            rows=piece.length,
            dtype=self.dtype,
            ring=self._ring,
        )


class _Piece(NamedTuple):
    """One stretch: ``slots`` slots of a run from ``first`` on, filled up to ``length`` rows."""

    run: int
    first: int
    slots: int
    length: int
    width: int
    turnout: SlotCounts
    noises: Counts
    scales: NDArray[np.float64]
    counts: NDArray[np.float64]

    def padded(self, values: Any, filler: float) -> Any:
        rows = np.full(self.length, filler, dtype=values.dtype)
        rows[: self.slots] = values[self.first : self.first + self.slots]
        return rows

    def inputs(self, noise: Any, training: Training) -> SlotChunk:
        turnout = self.turnout
        keys = turnout.keys
        if keys.shape[1] > 1:  # an order of its own for each slot
            keys = np.stack([self.padded(row, 0) for row in keys])
        seated = _seating(training.scenario.clients, training.lesson.data.clients, self.width)
        clients = seated(
            keys[:, :, np.newaxis], self.padded(turnout.first, 0), self.padded(turnout.reports, 0)
        )
        if (present := training._present) is not None:
            clients = jnp.where(clients >= 0, present[jnp.maximum(clients, 0)], -1)
        return SlotChunk(
            clients,
            jax.device_put(noise),  # read where it stands, not copied
            jnp.asarray(self.padded(self.scales, 0.0), training.dtype),
            jnp.asarray(self.padded(self.counts, OVER), training.dtype),
        )


@lru_cache(maxsize=2)
def _updates_of(lesson: LoadedTask, clip: Clip | None, work: LocalWork, dtype: Any) -> Updates:
    """Kept from seed to seed: so are the data on the device."""
    if clip is None:
        return each(lesson.model, lesson.data, work=work, dtype=dtype)
    return updates_of(lesson.model, lesson.data, clip=clip, work=work, dtype=dtype)


@lru_cache(maxsize=4)
def _compiled_of(updates: Updates, server: Server, alone: Randomizer | None, dimension: int) -> Any:
    """Kept from seed to seed: so is what was compiled. ``alone`` makes each report by itself."""
    total: Total = noisy(updates)
    if alone is not None:
        total = report_by_report(updates, alone, dimension)
    return compiled(total, server)


_seating: Any = lru_cache(maxsize=16)(seating)


@partial(jax.jit, static_argnums=(2, 3))
def _normal(words: Any, first: Any, shape: tuple[int, int], dtype: str) -> Any:
    """Rows of noise for the slots from ``first`` on, each from a key of its own."""
    key = jax.random.wrap_key_data(words)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, first + jnp.arange(shape[0]))
    return jax.vmap(lambda own: jax.random.normal(own, shape[1:], dtype))(keys)
