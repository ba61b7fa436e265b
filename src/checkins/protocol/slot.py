"""The state machine of one slot on the server: check-ins, choice, reports and their total.

COLLECTING  the server accepts check-ins
CHOOSING    the choice is made but not durable, so no client learns its outcome
TRAINING    the chosen clients are invited, and the server accepts reports
CLOSED      the total is computed, and tokens, receipts and reports are erased

This file makes every decision about a slot. A dummy report A_ldp(0) is drawn by the server in place
of a missing report. A slot ends at its scheduled time and not with the last report, because an
early end would reveal that no dummy report was needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np

from checkins.errors import OutOfOrder, ProtocolViolation
from checkins.protocol.machine import Effect, Effects, Event, Machine, Message
from checkins.protocol.model_update import Total, read_only
from checkins.protocol.report import Report
from checkins.protocol.rules import Filling, Rules


class Phase(Enum):
    COLLECTING = 1
    CHOOSING = 2
    TRAINING = 3
    CLOSED = 4


@dataclass(frozen=True, slots=True, eq=False)
class PartialSum:
    """The sum and the counts of the reports and dummy reports that were already added."""

    total: Total | None = None
    reports: int = 0
    dummies: int = 0


@dataclass(frozen=True, slots=True)
class Slot:
    """The state of one slot. A receipt is a pseudonym of a client, valid in this slot only."""

    number: int
    rules: Rules
    phase: Phase = Phase.COLLECTING
    waiting: Mapping[str, str] = field(default_factory=dict)
    """The receipt of each client that checked in, by token."""
    chosen: tuple[str, ...] = ()
    reports: Mapping[str, Report] = field(default_factory=dict)
    added: PartialSum = PartialSum()
    """The sum of the reports that are not in ``reports`` (``add_reports``, ``add_dummies``)."""
    total: Total | None = None
    contributors: int | None = None
    """Number of averaged reports. None in the other protocols, which never reveal it."""

    @property
    def chosen_count(self) -> int:
        """The number of clients that will be chosen among those that checked in."""
        if not self.rules.releases(self.number):
            return 0
        here = len(self.waiting)
        return here if self.rules.capacity is None else min(here, self.rules.capacity)

    @property
    def ranges(self) -> tuple[int, ...]:
        """The exclusive upper bound of each draw of ``Choose``; empty if all are chosen."""
        here = len(self.waiting)
        return (
            () if self.chosen_count == here else tuple(here - i for i in range(self.chosen_count))
        )

    @property
    def missing(self) -> int:
        """The number of dummy reports that ``Expired`` must contain."""
        if self.rules.filling is not Filling.DUMMIES or not self.rules.releases(self.number):
            return 0
        return (self.rules.capacity or 0) - self.report_count - self.added.dummies

    @property
    def report_count(self) -> int:
        """The number of reports from clients."""
        return len(self.reports) + self.added.reports

    @property
    def wants_noise(self) -> bool:
        """Whether ``Expired`` must contain noise drawn by the server."""
        return self.rules.filling is Filling.NOISE and self.rules.releases(self.number)


@dataclass(frozen=True, slots=True)
class CheckedIn(Message):
    """A client checks in. ``spent`` is True if it has already used its one participation."""

    slot: int
    token: str
    receipt: str
    spent: bool


@dataclass(frozen=True, slots=True)
class Choose(Event):
    """Check-ins are over. ``draws`` are uniform integers below the bounds ``Slot.ranges``."""

    slot: int
    draws: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChoiceRecorded(Event):
    """The choice is durable."""

    slot: int


@dataclass(frozen=True, slots=True)
class OutcomeAsked(Message):
    """A client that checked in asks whether it was chosen."""

    slot: int
    receipt: str


@dataclass(frozen=True, slots=True)
class ReportArrived(Message):
    slot: int
    receipt: str
    report: Report


@dataclass(frozen=True, slots=True)
class Expired(Event):
    """The slot's time is over. ``dummies`` and ``noise`` are drawn for this slot only."""

    slot: int
    dummies: tuple[Report, ...] = ()
    noise: Report | None = None


SlotEvent = CheckedIn | Choose | ChoiceRecorded | OutcomeAsked | ReportArrived | Expired


