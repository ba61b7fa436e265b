"""Rollback detection: a file outside of the store records the store's progress.

If a coordinator continued with an old copy of a store, spent tokens would be valid again, and slots
would be released a second time with other noise. The progress file holds the epoch (the number of
starts on the store), and the number of ledger entries and of runs of each population. It is written
at each start and after each durable release. It must not be copied together with the store.
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
from checkins.service.store import ledgers, metadata, operators, run_state
from checkins.service.store.database import Database


class RolledBack(CheckinsError):
    """The store is older than its progress file, is marked as a copy, or lacks secret sums."""


class NotRolledBack(CheckinsError):
    """There is nothing to restore, because the store is not older than its progress file."""


@dataclass(frozen=True, slots=True)
class StoreProgress:
    """The epoch of a store, its numbers of ledger entries and of runs of each population, and the
    number of actions in the log of its operators."""

    epoch: int = 0
    entries: dict[str, int] = field(default_factory=dict)
    runs: dict[str, int] = field(default_factory=dict)
    actions: int = 0

    def losses_in(self, store: StoreProgress) -> list[str]:
        """Describe what ``store`` has lost since this progress; empty if it has lost nothing."""
        losses = [
            f"the ledger of {population} has {store.entries.get(population, 0):,} entries,"
            f" and had {entries:,}"
            for population, entries in sorted(self.entries.items())
            if store.entries.get(population, 0) < entries
        ]
        if store.actions < self.actions:
            losses.append(
                f"its log of operators' actions has {store.actions:,} entries, and had"
                f" {self.actions:,}"
            )
        if store.epoch < self.epoch:
            losses.append(f"it is in epoch {store.epoch:,}, and was in {self.epoch:,}")
        return losses

    def populations_with_lost_runs(self, store: StoreProgress) -> list[str]:
        """Return the populations with fewer runs in ``store`` than in this progress."""
        lost = (name for name, runs in self.runs.items() if store.runs.get(name, 0) < runs)
        return sorted(lost)


class ProgressFile:
    """Compares stores with a progress file, and writes the file durably and atomically."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._recorded_progress = _read(path)

    def check(self, database: Database) -> None:
        """Raise RolledBack if a store has lost something, or is marked as a copy.

        It has lost something if it is older than its progress file, or if it lacks the exact sums
        that a run with correlated noise needs.
        """
        if losses := self._losses(database):
            raise RolledBack(
                f"the store was rolled back: {'; '.join(losses)}. Continuing with it could release"
                " slots twice. Use the store that was in use; if it is lost, start with --restore,"
                " which ends every campaign that was running"
            )

    def check_restorable(self, database: Database) -> None:
        """Raise NotRolledBack if a store was not rolled back.

        Restoring would end the open runs of such a store. Nothing is raised if the progress file is
        empty or missing, because then there is nothing to compare.
        """
        if self._recorded_progress == StoreProgress() or self._losses(database):
            return
        store = progress_of(database)
        running = database.read(run_state.count_open_runs)
        raise NotRolledBack(
            f"--restore: the store was not rolled back: it is in epoch {store.epoch:,} with"
            f" {sum(store.entries.values()):,} ledger entries, no fewer than {self.path} records;"
            f" it has {sum(store.runs.values()):,} runs, {running or 'none'} of them open; start"
            " without --restore, and its runs continue. To end a campaign, stop it with the"
            " operator's token. If the store is nevertheless a copy, give the progress file of the"
            " store that was lost with --progress-file"
        )

    def _losses(self, database: Database) -> list[str]:
        """Describe what a store has lost; empty if it was not rolled back and is not a copy."""
        is_copy = database.read(metadata.read, metadata.COPY_ENTRY) is not None
        losses = ["it is a copy made by checkins backup"] if is_copy else []
        losses += (
            f"it lacks the secret sums that later slots of {run} need"
            for run in database.read(run_state.runs_without_exact_sums)
        )
        return losses + self._recorded_progress.losses_in(progress_of(database))

    def lost_actions_warning(self, database: Database) -> str | None:
        """Return a warning if actions of operators are missing from the log of a restored store.

        Keys and tokens that one of these actions has revoked are valid again.
        """
        kept, recorded = progress_of(database).actions, self._recorded_progress.actions
        if kept >= recorded:
            return None
        return (
            f"the log of operators' actions had {recorded:,} entries, and has {kept:,}: keys and"
            " operators' tokens that were revoked since the copy was made are valid again; revoke"
            " them again with checkins allow-list and checkins operators"
        )

    def warnings(self, database: Database, store_url: str) -> dict[str, str]:
        """Return a warning for each reason why this file may not detect a rollback.

        The key is the name of a log event, and the value a text for the operator.
        """
        warnings = {}
        progress = progress_of(database)
        if not self.path.exists() and progress != StoreProgress():
            entries = sum(progress.entries.values())
            warnings["progress-file-missing"] = (
                f"{self.path}: no such progress file, but the store was used before (epoch"
                f" {progress.epoch:,}, {entries:,} {'entry' if entries == 1 else 'entries'} in its"
                " ledgers): a rollback of the store cannot be detected."
                " If the file is elsewhere, stop the coordinator and name it with --progress-file"
            )
        is_sqlite = store_url.startswith("sqlite")
        file = Path(store_url.removeprefix("sqlite:///")) if is_sqlite else None
        if file is not None and file.resolve().parent == self.path.resolve().parent:
            warnings["progress-file-near-store"] = (
                f"{self.path}: the progress file is in the folder of the store: restoring a copy"
                " of the folder restores both, so it cannot be detected. Stop the coordinator, move"
                " the file to another folder, and name it with --progress-file"
            )
        return warnings

    def record(self, progress: StoreProgress) -> None:
        """Write the progress of a store. No number in the file becomes smaller."""
        with self._write_lock():
            recorded = self._recorded_progress = _read(self.path)  # another worker may write it
            entries = _maximum_counts(progress.entries, recorded.entries)
            runs = _maximum_counts(progress.runs, recorded.runs)
            epoch = max(progress.epoch, recorded.epoch)
            actions = max(progress.actions, recorded.actions)
            self._write(StoreProgress(epoch, entries, runs, actions))

    def populations_with_lost_runs(self, database: Database) -> list[str]:
        """Return the populations with fewer runs in the store than in the file."""
        return self._recorded_progress.populations_with_lost_runs(progress_of(database))

    def overwrite(self, progress: StoreProgress) -> None:
        """Write the progress of a store, even if numbers in the file become smaller."""
        with self._write_lock():
            self._write(progress)

    @contextmanager
    def _write_lock(self) -> Iterator[None]:
        """Hold a lock, so that one thread of one process at a time writes the file."""
        with self._lock:
            descriptor = os.open(self.path.parent, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                yield
            finally:
                os.close(descriptor)

    def _write(self, progress: StoreProgress) -> None:
        if progress == self._recorded_progress:
            return
        self._recorded_progress = progress
        content = json.dumps(asdict(progress), sort_keys=True).encode()
        durable_file.replace_content(self.path, content, mode=0o600)


def progress_of(database: Database) -> StoreProgress:
    with database.read_transaction() as connection:
        epoch = int(metadata.read(connection, metadata.EPOCH_ENTRY) or 0)
        return StoreProgress(
            epoch,
            ledgers.entry_counts(connection),
            run_state.count_runs_per_population(connection),
            operators.log_head(connection).entries,
        )


def _maximum_counts(first: dict[str, int], second: dict[str, int]) -> dict[str, int]:
    """Return for each population the larger of its counts in ``first`` and ``second``."""
    return {key: max(first.get(key, 0), second.get(key, 0)) for key in {*first, *second}}


def _read(path: Path) -> StoreProgress:
    def counts(value: dict[str, Any]) -> dict[str, int]:
        return {str(name): int(count) for name, count in value.items()}

    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
        entries, runs = counts(content["entries"]), counts(content.get("runs", {}))
        actions = int(content.get("actions", 0))
        return StoreProgress(int(content["epoch"]), entries, runs, actions)
    except FileNotFoundError:
        return StoreProgress()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        expected = "is not a progress file that a coordinator wrote: name another file"
        raise InvalidValue("progress_file", str(path), expected) from error


def default_progress_file(store_url: str, campaign_folder: Path) -> Path:
    """Return the path of a store's progress file, in the user's state folder.

    The file is not next to the store, because whoever restores that folder would restore both.
    Earlier versions named it ``*.witness``, and put it in the state folder, next to a SQLite store
    or in the campaign's folder. If it exists only there, that earlier path is returned.
    """
    prefix = "sqlite:///"
    if store_url.startswith(prefix):
        file = Path(store_url.removeprefix(prefix))
        name = f"{file.name}-{_short_hash(str(file.resolve()))}"
        earlier_path = file.with_name(f"{file.name}.witness")
    else:
        name = f"checkins-{_short_hash(store_url.rpartition('@')[2].partition('?')[0])}"
        earlier_path = campaign_folder / f"{name}.witness"
    path = _state_folder() / f"{name}.progress"
    earlier_paths = [path.with_suffix(".witness"), earlier_path]
    return next((each for each in [path, *earlier_paths] if each.is_file()), path)


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
        expected = (
            "has no default, because there is no home folder: name a file with --progress-file"
        )
        raise InvalidValue("progress_file", None, expected) from None
