"""The state machine of one slot on the server: check-ins, choice, reports and their total.

COLLECTING  the server accepts check-ins
CHOOSING    the server has chosen among the check-ins, but the choice is not durable yet, so no
            client learns its outcome
TRAINING    the chosen clients are invited, and the server accepts reports
CLOSED      the total is computed, and tokens, receipts and reports are erased

This file makes every decision about a slot. In place of a missing report, the server draws a dummy
report A_ldp(0), the randomized report of a zero update. A slot ends at its scheduled time and not
with the last report, because an early end would reveal that no dummy report was needed.
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
    """The sum of the reports and dummy reports that were already added, and their counts."""

    total: Total | None = None
    report_count: int = 0
    dummy_count: int = 0


@dataclass(frozen=True, slots=True)
class Slot:
    """The state of one slot.

    A token is a client's credential for its check-in. A receipt is the pseudonym of the client that
    is valid in this slot only.
    """

    number: int
    rules: Rules
    phase: Phase = Phase.COLLECTING
    receipts_by_token: Mapping[str, str] = field(default_factory=dict)
    """The receipts of all clients that checked in."""
    chosen_receipts: tuple[str, ...] = ()
    reports: Mapping[str, Report] = field(default_factory=dict)
    """The reports of chosen clients, by receipt."""
    partial_sum: PartialSum = PartialSum()
    """The sum of the reports that are not in ``reports`` (``add_reports``, ``add_dummies``)."""
    total: Total | None = None
    """The sum of all reports, dummies and noise. None if the slot is open, empty or skipped.

    It is also None if noise is correlated across slots, because a total then has earlier sums.
    """
    exact_sum: Total | None = None
    """The sum of the reports of a closed slot, without noise, if noise is correlated across slots.

    It is secret. None in all other slots.
    """
    contributors: int | None = None
    """Number of averaged reports. None in the other protocols, which never reveal it."""

    @property
    def chosen_count(self) -> int:
        """The number of clients that will be chosen among those that checked in."""
        if not self.rules.releases_model(self.number):
            return 0
        check_ins = len(self.receipts_by_token)
        return check_ins if self.rules.capacity is None else min(check_ins, self.rules.capacity)

    @property
    def ranges(self) -> tuple[int, ...]:
        """The exclusive upper bound of each draw of ``Choose``. Empty if all are chosen."""
        check_ins, chosen = len(self.receipts_by_token), self.chosen_count
        return () if chosen == check_ins else tuple(check_ins - i for i in range(chosen))

    @property
    def missing_dummies(self) -> int:
        """The number of dummy reports that ``Expired`` must contain."""
        if self.rules.filling is not Filling.DUMMIES or not self.rules.releases_model(self.number):
            return 0
        return (self.rules.capacity or 0) - self.report_count - self.partial_sum.dummy_count

    @property
    def report_count(self) -> int:
        """The number of reports from clients."""
        return len(self.reports) + self.partial_sum.report_count

    @property
    def needs_noise(self) -> bool:
        """True if ``Expired`` must contain noise drawn by the server."""
        return self.rules.filling is Filling.NOISE and self.rules.releases_model(self.number)


@dataclass(frozen=True, slots=True)
class CheckedIn(Message):
    """A client checks in.

    ``has_participated`` is True if the client has used its one participation in the campaign.
    """

    slot: int
    token: str
    receipt: str
    has_participated: bool


@dataclass(frozen=True, slots=True)
class Choose(Event):
    """Check-ins are over, and the server chooses among them.

    ``draws`` are uniform integers, one below each bound of ``Slot.ranges``.
    """

    slot: int
    draws: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChoiceRecorded(Event):
    """The choice is saved durably."""

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
    receipts: tuple[str, ...]


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


SLOT_MACHINE: Machine[Slot] = Machine("slot", first_phase=Phase.COLLECTING)
step = SLOT_MACHINE.step


@SLOT_MACHINE.on(CheckedIn, (Phase.COLLECTING,))
def _accept_check_in(slot: Slot, event: CheckedIn) -> tuple[Slot, Effects]:
    if event.token in slot.receipts_by_token:
        return _answer_again(slot, event)
    if event.has_participated:
        raise ProtocolViolation("this client has used its one participation in the campaign")
    if event.receipt in slot.receipts_by_token.values():
        raise OutOfOrder(f"receipt {event.receipt} was issued before")
    receipts = {**slot.receipts_by_token, event.token: event.receipt}
    effects = (RecordCheckIn(event.token, event.receipt), Acknowledge(event.token, event.receipt))
    return replace(slot, receipts_by_token=receipts), effects


@SLOT_MACHINE.on(CheckedIn, (Phase.CHOOSING, Phase.TRAINING))
def _answer_again(slot: Slot, event: CheckedIn) -> tuple[Slot, Effects]:
    """Repeat the response to a check-in that was sent again because the response was lost."""
    if event.token not in slot.receipts_by_token:
        raise ProtocolViolation(f"check-ins for slot {slot.number} are over")
    return slot, (Acknowledge(event.token, slot.receipts_by_token[event.token]),)


@SLOT_MACHINE.on(Choose, {Phase.COLLECTING: Phase.CHOOSING})
def _choose(slot: Slot, event: Choose) -> tuple[Slot, Effects]:
    """Choose as many clients as the capacity allows, uniformly and without replacement.

    This is "Sample J_i u.a.r. from S_i" in the paper (arXiv:2007.06605), whose capacity is 1.
    """
    ranges = slot.ranges
    if len(event.draws) != len(ranges) or not all(
        0 <= draw < bound for draw, bound in zip(event.draws, ranges, strict=True)
    ):
        raise OutOfOrder(f"slot {slot.number} needs draws below {ranges}, not {event.draws}")
    waiting = sorted(slot.receipts_by_token.values())
    chosen = [waiting.pop(draw) for draw in event.draws] if ranges else waiting[: slot.chosen_count]
    choosing = replace(slot, phase=Phase.CHOOSING, chosen_receipts=tuple(chosen))
    return choosing, (RecordChoice(choosing.chosen_receipts),)


@SLOT_MACHINE.on(ChoiceRecorded, {Phase.CHOOSING: Phase.TRAINING})
def _invite(slot: Slot, event: ChoiceRecorded) -> tuple[Slot, Effects]:
    chosen = set(slot.chosen_receipts)
    effects = (
        Invite(receipt) if receipt in chosen else Dismiss(receipt)
        for receipt in sorted(slot.receipts_by_token.values())
    )
    return replace(slot, phase=Phase.TRAINING), tuple(effects)


@SLOT_MACHINE.on(OutcomeAsked, (Phase.COLLECTING, Phase.CHOOSING))
def _withhold_outcome(slot: Slot, event: OutcomeAsked) -> tuple[Slot, Effects]:
    """Do not answer before the choice is durable (invariant 4 of docs/invariants.md)."""
    return slot, ()


@SLOT_MACHINE.on(OutcomeAsked, (Phase.TRAINING,))
def _answer_outcome(slot: Slot, event: OutcomeAsked) -> tuple[Slot, Effects]:
    if event.receipt not in slot.receipts_by_token.values():
        raise ProtocolViolation(f"nobody checked in to slot {slot.number} with this receipt")
    effect = Invite if event.receipt in slot.chosen_receipts else Dismiss
    return slot, (effect(event.receipt),)


@SLOT_MACHINE.on(ReportArrived, (Phase.TRAINING,))
def _accept_report(slot: Slot, event: ReportArrived) -> tuple[Slot, Effects]:
    if event.receipt not in slot.chosen_receipts:
        raise ProtocolViolation(f"this client was not chosen in slot {slot.number}")
    slot.rules.report_checks.check(event.report)
    earlier = slot.reports.get(event.receipt)
    if earlier is not None and earlier != event.report:
        raise ProtocolViolation("this client has already sent a different report")
    reports = {**slot.reports, event.receipt: event.report}
    effects = (RecordReport(event.receipt, event.report), AcknowledgeReport(event.receipt))
    return replace(slot, reports=reports), effects


@SLOT_MACHINE.on(Expired, {Phase.TRAINING: Phase.CLOSED})
def _close(slot: Slot, event: Expired) -> tuple[Slot, Effects]:
    """Compute the total, or the exact sum, and erase which clients contributed.

    A dummy report replaces each missing report. A report that comes later is refused. An averaged
    slot with fewer than ``Rules.least_reports`` reports has no total, so its reports are not used.
    """
    if len(event.dummies) != slot.missing_dummies or (event.noise is not None) != slot.needs_noise:
        raise OutOfOrder(
            f"slot {slot.number} needs {slot.missing_dummies} dummies"
            f" and {'noise of the server' if slot.needs_noise else 'no noise'}"
        )
    _check_server_reports(slot, event.dummies, event.noise)
    client_reports = [
        slot.reports[receipt] for receipt in slot.chosen_receipts if receipt in slot.reports
    ]
    is_correlated = event.noise is not None and slot.rules.strategy is not None
    noise = [] if event.noise is None or is_correlated else [event.noise]
    contributors = len(client_reports) + slot.partial_sum.report_count
    total = _sum([*client_reports, *event.dummies, *noise], slot.partial_sum.total)
    if slot.rules.is_averaged and contributors < slot.rules.least_reports:
        total = None  # too little noise to hide a client: the slot is skipped
    closed = Slot(
        slot.number,
        slot.rules,
        Phase.CLOSED,
        total=None if is_correlated else total,
        exact_sum=total if is_correlated else None,
        contributors=contributors if slot.rules.is_averaged else None,
    )
    return closed, ()


def add_reports(slot: Slot, reports: Iterable[tuple[str, Report]]) -> Slot:
    """Return the slot with reports added to its sum. ``reports`` are pairs (receipt, report).

    A driver calls this before ``Expired``, so that it need not hold all reports in memory. Each
    receipt must occur once, and must not be in ``slot.reports``.
    """
    if slot.phase is not Phase.TRAINING:
        raise OutOfOrder(f"slot {slot.number} does not accept reports")
    expected_receipts, count = set(slot.chosen_receipts), 0

    def checked_reports() -> Iterator[Report]:
        nonlocal count
        for receipt, report in reports:
            if receipt not in expected_receipts or receipt in slot.reports:
                raise OutOfOrder(
                    f"no report of receipt {receipt} is expected in slot {slot.number}"
                )
            expected_receipts.discard(receipt)
            count += 1
            yield report

    before = slot.partial_sum
    total = _sum(checked_reports(), before.total)
    after = replace(before, total=total, report_count=before.report_count + count)
    return replace(slot, partial_sum=after)


def add_dummies(slot: Slot, dummies: Sequence[Report]) -> Slot:
    """Return the slot with dummy reports added to its sum. ``Expired`` must not repeat them."""
    if slot.phase is not Phase.TRAINING or len(dummies) > slot.missing_dummies:
        needed = slot.missing_dummies
        raise OutOfOrder(f"slot {slot.number} needs {needed} dummies, not {len(dummies)}")
    _check_server_reports(slot, dummies, None)
    before = slot.partial_sum
    total = _sum(dummies, before.total)
    after = PartialSum(total, before.report_count, before.dummy_count + len(dummies))
    return replace(slot, partial_sum=after)


def _check_server_reports(slot: Slot, dummies: Iterable[Report], noise: Report | None) -> None:
    """Raise OutOfOrder unless the server's dummies and noise are on the campaign's grid."""
    try:
        for dummy in dummies:
            slot.rules.report_checks.check_units(dummy)
        if noise is not None:
            slot.rules.report_checks.check_addable(noise)
    except ProtocolViolation as violation:
        raise OutOfOrder(f"the server's dummies or noise are invalid: {violation}") from violation


def _sum(reports: Iterable[Report], start: Total | None = None) -> Total | None:
    """Return the sum of ``start`` and the reports. None if there is nothing to add.

    Integers are added exactly in 64 bits, so their order does not matter. The sum does not
    overflow, because ``Rules`` bounds the number of reports by the capacity or ``MAX_ENROLLED``.
    """
    total = None if start is None else start.copy()
    for report in reports:
        if total is None:
            is_integer = np.issubdtype(report.values.dtype, np.integer)
            total = np.zeros(report.values.shape, dtype=np.int64 if is_integer else np.float64)
        total += report.values
    return None if total is None else read_only(total)
