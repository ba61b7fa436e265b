"""ModelUpdate, held to the paper's own lines."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from checkins.errors import InvalidValue
from checkins.protocol.model_update import Learner, ModelUpdate

Vector = NDArray[np.float64]
START = np.array([1.0, -2.0])

vectors = st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=2).map(np.array)
rates = st.floats(1e-3, 10.0)


def paper(theta: Vector, g: Any, i: int, *, eta: float, b: int) -> tuple[Vector, Any]:
    """ModelUpdate(θ, g, i) of Algorithm 1, word for word."""
    if i % b == 0:
        return theta - (eta / b) * g, 0  # gradient descent step
    return theta, g  # skip update


def after(update: ModelUpdate, totals: list[Any], *, start: Vector = START) -> list[Learner]:
    """The learner after each slot."""
    learners = [update.start(start)]
    for total in totals:
        learners.append(update.apply(learners[-1], total))
    return learners[1:]


@given(totals=st.lists(vectors, min_size=1, max_size=9), eta=rates, b=st.integers(1, 5))
def test_it_is_the_papers_bit_for_bit(totals: list[Vector], eta: float, b: int) -> None:
    theta, g = START, 0
    for i, learner in enumerate(after(ModelUpdate(eta, minibatch=b), totals), start=1):
        theta, g = paper(theta, g + totals[i - 1], i, eta=eta, b=b)
        assert learner.model.tobytes() == theta.tobytes()
        assert learner.slots == i


@given(totals=st.lists(vectors, min_size=1, max_size=9), b=st.integers(1, 5))
def test_the_model_moves_at_multiples_of_the_minibatch_alone(totals: list[Vector], b: int) -> None:
    before = START
    for i, learner in enumerate(after(ModelUpdate(1.0, minibatch=b), totals), start=1):
        if i % b:
            assert learner.model.tobytes() == before.tobytes()
        before = learner.model


def test_the_accumulator_starts_anew_after_each_step() -> None:
    ones = np.array([1.0, 1.0])
    learners = after(ModelUpdate(1.0, minibatch=2), [ones, ones, ones, ones])
    assert [learner.gradient is None for learner in learners] == [False, True, False, True]
    assert [float(START[0] - learner.model[0]) for learner in learners] == [0.0, 1.0, 1.0, 2.0]


def test_a_last_minibatch_that_is_not_full_is_never_applied() -> None:
    *_, full, last = after(ModelUpdate(1.0, minibatch=3), [np.array([1.0, 1.0])] * 7)[4:]
    assert full.slots == 6
    assert last.model.tobytes() == full.model.tobytes()
    assert last.gradient is not None


@given(totals=st.lists(vectors, min_size=1, max_size=9), eta=rates, b=st.integers(1, 3))
def test_decay_divides_the_rate_of_step_k_by_a_power_of_k(
    totals: list[Vector], eta: float, b: int
) -> None:
    """The paper's η_i is proportional to 1/√i; a step is one minibatch."""
    plain = after(ModelUpdate(eta, minibatch=b), totals)
    decayed = after(ModelUpdate(eta, minibatch=b, decay=0.5), totals)
    sums = np.array([np.sum(totals[k * b : (k + 1) * b], axis=0) for k in range(len(totals) // b)])
    theta, phi = START, START
    for k, g in enumerate(sums, start=1):
        theta, phi = theta - eta / b * g, phi - eta / math.sqrt(k) / b * g
    assert np.allclose(plain[-1].model, theta, rtol=1e-9, atol=1e-9)
    assert np.allclose(decayed[-1].model, phi, rtol=1e-9, atol=1e-9)


@given(totals=st.lists(vectors, min_size=1, max_size=5), diameter=st.floats(0.1, 1e4))
def test_the_model_is_projected_onto_the_ball_at_every_step(
    totals: list[Vector], diameter: float
) -> None:
    start = np.zeros(2)
    learners = after(ModelUpdate(1.0, diameter=diameter), totals, start=start)
    theta = start
    for total, learner in zip(totals, learners, strict=True):
        theta = theta - total
        norm = np.linalg.norm(theta)
        if norm > diameter / 2:
            theta = theta / norm * (diameter / 2)
        assert np.linalg.norm(learner.model) <= diameter / 2 * (1 + 1e-12)
        assert np.allclose(learner.model, theta, rtol=1e-9, atol=1e-9)


def test_a_model_inside_the_ball_is_left_alone_bit_for_bit() -> None:
    total = np.array([0.1, -0.3])
    inside = ModelUpdate(0.7, diameter=100.0)
    assert (
        after(inside, [total])[0].model.tobytes()
        == after(ModelUpdate(0.7), [total])[0].model.tobytes()
    )


@given(reports=st.lists(st.lists(vectors, max_size=4), min_size=1, max_size=6), eta=rates)
def test_averaged_updates_are_algorithm_2_bit_for_bit(
    reports: list[list[Vector]], eta: float
) -> None:
    update = ModelUpdate(eta)
    theta, learner = START, update.start(START)
    for here in reports:
        total = np.zeros(2)
        for report in here:
            total += report
        learner = update.apply(learner, total if here else None, len(here))
        if here:
            theta = theta - (eta / len(here)) * total
        assert learner.model.tobytes() == theta.tobytes()


def test_an_empty_slot_counts_as_a_step_and_moves_nothing() -> None:
    """η_i of Algorithm 2 goes by the slot i, whether anyone was there or not."""
    update = ModelUpdate(1.0, decay=1.0)
    learner = update.apply(update.start(START), None, 0)
    assert (learner.slots, learner.model.tobytes()) == (1, START.tobytes())
    moved = update.apply(learner, np.array([1.0, 1.0]), 1).model
    assert (START - moved).tolist() == [0.5, 0.5]


@given(rate=rates, unit=st.floats(1e-9, 1.0), units=st.integers(-(2**53), 2**53))
def test_a_unit_is_worth_what_the_grid_says(rate: float, unit: float, units: int) -> None:
    update = ModelUpdate(rate, unit=unit)
    (learner,) = after(update, [np.array([units])], start=np.zeros(1))
    assert learner.model[0] == -(rate * unit) * units


@given(units=st.lists(st.integers(-(2**60), 2**60), min_size=2, max_size=7))
def test_integer_totals_are_accumulated_without_losing_a_bit(units: list[int]) -> None:
    """Beyond 2^53 too, where floats begin to skip; the sum is rounded once, at the step."""
    totals = [np.array([unit, -unit], dtype=np.int64) for unit in units]
    update = ModelUpdate(1.0, minibatch=len(units))
    learners = after(update, totals, start=np.zeros(2))
    kept = learners[-2].gradient
    assert kept is not None
    assert kept.dtype == np.int64
    assert kept.tolist() == [sum(units[:-1]), -sum(units[:-1])]
    step = 1.0 / len(units)
    assert learners[-1].model.tolist() == [-(step * float(sum(units))), step * float(sum(units))]


def test_a_single_unit_survives_beside_huge_ones() -> None:
    totals = [np.array([units], dtype=np.int64) for units in (2**62, 1, -(2**62))]
    assert 2.0**62 + 1.0 - 2.0**62 == 0.0
    (*_, last) = after(ModelUpdate(3.0, minibatch=3), totals, start=np.zeros(1))
    assert last.model.tolist() == [-1.0]


def test_nobody_can_change_a_model_or_an_accumulator_afterwards() -> None:
    mine = START.copy()
    update = ModelUpdate(1.0, minibatch=2, diameter=1.0)
    learner = update.start(mine)
    mine[0] = 99.0
    assert learner.model.tolist() == START.tolist()
    learners = [learner]
    for _ in range(4):
        learners.append(update.apply(learners[-1], np.array([1.0, 1.0])))
    for learner in learners:
        for array in (learner.model, learner.gradient):
            if array is not None:
                with pytest.raises(ValueError, match="read-only"):
                    array[0] = 7.0


def by_optax(
    means: list[Vector], *, rate: float, momentum: float, nesterov: bool, decay: float
) -> list[Vector]:
    """The model after each step of optax.sgd in double precision."""
    optax, jax = pytest.importorskip("optax"), pytest.importorskip("jax")
    with jax.enable_x64(True):
        sgd = optax.sgd(
            lambda count: rate / (count + 1.0) ** decay, momentum=momentum, nesterov=nesterov
        )
        model = jax.numpy.asarray(START)
        state, models = sgd.init(model), []
        for mean in means:
            step, state = sgd.update(jax.numpy.asarray(mean), state)
            model = optax.apply_updates(model, step)
            models.append(np.asarray(model))
    return models


@pytest.mark.slow
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9, 0.999])
@pytest.mark.parametrize(("minibatch", "decay"), [(1, 0.0), (3, 0.5)])
def test_momentum_steps_as_optax_does(
    nesterov: bool, momentum: float, minibatch: int, decay: float
) -> None:
    dice = np.random.default_rng(7)
    totals = list(dice.normal(size=(12, 2)))
    update = ModelUpdate(
        0.3, unit=0.25, minibatch=minibatch, decay=decay, momentum=momentum, nesterov=nesterov
    )
    found = [learner.model for learner in after(update, totals)][minibatch - 1 :: minibatch]
    means = [
        0.25 / minibatch * np.sum(totals[at : at + minibatch], axis=0)
        for at in range(0, len(totals), minibatch)
    ]
    expected = by_optax(means, rate=0.3, momentum=momentum, nesterov=nesterov, decay=decay)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_velocity_is_what_momentum_remembers_by_hand() -> None:
    ones = np.array([1.0, 1.0])
    plain = after(ModelUpdate(1.0, momentum=0.5), [ones, ones, ones])
    assert [float(learner.velocity[0]) for learner in plain] == [1.0, 1.5, 1.75]
    assert [float(START[0] - learner.model[0]) for learner in plain] == [1.0, 2.5, 4.25]
    ahead = after(ModelUpdate(1.0, momentum=0.5, nesterov=True), [ones, ones, ones])
    assert [float(learner.velocity[0]) for learner in ahead] == [1.0, 1.5, 1.75]
    assert [float(START[0] - learner.model[0]) for learner in ahead] == [1.5, 3.25, 5.125]


def test_without_momentum_there_is_no_velocity() -> None:
    learners = after(ModelUpdate(1.0, minibatch=2), [np.ones(2)] * 4)
    assert all(learner.velocity is None for learner in learners)


@given(totals=st.lists(vectors, min_size=1, max_size=9), b=st.integers(1, 4))
def test_velocity_moves_at_multiples_of_the_minibatch_alone(totals: list[Vector], b: int) -> None:
    before = None
    for i, learner in enumerate(after(ModelUpdate(1.0, minibatch=b, momentum=0.9), totals), 1):
        if i % b:
            assert learner.velocity is before
        before = learner.velocity


def test_an_empty_slot_of_averaged_updates_moves_neither_model_nor_velocity() -> None:
    update = ModelUpdate(1.0, momentum=0.5)
    first = update.apply(update.start(START), np.array([2.0, 4.0]), 2)
    for total in (None, np.zeros(2)):
        empty = update.apply(first, total, 0)
        assert (empty.model is first.model, empty.velocity is first.velocity) == (True, True)
        assert empty.slots == 2
        after_it = update.apply(empty, np.array([2.0, 4.0]), 2)
        assert after_it.velocity.tolist() == [1.5, 3.0]
    assert first.velocity.tolist() == [1.0, 2.0]


@given(totals=st.lists(vectors, min_size=2, max_size=8), nesterov=st.booleans())
def test_a_run_that_goes_on_with_model_and_velocity_is_one_long_run(
    totals: list[Vector], nesterov: bool
) -> None:
    """Without decay: the steps of the next run are counted anew."""
    update = ModelUpdate(0.1, momentum=0.9, nesterov=nesterov)
    whole, cut = after(update, totals)[-1], len(totals) // 2
    first = after(update, totals[:cut])[-1]
    learner = update.start(first.model, first.velocity)
    assert learner.slots == 0
    for total in totals[cut:]:
        learner = update.apply(learner, total)
    assert learner.model.tobytes() == whole.model.tobytes()
    assert learner.velocity.tobytes() == whole.velocity.tobytes()


def test_the_model_is_projected_and_the_velocity_is_not() -> None:
    total = np.array([30.0, 40.0])
    (learner,) = after(ModelUpdate(1.0, momentum=0.5, diameter=2.0), [total], start=np.zeros(2))
    assert np.allclose(learner.model, [-0.6, -0.8])
    assert learner.velocity.tolist() == [30.0, 40.0]


def test_integer_totals_become_a_velocity_in_the_model_s_units() -> None:
    update = ModelUpdate(1.0, unit=0.5, minibatch=2, momentum=0.5)
    *_, learner = after(update, [np.array([3, -1]), np.array([1, 1])])
    assert learner.velocity.dtype == np.float64
    assert learner.velocity.tolist() == [1.0, 0.0]


def test_nobody_can_change_a_velocity_afterwards() -> None:
    mine = np.array([1.0, 1.0])
    update = ModelUpdate(1.0, momentum=0.5)
    learner = update.start(START, mine)
    mine[0] = 99.0
    assert learner.velocity.tolist() == [1.0, 1.0]
    for found in (learner, update.apply(learner, np.ones(2))):
        with pytest.raises(ValueError, match="read-only"):
            found.velocity[0] = 7.0


def test_a_velocity_fits_its_model_and_its_momentum() -> None:
    with pytest.raises(InvalidValue, match=r"velocity .* requires momentum"):
        ModelUpdate(1.0).start(START, np.zeros(2))
    with pytest.raises(InvalidValue, match=r"velocity = \(3,\): must be of the shape \(2,\)"):
        ModelUpdate(1.0, momentum=0.5).start(START, np.zeros(3))


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate": 0.0},
        {"rate": math.nan},
        {"rate": 1.0, "unit": -1.0},
        {"rate": 1.0, "minibatch": 0},
        {"rate": 1.0, "minibatch": 1.5},
        {"rate": 1.0, "decay": 1.5},
        {"rate": 1.0, "decay": math.nan},
        {"rate": 1.0, "diameter": 0.0},
        {"rate": 1.0, "diameter": math.nan},
        {"rate": 1.0, "momentum": 1.0},
        {"rate": 1.0, "momentum": -0.1},
        {"rate": 1.0, "momentum": math.nan},
        {"rate": 1.0, "nesterov": True},
        {"rate": 1.0, "momentum": 0.5, "nesterov": 1},
    ],
    ids=str,
)
def test_what_cannot_be_a_step_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        ModelUpdate(**wrong)
