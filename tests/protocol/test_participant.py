"""A client's side of one campaign."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkins.errors import InvalidValue, OutOfOrder, ProtocolViolation
from checkins.protocol.participant import (
    COIN_RANGE,
    PARTICIPANT_MACHINE,
    Acknowledged,
    AskOutcome,
    Dismissed,
    Draw,
    DrawRecorded,
    Invited,
    Outcome,
    Participant,
    Phase,
    RecordDraw,
    RecordEnd,
    RecordReport,
    Refused,
    ReportAcknowledged,
    ReportMade,
    ReportRecorded,
    Restarted,
    RetryDue,
    SendCheckIn,
    SendReport,
    SlotBegan,
    Train,
    WakeAt,
    coin_threshold,
    step,
)
from checkins.protocol.report import Report
from checkins.protocol.rules import FixedWindow, SlidingWindow

NEW = Participant(1.0, FixedWindow.whole(9))
REPORT = Report.from_simulation(np.array([5, -5]))
MODEL = np.zeros(2)
STORY = (
    Draw(0, 3, first_open_slot=1),
    DrawRecorded(),
    SlotBegan(4),
    Acknowledged("r"),
    Invited("r", MODEL),
    ReportMade(REPORT),
    ReportRecorded(),
    ReportAcknowledged("r"),
)


def after(events: int) -> Participant:
    return PARTICIPANT_MACHINE.replay(NEW, STORY[:events])


def test_the_story_of_a_client_that_is_chosen() -> None:
    said = [type(effect) for i in range(8) for effect in step(after(i), STORY[i])[1]]
    assert said == [
        RecordDraw, WakeAt, SendCheckIn, AskOutcome, Train, RecordReport, SendReport, RecordEnd
    ]  # fmt: skip
    assert after(8).outcome is Outcome.REPORTED


def test_nothing_is_sent_before_the_draw_is_durable() -> None:
    drawn, effects = step(NEW, Draw(0, 3, first_open_slot=1))
    assert effects == (RecordDraw(4),)
    assert step(drawn, SlotBegan(4))[1] == ()
    assert step(drawn, RetryDue())[1] == ()


@given(participation=st.floats(0.0, 1.0))
def test_a_client_never_takes_part_more_often_than_it_should(participation: float) -> None:
    exact = Fraction(participation)
    assert (
        Fraction(coin_threshold(participation), COIN_RANGE)
        <= exact
        < Fraction(coin_threshold(participation) + 1, COIN_RANGE)
    )


@given(participation=st.floats(0.0, 1.0), coin=st.integers(0, COIN_RANGE - 1))
def test_a_coin_is_heads_below_the_participation(participation: float, coin: int) -> None:
    client = Participant(participation, FixedWindow.whole(9))
    drawn, _ = step(client, Draw(coin, 3, first_open_slot=1))
    assert (drawn.slot is not None) == (coin < coin_threshold(participation))


def test_a_client_whose_coin_says_no_is_done_and_contacts_nobody() -> None:
    client = Participant(0.5, FixedWindow.whole(9))
    drawn, _ = step(client, Draw(COIN_RANGE - 1, 3, first_open_slot=1))
    done, effects = step(drawn, DrawRecorded())
    assert (done.outcome, effects) == (Outcome.ABSTAINED, (RecordEnd(),))
    for event in (SlotBegan(4), RetryDue(), Restarted(), Invited("r", MODEL)):
        assert step(done, event) == (done, ())


@given(pick=st.integers(0, 8), now=st.integers(1, 9))
def test_a_late_client_draws_from_all_slots_all_the_same(pick: int, now: int) -> None:
    drawn, _ = step(NEW, Draw(0, pick, first_open_slot=now))
    assert drawn.slot == pick + 1
    pledged, _ = step(drawn, DrawRecorded())
    here, _ = step(pledged, SlotBegan(now))
    passed = pick + 1 < now
    assert (here.outcome is Outcome.MISSED) == passed


@given(length=st.integers(1, 9), now=st.integers(1, 9), data=st.data())
def test_a_sliding_window_begins_when_the_client_wakes(
    length: int, now: int, data: st.DataObject
) -> None:
    pick = data.draw(st.integers(0, length - 1))
    drawn, _ = step(Participant(1.0, SlidingWindow(length)), Draw(0, pick, first_open_slot=now))
    assert drawn.slot == now + pick
    assert drawn.slot in range(now, now + length)


def test_a_client_keeps_to_its_own_window() -> None:
    client = Participant(1.0, FixedWindow([2, 3, 7]))
    slots = [step(client, Draw(0, pick, first_open_slot=1))[0].slot for pick in range(3)]
    assert slots == [2, 3, 7]
    with pytest.raises(OutOfOrder, match="pick below 3"):
        step(client, Draw(0, 3, first_open_slot=1))


@pytest.mark.parametrize("slots", [[], [0], [-1, 2], [2, 2], [3, 2], range(0), range(0, 3)])
def test_a_window_that_is_not_one_is_refused(slots: list[int]) -> None:
    with pytest.raises(InvalidValue):
        FixedWindow(slots)


@pytest.mark.parametrize("coin", [-1, COIN_RANGE])
def test_a_coin_that_is_none_is_refused(coin: int) -> None:
    with pytest.raises(OutOfOrder, match="coin"):
        step(NEW, Draw(coin, 0, first_open_slot=1))


@pytest.mark.parametrize("participation", [-0.1, 1.1, float("nan")])
def test_a_participation_that_is_no_probability_is_refused(participation: float) -> None:
    with pytest.raises(InvalidValue, match="participation"):
        Participant(participation, FixedWindow.whole(3))


def test_a_client_that_was_offline_at_its_slot_abstains() -> None:
    missed, effects = step(after(2), SlotBegan(5))
    assert (missed.phase, missed.outcome) == (Phase.DONE, Outcome.MISSED)
    assert effects == (RecordEnd(),)


@pytest.mark.parametrize("events", [3, 4, 5, 6, 7])
def test_what_was_not_done_in_the_slot_is_never_done_in_another(events: int) -> None:
    client = after(events)
    assert step(client, SlotBegan(4)) == (client, ())
    late, effects = step(client, SlotBegan(5))
    assert (late.outcome, effects) == (Outcome.LATE, (RecordEnd(),))


@pytest.mark.parametrize("events", range(1, 8))
def test_a_device_that_is_done_has_forgotten_its_part(events: int) -> None:
    done, effects = step(after(events), SlotBegan(5)) if events > 1 else (after(8), (RecordEnd(),))
    assert effects == (RecordEnd(),)
    assert (done.slot, done.receipt, done.report) == (None, None, None)
    assert step(done, Restarted()) == (done, ())


def test_a_restart_never_draws_again() -> None:
    drawn = after(1)
    pledged, effects = step(drawn, Restarted())
    assert (pledged.slot, effects) == (drawn.slot, (WakeAt(4),))
    for events in range(1, 9):
        restarted, _ = step(after(events), Restarted())
        assert restarted.slot == (4 if events < 8 else None)
        with pytest.raises(OutOfOrder):
            step(restarted, Draw(0, 0, first_open_slot=1))


def test_a_retry_sends_the_identical_bytes() -> None:
    reporting = after(7)
    for event in (RetryDue(), Restarted()):
        again, effects = step(reporting, event)
        assert effects == (SendReport(4, "r", REPORT),)
        assert again == reporting
    recorded, effects = step(after(6), Restarted())
    assert (recorded.phase, effects) == (Phase.REPORTING, (SendReport(4, "r", REPORT),))


def test_a_report_is_made_once() -> None:
    other = Report.from_simulation(np.array([6, 6]))
    for events in (6, 7):
        with pytest.raises(OutOfOrder, match="ReportMade"):
            step(after(events), ReportMade(other))


def test_a_report_that_was_never_durable_is_made_anew() -> None:
    waiting, effects = step(after(5), Restarted())
    assert (waiting.phase, effects) == (Phase.ACCEPTED, (AskOutcome("r"),))


def test_a_second_invitation_does_not_train_twice() -> None:
    training = after(5)
    assert step(training, Invited("r", MODEL)) == (training, ())


def test_a_message_about_another_check_in_is_refused() -> None:
    for events, message in (
        (4, Dismissed("x")),
        (4, Invited("x", MODEL)),
        (7, ReportAcknowledged("x")),
    ):
        with pytest.raises(ProtocolViolation, match="another check-in"):
            step(after(events), message)


def test_a_client_that_is_refused_or_dismissed_is_done() -> None:
    assert step(after(3), Refused())[0].outcome is Outcome.REFUSED
    assert step(after(4), Dismissed("r"))[0].outcome is Outcome.DISMISSED
