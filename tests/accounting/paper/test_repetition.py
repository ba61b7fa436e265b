"""n/m runs of the fixed window with p₀ = m/n."""

from __future__ import annotations

import math
from functools import partial

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from checkins.accounting.paper import statements
from checkins.errors import InvalidValue, NotCovered

WIDE = {"local_epsilon": 1.0, "clients": 10_000, "slots": 100}

epsilons = st.floats(1e-6, 3.0)
deltas = st.floats(1e-12, 0.1)
slot_counts = st.integers(1, 10**5)
ratios = st.integers(1, 10**4)
more = st.floats(1.0, 10.0)

explicit_total = partial(statements.repeated_total, form=statements.repeated_explicit)


def test_the_papers_preconditions_do_not_imply_a_small_first_epsilon():
    values = {"local_epsilon": 0.5, "beta": 1e-8, "clients": 170, "slots": 100}
    assert round(statements.one_run_bound(**values), 3) == 0.595
    with pytest.raises(NotCovered, match=r"epsilon_1 = 0.595 must be at most 1/2"):
        statements.repeated_explicit(delta=1e-6, **values)


def test_one_run_is_the_fixed_window_at_participation_m_over_n():
    found = statements.one_run(beta=1e-8, **WIDE)
    assert found == statements.fixed_window(slots=100, participation=0.01).epsilon(
        local_epsilon=1.0, delta=1e-8
    )


def test_the_explicit_constants_are_four_and_twelve():
    found = statements.repeated_explicit(delta=1e-6, beta=1e-8, **WIDE)
    growth = math.expm1(1.0) * math.sqrt(math.e / 10_000)
    logs = math.log(1e8), math.log(1e6)
    assert found == pytest.approx(
        4 * growth * math.sqrt(logs[0] * logs[1]) + 12 * growth**2 * logs[0]
    )


@given(epsilon=epsilons, delta=deltas, beta=deltas, slots=slot_counts, ratio=ratios)
def test_the_closed_form_is_never_below_advanced_composition(epsilon, delta, beta, slots, ratio):
    values = {"local_epsilon": epsilon, "clients": slots * ratio, "slots": slots}
    try:
        explicit = statements.repeated_explicit(delta=delta, beta=beta, **values)
    except NotCovered:
        assume(False)
    assert statements.repeated(delta=delta, beta=beta, **values) <= explicit


@given(epsilon=st.floats(0.0, 1e4), delta=deltas, beta=deltas, slots=slot_counts, ratio=ratios)
def test_the_composed_bound_is_never_negative_or_nan(epsilon, delta, beta, slots, ratio):
    values = {"local_epsilon": epsilon, "clients": slots * ratio, "slots": slots}
    assert statements.repeated(delta=delta, beta=beta, **values) >= 0.0
    assert statements.repeated_total(delta=delta, **values) >= 0.0


@given(epsilon=epsilons, delta=deltas, slots=slot_counts, ratio=ratios, more=more)
def test_the_total_form_is_monotone_in_epsilon_and_delta(epsilon, delta, slots, ratio, more):
    values = {"clients": slots * ratio, "slots": slots}
    base = statements.repeated_total(local_epsilon=epsilon, delta=delta, **values)
    assert statements.repeated_total(local_epsilon=epsilon * more, delta=delta, **values) >= base
    assert statements.repeated_total(local_epsilon=epsilon, delta=delta / more, **values) >= base


@given(delta=deltas)
def test_the_total_form_is_no_worse_than_an_even_split(delta):
    even = {"delta": delta / 2, "beta": delta / 200} | WIDE
    spent = statements.total_delta(
        delta=delta / 2, beta=delta / 200, clients=WIDE["clients"], slots=WIDE["slots"]
    )
    assert spent == pytest.approx(delta)
    assert statements.repeated_total(delta=delta, **WIDE) <= statements.repeated(**even)
    explicit = explicit_total(delta=delta, **WIDE)
    assert explicit <= statements.repeated_explicit(**even)


def test_an_overflowing_run_is_infinite():
    assert (
        statements.repeated(local_epsilon=500.0, delta=0.1, beta=0.1, clients=10, slots=5)
        == math.inf
    )


@pytest.mark.parametrize(
    ("change", "name", "message"),
    [
        ({"slots": 10_001}, "slots", "at most clients = 10000"),
        ({"local_epsilon": 4.0}, "local_epsilon", r"at most \(2/3\) log"),
        ({"local_epsilon": 3.2, "beta": 1e-12}, "clients", "at least"),
        ({"beta": 0.0}, "beta", "strictly between"),
        ({"delta": 1.0}, "delta", "strictly between"),
    ],
)
def test_a_precondition_that_fails_is_named(change, name, message):
    with pytest.raises(InvalidValue, match=message) as refusal:
        statements.repeated_explicit(**({"delta": 1e-6, "beta": 1e-8} | WIDE | change))
    assert refusal.value.name == name


def test_the_total_form_passes_the_refusal_on():
    with pytest.raises(NotCovered, match=r"local_epsilon = 4\.0"):
        explicit_total(**(WIDE | {"local_epsilon": 4.0, "delta": 1e-6}))


def test_a_beta_near_one_is_refused_by_the_closed_form():
    values = {"local_epsilon": 0.1, "clients": 1000, "slots": 1000, "delta": 1e-6}
    with pytest.raises(NotCovered, match="beta"):
        statements.repeated_explicit(beta=1.0 - 1e-9, **values)
