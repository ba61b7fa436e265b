"""The distance between implementation and design is charged to delta."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkins.accounting import (
    Adjacency,
    Certificate,
    Design,
    LocalRandomizer,
    Parameter,
    Protocol,
    calibrate,
    certify,
    certify_heterogeneous,
    total_variation,
)
from checkins.accounting.accountant import smallest_epsilon
from checkins.errors import InvalidValue
from tests.accounting.designs import ADD_REMOVE, REPLACE_ONE, local, roomy
from tests.strategies import deltas, local_epsilons

PURE, NOISY = local(1.0, 50), roomy(0.3, 20, capacity=30, most=200)
CHARGE = "all releases of the implementation together are within total variation distance"


@cache
def certified(design: Design, adjacency: Adjacency, tau: float, campaigns: int = 1) -> Certificate:
    return certify(
        design, delta=1e-5, adjacency=adjacency, campaigns=campaigns, compare=False, variation=tau
    )


@pytest.mark.parametrize("design", [PURE, NOISY], ids=["pure", "gaussian"])
def test_no_variation_changes_nothing(design: Design) -> None:
    found = certified(design, ADD_REMOVE, 0.0)
    plain = certify(design, delta=1e-5, adjacency=ADD_REMOVE, compare=False)
    assert (found.epsilon, found.epsilon_lower) == (plain.epsilon, plain.epsilon_lower)
    assert found.assumptions == plain.assumptions
    assert not any(line.startswith(CHARGE) for line in found.assumptions)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("design", "campaigns"), [(PURE, 1), (PURE, 3), (NOISY, 1)], ids=["pure", "repeated", "noisy"]
)
def test_more_variation_never_lowers_epsilon(design: Design, campaigns: int) -> None:
    found = [
        certified(design, ADD_REMOVE, tau, campaigns)
        for tau in (0.0, 1e-300, 1e-20, 1e-14, 1e-9, 1e-6)
    ]
    for less, more in pairwise(found):
        assert less.epsilon <= more.epsilon * (1 + 1e-9)
        assert more.epsilon_lower <= less.epsilon_lower * (1 + 1e-4)
    assert found[-1].epsilon > found[0].epsilon
    for certificate in found:
        assert certificate.epsilon_lower <= certificate.epsilon


@given(tau=st.floats(0.0, 1e-5), more=st.floats(0.0, 1e-5), delta=deltas, epsilon=local_epsilons)
def test_shares_fall_as_the_variation_grows(
    tau: float, more: float, delta: float, epsilon: float
) -> None:
    def left(tau: float) -> float:
        try:
            return total_variation.remaining_delta(delta=delta, epsilon=epsilon, variation=tau)
        except InvalidValue:
            return 0.0

    assert left(max(tau, more)) <= left(min(tau, more)) <= delta


@given(tau=st.floats(1e-320, 1.0), delta=deltas, epsilon=st.floats(0.0, 50.0))
def test_what_is_left_and_what_is_charged_stay_within_delta(
    tau: float, delta: float, epsilon: float
) -> None:
    """In rationals, with e^epsilon from below: a tau far below an ulp of delta counts too."""
    try:
        share = total_variation.remaining_delta(delta=delta, epsilon=epsilon, variation=tau)
    except InvalidValue:
        return
    growth = Fraction(math.nextafter(math.exp(epsilon), 0.0))
    assert 0 < Fraction(share) + (1 + growth) * Fraction(tau) <= Fraction(delta)
    assert share < delta
    wide = total_variation.increased_delta(delta=delta, epsilon=epsilon, variation=tau)
    assert Fraction(wide) >= min(1, Fraction(delta) + (1 + growth) * Fraction(tau))
    assert total_variation.charge(epsilon=epsilon, variation=tau) >= min(1.0, tau)


def test_a_certificate_states_the_variation_and_its_charge() -> None:
    found = certified(PURE, ADD_REMOVE, 1.23e-20)
    (line,) = (line for line in found.assumptions if line.startswith(CHARGE))
    assert "within total variation distance 1.3e-20 of this design" in line
    assert found.variation == 1.23e-20
    charge = total_variation.charge(epsilon=found.epsilon, variation=1.23e-20)
    assert float(line.split("this distance adds ")[1].split(" to delta")[0]) >= charge


@pytest.mark.parametrize("tau", [5e-6, 1e-3, 1.0])
def test_a_variation_that_leaves_nothing_is_refused(tau: float) -> None:
    with pytest.raises(InvalidValue, match="uses up all of delta = 1e-05"):
        certified(PURE, ADD_REMOVE, tau)


@pytest.mark.parametrize("tau", [-1e-9, 1.1, math.nan, math.inf, "x", None])
def test_what_is_no_total_variation_is_refused(tau: float) -> None:
    with pytest.raises(InvalidValue, match="variation"):
        certify(PURE, delta=1e-5, adjacency=ADD_REMOVE, variation=tau)


@pytest.mark.parametrize("tau", [1e-6, 1e-4, 2e-4])
@pytest.mark.parametrize("epsilon0", [0.5, 1.0])
def test_a_mechanism_mixed_with_one_that_tells_all_is_covered(tau: float, epsilon0: float) -> None:
    """One slot of randomized response; with probability tau the secret is released in the open.

    The mixture is within tau of the response for either input, and its own delta is known in
    closed form: the open part, plus what the response has left at that epsilon.
    """
    design = Design(
        Protocol.FIXED, slots=1, participation=1.0, randomizer=LocalRandomizer(epsilon0)
    )
    delta = 1e-3
    certificate = certify(design, delta=delta, adjacency=REPLACE_ONE, variation=tau)
    honest = math.exp(epsilon0) / (1 + math.exp(epsilon0))
    distributions = [
        {"0": (1 - tau) * p, "1": (1 - tau) * (1 - p), f"open {secret}": tau}
        for secret, p in enumerate((honest, 1 - honest))
    ]
    growth = math.exp(certificate.epsilon)
    for mine, other in (distributions, distributions[::-1]):
        spent = math.fsum(max(0.0, p - growth * other.get(out, 0.0)) for out, p in mine.items())
        assert spent <= delta
    assert certificate.epsilon >= certificate.epsilon_lower


def test_the_largest_delta_that_a_mixture_may_have_is_all_of_it() -> None:
    """A tau whose charge is nearly delta still gives a certificate, with a large epsilon."""
    free = certified(PURE, ADD_REMOVE, 0.0)
    charged = certified(PURE, ADD_REMOVE, 1e-5 / (1 + math.exp(1.3 * free.epsilon)) * 0.95)
    assert free.epsilon * 1.05 < charged.epsilon < 1.0


def test_kinds_of_clients_are_charged_for_it_too_and_say_so_once() -> None:
    kinds = [PURE, Design(Protocol.FIXED, slots=10, participation=0.3, randomizer=PURE.randomizer)]
    plain, charged = (
        certify_heterogeneous(kinds, delta=1e-5, adjacency=ADD_REMOVE, variation=tau)
        for tau in (0.0, 1e-6)
    )
    assert charged.epsilon > plain.epsilon
    assert sum(line.startswith(CHARGE) for line in charged.assumptions) == 1


@pytest.mark.parametrize("tau", [0.0, 1e-25, 1e-7, 2e-6])
def test_a_calibration_meets_its_target_all_the_same(tau: float) -> None:
    found = calibrate(
        PURE,
        parameter=Parameter.LOCAL_EPSILON,
        epsilon=0.3,
        delta=1e-5,
        adjacency=ADD_REMOVE,
        variation=tau,
    )
    assert 0.25 < found.certificate.epsilon <= 0.3


def test_the_epsilon_alone_is_that_of_the_certificate() -> None:
    for tau in (0.0, 1e-8):
        for designs in ((PURE,), (PURE, NOISY)):
            given = {"delta": 1e-5, "adjacency": ADD_REMOVE, "variation": tau}
            alone = smallest_epsilon(designs, **given)
            assert alone == certify(designs, compare=False, **given).epsilon
