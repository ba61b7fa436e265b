"""Errors as a client reads them."""

from __future__ import annotations

import asyncio
import json
import logging

import httpx
import pytest
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field, field_validator

from checkins.errors import InvalidValue, NotCovered, ProtocolViolation
from checkins.protocol.report import MalformedReport, report_from_bytes
from checkins.service import logs
from checkins.service.authentication import NotAdmitted
from checkins.service.http import problems
from checkins.service.http.problems import PROBLEM_TYPES, Problem


class Body(BaseModel):
    number: int = Field(ge=1)
    share: float = Field(default=0.5, ge=0, le=1)
    word: str = ""

    @field_validator("word")
    @classmethod
    def _not_bad(cls, word: str) -> str:
        if word.startswith("bad"):
            raise ValueError(f"{word} is bad")
        if word.startswith("worse"):
            raise InvalidValue("word", word, "must not be worse")
        return word


def raising(error: Exception) -> FastAPI:
    app = FastAPI()
    problems.install_handlers(app)

    @app.get("/x")
    async def x() -> None:
        raise error

    @app.post("/body")
    async def body(body: Body) -> dict[str, int]:
        return {"number": body.number}

    return app


def ask(app: FastAPI, method: str = "GET", path: str = "/x", **how: object) -> httpx.Response:
    async def once() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path, **how)

    return asyncio.run(once())


def problem_of(answer: httpx.Response) -> dict[str, object]:
    assert answer.headers["content-type"] == "application/problem+json"
    document = answer.json()
    assert set(document) == {"type", "title", "status", "detail"}
    assert document["status"] == answer.status_code
    assert document["title"]
    assert document["detail"]
    return document


@pytest.mark.parametrize("slug", PROBLEM_TYPES)
def test_every_kind_is_answered_with_its_status(slug):
    answer = ask(raising(Problem(slug, "because")))
    document = problem_of(answer)
    assert document["type"] == f"urn:checkins:{slug}"
    assert document["detail"] == "because"
    assert answer.status_code == PROBLEM_TYPES[slug].status
    assert ("www-authenticate" in answer.headers) == (answer.status_code == 401)


@pytest.mark.parametrize(
    ("wait_s", "header"),
    [(0.0, "1"), (0.2, "1"), (1.01, "2"), (float("nan"), "1"), (float("inf"), "1")],
)
def test_when_to_come_again_is_told_in_whole_seconds(wait_s, header):
    answer = ask(raising(Problem("too-early", retry_after=wait_s)))
    assert answer.headers["retry-after"] == header


def test_a_slug_nobody_knows_is_our_own_mistake():
    with pytest.raises(InvalidValue, match="slug"):
        Problem("unknown-thing")


@pytest.mark.parametrize(
    ("error", "slug", "says"),
    [
        (ProtocolViolation("the token is spent"), "refused", "the token is spent"),
        (NotAdmitted("ask the operator"), "not-enrolled", "ask the operator"),
        (InvalidValue("slot", 0, "must be at least 1"), "invalid", "slot = 0: must be at least 1"),
        (InvalidValue("slot", float("nan"), "must be whole"), "invalid", "slot = nan"),
        (InvalidValue("slot", 10**4000, "must be smaller"), "invalid", "slot: must be smaller"),
        (InvalidValue("name", "x" * 10**6, "must be short"), "invalid", "name: must be short"),
        (InvalidValue("blob", b"secret", "must be text"), "invalid", "blob: must be text"),
        (NotCovered("minibatch", 2, "no theorem covers it"), "invalid", "no theorem"),
    ],
)
def test_our_own_errors_have_a_kind(error, slug, says):
    document = problem_of(ask(raising(error)))
    assert document["type"] == f"urn:checkins:{slug}"
    assert says in document["detail"]
    assert len(document["detail"]) <= 600


def test_a_path_nobody_serves_is_a_problem_that_does_not_repeat_it():
    document = problem_of(ask(raising(Problem("busy")), path="/campaigns/secret-receipt"))
    assert document["type"] == "urn:checkins:unknown-path"
    assert "receipt" not in json.dumps(document)


def test_a_wrong_method_is_told_the_right_one():
    answer = ask(raising(Problem("busy")), "PUT")
    assert problem_of(answer)["type"] == "urn:checkins:wrong-method"
    assert answer.headers["allow"] == "GET"


