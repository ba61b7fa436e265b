"""What operators change while the service runs: keys, tokens, and the log of who did what."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from checkins.ledger import InvalidLedger
from checkins.ledger.operator_log import LogHead, OperatorAction, check_log
from checkins.service.authentication import Enrolment, EnrolmentKind, hashed
from checkins.service.runs import operator_actions
from checkins.service.store import operators
from checkins.service.store.database import Database
from tests.support.campaigns import campaign_text
from tests.support.coordinator import OPERATOR
from tests.support.in_process import Living, play, problem

FIRST, SECOND, THIRD = (f"key-number-{number}-of-three" for number in ("one", "two", "three"))
ALICE, BOB, READER = "alice-" + 20 * "a", "bob-" + 20 * "b", "reader-" + 20 * "c"
On = Callable[..., None]


def listing(*keys: str) -> Enrolment:
    return Enrolment(
        kind=EnrolmentKind.ALLOW_LIST, allow_list=frozenset(hashed(key) for key in keys)
    )


@pytest.fixture
def on(store: str, tmp_path: Path) -> On:
    """Run a scenario on each store."""

    def run(scenario: Callable[[Living], Awaitable[None]], *keys: str) -> None:
        play(store, tmp_path, scenario, enrolment=listing(*keys))

    return run


async def change(it: Living, what: str, *keys: str, by: str = OPERATOR) -> Any:
    body = {"keys": [f"sha256:{hashed(key)}" for key in keys]}
    answer = await it.ask("POST", f"//allow-list/{what}", by, json=body)
    return answer.json() if answer.is_success else problem(answer)


async def enrols(it: Living, key: str, idempotency_key: str | None = None) -> Any:
    headers = {} if idempotency_key is None else {"idempotency-key": idempotency_key}
    answer = await it.ask("POST", "/enrolments", key, headers=headers)
    return answer.json()["token"] if answer.is_success else problem(answer)


async def add(it: Living, name: str, token: str, role: str = "operator", **how: Any) -> Any:
    body = {"token": f"sha256:{hashed(token)}", "role": role}
    answer = await it.ask("PUT", f"//operators/{name}", how.get("by", OPERATOR), json=body)
    return answer.json() if answer.is_success else problem(answer)


async def log_of(it: Living, by: str = OPERATOR) -> list[dict[str, Any]]:
    answer = await it.ask("GET", "//operator-log", by)
    _, actions = check_log(answer.content.splitlines(keepends=True), path="log")
    return actions


REFUSED = (401, "not-enrolled")


def test_a_key_that_was_added_enrols_and_one_that_was_revoked_does_not(on: On) -> None:
    async def scenario(it: Living) -> None:
        await it.open()
        assert await enrols(it, SECOND) == REFUSED
        assert await change(it, "additions", SECOND, FIRST) == {"changed": 1, "keys": 2}
        assert isinstance(await enrols(it, SECOND), str)
        assert await change(it, "revocations", FIRST, THIRD) == {"changed": 1, "keys": 1}
        assert await enrols(it, FIRST) == REFUSED  # although it is in the file
        assert (await it.ask("GET", "//allow-list", OPERATOR)).json() == {"keys": 1}

    on(scenario, FIRST)


def test_a_revoked_key_does_not_even_get_its_own_token_again(on: On) -> None:
    async def scenario(it: Living) -> None:
        await it.open()
        assert isinstance(await enrols(it, FIRST, "idempotency-key-1"), str)
        await change(it, "revocations", FIRST)
        assert await enrols(it, FIRST, "idempotency-key-1") == REFUSED

    on(scenario, FIRST)


def test_a_key_that_is_added_again_has_not_got_its_participation_back(on: On) -> None:
    async def scenario(it: Living) -> None:
        await it.open()
        token = await enrols(it, FIRST, "idempotency-key-1")
        await it.begin(1)
        receipt = await it.check_in(1, token)
        await change(it, "revocations", FIRST)
        await change(it, "additions", FIRST)
        assert await enrols(it, FIRST, "idempotency-key-2") == (409, "refused")
        assert await enrols(it, FIRST, "idempotency-key-1") == token
        assert await it.check_in(1, token) == receipt  # spent: the same check-in, not another one

    on(scenario, FIRST)


def test_a_revocation_survives_a_restart_with_the_same_file(store: str, tmp_path: Path) -> None:
    async def before(it: Living) -> None:
        await change(it, "revocations", FIRST)
        await change(it, "additions", SECOND)

    async def after(it: Living) -> None:
        await it.open()
        assert await enrols(it, FIRST) == REFUSED
        assert isinstance(await enrols(it, SECOND), str)

    for scenario in (before, after):
        play(store, tmp_path, scenario, enrolment=listing(FIRST))


def test_a_request_that_passed_the_first_look_is_refused_when_the_key_is_revoked_meanwhile(
    on: On,
) -> None:
    """The transaction that would issue the token decides, not what was read before it."""

    async def scenario(it: Living) -> None:
        await it.open()
        submit = it.live_run.enrolments.submit

        async def late(message: Any) -> None:
            await change(it, "revocations", FIRST)
            await submit(message)

        it.live_run.enrolments.submit = late  # type: ignore[method-assign]
        assert await enrols(it, FIRST) == REFUSED

    on(scenario, FIRST)


def test_no_more_keys_are_added_than_the_population_of_an_open_run(on: On) -> None:
    async def scenario(it: Living) -> None:
        await it.open(population=(1, 2))
        assert await change(it, "additions", SECOND, THIRD) == (422, "invalid")
        assert await enrols(it, SECOND) == REFUSED  # nothing of the request was saved
        assert await change(it, "additions", SECOND) == {"changed": 1, "keys": 2}
        assert await change(it, "revocations", FIRST) == {"changed": 1, "keys": 1}
        assert await change(it, "additions", THIRD) == {"changed": 1, "keys": 2}

    on(scenario, FIRST)


def test_revoking_keys_makes_no_room_for_more_clients_than_declared(on: On) -> None:
    async def scenario(it: Living) -> None:
        await it.open(population=(1, 1))
        assert isinstance(await enrols(it, FIRST), str)
        await change(it, "revocations", FIRST)
        assert await change(it, "additions", SECOND) == {"changed": 1, "keys": 1}
        assert await enrols(it, SECOND) == (409, "refused")

    on(scenario, FIRST)


def test_a_run_is_not_opened_on_fewer_clients_than_there_are_keys(on: On) -> None:
    async def scenario(it: Living) -> None:
        await change(it, "additions", SECOND)
        with pytest.raises(ValueError, match="is longer than the population"):
            await it.open(population=(1, 1))
        await it.open(population=(1, 2))

    on(scenario, FIRST)


def test_only_hashes_of_keys_are_taken(on: On) -> None:
    async def scenario(it: Living) -> None:
        for keys in ([FIRST], ["sha256:xy"], [1], "sha256:" + 64 * "a", None):
            answer = await it.ask("POST", "//allow-list/additions", OPERATOR, json={"keys": keys})
            assert problem(answer) == (422, "invalid")
            assert FIRST not in answer.text

    on(scenario)


def test_without_an_allow_list_there_are_no_keys_to_change(store: str, tmp_path: Path) -> None:
    async def scenario(it: Living) -> None:
        assert await change(it, "additions", FIRST) == (409, "refused")
        assert problem(await it.ask("GET", "//allow-list", OPERATOR)) == (409, "refused")

    play(store, tmp_path, scenario)


def test_several_named_tokens_are_valid_at_a_time_and_each_can_be_revoked(on: On) -> None:
    async def scenario(it: Living) -> None:
        assert problem(await it.ask("GET", "//operators", ALICE)) == (401, "not-operator")
        assert await add(it, "alice", ALICE) == {"name": "alice", "role": "operator"}
        assert await add(it, "alice", ALICE) == {"name": "alice", "role": "operator"}
        assert await add(it, "bob", BOB, by=ALICE) == {"name": "bob", "role": "operator"}
        listed = (await it.ask("GET", "//operators", BOB)).json()["operators"]
        assert [each["name"] for each in listed] == ["alice", "bob"]
        assert (await it.ask("DELETE", "//operators/alice", BOB)).status_code == 204
        for method, path in (("GET", "//operators"), ("GET", "//metrics"), ("POST", "//campaigns")):
            assert problem(await it.ask(method, path, ALICE)) == (401, "not-operator")
        assert (await it.ask("GET", "//operators", BOB)).status_code == 200
        assert problem(await it.ask("DELETE", "//operators/alice", BOB)) == (
            404,
            "unknown-operator",
        )

    on(scenario)


def test_a_token_for_metrics_reads_only_the_metrics(on: On) -> None:
    async def scenario(it: Living) -> None:
        await it.open()
        await add(it, "prometheus", READER, "metrics")
        assert (await it.ask("GET", "//metrics", READER)).status_code == 200
        for method, path in (
            *(("GET", "//operators"), ("GET", "//allow-list"), ("GET", "//operator-log")),
            *(("POST", "//campaigns"), ("DELETE", ""), ("PUT", "//operators/eve")),
            *(("DELETE", "//operators/prometheus"), ("POST", "//allow-list/additions")),
        ):
            assert problem(await it.ask(method, path, READER)) == (401, "not-operator"), path

    on(scenario, FIRST)


def test_names_and_tokens_are_those_of_one_operator(on: On) -> None:
    async def scenario(it: Living) -> None:
        await add(it, "alice", ALICE)
        assert await add(it, "alice", BOB) == (409, "refused")
        assert await add(it, "alice", ALICE, "metrics") == (409, "refused")
        assert await add(it, "bob", ALICE) == (409, "refused")
        for reserved in ("token-file", "machine"):
            assert await add(it, reserved, BOB) == (409, "refused")
        for name in ("Alice", "a b", "-a", 41 * "a"):
            assert await add(it, name, BOB) == (422, "invalid")
        assert await add(it, "bob", BOB, "root") == (422, "invalid")

    on(scenario)


def test_the_store_has_hashes_of_tokens_and_nothing_else(store: str, tmp_path: Path) -> None:
    async def scenario(it: Living) -> None:
        await add(it, "alice", ALICE)
        rows = it.runner.database.read(
            lambda connection: connection.execute(operators.operators.select()).all()
        )
        assert [tuple(row) for row in rows] == [("alice", hashed(ALICE), "operator")]

    play(store, tmp_path, scenario)


def test_every_action_is_logged_with_who_and_when(on: On) -> None:
    async def scenario(it: Living) -> None:
        run = await it.open()
        await add(it, "alice", ALICE)
        await change(it, "additions", SECOND, THIRD, by=ALICE)
        await change(it, "additions", SECOND, by=ALICE)  # changes nothing
        await change(it, "revocations", FIRST, by=ALICE)
        assert (await it.ask("DELETE", "", ALICE)).status_code == 200
        assert (await it.ask("DELETE", "", ALICE)).status_code == 200  # it is stopped already
        assert (await it.ask("DELETE", "//operators/alice", OPERATOR)).status_code == 204
        actions = await log_of(it)
        assert [(each["operator"], each["action"]) for each in actions] == [
            ("token-file", "operator-added"),
            ("alice", "keys-added"),
            ("alice", "keys-revoked"),
            ("alice", "campaign-stopped"),
            ("token-file", "operator-revoked"),
        ]
        assert actions[1]["count"] == 2
        assert actions[3]["campaign"] == run
        assert all(each["time"].endswith("Z") for each in actions)
        text = json.dumps(actions)
        for secret in (ALICE, FIRST, SECOND, THIRD):
            assert secret not in text
            assert hashed(secret) not in text  # invariant 8: nothing about a client

    on(scenario, FIRST)


def test_a_posted_campaign_is_logged_as_opened_by_its_operator(on: On) -> None:
    async def scenario(it: Living) -> None:
        await add(it, "alice", ALICE)
        for _ in range(2):  # the second time it is open already
            answer = await it.ask("POST", "//campaigns", ALICE, content=campaign_text())
            assert answer.status_code == 201
        *_, opened = await log_of(it)
        assert (opened["operator"], opened["action"]) == ("alice", "campaign-opened")
        assert opened["campaign"] == answer.json()["id"]
        assert opened["entry"] == 2

    on(scenario)


def test_actions_of_several_workers_make_one_chain(store: str, tmp_path: Path) -> None:
    async def scenario(it: Living) -> None:
        workers = [Database(it.runner.database.url) for _ in range(4)]

        def act(number: int) -> None:
            operator_actions.add_operator(
                workers[number % 4], f"o{number}", hashed(str(number)), "metrics", operator="alice"
            )

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(act, range(12)))
        for worker in workers:
            worker.close()
        assert [each["entry"] for each in await log_of(it)] == list(range(1, 13))

    play(store, tmp_path, scenario)


def log_lines() -> list[bytes]:
    head, lines = LogHead(), []
    for number in range(4):
        head, line = head.append(
            OperatorAction.KEYS_ADDED, operator="alice", time="2026-01-01T00:00:00Z", count=number
        )
        lines.append(line)
    return lines


@pytest.mark.parametrize(
    "tamper",
    [
        lambda lines: lines[1:],
        lambda lines: [lines[0], *lines[2:]],
        lambda lines: [lines[0], lines[2], lines[1], lines[3]],
        lambda lines: [*lines[:2], lines[2].replace(b"alice", b"mallo"), lines[3]],
        lambda lines: [*lines[:3], lines[3].replace(b'"count":3', b'"count":9')],
        lambda lines: [lines[0].replace(b'"count":0,', b'"count":0, '), *lines[1:]],
        lambda lines: [*lines, b"{}\n"],
        lambda lines: [*lines, lines[3]],
    ],
)
def test_a_log_that_was_changed_is_refused(
    tamper: Callable[[list[bytes]], list[bytes]],
) -> None:
    assert check_log(log_lines(), path="log")[0].entries == 4
    with pytest.raises(InvalidLedger, match="log:"):
        check_log(tamper(log_lines()), path="log")


def test_an_action_has_exactly_its_own_details() -> None:
    for details in ({}, {"count": 1, "key": "a"}, {"count": "sha256:" + 64 * "a"}, {"count": True}):
        with pytest.raises(ValueError, match="must be"):
            LogHead().append(OperatorAction.KEYS_ADDED, operator="a", time="t", **details)
