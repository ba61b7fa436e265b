"""Opening runs: choose the first model and the number of slots, and write the ledger entry."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from checkins.campaign import Campaign, DataFile, parse_campaign
from checkins.campaign.task import Model as BuiltInModel
from checkins.errors import InvalidValue, ProtocolViolation
from checkins.ledger import InvalidLedger, Ledger, spending_of
from checkins.ledger.chain import filter_for
from checkins.ledger.operator_log import OperatorAction
from checkins.protocol.model_update import Learner, Model
from checkins.protocol.wire import run_id
from checkins.service import logs
from checkins.service.http.problems import Problem
from checkins.service.runs.memory_limits import require_memory
from checkins.service.store import ledgers, metadata, operators, run_state
from checkins.service.store.database import Connection, Database
from checkins.service.store.run_state import RunSpec
from checkins.service.workers.background_tasks import DaemonThreads
from checkins.tasks.loaded_task import INITIAL_WEIGHTS_SEED, model_of

T = TypeVar("T")
MAX_WAITING = 4  # largest number of campaigns that wait to be opened
OPENING_TIMEOUT_S = 60.0
"""Seconds after which a request gets ``busy``. Opening goes on, and a retry gets its result."""


class _Unaffordable(InvalidValue):
    """The privacy budget allows no slot of the campaign."""


class PopulationBusy(ProtocolViolation):
    """Another campaign is open on the population. Only one may be open at a time."""


def parse_posted_campaign(text: bytes) -> Campaign:
    """Parse a campaign file that an operator posted over the network.

    Raise InvalidValue if the campaign names Python code to import or a data file with a path.
    """
    try:
        campaign = parse_campaign(text.decode("utf-8")).campaign
    except UnicodeDecodeError:
        raise InvalidValue("body", "...", "must be the UTF-8 text of a campaign.toml") from None
    if campaign.task is None:
        return campaign
    if campaign.task.model not in list(BuiltInModel):
        expected = "code is not accepted over the network; serve the campaign from its file"
        raise InvalidValue("model", campaign.task.model, expected)
    data = campaign.task.data
    if isinstance(data, DataFile) and Path(data.file).name != data.file:
        expected = "must be a name without a path in a campaign that is posted"
        raise InvalidValue("file", data.file, expected)
    return campaign


def open_run(
    database: Database,
    campaign: Campaign,
    *,
    folder: Path,
    with_start: Callable[[Campaign], Campaign] = lambda campaign: campaign,
    allow_list: Collection[str] | None = None,
    operator: str | None = None,
) -> RunSpec:
    """Open the next run of a campaign and return it.

    If a run of the campaign is open, return that run. If the campaign is over, return its last run.
    The run may use the budget of the population, minus the privacy loss of earlier campaigns.

    ``with_start`` returns the campaign with its final start time, which may be relative to now. It
    is called again after the certificate is computed, because the computation may take long.
    ``folder`` holds the campaign's data files. ``allow_list`` are the hashes of clients' keys in
    the file of the allow-list, or None if there is no allow-list. ``operator`` is who opens the
    run, for the log of actions; None if nobody asked for it.
    """
    _check_complete(campaign, folder)
    if allow_list is not None:
        size = database.read(operators.allow_list_size, allow_list)
        require_allow_list_fits(campaign, size)
    population, seal = campaign.population_key, with_start(campaign).seal
    while True:
        with database.read_transaction() as connection:
            ledger = ledgers.load_ledger(connection, population)
            lost_runs_mark = metadata.read(connection, metadata.lost_runs_entry(population))
        running = ledger.running
        if running is not None:
            if running.seal == seal:
                return _load_spec(database, run_id(running.seal, running.number))
            raise PopulationBusy(
                f"campaign {running.campaign.name!r} is open on this population"
                " and must end first: only one campaign at a time may run on the same people"
            )
        past_runs = [run for run in ledger.closed if run.seal == seal]
        was_stopped = bool(past_runs) and past_runs[-1].slots_closed < campaign.design.slots
        if was_stopped or len(past_runs) == campaign.repeats:
            return _load_spec(database, run_id(seal, len(past_runs)))  # the campaign is over
        if lost_runs_mark is not None:
            expected = (
                "had campaigns whose records were lost with a store: its privacy loss is unknown"
            )
            raise InvalidValue("population_id", campaign.population_id, expected)
        number = 1 + len(past_runs)
        try:
            prepared = _PreparedRun.of(campaign, number, ledger, folder)
        except _Unaffordable:
            if not past_runs:
                raise
            return _load_spec(database, run_id(seal, len(past_runs)))  # the budget is used up
        prepared = prepared.with_start_of(with_start(campaign))
        _check_start_is_ahead(database, prepared.spec)
        if prepared.commit(database, ledger, allow_list, operator):
            spec = prepared.spec
            logs.event("opened", campaign=spec.id, slots=spec.rules.slots)
            return spec


def _check_complete(campaign: Campaign, folder: Path) -> None:
    if campaign.missing:
        raise InvalidValue("campaign", campaign.name, f"needs {', '.join(campaign.missing)}")
    data = None if campaign.task is None else campaign.task.data
    if isinstance(data, DataFile) and data.holdout and not (folder / data.file).is_file():
        expected = (
            "is not in the folder: put a table with the public holdout there, or set holdout = 0"
        )
        raise InvalidValue("file", data.file, expected)


def require_allow_list_fits(campaign: Campaign, allow_list_size: int) -> None:
    """Raise InvalidValue if the allow-list has more keys than the declared population."""
    population = campaign.design.population
    if population is not None and allow_list_size > population.most:
        expected = (
            f"is longer than the population of campaign {campaign.name!r}, at most"
            f" {population.most:,} clients: shorten the list, or declare a larger population,"
            " which is another campaign"
        )
        raise InvalidValue("allow_list", f"{allow_list_size:,} keys", expected)


def _check_start_is_ahead(database: Database, spec: RunSpec) -> None:
    schedule = spec.campaign.schedule
    if spec.number == 1 and schedule is not None and spec.run_schedule.begins(1) < database.now():
        start = schedule.start.isoformat().replace("+00:00", "Z")
        expected = "has passed, and clients could not have known of it: give a later start"
        raise InvalidValue("start", start, expected)


def _load_spec(database: Database, run: str) -> RunSpec:
    spec = database.read(run_state.load_spec, run)
    if spec is None:
        raise InvalidValue("campaign", run, "is in the ledger but not in the store")
    return spec


@dataclass(frozen=True, slots=True, eq=False)
class _PreparedRun:
    """A run before it is saved: the result of the slow part of opening a run."""

    spec: RunSpec
    certificate: Mapping[str, Any]
    first_model: Model

    @classmethod
    def of(cls, campaign: Campaign, number: int, ledger: Ledger, folder: Path) -> _PreparedRun:
        """Compute the affordable slots, the certificate and the first model of run ``number``."""
        if campaign.task is None:
            raise InvalidValue("campaign", campaign.name, "needs a [task]")
        model = model_of(campaign.task, folder=folder)
        spending = spending_of(ledger, campaign)
        affordable = spending.affordable_slots_in_run()
        if affordable == 0:
            context = ", after its earlier campaigns" if ledger.closed else ""
            first_slot = f"the epsilon of the first slot is {spending.epsilon_after(1):.4g}"
            expected = f"allows no slot of this campaign{context}: {first_slot}"
            raise _Unaffordable("epsilon", campaign.budget.epsilon, expected)
        certificate = spending.after(affordable).as_dict()
        if not ledger.runs:
            filter_for(campaign)  # slow; its result is cached for the transaction
        spec = RunSpec(campaign, number, dict(model.shapes), affordable)
        require_memory(spec)
        return cls(spec, certificate, model.start(INITIAL_WEIGHTS_SEED))

    def with_start_of(self, campaign: Campaign) -> _PreparedRun:
        """Return this run with ``campaign``, which differs only in its start and thus its seal."""
        spec = self.spec
        if campaign.seal == spec.seal:
            return self
        return replace(self, spec=RunSpec(campaign, 1, spec.shapes, spec.affordable))

    def commit(
        self,
        database: Database,
        ledger: Ledger,
        allow_list: Collection[str] | None,
        operator: str | None,
    ) -> bool:
        """Save the run. If ``ledger`` is out of date, save nothing and return False."""
        spec = self.spec
        with database.exclusive_transaction("openings") as connection:
            if ledgers.load_ledger(connection, spec.population).head != ledger.head:
                return False
            if allow_list is not None:  # it may have become longer meanwhile
                size = operators.allow_list_size(connection, allow_list)
                require_allow_list_fits(spec.campaign, size)
            learner = self._learner(connection, ledger)
            if ledger.entries == 0:
                ledgers.add_population(connection, spec.population, ledger)
            try:
                entry = ledger.opening(spec.campaign, model=learner.model)
                ledgers.append(connection, spec.population, ledger, entry)
            except InvalidLedger as error:
                raise InvalidValue("campaign", spec.campaign.name, error.problem) from error
            run_state.add_run(connection, spec, self.certificate, entry.filter)
            run_state.save_learner(connection, spec, learner, is_new=True)
            if operator is not None:
                action, now = OperatorAction.CAMPAIGN_OPENED, database.now()
                operators.append_to_log(
                    connection, action, operator=operator, now=now, campaign=spec.id
                )
        return True

    def _learner(self, connection: Connection, ledger: Ledger) -> Learner:
        """Return the learner (model and optimizer state) with which the run starts.

        A later run of a campaign continues with the model and velocity of the campaign's last run.
        """
        update = self.spec.rules.update
        last_run = ledger.closed[-1] if ledger.closed else None
        if last_run is None or last_run.seal != self.spec.seal:
            return update.start(self.first_model)
        last_spec = replace(self.spec, number=last_run.number)
        learner = run_state.load_learner(connection, last_spec)
        return update.start(learner.model, learner.velocity)


class OpeningQueue:
    """A short queue of campaigns that a separate thread parses and opens.

    A campaign file may be large, and its certificate slow to compute. On a separate thread, this
    work does not delay check-ins.
    """

    def __init__(
        self, *, timeout_s: float = OPENING_TIMEOUT_S, max_waiting: int = MAX_WAITING
    ) -> None:
        self._thread = DaemonThreads(1, name="openings")
        self._timeout_s = timeout_s
        self._max_waiting = max_waiting
        self._waiting = 0

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Return the result of ``work``. Raise ``busy`` if it takes long or the queue is full."""
        if self._waiting > self._max_waiting:
            raise Problem("busy", "other campaigns are being opened: try again", retry_after=5)
        self._waiting += 1
        future = asyncio.wrap_future(self._thread.submit(work, *arguments))
        future.add_done_callback(lambda _: self._count_down())
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.shield(future)
        except TimeoutError:
            detail = "the certificate is still being computed: post the campaign again"
            raise Problem("busy", detail, retry_after=5) from None

    def _count_down(self) -> None:
        self._waiting -= 1

    def close(self) -> None:
        """Drop all waiting work, and do not wait for the work in progress."""
        self._thread.stop(timeout_s=0.0)
