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
from checkins.optional_imports import import_optional
from checkins.simulation.baselines import EPOCHS, train_pooled
from checkins.simulation.engine.evaluation import Diverged, Metrics
from checkins.simulation.engine.mechanism import Mechanism
from checkins.simulation.engine.outcome import (
    Checkpoint,
    Outcome,
    curve_points,
    open_arrays,
    train,
    write_arrays,
)
from checkins.simulation.engine.training import Progress, Scenario, Training
from checkins.tasks.loaded_task import LoadedTask

OnJobProgress = Callable[[int, Metrics], bool]
"""Called with the number of finished slots and the latest metrics. False stops the job."""


@dataclass(frozen=True, slots=True)
class Job:
    """One training: a task, the mechanism that trains its model, and a seed.

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
        """The job's name in a cache: a hash of the job, its data and the version of checkins."""
        job_data_version = (self, _data_file_digest(self.task, self.folder), __version__)
        return sha256(repr(job_data_version).encode()).hexdigest()[:16]

    @property
    def slots(self) -> int:
        """The number of steps of a progress bar: slots, or epochs of a job without privacy."""
        mechanism = self.mechanism
        return EPOCHS if mechanism is None else mechanism.runs * mechanism.design.slots

    def run(
        self, *, on_progress: OnJobProgress | None = None, cache: Path | None = None
    ) -> Outcome:
        """Run the job. If the folder ``cache`` has a checkpoint of the job, continue from it."""
        try:
            return self._run(on_progress, cache)
        except Diverged:
            if not self.allow_divergence:
                raise
            return Outcome.of_divergence(self.seed)

    def _run(self, on_progress: OnJobProgress | None, cache: Path | None) -> Outcome:
        job_cache = None if cache is None else JobCache(cache, self.key)
        if job_cache is not None and (outcome := job_cache.outcome()) is not None:
            if on_progress is not None:
                on_progress(self.slots, outcome.metrics)
            return outcome
        loaded = load_task(self.task, self.folder)
        if self.mechanism is None:
            outcome = train_pooled(loaded, seed=self.seed, on_progress=on_progress)
        else:
            checkpoint = None if job_cache is None else job_cache.checkpoint

            def report(progress: Progress, metrics: Metrics) -> bool:
                return on_progress is None or on_progress(progress.slots, metrics)

            outcome = train(self.training(loaded), on_progress=report, checkpoint=checkpoint)
        if job_cache is not None and outcome.complete:
            job_cache.write(outcome)
        return outcome

    def training(self, loaded: LoadedTask) -> Training:
        """Return the training of the job, which must have a mechanism."""
        if self.mechanism is None:
            raise ValueError("a job without a mechanism has no training")
        arguments = (self.task, self.mechanism, loaded, self.scenario)
        return Training.of(*arguments, seed=self.seed, evaluations=self.evaluations)


def _data_file_digest(task: Task, folder: str) -> str:
    """Return a digest of the task's data file; an empty string if the task has no file."""
    if not isinstance(task.data, DataFile):
        return ""
    path = Path(folder) / task.data.file
    if not path.is_file():
        return ""
    status = path.stat()
    return _file_digest(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=16)
