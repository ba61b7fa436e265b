"""The condition that ties δ₀ to the distance δ₁, and its inverse."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkins.accounting.paper import amplification
from checkins.errors import InvalidValue, NotCovered

epsilons = st.floats(1e-6, 5.0)
distances = st.floats(1e-250, 0.999)


def _rate(local_epsilon: float) -> float:
    """log(1/(1 − e^(−5ε₀))) as the series Σ e^(−5kε₀)/k where that converges fast."""
    if local_epsilon < 0.2:
        return -math.log(-math.expm1(-5.0 * local_epsilon))
    return math.fsum(math.exp(-5.0 * k * local_epsilon) / k for k in range(1, 60))


@given(local_epsilon=epsilons, distance=distances)
def test_the_inverse_undoes_the_condition_on_the_safe_side(local_epsilon, distance):
    most = amplification.largest_local_delta(local_epsilon=local_epsilon, distance=distance)
    back = amplification.smallest_distance(local_epsilon=local_epsilon, local_delta=most)
    assert back <= distance * (1 + 1e-12)
    assert amplification.largest_local_delta(local_epsilon=local_epsilon, distance=back) >= most
    # δ₁/(2 + T) jumps where T does, so a smaller distance may do, but never by more than a jump.
    assert back >= distance / 2.0


@given(local_epsilon=epsilons, distance=distances, less=st.floats(0.01, 1.0))
def test_a_larger_distance_never_admits_less(local_epsilon, distance, less):
    smaller = amplification.largest_local_delta(
        local_epsilon=local_epsilon, distance=distance * less
    )
    assert smaller <= amplification.largest_local_delta(
        local_epsilon=local_epsilon, distance=distance
    )


@given(local_epsilon=epsilons, distance=distances)
def test_the_admitted_pair_satisfies_the_total_variation_bound(local_epsilon, distance):
    """The proof's bound: (1 − e^(−5ε₀))^T + (T + 2) 2δ₀e^ε₀/(1 − e^−ε₀) ≤ δ₁."""
    rounds = amplification.rejection_rounds(local_epsilon=local_epsilon, distance=distance)
    local_delta = amplification.largest_local_delta(local_epsilon=local_epsilon, distance=distance)
    failure = math.exp(-rounds * _rate(local_epsilon))
    slack = (rounds + 2.0) * 2.0 * local_delta * math.exp(local_epsilon)
    assert failure + slack / -math.expm1(-local_epsilon) <= distance * (1 + 1e-9)
    assert rounds == math.floor(rounds)
    assert local_delta < -math.expm1(-local_epsilon) / (4.0 * math.exp(local_epsilon))


@given(local_epsilon=epsilons, distance=distances)
def test_integer_rounds_never_admit_more_than_the_printed_condition(local_epsilon, distance):
    rate = _rate(local_epsilon)
    printed = -math.expm1(-local_epsilon) * distance
    printed /= 4.0 * math.exp(local_epsilon) * (2.0 + math.log(2.0 / distance) / rate)
    assert (
        amplification.largest_local_delta(local_epsilon=local_epsilon, distance=distance) <= printed
    )


def test_a_local_delta_beyond_every_distance_is_refused_with_the_limit():
    with pytest.raises(NotCovered, match=r"local_delta = 0.1: must be at most 0.00") as refusal:
        amplification.smallest_distance(local_epsilon=0.5, local_delta=0.1)
    assert (refusal.value.name, refusal.value.value) == ("local_delta", 0.1)


@pytest.mark.parametrize("local_epsilon", [200.0, 1e6])
def test_a_huge_local_epsilon_admits_nothing_and_never_overflows(local_epsilon):
    assert amplification.largest_local_delta(local_epsilon=local_epsilon, distance=0.5) < 1e-300
    with pytest.raises(NotCovered):
        amplification.smallest_distance(local_epsilon=local_epsilon, local_delta=1e-9)


@pytest.mark.parametrize("name", ["local_epsilon", "local_delta"])
def test_zero_is_refused_by_name(name):
    with pytest.raises(InvalidValue) as refusal:
        amplification.smallest_distance(
            **({"local_epsilon": 1.0, "local_delta": 1e-9} | {name: 0.0})
        )
    assert refusal.value.name == name
