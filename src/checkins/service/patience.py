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
T = TypeVar("T")


def away() -> Problem:
    """What a client is told while the store is silent."""
    return Problem("busy", "the store does not answer: try again", retry_after=1)


async def patiently(work: Awaitable[T]) -> T:
    """The result of work that waits for the store; raises ``away`` once that took too long."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await work
    except TimeoutError:
        raise away() from None
