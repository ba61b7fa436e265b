"""How long a request waits for the store before its client is told to come again.

A store that refuses connections says so at once. One that took them and fell silent says nothing:
its host is gone, or it is stopped. What was handed to it may still become durable, so a client that
is told ``busy`` sends the same again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from checkins.service.problems import Problem

PATIENCE_S = 10.0
LAST_S = 0.5
"""What is left of it once it has ended."""
T = TypeVar("T")


def away() -> Problem:
    """What a client is told while the store is silent."""
    return Problem("busy", "the store does not answer: try again", retry_after=1)


class Timeouts:
    """What requests wait for the store with; it ends for all of them when the service stops."""

    def __init__(self) -> None:
        self._limits: set[asyncio.Timeout] = set()
        self._ended = False

    async def wait(self, work: Awaitable[T]) -> T:
        """The result of work that waits for the store; raises ``away`` once that took too long."""
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
        """Let everyone who waits be told to come again now."""
        self._ended = True
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(asyncio.get_running_loop().time())
