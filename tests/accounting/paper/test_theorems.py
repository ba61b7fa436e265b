"""The paper's privacy theorems: protocols, mechanisms, shuffling, and their local caps."""

from __future__ import annotations

import math
import re
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkins.accounting.paper import amplification, statements
from checkins.errors import InvalidValue, NotCovered

epsilons = st.floats(1e-6, 6.0)
any_epsilons = st.floats(0.0, 1e4)
deltas = st.floats(1e-12, 0.5)
counts = st.integers(1, 10**9)
shares = st.floats(0.0, 1.0)
more = st.floats(1.0, 10.0)


def epsilon(theorem, *, local_epsilon, delta, **setting):
    return theorem(**setting).epsilon(local_epsilon=local_epsilon, delta=delta)


def simplified(theorem, *, local_epsilon, delta, **setting):
    return theorem(**setting).simplified(local_epsilon=local_epsilon, delta=delta)


def approximate(theorem, *, local_epsilon, local_delta, delta, **setting):
    local = {"local_epsilon": local_epsilon, "local_delta": local_delta}
    return theorem(**setting).approximate(delta=delta, **local)


def total_epsilon(theorem, *, local_epsilon, local_delta, delta, **setting):
    local = {"local_epsilon": local_epsilon, "local_delta": local_delta}
    return theorem(**setting).epsilon_at_total_delta(delta=delta, **local)


@pytest.mark.parametrize(
    ("local_epsilon", "slots", "participation", "printed", "digits"),
    [
        (1.0, 1_000, 1.0, 0.4749, 4),
        (1.0, 10_000, 0.1, 0.0149, 4),
        (2.0, 1_000, 1.0, 3.0377, 4),
        (4.0, 1_000, 1.0, 144.3, 1),
        (4.0, 100_000, 1.0, 7.367, 3),
    ],
)
def test_the_fixed_window_reproduces_the_known_values(
    local_epsilon, slots, participation, printed, digits
):
    found = epsilon(
        statements.fixed_window,
        local_epsilon=local_epsilon,
        delta=1e-6,
        slots=slots,
        participation=participation,
    )
    assert round(found, digits) == printed


@given(local_epsilon=st.floats(0, 1), delta=st.floats(1e-12, 0.01), slots=counts, share=shares)
def test_the_simplified_form_is_never_below_the_full_form(local_epsilon, delta, slots, share):
    full = epsilon(
        statements.fixed_window,
        local_epsilon=local_epsilon,
        delta=delta,
        slots=slots,
        participation=share,
    )
    simple = simplified(
        statements.fixed_window,
        local_epsilon=local_epsilon,
        delta=delta,
        slots=slots,
        participation=share,
    )
    assert full <= simple


@pytest.mark.parametrize(
    ("change", "name"), [({"local_epsilon": 1.01}, "local_epsilon"), ({"delta": 0.011}, "delta")]
)
def test_the_simplified_form_refuses_what_it_does_not_cover(change, name):
    values = {"local_epsilon": 0.5, "delta": 1e-6, "slots": 10, "participation": 1.0} | change
    with pytest.raises(NotCovered, match=f"{name} = {values[name]}") as refusal:
        simplified(statements.fixed_window, **values)
    assert refusal.value.name == name


@given(local_epsilon=epsilons, delta=deltas, slots=counts, share=shares, more=more)
def test_the_fixed_window_is_monotone_in_every_argument(local_epsilon, delta, slots, share, more):
    def bound(**change):
        values = {"local_epsilon": local_epsilon, "delta": delta, "slots": slots}
        return epsilon(statements.fixed_window, **(values | {"participation": share} | change))

    assert bound(local_epsilon=local_epsilon * more) >= bound()
    assert bound(delta=delta / more) >= bound()
    assert bound(slots=slots * 2) <= bound()
    assert bound(participation=share / more) <= bound()


