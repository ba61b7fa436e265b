"""A separate process that computes the epsilon of a run for several numbers of slots.

The computation is slow. In a separate process it does not delay check-ins. The process is
started as ``python -m checkins.service.workers.epsilon_process RUN``, with the store's URL in the
environment. It ends if its parent ends.
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
from checkins.service.store.run_state import RunSpec

MAX_SLOT_COUNTS = 20  # largest number of slot counts whose epsilon is computed
KILL_AFTER_S = 0.5  # seconds between SIGTERM and SIGKILL for a process that must end
STORE_VARIABLE = "CHECKINS_EPSILON_STORE"
"""Environment variable that holds the store's URL.

It is not a command-line argument, because the URL may contain a password.
"""


def slot_counts(spec: RunSpec) -> Sequence[int]:
    """Return up to ``MAX_SLOT_COUNTS`` evenly spaced slot counts.

    The largest count is the number of slots that the budget allows. Epsilon grows with the number
    of slots, so for a count in between, the epsilon of the next larger count is an upper bound.
    """
    steps = range(1, MAX_SLOT_COUNTS + 1)
    return sorted({-(-spec.affordable * step // MAX_SLOT_COUNTS) for step in steps})  # rounded up


def compute_epsilons(database: Database, run: str) -> None:
    """Compute and save each epsilon of a run that is not in the store yet.

    The largest slot count comes first, because its epsilon is an upper bound for all smaller ones.
    Nothing is computed if the run is unknown or over.
    """
    with database.read_transaction() as connection:
        spec = run_state.load_spec(connection, run)
        if spec is None:
            return
        ledger = ledgers.load_ledger(connection, spec.population)
    running = ledger.running
    if running is None or (running.seal, running.number) != (spec.seal, spec.number):
        return
    spending = Spending(spec.campaign, earlier_of(ledger), running.filter)
    parent_id = os.getppid()
    for slots in reversed(slot_counts(spec)):
        if os.getppid() != parent_id:  # the parent process has ended
            return
        if slots not in dict(run_state.load_epsilons(database, run)):
            epsilon = spending.epsilon_after(slots)
            run_state.add_epsilon(database, run, slots=slots, epsilon=epsilon)


class EpsilonProcesses:
    """The processes that one worker has started to compute epsilons."""

    def __init__(self, store_url: str) -> None:
        self._store_url = store_url
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, run: str) -> None:
        """Start a process that computes the epsilons of a run."""
        command = [sys.executable, "-m", "checkins.service.workers.epsilon_process", run]
        no_streams: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        environment = {**os.environ, STORE_VARIABLE: self._store_url}
        self._running.append(subprocess.Popen(command, env=environment, **no_streams))

    def remove_ended(self) -> None:
        """Forget each process that has ended, and collect its exit status."""
        self._running = [process for process in self._running if process.poll() is None]

    def stop(self) -> None:
        """End all processes. The missing epsilons are computed after the service starts again."""
        for process in self._running:
            process.terminate()
        for process in self._running:
            try:
                process.wait(timeout=KILL_AFTER_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running = []


if __name__ == "__main__":
    os.nice(10)
    compute_epsilons(Database(os.environ[STORE_VARIABLE]), sys.argv[1])
