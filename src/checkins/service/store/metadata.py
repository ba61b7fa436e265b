"""Metadata of the store as named entries: its epoch, its secret key, whether it is a copy.

The epoch counts how often a coordinator was started on this store. ``rollback_detection.py`` uses
it to detect a store that was rolled back.
"""

from __future__ import annotations

import hashlib
import secrets

from sqlalchemy import Connection, delete, insert, select, update

from checkins.service.store.database import Database
from checkins.service.store.schema import metadata_entries

EPOCH_ENTRY, SECRET_KEY_ENTRY, COPY_ENTRY = "epoch", "key", "copy"
"""Names of entries. The entry ``copy`` exists only in a copy made by ``checkins backup``."""


def lost_runs_entry(population: str) -> str:
    """Return the name of the entry that marks a population whose runs are partly missing.

    Runs are missing if the store was restored from a backup that is older than the runs. The
    population is hashed because the name column has a limited length.
    """
    return f"lost {hashlib.sha256(population.encode()).hexdigest()[:32]}"


def begin_epoch(database: Database) -> int:
    """Save and return the next epoch. Create the secret key if the store has none."""
    with database.exclusive_transaction("facts") as connection:
        epoch = int(read(connection, EPOCH_ENTRY) or 0) + 1
        write(connection, EPOCH_ENTRY, str(epoch))
        if read(connection, SECRET_KEY_ENTRY) is None:
            write(connection, SECRET_KEY_ENTRY, secrets.token_hex(32))
    return epoch


def epoch_of(database: Database) -> int:
    """Return the epoch of the store, or 0 if no coordinator was started on it."""
    return int(database.read(read, EPOCH_ENTRY) or 0)


def secret_key_of(database: Database) -> bytes:
    """Return the secret key from which the tokens of clients are derived."""
    return bytes.fromhex(database.read(read, SECRET_KEY_ENTRY) or "")


def read(connection: Connection, name: str) -> str | None:
    """Return the value of an entry, or None if there is no such entry."""
    query = select(metadata_entries.c.value).where(metadata_entries.c.name == name)
    return connection.execute(query).scalar_one_or_none()


def delete_entry(connection: Connection, name: str) -> None:
    connection.execute(delete(metadata_entries).where(metadata_entries.c.name == name))


def write(connection: Connection, name: str, value: str) -> None:
    """Add an entry, or change its value if it exists."""
    updated = connection.execute(
        update(metadata_entries).where(metadata_entries.c.name == name).values(value=value)
    )
    if updated.rowcount == 0:
        connection.execute(insert(metadata_entries).values(name=name, value=value))
