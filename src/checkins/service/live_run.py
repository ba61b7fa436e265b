"""One run in this process: where it stands, and those who wait to hear of it.

A desk never decides anything. It holds what was last read from the database, so that thousands can
ask without the database being asked, and wakes them when it changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from checkins.protocol import slot as slots
from checkins.protocol.server import Ending, Phase
from checkins.protocol.slot import Asked, Invite, Slot
from checkins.service.batch import Batch
from checkins.service.intake import CheckIn, Enrolment, Submission
from checkins.service.problems import Problem
from checkins.service.run_spec import RunSpec
from checkins.service.slot_transitions import Choice
from checkins.service.store.progress import Curve, Prices
from checkins.service.store.records import RunSnapshot

EARLY_S = 2.0
"""A client whose clock is a little fast is kept waiting; one that is earlier is sent away."""

MOST_REPORTS_OF_ONE = 2
"""Reports of one receipt on their way at once: one that stalls, and its retry."""


class CachedBody:
    """Bytes that are made once, until something changes."""

    def __init__(self) -> None:
        self._bytes: bytes | None = None

    def get(self, make: Callable[[], bytes]) -> bytes:
        """What was made before, or now."""
        if self._bytes is None:
            self._bytes = make()
        return self._bytes

    def outdated(self) -> None:
        """Make it anew when it is next asked for."""
        self._bytes = None


class LiveRun:
    """A run as this process knows it."""

    def __init__(
        self,
        terms: RunSpec,
        standing: RunSnapshot,
        *,
        enrolments: Batch[Enrolment, None],
        check_ins: Batch[CheckIn, str],
        reports: Batch[Submission, None],
    ) -> None:
        self.terms = terms
        self.standing = standing
        self.public = standing
        """What is shown: a release is shown at a set time, however long its slot took to close."""
        self.enrolments = enrolments
        self.check_ins = check_ins
        self.reports = reports
        self.prices: Prices = []
        self.curve: Curve = []
        self.next_run: str | None = None
        self.no_more = False
        """No run follows, although the campaign has more: its budget pays for none."""
        self.issued: dict[str, int] = {}
        self._reporting: dict[str, tuple[asyncio.Lock, int]] = {}
        """Receipts whose reports are on their way, and how many of each."""
        self.shown = CachedBody()
        self.models: dict[str, bytes] = {}
        self._choice: Choice | None = None
        self._change = asyncio.Event()

    @property
    def status(self) -> str:
        """waiting, running, completed or stopped."""
        stage = self.public.stage
        if stage.ending is not None:
            return str(stage.ending)
        return "waiting" if stage.phase is Phase.WAITING and stage.closed == 0 else "running"

    @property
    def is_last(self) -> bool:
        """Whether no run of the campaign follows this one."""
        stopped = self.standing.stage.ending is Ending.STOPPED
        return self.no_more or stopped or self.terms.number >= self.terms.campaign.repeats

    @property
    def is_over(self) -> bool:
        return self.standing.stage.ending is not None

    @property
    def needs_choice(self) -> bool:
        """Whether a choice is durable that this desk has not read."""
        stage = self.standing.stage
        if stage.slot_phase is not slots.Phase.CHOOSING:
            return False
        return self._choice is None or self._choice.slot != stage.slot

    def moved(self, standing: RunSnapshot, choice: Choice | None = None) -> None:
        """Take over what the database says now, and wake everyone."""
        if standing.stage.closed != self.standing.stage.closed:
            self.issued.clear()
        self.standing = standing
        if choice is not None:
            self._choice = choice
        if standing.ledger.head == self.public.ledger.head:
            self.public = standing
        self.wake()

    def publish(self, standing: RunSnapshot) -> None:
        """Show a release to everyone, unless a later one is shown already."""
        if standing.ledger.entries > self.public.ledger.entries:
            self.public = standing
            self.wake()

    def wake(self) -> None:
        """Let everyone who waits look again."""
        self.shown.outdated()
        self._change.set()
        self._change = asyncio.Event()

    async def change(self, *, most_s: float) -> bool:
        """Wait for a change; False when time is up."""
        try:
            async with asyncio.timeout(most_s):
                await self._change.wait()
        except TimeoutError:
            return False
        return True

    @asynccontextmanager
    async def report_of(self, receipt: str) -> AsyncIterator[None]:
        """One report of a receipt is read at a time; one more of the same may wait for it."""
        turn, others = self._reporting.get(receipt, (asyncio.Lock(), 0))
        if others >= MOST_REPORTS_OF_ONE:
            raise Problem(
                "too-many", "two reports of this receipt are on their way already", retry_after=1
            )
        self._reporting[receipt] = turn, others + 1
        try:
            async with turn:
                yield
        finally:
            others = self._reporting[receipt][1] - 1
            self._reporting[receipt] = turn, others
            if not others:
                del self._reporting[receipt]

    def is_early(self, slot: int) -> bool:
        """Whether a slot has not begun, as far as this desk knows."""
        stage = self.standing.stage
        if self.is_over or stage.phase is Phase.DONE:
            return False
        return slot > stage.slot or (slot == stage.slot and stage.phase is Phase.WAITING)

    def knows(self, slot: int) -> bool:
        """Whether this desk has read who was chosen in a slot."""
        stage = self.standing.stage
        chosen = stage.slot_phase is slots.Phase.CHOOSING and not self.needs_choice
        return slot == stage.slot and chosen

    def outcome(self, slot: int, receipt: str) -> str | None:
        """waiting, chosen or dismissed, as the machine tells it; None once the slot is over."""
        stage = self.standing.stage
        if slot != stage.slot or stage.slot_phase is None:
            return None
        if self.needs_choice or stage.slot_phase is slots.Phase.COLLECTING:
            return "waiting"
        choice = self._choice
        if choice is None or receipt not in choice.waiting:
            return None
        shown = Slot(
            slot,
            self.terms.rules,
            slots.Phase.TRAINING,
            waiting={"": receipt},
            chosen=(receipt,) if receipt in choice.chosen else (),
        )
        _, (told,) = slots.step(shown, Asked(slot, receipt))
        return "chosen" if isinstance(told, Invite) else "dismissed"

    @property
    def shown_curve(self) -> Curve:
        """The points of models that are shown."""
        closed = self.public.stage.closed
        return [point for point in self.curve if point[0] <= closed]

    @property
    def spent(self) -> Mapping[str, Any] | None:
        """What the slots that are over cost, or with the run what all of it cost; rounded up."""
        closed = self.public.stage.closed
        if self.public.stage.ending is not None:
            return {"epsilon": self.public.certificate.get("epsilon"), "slots": closed}
        return self.spent_after(closed)

    def spent_after(self, closed: int) -> Mapping[str, Any] | None:
        """The price of the first priced count of slots that covers so many; rounded up."""
        if closed == 0 and self.terms.number == 1 and not self.public.ledger.closed:
            return {"epsilon": 0.0, "slots": 0}
        for slots_, epsilon in self.prices:
            if slots_ >= closed:
                return {"epsilon": epsilon, "slots": slots_}
        whole = self.public.certificate.get("epsilon")  # not priced yet: no more than all of it
        return None if whole is None else {"epsilon": whole, "slots": self.terms.affordable}
