"""What is asked is checked before anything is computed."""

from __future__ import annotations

from typing import Any

import pytest

from checkins.accounting import Adjacency, NoiseAt, Population, Protocol
from checkins.campaign import Optimizer, RandomizerKind, Task
from checkins.errors import InvalidValue
from checkins.planning import Constraints, Devices, Learning, Question, Server, make_plan
from tests.planning.plans import ask


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": float("nan")}, "epsilon"),
        ({"delta": 1.0}, "delta"),
        ({"delta": 0.0}, "delta"),
        ({"dimension": 0}, "dimension"),
        ({"adjacency": "add-remove"}, "adjacency"),
        ({"population": (1, 10**11)}, "population"),
        ({"population": (10, 1)}, "population"),
    ],
)
def test_a_wrong_number_is_named(wrong: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        ask(**wrong)
    assert refused.value.name == name


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Devices(availability_s=0.0), "availability_s"),
        (lambda: Devices(uplink_bytes_per_s=-1.0), "uplink_bytes_per_s"),
        (lambda: Devices(dropout=1.0), "dropout"),
        (lambda: Server(updates_per_s=0.0), "updates_per_s"),
        (lambda: Server(duration_s=float("inf")), "duration_s"),
        (lambda: Server(duration_s=1e12), "duration_s"),
        (lambda: Constraints(slots=0), "slots"),
        (lambda: Constraints(participation=0.0), "participation"),
        (lambda: Constraints(capacity=0), "capacity"),
        (lambda: Constraints(window=10, slots=5), "window"),
        (lambda: Constraints(window=10, protocol=Protocol.FIXED), "window"),
        (lambda: Constraints(minibatch=10, slots=5), "minibatch"),
        (lambda: Constraints(bands=0), "bands"),
        (lambda: Constraints(bands=2, noise_at=NoiseAt.CLIENT), "bands"),
        (lambda: Constraints(bands=2, capacity=9), "bands"),
        (lambda: Constraints(bands=2, protocol=Protocol.AVERAGED), "bands"),
        (lambda: Constraints(capacity="all", noise_at=NoiseAt.CLIENT), "capacity"),
        (lambda: Constraints(randomizer=RandomizerKind.RANDOMIZED_RESPONSE), "randomizer"),
        (
            lambda: Constraints(randomizer=RandomizerKind.LAPLACE, noise_at=NoiseAt.SERVER),
            "noise_at",
        ),
        (lambda: Constraints(protocol=Protocol.AVERAGED, noise_at=NoiseAt.SERVER), "noise_at"),
        (lambda: Constraints(protocol=Protocol.AVERAGED, participation=0.5), "participation"),
        (lambda: Constraints(protocol=Protocol.AVERAGED, capacity=3), "capacity"),
        (lambda: Constraints(protocol=Protocol.AVERAGED, minibatch=2), "minibatch"),
        (lambda: Learning(clip=0.0), "clip"),
    ],
)
def test_contradictory_constraints_are_refused(make: Any, name: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        make()
    assert refused.value.name == name


def test_averaged_updates_are_refused_for_add_remove() -> None:
    with pytest.raises(InvalidValue, match="lone client"):
        ask(fixed=Constraints(protocol=Protocol.AVERAGED))


def test_too_little_time_is_an_error() -> None:
    asked = ask(dimension=10**8, server=Server(duration_s=10.0))
    with pytest.raises(InvalidValue, match="is too short") as refused:
        make_plan(asked)
    assert refused.value.name == "duration_s"


def test_a_budget_out_of_reach_is_an_error() -> None:
    fixed = Constraints(slots=1, participation=1.0, repeats=1)
    with pytest.raises(InvalidValue, match="no allowed design"):
        make_plan(ask(1e-9, delta=1e-12, fixed=fixed))


def test_the_middle_of_a_range_is_on_a_log_scale() -> None:
    assert ask(population=(100, 10_000)).clients == 1_000


def test_a_device_cannot_stay_longer_than_the_campaign() -> None:
    asked = Question(
        Population(10, 10),
        1.0,
        1e-6,
        Adjacency.ADD_REMOVE,
        dimension=1,
        devices=Devices(availability_s=1e6),
        server=Server(duration_s=100.0),
    )
    assert asked.availability_s == 100.0
    assert asked.as_json()["devices"] == {
        "availability_s": 100.0,
        "uplink_bytes_per_s": 125_000.0,
        "dropout": 0.0,
    }


def test_a_known_task_brings_its_constants() -> None:
    known = Learning.of(Task("patients", "logistic", Optimizer(rate=1.0)))
    other = Learning.of(Task("synthetic", "mlp", Optimizer(rate=1.0)))
    assert known.largest_step != Learning().largest_step
    assert (other.clip, other.radius) == (Learning().clip, Learning().radius)


def test_momentum_is_only_for_steps_that_would_be_too_long() -> None:
    learning = Learning(largest_step=2.0)
    assert learning.momentum(steps=100, step=2.0) == 0.0
    assert learning.momentum(steps=200, step=20.0) == pytest.approx(0.9)
    assert learning.step(steps=200, variance=1e-12) == pytest.approx(20.0)
