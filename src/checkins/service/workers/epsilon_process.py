"""The epsilon of a run after each of several slot counts, computed in a process of its own.

So it does not slow down check-ins. Run as ``python -m checkins.service.workers.epsilon_process
RUN``, with the address of the store in the environment; the process ends with its parent.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from checkins.campaign import Spending
from checkins.ledger import earlier_of
from checkins.service.store import ledgers, run_state
from checkins.service.store.database import Database
from checkins.service.store.run_spec import RunSpec

MARKS = 20  # number of slot counts whose epsilon is computed
END_S = 0.5  # seconds that a process may take to end before it is killed
STORE = "CHECKINS_PRICED_STORE"
"""Variable with the address of the store, whose password must not be an argument."""


def marks(spec: RunSpec) -> Sequence[int]:
    """Return the slot counts whose epsilon is computed: evenly up to the last affordable one.

    The epsilon between two of them is at most that of the next.
    """
    most = spec.affordable
    return sorted({-(-most * part // MARKS) for part in range(1, MARKS + 1)})


def compute_marks(database: Database, run: str) -> None:
    """Compute the epsilon of every mark that has none; the last one first, which bounds all."""
    with database.reading() as connection:
        spec = run_state.load_spec(connection, run)
        if spec is None:
            return
        ledger = ledgers.load_ledger(connection, spec.population)
    running = ledger.running
    if running is None or (running.seal, running.number) != (spec.seal, spec.number):
        return
    spending = Spending(spec.campaign, earlier_of(ledger), running.filter)
    parent = os.getppid()
    for slots in reversed(marks(spec)):
        if os.getppid() != parent:
            return
        if slots not in dict(run_state.load_epsilons(database, run)):
            epsilon = spending.epsilon_after(slots)
            run_state.add_epsilon(database, run, slots=slots, epsilon=epsilon)


class EpsilonProcesses:
    """The processes that compute the epsilons of a coordinator's runs."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, run: str) -> None:
        command = [sys.executable, "-m", "checkins.service.workers.epsilon_process", run]
        quiet: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        environment = {**os.environ, STORE: self._store}
        self._running.append(subprocess.Popen(command, env=environment, **quiet))

    def forget_those_that_ended(self) -> None:
        self._running = [process for process in self._running if process.poll() is None]

    def end(self) -> None:
        """End all processes; missing epsilons are computed after the next start."""
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
    compute_marks(Database(os.environ[STORE]), sys.argv[1])