@given(local_epsilon=epsilons, delta=deltas, clients=counts, slots=counts, more=more)
def test_averaging_is_monotone_in_every_argument(local_epsilon, delta, clients, slots, more):
    def bound(**change):
        values = {"local_epsilon": local_epsilon, "delta": delta, "clients": clients}
        return statements.averaged_total(**(values | {"slots": slots, "local_delta": 0.0} | change))

    assert bound(local_epsilon=local_epsilon * more) >= bound()
    assert bound(delta=delta / more) >= bound()
    assert bound(clients=clients * 2) <= bound()
    assert bound(slots=slots * 2) <= bound()


@given(local_epsilon=epsilons, delta=deltas, clients=counts, more=more)
def test_both_shuffling_bounds_are_monotone_in_every_argument(local_epsilon, delta, clients, more):
    for theorem in (partial(epsilon, statements.shuffling), statements.shuffling_earlier):
        base = theorem(local_epsilon=local_epsilon, delta=delta, clients=clients)
        longer = local_epsilon * more
        assert theorem(local_epsilon=longer, delta=delta, clients=clients) >= base
        assert theorem(local_epsilon=local_epsilon, delta=delta / more, clients=clients) >= base
        assert theorem(local_epsilon=local_epsilon, delta=delta, clients=2 * clients) <= base


@given(local_epsilon=epsilons, delta=deltas, clients=counts)
def test_the_paper_improves_on_the_earlier_shuffling_bound(local_epsilon, delta, clients):
    given_ = {"local_epsilon": local_epsilon, "delta": delta, "clients": clients}
    ours, earlier = (
        epsilon(statements.shuffling, **given_),
        statements.shuffling_earlier(**given_),
    )
    assert ours <= earlier


@given(local_epsilon=any_epsilons, delta=deltas, clients=counts, slots=counts, share=shares)
def test_no_pure_bound_is_ever_negative_or_nan(local_epsilon, delta, clients, slots, share):
    common = {"local_epsilon": local_epsilon, "delta": delta}
    found = [
        epsilon(statements.fixed_window, slots=slots, participation=share, **common),
        epsilon(statements.sliding_window, window=slots, **common),
        epsilon(statements.averaged, load_delta=delta, clients=clients, slots=slots, **common),
        epsilon(statements.shuffling, clients=clients, **common),
        statements.shuffling_earlier(clients=clients, **common),
        epsilon(statements.bins, loads=[3, 0, clients], **common),
    ]
    assert all(value >= 0.0 for value in found)


@given(local_epsilon=st.floats(1e-9, 1e4), share=shares, slots=counts, delta=deltas)
def test_no_approximate_bound_is_ever_negative_or_nan(local_epsilon, share, slots, delta):
    common = {"local_epsilon": local_epsilon, "delta": delta, "local_delta": 1e-30}
    try:
        bound = approximate(statements.fixed_window, slots=slots, participation=share, **common)
        total = total_epsilon(statements.fixed_window, slots=slots, participation=share, **common)
    except NotCovered as refusal:
        assert refusal.name == "local_delta"  # noqa: PT017
    else:
        assert bound.epsilon >= 0.0
        assert delta < bound.delta <= 1.0
        assert total >= 0.0


def test_an_overflowing_bound_is_infinite_and_its_local_cap_is_not():
    values = {"local_epsilon": 900.0, "delta": 1e-6, "participation": 1.0}
    assert epsilon(statements.fixed_window, slots=10, **values) == math.inf
    assert statements.shuffling_earlier(local_epsilon=300.0, delta=0.1, clients=2) == math.inf
    assert amplification.known_slot_epsilon(local_delta=0.0, **values) == 900.0


def test_participation_0_has_epsilon_0_even_where_the_factor_overflows():
    assert (
        epsilon(
            statements.fixed_window, local_epsilon=900.0, delta=1e-6, slots=10, participation=0.0
        )
        == 0.0
    )


