"""A plan keeps what it promises, and what it writes can be run."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest

from checkins.accounting import certify
from checkins.planning import Fixed, make_plan
from checkins.planning.front import dominates
from checkins.planning.target import Target
from checkins.protocol.campaign import RunSoFar, parse_campaign, price
from tests.planning.plans import QUESTIONS, ask, plan

QUICK = ("add-remove", "client", "laplace")
NAMES = [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in QUESTIONS
]

DESIGN = {
    *("protocol", "slots", "participation", "capacity", "window", "minibatch", "repeats"),
    *("noise_at", "randomizer", "noise_multiplier", "local_epsilon", "epsilon", "delta"),
    *("adjacency", "method", "rounding", "proxy", "proxy_kind", "noise_per_step", "steps"),
    *("clients_per_step", "dummies_share", "duration_s", "slot_s", "upload_bytes_per_client"),
    *("share_of_clients_that_upload", "server_updates_per_s", "label"),
}


@pytest.mark.parametrize("name", NAMES)
def test_every_epsilon_is_within_the_budget(name: str) -> None:
    found, asked = plan(name), QUESTIONS[name]
    assert found.certificate.epsilon <= asked.epsilon
    assert all(0.0 < design.epsilon <= asked.epsilon for design in found.front)
    assert {design.target.delta for design in found.front} == {asked.delta}


@pytest.mark.parametrize("name", NAMES)
def test_no_design_of_the_front_dominates_another(name: str) -> None:
    front = plan(name).front
    assert 1 <= len(front) <= 12
    assert plan(name).recommended in front
    for one in front:
        assert not any(dominates(other.axes, one.axes) for other in front)
    assert [one.figures.proxy for one in front] == sorted(one.figures.proxy for one in front)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_fixed_is_what_is_planned(name: str) -> None:
    asked = QUESTIONS[name]
    for design in plan(name).front:
        for field in fields(Fixed):
            wanted = getattr(asked.fixed, field.name)
            if wanted is not None:
                assert getattr(design.shape, field.name) == wanted, field.name


@pytest.mark.parametrize("name", NAMES)
def test_the_campaign_that_is_written_is_the_campaign_that_was_planned(name: str) -> None:
    found = plan(name)
    again = parse_campaign(found.text).campaign
    assert again == found.campaign
    assert again.seal == found.campaign.seal
    assert again.design == found.recommended.shape.design(found.recommended.level)
    assert again.repeats == found.recommended.shape.repeats


@pytest.mark.parametrize("name", NAMES)
def test_time_and_server_are_kept(name: str) -> None:
    asked = QUESTIONS[name]
    for design in plan(name).front:
        assert design.figures.duration_s <= asked.server.duration_s * (1 + 1e-9)
        most = design.figures.turnout.server_updates_per_s
        assert most <= asked.server.updates_per_s * 1.001


@pytest.mark.parametrize("name", NAMES)
def test_the_json_of_a_plan_is_plain_and_complete(name: str) -> None:
    found = json.loads(json.dumps(plan(name).as_json(), allow_nan=False))
    assert set(found) == {
        *("question", "recommended", "front", "reasons", "sensitivity", "curves", "campaign"),
        *("certificate", "seconds", "versions"),
    }
    assert {"population", "epsilon", "delta", "adjacency", "dimension"} <= set(found["question"])
    assert {"devices", "server", "fixed"} <= set(found["question"])
    for design in (found["recommended"], *found["front"]):
        assert set(design) >= DESIGN
        assert (design["noise_multiplier"] is None) != (design["local_epsilon"] is None)
    assert found["recommended"] in found["front"]
    assert [row["factor"] for row in found["sensitivity"]] == [0.5, 1.0, 2.0]
    for row in found["sensitivity"]:
        assert set(row) >= {"population", "proxy", "dummies_share", "epsilon", "sentence"}
    level = "noise_multiplier" if found["recommended"]["noise_multiplier"] else "local_epsilon"
    for point in found["curves"]["slots"]:
        assert set(point) >= {"slots", level, "noise_per_step", "dummies_share", "proxy"}
    for point in found["curves"]["budget"]:
        assert set(point) >= {"epsilon", "noise_per_step", "proxy"}
    assert found["certificate"]["epsilon"] <= found["question"]["epsilon"]


@pytest.mark.parametrize("name", NAMES)
def test_each_reason_names_what_is_behind_it(name: str) -> None:
    found = plan(name).reasons
    assert len(found) >= 4
    for reason in found:
        assert reason.sentence.endswith(".")
        assert "docs/" in reason.theorem or "thm:" in reason.theorem


@pytest.mark.slow
@pytest.mark.parametrize("name", ["add-remove", "client", "crowded", "laplace", "sliding", "many"])
def test_an_independent_certificate_agrees_with_every_design_of_the_front(name: str) -> None:
    for design in plan(name).front:
        certificate = certify(
            design.shape.design(design.level),
            delta=design.target.delta,
            adjacency=design.target.adjacency,
            campaigns=design.shape.repeats,
            compare=False,
        )
        assert certificate.epsilon <= design.epsilon, design.label
        assert design.target.method(design.shape) == certificate.method


@pytest.mark.slow
@pytest.mark.parametrize("name", ["replace-one", "repeated", "averaged"])
def test_an_independent_certificate_agrees_where_one_is_replaced(name: str) -> None:
    found = plan(name)
    assert price([RunSoFar.whole(found.campaign)]).epsilon <= QUESTIONS[name].epsilon
    for design in found.front[:3]:
        certificate = certify(
            design.shape.design(design.level),
            delta=design.target.delta,
            adjacency=design.target.adjacency,
            campaigns=design.shape.repeats,
            compare=False,
        )
        assert certificate.epsilon <= design.epsilon, design.label


@pytest.mark.parametrize(
    "name", ["add-remove", pytest.param("replace-one", marks=pytest.mark.slow)]
)
def test_the_budget_is_used_up(name: str) -> None:
    found = plan(name)
    assert found.certificate.epsilon >= 0.95 * QUESTIONS[name].epsilon


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_a_bigger_budget_never_has_a_worse_proxy(adjacency: str) -> None:
    best = []
    for epsilon in (0.3, 1.0, 3.0):
        asked = ask(epsilon, type(QUESTIONS["many"].adjacency)(adjacency))
        best.append(make_plan(asked).front[0].figures.proxy)
    assert best == sorted(best, reverse=True)


@pytest.mark.parametrize("name", NAMES)
def test_the_curve_of_budgets_falls(name: str) -> None:
    proxies = [point["proxy"] for point in plan(name).curves["budget"]]
    assert proxies == sorted(proxies, reverse=True)


def test_points_of_the_slots_curve_are_proven_at_the_budget() -> None:
    found = plan("client")
    target = Target(1.0, 1e-6, QUESTIONS["client"].adjacency)
    assert target.epsilon == 1.0
    slots = [point["slots"] for point in found.curves["slots"]]
    assert slots == sorted(set(slots))
    assert found.recommended.shape.slots in slots


def test_what_devices_cannot_run_is_not_recommended_unless_asked_for() -> None:
    assert plan("add-remove").recommended.can_run
    assert all(design.can_run for design in plan("add-remove").front)
