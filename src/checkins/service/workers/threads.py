"""Threads that call the store, and timeouts of the requests that wait for these threads.

A thread cannot be ended while it waits for a database that does not answer. These are daemon
threads, because Python waits at its exit for all threads of a ``ThreadPoolExecutor``. A transaction
that timed out may still become durable, so a client that gets ``busy`` sends the same request
again.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from checkins.service.http.problems import Problem

T = TypeVar("T")
PATIENCE_S = 10.0  # seconds that a request waits for the store
LAST_S = 0.5  # seconds that a request waits for the store while the service stops


class DaemonThreads(Executor):
    """An executor with at most ``most`` daemon threads, which are started when they are needed."""

    def __init__(self, most: int, *, name: str) -> None:
        self._most = most
        self._name = name
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, function: Callable[..., T], /, *given: Any, **named: Any) -> Future[T]:
        """Run a function on a thread, as ``concurrent.futures.Executor`` does."""
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError(f"{self._name}: its threads have been shut down")
            self._jobs.put((future, partial(function, *given, **named)))
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

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more work, as ``concurrent.futures.Executor`` does."""
        self._close(cancel_futures=cancel_futures)
        if wait:
            for thread in self._threads:
                thread.join()

    def leave(self, *, within_s: float) -> bool:
        """Accept no more work, drop the work that has not begun, and wait for the rest.

        Return False if some work is not done after ``within_s`` seconds. That work ends with the
        process.
        """
        self._close(cancel_futures=True)
        until = time.monotonic() + within_s
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _close(self, *, cancel_futures: bool) -> None:
        with self._lock:
            self._closed = True
            while cancel_futures:
                try:
                    job = self._jobs.get_nowait()
                except Empty:
                    break
                if job is not None:
                    job[0].cancel()
            for _ in self._threads:
                self._jobs.put(None)


def away() -> Problem:
    """Return the problem ``busy``, which says that the store does not answer."""
    return Problem("busy", "the store does not answer: try again", retry_after=1)


class Timeouts:
    """Timeouts of the requests that wait for the store. ``end`` makes all of them expire."""

    def __init__(self) -> None:
        self._limits: set[asyncio.Timeout] = set()
        self._ended = False

    async def wait(self, work: Awaitable[T]) -> T:
        """Return the result of ``work``; raise ``busy`` if it takes longer than ``PATIENCE_S``."""
        try:
            async with asyncio.timeout(LAST_S if self._ended else PATIENCE_S) as limit:
                self._limits.add(limit)
                try:
                    return await work
                finally:
                    self._limits.discard(limit)
        except TimeoutError:
            raise away() from None

    def end(self) -> None:
        """Answer all waiting requests with ``busy`` now."""
        self._ended = True
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(asyncio.get_running_loop().time())
