"""Startup and recovery: schema, rollback check, restore, epoch, and the campaign to open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from checkins.campaign import Campaign, Spending
from checkins.errors import InvalidValue
from checkins.ledger import earlier_of
from checkins.service import logs
from checkins.service.runs import clock_watch, opening, slot_transitions
from checkins.service.settings import Settings
from checkins.service.store import metadata, run_state
from checkins.service.store.database import Database
from checkins.service.store.rollback_guard import RollbackGuard, progress_of
from checkins.service.store.run_spec import RunSpec
from checkins.service.store.schema import migrate


@dataclass(frozen=True, slots=True)
class Start:
    """When a campaign begins: at a moment, or in seconds; if both are None, as its file says."""

    moment: datetime | None = None
    in_s: float | None = None

    def of(self, campaign: Campaign) -> Campaign:
        """Return the campaign with this start; with another start it has another seal."""
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
    database: Database | None = None,
) -> RunSpec | None:
    """Prepare the store, and open or find the campaign; ``warn`` is called with warnings.

    If ``start`` is in seconds from now, a campaign in the store that differs in its start alone is
    continued; ``again`` opens another one once that is over. ``trust_clock`` confirms a calendar
    clock that has jumped since the machine booted. A PostgreSQL that takes no connections yet, or
    crashes meanwhile, is waited for, and all steps are repeated, as they are after a kill.
    ``database`` is that of ``settings`` if None.
    """
    store = Database(settings.store) if database is None else database
    try:
        with logs.configure(settings.log_file):
            return store.when_it_answers(
                lambda: _prepared(
                    store,
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
        store.close()


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
            witness.forget(progress_of(database))
        witness.check(database)
        for event, words in witness.warnings(database, settings.store).items():
            logs.warning(event)
            warn(words)
    _check_populations(database, settings)
    metadata.begin_epoch(database)
    spec = None if campaign is None else _opened(database, settings, campaign, start, again=again)
    if witness is not None:
        witness.record(progress_of(database))
    return spec


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
        for spec in run_state.load_unknown_specs(connection, ()):
            if run_state.load_state(connection, spec.id).ending is None:
                opening.require_population(spec.campaign, len(settings.enrolment.allow_list))


def _same_but_for_start(
    database: Database, campaign: Campaign, start: Start, again: bool
) -> Campaign | None:
    """Return the newest campaign that differs in its start alone; None if there is none."""
    with database.reading() as connection:
        runs = run_state.load_unknown_specs(connection, ())
        over = {
            spec.id: run_state.load_state(connection, spec.id).ending is not None for spec in runs
        }
    for spec in reversed(runs):
        here = spec.campaign
        if here.schedule is None or campaign.schedule is None:
            continue
        schedule = replace(campaign.schedule, start=here.schedule.start)
        if replace(campaign, schedule=schedule).seal != here.seal:
            continue
        if not over[spec.id] or (start.in_s is not None and not again):
            return here
    return None


def _restore(database: Database, lost: Sequence[str]) -> None:
    """End every campaign that was running: its releases after the copy are not known here.

    Each is accounted as if it had run to its last affordable slot. Populations in ``lost`` had runs
    that this store does not have, and the epsilon of averaged updates grows the fewer contribute:
    what those runs spent is unknown, so no campaign is opened on these populations again.
    """
    with database.reading() as connection:
        runs = run_state.load_unknown_specs(connection, ())
        snapshots = {spec.id: run_state.load_snapshot(connection, spec) for spec in runs}
    running = [spec for spec in runs if snapshots[spec.id].state.ending is None]
    unknown = {*lost, *(spec.population for spec in running if spec.rules.averaged)}
    with database.exclusive("facts") as connection:
        for population in sorted(unknown):
            metadata.write(connection, metadata.lost(population), "yes")
    for spec in running:
        snapshot = snapshots[spec.id]
        stopped = slot_transitions.stop(database, spec, snapshot)
        stated = None
        if spec.rules.averaged:  # its epsilon depends on how many contributed after the copy
            run = snapshot.ledger.running
            rule = None if run is None else run.filter
            spending = Spending(spec.campaign, earlier_of(snapshot.ledger), rule)
            stated = spending.after(spec.rules.slots).as_dict()
        slot_transitions.finish(database, spec, stopped, stated)
    with database.exclusive("facts") as connection:
        metadata.forget(connection, metadata.COPY)


def parsed_start(text: str) -> Start:
    """Parse ``now``, ``+SECONDS``, or an instant such as 2030-01-01T00:00:00Z.

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
