"""kill -9 of the coordinator, again and again, while clients keep coming: nothing is lost.

`make test` plays the short form. With CHECKINS_SOAK=1 it is 10,000 slots and 200 kills on each
store.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.postgres import Postgres
from tests.service.faults.campaigns import Plan
from tests.service.faults.ordeal import Ordeal, kill_again_and_again

SOAK = os.environ.get("CHECKINS_SOAK") == "1"
SLOTS, KILLS, UP_S = (10_000, 200, 2.0) if SOAK else (300, 8, 0.5)
CLIENTS_A_SLOT = 2.5


def plan(start_s: float, *, workers: int = 1) -> Plan:
    """Slots so long that clients keep up on a machine as slow as this one.

    In the long form all kills fit too; in the short form a slow machine sees fewer of them.
    """
    slower = 1.0 if workers == 1 else 1.5  # to start, and to answer
    slot_s = min(0.25, max(0.1, 0.06 * start_s * slower))
    if SOAK:
        slot_s = max(slot_s, KILLS * (1.6 * start_s * slower + 1.5 * UP_S) / SLOTS)
    return Plan(
        slots=SLOTS,
        slot_s=round(slot_s, 3),
        choose_s=round(slot_s / 2, 3),
        capacity=2,
        clients=round(CLIENTS_A_SLOT * SLOTS),
    )


def judge(ordeal: Ordeal) -> None:
    """No violation, and enough happened for that to mean something.

    The checker's own answers are wrong with probability at most 1e-9 (``presence``).
    """
    findings = ordeal.run(kill_again_and_again(KILLS, up_s=UP_S))
    print(f"\n{dict(ordeal.kills)} kills, {dict(ordeal.outcomes)}\n{findings}")
    assert not findings.violations, str(findings)
    assert findings.chance <= 1e-9
    assert findings.slots == SLOTS
    assert findings.acknowledged > 0
    assert findings.full_slots > 0
    assert ordeal.kills.total() >= (KILLS if SOAK else KILLS // 4)
    assert ordeal.coordinator.starts == 1 + ordeal.kills["everything"]
    assert ordeal.reader.epochs == sorted(ordeal.reader.epochs)


@pytest.mark.slow
def test_nothing_is_lost_or_counted_twice_on_sqlite(tmp_path: Path, start_s: float) -> None:
    judge(Ordeal(plan(start_s), tmp_path, f"sqlite:///{tmp_path}/store.db", start_s=start_s))


@pytest.mark.slow
def test_nothing_is_lost_or_counted_twice_with_three_workers_on_postgresql(
    tmp_path: Path, start_s: float, postgres: Postgres, postgres_url: str
) -> None:
    judge(
        Ordeal(
            plan(start_s, workers=3),
            tmp_path,
            postgres_url,
            workers=3,
            database=postgres,
            start_s=start_s,
        )
    )
