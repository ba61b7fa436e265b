"""Blocks of runs: how large they are, what they are drawn from, and how many are under way.

Every block has a seed of its own. A number of runs that is fixed beforehand is cut into blocks of
the canary's own size, so it gives the same counts on any machine and any number of threads. Where
time decides, blocks begin small and grow until one takes a small part of the time, and none is
begun that would not end in time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np

from checkins.audit.canaries.canary import Canary
from checkins.audit.trials import Trials
from checkins.errors import CheckinsError

GROWTH = 4
"""How much larger than the one before a block may be."""
SHARE_OF_A_BLOCK = 1 / 40
"""Of the time: what is under way when the time is up takes a few of these."""

Clock = Callable[[], float]
"""Seconds since any beginning."""


class OutOfTime(CheckinsError):
    """An attack was not played, or not to its end, because there was no time for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long, or how often: ``runs`` where given, else as many as ``seconds`` allow."""

    seconds: float
    runs: int | None
    seed: tuple[int, ...]
    threads: int = 0
    clock: Clock = time.perf_counter

    @property
    def workers(self) -> int:
        """Threads: numpy and JAX let go of the interpreter while they work."""
        if self.threads:
            return self.threads
        known = hasattr(os, "sched_getaffinity")
        return len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1


class Blocks:
    """Blocks of runs, several at a time, in their order."""

    def __init__(self, canary: Canary, effort: Effort) -> None:
        self._canary, self._effort = canary, effort
        self._next = 0
        self._size = canary.block if effort.runs is not None else canary.smallest_block
        self._growing = effort.runs is None
        self._block_s = 0.0
        """About how long a block takes."""

    def until(self, runs: int, deadline: float) -> Iterator[Trials]:
        """So many runs, or as many as end before the deadline; the first block in any case."""
        left = runs
        for trials in self._beginning(runs, deadline):
            left -= trials.fewest
            yield trials
        workers = self._effort.workers
        with ThreadPoolExecutor(workers, thread_name_prefix="audit") as pool:
            pending: list[Future[tuple[Trials, float]]] = []
            while True:
                while left > 0 and len(pending) < workers + 1 and self._fits(pending, deadline):
                    size = min(self._size, left)
                    pending.append(pool.submit(self._play, self._next, size))
                    left -= size
                    self._next += 1
                if not pending:
                    return
                wait(pending[:1], return_when=FIRST_COMPLETED)
                trials, took = pending.pop(0).result()
                self._block_s = took * self._size / trials.fewest
                yield trials

    def _beginning(self, runs: int, deadline: float) -> Iterator[Trials]:
        """The first blocks, one after the other: they find a size, and make ready for the rest."""
        left, making_ready = runs, self._canary.ready_s
        while left > 0 and (self._next == 0 or (self._growing and self._fits([], deadline))):
            size = min(self._size, left)
            trials, took = self._play(self._next, size)
            self._next += 1
            left -= size
            self._block_s = max(0.0, took - making_ready)
            making_ready = 0.0
            if self._growing:
                self._grow()
            yield trials

    def _grow(self) -> None:
        """To the size that takes its share of the time, a few times larger at most."""
        share = SHARE_OF_A_BLOCK * self._effort.seconds / max(self._block_s, 1e-9)
        factor = max(1.0, min(share, GROWTH))
        larger = min(self._canary.block, int(self._size * factor))
        self._growing = self._size < larger < self._canary.block
        self._block_s *= larger / self._size
        self._size = larger

    def _fits(self, pending: list[Future[tuple[Trials, float]]], deadline: float) -> bool:
        """Whether one more would be ready by then, after those that are under way."""
        rounds = len(pending) // self._effort.workers + 1
        return self._effort.clock() + rounds * self._block_s <= deadline

    def _play(self, number: int, runs: int) -> tuple[Trials, float]:
        began = self._effort.clock()
        seeds = np.random.SeedSequence(self._effort.seed, spawn_key=(number,))
        trials = self._canary.trials(runs, np.random.Generator(np.random.SFC64(seeds)))
        return trials, self._effort.clock() - began
