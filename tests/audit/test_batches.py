"""A time limit is met, by a clock that advances only as the canaries say."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import checkins.audit as audit_module
from checkins.audit import Engine, Settings, audit_campaign
from checkins.audit import machine_audit as audits
from checkins.audit.bounds import Trials
from checkins.audit.leak_tests import server_noise
from checkins.audit.machine_audit import run_trials, shrunk_campaign
from checkins.audit.runner import Batches, Measurement, OutOfTime, RunBudget, run_attack
from checkins.errors import InvalidValue
from tests.audit.campaigns import pure

ALLOWED = 1.2
"""Times the budget."""


@dataclass(slots=True)
class Clock:
    """Tells the time that was worked, and no other."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(slots=True)
class Worker:
    """A canary whose runs take as long as it says."""

    clock: Clock
    run_s: float
    batch_size: int = 1000
    smallest_batch_size: int = 1
    warmup_s: float = 0.0
    real_warmup_s: float = 0.0
    name: str = "worker"
    explained: str = "a canary of a test"
    statistic: str = "noise"
    note: str = ""
    played: list[int] = field(default_factory=list)

    def trials(self, runs: int, generator: np.random.Generator) -> Trials:
        self.clock.now += runs * self.run_s + (0.0 if self.played else self.real_warmup_s)
        self.played.append(runs)
        scores = generator.standard_normal((2, runs))
        return Trials(scores[0], scores[1], self.name)


def budget(clock: Clock, *, seconds: float = 10.0, runs: int | None = None) -> RunBudget:
    return RunBudget(seconds=seconds, runs=runs, seed=(1,), threads=1, clock=clock)


def played(worker: Worker, *, seconds: float = 10.0) -> Measurement:
    how = budget(worker.clock, seconds=seconds)
    return run_attack(worker, deltas=(1e-3,), failure=1e-4, budget=how)


@settings(max_examples=40, deadline=None)
@given(
    seconds=st.floats(0.01, 1000.0), run_s=st.floats(1e-3, 0.19), batch_size=st.integers(1, 100_000)
)
def test_a_time_limit_is_met_whatever_a_run_takes(
    seconds: float, run_s: float, batch_size: int
) -> None:
    """``run_s`` is in budgets: from a thousand runs in it down to five."""
    worker = Worker(Clock(), run_s * seconds, batch_size=batch_size)
    found = played(worker, seconds=seconds)
    assert worker.clock.now <= ALLOWED * seconds
    assert found.runs == sum(worker.played)
    assert max(worker.played) <= batch_size


def test_most_of_a_time_limit_is_used() -> None:
    worker = Worker(Clock(), run_s=1e-3)
    played(worker)
    assert 8.0 <= worker.clock.now <= 10.0


def test_batches_grow_until_one_takes_a_small_part_of_the_time() -> None:
    worker = Worker(Clock(), run_s=1e-3, batch_size=100_000)
    played(worker)
    assert worker.played[:5] == [1, 4, 16, 64, 250]
    assert set(worker.played[5:]) == {250}


def test_batches_are_no_larger_than_the_canary_s_own() -> None:
    worker = Worker(Clock(), run_s=1e-4, batch_size=50)
    played(worker)
    assert worker.played[:4] == [1, 4, 16, 50]
    assert set(worker.played[4:]) == {50}


def test_a_canary_that_is_made_ready_for_one_size_keeps_it() -> None:
    worker = Worker(
        Clock(), run_s=0.01, batch_size=20, smallest_batch_size=20, warmup_s=2.0, real_warmup_s=2.5
    )
    found = played(worker)
    assert set(worker.played) == {20}
    assert found.runs > 200
    assert worker.clock.now <= 10.0


def test_a_fixed_number_of_runs_is_cut_into_the_same_batches() -> None:
    clock = Clock()
    worker = Worker(clock, run_s=100.0, batch_size=8, warmup_s=1e9)
    batches = Batches(worker, budget(clock, runs=20))
    assert sum(part.fewest_runs for part in batches.run_until(20, float("inf"))) == 20
    assert worker.played == [8, 8, 4]


# ---- what does not fit -------------------------------------------------------------------------


