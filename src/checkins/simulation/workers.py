"""Run jobs in this process, in several processes or on a Ray cluster, with the same outcomes.

A job trains one mechanism from one seed. Outcomes can be cached in a folder.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from hashlib import file_digest, sha256
from pathlib import Path
from types import FrameType
from typing import Any

from checkins import __version__
from checkins.campaign import DataFile, Optimizer, Task
from checkins.errors import ComputationFailed
from checkins.simulation.baselines import EPOCHS, train_pooled
from checkins.simulation.engine.evaluation import Diverged, Metrics, Point
from checkins.simulation.engine.mechanism import Mechanism
from checkins.simulation.engine.outcome import Checkpoint, Outcome, arrays_of, train, write_arrays
from checkins.simulation.engine.training import Progress, Scenario, Training
from checkins.tasks.loaded_task import LoadedTask
from checkins.validate import installed

OnJobProgress = Callable[[int, Metrics], bool]
"""Called with the number of finished slots and the latest metrics. False stops the job."""


@dataclass(frozen=True, slots=True)
class Job:
    """A task to learn by a mechanism from a seed.

    If ``mechanism`` is None, the job learns without privacy.
    """

    task: Task
    folder: str
    mechanism: Mechanism | None
    scenario: Scenario
    seed: int
    evaluations: int
    allow_divergence: bool = False
    """If True, a diverging model gives an outcome instead of an error."""

    @property
    def key(self) -> str:
        """The job's name in a cache. Equal jobs with equal data and version have equal keys."""
        everything = (self, _content(self.task, self.folder), __version__)
        return sha256(repr(everything).encode()).hexdigest()[:16]

    @property
    def slots(self) -> int:
        """The length of the job's progress bar."""
        mechanism = self.mechanism
        return EPOCHS if mechanism is None else mechanism.runs * mechanism.design.slots

    def run(self, *, watch: OnJobProgress | None = None, cache: Path | None = None) -> Outcome:
        """Run the job. If the folder ``cache`` has a checkpoint of the job, continue from it."""
        try:
            return self._run(watch, cache)
        except Diverged:
            if not self.allow_divergence:
                raise
            return Outcome.of_divergence(self.seed)

    def _run(self, watch: OnJobProgress | None, cache: Path | None) -> Outcome:
        cached = None if cache is None else JobCache(cache, self.key)
        if cached is not None and (outcome := cached.outcome()) is not None:
            if watch is not None:
                watch(self.slots, outcome.metrics)
            return outcome
        loaded = load_task(self.task, self.folder)
        if self.mechanism is None:
            outcome = train_pooled(loaded, seed=self.seed, watch=watch)
        else:
            checkpoint = None if cached is None else cached.checkpoint

            def progress(at: Progress, metrics: Metrics) -> bool:
                return watch is None or watch(at.slots, metrics)

            outcome = train(self.training(loaded), watch=progress, checkpoint=checkpoint)
        if cached is not None and outcome.complete:
            cached.write(outcome)
        return outcome

    def training(self, loaded: LoadedTask) -> Training:
        """Return the training of the job, which must have a mechanism."""
        if self.mechanism is None:
            raise ValueError("a job without a mechanism has no training")
        described = (self.task, self.mechanism, loaded, self.scenario)
        return Training.of(*described, seed=self.seed, evaluations=self.evaluations)


def _content(task: Task, folder: str) -> str:
    """Return a digest of the task's data file; an empty string if there is no such file."""
    if not isinstance(task.data, DataFile):
        return ""
    path = Path(folder) / task.data.file
    if not path.is_file():
        return ""
    about = path.stat()
    return _digest(path, about.st_size, about.st_mtime_ns)


