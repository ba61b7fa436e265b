"""A slot closes in memory that does not grow with its reports; what does not fit is refused."""

from __future__ import annotations

import asyncio
import resource
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from sqlalchemy import bindparam, update

from checkins.errors import InvalidValue
from checkins.protocol.report import report_to_bytes
from checkins.service.authentication import hashed
from checkins.service.runs import intake, memory_limits, opening, report_sum, slot_transitions
from checkins.service.runs.intake import CheckIn, EnrolmentRequest
from checkins.service.runs.memory_limits import MIB, MemoryBudget, needed_bytes
from checkins.service.store import schema
from checkins.service.store.run_state import RunSpec
from tests.support.campaigns import (
    AVERAGED,
    BANDS,
    CORRELATED,
    EVERYONE,
    campaign,
    campaign_text,
)
from tests.support.coordinator import OPERATOR
from tests.support.in_process import play, problem
from tests.support.store import House, total_of
from tests.support.waiting import until

LARGE = 20_000


@pytest.fixture
def dimension(monkeypatch: pytest.MonkeyPatch) -> int:
    """Campaigns whose model has this many numbers."""
    model = SimpleNamespace(shapes={"w": (LARGE,)}, start=lambda seed: np.zeros(LARGE))
    monkeypatch.setattr(opening, "model_of", lambda task, folder: model)
    return LARGE


def fill(house: House, spec: RunSpec, count: int, report: Callable[[int], np.ndarray]) -> None:
    """Slot 1 with so many chosen clients whose reports are in, as the store holds them."""
    house.begin(spec, 1)
    tokens = [hashed(f"token-{number}") for number in range(count)]
    intake.take_enrolments(house.database, spec, [EnrolmentRequest(token) for token in tokens])
    receipts = intake.take_check_ins(house.database, spec, [CheckIn(1, t) for t in tokens])
    house.choose(spec, 1)
    rows = ({"b": receipt, "c": report(n).tobytes()} for n, receipt in enumerate(receipts))
    here = schema.check_ins
    with house.database.exclusive_transaction(spec.id) as connection:
        for row in rows:
            connection.execute(
                update(here)
                .where(here.c.run == spec.id, here.c.receipt == bindparam("b"))
                .values(report=bindparam("c")),
                row,
            )


def peak_of(work: Callable[[], object]) -> int:
    """The most memory that some work had allocated at once, in bytes."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        work()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def test_a_slot_that_uses_everyone_closes_in_bounded_memory(
    house: House, dimension: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 MB of reports, 1 MiB at a time."""
    monkeypatch.setattr(memory_limits, "BATCH_BYTES", MIB)
    spec = house.open(campaign(**EVERYONE))
    fill(house, spec, 200, lambda n: np.full(dimension, n, dtype="<i4"))
    house.clock.now = spec.run_schedule.ends(1)
    snapshot = house.snapshot(spec)
    peak = peak_of(lambda: slot_transitions.advance(house.database, spec, snapshot))
    assert house.snapshot(spec).state.closed == 1
    assert (
        peak
        < 2 * MIB
        + memory_limits.MODEL_BYTES_PER_COORDINATE * dimension
        + memory_limits.CHECK_IN_BYTES * 200
    )


def test_dummies_are_drawn_in_bounded_memory(
    tmp_path: Path, dimension: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_limits, "BATCH_BYTES", MIB)
    house = House(f"sqlite:///{tmp_path}/store.db", tmp_path)
    spec = house.open(campaign(capacity=80))  # 6.4 MB of dummies
    house.choose(spec, 1)
    house.clock.now = spec.run_schedule.ends(1)
    snapshot = house.snapshot(spec)
    peak = peak_of(lambda: slot_transitions.advance(house.database, spec, snapshot))
    house.database.close()
    assert peak < 2 * MIB + memory_limits.MODEL_BYTES_PER_COORDINATE * dimension