def test_an_attack_with_a_longer_warm_up_is_not_started() -> None:
    worker = Worker(Clock(), run_s=0.1, warmup_s=11.0)
    with pytest.raises(OutOfTime, match=r"about 11 s to warm up, and 10 s were left"):
        played(worker)
    assert worker.played == []


@pytest.mark.parametrize("run_s", [6.0, 9.0, 30.0])
def test_a_canary_that_fills_its_time_with_one_run_is_not_counted(run_s: float) -> None:
    worker = Worker(Clock(), run_s=run_s)
    with pytest.raises(
        OutOfTime, match=rf"choosing its events on 1 run took {run_s:g} s of the 10 s"
    ):
        played(worker)
    assert worker.played == [1]


def audited(monkeypatch: pytest.MonkeyPatch, clock: Clock, *workers: Worker, **how: object):
    monkeypatch.setattr(audit_module, "worst_case_canaries", lambda *_, **__: workers)
    usual: dict[str, object] = {"deltas": (1e-3,), "seconds": 10.0, "threads": 1}
    return audit_campaign(pure(2.0), Settings(**{**usual, **how}), clock=clock)  # type: ignore[arg-type]


def test_an_audit_notes_the_skipped_attacks_with_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    quick = Worker(clock, run_s=0.01, name="quick")
    slow = Worker(clock, run_s=0.01, warmup_s=6.0, name="slow")
    audit = audited(monkeypatch, clock, quick, slow)
    assert [result.canary for result in audit.check.results] == ["quick"]
    [note] = audit.notes
    assert note.startswith("slow was not run: it takes about 6 s to warm up, and 5")
    assert note in audit.as_dict()["notes"]  # type: ignore[operator]
    assert clock.now <= 10.0


def test_an_attack_that_overruns_leaves_less_time_to_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    late = Worker(clock, run_s=0.01, real_warmup_s=7.0, name="late")
    quick = Worker(clock, run_s=0.01, name="quick")
    audit = audited(monkeypatch, clock, late, quick)
    assert [result.canary for result in audit.check.results] == ["quick"]
    assert clock.now <= 10.0 * ALLOWED
    assert audit.check.results[0].seconds <= 3.0


def test_attacks_with_a_warm_up_come_last(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    slow = Worker(clock, run_s=0.01, warmup_s=1.0, real_warmup_s=30.0, name="slow")
    quick = Worker(clock, run_s=0.01, name="quick")
    audit = audited(monkeypatch, clock, slow, quick)
    assert [result.canary for result in audit.check.results] == ["quick"]
    assert audit.check.results[0].runs > 400
    assert "slow was not run: choosing its events on 1 run took 30 s of the 5" in audit.notes[0]


def test_an_audit_without_time_for_any_attack_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    with pytest.raises(InvalidValue, match=r"seconds = 10.0: is too short for any attack: slow"):
        audited(monkeypatch, clock, Worker(clock, run_s=20.0, name="slow"))


# ---- the machines ------------------------------------------------------------------------------

SMALL = shrunk_campaign(server_noise(slots=10, noise=1.0, delta=1e-3))


@pytest.fixture
def slow_machines(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Each run takes a tenth of a second."""
    clock, honest = Clock(), audits.MachineAudit.scores

    def scores(self, *, present: bool):
        clock.now += 0.1
        return honest(self, present=present)

    monkeypatch.setattr(audits.MachineAudit, "scores", scores)
    return clock


def test_machines_meet_a_time_limit_too(slow_machines: Clock) -> None:
    [trials] = run_trials(SMALL, seconds=20.0, clock=slow_machines)
    assert audits.MIN_RUNS <= trials.fewest_runs <= 100
    assert 15.0 <= slow_machines.now <= 20.0 * ALLOWED


def test_machines_without_time_for_enough_runs_raise(slow_machines: Clock) -> None:
    with pytest.raises(OutOfTime, match="2 s were left for it, and 32 runs take longer"):
        run_trials(SMALL, seconds=2.0, clock=slow_machines)
    assert slow_machines.now <= 2.0
    how = Settings(engine=Engine.MACHINES, seconds=2.0)
    with pytest.raises(InvalidValue, match="the smaller campaign was not run"):
        audit_campaign(SMALL, how, clock=slow_machines)
