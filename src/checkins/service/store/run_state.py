"""Runs in the store: specification and state of a run, and the queries that load and save them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from sqlalchemy import Connection, Table, func, insert, select, update

from checkins.accounting.filters import Filter
from checkins.campaign import Campaign, campaign_from_canonical
from checkins.errors import InvalidValue, OutOfOrder
from checkins.ledger import Ledger
from checkins.ledger.entry import NumberType, hash_model, pack_numbers
from checkins.protocol.model_update import Learner
from checkins.protocol.rules import MAX_ENROLLED, Rules, RunSchedule, rules_of, sampler_of
from checkins.protocol.server import Ending, Phase
from checkins.protocol.slot import Phase as SlotPhase
from checkins.protocol.wire import run_id
from checkins.randomizers import DeviceSampler
from checkins.service.store import ledgers, past_sums, schema
from checkins.service.store.database import Database
from checkins.service.store.schema import curve, epsilons
from checkins.tasks.model import Shapes, parameter_count

runs, learners, populations = schema.runs, schema.learners, schema.populations


@dataclass(frozen=True, slots=True, eq=False)
class RunSpec:
    """The specification of one run. Everything in it is public.

    ``number`` counts the runs of the campaign from 1. ``shapes`` are the shapes of the model's
    tensors, by name. ``affordable`` is the number of slots that the privacy budget allows. The
    other fields are computed: ``seal`` is the hash of the campaign, ``rules`` are the parameters of
    the protocol, ``sampler`` draws noise and dummy reports, and ``run_schedule`` has the
    times of slots.
    """

    campaign: Campaign
    number: int
    shapes: Shapes
    affordable: int
    seal: str = field(init=False)
    rules: Rules = field(init=False)
    sampler: DeviceSampler = field(init=False)
    run_schedule: RunSchedule = field(init=False)

    def __post_init__(self) -> None:
        if self.campaign.schedule is None or self.campaign.task is None:
            raise InvalidValue("campaign", self.campaign.name, "needs a [task] and a [schedule]")
        dimension = parameter_count(self.shapes)
        rules = rules_of(self.campaign, dimension=dimension, affordable=self.affordable)
        object.__setattr__(self, "seal", self.campaign.seal)
        object.__setattr__(self, "rules", rules)
        object.__setattr__(self, "sampler", sampler_of(self.campaign, dimension=dimension))
        object.__setattr__(self, "run_schedule", RunSchedule.of(self.campaign, self.number))

    @property
    def id(self) -> str:
        return run_id(self.seal, self.number)

    @property
    def population(self) -> str:
        return self.campaign.population_key

    @property
    def dimension(self) -> int:
        return self.rules.report_checks.dimension

    @property
    def most_enrolled(self) -> int:
        """The largest number of clients that may enrol: at most the declared population, if any."""
        population = self.campaign.design.population
        return MAX_ENROLLED if population is None else min(population.most, MAX_ENROLLED)


@dataclass(frozen=True, slots=True)
class RunState:
    """The state of a run, without its model and its ledger.

    ``closed`` is the number of closed slots. ``slot_phase`` is None if no slot is in progress.
    ``contributors`` is the number of averaged reports, or None in protocols that do not reveal it.
    ``ending`` is None until the run is over.
    """

    phase: Phase
    closed: int
    slot_phase: SlotPhase | None = None
    contributors: int | None = None
    ending: Ending | None = None

    @property
    def slot(self) -> int:
        """The number of the slot in progress, or of the next slot."""
        return self.closed + 1


@dataclass(frozen=True, slots=True, eq=False)
class RunSnapshot:
    """The state of a run with its learner (model and optimizer state) and its ledger."""

    state: RunState
    learner: Learner
    ledger: Ledger
    certificate: Mapping[str, Any]
    model_hash: str
    closed_by_this_process: bool = False
    """Whether the transaction that made this snapshot closed a slot in this process."""


def load_specs_except(connection: Connection, known_ids: Collection[str]) -> list[RunSpec]:
    """Return the specifications of all runs whose ids are not in ``known_ids``, oldest first."""
    c = runs.c
    ids = connection.execute(select(c.id).order_by(c.position)).scalars()
    new_ids = [run for run in ids if run not in known_ids]
    return [spec for run in new_ids if (spec := load_spec(connection, run)) is not None]


def load_spec(connection: Connection, run: str) -> RunSpec | None:
    """Return the specification of a run, or None if there is no such run."""
    row = connection.execute(select(runs).where(runs.c.id == run)).one_or_none()
    if row is None:
        return None
    shapes = {name: tuple(shape) for name, shape in json.loads(row.tensors)}
    return RunSpec(campaign_from_canonical(row.campaign), row.number, shapes, row.affordable)


def load_state(connection: Connection, run: str) -> RunState:
    c = runs.c
    columns = select(c.phase, c.closed, c.slot_phase, c.contributors, c.ending)
    row = connection.execute(columns.where(c.id == run)).one()
    slot_phase = None if row.slot_phase is None else SlotPhase[row.slot_phase]
    ending = None if row.ending is None else Ending(row.ending)
    return RunState(Phase[row.phase], row.closed, slot_phase, row.contributors, ending)


def save_state(connection: Connection, run: str, state: RunState) -> None:
    slot_phase = None if state.slot_phase is None else state.slot_phase.name
    values = {**asdict(state), "phase": state.phase.name, "slot_phase": slot_phase}
    connection.execute(update(runs).where(runs.c.id == run).values(**values))


def load_snapshot(
    connection: Connection, spec: RunSpec, last_known: RunSnapshot | None = None
) -> RunSnapshot:
    """Return the snapshot of a run.

    ``last_known`` is the caller's last snapshot of the run, or None. If the ledger has not changed
    since then, only the state is read. Raise OutOfOrder if the ledger has become shorter.
    """
    state, c = load_state(connection, spec.id), populations.c
    ledger_row = connection.execute(select(c.entries, c.head).where(c.key == spec.population)).one()
    if last_known is not None and ledger_row.entries < last_known.ledger.entries:
        raise OutOfOrder(f"{spec.population}: the store was rolled back while it was in use")
    if last_known is not None and last_known.ledger.head == ledger_row.head:
        return replace(last_known, state=state, closed_by_this_process=False)
    query = select(runs.c.certificate).where(runs.c.id == spec.id)
    certificate = json.loads(connection.execute(query).scalar_one())
    learner = load_learner(connection, spec)
    ledger = ledgers.load_ledger(connection, spec.population)
    return RunSnapshot(state, learner, ledger, certificate, hash_model(learner.model))


def load_learner(connection: Connection, spec: RunSpec) -> Learner:
    row = connection.execute(select(learners).where(learners.c.run == spec.id)).one()

    def to_array(stored: bytes | None, dtype: NumberType = NumberType.FLOAT64) -> Any:
        return None if stored is None else np.frombuffer(stored, dtype=dtype.little_endian)

    gradient = to_array(row.gradient, _gradient_type(spec))
    velocity, closed = to_array(row.velocity), row.slots + spec.rules.warm_up
    noisy_sums = past_sums.load_noisy_sums(connection, spec.id, closed=closed)
    return Learner(to_array(row.model), gradient, row.slots, velocity, noisy_sums)


def save_learner(
    connection: Connection, spec: RunSpec, learner: Learner, *, is_new: bool = False
) -> None:
    gradient = learner.gradient
    values = {
        "model": pack_numbers(learner.model),
        "gradient": None if gradient is None else pack_numbers(gradient, _gradient_type(spec)),
        "slots": learner.slots,
        "velocity": None if learner.velocity is None else pack_numbers(learner.velocity),
    }
    if is_new:
        connection.execute(insert(learners).values(run=spec.id, **values))
    else:
        connection.execute(update(learners).where(learners.c.run == spec.id).values(**values))


def _gradient_type(spec: RunSpec) -> NumberType:
    """Return the type of accumulated sums: integers, or floats if noise is correlated."""
    return NumberType.INT64 if spec.rules.strategy is None else NumberType.FLOAT64


def runs_without_exact_sums(connection: Connection) -> list[str]:
    """Return the ids of the runs that cannot go on, because the store lacks their exact sums.

    This happens if the noise of a run is correlated across slots, and the store was restored from a
    backup, which contains no exact sums.
    """
    stopped = []
    for spec in load_specs_except(connection, ()):
        state = load_state(connection, spec.id)
        if spec.rules.strategy is None or state.phase is Phase.DONE:
            continue
        if past_sums.count_exact_sums(connection, spec.id) < spec.rules.needed_sums(state.slot):
            stopped.append(spec.id)
    return stopped


def save_certificate(connection: Connection, run: str, certificate: Mapping[str, Any]) -> None:
    values = {"certificate": json.dumps(certificate)}
    connection.execute(update(runs).where(runs.c.id == run).values(**values))


def count_open_runs(connection: Connection) -> int:
    query = select(func.count()).select_from(runs).where(runs.c.ending.is_(None))
    return int(connection.execute(query).scalar_one())


def count_runs_per_population(connection: Connection) -> dict[str, int]:
    population = runs.c.population
    query = select(population, func.count().label("runs")).group_by(population)
    return {row.population: row.runs for row in connection.execute(query)}


def add_run(
    connection: Connection, spec: RunSpec, certificate: Mapping[str, Any], filter: Filter | None
) -> None:
    """Add a run whose first slot has not begun.

    ``filter`` is the rule that composes the epsilons of campaigns, or None if there is no rule.
    """
    last_position = connection.execute(
        select(func.coalesce(func.max(runs.c.position), 0))
    ).scalar_one()
    connection.execute(
        insert(runs).values(
            id=spec.id,
            position=last_position + 1,
            population=spec.population,
            campaign=spec.campaign.canonical(),
            seal=spec.seal,
            number=spec.number,
            dimension=spec.dimension,
            tensors=json.dumps([[name, list(shape)] for name, shape in spec.shapes.items()]),
            affordable=spec.affordable,
            certificate=json.dumps(certificate),
            phase=Phase.WAITING.name,
            closed=0,
            filter=None if filter is None else str(filter),
        )
    )
    connection.execute(insert(schema.enrolled_counts).values(run=spec.id, clients=0))


Epsilons = list[tuple[int, float]]
"""List of (number of slots, epsilon after that many slots), ordered by the number of slots."""
Curve = list[tuple[int, dict[str, float]]]
"""List of (number of closed slots, metrics of the model after them), ordered by the number."""


def load_epsilons(database: Database, run: str) -> Epsilons:
    """Return the epsilons of a run that have been computed so far."""
    c = epsilons.c
    query = select(c.slots, c.epsilon).where(c.run == run).order_by(c.slots)
    with database.read_transaction() as connection:
        return [(row.slots, row.epsilon) for row in connection.execute(query)]


def add_epsilon(database: Database, run: str, *, slots: int, epsilon: float) -> None:
    _add_unless_present(database, epsilons, run, slots, {"epsilon": epsilon})


def load_curve(database: Database, run: str, *, after: int = -1) -> Curve:
    """Return the points of a run's learning curve with more than ``after`` closed slots."""
    c = curve.c
    query = select(c.slots, c.metrics).where(c.run == run, c.slots > after).order_by(c.slots)
    with database.read_transaction() as connection:
        return [(row.slots, json.loads(row.metrics)) for row in connection.execute(query)]


def add_curve_point(
    database: Database, run: str, *, slots: int, metrics: Mapping[str, float]
) -> None:
    _add_unless_present(database, curve, run, slots, {"metrics": json.dumps(metrics)})


def _add_unless_present(
    database: Database, table: Table, run: str, slots: int, values: Mapping[str, object]
) -> None:
    """Add a row to ``table``, unless the run has a row with this number of slots."""
    with database.exclusive_transaction(f"progress {run}") as connection:
        same_slots = select(table.c.slots).where(table.c.run == run, table.c.slots == slots)
        if connection.execute(same_slots).one_or_none() is None:
            connection.execute(insert(table).values(run=run, slots=slots, **values))
