"""Journals of clients and readers: one JSON object per line, flushed.

A journal is an instrument of the tests. A real client keeps nothing once it is done; here each of
them tells everything, so that the history can be judged afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np


class Event(StrEnum):
    """The events of the SDK's journal, and two of the tests: ``trained`` and ``released``."""

    DRAWN = "drawn"  # durable, before any contact; slot is None when its coin said no
    RESTARTED = "restarted"  # with the slot that it finds on its disk
    CHECKING_IN = "checking-in"  # before each sending
    CHECKED_IN = "checked-in"  # it has its receipt
    CHOSEN = "chosen"
    DISMISSED = "dismissed"
    TRAINED = "trained"  # on the model with this hash
    REPORTING = "reporting"  # before each sending, with all that is sent
    ACKNOWLEDGED = "acknowledged"  # the server says that it has the report
    DONE = "done"
    RELEASED = "released"  # a reader has seen this model as that of this slot


@dataclass(frozen=True, slots=True)
class Note:
    """One line of a journal."""

    client: int
    event: Event
    slot: int | None = None
    receipt: str | None = None
    report: bytes | None = None
    """The units of a report, int32 and little-endian."""
    sha256: str | None = None
    """The hash of the report as it is sent."""
    model_hash: str | None = None
    outcome: str | None = None

    def line(self) -> str:
        """Return the line as it is written."""
        told = {name: getattr(self, name) for name in PLAIN if getattr(self, name) is not None}
        if self.report is not None:
            told["units"] = np.frombuffer(self.report, dtype="<i4").tolist()
        return json.dumps({"client": self.client, "event": str(self.event), **told}) + "\n"

    @classmethod
    def parse(cls, line: str) -> Note | None:
        """Parse a line; None for an event that no test checks."""
        told = json.loads(line)
        if told["event"] not in list(Event):
            return None
        units = told.get("units")
        return cls(
            client=int(told["client"]),
            event=Event(told["event"]),
            report=None if units is None else np.array(units, dtype="<i4").tobytes(),
            **{name: told.get(name) for name in PLAIN},
        )


PLAIN = ("slot", "receipt", "sha256", "model_hash", "outcome")


def read(paths: Iterable[Path]) -> Iterator[Note]:
    """Read every complete line; the last line of a killed process may be incomplete.

    A file that is missing has no lines: no device came as far as to write one.
    """
    for path in filter(Path.exists, paths):
        for line in path.read_bytes().splitlines(keepends=True):
            note = Note.parse(line.decode()) if line.endswith(b"\n") else None
            if note is not None:
                yield note
