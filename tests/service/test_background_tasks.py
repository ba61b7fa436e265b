"""Background tasks that die are started again; threads that hang do not keep a process alive."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from checkins.service.workers import background_tasks
from checkins.service.workers.background_tasks import BackgroundTasks, DaemonThreads
from tests.support.program import output_of
from tests.support.waiting import until

LEAVES = """
import threading
from checkins.service.workers.background_tasks import DaemonThreads
threads = DaemonThreads(2, name="test")
begun = threading.Event()
threads.submit(lambda: (begun.set(), threading.Event().wait()))
begun.wait()
print(threads.stop(timeout_s=0.01))
"""


def played(scenario: Callable[[BackgroundTasks, list[str]], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        restarted: list[str] = []
        tasks = BackgroundTasks(restarted.append)
        try:
            async with asyncio.timeout(60):
                await scenario(tasks, restarted)
        finally:
            await tasks.stop()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(background_tasks, "FIRST_PAUSE_S", 0.001)
        asyncio.run(main())


def test_a_task_that_raises_is_started_again_and_counted() -> None:
    async def scenario(tasks: BackgroundTasks, restarted: list[str]) -> None:
        lives, done = 0, asyncio.Event()

        async def work() -> None:
            nonlocal lives
            lives += 1
            if lives < 3:
                raise OSError("the disk is full")
            done.set()

        tasks.supervise("clock", work)
        await done.wait()
        assert (lives, restarted) == (3, ["clock", "clock"])

    played(scenario)


def test_a_task_that_dies_is_due_again_at_once(monkeypatch) -> None:
    """Not only in time: what starts it again is there as soon as it is dead."""

    async def main() -> None:
        tasks, due = BackgroundTasks(lambda kind: None), []
        monkeypatch.setattr(
            asyncio.get_running_loop(), "call_later", lambda pause_s, *_: due.append(pause_s)
        )

        async def work() -> None:
            raise ValueError

        tasks.supervise("clock", work)
        for _ in range(3):
            await asyncio.sleep(0)
        assert (due, tasks.failing_kinds) == ([background_tasks.FIRST_PAUSE_S], ["clock"])

    asyncio.run(main())


def test_a_task_that_was_cancelled_by_nobody_of_ours_is_started_again() -> None:
    async def scenario(tasks: BackgroundTasks, restarted: list[str]) -> None:
        lives, done = 0, asyncio.Event()

        async def work() -> None:
            nonlocal lives
            lives += 1
            if lives == 1:
                raise asyncio.CancelledError
            done.set()

        tasks.supervise("clock", work)
        await done.wait()
        assert restarted == ["clock"]

    played(scenario)


def test_a_task_that_returns_is_over() -> None:
    async def scenario(tasks: BackgroundTasks, restarted: list[str]) -> None:
        lives = 0

        async def work() -> None:
            nonlocal lives
            lives += 1

        tasks.supervise("clock", work)
        for _ in range(5):
            await asyncio.sleep(0.002)
        assert (lives, restarted, tasks.failing_kinds) == (1, [], [])

    played(scenario)


def test_a_task_is_failing_from_its_death_until_it_works() -> None:
    async def scenario(tasks: BackgroundTasks, restarted: list[str]) -> None:
        again, working, lives = asyncio.Event(), asyncio.Event(), 0

        async def work() -> None:
            nonlocal lives
            lives += 1
            if lives == 1:
                raise ValueError
            again.set()
            await working.wait()
            tasks.record_success("clock", name="a")
            await asyncio.Event().wait()

        tasks.supervise("clock", work, name="a")
        assert tasks.failing_kinds == []
        await again.wait()
        assert tasks.failing_kinds == ["clock"]
        working.set()
        await until(lambda: not tasks.failing_kinds)

    played(scenario)


def test_pauses_grow_up_to_the_longest_and_begin_anew_once_it_works(monkeypatch) -> None:
    async def scenario(tasks: BackgroundTasks, restarted: list[str]) -> None:
        loop, pauses = asyncio.get_running_loop(), []
        later = loop.call_later

        def noting(pause_s: float, *what: Any) -> Any:
            pauses.append(pause_s)
            return later(0.0, *what)

        monkeypatch.setattr(loop, "call_later", noting)
        lives, done = 0, asyncio.Event()

        async def work() -> None:
            nonlocal lives
            lives += 1
            if lives == 7:
                tasks.record_success("clock")
            if lives == 8:
                done.set()
                return
            raise ValueError

        tasks.supervise("clock", work)
        await done.wait()
        assert [pause for pause in pauses if pause > 0.0] == [*(0.1, 0.2, 0.4, 0.8, 1.6, 2.0), 0.1]

    monkeypatch.setattr(background_tasks, "MAX_PAUSE_S", 2.0)

    async def main() -> None:
        tasks = BackgroundTasks(lambda kind: None)
        await scenario(tasks, [])
        await tasks.stop()

    asyncio.run(main())


def test_threads_give_answers_and_errors_and_take_no_more_once_they_left() -> None:
    threads = DaemonThreads(2, name="test")
    assert [future.result(60) for future in [threads.submit(pow, 2, n) for n in range(9)]] == [
        2**n for n in range(9)
    ]
    with pytest.raises(ZeroDivisionError):
        threads.submit(divmod, 1, 0).result(60)
    assert threads.stop(timeout_s=60)
    with pytest.raises(RuntimeError, match="stopped"):
        threads.submit(pow, 2, 2)


def test_what_has_not_begun_is_dropped_when_threads_leave() -> None:
    threads, begun, go_on = DaemonThreads(1, name="dropping"), threading.Event(), threading.Event()
    first = threads.submit(lambda: (begun.set(), go_on.wait(60)))
    second = threads.submit(pow, 2, 2)
    assert begun.wait(60)
    assert not threads.stop(timeout_s=0.0)
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "dropping")
    assert second.cancelled()
    go_on.set()
    assert first.result(60) == (None, True)
    assert threads.stop(timeout_s=60)


def test_a_thread_that_hangs_does_not_keep_its_process_alive() -> None:
    assert output_of(LEAVES) == "False\n"
