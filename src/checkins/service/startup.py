"""Before a coordinator answers anyone: the schema, the witness, the epoch, the campaign."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from sqlalchemy import delete

from checkins.campaign import Campaign, Spending
from checkins.errors import InvalidValue
from checkins.ledger import earlier_of
from checkins.service import clock_watch, logs, opening, slot_transitions
from checkins.service.rollback_guard import RollbackGuard, seen_of
from checkins.service.run_spec import RunSpec
from checkins.service.settings import Settings
from checkins.service.store import metadata, records, tables
from checkins.service.store.database import Database
from checkins.service.store.migration import migrate


@dataclass(frozen=True, slots=True)
class Start:
    """When a campaign is to begin: as its file says, at a moment, or so many seconds from now."""

    moment: datetime | None = None
    in_s: float | None = None

    def of(self, campaign: Campaign) -> Campaign:
        """The campaign with this start, which is sealed anew if it is another one."""
        schedule = campaign.schedule
        if schedule is None or (self.moment is None and self.in_s is None):
            return campaign
        moment = self.moment
        if moment is None:
            moment = datetime.now(UTC) + timedelta(seconds=self.in_s or 0.0)
        return replace(campaign, schedule=replace(schedule, start=moment))

    @property
    def is_given(self) -> bool:
        return self.moment is not None or self.in_s is not None


def prepare(
    settings: Settings,
    campaign: Campaign | None,
    *,
    start: Start,
    again: bool = False,
    restore: bool = False,
    trust_clock: bool = False,
    warn: Callable[[str], None] = lambda words: None,
) -> RunSpec | None:
    """Make the store ready, and open the campaign or find it; ``warn`` is told what to look at.

    A campaign that differs in nothing but its start from one that is here is that one, if its start
    is told in seconds from now; ``again`` opens another one once that is over. ``trust_clock``
    says that a calendar clock that has jumped since the machine was booted is right. A PostgreSQL
    that is not up yet, or crashes meanwhile, is waited for: all of this may be done again from its
    beginning, as it is after a kill.
    """
    database = Database(settings.store)
    try:
        with logs.configure(settings.log_file):
            return database.when_it_answers(
                lambda: _prepared(
                    database,
                    settings,
                    campaign,
                    start=start,
                    again=again,
                    restore=restore,
                    trust_clock=trust_clock,
                    warn=warn,
                )
            )
    finally:
        database.close()


def _prepared(
    database: Database,
    settings: Settings,
    campaign: Campaign | None,
    *,
    start: Start,
    again: bool,
    restore: bool,
    trust_clock: bool,
    warn: Callable[[str], None],
) -> RunSpec | None:
    database.check_durable()
    migrate(database)
    clock_watch.start(database, trust=trust_clock)
    witness = None if settings.witness is None else RollbackGuard(settings.witness)
    if restore:
        if witness is not None:
            witness.check_restorable(database)
        lost = [] if witness is None else witness.unknown_to(database)
        _restore(database, lost)
    if witness is not None:
        if restore:
            witness.forget(seen_of(database))
        witness.check(database)
        for event, words in witness.doubts(database, settings.store).items():
            logs.warning(event)
            warn(words)
    _check_populations(database, settings)
    metadata.begin_epoch(database)
    terms = None if campaign is None else _opened(database, settings, campaign, start, again=again)
    if witness is not None:
        witness.saw(seen_of(database))
    return terms


def _opened(
    database: Database,
    settings: Settings,
    campaign: Campaign,
    start: Start,
    *,
    again: bool = False,
) -> RunSpec:
    found = _same_but_for_start(database, campaign, start, again) if start.is_given else None
    folder, listed = settings.folder, len(settings.enrolment.allow_list)
    if found is not None:
        return opening.open_run(database, found, folder=folder, listed=listed)
    return opening.open_run(database, campaign, folder=folder, start=start.of, listed=listed)


def _check_populations(database: Database, settings: Settings) -> None:
    """Refuse an allow-list that is too long for a run which is not over."""
    with database.reading() as connection:
        for terms in records.unknown_terms(connection, ()):
            if records.load_stage(connection, terms.id).ending is None:
                opening.require_population(terms.campaign, len(settings.enrolment.allow_list))


def _same_but_for_start(
    database: Database, campaign: Campaign, start: Start, again: bool
) -> Campaign | None:
    """The newest campaign here that differs in nothing but when it began."""
    with database.reading() as connection:
        runs = records.unknown_terms(connection, ())
        over = {
            terms.id: records.load_stage(connection, terms.id).ending is not None for terms in runs
        }
    for terms in reversed(runs):
        here = terms.campaign
        if here.schedule is None or campaign.schedule is None:
            continue
        schedule = replace(campaign.schedule, start=here.schedule.start)
        if replace(campaign, schedule=schedule).seal != here.seal:
            continue
        if not over[terms.id] or (start.in_s is not None and not again):
            return here
    return None


def _restore(database: Database, lost: Sequence[str]) -> None:
    """End every campaign that was running: what was released after the copy is not known here.

    Each is priced as if it had gone on to the last slot that its budget pays for. Populations in
    ``lost`` had runs that this store has never seen, and averaged updates cost more the fewer
    came: what those spent is not known, so nothing more is opened on them.
    """
    with database.reading() as connection:
        runs = records.unknown_terms(connection, ())
        standings = {terms.id: records.load_standing(connection, terms) for terms in runs}
    running = [terms for terms in runs if standings[terms.id].stage.ending is None]
    unknown = {*lost, *(terms.population for terms in running if terms.rules.averaged)}
    with database.exclusive("facts") as connection:
        for population in sorted(unknown):
            metadata.write(connection, metadata.lost(population), "yes")
    for terms in running:
        standing = standings[terms.id]
        stopped = slot_transitions.stop(database, terms, standing)
        stated = None
        if terms.rules.averaged:  # its price depends on who came after the copy
            run = standing.ledger.running
            rule = None if run is None else run.filter
            spending = Spending(terms.campaign, earlier_of(standing.ledger), rule)
            stated = spending.after(terms.rules.slots).as_dict()
        slot_transitions.finish(database, terms, stopped, stated)
    with database.exclusive("facts") as connection:
        connection.execute(delete(tables.facts).where(tables.facts.c.name == metadata.COPY))


def parsed_start(text: str) -> Start:
    """``now``, ``+SECONDS``, or an instant such as 2030-01-01T00:00:00Z.

    >>> parsed_start("+30")
    Start(moment=None, in_s=30.0)
    """
    if text == "now":
        return Start(in_s=2.0)
    try:
        if text.startswith("+"):
            seconds = float(text[1:])
            if 0.0 <= seconds < 1e9:
                return Start(in_s=seconds)
        else:
            moment = datetime.fromisoformat(text)
            if moment.utcoffset() is not None:
                return Start(moment=moment)
    except ValueError:
        pass
    raise InvalidValue(
        "start", text, "must be now, +SECONDS, or an instant such as 2030-01-01T00:00:00Z"
    )
