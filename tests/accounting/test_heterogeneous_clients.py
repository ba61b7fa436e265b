"""Clients of several kinds: over several campaigns, mixing them can cost more than any alone."""

from __future__ import annotations

import itertools
import math

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
    Population,
    Protocol,
    certify,
    certify_heterogeneous,
)
from checkins.accounting.certificate import OF_ANY_OTHERS
from checkins.accounting.exact import campaign_divergence
from checkins.accounting.exact.dominating_pair import DominatingPair, envelope
from checkins.accounting.exact.grid_distribution import Rounding, Side
from checkins.errors import InvalidValue, NotCovered
from tests.accounting.designs import ADD_REMOVE, at_server, local

OFTEN, RARELY = local(6.2, 40, 0.05), local(6.2, 1, 0.005)


def test_a_client_may_be_of_one_kind_and_then_of_another() -> None:
    """Either kind twice costs at most 1.236; one campaign of each costs 1.621."""
    delta = 7e-5
    alone = [
        certify(kind, delta=delta, adjacency=ADD_REMOVE, campaigns=2) for kind in (OFTEN, RARELY)
    ]
    assert [round(one.epsilon, 3) for one in alone] == [1.2, 1.235]
    both = certify([OFTEN, RARELY], delta=delta, adjacency=ADD_REMOVE)
    assert both.epsilon == pytest.approx(1.6210, abs=1e-4)
    found = certify_heterogeneous([OFTEN, RARELY], delta=delta, adjacency=ADD_REMOVE, campaigns=2)
    assert both.epsilon <= found.epsilon < 1.65
    assert both.epsilon_lower == pytest.approx(found.epsilon_lower, rel=1e-6)
    assert any("does not depend on its data" in line for line in found.assumptions)


def test_the_largest_divergence_composed_as_tabulated() -> None:
    """Three campaigns: unmixed 0.9837 and 1.173, mixed 1.300, largest curve 1.412."""
    kinds = [local(8.0, 765, 0.05), local(8.0, 1, 5e-4)]
    found = certify_heterogeneous(kinds, delta=1e-6, adjacency=ADD_REMOVE, campaigns=3)
    assert found.epsilon == pytest.approx(1.412, abs=1e-3)
    assert found.epsilon_lower == pytest.approx(1.300, abs=1e-3)


@pytest.mark.slow
@settings(max_examples=8)
@given(
    local_epsilon=st.floats(0.5, 6.0),
    slots=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    participation=st.tuples(st.floats(0.01, 1.0), st.floats(0.01, 1.0)),
    adjacency=st.sampled_from(Adjacency),
)
def test_no_sequence_of_kinds_exceeds_the_certified_epsilon(
    local_epsilon: float,
    slots: tuple[int, int],
    participation: tuple[float, float],
    adjacency: Adjacency,
) -> None:
    kinds = [local(local_epsilon, m, p) for m, p in zip(slots, participation, strict=True)]
    found = certify_heterogeneous(kinds, delta=1e-4, adjacency=adjacency, campaigns=2)
    for sequence in itertools.combinations_with_replacement(kinds, 2):
        one = certify(list(sequence), delta=1e-4, adjacency=adjacency, compare=False)
        assert one.epsilon_lower <= found.epsilon
        exact_one = next(found for found in one.alternatives if found.method == "exact")
        assert exact_one.epsilon <= found.epsilon * (1 + 2e-3)
    assert found.epsilon_lower <= found.epsilon


def test_in_one_campaign_a_client_is_of_one_kind() -> None:
    each = [certify(kind, delta=1e-6, adjacency=ADD_REMOVE).epsilon for kind in (OFTEN, RARELY)]
    found = certify_heterogeneous([OFTEN, RARELY], delta=1e-6, adjacency=ADD_REMOVE)
    assert found.epsilon == max(each)


def with_local_delta(local_delta: float, *, slots: int, participation: float) -> Design:
    return Design(
        Protocol.FIXED,
        slots=slots,
        participation=participation,
        randomizer=LocalRandomizer(0.5, local_delta),
    )


