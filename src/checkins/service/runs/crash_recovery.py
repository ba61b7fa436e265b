"""Crash recovery: read the runs of the store when a coordinator starts.

A coordinator starts in the same way after a stop and after a crash. For each run that is not over,
the runner closes every slot that ended meanwhile. Reports that were durable in time count, and
dummy reports replace all missing ones. The runner also opens the next run of a campaign if the
crash prevented it. The same functions find, once a second, the runs that other workers open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import TypeVar

from checkins.service import logs
from checkins.service.store import run_state
from checkins.service.store.database import (
    STARTING_PAUSE_S,
    STARTING_S,
    Database,
    StoreError,
    is_away,
)
from checkins.service.store.run_spec import RunSpec
from checkins.service.store.run_state import Curve, Epsilons, RunSnapshot

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class StoredRun:
    """The snapshot of a run in the store, with its epsilons and its learning curve."""

    snapshot: RunSnapshot
    epsilons: Epsilons
    curve: Curve


def unknown_runs(database: Database, known: Collection[str]) -> list[RunSpec]:
    """Return the runs of the store whose ids are not ``known``."""
    return database.read(run_state.load_specs_except, known)


def stored_run(database: Database, spec: RunSpec) -> StoredRun:
    snapshot = database.read(run_state.load_snapshot, spec)
    epsilons = run_state.load_epsilons(database, spec.id)
    return StoredRun(snapshot, epsilons, run_state.load_curve(database, spec.id))


async def when_the_store_answers(database: Database, work: Callable[[], Awaitable[T]]) -> T:
    """Return the result of ``work``, and repeat it while PostgreSQL accepts no connections.

    After ``STARTING_S`` seconds the error is raised.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + STARTING_S
    while True:
        try:
            return await work()
        except StoreError as error:
            if database.is_sqlite or not is_away(error) or loop.time() > until:
                raise
            logs.repeated("waiting-for-store", store="postgresql", seconds=STARTING_S)
        await asyncio.sleep(STARTING_PAUSE_S)
