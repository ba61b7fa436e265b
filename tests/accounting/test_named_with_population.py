"""Named randomizers with a declared number of clients: few slots are full, and dummies hide.

Small protocols are enumerated.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkins.accounting import (
    Adjacency,
    Design,
    LaplaceReports,
    LocalRandomizer,
    Parameter,
    Population,
    PrivUnitReports,
    Protocol,
    RandomizedResponseReports,
    calibrate,
    certify,
)
from checkins.accounting.exact import campaign_divergence
from checkins.accounting.exact.campaign_divergence import WithFailureProbability
from checkins.accounting.exact.named import NamedCampaign
from tests.accounting.enumeration import law_of_releases

ADD_REMOVE, REPLACE_ONE = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE
RESPONSE = RandomizedResponseReports(4.0)


def named(randomizer: LocalRandomizer = RESPONSE, **given_: Any) -> Design:
    base: dict[str, Any] = {"slots": 1000, "participation": 1.0, "capacity": 20}
    return Design(Protocol.FIXED, randomizer=randomizer, **{**base, **given_})


def certified(design: Design, adjacency: Adjacency = ADD_REMOVE, **given_: Any) -> Any:
    return certify(design, adjacency=adjacency, compare=False, **{"delta": 1e-6, **given_})


def releases(
    values: list[int], *, epsilon: float, slots: int, capacity: int, categories: int
) -> np.ndarray:
    """The distribution of all sums, if these values are reported by randomized response."""
    b = math.exp(epsilon)
    laws = (np.eye(3)[:categories] * (b - 1) + 1) / (b + categories - 1)
    if categories < 3:
        laws[:, categories:] = 0.0
    dummy = np.where(np.arange(3) < categories, 1.0 / categories, 0.0)
    windows = [range(slots)] * len(values)
    return law_of_releases(windows, laws[values], dummy, slots=slots, capacity=capacity)


@settings(max_examples=12)
@given(
    others=st.lists(st.integers(0, 1), min_size=0, max_size=3),
    extra=st.integers(0, 1),
    slots=st.integers(1, 2),
    capacity=st.integers(1, 2),
    categories=st.integers(2, 3),
    local_epsilon=st.sampled_from([0.5, 1.5, 3.0]),
)
def test_no_small_protocol_exceeds_its_delta(
    others: list[int],
    extra: int,
    slots: int,
    capacity: int,
    categories: int,
    local_epsilon: float,
) -> None:
    """Nor, if all others fit beside the client in one slot, the delta of slots with room."""
    design = named(
        RandomizedResponseReports(local_epsilon, 0.0, categories),
        slots=slots,
        capacity=capacity,
        population=Population(1, len(others) + 1 + extra),
    )
    campaign = campaign_divergence.campaign_of(design)
    assert isinstance(campaign, NamedCampaign)
    shape = {
        "epsilon": local_epsilon,
        "slots": slots,
        "capacity": capacity,
        "categories": categories,
    }
    one, two = (releases([value, *others], **shape) for value in (0, categories - 1))
    missing = releases(others, **shape)
    for adjacency in Adjacency:
        room = replace(campaign, slots_have_room=True).divergence(adjacency, delta=1e-2, cells=160)
        overflow = campaign_divergence._overflow_bound(design)
        assert overflow is not None
        bound = WithFailureProbability(room, overflow)
        second = missing if adjacency is ADD_REMOVE else two
        for epsilon in (0.0, 0.2, 0.7):
            growth = math.exp(epsilon)
            delta = max(
                np.maximum(one - growth * second, 0.0).sum(),
                np.maximum(second - growth * one, 0.0).sum(),
            )
            most = room if len(others) < capacity else bound
            assert delta <= most.upper(epsilon) + 1e-9


@pytest.mark.parametrize(
    "randomizer", [RESPONSE, LaplaceReports(4.0), PrivUnitReports(4.0, 0.0, 1000)]
)
def test_a_declared_population_lowers_epsilon_and_is_named(randomizer: LocalRandomizer) -> None:
    anyone, few = (
        certified(named(randomizer)),
        certified(named(randomizer, population=Population(1, 2000))),
    )
    assert few.epsilon < 0.98 * anyone.epsilon
    assert few.epsilon_lower <= few.epsilon
    assert few.method == "exact-population"
    assert any("at most 2,000 clients exist" in line for line in few.assumptions)
    assert not any("clients exist" in line for line in anyone.assumptions)


def test_the_probability_of_a_full_slot_is_charged_to_delta() -> None:
    """With so many clients that it is a large share of delta."""
    design = named(capacity=13, population=Population(1, 2000))
    overflow = campaign_divergence._overflow_bound(design)
    found = campaign_divergence.with_population(design, ADD_REMOVE, delta=3e-4)
    assert isinstance(found, WithFailureProbability)
    assert overflow is not None
    assert 1e-4 < found.probability == overflow < 3e-4
    room = found.divergence
    for epsilon in (0.05, 0.1):
        assert found.upper(epsilon) == room.upper(epsilon) + overflow
    epsilon = found.upper_epsilon(3e-4)
    assert epsilon > room.upper_epsilon(3e-4)
    assert found.upper(epsilon) <= 3e-4 * (1 + 1e-9)
    assert found.epsilon(3e-4).upper == epsilon
    assert campaign_divergence.with_population(design, ADD_REMOVE, delta=1e-5) is None


def test_replace_one_uses_it_too() -> None:
    anyone, few = (
        certified(named(population=clients), REPLACE_ONE).epsilon
        for clients in (None, Population(1, 2000))
    )
    assert few < 0.8 * anyone


def test_many_clients_or_many_campaigns_leave_the_bound_for_anyone() -> None:
    anyone = certified(named()).epsilon
    assert certified(named(population=Population(1, 30_000))).epsilon == anyone
    twice = certified(named(population=Population(1, 2000)), campaigns=2)
    assert twice.epsilon == certified(named(), campaigns=2).epsilon
    assert twice.method == "exact"


def test_a_larger_population_never_costs_less() -> None:
    epsilons = [
        certified(named(capacity=3, slots=100, population=Population(1, most)), delta=1e-3).epsilon
        for most in (2, 3, 4, 6, 9, 100)
    ]
    assert epsilons == sorted(epsilons)


@pytest.mark.slow
def test_calibration_uses_the_population() -> None:
    levels = [
        calibrate(
            named(population=clients),
            parameter=Parameter.LOCAL_EPSILON,
            epsilon=0.1,
            delta=1e-6,
            adjacency=ADD_REMOVE,
        )
        for clients in (None, Population(1, 2000))
    ]
    assert levels[0].value < levels[1].value
    assert all(level.certificate.epsilon <= 0.1 for level in levels)
