"""Run jobs in this process, in processes of this machine, or on a Ray cluster.

The outcomes are the same.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from checkins.errors import ComputationFailed
from checkins.simulation.engine.evaluation import Metrics
from checkins.simulation.engine.outcome import Outcome
from checkins.simulation.job import Job
from checkins.tasks.optional_import import package

OnStudyProgress = Callable[[int, int, Metrics], None]
"""Called with (number of the job, slots that are over, latest metrics)."""

_POLL_S, _STOP_S = 0.1, 10.0


def run_jobs(
    jobs: Sequence[Job],
    *,
    workers: int = 1,
    ray: bool = False,
    cache: Path | None = None,
    watch: OnStudyProgress | None = None,
) -> list[Outcome | None]:
    """Run jobs; return their outcomes in order, None for a job that was not started.

    An interruption (Ctrl-C) stops every job after the chunk it is in.
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
    found: list[Outcome | None] = [None] * len(jobs)
    for same, outcome in zip(numbers, done, strict=True):
        for number in same:
            found[number] = outcome
    return found


def require_ray() -> Any:
    """Return the package ray, or raise an error that says how to install it."""
    return package("ray", extra="ray", wanted_by="--ray", setting="ray")


def _in_this_process(
    jobs: Sequence[Job], cache: Path | None, watch: OnStudyProgress
) -> list[Outcome | None]:
    found: list[Outcome | None] = [None] * len(jobs)
    with _interruption() as stopped:
        for number, job in enumerate(jobs):
            if stopped():
                break
            found[number] = job.run(watch=_job_progress(number, watch, stopped), cache=cache)
    return found


def _job_progress(
    number: int, watch: OnStudyProgress, stopped: Callable[[], bool]
) -> Callable[[int, Metrics], bool]:
    def tell(slots: int, metrics: Metrics) -> bool:
        watch(number, slots, metrics)
        return not stopped()

    return tell


@contextmanager
def _interruption() -> Iterator[Callable[[], bool]]:
    """Make Ctrl-C set a flag that jobs poll; a second Ctrl-C has its former effect.

    If SIGINT is ignored, as in a background job, it stays ignored.
    """
    seen: list[bool] = []
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        yield lambda: False
        return

    def note(number: int, frame: FrameType | None) -> None:
        if not seen:
            seen.append(True)
        elif callable(before):
            before(number, frame)
        else:
            raise KeyboardInterrupt

    try:
        signal.signal(signal.SIGINT, note)
    except ValueError:  # not the main thread, where no signal arrives
        yield lambda: False
        return
    try:
        yield lambda: bool(seen)
    finally:
        signal.signal(signal.SIGINT, before)


_shared: dict[str, Any] = {}


def _begin(stop: Any, messages: Any) -> None:
    """Set up a new worker process: leave Ctrl-C to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _shared.update(stop=stop, messages=messages)


def _run_in_worker(number: int, job: Job, cache: Path | None) -> Outcome | None:
    stop, messages = _shared["stop"], _shared["messages"]
    if stop.is_set():
        return None

    def tell(slots: int, metrics: Metrics) -> bool:
        messages.put((number, slots, metrics))
        return not stop.is_set()

    return job.run(watch=tell, cache=cache)


def _in_processes(
    jobs: Sequence[Job], workers: int, cache: Path | None, watch: OnStudyProgress
) -> list[Outcome | None]:
    context = multiprocessing.get_context("spawn")  # JAX has threads, which a fork would lose
    stop, messages = context.Event(), context.SimpleQueue()
    found: list[Outcome | None] = [None] * len(jobs)
    others = multiprocessing.active_children()
    with (
        _interruption() as stopped,
        _one_thread_each(),
        ProcessPoolExecutor(
            workers, mp_context=context, initializer=_begin, initargs=(stop, messages)
        ) as pool,
    ):
        with _interrupts_blocked():  # a worker is started when it is first needed
            futures = {
                pool.submit(_run_in_worker, place, job, cache): place
                for place, job in enumerate(jobs)
            }
        left: set[Future[Outcome | None]] = set(futures)
        try:
            while left:
                done, left = wait(left, timeout=_POLL_S, return_when=FIRST_COMPLETED)
                while not messages.empty():
                    watch(*messages.get())
                for future in done:
                    found[futures[future]] = future.result()
                if stopped() and not stop.is_set():
                    stop.set()
                    for future in left:
                        future.cancel()
                    left = {future for future in left if not future.cancelled()}
        except BrokenProcessPool as error:
            if not stopped():
                raise ComputationFailed(
                    "a worker process died, perhaps of too little memory: try fewer --workers"
                ) from error
        except KeyboardInterrupt:  # do not wait for running slots
            for process in multiprocessing.active_children():
                if process not in others:
                    process.kill()
            raise
        except BaseException:
            stop.set()
            for future in left:
                future.cancel()
            raise
    return found


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block Ctrl-C in processes that are started meanwhile; this process gets it afterwards."""
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
"""Environment of a worker: one thread each and no preallocated GPU memory."""


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Set the environment of workers that are started meanwhile."""
    before = {name: os.environ.get(name) for name in SINGLE_THREAD}
    os.environ.update(
        {name: value for name, value in SINGLE_THREAD.items() if before[name] is None}
    )
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)


def _on_ray(
    jobs: Sequence[Job], cache: Path | None, watch: OnStudyProgress
) -> list[Outcome | None]:
    """Run each job as one task of the cluster, or of this machine if there is none."""
    ray = require_ray()
    if not ray.is_initialized():
        ray.init(log_to_driver=False, include_dashboard=False, logging_level="ERROR")
    remote = ray.remote(num_cpus=1, max_retries=0, runtime_env={"env_vars": SINGLE_THREAD})(
        _run_on_ray
    )
    waiting = {remote.remote(job, cache): number for number, job in enumerate(jobs)}
    found: list[Outcome | None] = [None] * len(jobs)
    with _interruption() as stopped:
        while waiting and not stopped():
            done, _ = ray.wait(list(waiting), timeout=_POLL_S)
            for reference in done:
                number = waiting.pop(reference)
                try:
                    outcome = found[number] = ray.get(reference)
                except ray.exceptions.RayTaskError as error:
                    raise error.cause from error
                watch(number, jobs[number].slots, outcome.metrics)
        for reference in waiting:
            ray.cancel(reference)
        if waiting:
            ray.wait(list(waiting), num_returns=len(waiting), timeout=_STOP_S)
    return found


def _run_on_ray(job: Job, cache: Path | None) -> Outcome:
    """Run a job on Ray, where cancelling is an interruption: its checkpoint is kept."""
    with _interruption() as stopped:
        return job.run(watch=lambda slots, metrics: not stopped(), cache=cache)
