"""What a participant is told, and what it asks of its driver (participant.py decides)."""

from __future__ import annotations

from dataclasses import dataclass

from checkins.protocol.machine import Effect, Event, Message
from checkins.protocol.model_update import Model
from checkins.protocol.report import Report


@dataclass(frozen=True, slots=True)
class Draw(Event):
    """Fresh dice: a coin below 2^64, a ``pick`` below the size of the window.

    ``now`` is the first slot whose check-ins are not over.
    """

    coin: int
    pick: int
    now: int


@dataclass(frozen=True, slots=True)
class DrawRecorded(Event):
    """Coin and slot are durable."""


@dataclass(frozen=True, slots=True)
class SlotBegan(Event):
    """The clock: check-ins of this slot are open."""

    slot: int


@dataclass(frozen=True, slots=True)
class RetryDue(Event):
    """No answer has come: say the same again."""


@dataclass(frozen=True, slots=True)
class Restarted(Event):
    """The device has lost its memory; this state is what it had made durable."""


@dataclass(frozen=True, slots=True)
class Acknowledged(Message):
    receipt: str


@dataclass(frozen=True, slots=True)
class Refused(Message):
    """The server does not take the check-in."""


@dataclass(frozen=True, slots=True)
class Dismissed(Message):
    receipt: str


@dataclass(frozen=True, slots=True, eq=False)
class Invited(Message):
    receipt: str
    model: Model


@dataclass(frozen=True, slots=True)
class ReportMade(Event):
    """Trained, clipped and privatized, with noise that was drawn for this report alone."""

    report: Report


@dataclass(frozen=True, slots=True)
class ReportRecorded(Event):
    """The report is durable; the seed of its noise never was."""


@dataclass(frozen=True, slots=True)
class ReportAcknowledged(Message):
    receipt: str


@dataclass(frozen=True, slots=True)
class RecordDraw(Effect):
    slot: int | None


@dataclass(frozen=True, slots=True)
class RecordEnd(Effect):
    """Keep nothing but that it is over: slot, receipt and report are erased with this record."""


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