@pytest.mark.parametrize("adjacency", Adjacency)
def test_over_several_campaigns_the_local_delta_is_charged_for_the_worst_kind(
    adjacency: Adjacency,
) -> None:
    def epsilon(local_delta: float, delta: float) -> float:
        kinds = [
            with_local_delta(local_delta, slots=slots, participation=participation)
            for slots, participation in ((100, 0.4), (10, 0.1))
        ]
        return certify_heterogeneous(kinds, delta=delta, adjacency=adjacency, campaigns=3).epsilon

    local_delta, delta = 1e-8, 1e-6
    found = epsilon(local_delta, delta)
    growth = math.exp(found)
    per_report = growth if adjacency is ADD_REMOVE else (1.0 + growth) * (2.0 + math.exp(0.5))
    left = delta - 3 * 0.4 * local_delta * per_report
    assert found == pytest.approx(epsilon(0.0, left), rel=1e-4)
    assert found > epsilon(0.0, delta)
    kind = with_local_delta(local_delta, slots=100, participation=0.4)
    alone = certify([kind] * 3, delta=delta, adjacency=adjacency, compare=False).epsilon
    assert alone <= found * (1 + 1e-3)


def test_local_deltas_that_exceed_delta_together_are_refused() -> None:
    kinds = [with_local_delta(4e-7, slots=slots, participation=1.0) for slots in (1000, 2000)]
    assert certify_heterogeneous(kinds, delta=1e-6, adjacency=ADD_REMOVE, campaigns=1).epsilon
    with pytest.raises(NotCovered, match="local_delta"):
        certify_heterogeneous(kinds, delta=1e-6, adjacency=ADD_REMOVE, campaigns=3)


def test_kinds_share_their_randomizer() -> None:
    with pytest.raises(InvalidValue, match="kinds"):
        certify_heterogeneous([OFTEN, local(1.0, 40, 0.05)], delta=1e-6, adjacency=ADD_REMOVE)


def pairs_of(*designs: Design) -> list[DominatingPair]:
    rounding = Rounding(side=Side.UP, cells=256, tolerance=1e-18)
    return [campaign_divergence.pair(one, ADD_REMOVE, rounding, delta=1e-6) for one in designs]


@pytest.mark.parametrize(
    "kinds",
    [
        (OFTEN, RARELY),
        (local(0.1, 1000, 0.01), local(0.1, 3, 1e-4)),
        (at_server(1.0, 10, 0.3), at_server(1.0, 100, 1.0), at_server(1.0, 1, 0.02)),
        (at_server(5.0, 1000, 1e-3), at_server(5.0, 1, 1e-6)),
    ],
)
def test_an_envelope_is_the_largest_divergence_in_both_directions(
    kinds: tuple[Design, ...],
) -> None:
    pairs = pairs_of(*kinds)
    above = envelope(pairs)
    assert math.fsum(above.absent) + above.only_absent == pytest.approx(1.0, abs=1e-9)
    assert math.fsum(above.present) + above.only_present == pytest.approx(1.0, abs=1e-9)
    widest = max(float(np.abs(pair.losses).max()) for pair in pairs)
    for epsilon in np.linspace(0.0, 1.1 * widest, 80):
        remove = max(pair.remove(epsilon) for pair in pairs)
        add = max(pair.add(epsilon) for pair in pairs)
        assert remove * (1 - 1e-7) - 1e-18 <= above.remove(epsilon) <= remove * 1.02 + 1e-15
        assert add * (1 - 1e-7) - 1e-18 <= above.add(epsilon) <= add * 1.02 + 1e-15


def test_kinds_with_a_declared_population_have_a_lower_bound_for_any_others() -> None:
    kinds = [
        Design(
            Protocol.FIXED,
            slots=slots,
            participation=1.0,
            capacity=100,
            randomizer=GaussianNoise(0.1, NoiseAt.CLIENT),
            population=Population(1, 5),
        )
        for slots in (100, 90)
    ]
    found = certify_heterogeneous(kinds, delta=1e-6, adjacency=Adjacency.REPLACE_ONE)
    assert found.epsilon_lower_of == OF_ANY_OTHERS
    assert 0.0 < found.epsilon_lower <= found.epsilon
