"""Steps before a coordinator starts: migrate and check its database, and open a campaign.

A coordinator is one running service. After these steps, ``runs.runner`` reads the runs from the
database. The progress file holds a second copy of the newest progress of each run, outside the
database, so that a database restored from an old backup is detected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from checkins.campaign import Campaign
from checkins.errors import InvalidValue
from checkins.ledger.operator_log import MACHINE, OperatorAction
from checkins.protocol.server import Ending
from checkins.protocol.wire import format_time
from checkins.service import backup, logs
from checkins.service.runs import clock_jumps, opening, operator_actions
from checkins.service.settings import Settings
from checkins.service.store import metadata, operators, run_state
from checkins.service.store.database import Database
from checkins.service.store.rollback_detection import ProgressFile, progress_of
from checkins.service.store.run_state import RunSpec
from checkins.service.store.schema import migrate


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a campaign that the operator gives: a time, or seconds from now.

    If ``moment`` and ``delay_s`` are None, the campaign starts at the time in its file.
    """

    moment: datetime | None = None
    delay_s: float | None = None

    def apply_to(self, campaign: Campaign) -> Campaign:
        """Return the campaign with this start. A different start gives a different seal."""
        schedule = campaign.schedule
        if schedule is None or (self.moment is None and self.delay_s is None):
            return campaign
        moment = self.moment or datetime.now(UTC) + timedelta(seconds=self.delay_s or 0.0)
        return replace(campaign, schedule=replace(schedule, start=moment))

    @property
    def is_given(self) -> bool:
        return self.moment is not None or self.delay_s is not None


def prepare(
    settings: Settings,
    campaign: Campaign | None,
    *,
    start: Start,
    start_again: bool = False,
    restore: bool = False,
    trust_clock: bool = False,
    warn: Callable[[str], None] = lambda message: None,
    database: Database | None = None,
) -> RunSpec | None:
    """Prepare the database, and return the run of ``campaign``, which is opened if necessary.

    Return None if ``campaign`` is None. If ``start`` is given and the database has an open campaign
    that differs from ``campaign`` only in its start, this stored campaign is continued. If
    ``start`` is in seconds from now, a stored campaign that is over is returned too, unless
    ``start_again`` is True; then a new campaign is opened.

    ``restore`` ends every open run, because the database is a copy that was restored.
    ``trust_clock`` accepts a calendar clock that has jumped since the machine booted. ``warn`` is
    called with each warning for the operator. ``database`` is for tests; None opens the database of
    ``settings``. If PostgreSQL accepts no connections or crashes, all steps are repeated once it
    answers.
    """
    store = Database(settings.store) if database is None else database
    guard = None if settings.progress_file is None else ProgressFile(settings.progress_file)

    def prepare_store() -> RunSpec | None:
        store.check_durable()
        migrate(store)
        clock_jumps.start(store, trust_calendar=trust_clock)
        if restore:
            if guard is not None:
                guard.check_restorable(store)
                if lost_actions := guard.lost_actions_warning(store):
                    logs.warning("operator-actions-lost")
                    warn(lost_actions)
            lost_runs = () if guard is None else guard.populations_with_lost_runs(store)
            for ended in backup.end_runs(store, lost_runs=lost_runs):
                logs.event("ended-by-restore", campaign=ended)
                warn(f"ended by --restore: {ended}")
            if guard is not None:
                guard.overwrite(progress_of(store))
        if guard is not None:
            guard.check(store)
            for event, message in guard.warnings(store, settings.store).items():
                logs.warning(event)
                warn(message)
        operator_actions.log_start_options(
            store,
            *([OperatorAction.STORE_RESTORED] if restore else []),
            *([OperatorAction.CLOCK_TRUSTED] if trust_clock else []),
        )
        _check_populations(store, settings)
        metadata.begin_epoch(store)
        spec = None
        if campaign is not None:
            spec = _open_campaign(store, settings, campaign, start, start_again, warn)
        if guard is not None:
            guard.record(progress_of(store))
        return spec

    try:
        with logs.configure(settings.log_file):
            return store.run_when_available(prepare_store)
    finally:
        store.close()


def _open_campaign(
    database: Database,
    settings: Settings,
    campaign: Campaign,
    start: Start,
    start_again: bool = False,
    warn: Callable[[str], None] = lambda message: None,
) -> RunSpec:
    stored = None
    if start.is_given:
        stored = _stored_with_other_start(database, campaign, start, start_again)
    keys = settings.enrolment.file_keys
    options: Any = {"folder": settings.folder, "allow_list": keys, "operator": MACHINE}
    if stored is not None:
        spec = opening.open_run(database, stored, **options)
        is_open = database.read(run_state.load_state, spec.id).ending is None
        if is_open and stored.seal != start.apply_to(campaign).seal:
            begins = format_time(spec.run_schedule.begins(1))
            warn(f"--start ignored: run {spec.id} is open, and its first slot is at {begins}")
        return spec
    return opening.open_run(database, campaign, with_start=start.apply_to, **options)


def ending_of(settings: Settings, spec: RunSpec) -> Ending | None:
    """Return how a run in the database of ``settings`` ended, or None if it is open."""
    database = Database(settings.store)
    try:
        return database.read(run_state.load_state, spec.id).ending
    finally:
        database.close()


def _check_populations(database: Database, settings: Settings) -> None:
    """Raise InvalidValue if the allow-list has more keys than an open run may have clients."""
    keys = settings.enrolment.file_keys
    if keys is not None:
        size = database.read(operators.allow_list_size, keys)
        database.read(operator_actions.require_populations, size)


def _stored_with_other_start(
    database: Database, campaign: Campaign, start: Start, start_again: bool
) -> Campaign | None:
    """Return the newest stored campaign that differs from ``campaign`` only in its start, or None.

    A stored campaign that is over is returned only if ``start`` is in seconds from now and
    ``start_again`` is False.
    """
    for spec in reversed(database.read(run_state.load_specs_except, ())):
        stored = spec.campaign
        if stored.schedule is None or campaign.schedule is None:
            continue
        schedule = replace(campaign.schedule, start=stored.schedule.start)
        if replace(campaign, schedule=schedule).seal != stored.seal:
            continue
        is_over = database.read(run_state.load_state, spec.id).ending is not None
        if not is_over or (start.delay_s is not None and not start_again):
            return stored
    return None


def parse_start(text: str) -> Start:
    """Parse ``now``, ``+SECONDS``, or a time such as 2030-01-01T00:00:00Z.

    ``now`` means in two seconds, so that the first slot does not begin before the service is ready.

    >>> parse_start("+30")
    Start(moment=None, delay_s=30.0)
    """
    if text == "now":
        return Start(delay_s=2.0)
    try:
        if text.startswith("+"):
            seconds = float(text[1:])
            if 0.0 <= seconds < 1e9:
                return Start(delay_s=seconds)
        else:
            moment = datetime.fromisoformat(text)
            if moment.utcoffset() is not None:
                return Start(moment=moment)
    except ValueError:
        pass
    expected = "must be now, +SECONDS, or a time with its zone such as 2030-01-01T00:00:00Z"
    raise InvalidValue("start", text, expected)
