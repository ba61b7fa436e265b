"""The wire, route by route: what is asked, what is answered, what is refused and how."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry.trace import NoOpTracer, Tracer, TracerProvider

from checkins.campaign import campaign_from_canonical
from checkins.campaign.task import DEVICES
from checkins.ledger.entry import hash_model
from checkins.ledger.signature import SignedHead, SigningKey
from checkins.ledger.verification import verify
from checkins.protocol import wire
from checkins.protocol.report import model_from_bytes, report_to_bytes
from checkins.protocol.wire import parse_time
from checkins.service import logs
from checkins.service.authentication import hashed as digest_of
from checkins.service.runs import server_sent_events
from checkins.service.runs.cached_responses import CHOICES_NOTE, HOLDOUT_NOTE, not_protected_notes
from checkins.service.settings import Enrolment, EnrolmentKind
from tests.support.campaigns import AVERAGED, EVERYONE, SLIDING, START, campaign, campaign_text
from tests.support.clock import Clock
from tests.support.coordinator import OPERATOR
from tests.support.in_process import Living, Scenario, play, problem
from tests.support.waiting import PATIENCE_S, until


@pytest.fixture
def on(store: str, tmp_path: Path) -> Callable[..., None]:
    """Play a scenario on every store."""

    def run(scenario: Scenario, **how: Any) -> None:
        play(store, tmp_path, scenario, **how)

    return run


@pytest.fixture
def here(tmp_path: Path) -> Callable[..., None]:
    """Play a scenario on SQLite, where the store makes no difference."""

    def run(scenario: Scenario, **how: Any) -> None:
        play(f"sqlite:///{tmp_path}/store.db", tmp_path, scenario, **how)

    return run


def test_a_client_enrols_checks_in_is_chosen_trains_and_reports(on) -> None:
    async def scenario(it: Living) -> None:
        await it.open(capacity=1, slots=2)
        token = await it.enrol()
        await it.begin(1)
        receipt = await it.check_in(1, token)
        assert await it.outcome(receipt, wait=0) == "waiting"
        asked = asyncio.create_task(it.outcome(receipt))
        await it.choose(1)
        assert await asked == "chosen"
        model = await it.ask("GET", "/slots/1/model", receipt)
        tensors, known = model_from_bytes(model.content)
        flat = np.concatenate([tensor.ravel() for tensor in tensors.values()])
        assert known["model_hash"] == hash_model(flat)
        for _ in range(2):
            answer = await it.report(1, receipt, 5)
            assert (answer.status_code, answer.json()) == (200, {"status": "taken"})
        await it.show(1)
        latest = await it.ask("GET", "/models/latest")
        moved, known = model_from_bytes(latest.content)
        after = np.concatenate([tensor.ravel() for tensor in moved.values()])
        assert after == pytest.approx(flat - 0.5 * 5e-6)
        assert known["slot"] == "1"
        assert latest.headers["etag"] == f'W/"{hash_model(after)}"'

    on(scenario)


def test_everything_that_is_public_about_a_run_is_in_its_view(here) -> None:
    async def scenario(it: Living) -> None:
        await it.open(slots=2, repeats=2)
        view = (await it.ask("GET", "")).json()
        what = campaign(slots=2, repeats=2)
        assert set(view) == {
            *("id", "name", "seal", "population_id", "run", "repeats", "status", "campaign"),
            *("schedule", "server_time", "slots_closed", "affordable", "dimension", "tensors"),
            "signing_key",
            *("model_hash", "ledger", "epoch", "budget", "certificate", "spent", "promises"),
            *("assumptions", "next", "holding", "slots", "start", "slot_s", "enrolment"),
        }
        assert campaign_from_canonical(view["campaign"]).seal == view["seal"] == what.seal
        assert view["schedule"] == {
            "start": "2040-01-01T00:00:00.000000Z",
            "slot_s": 10.0,
            "choose_s": 4.0,
            "slots": 2,
        }
        assert (view["status"], view["run"], view["next"], view["epoch"]) == ("waiting", 1, None, 1)
        assert view["spent"] == {"epsilon": 0.0, "slots": 0}
        await it.finish()
        over = (await it.ask("GET", "")).json()
        assert (over["status"], over["slots_closed"]) == ("completed", 2)
        assert over["spent"] == {"epsilon": over["certificate"]["epsilon"], "slots": 2}
        async with asyncio.timeout(PATIENCE_S):
            while (await it.ask("GET", "")).json()["next"] is None:
                await asyncio.sleep(0.01)
        listed = (await it.http.get("/campaigns")).json()
        assert [one["id"][-2:] for one in listed["campaigns"]] == ["-2", "-1"]
        second = (await it.http.get(f"/campaigns/{listed['campaigns'][0]['id']}")).json()
        assert second["schedule"]["start"] == "2040-01-01T00:00:20.000000Z"

    here(scenario)


def test_requests_of_clients_are_refused_with_their_slugs(on) -> None:
    async def scenario(it: Living) -> None:
        await it.open(capacity=1, slots=3)
        token = await it.enrol()
        early = await it.ask("POST", "/slots/1/check-ins", token)
        assert problem(early) == (409, "too-early")
        assert int(early.headers["retry-after"]) == 100
        assert problem(await it.ask("POST", "/slots/4/check-ins", token)) == (409, "refused")
        await it.begin(1)
        assert problem(await it.ask("POST", "/slots/1/check-ins")) == (401, "not-enrolled")
        assert problem(await it.ask("POST", "/slots/1/check-ins", "x" * 32)) == (409, "refused")
        for slot in ("0", "x", "-1", "1.0", "01", str(10**13)):
            answer = await it.ask("POST", f"/slots/{slot}/check-ins", token)
            assert problem(answer) == (422, "invalid"), slot
        receipts = [await it.check_in(1) for _ in range(2)]
        assert problem(await it.report(1, receipts[0])) == (409, "refused")  # not yet
        await it.choose(1)
        told = {await it.outcome(receipt): receipt for receipt in receipts}
        assert problem(await it.ask("POST", "/slots/1/check-ins", token)) == (409, "refused")
        assert problem(await it.report(1, told["dismissed"])) == (409, "refused")
        assert problem(await it.ask("GET", "/slots/1/model", told["dismissed"])) == (409, "refused")
        assert problem(await it.ask("GET", "/slots/1/model")) == (401, "not-enrolled")
        assert problem(await it.report(2, told["chosen"])) == (409, "refused")
        assert (await it.report(1, told["chosen"], 1)).status_code == 200
        assert problem(await it.report(1, told["chosen"], 2)) == (409, "refused")
        bad = await it.ask("PUT", "/slots/1/report", told["chosen"], content=b"{}")
        assert problem(bad) == (422, "invalid")
        assert problem(await it.ask("GET", "/check-ins/" + "x" * 32)) == (404, "unknown-receipt")
        assert problem(await it.ask("GET", "/check-ins/x")) == (404, "unknown-receipt")
        for wait in ("61", "-1", "x", "nan", ""):
            answer = await it.ask("GET", f"/check-ins/{receipts[0]}?wait={wait}")
            assert problem(answer) == (422, "invalid"), wait
        await it.begin(2)
        for receipt in receipts:
            answer = await it.ask("GET", f"/check-ins/{receipt}")
            assert problem(answer) == (404, "unknown-receipt")
        assert problem(await it.report(1, told["chosen"], 1)) == (409, "refused")
        await it.finish()
        assert problem(await it.ask("POST", "/enrolments")) == (410, "over")
        assert problem(await it.ask("POST", "/slots/3/check-ins", token)) == (410, "over")
        assert problem(await it.ask("DELETE", "/enrolments", token)) == (410, "over")
        assert problem(await it.report(3, receipts[0])) == (410, "over")
        it.run = "0" * 12 + "-1"
        assert problem(await it.ask("GET", "")) == (404, "unknown-campaign")
        it.run = "x"
        assert problem(await it.ask("POST", "/enrolments")) == (404, "unknown-campaign")

    on(scenario)


def test_one_request_checks_in_waits_and_gets_the_model(on) -> None:
    async def scenario(it: Living) -> None:
        await it.open(capacity=1, slots=2)
        await it.begin(1)
        tokens = [await it.enrol() for _ in range(3)]
        path = "/slots/1/check-ins?model=true&wait="
        early = await it.ask("POST", f"{path}0", tokens[0])
        assert early.status_code == 202
        assert (early.json()["outcome"], early.json()["model"]) == ("waiting", None)
        asked = [asyncio.create_task(it.ask("POST", f"{path}60", token)) for token in tokens]
        await until(lambda: it.waiters == 3)
        await it.choose(1)
        answers = [(await answer).json() for answer in asked]
        assert answers[0]["receipt"] == early.json()["receipt"]
        assert len({answer["receipt"] for answer in answers}) == 3
        assert sorted(one["outcome"] for one in answers) == ["chosen", "dismissed", "dismissed"]
        ends = it.live_run.spec.run_schedule.ends(1)
        assert {(one["slot"], parse_time(one["ends"])) for one in answers} == {(1, ends)}
        assert all(one["model"] is None for one in answers if one["outcome"] == "dismissed")
        [chosen] = [one for one in answers if one["outcome"] == "chosen"]
        model = await it.ask("GET", "/slots/1/model", chosen["receipt"])
        assert b64decode(chosen["model"]) == model.content
        for one in answers:
            polled = await it.ask("GET", f"/check-ins/{one['receipt']}?model=true")
            assert polled.json() == one
        assert (await it.report(1, chosen["receipt"])).status_code == 200
        for query in ("model=1", "model=true&model=true", "model=true&wait=61"):
            answer = await it.ask("POST", f"/slots/1/check-ins?{query}", tokens[0])
            assert problem(answer) == (422, "invalid"), query

    on(scenario)


def test_a_large_model_is_not_sent_with_the_outcome(here, monkeypatch) -> None:
    async def scenario(it: Living) -> None:
        await it.open(capacity=1)
        await it.begin(1)
        receipt = await it.check_in(1)
        await it.choose(1)
        answer = await it.ask("GET", f"/check-ins/{receipt}?model=true")
        assert (answer.json()["outcome"], answer.json()["model"]) == ("chosen", None)

    monkeypatch.setattr(wire, "MAX_INLINE_MODEL_BYTES", 100)
    here(scenario)


def test_a_client_that_is_a_little_early_is_kept_waiting(here) -> None:
    async def scenario(it: Living) -> None:
        await it.open()
        spec = it.live_run.spec
        it.clock.now = spec.run_schedule.begins(1) - 1.9
        check_in = asyncio.create_task(it.check_in(1))
        while not it.live_run.check_ins._waiting and not check_in.done():
            await asyncio.sleep(0.01)
            it.clock.now = spec.run_schedule.begins(1)
        assert await check_in
        # and again where the slot before is not closed yet
        it.clock.now = spec.run_schedule.ends(1) - 1.0
        check_in = asyncio.create_task(it.check_in(2))
        await asyncio.sleep(0.01)
        await it.begin(2)
        assert await check_in

    here(scenario)


def test_a_client_that_waits_for_its_slot_when_the_service_stops_may_come_again(here) -> None:
    """409 would be a refusal for good, and cost it its one participation."""

    async def scenario(it: Living) -> None:
        await it.open()
        token = await it.enrol()
        it.clock.now = it.live_run.spec.run_schedule.begins(1) - 1.0
        asked = asyncio.create_task(it.ask("POST", "/slots/1/check-ins", token))
        await asyncio.sleep(0.05)
        it.runner.release_waiters()
        assert problem(await asked)[0] == 503

    here(scenario)


def test_the_same_idempotency_key_gets_the_same_token(on) -> None:
    async def scenario(it: Living) -> None:
        await it.open()
        key = {"idempotency-key": "k" * 16}
        first = await it.enrol(**key)
        assert await it.enrol(**key) == first
        assert await it.enrol(**{"idempotency-key": "k" * 17}) != first
        assert await it.enrol() != await it.enrol()
        await it.begin(1)
        await it.check_in(1, first)
        assert await it.enrol(**key) == first
        await it.begin(2)
        assert problem(await it.ask("POST", "/slots/2/check-ins", first)) == (409, "refused")
        for wrong in ("short", "x" * 201, "with a space in it", "ü" * 20):
            answer = await it.ask(
                "POST", "/enrolments", headers={"idempotency-key": wrong.encode()}
            )
            assert problem(answer) == (422, "invalid"), wrong

    on(scenario)


def test_a_listed_key_is_given_one_token_whatever_it_asks_for(on) -> None:
    async def scenario(it: Living) -> None:
        await it.open()
        assert problem(await it.ask("POST", "/enrolments")) == (401, "not-enrolled")
        assert problem(await it.ask("POST", "/enrolments", "x" * 20)) == (401, "not-enrolled")
        tokens = [(await it.ask("POST", "/enrolments", "key-number-one-of-two")) for _ in range(2)]
        assert len({answer.json()["token"] for answer in tokens}) == 1
        other = {"idempotency-key": "another-one-0123456789"}
        again = await it.ask("POST", "/enrolments", "key-number-one-of-two", headers=other)
        assert problem(again) == (409, "refused")
        second = await it.ask("POST", "/enrolments", "key-number-two-of-two", headers=other)
        assert second.status_code == 201
        assert second.json()["token"] != tokens[0].json()["token"]

    keys = frozenset(digest_of(f"key-number-{number}-of-two") for number in ("one", "two"))
    on(scenario, enrolment=Enrolment(kind=EnrolmentKind.ALLOW_LIST, allow_list=keys))


def test_the_shared_secret_enrols_many(here) -> None:
    async def scenario(it: Living) -> None:
        await it.open()
        answers = [await it.ask("POST", "/enrolments", "s" * 20) for _ in range(3)]
        assert len({answer.json()["token"] for answer in answers}) == 3
        assert problem(await it.ask("POST", "/enrolments", "t" * 20)) == (401, "not-enrolled")

    here(scenario, enrolment=Enrolment(kind=EnrolmentKind.SECRET, secret="s" * 20))


def test_withdrawal_spends_the_token_and_erases_what_it_has_in_the_slot(on) -> None:
    async def scenario(it: Living) -> None:
        await it.open(**AVERAGED)
        await it.begin(1)
        tokens = [await it.enrol() for _ in range(3)]
        receipts = [await it.check_in(1, token) for token in tokens[:2]]
        assert (await it.ask("DELETE", "/enrolments", tokens[2])).status_code == 204
        assert problem(await it.ask("DELETE", "/enrolments", tokens[2])) == (409, "refused")
        assert problem(await it.ask("DELETE", "/enrolments")) == (401, "not-enrolled")
        await it.choose(1)
        for receipt in receipts:
            assert (await it.report(1, receipt)).status_code == 200
        assert (await it.ask("DELETE", "/enrolments", tokens[0])).status_code == 204
        assert problem(await it.report(1, receipts[0])) == (409, "refused")
        await it.show(1)
        lines = (await it.ask("GET", "/ledger")).content.splitlines()
        assert json.loads(lines[-1])["contributors"] == 1

    on(scenario)


def test_the_ledger_is_served_byte_for_byte_and_verifies(on) -> None:
    async def scenario(it: Living) -> None:
        await it.open(slots=3)
        await it.finish()
        answer = await it.ask("GET", "/ledger")
        assert answer.headers["content-type"] == "application/x-ndjson"
        lines = answer.content.splitlines(keepends=True)
        view = (await it.ask("GET", "")).json()
        verified = verify(lines, head=view["ledger"]["head"], require_closed=True)
        assert len(lines) == view["ledger"]["entries"] == 5
        assert verified.certificate.epsilon == pytest.approx(view["certificate"]["epsilon"])
        rest = await it.ask("GET", "/ledger?after=3")
        assert rest.content == b"".join(lines[3:])
        assert (await it.ask("GET", "/ledger?after=99")).content == b""
        for after in ("-1", "x", "1.5", str(10**17)):
            answer = await it.ask("GET", f"/ledger?after={after}")
            assert problem(answer) == (422, "invalid"), after

    on(scenario)


def test_every_public_head_is_signed_with_the_key_of_the_service(on, tmp_path: Path) -> None:
    key = SigningKey.generate(SigningKey.generate())
    key.write(tmp_path / "signing.key")

    async def scenario(it: Living) -> None:
        await it.open(slots=3)
        await it.show(1)
        view = (await it.ask("GET", "")).json()
        assert view["signing_key"] == key.public_key
        for entries in (1, 2):
            plain = (await it.ask("GET", f"/ledger/heads/{entries}")).json()
            answer = await it.ask("GET", f"/ledger/heads/{entries}/signature")
            signed = SignedHead.parse(answer.content, place="here")
            signed.check(
                trusted_key=key.rotations[0].old,
                population=it.live_run.spec.population,
                place="here",
            )
            assert {"entries": signed.entries, "head": signed.head} == plain
        answer = await it.ask("GET", "/ledger/heads/3/signature")
        assert problem(answer) == (404, "unknown-entry")

    on(scenario, signing_key=tmp_path / "signing.key")


def test_without_a_key_nothing_is_signed(here) -> None:
    async def scenario(it: Living) -> None:
        await it.open()
        assert (await it.ask("GET", "")).json()["signing_key"] is None
        answer = await it.ask("GET", "/ledger/heads/1/signature")
        assert problem(answer) == (404, "unknown-path")

    here(scenario)


def test_a_model_that_is_already_here_is_not_sent_again(here) -> None:
    async def scenario(it: Living) -> None:
        await it.open()
        first = await it.ask("GET", "/models/latest")
        tag = {"if-none-match": first.headers["etag"]}
        assert (await it.ask("GET", "/models/latest", headers=tag)).status_code == 304
        await it.show(1)
        assert (await it.ask("GET", "/models/latest", headers=tag)).status_code == 200

    here(scenario)


def test_only_the_operator_opens_stops_and_measures(here) -> None:
    async def scenario(it: Living) -> None:
        text = campaign_text(slots=6)
        for bearer in (None, "x" * 20):
            post = await it.ask("POST", "//campaigns", bearer, content=text)
            assert problem(post) == (401, "not-operator")
            assert problem(await it.ask("GET", "//metrics", bearer)) == (401, "not-operator")
        opened = await it.ask("POST", "//campaigns", OPERATOR, content=text)
        assert opened.status_code == 201
        it.run = opened.json()["id"]
        again = await it.ask("POST", "//campaigns", OPERATOR, content=text)
        assert (again.status_code, again.json()["id"]) == (201, it.run)
        other = await it.ask("POST", "//campaigns", OPERATOR, content=campaign_text(slots=7))
        assert problem(other) == (409, "refused")
        for body in (b"", b"\xff\xfe", b"schema = 1", b"x" * 1000):
            answer = await it.ask("POST", "//campaigns", OPERATOR, content=body)
            assert problem(answer) == (422, "invalid"), body
        metrics = await it.ask("GET", "//metrics", OPERATOR)
        assert metrics.headers["content-type"].startswith("text/plain")
        assert it.run in metrics.text
        assert problem(await it.ask("DELETE", "")) == (401, "not-operator")
        await it.begin(2)
        stopped = await it.ask("DELETE", "", OPERATOR)
        assert stopped.status_code == 200
        await it.turn(it.clock.now, lambda: it.live_run.public_snapshot.state.ending is not None)
        view = (await it.ask("GET", "")).json()
        assert (view["status"], view["slots_closed"]) == ("stopped", 1)
        lines = (await it.ask("GET", "/ledger")).content.splitlines(keepends=True)
        assert verify(lines, require_closed=True).certificate.epsilon == pytest.approx(
            view["certificate"]["epsilon"]
        )

    here(scenario)


def test_a_start_that_has_passed_cannot_be_opened_by_the_operator(here) -> None:
    async def scenario(it: Living) -> None:
        answer = await it.ask("POST", "//campaigns", OPERATOR, content=campaign_text())
        assert problem(answer) == (422, "invalid")
        assert "has passed" in answer.json()["detail"]

    here(scenario, clock=Clock(START.timestamp() + 1))


def test_health_tells_the_epoch(here, tmp_path: Path) -> None:
    async def scenario(it: Living) -> None:
        told = (await it.http.get("/healthz")).json()
        assert told == {"status": "ok", "epoch": it.runner.epoch, "holding": None}

    here(scenario)
    here(scenario)


def test_a_second_coordinator_on_the_store_goes_on_where_the_first_one_was(on) -> None:
    clock, seen = Clock(), {}

    async def first(it: Living) -> None:
        await it.open(slots=3, capacity=1)
        seen["early"], seen["late"] = await it.enrol(), await it.enrol()
        await it.begin(1)
        seen["receipt"] = await it.check_in(1, seen["early"])
        await it.choose(1)
        assert await it.outcome(seen["receipt"]) == "chosen"
        seen["run"] = it.run

    async def second(it: Living) -> None:
        it.run = seen["run"]
        assert (await it.ask("GET", "")).json()["epoch"] == 2
        assert await it.outcome(seen["receipt"], wait=2) == "chosen"
        assert (await it.report(1, seen["receipt"])).status_code == 200
        await it.begin(2)
        again = await it.ask("POST", "/slots/2/check-ins", seen["early"])
        assert problem(again) == (409, "refused")
        assert await it.check_in(2, seen["late"])
        await it.finish()

    on(first, clock=clock)
    on(second, clock=clock)


def test_when_it_stops_every_long_poll_and_every_listener_is_answered(here) -> None:
    async def scenario(it: Living) -> None:
        await it.open()
        await it.begin(1)
        receipt = await it.check_in(1)
        polls = [asyncio.create_task(it.outcome(receipt, wait=60)) for _ in range(5)]
        events = asyncio.create_task(it.ask("GET", "/events"))
        await until(lambda: it.waiters == 6)
        it.runner.release_waiters()
        async with asyncio.timeout(PATIENCE_S):
            assert await asyncio.gather(*polls) == ["waiting"] * 5
            assert (await events).status_code == 200

    here(scenario)


def told(text: str) -> list[tuple[str, dict[str, Any]]]:
    """The events of a stream."""
    found = []
    for block in text.strip().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if lines:
            found.append((lines["event"], json.loads(lines["data"])))
    return found


Told = list[tuple[str, dict[str, Any]]]


def of_kind(kind: str, events: Told) -> list[dict[str, Any]]:
    return [data for name, data in events if name == kind]


async def heard(stream: AsyncIterator[bytes], kind: str, **last: Any) -> Told:
    """The events up to the first of this kind that says this."""
    events: Told = []
    async with asyncio.timeout(PATIENCE_S):
        async for block in stream:
            events += told(block.decode())
            if events and events[-1][0] == kind and last.items() <= events[-1][1].items():
                return events
    raise AssertionError(f"the stream ended before {kind} {last}")


async def ledger_of(it: Living) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (await it.ask("GET", "/ledger")).content.splitlines()]


def test_events_tell_each_release_once_and_the_end(here) -> None:
    """Whoever counts `release` counts releases: another epsilon and the end are events `state`."""

    async def scenario(it: Living) -> None:
        await it.open(slots=3)
        await it.show(1)  # before anybody listens
        stream = server_sent_events.events(it.live_run, it.runner)
        events = await heard(stream, "state", slots_closed=1)
        await it.show(2)
        events += await heard(stream, "release", slot=2)
        it.live_run.epsilons = [(3, 0.25)]  # another epsilon is known, and nothing else has changed
        it.live_run.wake()
        events += await heard(stream, "state", slots_closed=2)
        await it.finish()
        head = (await it.ask("GET", "")).json()["ledger"]["head"]
        events += await heard(stream, "state", head=head)
        releases, states = of_kind("release", events), of_kind("state", events)
        assert [release["slot"] for release in releases] == [2, 3]
        assert [state["slots_closed"] for state in states] == [1, 2, 3]
        assert states[1]["spent"] == {"epsilon": 0.25, "slots": 3}
        assert [data["status"] for data in of_kind("status", events)] == ["running", "completed"]
        assert releases[-1]["model_hash"] == states[-1]["model_hash"]
        lines = await ledger_of(it)
        for release in releases:
            assert release["head"] == lines[release["entries"] - 1]["hash"]
            assert release["slot"] == lines[release["entries"] - 1]["slot"]

    here(scenario)


def test_releases_that_a_slow_reader_missed_are_told_too(here) -> None:
    async def scenario(it: Living) -> None:
        await it.open(slots=4)
        stream = server_sent_events.events(it.live_run, it.runner)
        await heard(stream, "state", slots_closed=0)  # and reads no further for a while
        for slot in (1, 2, 3):
            await it.show(slot)
        await it.finish()
        events = await heard(stream, "release", slot=4)
        releases, lines = of_kind("release", events), await ledger_of(it)
        assert [release["slot"] for release in releases] == [1, 2, 3, 4]
        for release in releases:
            line = lines[release["entries"] - 1]
            assert (line["slot"], line["hash"]) == (release["slot"], release["head"])
            assert line["model_hash"] == release["model_hash"]

    here(scenario)


def test_slots_from_which_nothing_is_released_are_no_releases(here) -> None:
    async def scenario(it: Living) -> None:
        await it.open(**SLIDING)
        stream = server_sent_events.events(it.live_run, it.runner)
        events = await heard(stream, "state", slots_closed=0)
        for slot in (1, 2):
            await it.show(slot)
            events += await heard(stream, "state", slots_closed=slot)
        await it.show(3)
        events += await heard(stream, "release", slot=3)
        assert [release["slot"] for release in of_kind("release", events)] == [3]

    here(scenario)


def test_the_head_of_the_ledger_can_be_asked_for_at_any_length(on) -> None:
    async def scenario(it: Living) -> None:
        await it.open(slots=3)
        await it.finish()
        lines = await ledger_of(it)
        assert [line["kind"] for line in lines] == ["opened", *["slot-closed"] * 3, "closed"]
        for line in lines:
            answer = await it.ask("GET", f"/ledger/heads/{line['entry']}")
            assert answer.json() == {"entries": line["entry"], "head": line["hash"]}
        assert problem(await it.ask("GET", "/ledger/heads/6")) == (404, "unknown-entry")
        for wrong in ("0", "-1", "x", "1e3", "1" + "0" * 16):
            assert problem(await it.ask("GET", f"/ledger/heads/{wrong}")) == (422, "invalid")

    on(scenario)


def test_invariant_7_a_head_is_shown_no_earlier_than_its_release(here) -> None:
    async def scenario(it: Living) -> None:
        await it.open(slots=2)
        await it.choose(1)
        await it.turn(
            it.live_run.spec.run_schedule.ends(1), lambda: it.live_run.snapshot.state.closed == 1
        )
        assert it.live_run.public_snapshot.ledger.entries == 1
        assert problem(await it.ask("GET", "/ledger/heads/2")) == (404, "unknown-entry")
        await it.show(1)
        assert (await it.ask("GET", "/ledger/heads/2")).status_code == 200

    here(scenario)


@pytest.mark.parametrize("given", [{}, EVERYONE, SLIDING], ids=["fixed", "everyone", "sliding"])
def test_invariant_7_nothing_public_tells_who_was_there(here, given) -> None:
    """Slot 3 is empty and slot 4 full: what is shown differs in digits and hashes alone."""
    shapes: dict[int, list[Any]] = {3: [], 4: []}

    def shape(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: shape(item) for key, item in value.items()}
        if isinstance(value, list):
            return [shape(item) for item in value]
        return len(value) if isinstance(value, str) else type(value).__name__

    async def scenario(it: Living) -> None:
        await it.open(**{"slots": 5, **given})
        stream = asyncio.create_task(it.ask("GET", "/events"))
        await it.show(2)
        for slot, clients in ((3, 0), (4, 6)):
            await it.begin(slot)
            receipts = [await it.check_in(slot) for _ in range(clients)]
            await it.choose(slot)
            for receipt in receipts:
                if await it.outcome(receipt) == "chosen":
                    await it.report(slot, receipt)
            await it.show(slot)
            view = (await it.ask("GET", "")).json()
            del view["promises"], view["assumptions"]  # the same words throughout
            line = (await it.ask("GET", f"/ledger?after={slot}")).content
            model = await it.ask("GET", "/models/latest")
            shapes[slot] = [
                shape(view),
                shape(json.loads(line)),
                len(model.content),
                sorted(model.headers),
                shape((await it.ask("GET", "/progress")).json()["releases"][-1]),
            ]
        await asyncio.sleep(0.05)
        it.runner.release_waiters()
        for name, data in told((await stream).text):
            if name == "release" and data["slot"] in shapes:
                shapes[data["slot"]].append(shape({**data, "spent": None}))

    here(scenario)
    assert shapes[3] == shapes[4]
    assert len(shapes[3]) >= 6


def test_invariant_7_a_release_is_shown_at_its_time_and_not_as_soon_as_it_is_durable(here) -> None:
    """However long a slot takes to close, which may depend on who was there."""

    async def scenario(it: Living) -> None:
        await it.open(slots=2)
        for slot in (1, 2):
            await it.choose(slot)
            await it.turn(
                it.live_run.spec.run_schedule.ends(slot),
                lambda slot=slot: it.live_run.snapshot.state.closed == slot,
            )
            if slot == 2:
                await it.turn(it.clock.now, lambda: it.live_run.is_over)
            await asyncio.sleep(0.05)
            view = (await it.ask("GET", "")).json()
            assert view["slots_closed"] == slot - 1, slot
            lines = (await it.ask("GET", "/ledger")).content.splitlines()
            assert len(lines) == slot
            await it.show(slot)

    here(scenario)


def test_invariant_7_progress_holds_no_release_that_is_not_shown_yet(here) -> None:
    async def scenario(it: Living) -> None:
        await it.open(slots=3)
        await it.choose(1)
        await it.turn(
            it.live_run.spec.run_schedule.ends(1), lambda: it.live_run.snapshot.state.closed == 1
        )
        assert it.live_run.public_snapshot.state.closed == 0
        assert (await it.ask("GET", "/progress")).json()["releases"] == []

    here(scenario)


def test_progress_has_the_latest_releases_also_when_the_run_is_over(here) -> None:
    async def scenario(it: Living) -> None:
        await it.open(slots=3)
        await it.show(2)
        shown = (await it.ask("GET", "/progress")).json()["releases"]
        assert [release["slot"] for release in shown] == [1, 2]
        await it.finish()
        shown = (await it.ask("GET", "/progress")).json()["releases"]
        assert [release["slot"] for release in shown] == [1, 2, 3]

    here(scenario)


def test_progress_of_a_run_is_its_own_also_after_a_restart(here) -> None:
    clock, seen = Clock(), {}

    async def first(it: Living) -> None:
        seen["run"] = await it.open(slots=3, repeats=2)
        await it.finish()
        await it.turn(it.clock.now, lambda: it.live_run.next_run is not None)
        it.run = it.live_run.next_run or ""
        await it.show(1)

    async def second(it: Living) -> None:
        it.run = seen["run"]
        answer = (await it.ask("GET", "/progress")).json()
        assert [release["slot"] for release in answer["releases"]] == [1, 2, 3]

    here(first, clock=clock)
    here(second, clock=clock)


def test_epsilons_are_computed_in_another_process_and_shown(here) -> None:
    async def scenario(it: Living) -> None:
        await it.open(slots=2)
        await it.turn(it.clock.now, lambda: len(it.live_run.epsilons) == 2)
        shown = (await it.ask("GET", "/progress")).json()["spending"]
        assert [point["slots"] for point in shown] == [1, 2]
        await it.show(1)
        view = (await it.ask("GET", "")).json()
        assert view["spent"] == shown[0]

    here(scenario, with_epsilons=True)


def test_a_holdout_is_named_only_if_there_is_one() -> None:
    described = campaign()
    assert described.task is not None
    of_devices = replace(described, task=replace(described.task, data=DEVICES, model="own:initial"))
    assert not_protected_notes(described) == (HOLDOUT_NOTE, CHOICES_NOTE)
    assert not_protected_notes(of_devices) == (CHOICES_NOTE,)


def test_the_learning_curve_is_measured_on_the_public_holdout(here) -> None:
    async def scenario(it: Living) -> None:
        await it.open(slots=2)
        await it.show(1)
        await it.turn(it.clock.now, lambda: len(it.live_run.curve) > 0)
        (point, *_) = (await it.ask("GET", "/progress")).json()["curve"]
        assert point["slots"] == 1
        assert {"loss", "accuracy"} <= set(point["metrics"])

    here(scenario)


def test_a_store_that_is_away_is_busy_and_the_clock_goes_on_when_it_is_back(here) -> None:
    from sqlalchemy.exc import OperationalError

    async def scenario(it: Living) -> None:
        await it.open()
        token = await it.enrol()
        await it.begin(1)
        faults = it.faults

        def away() -> None:
            raise OperationalError("SELECT 1", {}, OSError("away"))

        faults["shared"] = away
        answer = await it.ask("POST", "/slots/1/check-ins", token)
        assert problem(answer) == (503, "busy")
        assert "retry-after" in answer.headers
        del faults["shared"]
        assert await it.check_in(1, token)
        faults["exclusive"] = away
        it.clock.now = it.live_run.spec.run_schedule.ends(1)
        await asyncio.sleep(0.15)
        assert it.live_run.snapshot.state.closed == 0
        del faults["exclusive"]
        await it.show(1)

    here(scenario)


def test_a_report_may_be_as_long_as_its_model_and_no_longer(here) -> None:
    async def scenario(it: Living) -> None:
        await it.open(capacity=1)
        await it.begin(1)
        receipt = await it.check_in(1)
        await it.choose(1)
        for size in (12, 5000):
            body = report_to_bytes(np.ones(size, dtype=np.int32))
            answer = await it.ask("PUT", "/slots/1/report", receipt, content=body)
            expected = (422, "invalid") if size == 12 else (413, "too-large")
            assert problem(answer) == expected
        assert (await it.report(1, receipt)).status_code == 200

    here(scenario)


def test_the_openapi_document_names_every_route_of_the_contract(here) -> None:
    async def scenario(it: Living) -> None:
        document = (await it.http.get("/openapi.json")).json()
        assert document["openapi"].startswith("3.1")
        run = "/campaigns/{run}"
        assert {
            (method.upper(), path) for path, item in document["paths"].items() for method in item
        } >= {
            ("GET", "/campaigns"),
            ("POST", "/campaigns"),
            ("GET", run),
            ("GET", f"{run}/progress"),
            ("POST", f"{run}/enrolments"),
            ("DELETE", f"{run}/enrolments"),
            ("POST", f"{run}/slots/{{slot}}/check-ins"),
            ("GET", f"{run}/check-ins/{{receipt}}"),
            ("GET", f"{run}/slots/{{slot}}/model"),
            ("PUT", f"{run}/slots/{{slot}}/report"),
            ("GET", f"{run}/models/latest"),
            ("GET", f"{run}/ledger"),
            ("GET", f"{run}/ledger/heads/{{entries}}"),
            ("GET", f"{run}/events"),
            ("GET", "/metrics"),
            ("GET", "/healthz"),
            ("GET", "/readyz"),
        }

    here(scenario)


def test_no_tracer_of_the_process_hears_who_came_to_which_slot(here, monkeypatch) -> None:
    """FastAPI would tell any provider of OpenTelemetry the path and the address of each request."""
    asked: list[str] = []

    class Provider(TracerProvider):
        def get_tracer(self, *args: Any, **kwargs: Any) -> Tracer:
            asked.append(str(args))
            return NoOpTracer()

    provider = Provider()
    monkeypatch.setattr("opentelemetry.trace.get_tracer_provider", lambda: provider)

    async def scenario(it: Living) -> None:
        await it.open(slots=2)
        await it.begin(1)
        await it.check_in(1, await it.enrol())

    here(scenario)
    assert asked == []


def test_a_path_with_a_slash_at_its_end_is_another_path(here) -> None:
    """A redirect would lead to whatever host the request names."""

    async def scenario(it: Living) -> None:
        await it.open()
        for method, path in (("POST", "//campaigns/"), ("GET", "/"), ("GET", "//healthz/")):
            answer = await it.ask(method, path, OPERATOR, headers={"host": "evil.example"})
            assert problem(answer) == (404, "unknown-path"), path
            assert "evil" not in answer.text + str(answer.headers)

    here(scenario)


def test_a_wrong_method_is_told_every_method_of_the_path(here) -> None:
    async def scenario(it: Living) -> None:
        await it.open()
        for path, allowed in (
            ("//campaigns", "GET, HEAD, POST"),
            ("", "DELETE, GET, HEAD"),
            ("/enrolments", "DELETE, POST"),
            ("/events", "GET"),
            ("//healthz", "GET, HEAD"),
            ("//readyz", "GET, HEAD"),
            ("//openapi.json", "GET, HEAD"),
        ):
            for method in ("OPTIONS", "PATCH"):
                answer = await it.ask(method, path)
                assert problem(answer) == (405, "wrong-method")
                assert answer.headers["allow"] == allowed, path

    here(scenario)


def test_head_is_answered_like_get_where_nothing_waits_or_streams(here) -> None:
    async def scenario(it: Living) -> None:
        await it.open()
        run = f"/campaigns/{it.run}"
        for path in ("/", "/healthz", "/readyz", "/campaigns", run, f"{run}/models/latest"):
            shown, head = await it.http.get(path), await it.http.head(path)
            assert (shown.status_code, head.status_code) == (200, 200), path
            assert head.headers == shown.headers, path
        for path in ("/events", "/ledger", "/check-ins/" + "x" * 32, "//metrics"):
            assert (await it.ask("HEAD", path)).status_code == 405, path
        it.run = "0" * 12 + "-1"
        assert (await it.ask("HEAD", "")).status_code == 404
        document = (await it.http.get("/openapi.json")).json()
        assert {method for item in document["paths"].values() for method in item} == {
            *("get", "post", "put", "delete")
        }

    here(scenario)


def test_a_report_that_is_none_is_invalid_and_the_place_of_the_client_stays(here) -> None:
    async def scenario(it: Living) -> None:
        await it.open(capacity=1)
        await it.begin(1)
        receipt = await it.check_in(1)
        await it.choose(1)
        for body in (b"", b"junk", report_to_bytes(np.ones(12, dtype=np.int32))):
            answer = await it.ask("PUT", "/slots/1/report", receipt, content=body)
            assert problem(answer) == (422, "invalid"), body
            assert "Error" not in answer.json()["detail"]
        assert (await it.report(1, receipt)).status_code == 200

    here(scenario)


def test_the_log_tells_of_each_run_once_when_it_is_opened_and_when_it_is_stopped(
    here, tmp_path: Path
) -> None:
    async def scenario(it: Living) -> None:
        text = campaign_text(slots=6, repeats=2)
        for _ in range(2):
            answer = await it.ask("POST", "//campaigns", OPERATOR, content=text)
            it.run = answer.json()["id"]
        await it.begin(2)
        for _ in range(2):
            assert (await it.ask("DELETE", "", OPERATOR)).status_code == 200
        await it.turn(it.clock.now, lambda: '"over"' in (tmp_path / "log").read_text())

    with logs.configure(tmp_path / "log", strict=True):
        here(scenario)
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert len({line["campaign"] for line in lines}) == 1
    told = {line["event"]: line for line in lines}
    assert [line["event"] for line in lines if line["event"] != "over"] == ["opened", "stopped"]
    assert (told["opened"]["slots"], told["stopped"]["slots_closed"]) == (6, 1)
    assert told["over"]["status"] == "stopped"
