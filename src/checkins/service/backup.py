"""What is taken out of a store that nobody may be serving: a model, or a copy of all of it."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from sqlalchemy import delete

from checkins.errors import InvalidValue
from checkins.protocol.report import model_to_bytes
from checkins.service.settings import shown_url
from checkins.service.store import metadata, records, tables
from checkins.service.store.database import Database
from checkins.tasks.tensors import unflatten

SQLITE = "sqlite:///"


def stored_model(store: str, run: str | None = None) -> bytes:
    """The latest release of a run, or of the newest run, as safetensors."""
    database = _existing(store)
    try:
        with database.reading() as connection:
            runs = {terms.id: terms for terms in records.unknown_terms(connection, ())}
            if not runs:
                raise InvalidValue("store", shown_url(store), "holds no campaign")
            terms = runs.get(run or list(runs)[-1])
            if terms is None:
                raise InvalidValue("campaign", run, f"must be one of {', '.join(runs)}")
            standing = records.load_standing(connection, terms)
        return model_to_bytes(
            unflatten(standing.learner.model, terms.shapes),
            {
                "seal": terms.seal,
                "run": str(terms.number),
                "slot": str(standing.stage.closed),
                "model_hash": standing.model_hash,
                "head": standing.ledger.head,
            },
        )
    finally:
        database.close()


def back_up(store: str, out: Path) -> int:
    """Copy a store of SQLite while it is in use, marked as a copy; its epoch.

    A copy is never continued by itself: ``checkins serve --restore`` ends what was running in it.
    """
    if not store.startswith(SQLITE):
        raise InvalidValue(
            "store",
            shown_url(store),
            "is not SQLite: use pg_dump, and keep the witness apart from the dump",
        )
    _existing(store).close()
    beside = out.with_name(out.name + ".part")
    beside.unlink(missing_ok=True)
    try:
        os.close(os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))  # ours to read
        source = sqlite3.connect(f"file:{store.removeprefix(SQLITE)}?mode=ro", uri=True)
        target = sqlite3.connect(beside)
        try:
            source.backup(target)
        finally:
            source.close()
            target.close()
        copy = Database(f"{SQLITE}{beside.resolve()}")
        with copy.exclusive("facts") as connection:
            metadata.write(connection, metadata.COPY, "yes")
            for table in (tables.check_ins, tables.tokens, tables.enrolments, tables.enrolled):
                connection.execute(delete(table))  # nobody checks in to a copy
            metadata.forget(
                connection, metadata.KEY
            )  # tokens of the store that goes on derive from it
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