@pytest.mark.parametrize("status", [400, 403, 418, 451, 499, 502, 599])
def test_any_status_of_the_framework_becomes_a_problem(status):
    document = problem_of(ask(raising(HTTPException(status, "said so"))))
    assert document["status"] == status
    assert (document["detail"] == "said so") == (status < 500)


def test_an_answer_without_a_body_stays_without_one():
    answer = ask(raising(HTTPException(304)))
    assert (answer.status_code, answer.content) == (304, b"")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{",
        b'{"number": "sekret"}',
        b'{"number": NaN}',
        b'{"number": 1, "share": NaN}',
        b'{"number": 1, "share": Infinity}',
        b'{"number": 1e999}',
        b'{"number": 0, "word": "sekret"}',
        b'{"number": 1, "word": "bad sekret"}',
        b'{"number": 1, "word": "worse sekret"}',
        b'{"number": "\\ud800"}',
        b'{"number": "' + b"sekret" * 10**5 + b'"}',
        b'{"number": ' + b"9" * 10**5 + b"}",
        b"\xff\xfe sekret",
    ],
)
def test_a_body_that_is_not_valid_is_never_repeated(content):
    answer = ask(
        raising(Problem("busy")),
        "POST",
        "/body",
        content=content,
        headers={"content-type": "application/json"},
    )
    document = problem_of(answer)
    assert document["status"] in (400, 422)
    assert "sekret" not in answer.text
    assert len(answer.content) < 2000


def test_a_validators_remedy_is_told():
    answer = ask(raising(Problem("busy")), "POST", "/body", json={"number": 1, "word": "worse"})
    assert "body.word: must not be worse" in problem_of(answer)["detail"]


def test_only_a_few_of_many_faults_are_told():
    app = FastAPI()
    problems.install_handlers(app)

    @app.post("/many")
    async def many(numbers: list[int]) -> None: ...

    detail = problem_of(ask(app, "POST", "/many", json=["x"] * 1000))["detail"]
    assert detail.endswith("and 995 more")


def test_a_failure_leaks_nothing_and_is_logged_once_by_type_and_place(tmp_path):
    error = RuntimeError("token sekret of 10.1.2.3")
    with logs.configure(tmp_path / "log"):
        document = problem_of(ask(raising(error)))
        logging.getLogger("uvicorn.error").error("Exception in ASGI application", exc_info=error)
    assert document["type"] == "urn:checkins:failed"
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert len(lines) == 1
    assert lines[0]["error"] == "RuntimeError"
    assert lines[0]["route"] == "/x"
    assert lines[0]["place"].startswith("test_problems.py:")
    assert "sekret" not in json.dumps([document, *lines])


def test_documented_problems_are_in_the_openapi_text():
    app = FastAPI()

    @app.get(
        "/x/{i}",
        responses=problems.problem_responses("refused", "too-early", "invalid", "too-many"),
    )
    async def x(i: int) -> None: ...

    responses = app.openapi()["paths"]["/x/{i}"]["get"]["responses"]
    assert set(responses) == {"200", "409", "422", "429"}
    conflict = responses["409"]
    assert set(conflict["content"]) == {"application/problem+json"}
    schema = conflict["content"]["application/problem+json"]["schema"]
    assert schema["properties"]["type"]["enum"] == [
        "urn:checkins:refused",
        "urn:checkins:too-early",
    ]
    assert "Retry-After" in conflict["headers"]
    assert "headers" not in responses["422"]


def test_a_wrong_method_is_told_those_of_every_route_of_its_path():
    app = raising(Problem("busy"))

    @app.delete("/x")
    async def gone() -> None: ...

    @app.put("/{name}")
    async def named(name: str) -> None: ...

    assert ask(app, "PATCH").headers["allow"] == "DELETE, GET, PUT"
    assert ask(app, "GET", "/other").headers["allow"] == "PUT"


def test_bytes_that_are_no_report_are_invalid_in_words_of_ours():
    with pytest.raises(MalformedReport) as malformed:
        report_from_bytes(b"junk", dimension=3)
    document = problem_of(ask(raising(malformed.value)))
    assert (document["type"], document["status"]) == ("urn:checkins:invalid", 422)
    assert "Error" not in str(document["detail"])
