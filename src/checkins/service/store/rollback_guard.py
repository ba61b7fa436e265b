"""Rollback detection by a witness, a file outside of the store that records its progress.

If a coordinator continued with an old copy of a store, spent tokens would be valid again, and slots
would be released a second time with other noise. The witness holds the epoch, and the number of
ledger entries and runs of each population. It is written at each start, and after each release is
durable. It must not be copied together with the store.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from checkins import durable_file
from checkins.errors import CheckinsError, InvalidValue
from checkins.service.store import ledgers, metadata, run_state
from checkins.service.store.database import Database


class RolledBack(CheckinsError):
    """The store is older than its witness, or is marked as a copy."""


class NotRolledBack(CheckinsError):
    """There is nothing to restore, because the store is not older than its witness."""


@dataclass(frozen=True, slots=True)
class StoreProgress:
    """The epoch of a store, and the number of ledger entries and of runs of each population."""

    epoch: int = 0
    entries: dict[str, int] = field(default_factory=dict)
    runs: dict[str, int] = field(default_factory=dict)

    def ways_older(self, store: StoreProgress) -> list[str]:
        """Describe in which ways ``store`` is older than this progress."""
        lost = [
            f"the ledger of {population} has {store.entries.get(population, 0):,} entries,"
            f" and had {entries:,}"
            for population, entries in sorted(self.entries.items())
            if store.entries.get(population, 0) < entries
        ]
        if store.epoch < self.epoch:
            lost.append(f"it is in epoch {store.epoch:,}, and was in {self.epoch:,}")
        return lost

    def unknown_to(self, store: StoreProgress) -> list[str]:
        """Return the populations of which ``store`` has fewer runs than this progress."""
        return sorted(name for name, runs in self.runs.items() if store.runs.get(name, 0) < runs)


class RollbackGuard:
    """The witness file. A write is durable and atomic."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._recorded = _read(path)

    def check(self, database: Database) -> None:
        """Raise RolledBack if a store is older than its witness, or is marked as a copy."""
        if lost := self._lost(database):
            raise RolledBack(
                f"the store was rolled back: {'; '.join(lost)}. Continuing with it could release"
                " slots twice. Use the store that was in use; if it is lost, start with --restore,"
                " which ends every campaign that was running"
            )

    def check_restorable(self, database: Database) -> None:
        """Raise NotRolledBack if a store was not rolled back.

        Restoring would end the open runs of such a store. Nothing is raised if the witness is
        empty or missing, because then there is nothing to compare.
        """
        if self._recorded == StoreProgress() or self._lost(database):
            return
        store = progress_of(database)
        running = database.read(run_state.count_open_runs)
        raise NotRolledBack(
            f"--restore: the store was not rolled back: it is in epoch {store.epoch:,} with"
            f" {sum(store.entries.values()):,} ledger entries, no fewer than in {self.path};"
            f" runs in it: {sum(store.runs.values()):,}, {running or 'none'} running; start without"
            " --restore, and its runs continue. To end a campaign, stop it with the"
            " operator's token. If the store is nevertheless a copy, give the witness of the store"
            " that was lost with --witness"
        )

    def _lost(self, database: Database) -> list[str]:
        """Describe what the store has lost; empty if it was not rolled back and is no copy."""
        is_copy = database.read(metadata.read, metadata.COPY) is not None
        marked = ["it is a copy made by checkins backup"] if is_copy else []
        return marked + self._recorded.ways_older(progress_of(database))

    def warnings(self, database: Database, store: str) -> dict[str, str]:
        """Return a warning for each reason why this witness may not detect a rollback.

        The key is the name of a log event, and the value a text for the operator.
        """
        warnings = {}
        progress = progress_of(database)
        if not self.path.exists() and progress != StoreProgress():
            entries = sum(progress.entries.values())
            warnings["witness-missing"] = (
                f"{self.path}: no such witness, though the store was used before (epoch"
                f" {progress.epoch:,}, {entries:,} {'entry' if entries == 1 else 'entries'} in its"
                " ledgers): a rollback of the store cannot be detected."
                " If the witness lies elsewhere, stop and name it with --witness"
            )
        file = Path(store.removeprefix("sqlite:///")) if store.startswith("sqlite") else None
        if file is not None and file.resolve().parent == self.path.resolve().parent:
            warnings["witness-beside-store"] = (
                f"{self.path}: the witness is in the folder of the store: restoring a copy of the"
                " folder restores both, and cannot be detected. Stop, move it to another folder,"
                " and name it with --witness"
            )
        return warnings

    def record(self, store: StoreProgress) -> None:
        """Write the progress of a store. No number in the witness ever becomes smaller."""
        with self._locked():
            before = self._recorded = _read(self.path)  # another worker may have written it
            entries = _larger(store.entries, before.entries)
            runs = _larger(store.runs, before.runs)
            self._write(StoreProgress(max(store.epoch, before.epoch), entries, runs))

    def unknown_to(self, database: Database) -> list[str]:
        """Return the populations of which the store has fewer runs than the witness records."""
        return self._recorded.unknown_to(progress_of(database))

    def overwrite(self, store: StoreProgress) -> None:
        """Write the progress of ``store``, even if numbers become smaller."""
        with self._locked():
            self._write(store)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold a lock, so that only one thread of one process writes the witness."""
        with self._lock:
            descriptor = os.open(self.path.parent, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                yield
            finally:
                os.close(descriptor)

    def _write(self, store: StoreProgress) -> None:
        if store == self._recorded:
            return
        self._recorded = store
        content = json.dumps(asdict(store), sort_keys=True).encode()
        durable_file.replace_content(self.path, content, mode=0o600)


def progress_of(database: Database) -> StoreProgress:
    with database.reading() as connection:
        epoch = int(metadata.read(connection, metadata.EPOCH) or 0)
        return StoreProgress(
            epoch, ledgers.entry_counts(connection), run_state.count_runs_per_population(connection)
        )


def _larger(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    """Return the larger of both counts for each population."""
    return {key: max(one.get(key, 0), other.get(key, 0)) for key in {*one, *other}}


def _read(path: Path) -> StoreProgress:
    def counts(value: dict[str, Any]) -> dict[str, int]:
        return {str(name): int(count) for name, count in value.items()}

    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
        entries, runs = counts(content["entries"]), counts(content.get("runs", {}))
        return StoreProgress(int(content["epoch"]), entries, runs)
    except FileNotFoundError:
        return StoreProgress()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        expected = "was not written by a coordinator: name another file"
        raise InvalidValue("witness", str(path), expected) from error


def default_witness(store: str, folder: Path) -> Path:
    """Return the path of a store's witness: in the user's state folder, named after the store.

    It is not next to the store, because whoever restores that folder would restore both. Earlier
    versions put the witness next to the store, or in the campaign's ``folder``. If it exists only
    there, that path is returned.
    """
    prefix = "sqlite:///"
    if store.startswith(prefix):
        file = Path(store.removeprefix(prefix))
        earlier = file.with_name(file.name + ".witness")
        name = f"{file.name}-{_short_hash(str(file.resolve()))}.witness"
    else:
        name = f"checkins-{_short_hash(store.rpartition('@')[2].partition('?')[0])}.witness"
        earlier = folder / name
    chosen = _state_folder() / name
    return earlier if earlier.is_file() and not chosen.exists() else chosen


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _state_folder() -> Path:
    """Return ``checkins`` in XDG_STATE_HOME, or else in .local/state of the home folder."""
    state_home = Path(os.environ.get("XDG_STATE_HOME", ""))
    if state_home.is_absolute():
        return state_home / "checkins"
    try:
        return Path.home() / ".local" / "state" / "checkins"
    except RuntimeError:
        expected = "there is no home folder for it: name a file outside the store"
        raise InvalidValue("witness", None, expected) from None
