"""The OpenAPI document says all there is, and what it says is true of a running service."""

from __future__ import annotations

import itertools
import json
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import requests
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

from tests.service.hostile.world import World
from tests.soak import SOAK
from tests.support.coordinator import OPERATOR

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of a package that is not ours, while it is imported
    import schemathesis
    from schemathesis import GenerationMode
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

pytestmark = pytest.mark.slow

CASES, MOST_TURNS = 20_000 if SOAK else 400, 10
CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
]
ENDLESS, PLAN = "/campaigns/{run}/events", "/plan/answer"
"""Streams until its reader leaves: not for a client that reads to the end."""

NONE, TOKEN, RECEIPT, OPERATORS, ADMISSION = "", "token", "receipt", "operator", "admission"
TABLE = {
    ("get", "/campaigns"): (NONE, 200, "application/json"),
    ("post", "/campaigns"): (OPERATORS, 201, "application/json"),
    ("get", "/campaigns/{}"): (NONE, 200, "application/json"),
    ("delete", "/campaigns/{}"): (OPERATORS, 200, "application/json"),
    ("get", "/campaigns/{}/progress"): (NONE, 200, "application/json"),
    ("post", "/campaigns/{}/enrolments"): (ADMISSION, 201, "application/json"),
    ("delete", "/campaigns/{}/enrolments"): (TOKEN, 204, None),
    ("post", "/campaigns/{}/slots/{}/check-ins"): (TOKEN, 202, "application/json"),
    ("get", "/campaigns/{}/check-ins/{}"): (NONE, 200, "application/json"),
    ("get", "/campaigns/{}/slots/{}/model"): (RECEIPT, 200, "application/octet-stream"),
    ("put", "/campaigns/{}/slots/{}/report"): (RECEIPT, 200, "application/json"),
    ("get", "/campaigns/{}/models/latest"): (NONE, 200, "application/octet-stream"),
    ("get", "/campaigns/{}/ledger"): (NONE, 200, "application/x-ndjson"),
    ("get", "/campaigns/{}/ledger/heads/{}"): (NONE, 200, "application/json"),
    ("get", "/campaigns/{}/ledger/heads/{}/signature"): (NONE, 200, "application/json"),
    ("get", "/campaigns/{}/events"): (NONE, 200, "text/event-stream"),
    ("get", "/allow-list"): (OPERATORS, 200, "application/json"),
    ("post", "/allow-list/additions"): (OPERATORS, 200, "application/json"),
    ("post", "/allow-list/revocations"): (OPERATORS, 200, "application/json"),
    ("get", "/operators"): (OPERATORS, 200, "application/json"),
    ("put", "/operators/{}"): (OPERATORS, 200, "application/json"),
    ("delete", "/operators/{}"): (OPERATORS, 204, None),
    ("get", "/operator-log"): (OPERATORS, 200, "application/x-ndjson"),
    ("get", "/plan/answer"): (NONE, 200, "application/json"),
    ("get", "/metrics"): (OPERATORS, 200, "text/plain"),
    ("get", "/healthz"): (NONE, 200, "application/json"),
    ("get", "/readyz"): (NONE, 200, "application/json"),
}
BODIES = {
    ("post", "/campaigns"): "application/toml",
    ("post", "/allow-list/additions"): "application/json",
    ("post", "/allow-list/revocations"): "application/json",
    ("put", "/operators/{}"): "application/json",
    ("put", "/campaigns/{}/slots/{}/report"): "application/octet-stream",
}
UNDOCUMENTED = ["/", "/plan", "/page/page.css", "/page/page.js", "/openapi.json"]
"""What people and browsers look at: there, and no part of the interface of clients."""


@pytest.fixture(scope="module")
def document(world: World) -> dict[str, Any]:
    found: dict[str, Any] = world.ask("GET", "/openapi.json").json()
    return found


def operations(document: dict[str, Any]) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    """By method and path, where names of parameters do not matter."""
    for path, methods in document["paths"].items():
        plain = "/".join("{}" if part.startswith("{") else part for part in path.split("/"))
        for method, operation in methods.items():
            yield (method, plain), operation


