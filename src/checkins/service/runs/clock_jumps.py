"""Clock jumps: while the time is in doubt, no slot closes and no check-in is accepted.

``Clock.adjust_or_hold`` (``store/time_source.py``) compares the clocks and detects a jump. This
module decides what a coordinator does about it.

If the calendar clock (the system time) jumps relative to the steady (monotonic) clock, its time
before or after the jump is wrong, and a machine cannot tell which. So the coordinator **holds**: it
closes no slot and accepts no check-in, until both clocks agree again or an operator restarts it
with ``--trust-clock``. The offset between the clocks is saved in the store for each boot of the
machine, so a restart without that option does not accept a jump. While no run is open, every jump
is accepted.
"""

from __future__ import annotations

import hashlib
import math

from checkins.service import logs
from checkins.service.http.problems import Problem
from checkins.service.metrics import Metrics
from checkins.service.store import metadata, run_state, time_source
from checkins.service.store.database import Database

MIN_SAVED_CHANGE_S = 0.5
"""The offset is saved again if it or its uncertainty has changed by more than this, in seconds."""


def start(database: Database, *, trust_calendar: bool = False) -> None:
    """Set the clock when a process starts.

    If an offset was saved since the machine booted, and the calendar does not agree with it, the
    clock holds. If ``trust_calendar``, the calendar is accepted, whatever was saved.
    """
    name = _boot_entry_name()
    if name is not None and not trust_calendar:
        saved = _saved_offset(database, name)
        if saved is not None:
            database.clock.restore_offset(saved)
    compare_clocks(database)


def compare_clocks(database: Database) -> None:
    """Compare the clocks once and save their offset. If no run is open, accept any jump."""
    database.synchronise_clock()
    if database.clock.is_holding and not database.read(run_state.count_open_runs):
        database.clock.accept_next_reading()
        database.synchronise_clock()
    if not database.clock.is_holding:
        _save_offset(database)


def refuse_while_holding(database: Database) -> None:
    """Raise the problem ``busy`` while the clock holds, so that no client spends its token."""
    if database.clock.is_holding:
        raise Problem("busy", f"{holding_reason(database)}; try again", retry_after=1)


def holding_reason(database: Database) -> str | None:
    """Return in words why the clock holds, or None if the clocks agree."""
    ahead_s = database.clock.calendar_ahead_s
    if ahead_s is None:
        return None
    amount = "" if math.isnan(ahead_s) else f" by {abs(ahead_s):,.0f} s"
    return (
        f"the server's clock was set {'back' if ahead_s < 0.0 else 'forward'}{amount}: no check-in"
        " is accepted and no slot is closed until the clock is right or the operator confirms it"
    )


class ClockJumpReporter:
    """Reports to log and metrics when the clock begins to hold and when it stops."""

    def __init__(self, database: Database, metrics: Metrics) -> None:
        self._database = database
        self._metrics = metrics
        self.holding_reason: str | None = None  # why the clock holds; None if the clocks agree

    def report_changes(self) -> bool:
        """Report to log and metrics whether the clock holds. Return True if that changed."""
        previous, self.holding_reason = self.holding_reason, holding_reason(self._database)
        ahead_s = self._database.clock.calendar_ahead_s
        self._metrics.set_clock_jump(0.0 if ahead_s is None else abs(ahead_s))
        if ahead_s is not None and previous is None:
            logs.warning("clock-jumped", seconds=round(ahead_s, 3))
        elif previous is not None and ahead_s is None:
            logs.event("clock-agrees")
        return previous != self.holding_reason


def _boot_entry_name() -> str | None:
    """Return the name of the metadata entry for this boot, or None if there is no boot id."""
    boot = time_source.boot_id()
    return None if boot is None else f"clock {hashlib.sha256(boot.encode()).hexdigest()[:32]}"


def _saved_offset(database: Database, name: str) -> tuple[float, float] | None:
    """Return the saved offset and its uncertainty, in seconds, or None if there is none."""
    saved = database.read(metadata.read, name)
    if saved is None:
        return None
    offset, uncertainty = map(float, saved.split())
    return offset, uncertainty


def _save_offset(database: Database) -> None:
    name = _boot_entry_name()
    if name is None:
        return
    offset, uncertainty = database.clock.offset_and_uncertainty
    saved = _saved_offset(database, name)
    if saved is not None:
        saved_offset, saved_uncertainty = saved
        is_more_precise = saved_uncertainty - uncertainty > MIN_SAVED_CHANGE_S
        if abs(saved_offset - offset) <= MIN_SAVED_CHANGE_S and not is_more_precise:
            return
    with database.exclusive_transaction("facts") as connection:
        metadata.write(connection, name, f"{offset!r} {uncertainty!r}")