@pytest.mark.parametrize(
    ("given", "own"),
    [(EVERYONE, 1), (AVERAGED, 0), ({"capacity": 17}, 7)],
    ids=["everyone", "averaged", "capacity"],
)
def test_sums_of_batches_are_exact(
    house: House, given, own: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where they need 64 bits; ``own`` counts what the server draws itself."""
    drawn: list[np.ndarray] = []

    def draw_dummies(count, sampler, draw=report_sum.draw_dummies):
        dummies = draw(count, sampler)
        drawn.extend(dummy.values.astype(np.int64) for dummy in dummies)
        return dummies

    def draw_expiry(slot, sampler, draw=slot_transitions.draw_expiry):
        event = draw(slot, sampler)
        drawn.extend([] if event.noise is None else [event.noise.values])
        return event

    monkeypatch.setattr(report_sum, "draw_dummies", draw_dummies)
    monkeypatch.setattr(slot_transitions, "draw_dummies", draw_dummies)
    monkeypatch.setattr(slot_transitions, "draw_expiry", draw_expiry)
    monkeypatch.setattr(memory_limits, "BATCH_BYTES", 3 * 4 * 11)  # three reports of eleven numbers
    spec = house.open(campaign(**given))
    reports = np.random.default_rng(3).integers(-(2**31), 2**31, (10, 11), dtype=np.int32)
    fill(house, spec, 10, lambda n: reports[n])
    house.close(spec, 1)
    entry = house.entries(spec)[-1]
    expected = sum(drawn, reports.astype(np.int64).sum(axis=0))
    assert (total_of(entry) == expected).all()
    assert (
        len(drawn)
        == {2: 1, 0: 0, 17: 7}[17 if given.get("capacity") == 17 else 0 if "kind" in given else 2]
    )
    assert entry.get("contributors") == (10 if "kind" in given else None)


def test_a_run_that_does_not_fit_is_refused_when_it_is_opened(
    house: House, dimension: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_limits, "allowed_bytes", lambda: 100 * MIB)
    with pytest.raises(InvalidValue) as refused:
        house.open(campaign())
    said = str(refused.value)
    assert "memory = '100 MiB': is too little for a model of 20,000 numbers" in said
    assert "may need 308 MiB in each worker: use a smaller model or population, or allow" in said
    assert house.rows(schema.runs) == []


def test_a_run_that_is_open_goes_on_with_less_memory(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = house.open(campaign())
    monkeypatch.setattr(memory_limits, "allowed_bytes", lambda: 1)
    house.restart()
    assert house.open(campaign()).id == spec.id
    house.close(spec, 1)


def test_a_posted_campaign_that_does_not_fit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_limits, "allowed_bytes", lambda: 100 * MIB)

    async def scenario(it) -> None:
        bearer = {"authorization": f"Bearer {OPERATOR}"}
        answer = await it.http.post("/campaigns", content=campaign_text(), headers=bearer)
        assert problem(answer) == (422, "invalid")
        assert "memory = '100 MiB': is too little" in answer.json()["detail"]

    play(f"sqlite:///{tmp_path}/store.db", tmp_path, scenario)


def test_a_larger_model_or_population_needs_more() -> None:
    def spec(dimension: int, population: tuple[int, int] | None = None) -> RunSpec:
        return RunSpec(campaign(population=population), 1, {"w": (dimension,)}, 4)

    assert (
        memory_limits.needed_bytes(spec(10))
        < memory_limits.needed_bytes(spec(10**6))
        < memory_limits.needed_bytes(spec(10**7))
    )
    few, many = (memory_limits.needed_bytes(spec(10**6, (1, most))) for most in (2, 10**6))
    assert few < many
    assert few < memory_limits.needed_bytes(spec(10**6))


def test_the_least_limit_that_is_set_is_what_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = tmp_path / "memory.max"
    monkeypatch.setattr(memory_limits, "CONTROL_GROUP_LIMIT_FILES", (group, tmp_path / "absent"))
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY,) * 2)
    group.write_text("max\n")
    machine = memory_limits.allowed_bytes()
    assert 64 * MIB < machine < 2**62
    group.write_text(f"{50 * MIB}\n")
    assert memory_limits.allowed_bytes() == 50 * MIB
    limits = {
        resource.RLIMIT_AS: memory_limits.MAPPED_UNUSED_BYTES + 45 * MIB,
        resource.RLIMIT_DATA: 40 * MIB,
    }
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limits[kind], 2**40))
    assert memory_limits.allowed_bytes() == 40 * MIB
    limits[resource.RLIMIT_DATA] = resource.RLIM_INFINITY
    assert memory_limits.allowed_bytes() == 45 * MIB
    limits[resource.RLIMIT_AS] = 100 * MIB  # less than a worker maps without using it
    assert memory_limits.allowed_bytes() == 0


def test_room_is_lent_in_the_order_in_which_it_was_asked_for() -> None:
    async def main() -> None:
        room, seen = MemoryBudget(10), []
        gates = [asyncio.Event() for _ in range(4)]

        async def hold(name: int, size: int) -> None:
            async with room.reserve(size):
                seen.append(name)
                await gates[name].wait()

        tasks = [asyncio.create_task(hold(n, size)) for n, size in enumerate((6, 6, 1, 99))]
        await asyncio.sleep(0)
        assert seen == [0]  # the last but one would fit, and waits for its turn
        gates[0].set()
        await tasks[0]
        await asyncio.sleep(0)
        assert seen == [0, 1, 2]
        gates[1].set()
        gates[2].set()
        await asyncio.gather(*tasks[1:3])
        await asyncio.sleep(0)
        assert seen == [0, 1, 2, 3]  # larger than all of it: alone
        gates[3].set()
        await tasks[3]

    asyncio.run(main())


@pytest.mark.parametrize("granted", [False, True])
def test_whoever_leaves_the_queue_for_room_holds_nobody_up(granted: bool) -> None:
    async def main() -> None:
        room, first = MemoryBudget(1), asyncio.Event()

        async def hold(until: asyncio.Event) -> None:
            async with room.reserve(1):
                await until.wait()

        holder = asyncio.create_task(hold(first))
        await asyncio.sleep(0)
        gone, last = (asyncio.create_task(hold(asyncio.Event())) for _ in range(2))
        await asyncio.sleep(0)
        if granted:  # its turn has come, and it has not run since
            first.set()
            await holder
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        first.set()
        await holder
        await asyncio.sleep(0)
        assert room._waiting == type(room._waiting)()
        last.cancel()
        await asyncio.gather(last, return_exceptions=True)
        async with asyncio.timeout(60), room.reserve(1):
            pass

    asyncio.run(main())


def test_a_report_is_not_read_before_there_is_room_for_it(tmp_path: Path) -> None:
    async def scenario(it) -> None:
        await it.open(capacity=1)
        await it.begin(1)
        receipt = await it.check_in(1)
        await it.choose(1)
        read = asyncio.Event()

        async def body():
            read.set()
            yield report_to_bytes(np.zeros(11, dtype=np.int32))

        async with it.runner.report_memory.reserve(memory_limits.MAX_RECEIVED_BYTES):
            sent = asyncio.create_task(it.ask("PUT", "/slots/1/report", receipt, content=body()))
            await until(lambda: it.runner.report_memory._waiting)
            assert not sent.done()
            with it.runner.database.read_transaction() as connection:
                held = connection.execute(schema.check_ins.select()).one().report
            assert held is None
        assert (await sent).status_code == 200

    play(f"sqlite:///{tmp_path}/store.db", tmp_path, scenario)


@pytest.mark.parametrize("bearer", ["stranger", "early", "dismissed", "other slot"])
def test_room_is_for_reports_of_those_who_were_chosen(tmp_path: Path, bearer: str) -> None:
    """Anyone can send a body slowly, and would keep the reports of others waiting with it."""

    async def scenario(it) -> None:
        await it.open(capacity=1)
        await it.begin(1)
        receipts = [await it.check_in(1) for _ in range(2)]
        slot = 2 if bearer == "other slot" else 1
        if bearer in ("dismissed", "other slot"):
            await it.choose(1)
        outcomes = {(await it.outcome(receipt, wait=0)): receipt for receipt in receipts}
        credential = {
            "stranger": "nobody-gave-this-receipt",
            "early": receipts[0],
            "dismissed": outcomes.get("dismissed"),
            "other slot": outcomes.get("chosen"),
        }[bearer]

        read = asyncio.Event()

        async def body():
            read.set()
            yield report_to_bytes(np.zeros(11, dtype=np.int32))

        answer = await it.ask("PUT", f"/slots/{slot}/report", credential, content=body())
        assert problem(answer) == (409, "refused")
        assert not read.is_set()

    play(f"sqlite:///{tmp_path}/store.db", tmp_path, scenario)


def test_one_receipt_holds_room_for_one_report(tmp_path: Path) -> None:
    async def scenario(it) -> None:
        await it.open(capacity=1)
        await it.begin(1)
        receipt = await it.check_in(1)
        await it.choose(1)
        go_on, reading = asyncio.Event(), []
        whole = report_to_bytes(np.zeros(11, dtype=np.int32))

        async def slowly():
            reading.append(it.runner.report_memory._reserved)
            await go_on.wait()
            yield whole

        sent = [
            asyncio.create_task(it.ask("PUT", "/slots/1/report", receipt, content=slowly()))
            for _ in range(5)
        ]
        await until(lambda: reading)
        for _ in range(100):  # time enough for the others to be read, if they were
            await asyncio.sleep(0.001)
        assert reading == [4 * 11]
        go_on.set()
        codes = [(await task).status_code for task in sent]
        assert codes == [200, 200, 429, 429, 429]  # one more may wait; the rest is told at once
        assert not it.live_run._report_locks
        assert it.runner.report_memory._reserved == 0

    play(f"sqlite:///{tmp_path}/store.db", tmp_path, scenario)


def test_a_run_needs_memory_for_the_earlier_sums_of_correlated_noise(tmp_path: Path) -> None:
    """At least the exact sum and the noisy sum of each earlier slot: 16 bytes per number."""
    house = House(f"sqlite:///{tmp_path}/store.db", tmp_path)
    specs = [
        house.open(campaign(population_id=name, **given))
        for name, given in (("one", EVERYONE), ("two", CORRELATED))
    ]
    independent, correlated = map(needed_bytes, specs)
    assert correlated - independent >= 16 * specs[1].dimension * (len(BANDS) - 1)
    house.database.close()
