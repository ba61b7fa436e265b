"""Clients that disclose what they see: charged to delta, and compared with enumeration."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkins.accounting import (
    Adjacency,
    Design,
    GaussianNoise,
    LocalRandomizer,
    NoiseAt,
    Parameter,
    Population,
    Protocol,
    calibrate,
    certify,
)
from checkins.accounting.adversaries import against_curious
from checkins.accounting.exact import campaign_divergence
from checkins.errors import InvalidValue, NotCovered
from tests.accounting import protocols

ADD_REMOVE, REPLACE_ONE = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE


def pure(epsilon: float, **given_: Any) -> Design:
    base = {"slots": 1000, "participation": 1.0, "randomizer": LocalRandomizer(epsilon)}
    return Design(Protocol.FIXED, **{**base, **given_})


def noisy(noise: float, at: NoiseAt = NoiseAt.CLIENT, **given_: Any) -> Design:
    return pure(1.0, randomizer=GaussianNoise(noise, at), **given_)


def certified(design: Design, adjacency: Adjacency = ADD_REMOVE, **given_: Any) -> float:
    return certify(design, adjacency=adjacency, compare=False, **{"delta": 1e-3, **given_}).epsilon


@pytest.mark.slow
@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    slots=st.integers(1, 2),
    capacity=st.integers(1, 2),
    others=st.integers(1, 3),
    curious=st.integers(1, 2),
    participation=st.sampled_from([0.3, 1.0]),
    local_epsilon=st.floats(0.3, 2.5),
)
def test_no_small_protocol_exceeds_its_epsilon_with_curious_clients(
    seed: int,
    slots: int,
    capacity: int,
    others: int,
    curious: int,
    participation: float,
    local_epsilon: float,
) -> None:
    """Adaptive randomizers, every outcome enumerated; curious clients tell their reports too."""
    rng = np.random.default_rng(seed)
    window = tuple(range(slots))
    curious = min(curious, others)
    run = protocols.Protocol(
        slots,
        capacity,
        protocols.adaptive(seed, local_epsilon, rows=5),
        protocols.Client(protocols.DATUM, participation, window),
        tuple(
            protocols.Client(int(rng.integers(1, 5)), float(rng.choice([0.5, 1.0])), window)
            for _ in range(others)
        ),
        curious=curious,
    )
    design = pure(local_epsilon, slots=slots, participation=participation, capacity=capacity)
    found = run.releases()
    _, exposure = against_curious((design,), curious, delta=1e-3, campaigns=1)
    assert exposure == pytest.approx(curious * participation / (slots * (capacity + 1)))
    for epsilon in (0.0, 0.2, 0.5, 1.0, 2.0):
        charge = math.exp(epsilon) * exposure
        for adjacency, true in (
            (ADD_REMOVE, found.add_remove(epsilon)),
            (REPLACE_ONE, found.replace(epsilon)),
        ):
            silent = campaign_divergence.divergence(design, adjacency, delta=1e-3).upper(epsilon)
            assert true <= silent + charge + 1e-12


def test_a_client_that_displaces_a_curious_one_shows() -> None:
    """The charge is attained: one slot, one place, one curious client that is always there."""
    window = (0,)
    response = protocols.subset_response(1.0, 2, (frozenset({0}), frozenset({1})))
    matrix = np.array([response[0], response[0], response[1], response[0]])
    run = protocols.Protocol(
        1,
        1,
        protocols.always(matrix),
        protocols.Client(1, 1.0, window),
        (protocols.Client(3, 1.0, window),),
        curious=1,
    )
    _, exposure = against_curious((pure(1.0, slots=1, capacity=1),), 1, delta=0.1, campaigns=1)
    assert exposure == pytest.approx(0.5)
    assert run.releases().remove(5.0) == pytest.approx(0.5)


@pytest.mark.slow
def test_more_curious_clients_never_lower_epsilon() -> None:
    for design in (pure(1.0, capacity=100), noisy(0.1, capacity=1000, slots=100)):
        found = [certified(design, curious=curious) for curious in (0, 1, 10)]
        assert found == sorted(found)
        assert found[0] < found[-1]


def test_what_is_charged_is_what_the_theorem_says() -> None:
    design, delta = pure(1.0, capacity=100), 1e-3
    found = certify(design, delta=delta, adjacency=ADD_REMOVE, curious=10)
    [without], exposure = against_curious((design,), 10, delta=delta, campaigns=1)
    assert 10 / (1000 * 101) <= exposure <= 10 / (1000 * 101) + 0.01 * delta
    assert without.capacity is not None
    assert 90 <= without.capacity < 100  # few of the ten meet in one slot
    left = delta - math.exp(found.epsilon) * exposure
    assert found.epsilon == pytest.approx(certified(without, delta=left), rel=1e-2)
    assert found.epsilon >= certified(without, delta=left)
    assert found.curious == 10
    assert found.as_dict()["curious"] == 10
    assert any("curious clients: at most 10" in line for line in found.assumptions)
    assert any("displaces a curious client" in line for line in found.assumptions)


def test_only_the_exact_accountant_covers_them() -> None:
    found = certify(pure(1.0, capacity=1), delta=1e-2, adjacency=ADD_REMOVE, curious=3)
    assert {one.method for one in found.alternatives if one.proves} == {"exact"}


def test_at_a_small_delta_silence_stays_an_assumption() -> None:
    with pytest.raises(InvalidValue, match="uses up all of delta"):
        certified(pure(1.0, capacity=100), delta=1e-6, curious=10)


def test_uncapped_noise_at_the_server_is_immune() -> None:
    design = noisy(2.0, NoiseAt.SERVER)
    assert certified(design, curious=10**6) == certified(design)


def test_noise_that_curious_clients_tell_hides_nothing() -> None:
    """Two of a million slots rarely meet, so one is allowed for: 99 of 100 keep their noise."""
    design = noisy(0.3, capacity=100, slots=10**6)
    [left], exposure = against_curious((design,), 2, delta=1e-3, campaigns=1)
    assert isinstance(left.randomizer, GaussianNoise)
    assert left.randomizer.noise_multiplier == pytest.approx(0.3 * math.sqrt(0.99))
    assert exposure == pytest.approx(2 / (10**6 * 101) + 1e-6, rel=1e-3)


def test_curious_clients_that_could_fill_a_slot_are_refused() -> None:
    with pytest.raises(NotCovered, match="every place of a slot"):
        certified(noisy(2.0, capacity=1), curious=1)


def test_averaged_updates_count_only_the_silent() -> None:
    def averaged(clients: int) -> Design:
        return Design(
            Protocol.AVERAGED,
            slots=10,
            participation=1.0,
            randomizer=LocalRandomizer(1.0),
            population=Population(clients, 1000),
        )

    assert certified(averaged(500), REPLACE_ONE, curious=100) == certified(
        averaged(400), REPLACE_ONE
    )
    with pytest.raises(InvalidValue, match="fewer than the 500"):
        certified(averaged(500), REPLACE_ONE, curious=500)


def test_a_local_delta_is_refused() -> None:
    with pytest.raises(NotCovered, match="local delta"):
        certified(pure(1.0, randomizer=LocalRandomizer(1.0, 1e-12)), curious=1)


@pytest.mark.parametrize("value", [-1, 1.5, math.nan, True, "2"])
def test_curious_clients_are_counted(value: object) -> None:
    with pytest.raises(InvalidValue, match="curious"):
        certified(pure(1.0), curious=value)


def test_each_campaign_is_charged() -> None:
    """Replace-one, several campaigns leave h times the delta of the others: 2 delta covers it."""
    design = pure(1.0, capacity=1)
    _, once = against_curious((design,), 3, delta=1e-3, campaigns=1)
    _, often = against_curious((design, design), 3, delta=1e-3, campaigns=5)
    assert often == pytest.approx(10 * once * (1 + 2e-3), rel=1e-9)


@pytest.mark.parametrize(
    ("design", "parameter"),
    [
        (pure(1.0, capacity=100), Parameter.LOCAL_EPSILON),
        (noisy(1.0, capacity=2000, slots=20), Parameter.NOISE_MULTIPLIER),
    ],
)
def test_a_calibrated_value_meets_its_target_with_curious_clients(
    design: Design, parameter: Parameter
) -> None:
    terms: dict[str, Any] = {"delta": 1e-3, "adjacency": ADD_REMOVE}
    found = calibrate(design, parameter=parameter, epsilon=0.1, curious=5, **terms)
    assert 0.098 < found.certificate.epsilon <= 0.1
    assert found.certificate.curious == 5
    assert certified(found.design, curious=5) == found.certificate.epsilon > certified(found.design)
