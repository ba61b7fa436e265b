"""Holding: while the time is in doubt, no slot closes and no check-in is accepted.

If the calendar clock jumps relative to the steady clock, either its new time is wrong or its old
time was, and a machine cannot tell which. So the coordinator **holds**: it closes no slot and
accepts no check-in, until both clocks agree again or it is started with ``--trust-clock``. The
offset between the clocks is saved in the store for each boot of the machine, so a restart of a
worker or of the coordinator does not accept a jump. While no run is open, every jump is accepted.
"""

from __future__ import annotations

import hashlib
import math

from checkins.service import logs
from checkins.service.http.problems import Problem
from checkins.service.metrics import Metrics
from checkins.service.store import clock as clocks
from checkins.service.store import metadata, run_state
from checkins.service.store.database import Database

LEAST_CHANGE_S = 0.5
"""A new offset is saved if it, or its uncertainty, differs by more than this many seconds."""


def start(database: Database, *, trust: bool = False) -> None:
    """Set the clock when a process starts.

    If an offset was saved since the machine booted, the calendar must agree with it, or the clock
    holds. ``trust`` accepts the calendar whatever was saved.
    """
    name = _entry_name()
    if name is not None and not trust:
        saved = _saved_setting(database, name)
        if saved is not None:
            database.clock.resume(saved)
    compare(database)


def compare(database: Database) -> None:
    """Compare the clocks once and save their offset. Without an open run, accept the calendar."""
    database.synchronise()
    if database.clock.holds and not database.read(run_state.count_open_runs):
        database.clock.trust()
        database.synchronise()
    if not database.clock.holds:
        _save(database)


def refuse_while_holding(database: Database) -> None:
    """Raise ``busy`` while the clock holds, so that no client uses up its token in vain."""
    if database.clock.holds:
        raise Problem("busy", f"{reason(database)}; try again", retry_after=1)


def reason(database: Database) -> str | None:
    """Return in words why the clock holds, or None if the clocks agree."""
    off_s = database.clock.off_s
    if off_s is None:
        return None
    by = "" if math.isnan(off_s) else f" by {abs(off_s):,.0f} s"
    return (
        f"the server's clock was set {'back' if off_s < 0.0 else 'forward'}{by}: no check-in is"
        " accepted and no slot is closed until the clock is right or the operator confirms it"
    )


class ClockWatch:
    """Reports when holding begins and ends."""

    def __init__(self, database: Database, metrics: Metrics) -> None:
        self._database = database
        self._metrics = metrics
        self.holding: str | None = None  # why the clock holds; None if the clocks agree

    def report_changes(self) -> bool:
        """Report to log and metrics whether the clock holds. Return True if that changed."""
        before, self.holding = self.holding, reason(self._database)
        off_s = self._database.clock.off_s
        self._metrics.clock_off(0.0 if off_s is None else abs(off_s))
        if off_s is not None and before is None:
            logs.warning("clock-jumped", seconds=round(off_s, 3))
        elif before is not None and off_s is None:
            logs.event("clock-agrees")
        return before != self.holding


def _entry_name() -> str | None:
    """Return the name of the entry for this boot, or None if the system has no boot id."""
    boot = clocks.boot_id()
    return None if boot is None else f"clock {hashlib.sha256(boot.encode()).hexdigest()[:32]}"


def _saved_setting(database: Database, name: str) -> tuple[float, float] | None:
    saved = database.read(metadata.read, name)
    if saved is None:
        return None
    offset, uncertainty = map(float, saved.split())
    return offset, uncertainty


def _save(database: Database) -> None:
    name = _entry_name()
    if name is None:
        return
    offset, uncertainty = database.clock.setting
    before = _saved_setting(database, name)
    if before is not None:
        more_precise = before[1] - uncertainty > LEAST_CHANGE_S
        if abs(before[0] - offset) <= LEAST_CHANGE_S and not more_precise:
            return
    with database.exclusive("facts") as connection:
        metadata.write(connection, name, f"{offset!r} {uncertainty!r}")
