"""Baselines spend at most what the campaign spends, by accountants that are not their own."""

from __future__ import annotations

import math
from dataclasses import replace

import dp_accounting as dp
import pytest
from dp_accounting.pld import PLDAccountant

from checkins.accounting import (
    Adjacency,
    Certificate,
    Design,
    GaussianNoise,
    LocalRandomizer,
    NoiseAt,
    Protocol,
    certify,
)
from checkins.accounting.comparisons import shuffling_epsilon
from checkins.campaign import Campaign, PartialRun, certify_runs
from checkins.randomizers import Gaussian, Laplace, PrivUnit
from checkins.simulation.baselines import (
    BASELINE_DESCRIPTIONS,
    Baseline,
    CalibratedBaseline,
    calibrate_baseline,
)
from checkins.simulation.engine.mechanism import Mechanism
from checkins.simulation.population import Sampling
from tests.simulation import tiny

DIMENSION = 3
SERVER = tiny.GAUSSIAN.replace('"client"', '"server"').replace("0.5", "1.5")
LAPLACE = '[randomizer]\nkind = "laplace"\nlocal_epsilon = 2.0\nclip = 1.0\n'
PRIVUNIT = LAPLACE.replace("laplace", "privunit")
ALL = tiny.PROTOCOL.replace("12", '"all"')
AVERAGED = tiny.PROTOCOL.replace("fixed", "averaged").replace("capacity = 12\n", "")
SLIDING = tiny.PROTOCOL.replace("fixed", "sliding") + "window = 3\n"


def of(
    baseline: Baseline, campaign: Campaign, *, clients: int = tiny.CLIENTS
) -> tuple[CalibratedBaseline, Certificate]:
    certificate = certify_runs([PartialRun.whole(campaign)])
    method = Mechanism.of(campaign, DIMENSION)
    found = calibrate_baseline(baseline, method, certificate, clients=clients, dimension=DIMENSION)
    return found, certificate


def mechanism_of(found: CalibratedBaseline) -> Mechanism:
    assert found.unavailable is None
    assert found.mechanism is not None
    return found.mechanism


def test_every_baseline_is_explained_in_one_sentence() -> None:
    assert set(BASELINE_DESCRIPTIONS) == set(Baseline)


def test_non_private_learning_has_no_epsilon_and_no_mechanism() -> None:
    found, _ = of(Baseline.NON_PRIVATE, tiny.campaign())
    assert found == CalibratedBaseline(Baseline.NON_PRIVATE, None, None, None)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [tiny.text(), tiny.text(randomizer=SERVER, protocol=tiny.PROTOCOL + "repeats = 3\n")],
    ids=["client", "server, three times"],
)
def test_poisson_costs_at_most_the_campaign_by_dp_accounting_too(text: str) -> None:
    campaign = tiny.campaign(text)
    found, certificate = of(Baseline.POISSON, campaign)
    mechanism = mechanism_of(found)
    assert isinstance(mechanism.randomizer, Gaussian)
    noise = mechanism.randomizer.noise_multiplier

    def certified(noise: float) -> float:
        accountant = PLDAccountant(value_discretization_interval=1e-4)
        step = dp.PoissonSampledDpEvent(1 / tiny.SLOTS, dp.GaussianDpEvent(noise))
        accountant.compose(step, tiny.SLOTS * campaign.repeats)
        return float(accountant.get_epsilon(certificate.delta))

    assert certified(noise) <= certificate.epsilon * (1 + 1e-4)
    assert certified(noise / 1.001) > certificate.epsilon  # and no more noise than that takes
    assert (mechanism.sampling, mechanism.noise_at) == (Sampling.POISSON, NoiseAt.SERVER)
    assert (mechanism.runs, mechanism.design.slots) == (campaign.repeats, tiny.SLOTS)
    assert (found.epsilon, found.delta) == (certificate.epsilon, certificate.delta)
    assert found.adjacency is Adjacency.ADD_REMOVE


@pytest.mark.parametrize("randomizer", [tiny.GAUSSIAN, LAPLACE, PRIVUNIT])
def test_shuffling_costs_at_most_the_campaign(randomizer: str) -> None:
    campaign = tiny.campaign(tiny.text(randomizer=randomizer))
    found, certificate = of(Baseline.SHUFFLING, campaign)
    mechanism = mechanism_of(found)
    assert isinstance(mechanism.randomizer, Laplace if randomizer is LAPLACE else PrivUnit)
    private = mechanism.randomizer.local_epsilon

    def spent(local: float) -> float:
        return shuffling_epsilon(local, clients=tiny.CLIENTS, delta=certificate.delta)

    assert spent(private) <= certificate.epsilon < spent(private * 1.001)
    assert found.adjacency is Adjacency.REPLACE_ONE  # said, whatever the campaign's is
    assert mechanism.design.slots * (mechanism.design.capacity or 0) >= tiny.CLIENTS
    assert mechanism.sampling is Sampling.SHUFFLED


