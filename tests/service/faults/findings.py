"""What a history can be found guilty of, and the numbers of what it was about."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    """Every way to break a promise that is looked for."""

    LEDGER = "the ledger does not verify"
    UNFINISHED = "slots are missing"
    RELEASE = "a release was changed or taken back"
    MODEL = "the model is not that of a run without crashes"
    TWICE = "a report counts twice"
    LOST = "an acknowledged report is lost"
    MOVED = "a report counts in another slot"
    UNSENT = "a report was acknowledged that was never sent"
    SUM = "a total is not the sum of its reports"
    REDRAWN = "a client drew twice"
    SLOT = "a client acted in a slot that it had not drawn"
    RECEIPT = "a receipt was given twice, or two to one client"
    OUTCOME = "a client was told two outcomes"
    CHOICE = (
        "more were chosen than the slot has room for, or one was sent away while there was room"
    )
    NOT_CHOSEN = "a client reported that was not chosen"
    RETRY = "a retry sent other bytes"
    NOISE = "the noise of a slot is missing, or was used twice"
    FORGOTTEN = "totals lack sums, or have them twice"


@dataclass(frozen=True, slots=True)
class Violation:
    kind: Kind
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


@dataclass(slots=True)
class Findings:
    """What a history proves, with the numbers of what it was about."""

    violations: list[Violation] = field(default_factory=list)
    clients: int = 0
    slots: int = 0
    check_ins: int = 0
    """Clients that have a receipt."""
    acknowledged: int = 0
    """Reports that the server said it has."""
    unacknowledged_in: int = 0
    """Reports that count although the answer never came."""
    unacknowledged_out: int = 0
    full_slots: int = 0
    """Slots without a dummy: their totals are compared exactly."""
    releases_seen: int = 0
    chance: float = 0.0
    """At most this likely, any of the answers about who is in a total is wrong."""

    def add(self, kind: Kind, what: str) -> None:
        self.violations.append(Violation(kind, what))

    def __str__(self) -> str:
        told = (
            f"{self.slots} slots, {self.full_slots} of them full; {self.clients} clients,"
            f" {self.check_ins} checked in, {self.acknowledged} reports acknowledged,"
            f" {self.unacknowledged_in} more counted and {self.unacknowledged_out} not;"
            f" {self.releases_seen} releases seen; chance of a wrong answer {self.chance:.1e}"
        )
        return "\n".join([told, *(str(violation) for violation in self.violations[:20])])
