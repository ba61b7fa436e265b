"""Background tasks that are started again if they fail, and threads that call the store.

A background task runs until it returns. A task that fails is logged, counted, and started again
after a pause. While it keeps failing, the service is not ready (``routes/readiness.py``).

A thread cannot be ended while it waits for a database that does not answer. So the threads are
daemon threads, because Python waits at its exit for all threads of a ``ThreadPoolExecutor``. A
transaction that timed out may still become durable, so a client that gets ``busy`` sends the same
request again.
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
LONGEST_PAUSE_S = 5.0  # longest pause before a task that keeps failing is started again
RECOVERED_S = 2 * LONGEST_PAUSE_S
"""A task that has not failed for this many seconds no longer counts as failing."""
STORE_TIMEOUT_S = 10.0  # seconds that a request waits for the store
STOPPING_TIMEOUT_S = 0.5  # seconds that a request waits for the store while the service stops

Work = Callable[[], Coroutine[Any, Any, None]]


@dataclass(slots=True)
class _Supervised:
    """A task that is started again if it fails."""

    kind: str
    work: Work
    task: asyncio.Task[None] | None = None
    began_at: float = 0.0
    failed_at: float | None = None  # when it last failed; None if it has succeeded since
    pause_s: float = FIRST_PAUSE_S


@dataclass(slots=True)
class BackgroundTasks:
    """The background tasks of one runner.

    ``on_restart`` is called with the kind of a task (such as ``clock``) each time it fails.
    """

    on_restart: Callable[[str], None]
    _supervised: dict[str, _Supervised] = field(default_factory=dict)
    _once: set[asyncio.Task[None]] = field(default_factory=set)
    _stopping: bool = False

    def supervise(self, kind: str, work: Work, *, name: str = "") -> None:
        """Run ``work`` until it returns. If it fails, start it again after a pause.

        ``kind`` and ``name`` together identify a task. If that task exists, do nothing.
        """
        key = f"{kind} {name}"
        if key not in self._supervised:
            self._supervised[key] = _Supervised(kind, work)
            self._begin(key)

    def run_once(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` once. If it fails, the failure is only logged."""
        task = asyncio.create_task(work)
        self._once.add(task)
        task.add_done_callback(self._over)

    def succeeded(self, kind: str, *, name: str = "") -> None:
        """Record that a task has done its work, so that it no longer counts as failing."""
        supervised = self._supervised.get(f"{kind} {name}")
        if supervised is not None:
            supervised.failed_at, supervised.pause_s = None, FIRST_PAUSE_S

    @property
    def failing(self) -> list[str]:
        """The kinds of the tasks that failed recently and have not done their work since."""
        now = asyncio.get_running_loop().time()
        failed = {(one.kind, one.failed_at) for one in self._supervised.values()}
        return sorted({kind for kind, at in failed if at is not None and now - at <= RECOVERED_S})

    async def stop(self) -> None:
        """Cancel every task and wait until all have ended."""
        self._stopping = True
        running = [*self._once, *(one.task for one in self._supervised.values() if one.task)]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _begin(self, key: str) -> None:
        if self._stopping:
            return
        supervised = self._supervised[key]
        supervised.began_at = asyncio.get_running_loop().time()
        supervised.task = asyncio.create_task(supervised.work())
        supervised.task.add_done_callback(lambda task: self._ended(key, task))

    def _ended(self, key: str, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if self._stopping or not (task.cancelled() or error):
            self._supervised.pop(key, None)
            return
        supervised, loop = self._supervised[key], asyncio.get_running_loop()
        supervised.task, supervised.failed_at = None, loop.time()
        if supervised.failed_at - supervised.began_at > RECOVERED_S:
            supervised.pause_s = FIRST_PAUSE_S
        if error is not None:
            logs.failure(error)
        logs.repeated("task-died", task=supervised.kind)
        self.on_restart(supervised.kind)
        loop.call_later(supervised.pause_s, self._begin, key)
        supervised.pause_s = min(2 * supervised.pause_s, LONGEST_PAUSE_S)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._once.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logs.failure(error)


class DaemonThreads(Executor):
    """An executor with at most ``most`` daemon threads, which are started when they are needed."""

    def __init__(self, most: int, *, name: str) -> None:
        self._most = most
        self._name = name
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._stopped = False

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run a function on a thread, as ``concurrent.futures.Executor`` does."""
        future: Future[T] = Future()
        with self._lock:
            if self._stopped:
                raise RuntimeError(f"{self._name}: its threads have been stopped")
            self._jobs.put((future, partial(function, *args, **kwargs)))
            if len(self._threads) < self._most:
                thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                thread.start()
                self._threads.append(thread)
        return future

    def _work(self) -> None:
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

    def stop(self, *, within_s: float) -> bool:
        """Accept no more work, drop the work that has not begun, and wait for the rest.

        Return False if some work is not done after ``within_s`` seconds. That work ends with the
        process.
        """
        with self._lock:
            self._stopped = True
            with suppress(Empty):
                while True:
                    if (job := self._jobs.get_nowait()) is not None:
                        job[0].cancel()
            for _ in self._threads:
                self._jobs.put(None)
        until = time.monotonic() + within_s
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)


def store_unavailable() -> Problem:
    """Return the problem ``busy``, which says that the store does not answer."""
    return Problem("busy", "the store does not answer: try again", retry_after=1)


class Timeouts:
    """Timeouts of the requests that wait for the store. ``expire_all`` ends all of them."""

    def __init__(self) -> None:
        self._running: set[asyncio.Timeout] = set()
        self._stopping = False

    async def wait(self, work: Awaitable[T]) -> T:
        """Return the result of ``work``. Raise ``busy`` after ``STORE_TIMEOUT_S`` seconds."""
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
        """Answer all waiting requests with ``busy`` now."""
        self._stopping = True
        for timeout in self._running:
            if not timeout.expired():
                timeout.reschedule(asyncio.get_running_loop().time())