@dataclass(frozen=True, slots=True)
class RecordCheckIn(Effect):
    """Save the check-in and, in the same transaction, that the participation is used."""

    token: str
    receipt: str


@dataclass(frozen=True, slots=True)
class Acknowledge(Effect):
    token: str
    receipt: str


@dataclass(frozen=True, slots=True)
class RecordChoice(Effect):
    chosen: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Invite(Effect):
    receipt: str


@dataclass(frozen=True, slots=True)
class Dismiss(Effect):
    receipt: str


@dataclass(frozen=True, slots=True)
class RecordReport(Effect):
    receipt: str
    report: Report


@dataclass(frozen=True, slots=True)
class AcknowledgeReport(Effect):
    receipt: str


SLOT: Machine[Slot] = Machine("slot", first=Phase.COLLECTING)
step = SLOT.step


@SLOT.on(CheckedIn, (Phase.COLLECTING,))
def _accept_check_in(slot: Slot, event: CheckedIn) -> tuple[Slot, Effects]:
    if event.token in slot.waiting:
        return _answer_again(slot, event)
    if event.spent:
        raise ProtocolViolation("this client has used its one participation in the campaign")
    if event.receipt in slot.waiting.values():
        raise OutOfOrder(f"receipt {event.receipt} was issued before")
    waiting = {**slot.waiting, event.token: event.receipt}
    effects = (RecordCheckIn(event.token, event.receipt), Acknowledge(event.token, event.receipt))
    return replace(slot, waiting=waiting), effects


@SLOT.on(CheckedIn, (Phase.CHOOSING, Phase.TRAINING))
def _answer_again(slot: Slot, event: CheckedIn) -> tuple[Slot, Effects]:
    """Repeat the response to a check-in that was sent again because the response was lost."""
    if event.token not in slot.waiting:
        raise ProtocolViolation(f"check-ins for slot {slot.number} are over")
    return slot, (Acknowledge(event.token, slot.waiting[event.token]),)


@SLOT.on(Choose, {Phase.COLLECTING: Phase.CHOOSING})
def _choose(slot: Slot, event: Choose) -> tuple[Slot, Effects]:
    """Choose up to K clients without replacement: "Sample J_i u.a.r. from S_i" in the paper."""
    ranges = slot.ranges
    if len(event.draws) != len(ranges) or not all(
        0 <= draw < most for draw, most in zip(event.draws, ranges, strict=True)
    ):
        raise OutOfOrder(f"slot {slot.number} needs draws below {ranges}, not {event.draws}")
    waiting = sorted(slot.waiting.values())
    chosen = [waiting.pop(draw) for draw in event.draws] if ranges else waiting[: slot.chosen_count]
    after = replace(slot, phase=Phase.CHOOSING, chosen=tuple(chosen))
    return after, (RecordChoice(after.chosen),)


@SLOT.on(ChoiceRecorded, {Phase.CHOOSING: Phase.TRAINING})
def _invite(slot: Slot, event: ChoiceRecorded) -> tuple[Slot, Effects]:
    chosen = set(slot.chosen)
    answers = (
        Invite(receipt) if receipt in chosen else Dismiss(receipt)
        for receipt in sorted(slot.waiting.values())
    )
    return replace(slot, phase=Phase.TRAINING), tuple(answers)


@SLOT.on(OutcomeAsked, (Phase.COLLECTING, Phase.CHOOSING))
def _not_yet(slot: Slot, event: OutcomeAsked) -> tuple[Slot, Effects]:
    """Tell no client the outcome before the choice is durable (invariant 4)."""
    return slot, ()


@SLOT.on(OutcomeAsked, (Phase.TRAINING,))
def _answer_outcome(slot: Slot, event: OutcomeAsked) -> tuple[Slot, Effects]:
    if event.receipt not in slot.waiting.values():
        raise ProtocolViolation(f"nobody checked in to slot {slot.number} with this receipt")
    chosen = event.receipt in slot.chosen
    return slot, ((Invite if chosen else Dismiss)(event.receipt),)


