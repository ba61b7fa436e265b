"""Slots that sum several pure reports: seen values, plain sums, and what the bounds must obey."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from checkins.accounting import Adjacency, Design, LocalRandomizer, Protocol, certify
from checkins.accounting.exact.grid_distribution import Rounding, Side, discretise_up
from checkins.accounting.exact.pure import PureAddRemove, PureCampaign, PureReplaceOne
from checkins.accounting.exact.pure_capacity import (
    PureCapacityCampaign,
    SharedSlotRatio,
    SharedSlotReplaceOneRatio,
)
from checkins.errors import DeltaExhausted

pytestmark = pytest.mark.slow

ADD_REMOVE, REPLACE_ONE = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE
local_epsilons = st.floats(0.05, 6.0)
capacities = st.integers(1, 12)


# Values that were computed elsewhere, at delta 1e-6

SEEN = {
    (1.0, 100, 10): (0.1266, 0.1344, 0.1589, 0.1837),
    (1.0, 1000, 100): (0.01014, 0.01095, 0.01251, 0.01318),
    (2.0, 1000, 10): (0.08702, 0.1366, 0.1671, 0.2209),
    (2.0, 1000, 100): (0.02466, 0.03239, 0.03476, 0.03922),
    (4.0, 1000, 100): (0.08471, 0.3092, 0.4054, 0.5187),
}
"""By local epsilon, slots and capacity: add/remove lower of a client alone and among others, and
upper; replace-one upper."""


@pytest.mark.parametrize("case", SEEN)
def test_the_seen_values_are_reproduced(case: tuple[float, int, int]) -> None:
    local_epsilon, slots, capacity = case
    alone, among_others, upper, replaced = SEEN[case]
    design = Design(
        Protocol.FIXED,
        slots=slots,
        participation=1.0,
        randomizer=LocalRandomizer(local_epsilon),
        capacity=capacity,
    )
    found = certify(design, delta=1e-6, adjacency=ADD_REMOVE, compare=False)
    assert among_others * (1 - 1e-3) <= found.epsilon_lower <= among_others * (1 + 5e-4)
    assert upper * (1 - 1e-3) <= found.epsilon <= upper * 1.005
    campaign = PureCapacityCampaign(local_epsilon, slots, 1.0, capacity)
    dummies = campaign.among_dummies.divergence(ADD_REMOVE, delta=1e-6, cells=None)
    assert dummies.epsilon(1e-6).lower == pytest.approx(alone, rel=1e-3)
    bound = campaign.divergence(REPLACE_ONE, delta=1e-6, cells=800)
    assert bound.upper(replaced * 1.005) <= 1e-6 < bound.upper(replaced * (1 - 1e-3))


# The ratio against plain sums over (A, B)


def atoms(local_epsilon: float, capacity: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(A, B) with Pr[A, B], by multiplying out."""
    b = math.exp(local_epsilon)
    r = 1.0 / (1.0 + b)
    pairs = [
        (a, c) for a, c in itertools.product(range(capacity + 1), repeat=2) if a + c <= capacity
    ]
    masses = [
        math.comb(capacity, a)
        * math.comb(capacity - a, c)
        * r ** (a + c)
        * (1.0 - 2.0 * r) ** (capacity - a - c)
        for a, c in pairs
    ]
    a, c = np.array(pairs, dtype=float).T
    return a, c, np.array(masses)


@given(local_epsilon=local_epsilons, capacity=capacities, share=st.floats(-1.0, 1.0))
def test_the_stop_loss_transform_is_the_sum_over_all_counts(
    local_epsilon: float, capacity: int, share: float
) -> None:
    b = math.exp(local_epsilon)
    a, c, masses = atoms(local_epsilon, capacity)
    ratio, t = SharedSlotRatio(local_epsilon, capacity), math.exp(share * local_epsilon)
    call = float(masses @ np.maximum(b * a + c - t * (a + b * c), 0.0)) / capacity
    put = float(masses @ np.maximum(t * (a + b * c) - b * a - c, 0.0)) / capacity
    at = np.array([t])
    assert call * (1 - 1e-9) - 1e-14 <= ratio.call(at)[0] <= call + 2e-3 * min(t, 1.0)
    assert put * (1 - 1e-9) - 1e-14 <= ratio.put(at)[0] <= put + 2e-3 * t


@given(
    local_epsilon=local_epsilons,
    capacity=capacities,
    loss=st.floats(0.0, 1.0),
    share=st.floats(-1.0, 1.0),
)
def test_the_replacement_transform_is_the_sum_over_all_counts(
    local_epsilon: float, capacity: int, loss: float, share: float
) -> None:
    b, e = math.exp(local_epsilon), math.exp(loss * local_epsilon)
    a, c, masses = atoms(local_epsilon, capacity)
    gain = a * (b - e) + c * (1.0 - b * e)
    t = share * (b - e if share > 0.0 else b * e - 1.0)
    scale = a + b * c if t >= 0.0 else b * a + c
    call = float(masses @ np.maximum(gain - t * scale, 0.0)) / capacity
    put = call + t - (1.0 - e)
    ratio = SharedSlotReplaceOneRatio(
        SharedSlotRatio(local_epsilon, capacity), loss * local_epsilon
    )
    slack = 2e-3 * b * e
    assert call * (1 - 1e-9) - 1e-13 * b <= ratio.call(np.array([t]))[0] <= call + slack
    assert put - 1e-12 * b * e <= ratio.put(np.array([t]))[0] <= put + slack


