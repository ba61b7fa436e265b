"""Backups: copy a store while it is in use, and export the latest model of a run."""

from __future__ import annotations

import os
from pathlib import Path

from checkins.errors import InvalidValue
from checkins.service.runs.cached_responses import model_bytes
from checkins.service.settings import redacted_url
from checkins.service.store import metadata, participants, run_state
from checkins.service.store.database import Database, copy_sqlite

SQLITE = "sqlite:///"


def stored_model(store: str, run: str | None = None) -> bytes:
    """Return the latest release of a run as safetensors; of the newest run if ``run`` is None."""
    database = _existing(store)
    try:
        with database.reading() as connection:
            runs = {spec.id: spec for spec in run_state.load_unknown_specs(connection, ())}
            if not runs:
                raise InvalidValue("store", redacted_url(store), "holds no campaign")
            spec = runs.get(run or list(runs)[-1])
            if spec is None:
                raise InvalidValue("campaign", run, f"must be one of {', '.join(runs)}")
            snapshot = run_state.load_snapshot(connection, spec)
        return model_bytes(spec, snapshot)
    finally:
        database.close()


def back_up(store: str, out: Path) -> int:
    """Copy a store of SQLite while it is in use, mark the copy, and return its epoch.

    A copy is never continued: ``checkins serve --restore`` ends what was running in it.
    """
    if not store.startswith(SQLITE):
        raise InvalidValue(
            "store",
            redacted_url(store),
            "is not SQLite: use pg_dump, and keep the witness apart from the dump",
        )
    _existing(store).close()
    beside = out.with_name(out.name + ".part")
    beside.unlink(missing_ok=True)
    try:
        copy_sqlite(Path(store.removeprefix(SQLITE)), beside)
        copy = Database(f"{SQLITE}{beside.resolve()}")
        with copy.exclusive("facts") as connection:
            metadata.write(connection, metadata.COPY, "yes")
            participants.erase_clients(connection)  # no client checks in to a copy
            metadata.forget(connection, metadata.KEY)  # tokens of the original derive from it
            epoch = int(metadata.read(connection, metadata.EPOCH) or 0)
        copy.compact()
        copy.close()
        descriptor = os.open(beside, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        beside.replace(out)
    finally:
        for left in (beside, *(beside.with_name(beside.name + end) for end in ("-wal", "-shm"))):
            left.unlink(missing_ok=True)
    return epoch


def _existing(store: str) -> Database:
    if store.startswith(SQLITE) and not Path(store.removeprefix(SQLITE)).is_file():
        raise InvalidValue("store", store, "there is no such file")
    return Database(store)
