"""Playing an attack for a while: events are chosen on the first runs, and counted on the rest.

Every block of runs has a seed of its own, so the same number of runs gives the same counts on any
number of threads. How many runs there are is fixed by time or beforehand, never by what they show.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np

from checkins.audit.bound import CHOOSING, Counts, MeasuredBound, choose
from checkins.audit.canary import Canary
from checkins.audit.curve import Curve
from checkins.audit.power import Rates
from checkins.audit.trials import Trials

MOST_CHOOSING = 1_000_000
"""Runs that events are chosen on, and held in memory."""
MOST_FRESH = 1_000_000_000
LEAST_BLOCKS = 4

Told = Callable[[float], None]
"""Hears what share of the work is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long, or how often: ``runs`` where given, else as many as ``seconds`` allow."""

    seconds: float
    runs: int | None
    seed: tuple[int, ...]
    threads: int = 0

    @property
    def workers(self) -> int:
        """Threads: numpy and JAX let go of the interpreter while they work."""
        if self.threads:
            return self.threads
        known = hasattr(os, "sched_getaffinity")
        return len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1


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
    """Bounds that all hold but with probability ``failure``."""
    started = time.perf_counter()
    blocks = _Blocks(canary, effort)
    first_runs, deadline = MOST_CHOOSING, started + CHOOSING * effort.seconds
    if effort.runs is not None:
        first_runs, deadline = max(1, int(effort.runs * CHOOSING)), float("inf")
    done = 0

    def tell(runs: int) -> None:
        share = (time.perf_counter() - started) / effort.seconds
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
    took = time.perf_counter() - started
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
    bounds = tuple(one.bound(failure=each) for one in counts)
    return Played(
        done,
        bounds,
        curve,
        Curve.rates(chosen_on),
        len(events),
        time.perf_counter() - started,
    )


class _Blocks:
    """Blocks of runs, several at a time, in their order."""

    def __init__(self, canary: Canary, effort: Effort) -> None:
        self._canary, self._effort, self._next = canary, effort, 0

    def until(self, runs: int, deadline: float) -> Iterator[Trials]:
        """So many runs, or as many as begin before the deadline; a few blocks in any case."""
        size, left = self._canary.block, runs
        workers = self._effort.workers
        if self._next == 0:  # alone: it makes ready what the others use too
            self._next = 1
            yield self._play(0, min(size, left))
            left -= min(size, left)
        with ThreadPoolExecutor(workers, thread_name_prefix="audit") as pool:
            pending: list[Future[Trials]] = []
            begun = 0
            while True:
                late = time.perf_counter() > deadline and begun >= LEAST_BLOCKS
                while left > 0 and len(pending) < workers + 1 and not late:
                    pending.append(pool.submit(self._play, self._next, min(size, left)))
                    left -= min(size, left)
                    self._next += 1
                    begun += 1
                if not pending:
                    return
                wait(pending[:1], return_when=FIRST_COMPLETED)
                yield pending.pop(0).result()

    def _play(self, number: int, runs: int) -> Trials:
        seeds = np.random.SeedSequence(self._effort.seed, spawn_key=(number,))
        return self._canary.trials(runs, np.random.Generator(np.random.SFC64(seeds)))


def _joined(parts: Sequence[Trials], canary: str) -> Trials:
    return Trials(
        np.concatenate([part.scores_with for part in parts]),
        np.concatenate([part.scores_without for part in parts]),
        canary,
    )
