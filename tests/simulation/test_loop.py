"""The compiled loop does what the pure protocol does, on the same draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from checkins.accounting import NoiseAt, Protocol
from checkins.campaign import Campaign, StepSizes
from checkins.protocol.participant import COIN_RANGE, participant_of
from checkins.protocol.rehearsal import rehearse
from checkins.protocol.report import Report
from checkins.protocol.server import simulation_server_of
from checkins.randomizers import Laplace, clip_l1, clip_l2
from checkins.simulation.engine.loop import (
    IGNORED_ROW,
    SKIPPED_SLOT,
    Server,
    SlotChunk,
    StepDirection,
    compile_chunk,
    noisy_sum,
    server_of,
)
from checkins.simulation.engine.mechanism import Mechanism
from checkins.simulation.engine.training import Scenario, Training
from checkins.simulation.engine.updates import Clip, LocalWork, summed_linear_updates
from checkins.simulation.population import SlotCounts, digit_sizes, feistel
from checkins.tasks.built_in_models import MLP, Logistic
from checkins.tasks.loaded_task import LoadedTask
from tests.simulation.campaigns import (
    AT_SERVER,
    CLASSES,
    FEATURES,
    LAPLACE,
    campaign,
    dataset,
    loaded,
    with_strategy,
)


@dataclass(frozen=True, eq=False)
class Fed(Training):
    """A training that is fed with noise from outside, and tells whom it used."""

    noises: Mapping[int, np.ndarray] = field(default_factory=dict)
    used: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)

    def _noise(self, spec: Any) -> Any:
        rows = np.zeros((spec.length, self.loaded.model.dimension))
        given = self.noises[spec.run][spec.first : spec.first + spec.slots]
        rows[: spec.slots] = given
        packed = jax.vmap(self._updates.pack)(jnp.asarray(rows))  # noise lies as the model does
        return packed.reshape(rows.shape)

    def _inputs(self, spec: Any) -> SlotChunk:
        inputs = super()._inputs(spec)
        self.used[spec.run, spec.first] = np.asarray(inputs.clients)[: spec.slots]
        return inputs


@dataclass(frozen=True)
class Play:
    """One run's draws for the machines: those of the simulator's population, person by person."""

    campaign: Campaign
    loaded: LoadedTask
    slot_counts: SlotCounts
    noise: list[np.ndarray]
    """For each slot, the noise of each report of it, dummies last; or the server's one."""
    trained: dict[int, list[int]] = field(default_factory=dict)

    @property
    def slot_of(self) -> dict[int, int]:
        """Where each client checks in: the order's next so many people are the slot's."""
        clients = self.loaded.data.clients
        order = np.arange(clients, dtype=np.uint32)
        keys, (high, low) = self.slot_counts.keys[:, 0], digit_sizes(clients)
        order = np.array(feistel(order, keys, high, low))
        while (order >= clients).any():
            order = np.where(order >= clients, feistel(order, keys, high, low), order)
        slots = np.repeat(
            np.arange(1, self.slot_counts.check_ins.size + 1), self.slot_counts.check_ins
        )
        return {int(who): int(slot) for who, slot in zip(order, slots, strict=False)}

    def wakes(self) -> dict[str, int]:
        window = self.campaign.design.window or 1
        return {f"{who:03}": max(1, slot - window + 1) for who, slot in self.slot_of.items()}

    def coin(self, token: str) -> int:
        return 0 if int(token) in self.slot_of else COIN_RANGE - 1

    def pick(self, token: str, below: int) -> int:
        slot = self.slot_of.get(int(token), 1)
        return slot - (self.wakes().get(token, 1) if self.campaign.design.window else 1)

    def choose(self, slot: int, ranges: Sequence[int]) -> tuple[int, ...]:
        waiting = sorted(who for who, where in self.slot_of.items() if where == slot)
        first = self.slot_counts.reports[slot - 1]
        in_order = [who for who, where in self.slot_of.items() if where == slot][:first]
        draws = []
        for who in in_order[: len(ranges)]:
            draws.append(waiting.index(who))
            waiting.remove(who)
        return tuple(draws)

    def dummies(self, slot: int, count: int) -> tuple[Report, ...]:
        noises = self.noise[slot - 1]
        return tuple(Report.from_simulation(row) for row in noises[len(noises) - count :])

    def noise_of_server(self, slot: int) -> Report:
        """Correlated noise is in units of the release grid, of which 2^bits make one unit."""
        strategy = self.campaign.strategy
        units = 1.0 if strategy is None else 2.0**strategy.bits
        return Report.from_simulation(units * self.noise[slot - 1][0])

    def train(self, token: str, flat: np.ndarray) -> Report:
        """Clipped, and noised where the noise is the client's."""
        task, data = self.campaign.task, self.loaded.data
        assert task is not None
        who = int(token)
        slot = self.slot_of[who]
        rows = data.rows_of(who)
        here, size = flat, task.local_step_size
        for _ in range(task.local_steps):
            slope = self.loaded.model.gradient(here, data.features[rows], data.labels[rows])
            here = here - size * slope
        update = (flat - here) / size if task.local_steps > 1 else slope
        clip = clip_l1 if self.campaign.noise_multiplier is None else clip_l2
        report = clip(update, self.campaign.randomizer.clip or 1.0)
        mine = self.trained.setdefault(slot, [])
        if self.campaign.noise_at is not NoiseAt.SERVER:
            report = report + self.noise[slot - 1][len(mine)]
        mine.append(who)
        return Report.from_simulation(report)


