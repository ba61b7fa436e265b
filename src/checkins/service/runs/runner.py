"""The runner of one process: it recovers the runs of the store, and closes slots by the clock.

It has a ``LiveRun`` for each run. If a run is not over, the runner waits until its next transition
is due, commits it unless another worker has, and wakes the waiting requests.

Crash recovery: a coordinator starts in the same way after a stop and after a crash. It closes every
slot that ended meanwhile. Reports that were durable in time count, and dummy reports replace all
missing ones. If the crash prevented the next run of a campaign, that run is opened.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from checkins.campaign import Campaign
from checkins.protocol.server import Ending
from checkins.service import logs
from checkins.service.metrics import Metrics
from checkins.service.runs import clock_watch, intake, learning_curve, opening, run_state_machine
from checkins.service.runs.clock_watch import ClockWatch
from checkins.service.runs.group_commit import GroupCommit
from checkins.service.runs.live_run import LiveRun
from checkins.service.runs.memory_limits import MOST_RECEIVED_BYTES, MemoryBudget, reports_per_batch
from checkins.service.runs.opening import OpeningQueue
from checkins.service.settings import Settings
from checkins.service.store import metadata, run_state
from checkins.service.store.database import (
    CONNECT_PAUSE_S,
    START_TIMEOUT_S,
    Connection,
    Database,
    StoreError,
    is_unavailable,
    retry_on_conflict,
)
from checkins.service.store.rollback_guard import RollbackGuard, progress_of
from checkins.service.store.run_state import RunSnapshot, RunSpec
from checkins.service.workers import epsilon_process
from checkins.service.workers.background_tasks import BackgroundTasks, DaemonThreads, Timeouts
from checkins.service.workers.epsilon_process import EpsilonProcesses

P = ParamSpec("P")
T = TypeVar("T")
THREADS = 8  # number of threads that call the store
MOST_PER_COMMIT = 500  # largest number of messages in one transaction
POLL_S = 1.0  # seconds between two queries for runs, epsilons and curves of other workers
LEAST_SEARCH_S = 0.2  # least seconds between two searches for a run that a request names
BUSY_AFTER_S = 3.0
"""Seconds after the request to stop at which requests that wait for the store get ``busy``."""
LAST_COMMITS_S = 2.0  # seconds that open transactions may take once everything else has stopped
EMPTY_WAL_S = 10.0  # seconds between two attempts to empty SQLite's write-ahead log
WAL_WARNING_S = 60.0  # seconds for which a reader may prevent that without a warning
LONGEST_SLEEP_S = 5.0  # most seconds between two readings of the clock, which may be adjusted


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
        self.store_answered_at: float | None = None
        """When the store last answered, in the event loop's time; None before the start."""
        self._threads = DaemonThreads(THREADS, name="store")
        self._curves = learning_curve.Measurements(database, folder=settings.folder)
        self.report_memory = MemoryBudget(MOST_RECEIVED_BYTES)
        self._opening_queue = OpeningQueue()
        self.witness_fault: str | None = None
        """Why the last write of the witness failed; None if it succeeded."""
        self._witness = None if settings.witness is None else RollbackGuard(settings.witness)
        self._searched_at = 0.0
        self._timeouts = Timeouts()
        self._epsilon_processes = epsilon_processes

    async def start(self) -> None:
        """Read the runs of the store, and start a background task for each that is not over.

        If PostgreSQL accepts no connections, wait until it does, or until asked to stop.
        """
        logs.count_lost(self.metrics.log_line_lost)
        starting = asyncio.ensure_future(self._start())
        stopping = asyncio.ensure_future(self.stopping.wait())
        try:
            await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
        finally:
            starting.cancel()
            stopping.cancel()

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + START_TIMEOUT_S
        while True:
            try:
                await self._recover()
                break
            except StoreError as error:
                if self.database.is_sqlite or not is_unavailable(error) or loop.time() > until:
                    raise
                logs.repeated("waiting-for-store", store="postgresql", seconds=START_TIMEOUT_S)
            await asyncio.sleep(CONNECT_PAUSE_S)
        self.background.supervise("watch", self._poll)
        if self.database.is_sqlite:
            self.background.supervise("checkpoint", self._keep_wal_empty)

    async def _recover(self) -> None:
        await self.in_thread(clock_watch.start, self.database)
        self.clock_watch.report_changes()
        self.epoch = await self.in_thread(metadata.epoch_of, self.database)
        self.key = await self.in_thread(metadata.key_of, self.database)
        await self._find_new_runs()

    async def stop(self) -> None:
        """Answer all waiting requests, stop the background tasks and close the store.

        If the store does not answer in time, its open transactions may still become durable. No
        client was told that they are.
        """
        self.release_waiters()
        await self.background.stop()
        self._epsilon_processes.end()
        self._opening_queue.close()
        until = time.monotonic() + LAST_COMMITS_S
        done = self._threads.stop(within_s=LAST_COMMITS_S)
        if not (self._curves.stop(within_s=until - time.monotonic()) and done):
            logs.warning("store-silent", seconds=LAST_COMMITS_S)
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
        self._timeouts.expire_all()
        for live_run in self.live_runs.values():
            for batch in (live_run.enrolments, live_run.check_ins, live_run.reports):
                batch.refuse_waiting()

    async def in_thread(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run a function that waits for the store on a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, partial(function, *args, **kwargs))

    async def in_thread_or_busy(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run a function on a thread. Raise ``busy`` if the store does not answer."""
        return await self._timeouts.wait(self.in_thread(function, *args, **kwargs))

    async def load(
        self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a query that only reads on a thread. Raise ``busy`` if the store does not answer."""
        return await self.in_thread_or_busy(self.database.read, query, *args, **kwargs)

    async def parse_campaign(self, text: bytes) -> Campaign:
        """Parse the text of a posted campaign file."""
        return await self._opening_queue.run(opening.posted_campaign, text)

    async def open(self, campaign: Campaign) -> LiveRun:
        """Open the next run of a campaign, or return the run that is open."""
        folder, listed = self.settings.folder, len(self.settings.enrolment.allow_list)
        open_run = partial(opening.open_run, folder=folder, listed=listed)
        return await self._live_run(
            await self._opening_queue.run(open_run, self.database, campaign)
        )

    async def find(self, run: str) -> LiveRun | None:
        """Return a run, which another worker may have opened, or None if it does not exist."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._searched_at > LEAST_SEARCH_S:
            self._searched_at = loop.time()
            await self._timeouts.wait(self._find_new_runs())
        return self.live_runs.get(run)

    async def stop_run(self, live_run: LiveRun) -> None:
        """Stop a run before its next release. No further run of its campaign is opened."""
        was_over = live_run.is_over
        stopped = await self._step(run_state_machine.stop, live_run, live_run.snapshot)
        snapshot = await self._step(run_state_machine.finish, live_run, stopped)
        live_run.update(snapshot)
        live_run.publish(snapshot)
        if not was_over and snapshot.state.ending is Ending.STOPPED:
            closed = snapshot.state.closed
            logs.event("stopped", campaign=live_run.spec.id, slots_closed=closed)

    async def _step(
        self, step: Callable[..., RunSnapshot], live_run: LiveRun, known: RunSnapshot
    ) -> RunSnapshot:
        return await self.in_thread(step, self.database, live_run.spec, known)

    async def _live_run(self, spec: RunSpec) -> LiveRun:
        """Return the live run of a specification. Read it from the store if it is new here."""
        if spec.id in self.live_runs:
            return self.live_runs[spec.id]
        snapshot = await self.in_thread(self.database.read, run_state.load_snapshot, spec)
        live_run = LiveRun(
            spec,
            snapshot,
            enrolments=self._batch(spec, intake.take_enrolments),
            check_ins=self._batch(spec, intake.take_check_ins),
            reports=self._batch(spec, intake.take_reports, most=reports_per_batch(spec.dimension)),
        )
        await self._refresh(live_run)
        await self._read_choice(live_run)
        if spec.id in self.live_runs:
            return self.live_runs[spec.id]
        self.live_runs[spec.id] = live_run  # no step until its clock task starts can fail
        if not live_run.is_over:
            self.background.supervise("clock", lambda: self._drive(live_run), name=spec.id)
            if len(live_run.epsilons) < len(epsilon_process.slot_counts(spec)):
                self._epsilon_processes.start(spec.id)
        elif not live_run.is_last:  # a crash came before the next run was opened
            self.background.supervise("next-run", lambda: self._open_next(live_run), name=spec.id)
        return live_run

    def _batch(
        self, spec: RunSpec, take: Callable[..., Any], *, most: int = MOST_PER_COMMIT
    ) -> GroupCommit[Any, Any]:
        def commit(messages: Any) -> Any:
            return retry_on_conflict(lambda: take(self.database, spec, messages))

        most, committed = min(most, MOST_PER_COMMIT), self.metrics.committed
        return GroupCommit(commit, threads=self._threads, most=most, on_commit=committed)

    async def _drive(self, live_run: LiveRun) -> None:
        """Make every transition of a run when it is due, until the run is over."""
        run = live_run.spec.id
        while not live_run.is_over:
            await self._read_choice(live_run)
            await self._sleep_until_due(live_run)
            await self._advance(live_run)
            self.background.succeeded("clock", name=run)
        await self._publish(live_run, live_run.snapshot)
        logs.event("over", campaign=run, status=live_run.status)
        self.background.supervise("next-run", lambda: self._open_next(live_run), name=run)

    async def _sleep_until_due(self, live_run: LiveRun) -> None:
        while True:
            moment = run_state_machine.due(live_run.spec, live_run.snapshot.state)
            left = 0.0 if moment is None else moment - self.database.now()
            if moment is not None and self.database.clock.holds:
                await asyncio.sleep(POLL_S)  # another worker's clock may not hold
                return
            if left <= 0.0:
                return
            await asyncio.sleep(min(left, LONGEST_SLEEP_S))

    async def _advance(self, live_run: LiveRun) -> None:
        before = live_run.snapshot
        due = run_state_machine.due(live_run.spec, before.state)
        if due is None:
            snapshot = await self._step(run_state_machine.finish, live_run, before)
        else:
            began = self.database.now()
            snapshot = await self._step(run_state_machine.advance, live_run, before)
            if snapshot.closed_here:
                self.metrics.slot_closed(seconds=self.database.now() - began, late_s=began - due)
        live_run.update(snapshot)
        await self._read_choice(live_run)
        if snapshot.ledger.head != before.ledger.head:
            name = f"{live_run.spec.id} {snapshot.ledger.entries}"
            self.background.supervise(
                "publish", lambda: self._publish(live_run, snapshot), name=name
            )
            if learning_curve.is_due(live_run.spec, snapshot, live_run.curve):
                self.background.run_once(self._measure(live_run))
            await self._write_witness()

    async def _read_choice(self, live_run: LiveRun) -> None:
        """Read which clients were chosen, if the choice is durable and not read yet."""
        if live_run.needs_choice:
            run = live_run.spec.id
            choice = await self.in_thread(run_state_machine.read_choice, self.database, run)
            live_run.update(live_run.snapshot, choice)

    async def _publish(self, live_run: LiveRun, snapshot: RunSnapshot) -> None:
        """Make a durable release public at its fixed time, not earlier.

        The time that closing a slot takes depends on the number of reports, so an earlier release
        would reveal that number (invariant 7).
        """
        public_at = live_run.spec.times.releases(snapshot.state.closed)
        await asyncio.sleep(max(0.0, public_at - self.database.now()))
        live_run.publish(snapshot)

    async def _write_witness(self) -> None:
        """Write the progress of the store to the witness. After a failure, try again later."""
        witness = self._witness
        if witness is None:
            return
        try:
            await self.in_thread(lambda: witness.record(progress_of(self.database)))
            self.witness_fault = None
        except OSError as error:
            self.witness_fault = f"the witness cannot be written: {error.strerror}"
            logs.failure(error)

    async def _measure(self, live_run: LiveRun) -> None:
        try:
            await self._curves.measure(live_run.spec, live_run.snapshot)
            await self._refresh(live_run)
        except Exception as error:  # the campaign goes on without this point of its curve
            logs.failure(error)

    async def _open_next(self, live_run: LiveRun) -> None:
        if live_run.is_last:
            return
        following = await self.open(live_run.spec.campaign)
        live_run.budget_is_spent = following is live_run  # the budget allows no further run
        live_run.next_run = None if live_run.budget_is_spent else following.spec.id
        live_run.wake()

    async def _refresh(self, live_run: LiveRun) -> None:
        """Read new epsilons and new points of the learning curve from the store."""
        run, curve = live_run.spec.id, live_run.curve
        epsilons = await self.in_thread(run_state.load_epsilons, self.database, run)
        last = curve[-1][0] if curve else -1
        points = await self.in_thread(run_state.load_curve, self.database, run, after=last)
        if points or epsilons != live_run.epsilons:
            curve += [point for point in points if not curve or point[0] > curve[-1][0]]
            live_run.epsilons = epsilons
            live_run.wake()

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            self._epsilon_processes.remove_ended()
            await self._check_clock()
            await self._find_new_runs()
            for live_run in list(self.live_runs.values()):
                if not live_run.is_over or len(live_run.curve) == 0:
                    await self._refresh(live_run)
            if self.witness_fault is not None:
                await self._write_witness()
            self.background.succeeded("watch")

    async def _check_clock(self) -> None:
        """Compare the clocks, and read the epoch, which another coordinator may have increased."""
        await self.in_thread(clock_watch.compare, self.database)
        before, self.epoch = self.epoch, await self.in_thread(metadata.epoch_of, self.database)
        if self.clock_watch.report_changes() or self.epoch != before:
            for live_run in self.live_runs.values():
                live_run.wake()

    async def _find_new_runs(self) -> None:
        """Add the runs that other workers have opened."""
        known = set(self.live_runs)
        new = await self.in_thread(self.database.read, run_state.load_specs_except, known)
        self.store_answered_at = asyncio.get_running_loop().time()
        for spec in new:
            await self._live_run(spec)
            for other in self.live_runs.values():
                if other.spec.seal == spec.seal and other.spec.number == spec.number - 1:
                    other.next_run = spec.id

    async def _keep_wal_empty(self) -> None:
        """Empty SQLite's write-ahead log regularly, because it still contains deleted rows.

        Writers do not wait for this. While a reader prevents it, it is tried again every second.
        """
        loop = asyncio.get_running_loop()
        emptied = loop.time()
        while True:
            await asyncio.sleep(POLL_S)
            due = loop.time() - emptied >= EMPTY_WAL_S
            empty = self.database.wal_bytes == 0
            if empty or (due and await self.in_thread(self.database.checkpoint)):
                emptied = loop.time()
            elif loop.time() - emptied >= WAL_WARNING_S:
                logs.repeated("log-held-by-reader", store="sqlite")
            self.background.succeeded("checkpoint")