def test_shuffling_of_fewer_clients_than_slots_takes_one_step_for_each() -> None:
    mechanism = mechanism_of(of(Baseline.SHUFFLING, tiny.campaign(), clients=4)[0])
    assert (mechanism.design.slots, mechanism.design.capacity) == (4, 1)


@pytest.mark.parametrize(
    "text",
    [
        tiny.text(),
        tiny.text(protocol=SLIDING),
        tiny.text(protocol=AVERAGED, adjacency="replace-one"),
        tiny.text(protocol=ALL, randomizer=SERVER),
        pytest.param(
            tiny.text(protocol=ALL + "repeats = 3\n", randomizer=SERVER, adjacency="replace-one"),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["capacity", "sliding", "averaged", "all", "all, replace-one, three times"],
)
def test_without_amplification_the_noise_is_that_of_a_public_slot(text: str) -> None:
    campaign = tiny.campaign(
        text.replace('"replace-one"\n', '"replace-one"\npopulation = [50, 70]\n')
    )
    found, certificate = of(Baseline.NO_AMPLIFICATION, campaign)
    mechanism = mechanism_of(found)
    assert isinstance(mechanism.randomizer, Gaussian)
    noise = mechanism.randomizer.noise_multiplier

    def known(noise: float) -> float:
        design = Design(
            Protocol.FIXED,
            slots=1,
            participation=1.0,
            randomizer=GaussianNoise(noise, NoiseAt.SERVER),
        )
        return certify(
            design,
            delta=certificate.delta,
            adjacency=certificate.adjacency,
            campaigns=campaign.repeats,
        ).epsilon

    assert known(noise) <= certificate.epsilon < known(noise / 1.01)
    assert mechanism.noise_at is NoiseAt.SERVER
    assert mechanism.design.capacity is None  # nobody is kept out, so nobody shows by that
    own = Mechanism.of(campaign, DIMENSION)
    assert (mechanism.design.slots, mechanism.divide_by) == (own.design.slots, own.divide_by)
    assert (mechanism.runs, mechanism.sampling) == (own.runs, own.sampling)
    if own.noise_at is NoiseAt.SERVER:
        assert isinstance(own.randomizer, Gaussian)
        assert own.randomizer.noise_multiplier < noise  # what check-ins save


@pytest.mark.parametrize("randomizer", [LAPLACE, PRIVUNIT])
def test_without_amplification_a_pure_report_has_the_whole_epsilon(randomizer: str) -> None:
    found, certificate = of(
        Baseline.NO_AMPLIFICATION, tiny.campaign(tiny.text(randomizer=randomizer))
    )
    mechanism = mechanism_of(found)
    assert isinstance(mechanism.randomizer, Laplace | PrivUnit)
    local = mechanism.randomizer.local_epsilon
    assert local < 2.0
    known = Design(Protocol.FIXED, slots=1, participation=1.0, randomizer=LocalRandomizer(local))
    spent = certify(known, delta=certificate.delta, adjacency=certificate.adjacency)
    assert certificate.epsilon * 0.999 <= spent.epsilon <= certificate.epsilon


@pytest.mark.parametrize(
    ("baseline", "text", "why"),
    [
        (Baseline.POISSON, tiny.text(adjacency="replace-one"), "add-remove"),
        (Baseline.POISSON, tiny.text(randomizer=LAPLACE), "Gaussian noise"),
        (Baseline.SHUFFLING, tiny.text(protocol=tiny.PROTOCOL + "repeats = 2\n"), "one report"),
    ],
)
def test_an_unavailable_baseline_gives_the_reason(baseline: Baseline, text: str, why: str) -> None:
    found, _ = of(baseline, tiny.campaign(text))
    assert found.mechanism is None
    assert found.unavailable is not None
    assert why in found.unavailable


@pytest.mark.parametrize("baseline", Baseline)
def test_at_an_unbounded_epsilon_only_non_private_learning_is_compared(baseline: Baseline) -> None:
    campaign = tiny.campaign()
    unbounded = replace(certify_runs([PartialRun.whole(campaign)]), epsilon=math.inf)
    method = Mechanism.of(campaign, DIMENSION)
    found = calibrate_baseline(
        baseline, method, unbounded, clients=tiny.CLIENTS, dimension=DIMENSION
    )
    assert (found.unavailable is None) == (baseline is Baseline.NON_PRIVATE)