def test_a_sliding_window_costs_what_a_fixed_one_of_its_length_does():
    fixed = epsilon(
        statements.fixed_window, local_epsilon=1.0, delta=1e-6, slots=50, participation=1.0
    )
    assert epsilon(statements.sliding_window, local_epsilon=1.0, delta=1e-6, window=50) == fixed
    simple = simplified(
        statements.fixed_window, local_epsilon=1.0, delta=1e-6, slots=50, participation=1.0
    )
    assert simplified(statements.sliding_window, local_epsilon=1.0, delta=1e-6, window=50) == simple


def test_bins_of_one_record_each_cost_more_than_swapping_by_the_relaxation_alone():
    bins = epsilon(statements.bins, local_epsilon=0.5, delta=1e-6, loads=[1] * 400)
    swap = epsilon(statements.swapping, local_epsilon=0.5, delta=1e-6, clients=400)
    assert swap < bins <= swap * math.exp(0.5)


def test_averaging_is_bins_at_the_worst_likely_load():
    given_ = {"local_epsilon": 0.5, "delta": 1e-6}
    averaged = epsilon(statements.averaged, load_delta=1e-6, clients=10_000, slots=100, **given_)
    assert epsilon(statements.bins, loads=[100] * 100, **given_) <= averaged


@pytest.mark.slow
@settings(max_examples=30)
@given(
    local_epsilon=st.floats(0.01, 0.4),
    log_local_delta=st.floats(-60.0, -30.0),
    delta=st.floats(1e-9, 0.2),
    slots=st.integers(1, 10**6),
)
def test_the_total_form_is_the_best_inner_delta(local_epsilon, log_local_delta, delta, slots):
    common = {"local_epsilon": local_epsilon, "local_delta": math.exp(log_local_delta)}
    theorem = amplification.Amplification(power=0.5, scale=slots**-0.5, randomizers=slots)
    candidates = [
        theorem.approximate(delta=delta * math.exp(-step / 8.0), **common) for step in range(200)
    ]
    within = [found.epsilon for found in candidates if found.delta <= delta]
    try:
        best = theorem.epsilon_at_total_delta(delta=delta, **common)
    except NotCovered:
        assert not within
        return
    assert best <= min(within, default=math.inf) * (1 + 1e-9)
    spread = theorem.spread(8.0 * local_epsilon)
    depth = (best - spread * spread / 2.0) / spread
    reached = theorem.approximate(delta=math.exp(-depth * depth / 2.0), **common)
    assert reached.epsilon <= best * (1 + 1e-9)
    assert reached.delta <= delta * (1 + 1e-6)


def test_a_refused_local_delta_says_how_small_it_must_be_and_that_works():
    values = {"local_epsilon": 0.1, "delta": 1e-6, "slots": 1000, "participation": 1.0}
    with pytest.raises(NotCovered, match=r"^local_delta = 1e-09: must be at most") as refusal:
        total_epsilon(statements.fixed_window, local_delta=1e-9, **values)
    most = float(re.search(r"at most (\S+) for", str(refusal.value)).group(1))
    assert total_epsilon(statements.fixed_window, local_delta=0.99 * most, **values) > 0.0
    with pytest.raises(NotCovered):
        total_epsilon(statements.fixed_window, local_delta=1.02 * most, **values)


def test_where_no_local_delta_helps_the_refusal_says_to_lower_local_epsilon():
    values = {"local_epsilon": 2.0, "delta": 1e-6, "clients": 1000, "slots": 10}
    with pytest.raises(NotCovered, match="no local_delta is small enough for local_epsilon"):
        statements.averaged_total(local_delta=1e-250, **values)


def test_swapping_averaging_and_bins_replace_all_n_randomizers():
    values = {"local_epsilon": 0.02, "local_delta": 1e-15}
    distance = amplification.smallest_distance(**values)
    found = [
        approximate(statements.swapping, clients=1000, delta=1e-12, **values),
        approximate(statements.shuffling, clients=1000, delta=1e-12, **values),
        approximate(statements.bins, loads=[100] * 10, delta=1e-12, **values),
        approximate(
            statements.averaged, clients=1000, slots=10, delta=1e-12, load_delta=1e-12, **values
        ),
    ]
    for bound in found:
        replaced = 1000 * (math.exp(bound.epsilon) + 1.0) * distance
        assert bound.delta == pytest.approx(replaced, rel=1e-3)