def _file_digest(path: Path, size: int, modified_ns: int) -> str:
    """Return the SHA-256 digest of a file, cached until its size or modification time changes."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def load_task(task: Task, folder: str) -> LoadedTask:
    """Load a task, or return it from a cache, because computing features takes long.

    Tasks that differ only in the optimizer, the local steps or the average share one entry.
    """
    data_and_model = replace(
        task, optimizer=Optimizer(1.0), local_steps=1, local_rate=None, average=None
    )
    return _load_cached(data_and_model, folder, _data_file_digest(task, folder))


@lru_cache(maxsize=2)
def _load_cached(task: Task, folder: str, data_digest: str) -> LoadedTask:
    return LoadedTask.of(task, folder=folder)


_MODELS, _CURVES = ("model", "average_model"), ("curve", "average_curve")
"""Fields of ``Outcome`` that are models, and fields that are learning curves."""


@dataclass(frozen=True, slots=True)
class JobCache:
    """The file of one job in a cache folder: a checkpoint and, after the end, the outcome."""

    folder: Path
    key: str

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self.folder / f"{self.key}.checkpoint.npz")

    def outcome(self) -> Outcome | None:
        path = self.folder / f"{self.key}.npz"
        if not path.exists():
            return None
        with open_arrays(path) as arrays:
            fields: dict[str, Any] = json.loads(str(arrays["about"]))
            fields |= {name: arrays[name] for name in _MODELS if name in arrays}
        fields |= {name: curve_points(fields[name]) for name in _CURVES}
        fields["contributors"] = tuple(fields["contributors"])
        return Outcome(**fields)

    def write(self, outcome: Outcome) -> None:
        fields = asdict(outcome)
        models = {name: fields.pop(name) for name in _MODELS}
        arrays = {name: model for name, model in models.items() if model is not None}
        write_arrays(self.folder / f"{self.key}.npz", fields, arrays)
        self.checkpoint.remove()


OnStudyProgress = Callable[[int, int, Metrics], None]
"""Called with (number of the job, number of finished slots, latest metrics)."""

_POLL_INTERVAL_S, _CANCEL_TIMEOUT_S = 0.1, 10.0
"""Seconds between two checks for outcomes, and longest wait for cancelled Ray tasks."""


def run_jobs(
    jobs: Sequence[Job],
    *,
    workers: int = 1,
    ray: bool = False,
    cache: Path | None = None,
    on_progress: OnStudyProgress | None = None,
) -> list[Outcome | None]:
    """Run jobs and return their outcomes in order, with None for a job that was not started.

    An interruption (Ctrl-C) stops every job at the end of its current chunk of slots.
    """
    numbers_by_key: dict[str, list[int]] = {}  # a sweep may contain the same job twice
    for number, job in enumerate(jobs):
        numbers_by_key.setdefault(job.key, []).append(number)
    numbers_of_job = list(numbers_by_key.values())
    distinct_jobs = [jobs[numbers[0]] for numbers in numbers_of_job]

    def report(index: int, slots: int, metrics: Metrics) -> None:
        if on_progress is not None:
            for number in numbers_of_job[index]:
                on_progress(number, slots, metrics)

    if ray:
        distinct_outcomes = _on_ray(distinct_jobs, cache, report)
    elif workers == 1 or len(distinct_jobs) == 1:
        distinct_outcomes = _in_this_process(distinct_jobs, cache, report)
    else:
        workers = min(workers, len(distinct_jobs))
        distinct_outcomes = _in_processes(distinct_jobs, workers, cache, report)
    outcomes: list[Outcome | None] = [None] * len(jobs)
    for numbers, outcome in zip(numbers_of_job, distinct_outcomes, strict=True):
        for number in numbers:
            outcomes[number] = outcome
    return outcomes


def require_ray() -> Any:
    """Return the package ray, or raise an error that says how to install it."""
    return import_optional("ray", value="--ray", setting="ray")


def _in_this_process(
    jobs: Sequence[Job], cache: Path | None, on_progress: OnStudyProgress
) -> list[Outcome | None]:
    outcomes: list[Outcome | None] = [None] * len(jobs)
    with _interrupt_flag() as is_stopped:

        def report(number: int, slots: int, metrics: Metrics) -> bool:
            on_progress(number, slots, metrics)
            return not is_stopped()

        for number, job in enumerate(jobs):
            if is_stopped():
                break
            outcomes[number] = job.run(on_progress=partial(report, number), cache=cache)
    return outcomes


@contextmanager
def _interrupt_flag() -> Iterator[Callable[[], bool]]:
    """Make the first Ctrl-C set a flag instead of raising, and yield a function that reads it.

    A second Ctrl-C calls the previous handler. If SIGINT is ignored, as in a background job, it
    stays ignored.
    """
    interrupts: list[bool] = []
    previous_handler = signal.getsignal(signal.SIGINT)
    if previous_handler is signal.SIG_IGN:
        yield lambda: False
        return

    def handle_interrupt(number: int, frame: FrameType | None) -> None:
        if not interrupts:
            interrupts.append(True)
        elif callable(previous_handler):
            previous_handler(number, frame)
        else:
            raise KeyboardInterrupt

    try:
        signal.signal(signal.SIGINT, handle_interrupt)
    except ValueError:  # this is not the main thread, so no signal arrives here
        yield lambda: False
        return
    try:
        yield lambda: bool(interrupts)
    finally:
        signal.signal(signal.SIGINT, previous_handler)


_worker_state: dict[str, Any] = {}  # in a worker process: its stop event and message queue


def _initialize_worker(stop: Any, messages: Any) -> None:
    """Set up a new worker process. It ignores Ctrl-C, which the parent process handles."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _worker_state.update(stop=stop, messages=messages)


