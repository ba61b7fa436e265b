"""Playing an attack for a while: events are chosen on the first runs, and counted on the rest.

How many runs there are is fixed by time or beforehand, never by what they show.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from checkins.audit.batching import Blocks, Effort, OutOfTime
from checkins.audit.bounds import CHOOSING, Counts, MeasuredBound, choose
from checkins.audit.canaries.canary import Canary
from checkins.audit.power import Rates
from checkins.audit.trade_off_curve import Curve
from checkins.audit.trials import Trials

MOST_CHOOSING = 1_000_000
"""Runs that events are chosen on, and held in memory."""
MOST_FRESH = 1_000_000_000

Told = Callable[[float], None]
"""Hears what share of the work is done."""


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """What came of one attack."""

    runs: int
    """Of each half, all together."""
    bounds: tuple[MeasuredBound, ...]
    curve: Curve
    rates: tuple[Rates, ...]
    """Seen on the runs that events were chosen on."""
    events: int
    seconds: float


def play(
    canary: Canary,
    *,
    deltas: Sequence[float],
    failure: float,
    effort: Effort,
    told: Told | None = None,
) -> Played:
    """Bounds that all hold but with probability ``failure``; raises OutOfTime if there are none."""
    clock = effort.clock
    started = clock()
    blocks = Blocks(canary, effort)
    if effort.runs is None and effort.seconds <= canary.ready_s:
        raise OutOfTime(
            f"it takes about {canary.ready_s:g} s to make ready, and {effort.seconds:.2g} s were"
            " left for it"
        )
    first_runs, deadline = MOST_CHOOSING, started + CHOOSING * effort.seconds
    if effort.runs is not None:
        first_runs, deadline = max(1, int(effort.runs * CHOOSING)), float("inf")
    done = 0

    def tell(runs: int) -> None:
        share = (clock() - started) / effort.seconds
        if effort.runs is not None:
            share = runs / effort.runs
        if told is not None:
            told(min(1.0, share))

    first: list[Trials] = []
    for trials in blocks.until(min(first_runs, MOST_CHOOSING), deadline):
        first.append(trials)
        done += trials.fewest
        tell(done)
    chosen_on = _joined(first, canary.name)
    took = clock() - started
    fresh = MOST_FRESH
    if effort.runs is not None:
        fresh = max(1, effort.runs - chosen_on.fewest)
    pace = chosen_on.fewest / max(took, 1e-9)
    expected = min(fresh, max(1, int(pace * max(0.0, effort.seconds - took))))
    if effort.runs is not None:
        expected = fresh
    each = failure / (2 * len(deltas))
    events = choose(chosen_on, deltas=deltas, failure=each, fresh=expected)
    counts = [Counts(event, canary.name) for event in events]
    curve = Curve.over(chosen_on)
    end = float("inf") if effort.runs is not None else started + effort.seconds
    for trials in blocks.until(fresh, end):
        counts = [one.plus(trials) for one in counts]
        curve = curve.plus(trials)
        done += trials.fewest
        tell(done)
    if done == chosen_on.fewest:
        raise OutOfTime(
            f"its first {done:,} {'run' if done == 1 else 'runs'} took {clock() - started:.2g} s of"
            f" the {effort.seconds:.2g} s that were left for it"
        )
    bounds = tuple(one.bound(failure=each) for one in counts)
    return Played(
        done,
        bounds,
        curve,
        Curve.rates(chosen_on),
        len(events),
        clock() - started,
    )


def _joined(parts: Sequence[Trials], canary: str) -> Trials:
    return Trials(
        np.concatenate([part.scores_with for part in parts]),
        np.concatenate([part.scores_without for part in parts]),
        canary,
    )
