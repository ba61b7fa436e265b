"""A store with a clock that only tests turn, and clients that are a few calls.

Campaigns have Laplace noise unless told otherwise: its price is a finite sum, quick to certify.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Table, select

from checkins.campaign import Campaign, parse_campaign
from checkins.errors import ProtocolViolation
from checkins.ledger.verification import Verification, verify
from checkins.service.runs import intake, opening, slot_transitions
from checkins.service.runs.intake import CheckIn, EnrolmentRequest, Submission, hashed
from checkins.service.store import clock as store_clock
from checkins.service.store import ledgers, metadata, run_state, schema
from checkins.service.store.database import Database
from checkins.service.store.run_spec import RunSpec
from checkins.service.store.run_state import RunSnapshot
from checkins.service.store.schema import migrate

START = datetime(2040, 1, 1, tzinfo=UTC)
SLOT_S, CHOOSE_S = 10.0, 4.0
CLIENT_NOISE = 'kind = "laplace"\nlocal_epsilon = 1.0'
SERVER_NOISE = 'kind = "gaussian"\nnoise_at = "server"\nnoise_multiplier = 4.0'


def campaign_text(
    *,
    name: str = "small",
    population_id: str | None = "clinic",
    kind: str = "fixed",
    slots: int = 4,
    capacity: int | str | None = 2,
    window: int | None = None,
    repeats: int = 1,
    epsilon: float = 50.0,
    population: tuple[int, int] | None = None,
    participation: float = 1.0,
    randomizer: str = CLIENT_NOISE,
    optimizer: str = 'kind = "sgd", rate = 0.5',
    start: datetime = START,
    slot_s: float = SLOT_S,
    choose_s: float = CHOOSE_S,
) -> str:
    """A small campaign.toml; its model has eleven numbers."""
    averaged = kind == "averaged"
    shown = {
        "population_id": None if population_id is None else json.dumps(population_id),
        "population": list(population) if population else None,
        "capacity": None if averaged or capacity is None else json.dumps(capacity),
        "window": window,
    }

    def line(key: str) -> str:
        return "" if shown[key] is None else f"{key} = {shown[key]}"

    return f"""\
schema = 1
name = "{name}"
{line("population_id")}

[budget]
epsilon = {epsilon}
delta = 1e-6
adjacency = "{"replace-one" if averaged else "add-remove"}"
{line("population")}

[protocol]
kind = "{kind}"
slots = {slots}
participation = {participation}
{line("capacity")}
{line("window")}
repeats = {repeats}

[randomizer]
{randomizer}
clip = 1.0
grid = 1e-6

[task]
data = "synthetic"
model = "logistic"
optimizer = {{ {optimizer} }}

