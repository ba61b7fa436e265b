"""Rows to values and back: a run's terms, where it stands, and the ledger of its population."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import Connection, LargeBinary, Row, func, insert, select, update

from checkins.accounting.filters import Filter
from checkins.campaign import campaign_from_canonical
from checkins.errors import OutOfOrder
from checkins.ledger import Ledger, Run
from checkins.ledger.entry import Entry, Units, hashed, packed
from checkins.protocol.model_update import Learner
from checkins.protocol.server import Ending, Phase
from checkins.protocol.slot import Phase as SlotPhase
from checkins.service.run_spec import RunSpec
from checkins.service.store import tables

runs, learners, populations = tables.runs, tables.learners, tables.populations
BEGINNING_BYTES = 256
"""Enough of a slot's line to hold its hash, which stands before its sum."""
_SLOT_HASH = re.compile(
    rb'\{(?:"contributors":\d+,)?"dtype":(?:"\w+"|null),"entry":\d+,"hash":"([0-9a-f]{64})"'
)


@dataclass(frozen=True, slots=True)
class RunState:
    """Where a run is: all that a check-in or a report depends on."""

    phase: Phase
    closed: int
    slot_phase: SlotPhase | None = None
    contributors: int | None = None
    ending: Ending | None = None

    @property
    def slot(self) -> int:
        """The slot in progress, or the next one."""
        return self.closed + 1


@dataclass(frozen=True, slots=True, eq=False)
class RunSnapshot:
    """A run with its model and its ledger."""

    stage: RunState
    learner: Learner
    ledger: Ledger
    certificate: Mapping[str, Any]
    model_hash: str
    closed_here: bool = False
    """Whether this process closed the slot that brought the run here."""


def unknown_terms(connection: Connection, known: Collection[str]) -> list[RunSpec]:
    """Every run that is not ``known``, in the order in which they were opened."""
    c = runs.c
    ids = connection.execute(select(c.id).order_by(c.position)).scalars()
    new = [run for run in ids if run not in known]
    return [terms for run in new if (terms := load_terms(connection, run)) is not None]


def load_terms(connection: Connection, run: str) -> RunSpec | None:
    row = connection.execute(select(runs).where(runs.c.id == run)).one_or_none()
    return None if row is None else _terms(row)


def _terms(row: Row[Any]) -> RunSpec:
    shapes = {name: tuple(shape) for name, shape in json.loads(row.tensors)}
    campaign = campaign_from_canonical(row.campaign)
    return RunSpec(campaign, row.number, shapes, row.affordable)


def load_stage(connection: Connection, run: str) -> RunState:
    c = runs.c
    found = connection.execute(
        select(c.phase, c.closed, c.slot_phase, c.contributors, c.ending).where(c.id == run)
    ).one()
    return RunState(
        Phase[found.phase],
        found.closed,
        None if found.slot_phase is None else SlotPhase[found.slot_phase],
        found.contributors,
        None if found.ending is None else Ending(found.ending),
    )


def save_stage(connection: Connection, run: str, stage: RunState) -> None:
    connection.execute(
        update(runs)
        .where(runs.c.id == run)
        .values(
            phase=stage.phase.name,
            closed=stage.closed,
            slot_phase=None if stage.slot_phase is None else stage.slot_phase.name,
            contributors=stage.contributors,
            ending=stage.ending,
        )
    )


def load_standing(
    connection: Connection, terms: RunSpec, known: RunSnapshot | None = None
) -> RunSnapshot:
    """Where a run stands; what has not changed since ``known`` is not read again."""
    stage = load_stage(connection, terms.id)
    place = connection.execute(
        select(populations.c.entries, populations.c.head).where(
            populations.c.key == terms.population
        )
    ).one()
    if known is not None and place.entries < known.ledger.entries:
        raise OutOfOrder(f"{terms.population}: the store was rolled back while it was in use")
    if known is not None and known.ledger.head == place.head:
        return RunSnapshot(stage, known.learner, known.ledger, known.certificate, known.model_hash)
    stated = connection.execute(
        select(runs.c.certificate).where(runs.c.id == terms.id)
    ).scalar_one()
    learner = load_learner(connection, terms.id)
    ledger = load_ledger(connection, terms.population)
    return RunSnapshot(stage, learner, ledger, json.loads(stated), hashed(learner.model))


def load_learner(connection: Connection, run: str) -> Learner:
    row = connection.execute(select(learners).where(learners.c.run == run)).one()

    def read(held: bytes | None, kind: str) -> Any:
        return None if held is None else np.frombuffer(held, dtype=kind)

    return Learner(
        read(row.model, "<f8"), read(row.gradient, "<i8"), row.slots, read(row.velocity, "<f8")
    )


def save_learner(connection: Connection, run: str, learner: Learner, *, new: bool = False) -> None:
    values = {
        "model": packed(learner.model),
        "gradient": None if learner.gradient is None else packed(learner.gradient, Units.INT64),
        "slots": learner.slots,
        "velocity": None if learner.velocity is None else packed(learner.velocity),
    }
    if new:
        connection.execute(insert(learners).values(run=run, **values))
    else:
        connection.execute(update(learners).where(learners.c.run == run).values(**values))


