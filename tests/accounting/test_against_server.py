"""What holds if the server itself is the adversary."""

from __future__ import annotations

import math

import pytest
from scipy.stats import norm

from checkins.accounting import (
    Adjacency,
    Design,
    LocalRandomizer,
    certify,
)
from checkins.accounting.adversaries import CONTENT_ONLY, NO_BOUND, NO_PROTECTION, against_server
from tests.accounting.designs import at_client, at_server, local

PURE = local(1.5, 50, 0.5)
CLIENT = at_client(0.5, 50, 0.5, capacity=30)
SERVER = at_server(0.5, 50, 0.5)


def test_a_pure_report_keeps_its_local_epsilon() -> None:
    found = against_server([PURE], delta=1e-6)
    assert (found.epsilon, found.note) == (1.5, CONTENT_ONLY)


def test_a_gaussian_report_keeps_its_own_epsilon() -> None:
    """Two inputs lie two clips apart: [BW18, Thm 8] at shift 2/sigma, to the last digit."""
    epsilon = against_server([CLIENT], delta=1e-6).epsilon
    shift = 2 / 0.5

    def spent(at: float) -> float:
        return norm.cdf(shift / 2 - at / shift) - math.exp(at) * norm.cdf(-shift / 2 - at / shift)

    assert spent(epsilon) <= 1e-6 < spent(epsilon * (1 - 1e-6))


def test_nothing_holds_where_the_server_adds_the_noise() -> None:
    for designs in ([SERVER], [PURE, SERVER]):
        found = against_server(designs, delta=1e-6)
        assert (found.epsilon, found.note) == (math.inf, NO_PROTECTION)
        assert found.as_dict()["epsilon"] is None


def test_reports_of_several_campaigns_add_up() -> None:
    assert against_server([PURE], delta=1e-6, campaigns=2).epsilon == 3.0
    many = against_server([local(0.01)], delta=1e-6, campaigns=10_000).epsilon
    assert 0.5 < many < 6.0, "advanced composition, far below the sum of 100"
    four = against_server([CLIENT], delta=1e-6, campaigns=4).epsilon
    stronger = at_client(0.25, capacity=30)
    assert four == pytest.approx(against_server([stronger], delta=1e-6).epsilon)
    mixed = against_server([PURE, CLIENT], delta=1e-6).epsilon
    assert mixed > 1.5 + against_server([CLIENT], delta=1e-6).epsilon


def test_local_deltas_count() -> None:
    approximate = local(1.0, randomizer=LocalRandomizer(1.0, 1e-7))
    assert against_server([approximate], delta=1e-6).epsilon == 1.0
    assert against_server([approximate], delta=1e-7).epsilon == 1.0
    assert against_server([approximate], delta=1e-6, campaigns=11).note == NO_BOUND


@pytest.mark.parametrize("what", [PURE, CLIENT, SERVER])
def test_every_certificate_says_it(what: Design) -> None:
    certificate = certify(what, delta=1e-6, adjacency=Adjacency.ADD_REMOVE, compare=False)
    assert certificate.against_server == against_server([what], delta=1e-6)
    said = certificate.as_dict()["against_server"]
    assert isinstance(said, dict)
    assert said["adjacency"] == "replace-one"