[schedule]
start = {start.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")}
slot_s = {slot_s}
choose_s = {choose_s}
"""


def campaign(**given: Any) -> Campaign:
    """The campaign of ``campaign_text``."""
    return parse_campaign(campaign_text(**given)).campaign


AVERAGED: dict[str, Any] = {"kind": "averaged", "population": (4, 1000)}
SLIDING: dict[str, Any] = {"kind": "sliding", "window": 3, "slots": 5}
AT_SERVER: dict[str, Any] = {"randomizer": SERVER_NOISE, "capacity": 2}
EVERYONE: dict[str, Any] = {
    "randomizer": SERVER_NOISE,
    "capacity": "all",
    "optimizer": 'kind = "sgd", rate = 0.5, divide_by = 3',
}


@dataclass
class Clock:
    """Stands still unless it is turned."""

    now: float = START.timestamp() - 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class House:
    """A migrated store in its first epoch, driven by hand: what a runner does, without threads."""

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
        """Everything that was not durable is gone."""
        self.database.close()
        self._come_back()

    def open(self, what: Campaign) -> RunSpec:
        return opening.open_run(self.database, what, folder=self.folder)

    def snapshot(self, spec: RunSpec) -> RunSnapshot:
        with self.database.reading() as connection:
            return run_state.load_snapshot(connection, spec)

    def tick(self, spec: RunSpec) -> RunSnapshot:
        """Try what is due once."""
        return slot_transitions.advance(self.database, spec, self.snapshot(spec))

    def run_until(self, spec: RunSpec, moment: float) -> RunSnapshot:
        """Turn the clock, then do all that is due."""
        self.clock.now = moment
        snapshot = self.snapshot(spec)
        while True:
            due = slot_transitions.due(spec, snapshot.state)
            if due is None or due > moment:
                return snapshot
            snapshot = slot_transitions.advance(self.database, spec, snapshot)

    def begin(self, spec: RunSpec, slot: int) -> RunSnapshot:
        """Into a slot: check-ins are taken."""
        return self.run_until(spec, spec.begins(slot))

    def choose(self, spec: RunSpec, slot: int) -> RunSnapshot:
        """Past the choice of a slot."""
        return self.run_until(spec, spec.chooses(slot))

    def close(self, spec: RunSpec, slot: int) -> RunSnapshot:
        """Past the end of a slot."""
        return self.run_until(spec, spec.ends(slot))

    def finish(self, spec: RunSpec) -> RunSnapshot:
        """To the end of the run, its certificate included."""
        snapshot = self.run_until(spec, spec.ends(spec.rules.slots))
        return slot_transitions.finish(self.database, spec, snapshot)

    def enrol(self, spec: RunSpec, name: str | None = None) -> str:
        """A hashed token that is good for one check-in."""
        token = hashed(name or f"token-{next(self.names)}")
        (answer,) = intake.take_enrolments(self.database, spec, [EnrolmentRequest(token)])
        assert answer is None
        return token

    def check_in(self, spec: RunSpec, slot: int, token: str | None = None) -> str:
        """A receipt; raises the refusal."""
        message = CheckIn(slot, token or self.enrol(spec))
        (answer,) = intake.take_check_ins(self.database, spec, [message])
        if isinstance(answer, ProtocolViolation):
            raise answer
        return answer

    def report(self, spec: RunSpec, slot: int, receipt: str, units: Any = 1) -> None:
        """Hand in a report of these units; raises the refusal."""
        message = Submission(slot, receipt, units_of(spec, units))
        (answer,) = intake.take_reports(self.database, spec, [message])
        if answer is not None:
            raise answer

    def chosen(self, spec: RunSpec) -> frozenset[str]:
        """Who is used in the slot in progress, as it was recorded."""
        choice = slot_transitions.read_choice(self.database, spec.id)
        assert choice is not None
        return choice.chosen

    def play(self, spec: RunSpec, slot: int, clients: int) -> None:
        """A slot in which so many check in, and every chosen one reports."""
        self.begin(spec, slot)
        for _ in range(clients):
            self.check_in(spec, slot)
        self.choose(spec, slot)
        for receipt in self.chosen(spec):
            self.report(spec, slot, receipt)
        self.close(spec, slot)

    def rows(self, table: Table) -> list[Any]:
        with self.database.reading() as connection:
            return list(connection.execute(select(table)))

    def lines(self, spec: RunSpec) -> list[bytes]:
        """The ledger of the run's population."""
        with self.database.reading() as connection:
            return ledgers.ledger_lines(connection, spec.population, after=0, most=10**6)

    def entries(self, spec: RunSpec) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines(spec)]

    def verified(self, spec: RunSpec, **how: Any) -> Verification:
        return verify(self.lines(spec), **how)

    def everything(self) -> str:
        """Every value of every table, as one text."""
        with self.database.reading() as connection:
            held = [
                value.hex() if isinstance(value, bytes) else str(value)
                for table in schema.metadata.sorted_tables
                for row in connection.execute(select(table))
                for value in row
            ]
        return "\n".join(held)


class ClockOfTests(store_clock.Clock):
    """The clock of a store that shows the time of a test; it is compared with no calendar."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(calendar=clock, steady=clock)

    def read(self, calendar: Callable[[], float] | None = None) -> None:
        """Nothing: this clock is right."""

    def resume(self, setting: tuple[float, float]) -> None:
        """Nothing: this clock is right."""


class FaultyDatabase(Database):
    """A database in which transactions of a kind fail while a test says so.

    ``faults`` has what is called at the begin of each transaction that is ``reading``, ``shared``
    or ``exclusive``: it raises, or waits and raises.
    """

    def __init__(self, url: str, clock: Clock) -> None:
        super().__init__(url, clock=ClockOfTests(clock))
        self.faults: dict[str, Callable[[], object]] = {}

    def _begin(self, kind: str) -> None:
        if kind in self.faults:
            self.faults[kind]()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        self._begin("reading")
        with super().reading() as connection:
            yield connection

    @contextmanager
    def shared(self, run: str) -> Iterator[Connection]:
        self._begin("shared")
        with super().shared(run) as connection:
            yield connection

    @contextmanager
    def exclusive(self, run: str) -> Iterator[Connection]:
        self._begin("exclusive")
        with super().exclusive(run) as connection:
            yield connection


def units_of(spec: RunSpec, units: Any) -> NDArray[np.int32]:
    """A report: the same unit everywhere, or these."""
    if isinstance(units, Sequence | np.ndarray):
        return np.array(units, dtype=np.int32)
    return np.full(spec.dimension, units, dtype=np.int32)


def total_of(entry: dict[str, Any]) -> Any:
    """The total that a ledger line holds."""
    import base64

    held = entry["total"]
    return None if held is None else np.frombuffer(base64.b64decode(held), dtype="<i8")