def save_certificate(connection: Connection, run: str, certificate: Mapping[str, Any]) -> None:
    connection.execute(
        update(runs).where(runs.c.id == run).values(certificate=json.dumps(certificate))
    )


def load_ledger(connection: Connection, population: str) -> Ledger:
    """Where the chain of a population stands, from its runs; its lines are not read."""
    place = connection.execute(
        select(populations.c.entries, populations.c.head).where(populations.c.key == population)
    ).one_or_none()
    if place is None:
        return Ledger()
    c = runs.c
    found = [
        (
            Run(
                campaign_from_canonical(row.campaign),
                row.seal,
                row.number,
                row.dimension,
                simulated=False,
                filter=None if row.filter is None else Filter.parse(row.filter),
                slots_closed=row.closed,
                contributors=row.contributors,
            ),
            row.ending,
        )
        for row in connection.execute(
            select(
                *(c.campaign, c.seal, c.number, c.dimension, c.filter),
                *(c.closed, c.contributors, c.ending),
            )
            .where(c.population == population)
            .order_by(c.position)
        )
    ]
    open_runs = [run for run, ending in found if ending is None]
    if len(open_runs) > 1:
        raise OutOfOrder(f"{population}: two runs are open at once")
    return Ledger(
        place.entries,
        place.head,
        open_runs[0] if open_runs else None,
        tuple(run for run, ending in found if ending is not None),
    )


def append(connection: Connection, population: str, ledger: Ledger, entry: Entry) -> Ledger:
    """Write one entry more; refused where the chain does not stand where ``ledger`` says."""
    after, line = ledger.append(entry)
    here = populations.c
    moved = connection.execute(
        update(populations)
        .where(here.key == population, here.entries == ledger.entries, here.head == ledger.head)
        .values(entries=after.entries, head=after.head)
    )
    if moved.rowcount != 1:
        raise OutOfOrder(f"{population}: the ledger has moved on")
    connection.execute(
        insert(tables.ledger).values(population=population, entry=after.entries, line=line)
    )
    return after


def add_release(connection: Connection, run: str, *, slot: int, model_hash: str) -> None:
    connection.execute(insert(tables.releases).values(run=run, slot=slot, model_hash=model_hash))


def last_releases(
    connection: Connection, run: str, *, closed: int, most: int
) -> list[tuple[int, str]]:
    """(slot, model hash) of the last releases up to slot ``closed``."""
    c = tables.releases.c
    found = connection.execute(
        select(c.slot, c.model_hash)
        .where(c.run == run, c.slot <= closed, c.slot > closed - most)
        .order_by(c.slot)
    )
    return [(row.slot, row.model_hash) for row in found]


def ledger_lines(connection: Connection, population: str, *, after: int, most: int) -> list[bytes]:
    """Some lines of a ledger, byte for byte."""
    c = tables.ledger.c
    return list(
        connection.execute(
            select(c.line)
            .where(c.population == population, c.entry > after)
            .order_by(c.entry)
            .limit(most)
        ).scalars()
    )


def ledger_heads(connection: Connection, population: str, *, after: int, most: int) -> list[str]:
    """The hashes of some lines of a ledger, in their order; the sums of slots are not read."""
    c = tables.ledger.c
    beginning = func.substr(c.line, 1, BEGINNING_BYTES, type_=LargeBinary).label("beginning")
    found = connection.execute(
        select(c.entry, beginning)
        .where(c.population == population, c.entry > after)
        .order_by(c.entry)
        .limit(most)
    ).all()
    return [_head(connection, population, row.entry, bytes(row.beginning)) for row in found]


def _head(connection: Connection, population: str, entry: int, beginning: bytes) -> str:
    slot = _SLOT_HASH.match(beginning)
    if slot is not None:
        return slot[1].decode("ascii")
    (line,) = ledger_lines(connection, population, after=entry - 1, most=1)
    return str(json.loads(line)["hash"])


def add_run(
    connection: Connection, terms: RunSpec, certificate: Mapping[str, Any], filter: Filter | None
) -> None:
    """A run that waits for its first slot."""
    last = connection.execute(select(func.coalesce(func.max(runs.c.position), 0))).scalar_one()
    connection.execute(
        insert(runs).values(
            id=terms.id,
            position=last + 1,
            population=terms.population,
            campaign=terms.campaign.canonical(),
            seal=terms.seal,
            number=terms.number,
            dimension=terms.dimension,
            tensors=json.dumps([[name, list(shape)] for name, shape in terms.shapes.items()]),
            affordable=terms.affordable,
            certificate=json.dumps(certificate),
            phase=Phase.WAITING.name,
            closed=0,
            filter=None if filter is None else str(filter),
        )
    )
    connection.execute(insert(tables.enrolled).values(run=terms.id, clients=0))


def lock_enrolled(connection: Connection, run: str) -> int:
    """How many have enrolled in a run; nobody else enrols in it until the transaction is over."""
    c = tables.enrolled.c
    asked = select(c.clients).where(c.run == run).with_for_update()
    return int(connection.execute(asked).scalar_one())


def save_enrolled(connection: Connection, run: str, clients: int) -> None:
    here = tables.enrolled
    connection.execute(update(here).where(here.c.run == run).values(clients=clients))
