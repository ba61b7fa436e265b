"""The state machine of one client in one run, the same for all three protocols.

A client draws a coin, which decides whether it takes part, and a slot in which it checks in. These
are the client's lines of Algorithm 1 in "Privacy Amplification via Random Check-Ins"
(arXiv:2007.06605), "the paper" below. The phases are:

NEW          the client has drawn nothing
DRAWN        it has drawn its coin and slot, which are not durable yet, so it sends nothing
PLEDGED      it sleeps until its slot
CHECKING_IN  it has sent its check-in, perhaps several times
ACCEPTED     it has its receipt, and asks whether it was chosen
TRAINING     it was chosen, and computes its update
PRIVATIZED   it has made its report, which is not durable yet, so it sends nothing
REPORTING    it has sent its report, perhaps several times, always the same bytes
DONE         its participation has ended, and only the outcome is stored

This file makes every decision of a client. Events and effects come first, then the rules. Numbered
invariants are in docs/invariants.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from fractions import Fraction

from checkins import validate
from checkins.campaign import Campaign
from checkins.errors import OutOfOrder, ProtocolViolation
from checkins.protocol.machine import Effect, Effects, Event, Machine, Message
from checkins.protocol.machine import SlotBegan as SlotBegan
from checkins.protocol.model_update import Model
from checkins.protocol.report import Report
from checkins.protocol.rules import Window, window_of


@dataclass(frozen=True, slots=True)
class Draw(Event):
    """Randomness was drawn: ``coin`` is a uniform integer below 2^64.

    ``pick``, the position of the slot in the client's window, is uniform below the window's size.
    ``first_open_slot`` is the first slot whose check-ins are not over.
    """

    coin: int
    pick: int
    first_open_slot: int


@dataclass(frozen=True, slots=True)
class DrawRecorded(Event):
    """The drawn coin and slot are saved durably."""


@dataclass(frozen=True, slots=True)
class RetryDue(Event):
    """No response has come, so the same message must be sent again."""


@dataclass(frozen=True, slots=True)
class Restarted(Event):
    """The device has restarted, and its state is the last state that it saved."""


@dataclass(frozen=True, slots=True)
class Acknowledged(Message):
    """The server has accepted the check-in."""

    receipt: str


@dataclass(frozen=True, slots=True)
class Refused(Message):
    """The server has refused the check-in."""


@dataclass(frozen=True, slots=True)
class Dismissed(Message):
    """The server has not chosen this client."""

    receipt: str


@dataclass(frozen=True, slots=True, eq=False)
class Invited(Message):
    """The server has chosen this client, and sends the current model."""

    receipt: str
    model: Model


@dataclass(frozen=True, slots=True)
class ReportMade(Event):
    """The update was computed, clipped and privatized with noise used for this report only."""

    report: Report


@dataclass(frozen=True, slots=True)
class ReportRecorded(Event):
    """The report is saved durably. Its noise is never stored."""


@dataclass(frozen=True, slots=True)
class ReportAcknowledged(Message):
    receipt: str


@dataclass(frozen=True, slots=True)
class RecordDraw(Effect):
    slot: int | None


@dataclass(frozen=True, slots=True)
class RecordEnd(Effect):
    """Save only that the participation has ended, so that slot, receipt and report are erased."""


@dataclass(frozen=True, slots=True)
class WakeAt(Effect):
    slot: int


@dataclass(frozen=True, slots=True)
class SendCheckIn(Effect):
    slot: int


@dataclass(frozen=True, slots=True)
class AskOutcome(Effect):
    receipt: str


@dataclass(frozen=True, slots=True, eq=False)
class Train(Effect):
    model: Model


@dataclass(frozen=True, slots=True)
class RecordReport(Effect):
    report: Report


@dataclass(frozen=True, slots=True)
class SendReport(Effect):
    slot: int
    receipt: str
    report: Report


COIN_RANGE = 2**64
"""A coin is a uniform integer below this number."""


class Phase(Enum):
    NEW = 1
    DRAWN = 2
    PLEDGED = 3
    CHECKING_IN = 4
    ACCEPTED = 5
    TRAINING = 6
    PRIVATIZED = 7
    REPORTING = 8
    DONE = 9


PHASES_IN_SLOT = (
    Phase.CHECKING_IN,
    Phase.ACCEPTED,
    Phase.TRAINING,
    Phase.PRIVATIZED,
    Phase.REPORTING,
)
"""The phases of a client whose slot has begun."""


class Outcome(StrEnum):
    """How the participation of a client ended, as far as the client knows."""

    ABSTAINED = "its coin decided against taking part"
    MISSED = "it was offline at its slot, or its slot had passed"
    REFUSED = "its check-in was refused (too late, or a used token)"
    DISMISSED = "it was not chosen"
    LATE = "its slot ended before its report was acknowledged"
    REPORTED = "its report was acknowledged"


@dataclass(frozen=True, slots=True)
class Participant:
    """The state of one client.

    ``participation`` is its probability p_j of checking in, and ``window`` its possible slots R_j.
    An attribute is None before its value is known, and after it was erased.
    """

    participation: float
    window: Window
    phase: Phase = Phase.NEW
    slot: int | None = None
    receipt: str | None = None
    report: Report | None = None
    outcome: Outcome | None = None

    def __post_init__(self) -> None:
        validate.probability(participation=self.participation)

    @property
    def drawn_slot(self) -> int:
        """The drawn slot. Raises OutOfOrder if the client has none, or has erased it."""
        if self.slot is None:
            raise OutOfOrder("a client that does not take part has no slot")
        return self.slot


def coin_threshold(participation: float) -> int:
    """Return the bound of the coin: a client whose coin is below it takes part.

    The bound is rounded down, so the probability is at most ``participation``.

    >>> coin_threshold(1.0) == COIN_RANGE, coin_threshold(0.25) == 2**62, coin_threshold(0.0)
    (True, True, 0)
    """
    return math.floor(Fraction(participation) * COIN_RANGE)


PARTICIPANT_MACHINE: Machine[Participant] = Machine("participant", first_phase=Phase.NEW)
step = PARTICIPANT_MACHINE.step


def _end(participant: Participant, outcome: Outcome) -> tuple[Participant, Effects]:
    """End the participation, and erase slot, receipt and report in memory and on disk."""
    done = Participant(participant.participation, participant.window, Phase.DONE, outcome=outcome)
    return done, (RecordEnd(),)


@PARTICIPANT_MACHINE.on(Draw, {Phase.NEW: Phase.DRAWN})
def _draw(participant: Participant, event: Draw) -> tuple[Participant, Effects]:
    """Decide as in the paper: "if a p_j-biased coin returns heads", "at time I u.a.r. from R_j"."""
    if not (0 <= event.coin < COIN_RANGE and 0 <= event.pick < len(participant.window)):
        raise OutOfOrder(
            f"a client needs a coin below 2^64 and a pick below {len(participant.window)},"
            f" not {event.coin} and {event.pick}"
        )
    takes_part = event.coin < coin_threshold(participant.participation)
    slot = None
    if takes_part:
        slot = participant.window.slot(event.pick, first_open_slot=event.first_open_slot)
    return replace(participant, phase=Phase.DRAWN, slot=slot), (RecordDraw(slot),)


@PARTICIPANT_MACHINE.on(DrawRecorded, {Phase.DRAWN: (Phase.PLEDGED, Phase.DONE)})
def _wait_for_slot(participant: Participant, event: Event) -> tuple[Participant, Effects]:
    if participant.slot is None:
        return _end(participant, Outcome.ABSTAINED)
    return replace(participant, phase=Phase.PLEDGED), (WakeAt(participant.slot),)


@PARTICIPANT_MACHINE.on(SlotBegan, {Phase.PLEDGED: (Phase.PLEDGED, Phase.CHECKING_IN, Phase.DONE)})
def _wake(participant: Participant, event: SlotBegan) -> tuple[Participant, Effects]:
    """Check in at the drawn slot only. If it has passed, the client does not take part."""
    slot = participant.drawn_slot
    if event.slot < slot:
        return participant, ()
    if event.slot > slot:
        return _end(participant, Outcome.MISSED)
    return replace(participant, phase=Phase.CHECKING_IN), (SendCheckIn(slot),)


@PARTICIPANT_MACHINE.on(SlotBegan, {phase: (phase, Phase.DONE) for phase in PHASES_IN_SLOT})
def _end_with_slot(participant: Participant, event: SlotBegan) -> tuple[Participant, Effects]:
    """End when the slot is over. A client sends nothing in a later slot."""
    if event.slot <= participant.drawn_slot:
        return participant, ()
    return _end(participant, Outcome.LATE)


@PARTICIPANT_MACHINE.on(Acknowledged, {Phase.CHECKING_IN: Phase.ACCEPTED})
def _await_outcome(participant: Participant, event: Acknowledged) -> tuple[Participant, Effects]:
    accepted = replace(participant, phase=Phase.ACCEPTED, receipt=event.receipt)
    return accepted, (AskOutcome(event.receipt),)


@PARTICIPANT_MACHINE.on(Refused, {Phase.CHECKING_IN: Phase.DONE})
def _end_refused(participant: Participant, event: Refused) -> tuple[Participant, Effects]:
    return _end(participant, Outcome.REFUSED)


@PARTICIPANT_MACHINE.on(Dismissed, {Phase.ACCEPTED: Phase.DONE})
def _end_dismissed(participant: Participant, event: Dismissed) -> tuple[Participant, Effects]:
    _check_receipt(participant, event.receipt)
    return _end(participant, Outcome.DISMISSED)


@PARTICIPANT_MACHINE.on(Invited, {Phase.ACCEPTED: Phase.TRAINING})
def _train(participant: Participant, event: Invited) -> tuple[Participant, Effects]:
    _check_receipt(participant, event.receipt)
    return replace(participant, phase=Phase.TRAINING), (Train(event.model),)


@PARTICIPANT_MACHINE.on(ReportMade, {Phase.TRAINING: Phase.PRIVATIZED})
def _record_report(participant: Participant, event: ReportMade) -> tuple[Participant, Effects]:
    privatized = replace(participant, phase=Phase.PRIVATIZED, report=event.report)
    return privatized, (RecordReport(event.report),)


@PARTICIPANT_MACHINE.on(ReportRecorded, {Phase.PRIVATIZED: Phase.REPORTING})
def _send_report(participant: Participant, event: Event) -> tuple[Participant, Effects]:
    return _send_again(replace(participant, phase=Phase.REPORTING), event)


@PARTICIPANT_MACHINE.on(ReportAcknowledged, {Phase.REPORTING: Phase.DONE})
def _end_reported(
    participant: Participant, event: ReportAcknowledged
) -> tuple[Participant, Effects]:
    _check_receipt(participant, event.receipt)
    return _end(participant, Outcome.REPORTED)


@PARTICIPANT_MACHINE.on(RetryDue, (Phase.CHECKING_IN, Phase.ACCEPTED, Phase.REPORTING))
@PARTICIPANT_MACHINE.on(
    Restarted, (Phase.PLEDGED, Phase.CHECKING_IN, Phase.ACCEPTED, Phase.REPORTING)
)
def _send_again(participant: Participant, event: Event) -> tuple[Participant, Effects]:
    """Send the same message again, byte for byte. Nothing is drawn again (invariant 3)."""
    slot, receipt, report = participant.drawn_slot, participant.receipt, participant.report
    if receipt is not None and report is not None:
        return participant, (SendReport(slot, receipt, report),)
    if receipt is not None:
        return participant, (AskOutcome(receipt),)
    if participant.phase is Phase.CHECKING_IN:
        return participant, (SendCheckIn(slot),)
    return participant, (WakeAt(slot),)


@PARTICIPANT_MACHINE.on(
    Restarted,
    {
        Phase.DRAWN: (Phase.PLEDGED, Phase.DONE),
        Phase.TRAINING: Phase.ACCEPTED,
        Phase.PRIVATIZED: Phase.REPORTING,
    },
)
def _restart(participant: Participant, event: Restarted) -> tuple[Participant, Effects]:
    """Continue from the saved state.

    A report that was not saved was never sent either, so the client may make a new one.
    """
    if participant.phase is Phase.DRAWN:
        return _wait_for_slot(participant, event)
    resumed_phase = Phase.ACCEPTED if participant.phase is Phase.TRAINING else Phase.REPORTING
    return _send_again(replace(participant, phase=resumed_phase), event)


def _after_check_in(*, excluded: Phase) -> tuple[Phase, ...]:
    return tuple(phase for phase in (*PHASES_IN_SLOT, Phase.DONE) if phase is not excluded)


@PARTICIPANT_MACHINE.on(SlotBegan, (Phase.NEW, Phase.DRAWN, Phase.DONE))
@PARTICIPANT_MACHINE.on(RetryDue, (Phase.NEW, Phase.DRAWN, Phase.PLEDGED))
@PARTICIPANT_MACHINE.on(RetryDue, (Phase.TRAINING, Phase.PRIVATIZED, Phase.DONE))
@PARTICIPANT_MACHINE.on(Restarted, (Phase.NEW, Phase.DONE))
@PARTICIPANT_MACHINE.on(ReportMade, (Phase.DONE,))
@PARTICIPANT_MACHINE.on(Acknowledged, _after_check_in(excluded=Phase.CHECKING_IN))
@PARTICIPANT_MACHINE.on(Refused, _after_check_in(excluded=Phase.CHECKING_IN))
@PARTICIPANT_MACHINE.on(Dismissed, _after_check_in(excluded=Phase.ACCEPTED))
@PARTICIPANT_MACHINE.on(Invited, _after_check_in(excluded=Phase.ACCEPTED))
@PARTICIPANT_MACHINE.on(ReportAcknowledged, _after_check_in(excluded=Phase.REPORTING))
def _ignore(participant: Participant, event: Event) -> tuple[Participant, Effects]:
    """Ignore events that may come late, twice or out of order."""
    return participant, ()


def _check_receipt(participant: Participant, receipt: str) -> None:
    if receipt != participant.receipt:
        raise ProtocolViolation("the receipt in this message belongs to another check-in")


def participant_of(campaign: Campaign) -> Participant:
    """Return a new client with the campaign's participation and window."""
    return Participant(campaign.design.participation, window_of(campaign.design))
