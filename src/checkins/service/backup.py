"""Copy a store that is in use, end the runs of a restored copy, and export a run's model."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from checkins.campaign import Spending
from checkins.errors import InvalidValue
from checkins.ledger import earlier_of
from checkins.service.runs import run_state_machine
from checkins.service.runs.cached_responses import model_bytes
from checkins.service.settings import redacted_url
from checkins.service.store import metadata, participants, run_state
from checkins.service.store.database import Database, copy_sqlite

SQLITE = "sqlite:///"


def back_up(store: str, out: Path) -> int:
    """Copy a SQLite store while it is in use, mark the file as a copy, and return its epoch.

    The runs of a copy are never continued. ``checkins serve --restore`` ends those that were open.
    """
    if not store.startswith(SQLITE):
        expected = "is not SQLite: use pg_dump, and keep the witness apart from the dump"
        raise InvalidValue("store", redacted_url(store), expected)
    _existing(store).close()
    partial = out.with_name(out.name + ".part")
    partial.unlink(missing_ok=True)
    try:
        copy_sqlite(Path(store.removeprefix(SQLITE)), partial)
        copy = Database(f"{SQLITE}{partial.resolve()}")
        with copy.exclusive_transaction("facts") as connection:
            metadata.write(connection, metadata.COPY_ENTRY, "yes")
            participants.erase_clients(connection)  # no client may check in to a copy
            # A copy must not contain the key from which tokens are derived.
            metadata.delete_entry(connection, metadata.SECRET_KEY_ENTRY)
            epoch = int(metadata.read(connection, metadata.EPOCH_ENTRY) or 0)
        copy.compact()
        copy.close()
        descriptor = os.open(partial, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        partial.replace(out)
    finally:
        for end in ("", "-wal", "-shm"):
            partial.with_name(partial.name + end).unlink(missing_ok=True)
    return epoch


def end_runs(database: Database, *, lost: Collection[str] = ()) -> None:
    """End every open run of a restored copy, because releases after the copy are unknown.

    The certificate of each run assumes that it released every slot that its budget allows. No
    further campaign is opened on a population whose privacy loss is unknown. These are the
    populations in ``lost``, which had runs that are not in the copy, and the populations of open
    runs with averaged updates, whose epsilon depends on the number of contributors.
    """
    runs = database.read(run_state.load_specs_except, ())
    snapshots = [(spec, database.read(run_state.load_snapshot, spec)) for spec in runs]
    open_runs = [(spec, now) for spec, now in snapshots if now.state.ending is None]
    unknown = {*lost, *(spec.population for spec, _ in open_runs if spec.rules.averaged)}
    with database.exclusive_transaction("facts") as connection:
        for population in sorted(unknown):
            metadata.write(connection, metadata.lost_runs_entry(population), "yes")
    for spec, snapshot in open_runs:
        certificate = None
        if spec.rules.averaged:  # epsilon depends on contributors after the copy
            run = snapshot.ledger.running
            rule = None if run is None else run.filter
            spending = Spending(spec.campaign, earlier_of(snapshot.ledger), rule)
            certificate = spending.after(spec.rules.slots).as_dict()
        stopped = run_state_machine.stop(database, spec, snapshot)
        run_state_machine.finish(database, spec, stopped, certificate)
    with database.exclusive_transaction("facts") as connection:
        metadata.delete_entry(connection, metadata.COPY_ENTRY)


def stored_model(store: str, run: str | None = None) -> bytes:
    """Return the latest model of a run as safetensors. None means the newest run."""
    database = _existing(store)
    try:
        runs = {spec.id: spec for spec in database.read(run_state.load_specs_except, ())}
        if not runs:
            raise InvalidValue("store", redacted_url(store), "holds no campaign")
        spec = runs.get(run or list(runs)[-1])
        if spec is None:
            raise InvalidValue("campaign", run, f"must be one of {', '.join(runs)}")
        return model_bytes(spec, database.read(run_state.load_snapshot, spec))
    finally:
        database.close()


def _existing(store: str) -> Database:
    if store.startswith(SQLITE) and not Path(store.removeprefix(SQLITE)).is_file():
        raise InvalidValue("store", store, "there is no such file")
    return Database(store)
