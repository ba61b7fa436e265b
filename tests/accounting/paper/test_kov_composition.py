"""Composition step by step, held against closed forms and against exact randomized response."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from checkins.accounting.paper import kov_composition, statements
from checkins.errors import InvalidValue

epsilons = st.floats(1e-6, 8.0)
deltas = st.floats(1e-12, 0.5)
counts = st.integers(1, 10**9)
shares = st.floats(0.0, 1.0)


def composed(steps, *, delta, **setting):
    return steps(**setting).composed(delta=delta)


def bound(theorem, *, local_epsilon, delta, **setting):
    return theorem(**setting).epsilon(local_epsilon=local_epsilon, delta=delta)


@given(epsilon=st.floats(0.0, 1e4), sampling=shares)
def test_the_likelihood_ratio_lies_between_one_and_e_to_the_epsilon(epsilon, sampling):
    ratio = kov_composition.biased_sampling_ratio(local_epsilon=epsilon, sampling=sampling)
    assert ratio >= 1.0
    if epsilon < 700.0:
        printed = math.exp(epsilon) / (1.0 + sampling * math.expm1(epsilon))
        assert ratio == pytest.approx(printed, rel=1e-9)


def _exact_delta(epsilon: float, steps: int, total: float) -> float:
    """δ at ε = total of ``steps`` randomized responses, the worst ε-DP mechanisms there are."""
    heads = np.arange(steps + 1)
    loss = (2 * heads - steps) * epsilon
    probability = 1.0 / (1.0 + math.exp(-epsilon))
    mass = binom.pmf(heads, steps, probability)
    return float((mass * np.maximum(0.0, -np.expm1(total - loss))).sum())


@given(epsilon=st.floats(1e-3, 1.0), steps=st.integers(1, 300), delta=deltas)
def test_composition_is_true_of_randomized_response(epsilon, steps, delta):
    total = kov_composition.homogeneous_composition(epsilon=epsilon, steps=steps, delta=delta)
    assert _exact_delta(epsilon, steps, total) <= delta * (1 + 1e-9)


@given(sequence=st.lists(st.floats(0.0, 1e3), min_size=1, max_size=30), delta=deltas)
def test_composition_never_exceeds_the_sum(sequence, delta):
    total = kov_composition.composition(sequence, delta=delta)
    assert 0.0 <= total <= sum(sequence) * (1 + 1e-9)


def test_composition_of_equal_steps_agrees_with_the_homogeneous_form():
    listed = kov_composition.composition([0.02] * 500, delta=1e-6)
    assert listed == pytest.approx(
        kov_composition.homogeneous_composition(epsilon=0.02, steps=500, delta=1e-6)
    )


def test_composition_of_huge_steps_is_their_sum_and_no_warning():
    assert kov_composition.composition([1e300, 1e300], delta=0.1) == pytest.approx(2e300)


@given(epsilon=epsilons, delta=deltas, slots=counts, weight=shares)
def test_replacement_unrelaxed_is_never_above_the_theorem(epsilon, delta, slots, weight):
    values = {"local_epsilon": epsilon, "delta": delta, "slots": slots, "largest_weight": weight}
    unrelaxed = composed(kov_composition.replacement_steps, **values)
    assert 0.0 <= unrelaxed <= bound(statements.replacement, **values)


@given(epsilon=epsilons, delta=deltas, clients=counts)
def test_swapping_unrelaxed_is_never_above_the_theorem(epsilon, delta, clients):
    values = {"local_epsilon": epsilon, "delta": delta, "clients": clients}
    unrelaxed = composed(kov_composition.swapping_steps, **values)
    assert 0.0 <= unrelaxed <= bound(statements.swapping, **values)


@given(
    epsilon=epsilons,
    delta=deltas,
    loads=st.lists(st.integers(0, 1000), min_size=1, max_size=50).filter(any),
)
def test_bins_unrelaxed_is_never_above_the_theorem(epsilon, delta, loads):
    steps = kov_composition.bins_epsilons(local_epsilon=epsilon, loads=loads)
    unrelaxed = kov_composition.composition(steps, delta=delta)
    theorem = bound(statements.bins, local_epsilon=epsilon, delta=delta, loads=loads)
    assert 0.0 <= unrelaxed <= theorem


@settings(max_examples=20)
@given(
    epsilon=st.floats(1e-6, 40.0), weight=st.floats(0.01, 1.0), count=st.integers(140_000, 400_000)
)
def test_blocks_lie_just_above_the_full_sum(epsilon, weight, count):
    """Beyond 2¹⁷ steps trapezoids replace the sum: above it, by less than 1e-7."""
    blocks = composed(
        kov_composition.replacement_steps,
        local_epsilon=epsilon,
        delta=1e-6,
        slots=count,
        largest_weight=weight,
    )
    listed = kov_composition.replacement_steps(
        local_epsilon=epsilon, slots=count, largest_weight=weight
    ).epsilons()
    full = kov_composition.composition(listed, delta=1e-6)
    assert full * (1 - 1e-12) <= blocks <= full * (1 + 1e-7)


@given(epsilon=epsilons, slots=st.integers(1, 500), weight=shares)
def test_replacement_steps_are_the_printed_ones(epsilon, slots, weight):
    found = kov_composition.replacement_steps(
        local_epsilon=epsilon, slots=slots, largest_weight=weight
    ).epsilons()
    b, i = math.exp(epsilon), np.arange(1, slots + 1)
    np.testing.assert_allclose(
        found,
        np.log1p(weight * b * (b - 1) / (i - 1 + b * (slots - i + 1))),
        rtol=1e-8,
        atol=1e-300,
    )


@given(epsilon=epsilons, clients=st.integers(1, 500))
def test_swapping_steps_are_the_printed_ones(epsilon, clients):
    found = kov_composition.swapping_steps(local_epsilon=epsilon, clients=clients).epsilons()
    b, i = math.exp(epsilon), np.arange(1, clients + 1)
    printed = np.log1p(b * b * (b - 1) / (b * b + (i - 1) + (clients - i) * b))
    np.testing.assert_allclose(found, printed, rtol=1e-8)


@given(epsilon=epsilons, clients=st.integers(1, 200))
def test_bins_of_one_record_are_the_steps_of_swapping(epsilon, clients):
    bins = kov_composition.bins_epsilons(local_epsilon=epsilon, loads=[1] * clients)
    swap = kov_composition.swapping_steps(local_epsilon=epsilon, clients=clients).epsilons()
    np.testing.assert_allclose(bins, swap, rtol=1e-8)


@given(epsilon=epsilons, slots=st.integers(1, 1000), weight=st.floats(0.01, 1.0), delta=deltas)
def test_the_lemma_and_the_replacement_theorem_agree(epsilon, slots, weight, delta):
    lemma = kov_composition.relaxed_composition(
        delta=delta, steps=slots, a=weight * math.expm1(epsilon), b=-math.expm1(-epsilon)
    )
    theorem = bound(
        statements.replacement,
        local_epsilon=epsilon,
        delta=delta,
        slots=slots,
        largest_weight=weight,
    )
    assert lemma == pytest.approx(theorem, rel=1e-9)


@given(epsilon=epsilons, delta=deltas, slots=st.integers(1, 10**6), more=st.floats(1.0, 3.0))
def test_the_unrelaxed_bound_is_monotone(epsilon, delta, slots, more):
    def bound(**change):
        values = {"local_epsilon": epsilon, "delta": delta, "slots": slots, "largest_weight": 0.3}
        return composed(kov_composition.replacement_steps, **(values | change))

    slack = 1 + 1e-6
    assert bound(local_epsilon=epsilon * more) * slack >= bound()
    assert bound(delta=delta / more) >= bound()
    assert bound(largest_weight=0.3 * more) >= bound()


@pytest.mark.parametrize("local_epsilon", [650.0, 800.0])
def test_a_huge_local_epsilon_gives_a_vacuous_bound_and_no_warning(local_epsilon):
    values = {"local_epsilon": local_epsilon, "delta": 1e-6}
    assert composed(kov_composition.swapping_steps, clients=10**6, **values) > 1e6
    steps = kov_composition.bins_epsilons(local_epsilon=local_epsilon, loads=[1, 0, 2])
    assert kov_composition.composition(steps, delta=1e-6) >= local_epsilon
    steps = kov_composition.swapping_steps(local_epsilon=local_epsilon, clients=5).epsilons()
    assert steps.max() <= local_epsilon


def test_listing_refuses_what_would_not_fit_in_memory():
    with pytest.raises(InvalidValue, match="slots = 1000000000"):
        kov_composition.replacement_steps(
            local_epsilon=1.0, slots=10**9, largest_weight=1.0
        ).epsilons()


@pytest.mark.parametrize("sequence", [[], [-0.1], [math.nan], [math.inf]])
def test_a_bad_sequence_is_refused_by_name(sequence):
    with pytest.raises(InvalidValue) as refusal:
        kov_composition.composition(sequence, delta=1e-6)
    assert refusal.value.name == "epsilons"
