"""Two workers on one PostgreSQL: the database alone decides, whoever comes first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from checkins.errors import ProtocolViolation
from checkins.ledger.entry import hash_model
from checkins.protocol.server import Ending, Phase
from checkins.service.authentication import hashed
from checkins.service.runs import intake, opening, slot_transitions
from checkins.service.runs.intake import CheckIn, EnrolmentRequest, Submission
from checkins.service.store import ledgers, metadata, run_state, schema
from checkins.service.store.database import Database, retry_on_conflict
from tests.support.campaigns import campaign
from tests.support.store import FaultyDatabase, House, total_of, units_of

ROUNDS = 15


@pytest.fixture
def house(migrated_postgres: str, tmp_path: Path) -> Iterator[House]:
    made = House(migrated_postgres, tmp_path)
    yield made
    with made.database.exclusive_transaction("tests") as connection:
        for table in reversed(schema.metadata.sorted_tables):
            connection.execute(table.delete())
    made.database.close()


@pytest.fixture
def crew(house: House) -> Iterator[list[Database]]:
    """Two more workers, each with connections of its own."""
    databases = [FaultyDatabase(house.url, house.clock) for _ in range(2)]
    yield databases
    for database in databases:
        database.close()


def race(*work: Callable[[], Any]) -> list[Any]:
    """Let all begin at once; what each returned or raised."""
    gate = threading.Barrier(len(work))
    found: list[Any] = [None] * len(work)

    def run(number: int) -> None:
        gate.wait(30)
        try:
            found[number] = work[number]()
        except Exception as error:
            found[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


def test_invariant_1_one_token_at_two_workers_gets_one_receipt(house: House, crew) -> None:
    spec = house.open(campaign())
    house.begin(spec, 1)
    for _ in range(ROUNDS):
        token = house.enrol(spec)

        def check_in(database: Database, token: str = token) -> Any:
            send = [CheckIn(1, token)]
            return retry_on_conflict(lambda: intake.take_check_ins(database, spec, send))[0]

        first, second = race(*(lambda d=d: check_in(d) for d in crew))
        assert isinstance(first, str), first
        assert first == second
    assert len(house.rows(schema.check_ins)) == ROUNDS
    assert house.rows(schema.tokens) == []


def test_batches_that_overlap_in_any_order_are_all_answered(house: House, crew) -> None:
    spec = house.open(campaign())
    house.begin(spec, 1)
    for _ in range(5):
        tokens = [house.enrol(spec) for _ in range(12)]

        def check_in(database: Database, order: list[str]) -> Any:
            send = [CheckIn(1, token) for token in order]
            return retry_on_conflict(lambda: intake.take_check_ins(database, spec, send))

        some, others = tokens[:9], tokens[:2:-1]
        first, second = race(
            lambda some=some: check_in(crew[0], some),
            lambda others=others: check_in(crew[1], others),
        )
        assert first[3:] == second[::-1][:6], (first, second)
    assert len(house.rows(schema.check_ins)) == 60


def test_invariant_1_a_check_in_and_a_withdrawal_at_once_leave_nothing_to_use(
    house: House, crew
) -> None:
    spec = house.open(campaign())
    house.begin(spec, 1)
    for _ in range(ROUNDS):
        token = house.enrol(spec)
        send = [CheckIn(1, token)]
        answers, gone = race(
            lambda send=send: retry_on_conflict(lambda: intake.take_check_ins(crew[0], spec, send)),
            lambda token=token: intake.withdraw(crew[1], spec.id, token),
        )
        assert gone is True
        assert isinstance(answers[0], str | ProtocolViolation)
        assert house.rows(schema.check_ins) == house.rows(schema.tokens) == []


def test_an_enrolment_at_two_workers_is_one_token(house: House, crew) -> None:
    spec = house.open(campaign())
    for number in range(ROUNDS):
        message = EnrolmentRequest(hashed(f"t{number}"), hashed(f"c{number}"), hashed("k"))
        found = race(
            *(
                lambda d=d, m=message: retry_on_conflict(
                    lambda: intake.take_enrolments(d, spec, [m])
                )
                for d in crew
            )
        )
        assert found == [[None], [None]]
    assert len(house.rows(schema.tokens)) == ROUNDS


def test_invariant_3_two_different_reports_at_two_workers_are_not_both_taken(
    house: House, crew
) -> None:
    spec = house.open(campaign(capacity=ROUNDS))
    house.begin(spec, 1)
    receipts = [house.check_in(spec, 1) for _ in range(ROUNDS)]
    house.choose(spec, 1)
    for receipt in receipts:

        def send(database: Database, units: int, receipt: str = receipt) -> Any:
            message = [Submission(1, receipt, units_of(spec, units))]
            return retry_on_conflict(lambda: intake.take_reports(database, spec, message))[0]

        found = race(lambda s=send: s(crew[0], 1), lambda s=send: s(crew[1], 2))
        assert found.count(None) == 1, found
        kept = {row.receipt: row.report for row in house.rows(schema.check_ins)}[receipt]
        taken = units_of(spec, found.index(None) + 1).astype("<i4").tobytes()
        assert kept == taken


def test_invariant_4_one_choice_is_made_however_many_workers_try(house: House, crew) -> None:
    spec = house.open(campaign(slots=ROUNDS, capacity=2, epsilon=500.0))
    for slot in range(1, ROUNDS + 1):
        house.begin(spec, slot)
        for _ in range(4):
            house.check_in(spec, slot)
        known = house.snapshot(spec)
        house.clock.now = spec.run_schedule.chooses(slot)
        race(*(lambda d=d, k=known: slot_transitions.advance(d, spec, k) for d in crew))
        assert sum(bool(row.chosen) for row in house.rows(schema.check_ins)) == 2


def test_invariant_5_one_worker_closes_a_slot_however_many_try(house: House, crew) -> None:
    spec = house.open(campaign(slots=ROUNDS, epsilon=500.0))
    for slot in range(1, ROUNDS + 1):
        house.choose(spec, slot)
        known = house.snapshot(spec)
        house.clock.now = spec.run_schedule.ends(slot)
        found = race(*(lambda d=d, k=known: slot_transitions.advance(d, spec, k) for d in crew))
        assert {snapshot.state.closed for snapshot in found} == {slot}
        assert len({snapshot.ledger.head for snapshot in found}) == 1
        assert len(house.lines(spec)) == 1 + slot
    known = house.snapshot(spec)
    found = race(*(lambda d=d: slot_transitions.finish(d, spec, known) for d in crew))
    assert {snapshot.state.ending for snapshot in found} == {Ending.COMPLETED}
    house.verified(spec, require_closed=True)


def test_invariant_6_a_report_is_in_the_sum_exactly_if_it_was_taken(house: House, crew) -> None:
    spec = house.open(campaign(kind="averaged", population=(4, 100), slots=ROUNDS))
    for slot in range(1, ROUNDS + 1):
        house.begin(spec, slot)
        receipt = house.check_in(spec, slot)
        house.choose(spec, slot)
        known = house.snapshot(spec)
        house.clock.now = spec.run_schedule.ends(slot)
        message = [Submission(slot, receipt, units_of(spec, 7))]
        taken, _ = race(
            lambda m=message: intake.take_reports(crew[0], spec, m)[0],
            lambda known=known: slot_transitions.advance(crew[1], spec, known),
        )
        total = total_of(house.entries(spec)[-1])
        if taken is None:
            assert set(total) == {7}
        else:
            assert isinstance(taken, ProtocolViolation)
            assert total is None


def test_a_check_in_is_before_the_choice_or_refused(house: House, crew) -> None:
    spec = house.open(campaign(slots=ROUNDS, epsilon=500.0))
    for slot in range(1, ROUNDS + 1):
        house.begin(spec, slot)
        send, known = [CheckIn(slot, house.enrol(spec))], house.snapshot(spec)
        house.clock.now = spec.run_schedule.chooses(slot)
        (answer,), _ = race(
            lambda m=send: intake.take_check_ins(crew[0], spec, m),
            lambda known=known: slot_transitions.advance(crew[1], spec, known),
        )
        rows = house.rows(schema.check_ins)
        assert [row.receipt for row in rows] == ([answer] if isinstance(answer, str) else [])
        assert all(row.chosen for row in rows)


def test_two_workers_open_the_next_run_once(house: House, crew) -> None:
    what = campaign(slots=1, repeats=4)
    for number in range(1, 5):
        first, second = race(
            *(lambda d=d: opening.open_run(d, what, folder=house.folder) for d in crew)
        )
        assert first.id == second.id == f"{first.id[:12]}-{number}"
        house.finish(first)
    assert len(house.rows(schema.runs)) == 4


def test_two_campaigns_for_one_population_at_once_are_not_both_opened(house: House, crew) -> None:
    for number in range(4):
        pair = [campaign(slots=1, name=name, population_id=f"population {number}") for name in "ab"]
        found = race(
            *(
                lambda d=d, c=c: opening.open_run(d, c, folder=house.folder)
                for d, c in zip(crew, pair, strict=True)
            )
        )
        assert sum(isinstance(one, opening.PopulationBusy) for one in found) == 1, found


def test_epsilons_and_points_of_two_workers_are_written_once(house: House, crew) -> None:
    spec = house.open(campaign())
    found = race(
        *(lambda d=d: run_state.add_epsilon(d, spec.id, slots=4, epsilon=1.0) for d in crew),
        *(lambda d=d: run_state.add_curve_point(d, spec.id, slots=4, metrics={}) for d in crew),
    )
    assert found == [None] * 4
    assert len(house.rows(schema.epsilons)) == len(house.rows(schema.curve)) == 1


def test_epochs_are_counted_one_by_one(house: House, crew) -> None:
    found = race(*(lambda d=d: metadata.begin_epoch(d) for d in [*crew, *crew]))
    assert sorted(found) == [2, 3, 4, 5]


def test_a_worker_that_reads_a_run_while_a_slot_closes_continues_from_its_model(
    house: House, crew: list[Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger and the model that it read are of one moment, so its next slot verifies."""
    spec = house.open(campaign())
    house.close(spec, 1)
    load = ledgers.load_ledger

    def close_a_slot_and_load(*given: Any) -> Any:
        monkeypatch.setattr(ledgers, "load_ledger", load)
        house.close(spec, 2)
        return load(*given)

    monkeypatch.setattr(ledgers, "load_ledger", close_a_slot_and_load)
    snapshot = crew[0].read(run_state.load_snapshot, spec)
    assert hash_model(snapshot.learner.model) == house.entries(spec)[1]["model_hash"]
    house.clock.now = spec.run_schedule.ends(4)
    while snapshot.state.phase is not Phase.DONE:
        snapshot = slot_transitions.advance(crew[0], spec, snapshot)
    assert house.verified(spec).ledger.running is not None


def test_a_reader_never_sees_half_a_release(house: House, crew) -> None:
    spec = house.open(campaign(slots=ROUNDS, epsilon=500.0))
    done = threading.Event()

    def read() -> list[tuple[str, str]]:
        seen = []
        while not done.is_set():
            with crew[1].read_transaction() as connection:
                learner = run_state.load_learner(connection, spec)
                lines = ledgers.ledger_lines(connection, spec.population, after=0, limit=99)
            seen.append((hash_model(learner.model), lines[-1].decode()))
        return seen

    def write() -> None:
        try:
            house.run_until(spec, spec.run_schedule.ends(ROUNDS))
        finally:
            done.set()

    seen, _ = race(read, write)
    assert all(model in line for model, line in seen if '"kind":"slot-closed"' in line)