@given(local_epsilon=st.floats(0.01, 0.2), more=st.floats(1.0, 1.5), slots=st.integers(10, 10**6))
def test_the_approximate_form_is_monotone(local_epsilon, more, slots):
    def bound(**change):
        values = {"local_epsilon": local_epsilon, "local_delta": 1e-25, "delta": 1e-5}
        return total_epsilon(statements.sliding_window, **(values | {"window": slots} | change))

    assert bound(local_epsilon=local_epsilon * more) >= bound()
    assert bound(local_delta=1e-25 * more) >= bound()
    assert bound(delta=1e-5 / more) >= bound()


def test_total_forms_of_all_approximate_statements_exceed_their_pure_limit():
    values = {"local_epsilon": 0.05, "delta": 1e-6}
    pairs = [
        (
            total_epsilon(statements.swapping, local_delta=1e-20, clients=1000, **values),
            epsilon(statements.swapping, local_epsilon=0.4, delta=1e-6, clients=1000),
        ),
        (
            total_epsilon(statements.bins, local_delta=1e-20, loads=[10] * 100, **values),
            epsilon(statements.bins, local_epsilon=0.4, delta=1e-6, loads=[10] * 100),
        ),
        (
            statements.averaged_total(local_delta=1e-20, clients=1000, slots=100, **values),
            statements.averaged_total(
                local_epsilon=0.4, local_delta=0.0, delta=1e-6, clients=1000, slots=100
            ),
        ),
        (
            total_epsilon(statements.shuffling, local_delta=1e-20, clients=1000, **values),
            epsilon(statements.shuffling, local_epsilon=0.4, delta=1e-6, clients=1000),
        ),
        (
            total_epsilon(
                statements.replacement, local_delta=1e-20, slots=1000, largest_weight=0.5, **values
            ),
            epsilon(
                statements.replacement,
                local_epsilon=0.4,
                delta=1e-6,
                slots=1000,
                largest_weight=0.5,
            ),
        ),
    ]
    for approximate, pure in pairs:
        assert pure <= approximate * (1 + 1e-9)
        assert approximate <= pure * 1.01


def test_the_local_cap_counts_abstaining_and_needs_delta_above_local_delta():
    held = amplification.known_slot_epsilon
    expected = math.log1p(0.1 * math.expm1(2.0))
    assert held(local_epsilon=2.0, local_delta=0.0, delta=1e-6, participation=0.1) == pytest.approx(
        expected
    )
    assert held(local_epsilon=2.0, local_delta=0.0, delta=1e-6) == 2.0
    assert held(local_epsilon=2.0, delta=1e-6, local_delta=1e-6) == 2.0
    assert held(local_epsilon=2.0, delta=1e-6, local_delta=2e-6) == math.inf


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"local_epsilon": -1.0}, "local_epsilon"),
        ({"local_epsilon": math.nan}, "local_epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"slots": 0}, "slots"),
        ({"participation": 1.1}, "participation"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(change, name):
    values = {"local_epsilon": 1.0, "delta": 1e-6, "slots": 10, "participation": 1.0} | change
    with pytest.raises(InvalidValue) as refusal:
        epsilon(statements.fixed_window, **values)
    assert refusal.value.name == name


@pytest.mark.parametrize("loads", [[], [0, 0], [1, -1], [0.5, 1.5], [[1, 2]]])
def test_loads_must_be_integers_and_not_all_zero(loads):
    with pytest.raises(InvalidValue) as refusal:
        epsilon(statements.bins, local_epsilon=1.0, delta=1e-6, loads=loads)
    assert refusal.value.name == "loads"


def test_the_load_delta_of_averaging_is_refused_by_its_own_name():
    with pytest.raises(InvalidValue) as refusal:
        epsilon(
            statements.averaged, local_epsilon=1.0, delta=1e-6, load_delta=0.0, clients=10, slots=2
        )
    assert refusal.value.name == "load_delta"
