"""The only place where clock, dice and store meet the machines.

A runner keeps a desk for each run and drives those that are not over: it waits for the moment at
which something is due, asks the database to do it or to say that it is done, and tells everyone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from checkins.protocol.campaign import Campaign
from checkins.protocol.server import Ending
from checkins.service import advancing, clock_watch, curve, logs, opening, pricing, taking
from checkins.service.batch import Batch
from checkins.service.clock_watch import ClockWatch
from checkins.service.curve import Holdout
from checkins.service.desk import Desk
from checkins.service.metrics import Metrics
from checkins.service.patience import patiently
from checkins.service.settings import Settings
from checkins.service.store import facts, progress, records
from checkins.service.store.database import Database
from checkins.service.store.records import Standing
from checkins.service.terms import Terms
from checkins.service.witness import Witness, seen_of

T = TypeVar("T")
THREADS = 8
LOOK_S = 1.0
"""How often runs, prices and curves of other workers are looked for."""
LOOK_AGAIN_S = 0.2
"""Asking for runs that are not there makes no more work than this."""
EMPTY_S = 10.0
"""How long SQLite's log keeps what a closed slot has erased, about."""
LONGEST_SLEEP_S = 5.0
"""The clock is looked at that often: it may be set by so little that it is followed."""


class Runner:
    """Desks, and the tasks that move them."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self.settings = settings
        self.database = database
        self.metrics = Metrics()
        self.clock_watch = ClockWatch(database, self.metrics)
        self.epoch = 0
        self.key = b""
        self.desks: dict[str, Desk] = {}
        self.stopping = asyncio.Event()
        self.listeners = 0
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="store")
        self._measuring = ThreadPoolExecutor(1, thread_name_prefix="curve")
        self._witness = None if settings.witness is None else Witness(settings.witness)
        self._holdouts: dict[str, Holdout | None] = {}
        self._looked = self._emptied = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._pricing: list[subprocess.Popen[bytes]] = []

    async def start(self) -> None:
        """Find the runs of the store and drive those that are not over."""
        await self.thread(clock_watch.start, self.database)
        self.clock_watch.told()
        self.epoch = await self.thread(facts.epoch_of, self.database)
        self.key = await self.thread(facts.key_of, self.database)
        await self._look()
        self._spawn(self._keep_looking())

    async def stop(self) -> None:
        """Let everyone who waits go, and leave the store as it is."""
        self.release_waiters()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for process in self._pricing:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=5)
        self._threads.shutdown(wait=True)
        self._measuring.shutdown(wait=True, cancel_futures=True)
        self.database.checkpoint()
        self.database.close()

    def release_waiters(self) -> None:
        """Answer every long poll now."""
        self.stopping.set()
        for desk in self.desks.values():
            desk.wake()

    async def thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run what waits for the store on a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, function, *arguments)

    async def ask(self, function: Callable[..., T], *arguments: Any) -> T:
        """What a request wants of the store, which may be silent."""
        return await patiently(self.thread(function, *arguments))

    async def open(self, campaign: Campaign) -> Desk:
        """Open the next run of a campaign, or find the one that is open."""

        def opened() -> Terms:
            return opening.open_run(self.database, campaign, folder=self.settings.folder)

        terms = await self.thread(opened)
        return await self._desk(terms)

    async def find(self, run: str) -> Desk | None:
        """A run that another worker may have opened since this one last looked."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._looked > LOOK_AGAIN_S:
            self._looked = loop.time()
            await patiently(self._look())
        return self.desks.get(run)

    async def end(self, desk: Desk) -> None:
        """Stop a run before its next release, and the runs that would follow it."""
        was_over = desk.is_over
        standing = await self.thread(advancing.stop, self.database, desk.terms, desk.standing)
        standing = await self.thread(advancing.finish, self.database, desk.terms, standing)
        desk.moved(standing)
        desk.publish(standing)
        if not was_over and standing.stage.ending is Ending.STOPPED:
            closed = standing.stage.closed
            logs.event("stopped", campaign=desk.terms.id, slots_closed=closed)

    async def _desk(self, terms: Terms) -> Desk:
        if terms.id in self.desks:
            return self.desks[terms.id]

        def standing() -> Standing:
            with self.database.reading() as connection:
                return records.load_standing(connection, terms)

        found = await self.thread(standing)
        if terms.id in self.desks:
            return self.desks[terms.id]
        desk = self.desks[terms.id] = Desk(
            terms,
            found,
            enrolments=self._batch(terms, taking.take_enrolments),
            check_ins=self._batch(terms, taking.take_check_ins),
            reports=self._batch(terms, taking.take_reports),
        )
        await self._read_choice(desk)
        await self._refresh(desk)
        if not desk.is_over:
            self._spawn(self._drive(desk))
            self._price(desk)
        elif not desk.is_last:  # killed before the next run was opened
            self._spawn(self._open_next(desk))
        return desk

    def _batch(self, terms: Terms, take: Callable[..., Any]) -> Batch[Any, Any]:
        def commit(messages: Any) -> Any:
            return taking.again(lambda: take(self.database, terms, messages))

        return Batch(commit, threads=self._threads, seen=self._committed)

    def _committed(self, writes: int, seconds: float) -> None:
        self.metrics.committed(writes=writes, seconds=seconds)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _drive(self, desk: Desk) -> None:
        """Move one run by the clock until it is over, whatever happens to the database."""
        patience = 0.1
        while not desk.is_over:
            try:
                await self._sleep_until_due(desk)
                await self._advance(desk)
                patience = 0.1
            except Exception as error:  # whatever it is, the clock must go on
                logs.failure(error)
                await asyncio.sleep(patience)
                patience = min(2 * patience, LONGEST_SLEEP_S)
        await self._publish(desk, desk.standing)
        await self.thread(self.database.checkpoint)
        logs.event("over", campaign=desk.terms.id, status=desk.status)
        await self._open_next(desk)

    async def _sleep_until_due(self, desk: Desk) -> None:
        while True:
            moment = advancing.due(desk.terms, desk.standing.stage)
            left = 0.0 if moment is None else moment - self.database.now()
            if moment is not None and self.database.clock.holds:
                await asyncio.sleep(LOOK_S)  # another worker's clock may be right
                return
            if left <= 0.0:
                return
            await asyncio.sleep(min(left, LONGEST_SLEEP_S))

    async def _advance(self, desk: Desk) -> None:
        before = desk.standing
        if advancing.due(desk.terms, before.stage) is None:
            standing = await self.thread(advancing.finish, self.database, desk.terms, before)
        else:
            began = self.database.now()
            late_s = began - (advancing.due(desk.terms, before.stage) or began)
            standing = await self.thread(advancing.advance, self.database, desk.terms, before)
            if standing.closed_here:
                self.metrics.slot_closed(seconds=self.database.now() - began, late_s=late_s)
        desk.moved(standing)
        await self._read_choice(desk)
        if standing.ledger.head != before.ledger.head:
            self._spawn(self._publish(desk, standing))
            await self._released(desk)

    async def _read_choice(self, desk: Desk) -> None:
        """Who was chosen, once it is durable."""
        if desk.needs_choice:
            choice = await self.thread(advancing.read_choice, self.database, desk.terms.id)
            desk.moved(desk.standing, choice)

    async def _publish(self, desk: Desk, standing: Standing) -> None:
        """Show what is durable at its time: an early release would tell of a slot quick to close.

        Reports take time to add up and dummies to draw, and nothing public tells how many there
        were (invariant 7).
        """
        shown = desk.terms.shown(standing.stage.closed)
        await asyncio.sleep(max(0.0, shown - self.database.now()))
        desk.publish(standing)

    async def _released(self, desk: Desk) -> None:
        """After a release is durable: the witness, the curve."""
        self._measure_if_due(desk)
        witness = self._witness
        if witness is not None:
            await self.thread(lambda: witness.saw(seen_of(self.database)))
        loop = asyncio.get_running_loop()
        if loop.time() - self._emptied > EMPTY_S:
            self._emptied = loop.time()
            await self.thread(self.database.checkpoint)

    def _measure_if_due(self, desk: Desk) -> None:
        closed = desk.standing.stage.closed
        measured = desk.curve and desk.curve[-1][0] >= closed
        if not measured and curve.is_measured(desk.terms.rules.slots, closed=closed):
            self._spawn(self._measure(desk))

    async def _measure(self, desk: Desk) -> None:
        closed, model = desk.standing.stage.closed, desk.standing.learner.model

        def measure() -> None:
            holdout = self._holdout(desk)
            found = None if holdout is None else holdout.measure(model)
            if found:
                progress.add_point(self.database, desk.terms.id, slots=closed, metrics=found)

        try:
            await asyncio.get_running_loop().run_in_executor(self._measuring, measure)
            await self._refresh(desk)
        except Exception as error:  # a curve is a courtesy: the campaign goes on without it
            logs.failure(error)

    def _holdout(self, desk: Desk) -> Holdout | None:
        task = desk.terms.campaign.task
        if desk.terms.seal not in self._holdouts and task is not None:
            self._holdouts[desk.terms.seal] = Holdout.of(task, folder=self.settings.folder)
        return self._holdouts.get(desk.terms.seal)

    async def _open_next(self, desk: Desk) -> None:
        while not desk.is_last:
            try:
                following = await self.open(desk.terms.campaign)
            except Exception as error:  # the store may be away
                logs.failure(error)
                await asyncio.sleep(LOOK_S)
                continue
            desk.no_more = following is desk  # the budget pays for no slot of another run
            desk.next_run = None if desk.no_more else following.terms.id
            desk.wake()
            return

    async def _refresh(self, desk: Desk) -> None:
        """Read prices and curve again."""
        last = desk.curve[-1][0] if desk.curve else -1
        prices = await self.thread(progress.load_prices, self.database, desk.terms.id)
        points = await self.thread(
            lambda: progress.load_curve(self.database, desk.terms.id, after=last)
        )
        if points or prices != desk.prices:
            desk.curve += [
                point for point in points if not desk.curve or point[0] > desk.curve[-1][0]
            ]
            desk.prices = prices
            desk.wake()

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self._pricing = [process for process in self._pricing if process.poll() is None]
            try:
                await self._look_at_the_clock()
                await self._look()
                for desk in list(self.desks.values()):
                    if not desk.is_over or len(desk.curve) == 0:
                        await self._refresh(desk)
                await self._read_epoch()
            except Exception as error:  # it looks again
                logs.failure(error)

    async def _look_at_the_clock(self) -> None:
        """Hold while the calendar has jumped, and say so."""
        await self.thread(clock_watch.look, self.database)
        if self.clock_watch.told():
            for desk in self.desks.values():
                desk.wake()

    async def _read_epoch(self) -> None:
        """Another coordinator may have been started on the store."""
        epoch = await self.thread(facts.epoch_of, self.database)
        if epoch != self.epoch:
            self.epoch = epoch
            for desk in self.desks.values():
                desk.wake()

    async def _look(self) -> None:
        """Find runs that other workers have opened."""

        def everything() -> list[Terms]:
            with self.database.reading() as connection:
                return records.unknown_terms(connection, set(self.desks))

        for terms in await self.thread(everything):
            await self._desk(terms)
            for other in self.desks.values():
                same = other.terms.seal == terms.seal
                if same and other.terms.number == terms.number - 1:
                    other.next_run = terms.id

    def _price(self, desk: Desk) -> None:
        """Price the marks of a run beside everything else."""
        if len(desk.prices) >= len(pricing.marks(desk.terms)):
            return
        self._pricing.append(
            subprocess.Popen(
                [sys.executable, "-m", "checkins.service.pricing", desk.terms.id],
                env={**os.environ, pricing.STORE: self.settings.store},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )
