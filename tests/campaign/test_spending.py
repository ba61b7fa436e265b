"""What is spent grows slot by slot, and a budget says where it ends."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from checkins.accounting import (
    Adjacency,
    Design,
    GaussianNoise,
    LocalRandomizer,
    NoiseAt,
    Population,
    Protocol,
    certify,
)
from checkins.campaign import Budget, Campaign, RandomizerConfig, RandomizerKind, parse_campaign
from checkins.campaign.file import Template, template_text
from checkins.campaign.partial_runs import PartialRun
from checkins.campaign.spending import NO_GRID_CAVEAT, PRIVUNIT_CAVEAT, Spending, certify_runs
from checkins.errors import InvalidValue
from tests.soak import SOAK
from tests.support.campaigns import AT_LEAST_THREE, campaign_text

PATIENTS = parse_campaign(template_text(Template.PATIENTS)).campaign


def local(
    protocol: Protocol = Protocol.FIXED,
    *,
    epsilon: float = 1.0,
    slots: int = 40,
    repeats: int = 1,
    local_epsilon: float = 2.0,
    grid: float | None = 1e-4,
    adjacency: Adjacency = Adjacency.REPLACE_ONE,
) -> Campaign:
    averaged = protocol is Protocol.AVERAGED
    return Campaign(
        name="local",
        population_id="all",
        budget=Budget(epsilon, 1e-6, adjacency),
        design=Design(
            protocol,
            slots=slots,
            participation=1.0,
            randomizer=LocalRandomizer(local_epsilon),
            window=15 if protocol is Protocol.SLIDING else None,
            population=Population(1000, 2000) if averaged else None,
        ),
        repeats=repeats,
        randomizer=RandomizerConfig(RandomizerKind.LAPLACE, clip=1.0, grid=grid),
    )


def server(*, sigma: float = 1.0, epsilon: float = 0.5, grid: float | None = None) -> Campaign:
    noise = GaussianNoise(sigma, NoiseAt.SERVER)
    return replace(
        local(),
        budget=Budget(epsilon, 1e-6, Adjacency.ADD_REMOVE),
        design=Design(Protocol.FIXED, slots=40, participation=1.0, randomizer=noise),
        randomizer=RandomizerConfig(RandomizerKind.GAUSSIAN, clip=1.0, grid=grid),
    )


CAMPAIGNS = {
    "fixed": local(),
    "sliding": local(Protocol.SLIDING),
    "averaged": local(Protocol.AVERAGED),
    "repeated": local(repeats=3),
    "server": server(),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CAMPAIGNS)
def test_epsilon_never_falls_from_slot_to_slot(name: str) -> None:
    spending = Spending(CAMPAIGNS[name])
    every_slot = SOAK or name == "sliding"  # only its participation grows in two ways
    steps = range(1, spending.remaining_slots + 1, 1 if every_slot else 7)
    curve = spending.curve([*steps, spending.remaining_slots])
    for (_, less), (_, more) in pairwise(curve):
        assert less <= more * (1 + 1e-6)


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_all_slots_cost_what_the_campaign_costs(name: str) -> None:
    campaign = CAMPAIGNS[name]
    design = campaign.design
    last = Spending(campaign).after(design.slots, run=campaign.repeats)
    assert last.epsilon == certify_runs([PartialRun.whole(campaign)]).epsilon
    plain = certify(
        design,
        delta=campaign.budget.delta,
        adjacency=campaign.budget.adjacency,
        campaigns=campaign.repeats,
    )
    assert last.epsilon == pytest.approx(plain.epsilon, rel=1e-9)


def test_what_is_spent_after_k_of_m_slots_is_the_epsilon_of_k_slots_at_p0_k_over_m() -> None:
    campaign = local(grid=None)
    found = Spending(campaign).after(10)
    fewer = replace(campaign.design, slots=10, participation=0.25)
    plain = certify(fewer, delta=1e-6, adjacency=Adjacency.REPLACE_ONE)
    assert found.epsilon == plain.epsilon


def test_nothing_is_spent_before_the_first_slot() -> None:
    for campaign in CAMPAIGNS.values():
        assert Spending(campaign).after(0).epsilon == 0.0
    spent = PartialRun(local(), 40)
    assert Spending(server(), ()).after(0).epsilon == 0.0
    assert Spending(local(), (spent,)).after(0).epsilon == Spending(local()).after(40).epsilon


def test_a_sliding_window_is_charged_once_it_is_over() -> None:
    spending = Spending(CAMPAIGNS["sliding"])
    assert spending.after(14).epsilon < spending.after(15).epsilon == spending.after(40).epsilon


@pytest.mark.parametrize(("contributors", "is_free"), [(0, True), (2, True), (3, False)])
def test_too_few_contributors_for_any_slot_spend_nothing(contributors: int, is_free: bool) -> None:
    campaign = parse_campaign(campaign_text(**AT_LEAST_THREE)).campaign
    run = PartialRun(campaign, campaign.design.slots, contributors=contributors)
    assert (run.design is None) is is_free
    assert (certify_runs([run]).epsilon == 0.0) is is_free


def test_averaged_updates_cost_the_same_after_any_slot_and_less_with_more_contributors() -> None:
    spending = Spending(CAMPAIGNS["averaged"])
    assert spending.after(1).epsilon == spending.after(40).epsilon
    few, planned, many = (
        spending.after(40, contributors=count).epsilon for count in (500, 1000, 5000)
    )
    assert few > planned > many
    assert planned == spending.after(40).epsilon
    assert spending.after(40, contributors=0).epsilon == 0.0
    with pytest.raises(InvalidValue, match="requires averaged updates"):
        Spending(local()).after(40, contributors=5)


@pytest.mark.slow
def test_earlier_runs_and_campaigns_are_composed() -> None:
    thrice = Spending(CAMPAIGNS["repeated"])
    second = thrice.after(10, run=2)
    assert thrice.after(40, run=1).epsilon < second.epsilon < thrice.after(40, run=2).epsilon
    one = PartialRun(replace(CAMPAIGNS["repeated"], repeats=1), 40)
    assert Spending(one.campaign, (one,)).after(10).epsilon == pytest.approx(second.epsilon)
    parts = certify_runs([one, PartialRun(local(slots=10), 5)])
    assert (
        parts.epsilon
        < certify_runs([one]).epsilon + certify_runs([PartialRun(local(slots=10), 5)]).epsilon
    )


def test_campaigns_that_are_composed_must_share_delta_and_adjacency() -> None:
    other = local(adjacency=Adjacency.ADD_REMOVE)
    with pytest.raises(InvalidValue, match="adjacency"):
        certify_runs([PartialRun(local(), 40), PartialRun(other, 40)])


@pytest.mark.parametrize(("slots", "run"), [(-1, 1), (41, 1), (2.0, 1), (1, 0), (1, 2), (True, 1)])
def test_slots_and_runs_that_do_not_exist_are_refused(slots: int, run: int) -> None:
    with pytest.raises(InvalidValue):
        Spending(local()).after(slots, run=run)


@pytest.mark.parametrize("epsilon", [0.05, 0.2, 0.5, 0.9, 1.2])
@pytest.mark.parametrize("protocol", [Protocol.FIXED, Protocol.SLIDING])
def test_the_slots_that_a_budget_affords_fit_and_one_more_does_not(
    protocol: Protocol, epsilon: float
) -> None:
    spending = Spending(local(protocol, epsilon=epsilon))
    affordable = spending.affordable_slots
    assert spending.after(affordable).epsilon <= epsilon
    assert spending.within_budget == (affordable == spending.remaining_slots)
    if affordable < spending.remaining_slots:
        assert spending.after(affordable + 1).epsilon > epsilon


@pytest.mark.slow
def test_repeats_are_counted_from_the_first_slot_of_the_first_run() -> None:
    campaign = local(epsilon=2.0, repeats=5)
    spending = Spending(campaign)
    affordable = spending.affordable_slots
    runs, slots = divmod(affordable, 40)
    assert 0 < runs < 5
    assert spending.affordable_slots_in_run(run=runs) == 40
    assert spending.affordable_slots_in_run(run=runs + 1) == slots
    assert spending.after(slots, run=runs + 1).epsilon <= 2.0
    assert spending.after(slots + 1, run=runs + 1).epsilon > 2.0


def test_a_budget_that_allows_no_slot_affords_none() -> None:
    assert Spending(local(epsilon=1e-9)).affordable_slots == 0
    spent = PartialRun(local(), 40)
    assert Spending(local(epsilon=0.5), (spent,)).affordable_slots == 0
    assert Spending(local(Protocol.AVERAGED, epsilon=1e-3)).affordable_slots == 0


def test_gaussian_noise_at_the_server_affords_slots_too() -> None:
    spending = Spending(server(sigma=2.0, epsilon=0.25))
    affordable = spending.affordable_slots
    assert 0 < affordable < 40
    assert spending.epsilon_after(affordable) <= 0.25 < spending.epsilon_after(affordable + 1)


@pytest.mark.slow
def test_many_repeats_are_composed_as_one_design() -> None:
    spending = Spending(local(repeats=100_000, local_epsilon=0.01, slots=1000, grid=1e-3))
    whole = spending.after(1000, run=5000).epsilon
    assert spending.after(1, run=5000).epsilon == whole
    with pytest.raises(InvalidValue, match="makes a list of"):
        certify_runs([PartialRun(local(repeats=2000), 40, times=2000), PartialRun(local(), 3)])


@pytest.mark.slow
def test_a_curve_names_its_places_or_has_twenty() -> None:
    spending = Spending(local())
    assert [slots for slots, _ in spending.curve([1, 7])] == [1, 7]
    assert [slots for slots, _ in spending.curve()] == list(range(2, 41, 2))
    assert [slots for slots, _ in Spending(local(slots=3)).curve()] == [1, 2, 3]


def test_the_grid_is_charged_to_delta() -> None:
    run = PartialRun.whole(PATIENTS)
    assert 0.0 < run.variation < 1e-20
    (line,) = (line for line in certify_runs([run]).assumptions if "total variation" in line)
    assert "to delta" in line
    assert replace(run, times=3).variation == pytest.approx(3 * run.variation)
    assert PartialRun(PATIENTS, 1).variation == run.variation


@pytest.mark.parametrize("steps", [3.0001, 6.0, 1e2, 1e6])
def test_no_grid_that_is_allowed_costs_much(steps: float) -> None:
    randomizer = replace(PATIENTS.randomizer, grid=0.1 / steps)
    assert 0.0 < PartialRun.whole(replace(PATIENTS, randomizer=randomizer)).variation < 1e-20


def test_every_noise_that_is_drawn_is_charged() -> None:
    at_server = server(grid=0.3)
    noise = GaussianNoise(1.0, NoiseAt.CLIENT)
    at_clients = replace(
        at_server,
        design=Design(Protocol.FIXED, slots=40, participation=1.0, randomizer=noise, capacity=50),
    )
    one, fifty = (PartialRun.whole(campaign).variation for campaign in (at_server, at_clients))
    assert fifty >= 50 * one * (1 - 1e-12) > 0.0


def test_a_campaign_without_a_grid_says_that_it_can_only_be_simulated() -> None:
    assert NO_GRID_CAVEAT in Spending(local(grid=None)).after(40).assumptions
    assert NO_GRID_CAVEAT not in Spending(local()).after(40).assumptions
    privunit = replace(local(), randomizer=RandomizerConfig(RandomizerKind.PRIVUNIT, clip=1.0))
    assert PRIVUNIT_CAVEAT in Spending(privunit).after(40).assumptions
    response = replace(
        local(), randomizer=RandomizerConfig(RandomizerKind.RANDOMIZED_RESPONSE, categories=3)
    )
    assert not {NO_GRID_CAVEAT, PRIVUNIT_CAVEAT} & set(Spending(response).after(40).assumptions)
    assert PartialRun.whole(response).variation == 0.0