@given(local_epsilon=local_epsilons, capacity=st.integers(1, 10**6))
def test_a_call_falls_convexly_and_a_put_is_its_mirror_image(
    local_epsilon: float, capacity: int
) -> None:
    ratio = SharedSlotRatio(local_epsilon, capacity)
    t = np.linspace(math.exp(-local_epsilon), math.exp(local_epsilon), 501)
    calls, puts = ratio.call(t), ratio.put(t)
    assert (np.diff(calls) <= 1e-15).all()
    assert (np.diff(calls, 2) >= -1e-12 * math.exp(local_epsilon)).all()
    np.testing.assert_allclose(puts - calls, t - 1.0, atol=1e-9 * t.max())
    np.testing.assert_allclose(puts, t * ratio.call(1.0 / t), rtol=1e-9, atol=1e-15)


# What the divergence must obey


@settings(max_examples=10)
@given(local_epsilon=local_epsilons, slots=st.integers(1, 200), participation=st.floats(0.05, 1.0))
def test_capacity_one_is_the_closed_form(
    local_epsilon: float, slots: int, participation: float
) -> None:
    one = PureCapacityCampaign(local_epsilon, slots, participation, 1)
    closed = PureCampaign(local_epsilon, slots, participation)
    for adjacency, make in ((ADD_REMOVE, PureAddRemove), (REPLACE_ONE, PureReplaceOne)):
        bound = one.divergence(adjacency, delta=1e-6, cells=512)
        exact = make(closed, delta=1e-6)
        epsilon = 0.5 * exact.upper_epsilon(1e-6)
        assert exact.upper(epsilon) * (1 - 1e-6) <= bound.upper(epsilon)
        assert bound.upper(epsilon) <= exact.upper(epsilon) * 1.3 + 1e-9


@settings(max_examples=10)
@given(local_epsilon=local_epsilons, reports=st.integers(2, 300), share=st.floats(0.1, 0.9))
def test_one_slot_is_a_shuffle_of_its_reports(
    local_epsilon: float, reports: int, share: float
) -> None:
    exact = PureReplaceOne(PureCampaign(local_epsilon, reports, 1.0), delta=1e-6)
    epsilon = share * exact.upper_epsilon(1e-6)
    one = PureCapacityCampaign(local_epsilon, 1, 1.0, reports)
    bound = one.divergence(REPLACE_ONE, delta=1e-6, cells=512)
    assert exact.upper(epsilon) * (1 - 1e-3) <= bound.upper(epsilon)
    assert bound.upper(epsilon) <= exact.upper(epsilon) * 1.3 + 1e-9


@settings(max_examples=10)
@given(
    local_epsilon=local_epsilons,
    slots=st.integers(1, 50),
    capacity=st.integers(2, 60),
    adjacency=st.sampled_from(Adjacency),
)
def test_more_reports_in_a_slot_never_increase_epsilon(
    local_epsilon: float, slots: int, capacity: int, adjacency: Adjacency
) -> None:
    few = PureCapacityCampaign(local_epsilon, slots, 1.0, capacity)
    many = PureCapacityCampaign(local_epsilon, slots, 1.0, 4 * capacity)
    bounds = [one.divergence(adjacency, delta=1e-6, cells=256) for one in (few, many)]
    epsilon = bounds[0].upper_epsilon(1e-6)
    assert bounds[1].upper(epsilon) <= bounds[0].upper(epsilon) * (1 + 1e-3) + 1e-12
    assert all(one.lower(epsilon) <= one.upper(epsilon) + 1e-12 for one in bounds)


@pytest.mark.parametrize(
    ("local_epsilon", "slots", "capacity"),
    [(1e-6, 10, 5), (100.0, 1, 2), (30.0, 10**12, 10**12), (40.0, 3, 7), (5.0, 1, 10**6)],
)
@pytest.mark.parametrize("adjacency", Adjacency)
def test_bounds_of_extreme_designs_do_not_cross(
    local_epsilon: float, slots: int, capacity: int, adjacency: Adjacency
) -> None:
    campaign = PureCapacityCampaign(local_epsilon, slots, 1.0, capacity)
    bound = campaign.divergence(adjacency, delta=1e-6, cells=128)
    assert 0.0 <= bound.upper_epsilon(1e-6) <= local_epsilon * (1 + 1e-12)
    for share in (0.0, 0.1, 0.5, 0.9, 0.999):
        epsilon = share * local_epsilon
        assert bound.lower(epsilon) <= bound.upper(epsilon) * (1 + 1e-6) + 1e-14


