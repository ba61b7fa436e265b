"""Opening a run: the model it starts from, what its budget pays for, its place in the ledger."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, insert

from checkins.campaign import Campaign, DataFile, parse_campaign
from checkins.campaign.task import Model as Named
from checkins.errors import InvalidValue, ProtocolViolation
from checkins.ledger import InvalidLedger, Ledger, spending_of
from checkins.ledger.chain import filter_for
from checkins.protocol.model_update import Learner, Model
from checkins.service import logs
from checkins.service.memory import require_memory
from checkins.service.run_spec import RunSpec, population_of, run_id
from checkins.service.store import metadata, records, tables
from checkins.service.store.database import Database
from checkins.tasks.model_spec import START_SEED, model_of


class _Unaffordable(InvalidValue):
    """The budget pays for no slot."""


class PopulationBusy(ProtocolViolation):
    """The population is taken: one campaign at a time runs on it."""


def posted_campaign(text: bytes) -> Campaign:
    """The campaign of a file that came over the network: it names no code and no other folder."""
    try:
        campaign = parse_campaign(text.decode("utf-8")).campaign
    except UnicodeDecodeError:
        raise InvalidValue("body", "...", "must be the UTF-8 text of a campaign.toml") from None
    if campaign.task is None:
        return campaign
    if campaign.task.model not in list(Named):
        raise InvalidValue(
            "model",
            campaign.task.model,
            "code of your own is not taken over the network; start the coordinator with the"
            " campaign's file",
        )
    data = campaign.task.data
    if isinstance(data, DataFile) and Path(data.file).name != data.file:
        raise InvalidValue(
            "file", data.file, "must be a name without a path in a campaign that is posted"
        )
    return campaign


def open_run(
    database: Database,
    campaign: Campaign,
    *,
    folder: Path,
    start: Callable[[Campaign], Campaign] = lambda campaign: campaign,
    listed: int = 0,
) -> RunSpec:
    """Open the next run of a campaign, unless it is open already.

    The budget is that of the population, less what its campaigns have spent before. ``start`` may
    give the campaign another start; it is asked once the campaign is priced, which takes a while.
    ``listed`` is how many keys the allow-list holds; 0 without one.
    """
    _check(campaign, folder)
    require_population(campaign, listed)
    population, seal = population_of(campaign), start(campaign).seal
    while True:
        with database.reading() as connection:
            ledger = records.load_ledger(connection, population)
            incomplete = metadata.read(connection, metadata.lost(population)) is not None
        running = ledger.running
        if running is not None:
            if running.seal == seal:
                return _found(database, run_id(running.seal, running.number))
            raise PopulationBusy(
                f"campaign {running.campaign.name!r} is open on this population"
                " and must be over first: campaigns on the same people come one after another"
            )
        mine = [run for run in ledger.closed if run.seal == seal]
        if mine and (
            len(mine) == campaign.repeats or mine[-1].slots_closed < campaign.design.slots
        ):
            return _found(database, run_id(seal, len(mine)))  # it is over
        if incomplete:
            raise InvalidValue(
                "population_id",
                campaign.population_id,
                "had campaigns that were lost with a store: what they spent is not known, so"
                " nothing more can be promised to these people",
            )
        number = 1 + len(mine)
        try:
            prepared = _Prepared.of(campaign, number, ledger, folder).starting(start(campaign))
        except _Unaffordable:
            if not mine:
                raise
            return _found(database, run_id(seal, len(mine)))  # its budget is spent
        _check_time(database, prepared.terms)
        if prepared.commit(database, ledger):
            terms = prepared.terms
            logs.event("opened", campaign=terms.id, slots=terms.rules.slots)
            return terms


def _check(campaign: Campaign, folder: Path) -> None:
    if campaign.missing:
        raise InvalidValue("campaign", campaign.name, f"needs {', '.join(campaign.missing)}")
    data = None if campaign.task is None else campaign.task.data
    if isinstance(data, DataFile) and data.holdout and not (folder / data.file).is_file():
        raise InvalidValue(
            "file",
            data.file,
            "is not here, and its holdout is what the model is measured on: put a table with the"
            " public rows here, or say holdout = 0",
        )


def require_population(campaign: Campaign, listed: int) -> None:
    """Refuse an allow-list of more keys than the campaign says there are people."""
    population = campaign.design.population
    if population is not None and listed > population.most:
        raise InvalidValue(
            "allow_list",
            f"{listed:,} keys",
            f"is longer than the population of campaign {campaign.name!r}, at most"
            f" {population.most:,} clients: shorten the list, or declare a larger population,"
            " which is another campaign",
        )


def _check_time(database: Database, terms: RunSpec) -> None:
    schedule = terms.campaign.schedule
    if terms.number == 1 and schedule is not None and terms.begins(1) < database.now():
        raise InvalidValue(
            "start",
            schedule.start.isoformat().replace("+00:00", "Z"),
            "has passed: clients could not have known of it; give a later start",
        )


def _found(database: Database, run: str) -> RunSpec:
    with database.reading() as connection:
        terms = records.load_terms(connection, run)
    if terms is None:
        raise InvalidValue("campaign", run, "is in the ledger and not in the store")
    return terms


@dataclass(frozen=True, slots=True, eq=False)
class _Prepared:
    """All that takes time, before the transaction."""

    terms: RunSpec
    certificate: Mapping[str, Any]
    first: Model

    @classmethod
    def of(cls, campaign: Campaign, number: int, ledger: Ledger, folder: Path) -> _Prepared:
        if campaign.task is None:
            raise InvalidValue("campaign", campaign.name, "needs a [task]")
        model = model_of(campaign.task, folder=folder)
        spending = spending_of(ledger, campaign)
        affordable = spending.affordable()
        if affordable == 0:
            raise _Unaffordable(
                "epsilon",
                campaign.budget.epsilon,
                "pays for no slot of this campaign"
                + (", after what was spent on this population" if ledger.closed else "")
                + f": the first slot alone comes to {spending.epsilon_after(1):.4g}",
            )
        certificate = spending.after(affordable).as_dict()
        if not ledger.runs:
            filter_for(campaign)  # takes a while, and is remembered for the transaction
        terms = RunSpec(campaign, number, dict(model.shapes), affordable)
        require_memory(terms)
        return cls(terms, certificate, model.start(START_SEED))

    def starting(self, campaign: Campaign) -> _Prepared:
        """The same with another start, which is another campaign."""
        terms = self.terms
        if campaign.seal == terms.seal:
            return self
        return replace(self, terms=RunSpec(campaign, 1, terms.shapes, terms.affordable))

    def commit(self, database: Database, ledger: Ledger) -> bool:
        """Write it down, unless the ledger has moved on meanwhile."""
        terms = self.terms
        with database.exclusive("openings") as connection:
            if records.load_ledger(connection, terms.population).head != ledger.head:
                return False
            learner = self._learner(connection, ledger)
            if ledger.entries == 0:
                connection.execute(
                    insert(tables.populations).values(
                        key=terms.population, entries=0, head=ledger.head
                    )
                )
            try:
                entry = ledger.opening(terms.campaign, model=learner.model)
                records.append(connection, terms.population, ledger, entry)
            except InvalidLedger as error:
                raise InvalidValue("campaign", terms.campaign.name, error.problem) from error
            records.add_run(connection, terms, self.certificate, entry.filter)
            records.save_learner(connection, terms.id, learner, new=True)
        return True

    def _learner(self, connection: Connection, ledger: Ledger) -> Learner:
        """A repeat goes on from the last model of the run before it, with its velocity."""
        update = self.terms.rules.update
        before = ledger.closed[-1] if ledger.closed else None
        if before is None or before.seal != self.terms.seal:
            return update.start(self.first)
        last = records.load_learner(connection, run_id(before.seal, before.number))
        return update.start(last.model, last.velocity)
