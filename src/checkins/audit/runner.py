"""Run one attack in batches: choose events on the first runs, count the events on the rest.

Every batch has its own seed. If the number of runs is fixed beforehand, all batches have the
canary's batch size, so the counts are the same on every computer and with any number of threads.
Under a time limit, the first batches are small. The size grows until one batch takes
``BATCH_SHARE`` of the time limit, and a batch is not started if it would end too late. The number
of runs never depends on the results, so the bounds stay valid.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np

from checkins.audit.bounds import CHOOSING, Counts, MeasuredBound, Trials, choose
from checkins.audit.canaries import Canary
from checkins.audit.statistics import EventRates, TradeOffCurve
from checkins.errors import CheckinsError

GROWTH = 4
"""Largest factor by which a batch is larger than the batch before it."""
BATCH_SHARE = 1 / 40
"""Share of the time limit that one batch may take."""
MAX_CHOOSING_RUNS = 1_000_000
"""Largest number of runs on which events are chosen. Their scores are all held in memory."""
MAX_FRESH_RUNS = 1_000_000_000
"""Largest number of runs on which events are counted."""

Progress = Callable[[float], None]
"""A callback that receives the completed share of the work."""
Clock = Callable[[], float]
"""A function that returns monotonic seconds."""


class OutOfTime(CheckinsError):
    """There was not enough time to run or to finish an attack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBudget:
    """The limit of an attack: ``runs`` if it is a number, ``seconds`` if ``runs`` is None."""

    seconds: float
    runs: int | None
    seed: tuple[int, ...]
    threads: int = 0
    clock: Clock = time.perf_counter

    @property
    def workers(self) -> int:
        """The number of threads. By default it is the number of usable processors."""
        if self.threads:
            return self.threads
        known = hasattr(os, "sched_getaffinity")
        return len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1


class Batches:
    """Runs batches concurrently and yields their trials in order."""

    def __init__(self, canary: Canary, budget: RunBudget) -> None:
        self._canary, self._budget = canary, budget
        self._next = 0
        self._size = canary.batch if budget.runs is not None else canary.smallest_batch
        self._growing = budget.runs is None
        self._batch_s = 0.0
        """Estimated seconds of one batch."""

    def until(self, runs: int, deadline: float) -> Iterator[Trials]:
        """Yield trials of ``runs`` runs, or of fewer if the deadline comes first.

        The first batch is always run.
        """
        left = runs
        for trials in self._first_batches(runs, deadline):
            left -= trials.fewest
            yield trials
        workers = self._budget.workers
        with ThreadPoolExecutor(workers, thread_name_prefix="audit") as pool:
            pending: list[Future[tuple[Trials, float]]] = []
            while True:
                while left > 0 and len(pending) < workers + 1 and self._fits(pending, deadline):
                    size = min(self._size, left)
                    pending.append(pool.submit(self._run, self._next, size))
                    left -= size
                    self._next += 1
                if not pending:
                    return
                wait(pending[:1], return_when=FIRST_COMPLETED)
                trials, took = pending.pop(0).result()
                self._batch_s = took * self._size / trials.fewest
                yield trials

    def _first_batches(self, runs: int, deadline: float) -> Iterator[Trials]:
        """Run the first batches one after another, to warm up and to find the batch size."""
        left, warmup = runs, self._canary.warmup_s
        while left > 0 and (self._next == 0 or (self._growing and self._fits([], deadline))):
            size = min(self._size, left)
            trials, took = self._run(self._next, size)
            self._next += 1
            left -= size
            self._batch_s = max(0.0, took - warmup)
            warmup = 0.0
            if self._growing:
                self._grow()
            yield trials

    def _grow(self) -> None:
        """Increase the batch size towards ``BATCH_SHARE`` of the time limit.

        It grows by at most the factor ``GROWTH``.
        """
        share = BATCH_SHARE * self._budget.seconds / max(self._batch_s, 1e-9)
        factor = max(1.0, min(share, GROWTH))
        larger = min(self._canary.batch, int(self._size * factor))
        self._growing = self._size < larger < self._canary.batch
        self._batch_s *= larger / self._size
        self._size = larger

    def _fits(self, pending: list[Future[tuple[Trials, float]]], deadline: float) -> bool:
        """Return True if one more batch after the pending batches would end by the deadline."""
        rounds = len(pending) // self._budget.workers + 1
        return self._budget.clock() + rounds * self._batch_s <= deadline

    def _run(self, number: int, runs: int) -> tuple[Trials, float]:
        began = self._budget.clock()
        seeds = np.random.SeedSequence(self._budget.seed, spawn_key=(number,))
        trials = self._canary.trials(runs, np.random.Generator(np.random.SFC64(seeds)))
        return trials, self._budget.clock() - began


@dataclass(frozen=True, slots=True, eq=False)
class Measurement:
    """The bounds measured by one attack, and its observed rates."""

    runs: int
    """Number of runs with the canary. As many runs are without it."""
    bounds: tuple[MeasuredBound, ...]
    curve: TradeOffCurve
    rates: tuple[EventRates, ...]
    """Event rates observed on the first runs, on which the events were chosen."""
    event_count: int
    """Number of chosen events."""
    seconds: float


def run_attack(
    canary: Canary,
    *,
    deltas: Sequence[float],
    failure: float,
    budget: RunBudget,
    progress: Progress | None = None,
) -> Measurement:
    """Run an attack and return its bounds. All hold, except with probability ``failure``.

    Raises OutOfTime if no time was left to count the events. If ``progress`` is None, no progress
    is reported.
    """
    clock, runs, batches = budget.clock, budget.runs, Batches(canary, budget)
    started, done = clock(), 0
    if runs is None and budget.seconds <= canary.warmup_s:
        raise OutOfTime(
            f"it takes about {canary.warmup_s:g} s to warm up, and {budget.seconds:.2g} s were"
            " left for it"
        )

    def trials_within(most: int, share: float) -> Iterator[Trials]:
        """Yield trials of ``most`` runs, or of fewer if ``share`` of the time limit is over."""
        nonlocal done
        deadline = started + share * budget.seconds if runs is None else math.inf
        for trials in batches.until(most, deadline):
            done += trials.fewest
            if progress is not None:
                share_done = done / runs if runs else (clock() - started) / budget.seconds
                progress(min(1.0, share_done))
            yield trials

    first_runs = MAX_CHOOSING_RUNS if runs is None else max(1, int(runs * CHOOSING))
    chosen_on = _joined(
        list(trials_within(min(first_runs, MAX_CHOOSING_RUNS), CHOOSING)), canary.name
    )
    if runs is None:
        took = clock() - started
        pace = chosen_on.fewest / max(took, 1e-9)
        fresh, expected = MAX_FRESH_RUNS, max(1, int(pace * max(0.0, budget.seconds - took)))
    else:
        fresh = expected = max(1, runs - chosen_on.fewest)
    each = failure / (2 * len(deltas))
    events = choose(chosen_on, deltas=deltas, failure=each, fresh=min(fresh, expected))
    counts = [Counts(event, canary.name) for event in events]
    curve = TradeOffCurve.over(chosen_on)
    for trials in trials_within(fresh, 1.0):
        counts = [one.plus(trials) for one in counts]
        curve = curve.plus(trials)
    if done == chosen_on.fewest:
        raise OutOfTime(
            f"choosing its events on {done:,} {'run' if done == 1 else 'runs'} took"
            f" {clock() - started:.2g} s of the {budget.seconds:.2g} s that were left for it, so no"
            " time was left to count them"
        )
    bounds = tuple(one.bound(failure=each) for one in counts)
    rates = TradeOffCurve.rates(chosen_on)
    return Measurement(done, bounds, curve, rates, len(events), clock() - started)


def _joined(parts: Sequence[Trials], canary: str) -> Trials:
    present = np.concatenate([part.scores_with for part in parts])
    return Trials(present, np.concatenate([part.scores_without for part in parts]), canary)
