"""The noise that is found keeps its target, and wastes little of it."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkins.accounting import (
    Adjacency,
    NoiseAt,
    Population,
    Protocol,
    certify,
    precision,
)
from checkins.accounting.precision import Precision, Target, delta_at
from checkins.campaign import RandomizerKind
from checkins.planning.candidate import DesignCandidate
from checkins.planning.search import round_level
from tests.soak import examples, only_in_soak

FINE, QUICK = Precision.FINE, Precision.DRAFT
ADD_REMOVE, REPLACE_ONE = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE


def candidate(slots: int = 100, **more: object) -> DesignCandidate:
    given = {
        "protocol": Protocol.FIXED,
        "slots": slots,
        "participation": 1.0,
        "capacity": None,
        "window": None,
        "minibatch": 1,
        "repeats": 1,
        "randomizer": RandomizerKind.GAUSSIAN,
        "noise_at": NoiseAt.SERVER,
        **more,
    }
    return DesignCandidate(**given)  # type: ignore[arg-type]


def spent(target: Target, candidate: DesignCandidate, level: float, precision: Precision) -> float:
    return delta_at(
        candidate.design(level),
        epsilon=target.epsilon,
        delta=target.delta,
        adjacency=target.adjacency,
        precision=precision,
        campaigns=candidate.repeats,
    )


CLIENT = {"noise_at": NoiseAt.CLIENT}
SHAPES = {
    "one slot": candidate(1),
    "some slots": candidate(),
    "many slots": candidate(20_000),
    "few take part": candidate(participation=0.01),
    "repeated": candidate(10, repeats=30),
    "sliding": candidate(200, protocol=Protocol.SLIDING, window=40),
    "capped": candidate(capacity=50),
    "correlated": candidate(200, bands=16),
    "room": candidate(capacity=200, population=Population(9_000, 10_000), **CLIENT),
    "no room": candidate(capacity=100, population=Population(9_000, 10_000), **CLIENT),
    "laplace": candidate(capacity=100, randomizer=RandomizerKind.LAPLACE, **CLIENT),
    "privunit": candidate(
        5_000, capacity=3, randomizer=RandomizerKind.PRIVUNIT, dimension=14, **CLIENT
    ),
}
AVERAGED = {
    "averaged": candidate(
        protocol=Protocol.AVERAGED,
        randomizer=RandomizerKind.PRIVUNIT,
        population=Population(10_000, 10_000),
        **CLIENT,
    ),
    "averaged normals": candidate(
        protocol=Protocol.AVERAGED, population=Population(10_000, 10_000), **CLIENT
    ),
}


BETWEEN = ("many slots", "few take part", "sliding", "no room")
"""Designs that take long for replace-one. They are certified by the same code as the others."""


@cache
def proven(name: str, adjacency: Adjacency) -> float | None:
    return SHAPES[name].proven_level(Target(0.7, 1e-6, adjacency), FINE)


@pytest.mark.parametrize("name", SHAPES)
def test_a_level_meets_its_target_and_uses_most_of_it(name: str) -> None:
    target = Target(0.7, 1e-6, ADD_REMOVE)
    level = proven(name, ADD_REMOVE)
    assert level is not None
    certificate = certify(
        SHAPES[name].design(level),
        delta=target.delta,
        adjacency=target.adjacency,
        campaigns=SHAPES[name].repeats,
        compare=False,
    )
    assert certificate.epsilon <= target.epsilon
    assert certificate.epsilon >= 0.95 * target.epsilon
    assert certificate.method == SHAPES[name].method(target)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=only_in_soak) if name in BETWEEN else name
        for name in (*SHAPES, *AVERAGED)
    ],
)
def test_a_level_meets_its_target_where_one_is_replaced(name: str) -> None:
    found = {**SHAPES, **AVERAGED}[name]
    target = Target(1.5, 1e-6, REPLACE_ONE)
    level = found.proven_level(target, FINE)
    assert level is not None
    certificate = certify(
        found.design(level),
        delta=target.delta,
        adjacency=target.adjacency,
        campaigns=found.repeats,
        compare=False,
    )
    assert certificate.epsilon <= target.epsilon
    assert certificate.epsilon >= 0.85 * target.epsilon


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("adjacency", Adjacency)
def test_an_estimate_is_close(name: str, adjacency: Adjacency) -> None:
    target = Target(0.7, 1e-6, adjacency)
    level = proven(name, adjacency)
    assert level is not None
    assert 0.7 <= SHAPES[name].estimated_level(target) / level <= 1.4


@examples(10, soak=250)
@given(
    slots=st.integers(1, 500),
    participation=st.floats(0.05, 1.0),
    epsilon=st.floats(0.1, 4.0),
    times=st.floats(1.2, 4.0),
)
def test_a_bigger_budget_needs_less_noise(
    slots: int, participation: float, epsilon: float, times: float
) -> None:
    found = candidate(slots, participation=participation)
    small, large = (
        found.proven_level(Target(part, 1e-6, ADD_REMOVE), QUICK)
        for part in (epsilon, times * epsilon)
    )
    assert small is not None
    assert large is not None
    assert large <= small


@pytest.mark.parametrize("name", [*SHAPES, *AVERAGED])
@pytest.mark.parametrize("adjacency", Adjacency)
def test_a_candidate_has_the_epsilon_of_its_equivalent(name: str, adjacency: Adjacency) -> None:
    found = {**SHAPES, **AVERAGED}[name]
    if found.protocol is Protocol.AVERAGED and adjacency is ADD_REMOVE:
        return
    target, level = Target(0.7, 1e-6, adjacency), 1.0 if found.capacity is None else 2.0
    assert spent(target, found.simplest_equivalent, level, QUICK) == spent(
        target, found, level, QUICK
    )
    assert found.simplest_equivalent.simplest_equivalent == found.simplest_equivalent


@pytest.mark.parametrize("name", ["one slot", "some slots", "repeated", "laplace", "capped"])
@pytest.mark.parametrize("epsilon", [1e-5, 0.7, 30.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-3, 0.5, 0.999])
def test_a_level_is_found_after_a_few_evaluations(
    name: str, epsilon: float, delta: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    def watched(*args: object, **more: object) -> float:
        looks.append(delta_at(*args, **more))  # type: ignore[arg-type]
        return looks[-1]

    monkeypatch.setattr(precision, "delta_at", watched)
    level = SHAPES[name].proven_level(Target(epsilon, delta, ADD_REMOVE), QUICK)
    assert level is not None
    assert len(looks) <= 12
    assert any(spent <= delta for spent in looks)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["some slots", "repeated", "few take part", "laplace"])
@pytest.mark.parametrize("adjacency", Adjacency)
def test_no_level_meets_an_epsilon_that_is_disproven(name: str, adjacency: Adjacency) -> None:
    found, level = SHAPES[name], 4.0 if name == "repeated" else 1.0
    certificate = certify(
        found.design(level), delta=1e-6, adjacency=adjacency, campaigns=found.repeats, compare=False
    )
    too_small = Target(0.999 * certificate.epsilon_lower, 1e-6, adjacency)
    assert spent(too_small, found, level, FINE) > 1e-6


def test_no_level_is_found_if_no_noise_is_enough() -> None:
    tiny = Target(1e-9, 1e-15, ADD_REMOVE)
    assert candidate(1).proven_level(tiny, QUICK) is None


def test_little_noise_is_enough_for_a_large_budget() -> None:
    level = candidate(1_000).proven_level(Target(50.0, 1e-3, ADD_REMOVE), QUICK)
    assert level is not None
    assert level == pytest.approx(0.2, rel=1e-3)


@given(st.floats(1e-6, 1e6))
def test_a_level_is_rounded_to_the_side_that_spends_less(level: float) -> None:
    up = round_level(SHAPES["some slots"], level)
    down = round_level(SHAPES["laplace"], level)
    assert down <= level <= up
    assert up <= level * 1.002
    assert down >= level / 1.002
