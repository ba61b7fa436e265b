"""Averaged Gaussian reports: a slot with too few is skipped, and the noise of the others counts.

The reference is the density of two slots on a grid of points.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from checkins.accounting import (
    Adjacency,
    Design,
    GaussianNoise,
    LocalRandomizer,
    NoiseAt,
    Parameter,
    Population,
    Protocol,
    calibrate,
    certify,
    certify_heterogeneous,
)
from checkins.accounting.exact import campaign_divergence
from checkins.accounting.exact.gaussian import report_epsilon, shifted_delta
from checkins.accounting.filters import Block, Filter, filtered_epsilon
from checkins.campaign import parse_campaign
from checkins.campaign.partial_runs import PartialRun
from checkins.errors import InvalidValue, NotCovered
from checkins.randomizers import grid
from tests.soak import examples
from tests.support.campaigns import AT_LEAST_THREE, AVERAGED, campaign, campaign_text

REPLACE_ONE = Adjacency.REPLACE_ONE


def averaged(noise: float = 2.0, least_reports: int | None = 5, **given_: Any) -> Design:
    base: dict[str, Any] = {
        "slots": 100,
        "participation": 1.0,
        "randomizer": GaussianNoise(noise, NoiseAt.CLIENT),
        "population": Population(1000, 2000),
        "least_reports": least_reports,
    }
    return Design(Protocol.AVERAGED, **{**base, **given_})


def certified(design: Design, **given_: Any) -> float:
    return certify(
        design, adjacency=REPLACE_ONE, compare=False, **{"delta": 1e-6, **given_}
    ).epsilon


@pytest.mark.parametrize(
    ("least_reports", "epsilon"), [(None, 4.887), (1, 4.887), (5, 1.995), (10, 1.368), (20, 0.9405)]
)
def test_the_published_epsilons_are_met(least_reports: int | None, epsilon: float) -> None:
    assert certified(averaged(2.0, least_reports)) == pytest.approx(epsilon, abs=5e-4)


@pytest.mark.slow
@example(noise=0.3, least_reports=1, delta=1e-9)
@example(noise=0.3, least_reports=1000, delta=1e-3)
@example(noise=20.0, least_reports=1, delta=1e-3)
@example(noise=20.0, least_reports=1000, delta=1e-9)
@examples(6, soak=250)
@given(
    noise=st.floats(0.3, 20.0),
    least_reports=st.integers(1, 1000),
    delta=st.sampled_from([1e-9, 1e-6, 1e-3]),
)
def test_the_epsilon_is_that_of_one_report_with_their_noise(
    noise: float, least_reports: int, delta: float
) -> None:
    """And of several campaigns, that of one report with the noise of one part."""
    what = averaged(noise, least_reports, slots=7)
    exact = report_epsilon(noise * math.sqrt(least_reports), delta)
    assert exact * (1 - 1e-6) <= certified(what, delta=delta) <= exact * (1 + 1e-6)
    thrice = report_epsilon(noise * math.sqrt(least_reports / 3.0), delta)
    assert thrice <= certified(what, delta=delta, campaigns=3) <= thrice * 1.005


def test_the_epsilon_depends_on_neither_slots_nor_population() -> None:
    for changed in (averaged(slots=1), averaged(population=Population(6, 10**6))):
        assert certified(changed) == certified(averaged())


def delta_of_two_slots(
    epsilon: float, noise: float, loads: tuple[int, int], least_reports: int
) -> float:
    """Delta of a client with update 1 against -1, which is in a slot in proportion to its load."""
    points = np.linspace(-14.0, 14.0, 561)
    width = points[1] - points[0]
    densities = []
    for load in loads:
        deviation = noise * math.sqrt(load)
        usual = np.exp(-(points**2) / 2) / math.sqrt(2 * math.pi) * width
        if load < least_reports:  # skipped: the slot shows nothing about the client
            densities.append((usual, usual, usual))
            continue
        shift = 1.0 / deviation
        shifted = [
            np.exp(-((points - s) ** 2) / 2) / math.sqrt(2 * math.pi) * width
            for s in (shift, -shift)
        ]
        densities.append((usual, *shifted))
    (usual_1, one_1, other_1), (usual_2, one_2, other_2) = densities
    w = loads[0] / sum(loads)
    one = w * np.outer(one_1, usual_2) + (1 - w) * np.outer(usual_1, one_2)
    other = w * np.outer(other_1, usual_2) + (1 - w) * np.outer(usual_1, other_2)
    return float(np.maximum(one - math.exp(epsilon) * other, 0.0).sum())


@pytest.mark.parametrize("loads", [(2, 2), (2, 5), (1, 3), (4, 1), (2, 30)])
@pytest.mark.parametrize("least_reports", [1, 2, 3])
def test_no_two_slots_exceed_the_delta(loads: tuple[int, int], least_reports: int) -> None:
    what = averaged(1.0, least_reports, slots=2, population=Population(2, 40))
    bounds = campaign_divergence.divergence(what, REPLACE_ONE, delta=1e-3)
    for epsilon in (0.1, 0.5, 1.0, 2.0):
        seen = delta_of_two_slots(epsilon, 1.0, loads, least_reports)
        assert seen <= bounds.upper(epsilon) + 1e-9


def test_the_lower_bound_is_that_of_a_single_slot_and_otherwise_zero() -> None:
    alone = averaged(1.0, 4, slots=1, population=Population(3, 9))
    certified = certify(alone, delta=1e-6, adjacency=REPLACE_ONE, compare=False)
    assert certified.epsilon_lower == pytest.approx(certified.epsilon, rel=1e-4)
    for hidden in (
        averaged(1.0, 4, slots=2, population=Population(3, 9)),
        averaged(1.0, 4, slots=1),
    ):
        for campaigns in (1, 3):
            certified = certify(
                hidden, delta=1e-6, adjacency=REPLACE_ONE, compare=False, campaigns=campaigns
            )
            assert certified.epsilon_lower == 0.0


def test_more_reports_never_cost_more() -> None:
    epsilons = [certified(averaged(2.0, least)) for least in (1, 2, 3, 10, 100, 1500)]
    assert epsilons == sorted(epsilons, reverse=True)


def test_curious_clients_take_their_noise_away() -> None:
    assert certified(averaged(2.0, 15), curious=5) == certified(averaged(2.0, 10))
    assert certified(averaged(2.0, 15), curious=500) == certified(averaged(2.0, 1))
    with pytest.raises(NotCovered, match="least_reports"):
        certified(averaged(2.0, None), curious=1)


def test_the_certificate_names_what_the_server_and_the_loads_must_do() -> None:
    lines = certify(averaged(), delta=1e-6, adjacency=REPLACE_ONE, compare=False).assumptions
    text = "; ".join(lines)
    assert "skips every slot with fewer than 5 reports" in text
    assert "each slot is public, and does not depend on data" in text
    assert "keep the noise of their reports secret" in text
    assert "at least 1,000 clients" not in text
    without = certify(averaged(2.0, None), delta=1e-6, adjacency=REPLACE_ONE).assumptions
    assert any("at least 1,000 clients" in line for line in without)
    assert not any("skips" in line for line in without)


def test_noise_is_calibrated_to_a_target() -> None:
    met = calibrate(
        averaged(1.0, 10),
        parameter=Parameter.NOISE_MULTIPLIER,
        epsilon=1.0,
        delta=1e-6,
        adjacency=REPLACE_ONE,
    )
    assert met.certificate.epsilon <= 1.0
    assert report_epsilon(met.value * math.sqrt(10), 1e-6) > 0.999


def test_a_filter_charges_the_squared_shift() -> None:
    block = Block((averaged(2.0, 10),), 1)
    found = filtered_epsilon((block, block), Filter(), delta=1e-6, adjacency=REPLACE_ONE)
    exact = report_epsilon(2.0 * math.sqrt(5), 1e-6)
    assert exact <= found <= exact * 1.02


def test_kinds_of_clients_compose() -> None:
    what = averaged(2.0, 10)
    mixed = certify_heterogeneous(
        [what, averaged(2.0, 10, slots=50)], delta=1e-6, adjacency=REPLACE_ONE, campaigns=2
    )
    assert mixed.epsilon >= certified(what, campaigns=2) * (1 - 1e-9)


@pytest.mark.parametrize(
    "change",
    [
        {"least_reports": 0},
        {"least_reports": 2.5},
        {"least_reports": 2001},
        {"randomizer": LocalRandomizer(1.0)},
    ],
)
def test_what_makes_no_sense_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue, match="least_reports"):
        averaged(**change)
    with pytest.raises(InvalidValue, match="least_reports"):
        Design(
            Protocol.FIXED,
            slots=3,
            participation=1.0,
            randomizer=GaussianNoise(1.0, NoiseAt.SERVER),
            least_reports=2,
        )


def test_a_campaign_file_with_the_key_is_another_campaign() -> None:
    three, none = AT_LEAST_THREE, {**AT_LEAST_THREE, "least_reports": None}
    assert campaign(**three).design.least_reports == 3
    assert campaign(**three).seal != campaign(**none).seal
    assert "least_reports" not in campaign(**none).canonical()
    assert parse_campaign(campaign_text(**three)).campaign == campaign(**three)
    with pytest.raises(InvalidValue, match="least_reports"):
        campaign(**AVERAGED, least_reports=3)


def test_the_grid_is_charged_for_sums_of_the_least_reports() -> None:
    """The sum of rounded noises is not quite a rounded Gaussian, so larger sums cost more."""
    coarse = {**AT_LEAST_THREE, "grid": 0.6}  # deviation of 3.33 grid steps
    run = PartialRun.whole(campaign(**coarse))
    alone = PartialRun.whole(campaign(**{**coarse, "least_reports": None}))
    scale = grid.Grid(0.6).noise_scale(campaign(**coarse).mechanism(1))
    of_sum = float(grid.variation_of_sum(scale, 3)) * grid.MAX_DIMENSION * 333
    assert run.variation >= min(1.0, of_sum)
    assert run.variation > alone.variation


def test_delta_is_the_gaussian_profile() -> None:
    bounds = campaign_divergence.divergence(averaged(2.0, 5), REPLACE_ONE, delta=1e-6)
    for epsilon in (0.0, 0.5, 2.0):
        profile = float(shifted_delta(1.0 / math.sqrt(5), np.array([epsilon]))[0])
        assert profile <= bounds.upper(epsilon) <= profile * (1 + 1e-6) + 1e-12
