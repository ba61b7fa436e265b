"""Background tasks. A task that fails is logged, counted, and started again after a pause.

A task runs until it returns. While a task keeps failing, the service is not ready
(``routes/readiness.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from checkins.service import logs

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0  # longest pause before a task that keeps failing is started again
RECOVERED_S = 2 * LONGEST_PAUSE_S
"""A task that has not failed for this many seconds no longer counts as failing."""

Work = Callable[[], Coroutine[Any, Any, None]]


@dataclass(slots=True)
class _Supervised:
    """A task that is started again if it fails."""

    kind: str
    work: Work
    task: asyncio.Task[None] | None = None
    began: float = 0.0
    died: float | None = None  # when it last failed; None if it has worked since
    pause_s: float = FIRST_PAUSE_S


@dataclass(slots=True)
class BackgroundTasks:
    """The background tasks of one runner.

    ``restarted`` is called with the kind of a task (such as ``clock``) each time it fails.
    """

    restarted: Callable[[str], None]
    _supervised: dict[str, _Supervised] = field(default_factory=dict)
    _once: set[asyncio.Task[None]] = field(default_factory=set)
    _stopping: bool = False

    def keep(self, kind: str, work: Work, *, name: str = "") -> None:
        """Run ``work`` until it returns. If it fails, start it again after a pause.

        ``kind`` and ``name`` together identify a task. If that task exists, do nothing.
        """
        key = f"{kind} {name}"
        if key not in self._supervised:
            self._supervised[key] = _Supervised(kind, work)
            self._begin(key)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` once. If it fails, the failure is only logged."""
        task = asyncio.create_task(work)
        self._once.add(task)
        task.add_done_callback(self._over)

    def works(self, kind: str, *, name: str = "") -> None:
        """Record that a task has done its work, so that it no longer counts as failing."""
        supervised = self._supervised.get(f"{kind} {name}")
        if supervised is not None:
            supervised.died, supervised.pause_s = None, FIRST_PAUSE_S

    @property
    def failing(self) -> list[str]:
        """The kinds of the tasks that failed recently and have not done their work since."""
        now = asyncio.get_running_loop().time()
        died = [(one.kind, one.died) for one in self._supervised.values() if one.died is not None]
        return sorted({kind for kind, moment in died if not now - moment > RECOVERED_S})

    async def stop(self) -> None:
        """Cancel every task and wait until all have ended."""
        self._stopping = True
        supervised = [one.task for one in self._supervised.values() if one.task]
        running = [*self._once, *supervised]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _begin(self, key: str) -> None:
        if self._stopping:
            return
        supervised = self._supervised[key]
        supervised.began = asyncio.get_running_loop().time()
        supervised.task = asyncio.create_task(supervised.work())
        supervised.task.add_done_callback(lambda task: self._ended(key, task))

    def _ended(self, key: str, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if self._stopping or not (task.cancelled() or error):
            self._supervised.pop(key, None)
            return
        supervised, loop = self._supervised[key], asyncio.get_running_loop()
        supervised.task, supervised.died = None, loop.time()
        if supervised.died - supervised.began > RECOVERED_S:
            supervised.pause_s = FIRST_PAUSE_S
        if error is not None:
            logs.failure(error)
        logs.repeated("task-died", task=supervised.kind)
        self.restarted(supervised.kind)
        loop.call_later(supervised.pause_s, self._begin, key)
        supervised.pause_s = min(2 * supervised.pause_s, LONGEST_PAUSE_S)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._once.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logs.failure(error)
