"""A witness outside of the store: a store that was rolled back says less than it has seen.

If an old copy of a store were continued, tokens that are spent would be good again and slots would
be released a second time with other noise. The witness is a small file that is kept apart from the
store and never copied with it: the epoch, and how long each ledger was when it was last written,
which is at each start and after each release is durable.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import func, select

from checkins.errors import CheckinsError, InvalidValue
from checkins.service.store import metadata
from checkins.service.store.database import Database
from checkins.service.store.tables import populations, runs


class RolledBack(CheckinsError):
    """The store is older than what was released from it."""


class NotRolledBack(CheckinsError):
    """There is nothing to restore: the store is as new as what was released from it."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a store had reached: its epoch, and of each population the ledger's entries and runs."""

    epoch: int = 0
    entries: dict[str, int] = field(default_factory=dict)
    runs: dict[str, int] = field(default_factory=dict)

    def behind(self, store: Seen) -> list[str]:
        """In which ways ``store`` is older than this."""
        lost = [
            f"the ledger of {population} has {store.entries.get(population, 0):,} entries,"
            f" and had {entries:,}"
            for population, entries in sorted(self.entries.items())
            if store.entries.get(population, 0) < entries
        ]
        if store.epoch < self.epoch:
            lost.append(f"it is in epoch {store.epoch:,}, and was in {self.epoch:,}")
        return lost

    def unknown_to(self, store: Seen) -> list[str]:
        """The populations on which runs were opened that ``store`` does not know."""
        return sorted(
            population
            for population, runs in self.runs.items()
            if store.runs.get(population, 0) < runs
        )


class RollbackGuard:
    """The file; its last words survive a crash."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._seen = _read(path)

    def check(self, database: Database) -> None:
        """Refuse a store that is older than what was seen of it, or that is marked as a copy."""
        lost = self._lost(database)
        if lost:
            raise RolledBack(
                f"the store was rolled back: {'; '.join(lost)}. Going on with it could release"
                " slots twice. Use the store that was in use; if it is lost, start with --restore,"
                " which ends every campaign that was running"
            )

    def check_restorable(self, database: Database) -> None:
        """Refuse to restore a store that was not rolled back: it would end what runs in it.

        A witness that has seen nothing cannot tell, and refuses nothing.
        """
        if self._seen == Seen() or self._lost(database):
            return
        store = seen_of(database)
        with database.reading() as connection:
            unended = select(func.count()).select_from(runs).where(runs.c.ending.is_(None))
            running = connection.execute(unended).scalar_one()
        raise NotRolledBack(
            f"--restore: the store was not rolled back: it is in epoch {store.epoch:,} with"
            f" {sum(store.entries.values()):,} ledger entries, no fewer than {self.path} has seen;"
            f" runs in it: {sum(store.runs.values()):,}, {running or 'none'} running; start without"
            " --restore, and it goes on where it was. To end a campaign, stop it with the"
            " operator's token. If the store is a copy all the same, name the witness of the store"
            " that was lost with --witness"
        )

    def _lost(self, database: Database) -> list[str]:
        """In which ways a store is older than what was seen of it, or marked as a copy."""
        with database.reading() as connection:
            is_copy = metadata.read(connection, metadata.COPY) is not None
        marked = ["it is a copy made by checkins backup"] if is_copy else []
        return marked + self._seen.behind(seen_of(database))

    def doubts(self, database: Database, store: str) -> dict[str, str]:
        """Events for the log, and words for the operator, where this witness protects little."""
        found = {}
        seen = seen_of(database)
        if not self.path.exists() and seen != Seen():
            entries = sum(seen.entries.values())
            found["witness-missing"] = (
                f"{self.path}: no such witness, though the store was used before (epoch"
                f" {seen.epoch:,}, {entries:,} {'entry' if entries == 1 else 'entries'} in its"
                " ledgers): if the store was put back to an older state, nothing here can tell."
                " If the witness lies elsewhere, stop and name it with --witness"
            )
        file = Path(store.removeprefix("sqlite:///")) if store.startswith("sqlite") else None
        if file is not None and file.resolve().parent == self.path.resolve().parent:
            found["witness-beside-store"] = (
                f"{self.path}: the witness lies beside the store: whoever puts back a copy of this"
                " folder puts back both, and nothing here can tell. Stop, move it to another"
                " folder, and name it with --witness"
            )
        return found

    def saw(self, store: Seen) -> None:
        """Remember, durably; never less than before."""
        with self._alone():
            before = self._seen = _read(self.path)  # another worker may have written it
            self._write(
                Seen(
                    max(store.epoch, before.epoch),
                    _most(store.entries, before.entries),
                    _most(store.runs, before.runs),
                )
            )

    def unknown_to(self, database: Database) -> list[str]:
        """The populations of which a store that was rolled back has lost whole runs."""
        return self._seen.unknown_to(seen_of(database))

    def forget(self, store: Seen) -> None:
        """Remember this and nothing else."""
        with self._alone():
            self._write(store)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One thread of one process at a time writes it."""
        with self._lock:
            descriptor = os.open(self.path.parent, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                yield
            finally:
                os.close(descriptor)

    def _write(self, store: Seen) -> None:
        if store == self._seen:
            return
        self._seen = store
        beside = self.path.with_name(self.path.name + ".new")
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(asdict(store), file, sort_keys=True)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)


def seen_of(database: Database) -> Seen:
    """What a store has reached."""
    c = populations.c
    with database.reading() as connection:
        entries = {row.key: row.entries for row in connection.execute(select(c.key, c.entries))}
        epoch = int(metadata.read(connection, metadata.EPOCH) or 0)
        counted = connection.execute(
            select(runs.c.population, func.count().label("runs")).group_by(runs.c.population)
        )
        return Seen(epoch, entries, {row.population: row.runs for row in counted})


def _most(ours: dict[str, int], theirs: dict[str, int]) -> dict[str, int]:
    return {key: max(ours.get(key, 0), theirs.get(key, 0)) for key in {*ours, *theirs}}


def _counts(held: dict[str, Any]) -> dict[str, int]:
    return {str(name): int(count) for name, count in held.items()}


def _read(path: Path) -> Seen:
    try:
        held: Any = json.loads(path.read_text(encoding="utf-8"))
        return Seen(int(held["epoch"]), _counts(held["entries"]), _counts(held.get("runs", {})))
    except FileNotFoundError:
        return Seen()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidValue(
            "witness", str(path), "is not what a coordinator wrote: name another file"
        ) from error
