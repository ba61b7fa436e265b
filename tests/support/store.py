"""The store of a coordinator, driven by calls, with a clock that tests move."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Table, select

from checkins.campaign import Campaign
from checkins.errors import ProtocolViolation
from checkins.ledger.verification import Verification, verify
from checkins.service.authentication import hashed
from checkins.service.runs import intake, opening, slot_transitions
from checkins.service.runs.intake import CheckIn, EnrolmentRequest, Submission
from checkins.service.store import ledgers, metadata, run_state, schema
from checkins.service.store.database import Database
from checkins.service.store.run_state import RunSnapshot, RunSpec
from checkins.service.store.schema import migrate
from checkins.service.workers.epsilon_process import EpsilonProcesses
from tests.support.clock import Clock, StoreClock


@dataclass
class House:
    """A migrated store in its first epoch; its methods do what a runner does, without threads."""

    url: str
    folder: Path
    clock: Clock = field(default_factory=Clock)
    database: Database = field(init=False)
    names: Iterator[int] = field(default_factory=count, repr=False)

    def __post_init__(self) -> None:
        self._come_back()

    def _come_back(self) -> None:
        self.database = FaultyDatabase(self.url, self.clock)
        migrate(self.database)
        metadata.begin_epoch(self.database)

    def restart(self) -> None:
        """Open the store again: state that was not durable is lost."""
        self.database.close()
        self._come_back()

    def open(self, what: Campaign) -> RunSpec:
        return opening.open_run(self.database, what, folder=self.folder)

    def snapshot(self, spec: RunSpec) -> RunSnapshot:
        with self.database.read_transaction() as connection:
            return run_state.load_snapshot(connection, spec)

    def tick(self, spec: RunSpec) -> RunSnapshot:
        """Attempt the next transition once."""
        return slot_transitions.advance(self.database, spec, self.snapshot(spec))

    def run_until(self, spec: RunSpec, moment: float) -> RunSnapshot:
        """Set the clock, then make every transition that is due."""
        self.clock.now = moment
        snapshot = self.snapshot(spec)
        while True:
            due = slot_transitions.next_due_time(spec, snapshot.state)
            if due is None or due > moment:
                return snapshot
            snapshot = slot_transitions.advance(self.database, spec, snapshot)

    def begin(self, spec: RunSpec, slot: int) -> RunSnapshot:
        """Into a slot: check-ins are taken."""
        return self.run_until(spec, spec.run_schedule.begins(slot))

    def choose(self, spec: RunSpec, slot: int) -> RunSnapshot:
        """Past the choice of a slot."""
        return self.run_until(spec, spec.run_schedule.chooses(slot))

    def close(self, spec: RunSpec, slot: int) -> RunSnapshot:
        """Past the end of a slot."""
        return self.run_until(spec, spec.run_schedule.ends(slot))

    def finish(self, spec: RunSpec) -> RunSnapshot:
        """To the end of the run, its certificate included."""
        snapshot = self.run_until(spec, spec.run_schedule.ends(spec.rules.slots))
        return slot_transitions.finish(self.database, spec, snapshot)

    def enrol(self, spec: RunSpec, name: str | None = None) -> str:
        """Enrol a client; return its hashed token."""
        token = hashed(name or f"token-{next(self.names)}")
        (answer,) = intake.take_enrolments(self.database, spec, [EnrolmentRequest(token)])
        assert answer is None
        return token

    def check_in(self, spec: RunSpec, slot: int, token: str | None = None) -> str:
        """Check in; return the receipt, or raise the refusal."""
        message = CheckIn(slot, token or self.enrol(spec))
        (answer,) = intake.take_check_ins(self.database, spec, [message])
        if isinstance(answer, ProtocolViolation):
            raise answer
        return answer

    def report(self, spec: RunSpec, slot: int, receipt: str, units: Any = 1) -> None:
        """Submit a report of these units, or raise the refusal."""
        message = Submission(slot, receipt, units_of(spec, units))
        (answer,) = intake.take_reports(self.database, spec, [message])
        if answer is not None:
            raise answer

    def chosen(self, spec: RunSpec) -> frozenset[str]:
        """The receipts chosen in the current slot, as they are recorded."""
        choice = slot_transitions.read_choice(self.database, spec.id)
        assert choice is not None
        return choice.chosen

    def play(self, spec: RunSpec, slot: int, clients: int) -> None:
        """Run a slot in which so many clients check in and every chosen client reports."""
        self.begin(spec, slot)
        for _ in range(clients):
            self.check_in(spec, slot)
        self.choose(spec, slot)
        for receipt in self.chosen(spec):
            self.report(spec, slot, receipt)
        self.close(spec, slot)

    def rows(self, table: Table) -> list[Any]:
        with self.database.read_transaction() as connection:
            return list(connection.execute(select(table)))

    def lines(self, spec: RunSpec) -> list[bytes]:
        """The ledger of the run's population."""
        with self.database.read_transaction() as connection:
            return ledgers.ledger_lines(connection, spec.population, after=0, limit=10**6)

    def entries(self, spec: RunSpec) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines(spec)]

    def verified(self, spec: RunSpec, **how: Any) -> Verification:
        return verify(self.lines(spec), **how)

    def everything(self) -> str:
        """Every value of every table, as one text."""
        with self.database.read_transaction() as connection:
            held = [
                value.hex() if isinstance(value, bytes) else str(value)
                for table in schema.metadata.sorted_tables
                for row in connection.execute(select(table))
                for value in row
            ]
        return "\n".join(held)


class FaultyDatabase(Database):
    """A database whose transactions fail as ``faults`` says.

    ``faults`` has what is called at the begin of each transaction that is ``reading``, ``shared``
    or ``exclusive``: it raises, or waits and raises.
    """

    def __init__(self, url: str, clock: Clock) -> None:
        super().__init__(url, clock=StoreClock(clock))
        self.faults: dict[str, Callable[[], object]] = {}

    def _begin(self, kind: str) -> None:
        if kind in self.faults:
            self.faults[kind]()

    @contextmanager
    def read_transaction(self) -> Iterator[Connection]:
        self._begin("reading")
        with super().read_transaction() as connection:
            yield connection

    @contextmanager
    def shared_transaction(self, run: str) -> Iterator[Connection]:
        self._begin("shared")
        with super().shared_transaction(run) as connection:
            yield connection

    @contextmanager
    def exclusive_transaction(self, lock: str) -> Iterator[Connection]:
        self._begin("exclusive")
        with super().exclusive_transaction(lock) as connection:
            yield connection


class NoEpsilonProcesses(EpsilonProcesses):
    """Computes no epsilons: most tests need none."""

    def start(self, run: str) -> None:
        """Nothing."""


def units_of(spec: RunSpec, units: Any) -> NDArray[np.int32]:
    """A report with one unit in every coordinate, or with these units."""
    if isinstance(units, Sequence | np.ndarray):
        return np.array(units, dtype=np.int32)
    return np.full(spec.dimension, units, dtype=np.int32)


def total_of(entry: dict[str, Any]) -> Any:
    """The total that a ledger line holds."""
    held = entry["total"]
    return None if held is None else np.frombuffer(base64.b64decode(held), dtype="<i8")
