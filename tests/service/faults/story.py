"""All that one client noted, put together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tests.support.journal import Event, Note

ACTS = frozenset(
    {Event.CHECKING_IN, Event.CHECKED_IN, Event.CHOSEN, Event.DISMISSED}
    | {Event.REPORTING, Event.ACKNOWLEDGED}
)
"""What a client does in a slot, and in no other than the one it drew."""


@dataclass(slots=True)
class Story:
    """Sets, since a client that was restarted notes the same again: more than one is a finding."""

    client: int
    drawn: set[int | None] = field(default_factory=set)
    acted_in: set[int] = field(default_factory=set)
    receipts: set[str] = field(default_factory=set)
    reports: set[bytes] = field(default_factory=set)
    sent: set[str] = field(default_factory=set)
    """The SHA-256 of all that it sent as a report."""
    models: set[str] = field(default_factory=set)
    """What it trained on."""
    chosen: bool = False
    dismissed: bool = False
    taken: bool = False
    outcomes: list[str] = field(default_factory=list)

    @property
    def slot(self) -> int | None:
        """The one it drew."""
        return min((slot for slot in self.drawn if slot is not None), default=None)

    @property
    def units(self) -> NDArray[np.int64]:
        """Of its one report."""
        (report,) = self.reports
        return np.frombuffer(report, dtype="<i4").astype(np.int64)

    def take(self, note: Note) -> None:
        if note.event in (Event.DRAWN, Event.RESTARTED):
            self.drawn.add(note.slot)
        if note.event in ACTS and note.slot is not None:
            self.acted_in.add(note.slot)
        if note.receipt is not None:
            self.receipts.add(note.receipt)
        if note.report is not None:
            self.reports.add(note.report)
        if note.sha256 is not None:
            self.sent.add(note.sha256)
        if note.model_hash is not None:
            self.models.add(note.model_hash)
        self.chosen |= note.event is Event.CHOSEN
        self.dismissed |= note.event is Event.DISMISSED
        self.taken |= note.event is Event.ACKNOWLEDGED
        if note.outcome is not None:
            self.outcomes.append(note.outcome)


def stories_of(notes: Iterable[Note]) -> dict[int, Story]:
    """The story of each client, by its number."""
    stories: dict[int, Story] = {}
    for note in notes:
        stories.setdefault(note.client, Story(note.client)).take(note)
    return stories