@lru_cache(maxsize=16)
def _digest(path: Path, size: int, changed_ns: int) -> str:
    """Return the SHA-256 digest of a file, cached until its size or modification time changes."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def load_task(task: Task, folder: str) -> LoadedTask:
    """Load a task. It is cached for the next job, because computing features takes long."""
    alone = replace(task, optimizer=Optimizer(1.0), local_steps=1, local_rate=None)
    return _load(alone, folder, _content(task, folder))


@lru_cache(maxsize=2)
def _load(task: Task, folder: str, content: str) -> LoadedTask:
    return LoadedTask.of(task, folder=folder)


@dataclass(frozen=True, slots=True)
class JobCache:
    """The files of one job in a cache folder: a checkpoint, replaced by the outcome at the end."""

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
        about = asdict(outcome)
        arrays = {"model": about.pop("model")}
        write_arrays(self.folder / f"{self.key}.npz", about, arrays)
        self.checkpoint.remove()


OnStudyProgress = Callable[[int, int, Metrics], None]
"""Called with (number of the job, number of finished slots, latest metrics)."""

_POLL_S, _STOP_S = 0.1, 10.0


def run_jobs(
    jobs: Sequence[Job],
    *,
    workers: int = 1,
    ray: bool = False,
    cache: Path | None = None,
    watch: OnStudyProgress | None = None,
) -> list[Outcome | None]:
    """Run jobs and return their outcomes in order, with None for a job that was not started.

    An interruption (Ctrl-C) stops every job at the end of its current chunk of slots.
    """
    places: dict[str, list[int]] = {}  # a sweep may ask for the same job more than once
    for number, job in enumerate(jobs):
        places.setdefault(job.key, []).append(number)
    numbers = list(places.values())
    once = [jobs[same[0]] for same in numbers]

    def report(place: int, slots: int, metrics: Metrics) -> None:
        if watch is not None:
            for number in numbers[place]:
                watch(number, slots, metrics)

    if ray:
        done = _on_ray(once, cache, report)
    elif workers == 1 or len(once) == 1:
        done = _in_this_process(once, cache, report)
    else:
        done = _in_processes(once, min(workers, len(once)), cache, report)
    outcomes: list[Outcome | None] = [None] * len(jobs)
    for same, outcome in zip(numbers, done, strict=True):
        for number in same:
            outcomes[number] = outcome
    return outcomes


def require_ray() -> Any:
    """Return the package ray, or raise an error that says how to install it."""
    return installed("ray", extra="ray", wanted_by="--ray", setting="ray")


def _in_this_process(
    jobs: Sequence[Job], cache: Path | None, watch: OnStudyProgress
) -> list[Outcome | None]:
    outcomes: list[Outcome | None] = [None] * len(jobs)
    with _interruption() as stopped:

        def report(number: int, slots: int, metrics: Metrics) -> bool:
            watch(number, slots, metrics)
            return not stopped()

        for number, job in enumerate(jobs):
            if stopped():
                break
            outcomes[number] = job.run(watch=partial(report, number), cache=cache)
    return outcomes


@contextmanager
def _interruption() -> Iterator[Callable[[], bool]]:
    """Make the first Ctrl-C set a flag instead of raising, and yield a function that reads it.

    A second Ctrl-C has the effect that Ctrl-C had before. If SIGINT is ignored, as in a background
    job, it stays ignored.
    """
    interrupts: list[bool] = []
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        yield lambda: False
        return

    def note(number: int, frame: FrameType | None) -> None:
        if not interrupts:
            interrupts.append(True)
        elif callable(before):
            before(number, frame)
        else:
            raise KeyboardInterrupt

    try:
        signal.signal(signal.SIGINT, note)
    except ValueError:  # this is not the main thread, so no signal arrives here
        yield lambda: False
        return
    try:
        yield lambda: bool(interrupts)
    finally:
        signal.signal(signal.SIGINT, before)


_shared: dict[str, Any] = {}


def _begin(stop: Any, messages: Any) -> None:
    """Set up a new worker process. It ignores Ctrl-C, which the parent process handles."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _shared.update(stop=stop, messages=messages)


