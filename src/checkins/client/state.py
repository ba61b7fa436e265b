"""The stored state of a device in one run: its fields, its encoding as bytes, and its file."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Protocol

from checkins import durable_file
from checkins.errors import InvalidValue
from checkins.protocol.participant import Outcome, Participant, Phase
from checkins.protocol.report import Report, report_from_bytes
from checkins.randomizers import DeviceReport, Grid

SCHEMA = 1
"""Version of the stored format."""
WITHDRAWN = "WITHDRAWN"
"""Value of ``SavedState.ended`` after the owner has withdrawn the device from the run."""


@dataclass(frozen=True, slots=True)
class SavedState:
    """The values that a device stores. Values that are not known yet are None.

    ``campaign`` is the id of the run. ``key`` is the idempotency key of the enrolment, ``token``
    the secret that the service returned for it. ``epoch``, ``slots_closed``, ``entries`` (the
    length of the ledger) and ``head`` (the hash of its last line) are copied from the last view,
    which is the public description of the run. The device compares them with later views to detect
    that the service was rolled back. ``head`` is None if an older version of the SDK wrote the
    state. ``phase``, ``slot``, ``receipt`` and ``report`` are the progress; ``report`` holds the
    exact bytes that are sent. ``ended`` is the name of an outcome or ``WITHDRAWN``, or None during
    the participation. After the participation has ended, only ``campaign`` and ``ended`` are
    stored.
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

    def ended_with(self, ended: str) -> SavedState:
        """Return a state that holds only the run id and how the participation ended."""
        return SavedState(self.campaign, ended=ended)

    def restore_machine(self, initial: Participant, *, grid: Grid, dimension: int) -> Participant:
        """Return the state machine with the stored progress, or ``initial`` if none is stored."""
        if self.phase is None:
            return initial
        report = None
        if self.report is not None:
            units = report_from_bytes(self.report, dimension=dimension)
            report = Report.from_device(DeviceReport(units, grid))
        return replace(
            initial, phase=self.phase, slot=self.slot, receipt=self.receipt, report=report
        )

    def to_bytes(self) -> bytes:
        """Encode the state as one JSON object. Values that are None are left out."""
        values: dict[str, object] = {"campaign": self.campaign, "ended": self.ended}
        if self.ended is None:
            values = {name: getattr(self, name) for name in _FIELDS}
            values["phase"] = self.phase and self.phase.name
            values["report"] = self.report and base64.b64encode(self.report).decode("ascii")
            if self.head is None:
                del values["entries"]
        values = {"schema": SCHEMA, **values}
        known = {name: value for name, value in values.items() if value is not None}
        return json.dumps(known).encode() + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes) -> SavedState:
        """Decode a state; raise ``InvalidValue`` if the bytes are damaged.

        A device that replaced a damaged state by a new one could take part twice.
        """
        try:
            values = json.loads(data)
            if values.pop("schema") != SCHEMA:
                raise ValueError("the state has another schema")
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


_FIELDS = tuple(field.name for field in fields(SavedState))


try:
    import fcntl
except ImportError:  # without file locks, the owner must not run two processes on one state
    fcntl = None  # type: ignore[assignment]


class StateStore(Protocol):
    """Stores the state of one device in one run."""

    def load(self) -> bytes | None: ...
    def save(self, state: bytes) -> None: ...


@dataclass(slots=True)
class MemoryStore:
    """A state store in memory, for tests and for clients that never resume after a crash."""

    state: bytes | None = None

    def load(self) -> bytes | None:
        """Return the last saved state, or None if nothing was saved."""
        return self.state

    def save(self, state: bytes) -> None:
        """Replace the state."""
        self.state = state


@dataclass(slots=True)
class StateFile:
    """A state store in one file. After a crash, the file holds the old state or the new state."""

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


def make_private_folder(folder: Path) -> Path:
    """Create a folder that only its owner can read, unless it exists; return the folder."""
    if not folder.is_dir():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        durable_file.sync_folder(folder.resolve().parent)
    return folder


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Lock a file during the ``with`` block; raise ``InvalidValue`` if it is locked already.

    Two processes with the same stored state would draw two slots.
    """
    with path.open("ab") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise InvalidValue(
                    "state", str(path.parent), "is in use by another process"
                ) from error
        yield
