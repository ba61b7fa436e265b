"""The runner of one process: it recovers the runs of the store, and closes slots by the clock.

The runner has a ``LiveRun`` for each run. For each run that is not over, it waits until the next
transition is due, commits the transition unless another worker has, and wakes waiting requests.

Crash recovery: a coordinator starts in the same way after a stop and after a crash. It closes every
slot that ended meanwhile. Reports that were durable in time count, and dummy reports replace all
missing reports. If a crash prevented the opening of a campaign's next run, that run is opened.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from checkins.campaign import Campaign
from checkins.ledger.signature import SigningKey
from checkins.protocol.server import Ending
from checkins.service import logs
from checkins.service.metrics import Metrics
from checkins.service.runs import clock_jumps, intake, learning_curve, opening, slot_transitions
from checkins.service.runs.clock_jumps import ClockJumpReporter
from checkins.service.runs.group_commit import GroupCommit
from checkins.service.runs.live_run import LiveRun
from checkins.service.runs.load_shedding import SavingTimes, SlotLoad
from checkins.service.runs.memory_limits import MAX_RECEIVED_BYTES, MemoryBudget, reports_per_batch
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
from checkins.service.store.rollback_detection import ProgressFile, progress_of
from checkins.service.store.run_state import RunSnapshot, RunSpec
from checkins.service.workers import epsilon_process
from checkins.service.workers.background_tasks import BackgroundTasks, DaemonThreads, Timeouts
from checkins.service.workers.epsilon_process import EpsilonProcesses

P = ParamSpec("P")
T = TypeVar("T")
STORE_THREADS = 8  # number of threads that call the store
MAX_MESSAGES_PER_COMMIT = 500  # largest number of messages in one transaction
MAX_GATHER_S = 0.02  # longest time in seconds in which a transaction waits for more messages
GATHERS_PER_SLOT = 50  # shortest slot in which it waits so long, as a multiple of this time
POLL_INTERVAL_S = 1.0  # seconds between two queries for what other workers have saved
MIN_SEARCH_INTERVAL_S = 0.2  # shortest time between two queries for an unknown run id
STOP_GRACE_S = 3.0
"""Seconds after the signal to stop at which requests that wait for the store get ``busy``."""
LAST_COMMITS_TIMEOUT_S = 2.0  # seconds that open transactions may take at the end of a stop
EMPTY_WAL_INTERVAL_S = 10.0  # seconds between two attempts to empty SQLite's write-ahead log
WAL_WARNING_AFTER_S = 60.0  # seconds that the log may stay filled before a warning
MAX_SLEEP_S = 5.0  # longest sleep in seconds, because the clock may be adjusted meanwhile


class Runner:
    """The live runs of one process, and the background tasks that advance them."""

    def __init__(
        self, settings: Settings, database: Database, epsilon_processes: EpsilonProcesses
    ) -> None:
        self.settings = settings
        self.database = database
        self.metrics = Metrics()
        self.clock_jumps = ClockJumpReporter(database, self.metrics)
        self.epoch = 0  # number of starts of a coordinator on the store
        self.signing_key = (
            None if settings.signing_key is None else SigningKey.read(settings.signing_key)
        )
        self.secret_key = b""  # the tokens of clients are derived from it
        self.live_runs: dict[str, LiveRun] = {}
        self.stopping = asyncio.Event()
        self.listeners = 0  # number of open streams of server-sent events
        self.background_tasks = BackgroundTasks(self.metrics.count_task_restart)
        self.store_answered_at: float | None = None
        """When the store last answered, in the event loop's time; None before the start."""
        self._threads = DaemonThreads(STORE_THREADS, name="store")
        self._measuring_thread = learning_curve.MeasuringThread(database, folder=settings.folder)
        self.report_memory = MemoryBudget(MAX_RECEIVED_BYTES)
        self._opening_queue = OpeningQueue()
        self.progress_file_error: str | None = None
        """Why the last write of the progress file (``rollback_detection.py``) failed, or None."""
        self._progress_file = (
            None if settings.progress_file is None else ProgressFile(settings.progress_file)
        )
        self._searched_at = 0.0  # when ``find`` last queried the store, in the loop's time
        self._timeouts = Timeouts()
        self._epsilon_processes = epsilon_processes

    async def start(self) -> None:
        """Read the runs of the store, and start a background task for each that is not over.

        If PostgreSQL accepts no connections, wait until it does, or until the service stops.
        """
        logs.on_lost_line(self.metrics.count_lost_log_line)
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
        deadline = loop.time() + START_TIMEOUT_S
        while True:
            try:
                await self._recover()
                break
            except StoreError as error:
                if self.database.is_sqlite or not is_unavailable(error) or loop.time() > deadline:
                    raise
                logs.repeated_warning(
                    "waiting-for-store", store="postgresql", seconds=START_TIMEOUT_S
                )
            await asyncio.sleep(CONNECT_PAUSE_S)
        self.background_tasks.supervise("watch", self._poll)
        if self.database.is_sqlite:
            self.background_tasks.supervise("checkpoint", self._keep_wal_empty)

    async def _recover(self) -> None:
        await self.in_thread(clock_jumps.start, self.database)
        self.clock_jumps.report_changes()
        self.epoch = await self.in_thread(metadata.epoch_of, self.database)
        self.secret_key = await self.in_thread(metadata.secret_key_of, self.database)
        await self._find_new_runs()

    async def stop(self) -> None:
        """Answer all waiting requests, stop the background tasks and close the store.

        If the store does not answer in time, its open transactions may still become durable. No
        client was told that these transactions are durable.
        """
        self.release_waiters()
        await self.background_tasks.stop()
        self._epsilon_processes.stop()
        self._opening_queue.close()
        deadline = time.monotonic() + LAST_COMMITS_TIMEOUT_S
        all_done = self._threads.stop(timeout_s=LAST_COMMITS_TIMEOUT_S)
        if not (self._measuring_thread.stop(timeout_s=deadline - time.monotonic()) and all_done):
            logs.warning("store-silent", seconds=LAST_COMMITS_TIMEOUT_S)
            return
        self.database.checkpoint()
        self.database.close()

    def release_waiters(self) -> None:
        """Answer every long poll now, and requests that wait for the store after a grace period."""
        if not self.stopping.is_set():
            asyncio.get_running_loop().call_later(STOP_GRACE_S, self._refuse_waiting)
        self.stopping.set()
        for live_run in self.live_runs.values():
            live_run.wake()

    def _refuse_waiting(self) -> None:
        self._timeouts.expire_all()
        for live_run in self.live_runs.values():
            for group_commit in live_run.group_commits:
                group_commit.refuse_waiting()

    async def in_thread(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run a function on a thread, because it waits for the store."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, partial(function, *args, **kwargs))

    async def in_thread_or_busy(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run a function on a thread. Raise ``busy`` if the store does not answer in time."""
        return await self._timeouts.wait(self.in_thread(function, *args, **kwargs))

    async def read_store(
        self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a query that only reads. Raise ``busy`` if the store does not answer in time."""
        return await self.in_thread_or_busy(self.database.read, query, *args, **kwargs)

    async def parse_campaign(self, text: bytes) -> Campaign:
        """Parse the text of a posted campaign file."""
        return await self._opening_queue.run(opening.parse_posted_campaign, text)

    async def open(self, campaign: Campaign, *, operator: str | None = None) -> LiveRun:
        """Open the next run of a campaign, or return the run that is open.

        ``operator`` is who asked for it, for the log of actions.
        """
        folder, keys = self.settings.folder, self.settings.enrolment.file_keys
        open_run = partial(opening.open_run, folder=folder, allow_list=keys, operator=operator)
        return await self._live_run(
            await self._opening_queue.run(open_run, self.database, campaign)
        )

    async def find(self, run: str) -> LiveRun | None:
        """Return the live run with id ``run``, or None if no worker has opened such a run."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._searched_at > MIN_SEARCH_INTERVAL_S:
            self._searched_at = loop.time()
            await self._timeouts.wait(self._find_new_runs())
        return self.live_runs.get(run)

    async def stop_run(self, live_run: LiveRun, *, operator: str) -> None:
        """Stop a run before its next release. No further run of its campaign is opened."""
        was_over = live_run.is_over
        stop = partial(slot_transitions.stop, operator=operator)
        stopped = await self._transition(stop, live_run, live_run.snapshot)
        snapshot = await self._transition(slot_transitions.finish, live_run, stopped)
        live_run.update(snapshot)
        live_run.publish(snapshot)
        if not was_over and snapshot.state.ending is Ending.STOPPED:
            closed = snapshot.state.closed
            logs.event("stopped", campaign=live_run.spec.id, slots_closed=closed)

    async def _transition(
        self, step: Callable[..., RunSnapshot], live_run: LiveRun, last_known: RunSnapshot
    ) -> RunSnapshot:
        return await self.in_thread(step, self.database, live_run.spec, last_known)

    async def _live_run(self, spec: RunSpec) -> LiveRun:
        """Return the live run of a specification. If it is new here, read it from the store."""
        if spec.id in self.live_runs:
            return self.live_runs[spec.id]
        snapshot = await self.in_thread(self.database.read, run_state.load_snapshot, spec)
        load = SlotLoad(spec.rules, spec.run_schedule)
        live_run = LiveRun(
            spec,
            snapshot,
            load=load,
            enrolments=self._group_commit(spec, intake.take_enrolments, load.enrolments),
            check_ins=self._group_commit(spec, intake.take_check_ins, load.check_ins),
            reports=self._group_commit(
                spec, intake.take_reports, load.reports, limit=reports_per_batch(spec.dimension)
            ),
            retries=self._group_commit(spec, intake.find_receipts, None),
        )
        await self._refresh(live_run)
        await self._read_choice(live_run)
        if spec.id in self.live_runs:
            return self.live_runs[spec.id]
        self.live_runs[spec.id] = live_run  # nothing can fail before its clock task starts
        if not live_run.is_over:
            self.background_tasks.supervise(
                "clock", lambda: self._run_until_over(live_run), name=spec.id
            )
            if len(live_run.epsilons) < len(epsilon_process.slot_counts(spec)):
                self._epsilon_processes.start(spec.id)
        elif not live_run.is_last:  # a crash came before the next run was opened
            self.background_tasks.supervise(
                "next-run", lambda: self._open_next(live_run), name=spec.id
            )
        return live_run

    def _group_commit(
        self,
        spec: RunSpec,
        save: Callable[..., Any],
        times: SavingTimes | None,
        *,
        limit: int = MAX_MESSAGES_PER_COMMIT,
    ) -> GroupCommit[Any, Any]:
        """Return a group commit that calls ``save``, and records its times if there are any."""

        def commit(messages: Any) -> Any:
            return retry_on_conflict(lambda: save(self.database, spec, messages))

        return GroupCommit(
            commit,
            threads=self._threads,
            max_messages=min(limit, MAX_MESSAGES_PER_COMMIT),
            on_commit=None if times is None else self.metrics.record_commit,
            on_idle=None if times is None else times.record,
            clock=self.database.now,
            gather_s=min(MAX_GATHER_S, spec.run_schedule.slot_s / GATHERS_PER_SLOT),
        )

    async def _run_until_over(self, live_run: LiveRun) -> None:
        """Make every transition of a run when it is due, until the run is over."""
        run = live_run.spec.id
        while not live_run.is_over:
            await self._read_choice(live_run)
            await self._sleep_until_due(live_run)
            await self._advance(live_run)
            self.background_tasks.record_success("clock", name=run)
        await self._publish(live_run, live_run.snapshot)
        logs.event("over", campaign=run, status=live_run.status)
        self.background_tasks.supervise("next-run", lambda: self._open_next(live_run), name=run)

    async def _sleep_until_due(self, live_run: LiveRun) -> None:
        while True:
            due_at = slot_transitions.next_due_time(live_run.spec, live_run.snapshot.state)
            remaining_s = 0.0 if due_at is None else due_at - self.database.now()
            if due_at is not None and self.database.clock.is_holding:
                await asyncio.sleep(POLL_INTERVAL_S)  # another worker's clock may not hold
                return
            if remaining_s <= 0.0:
                return
            await asyncio.sleep(min(remaining_s, MAX_SLEEP_S))

    async def _advance(self, live_run: LiveRun) -> None:
        """Make the next transition of a run, and schedule what follows from a new release."""
        before = live_run.snapshot
        due_at = slot_transitions.next_due_time(live_run.spec, before.state)
        if due_at is None:
            snapshot = await self._transition(slot_transitions.finish, live_run, before)
        else:
            started_at = self.database.now()
            snapshot = await self._transition(slot_transitions.advance, live_run, before)
            if snapshot.closed_by_this_process:
                took_s = self.database.now() - started_at
                self.metrics.record_slot_closed(seconds=took_s, lateness_s=started_at - due_at)
        live_run.update(snapshot)
        await self._read_choice(live_run)
        if snapshot.ledger.head != before.ledger.head:
            name = f"{live_run.spec.id} {snapshot.ledger.entries}"
            self.background_tasks.supervise(
                "publish", lambda: self._publish(live_run, snapshot), name=name
            )
            if learning_curve.should_measure(live_run.spec, snapshot, live_run.curve):
                self.background_tasks.run_once(self._measure_model(live_run))
            await self.write_progress_file()

    async def _read_choice(self, live_run: LiveRun) -> None:
        """Read which clients were chosen, if clients were chosen and this was not read yet."""
        if live_run.choice_is_unread:
            run = live_run.spec.id
            choice = await self.in_thread(slot_transitions.read_choice, self.database, run)
            live_run.update(live_run.snapshot, choice)

    async def _publish(self, live_run: LiveRun, snapshot: RunSnapshot) -> None:
        """Make a durable release public at its scheduled time, not earlier.

        How long closing a slot takes depends on the number of reports, so a release right after the
        closing would reveal that number (invariant 7).
        """
        public_at = live_run.spec.run_schedule.releases(snapshot.state.closed)
        await asyncio.sleep(max(0.0, public_at - self.database.now()))
        live_run.publish(snapshot)

    async def write_progress_file(self) -> None:
        """Write the progress of the store. After a failure, ``_poll`` tries again."""
        progress_file = self._progress_file
        if progress_file is None:
            return
        try:
            await self.in_thread(lambda: progress_file.record(progress_of(self.database)))
            self.progress_file_error = None
        except OSError as error:
            self.progress_file_error = f"the progress file cannot be written: {error.strerror}"
            logs.failure(error)

    async def _measure_model(self, live_run: LiveRun) -> None:
        try:
            await self._measuring_thread.measure(live_run.spec, live_run.snapshot)
            await self._refresh(live_run)
        except Exception as error:  # the run goes on without this point of its learning curve
            logs.failure(error)

    async def _open_next(self, live_run: LiveRun) -> None:
        if live_run.is_last:
            return
        next_run = await self.open(live_run.spec.campaign)
        live_run.budget_is_spent = next_run is live_run  # the budget allows no further run
        live_run.next_run = None if live_run.budget_is_spent else next_run.spec.id
        live_run.wake()

    async def _refresh(self, live_run: LiveRun) -> None:
        """Read new epsilons and new points of the learning curve from the store."""
        run, curve = live_run.spec.id, live_run.curve
        epsilons = await self.in_thread(run_state.load_epsilons, self.database, run)
        last_slot = curve[-1][0] if curve else -1
        points = await self.in_thread(run_state.load_curve, self.database, run, after=last_slot)
        if points or epsilons != live_run.epsilons:
            curve += [point for point in points if not curve or point[0] > curve[-1][0]]
            live_run.epsilons = epsilons
            live_run.wake()

    async def _poll(self) -> None:
        """Compare the clocks and read what other workers have saved, once per interval."""
        while True:
            await asyncio.sleep(POLL_INTERVAL_S)
            self._epsilon_processes.remove_ended()
            await self._check_clock()
            await self._find_new_runs()
            for live_run in list(self.live_runs.values()):
                if not live_run.is_over or len(live_run.curve) == 0:
                    await self._refresh(live_run)
            if self.progress_file_error is not None:
                await self.write_progress_file()
            self.background_tasks.record_success("watch")

    async def _check_clock(self) -> None:
        """Compare the clocks, and read the epoch, which another coordinator may have increased."""
        await self.in_thread(clock_jumps.compare_clocks, self.database)
        previous, self.epoch = self.epoch, await self.in_thread(metadata.epoch_of, self.database)
        if self.clock_jumps.report_changes() or self.epoch != previous:
            for live_run in self.live_runs.values():
                live_run.wake()

    async def _find_new_runs(self) -> None:
        """Add the runs that other workers have opened."""
        known_ids = set(self.live_runs)
        new_specs = await self.in_thread(self.database.read, run_state.load_specs_except, known_ids)
        self.store_answered_at = asyncio.get_running_loop().time()
        for spec in new_specs:
            await self._live_run(spec)
            for other in self.live_runs.values():
                if other.spec.seal == spec.seal and other.spec.number == spec.number - 1:
                    other.next_run = spec.id

    async def _keep_wal_empty(self) -> None:
        """Empty SQLite's write-ahead log regularly, because it still contains deleted rows.

        Writers do not wait for this. While a reader prevents it, it is tried again every second.
        """
        loop = asyncio.get_running_loop()
        emptied_at = loop.time()
        while True:
            await asyncio.sleep(POLL_INTERVAL_S)
            is_due = loop.time() - emptied_at >= EMPTY_WAL_INTERVAL_S
            is_empty = self.database.wal_bytes == 0
            if is_empty or (is_due and await self.in_thread(self.database.checkpoint)):
                emptied_at = loop.time()
            elif loop.time() - emptied_at >= WAL_WARNING_AFTER_S:
                logs.repeated_warning("log-held-by-reader", store="sqlite")
            self.background_tasks.record_success("checkpoint")
