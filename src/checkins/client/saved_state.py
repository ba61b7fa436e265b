"""What a device keeps of its part in one run, as bytes; once it is over, only that it is."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass, replace

from checkins.errors import InvalidValue
from checkins.protocol.participant import Outcome, Participant, Phase
from checkins.protocol.report import Report, report_from_bytes
from checkins.randomizers import DeviceReport, Grid

SCHEMA = 1
WITHDRAWN = "WITHDRAWN"


@dataclass(frozen=True, slots=True)
class SavedState:
    """The enrolment, what the service showed of itself, and the machine's recorded state.

    ``head`` is the hash of the ledger's last line when it had ``entries`` lines; None in a state
    that was written before heads were kept. ``report`` is the report exactly as it is sent.
    ``ended`` is how it ended: the name of an outcome, or ``WITHDRAWN``; with it nothing else is
    kept but which campaign it was.
    """

    campaign: str
    seal: str | None = None
    key: str | None = None
    token: str | None = None
    epoch: int = 0
    slots_closed: int = 0
    entries: int = 0
    head: str | None = None
    phase: Phase | None = None
    slot: int | None = None
    receipt: str | None = None
    report: bytes | None = None
    ended: str | None = None

    @property
    def outcome(self) -> Outcome | None:
        """How it ended, unless it goes on or the owner withdrew."""
        return None if self.ended in (None, WITHDRAWN) else Outcome[str(self.ended)]

    def over(self, ended: str) -> SavedState:
        """Nothing but that it is over."""
        return SavedState(self.campaign, ended=ended)

    def state(self, fresh: Participant, *, grid: Grid, dimension: int) -> Participant:
        """The machine's state as it was recorded."""
        if self.phase is None:
            return fresh
        report = None
        if self.report is not None:
            units = report_from_bytes(self.report, dimension=dimension)
            report = Report.from_device(DeviceReport(units, grid))
        return replace(fresh, phase=self.phase, slot=self.slot, receipt=self.receipt, report=report)

    def to_bytes(self) -> bytes:
        """One JSON object without what is absent."""
        values: dict[str, object] = {"schema": SCHEMA, "campaign": self.campaign}
        if self.ended is not None:
            values["ended"] = self.ended
        else:
            values |= {
                "seal": self.seal,
                "key": self.key,
                "token": self.token,
                "epoch": self.epoch,
                "slots_closed": self.slots_closed,
                "entries": None if self.head is None else self.entries,
                "head": self.head,
                "phase": self.phase and self.phase.name,
                "slot": self.slot,
                "receipt": self.receipt,
                "report": self.report and base64.b64encode(self.report).decode("ascii"),
            }
        present = {name: value for name, value in values.items() if value is not None}
        return json.dumps(present).encode() + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes) -> SavedState:
        """Read it back; anything else is refused, for a guess could take part twice."""
        try:
            values = json.loads(data)
            if values.pop("schema") != SCHEMA:
                raise ValueError("another schema")
            phase, report = values.pop("phase", None), values.pop("report", None)
            kept = cls(
                **values,
                phase=None if phase is None else Phase[phase],
                report=None if report is None else base64.b64decode(report, validate=True),
            )
            kept.outcome  # noqa: B018  # refuses an outcome that there is not
        except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
            raise InvalidValue(
                "state",
                data[:40],
                f"is not a device's state ({type(error).__name__}): mend it, or start with an"
                " empty folder in a later campaign",
            ) from error
        return kept
