"""What looks for remains finds them where they are."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.service.faults.store_forensics import (
    checkpointed_bytes,
    instants,
    present,
    tables_of,
    traces,
)

SECRET = "a-receipt-that-was-given-out"


@pytest.mark.parametrize("careful", [True, False])
def test_a_deleted_row_is_found_in_the_file_unless_it_was_overwritten(
    tmp_path: Path, careful: bool
) -> None:
    path = tmp_path / "store.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA secure_delete = {'ON' if careful else 'OFF'}")
        connection.execute("CREATE TABLE check_ins (receipt TEXT, other INTEGER)")
        connection.execute("INSERT INTO check_ins VALUES ('another', 1), (?, 2)", (SECRET,))
        assert present(traces([SECRET]), tables_of(f"sqlite:///{path}")["check_ins"].text)
        connection.execute("DELETE FROM check_ins WHERE other = 2")
    assert present(traces([SECRET]), tables_of(f"sqlite:///{path}")["check_ins"].text) == []
    assert (present(traces([SECRET]), checkpointed_bytes(path)) == []) == careful


def test_rows_of_postgresql_are_all_seen(postgres_url: str) -> None:
    import psycopg

    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE tokens (at timestamptz DEFAULT now(), token bytea)")
        connection.execute("INSERT INTO tokens (token) VALUES (%s)", (SECRET.encode(),))
    table = tables_of(postgres_url)["tokens"]
    assert present(traces([SECRET]), table.text) == [SECRET.encode()]
    assert "timestamp" in table.declared


def test_a_moment_is_found_in_any_unit() -> None:
    during = (1_800_000_000.0, 1_800_000_060.0)
    numbers = [1_800_000_001.5, 1_800_000_002_000.0, 1.800000003e15, 17.0, 1_700_000_000.0]
    assert instants(numbers, between=during) == numbers[:3]