@SLOT.on(ReportArrived, (Phase.TRAINING,))
def _accept_report(slot: Slot, event: ReportArrived) -> tuple[Slot, Effects]:
    if event.receipt not in slot.chosen:
        raise ProtocolViolation(f"this client was not chosen in slot {slot.number}")
    slot.rules.form.check(event.report)
    before = slot.reports.get(event.receipt)
    if before is not None and before != event.report:
        raise ProtocolViolation("this client has already sent a different report")
    reports = {**slot.reports, event.receipt: event.report}
    effects = (RecordReport(event.receipt, event.report), AcknowledgeReport(event.receipt))
    return replace(slot, reports=reports), effects


@SLOT.on(Expired, {Phase.TRAINING: Phase.CLOSED})
def _close(slot: Slot, event: Expired) -> tuple[Slot, Effects]:
    """Compute the total and erase who contributed.

    A dummy report replaces each missing report, and a report that comes later is refused.
    """
    if len(event.dummies) != slot.missing or (event.noise is not None) != slot.wants_noise:
        raise OutOfOrder(
            f"slot {slot.number} needs {slot.missing} dummies"
            f" and {'a' if slot.wants_noise else 'no'} noise"
        )
    _check_server_reports(slot, event.dummies, event.noise)
    real = [slot.reports[receipt] for receipt in slot.chosen if receipt in slot.reports]
    drawn = [*event.dummies, *([] if event.noise is None else [event.noise])]
    closed = Slot(
        slot.number,
        slot.rules,
        Phase.CLOSED,
        total=_sum(real + drawn, slot.added.total),
        contributors=len(real) + slot.added.reports if slot.rules.averaged else None,
    )
    return closed, ()


def add_reports(slot: Slot, reports: Iterable[tuple[str, Report]]) -> Slot:
    """Return the slot with these reports added to its sum. Each comes with its receipt.

    A driver calls this before ``Expired`` to avoid holding all reports in memory. Each receipt
    occurs once and is not in ``slot.reports``.
    """
    if slot.phase is not Phase.TRAINING:
        raise OutOfOrder(f"slot {slot.number} does not accept reports")
    chosen, count = set(slot.chosen), 0

    def taken() -> Iterator[Report]:
        nonlocal count
        for receipt, report in reports:
            if receipt not in chosen or receipt in slot.reports:
                raise OutOfOrder(
                    f"no report of receipt {receipt} is expected in slot {slot.number}"
                )
            chosen.discard(receipt)
            count += 1
            yield report

    total = _sum(taken(), slot.added.total)
    return replace(slot, added=replace(slot.added, total=total, reports=slot.added.reports + count))


def add_dummies(slot: Slot, dummies: Sequence[Report]) -> Slot:
    """Return the slot with dummy reports added to its sum. ``Expired`` must then omit them."""
    if slot.phase is not Phase.TRAINING or len(dummies) > slot.missing:
        raise OutOfOrder(f"slot {slot.number} needs {slot.missing} dummies, not {len(dummies)}")
    _check_server_reports(slot, dummies, None)
    added = PartialSum(
        _sum(dummies, slot.added.total), slot.added.reports, slot.added.dummies + len(dummies)
    )
    return replace(slot, added=added)


def _check_server_reports(slot: Slot, dummies: Iterable[Report], noise: Report | None) -> None:
    """Check that the server's dummies and noise lie on the grid of the campaign."""
    try:
        for dummy in dummies:
            slot.rules.form.check_units(dummy)
        if noise is not None:
            slot.rules.form.check_kind(noise)
    except ProtocolViolation as violation:
        raise OutOfOrder(f"the server's own dummies and noise: {violation}") from violation


def _sum(reports: Iterable[Report], before: Total | None = None) -> Total | None:
    """Return the sum. Integers are added exactly in 64 bits, so their order does not matter.

    The sum does not overflow, because ``Rules`` bounds the number of reports by the capacity or by
    ``MOST_ENROLLED``.
    """
    total = None if before is None else before.copy()
    for report in reports:
        if total is None:
            exact = np.issubdtype(report.values.dtype, np.integer)
            total = np.zeros(report.values.shape, dtype=np.int64 if exact else np.float64)
        total += report.values
    return None if total is None else read_only(total)
