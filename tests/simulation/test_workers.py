"""Jobs side by side: the same outcomes in the same order, whoever does them."""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from checkins.errors import ComputationFailed, InvalidValue
from checkins.simulation.engine.evaluation import Diverged, Metrics
from checkins.simulation.engine.outcome import Outcome
from checkins.simulation.workers import SINGLE_THREAD, Job, run_jobs
from tests.simulation import tiny


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny.write(tmp_path)
    return tmp_path


def jobs(folder: Path, *seeds: int) -> list[Job]:
    return [tiny.job(folder, campaign=tiny.campaign(), seed=seed) for seed in seeds]


def facts(found: list[Outcome | None]) -> list[tuple[object, ...] | None]:
    """All but the time it took."""
    return [
        one and (one.seed, one.complete, one.slots, one.contributors, *counts(one), one.curve)
        for one in found
    ]


def counts(one: Outcome) -> tuple[object, ...]:
    return one.check_ins, one.client_updates, one.dummies, one.model.tobytes()


@dataclass(frozen=True, slots=True)
class Dying(Job):
    """Ends its process without a word, as the system does when memory runs out."""

    def run(self, **_: object) -> Outcome:
        os._exit(9)


@dataclass(frozen=True, slots=True)
class Diverging(Job):
    """Fails as a training does whose rate is too large."""

    def run(self, **_: object) -> Outcome:
        raise Diverged("rate", 3e38, "the model has diverged: lower the rate")


def of_kind(kind: type[Job], job: Job) -> list[Job]:
    given = (job.task, job.folder, job.mechanism, job.scenario)
    return [kind(*given, seed, job.evaluations) for seed in (1, 2)]


@pytest.mark.slow
def test_processes_give_bit_for_bit_what_this_process_gives_in_order(folder: Path) -> None:
    three = jobs(folder, 3, 1, 2)
    before = {name: os.environ.get(name) for name in SINGLE_THREAD}
    seen: dict[int, list[int]] = {}

    def watch(number: int, slots: int, metrics: Metrics) -> None:
        seen.setdefault(number, []).append(slots)

    apart = run_jobs(three, workers=2, on_progress=watch)
    assert facts(apart) == facts(run_jobs(three, workers=1))
    assert [one and one.seed for one in apart] == [3, 1, 2]
    assert set(seen) <= {0, 1, 2}
    assert seen[0] == sorted(seen[0])
    assert {name: os.environ.get(name) for name in SINGLE_THREAD} == before


@pytest.mark.slow
def test_what_fails_in_a_process_is_the_same_error_here(folder: Path) -> None:
    with pytest.raises(Diverged, match="diverged") as caught:
        run_jobs(of_kind(Diverging, *jobs(folder, 1)), workers=2)
    assert (caught.value.name, caught.value.value) == ("rate", 3e38)


@pytest.mark.slow
def test_a_process_that_dies_is_named_with_a_remedy(folder: Path) -> None:
    with pytest.raises(ComputationFailed, match="fewer --workers"):
        run_jobs(of_kind(Dying, *jobs(folder, 1)), workers=2)


def test_equal_jobs_run_once(folder: Path) -> None:
    seen: list[tuple[int, int]] = []
    found = run_jobs(
        [*jobs(folder, 1), *jobs(folder, 1)],
        on_progress=lambda number, slots, _: seen.append((number, slots)),
    )
    assert found[0] is found[1]
    assert seen == [(0, 2), (1, 2), (0, 4), (1, 4), (0, 6), (1, 6)]


@pytest.mark.usefixtures("default_interrupt")
def test_an_interruption_keeps_what_is_done_and_the_old_handler_is_back(folder: Path) -> None:
    before = signal.getsignal(signal.SIGINT)

    def interrupt(number: int, slots: int, metrics: Metrics) -> None:
        if (number, slots) == (1, 4):
            os.kill(os.getpid(), signal.SIGINT)

    found = run_jobs(jobs(folder, 1, 2, 3), on_progress=interrupt)
    assert [one and (one.complete, one.slots) for one in found] == [(True, 6), (False, 4), None]
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.usefixtures("ignored_interrupt")
def test_an_interruption_that_was_ignored_before_stays_ignored(folder: Path) -> None:
    def interrupt(number: int, slots: int, metrics: Metrics) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    found = run_jobs(jobs(folder, 1, 2), on_progress=interrupt)
    assert [one and one.complete for one in found] == [True, True]
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@pytest.mark.usefixtures("default_interrupt")
def test_a_second_interruption_is_one(folder: Path) -> None:
    def interrupt(number: int, slots: int, metrics: Metrics) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_jobs(jobs(folder, 1), on_progress=interrupt)


def test_jobs_run_outside_the_main_thread(folder: Path) -> None:
    found: list[Outcome | None] = []
    thread = threading.Thread(target=lambda: found.extend(run_jobs(jobs(folder, 1))))
    thread.start()
    thread.join()
    assert [one and one.complete for one in found] == [True]


def test_without_ray_it_says_how_to_get_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InvalidValue, match=r"needs ray.*pip install 'checkins\[ray\]'"):
        run_jobs(jobs(folder, 1), ray=True)
