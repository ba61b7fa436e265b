"""Group commit: messages that arrive during one transaction are saved together by the next."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from checkins.service.workers.background_tasks import STORE_TIMEOUT_S, store_unavailable

Message = TypeVar("Message")
Answer = TypeVar("Answer")


@dataclass(eq=False)
class GroupCommit(Generic[Message, Answer]):
    """Saves messages in one transaction at a time, and answers each message once it is durable.

    ``commit`` saves at most ``max_messages`` messages. It runs on ``threads``, and returns an
    answer or an exception for each message. If a transaction takes longer than ``timeout_s``
    seconds, all waiting messages get the problem ``busy``. If messages arrive during a transaction,
    the next one begins ``gather_s`` seconds after its end, with all that have arrived until then: a
    transaction has a fixed cost, so fewer and larger ones take less CPU time. ``on_commit`` is
    called after each transaction with the number of its messages and its seconds on ``clock``, and
    ``on_idle`` when no message waits, with these numbers for all transactions since the last time.
    """

    commit: Callable[[Sequence[Message]], Sequence[Answer | Exception]]
    threads: Executor = field(kw_only=True)
    max_messages: int = field(default=500, kw_only=True)
    timeout_s: float = field(default=STORE_TIMEOUT_S, kw_only=True)
    on_commit: Callable[[int, float], None] | None = field(default=None, kw_only=True)
    on_idle: Callable[[int, float], None] | None = field(default=None, kw_only=True)
    clock: Callable[[], float] = field(default=time.monotonic, kw_only=True)
    gather_s: float = field(default=0.0, kw_only=True)
    _waiting: list[tuple[Message, asyncio.Future[Answer]]] = field(default_factory=list)
    committing: list[tuple[Message, asyncio.Future[Answer]]] = field(default_factory=list)
    _task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """The number of messages that are not durable yet."""
        return len(self.committing) + len(self._waiting)

    async def submit(self, message: Message) -> Answer:
        """Return the answer to a message, or raise the exception that ``commit`` returned."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((message, answer))
        if self._task is None:
            self._task = asyncio.create_task(self._commit_batches())
        return await answer

    async def _commit_batches(self) -> None:
        loop, count, busy_since = asyncio.get_running_loop(), 0, self.clock()
        try:
            while self._waiting:
                batch = self._waiting[: self.max_messages]
                self._waiting = self._waiting[self.max_messages :]
                self.committing = batch
                messages = [message for message, _ in batch]
                started_at = self.clock()
                answers: Sequence[Answer | Exception]
                try:
                    commit = loop.run_in_executor(self.threads, self.commit, messages)
                    while not (await asyncio.wait({commit}, timeout=self.timeout_s))[0]:
                        self.refuse_waiting()
                    answers = commit.result()
                except Exception as error:
                    answers = [error] * len(batch)
                if self.on_commit is not None:
                    self.on_commit(len(batch), self.clock() - started_at)
                for (_, future), answer in zip(batch, answers, strict=True):
                    if future.done():
                        continue  # the request was cancelled, or got ``busy``
                    if isinstance(answer, Exception):
                        future.set_exception(answer)
                    else:
                        future.set_result(answer)
                self.committing = []
                count += len(batch)
                if 0 < len(self._waiting) < self.max_messages:
                    await asyncio.sleep(self.gather_s)
            if self.on_idle is not None:
                self.on_idle(count, self.clock() - busy_since)
        finally:
            self._task = None

    def refuse_waiting(self) -> None:
        """Answer all waiting messages with ``busy``. The transaction may still become durable."""
        for _, future in (*self.committing, *self._waiting):
            if not future.done():
                future.set_exception(store_unavailable())
        self._waiting = []
