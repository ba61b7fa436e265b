"""Balls in bins: exact by enumeration for small cases, by seeded simulation for larger ones."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkins.accounting.paper import occupancy
from checkins.errors import InvalidValue

counts = st.integers(1, 10**9)
shares = st.floats(0.0, 1.0)


def _patterns(clients: int, slots: int):
    """Every assignment of clients to slots, 0 meaning abstention."""
    return itertools.product(range(slots + 1), repeat=clients)


@settings(max_examples=25)
@given(clients=st.integers(1, 4), slots=st.integers(1, 3), share=st.sampled_from([0.25, 0.5, 1.0]))
def test_fixed_dummies_equal_full_enumeration(clients, slots, share):
    expected = 0.0
    for pattern in _patterns(clients, slots):
        weight = math.prod(share / slots if slot else 1.0 - share for slot in pattern)
        expected += weight * (slots - len(set(pattern) - {0}))
    found = occupancy.dummies_fixed(clients=clients, slots=slots, participation=share)
    assert found == pytest.approx(expected, rel=1e-9)


@settings(max_examples=15)
@given(clients=st.integers(1, 6), window=st.integers(1, 3))
def test_sliding_dummies_equal_full_enumeration(clients, window):
    window = min(window, clients)
    empties = 0
    choices = list(itertools.product(range(window), repeat=clients))
    for choice in choices:
        taken = {client + later for client, later in enumerate(choice, start=1)}
        empties += sum(slot not in taken for slot in range(window, clients + 1))
    found = occupancy.dummies_sliding(clients=clients, window=window)
    assert found == pytest.approx(empties / len(choices), rel=1e-9)


def test_fixed_dummies_agree_with_a_seeded_simulation():
    """One client moves the count by at most 1, so McDiarmid: wrong with probability 1e-9."""
    clients, slots, share, runs = 300, 100, 0.5, 2000
    rng = np.random.default_rng(7)
    chosen = rng.integers(0, slots, (runs, clients))
    chosen[rng.random((runs, clients)) >= share] = slots
    occupied = np.zeros((runs, slots + 1), dtype=bool)
    occupied[np.arange(runs)[:, None], chosen] = True
    simulated = (slots - occupied[:, :slots].sum(axis=1)).mean()
    slack = math.sqrt(clients * math.log(2e9) / (2 * runs))
    found = occupancy.dummies_fixed(clients=clients, slots=slots, participation=share)
    assert abs(simulated - found) <= slack


@given(clients=counts, slots=counts, share=shares)
def test_fixed_dummies_stay_below_their_bound(clients, slots, share):
    exact = occupancy.dummies_fixed(clients=clients, slots=slots, participation=share)
    bound = occupancy.dummies_fixed_bound(clients=clients, slots=slots, participation=share)
    assert 0.0 <= exact <= bound * (1 + 1e-9)
    assert exact <= slots


@given(clients=counts, window=counts)
def test_sliding_dummies_stay_below_their_bound(clients, window):
    window = min(window, clients)
    exact = occupancy.dummies_sliding(clients=clients, window=window)
    bound = occupancy.dummies_sliding_bound(clients=clients, window=window)
    assert 0.0 <= exact <= bound * (1 + 1e-9)


@given(clients=counts, slots=counts, share=shares, less=shares)
def test_fewer_check_ins_never_mean_fewer_dummies(clients, slots, share, less):
    base = occupancy.dummies_fixed(clients=clients, slots=slots, participation=share)
    fewer = occupancy.dummies_fixed(clients=clients, slots=slots, participation=share * less)
    more = occupancy.dummies_fixed(clients=2 * clients, slots=slots, participation=share)
    assert more <= base <= fewer


def test_the_load_bound_holds_as_often_as_it_says():
    """4,000 runs at δ = 0.1: more than 1.5 δ failures has probability below 1e-20 (Chernoff)."""
    clients, slots, delta, runs = 200, 20, 0.1, 4000
    loads = np.random.default_rng(11).multinomial(clients, [1.0 / slots] * slots, size=runs)
    bound = occupancy.load_norm(clients=clients, slots=slots, delta=delta)
    failures = (np.linalg.norm(loads, axis=1) > bound).mean()
    assert failures <= 1.5 * delta


@given(clients=st.integers(1, 60), slots=st.integers(1, 40))
def test_the_mean_inverse_load_is_exact(clients, slots):
    p = Fraction(1, slots)
    weights = [
        math.comb(clients, s) * p**s * (1 - p) ** (clients - s) for s in range(1, clients + 1)
    ]
    exact = sum(w / s for s, w in enumerate(weights, start=1)) / sum(weights)
    found = occupancy.expected_inverse_load(clients=clients, slots=slots)
    assert float(exact) <= found <= float(exact) * (1 + 2e-9)


@settings(max_examples=30)
@given(clients=st.integers(1, 10**9), slots=st.integers(1, 10**9))
def test_the_mean_inverse_load_is_between_its_simple_bounds(clients, slots):
    found = occupancy.expected_inverse_load(clients=clients, slots=slots)
    used = 1.0 - occupancy.empty_probability(clients=clients, slots=slots, participation=1.0)
    jensen = slots / clients * used  # 1 / E[S | S > 0]
    assert (
        jensen * (1 - 1e-6) <= found <= min(1.0, 2.0 * slots / ((clients + 1) * used)) * (1 + 1e-6)
    )


def test_the_mean_inverse_load_exceeds_m_over_n_where_slots_are_well_filled():
    assert occupancy.expected_inverse_load(clients=1000, slots=100) > 0.1


def test_a_billion_clients_take_no_longer_than_a_window():
    found = occupancy.expected_inverse_load(clients=10**9, slots=2)
    assert found * 5e8 == pytest.approx(1.0 + 1e-9, abs=3e-9)


@given(
    clients=st.integers(1, 40),
    slots=st.integers(1, 20),
    share=st.sampled_from([0.0, 0.25, 0.5, 1.0]),
    capacity=st.integers(1, 45),
)
def test_the_overflow_probability_is_the_union_bound(clients, slots, share, capacity):
    p = Fraction(share) / slots
    others = clients - 1
    tail = sum(
        math.comb(others, s) * p**s * (1 - p) ** (others - s) for s in range(capacity, others + 1)
    )
    exact = min(1.0, float(slots * tail))
    found = occupancy.overflow_probability(
        clients=clients, slots=slots, participation=share, capacity=capacity
    )
    assert exact <= found <= min(1.0, exact * (1 + 2e-6))


@given(clients=counts, slots=counts, share=shares, capacity=st.integers(1, 10**6))
def test_the_overflow_probability_is_a_probability_and_falls_with_capacity(
    clients, slots, share, capacity
):
    def bound(room: int) -> float:
        return occupancy.overflow_probability(
            clients=clients, slots=slots, participation=share, capacity=room
        )

    assert 0.0 <= bound(2 * capacity) <= bound(capacity) <= 1.0


def test_an_underflowing_tail_is_not_reported_as_impossible():
    found = occupancy.overflow_probability(
        clients=10**6, slots=1000, participation=1.0, capacity=500_000
    )
    assert found == pytest.approx(1e-297)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: occupancy.dummies_sliding(clients=5, window=6), "window"),
        (lambda: occupancy.dummies_fixed(clients=0, slots=1, participation=1.0), "clients"),
        (lambda: occupancy.load_norm(clients=1, slots=1, delta=0.0), "delta"),
        (lambda: occupancy.expected_inverse_load(clients=1, slots=0), "slots"),
        (
            lambda: occupancy.overflow_probability(
                clients=1, slots=1, participation=1.0, capacity=0
            ),
            "capacity",
        ),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(call, name):
    with pytest.raises(InvalidValue) as refusal:
        call()
    assert refusal.value.name == name
