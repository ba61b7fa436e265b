"""The ledger file ``ledger.jsonl``: one entry per line. A complete line is never changed.

``lines`` reads the file one line at a time. ``LedgerFile`` appends to the file. It locks the file
while it is open, so that only one process can append. ``append`` returns once the line is on the
disk.

A crash during an append can leave a torn line: an incomplete last line without a newline. The next
``LedgerFile`` reports it as ``torn``, and removes it before its first append. No entry is lost,
because an entry is valid only once its append has returned.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from checkins import durable_file
from checkins.campaign import Campaign
from checkins.errors import CheckinsError
from checkins.ledger.chain import Ledger
from checkins.ledger.entry import MAX_LINE_BYTES, Entry, InvalidLedger, SlotClosed
from checkins.ledger.verification import affordable_slots

LEDGER_NAME = "ledger.jsonl"


class LedgerBusy(CheckinsError):
    """Another process has the ledger open for writing."""


def ledger_path(place: str | Path) -> Path:
    """Return the path of the ledger file. ``place`` is its folder or the file itself."""
    path = Path(place)
    return path / LEDGER_NAME if path.is_dir() else path


def lines(path: str | Path) -> Iterator[bytes]:
    """Yield the lines of a ledger with their newlines. A torn last line has no newline."""
    with Path(path).open("rb") as file:
        while line := file.readline(MAX_LINE_BYTES + 1):
            yield line
            if len(line) > MAX_LINE_BYTES:
                return  # Line.parse refuses a line of this length, so its rest is not read


class LedgerFile:
    """A ledger file that is open for appending, as a context manager.

    ``ledger`` is the state after the last complete line. ``torn`` is the incomplete last line that
    a crash left behind. It is empty if the last line is complete.
    """

    def __init__(self, place: str | Path) -> None:
        self.path = ledger_path(place)
        self.torn = b""
        self._complete_bytes = 0  # the size of all complete lines
        self._is_unusable = False
        self._affordable_slots: tuple[Campaign, int] | None = None  # cached for the run in progress
        self._descriptor = _open_and_lock(self.path)
        try:
            self.ledger = self._read()
        except BaseException:
            self.close()
            raise

    def append(self, entry: Entry) -> None:
        """Append an entry. It survives any crash after the return."""
        if self._is_unusable:
            problem = "an earlier append failed: open the ledger again"
            raise InvalidLedger(problem, place=str(self.path))
        ledger, line = self.ledger.append(entry)
        if isinstance(entry, SlotClosed):
            self._check_budget(entry.slot)
        self._is_unusable = True  # until the line is on the disk
        if self.torn:  # remove the torn line before the new line is written
            durable_file.truncate(self._descriptor, self._complete_bytes)
            self.torn = b""
        try:
            durable_file.write_all(self._descriptor, line)
        except OSError:  # for example a full disk: remove the torn line if possible
            durable_file.truncate(self._descriptor, self._complete_bytes)
            self._is_unusable = False
            raise
        os.fsync(self._descriptor)
        self._is_unusable = False
        self._complete_bytes += len(line)
        self.ledger = ledger

    def _check_budget(self, slot: int) -> None:
        """Raise InvalidLedger if the budget does not allow the slot.

        The server releases the model of a slot after the entry of the slot is appended, so the
        model of a refused slot is never released.
        """
        run = self.ledger.running
        if run is None:
            return
        if self._affordable_slots is None or self._affordable_slots[0] is not run.campaign:
            self._affordable_slots = (run.campaign, affordable_slots(self.ledger))
        affordable = self._affordable_slots[1]
        if slot > affordable:
            raise InvalidLedger(
                f"the budget, epsilon = {run.campaign.budget.epsilon!r}, allows"
                f" {affordable:,} of {run.campaign.design.slots:,} slots: close the campaign",
                place=str(self.path),
            )

    def close(self) -> None:
        """Release the lock."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._is_unusable = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> Ledger:
        ledger = Ledger()
        for number, line in enumerate(lines(self.path), start=1):
            if not line.endswith(b"\n") and len(line) <= MAX_LINE_BYTES:
                self.torn = line
                break
            try:
                ledger, _ = ledger.read(line)
            except InvalidLedger as error:
                raise InvalidLedger(error.problem, place=f"{self.path}:{number}") from error
            self._complete_bytes += len(line)
        return ledger


def _open_and_lock(path: Path) -> int:
    """Open a file for appending and lock it. If there is none, create it durably."""
    import fcntl  # imported here, so that ledgers can be read on systems without fcntl

    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        status = os.fstat(descriptor)
        if not os.path.samestat(status, os.stat(path)):
            # another process replaced the file, so the lock is on a file that nobody reads
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK))
        if status.st_size == 0:
            durable_file.sync_folder(path.parent)
    except OSError as error:
        os.close(descriptor)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES, errno.ENOENT):
            raise LedgerBusy(f"{path}: another process has it open for writing") from error
        raise
    return descriptor
