"""Readiness: whether this process does what a coordinator is there for, and if not, why.

It asks nobody: what is needed is known from what the background tasks last did, so the answer comes
at once while the store is silent.
"""

from __future__ import annotations

import asyncio

from checkins.service import slot_transitions
from checkins.service.runner import Runner
from checkins.service.timeouts import PATIENCE_S

LATE_S = 5.0
"""A slot that is not begun, chosen or closed for longer than this after its time is late."""


def faults(runner: Runner) -> list[str]:
    """Why this process is not ready, in words for its operator; empty if it is."""
    found = []
    if runner.stopping.is_set():
        found.append("the service is stopping")
    now, answered = asyncio.get_running_loop().time(), runner.answered
    if answered is None or not now - answered <= PATIENCE_S:
        found.append(f"the store has not answered for {PATIENCE_S:.0f} s")
    if runner.clock_watch.holding is not None:
        found.append(f"no slot is closed: {runner.clock_watch.holding}")
    elif late := _late(runner):
        found.append(f"slots are not closed on time in {', '.join(late)}")
    if runner.witness_fault is not None:
        found.append(runner.witness_fault)
    if failing := runner.background.failing:
        found.append(f"background tasks keep dying: {', '.join(failing)}")
    return found


def _late(runner: Runner) -> list[str]:
    """The runs in which something that the clock asks for was not done in time."""
    now = runner.database.now()
    late = []
    for run, desk in runner.desks.items():
        moment = slot_transitions.due(desk.terms, desk.standing.stage)
        if moment is not None and not now - moment <= LATE_S:
            late.append(run)
    return late
