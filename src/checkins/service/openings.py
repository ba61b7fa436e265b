"""Campaigns that are being read, checked and priced: one at a time, beside the event loop.

A campaign file is the operator's, and may be large or expensive all the same. It never keeps a
check-in waiting: neither the event loop nor a thread of the store works on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from checkins.service.problems import Problem
from checkins.service.threads import DaemonThreads

T = TypeVar("T")
MOST_WAITING = 4
"""Campaigns that may wait for their turn."""
WITHIN_S = 60.0
"""How long somebody waits for an answer; the work goes on, and asking again finds its result."""


class Openings:
    """One thread, and a short queue for it."""

    def __init__(self, *, within_s: float = WITHIN_S, most: int = MOST_WAITING) -> None:
        self._thread = DaemonThreads(1, name="openings")
        self._within_s = within_s
        self._most = most
        self._waiting = 0

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """The result of some work, or the problem ``busy`` where it takes too long."""
        if self._waiting > self._most:
            raise Problem("busy", "other campaigns are being opened: try again", retry_after=5)
        self._waiting += 1
        loop = asyncio.get_running_loop()
        future = self._thread.submit(work, *arguments)
        future.add_done_callback(lambda _: self._done(loop))
        try:
            async with asyncio.timeout(self._within_s):
                return await asyncio.shield(asyncio.wrap_future(future))
        except TimeoutError:
            raise Problem(
                "busy", "the campaign is still being priced: post it again", retry_after=5
            ) from None

    def _done(self, loop: asyncio.AbstractEventLoop) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._count_down)

    def _count_down(self) -> None:
        self._waiting -= 1

    def close(self) -> None:
        """Forget what waits; what is being worked on is nobody's any more."""
        self._thread.shutdown(wait=False, cancel_futures=True)
