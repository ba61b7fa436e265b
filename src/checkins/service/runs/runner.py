"""Driving runs by the clock: the only place where clock, randomness and store meet the machines.

A runner keeps a ``LiveRun`` for each run and drives those that are not over: it waits until a
transition is due, makes it durable or finds that another worker did, and wakes waiting requests.
After a crash it finds every run in the store, and closes the slots that ended meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar

from checkins.campaign import Campaign
from checkins.protocol.server import Ending
from checkins.service import logs
from checkins.service.metrics import Metrics
from checkins.service.runs import (
    clock_watch,
    intake,
    learning_curve,
    opening,
    slot_transitions,
)
from checkins.service.runs.clock_watch import ClockWatch
from checkins.service.runs.group_commit import GroupCommit
from checkins.service.runs.live_run import LiveRun
from checkins.service.runs.memory_limits import ARRIVING_BYTES, MemoryBudget, batch_of
from checkins.service.runs.opening import OpeningQueue
from checkins.service.settings import Settings
from checkins.service.store import metadata, run_state
from checkins.service.store.database import (
    STARTING_PAUSE_S,
    STARTING_S,
    Database,
    StoreError,
    is_away,
    retry_on_conflict,
)
from checkins.service.store.rollback_guard import RollbackGuard, progress_of
from checkins.service.store.run_spec import RunSpec
from checkins.service.store.run_state import RunSnapshot
from checkins.service.workers import epsilon_process
from checkins.service.workers.background_tasks import BackgroundTasks
from checkins.service.workers.epsilon_process import EpsilonProcesses
from checkins.service.workers.threads import DaemonThreads, Timeouts

T = TypeVar("T")
THREADS = 8
"""Number of threads that wait for the store."""
MOST_TOGETHER = 500
"""Largest number of messages in one transaction."""
LOOK_S = 1.0
"""Seconds between two looks for runs, epsilons and curves of other workers."""
LOOK_AGAIN_S = 0.2
"""Least number of seconds between two looks for a run that a request names."""
BUSY_AFTER_S = 3.0
"""Seconds after the request to stop from which on those that wait for the store get ``busy``."""
LEAVE_STORE_S = 2.0
"""Seconds that open transactions may take once everything else has stopped."""
EMPTY_LOG_S = 10.0
"""Seconds after which SQLite's write-ahead log is emptied, while no reader prevents it."""
LOG_HELD_S = 60.0
"""Seconds for which a reader may prevent that before a warning is logged."""
LONGEST_SLEEP_S = 5.0
"""Most seconds between two looks at the clock, which may be adjusted meanwhile."""