def test_every_route_of_the_interface_is_documented_and_no_other(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1")
    pages = {("get", path) for path in UNDOCUMENTED}
    assert {where for where, _ in operations(document)} - pages == set(TABLE)


def test_every_operation_says_what_it_takes_and_what_it_gives(document: dict[str, Any]) -> None:
    missing = []
    for where, operation in operations(document):
        if where not in TABLE:
            continue
        _, status, media = TABLE[where]
        names = [one["name"] for one in operation.get("parameters", [])]
        told = {
            "summary": bool(operation.get("summary")),
            "description": bool(operation.get("description")),
            "tags": bool(operation.get("tags")),
            "path parameters": where[1].count("{}") <= len(names),
            "an operation id": bool(operation.get("operationId")),
            "success": str(status) in operation["responses"],
        }
        answer = operation["responses"].get(str(status), {})
        if media is not None:
            kinds = [kind.partition(";")[0] for kind in answer.get("content", {})]
            told[f"media type {media}, not {kinds}"] = kinds == [media]
        if where in BODIES:
            told["a body"] = BODIES[where] in operation.get("requestBody", {}).get("content", {})
        else:
            told["no body"] = "requestBody" not in operation
        missing += [f"{where}: {name}" for name, there in told.items() if not there]
    assert missing == []


def test_every_problem_is_documented_as_one(document: dict[str, Any]) -> None:
    missing = []
    for where, operation in operations(document):
        for status, answer in operation["responses"].items():
            if not status.startswith(("4", "5")):
                continue
            kinds = list(answer.get("content", {}))
            if kinds != ["application/problem+json"] or not answer.get("description"):
                missing.append(f"{where}: {status} {kinds}")
        if where[1].startswith("/campaigns/{}") and "404" not in operation["responses"]:
            missing.append(f"{where}: 404")
        if where in TABLE and "429" not in operation["responses"]:
            missing.append(f"{where}: 429")
    assert missing == []


def test_every_secret_that_a_route_asks_for_is_a_security_scheme(document: dict[str, Any]) -> None:
    schemes = document["components"]["securitySchemes"]
    bearer = {name for name, one in schemes.items() if one["type"] == "http"}
    assert {one["scheme"].lower() for one in schemes.values() if one["type"] == "http"} == {
        "bearer"
    }
    missing = []
    for where, operation in operations(document):
        needed = where in TABLE and TABLE[where][0] != NONE
        asked = {name for one in operation.get("security", []) for name in one}
        if needed and not asked & bearer:
            missing.append(f"{where}: no security scheme")
        if needed and "401" not in operation["responses"]:
            missing.append(f"{where}: 401")
        if not needed and asked:
            missing.append(f"{where}: asks for {asked}")
    assert missing == []


@pytest.mark.parametrize("path", UNDOCUMENTED)
def test_what_browsers_ask_for_is_there(world: World, path: str) -> None:
    assert world.ask("GET", path).status == 200


@schemathesis.serializer("application/toml")
def _toml(context: Any, value: Any) -> dict[str, Any]:
    """A generated campaign: text as it is, and whatever else as something that is no campaign."""
    if isinstance(value, bytes):
        return {"data": value}
    text = value if isinstance(value, str) else f"generated = {json.dumps(value, default=str)}"
    return {"data": text.encode("utf-8", errors="surrogatepass")}


@dataclass(slots=True)
class Tally:
    """What was sent and how it was answered."""

    statuses: Counter[int] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Keys:
    """Credentials that are good somewhere, and ids that exist."""

    world: World
    token: str
    """Of ``open``."""
    spare: str
    """Of ``open`` too; someone may withdraw with it."""

    def bearer(self, label: str) -> list[str]:
        """Whom one could pretend to be at this operation; nobody stops a campaign of ours."""
        chosen = self.world.guests.chosen[0]
        of_operators = ("/operators", "/allow-list", "/operator-log", "/metrics")
        if label == "POST /campaigns" or label.partition(" ")[2].startswith(of_operators):
            return [OPERATOR, self.token]
        if label.endswith(("/model", "/report")):
            return [chosen, self.world.guests.dismissed[0], OPERATOR]
        return [self.spare if label.startswith("DELETE") else self.token, chosen]

    def known(self, name: str, label: str) -> list[Any]:
        """Values of a path parameter that lead somewhere; those that fit the caller come first."""
        world = self.world
        if name == "slot":
            return [1, 2, 100]
        if name == "name":
            return ["alice", "bob"]
        if name == "receipt":
            return [world.guests.chosen[0], world.guests.dismissed[0]]
        decided = label.endswith(("/model", "/report", "/check-ins/{receipt}"))
        first, second = (world.main, world.open) if decided else (world.open, world.main)
        return [first, second, world.quick, world.later]


def test_no_generated_request_gets_an_answer_that_is_not_documented(world: World) -> None:
    tally, keys = Tally(), Keys(world, world.enrol(world.open), world.enrol(world.open))
    with requests.Session() as session:
        session.trust_env = False
        schema = schemathesis.openapi.from_url(f"{world.running.url}/openapi.json")
        found = [one.ok() for one in schema.get_all_operations()]
        chosen = [one for one in found if one.path != ENDLESS]
        for turn in range(MOST_TURNS):
            # Some operations have only a few requests in them; others make up for it next time.
            share = (CASES - sum(tally.statuses.values())) // (2 * len(chosen)) + 1
            for operation, mode in itertools.product(chosen, GenerationMode):
                probe(operation, mode, keys, session, tally, share=share, turn=turn)
            if tally.faults or sum(tally.statuses.values()) >= CASES:
                break
    told = f"{sum(tally.statuses.values())} requests: {dict(tally.statuses)}"
    print(told)
    assert tally.faults == [], "\n\n".join(tally.faults)
    assert sum(tally.statuses.values()) >= CASES, told
    assert all(status < 500 for status in tally.statuses), told
    assert {200, 201, 202, 401, 404, 409, 422} <= set(tally.statuses), told


def probe(
    operation: Any,
    mode: GenerationMode,
    keys: Keys,
    session: requests.Session,
    tally: Tally,
    *,
    share: int,
    turn: int,
) -> None:
    """Generated requests to one operation: a third of them with ids and a caller that fit."""
    known = {one.name: keys.known(one.name, operation.label) for one in operation.path_parameters}
    bearer = keys.bearer(operation.label)
    mixed = st.tuples(
        st.fixed_dictionaries({name: st.sampled_from([None, *known[name]]) for name in known}),
        st.sampled_from([None, *bearer]),
    )
    fitting = st.just(({name: values[0] for name, values in known.items()}, bearer[0]))

    @seed(turn)
    @given(case=operation.as_strategy(generation_mode=mode), plan=mixed | mixed | fitting)
    @settings(
        max_examples=share,
        deadline=None,
        database=None,
        derandomize=False,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def one(case: Any, plan: tuple[dict[str, Any], str | None]) -> None:
        ids, caller = plan
        for name, value in ids.items():
            if value is not None:
                case.path_parameters[name] = value
        headers = None if caller is None else {"Authorization": f"Bearer {caller}"}
        response = case.call(session=session, headers=headers, timeout=60)
        if operation.path == PLAN and response.status_code == 503:
            # a plan that takes too long on this machine is documented to be "busy"
            assert response.json()["type"] == "urn:checkins:busy"
            case.validate_response(response, checks=CHECKS[1:])
            return
        tally.statuses[response.status_code] += 1
        case.validate_response(response, checks=CHECKS)

    try:
        one()
    except Unsatisfiable:
        pass  # an operation that takes nothing cannot be asked wrongly
    except (AssertionError, BaseExceptionGroup) as fault:
        tally.faults.append(f"{operation.label} ({mode}): {fault!r}"[:4000])


def test_a_stream_of_events_is_what_it_is_documented_as(world: World) -> None:
    with requests.get(
        f"{world.running.url}/campaigns/{world.quick}/events", stream=True, timeout=60
    ) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        events: list[dict[str, Any]] = []
        name = ""
        for line in stream.iter_lines(chunk_size=1, decode_unicode=True):
            if line.startswith("event:"):
                name = line.partition(":")[2].strip()
            elif line.startswith("data:") and name == "release":
                events.append(json.loads(line.partition(":")[2]))
            if len(events) == 2:
                break
    wanted = {"slot", "slots_closed", "model_hash", "head", "entries", "spent"}
    assert all(set(one) == wanted for one in events)
    assert events[1]["slots_closed"] > events[0]["slots_closed"]
