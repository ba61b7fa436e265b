"""One thing to simulate, whole and by itself: it can be done in any process of any machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import file_digest, sha256
from pathlib import Path

from checkins import __version__
from checkins.campaign import DataFile, Optimizer, Task
from checkins.simulation.evaluation import Diverged, Metrics
from checkins.simulation.job_cache import JobCache
from checkins.simulation.mechanism import Mechanism
from checkins.simulation.optimizers import server_of
from checkins.simulation.outcome import Outcome, train
from checkins.simulation.pooled import EPOCHS, pooled
from checkins.simulation.training import Progress, Scenario, Training
from checkins.simulation.updates import LocalWork
from checkins.tasks.loaded_task import LoadedTask

Watch = Callable[[int, Metrics], bool]
"""Told how many slots are over and the latest metrics; False stops the job there."""


@dataclass(frozen=True, slots=True)
class Job:
    """A task learned by a method from a seed; without a method, without privacy."""

    task: Task
    folder: str
    method: Mechanism | None
    scenario: Scenario
    seed: int
    evaluations: int
    lenient: bool = False
    """Whether a model that diverges is an outcome too, and no error: one of many."""

    @property
    def key(self) -> str:
        """The same for the same job on the same data: what is kept of it is found by this name."""
        everything = (self, _content(self.task, self.folder), __version__)
        return sha256(repr(everything).encode()).hexdigest()[:16]

    @property
    def slots(self) -> int:
        """How long its progress bar is."""
        return EPOCHS if self.method is None else self.method.runs * self.method.design.slots

    def do(self, *, watch: Watch | None = None, keep: Path | None = None) -> Outcome:
        """Do it, or what is left of it: what ``keep`` holds from before is not done again."""
        try:
            return self._done(watch, keep)
        except Diverged:
            if not self.lenient:
                raise
            return Outcome.of_divergence(self.seed)

    def _done(self, watch: Watch | None, keep: Path | None) -> Outcome:
        kept = None if keep is None else JobCache(keep, self.key)
        if kept is not None and (found := kept.outcome()) is not None:
            if watch is not None:
                watch(self.slots, found.metrics)
            return found
        lesson = lesson_of(self.task, self.folder)
        if self.method is None:
            outcome = pooled(lesson, seed=self.seed, watch=watch)
        else:
            outcome = train(
                self.training(lesson),
                watch=None if watch is None else _watching(watch),
                checkpoint=None if kept is None else kept.checkpoint,
            )
        if kept is not None and outcome.complete:
            kept.write(outcome)
        return outcome

    def training(self, lesson: LoadedTask) -> Training:
        """What a private job runs."""
        if self.method is None:
            raise ValueError("a job without a method has no training")
        return Training(
            self.method,
            lesson,
            server_of(self.task.optimizer),
            self.scenario,
            self.seed,
            LocalWork(self.task.local_steps, self.task.local_step_size),
            self.evaluations,
        )


def _content(task: Task, folder: str) -> str:
    """A digest of the file that a task learns from."""
    if not isinstance(task.data, DataFile):
        return ""
    path = Path(folder) / task.data.file
    if not path.is_file():
        return ""
    about = path.stat()
    return _digest(path, about.st_size, about.st_mtime_ns)


@lru_cache(maxsize=16)
def _digest(path: Path, size: int, changed_ns: int) -> str:
    """Of a file; looked at again when its size or date is another."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def lesson_of(task: Task, folder: str) -> LoadedTask:
    """The lesson of a task, kept from job to job: features take longer than training on them."""
    alone = replace(task, optimizer=Optimizer(1.0), local_steps=1, local_rate=None)
    return _lesson(alone, folder, _content(task, folder))


@lru_cache(maxsize=2)
def _lesson(task: Task, folder: str, content: str) -> LoadedTask:
    return LoadedTask.of(task, folder=folder)


def _watching(watch: Watch) -> Callable[[Progress, Metrics], bool]:
    return lambda progress, metrics: watch(progress.slots, metrics)
