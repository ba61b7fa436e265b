"""What a certificate rests on: every assumption that its proof uses, and no other."""

from __future__ import annotations

import math
from typing import Any

import pytest
from scipy.stats import binom

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
from checkins.accounting.certificate import OF_DESIGN, OF_SOME_RANDOMIZER, assumptions

ADD_REMOVE, REPLACE_ONE = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE
UNIFORM = "the server chooses among them uniformly at random"
SILENT = "no client discloses whether it was chosen"
NOBODY = "is not one of the clients"
COUNTS = "releases no count of check-ins"
WAKES = "the time at which a client wakes does not depend on its data"
SECRET_NOISE = "clients keep the noise of their reports secret"
SECRET_REPORTS = "clients keep their reports secret"


def design(randomizer: Any, protocol: Protocol = Protocol.FIXED, **given: Any) -> Design:
    return Design(
        protocol, **{"slots": 20, "participation": 1.0, "randomizer": randomizer, **given}
    )


PURE = LocalRandomizer(1.0)
AT_CLIENT, AT_SERVER = GaussianNoise(2.0, NoiseAt.CLIENT), GaussianNoise(2.0, NoiseAt.SERVER)
SLIDING: dict[str, Any] = {"protocol": Protocol.SLIDING, "window": 5}
AVERAGED: dict[str, Any] = {"protocol": Protocol.AVERAGED, "population": Population(50, 60)}


def said(what: Design, adjacency: Adjacency = ADD_REMOVE, **given: Any) -> str:
    return "; ".join(assumptions(what, adjacency=adjacency, uses_population=False, **given))


@pytest.mark.parametrize(
    ("what", "adjacency", "has", "has_not"),
    [
        (design(PURE), ADD_REMOVE, {UNIFORM, SILENT, NOBODY, COUNTS}, {WAKES, SECRET_NOISE}),
        (design(PURE, capacity=7), REPLACE_ONE, {UNIFORM, SILENT, NOBODY, COUNTS}, {WAKES}),
        (design(AT_CLIENT, capacity=7), ADD_REMOVE, {UNIFORM, SILENT, NOBODY, SECRET_NOISE}, set()),
        (design(AT_SERVER, capacity=7), ADD_REMOVE, {UNIFORM, SILENT, NOBODY}, {SECRET_NOISE}),
        (design(AT_SERVER), ADD_REMOVE, set(), {UNIFORM, SILENT, NOBODY, SECRET_NOISE, COUNTS}),
        (design(PURE, **SLIDING), REPLACE_ONE, {WAKES, UNIFORM}, set()),
        (design(PURE, **SLIDING), ADD_REMOVE, {UNIFORM}, {WAKES}),
        (design(AT_CLIENT, capacity=3, **SLIDING), REPLACE_ONE, {WAKES, SECRET_NOISE}, set()),
        (design(AT_SERVER, **SLIDING), REPLACE_ONE, set(), {WAKES}),
        (design(PURE, **AVERAGED), REPLACE_ONE, {NOBODY, SECRET_REPORTS}, {UNIFORM, SILENT}),
    ],
)
def test_each_design_names_what_its_proof_uses(
    what: Design, adjacency: Adjacency, has: set[str], has_not: set[str]
) -> None:
    text = said(what, adjacency)
    assert {line for line in has if line not in text} == set()
    assert {line for line in has_not if line in text} == set()


def test_a_certificate_states_how_many_reports_a_slot_uses() -> None:
    assert "exactly 7 reports, dummies included" in said(design(PURE, capacity=7))
    assert "exactly 1 report, dummies included" in said(design(PURE, capacity=1))
    assert "exactly the same public number of reports" in said(design(PURE))


def test_curious_clients_are_named_in_place_of_an_adversary_that_is_no_client() -> None:
    text = said(design(PURE, capacity=7), curious=3)
    assert NOBODY not in text
    assert "curious clients: at most 3" in text
    assert "no other client discloses whether it was chosen" in text


def test_a_lower_end_names_the_mechanism_it_is_about() -> None:
    for randomizer, of in ((PURE, OF_SOME_RANDOMIZER), (AT_SERVER, OF_DESIGN)):
        found = certify(design(randomizer), delta=1e-6, adjacency=ADD_REMOVE, compare=False)
        assert found.epsilon_lower_of == of
        assert found.as_dict()["epsilon_lower_of"] == of
    mixed = [design(AT_SERVER), design(PURE)]
    found = certify(mixed, delta=1e-6, adjacency=ADD_REMOVE, compare=False)
    assert found.epsilon_lower_of == OF_SOME_RANDOMIZER


def test_less_than_the_lower_end_is_true_of_a_randomizer_with_central_dummies() -> None:
    """Binary response, dummy a fair coin: 1,000 slots, local epsilon 1, client among dummies.

    The ratio of a slot is 2b/(b+1) or 2/(b+1) with probability 1/2 each.
    """
    found = certify(design(PURE, slots=1000), delta=1e-6, adjacency=ADD_REMOVE, compare=False)
    assert found.epsilon_lower > 0.1266
    b, m = math.e, 1000
    distribution = binom(m, 0.5)
    e = math.exp(0.0625)
    ratios = [(k * 2 * b / (b + 1) + (m - k) * 2 / (b + 1)) / m for k in range(m + 1)]
    remove = math.fsum(distribution.pmf(k) * max(0.0, f - e) for k, f in enumerate(ratios))
    add = math.fsum(distribution.pmf(k) * max(0.0, 1 - e * f) for k, f in enumerate(ratios))
    assert max(remove, add) < 1e-6


def test_an_assumption_is_never_stated_weaker_than_it_was_used() -> None:
    """Six digits to nearest would allow reports of a larger local epsilon, and more check-ins."""
    local, often = 3.192415678, 2.0 / 3.0
    design = Design(
        Protocol.FIXED,
        slots=1000,
        participation=often,
        randomizer=LocalRandomizer(local, 1.23456789e-9),
    )
    said = " ".join(assumptions(design, adjacency=Adjacency.ADD_REMOVE, uses_population=False))
    assert f"every report is {local!r}-DP, except for a delta of 1.23456789e-09" in said
    assert f"with probability at most {often!r} and" in said
    crowded = Design(
        Protocol.FIXED,
        slots=1000,
        participation=often,
        randomizer=GaussianNoise(2.0, NoiseAt.SERVER),
        capacity=10,
        population=Population(1, 20),
    )
    said = " ".join(assumptions(crowded, adjacency=Adjacency.ADD_REMOVE, uses_population=True))
    assert f"slot with probability at most {often!r}/1,000" in said
