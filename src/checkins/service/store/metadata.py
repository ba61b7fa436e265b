"""Metadata of the store: its epoch, its key, and whether it is a copy.

The epoch counts how often a coordinator was started on this store. A witness file outside of the
store records the epoch too, so that a store that was rolled back is detected
(``rollback_guard.py``).
"""

from __future__ import annotations

import hashlib
import secrets

from sqlalchemy import Connection, delete, insert, select, update

from checkins.service.store.database import Database
from checkins.service.store.schema import facts

EPOCH, KEY, COPY = "epoch", "key", "copy"


def lost_runs_entry(population: str) -> str:
    """Return the name of the entry which says that runs of a population are missing.

    Runs are missing if the store was restored from a backup.

    The population is hashed because the name column has a limited length.
    """
    return f"lost {hashlib.sha256(population.encode()).hexdigest()[:32]}"


def begin_epoch(database: Database) -> int:
    """Save and return the next epoch. Create the key of a new store."""
    with database.exclusive("facts") as connection:
        epoch = int(read(connection, EPOCH) or 0) + 1
        write(connection, EPOCH, str(epoch))
        if read(connection, KEY) is None:
            write(connection, KEY, secrets.token_hex(32))
    return epoch


def epoch_of(database: Database) -> int:
    """Return the epoch of the store, or 0 if no coordinator was started on it."""
    return int(database.read(read, EPOCH) or 0)


def key_of(database: Database) -> bytes:
    """Return the secret key from which tokens are derived."""
    return bytes.fromhex(database.read(read, KEY) or "")


def read(connection: Connection, name: str) -> str | None:
    """Return the value of an entry, or None if there is no such entry."""
    query = select(facts.c.value).where(facts.c.name == name)
    return connection.execute(query).scalar_one_or_none()


def delete_entry(connection: Connection, name: str) -> None:
    connection.execute(delete(facts).where(facts.c.name == name))


def write(connection: Connection, name: str, value: str) -> None:
    """Add an entry, or change its value if it exists."""
    updated = connection.execute(update(facts).where(facts.c.name == name).values(value=value))
    if updated.rowcount == 0:
        connection.execute(insert(facts).values(name=name, value=value))
