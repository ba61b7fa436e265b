"""The price of so many slots, computed in a process of its own: it must not slow down a check-in.

Run as ``python -m checkins.service.pricing RUN``, with the store's address in the environment; it
ends with its parent.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from checkins.campaign import Spending
from checkins.ledger import earlier_of
from checkins.service.run_spec import RunSpec
from checkins.service.store import progress, records
from checkins.service.store.database import Database

MARKS = 20
END_S = 0.5
"""How long a process may take to end before it is killed."""
STORE = "CHECKINS_PRICED_STORE"
"""The store's address may hold a password, so it is no argument that others could read."""


def marks(terms: RunSpec) -> Sequence[int]:
    """The slot counts that are priced: evenly up to the last one that is paid for.

    An epsilon between two of them is at most that of the next.
    """
    most = terms.affordable
    return sorted({-(-most * part // MARKS) for part in range(1, MARKS + 1)})


def price_marks(database: Database, run: str) -> None:
    """Price every mark that is not yet priced; the last one first, which bounds all others."""
    with database.reading() as connection:
        terms = records.load_terms(connection, run)
        if terms is None:
            return
        ledger = records.load_ledger(connection, terms.population)
    running = ledger.running
    if running is None or (running.seal, running.number) != (terms.seal, terms.number):
        return
    spending = Spending(terms.campaign, earlier_of(ledger), running.filter)
    parent = os.getppid()
    for slots in reversed(marks(terms)):
        if os.getppid() != parent:
            return
        if slots not in dict(progress.load_prices(database, run)):
            epsilon = spending.epsilon_after(slots)
            progress.add_price(database, run, slots=slots, epsilon=epsilon)


class Processes:
    """The processes that price the runs of one coordinator."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, run: str) -> None:
        """Price the marks of a run beside everything else."""
        self._running.append(
            subprocess.Popen(
                [sys.executable, "-m", "checkins.service.pricing", run],
                env={**os.environ, STORE: self._store},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )

    def forget_those_that_ended(self) -> None:
        self._running = [process for process in self._running if process.poll() is None]

    def end(self) -> None:
        """End all of them: what is not priced is priced after the next start."""
        for process in self._running:
            process.terminate()
        for process in self._running:
            try:
                process.wait(timeout=END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running = []


if __name__ == "__main__":
    os.nice(10)
    price_marks(Database(os.environ[STORE]), sys.argv[1])
