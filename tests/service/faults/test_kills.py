"""kill -9 of the coordinator, again and again, while clients keep coming: nothing is lost.

`make test` plays the short form. With CHECKINS_SOAK=1 it is 10,000 slots and 200 kills on each
store.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.service.faults.kill_campaign import KillCampaign, kill_again_and_again
from tests.soak import SOAK, only_in_soak
from tests.support.campaigns import DIMENSION, Plan
from tests.support.postgres import Postgres

SLOTS, KILLS, UP_S = (10_000, 200, 2.0) if SOAK else (60, 8, 0.3)
"""Sixty slots are enough for eight kills: each takes about a second, and a slot a fifth of one."""
TIMES_WORKERS = 1 if SOAK else 2
"""How many times as many slots there are where several workers start, which takes longer."""
CLIENTS_A_SLOT = 2.5
SLOWER = (1.0,) if SOAK else (1.0, 3.0, 9.0)
"""How much longer slots are made where a busy machine let too little happen in shorter ones."""


def plan(start_s: float, slower: float, *, workers: int = 1, correlated: bool = False) -> Plan:
    """Slots so long that clients keep up on a machine as slow as this one.

    In the long form all kills fit too; in the short form a slow machine sees fewer of them.
    """
    least_s = 0.1 if SOAK or workers > 1 else 0.2
    slot_s = slower * min(0.25, max(least_s, 0.06 * start_s * (1.0 if workers == 1 else 1.5)))
    if SOAK:
        start_s *= 1.0 if workers == 1 else 1.5
        slot_s = max(slot_s, KILLS * (1.6 * start_s + 1.5 * UP_S) / SLOTS)
    slots = SLOTS if workers == 1 else TIMES_WORKERS * SLOTS
    return Plan(
        slots=slots,
        slot_s=round(slot_s, 3),
        choose_s=round(slot_s / 2, 3),
        capacity=2,
        clients=min(4 * slots, DIMENSION) if correlated else round(CLIENTS_A_SLOT * slots),
        correlated=correlated,
    )


def judge(ordeal_of: Callable[[float], KillCampaign]) -> None:
    """No violation, and enough happened for that to mean something.

    The checker's own answers are wrong with probability at most 1e-9 (``presence``).
    """
    for slower in SLOWER:
        ordeal = ordeal_of(slower)
        findings = ordeal.run(kill_again_and_again(KILLS, up_s=UP_S))
        print(f"\n{dict(ordeal.kills)} kills, {dict(ordeal.outcomes)}\n{findings}")
        assert not findings.violations, str(findings)
        assert findings.chance <= 1e-9
        assert findings.slots == ordeal.plan.slots
        assert ordeal.coordinator.starts == 1 + ordeal.kills["everything"]
        assert ordeal.reader.epochs == sorted(ordeal.reader.epochs)
        kills = ordeal.kills.total() >= (KILLS if SOAK else KILLS // 4)
        if kills and findings.acknowledged > 0 and findings.full_slots > 0:
            return
    raise AssertionError(f"too little happened: {dict(ordeal.kills)} kills, {findings}")


def judge_on_sqlite(tmp_path: Path, start_s: float, *, correlated: bool = False) -> None:
    """Judge kills of one coordinator. Without correlated noise, its process is a new command."""

    def ordeal(slower: float) -> KillCampaign:
        folder = tmp_path / f"{slower}"
        folder.mkdir()
        store = f"sqlite:///{folder}/store.db"
        campaign = plan(start_s, slower, correlated=correlated)
        return KillCampaign(campaign, folder, store, start_s=start_s, real=SOAK or not correlated)

    judge(ordeal)


def judge_on_postgresql(
    tmp_path: Path, start_s: float, postgres: Postgres, *, correlated: bool = False
) -> None:
    """Judge kills of three workers and of the database."""

    def ordeal(slower: float) -> KillCampaign:
        folder = tmp_path / f"{slower}"
        folder.mkdir()
        return KillCampaign(
            plan(start_s, slower, workers=3, correlated=correlated),
            folder,
            postgres.create(),
            workers=3,
            database=postgres,
            start_s=start_s,
        )

    judge(ordeal)


@pytest.mark.slow
def test_nothing_is_lost_or_counted_twice_on_sqlite(tmp_path: Path, start_s: float) -> None:
    judge_on_sqlite(tmp_path, start_s)


@pytest.mark.slow
def test_nothing_is_lost_or_counted_twice_with_three_workers_on_postgresql(
    tmp_path: Path, start_s: float, postgres: Postgres
) -> None:
    judge_on_postgresql(tmp_path, start_s, postgres)


@pytest.mark.slow
def test_no_noise_is_used_twice_and_no_sum_forgotten_on_sqlite(
    tmp_path: Path, start_s: float
) -> None:
    judge_on_sqlite(tmp_path, start_s, correlated=True)


@pytest.mark.slow
@only_in_soak
def test_no_noise_is_used_twice_and_no_sum_forgotten_with_three_workers_on_postgresql(
    tmp_path: Path, start_s: float, postgres: Postgres
) -> None:
    judge_on_postgresql(tmp_path, start_s, postgres, correlated=True)
