"""No more clients enrol in a run than its campaign says there are; on every store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from checkins.errors import InvalidValue, ProtocolViolation
from checkins.protocol.rules import MAX_ENROLLED
from checkins.service import startup
from checkins.service.authentication import hashed
from checkins.service.runs import intake
from checkins.service.runs.intake import EnrolmentRequest
from checkins.service.settings import Enrolment as Admission
from checkins.service.settings import EnrolmentKind
from checkins.service.store import schema
from checkins.service.store.database import retry_on_conflict
from checkins.service.store.run_state import RunSpec
from tests.support.campaigns import AVERAGED, SLIDING, campaign, campaign_text
from tests.support.coordinator import OPERATOR
from tests.support.in_process import play, problem, settings
from tests.support.store import FaultyDatabase, House

FEW = (2, 3)


def enrolled(house: House, spec: RunSpec, messages: list[EnrolmentRequest]) -> list[bool]:
    """Whether each was given a token."""
    answers = retry_on_conflict(lambda: intake.take_enrolments(house.database, spec, messages))
    assert all(answer is None or "no more clients may enrol" in str(answer) for answer in answers)
    return [answer is None for answer in answers]


def strangers(count: int, name: str = "token") -> list[EnrolmentRequest]:
    return [EnrolmentRequest(hashed(f"{name}-{number}")) for number in range(count)]


def with_keys(count: int) -> list[EnrolmentRequest]:
    return [
        EnrolmentRequest(hashed(f"t{number}"), hashed(f"c{number}"), hashed(f"k{number}"))
        for number in range(count)
    ]


@pytest.mark.parametrize(
    "given", [{}, {**AVERAGED}, {**SLIDING}], ids=["fixed", "averaged", "sliding"]
)
def test_nobody_enrols_beyond_the_declared_population(house: House, given) -> None:
    spec = house.open(campaign(**{**given, "population": FEW}))
    assert enrolled(house, spec, strangers(2)) == [True, True]
    assert enrolled(house, spec, strangers(3, "more")) == [True, False, False]
    house.restart()
    (refusal,) = intake.take_enrolments(house.database, spec, strangers(1, "late"))
    assert isinstance(refusal, ProtocolViolation)
    assert "at most 3 of them" in str(refusal)
    assert len(house.rows(schema.tokens)) == 3


def test_without_a_declared_population_only_the_width_of_sums_is_a_limit(house: House) -> None:
    spec = house.open(campaign())
    assert spec.most_enrolled == MAX_ENROLLED
    assert all(enrolled(house, spec, strangers(50)))


def test_a_retry_is_counted_once_and_answered_when_the_run_is_full(house: House) -> None:
    spec = house.open(campaign(population=FEW))
    everyone = with_keys(4)
    for _ in range(3):
        assert enrolled(house, spec, everyone[:2] * 2) == [True] * 4
    assert enrolled(house, spec, everyone) == [True, True, True, False]
    assert enrolled(house, spec, everyone) == [True, True, True, False]
    assert [row.clients for row in house.rows(schema.enrolled_counts)] == [3]


def test_a_place_is_not_given_again_after_a_check_in_or_a_withdrawal(house: House) -> None:
    spec = house.open(campaign(population=FEW))
    house.begin(spec, 1)
    spent, gone, _ = (house.enrol(spec) for _ in range(3))
    house.check_in(spec, 1, spent)
    assert intake.withdraw(house.database, spec.id, gone)
    assert enrolled(house, spec, strangers(1)) == [False]
    house.begin(spec, 2)
    assert enrolled(house, spec, strangers(1)) == [False]


def test_each_run_has_places_for_the_whole_population(house: House) -> None:
    again = campaign(slots=1, repeats=2, population=FEW)
    first = house.open(again)
    assert sum(enrolled(house, first, strangers(5))) == 3
    house.finish(first)
    second = house.open(again)
    assert sum(enrolled(house, second, strangers(5))) == 3


def test_workers_that_enrol_at_once_stay_within_the_population(house: House) -> None:
    spec = house.open(campaign(population=(2, 20)))
    others = [FaultyDatabase(house.url, house.clock) for _ in range(4)]

    def enrol(worker: int) -> int:
        given = 0
        for turn in range(10):
            messages = strangers(3, f"{worker}-{turn}")
            answers = retry_on_conflict(
                lambda messages=messages: intake.take_enrolments(others[worker], spec, messages)
            )
            given += answers.count(None)
        return given

    with ThreadPoolExecutor(len(others)) as threads:
        assert sum(threads.map(enrol, range(len(others)))) == 20
    assert len(house.rows(schema.tokens)) == 20
    for other in others:
        other.close()


def test_how_many_have_enrolled_is_forgotten_when_a_run_is_over(house: House) -> None:
    spec = house.open(campaign(population=FEW))
    house.enrol(spec)
    house.finish(spec)
    assert house.rows(schema.enrolled_counts) == []


def listing(count: int) -> Admission:
    keys = frozenset(hashed(f"key-of-client-{number:04}") for number in range(count))
    return Admission(kind=EnrolmentKind.ALLOW_LIST, allow_list=keys)


def test_an_allow_list_longer_than_the_population_is_refused_at_the_start(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/store.db"
    what, start = campaign(population=FEW), startup.Start()
    short, long = (settings(store, tmp_path, enrolment=listing(count)) for count in (3, 4))
    with pytest.raises(InvalidValue, match=r"allow_list = '4 keys': is longer than the population"):
        startup.prepare(long, what, start=start)
    assert startup.prepare(short, what, start=start) is not None
    for campaign_again in (what, None):  # the run is open, and found in the store
        with pytest.raises(InvalidValue, match="longer than the population"):
            startup.prepare(long, campaign_again, start=start)
    assert startup.prepare(short, None, start=start) is None


def test_the_service_says_that_a_run_is_full_and_shows_no_count(tmp_path: Path) -> None:
    async def scenario(it) -> None:
        await it.open(population=FEW)
        before = (await it.http.get(f"/campaigns/{it.live_run.spec.id}")).json()
        for _ in range(3):
            await it.enrol()
        refused = await it.ask("POST", "/enrolments")
        assert problem(refused) == (409, "refused")
        assert "at most 3 of them" in refused.json()["detail"]
        after = (await it.http.get(f"/campaigns/{it.live_run.spec.id}")).json()
        assert {**before, "server_time": ""} == {**after, "server_time": ""}

    play(f"sqlite:///{tmp_path}/store.db", tmp_path, scenario)


def test_a_posted_campaign_is_refused_where_the_allow_list_is_longer(tmp_path: Path) -> None:
    async def scenario(it) -> None:
        text = campaign_text(population=FEW)
        bearer = {"authorization": f"Bearer {OPERATOR}"}
        answer = await it.http.post("/campaigns", content=text, headers=bearer)
        assert problem(answer) == (422, "invalid")
        assert "longer than the population" in answer.json()["detail"]

    play(f"sqlite:///{tmp_path}/store.db", tmp_path, scenario, enrolment=listing(4))
