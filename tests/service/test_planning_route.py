"""Plans over HTTP: bounded, beside the event loop, and no longer than somebody waits for them."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from checkins.campaign import parse_campaign
from checkins.errors import InvalidValue
from checkins.service.http.problems import Problem
from checkins.service.routes.planning import PARAMETERS, Plan, question_of
from checkins.service.workers import planner as planners
from checkins.service.workers.planner import Planner
from tests.support.in_process import Living, play, problem
from tests.support.waiting import PATIENCE_S, until

ROOT = Path(__file__).resolve().parents[2]
DOUBLE = (
    sys.executable,
    "-c",
    f"import runpy, sys; sys.path.insert(0, {str(ROOT)!r});"
    " runpy.run_module('tests.service.plan_double', run_name='__main__')",
)  # a test's working directory is not the repository's root
QUESTION: dict[str, Any] = {
    "population": [100, 400],
    "epsilon": 1.0,
    "delta": 1e-6,
    "adjacency": "add-remove",
    "dimension": 10,
    "devices": {},
    "server": {},
    "fixed": {},
}
QUERY = "population=100..400&epsilon=1&delta=1e-6&adjacency=add-remove&dimension=10"
REFUSES, DIES, SLOW, STUBBORN, LASTS = 13, 17, 19, 23, 29


def asked(**changes: Any) -> dict[str, Any]:
    return {**QUESTION, **changes}


def planning(scenario: Callable[[Planner], Awaitable[None]], **how: Any) -> None:
    """Play a scenario with a planner whose process is a stand-in."""

    async def main() -> None:
        planner = Planner(command=DOUBLE, **how)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await scenario(planner)
        finally:
            await planner.close()

    asyncio.run(main())


async def hang_up(task: asyncio.Task[bytes]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_a_question_is_answered_and_asked_once_only() -> None:
    async def scenario(planner: Planner) -> None:
        first = await planner.answer(QUESTION)
        assert json.loads(first)["recommended"]["slots"] > 0
        await planner.close()  # whatever comes now was kept
        assert await planner.answer(QUESTION) is first

    planning(scenario)


def test_those_who_ask_the_same_at_once_share_one_computation() -> None:
    async def scenario(planner: Planner) -> None:
        answers = await asyncio.gather(*(planner.answer(QUESTION) for _ in range(20)))
        assert all(answer is answers[0] for answer in answers)

    planning(scenario, max_waiting=1)


def test_a_refusal_of_the_planner_names_the_value() -> None:
    async def scenario(planner: Planner) -> None:
        with pytest.raises(InvalidValue, match="slots = 7: must be what this double wants"):
            await planner.answer(asked(dimension=REFUSES))
        await planner.answer(QUESTION)

    planning(scenario)


def test_a_process_that_dies_is_told_and_started_again() -> None:
    async def scenario(planner: Planner) -> None:
        with pytest.raises(Problem) as refused:
            await planner.answer(asked(dimension=DIES))
        assert refused.value.slug == "failed"
        await planner.answer(QUESTION)

    planning(scenario)


@pytest.mark.parametrize("dimension", [SLOW, STUBBORN])
def test_a_plan_that_takes_too_long_is_given_up(
    monkeypatch: pytest.MonkeyPatch, dimension: int
) -> None:
    monkeypatch.setattr(planners, "INTERRUPT_TIMEOUT_S", 0.2)

    async def scenario(planner: Planner) -> None:
        with pytest.raises(Problem, match="takes too long here"):
            await planner.answer(asked(dimension=dimension))
        await planner.answer(QUESTION)

    planning(scenario, timeout_s=0.1)


def test_a_question_that_nobody_waits_for_is_interrupted_and_the_process_stays() -> None:
    async def scenario(planner: Planner) -> None:
        await planner.answer(QUESTION)
        process = planner._process
        task = asyncio.create_task(planner.answer(asked(dimension=SLOW)))
        await until(lambda: not planner._queue and bool(planner._jobs))
        await hang_up(task)
        await planner.answer(asked(epsilon=2.0))
        assert planner._process is process

    planning(scenario)


def test_a_question_goes_on_while_another_still_waits_for_it() -> None:
    async def scenario(planner: Planner) -> None:
        tasks = [asyncio.create_task(planner.answer(QUESTION)) for _ in range(2)]
        await until(lambda: bool(planner._jobs))
        await hang_up(tasks[0])
        assert json.loads(await tasks[1])["recommended"]

    planning(scenario)


def test_one_too_many_is_told_to_come_again_and_room_is_made_by_leaving() -> None:
    async def scenario(planner: Planner) -> None:
        slow = asyncio.create_task(planner.answer(asked(dimension=SLOW)))
        await until(lambda: not planner._queue and bool(planner._jobs))
        waiting = [
            asyncio.create_task(planner.answer(asked(epsilon=float(i)))) for i in range(1, 3)
        ]
        await until(lambda: len(planner._queue) == 2)
        with pytest.raises(Problem) as refused:
            await planner.answer(asked(epsilon=9.0))
        assert (refused.value.slug, refused.value.status) == ("busy", 503)
        assert refused.value.headers()["retry-after"] == "2"
        await hang_up(waiting.pop())
        waiting.append(asyncio.create_task(planner.answer(asked(epsilon=9.0))))
        await hang_up(slow)
        await asyncio.gather(*waiting)

    planning(scenario, max_waiting=2)


def test_an_idle_process_is_ended_and_the_next_question_starts_another() -> None:
    async def scenario(planner: Planner) -> None:
        await planner.answer(QUESTION)
        await until(lambda: planner._process is None)
        await planner.answer(asked(epsilon=2.0))

    planning(scenario, idle_timeout_s=0.05)


def test_whoever_waits_is_refused_when_the_planner_closes() -> None:
    async def scenario(planner: Planner) -> None:
        tasks = [
            asyncio.create_task(planner.answer(asked(dimension=SLOW, epsilon=float(i))))
            for i in range(1, 4)
        ]
        await until(lambda: len(planner._queue) == 2)
        await planner.close()
        for error in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(error, Problem)
            assert error.slug == "busy"

    planning(scenario)


def test_the_process_gets_no_secret_of_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECKINS_OPERATOR_TOKEN", "a-token-nobody-else-may-read")

    async def scenario(planner: Planner) -> None:
        await planner.answer(QUESTION)
        assert planner._process is not None
        environment = Path(f"/proc/{planner._process.pid}/environ").read_bytes()
        assert b"PATH" in environment
        assert b"CHECKINS_OPERATOR_TOKEN" not in environment

    planning(scenario)


@pytest.mark.slow
def test_the_real_process_plans_refuses_and_can_be_interrupted() -> None:
    async def main() -> None:
        planner = Planner()
        try:
            plan = json.loads(await planner.answer(QUESTION))
            Plan.model_validate(plan)
            assert plan["certificate"]["epsilon"] <= 1.0
            process = planner._process
            task = asyncio.create_task(planner.answer(asked(epsilon=0.7)))
            await until(lambda: not planner._queue and bool(planner._jobs))
            await hang_up(task)
            with pytest.raises(InvalidValue, match="window"):
                await planner.answer(asked(fixed={"window": 9, "protocol": "fixed"}))
            known = {key: value for key, value in QUESTION.items() if key != "dimension"}
            plan = json.loads(await planner.answer({**known, "task": "patients"}))
            assert plan["question"]["dimension"] == 14
            assert parse_campaign(plan["campaign"]).campaign.task is not None
            assert planner._process is process
        finally:
            await planner.close()

    asyncio.run(main())


@pytest.fixture
def route(migrated_file: Path, tmp_path: Path) -> Any:
    """Play a scenario on a coordinator whose planner is a stand-in."""
    store = tmp_path / "store.db"
    store.write_bytes(migrated_file.read_bytes())

    def played(scenario: Callable[[Living], Awaitable[None]], **given: Any) -> None:
        planner = Planner(command=DOUBLE) if given.get("plan", True) else None
        play(f"sqlite:///{store}", tmp_path, scenario, planner=planner, **given)

    return played


def test_a_plan_is_answered_as_json(route: Any) -> None:
    async def scenario(coordinator: Living) -> None:
        answer = await coordinator.http.get(f"/plan/answer?{QUERY}&slots=50&dropout=0.1")
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "application/json"
        assert answer.json()["recommended"]["protocol"] == "fixed"

    route(scenario)


def test_the_page_and_its_files_are_there_and_the_main_page_leads_to_it(route: Any) -> None:
    async def scenario(coordinator: Living) -> None:
        page = await coordinator.http.get("/plan")
        assert page.status_code == 200
        assert page.headers["content-type"].startswith("text/html")
        assert "script-src 'self'" in page.headers["content-security-policy"]
        assert (await coordinator.http.get("/page/plan.js")).status_code == 200
        assert 'href="plan"' in (await coordinator.http.get("/")).text

    route(scenario)


def test_planning_can_be_turned_off(route: Any) -> None:
    async def scenario(coordinator: Living) -> None:
        for path in ("/plan", f"/plan/answer?{QUERY}"):
            assert problem(await coordinator.http.get(path)) == (404, "unknown-path")
        assert 'href="plan"' not in (await coordinator.http.get("/")).text

    route(scenario, plan=False)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("epsilon=0", "epsilon: must be a number from 0.01 to 50"),
        ("epsilon=nan", "epsilon"),
        ("epsilon=1e999", "epsilon"),
        ("epsilon=-1", "epsilon"),
        ("epsilon=", "epsilon"),
        ("epsilon=1&epsilon=2", "epsilon: was given more than once"),
        ("delta=1", "delta"),
        ("adjacency=both", "adjacency: must be one of add-remove, replace-one"),
        ("population=10..5", "population = 10..5: the smallest number must not exceed the largest"),
        ("population=0..5", "population: must be an integer or LO..HI, from 1 to 10,000,000,0"),
        ("population=1..99999999999999", "population"),
        ("population=many", "population"),
        ("dimension=1.5", "dimension: must be an integer"),
        ("dimension=99999999999999999999999", "dimension"),
        ("slots=0", "slots"),
        ("slots=10000000000", "slots"),
        ("capacity=some", "capacity: must be all, or an integer from 1"),
        ("dropout=1", "dropout"),
        ("participation=0", "participation"),
        ("noise_at=nowhere", "noise_at"),
        ("colour=red", "query: unknown parameter 'colour'"),
    ],
)
def test_a_hostile_parameter_is_refused_by_name(route: Any, change: str, named: str) -> None:
    name = change.partition("=")[0]
    kept = "&".join(one for one in QUERY.split("&") if not one.startswith(f"{name}="))

    async def scenario(coordinator: Living) -> None:
        answer = await coordinator.http.get(f"/plan/answer?{kept}&{change}")
        assert problem(answer) == (422, "invalid")
        assert answer.json()["detail"].startswith(named)

    route(scenario)


@pytest.mark.parametrize("name", [name for name, one in PARAMETERS.items() if one.required])
def test_nothing_that_a_plan_depends_on_has_a_default(route: Any, name: str) -> None:
    async def scenario(coordinator: Living) -> None:
        left = "&".join(one for one in QUERY.split("&") if not one.startswith(f"{name}="))
        answer = await coordinator.http.get(f"/plan/answer?{left}")
        assert problem(answer) == (422, "invalid")
        assert answer.json()["detail"] == f"{name}: is missing, and has no default"

    route(scenario)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("", "dimension: is missing; give it, or a task"),
        ("&dimension=10&task=patients", "dimension = 10: task = patients already determines"),
    ],
)
def test_a_model_has_its_size_or_its_task(route: Any, change: str, told: str) -> None:
    async def scenario(coordinator: Living) -> None:
        answer = await coordinator.http.get(
            f"/plan/answer?{QUERY.removesuffix('&dimension=10')}{change}"
        )
        assert problem(answer) == (422, "invalid")
        assert answer.json()["detail"].startswith(told)

    route(scenario)


@given(texts=st.dictionaries(st.sampled_from([*PARAMETERS, "other"]), st.text(max_size=60)))
def test_any_query_is_understood_or_refused(texts: dict[str, str]) -> None:
    query = str(httpx.QueryParams(texts)).encode()
    request = Request({"type": "http", "query_string": query, "headers": []})
    refused = ""
    try:
        question_of(request)
    except Problem as problem:
        refused = problem.slug
    assert refused in ("", "invalid")


def test_a_refusal_of_the_planner_is_a_problem(route: Any) -> None:
    async def scenario(coordinator: Living) -> None:
        answer = await coordinator.http.get(
            f"/plan/answer?{QUERY.replace('dimension=10', f'dimension={REFUSES}')}"
        )
        assert problem(answer) == (422, "invalid")
        assert answer.json()["detail"] == "slots = 7: must be what this double wants"

    route(scenario)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("", "duration_s = 86400.0 (the default): leaves"),
        ("&duration_s=86400", "duration_s = 8640"),
    ],
)
def test_a_refusal_of_what_was_not_given_says_that_it_is_the_default(
    route: Any, given: str, told: str
) -> None:
    async def scenario(coordinator: Living) -> None:
        query = QUERY.replace("dimension=10", f"dimension={LASTS}") + given
        answer = await coordinator.http.get(f"/plan/answer?{query}")
        assert problem(answer) == (422, "invalid")
        detail = answer.json()["detail"]
        assert detail.startswith(told)
        assert ("(the default)" in detail) == (given == "")

    route(scenario)


def test_a_plan_under_way_delays_no_other_request_and_no_shutdown(route: Any) -> None:
    async def scenario(coordinator: Living) -> None:
        query = QUERY.replace("dimension=10", f"dimension={SLOW}")
        slow = asyncio.create_task(coordinator.http.get(f"/plan/answer?{query}"))
        planner: Planner = coordinator.http._transport.app.state.planner  # type: ignore[attr-defined]
        await until(lambda: not planner._queue and bool(planner._jobs))
        assert (await coordinator.http.get("/healthz")).status_code == 200
        coordinator.runner.release_waiters()
        assert problem(await slow) == (503, "busy")

    route(scenario)


def test_whoever_hangs_up_is_no_longer_computed_for(route: Any) -> None:
    async def scenario(coordinator: Living) -> None:
        app = coordinator.http._transport.app  # type: ignore[attr-defined]
        planner: Planner = app.state.planner
        disconnected = asyncio.Event()
        messages = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await disconnected.wait()
            return {"type": "http.disconnect"}

        async def send(_: Any) -> None:
            pass

        query = QUERY.replace("dimension=10", f"dimension={SLOW}")
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/plan/answer",
            "query_string": query.encode(),
            "headers": [],
            "app": app,
        }
        asking = asyncio.create_task(app(scope, receive, send))
        await until(lambda: not planner._queue and bool(planner._jobs))
        disconnected.set()
        await asking
        assert planner._jobs == {}
        assert (await coordinator.http.get(f"/plan/answer?{QUERY}")).status_code == 200

    route(scenario)


def test_the_document_says_what_a_plan_takes_and_gives(route: Any) -> None:
    async def scenario(coordinator: Living) -> None:
        document = (await coordinator.http.get("/openapi.json")).json()
        operation = document["paths"]["/plan/answer"]["get"]
        assert [one["name"] for one in operation["parameters"]] == list(PARAMETERS)
        assert {"200", "404", "422", "429", "503"} <= set(operation["responses"])
        assert "/plan" not in document["paths"]

    route(scenario)
