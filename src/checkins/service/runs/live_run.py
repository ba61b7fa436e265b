"""A run in the memory of this process, and the requests that wait until the run changes.

A live run holds the state that was last read from the database, so that many requests need no
query. It wakes waiting requests when the run changes. It makes no decisions about the protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from checkins.protocol import slot as slots
from checkins.protocol.server import Ending, Phase
from checkins.protocol.slot import Invite, OutcomeAsked, Slot
from checkins.protocol.wire import OutcomeName, RunStatus, Spent
from checkins.service.http.problems import Problem
from checkins.service.runs.group_commit import GroupCommit
from checkins.service.runs.intake import CheckIn, EnrolmentRequest, Submission
from checkins.service.runs.load_shedding import SlotLoad
from checkins.service.runs.slot_transitions import SlotChoice
from checkins.service.store.run_state import Curve, Epsilons, RunSnapshot, RunSpec

MAX_EARLY_S = 2.0
"""Seconds before a slot in which a check-in waits for the slot. Earlier ones are refused."""

MAX_REPORTS_PER_RECEIPT = 2
"""Largest number of reports of one receipt in transfer: one that has stalled, and its retry."""


@dataclass(eq=False)
class LiveRun:
    """The last snapshot of a run, its cached responses, and a group commit per kind of message."""

    spec: RunSpec
    snapshot: RunSnapshot
    enrolments: GroupCommit[EnrolmentRequest, None] = field(kw_only=True)
    check_ins: GroupCommit[CheckIn, str] = field(kw_only=True)
    reports: GroupCommit[Submission, None] = field(kw_only=True)
    retries: GroupCommit[CheckIn, str | None] = field(kw_only=True)
    """Queries for the receipts of tokens; None for a token without a check-in in this slot."""
    load: SlotLoad = field(kw_only=True)
    public_snapshot: RunSnapshot = field(init=False)
    """The snapshot that clients see. A release becomes public at its scheduled time."""
    epsilons: Epsilons = field(default_factory=list)
    curve: Curve = field(default_factory=list)
    next_run: str | None = None
    """The id of the next run of the campaign, or None if it is not open yet."""
    budget_is_spent: bool = False
    """Whether the budget allows no further run, although the campaign declares more."""
    slots_of_receipts: dict[str, int] = field(default_factory=dict)
    """The slot of each receipt that this process issued in the slot in progress."""
    cached_view: bytes | None = None
    """The view as JSON without the server's time; None if it must be built again."""
    cached_models: dict[str, bytes] = field(default_factory=dict)
    """The latest model as safetensors; the key is the head of the ledger."""
    cached_outcomes: dict[tuple[int, OutcomeName, str], bytes] = field(default_factory=dict)
    """Outcomes with the model as JSON without the receipt; the key is slot, outcome and head."""
    _report_locks: dict[str, tuple[asyncio.Lock, int]] = field(default_factory=dict)
    """For each receipt, a lock and the number of its reports that are in transfer."""
    _choice: SlotChoice | None = None
    """The last choice of clients that this process has read, or None."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at the next change of the run, and then replaced by a new event."""

    def __post_init__(self) -> None:
        self.public_snapshot = self.snapshot

    @property
    def status(self) -> RunStatus:
        """The status of the run that clients see."""
        state = self.public_snapshot.state
        if state.ending is not None:
            return "completed" if state.ending is Ending.COMPLETED else "stopped"
        return "waiting" if state.phase is Phase.WAITING and state.closed == 0 else "running"

    @property
    def is_last(self) -> bool:
        """Whether no further run of the campaign follows."""
        stopped = self.snapshot.state.ending is Ending.STOPPED
        return self.budget_is_spent or stopped or self.spec.number >= self.spec.campaign.repeats

    @property
    def is_over(self) -> bool:
        return self.snapshot.state.ending is not None

    @property
    def choice_is_unread(self) -> bool:
        """Whether clients were chosen in the slot in progress, and this process must read which."""
        state = self.snapshot.state
        if state.slot_phase is not slots.Phase.CHOOSING:
            return False
        return self._choice is None or self._choice.slot != state.slot

    @property
    def group_commits(self) -> tuple[GroupCommit[Any, Any], ...]:
        """The group commit of each kind of message."""
        return self.enrolments, self.check_ins, self.reports, self.retries

    def update(self, snapshot: RunSnapshot, choice: SlotChoice | None = None) -> None:
        """Replace the snapshot by a newer one, and wake all waiting requests.

        A snapshot with a new release becomes public only when ``publish`` is called.
        """
        if snapshot.state.closed != self.snapshot.state.closed:
            self.slots_of_receipts.clear()
            self.load.slot_was_closed(snapshot.state.closed)
        self.snapshot = snapshot
        if choice is not None:
            self._choice = choice
            expected = len(choice.chosen & self.slots_of_receipts.keys())
            self.load.choice_was_read(choice.slot, expected=expected)
        if snapshot.ledger.head == self.public_snapshot.ledger.head:
            self.public_snapshot = snapshot
        self.wake()

    def publish(self, snapshot: RunSnapshot) -> None:
        """Make a snapshot with a release public, unless a later one is public already."""
        if snapshot.ledger.entries > self.public_snapshot.ledger.entries:
            self.public_snapshot = snapshot
            self.wake()

    def wake(self) -> None:
        """Drop the cached view and wake all waiting requests."""
        self.cached_view = None
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_for_change(self, *, timeout_s: float) -> bool:
        """Wait for a change of the run. Return False if none comes within ``timeout_s`` seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    @asynccontextmanager
    async def lock_receipt(self, receipt: str) -> AsyncIterator[None]:
        """Hold the lock of a receipt, so that one report of it is read at a time.

        A second report may wait for the lock. Raise the problem ``too-many`` for a third.
        """
        lock, count = self._report_locks.get(receipt, (asyncio.Lock(), 0))
        if count >= MAX_REPORTS_PER_RECEIPT:
            detail = "two reports of this receipt are already being received"
            raise Problem("too-many", detail, retry_after=1)
        self._report_locks[receipt] = lock, count + 1
        try:
            async with lock:
                yield
        finally:
            _, count = self._report_locks.pop(receipt)
            if count > 1:
                self._report_locks[receipt] = lock, count - 1

    def is_early(self, slot: int) -> bool:
        """Return whether a slot has not begun, according to the last snapshot."""
        state = self.snapshot.state
        if self.is_over or state.phase is Phase.DONE:
            return False
        return slot > state.slot or (slot == state.slot and state.phase is Phase.WAITING)

    def has_read_choice(self, slot: int) -> bool:
        """Return whether this process has read which clients were chosen in a slot."""
        state = self.snapshot.state
        was_made = state.slot_phase is slots.Phase.CHOOSING
        return slot == state.slot and was_made and not self.choice_is_unread

    def outcome(self, slot: int, receipt: str) -> OutcomeName | None:
        """Return the outcome of a check-in, as the protocol's state machine decides it.

        Return None if the slot is not in progress or the receipt is unknown.
        """
        state = self.snapshot.state
        if slot != state.slot or state.slot_phase is None:
            return None
        if self.choice_is_unread or state.slot_phase is slots.Phase.COLLECTING:
            return "waiting"
        choice = self._choice
        if choice is None or receipt not in choice.waiting:
            return None
        chosen = (receipt,) if receipt in choice.chosen else ()
        slot_of_client = Slot(
            slot, self.spec.rules, slots.Phase.TRAINING, {"": receipt}, chosen_receipts=chosen
        )
        _, (effect,) = slots.step(slot_of_client, OutcomeAsked(slot, receipt))
        return "chosen" if isinstance(effect, Invite) else "dismissed"

    @property
    def public_curve(self) -> Curve:
        """The points of the learning curve whose models are public."""
        closed = self.public_snapshot.state.closed
        return [point for point in self.curve if point[0] <= closed]

    @property
    def spent(self) -> Spent | None:
        """An upper bound on the epsilon spent so far. Once the run is over, it is the certified
        epsilon. It is None if no epsilon is known.
        """
        closed = self.public_snapshot.state.closed
        if self.public_snapshot.state.ending is not None:
            return {"epsilon": self.public_snapshot.certificate.get("epsilon"), "slots": closed}
        return self.spent_after(closed)

    def spent_after(self, closed: int) -> Spent | None:
        """Return an upper bound on epsilon after ``closed`` slots.

        Epsilon is computed for some numbers of slots. The bound is the epsilon for the smallest of
        them that is at least ``closed``, or else the epsilon of the whole run. Return None if
        neither is known.
        """
        if closed == 0 and self.spec.number == 1 and not self.public_snapshot.ledger.closed:
            return {"epsilon": 0.0, "slots": 0}
        for count, epsilon in self.epsilons:
            if count >= closed:
                return {"epsilon": epsilon, "slots": count}
        certified = self.public_snapshot.certificate.get("epsilon")
        return None if certified is None else {"epsilon": certified, "slots": self.spec.affordable}
