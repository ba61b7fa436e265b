"""Reports that are not what they should be, or not from whom, or not when: refused, each with a
problem that says why, and nothing is changed by them."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkins.errors import ProtocolViolation
from checkins.protocol.report import report_from_bytes, report_to_bytes
from tests.service.hostile.reports import malformed, tensors
from tests.service.hostile.world import World
from tests.soak import SOAK
from tests.support.raw_http import Answer

pytestmark = pytest.mark.slow

EXAMPLES = 5_000 if SOAK else 150
NAMES = sorted(malformed(11))
UNKNOWN = "0123456789abcdef0123456789abcdef"


def refused(answer: Answer, *problems: str) -> None:
    assert 400 <= answer.status < 500, answer
    assert answer.problem in problems, answer


@pytest.mark.parametrize("name", NAMES)
def test_a_malformed_report_is_refused(world: World, name: str) -> None:
    body = malformed(world.dimension)[name]
    refused(world.report(world.guests.chosen[0], body), "invalid", "refused", "too-large")


def test_a_report_is_taken_after_all_that_was_refused_and_a_retry_of_it_too(world: World) -> None:
    receipt = world.guests.chosen[1]
    for body in malformed(world.dimension).values():
        refused(world.report(receipt, body), "invalid", "refused", "too-large")
    for _ in range(3):
        answer = world.report(receipt, world.honest_report())
        assert (answer.status, answer.json()) == (200, {"status": "taken"})


def test_a_report_cannot_be_altered_once_it_is_taken(world: World) -> None:
    receipt = world.guests.chosen[2]
    assert world.report(receipt, world.honest_report(1)).status == 200
    refused(world.report(receipt, world.honest_report(2)), "refused")
    assert world.report(receipt, world.honest_report(1)).status == 200


def test_a_report_of_one_client_is_not_taken_from_another_receipt_twice(world: World) -> None:
    """Equal reports of two clients are two reports; each receipt counts once."""
    first, second = world.guests.chosen[3:5]
    for receipt in (first, second, first, second):
        assert world.report(receipt, world.honest_report(5)).status == 200


def test_who_was_not_chosen_cannot_report(world: World) -> None:
    for receipt in world.guests.dismissed:
        refused(world.report(receipt, world.honest_report()), "refused", "unknown-receipt")


def test_a_report_before_the_choice_is_refused(world: World) -> None:
    receipt = world.check_in(world.open, 1).json()["receipt"]
    refused(world.report(receipt, world.honest_report(), campaign=world.open), "refused")


def test_a_report_after_its_slot_is_refused(world: World) -> None:
    receipt = world.missed_receipt()
    view = world.ask("GET", f"/campaigns/{world.quick}").json()
    for slot in (1, view["slots_closed"], view["slots_closed"] + 1):
        refused(
            world.report(receipt, world.honest_report(), campaign=world.quick, slot=slot),
            "refused",
            "unknown-receipt",
            "not-enrolled",
        )


@pytest.mark.parametrize(
    "slot", [0, 2, 99, 100, 101, -1, 2**31, 2**63 - 1, 2**63, 2**64, 10**30, "1.5", "x", "1%00"]
)
def test_a_report_to_another_slot_is_refused(world: World, slot: object) -> None:
    answer = world.report(world.guests.chosen[0], world.honest_report(), slot=slot)
    refused(answer, "refused", "invalid", "too-early", "unknown-receipt", "not-found")


@pytest.mark.parametrize(
    "who",
    ["", UNKNOWN, "x", "'; DROP TABLE reports; --", "a" * 5000, "Bearer", "\u00ff\u00fe", "\x01"],
)
def test_a_receipt_that_nobody_has_is_refused(world: World, who: str) -> None:
    answer = world.report(who, world.honest_report())
    if answer.headers.get("content-type", "").startswith("text/plain"):
        assert answer.status == 400, "not HTTP, as the parser sees it"
        return
    refused(answer, "unknown-receipt", "not-enrolled", "refused", "invalid")


def test_a_report_without_a_receipt_is_refused(world: World) -> None:
    path = f"/campaigns/{world.main}/slots/1/report"
    answer = world.ask("PUT", path, body=world.honest_report())
    refused(answer, "unknown-receipt", "not-enrolled", "refused", "invalid")


def test_a_token_is_no_receipt(world: World) -> None:
    answer = world.report(world.token, world.honest_report())
    refused(answer, "unknown-receipt", "not-enrolled", "refused")


def test_a_receipt_means_nothing_in_another_campaign(world: World) -> None:
    receipt = world.guests.chosen[0]
    for campaign in (world.open, world.quick, world.later):
        answer = world.report(receipt, world.honest_report(), campaign=campaign)
        refused(answer, "unknown-receipt", "not-enrolled", "refused", "too-early")
        answer = world.ask("GET", f"/campaigns/{campaign}/check-ins/{receipt}?wait=0")
        refused(answer, "unknown-receipt")


def test_a_token_means_nothing_in_another_campaign(world: World) -> None:
    refused(world.check_in(world.open, 1, world.token), "not-enrolled", "refused")
    refused(world.check_in(world.later, 1, world.token), "not-enrolled", "refused", "too-early")


def test_a_spent_token_checks_in_nowhere_else(world: World) -> None:
    token = world.enrol(world.open)
    first = world.check_in(world.open, 1, token)
    assert first.status == 202
    assert world.check_in(world.open, 1, token).json() == first.json()
    for slot in (2, 3, 100):
        refused(world.check_in(world.open, slot, token), "refused", "too-early")


def test_a_slot_that_has_not_begun_takes_no_check_in(world: World) -> None:
    answer = world.check_in(world.later, 1)
    refused(answer, "too-early")
    assert int(answer.headers["retry-after"]) > 0


def test_nobody_asks_for_a_receipt_that_was_never_given(world: World) -> None:
    for receipt in (UNKNOWN, "x", "..", "%00", "%ff", "a" * 3000, world.token):
        answer = world.ask("GET", f"/campaigns/{world.main}/check-ins/{receipt}?wait=0")
        refused(answer, "unknown-receipt", "invalid", "not-found")


def test_the_model_of_a_slot_is_for_those_who_were_chosen(world: World) -> None:
    path = f"/campaigns/{world.main}/slots/1/model"
    assert world.ask("GET", path, token=world.guests.chosen[0]).status == 200
    for receipt in (world.guests.dismissed[0], world.token, UNKNOWN, "", "x" * 4000):
        refused(
            world.ask("GET", path, token=receipt),
            "refused",
            "unknown-receipt",
            "not-enrolled",
            "invalid",
        )


@contextmanager
def kept(world: World) -> Iterator[Callable[[bytes], Answer]]:
    """Reports one after the other on one connection: each refusal leaves it usable or closes it."""
    connection = http.client.HTTPConnection(*world.running.address, timeout=60)
    path = f"/campaigns/{world.main}/slots/1/report"
    headers = {
        "Authorization": f"Bearer {world.guests.chosen[5]}",
        "Content-Type": "application/octet-stream",
    }

    def send(body: bytes) -> Answer:
        connection.request("PUT", path, body, headers)
        response = connection.getresponse()
        named = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, named, response.read())

    try:
        yield send
    finally:
        connection.close()


def expected(answer: Answer, body: bytes, dimension: int) -> None:
    """A problem, unless the bytes happen to be what a client could have sent."""
    if answer.status == 200:
        report_from_bytes(body, dimension=dimension)
        return
    refused(answer, "invalid", "refused", "too-large")


anything = st.binary(max_size=2_000)
json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["report", "dtype", "shape", "data_offsets", "__metadata__", ""]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
infos = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["I32", "F32", "I64", "U8", "", None]),
        "shape": st.lists(st.integers(-1, 20) | st.integers(), max_size=3),
        "data_offsets": st.lists(st.integers(-1, 100) | st.integers(), max_size=3),
    }
)
headers = st.dictionaries(st.sampled_from(["report", "more"]), json_like | infos, max_size=2)
built = st.builds(tensors, headers, st.binary(max_size=100))


@given(data=st.data())
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_no_bytes_break_the_reading_of_reports(world: World, data: st.DataObject) -> None:
    honest = report_to_bytes(np.arange(world.dimension, dtype=np.int32))
    bodies = data.draw(st.lists(anything | built | mutated(honest), min_size=1, max_size=5))
    with kept(world) as send:
        for body in bodies:
            expected(send(body), body, world.dimension)


@given(body=anything | built)
def test_no_bytes_break_the_parser_itself(body: bytes) -> None:
    try:
        units = report_from_bytes(body, dimension=11)
    except ProtocolViolation:
        return
    assert (units.shape, units.dtype) == ((11,), np.int32)


@st.composite
def mutated(draw: st.DrawFn, honest: bytes) -> bytes:
    """An honest report with a few bytes changed, cut out or put in."""
    body = bytearray(honest)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(body)))
        piece = draw(st.binary(max_size=9))
        body[at : at + draw(st.integers(0, 9))] = piece
    return bytes(body)
