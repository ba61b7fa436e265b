"""Metadata of the store: its epoch, its key, and whether it is a copy.

The epoch counts how often a coordinator was started on this store. Together with a witness outside
of the store (``rollback_guard.py``) it detects a store that was rolled back.
"""

from __future__ import annotations

import hashlib
import secrets

from sqlalchemy import Connection, delete, insert, select, update

from checkins.service.store.database import Database
from checkins.service.store.schema import facts

EPOCH, KEY, COPY = "epoch", "key", "copy"


def lost(population: str) -> str:
    """Return the name of the mark of a population whose runs are lost; hashed, to be short."""
    return f"lost {hashlib.sha256(population.encode()).hexdigest()[:32]}"


def begin_epoch(database: Database) -> int:
    """Begin and return the next epoch, durable before any request is answered in it."""
    with database.exclusive("facts") as connection:
        epoch = int(read(connection, EPOCH) or 0) + 1
        write(connection, EPOCH, str(epoch))
        if read(connection, KEY) is None:
            write(connection, KEY, secrets.token_hex(32))
    return epoch


def epoch_of(database: Database) -> int:
    """Return the epoch of the store; 0 for a new one."""
    return int(database.read(read, EPOCH) or 0)


def key_of(database: Database) -> bytes:
    """Return the key from which tokens are derived; it never leaves the store."""
    return bytes.fromhex(database.read(read, KEY) or "")


def read(connection: Connection, name: str) -> str | None:
    asked = select(facts.c.value).where(facts.c.name == name)
    return connection.execute(asked).scalar_one_or_none()


def forget(connection: Connection, name: str) -> None:
    connection.execute(delete(facts).where(facts.c.name == name))


def write(connection: Connection, name: str, value: str) -> None:
    done = connection.execute(update(facts).where(facts.c.name == name).values(value=value))
    if done.rowcount == 0:
        connection.execute(insert(facts).values(name=name, value=value))
