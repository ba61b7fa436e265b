"""Wait until a condition holds; a test fails when it does not hold within five minutes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_S = 300.0
"""Longest wait for anything, in seconds: more than any limit of the service on a slow machine."""

Found = TypeVar("Found")


def wait_until(holds: Callable[[], Found], what: str = "", *, every_s: float = 0.005) -> Found:
    """Return the first true value of ``holds``."""
    end = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        assert time.monotonic() < end, f"not within {PATIENCE_S:.0f} s: {what}"
        time.sleep(every_s)
    return found


async def until(holds: Callable[[], Found], *, every_s: float = 0.002) -> Found:
    """Return the first true value of ``holds`` and let other tasks run meanwhile."""
    async with asyncio.timeout(PATIENCE_S):
        while not (found := holds()):
            await asyncio.sleep(every_s)
    return found
