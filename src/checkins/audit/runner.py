"""Run one attack in batches: choose events on the first runs, count the events on the rest.

A run is simulated with and without one client, the canary, and gets a score. An event says that the
score is above or below a threshold. Every batch has its own seed. If the number of runs is fixed
beforehand, all batches have the canary's batch size, so the counts are the same on every computer
and with any number of threads. Under a time limit, the first batches are small. The size grows
until one batch takes ``BATCH_TIME_SHARE`` of the time limit, and a batch is not started if it would
end too late. The number of runs never depends on the results, so the bounds stay valid.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np

from checkins.audit.bounds import SELECTION_SHARE, Counts, MeasuredBound, Trials, choose_events
from checkins.audit.canaries import Canary
from checkins.audit.statistics import EventRates, TradeOffCurve
from checkins.errors import CheckinsError

MAX_BATCH_GROWTH = 4
"""Largest factor by which a batch is larger than the batch before it."""
BATCH_TIME_SHARE = 1 / 40
"""Share of the time limit that one batch may take."""
MAX_SELECTION_RUNS = 1_000_000
"""Largest number of runs on which events are chosen. Their scores are all held in memory."""
MAX_COUNTED_RUNS = 1_000_000_000
"""Largest number of runs on which events are counted."""

Progress = Callable[[float], None]
"""A callback that receives the completed share of the attack, 0 to 1."""
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
    threads: int = 0  # 0 means one for each usable processor
    clock: Clock = time.perf_counter

    @property
    def workers(self) -> int:
        """The number of threads that run batches."""
        if self.threads:
            return self.threads
        has_affinity = hasattr(os, "sched_getaffinity")
        return len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1


class Batches:
    """Runs batches concurrently and yields their trials in order."""

    def __init__(self, canary: Canary, budget: RunBudget) -> None:
        self._canary, self._budget = canary, budget
        self._next_number = 0
        self._is_growing = budget.runs is None
        self._batch_size = canary.smallest_batch_size if self._is_growing else canary.batch_size
        self._batch_s = 0.0
        """Estimated seconds of one batch."""

    def run_until(self, runs: int, deadline: float) -> Iterator[Trials]:
        """Yield trials of ``runs`` runs, or of fewer if the deadline comes first.

        The first batch is run even if it ends after the deadline.
        """
        remaining_runs = runs
        for trials in self._first_batches(runs, deadline):
            remaining_runs -= trials.fewest_runs
            yield trials
        workers = self._budget.workers
        with ThreadPoolExecutor(workers, thread_name_prefix="audit") as pool:
            pending: list[Future[tuple[Trials, float]]] = []
            while True:
                while (
                    remaining_runs > 0
                    and len(pending) < workers + 1
                    and self._fits(pending, deadline)
                ):
                    size = min(self._batch_size, remaining_runs)
                    pending.append(pool.submit(self._run, self._next_number, size))
                    remaining_runs -= size
                    self._next_number += 1
                if not pending:
                    return
                wait(pending[:1], return_when=FIRST_COMPLETED)
                trials, elapsed_s = pending.pop(0).result()
                self._batch_s = elapsed_s * self._batch_size / trials.fewest_runs
                yield trials

    def _first_batches(self, runs: int, deadline: float) -> Iterator[Trials]:
        """Yield the first batches, run one after another to warm up and to find the batch size."""
        remaining_runs, warmup_s = runs, self._canary.warmup_s
        while remaining_runs > 0 and (
            self._next_number == 0 or (self._is_growing and self._fits([], deadline))
        ):
            size = min(self._batch_size, remaining_runs)
            trials, elapsed_s = self._run(self._next_number, size)
            self._next_number += 1
            remaining_runs -= size
            self._batch_s = max(0.0, elapsed_s - warmup_s)
            warmup_s = 0.0
            if self._is_growing:
                self._grow()
            yield trials

    def _grow(self) -> None:
        """Increase the batch size, by at most the factor ``MAX_BATCH_GROWTH``.

        The target is a batch that takes ``BATCH_TIME_SHARE`` of the time limit.
        """
        target_factor = BATCH_TIME_SHARE * self._budget.seconds / max(self._batch_s, 1e-9)
        factor = max(1.0, min(target_factor, MAX_BATCH_GROWTH))
        larger = min(self._canary.batch_size, int(self._batch_size * factor))
        self._is_growing = self._batch_size < larger < self._canary.batch_size
        self._batch_s *= larger / self._batch_size
        self._batch_size = larger

    def _fits(self, pending: list[Future[tuple[Trials, float]]], deadline: float) -> bool:
        """Return True if one more batch after the pending batches would end by the deadline."""
        rounds = len(pending) // self._budget.workers + 1
        return self._budget.clock() + rounds * self._batch_s <= deadline

    def _run(self, number: int, runs: int) -> tuple[Trials, float]:
        """Run the batch with this number. Return its trials and the seconds that it took."""
        started = self._budget.clock()
        seeds = np.random.SeedSequence(self._budget.seed, spawn_key=(number,))
        trials = self._canary.trials(runs, np.random.Generator(np.random.SFC64(seeds)))
        return trials, self._budget.clock() - started


@dataclass(frozen=True, slots=True, eq=False)
class Measurement:
    """The bounds measured by one attack, its trade-off curve and its observed event rates."""

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
    """Run an attack. All of its bounds hold, except with probability ``failure``.

    Raises OutOfTime if no time was left to count the events. If ``progress`` is None, no progress
    is reported.
    """
    clock, runs, batches = budget.clock, budget.runs, Batches(canary, budget)
    started, runs_done = clock(), 0
    if runs is None and budget.seconds <= canary.warmup_s:
        raise OutOfTime(
            f"it takes about {canary.warmup_s:g} s to warm up, and {budget.seconds:.2g} s were"
            " left for it"
        )

    def trials_within(max_runs: int, share: float) -> Iterator[Trials]:
        """Yield trials of ``max_runs`` runs, or of fewer if ``share`` of the time limit is over."""
        nonlocal runs_done
        deadline = started + share * budget.seconds if runs is None else math.inf
        for trials in batches.run_until(max_runs, deadline):
            runs_done += trials.fewest_runs
            if progress is not None:
                share_done = runs_done / runs if runs else (clock() - started) / budget.seconds
                progress(min(1.0, share_done))
            yield trials

    first_runs = MAX_SELECTION_RUNS if runs is None else max(1, int(runs * SELECTION_SHARE))
    batch_trials = list(trials_within(min(first_runs, MAX_SELECTION_RUNS), SELECTION_SHARE))
    first_trials = _concatenated(batch_trials, canary.name)
    if runs is None:
        elapsed_s = clock() - started
        runs_per_s = first_trials.fewest_runs / max(elapsed_s, 1e-9)
        max_counted_runs = MAX_COUNTED_RUNS
        expected_runs = max(1, int(runs_per_s * max(0.0, budget.seconds - elapsed_s)))
    else:
        max_counted_runs = expected_runs = max(1, runs - first_trials.fewest_runs)
    failure_per_event = failure / (2 * len(deltas))
    runs_to_count = min(max_counted_runs, expected_runs)
    events = choose_events(
        first_trials, deltas=deltas, failure=failure_per_event, counted_runs=runs_to_count
    )
    counts = [Counts(event, canary.name) for event in events]
    curve = TradeOffCurve.with_thresholds_of(first_trials)
    for trials in trials_within(max_counted_runs, 1.0):
        counts = [part.plus(trials) for part in counts]
        curve = curve.plus(trials)
    if runs_done == first_trials.fewest_runs:
        raise OutOfTime(
            f"choosing its events on {runs_done:,} {'run' if runs_done == 1 else 'runs'} took"
            f" {clock() - started:.2g} s of the {budget.seconds:.2g} s that were left for it, so no"
            " time was left to count them"
        )
    bounds = tuple(part.bound(failure=failure_per_event) for part in counts)
    rates = TradeOffCurve.rates(first_trials)
    return Measurement(runs_done, bounds, curve, rates, len(events), clock() - started)


def _concatenated(parts: Sequence[Trials], canary: str) -> Trials:
    present = np.concatenate([part.scores_with for part in parts])
    return Trials(present, np.concatenate([part.scores_without for part in parts]), canary)
