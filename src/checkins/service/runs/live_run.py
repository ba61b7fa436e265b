"""A run in the memory of this process, with the requests that wait for a change of it.

A live run holds the state that was last read from the database, so that many requests need no
query. It wakes waiting requests when the run changes. It makes no decisions about the protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from checkins.protocol import slot as slots
from checkins.protocol.server import Ending, Phase
from checkins.protocol.slot import Invite, OutcomeAsked, Slot
from checkins.protocol.wire import OutcomeName, RunStatus, Spent
from checkins.service.http.problems import Problem
from checkins.service.runs.group_commit import GroupCommit
from checkins.service.runs.intake import CheckIn, EnrolmentRequest, Submission
from checkins.service.runs.run_state_machine import SlotChoice
from checkins.service.store.run_state import Curve, Epsilons, RunSnapshot, RunSpec

EARLY_S = 2.0
"""A check-in that comes at most this many seconds before its slot waits; others are refused."""

MOST_REPORTS_PER_RECEIPT = 2
"""Largest number of reports of one receipt at once: one that has stalled, and its retry."""


@dataclass(eq=False)
class LiveRun:
    """The last snapshot of a run, its group commits and its cached responses."""

    spec: RunSpec
    snapshot: RunSnapshot
    enrolments: GroupCommit[EnrolmentRequest, None] = field(kw_only=True)
    check_ins: GroupCommit[CheckIn, str] = field(kw_only=True)
    reports: GroupCommit[Submission, None] = field(kw_only=True)
    public: RunSnapshot = field(init=False)
    """The snapshot that clients see. A release becomes public at a fixed time after its slot."""
    epsilons: Epsilons = field(default_factory=list)
    curve: Curve = field(default_factory=list)
    next_run: str | None = None
    budget_is_spent: bool = False
    """Whether the budget allows no further run, although the campaign declares more."""
    slots_of_receipts: dict[str, int] = field(default_factory=dict)
    """The slot of each receipt that this process issued in the slot in progress."""
    cached_view: bytes | None = None
    """The view as JSON without the server's time; None if it must be built again."""
    cached_models: dict[str, bytes] = field(default_factory=dict)
    """The latest model as safetensors; the key is the head of the ledger."""
    _reporting: dict[str, tuple[asyncio.Lock, int]] = field(default_factory=dict)
    """For each receipt, a lock and the number of reports that are being received."""
    _choice: SlotChoice | None = None
    _change: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.public = self.snapshot

    @property
    def status(self) -> RunStatus:
        """The status of the run that clients see."""
        state = self.public.state
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
    def needs_choice(self) -> bool:
        """Whether the clients of the slot have been chosen, and this process has not read who."""
        state = self.snapshot.state
        if state.slot_phase is not slots.Phase.CHOOSING:
            return False
        return self._choice is None or self._choice.slot != state.slot

    def update(self, snapshot: RunSnapshot, choice: SlotChoice | None = None) -> None:
        """Store a newer snapshot, and wake all waiting requests.

        If it contains a new release, it becomes public only by ``publish``.
        """
        if snapshot.state.closed != self.snapshot.state.closed:
            self.slots_of_receipts.clear()
        self.snapshot = snapshot
        if choice is not None:
            self._choice = choice
        if snapshot.ledger.head == self.public.ledger.head:
            self.public = snapshot
        self.wake()

    def publish(self, snapshot: RunSnapshot) -> None:
        """Make a release public, unless a later one is public already."""
        if snapshot.ledger.entries > self.public.ledger.entries:
            self.public = snapshot
            self.wake()

    def wake(self) -> None:
        """Drop the cached view and wake all waiting requests."""
        self.cached_view = None
        self._change.set()
        self._change = asyncio.Event()

    async def wait_for_change(self, *, timeout_s: float) -> bool:
        """Wait for a change of the run. Return False if none comes within ``timeout_s`` seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._change.wait()
        except TimeoutError:
            return False
        return True

    @asynccontextmanager
    async def receiving(self, receipt: str) -> AsyncIterator[None]:
        """Hold the lock of a receipt, so that one of its reports is read at a time.

        One more report may wait. Raise ``too-many`` for a third.
        """
        lock, count = self._reporting.get(receipt, (asyncio.Lock(), 0))
        if count >= MOST_REPORTS_PER_RECEIPT:
            detail = "two reports of this receipt are already being received"
            raise Problem("too-many", detail, retry_after=1)
        self._reporting[receipt] = lock, count + 1
        try:
            async with lock:
                yield
        finally:
            _, count = self._reporting.pop(receipt)
            if count > 1:
                self._reporting[receipt] = lock, count - 1

    def is_early(self, slot: int) -> bool:
        """Return whether a slot has not begun, as far as this process knows."""
        state = self.snapshot.state
        if self.is_over or state.phase is Phase.DONE:
            return False
        return slot > state.slot or (slot == state.slot and state.phase is Phase.WAITING)

    def knows_choice(self, slot: int) -> bool:
        """Return whether this process has read who was chosen in a slot."""
        state = self.snapshot.state
        chosen = state.slot_phase is slots.Phase.CHOOSING
        return slot == state.slot and chosen and not self.needs_choice

    def outcome(self, slot: int, receipt: str) -> OutcomeName | None:
        """Return the outcome of a check-in, as the protocol's state machine decides it.

        Return None if the slot is not in progress or the receipt is unknown.
        """
        state = self.snapshot.state
        if slot != state.slot or state.slot_phase is None:
            return None
        if self.needs_choice or state.slot_phase is slots.Phase.COLLECTING:
            return "waiting"
        choice = self._choice
        if choice is None or receipt not in choice.waiting:
            return None
        chosen = (receipt,) if receipt in choice.chosen else ()
        one_client = Slot(slot, self.spec.rules, slots.Phase.TRAINING, {"": receipt}, chosen=chosen)
        _, (effect,) = slots.step(one_client, OutcomeAsked(slot, receipt))
        return "chosen" if isinstance(effect, Invite) else "dismissed"

    @property
    def public_curve(self) -> Curve:
        """The points of the learning curve whose models are public."""
        closed = self.public.state.closed
        return [point for point in self.curve if point[0] <= closed]

    @property
    def spent(self) -> Spent | None:
        """An upper bound on epsilon so far, or the certified epsilon once the run is over.

        Return None if no epsilon is known.
        """
        closed = self.public.state.closed
        if self.public.state.ending is not None:
            return {"epsilon": self.public.certificate.get("epsilon"), "slots": closed}
        return self.spent_after(closed)

    def spent_after(self, closed: int) -> Spent | None:
        """Return an upper bound on epsilon after ``closed`` slots.

        It is the epsilon of the smallest slot count that has been computed and is at least
        ``closed``, or else the epsilon of the whole run. Return None if neither is known.
        """
        if closed == 0 and self.spec.number == 1 and not self.public.ledger.closed:
            return {"epsilon": 0.0, "slots": 0}
        for count, epsilon in self.epsilons:
            if count >= closed:
                return {"epsilon": epsilon, "slots": count}
        certified = self.public.certificate.get("epsilon")  # used until epsilons are computed
        return None if certified is None else {"epsilon": certified, "slots": self.spec.affordable}
