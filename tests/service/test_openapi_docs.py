"""The pages about the service know every route, object, problem, event, metric and setting."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import TypeAdapter

from checkins.ledger.signature import SigningKey
from checkins.protocol import wire
from checkins.service import metrics
from checkins.service.authentication import hashed
from checkins.service.http.problems import PROBLEM_TYPES
from checkins.service.http.uvicorn_hooks import limited_protocol
from checkins.service.routes import campaigns, clients, operators, planning, readiness
from checkins.service.runs import server_sent_events
from checkins.service.settings import Enrolment, EnrolmentKind, Limits, Settings
from tests.support.campaigns import campaign_text
from tests.support.coordinator import OPERATOR
from tests.support.in_process import Living, play
from tools import api, generated

DOCS = Path(__file__).resolve().parents[2] / "docs"
API = (DOCS / "api.md").read_text(encoding="utf-8")
SERVICE = (DOCS / "service.md").read_text(encoding="utf-8")
DOCUMENT = api.document()
ROUTES = [
    (method, path) for path, methods in DOCUMENT["paths"].items() for method in methods if path
]


def body_of(page: str, command: str) -> str:
    """What stands on a page for this command."""
    (found,) = [block for block in generated.TEXT.finditer(page) if block["command"] == command]
    return found["body"].strip("\n")


@pytest.mark.parametrize("part", ["routes", "objects", "problems"])
def test_the_reference_is_what_the_code_says(part: str) -> None:
    assert body_of(API, f"python tools/api.py {part}") == api.rendered(part)


def test_the_table_of_metrics_is_what_the_code_says() -> None:
    assert body_of(SERVICE, "python tools/api.py metrics") == api.rendered("metrics")


@pytest.mark.parametrize(("method", "path"), ROUTES, ids=" ".join)
def test_every_route_has_a_section(method: str, path: str) -> None:
    heading = f"### {method.upper()} {path}"
    assert heading in API.splitlines()
    section = API.split(f"{heading}\n")[1].split("\n### ")[0]
    operation = DOCUMENT["paths"][path][method]
    for parameter in operation.get("parameters", ()):
        assert f"| `{parameter['name']}` | {parameter['in']} |" in section
    for slug in api.slugs_of(operation):
        assert f"| `{slug}` | {PROBLEM_TYPES[slug].status} |" in section or slug in api.anywhere(
            DOCUMENT
        )
    for status, answer in operation["responses"].items():
        assert wire.PROBLEM_TYPE in answer.get("content", {}) or f"| {status} |" in section


def test_every_object_that_is_answered_has_a_section() -> None:
    referred = set(re.findall(r"#/components/schemas/(\w+)", str(DOCUMENT["paths"])))
    assert referred
    assert [name for name in referred if f"### {name}" not in API.splitlines()] == []


def test_every_problem_is_listed_with_its_status() -> None:
    for slug, kind in PROBLEM_TYPES.items():
        assert f"| `{slug}` | {kind.status} | {kind.title} |" in API


def test_every_event_is_documented() -> None:
    told = set(re.findall(r'_event\("(\w+)"', inspect.getsource(server_sent_events)))
    documented = set(re.findall(r"^\| `(\w+)` \|", API.split("## Events")[1].split("## ")[0], re.M))
    assert told == documented


def test_every_metric_is_documented() -> None:
    registry = metrics.Metrics().registry
    for family in registry.collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        assert f"| `{name}` | {family.type} |" in SERVICE, name


def test_every_reason_to_refuse_a_connection_is_documented() -> None:
    reasons = set(re.findall(r'report_refusal\("([\w-]+)"\)', inspect.getsource(limited_protocol)))
    assert reasons
    assert [reason for reason in reasons if f"`{reason}`" not in SERVICE] == []


SHOWN = {16 * 1024: "16 KiB", 200_000: "200,000", 32 * 1024: "32 KiB", 15_000: "15,000"}


@pytest.mark.parametrize("name", [field.name for field in fields(Limits)])
def test_every_limit_is_documented_with_its_default(name: str) -> None:
    default = getattr(Limits(), name)
    shown = SHOWN.get(default, f"{default:g}")
    assert re.search(rf"^\| `{name}` \| {shown} \|", SERVICE, re.M), (name, shown)


def test_every_setting_is_documented() -> None:
    for described in (Settings, Enrolment):
        for field in fields(described):
            assert f"`{field.name}`" in SERVICE, field.name


def test_every_kind_of_enrolment_is_documented() -> None:
    for kind in EnrolmentKind:
        assert re.search(rf"^\| `{kind}` \|", SERVICE, re.M), kind


KEY = "the-key-of-one-device"
WITH_MODEL = "model=true&wait=0"
MODELS = {
    (method, route.path): route.response_model
    for router in (
        campaigns.router,
        campaigns.public_router,
        clients.router,
        operators.router,
        planning.router,
        readiness.router,
    )
    for route in router.routes
    for method in route.methods
    if route.response_model is not None
}


def test_no_answer_has_a_field_that_is_not_declared(tmp_path: Path) -> None:
    """Real answers against the models of the OpenAPI document, with nothing beside them."""
    seen: set[tuple[str, str]] = set()

    async def scenario(it: Living) -> None:
        def declared(answer: httpx.Response, path: str) -> Any:
            where = (answer.request.method, path)
            assert answer.is_success, (where, answer.text)
            model = TypeAdapter(MODELS[where])
            model.validate_json(answer.content, strict=True, extra="forbid")
            seen.add(where)
            return answer.json()

        async def ask(method: str, path: str, *given: Any, **how: Any) -> Any:
            answer = await it.ask(method, path.format(**how), *given)
            return declared(answer, "/campaigns/{run}" + path)

        opened = await it.ask("POST", "//campaigns", OPERATOR, content=campaign_text(slots=3))
        it.run = declared(opened, "/campaigns")["id"]
        token = (await ask("POST", "/enrolments", KEY))["token"]
        await it.begin(1)
        receipt = (await ask("POST", "/slots/{slot}/check-ins", token, slot=1))["receipt"]
        again = f"/slots/1/check-ins?{WITH_MODEL}"
        check_in = await it.ask("POST", again, token)
        declared(check_in, "/campaigns/{run}/slots/{slot}/check-ins")
        await it.choose(1)
        await ask("GET", "/check-ins/{receipt}", receipt=receipt)
        outcome = await it.ask("GET", f"/check-ins/{receipt}?{WITH_MODEL}")
        declared(outcome, "/campaigns/{run}/check-ins/{receipt}")
        declared(await it.report(1, receipt), "/campaigns/{run}/slots/{slot}/report")
        await it.show(1)
        await it.turn(it.clock.now, lambda: len(it.live_run.curve) > 0)
        await ask("GET", "/progress")
        await ask("GET", "/ledger/heads/{entries}", entries=1)
        await ask("GET", "/ledger/heads/{entries}/signature", entries=1)
        await ask("GET", "")
        declared(await it.http.get("/campaigns"), "/campaigns")
        declared(await it.http.get("/healthz"), "/healthz")
        await it.turn(it.clock.now, lambda: not readiness.reasons_not_ready(it.runner))
        declared(await it.http.get("/readyz"), "/readyz")
        keys = {"keys": [f"sha256:{64 * 'a'}"]}
        for path in ("/allow-list/additions", "/allow-list/revocations"):
            declared(await it.ask("POST", f"/{path}", OPERATOR, json=keys), path)
        declared(await it.ask("GET", "//allow-list", OPERATOR), "/allow-list")
        alice = {"token": f"sha256:{64 * 'b'}", "role": "operator"}
        answer = await it.ask("PUT", "//operators/alice", OPERATOR, json=alice)
        declared(answer, "/operators/{name}")
        declared(await it.ask("GET", "//operators", OPERATOR), "/operators")
        await ask("DELETE", "", OPERATOR)
        await ask("GET", "")

    SigningKey.generate(SigningKey.generate()).write(tmp_path / "signing.key")
    keys = frozenset({hashed(KEY)})
    listed = Enrolment(kind=EnrolmentKind.ALLOW_LIST, allow_list=keys)
    how: dict[str, Any] = {"signing_key": tmp_path / "signing.key", "enrolment": listed}
    play(f"sqlite:///{tmp_path}/store.db", tmp_path, scenario, **how)
    assert set(MODELS) - seen == {("GET", "/plan/answer")}


@pytest.mark.slow
def test_no_plan_has_a_field_that_is_not_declared(tmp_path: Path) -> None:
    query = "population=100..400&epsilon=1&delta=1e-6&adjacency=add-remove&dimension=10"

    async def scenario(it: Living) -> None:
        answer = await it.http.get(f"/plan/answer?{query}")
        assert answer.status_code == 200, answer.text
        model = MODELS["GET", "/plan/answer"]
        model.model_validate_json(answer.content, strict=True, extra="forbid")

    play(f"sqlite:///{tmp_path}/store.db", tmp_path, scenario)
