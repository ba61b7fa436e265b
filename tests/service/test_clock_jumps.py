"""While the clock is in doubt nothing is closed and nobody's participation is spent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkins.service import authentication, startup
from checkins.service.runs import clock_jumps
from checkins.service.startup import Start
from checkins.service.store import metadata, schema
from checkins.service.store import time_source as store_clock
from checkins.service.store.database import Database
from tests.support.campaigns import START, campaign
from tests.support.clock import Clocks
from tests.support.coordinator import OPERATOR
from tests.support.in_process import Living, play, problem, settings
from tests.support.postgres import Postgres
from tests.support.store import House
from tests.support.waiting import until

HOUR = 3600.0


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    found = House(f"sqlite:///{tmp_path}/store.db", tmp_path)
    yield found
    found.database.close()


@pytest.mark.parametrize("set_by", [HOUR, -HOUR])
def test_a_clock_that_was_set_closes_nothing_and_spends_nothing(
    house: House, set_by: float
) -> None:
    spec = house.open(campaign(slots=4))
    house.play(spec, 1, clients=2)
    before = house.lines(spec)
    clocks = Clocks(house.clock.now)
    clocks.give(house.database)
    clocks.set(set_by)
    house.database.synchronise_clock()
    clocks.passes(2 * spec.run_schedule.slot_s)  # slots are due by the steady clock too
    for _ in range(10):
        assert house.tick(spec).state.closed == 1
    assert house.lines(spec) == before
    assert house.snapshot(spec).ledger.running is not None


@pytest.mark.parametrize("set_by", [HOUR, -HOUR])
def test_once_the_clock_agrees_again_each_slot_that_passed_is_closed_once(
    house: House, set_by: float
) -> None:
    spec = house.open(campaign(slots=4))
    house.play(spec, 1, clients=2)
    clocks = Clocks(house.clock.now)
    clocks.give(house.database)
    clocks.set(set_by)
    house.database.synchronise_clock()
    clocks.passes(2 * spec.run_schedule.slot_s)
    house.tick(spec)
    clocks.set(-set_by)
    house.database.synchronise_clock()
    for _ in range(10):
        house.tick(spec)
    assert house.snapshot(spec).state.closed == 3  # the fourth is not over
    closed = [entry["slot"] for entry in house.entries(spec) if "slot" in entry]
    assert closed == [1, 2, 3]
    assert house.verified(spec, head=house.snapshot(spec).ledger.head).ledger.entries == 4


def test_a_clock_that_jumps_holds_check_ins_slots_and_epsilons_and_says_so(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def scenario(it: Living) -> None:
        await it.open(slots=4)
        await it.begin(1)
        waiting = await it.check_in(1)
        clocks = Clocks(it.clock.now)
        clocks.give(it.runner.database)
        database, watch = it.runner.database, it.runner.clock_jumps

        async def until_it_holds(expected: bool) -> None:
            await until(lambda: (watch.holding_reason is not None) is expected)

        clocks.set(HOUR)
        await until_it_holds(True)
        clocks.passes(2 * it.live_run.spec.run_schedule.slot_s)
        token = await it.enrol()
        answer = await it.ask("POST", "/slots/1/check-ins", token)
        assert problem(answer) == (503, "busy")
        assert "set forward by 3,600 s" in answer.json()["detail"]
        assert await it.outcome(waiting, wait=0) == "waiting"
        view = (await it.ask("GET", "")).json()
        assert "set forward by 3,600 s" in view["holding"]
        assert (view["slots_closed"], view["spent"]["epsilon"]) == (0, 0.0)
        assert view["server_time"] < "2040-01-01T00:01"  # devices would take their slots for missed
        assert (await it.ask("GET", "//healthz")).json()["holding"] == view["holding"]
        metrics = await it.ask("GET", "//metrics", OPERATOR)
        assert "checkins_clock_off_seconds 3600.0" in metrics.text
        clocks.set(-HOUR)
        await until_it_holds(False)
        async with asyncio.timeout(60):
            while it.live_run.public_snapshot.state.closed < 2:
                await asyncio.sleep(0.002)
                clocks.passes(0.01)  # a release is shown at its time
        assert (await it.ask("GET", "")).json()["holding"] is None
        assert (await it.ask("GET", "//healthz")).json()["holding"] is None
        hashed = authentication.hashed(token)
        with database.read_transaction() as connection:
            unspent = connection.execute(schema.tokens.select()).all()
        assert hashed in {row.token for row in unspent}

    play(f"sqlite:///{tmp_path}/store.db", tmp_path, scenario, log_file=log)


def test_a_run_that_is_watched_is_told_that_it_holds(tmp_path: Path) -> None:
    async def scenario(it: Living) -> None:
        await it.open(slots=4)
        clocks = Clocks(it.clock.now)
        clocks.give(it.runner.database)
        from checkins.service.runs.server_sent_events import events

        heard = events(it.live_run, it.runner)
        assert '"holding": null' in (await anext(heard)).decode()
        await anext(heard)  # the release so far
        clocks.set(-HOUR)
        assert "set back by 3,600 s" in (await anext(heard)).decode()
        clocks.set(HOUR)
        assert '"holding": null' in (await anext(heard)).decode()
        await heard.aclose()

    play(f"sqlite:///{tmp_path}/store.db", tmp_path, scenario)


def test_the_log_tells_when_holding_begins_and_ends(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    from checkins.service.metrics import Metrics

    house.open(campaign(slots=4))
    clocks = Clocks(house.clock.now)
    clocks.give(house.database)
    watch = clock_jumps.ClockJumpReporter(house.database, Metrics())
    for set_by in (0.0, 5.0, 0.0, -5.0, 0.0):
        clocks.set(set_by)
        clock_jumps.compare_clocks(house.database)
        watch.report_changes()
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    told = [(line["level"], line["event"], line.get("seconds")) for line in lines]
    assert told[-2:] == [("warning", "clock-jumped", 5.0), ("info", "clock-agrees", None)]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    """The clocks of every process, on one boot."""
    clocks = Clocks(START.timestamp() - 100.0)
    monkeypatch.setattr(store_clock, "calendar_s", lambda: clocks.calendar)
    monkeypatch.setattr(store_clock, "steady_s", lambda: clocks.steady)
    monkeypatch.setattr(store_clock, "boot_id", lambda: "first-boot")
    return clocks


def started(tmp_path: Path, **how: bool) -> bool:
    """Whether a coordinator that is started now, and each of its workers, holds."""
    chosen = settings(f"sqlite:///{tmp_path}/store.db", tmp_path)
    startup.prepare(chosen, None, start=Start(), **how)
    return worker_holds(chosen.store)


def worker_holds(store: str) -> bool:
    worker = Database(store)
    clock_jumps.start(worker)
    worker.close()
    return worker.clock.is_holding


def opened(tmp_path: Path) -> str:
    chosen = settings(f"sqlite:///{tmp_path}/store.db", tmp_path)
    startup.prepare(chosen, campaign(slots=4), start=Start())
    return chosen.store


def test_a_restart_does_not_confirm_a_clock_that_jumped(tmp_path: Path, machine: Clocks) -> None:
    store = opened(tmp_path)
    machine.passes(10.0)
    machine.set(HOUR)
    assert worker_holds(store)
    assert started(tmp_path)
    machine.set(-HOUR)
    assert not started(tmp_path)


def test_an_operator_can_say_that_the_clock_is_right(tmp_path: Path, machine: Clocks) -> None:
    opened(tmp_path)
    machine.set(HOUR)
    assert started(tmp_path)
    assert not started(tmp_path, trust_clock=True)
    assert not started(tmp_path)  # said once
    machine.set(-HOUR)
    assert started(tmp_path)


def test_a_boot_makes_a_new_start(
    tmp_path: Path, machine: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(tmp_path)
    machine.steady, machine.calendar = 5.0, machine.calendar + HOUR
    monkeypatch.setattr(store_clock, "boot_id", lambda: "second-boot")
    assert not started(tmp_path)


def test_where_no_boot_has_a_name_a_restart_believes_the_calendar(
    tmp_path: Path, machine: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_clock, "boot_id", lambda: None)
    opened(tmp_path)
    machine.set(HOUR)
    assert not started(tmp_path)


def test_while_no_run_is_open_the_calendar_is_believed(tmp_path: Path, machine: Clocks) -> None:
    assert not started(tmp_path)
    machine.set(HOUR)
    assert not started(tmp_path)


def test_a_calendar_that_drifts_is_kept_up_with(house: House, machine: Clocks) -> None:
    """A worker that is started weeks later finds the setting of now, not of then."""
    house.open(campaign(slots=4))
    machine.give(house.database)
    for _ in range(100):
        machine.passes(60.0)
        machine.set(0.06)
        clock_jumps.compare_clocks(house.database)
    assert not house.database.clock.is_holding
    assert not worker_holds(house.url)


def test_postgresqls_clock_is_compared_and_this_machines_is_not(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = House(postgres.create(), tmp_path)
    house.open(campaign(slots=4))
    database = Database(house.url)
    clock_jumps.start(database)
    database.clock.calendar = lambda: 0.0
    clock_jumps.compare_clocks(database)
    assert not database.clock.is_holding
    ahead = "SELECT extract(epoch FROM clock_timestamp()) + 3600"
    monkeypatch.setattr("checkins.service.store.database.CLOCK_QUERY", ahead)
    before = database.now()
    clock_jumps.compare_clocks(database)
    assert database.clock.calendar_ahead_s == pytest.approx(HOUR, abs=60.0)
    assert database.now() - before < HOUR / 2
    with database.read_transaction() as connection:
        assert metadata.read(connection, metadata.EPOCH_ENTRY) is not None
    database.close()
    house.database.close()
