"""A live coordinator, audited over HTTP; `make soak` does it for minutes."""

from __future__ import annotations

import pytest

from checkins.accounting import NoiseStrategy
from checkins.audit.live import LiveSettings, audit_live
from checkins.audit.report import Verdict
from checkins.errors import InvalidValue
from tests.audit.campaigns import BANDS
from tests.soak import SOAK, only_in_soak
from tools import leak_mutants
from tools.leak_mutant_list import LIVE

pytest.importorskip("fastapi")
SURE = 1 - 1e-10


def test_live_settings_have_campaigns_and_canaries() -> None:
    with pytest.raises(InvalidValue, match="canaries = 0"):
        LiveSettings(campaigns=1, canaries=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    [None, pytest.param(BANDS, marks=only_in_soak)],
    ids=["independent", "correlated"],
)
def test_a_correct_coordinator_is_not_contradicted(strategy: NoiseStrategy | None) -> None:
    """A false positive has probability at most 1e-10. With so few runs the audit has the power to
    find noise that is missing, and no more.

    Opening a campaign takes longest: the same canaries in one campaign are as many coins.
    """
    with leak_mutants.coordinator(leak_mutants.ROOT / "src") as (url, operator):
        campaigns = 2 if SOAK else 1
        many = LiveSettings(
            campaigns=campaigns,
            canaries=120 // campaigns,
            concurrency=campaigns,
            confidence=SURE,
            strategy=strategy,
        )
        found = audit_live(url, many, operator_token=operator)
        assert found.verdict is Verdict.CONSISTENT, found
        assert found.outcomes.get("reported", 0) > 0, "no device took part: nothing was audited"


@pytest.mark.slow
@only_in_soak  # many canaries run through the same campaigns and the same scores
def test_a_correct_coordinator_is_not_contradicted_by_single_canaries() -> None:
    """A false positive has probability at most 1e-10."""
    with leak_mutants.coordinator(leak_mutants.ROOT / "src") as (url, operator):
        single = LiveSettings(campaigns=100, canaries=1, concurrency=4, delta=0.01, confidence=SURE)
        found = audit_live(url, single, operator_token=operator)
    assert found.verdict is Verdict.CONSISTENT, found
    assert found.participating == found.canaries // 2


@pytest.mark.slow
@pytest.mark.parametrize("leak", LIVE, ids=lambda leak: leak.name)
def test_a_leaky_coordinator_is_contradicted(leak: leak_mutants.Any) -> None:
    """Without noise every high score is a canary that was included.

    A device that is too slow for its slot leaves no score. On a machine so busy that nearly half of
    them are, the audit is repeated.
    """
    campaigns = 2 if SOAK else 1
    plan = LiveSettings(campaigns=campaigns, canaries=200 // campaigns, concurrency=campaigns)
    rows: list[leak_mutants.Row] = []
    while len(rows) < 3 and not any(row.contradicted for row in rows):
        rows.append(leak_mutants.audited_live(leak, plan))
    assert rows[-1].contradicted, [row.line() for row in rows]


@pytest.mark.slow
@only_in_soak
def test_a_coordinator_is_audited_for_minutes() -> None:
    """A false positive has probability at most 1e-10."""
    with leak_mutants.coordinator(leak_mutants.ROOT / "src") as (url, operator):
        plan = LiveSettings(
            campaigns=60, canaries=200, concurrency=4, delta=1e-12, lead_s=10.0, confidence=SURE
        )
        found = audit_live(url, plan, operator_token=operator)
    assert found.verdict is Verdict.CONSISTENT, found
    assert found.outcomes.get("reported", 0) > 0.5 * found.participating
