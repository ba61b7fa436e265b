"""Planning requests, which a separate process answers, because a plan takes seconds to compute.

A question describes the campaign to plan; the answer is the plan. The process
(``workers.planning_process``) is started at the first question and ended after ``idle_timeout_s``
seconds without a question. It answers one question at a time. At most ``max_waiting`` questions
wait, and further questions get the problem ``busy``. If all clients that asked a question have
disconnected, the question is removed from the queue, or its computation is interrupted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from checkins.errors import ComputationFailed, InvalidValue
from checkins.service import logs
from checkins.service.http.problems import Problem
from checkins.service.workers.planning_process import INTERRUPT, Question

PROCESS_COMMAND = (sys.executable, "-m", "checkins.service.workers.planning_process")
PLAN_TIMEOUT_S = 60.0  # seconds that one plan may take, by the wall clock
INTERRUPT_TIMEOUT_S = 3.0  # seconds after which a process that ignores interrupts is killed
START_TIMEOUT_S = 60.0  # seconds that the process may take to start
IDLE_TIMEOUT_S = 300.0  # seconds without a question after which the process is ended
MAX_WAITING = 4  # largest number of questions in the queue
CACHE_SIZE = 64  # number of answers in the cache
MAX_ANSWER_BYTES = 4 * 1024 * 1024
INTERRUPT_SIGNALS = 30  # number of interrupts sent within INTERRUPT_TIMEOUT_S
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass(slots=True)
class _Job:
    """A question as JSON (``key``), its future answer, and how many requests wait for it."""

    key: str
    answer: asyncio.Future[bytes]
    waiting_count: int = 0
    abandoned: asyncio.Event = field(default_factory=asyncio.Event)  # set if no request waits


@dataclass(eq=False, kw_only=True)
class Planner:
    """Answers questions one at a time, and caches the latest answers."""

    command: Sequence[str] = PROCESS_COMMAND
    timeout_s: float = PLAN_TIMEOUT_S
    idle_timeout_s: float = IDLE_TIMEOUT_S
    max_waiting: int = MAX_WAITING
    _cache: OrderedDict[str, bytes] = field(default_factory=OrderedDict)
    _jobs: dict[str, _Job] = field(default_factory=dict)
    _queue: deque[_Job] = field(default_factory=deque)
    _question_arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None
    _process: asyncio.subprocess.Process | None = None

    async def answer(self, question: Question) -> bytes:
        """Return the plan as JSON.

        Raise InvalidValue if the question is not valid, and a Problem if the planner is busy or
        fails. If this call is cancelled and no other call waits for the same plan, the computation
        is interrupted.
        """
        key = json.dumps(question, sort_keys=True)
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        job = self._jobs.get(key)
        if job is None:
            if len(self._queue) >= self.max_waiting:
                raise Problem("busy", "other plans are being computed: ask again", retry_after=2)
            job = self._jobs[key] = _Job(key, asyncio.get_running_loop().create_future())
            self._queue.append(job)
            self.wake()
        job.waiting_count += 1
        try:
            return await asyncio.shield(job.answer)
        finally:
            job.waiting_count -= 1
            if job.waiting_count == 0 and not job.answer.done():
                self._abandon(job)

    def wake(self) -> None:
        """Start the process if it is not running, so that the next question need not wait."""
        self._question_arrived.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._answer_questions())

    async def close(self) -> None:
        """End the process, and answer all waiting requests with ``busy``."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for job in list(self._jobs.values()):
            self._refuse(job, Problem("busy", "the service is stopping", retry_after=5))
        await self._end_process()

    def _abandon(self, job: _Job) -> None:
        job.abandoned.set()
        job.answer.cancel()
        if self._jobs.get(job.key) is job:
            del self._jobs[job.key]
        with contextlib.suppress(ValueError):
            self._queue.remove(job)

    def _refuse(self, job: _Job, error: Exception) -> None:
        self._jobs.pop(job.key, None)
        if not job.answer.done():
            job.answer.set_exception(error)

    async def _answer_questions(self) -> None:
        """Answer questions until no question has arrived for ``idle_timeout_s`` seconds."""
        try:
            while True:
                self._question_arrived.clear()
                try:
                    await self._started_process()
                except Exception as error:  # ``_answer_job`` tries again, and answers ``failed``
                    logs.failure(error)
                while self._queue:
                    await self._answer_job(self._queue.popleft())
                async with asyncio.timeout(self.idle_timeout_s):
                    await self._question_arrived.wait()
        except TimeoutError:
            await self._end_process()
        if self._queue:  # a question arrived while the process was ending
            self._task = asyncio.create_task(self._answer_questions())

    async def _answer_job(self, job: _Job) -> None:
        """Compute the plan of a job, cache it, and hand it or an error to the waiting requests."""
        try:
            line = await self._compute_line(job)
            body = None if line is None else _parse_plan(line)
        except (InvalidValue, Problem) as error:
            self._refuse(job, error)
            return
        except Exception as error:  # the process did not start, died, or found a bug
            logs.failure(error)
            self._refuse(job, Problem("failed", "the plan could not be computed: see the log"))
            return
        if body is None:
            return
        self._cache[job.key] = body
        if len(self._cache) > CACHE_SIZE:
            self._cache.popitem(last=False)
        if self._jobs.get(job.key) is job:
            del self._jobs[job.key]
        if not job.answer.done():
            job.answer.set_result(body)

    async def _compute_line(self, job: _Job) -> bytes | None:
        """Return the line that the process wrote in answer to a question.

        Return None if the computation was interrupted because no request waits for it any more.
        Raise ``busy`` if the computation took too long.
        """
        process = await self._started_process()
        if job.abandoned.is_set():
            return None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{job.key}\n".encode())
        await process.stdin.drain()
        reading = asyncio.ensure_future(process.stdout.readline())
        abandoned = asyncio.ensure_future(job.abandoned.wait())
        try:
            await asyncio.wait(
                {reading, abandoned}, timeout=self.timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not reading.done():
                await _interrupt(process, reading)
            if reading.done() and (line := reading.result()):
                if not line.startswith(b'{"interrupted"'):
                    return line
                self._raise_unless_abandoned(job)
                return None
        finally:
            for task in (reading, abandoned):
                task.cancel()
            await asyncio.gather(reading, abandoned, return_exceptions=True)
        died = reading.done() and not reading.cancelled()
        await self._end_process()
        if died and not job.abandoned.is_set():
            raise ComputationFailed("the planner's process died")
        self._raise_unless_abandoned(job)
        return None

    def _raise_unless_abandoned(self, job: _Job) -> None:
        """Raise ``busy`` for a computation that took too long, if a request still waits for it."""
        if not job.abandoned.is_set():
            detail = "this plan takes too long here: run `checkins plan` instead"
            raise Problem("busy", detail, retry_after=60)

    async def _started_process(self) -> asyncio.subprocess.Process:
        """Return the running process, which is started if necessary."""
        if self._process is not None and self._process.returncode is not None:
            await self._end_process()
        if self._process is None:
            # Variables of checkins may hold tokens and passwords, which the process does not need.
            environment = {n: value for n, value in os.environ.items() if "CHECKINS_" not in n}
            self._process = await asyncio.create_subprocess_exec(
                *self.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env={**environment, **_ONE_THREAD},
                limit=MAX_ANSWER_BYTES,
            )
            assert self._process.stdout is not None
            try:
                async with asyncio.timeout(START_TIMEOUT_S):
                    ready = await self._process.stdout.readline()
            except TimeoutError:
                ready = b""
            if not ready:
                await self._end_process()
                raise ComputationFailed("the planner's process could not start")
        return self._process

    async def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdout is not None and not process.stdout.at_eof():  # still running
            with contextlib.suppress(ProcessLookupError):
                process.kill()  # the process has no state to lose
        await process.communicate()


async def _interrupt(process: asyncio.subprocess.Process, reading: asyncio.Future[bytes]) -> None:
    """Send interrupts repeatedly, because the process ignores them until it reads the question."""
    for _ in range(INTERRUPT_SIGNALS):
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(INTERRUPT)
        await asyncio.wait({reading}, timeout=INTERRUPT_TIMEOUT_S / INTERRUPT_SIGNALS)
        if reading.done():
            return


def _parse_plan(line: bytes) -> bytes:
    """Return the plan in a line of the process as JSON, or raise the error in the line."""
    if line.startswith(b'{"plan": '):
        return line.strip()[len(b'{"plan": ') : -1]
    error = json.loads(line)
    if "invalid" in error:
        raise InvalidValue(*error["invalid"])
    raise ComputationFailed(str(error.get("failed")))
