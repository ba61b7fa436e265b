"""Group commit: whoever is answered is durable, and whatever arrives meanwhile goes together."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from checkins.errors import ProtocolViolation
from checkins.service.http.problems import Problem
from checkins.service.runs.group_commit import GroupCommit
from tests.support.waiting import until


class Store:
    """Commits when it is let; remembers every batch."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.began = threading.Event()
        self.may_go = threading.Event()

    def commit(self, messages: Sequence[int]) -> list[int | Exception]:
        self.began.set()
        assert self.may_go.wait(30)
        self.batches.append(list(messages))
        return [ProtocolViolation("odd") if message == 13 else 10 * message for message in messages]


def play(scenario) -> Store:
    store = Store()

    async def main() -> None:
        with ThreadPoolExecutor(2) as threads:
            await scenario(store, GroupCommit(store.commit, threads=threads, max_messages=5))

    asyncio.run(main())
    return store


def test_what_arrives_during_a_commit_goes_into_the_next_one_together() -> None:
    async def scenario(store: Store, batch: GroupCommit[int, int]) -> None:
        first = asyncio.create_task(batch.submit(1))
        await until(store.began.is_set)
        others = [asyncio.create_task(batch.submit(number)) for number in (2, 3, 4)]
        await asyncio.sleep(0)
        assert not first.done()
        store.may_go.set()
        assert await asyncio.gather(first, *others) == [10, 20, 30, 40]

    assert play(scenario).batches == [[1], [2, 3, 4]]


def test_while_messages_keep_coming_transactions_wait_for_more_of_them() -> None:
    async def main() -> None:
        store = Store()
        with ThreadPoolExecutor(2) as threads:
            periods: list[int] = []
            batch = GroupCommit(
                store.commit,
                threads=threads,
                gather_s=0.05,
                on_idle=lambda count, seconds: periods.append(count),
            )
            first = asyncio.create_task(batch.submit(1))
            await until(store.began.is_set)
            second = asyncio.create_task(batch.submit(2))
            await asyncio.sleep(0)
            store.may_go.set()
            await first
            third = asyncio.create_task(batch.submit(3))  # before the next transaction begins
            assert await asyncio.gather(second, third) == [20, 30]
            assert await batch.submit(4) == 40
        assert store.batches == [[1], [2, 3], [4]]
        assert periods == [3, 1]

    asyncio.run(main())


def test_while_a_commit_does_not_end_everyone_is_told_to_come_again() -> None:
    async def main() -> None:
        store = Store()
        with ThreadPoolExecutor(2) as threads:
            batch = GroupCommit(store.commit, threads=threads, max_messages=1, timeout_s=0.01)
            stuck = [asyncio.create_task(batch.submit(number)) for number in (1, 2)]
            for refused in await asyncio.gather(*stuck, return_exceptions=True):
                assert isinstance(refused, Problem)
                assert refused.slug == "busy"
            with pytest.raises(Problem, match="does not answer"):
                await batch.submit(3)
            store.may_go.set()
            await until(lambda: store.batches)
            assert await batch.submit(4) == 40
        assert store.batches == [[1], [4]]  # what was turned away before it began is not written

    asyncio.run(main())


def test_nobody_is_answered_before_the_commit_is_over() -> None:
    async def scenario(store: Store, batch: GroupCommit[int, int]) -> None:
        task = asyncio.create_task(batch.submit(1))
        await until(store.began.is_set)
        assert (store.batches, task.done()) == ([], False)
        store.may_go.set()
        assert await task == 10

    play(scenario)


def test_a_batch_has_a_most() -> None:
    async def scenario(store: Store, batch: GroupCommit[int, int]) -> None:
        tasks = [asyncio.create_task(batch.submit(number)) for number in range(12)]
        store.may_go.set()
        assert await asyncio.gather(*tasks) == [10 * number for number in range(12)]

    assert [len(batch) for batch in play(scenario).batches] == [5, 5, 2]


def test_a_refusal_is_raised_for_its_message_alone() -> None:
    async def scenario(store: Store, batch: GroupCommit[int, int]) -> None:
        store.may_go.set()
        answers = await asyncio.gather(
            *(batch.submit(number) for number in (1, 13, 2)), return_exceptions=True
        )
        assert answers[0] == 10
        assert isinstance(answers[1], ProtocolViolation)
        assert answers[2] == 20

    play(scenario)


def test_a_store_that_fails_fails_the_batch_and_the_next_one_is_tried() -> None:
    calls = []

    def commit(messages: Sequence[int]) -> list[int | Exception]:
        calls.append(list(messages))
        if len(calls) == 1:
            raise OSError("away")
        return list(messages)

    async def main() -> None:
        with ThreadPoolExecutor(1) as threads:
            batch: GroupCommit[int, int] = GroupCommit(commit, threads=threads)
            failed = await asyncio.gather(
                *(batch.submit(number) for number in (1, 2)), return_exceptions=True
            )
            assert [type(answer) for answer in failed] == [OSError, OSError]
            assert await batch.submit(3) == 3

    asyncio.run(main())
    assert calls == [[1, 2], [3]]


def test_a_client_that_leaves_does_not_undo_what_it_sent() -> None:
    async def scenario(store: Store, batch: GroupCommit[int, int]) -> None:
        gone = asyncio.create_task(batch.submit(1))
        stays = asyncio.create_task(batch.submit(2))
        await until(store.began.is_set)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        store.may_go.set()
        assert await stays == 20

    assert play(scenario).batches == [[1, 2]]


def test_what_was_committed_is_counted() -> None:
    seen = []

    async def main() -> None:
        with ThreadPoolExecutor(1) as threads:
            batch: GroupCommit[int, int] = GroupCommit(
                list,
                threads=threads,
                on_commit=lambda writes, seconds: seen.append((writes, seconds)),
            )
            await asyncio.gather(batch.submit(1), batch.submit(2))

    asyncio.run(main())
    ((writes, seconds),) = seen
    assert writes == 2
    assert seconds >= 0.0
