"""The durable state of a device in one run: its content as bytes, and the file that holds it."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

from checkins import durable_file
from checkins.errors import InvalidValue
from checkins.protocol.participant import Outcome, Participant, Phase
from checkins.protocol.report import Report, report_from_bytes
from checkins.randomizers import DeviceReport, Grid

SCHEMA = 1
WITHDRAWN = "WITHDRAWN"


@dataclass(frozen=True, slots=True)
class SavedState:
    """What a device stores: its enrolment, its progress, and what it last saw of the service.

    ``key`` is the idempotency key of the enrolment. ``epoch``, ``slots_closed`` and ``entries``,
    the length of the ledger, are from the last view, to detect a rollback. ``head`` is the hash of
    line ``entries`` of the ledger, or None if an older version wrote the state. ``report`` is the
    report exactly as it is sent. ``ended`` is the name of an outcome or ``WITHDRAWN``, or None
    during the participation. Once it has ended, only ``campaign`` and ``ended`` are stored.
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
        """The outcome, or None during the participation and after a withdrawal."""
        return None if self.ended in (None, WITHDRAWN) else Outcome[str(self.ended)]

    def over(self, ended: str) -> SavedState:
        """Return the state of a participation that has ended. It holds nothing else."""
        return SavedState(self.campaign, ended=ended)

    def machine(self, fresh: Participant, *, grid: Grid, dimension: int) -> Participant:
        """Return the recorded state of the state machine, or ``fresh`` if none is recorded."""
        if self.phase is None:
            return fresh
        report = None
        if self.report is not None:
            units = report_from_bytes(self.report, dimension=dimension)
            report = Report.from_device(DeviceReport(units, grid))
        return replace(fresh, phase=self.phase, slot=self.slot, receipt=self.receipt, report=report)

    def to_bytes(self) -> bytes:
        """Encode the state as one JSON object without the values that are None."""
        values: dict[str, object] = {"campaign": self.campaign, "ended": self.ended}
        if self.ended is None:
            values = asdict(self)
            values["phase"] = self.phase and self.phase.name
            values["report"] = self.report and base64.b64encode(self.report).decode("ascii")
            if self.head is None:
                del values["entries"]
        values = {"schema": SCHEMA, **values}
        present = {name: value for name, value in values.items() if value is not None}
        return json.dumps(present).encode() + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes) -> SavedState:
        """Decode a state; raise if the bytes are damaged.

        A device that guessed its state could take part twice.
        """
        try:
            values = json.loads(data)
            if values.pop("schema") != SCHEMA:
                raise ValueError("another schema")
            phase, report = values.pop("phase", None), values.pop("report", None)
            state = cls(
                **values,
                phase=None if phase is None else Phase[phase],
                report=None if report is None else base64.b64decode(report, validate=True),
            )
            state.outcome  # noqa: B018  # raises for an unknown outcome
        except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
            raise InvalidValue(
                "state",
                data[:40],
                f"is not a device's state ({type(error).__name__}): repair it, or start with an"
                " empty folder in a later campaign",
            ) from error
        return state


try:
    import fcntl
except ImportError:  # this system has no file locks, so the owner must run only one process
    fcntl = None  # type: ignore[assignment]


class StateStore(Protocol):
    """Stores the state of one device in one run."""

    def load(self) -> bytes | None: ...
    def save(self, state: bytes) -> None: ...


@dataclass(slots=True)
class MemoryStore:
    """A state store in memory, for tests and for clients that end with the process."""

    state: bytes | None = None

    def load(self) -> bytes | None:
        """Return the last saved state, or None if nothing was saved."""
        return self.state

    def save(self, state: bytes) -> None:
        """Replace the state."""
        self.state = state


@dataclass(slots=True)
class StateFile:
    """A state store in one file. After a crash it holds the old state or the new one."""

    path: Path

    def load(self) -> bytes | None:
        """Return the last saved state, or None if nothing was saved."""
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None

    def save(self, state: bytes) -> None:
        """Replace the state. The new state is durable when the call returns."""
        durable_file.replace_content(self.path, state, mode=0o600)


def make_folder(folder: Path) -> Path:
    """Create a folder that only its owner can read, unless it exists; return it."""
    if not folder.is_dir():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        durable_file.sync_folder(folder.resolve().parent)
    return folder


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a file lock; raise if another process holds it.

    Two processes on the same state would draw two slots.
    """
    with path.open("ab") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise InvalidValue(
                    "state", str(path.parent), "is in use by another participant"
                ) from error
        yield
