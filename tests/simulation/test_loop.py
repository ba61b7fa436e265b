"""The compiled loop does what the pure protocol does, on the same draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest

from checkins.protocol.model_update import ModelUpdate
from checkins.protocol.participant import Participant
from checkins.protocol.rehearsal import rehearse
from checkins.protocol.report import Report, ReportForm
from checkins.protocol.rules import Filling, Rules
from checkins.protocol.server import Server as PureServer
from checkins.protocol.window import FixedWindow
from checkins.randomizers import clip_l2
from checkins.simulation.loop import Optimizer, Server, Stretch, compiled
from checkins.simulation.updates import general, linear, updates_of
from checkins.tasks.dataset import Dataset
from checkins.tasks.logistic import Logistic
from checkins.tasks.mlp import MLP
from checkins.tasks.model import Model
from checkins.tasks.softmax import Softmax

CLIENTS, SLOTS, FEATURES, CLASSES = 40, 12, 5, 3


def sgd(rate: float) -> Optimizer:
    return Optimizer(
        init=lambda model: (), update=lambda gradient, state, model: (-rate * gradient, state)
    )


def dataset(classes: int = CLASSES, rows_each: int = 1) -> Dataset:
    generator = np.random.default_rng(1)
    rows = CLIENTS * rows_each
    return Dataset(
        "toy",
        generator.normal(size=(rows, FEATURES)).astype(np.float32),
        generator.integers(0, classes, rows),
        np.arange(0, rows + 1, rows_each),
        classes,
        np.zeros((0, FEATURES), np.float32),
        np.zeros(0, np.int64),
    )


class Draws:
    """The same draws for both: slots, choices and noise, from a seed."""

    def __init__(self, dimension: int, capacity: int) -> None:
        generator = np.random.default_rng(2)
        self.picks = generator.integers(0, SLOTS, CLIENTS)
        self.noise = generator.normal(size=(SLOTS, dimension))
        self.order = generator.random((SLOTS, CLIENTS))
        self.capacity = capacity

    def waiting(self, slot: int) -> list[int]:
        return [client for client in range(CLIENTS) if self.picks[client] == slot - 1]

    def chosen(self, slot: int) -> list[int]:
        here = self.waiting(slot)
        ranked = sorted(here, key=lambda client: float(self.order[slot - 1, client]))
        return ranked[: self.capacity]

    def coin(self, token: str) -> int:
        return 0

    def pick(self, token: str, below: int) -> int:
        return int(self.picks[int(token)])

    def choose(self, slot: int, ranges: Sequence[int]) -> tuple[int, ...]:
        room = sorted(self.waiting(slot), key=lambda client: f"{slot}/{client:03}")
        draws = []
        for client in self.chosen(slot)[: len(ranges)]:
            draws.append(room.index(client))
            room.remove(client)
        return tuple(draws)

    def dummies(self, slot: int, count: int) -> tuple[Report, ...]:
        return ()


def pure(model: Model, data: Dataset, draws: Any, *, clip: float, minibatch: int) -> np.ndarray:
    rules = Rules(
        slots=SLOTS,
        capacity=draws.capacity,
        filling=Filling.NOISE,
        warm_up=0,
        affordable=SLOTS,
        form=ReportForm(model.dimension, most_units=None, simulated=True),
        update=ModelUpdate(rate=0.5, unit=1.0 / draws.capacity, minibatch=minibatch),
    )

    def train(token: str, flat: np.ndarray) -> Report:
        rows = data.rows_of(int(token))
        gradient = model.gradient(flat, data.features[rows], data.labels[rows])
        return Report.from_simulation(clip_l2(gradient, clip))

    class Dice:
        coin, pick, choose, dummies = draws.coin, draws.pick, draws.choose, draws.dummies

        def noise(self, slot: int) -> Report:
            return Report.from_simulation(draws.noise[slot - 1])

    clients = {
        f"{client:03}": Participant(1.0, FixedWindow.whole(SLOTS)) for client in range(CLIENTS)
    }
    start = PureServer.start(rules, model.start(0))
    played = rehearse(start, clients, dice=Dice(), train=train)
    return played.end.learner.model


def fast(model: Model, updates: Any, draws: Any, *, minibatch: int) -> np.ndarray:
    ids = np.full((SLOTS, draws.capacity), -1, np.int32)
    for slot in range(1, SLOTS + 1):
        chosen = draws.chosen(slot)
        ids[slot - 1, : len(chosen)] = chosen
    server = Server(sgd(0.5), minibatch=minibatch)
    run = compiled(updates, server, noise=1.0)
    counts = np.full(SLOTS, float(draws.capacity))
    inputs = Stretch(
        jax.numpy.asarray(ids), jax.numpy.asarray(draws.noise), jax.numpy.asarray(counts)
    )
    state = run(server.start(jax.numpy.asarray(model.start(0))), inputs)
    return np.asarray(state.model)


@pytest.mark.parametrize("minibatch", [1, 3])
@pytest.mark.parametrize("capacity", [1, 4])
@pytest.mark.parametrize("kind", ["logistic", "softmax", "mlp", "many rows"])
def test_the_compiled_loop_and_the_machines_agree_on_the_same_draws(
    kind: str, capacity: int, minibatch: int
) -> None:
    model: Model = {
        "logistic": Logistic(FEATURES),
        "mlp": MLP(FEATURES, CLASSES, width=4),
    }.get(kind, Softmax(FEATURES, CLASSES))
    data = dataset(2 if kind == "logistic" else CLASSES, 3 if kind == "many rows" else 1)
    draws = Draws(model.dimension, capacity)
    slow = pure(model, data, draws, clip=0.7, minibatch=minibatch)
    with jax.enable_x64(True):
        updates = updates_of(model, data, clip=0.7, dtype=np.float64)
        quick = fast(model, updates, draws, minibatch=minibatch)
    assert np.linalg.norm(quick - slow) <= 1e-9 * np.linalg.norm(slow)


def test_the_product_and_the_general_way_are_one() -> None:
    model, data = Softmax(FEATURES, CLASSES), dataset()
    with jax.enable_x64(True):
        flat = jax.numpy.asarray(np.random.default_rng(3).normal(size=model.dimension))
        clients = jax.numpy.asarray([0, 5, -1, 7, 39])
        one = linear(model, data, clip=0.5, dtype=np.float64)(flat, clients)
        other = general(model, data, clip=0.5, dtype=np.float64)(flat, clients)
    assert np.allclose(one, other, rtol=1e-9)


def test_nobody_is_no_update() -> None:
    model, data = Softmax(FEATURES, CLASSES), dataset()
    for way in (linear, general):
        nothing = way(model, data, clip=0.5)(
            jax.numpy.zeros(model.dimension), jax.numpy.full(3, -1)
        )
        assert not np.asarray(nothing).any()


def test_a_slot_without_reports_is_skipped_when_updates_are_averaged() -> None:
    model, data = Softmax(FEATURES, CLASSES), dataset()
    server = Server(sgd(0.5))
    run = compiled(linear(model, data, clip=1.0), server, noise=0.0)
    inputs = Stretch(
        jax.numpy.asarray([[0, 1], [-1, -1]]),
        jax.numpy.zeros((2, model.dimension)),
        jax.numpy.asarray([2.0, 0.0]),
    )
    first = Stretch(*(part[:1] for part in inputs))
    both = run(server.start(jax.numpy.zeros(model.dimension)), inputs).model
    one = run(server.start(jax.numpy.zeros(model.dimension)), first).model
    assert np.array_equal(both, one)
