"""Emptying SQLite's write-ahead log: what a closed slot has erased must not stay there for long.

It is emptied beside everything else, and never while a writer would have to wait for a reader.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from checkins.service import logs

if TYPE_CHECKING:
    from checkins.service.runner import Runner

LOOK_S = 1.0
"""How often its length is looked at; while a reader prevents it, how often emptying is tried."""
EMPTY_S = 10.0
"""How long the log keeps what was erased, about, while nobody holds a transaction open."""
HELD_S = 60.0
"""A log that could not be emptied for as long is worth a warning."""


async def keep_empty(runner: Runner) -> None:
    """Empty the log every so often; while a reader prevents it, try every second."""
    loop = asyncio.get_running_loop()
    emptied = loop.time()
    while True:
        await asyncio.sleep(LOOK_S)
        due = loop.time() - emptied >= EMPTY_S
        empty = runner.database.log_bytes == 0
        if empty or (due and await runner.thread(runner.database.checkpoint)):
            emptied = loop.time()
        elif loop.time() - emptied >= HELD_S:
            logs.repeated("log-held-by-reader", store="sqlite")
        runner.background.works("checkpoint")
