"""Background tasks that are started again if they fail, and threads that call the store.

A background task runs until it returns. If it fails, the failure is logged and counted, and the
task is started again after a pause. While a task keeps failing, the service is not ready
(``routes/readiness.py``).

A thread cannot be ended while it waits for a database that does not answer. Python waits at its
exit for all threads of a ``ThreadPoolExecutor``, so the threads here are daemon threads instead. A
transaction that timed out may still become durable, so a client that gets the problem ``busy``
sends the same request again.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from checkins.service import logs
from checkins.service.http.problems import Problem

T = TypeVar("T")
FIRST_PAUSE_S = 0.1  # seconds before a task that failed for the first time is started again
MAX_PAUSE_S = 5.0  # longest pause before a task that keeps failing is started again
RECOVERED_AFTER_S = 2 * MAX_PAUSE_S
"""A task whose last failure is longer ago than this many seconds no longer counts as failing."""
STORE_TIMEOUT_S = 10.0  # seconds that a request waits for the store
STOPPING_TIMEOUT_S = 0.5  # seconds that a request waits for the store while the service stops

TaskFunction = Callable[[], Coroutine[Any, Any, None]]
"""A function that returns a new coroutine each time its task is started."""


@dataclass(slots=True)
class _SupervisedTask:
    """A task that is started again if it fails."""

    kind: str
    work: TaskFunction
    task: asyncio.Task[None] | None = None
    started_at: float = 0.0
    failed_at: float | None = None  # when the task last failed; None if it has succeeded since
    pause_s: float = FIRST_PAUSE_S  # seconds to wait before the next restart


@dataclass(slots=True)
class BackgroundTasks:
    """The background tasks of one runner.

    ``on_restart`` is called with the kind of a task (such as ``clock``) each time it fails.
    """

    on_restart: Callable[[str], None]
    _supervised: dict[str, _SupervisedTask] = field(default_factory=dict)
    _unsupervised: set[asyncio.Task[None]] = field(default_factory=set)
    _stopping: bool = False

    def supervise(self, kind: str, work: TaskFunction, *, name: str = "") -> None:
        """Run ``work`` until it returns. If it fails, start it again after a pause.

        ``kind`` and ``name`` together identify a task. If that task exists, do nothing.
        """
        key = f"{kind} {name}"
        if key not in self._supervised:
            self._supervised[key] = _SupervisedTask(kind, work)
            self._start_task(key)

    def run_once(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` once. If it fails, the failure is only logged."""
        task = asyncio.create_task(work)
        self._unsupervised.add(task)
        task.add_done_callback(self._on_unsupervised_end)

    def record_success(self, kind: str, *, name: str = "") -> None:
        """Record that a task has done its work once, so that it no longer counts as failing."""
        supervised = self._supervised.get(f"{kind} {name}")
        if supervised is not None:
            supervised.failed_at, supervised.pause_s = None, FIRST_PAUSE_S

    @property
    def failing_kinds(self) -> list[str]:
        """The kinds of the tasks that failed recently and have not succeeded since."""
        now = asyncio.get_running_loop().time()
        failures = {(task.kind, task.failed_at) for task in self._supervised.values()}
        recent = (kind for kind, at in failures if at is not None and now - at <= RECOVERED_AFTER_S)
        return sorted(set(recent))

    async def stop(self) -> None:
        """Cancel every task and wait until all have ended."""
        self._stopping = True
        supervised = (entry.task for entry in self._supervised.values() if entry.task)
        running = [*self._unsupervised, *supervised]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _start_task(self, key: str) -> None:
        if self._stopping:
            return
        supervised = self._supervised[key]
        supervised.started_at = asyncio.get_running_loop().time()
        supervised.task = asyncio.create_task(supervised.work())
        supervised.task.add_done_callback(lambda task: self._on_supervised_end(key, task))

    def _on_supervised_end(self, key: str, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if self._stopping or not (task.cancelled() or error):
            self._supervised.pop(key, None)
            return
        supervised, loop = self._supervised[key], asyncio.get_running_loop()
        supervised.task, supervised.failed_at = None, loop.time()
        if supervised.failed_at - supervised.started_at > RECOVERED_AFTER_S:
            supervised.pause_s = FIRST_PAUSE_S
        if error is not None:
            logs.failure(error)
        logs.repeated_warning("task-died", task=supervised.kind)
        self.on_restart(supervised.kind)
        loop.call_later(supervised.pause_s, self._start_task, key)
        supervised.pause_s = min(2 * supervised.pause_s, MAX_PAUSE_S)

    def _on_unsupervised_end(self, task: asyncio.Task[None]) -> None:
        self._unsupervised.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logs.failure(error)


class DaemonThreads(Executor):
    """An executor that starts up to ``max_threads`` daemon threads when they are needed."""

    def __init__(self, max_threads: int, *, name: str) -> None:
        self._max_threads = max_threads
        self._name = name
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._stopped = False

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run a function on a thread, as ``concurrent.futures.Executor.submit`` does."""
        future: Future[T] = Future()
        with self._lock:
            if self._stopped:
                raise RuntimeError(f"{self._name}: its threads have been stopped")
            self._jobs.put((future, partial(function, *args, **kwargs)))
            if len(self._threads) < self._max_threads:
                thread = threading.Thread(target=self._run_jobs, name=self._name, daemon=True)
                thread.start()
                self._threads.append(thread)
        return future

    def _run_jobs(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, call = job
            if future.set_running_or_notify_cancel():
                try:
                    result = call()
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)
                    del result
            del job, future, call  # so that they do not stay in memory until the next job

    def stop(self, *, timeout_s: float) -> bool:
        """Accept no more work, drop the work that has not begun, and wait for the rest.

        Return False if some work is not done after ``timeout_s`` seconds. That work is killed when
        the process ends.
        """
        with self._lock:
            self._stopped = True
            with suppress(Empty):
                while True:
                    if (job := self._jobs.get_nowait()) is not None:
                        job[0].cancel()
            for _ in self._threads:
                self._jobs.put(None)
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)


def store_unavailable() -> Problem:
    """Return the problem (HTTP error response) ``busy``, because the store does not answer."""
    return Problem("busy", "the store does not answer: try again", retry_after=1)


class Timeouts:
    """Timeouts of the requests that wait for the store. ``expire_all`` ends all waits at once."""

    def __init__(self) -> None:
        self._running: set[asyncio.Timeout] = set()
        self._stopping = False

    async def wait(self, work: Awaitable[T]) -> T:
        """Return the result of ``work``. Raise ``busy`` if it takes longer than the timeout."""
        seconds = STOPPING_TIMEOUT_S if self._stopping else STORE_TIMEOUT_S
        try:
            async with asyncio.timeout(seconds) as timeout:
                self._running.add(timeout)
                try:
                    return await work
                finally:
                    self._running.discard(timeout)
        except TimeoutError:
            raise store_unavailable() from None

    def expire_all(self) -> None:
        """Answer all waiting requests with ``busy`` now, and use a short timeout from now on."""
        self._stopping = True
        for timeout in self._running:
            if not timeout.expired():
                timeout.reschedule(asyncio.get_running_loop().time())
