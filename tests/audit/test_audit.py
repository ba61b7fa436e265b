"""Whole audits: they have power where statistics allows it, and are never false positives."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import pytest

from checkins.accounting import NoiseAt, Population
from checkins.audit import Attacks, Audit, Engine, Settings, Verdict, audit_campaign, certificate_at
from checkins.audit.report import POWERFUL_SHARE, CertificateCheck
from checkins.campaign import Campaign, RandomizerKind
from checkins.errors import InvalidValue
from tests.audit.campaigns import BANDS, REPLACE_ONE, gaussian, pure
from tests.soak import SOAK

SURE = 1.0 - 1e-11
"""A hundred audits that ask for so much be contradicted with probability below 1e-9."""


def audited(campaign: Campaign, **settings: object) -> Audit:
    usual: dict[str, object] = {"deltas": (1e-3,), "attacks": Attacks.WORST_CASE, "runs": 20_000}
    return audit_campaign(campaign, Settings(**{**usual, **settings}))  # type: ignore[arg-type]


# ---- power -------------------------------------------------------------------------------------

SHORT = [(2.0, 10, 1.0), (2.0, 5, 0.5), (4.0, 10, 1.0), (8.0, 2, 1.0), (8.0, 10, 0.2)]
GRID = [
    (local_epsilon, slots, participation)
    for local_epsilon in ((2.0, 3.0, 4.0, 6.0, 8.0, 12.0) if SOAK else (2.0, 12.0))
    for slots in ((1, 2, 5, 10) if SOAK else (1, 10))
    for participation in ((1.0, 0.5, 0.2) if SOAK else (1.0, 0.2))
]
"""In the soak every design; otherwise the corners: ``SHORT`` has some from between."""


@pytest.mark.parametrize(("local_epsilon", "slots", "participation"), SHORT)
def test_most_of_the_exact_epsilon_is_measured(
    local_epsilon: float, slots: int, participation: float
) -> None:
    """A million runs; for another seed it fails with probability below 1e-9: six deviations."""
    campaign = pure(local_epsilon, slots=slots, participation=participation)
    audit = audited(campaign, runs=1_000_000)
    exact = certificate_at(campaign, 1e-3).epsilon_lower
    assert POWERFUL_SHARE * exact <= audit.check.measured(1e-3) <= exact
    assert audit.powerful


@pytest.mark.slow
@pytest.mark.parametrize(("local_epsilon", "slots", "participation"), GRID)
def test_most_of_the_exact_epsilon_is_measured_on_the_grid(
    local_epsilon: float, slots: int, participation: float
) -> None:
    """As many runs as a few seconds hold; fails with probability below 1e-9."""
    campaign = pure(local_epsilon, slots=slots, participation=participation)
    exact = certificate_at(campaign, 1e-3).epsilon_lower
    audit = audited(campaign, runs=4_000_000 if SOAK else 2_000_000)
    assert POWERFUL_SHARE * exact <= audit.check.measured(1e-3) <= exact


def test_a_report_says_how_many_runs_are_missing() -> None:
    campaign = gaussian(0.3, slots=60, capacity=16, at=NoiseAt.CLIENT, delta=1e-6)
    audit = audited(campaign, deltas=(1e-6,), runs=2_000)
    needed = audit.check.runs_needed(1e-6)
    assert not audit.powerful
    assert needed is not None
    assert 10**6 < needed < 10**10
    assert audit.verdict is Verdict.CONSISTENT


# ---- no false positives ------------------------------------------------------------------------

CORRECT = {
    "pure": pure(2.0),
    "loud": pure(8.0, slots=3),
    "half": pure(3.0, participation=0.5),
    "rarely": pure(3.0, participation=0.05),
    "places": pure(2.0, slots=4, capacity=3),
    "own": pure(2.0, categories=4),
    "own, full": pure(2.0, categories=2, slots=3, capacity=4),
    "own, other data": pure(2.0, categories=3, slots=4, capacity=2, adjacency=REPLACE_ONE),
    "laplace": pure(2.0, kind=RandomizerKind.LAPLACE),
    "laplace, full": pure(3.0, kind=RandomizerKind.LAPLACE, slots=3, capacity=4),
    "laplace, other data": pure(
        2.0, kind=RandomizerKind.LAPLACE, slots=3, capacity=2, adjacency=REPLACE_ONE
    ),
    "privunit": pure(3.0, dimension=5, capacity=2),
    "privunit, other data": pure(2.0, dimension=4, slots=4, adjacency=REPLACE_ONE),
    "privunit, declared": pure(
        3.0, dimension=5, slots=20, capacity=30, population=Population(10, 60)
    ),
    "own, declared": pure(2.0, categories=2, slots=10, capacity=30, population=Population(10, 60)),
    "sliding": pure(2.0, slots=8, window=5),
    "other data": pure(2.0, slots=4, adjacency=REPLACE_ONE),
    "averaged": pure(2.0, contributors=6, adjacency=REPLACE_ONE),
    "server": gaussian(1.0, slots=5),
    "client": gaussian(1.0, slots=4, capacity=2, at=NoiseAt.CLIENT),
    "declared": gaussian(1.0, slots=4, capacity=40, population=Population(10, 30)),
    "twice": pure(1.0, slots=3, repeats=2),
    "correlated": gaussian(1.0, slots=8, strategy=BANDS),
    "correlated, other data": gaussian(
        1.0, slots=6, strategy=BANDS, adjacency=REPLACE_ONE, participation=0.5
    ),
    "correlated, twice": gaussian(1.0, slots=6, strategy=BANDS, repeats=2),
}


@pytest.mark.slow
def test_a_hundred_audits_at_the_default_confidence_are_consistent() -> None:
    """At 99.99% each: for another seed some audit is contradicted with probability at most 1e-2.

    What is measured is not nothing either.
    """
    audits = []
    for number, name in zip(range(100), itertools.cycle(CORRECT), strict=False):
        settings = {"deltas": (1e-3, 1e-2), "runs": 4_000, "seed": number + 1}
        audits.append(audited(CORRECT[name], confidence=0.9999, **settings))
    assert not [audit.campaign for audit in audits if audit.contradicted]
    assert sum(audit.check.measured(1e-3) > 0.0 for audit in audits) > 50


@pytest.mark.parametrize("name", CORRECT)
def test_an_audit_of_a_correct_campaign_is_consistent(name: str) -> None:
    """Probability below 1e-11 for each."""
    assert not audited(CORRECT[name], confidence=SURE, runs=4_000).contradicted


@pytest.mark.parametrize("name", CORRECT)
def test_the_exact_epsilon_of_an_attack_is_below_the_certified(name: str) -> None:
    audit = audited(CORRECT[name], runs=200)
    for delta in audit.check.certificates:
        for result in audit.check.results:
            assert result.exact.get(delta, 0.0) <= audit.check.certified(delta) * 1.001 + 1e-9


# ---- leaks --------------------------------------------------------------------------------------


def held_to(truth: Campaign, claim: Campaign, **settings: object) -> CertificateCheck:
    """What was measured of one campaign, against the certificate of another."""
    found = audited(truth, **settings).check
    return replace(found, certificates={1e-3: certificate_at(claim, 1e-3)})


LEAKY = {
    "coin skipped": (pure(2.0), pure(2.0, participation=0.3)),
    "half the noise": (gaussian(0.5, slots=5), gaussian(1.0, slots=5)),
    "one slot for all": (pure(3.0, slots=1, participation=0.5), pure(3.0, participation=0.5)),
    "no room for dummies": (gaussian(1.0, capacity=1, at=NoiseAt.CLIENT), gaussian(1.0)),
    "run twice": (pure(2.0, slots=5, repeats=2), pure(2.0, slots=5)),
}


@pytest.mark.parametrize("leak", LEAKY)
def test_a_campaign_that_leaks_more_than_certified_is_contradicted(leak: str) -> None:
    """Each is missed by another seed with probability below 1e-9."""
    check = held_to(*LEAKY[leak], runs=60_000)
    assert check.verdict is Verdict.CONTRADICTED
    assert check.contradicted_deltas == (1e-3,)


def test_a_campaign_does_not_contradict_its_own_certificate() -> None:
    assert held_to(pure(2.0), pure(2.0)).verdict is Verdict.CONSISTENT


# ---- what an audit says ------------------------------------------------------------------------


def test_the_answer_is_one_json_object() -> None:
    audit = audit_campaign(pure(2.0, delta=1e-5), Settings(runs=2_000))
    answer = json.loads(json.dumps(audit.as_dict(), allow_nan=False))
    assert answer["epsilon_measured_lower"] <= answer["epsilon_lower"]
    assert answer["epsilon_lower"] <= answer["epsilon_certified"]
    assert answer["confidence"] == 0.9999
    assert answer["verdict"] == "consistent"
    assert [row["delta"] for row in answer["deltas"]] == [1e-5, 1e-3, 1e-2]
    assert {"adjacency", "method", "rounding", "trials", "canary", "statistic"} <= set(answer)
    assert "seeded" in answer["simulated"]


def test_the_same_seed_gives_the_same_bound() -> None:
    first, second, other = (
        audited(pure(2.0), seed=seed).check.measured(1e-3) for seed in (5, 5, 6)
    )
    assert first == second != other


def test_a_time_limit_is_nearly_met() -> None:
    """By a clock that goes on by 50 ms whenever it is read: a hundred blocks, or one more."""
    readings = itertools.count()
    settings = Settings(seconds=5.0, deltas=(1e-3,))
    audit = audit_campaign(pure(2.0), settings, clock=lambda: 0.05 * next(readings))
    assert audit.trials > 1000
    assert 4.5 < audit.seconds < 6.0


def test_a_certificate_that_uses_its_population_is_attacked_within_it() -> None:
    """Opposites in every slot would be more clients than are declared."""
    audit = audited(CORRECT["declared"], runs=500)
    assert audit.check.certificates[1e-3].method == "exact-population"
    assert [result.canary for result in audit.check.results] == ["alone", "in a crowd"]


def test_one_run_is_an_audit_too() -> None:
    audit = audit_campaign(gaussian(0.25, slots=4, delta=1e-6), Settings(one_run=True))
    assert audit.verdict is Verdict.CONSISTENT
    assert audit.check.measured(1e-6) > 1.0
    [view] = audit.as_dict()["views"]  # type: ignore[misc]
    assert view["best"]["canaries"] == 1000
    assert audit.trials == 1


def test_canaries_of_the_data_need_data() -> None:
    with pytest.raises(InvalidValue, match="task"):
        audit_campaign(pure(2.0), Settings(attacks=Attacks.DATA, runs=100))
    audit = audit_campaign(pure(2.0), Settings(attacks=Attacks.ALL, runs=100))
    assert [result.canary for result in audit.check.results] == ["binary response"]


@pytest.mark.parametrize(
    "wrong",
    [{"confidence": 1.0}, {"seconds": 0.0}, {"runs": 0}, {"deltas": (2.0,)}, {"seed": -1}],
    ids=str,
)
def test_settings_out_of_range_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidValue):
        Settings(**wrong)  # type: ignore[arg-type]


def test_too_many_slots_are_refused_by_name() -> None:
    with pytest.raises(InvalidValue, match="slots"):
        audited(gaussian(1.0, slots=30_000), runs=10)


def test_an_engine_is_named() -> None:
    assert [str(engine) for engine in Engine] == ["compiled", "machines", "both"]
    assert math.isclose(POWERFUL_SHARE, 0.8)
