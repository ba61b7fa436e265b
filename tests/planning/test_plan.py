"""A plan keeps what it promises, and what it writes can be run."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest

from checkins.accounting import Adjacency, NoiseAt, Population, Protocol, certify
from checkins.accounting.precision import Target
from checkins.campaign import PartialRun, RandomizerKind, certify_runs, parse_campaign
from checkins.planning import Constraints, Devices, Question, Server, make_plan
from checkins.planning.cost_model import dominates
from checkins.planning.search_space import contributors
from tests.planning.plans import QUESTIONS, ask, plan
from tests.soak import SOAK, only_in_soak

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
        assert not any(dominates(other.objectives, one.objectives) for other in front)
    assert [one.metrics.proxy for one in front] == sorted(one.metrics.proxy for one in front)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_fixed_is_what_is_planned(name: str) -> None:
    asked = QUESTIONS[name]
    for design in plan(name).front:
        for field in fields(Constraints):
            wanted = getattr(asked.fixed, field.name)
            if wanted is not None:
                assert getattr(design.candidate, field.name) == wanted, field.name


@pytest.mark.parametrize("name", NAMES)
def test_the_campaign_that_is_written_is_the_campaign_that_was_planned(name: str) -> None:
    found = plan(name)
    again = parse_campaign(found.text).campaign
    assert again == found.campaign
    assert again.seal == found.campaign.seal
    assert again.design == found.recommended.candidate.design(found.recommended.level)
    assert again.repeats == found.recommended.candidate.repeats


@pytest.mark.parametrize("name", NAMES)
def test_time_and_server_are_kept(name: str) -> None:
    asked = QUESTIONS[name]
    for design in plan(name).front:
        assert design.metrics.duration_s <= asked.server.duration_s * (1 + 1e-9)
        most = design.metrics.slot_load.server_updates_per_s
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
def test_each_reason_cites_a_theorem_or_a_page(name: str) -> None:
    found = plan(name).reasons
    assert len(found) >= 4
    for reason in found:
        assert reason.sentence.endswith(".")
        assert "docs/" in reason.theorem or "paper, " in reason.theorem


@pytest.mark.slow
@pytest.mark.parametrize("name", ["add-remove", "client", "crowded", "laplace", "sliding", "many"])
def test_an_independent_certificate_agrees_with_every_design_of_the_front(name: str) -> None:
    for design in plan(name).front:
        certificate = certify(
            design.candidate.design(design.level),
            delta=design.target.delta,
            adjacency=design.target.adjacency,
            campaigns=design.candidate.repeats,
            compare=False,
        )
        assert certificate.epsilon <= design.epsilon * (1 + 1e-12), design.label  # last bits
        assert design.candidate.method(design.target) == certificate.method


@pytest.mark.slow
@pytest.mark.parametrize("name", ["replace-one", "repeated", "averaged"])
def test_an_independent_certificate_agrees_where_one_is_replaced(name: str) -> None:
    found = plan(name)
    assert certify_runs([PartialRun.whole(found.campaign)]).epsilon <= QUESTIONS[name].epsilon
    for design in found.front[: 3 if SOAK else 1]:  # the recommended one was certified above
        certificate = certify(
            design.candidate.design(design.level),
            delta=design.target.delta,
            adjacency=design.target.adjacency,
            campaigns=design.candidate.repeats,
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
    for epsilon in (0.3, 1.0, 3.0) if SOAK else (0.3, 3.0):
        asked = ask(epsilon, type(QUESTIONS["many"].adjacency)(adjacency))
        best.append(make_plan(asked).front[0].metrics.proxy)
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
    assert found.recommended.candidate.slots in slots


def test_what_devices_cannot_run_is_not_recommended_unless_asked_for() -> None:
    assert plan("add-remove").recommended.can_run
    assert all(design.can_run for design in plan("add-remove").front)


@pytest.mark.parametrize(
    ("population", "dimension", "availability_s"), [((2_000, 4_000), 5, 10.0), ((500, 800), 2, 5.0)]
)
def test_averaged_updates_count_only_available_contributors(
    population: tuple[int, int], dimension: int, availability_s: float
) -> None:
    """A run that outlasts its devices has fewer contributors than there are clients."""
    found = make_plan(
        Question(
            Population(*population),
            1.0,
            1e-6,
            Adjacency.REPLACE_ONE,
            dimension=dimension,
            devices=Devices(availability_s=availability_s),
            server=Server(updates_per_s=5_000.0),
            fixed=Constraints(protocol=Protocol.AVERAGED, randomizer=RandomizerKind.LAPLACE),
        )
    )
    candidate = found.recommended.candidate
    assert candidate.population is not None
    assert candidate.population.fewest == contributors(candidate, found.question)


def test_a_design_whose_epsilon_depends_on_the_population_says_so() -> None:
    """A capacity a little above the mean load: a slot overflows now and then."""
    fixed = Constraints(
        protocol=Protocol.FIXED,
        slots=10,
        capacity=677,
        repeats=1,
        participation=1.0,
        noise_at=NoiseAt.CLIENT,
        randomizer=RandomizerKind.GAUSSIAN,
    )
    asked = Question(
        Population(5_642, 5_642), 0.4, 1e-6, Adjacency.ADD_REMOVE, dimension=100, fixed=fixed
    )
    found = make_plan(asked)
    assert found.as_json()["recommended"]["method"] == found.certificate.method
    declared = found.campaign.design.population
    assert (declared is not None) == (found.certificate.method == "exact-population")
    twice = found.sensitivity[-1]
    crowded = replace(found.campaign.design, population=Population(11_284, 11_284))
    true = certify(crowded, delta=1e-6, adjacency=Adjacency.ADD_REMOVE, compare=False)
    assert twice.epsilon >= true.epsilon * 0.99


@pytest.mark.slow
@pytest.mark.parametrize(
    ("slots", "epsilon"), [(50, 0.3), pytest.param(100, 0.2, marks=only_in_soak)]
)
def test_the_full_certificate_keeps_the_budget_of_a_plan_with_a_coarse_one(
    slots: int, epsilon: float
) -> None:
    fixed = Constraints(protocol=Protocol.FIXED, slots=slots, repeats=20, noise_at=NoiseAt.SERVER)
    asked = Question(
        Population(100_000, 100_000),
        epsilon,
        1e-6,
        Adjacency.REPLACE_ONE,
        dimension=10,
        fixed=fixed,
    )
    found = make_plan(asked)
    assert certify_runs([PartialRun.whole(found.campaign)]).epsilon <= epsilon
