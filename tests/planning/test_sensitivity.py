"""What a plan says of other populations is what another computation says."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from checkins.accounting import Population, certify
from checkins.planning.cost_model import design_metrics
from tests.planning.plans import QUESTIONS, plan


@pytest.mark.parametrize("name", ["add-remove", "laplace", "client"])
def test_rows_are_the_same_campaign_with_other_clients(name: str) -> None:
    found = plan(name)
    best = found.recommended
    for row in found.sensitivity:
        assert row.population == pytest.approx(QUESTIONS[name].clients * row.factor, abs=1)
        again = design_metrics(
            best.candidate,
            best.level,
            QUESTIONS[name],
            clients=row.population,
            slot_s=best.metrics.slot_load.slot_s,
        )
        assert row.proxy == again.proxy
        assert row.dummies_share == again.slot_load.dummies_share
        assert f"{row.population:,}" in row.sentence
        if row.factor != 1.0:
            times = again.noise_per_step / best.metrics.noise_per_step
            assert f"{times:.2f} times" in row.sentence


@pytest.mark.parametrize("name", ["add-remove", "laplace"])
def test_most_epsilons_do_not_depend_on_the_population(name: str) -> None:
    found = plan(name)
    assert {row.epsilon for row in found.sensitivity} == {found.certificate.epsilon}
    assert all("does not depend on the number" in row.sentence for row in found.sensitivity)
    assert found.campaign.design.population is None


def test_more_clients_than_declared_have_the_epsilon_of_a_full_slot() -> None:
    found = plan("client")
    half, same, twice = found.sensitivity
    assert found.certificate.method == "exact-population"
    assert half.epsilon == same.epsilon == found.certificate.epsilon
    assert "epsilon is the same" in half.sentence
    crowded = replace(found.campaign.design, population=None)
    budget = found.campaign.budget
    certified = certify(
        crowded, delta=budget.delta, adjacency=budget.adjacency, compare=False
    ).epsilon
    assert twice.epsilon > found.certificate.epsilon
    assert certified <= twice.epsilon <= 1.05 * certified
    assert "displace" in twice.sentence


@pytest.mark.slow
def test_fewer_contributors_hide_a_client_less() -> None:
    found = plan("averaged")
    half, same, twice = found.sensitivity
    assert same.epsilon == twice.epsilon == found.certificate.epsilon
    declared = found.campaign.design.population
    assert declared is not None
    fewer = Population(declared.fewest // 2, declared.most)
    budget = found.campaign.budget
    certified = certify(
        replace(found.campaign.design, population=fewer),
        delta=budget.delta,
        adjacency=budget.adjacency,
        compare=False,
    ).epsilon
    assert certified <= half.epsilon <= 1.02 * certified
    assert half.epsilon > found.certificate.epsilon
    assert "contribute" in half.sentence


@pytest.mark.slow
def test_a_server_that_cannot_keep_up_is_reported() -> None:
    *_, twice = plan("many").sensitivity
    assert twice.server_updates_per_s > QUESTIONS["many"].server.updates_per_s
    assert "more than the server can process" in twice.sentence
    assert math.isfinite(twice.epsilon)
