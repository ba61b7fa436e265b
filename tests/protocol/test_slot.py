"""One slot on the server."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from itertools import permutations, product

import numpy as np
import pytest

from checkins.errors import InvalidValue, OutOfOrder, ProtocolViolation
from checkins.protocol.machine import Event
from checkins.protocol.model_update import ModelUpdate
from checkins.protocol.report import Report, ReportChecks
from checkins.protocol.rules import Filling, Rules
from checkins.protocol.slot import (
    SLOT_MACHINE,
    Acknowledge,
    AcknowledgeReport,
    CheckedIn,
    ChoiceRecorded,
    Choose,
    Dismiss,
    Expired,
    Invite,
    OutcomeAsked,
    RecordCheckIn,
    RecordChoice,
    ReportArrived,
    Slot,
    add_reports,
    step,
)
from checkins.randomizers import NormBound

RULES = Rules(
    slots=9,
    capacity=2,
    filling=Filling.DUMMIES,
    warm_up=1,
    affordable=9,
    report_checks=ReportChecks(2, most_units=100, simulated=True),
    update=ModelUpdate(rate=1.0),
)


def report(*values: int) -> Report:
    return Report.from_simulation(np.array(values, dtype=np.int32))


def slot_with(clients: int, rules: Rules = RULES, number: int = 5) -> Slot:
    """A slot where clients a, b, c, ... wait with receipts ra, rb, rc, ..."""
    events = [
        CheckedIn(number, chr(97 + i), f"r{chr(97 + i)}", has_participated=False)
        for i in range(clients)
    ]
    return SLOT_MACHINE.replay(Slot(number, rules), events)


def training(clients: int, draws: tuple[int, ...] = (), rules: Rules = RULES) -> Slot:
    return SLOT_MACHINE.replay(slot_with(clients, rules), [Choose(5, draws), ChoiceRecorded(5)])


@pytest.mark.parametrize("here", range(6))
@pytest.mark.parametrize("capacity", [1, 2, 3])
def test_every_subset_is_chosen_by_as_many_draws_as_any_other(here: int, capacity: int) -> None:
    slot = slot_with(here, replace(RULES, capacity=capacity))
    used = min(here, capacity)
    seen = Counter(
        frozenset(step(slot, Choose(5, draws))[0].chosen_receipts)
        for draws in product(*map(range, slot.ranges))
    )
    assert {len(subset) for subset in seen} == {used}
    assert len(set(seen.values())) == 1
    assert len(seen) == len({frozenset(p) for p in permutations(range(here), used)})


def test_who_came_first_does_not_matter() -> None:
    there = Slot(5, RULES)
    arrivals = [CheckedIn(5, name, f"r{name}", has_participated=False) for name in "abcd"]
    chosen = {
        step(SLOT_MACHINE.replay(there, order), Choose(5, (2, 0)))[0].chosen_receipts
        for order in permutations(arrivals)
    }
    assert chosen == {("rc", "ra")}


def test_a_check_in_spends_the_participation_before_it_is_acknowledged() -> None:
    _, effects = step(Slot(5, RULES), CheckedIn(5, "a", "ra", has_participated=False))
    assert effects == (RecordCheckIn("a", "ra"), Acknowledge("a", "ra"))


def test_a_check_in_that_is_sent_again_gets_the_same_receipt() -> None:
    slot = slot_with(2)
    for state in (slot, step(slot, Choose(5, ()))[0], training(2)):
        after, effects = step(state, CheckedIn(5, "a", "another", has_participated=True))
        assert after is state
        assert effects == (Acknowledge("a", "ra"),)


def test_a_client_that_has_used_its_participation_is_refused() -> None:
    with pytest.raises(ProtocolViolation, match="one participation"):
        step(slot_with(1), CheckedIn(5, "z", "rz", has_participated=True))


def test_a_check_in_after_the_choice_is_refused() -> None:
    with pytest.raises(ProtocolViolation, match="check-ins for slot 5 are over"):
        step(training(1), CheckedIn(5, "z", "rz", has_participated=False))


def test_a_receipt_is_never_given_twice() -> None:
    with pytest.raises(OutOfOrder, match="ra"):
        step(slot_with(1), CheckedIn(5, "z", "ra", has_participated=False))


def test_the_choice_is_recorded_before_anyone_is_told() -> None:
    slot, effects = step(slot_with(3), Choose(5, (0, 0)))
    assert effects == (RecordChoice(("ra", "rb")),)
    assert step(slot, OutcomeAsked(5, "ra"))[1] == ()
    _, told = step(slot, ChoiceRecorded(5))
    assert told == (Invite("ra"), Invite("rb"), Dismiss("rc"))


@pytest.mark.parametrize("draws", [(), (0,), (3, 0), (0, 2), (-1, 0), (0, 0, 0)])
def test_dice_that_do_not_fit_are_refused(draws: tuple[int, ...]) -> None:
    with pytest.raises(OutOfOrder, match=r"draws below \(3, 2\)"):
        step(slot_with(3), Choose(5, draws))


def test_whoever_asks_is_told_what_was_decided_for_it() -> None:
    slot = training(3, (0, 0))
    assert step(slot, OutcomeAsked(5, "ra"))[1] == (Invite("ra"),)
    assert step(slot, OutcomeAsked(5, "rc"))[1] == (Dismiss("rc"),)
    with pytest.raises(ProtocolViolation, match="nobody checked in"):
        step(slot, OutcomeAsked(5, "elsewhere"))


def test_a_client_that_was_not_chosen_cannot_submit() -> None:
    with pytest.raises(ProtocolViolation, match="was not chosen"):
        step(training(3, (0, 0)), ReportArrived(5, "rc", report(1, 1)))


def test_a_report_that_is_sent_again_counts_once() -> None:
    slot, _ = step(training(2), ReportArrived(5, "ra", report(1, 1)))
    again, effects = step(slot, ReportArrived(5, "ra", report(1, 1)))
    assert AcknowledgeReport("ra") in effects
    assert again.reports == slot.reports
    with pytest.raises(ProtocolViolation, match="a different report"):
        step(slot, ReportArrived(5, "ra", report(1, 2)))


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (np.zeros(3, dtype=np.int32), "shape"),
        (np.zeros((1, 2), dtype=np.int32), "shape"),
        (np.zeros(2), "integers"),
        (np.array([np.nan, 0.0]), "integers"),
        (np.array([101, 0]), "at most 100"),
        (np.array([-(2**31), 0], dtype=np.int32), "at most 100"),
        (np.array([1, 2], dtype=np.uint32), "integers"),
        (np.array([True, False]), "integers"),
        (np.array(["a", "b"]), "integers"),
    ],
)
def test_a_malformed_report_is_refused(values: np.ndarray, reason: str) -> None:
    with pytest.raises(ProtocolViolation, match=reason):
        step(training(1), ReportArrived(5, "ra", Report.from_simulation(values)))


def test_a_report_that_is_too_long_is_refused_and_a_dummy_is_not() -> None:
    short = replace(RULES.report_checks, norm=NormBound(order=2, most=25))
    slot = training(2, rules=replace(RULES, report_checks=short))
    with pytest.raises(ProtocolViolation, match="sum of squares in grid units must be at most 25"):
        step(slot, ReportArrived(5, "ra", report(3, 5)))
    slot, _ = step(slot, ReportArrived(5, "ra", report(3, -4)))
    closed, _ = step(slot, Expired(5, (report(30, 50),)))
    assert closed.total is not None
    assert closed.total.tolist() == [33, 46]


def test_a_simulated_report_has_no_place_in_a_real_campaign() -> None:
    real = replace(RULES, report_checks=ReportChecks(2, most_units=100, simulated=False))
    with pytest.raises(ProtocolViolation, match="simulated"):
        step(training(1, rules=real), ReportArrived(5, "ra", report(1, 1)))


def test_an_empty_slot_and_a_vanished_client_look_the_same_outside() -> None:
    dummies = (report(7, 0), report(0, 7))
    empty, _ = step(training(0), Expired(5, dummies))
    vanished, _ = step(training(2), Expired(5, dummies))
    assert (empty.total == vanished.total).all()
    for name in (field.name for field in fields(Slot) if field.name != "total"):
        assert getattr(empty, name) == getattr(vanished, name), name


def test_a_slot_is_always_a_sum_of_as_many_reports() -> None:
    slot, _ = step(training(2), ReportArrived(5, "ra", report(1, 10)))
    assert slot.missing_dummies == 1
    closed, _ = step(slot, Expired(5, (report(2, 20),)))
    assert closed.total is not None
    assert closed.total.tolist() == [3, 30]
    assert closed.contributors is None


def test_a_closed_slot_remembers_nobody() -> None:
    slot, _ = step(training(2), ReportArrived(5, "ra", report(1, 10)))
    closed, _ = step(slot, Expired(5, (report(2, 20),)))
    assert (closed.receipts_by_token, closed.chosen_receipts, closed.reports) == ({}, (), {})


@pytest.mark.parametrize(
    "event",
    [Expired(5), Expired(5, (report(0, 0),)), Expired(5, (report(0, 0),) * 2, report(0, 0))],
)
def test_a_slot_does_not_close_without_its_dummies(event: Event) -> None:
    with pytest.raises(OutOfOrder, match="needs 2 dummies and no noise"):
        step(training(0), event)


@pytest.mark.parametrize(
    "odd",
    [
        Report.from_simulation(np.array([1, 2, 3])),
        Report.from_simulation(np.array([0.5, 0.5])),
        Report.from_simulation(np.array([101, 0])),
    ],
)
def test_a_servers_own_dummies_are_as_well_formed_as_reports(odd: Report) -> None:
    with pytest.raises(OutOfOrder, match="dummies or noise are invalid"):
        step(training(0), Expired(5, (odd, report(1, 1))))


def test_a_real_slot_takes_no_simulated_dummy_and_no_simulated_noise() -> None:
    real = replace(RULES, report_checks=ReportChecks(2, most_units=100, simulated=False))
    with pytest.raises(OutOfOrder, match="simulated"):
        step(training(0, rules=real), Expired(5, (report(1, 1), report(1, 1))))
    at_server = replace(real, filling=Filling.NOISE, capacity=None)
    with pytest.raises(OutOfOrder, match="simulated"):
        step(training(0, rules=at_server), Expired(5, noise=report(1, 1)))
    wide = Report.from_noise(np.array([1000, -1000]))
    closed, _ = step(training(0, rules=at_server), Expired(5, noise=wide))
    assert closed.total is not None


def test_noise_at_the_server_is_added_even_to_an_empty_slot() -> None:
    rules = replace(RULES, filling=Filling.NOISE, capacity=None)
    with pytest.raises(OutOfOrder, match="needs 0 dummies and noise of the server"):
        step(training(0, rules=rules), Expired(5))
    closed, _ = step(training(0, rules=rules), Expired(5, noise=report(3, 4)))
    assert closed.total is not None
    assert closed.total.tolist() == [3, 4]


def test_a_warm_up_takes_check_ins_and_uses_none() -> None:
    slot = SLOT_MACHINE.replay(
        Slot(1, RULES),
        [CheckedIn(1, "a", "ra", has_participated=False), Choose(1, ()), ChoiceRecorded(1)],
    )
    assert step(slot, OutcomeAsked(1, "ra"))[1] == (Dismiss("ra"),)
    closed, _ = step(slot, Expired(1))
    assert closed.total is None


def test_sums_of_the_largest_reports_are_exact() -> None:
    rules = replace(
        RULES,
        capacity=None,
        filling=Filling.NOTHING,
        report_checks=ReportChecks(2, 2**31 - 1, simulated=True),
    )
    most = 2**31 - 1
    slot = training(3, rules=rules)
    for name in "abc":
        slot, _ = step(slot, ReportArrived(5, f"r{name}", report(most, -most)))
    closed, _ = step(slot, Expired(5))
    assert closed.total is not None
    assert closed.total.tolist() == [3 * most, -3 * most]
    assert closed.contributors == 3


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"capacity": None}, "capacity"),
        ({"capacity": 0}, "capacity"),
        ({"slots": 0}, "slots"),
        ({"warm_up": 10}, "warm_up"),
        ({"affordable": -1}, "affordable"),
        ({"filling": Filling.NOTHING, "update": ModelUpdate(1.0, minibatch=2)}, "minibatch"),
        ({"report_checks": ReportChecks(2, 10**12, simulated=True), "capacity": 10**7}, "64 bits"),
    ],
)
def test_rules_that_cannot_be_run_are_refused(change: dict[str, object], reason: str) -> None:
    with pytest.raises(InvalidValue, match=reason):
        replace(RULES, **change)


@pytest.mark.parametrize("clients", range(5))
def test_invariant_15_an_averaged_slot_with_too_few_reports_is_skipped(clients: int) -> None:
    rules = replace(RULES, capacity=None, filling=Filling.NOTHING, least_reports=3)
    slot = training(clients, rules=rules)
    for name in "abcd"[:clients]:
        slot, _ = step(slot, ReportArrived(5, f"r{name}", report(1, 2)))
    closed, _ = step(slot, Expired(5, (), None))
    assert closed.contributors == clients
    assert (closed.total is None) == (clients < 3)
    assert closed.total is None or closed.total.tolist() == [clients, 2 * clients]


def test_reports_that_were_added_before_the_end_count_towards_the_least() -> None:
    rules = replace(RULES, capacity=None, filling=Filling.NOTHING, least_reports=3)
    for added in (2, 3):
        names = "abc"[:added]
        reports = [(f"r{name}", report(1, 2)) for name in names]
        closed, _ = step(add_reports(training(4, rules=rules), reports), Expired(5, (), None))
        assert (closed.total is None) == (added < 3)
