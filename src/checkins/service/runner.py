"""The only place where clock, dice and store meet the machines.

A runner keeps a desk for each run and drives those that are not over: it waits for the moment at
which something is due, asks the database to do it or to say that it is done, and tells everyone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy.exc import DBAPIError

from checkins.campaign import Campaign
from checkins.protocol.server import Ending
from checkins.service import (
    clock_watch,
    curve,
    intake,
    logs,
    opening,
    pricing,
    slot_transitions,
    write_ahead_log,
)
from checkins.service.background import BackgroundTasks
from checkins.service.batch import Batch
from checkins.service.clock_watch import ClockWatch
from checkins.service.curve import Holdout
from checkins.service.live_run import LiveRun
from checkins.service.memory import ARRIVING_BYTES, Room, batch_of
from checkins.service.metrics import Metrics
from checkins.service.openings import Openings
from checkins.service.rollback_guard import RollbackGuard, seen_of
from checkins.service.run_spec import RunSpec
from checkins.service.settings import Settings
from checkins.service.store import metadata, progress, records
from checkins.service.store.database import STARTING_PAUSE_S, STARTING_S, Database, is_away
from checkins.service.store.records import RunSnapshot
from checkins.service.threads import DaemonThreads
from checkins.service.timeouts import Timeouts

T = TypeVar("T")
THREADS = 8
MOST_TOGETHER = 500
"""Messages of one transaction."""
LOOK_S = 1.0
"""How often runs, prices and curves of other workers are looked for."""
LOOK_AGAIN_S = 0.2
"""Asking for runs that are not there makes no more work than this."""
BUSY_AFTER_S = 3.0
"""After being asked to stop, requests that still wait for the store are told to come again."""
LEAVE_STORE_S = 2.0
"""How long transactions under way may take once everything else has stopped."""
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
        self.desks: dict[str, LiveRun] = {}
        self.stopping = asyncio.Event()
        self.listeners = 0
        self.background = BackgroundTasks(self.metrics.task_restarted)
        self.answered: float | None = None
        """When the store last answered, on the clock of the event loop; None before the start."""
        self._threads = DaemonThreads(THREADS, name="store")
        self._measuring = DaemonThreads(1, name="curve")
        self.arriving = Room(ARRIVING_BYTES)
        self._openings = Openings()
        self.witness_fault: str | None = None
        """Why the witness is behind the store; None while it is not."""
        self._witness = None if settings.witness is None else RollbackGuard(settings.witness)
        self._holdouts: dict[str, Holdout | None] = {}
        self._looked = 0.0
        self._patience = Timeouts()
        self._pricing = pricing.Processes(settings.store)

    async def start(self) -> None:
        """Find the runs of the store and drive those that are not over.

        A PostgreSQL that is away is waited for. Asked to stop meanwhile, nothing is driven.
        """
        logs.count_lost(self.metrics.log_line_lost)
        starting = asyncio.ensure_future(self._start())
        stopping = asyncio.ensure_future(self.stopping.wait())
        try:
            await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
        finally:
            for task in (starting, stopping):
                task.cancel()

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + STARTING_S
        while True:
            try:
                await self.thread(clock_watch.start, self.database)
                self.clock_watch.told()
                self.epoch = await self.thread(metadata.epoch_of, self.database)
                self.key = await self.thread(metadata.key_of, self.database)
                await self._look()
                break
            except DBAPIError as error:
                if self.database.is_sqlite or not is_away(error) or loop.time() > until:
                    raise
                logs.repeated("waiting-for-store", store="postgresql", seconds=STARTING_S)
            await asyncio.sleep(STARTING_PAUSE_S)
        self.background.keep("watch", self._keep_looking)
        if self.database.is_sqlite:
            self.background.keep("checkpoint", lambda: write_ahead_log.keep_empty(self))

    async def stop(self) -> None:
        """Let everyone who waits go, and leave the store as it is.

        A store that is silent is not waited for: what was handed to it may still become durable,
        and nobody was told that it is.
        """
        self.release_waiters()
        await self.background.stop()
        self._pricing.end()
        self._openings.close()
        left = time.monotonic() + LEAVE_STORE_S
        done = self._threads.leave(within_s=LEAVE_STORE_S)
        done &= self._measuring.leave(within_s=max(0.0, left - time.monotonic()))
        if not done:
            logs.warning("store-silent", seconds=LEAVE_STORE_S)
            return
        self.database.checkpoint()
        self.database.close()

    def release_waiters(self) -> None:
        """Answer every long poll now, and those who wait for the store soon."""
        if not self.stopping.is_set():
            asyncio.get_running_loop().call_later(BUSY_AFTER_S, self._turn_away)
        self.stopping.set()
        for desk in self.desks.values():
            desk.wake()

    def _turn_away(self) -> None:
        self._patience.end()
        for desk in self.desks.values():
            for batch in (desk.enrolments, desk.check_ins, desk.reports):
                batch.turn_away()

    async def thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run what waits for the store on a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, function, *arguments)

    async def ask(self, function: Callable[..., T], *arguments: Any) -> T:
        """What a request wants of the store, which may be silent."""
        return await self._patience.wait(self.thread(function, *arguments))

    async def read(self, text: bytes) -> Campaign:
        """The campaign that a file describes."""
        return await self._openings.run(opening.posted_campaign, text)

    async def open(self, campaign: Campaign) -> LiveRun:
        """Open the next run of a campaign, or find the one that is open."""
        listed = len(self.settings.enrolment.allow_list)

        def opened() -> RunSpec:
            folder = self.settings.folder
            return opening.open_run(self.database, campaign, folder=folder, listed=listed)

        return await self._desk(await self._openings.run(opened))

    async def find(self, run: str) -> LiveRun | None:
        """A run that another worker may have opened since this one last looked."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._looked > LOOK_AGAIN_S:
            self._looked = loop.time()
            await self._patience.wait(self._look())
        return self.desks.get(run)

    async def end(self, desk: LiveRun) -> None:
        """Stop a run before its next release, and the runs that would follow it."""
        was_over = desk.is_over
        standing = await self.thread(
            slot_transitions.stop, self.database, desk.terms, desk.standing
        )
        standing = await self.thread(slot_transitions.finish, self.database, desk.terms, standing)
        desk.moved(standing)
        desk.publish(standing)
        if not was_over and standing.stage.ending is Ending.STOPPED:
            closed = standing.stage.closed
            logs.event("stopped", campaign=desk.terms.id, slots_closed=closed)

    async def _desk(self, terms: RunSpec) -> LiveRun:
        if terms.id in self.desks:
            return self.desks[terms.id]

        def standing() -> RunSnapshot:
            with self.database.reading() as connection:
                return records.load_standing(connection, terms)

        found = await self.thread(standing)
        if terms.id in self.desks:
            return self.desks[terms.id]
        desk = LiveRun(
            terms,
            found,
            enrolments=self._batch(terms, intake.take_enrolments),
            check_ins=self._batch(terms, intake.take_check_ins),
            reports=self._batch(terms, intake.take_reports, most=batch_of(terms.dimension)),
        )
        await self._read_choice(desk)
        await self._refresh(desk)
        if terms.id in self.desks:
            return self.desks[terms.id]
        self.desks[terms.id] = desk  # nothing can fail between this and the clock of the run
        if not desk.is_over:
            self.background.keep("clock", lambda: self._drive(desk), name=terms.id)
            self._price(desk)
        elif not desk.is_last:  # killed before the next run was opened
            self.background.keep("next-run", lambda: self._open_next(desk), name=terms.id)
        return desk

    def _batch(
        self, terms: RunSpec, take: Callable[..., Any], *, most: int = MOST_TOGETHER
    ) -> Batch[Any, Any]:
        def commit(messages: Any) -> Any:
            return intake.retry_on_conflict(lambda: take(self.database, terms, messages))

        most = min(most, MOST_TOGETHER)
        return Batch(commit, threads=self._threads, most=most, seen=self._committed)

    def _committed(self, writes: int, seconds: float) -> None:
        self.metrics.committed(writes=writes, seconds=seconds)

    async def _drive(self, desk: LiveRun) -> None:
        """Move one run by the clock until it is over.

        Whatever fails, it is begun again after a pause: the clock must go on.
        """
        run = desk.terms.id
        while not desk.is_over:
            await self._read_choice(desk)
            await self._sleep_until_due(desk)
            await self._advance(desk)
            self.background.works("clock", name=run)
        await self._publish(desk, desk.standing)
        logs.event("over", campaign=run, status=desk.status)
        self.background.keep("next-run", lambda: self._open_next(desk), name=run)

    async def _sleep_until_due(self, desk: LiveRun) -> None:
        while True:
            moment = slot_transitions.due(desk.terms, desk.standing.stage)
            left = 0.0 if moment is None else moment - self.database.now()
            if moment is not None and self.database.clock.holds:
                await asyncio.sleep(LOOK_S)  # another worker's clock may be right
                return
            if left <= 0.0:
                return
            await asyncio.sleep(min(left, LONGEST_SLEEP_S))

    async def _advance(self, desk: LiveRun) -> None:
        before = desk.standing
        if slot_transitions.due(desk.terms, before.stage) is None:
            standing = await self.thread(slot_transitions.finish, self.database, desk.terms, before)
        else:
            began = self.database.now()
            late_s = began - (slot_transitions.due(desk.terms, before.stage) or began)
            standing = await self.thread(
                slot_transitions.advance, self.database, desk.terms, before
            )
            if standing.closed_here:
                self.metrics.slot_closed(seconds=self.database.now() - began, late_s=late_s)
        desk.moved(standing)
        await self._read_choice(desk)
        if standing.ledger.head != before.ledger.head:
            place = f"{desk.terms.id} {standing.ledger.entries}"
            self.background.keep("publish", lambda: self._publish(desk, standing), name=place)
            await self._released(desk)

    async def _read_choice(self, desk: LiveRun) -> None:
        """Who was chosen, once it is durable."""
        if desk.needs_choice:
            choice = await self.thread(slot_transitions.read_choice, self.database, desk.terms.id)
            desk.moved(desk.standing, choice)

    async def _publish(self, desk: LiveRun, standing: RunSnapshot) -> None:
        """Show what is durable at its time: an early release would tell of a slot quick to close.

        Reports take time to add up and dummies to draw, and nothing public tells how many there
        were (invariant 7).
        """
        shown = desk.terms.shown(standing.stage.closed)
        await asyncio.sleep(max(0.0, shown - self.database.now()))
        desk.publish(standing)

    async def _released(self, desk: LiveRun) -> None:
        """After a release is durable: the witness, the curve."""
        self._measure_if_due(desk)
        await self._write_witness()

    async def _write_witness(self) -> None:
        """Tell the witness how far the store has come; what cannot be written is tried again."""
        witness = self._witness
        if witness is None:
            return
        try:
            await self.thread(lambda: witness.saw(seen_of(self.database)))
            self.witness_fault = None
        except OSError as error:
            self.witness_fault = f"the witness cannot be written: {error.strerror}"
            logs.failure(error)

    def _measure_if_due(self, desk: LiveRun) -> None:
        closed = desk.standing.stage.closed
        measured = desk.curve and desk.curve[-1][0] >= closed
        if not measured and curve.is_measured(desk.terms.rules.slots, closed=closed):
            self.background.start(self._measure(desk))

    async def _measure(self, desk: LiveRun) -> None:
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

    def _holdout(self, desk: LiveRun) -> Holdout | None:
        task = desk.terms.campaign.task
        if desk.terms.seal not in self._holdouts and task is not None:
            self._holdouts[desk.terms.seal] = Holdout.of(task, folder=self.settings.folder)
        return self._holdouts.get(desk.terms.seal)

    async def _open_next(self, desk: LiveRun) -> None:
        if desk.is_last:
            return
        following = await self.open(desk.terms.campaign)
        desk.no_more = following is desk  # the budget pays for no slot of another run
        desk.next_run = None if desk.no_more else following.terms.id
        desk.wake()

    async def _refresh(self, desk: LiveRun) -> None:
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
            self._pricing.forget_those_that_ended()
            await self._look_at_the_clock()
            await self._look()
            for desk in list(self.desks.values()):
                if not desk.is_over or len(desk.curve) == 0:
                    await self._refresh(desk)
            await self._read_epoch()
            if self.witness_fault is not None:
                await self._write_witness()
            self.background.works("watch")

    async def _look_at_the_clock(self) -> None:
        """Hold while the calendar has jumped, and say so."""
        await self.thread(clock_watch.look, self.database)
        if self.clock_watch.told():
            for desk in self.desks.values():
                desk.wake()

    async def _read_epoch(self) -> None:
        """Another coordinator may have been started on the store."""
        epoch = await self.thread(metadata.epoch_of, self.database)
        if epoch != self.epoch:
            self.epoch = epoch
            for desk in self.desks.values():
                desk.wake()

    async def _look(self) -> None:
        """Find runs that other workers have opened."""

        def everything() -> list[RunSpec]:
            with self.database.reading() as connection:
                return records.unknown_terms(connection, set(self.desks))

        unknown = await self.thread(everything)
        self.answered = asyncio.get_running_loop().time()
        for terms in unknown:
            await self._desk(terms)
            for other in self.desks.values():
                same = other.terms.seal == terms.seal
                if same and other.terms.number == terms.number - 1:
                    other.next_run = terms.id

    def _price(self, desk: LiveRun) -> None:
        """Price the marks of a run beside everything else."""
        if len(desk.prices) < len(pricing.marks(desk.terms)):
            self._pricing.start(desk.terms.id)
