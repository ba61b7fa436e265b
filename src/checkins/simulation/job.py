"""A job: one mechanism, one seed. It can run in any process of any machine, and its outcome be
cached.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import file_digest, sha256
from pathlib import Path

from checkins import __version__
from checkins.campaign import DataFile, Optimizer, Task
from checkins.simulation.baselines import EPOCHS, train_pooled
from checkins.simulation.engine.evaluation import Diverged, Metrics, Point
from checkins.simulation.engine.mechanism import Mechanism
from checkins.simulation.engine.outcome import Checkpoint, Outcome, arrays_of, train, write_arrays
from checkins.simulation.engine.training import Progress, Scenario, Training
from checkins.tasks.loaded_task import LoadedTask

OnJobProgress = Callable[[int, Metrics], bool]
"""Called with the slots that are over and the latest metrics; returns False to stop the job."""


@dataclass(frozen=True, slots=True)
class Job:
    """A task to learn by a mechanism from a seed; ``mechanism`` None means without privacy."""

    task: Task
    folder: str
    mechanism: Mechanism | None
    scenario: Scenario
    seed: int
    evaluations: int
    allow_divergence: bool = False
    """Whether a model that diverges is an outcome instead of an error."""

    @property
    def key(self) -> str:
        """The name of the job in a cache: equal for equal jobs on the same data and version."""
        everything = (self, _content(self.task, self.folder), __version__)
        return sha256(repr(everything).encode()).hexdigest()[:16]

    @property
    def slots(self) -> int:
        """The length of the job's progress bar."""
        return (
            EPOCHS if self.mechanism is None else self.mechanism.runs * self.mechanism.design.slots
        )

    def run(self, *, watch: OnJobProgress | None = None, cache: Path | None = None) -> Outcome:
        """Run the job, or what is left of it according to the folder ``cache``."""
        try:
            return self._run(watch, cache)
        except Diverged:
            if not self.allow_divergence:
                raise
            return Outcome.of_divergence(self.seed)

    def _run(self, watch: OnJobProgress | None, cache: Path | None) -> Outcome:
        cached = None if cache is None else JobCache(cache, self.key)
        if cached is not None and (found := cached.outcome()) is not None:
            if watch is not None:
                watch(self.slots, found.metrics)
            return found
        loaded = load_task(self.task, self.folder)
        if self.mechanism is None:
            outcome = train_pooled(loaded, seed=self.seed, watch=watch)
        else:
            outcome = train(
                self.training(loaded),
                watch=None if watch is None else _on_progress(watch),
                checkpoint=None if cached is None else cached.checkpoint,
            )
        if cached is not None and outcome.complete:
            cached.write(outcome)
        return outcome

    def training(self, loaded: LoadedTask) -> Training:
        """Return the training of a private job."""
        if self.mechanism is None:
            raise ValueError("a job without a mechanism has no training")
        return Training.of(
            self.task,
            self.mechanism,
            loaded,
            self.scenario,
            seed=self.seed,
            evaluations=self.evaluations,
        )


def _content(task: Task, folder: str) -> str:
    """Return a digest of the data file of a task; empty if the task has none."""
    if not isinstance(task.data, DataFile):
        return ""
    path = Path(folder) / task.data.file
    if not path.is_file():
        return ""
    about = path.stat()
    return _digest(path, about.st_size, about.st_mtime_ns)


@lru_cache(maxsize=16)
def _digest(path: Path, size: int, changed_ns: int) -> str:
    """Return the digest of a file, cached until its size or date changes."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def load_task(task: Task, folder: str) -> LoadedTask:
    """Load a task, cached from job to job: computing features takes longer than training."""
    alone = replace(task, optimizer=Optimizer(1.0), local_steps=1, local_rate=None)
    return _load(alone, folder, _content(task, folder))


@lru_cache(maxsize=2)
def _load(task: Task, folder: str, content: str) -> LoadedTask:
    return LoadedTask.of(task, folder=folder)


def _on_progress(watch: OnJobProgress) -> Callable[[Progress, Metrics], bool]:
    return lambda progress, metrics: watch(progress.slots, metrics)


@dataclass(frozen=True, slots=True)
class JobCache:
    """The files of one job in a cache folder: its outcome, or a checkpoint until it is done."""

    folder: Path
    key: str

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self.folder / f"{self.key}.checkpoint.npz")

    def outcome(self) -> Outcome | None:
        path = self.folder / f"{self.key}.npz"
        if not path.exists():
            return None
        with arrays_of(path) as arrays:
            about, model = json.loads(str(arrays["about"])), arrays["model"]
        curve = tuple(Point(point["slots"], point["metrics"]) for point in about.pop("curve"))
        contributors = tuple(about.pop("contributors"))
        return Outcome(**about, contributors=contributors, curve=curve, model=model)

    def write(self, outcome: Outcome) -> None:
        about = {
            name: getattr(outcome, name)
            for name in outcome.__dataclass_fields__
            if name not in ("model", "curve")
        }
        about["curve"] = [
            {"slots": point.slots, "metrics": point.metrics} for point in outcome.curve
        ]
        write_arrays(self.folder / f"{self.key}.npz", about, {"model": outcome.model})
        self.checkpoint.remove()
