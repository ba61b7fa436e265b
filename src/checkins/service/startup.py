"""Steps before a coordinator starts: migrate and check its store, and open a campaign.

Later ``runs.runner`` reads the runs from the store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from checkins.campaign import Campaign
from checkins.errors import InvalidValue
from checkins.service import backup, logs
from checkins.service.runs import clock_watch, opening
from checkins.service.settings import Settings
from checkins.service.store import metadata, run_state
from checkins.service.store.database import Database
from checkins.service.store.rollback_guard import RollbackGuard, progress_of
from checkins.service.store.run_state import RunSpec
from checkins.service.store.schema import migrate


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a campaign, as a moment or as seconds from now.

    If both are None, the campaign starts as its file says.
    """

    moment: datetime | None = None
    in_s: float | None = None

    def of(self, campaign: Campaign) -> Campaign:
        """Return the campaign with this start. A different start gives a different seal."""
        schedule = campaign.schedule
        if schedule is None or (self.moment is None and self.in_s is None):
            return campaign
        moment = self.moment or datetime.now(UTC) + timedelta(seconds=self.in_s or 0.0)
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
    """Prepare the store, and return the run of ``campaign``, which is opened if necessary.

    Return None if ``campaign`` is None. If ``start`` is given and the store has an open campaign
    that differs only in its start, that campaign is continued. If ``start`` is in seconds from now,
    such a campaign is found even when it is over, and ``again`` opens a new one instead.

    ``restore`` ends every run of a copy. ``trust_clock`` accepts a calendar clock that has jumped
    since the machine booted. ``warn`` is called with each warning for the operator. ``database``
    is for tests; if None, it is created from ``settings``. If PostgreSQL accepts no connections or
    crashes, all steps are repeated once it answers.
    """
    store = Database(settings.store) if database is None else database
    guard = None if settings.witness is None else RollbackGuard(settings.witness)

    def prepared() -> RunSpec | None:
        store.check_durable()
        migrate(store)
        clock_watch.start(store, trust_calendar=trust_clock)
        if restore:
            if guard is not None:
                guard.check_restorable(store)
            lost = () if guard is None else guard.populations_with_lost_runs(store)
            backup.end_runs(store, lost=lost)
            if guard is not None:
                guard.overwrite(progress_of(store))
        if guard is not None:
            guard.check(store)
            for event, words in guard.warnings(store, settings.store).items():
                logs.warning(event)
                warn(words)
        _check_populations(store, settings)
        metadata.begin_epoch(store)
        spec = None if campaign is None else _opened(store, settings, campaign, start, again=again)
        if guard is not None:
            guard.record(progress_of(store))
        return spec

    try:
        with logs.configure(settings.log_file):
            return store.run_when_available(prepared)
    finally:
        store.close()


def _opened(
    database: Database, settings: Settings, campaign: Campaign, start: Start, *, again: bool = False
) -> RunSpec:
    found = _same_but_for_start(database, campaign, start, again) if start.is_given else None
    given: Any = {"folder": settings.folder, "allow_list_size": len(settings.enrolment.allow_list)}
    if found is not None:
        return opening.open_run(database, found, **given)
    return opening.open_run(database, campaign, with_start=start.of, **given)


def _check_populations(database: Database, settings: Settings) -> None:
    """Raise InvalidValue if the allow-list has too many keys for a run that is not over."""
    for spec in database.read(run_state.load_specs_except, ()):
        if database.read(run_state.load_state, spec.id).ending is None:
            opening.require_allow_list_fits(spec.campaign, len(settings.enrolment.allow_list))


def _same_but_for_start(
    database: Database, campaign: Campaign, start: Start, again: bool
) -> Campaign | None:
    """Return the newest campaign in the store that differs only in its start, or None.

    A campaign that is over counts only if ``start`` is in seconds from now and ``again`` is False.
    """
    for spec in reversed(database.read(run_state.load_specs_except, ())):
        here = spec.campaign
        if here.schedule is None or campaign.schedule is None:
            continue
        schedule = replace(campaign.schedule, start=here.schedule.start)
        if replace(campaign, schedule=schedule).seal != here.seal:
            continue
        is_over = database.read(run_state.load_state, spec.id).ending is not None
        if not is_over or (start.in_s is not None and not again):
            return here
    return None


def parsed_start(text: str) -> Start:
    """Parse ``now``, ``+SECONDS``, or a time such as 2030-01-01T00:00:00Z. ``now`` means +2.

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
    expected = "must be now, +SECONDS, or an instant such as 2030-01-01T00:00:00Z"
    raise InvalidValue("start", text, expected)
