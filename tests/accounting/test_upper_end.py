"""Half of the work for half of the answer: the upper end alone is the same number."""

from __future__ import annotations

import pytest

from checkins.accounting import (
    Adjacency,
    composition,
)
from checkins.accounting.bounds import Campaigns
from checkins.accounting.exact import campaign_divergence
from tests.accounting.designs import at_server, local, roomy

DELTA = 1e-6
DESIGNS = {
    "gaussian": at_server(0.8, 12, 0.8),
    "pure": local(2.0, 40),
    "roomy": roomy(0.2, 8, capacity=60, most=200),
}


@pytest.mark.parametrize("name", DESIGNS)
@pytest.mark.parametrize("adjacency", Adjacency)
def test_the_upper_end_alone_is_that_of_the_interval(name: str, adjacency: Adjacency) -> None:
    divergence = campaign_divergence.divergence(DESIGNS[name], adjacency, delta=DELTA, cells=150)
    assert divergence.upper_epsilon(DELTA) == divergence.epsilon(DELTA).upper


def test_it_is_so_where_a_population_is_declared() -> None:
    divergence = campaign_divergence.with_population(
        DESIGNS["roomy"], Adjacency.ADD_REMOVE, delta=DELTA, cells=150
    )
    assert divergence is not None
    assert divergence.upper_epsilon(DELTA) == divergence.epsilon(DELTA).upper


@pytest.mark.parametrize("name", DESIGNS)
def test_it_is_so_for_several_campaigns(name: str) -> None:
    given = ((DESIGNS[name],), Adjacency.ADD_REMOVE)
    both = composition.Composition(*given, 3).epsilon(DELTA)
    assert composition.Composition(*given, 3).upper_epsilon(DELTA) == both.upper


@pytest.mark.parametrize("name", ["gaussian", "pure"])
@pytest.mark.parametrize("adjacency", Adjacency)
def test_a_quick_look_never_rules_out_what_is_proven(name: str, adjacency: Adjacency) -> None:
    mechanism = Campaigns((DESIGNS[name],), adjacency, 1)
    least = min(bound.epsilon.upper for bound in mechanism.bounds(DELTA))
    assert not mechanism.proves_larger_epsilon(least, DELTA)
    assert mechanism.proves_larger_epsilon(0.5 * least, DELTA)


def test_several_campaigns_are_never_ruled_out_by_it() -> None:
    mechanism = Campaigns((DESIGNS["gaussian"],), Adjacency.ADD_REMOVE, 3)
    assert not mechanism.proves_larger_epsilon(1e-3, DELTA)