@pytest.mark.parametrize(
    ("local_epsilon", "capacity", "slots", "participation", "delta"),
    [
        (1e-6, 10**7, 100, 1e-3, 1e-15),
        (1e-5, 10**4, 1000, 1e-4, 1e-15),
        (1e-4, 10**7, 1000, 1e-3, 1e-15),
        (1e-3, 10**7, 10**9, 1e-3, 1e-15),
        (2.3e-7, 72586, 194, 0.0686, 2.5e-14),
        (1e-11, 2, 1, 1.0, 1e-15),
        (1e-13, 100, 1, 1.0, 1e-17),
        (1e-9, 2, 2, 1.0, 0.5),
        (1e-7, 10**7, 2, 1.0, 1e-6),
        (1e-15, 10**12, 1, 1.0, 1e-6),
        (1e-12, 10**12, 1000, 1.0, 1e-6),
        (38.0, 2, 1, 1.0, 0.5),
        (100.0, 2, 1000, 1.0, 0.5),
    ],
)
@pytest.mark.parametrize("adjacency", Adjacency)
def test_no_bound_is_below_what_a_client_alone_attains(
    local_epsilon: float,
    capacity: int,
    slots: int,
    participation: float,
    delta: float,
    adjacency: Adjacency,
) -> None:
    """Narrow ratios: values so close to 1, and so close to each other, that doubles round them."""
    campaign = PureCapacityCampaign(local_epsilon, slots, participation, capacity)
    bound = campaign.divergence(adjacency, delta=delta, cells=None)
    upper = bound.upper_epsilon(delta)
    if campaign.places <= 10**9:
        attained = campaign.among_dummies.divergence(Adjacency.ADD_REMOVE, delta=delta, cells=None)
        assert upper >= attained.epsilon(delta).lower * (1 - 1e-9)
    single = campaign.with_capacity_one.divergence(adjacency, delta=delta, cells=None)
    assert upper <= single.upper_epsilon(delta) * (1 + 1e-9)


@settings(max_examples=30)
@given(
    local_epsilon=st.floats(-4.0, 1.5).map(lambda power: 10.0**power),
    capacity=st.floats(0.4, 7.0).map(lambda power: int(10.0**power)),
    loss=st.floats(-9.0, 0.0).map(lambda power: 10.0**power),
    tolerance=st.floats(-24.0, -12.0).map(lambda power: 10.0**power),
)
def test_discretising_a_ratio_preserves_its_mass_and_mean(
    local_epsilon: float, capacity: int, loss: float, tolerance: float
) -> None:
    campaign = PureCapacityCampaign(local_epsilon, 1, 1.0, capacity)
    assume(campaign.computed_capacity > 1)
    rounding = Rounding(side=Side.UP, cells=600, tolerance=tolerance)
    for ratio in (
        campaign.add_remove_ratio(),
        campaign.replace_one_ratio(min(loss, 1.0) * local_epsilon),
    ):
        found = discretise_up(ratio, rounding)
        values = found.values + found.origin
        spread = float(np.abs(values - ratio.mean) @ found.masses)
        mean = float(values @ found.masses) + found.excess
        assert abs(mean - ratio.mean) <= 1e-7 * spread


# Curious clients see reports, so fewer are left to hide a report


def test_curious_clients_leave_fewer_reports_to_hide_a_report() -> None:
    design = Design(
        Protocol.FIXED,
        slots=1000,
        participation=1.0,
        randomizer=LocalRandomizer(4.0),
        capacity=100,
    )
    silent = certify(design, delta=1e-3, adjacency=ADD_REMOVE, compare=False)
    watched = certify(design, delta=1e-3, adjacency=ADD_REMOVE, compare=False, curious=10)
    assert 0.0 < silent.epsilon < watched.epsilon
    with pytest.raises(DeltaExhausted):
        certify(design, delta=1e-6, adjacency=ADD_REMOVE, compare=False, curious=10)


@pytest.mark.parametrize(("local_epsilon", "slots", "capacity"), [(2.64, 4, 3), (1.0, 1, 40)])
def test_a_lower_bound_among_others_is_zero_at_the_local_epsilon(
    local_epsilon: float, slots: int, capacity: int
) -> None:
    """Round-off of the largest ratio would count otherwise."""
    campaign = PureCapacityCampaign(local_epsilon, slots, 1.0, capacity)
    for adjacency in Adjacency:
        bounds = campaign.divergence(adjacency, delta=1e-6, cells=None)
        for epsilon in (local_epsilon, local_epsilon + 1e-9, local_epsilon + 1.0):
            assert bounds.lower(epsilon) <= bounds.upper(epsilon)
        assert bounds.lower(0.5 * local_epsilon) <= bounds.upper(0.5 * local_epsilon)