def _run_in_worker(number: int, job: Job, cache: Path | None) -> Outcome | None:
    stop, messages = _worker_state["stop"], _worker_state["messages"]
    if stop.is_set():
        return None

    def report(slots: int, metrics: Metrics) -> bool:
        messages.put((number, slots, metrics))
        return not stop.is_set()

    return job.run(on_progress=report, cache=cache)


def _in_processes(
    jobs: Sequence[Job], workers: int, cache: Path | None, on_progress: OnStudyProgress
) -> list[Outcome | None]:
    context = multiprocessing.get_context("spawn")  # a forked process lacks the threads of JAX
    stop, messages = context.Event(), context.SimpleQueue()
    outcomes: list[Outcome | None] = [None] * len(jobs)
    other_children = multiprocessing.active_children()
    with (
        _interrupt_flag() as is_stopped,
        _single_thread_environment(),
        ProcessPoolExecutor(
            workers, mp_context=context, initializer=_initialize_worker, initargs=(stop, messages)
        ) as pool,
    ):
        with _interrupts_blocked():  # ``submit`` starts the workers
            submitted = [pool.submit(_run_in_worker, *job, cache) for job in enumerate(jobs)]
        futures = {future: number for number, future in enumerate(submitted)}
        pending: set[Future[Outcome | None]] = set(futures)
        try:
            while pending:
                finished, pending = wait(pending, _POLL_INTERVAL_S, FIRST_COMPLETED)
                while not messages.empty():
                    on_progress(*messages.get())
                for future in finished:
                    outcomes[futures[future]] = future.result()
                if is_stopped() and not stop.is_set():
                    stop.set()
                    for future in pending:
                        future.cancel()
                    pending = {future for future in pending if not future.cancelled()}
        except BrokenProcessPool as error:
            if not is_stopped():
                why = "a worker process died, perhaps of too little memory: try fewer --workers"
                raise ComputationFailed(why) from error
        except KeyboardInterrupt:  # the second Ctrl-C: do not wait for running chunks
            for process in multiprocessing.active_children():
                if process not in other_children:
                    process.kill()
            raise
        except BaseException:
            stop.set()
            for future in pending:
                future.cancel()
            raise
    return outcomes


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block Ctrl-C in processes that the block starts. In this process, delay it until the end."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


SINGLE_THREAD = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
}
"""Environment variables of a worker: one thread, and no preallocated GPU memory."""


@contextmanager
def _single_thread_environment() -> Iterator[None]:
    """Set the variables in ``SINGLE_THREAD`` that are not set yet, for new processes."""
    unset = {name: value for name, value in SINGLE_THREAD.items() if name not in os.environ}
    os.environ.update(unset)
    try:
        yield
    finally:
        for name in unset:
            os.environ.pop(name, None)


def _on_ray(
    jobs: Sequence[Job], cache: Path | None, on_progress: OnStudyProgress
) -> list[Outcome | None]:
    """Run each job as one Ray task, on this machine if there is no cluster."""
    ray = require_ray()
    if not ray.is_initialized():
        ray.init(log_to_driver=False, include_dashboard=False, logging_level="ERROR")
    options = {"num_cpus": 1, "max_retries": 0, "runtime_env": {"env_vars": SINGLE_THREAD}}
    remote = ray.remote(**options)(_run_on_ray)
    pending = {remote.remote(job, cache): number for number, job in enumerate(jobs)}
    outcomes: list[Outcome | None] = [None] * len(jobs)
    with _interrupt_flag() as is_stopped:
        while pending and not is_stopped():
            finished, _ = ray.wait(list(pending), timeout=_POLL_INTERVAL_S)
            for reference in finished:
                number = pending.pop(reference)
                try:
                    outcome = outcomes[number] = ray.get(reference)
                except ray.exceptions.RayTaskError as error:
                    raise error.cause from error
                on_progress(number, jobs[number].slots, outcome.metrics)
        for reference in pending:
            ray.cancel(reference)
        if pending:
            ray.wait(list(pending), num_returns=len(pending), timeout=_CANCEL_TIMEOUT_S)
    return outcomes


def _run_on_ray(job: Job, cache: Path | None) -> Outcome:
    """Run a job in a Ray task. Ray cancels it by SIGINT, so the job writes its checkpoint."""
    with _interrupt_flag() as is_stopped:
        return job.run(on_progress=lambda slots, metrics: not is_stopped(), cache=cache)
