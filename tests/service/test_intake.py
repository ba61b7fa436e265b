"""Check-ins, reports, enrolments and withdrawals, as the store keeps them; on every store."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from checkins.errors import ProtocolViolation
from checkins.service.authentication import hashed
from checkins.service.runs import intake
from checkins.service.runs.intake import CheckIn, EnrolmentRequest, Submission
from checkins.service.store import participants, schema
from checkins.service.store.participants import MAX_LIST_LENGTH
from tests.support.campaigns import AT_SERVER, AVERAGED, SLIDING, campaign
from tests.support.store import House, total_of, units_of


@pytest.fixture
def spec(house: House):
    """A run whose first slot takes check-ins; two of them are used."""
    opened = house.open(campaign(capacity=2))
    house.begin(opened, 1)
    return opened


def many(house: House, spec, slot: int, tokens: list[str]):
    return intake.take_check_ins(house.database, spec, [CheckIn(slot, t) for t in tokens])


def test_invariant_1_a_check_in_uses_up_the_token_whether_chosen_or_not(house, spec) -> None:
    tokens = [house.enrol(spec) for _ in range(5)]
    receipts = many(house, spec, 1, tokens)
    assert len(set(receipts)) == 5
    assert house.rows(schema.tokens) == []
    house.choose(spec, 1)
    assert len(house.chosen(spec)) == 2
    house.begin(spec, 2)
    for answer in many(house, spec, 2, tokens):
        assert isinstance(answer, ProtocolViolation)
        assert "has used its one participation" in str(answer)
    assert house.rows(schema.check_ins) == []


def test_invariant_1_a_retry_gets_the_same_receipt_and_no_second_place(house, spec) -> None:
    token = house.enrol(spec)
    first = house.check_in(spec, 1, token)
    assert house.check_in(spec, 1, token) == first
    assert many(house, spec, 1, [token, token, token]) == [first] * 3
    house.restart()
    assert house.check_in(spec, 1, token) == first
    house.choose(spec, 1)
    assert house.check_in(spec, 1, token) == first  # the answer may have been lost until now
    assert len(house.rows(schema.check_ins)) == 1


def test_invariant_1_one_token_twice_in_one_batch_is_one_check_in(house, spec) -> None:
    token, other = house.enrol(spec), house.enrol(spec)
    first, second, third = many(house, spec, 1, [token, other, token])
    assert first == third != second
    assert len(house.rows(schema.check_ins)) == 2


def test_a_token_that_nobody_gave_is_refused(house, spec) -> None:
    with pytest.raises(ProtocolViolation):
        house.check_in(spec, 1, hashed("made up"))


def test_a_token_of_another_run_is_refused_and_stays_good_there(house, spec) -> None:
    other = house.open(campaign(name="other", population_id="elsewhere"))
    house.begin(other, 1)
    token = house.enrol(other)
    with pytest.raises(ProtocolViolation):
        house.check_in(spec, 1, token)
    assert house.check_in(other, 1, token)


def test_a_refusal_does_not_spoil_the_batch(house, spec) -> None:
    good = house.enrol(spec)
    first, refused, last = many(house, spec, 1, [good, hashed("x"), house.enrol(spec)])
    assert isinstance(first, str)
    assert isinstance(last, str)
    assert isinstance(refused, ProtocolViolation)


def test_a_batch_of_more_than_a_statement_takes_is_taken(house, spec) -> None:
    tokens = [hashed(str(number)) for number in range(MAX_LIST_LENGTH * 2 + 1)]
    messages = [EnrolmentRequest(token) for token in tokens]
    assert set(intake.take_enrolments(house.database, spec, messages)) == {None}
    receipts = many(house, spec, 1, tokens)
    assert len(set(receipts)) == len(tokens)
    assert many(house, spec, 1, tokens) == receipts
    assert house.rows(schema.tokens) == []


@pytest.mark.parametrize("slot", [0, 2, 4, 5, 10**12])
def test_invariant_6_a_check_in_for_another_slot_is_refused_and_costs_nothing(
    house, spec, slot: int
) -> None:
    token = house.enrol(spec)
    with pytest.raises(ProtocolViolation):
        house.check_in(spec, slot, token)
    assert house.check_in(spec, 1, token)


def test_before_the_first_slot_nobody_checks_in(house: House) -> None:
    spec = house.open(campaign())
    token = house.enrol(spec)
    with pytest.raises(ProtocolViolation):
        house.check_in(spec, 1, token)
    assert [row.token for row in house.rows(schema.tokens)] == [token]


def test_after_the_choice_a_new_check_in_is_refused_and_its_token_not_spent(house, spec) -> None:
    house.choose(spec, 1)
    token = house.enrol(spec)
    with pytest.raises(ProtocolViolation, match="check-ins for slot 1 are over"):
        house.check_in(spec, 1, token)
    house.begin(spec, 2)
    assert house.check_in(spec, 2, token)


def test_after_the_last_slot_nothing_is_taken(house, spec) -> None:
    token = house.enrol(spec)
    receipt = house.check_in(spec, 1)
    house.close(spec, 4)
    for again in (False, True):
        for slot in (1, 4, 5):
            with pytest.raises(ProtocolViolation):
                house.check_in(spec, slot, token)
            with pytest.raises(ProtocolViolation):
                house.report(spec, slot, receipt)
        if not again:
            house.finish(spec)
    with pytest.raises(ProtocolViolation, match="over"):
        raise intake.take_enrolments(house.database, spec, [EnrolmentRequest(hashed("late"))])[0]


def test_invariant_3_the_same_report_again_is_taken_again_and_counts_once(house, spec) -> None:
    receipt = house.check_in(spec, 1)
    house.choose(spec, 1)
    for _ in range(3):
        house.report(spec, 1, receipt, 7)
    house.restart()
    house.report(spec, 1, receipt, 7)
    (row,) = house.rows(schema.check_ins)
    assert row.report == units_of(spec, 7).astype("<i4").tobytes()


def test_invariant_3_another_report_of_the_same_client_is_refused(house, spec) -> None:
    receipt = house.check_in(spec, 1)
    house.choose(spec, 1)
    house.report(spec, 1, receipt, 7)
    with pytest.raises(ProtocolViolation, match="already sent a different report"):
        house.report(spec, 1, receipt, 8)
    (row,) = house.rows(schema.check_ins)
    assert row.report == units_of(spec, 7).astype("<i4").tobytes()


def test_two_reports_of_one_client_in_one_batch_are_held_against_each_other(house, spec) -> None:
    receipt = house.check_in(spec, 1)
    house.choose(spec, 1)
    sent = [Submission(1, receipt, units_of(spec, units)) for units in (3, 3, 4)]
    first, same, another = intake.take_reports(house.database, spec, sent)
    assert (first, same) == (None, None)
    assert isinstance(another, ProtocolViolation)


def test_invariant_4_before_the_choice_no_report_is_taken(house, spec) -> None:
    receipt = house.check_in(spec, 1)
    with pytest.raises(ProtocolViolation):
        house.report(spec, 1, receipt)


def test_a_client_that_was_not_chosen_cannot_report(house, spec) -> None:
    receipts = {house.check_in(spec, 1) for _ in range(4)}
    house.choose(spec, 1)
    for receipt in receipts - house.chosen(spec):
        with pytest.raises(ProtocolViolation, match="was not chosen"):
            house.report(spec, 1, receipt)


def test_invariant_6_a_late_report_never_moves_to_another_slot(house, spec) -> None:
    receipt = house.check_in(spec, 1)
    house.choose(spec, 1)
    for slot in (0, 2, 3):
        with pytest.raises(ProtocolViolation):
            house.report(spec, slot, receipt)
    house.begin(spec, 2)
    for slot in (1, 2):
        with pytest.raises(ProtocolViolation):
            house.report(spec, slot, receipt)
    house.check_in(spec, 2)
    house.choose(spec, 2)
    for slot in (1, 2):
        with pytest.raises(ProtocolViolation):
            house.report(spec, slot, receipt)


def test_a_receipt_of_another_run_means_nothing_here(house, spec) -> None:
    other = house.open(campaign(name="other", population_id="elsewhere"))
    house.begin(other, 1)
    receipt = house.check_in(other, 1)
    house.check_in(spec, 1)
    house.choose(spec, 1)
    house.choose(other, 1)
    with pytest.raises(ProtocolViolation):
        house.report(spec, 1, receipt)
    assert house.database.read(participants.slot_of, spec.id, receipt) is None
    assert house.database.read(participants.slot_of, other.id, receipt) == 1
    house.report(other, 1, receipt)


def test_invariant_12_every_report_of_an_honest_client_is_taken(house, spec) -> None:
    receipts = [house.check_in(spec, 1) for _ in range(2)]
    house.choose(spec, 1)
    largest = spec.sampler.most_units
    house.report(spec, 1, receipts[0], [-largest] + [0] * (spec.dimension - 1))
    far = np.full(spec.dimension, 1e300)
    house.report(spec, 1, receipts[1], spec.sampler.privatize(far).units)


def test_a_unit_that_no_honest_client_sends_is_refused(house, spec) -> None:
    receipt = house.check_in(spec, 1)
    house.choose(spec, 1)
    with pytest.raises(ProtocolViolation, match="must be at most"):
        house.report(spec, 1, receipt, spec.sampler.most_units + 1)
    for value in (2**31 - 1, -(2**31)):
        with pytest.raises(ProtocolViolation):
            house.report(spec, 1, receipt, value)
    house.report(spec, 1, receipt)


def test_a_report_longer_than_the_clip_is_refused_where_the_server_adds_the_noise(
    house: House,
) -> None:
    spec = house.open(campaign(**AT_SERVER))
    house.begin(spec, 1)
    receipts = [house.check_in(spec, 1) for _ in range(2)]
    house.choose(spec, 1)
    rest = [0] * (spec.dimension - 2)
    for long in ([1_000_000, 1, *rest], [800_000, -600_001, *rest], 20_000_000):
        with pytest.raises(ProtocolViolation, match="sum of squares in grid units must be at most"):
            house.report(spec, 1, receipts[0], long)
    house.report(spec, 1, receipts[0], [800_000, -600_000, *rest])
    house.report(spec, 1, receipts[1], spec.sampler.encode(np.full(11, 1e300)).units)


def test_a_report_that_no_honest_client_sends_is_refused_where_clients_add_the_noise(
    house, spec
) -> None:
    receipt = house.check_in(spec, 1)
    house.choose(spec, 1)
    with pytest.raises(
        ProtocolViolation, match="sum of absolute values in grid units must be at most"
    ):
        house.report(spec, 1, receipt, spec.sampler.most_units)
    house.report(spec, 1, receipt, spec.sampler.privatize(np.full(11, 1e300)).units)


def test_withdrawal_spends_a_token_that_was_not_used(house, spec) -> None:
    token = house.enrol(spec)
    assert intake.withdraw(house.database, spec.id, token)
    assert house.rows(schema.tokens) == []
    with pytest.raises(ProtocolViolation):
        house.check_in(spec, 1, token)
    assert not intake.withdraw(house.database, spec.id, token)


def test_withdrawal_erases_a_check_in_before_the_choice(house, spec) -> None:
    token = house.enrol(spec)
    receipt = house.check_in(spec, 1, token)
    assert intake.withdraw(house.database, spec.id, token)
    assert house.rows(schema.check_ins) == []
    with pytest.raises(ProtocolViolation):
        house.check_in(spec, 1, token)
    house.choose(spec, 1)
    assert house.chosen(spec) == frozenset()
    with pytest.raises(ProtocolViolation):
        house.report(spec, 1, receipt)


def test_withdrawal_erases_a_report_and_a_dummy_stands_in(house, monkeypatch) -> None:
    spec = house.open(campaign(**AVERAGED))
    house.begin(spec, 1)
    tokens = [house.enrol(spec) for _ in range(3)]
    receipts = many(house, spec, 1, tokens)
    house.choose(spec, 1)
    for receipt, units in zip(receipts, (100, 20, 3), strict=True):
        house.report(spec, 1, receipt, units)
    assert intake.withdraw(house.database, spec.id, tokens[1])
    house.close(spec, 1)
    entry = house.entries(spec)[-1]
    assert entry["contributors"] == 2
    assert set(total_of(entry)) == {103}


def test_a_withdrawn_place_is_not_given_to_another(house, spec) -> None:
    tokens = [house.enrol(spec) for _ in range(3)]
    receipts = dict(zip(many(house, spec, 1, tokens), tokens, strict=True))
    house.choose(spec, 1)
    before = house.chosen(spec)
    gone = sorted(before)[0]
    intake.withdraw(house.database, spec.id, receipts[gone])
    assert house.chosen(spec) == before - {gone}


def test_withdrawal_of_one_token_leaves_the_others(house, spec) -> None:
    kept, gone = house.enrol(spec), house.enrol(spec)
    receipt = house.check_in(spec, 1, kept)
    intake.withdraw(house.database, spec.id, gone)
    assert [row.receipt for row in house.rows(schema.check_ins)] == [receipt]


def test_an_enrolment_that_is_retried_gets_its_token_once(house, spec) -> None:
    message = EnrolmentRequest(hashed("token"), hashed("key"), hashed("once"))
    for _ in range(2):
        assert intake.take_enrolments(house.database, spec, [message, message]) == [None, None]
    assert len(house.rows(schema.tokens)) == 1


@pytest.mark.parametrize("spent_by", ["check-in", "withdrawal"])
def test_invariant_1_an_enrolment_retried_after_its_token_was_spent_stays_spent(
    house, spec, spent_by: str
) -> None:
    token = hashed("token")
    message = EnrolmentRequest(token, hashed("key"), hashed("once"))
    intake.take_enrolments(house.database, spec, [message])
    if spent_by == "check-in":
        house.check_in(spec, 1, token)
    else:
        intake.withdraw(house.database, spec.id, token)
    house.begin(spec, 2)
    house.restart()
    assert intake.take_enrolments(house.database, spec, [message]) == [None]
    assert house.rows(schema.tokens) == []
    with pytest.raises(ProtocolViolation):
        house.check_in(spec, 2, token)


def test_a_credential_with_another_key_is_refused_and_given_nothing(house, spec) -> None:
    first = EnrolmentRequest(hashed("token"), hashed("key"), hashed("once"))
    other = EnrolmentRequest(hashed("more"), hashed("key"), hashed("twice"))
    intake.take_enrolments(house.database, spec, [first])
    (answer,) = intake.take_enrolments(house.database, spec, [other])
    assert isinstance(answer, ProtocolViolation)
    both = intake.take_enrolments(
        house.database,
        spec,
        [EnrolmentRequest(hashed(t), hashed("fresh"), hashed(t)) for t in ("a", "b")],
    )
    assert both[0] is None
    assert isinstance(both[1], ProtocolViolation)
    assert {row.token for row in house.rows(schema.tokens)} == {hashed("token"), hashed("a")}


def test_credentials_of_one_run_are_free_in_another(house, spec) -> None:
    other = house.open(campaign(name="other", population_id="elsewhere"))
    for run in (spec, other):
        message = EnrolmentRequest(hashed(run.id), hashed("key"), hashed("once"))
        assert intake.take_enrolments(house.database, run, [message]) == [None]
    assert len(house.rows(schema.tokens)) == 2


def test_invariant_8_the_store_keeps_no_token_no_key_and_no_secret_in_the_clear(
    house, spec
) -> None:
    message = EnrolmentRequest(hashed("the-token"), hashed("the-credential"), hashed("the-key"))
    intake.take_enrolments(house.database, spec, [message])
    kept = house.everything()
    for secret in ("the-token", "the-credential", "the-key"):
        assert secret not in kept
        assert hashed(secret) in kept


def test_invariant_8_after_its_slot_nothing_of_a_client_is_in_any_table(house, spec) -> None:
    tokens = [house.enrol(spec) for _ in range(4)]
    receipts = many(house, spec, 1, tokens)
    house.choose(spec, 1)
    for receipt in house.chosen(spec):
        house.report(spec, 1, receipt)
    assert all(word in house.everything() for word in [*tokens, *receipts])
    house.close(spec, 1)
    left = house.everything()
    assert not any(word in left for word in [*tokens, *receipts])


def test_invariant_8_when_a_run_is_over_unused_tokens_and_credentials_are_gone_too(
    house, spec
) -> None:
    message = EnrolmentRequest(hashed("token"), hashed("key"), hashed("once"))
    intake.take_enrolments(house.database, spec, [message])
    house.finish(spec)
    for table in (schema.tokens, schema.enrolments, schema.check_ins):
        assert house.rows(table) == []
    assert hashed("key") not in house.everything()


def test_invariant_8_tables_keep_no_order_of_arrival(house, spec) -> None:
    """SQLite would number the rows of a table without a key of its own; PostgreSQL has none."""
    for name in ("tokens", "check_ins", "enrolments", "facts"):
        columns = {column.name for column in schema.metadata.tables[name].columns}
        assert not columns & {"position", "created", "time", "at", "id", "number"}
    if not house.database.is_sqlite:
        return
    tokens = [house.enrol(spec) for _ in range(40)]
    many(house, spec, 1, tokens[::2])
    with house.database.read_transaction() as connection:
        for table, key in (("tokens", "token"), ("check_ins", "receipt")):
            asked = f"SELECT {key} FROM {table}"
            found = list(connection.exec_driver_sql(asked).scalars())
            assert all(one < other for one, other in pairwise(found))
            with pytest.raises(Exception, match="rowid"):
                connection.exec_driver_sql(f"SELECT rowid FROM {table}")


def test_in_a_warm_up_slot_check_ins_are_used_up_and_nobody_is_chosen(house: House) -> None:
    spec = house.open(campaign(**SLIDING))
    house.begin(spec, 1)
    token = house.enrol(spec)
    receipt = house.check_in(spec, 1, token)
    house.choose(spec, 1)
    assert house.chosen(spec) == frozenset()
    with pytest.raises(ProtocolViolation):
        house.report(spec, 1, receipt)
    house.begin(spec, 3)
    with pytest.raises(ProtocolViolation):
        house.check_in(spec, 3, token)
