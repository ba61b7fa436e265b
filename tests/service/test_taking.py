"""Check-ins, reports, enrolments and withdrawals, as the store keeps them; on every store."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from checkins.errors import ProtocolViolation
from checkins.service import intake
from checkins.service.intake import CheckIn, Enrolment, Submission, hashed
from checkins.service.store import tables
from checkins.service.store.bulk import MOST_IN_A_LIST
from tests.service.coordination import (
    AT_SERVER,
    AVERAGED,
    SLIDING,
    House,
    campaign,
    total_of,
    units_of,
)


@pytest.fixture
def terms(house: House):
    """A run whose first slot takes check-ins; two of them are used."""
    opened = house.open(campaign(capacity=2))
    house.begin(opened, 1)
    return opened


def many(house: House, terms, slot: int, tokens: list[str]):
    return intake.take_check_ins(house.database, terms, [CheckIn(slot, t) for t in tokens])


def test_invariant_1_a_check_in_uses_up_the_token_whether_chosen_or_not(house, terms) -> None:
    tokens = [house.enrol(terms) for _ in range(5)]
    receipts = many(house, terms, 1, tokens)
    assert len(set(receipts)) == 5
    assert house.rows(tables.tokens) == []
    house.choose(terms, 1)
    assert len(house.chosen(terms)) == 2
    house.begin(terms, 2)
    for answer in many(house, terms, 2, tokens):
        assert isinstance(answer, ProtocolViolation)
        assert "has used its one participation" in str(answer)
    assert house.rows(tables.check_ins) == []


def test_invariant_1_a_retry_gets_the_same_receipt_and_no_second_place(house, terms) -> None:
    token = house.enrol(terms)
    first = house.check_in(terms, 1, token)
    assert house.check_in(terms, 1, token) == first
    assert many(house, terms, 1, [token, token, token]) == [first] * 3
    house.restart()
    assert house.check_in(terms, 1, token) == first
    house.choose(terms, 1)
    assert house.check_in(terms, 1, token) == first  # the answer may have been lost until now
    assert len(house.rows(tables.check_ins)) == 1


def test_invariant_1_one_token_twice_in_one_batch_is_one_check_in(house, terms) -> None:
    token, other = house.enrol(terms), house.enrol(terms)
    first, second, third = many(house, terms, 1, [token, other, token])
    assert first == third != second
    assert len(house.rows(tables.check_ins)) == 2


def test_a_token_that_nobody_gave_is_refused(house, terms) -> None:
    with pytest.raises(ProtocolViolation):
        house.check_in(terms, 1, hashed("made up"))


def test_a_token_of_another_run_is_refused_and_stays_good_there(house, terms) -> None:
    other = house.open(campaign(name="other", population_id="elsewhere"))
    house.begin(other, 1)
    token = house.enrol(other)
    with pytest.raises(ProtocolViolation):
        house.check_in(terms, 1, token)
    assert house.check_in(other, 1, token)


def test_a_refusal_does_not_spoil_the_batch(house, terms) -> None:
    good = house.enrol(terms)
    first, refused, last = many(house, terms, 1, [good, hashed("x"), house.enrol(terms)])
    assert isinstance(first, str)
    assert isinstance(last, str)
    assert isinstance(refused, ProtocolViolation)


def test_a_batch_of_more_than_a_statement_takes_is_taken(house, terms) -> None:
    tokens = [hashed(str(number)) for number in range(MOST_IN_A_LIST * 2 + 1)]
    messages = [Enrolment(token) for token in tokens]
    assert set(intake.take_enrolments(house.database, terms, messages)) == {None}
    receipts = many(house, terms, 1, tokens)
    assert len(set(receipts)) == len(tokens)
    assert many(house, terms, 1, tokens) == receipts
    assert house.rows(tables.tokens) == []


@pytest.mark.parametrize("slot", [0, 2, 4, 5, 10**12])
def test_invariant_6_a_check_in_for_another_slot_is_refused_and_costs_nothing(
    house, terms, slot: int
) -> None:
    token = house.enrol(terms)
    with pytest.raises(ProtocolViolation):
        house.check_in(terms, slot, token)
    assert house.check_in(terms, 1, token)


def test_before_the_first_slot_nobody_checks_in(house: House) -> None:
    terms = house.open(campaign())
    token = house.enrol(terms)
    with pytest.raises(ProtocolViolation):
        house.check_in(terms, 1, token)
    assert [row.token for row in house.rows(tables.tokens)] == [token]


def test_after_the_choice_a_new_check_in_is_refused_and_its_token_not_spent(house, terms) -> None:
    house.choose(terms, 1)
    token = house.enrol(terms)
    with pytest.raises(ProtocolViolation, match="check-ins for slot 1 are over"):
        house.check_in(terms, 1, token)
    house.begin(terms, 2)
    assert house.check_in(terms, 2, token)


def test_after_the_last_slot_nothing_is_taken(house, terms) -> None:
    token = house.enrol(terms)
    receipt = house.check_in(terms, 1)
    house.close(terms, 4)
    for again in (False, True):
        for slot in (1, 4, 5):
            with pytest.raises(ProtocolViolation):
                house.check_in(terms, slot, token)
            with pytest.raises(ProtocolViolation):
                house.report(terms, slot, receipt)
        if not again:
            house.finish(terms)
    with pytest.raises(ProtocolViolation, match="over"):
        raise intake.take_enrolments(house.database, terms, [Enrolment(hashed("late"))])[0]


def test_invariant_3_the_same_report_again_is_taken_again_and_counts_once(house, terms) -> None:
    receipt = house.check_in(terms, 1)
    house.choose(terms, 1)
    for _ in range(3):
        house.report(terms, 1, receipt, 7)
    house.restart()
    house.report(terms, 1, receipt, 7)
    (row,) = house.rows(tables.check_ins)
    assert row.report == units_of(terms, 7).astype("<i4").tobytes()


def test_invariant_3_another_report_of_the_same_client_is_refused(house, terms) -> None:
    receipt = house.check_in(terms, 1)
    house.choose(terms, 1)
    house.report(terms, 1, receipt, 7)
    with pytest.raises(ProtocolViolation, match="this is another one"):
        house.report(terms, 1, receipt, 8)
    (row,) = house.rows(tables.check_ins)
    assert row.report == units_of(terms, 7).astype("<i4").tobytes()


def test_two_reports_of_one_client_in_one_batch_are_held_against_each_other(house, terms) -> None:
    receipt = house.check_in(terms, 1)
    house.choose(terms, 1)
    sent = [Submission(1, receipt, units_of(terms, units)) for units in (3, 3, 4)]
    first, same, another = intake.take_reports(house.database, terms, sent)
    assert (first, same) == (None, None)
    assert isinstance(another, ProtocolViolation)


def test_invariant_4_before_the_choice_no_report_is_taken(house, terms) -> None:
    receipt = house.check_in(terms, 1)
    with pytest.raises(ProtocolViolation):
        house.report(terms, 1, receipt)


def test_a_client_that_was_not_chosen_cannot_report(house, terms) -> None:
    receipts = {house.check_in(terms, 1) for _ in range(4)}
    house.choose(terms, 1)
    for receipt in receipts - house.chosen(terms):
        with pytest.raises(ProtocolViolation, match="no report is asked"):
            house.report(terms, 1, receipt)


def test_invariant_6_a_late_report_never_moves_to_another_slot(house, terms) -> None:
    receipt = house.check_in(terms, 1)
    house.choose(terms, 1)
    for slot in (0, 2, 3):
        with pytest.raises(ProtocolViolation):
            house.report(terms, slot, receipt)
    house.begin(terms, 2)
    for slot in (1, 2):
        with pytest.raises(ProtocolViolation):
            house.report(terms, slot, receipt)
    house.check_in(terms, 2)
    house.choose(terms, 2)
    for slot in (1, 2):
        with pytest.raises(ProtocolViolation):
            house.report(terms, slot, receipt)


def test_a_receipt_of_another_run_means_nothing_here(house, terms) -> None:
    other = house.open(campaign(name="other", population_id="elsewhere"))
    house.begin(other, 1)
    receipt = house.check_in(other, 1)
    house.check_in(terms, 1)
    house.choose(terms, 1)
    house.choose(other, 1)
    with pytest.raises(ProtocolViolation):
        house.report(terms, 1, receipt)
    assert intake.slot_of(house.database, terms.id, receipt) is None
    assert intake.slot_of(house.database, other.id, receipt) == 1
    house.report(other, 1, receipt)


def test_invariant_12_every_report_of_an_honest_client_is_taken(house, terms) -> None:
    receipts = [house.check_in(terms, 1) for _ in range(2)]
    house.choose(terms, 1)
    largest = terms.sampler.most_units
    house.report(terms, 1, receipts[0], [-largest] + [0] * (terms.dimension - 1))
    far = np.full(terms.dimension, 1e300)
    house.report(terms, 1, receipts[1], terms.sampler.privatize(far).units)


def test_a_unit_that_no_honest_client_sends_is_refused(house, terms) -> None:
    receipt = house.check_in(terms, 1)
    house.choose(terms, 1)
    with pytest.raises(ProtocolViolation, match="holds no unit above"):
        house.report(terms, 1, receipt, terms.sampler.most_units + 1)
    for value in (2**31 - 1, -(2**31)):
        with pytest.raises(ProtocolViolation):
            house.report(terms, 1, receipt, value)
    house.report(terms, 1, receipt)


def test_a_report_longer_than_the_clip_is_refused_where_the_server_adds_the_noise(
    house: House,
) -> None:
    terms = house.open(campaign(**AT_SERVER))
    house.begin(terms, 1)
    receipts = [house.check_in(terms, 1) for _ in range(2)]
    house.choose(terms, 1)
    rest = [0] * (terms.dimension - 2)
    for long in ([1_000_000, 1, *rest], [800_000, -600_001, *rest], 20_000_000):
        with pytest.raises(ProtocolViolation, match="sum of squares in grid units is at most"):
            house.report(terms, 1, receipts[0], long)
    house.report(terms, 1, receipts[0], [800_000, -600_000, *rest])
    house.report(terms, 1, receipts[1], terms.sampler.encode(np.full(11, 1e300)).units)


def test_a_report_that_no_honest_client_sends_is_refused_where_clients_add_the_noise(
    house, terms
) -> None:
    receipt = house.check_in(terms, 1)
    house.choose(terms, 1)
    with pytest.raises(ProtocolViolation, match="sum of sizes in grid units is at most"):
        house.report(terms, 1, receipt, terms.sampler.most_units)
    house.report(terms, 1, receipt, terms.sampler.privatize(np.full(11, 1e300)).units)


def test_withdrawal_spends_a_token_that_was_not_used(house, terms) -> None:
    token = house.enrol(terms)
    assert intake.withdraw(house.database, terms.id, token)
    assert house.rows(tables.tokens) == []
    with pytest.raises(ProtocolViolation):
        house.check_in(terms, 1, token)
    assert not intake.withdraw(house.database, terms.id, token)


def test_withdrawal_erases_a_check_in_before_the_choice(house, terms) -> None:
    token = house.enrol(terms)
    receipt = house.check_in(terms, 1, token)
    assert intake.withdraw(house.database, terms.id, token)
    assert house.rows(tables.check_ins) == []
    with pytest.raises(ProtocolViolation):
        house.check_in(terms, 1, token)
    house.choose(terms, 1)
    assert house.chosen(terms) == frozenset()
    with pytest.raises(ProtocolViolation):
        house.report(terms, 1, receipt)


def test_withdrawal_erases_a_report_and_a_dummy_stands_in(house, monkeypatch) -> None:
    terms = house.open(campaign(**AVERAGED))
    house.begin(terms, 1)
    tokens = [house.enrol(terms) for _ in range(3)]
    receipts = many(house, terms, 1, tokens)
    house.choose(terms, 1)
    for receipt, units in zip(receipts, (100, 20, 3), strict=True):
        house.report(terms, 1, receipt, units)
    assert intake.withdraw(house.database, terms.id, tokens[1])
    house.close(terms, 1)
    entry = house.entries(terms)[-1]
    assert entry["contributors"] == 2
    assert set(total_of(entry)) == {103}


def test_a_withdrawn_place_is_not_given_to_another(house, terms) -> None:
    tokens = [house.enrol(terms) for _ in range(3)]
    receipts = dict(zip(many(house, terms, 1, tokens), tokens, strict=True))
    house.choose(terms, 1)
    before = house.chosen(terms)
    gone = sorted(before)[0]
    intake.withdraw(house.database, terms.id, receipts[gone])
    assert house.chosen(terms) == before - {gone}


def test_withdrawal_of_one_token_leaves_the_others(house, terms) -> None:
    kept, gone = house.enrol(terms), house.enrol(terms)
    receipt = house.check_in(terms, 1, kept)
    intake.withdraw(house.database, terms.id, gone)
    assert [row.receipt for row in house.rows(tables.check_ins)] == [receipt]


def test_an_enrolment_that_is_retried_gets_its_token_once(house, terms) -> None:
    message = Enrolment(hashed("token"), hashed("key"), hashed("once"))
    for _ in range(2):
        assert intake.take_enrolments(house.database, terms, [message, message]) == [None, None]
    assert len(house.rows(tables.tokens)) == 1


@pytest.mark.parametrize("spent_by", ["check-in", "withdrawal"])
def test_invariant_1_an_enrolment_retried_after_its_token_was_spent_stays_spent(
    house, terms, spent_by: str
) -> None:
    token = hashed("token")
    message = Enrolment(token, hashed("key"), hashed("once"))
    intake.take_enrolments(house.database, terms, [message])
    if spent_by == "check-in":
        house.check_in(terms, 1, token)
    else:
        intake.withdraw(house.database, terms.id, token)
    house.begin(terms, 2)
    house.restart()
    assert intake.take_enrolments(house.database, terms, [message]) == [None]
    assert house.rows(tables.tokens) == []
    with pytest.raises(ProtocolViolation):
        house.check_in(terms, 2, token)


def test_a_credential_with_another_key_is_refused_and_given_nothing(house, terms) -> None:
    first = Enrolment(hashed("token"), hashed("key"), hashed("once"))
    other = Enrolment(hashed("more"), hashed("key"), hashed("twice"))
    intake.take_enrolments(house.database, terms, [first])
    (answer,) = intake.take_enrolments(house.database, terms, [other])
    assert isinstance(answer, ProtocolViolation)
    both = intake.take_enrolments(
        house.database,
        terms,
        [Enrolment(hashed(t), hashed("fresh"), hashed(t)) for t in ("a", "b")],
    )
    assert both[0] is None
    assert isinstance(both[1], ProtocolViolation)
    assert {row.token for row in house.rows(tables.tokens)} == {hashed("token"), hashed("a")}


def test_credentials_of_one_run_are_free_in_another(house, terms) -> None:
    other = house.open(campaign(name="other", population_id="elsewhere"))
    for run in (terms, other):
        message = Enrolment(hashed(run.id), hashed("key"), hashed("once"))
        assert intake.take_enrolments(house.database, run, [message]) == [None]
    assert len(house.rows(tables.tokens)) == 2


def test_invariant_8_the_store_keeps_no_token_no_key_and_no_secret_in_the_clear(
    house, terms
) -> None:
    message = Enrolment(hashed("the-token"), hashed("the-credential"), hashed("the-key"))
    intake.take_enrolments(house.database, terms, [message])
    kept = house.everything()
    for secret in ("the-token", "the-credential", "the-key"):
        assert secret not in kept
        assert hashed(secret) in kept


def test_invariant_8_after_its_slot_nothing_of_a_client_is_in_any_table(house, terms) -> None:
    tokens = [house.enrol(terms) for _ in range(4)]
    receipts = many(house, terms, 1, tokens)
    house.choose(terms, 1)
    for receipt in house.chosen(terms):
        house.report(terms, 1, receipt)
    assert all(word in house.everything() for word in [*tokens, *receipts])
    house.close(terms, 1)
    left = house.everything()
    assert not any(word in left for word in [*tokens, *receipts])


def test_invariant_8_when_a_run_is_over_unused_tokens_and_credentials_are_gone_too(
    house, terms
) -> None:
    message = Enrolment(hashed("token"), hashed("key"), hashed("once"))
    intake.take_enrolments(house.database, terms, [message])
    house.finish(terms)
    for table in (tables.tokens, tables.enrolments, tables.check_ins):
        assert house.rows(table) == []
    assert hashed("key") not in house.everything()


def test_invariant_8_tables_keep_no_order_of_arrival(house, terms) -> None:
    """SQLite would number the rows of a table without a key of its own; PostgreSQL has none."""
    for name in ("tokens", "check_ins", "enrolments", "facts"):
        columns = {column.name for column in tables.metadata.tables[name].columns}
        assert not columns & {"position", "created", "time", "at", "id", "number"}
    if not house.database.is_sqlite:
        return
    tokens = [house.enrol(terms) for _ in range(40)]
    many(house, terms, 1, tokens[::2])
    with house.database.reading() as connection:
        for table, key in (("tokens", "token"), ("check_ins", "receipt")):
            asked = f"SELECT {key} FROM {table}"
            found = list(connection.exec_driver_sql(asked).scalars())
            assert all(one < other for one, other in pairwise(found))
            with pytest.raises(Exception, match="rowid"):
                connection.exec_driver_sql(f"SELECT rowid FROM {table}")


def test_in_a_warm_up_slot_check_ins_are_used_up_and_nobody_is_chosen(house: House) -> None:
    terms = house.open(campaign(**SLIDING))
    house.begin(terms, 1)
    token = house.enrol(terms)
    receipt = house.check_in(terms, 1, token)
    house.choose(terms, 1)
    assert house.chosen(terms) == frozenset()
    with pytest.raises(ProtocolViolation):
        house.report(terms, 1, receipt)
    house.begin(terms, 3)
    with pytest.raises(ProtocolViolation):
        house.check_in(terms, 3, token)
