"""Parsing and certifying a campaign keeps nobody else waiting."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from checkins.service.http.problems import Problem
from checkins.service.runs import opening
from checkins.service.runs.opening import OpeningQueue
from tests.support.campaigns import campaign_text
from tests.support.coordinator import OPERATOR
from tests.support.in_process import play, problem
from tests.support.waiting import until

BEARER = {"authorization": f"Bearer {OPERATOR}"}


@pytest.mark.parametrize("step", ["parse_campaign", "model_of"])
def test_others_are_answered_while_a_campaign_is_parsed_and_certified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    begun, go_on, done = threading.Event(), threading.Event(), getattr(opening, step)

    def slow(*given: object, **named: object) -> object:
        begun.set()
        assert go_on.wait(60)
        return done(*given, **named)

    monkeypatch.setattr(opening, step, slow)

    async def scenario(it) -> None:
        posted = asyncio.create_task(
            it.http.post("/campaigns", content=campaign_text(), headers=BEARER)
        )
        await until(begun.is_set)
        assert (await it.http.get("/healthz")).status_code == 200
        assert (await it.http.get("/campaigns")).json()["campaigns"] == []
        assert not posted.done()
        go_on.set()
        assert (await posted).status_code == 201

    play(f"sqlite:///{tmp_path}/store.db", tmp_path, scenario)


def test_a_hostile_campaign_is_refused(tmp_path: Path) -> None:
    async def scenario(it) -> None:
        deep = "".join("a" + ".a" * 20 + f".k{number} = 1\n" for number in range(3000))
        answer = await it.http.post("/campaigns", content=deep, headers=BEARER)
        assert problem(answer) == (422, "invalid")
        assert "at most 8 parts in a dotted key" in answer.json()["detail"]
        long = await it.http.post("/campaigns", content="#" * 200_001, headers=BEARER)
        assert problem(long) == (413, "too-large")

    play(f"sqlite:///{tmp_path}/store.db", tmp_path, scenario)


def test_a_few_wait_for_their_turn_and_more_are_told_to_come_again() -> None:
    async def main() -> None:
        gate, openings = threading.Event(), OpeningQueue(max_waiting=2)
        waiting = [asyncio.create_task(openings.run(gate.wait, 60)) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Problem, match="busy: other campaigns are being opened"):
            await openings.run(gate.wait, 60)
        gate.set()
        assert await asyncio.gather(*waiting) == [True] * 3
        assert await openings.run(lambda: "there is room again") == "there is room again"
        openings.close()

    asyncio.run(main())


def test_whoever_has_waited_long_enough_is_told_to_come_again_and_the_work_goes_on() -> None:
    async def main() -> None:
        gate, ended, openings = threading.Event(), threading.Event(), OpeningQueue(timeout_s=0.01)

        def work() -> None:
            assert gate.wait(60)
            ended.set()

        with pytest.raises(Problem, match="busy: the certificate is still being computed"):
            await openings.run(work)
        gate.set()
        await until(ended.is_set)
        openings.close()

    asyncio.run(main())


def test_a_refusal_reaches_whoever_asked() -> None:
    async def main() -> None:
        openings = OpeningQueue()
        with pytest.raises(ZeroDivisionError):
            await openings.run(lambda: 1 // 0)
        openings.close()

    asyncio.run(main())
