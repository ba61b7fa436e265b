"""Copy a store while it is in use, end the runs of a restored copy, and export a run's model.

The store is the database that holds all state of the service.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import closing
from pathlib import Path

from checkins.campaign import Spending
from checkins.durable_file import sync_folder
from checkins.errors import InvalidValue
from checkins.ledger import earlier_of
from checkins.service.runs import slot_transitions
from checkins.service.runs.cached_responses import model_bytes
from checkins.service.settings import redacted_url
from checkins.service.store import ledgers, metadata, participants, past_sums, run_state
from checkins.service.store.database import Connection, Database, copy_sqlite
from checkins.service.store.run_state import RunSpec

SQLITE_PREFIX = "sqlite:///"
"""Start of the URL of a SQLite store."""
LINES_PER_READ = 100
"""Largest number of lines of a ledger that are read from a store at a time."""


def back_up(store: str, copy_path: Path) -> int:
    """Copy a SQLite store while it is in use, and mark the file as a copy.

    ``store`` is the URL of the store. Return the store's epoch, a number that increases with each
    start of the service. If this process is killed, no secret of the store is left in
    a file. The runs of a copy are never continued: ``checkins serve --restore`` ends the runs that
    were open.
    """
    if not store.startswith(SQLITE_PREFIX):
        expected = "is not SQLite: use pg_dump, and do not store the progress file with the dump"
        raise InvalidValue("store", redacted_url(store), expected)
    _open_existing(store).close()
    partial = copy_path.with_name(copy_path.name + ".part")
    partial.unlink(missing_ok=True)
    try:
        epoch = copy_sqlite(Path(store.removeprefix(SQLITE_PREFIX)), partial, _erase_secrets)
        descriptor = os.open(partial, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        partial.replace(copy_path)
    finally:
        partial.unlink(missing_ok=True)
    sync_folder(copy_path.resolve().parent)
    return epoch


def _erase_secrets(connection: Connection) -> int:
    """Mark a store as a copy, and delete what no copy may contain. Return its epoch."""
    metadata.write(connection, metadata.COPY_ENTRY, "yes")
    participants.erase_clients(connection)  # clients must not check in to a copy
    past_sums.erase_exact_sums(connection)  # they are secret, and a copy needs none
    # A copy must not contain the key from which tokens are derived.
    metadata.delete_entry(connection, metadata.SECRET_KEY_ENTRY)
    return int(metadata.read(connection, metadata.EPOCH_ENTRY) or 0)


def end_runs(database: Database, *, lost_runs: Collection[str] = ()) -> list[str]:
    """End every open run of a restored copy, because releases after the copy are unknown.

    The certificate of each run assumes that the run released every slot that its budget allows.
    ``lost_runs`` are the populations that had runs which are not in the copy. The privacy loss of
    these populations is unknown. It is also unknown for the populations of open runs with averaged
    updates, because their epsilon depends on the number of contributors. These populations are
    marked, and no further campaign is opened on them. Return the ids of the runs that ended.
    """
    runs = database.read(run_state.load_specs_except, ())
    snapshots = [(spec, database.read(run_state.load_snapshot, spec)) for spec in runs]
    open_runs = [(spec, snapshot) for spec, snapshot in snapshots if snapshot.state.ending is None]
    averaged = {spec.population for spec, _ in open_runs if spec.rules.is_averaged}
    with database.exclusive_transaction("facts") as connection:
        for population in sorted({*lost_runs, *averaged}):
            metadata.write(connection, metadata.lost_runs_entry(population), "yes")
    for spec, snapshot in open_runs:
        certificate = None
        if spec.rules.is_averaged:  # epsilon depends on contributors that the copy does not know
            run = snapshot.ledger.running
            privacy_filter = None if run is None else run.filter
            spending = Spending(spec.campaign, earlier_of(snapshot.ledger), privacy_filter)
            certificate = spending.after(spec.rules.slots).as_dict()
        stopped = slot_transitions.stop(database, spec, snapshot)
        slot_transitions.finish(database, spec, stopped, certificate)
    with database.exclusive_transaction("facts") as connection:
        metadata.delete_entry(connection, metadata.COPY_ENTRY)
    return [spec.id for spec, _ in open_runs]


def stored_model(store: str, run: str | None = None) -> bytes:
    """Return the latest model of a run as safetensors. If ``run`` is None, use the newest run."""
    with closing(_open_existing(store)) as database:
        spec = _spec_of(database, store, run)
        return model_bytes(spec, database.read(run_state.load_snapshot, spec))


def stored_ledger(store: str, run: str | None = None) -> Iterator[bytes]:
    """Yield the lines of the ledger of a run's population. None means the newest run."""
    with closing(_open_existing(store)) as database:
        population, entries = _spec_of(database, store, run).population, 0
        while True:
            lines = database.read(
                ledgers.ledger_lines, population, after=entries, limit=LINES_PER_READ
            )
            if not lines:
                return
            yield from lines
            entries += len(lines)


def _spec_of(database: Database, store: str, run: str | None) -> RunSpec:
    runs = {spec.id: spec for spec in database.read(run_state.load_specs_except, ())}
    if not runs:
        raise InvalidValue("store", redacted_url(store), "holds no campaign")
    spec = runs.get(run or list(runs)[-1])
    if spec is None:
        raise InvalidValue("campaign", run, f"must be one of {', '.join(runs)}")
    return spec


def _open_existing(store: str) -> Database:
    if store.startswith(SQLITE_PREFIX) and not Path(store.removeprefix(SQLITE_PREFIX)).is_file():
        raise InvalidValue("store", store, "there is no such file")
    return Database(store)