def _run_in_worker(number: int, job: Job, cache: Path | None) -> Outcome | None:
    stop, messages = _shared["stop"], _shared["messages"]
    if stop.is_set():
        return None

    def report(slots: int, metrics: Metrics) -> bool:
        messages.put((number, slots, metrics))
        return not stop.is_set()

    return job.run(watch=report, cache=cache)


def _in_processes(
    jobs: Sequence[Job], workers: int, cache: Path | None, watch: OnStudyProgress
) -> list[Outcome | None]:
    context = multiprocessing.get_context("spawn")  # a fork would lose the threads of JAX
    stop, messages = context.Event(), context.SimpleQueue()
    outcomes: list[Outcome | None] = [None] * len(jobs)
    others = multiprocessing.active_children()
    with (
        _interruption() as stopped,
        _one_thread_each(),
        ProcessPoolExecutor(
            workers, mp_context=context, initializer=_begin, initargs=(stop, messages)
        ) as pool,
    ):
        with _interrupts_blocked():  # ``submit`` starts the workers
            numbered = enumerate(jobs)
            futures = {pool.submit(_run_in_worker, n, job, cache): n for n, job in numbered}
        left: set[Future[Outcome | None]] = set(futures)
        try:
            while left:
                done, left = wait(left, timeout=_POLL_S, return_when=FIRST_COMPLETED)
                while not messages.empty():
                    watch(*messages.get())
                for future in done:
                    outcomes[futures[future]] = future.result()
                if stopped() and not stop.is_set():
                    stop.set()
                    for future in left:
                        future.cancel()
                    left = {future for future in left if not future.cancelled()}
        except BrokenProcessPool as error:
            if not stopped():
                why = "a worker process died, perhaps of too little memory: try fewer --workers"
                raise ComputationFailed(why) from error
        except KeyboardInterrupt:  # the second Ctrl-C: do not wait for running chunks
            for process in multiprocessing.active_children():
                if process not in others:
                    process.kill()
            raise
        except BaseException:
            stop.set()
            for future in left:
                future.cancel()
            raise
    return outcomes


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block Ctrl-C in the processes that are started here; delay it in this process."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


SINGLE_THREAD = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
}
"""Environment variables of a worker: one thread, and no preallocated GPU memory."""


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Set the environment variables ``SINGLE_THREAD``, unless they are set, for new processes."""
    missing = {name: value for name, value in SINGLE_THREAD.items() if name not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)


def _on_ray(
    jobs: Sequence[Job], cache: Path | None, watch: OnStudyProgress
) -> list[Outcome | None]:
    """Run each job as one Ray task, on this machine if there is no cluster."""
    ray = require_ray()
    if not ray.is_initialized():
        ray.init(log_to_driver=False, include_dashboard=False, logging_level="ERROR")
    options = {"num_cpus": 1, "max_retries": 0, "runtime_env": {"env_vars": SINGLE_THREAD}}
    remote = ray.remote(**options)(_run_on_ray)
    waiting = {remote.remote(job, cache): number for number, job in enumerate(jobs)}
    outcomes: list[Outcome | None] = [None] * len(jobs)
    with _interruption() as stopped:
        while waiting and not stopped():
            done, _ = ray.wait(list(waiting), timeout=_POLL_S)
            for reference in done:
                number = waiting.pop(reference)
                try:
                    outcome = outcomes[number] = ray.get(reference)
                except ray.exceptions.RayTaskError as error:
                    raise error.cause from error
                watch(number, jobs[number].slots, outcome.metrics)
        for reference in waiting:
            ray.cancel(reference)
        if waiting:
            ray.wait(list(waiting), num_returns=len(waiting), timeout=_STOP_S)
    return outcomes


def _run_on_ray(job: Job, cache: Path | None) -> Outcome:
    """Run a job in a Ray task. Cancelling is an interruption, so the checkpoint is kept."""
    with _interruption() as stopped:
        return job.run(watch=lambda slots, metrics: not stopped(), cache=cache)