class Runner:
    """The live runs of one process, and the background tasks that drive them."""

    def __init__(
        self, settings: Settings, database: Database, epsilon_processes: EpsilonProcesses
    ) -> None:
        self.settings = settings
        self.database = database
        self.metrics = Metrics()
        self.clock_watch = ClockWatch(database, self.metrics)
        self.epoch = 0
        self.key = b""
        self.live_runs: dict[str, LiveRun] = {}
        self.stopping = asyncio.Event()
        self.listeners = 0
        self.background = BackgroundTasks(self.metrics.task_restarted)
        self.answered: float | None = None
        """When the store last answered, on the clock of the event loop; None before the start."""
        self._threads = DaemonThreads(THREADS, name="store")
        self._curves = learning_curve.Measurements(database, folder=settings.folder)
        self.report_memory = MemoryBudget(ARRIVING_BYTES)
        self._opening_queue = OpeningQueue()
        self.witness_fault: str | None = None
        """Why the witness could not be written; None if it was."""
        self._witness = None if settings.witness is None else RollbackGuard(settings.witness)
        self._looked = 0.0
        self._timeouts = Timeouts()
        self._epsilon_processes = epsilon_processes

    async def start(self) -> None:
        """Find the runs of the store and drive those that are not over.

        Waits for a PostgreSQL that takes no connections; returns if asked to stop meanwhile.
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
                self.clock_watch.report_changes()
                self.epoch = await self.thread(metadata.epoch_of, self.database)
                self.key = await self.thread(metadata.key_of, self.database)
                await self._look()
                break
            except StoreError as error:
                if self.database.is_sqlite or not is_away(error) or loop.time() > until:
                    raise
                logs.repeated("waiting-for-store", store="postgresql", seconds=STARTING_S)
            await asyncio.sleep(STARTING_PAUSE_S)
        self.background.keep("watch", self._keep_looking)
        if self.database.is_sqlite:
            self.background.keep("checkpoint", self._keep_log_empty)

    async def stop(self) -> None:
        """Answer all waiting requests, stop the background tasks and close the store.

        A silent store is not waited for: what it was sent may still become durable, and no client
        was told that it is.
        """
        self.release_waiters()
        await self.background.stop()
        self._epsilon_processes.end()
        self._opening_queue.close()
        left = time.monotonic() + LEAVE_STORE_S
        done = self._threads.leave(within_s=LEAVE_STORE_S)
        done &= self._curves.leave(within_s=max(0.0, left - time.monotonic()))
        if not done:
            logs.warning("store-silent", seconds=LEAVE_STORE_S)
            return
        self.database.checkpoint()
        self.database.close()

    def release_waiters(self) -> None:
        """Answer every long poll now, and requests that wait for the store soon."""
        if not self.stopping.is_set():
            asyncio.get_running_loop().call_later(BUSY_AFTER_S, self._refuse_waiting)
        self.stopping.set()
        for live_run in self.live_runs.values():
            live_run.wake()

    def _refuse_waiting(self) -> None:
        self._timeouts.end()
        for live_run in self.live_runs.values():
            for batch in (live_run.enrolments, live_run.check_ins, live_run.reports):
                batch.refuse_waiting()

    async def thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a function that waits for the store on a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, function, *arguments)

    async def ask(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a function of a request on a thread; raise ``busy`` if the store is silent."""
        return await self._timeouts.wait(self.thread(function, *arguments))

    async def read(self, text: bytes) -> Campaign:
        """Parse the text of a posted campaign file."""
        return await self._opening_queue.run(opening.posted_campaign, text)

    async def open(self, campaign: Campaign) -> LiveRun:
        """Open the next run of a campaign, or return the one that is open."""
        listed = len(self.settings.enrolment.allow_list)

        def opened() -> RunSpec:
            folder = self.settings.folder
            return opening.open_run(self.database, campaign, folder=folder, listed=listed)

        return await self._live_run(await self._opening_queue.run(opened))

    async def find(self, run: str) -> LiveRun | None:
        """Return a run that another worker may have opened; None if there is none."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._looked > LOOK_AGAIN_S:
            self._looked = loop.time()
            await self._timeouts.wait(self._look())
        return self.live_runs.get(run)

    async def end(self, live_run: LiveRun) -> None:
        """Stop a run before its next release, and the runs that would follow it."""
        was_over = live_run.is_over
        snapshot = await self.thread(
            slot_transitions.stop, self.database, live_run.spec, live_run.snapshot
        )
        snapshot = await self.thread(
            slot_transitions.finish, self.database, live_run.spec, snapshot
        )
        live_run.update(snapshot)
        live_run.publish(snapshot)
        if not was_over and snapshot.state.ending is Ending.STOPPED:
            closed = snapshot.state.closed
            logs.event("stopped", campaign=live_run.spec.id, slots_closed=closed)

    async def _live_run(self, spec: RunSpec) -> LiveRun:
        if spec.id in self.live_runs:
            return self.live_runs[spec.id]

        def snapshot() -> RunSnapshot:
            with self.database.reading() as connection:
                return run_state.load_snapshot(connection, spec)

        found = await self.thread(snapshot)
        if spec.id in self.live_runs:
            return self.live_runs[spec.id]
        live_run = LiveRun(
            spec,
            found,
            enrolments=self._batch(spec, intake.take_enrolments),
            check_ins=self._batch(spec, intake.take_check_ins),
            reports=self._batch(spec, intake.take_reports, most=batch_of(spec.dimension)),
        )
        await self._read_choice(live_run)
        await self._refresh(live_run)
        if spec.id in self.live_runs:
            return self.live_runs[spec.id]
        self.live_runs[spec.id] = live_run  # nothing can fail between this and the clock of the run
        if not live_run.is_over:
            self.background.keep("clock", lambda: self._drive(live_run), name=spec.id)
            self._start_epsilon_process(live_run)
        elif not live_run.is_last:  # killed before the next run was opened
            self.background.keep("next-run", lambda: self._open_next(live_run), name=spec.id)
        return live_run

    def _batch(
        self, spec: RunSpec, take: Callable[..., Any], *, most: int = MOST_TOGETHER
    ) -> GroupCommit[Any, Any]:
        def commit(messages: Any) -> Any:
            return retry_on_conflict(lambda: take(self.database, spec, messages))

        most = min(most, MOST_TOGETHER)
        return GroupCommit(commit, threads=self._threads, most=most, seen=self._committed)

    def _committed(self, writes: int, seconds: float) -> None:
        self.metrics.committed(writes=writes, seconds=seconds)

    async def _drive(self, live_run: LiveRun) -> None:
        """Drive one run by the clock until it is over.

        If it fails, the background tasks start it again after a pause.
        """
        run = live_run.spec.id
        while not live_run.is_over:
            await self._read_choice(live_run)
            await self._sleep_until_due(live_run)
            await self._advance(live_run)
            self.background.works("clock", name=run)
        await self._publish(live_run, live_run.snapshot)
        logs.event("over", campaign=run, status=live_run.status)
        self.background.keep("next-run", lambda: self._open_next(live_run), name=run)

    async def _sleep_until_due(self, live_run: LiveRun) -> None:
        while True:
            moment = slot_transitions.due(live_run.spec, live_run.snapshot.state)
            left = 0.0 if moment is None else moment - self.database.now()
            if moment is not None and self.database.clock.holds:
                await asyncio.sleep(LOOK_S)  # another worker's clock may be right
                return
            if left <= 0.0:
                return
            await asyncio.sleep(min(left, LONGEST_SLEEP_S))

    async def _advance(self, live_run: LiveRun) -> None:
        before = live_run.snapshot
        if slot_transitions.due(live_run.spec, before.state) is None:
            snapshot = await self.thread(
                slot_transitions.finish, self.database, live_run.spec, before
            )
        else:
            began = self.database.now()
            late_s = began - (slot_transitions.due(live_run.spec, before.state) or began)
            snapshot = await self.thread(
                slot_transitions.advance, self.database, live_run.spec, before
            )
            if snapshot.closed_here:
                self.metrics.slot_closed(seconds=self.database.now() - began, late_s=late_s)
        live_run.update(snapshot)
        await self._read_choice(live_run)
        if snapshot.ledger.head != before.ledger.head:
            place = f"{live_run.spec.id} {snapshot.ledger.entries}"
            self.background.keep("publish", lambda: self._publish(live_run, snapshot), name=place)
            await self._released(live_run)

    async def _read_choice(self, live_run: LiveRun) -> None:
        """Read who was chosen, once that is durable."""
        if live_run.needs_choice:
            choice = await self.thread(
                slot_transitions.read_choice, self.database, live_run.spec.id
            )
            live_run.update(live_run.snapshot, choice)

    async def _publish(self, live_run: LiveRun, snapshot: RunSnapshot) -> None:
        """Make a durable release public at its time, not earlier.

        Adding reports and drawing dummies takes time: an early release would reveal how many there
        were (invariant 7).
        """
        shown = live_run.spec.times.releases(snapshot.state.closed)
        await asyncio.sleep(max(0.0, shown - self.database.now()))
        live_run.publish(snapshot)

    async def _released(self, live_run: LiveRun) -> None:
        """Write the witness and measure the model after a release is durable."""
        if learning_curve.is_due(live_run.spec, live_run.snapshot, live_run.curve):
            self.background.start(self._measure(live_run))
        await self._write_witness()

    async def _write_witness(self) -> None:
        """Write the progress of the store to the witness; if that fails, it is tried again."""
        witness = self._witness
        if witness is None:
            return
        try:
            await self.thread(lambda: witness.record(progress_of(self.database)))
            self.witness_fault = None
        except OSError as error:
            self.witness_fault = f"the witness cannot be written: {error.strerror}"
            logs.failure(error)

    async def _measure(self, live_run: LiveRun) -> None:
        try:
            await self._curves.measure(live_run.spec, live_run.snapshot)
            await self._refresh(live_run)
        except Exception as error:  # the campaign goes on without a curve
            logs.failure(error)

    async def _open_next(self, live_run: LiveRun) -> None:
        if live_run.is_last:
            return
        following = await self.open(live_run.spec.campaign)
        live_run.no_more = following is live_run  # the budget pays for no slot of another run
        live_run.next_run = None if live_run.no_more else following.spec.id
        live_run.wake()

    async def _refresh(self, live_run: LiveRun) -> None:
        """Read the epsilons and the learning curve again."""
        last = live_run.curve[-1][0] if live_run.curve else -1
        epsilons = await self.thread(run_state.load_epsilons, self.database, live_run.spec.id)
        points = await self.thread(
            lambda: run_state.load_curve(self.database, live_run.spec.id, after=last)
        )
        if points or epsilons != live_run.epsilons:
            live_run.curve += [
                point for point in points if not live_run.curve or point[0] > live_run.curve[-1][0]
            ]
            live_run.epsilons = epsilons
            live_run.wake()

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self._epsilon_processes.forget_those_that_ended()
            await self._look_at_the_clock()
            await self._look()
            for live_run in list(self.live_runs.values()):
                if not live_run.is_over or len(live_run.curve) == 0:
                    await self._refresh(live_run)
            await self._read_epoch()
            if self.witness_fault is not None:
                await self._write_witness()
            self.background.works("watch")

    async def _look_at_the_clock(self) -> None:
        """Compare the clocks; wake waiting requests if holding begins or ends."""
        await self.thread(clock_watch.look, self.database)
        if self.clock_watch.report_changes():
            for live_run in self.live_runs.values():
                live_run.wake()

    async def _read_epoch(self) -> None:
        """Read the epoch: another coordinator may have been started on the store."""
        epoch = await self.thread(metadata.epoch_of, self.database)
        if epoch != self.epoch:
            self.epoch = epoch
            for live_run in self.live_runs.values():
                live_run.wake()

    async def _look(self) -> None:
        """Find runs that other workers have opened."""

        def everything() -> list[RunSpec]:
            with self.database.reading() as connection:
                return run_state.load_unknown_specs(connection, set(self.live_runs))

        unknown = await self.thread(everything)
        self.answered = asyncio.get_running_loop().time()
        for spec in unknown:
            await self._live_run(spec)
            for other in self.live_runs.values():
                same = other.spec.seal == spec.seal
                if same and other.spec.number == spec.number - 1:
                    other.next_run = spec.id

    def _start_epsilon_process(self, live_run: LiveRun) -> None:
        """Start the process that computes the epsilons of a run, unless all are known."""
        if len(live_run.epsilons) < len(epsilon_process.marks(live_run.spec)):
            self._epsilon_processes.start(live_run.spec.id)

    async def _keep_log_empty(self) -> None:
        """Empty SQLite's write-ahead log, which keeps what a closed slot has erased.

        No writer waits for it. While a reader prevents it, it is tried again every second.
        """
        loop = asyncio.get_running_loop()
        emptied = loop.time()
        while True:
            await asyncio.sleep(LOOK_S)
            due = loop.time() - emptied >= EMPTY_LOG_S
            empty = self.database.log_bytes == 0
            if empty or (due and await self.thread(self.database.checkpoint)):
                emptied = loop.time()
            elif loop.time() - emptied >= LOG_HELD_S:
                logs.repeated("log-held-by-reader", store="sqlite")
            self.background.works("checkpoint")