def played(play: Play, model: np.ndarray, velocity: np.ndarray | None) -> Any:
    """The same run through the machines."""

    class Dice:
        coin, pick, choose, dummies = play.coin, play.pick, play.choose, play.dummies
        noise = staticmethod(play.noise_of_server)

    clients = {f"{who:03}": participant_of(play.campaign) for who in range(40)}
    start = simulation_server_of(play.campaign, model, velocity=velocity)
    end = rehearse(start, clients, randomness=Dice(), train=play.train, wake_slots=play.wakes()).end
    return end.learner


def noises(
    mechanism: Mechanism, slot_counts: SlotCounts, dimension: int, run: int
) -> list[np.ndarray]:
    """Noise in units of one report's deviation or scale: (reports of the slot, dimension)."""
    generator = np.random.default_rng([3, run])
    at_server = mechanism.noise_at is NoiseAt.SERVER
    each = (
        np.ones_like(slot_counts.reports)
        if at_server
        else mechanism.noise_terms(slot_counts.reports)
    )
    return [generator.normal(size=(int(count), dimension)) for count in each]


def both(asked: Campaign, taught: LoadedTask, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """The last model of the machines, and of the loop; whom they used is compared on the way."""
    task, dimension = asked.task, taught.model.dimension
    assert task is not None
    mechanism = Mechanism.of(asked, dimension)
    training = Fed(
        mechanism,
        taught,
        server_of(task.optimizer),
        Scenario(taught.data.clients),
        seed,
        LocalWork(task.local_steps, task.local_step_size),
        evaluations=3,
        dtype=np.float64,
    )
    randomizer: Any = mechanism.randomizer
    unit = randomizer.scale if isinstance(randomizer, Laplace) else randomizer.std
    model, velocity = taught.model.start(seed), None
    fed, plays = {}, []
    for run in range(1, asked.repeats + 1):
        slot_counts = training.population.draw_run(run)
        drawn = noises(mechanism, slot_counts, dimension, run)
        power = (
            0.0 if isinstance(randomizer, Laplace) else 0.5
        )  # Gaussian rows are multiplied by √K
        fed[run] = np.array([rows.sum(axis=0) / max(1, len(rows)) ** power for rows in drawn])
        play = Play(asked, taught, slot_counts, [unit * rows for rows in drawn])
        learner = played(play, model, velocity)
        model, velocity = learner.model, learner.velocity
        plays.append(play)
    training.noises.update(fed)  # type: ignore[attr-defined]
    with jax.enable_x64(True):
        for progress in training.run_chunks():
            last = training.model(progress.position)
    chosen = [row for _, rows in sorted(training.used.items()) for row in rows]
    slots = asked.design.slots
    for number, row in enumerate(chosen):
        trained = plays[number // slots].trained.get(number % slots + 1, [])
        assert sorted(row[row >= 0].tolist()) == sorted(trained)
    return np.asarray(model), np.asarray(last)


SLIDING = partial(campaign, protocol=Protocol.SLIDING)
CASES: dict[str, tuple[Campaign, LoadedTask]] = {
    "one report a slot, as in the paper": (campaign(capacity=1, participation=0.4), loaded()),
    "dummies, minibatches of 3, c/√i": (
        campaign(capacity=4, minibatch=3, schedule=StepSizes.INVERSE_SQRT),
        loaded(),
    ),
    "noise at the server, everyone, nesterov": (
        campaign(AT_SERVER, capacity=None, divide_by=6, momentum=0.8, nesterov=True),
        loaded(Logistic(FEATURES), classes=2),
    ),
    "noise at the server, a capacity, projected": (
        campaign(AT_SERVER, capacity=2, minibatch=3, diameter=0.6, momentum=0.5),
        loaded(),
    ),
    "noise over three slots, nesterov, two runs": (
        with_strategy(
            campaign(AT_SERVER, capacity=None, divide_by=6, momentum=0.8, nesterov=True, repeats=2),
            *(800, 500, 300),
        ),
        loaded(),
    ),
    "noise over forty slots, of more than one block, two runs": (
        with_strategy(
            campaign(AT_SERVER, capacity=None, divide_by=6, slots=50, minibatch=2, repeats=2),
            *(600, *range(120, 81, -1)),
        ),
        loaded(Logistic(FEATURES), classes=2),
    ),
    "noise over four slots, sliding": (
        with_strategy(
            SLIDING(AT_SERVER, window=5, capacity=None, slots=20, divide_by=6),
            *(800, 400, 300, 200),
        ),
        loaded(),
    ),
    "averaged, with empty slots": (
        campaign(
            protocol=Protocol.AVERAGED,
            slots=60,
            momentum=0.5,
            schedule=StepSizes.INVERSE_SQRT,
            rate=0.2,
        ),
        loaded(),
    ),
    "averaged, with skipped slots": (
        campaign(protocol=Protocol.AVERAGED, slots=16, momentum=0.5, least_reports=3, rate=0.2),
        loaded(),
    ),
    "sliding, a warm-up that is no whole minibatch": (
        SLIDING(window=5, capacity=2, minibatch=3, schedule=StepSizes.INVERSE_SQRT, slots=20),
        loaded(),
    ),
    "laplace": (campaign(LAPLACE, capacity=3, rate=0.05), loaded()),
    "many rows, an MLP, two repeats that carry model and velocity": (
        campaign(capacity=4, repeats=2, momentum=0.7, minibatch=5, rate=0.1),
        loaded(MLP(FEATURES, CLASSES, width=3), sizes=(3, 1, 2)),
    ),
    "local steps": (
        campaign(capacity=4, local_steps=3, local_rate=0.25, rate=0.3),
        loaded(sizes=(2, 1)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_compiled_loop_and_the_machines_agree_on_the_same_draws(name: str) -> None:
    """The same people in every slot, and models within 1e-9."""
    slow, quick = both(*CASES[name])
    assert np.linalg.norm(slow) > 0.01
    assert np.linalg.norm(quick - slow) <= 1e-9 * np.linalg.norm(slow)


def test_the_cases_hold_dummies_empty_slots_and_full_ones() -> None:
    """So that agreeing means something."""
    for name, (asked, taught) in CASES.items():
        mechanism = Mechanism.of(asked, taught.model.dimension)
        slot_counts = Training(
            mechanism,
            taught,
            Server(StepDirection(lambda _: (), lambda *_: _), 1.0),
            Scenario(40),
            1,
        ).population.draw_run(1)
        if asked.design.protocol is Protocol.AVERAGED:
            least_reports = asked.design.least_reports or 1
            assert (slot_counts.reports < least_reports).any(), name
            assert (slot_counts.reports >= least_reports).any(), name
        elif mechanism.noise_at is NoiseAt.CLIENT:
            assert mechanism.dummies(slot_counts.reports) > 0, name
        if asked.design.capacity is not None:
            assert (slot_counts.check_ins > asked.design.capacity).any(), name


SGD = StepDirection(lambda model: (), lambda slope, state, model: (-slope, state))


def ran(counts: list[float], *, minibatch: int = 1) -> Any:
    """The state after slots with these counts, two clients and no noise in each."""
    model, data = loaded().model, dataset()
    updates = summed_linear_updates(model, data, clip=Clip(1.0))  # type: ignore[arg-type]
    server = Server(SGD, 0.5, minibatch=minibatch)
    inputs = SlotChunk(
        jnp.tile(jnp.array([[0, 1]]), (len(counts), 1)),
        jnp.zeros((len(counts), model.dimension)),
        jnp.zeros(len(counts)),
        jnp.array(counts),
    )
    start = server.start(updates.pack(jnp.zeros(model.dimension)))
    return compile_chunk(noisy_sum(updates), server)(start, inputs, updates.table)[0]


def test_a_slot_that_is_skipped_counts_and_moves_nothing() -> None:
    both, one = ran([2.0, SKIPPED_SLOT]), ran([2.0])
    assert np.array_equal(both.model, one.model)
    assert (int(both.slots), int(one.slots)) == (2, 1)


@pytest.mark.parametrize("minibatch", [1, 2])
def test_a_padding_row_changes_nothing_and_is_never_heard_of(minibatch: int) -> None:
    filled = ran([2.0, 2.0, IGNORED_ROW, IGNORED_ROW], minibatch=minibatch)
    bare = ran([2.0, 2.0], minibatch=minibatch)
    assert all(map(np.array_equal, jax.tree.leaves(filled), jax.tree.leaves(bare)))


def test_a_minibatch_that_is_not_full_moves_nothing_and_the_next_run_forgets_it() -> None:
    state = ran([2.0], minibatch=2)
    assert not np.asarray(state.model).any()
    assert np.asarray(state.accumulator).any()
    after = Server(SGD, 0.5, minibatch=2).next_run(state)
    assert not np.asarray(after.accumulator).any()
    assert int(after.slots) == 0
