"""A store with a clock that only tests turn, and clients that are a few calls.

Campaigns have Laplace noise unless told otherwise: its price is a finite sum, quick to certify.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Table, select

from checkins.campaign import Campaign, parse_campaign
from checkins.errors import ProtocolViolation
from checkins.ledger.verification import Verification, verify
from checkins.service import intake, opening, slot_transitions
from checkins.service.intake import CheckIn, Enrolment, Submission, hashed
from checkins.service.run_spec import RunSpec
from checkins.service.store import metadata, records, tables
from checkins.service.store.database import Database
from checkins.service.store.migration import migrate
from checkins.service.store.records import RunSnapshot

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
        self.database = at(self.url, self.clock)
        migrate(self.database)
        metadata.begin_epoch(self.database)

    def restart(self) -> None:
        """Everything that was not durable is gone."""
        self.database.close()
        self._come_back()

    def open(self, what: Campaign) -> RunSpec:
        return opening.open_run(self.database, what, folder=self.folder)

    def standing(self, terms: RunSpec) -> RunSnapshot:
        with self.database.reading() as connection:
            return records.load_standing(connection, terms)

    def tick(self, terms: RunSpec) -> RunSnapshot:
        """Try what is due once."""
        return slot_transitions.advance(self.database, terms, self.standing(terms))

    def run_until(self, terms: RunSpec, moment: float) -> RunSnapshot:
        """Turn the clock, then do all that is due."""
        self.clock.now = moment
        standing = self.standing(terms)
        while True:
            due = slot_transitions.due(terms, standing.stage)
            if due is None or due > moment:
                return standing
            standing = slot_transitions.advance(self.database, terms, standing)

    def begin(self, terms: RunSpec, slot: int) -> RunSnapshot:
        """Into a slot: check-ins are taken."""
        return self.run_until(terms, terms.begins(slot))

    def choose(self, terms: RunSpec, slot: int) -> RunSnapshot:
        """Past the choice of a slot."""
        return self.run_until(terms, terms.chooses(slot))

    def close(self, terms: RunSpec, slot: int) -> RunSnapshot:
        """Past the end of a slot."""
        return self.run_until(terms, terms.ends(slot))

    def finish(self, terms: RunSpec) -> RunSnapshot:
        """To the end of the run, its certificate included."""
        standing = self.run_until(terms, terms.ends(terms.rules.slots))
        return slot_transitions.finish(self.database, terms, standing)

    def enrol(self, terms: RunSpec, name: str | None = None) -> str:
        """A hashed token that is good for one check-in."""
        token = hashed(name or f"token-{next(self.names)}")
        (answer,) = intake.take_enrolments(self.database, terms, [Enrolment(token)])
        assert answer is None
        return token

    def check_in(self, terms: RunSpec, slot: int, token: str | None = None) -> str:
        """A receipt; raises the refusal."""
        message = CheckIn(slot, token or self.enrol(terms))
        (answer,) = intake.take_check_ins(self.database, terms, [message])
        if isinstance(answer, ProtocolViolation):
            raise answer
        return answer

    def report(self, terms: RunSpec, slot: int, receipt: str, units: Any = 1) -> None:
        """Hand in a report of these units; raises the refusal."""
        message = Submission(slot, receipt, units_of(terms, units))
        (answer,) = intake.take_reports(self.database, terms, [message])
        if answer is not None:
            raise answer

    def chosen(self, terms: RunSpec) -> frozenset[str]:
        """Who is used in the slot in progress, as it was recorded."""
        choice = slot_transitions.read_choice(self.database, terms.id)
        assert choice is not None
        return choice.chosen

    def play(self, terms: RunSpec, slot: int, clients: int) -> None:
        """A slot in which so many check in, and every chosen one reports."""
        self.begin(terms, slot)
        for _ in range(clients):
            self.check_in(terms, slot)
        self.choose(terms, slot)
        for receipt in self.chosen(terms):
            self.report(terms, slot, receipt)
        self.close(terms, slot)

    def rows(self, table: Table) -> list[Any]:
        with self.database.reading() as connection:
            return list(connection.execute(select(table)))

    def lines(self, terms: RunSpec) -> list[bytes]:
        """The ledger of the run's population."""
        with self.database.reading() as connection:
            return records.ledger_lines(connection, terms.population, after=0, most=10**6)

    def entries(self, terms: RunSpec) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines(terms)]

    def verified(self, terms: RunSpec, **how: Any) -> Verification:
        return verify(self.lines(terms), **how)

    def everything(self) -> str:
        """Every value of every table, as one text."""
        with self.database.reading() as connection:
            held = [
                value.hex() if isinstance(value, bytes) else str(value)
                for table in tables.metadata.sorted_tables
                for row in connection.execute(select(table))
                for value in row
            ]
        return "\n".join(held)


def at(url: str, clock: Clock) -> Database:
    """A database whose clock is ours."""
    database = Database(url)
    database.now = clock  # type: ignore[method-assign]
    return database


def units_of(terms: RunSpec, units: Any) -> NDArray[np.int32]:
    """A report: the same unit everywhere, or these."""
    if isinstance(units, Sequence | np.ndarray):
        return np.array(units, dtype=np.int32)
    return np.full(terms.dimension, units, dtype=np.int32)


def total_of(entry: dict[str, Any]) -> Any:
    """The total that a ledger line holds."""
    import base64

    held = entry["total"]
    return None if held is None else np.frombuffer(base64.b64decode(held), dtype="<i8")
