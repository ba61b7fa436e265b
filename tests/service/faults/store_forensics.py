"""What is left in a store: every value of every table, and every byte of SQLite's files."""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psycopg

SCALES = (1.0, 1e3, 1e6, 1e9)
"""Seconds, milliseconds, microseconds, nanoseconds since 1970."""
INSTANT = re.compile(r"20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.\d]*")


@dataclass(frozen=True, slots=True)
class Table:
    """Rows as they are read, and how the table was declared."""

    name: str
    declared: str
    """SQLite: its statement. PostgreSQL: its columns with their types and defaults."""
    rows: list[tuple[object, ...]]

    @property
    def text(self) -> bytes:
        """Every value, one after another."""
        return b"\n".join(_bytes(value) for row in self.rows for value in row)

    @property
    def numbers(self) -> list[float]:
        return [
            float(value)
            for row in self.rows
            for value in row
            if isinstance(value, int | float) and not isinstance(value, bool)
        ]


def tables_of(store: str) -> dict[str, Table]:
    """Everything in a store, read in one transaction."""
    if store.startswith("sqlite:///"):
        return {table.name: table for table in _sqlite(store.removeprefix("sqlite:///"))}
    return {table.name: table for table in _postgresql(store)}


def _sqlite(path: str) -> Iterable[Table]:
    with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as connection:
        connection.execute("BEGIN")
        master = "SELECT name, sql FROM sqlite_master WHERE type = 'table' ORDER BY name"
        for name, declared in connection.execute(master).fetchall():
            yield Table(name, declared, connection.execute(f'SELECT * FROM "{name}"').fetchall())


def _postgresql(url: str) -> Iterable[Table]:
    with psycopg.connect(url) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        columns = connection.execute(
            "SELECT table_name, column_name, data_type, column_default, is_identity"
            " FROM information_schema.columns WHERE table_schema = 'public'"
            " ORDER BY table_name, ordinal_position"
        ).fetchall()
        for name in sorted({str(column[0]) for column in columns}):
            declared = "; ".join(
                " ".join(str(word) for word in column[1:])
                for column in columns
                if column[0] == name
            )
            rows = connection.execute(f'SELECT * FROM "{name}"'.encode()).fetchall()
            yield Table(name, declared, rows)


def _bytes(value: object) -> bytes:
    if isinstance(value, bytes | memoryview | bytearray):
        return bytes(value)
    return str(value).encode()


def traces(secrets: Iterable[str]) -> set[bytes]:
    """All that would give a secret away: itself, and its hash in both spellings."""
    found: set[bytes] = set()
    for secret in secrets:
        digest = hashlib.sha256(secret.encode())
        found |= {secret.encode(), digest.hexdigest().encode(), digest.digest()}
    return found


def present(wanted: Iterable[bytes], held: bytes) -> list[bytes]:
    """Those that are somewhere in there."""
    return [trace for trace in wanted if trace in held]


def instants(numbers: Iterable[float], *, between: tuple[float, float]) -> list[float]:
    """Numbers that are a moment of this time in some unit."""
    low, high = between
    return [n for n in numbers if any(low <= n / scale <= high for scale in SCALES)]


def checkpointed_bytes(path: Path) -> bytes:
    """All bytes of a SQLite store once its log is moved into the file."""
    with closing(sqlite3.connect(path, timeout=30)) as connection:
        busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        assert not busy, "somebody still uses the store"
    beside = sorted(path.parent.glob(path.name + "*"))
    return b"\n".join(file.read_bytes() for file in beside)
