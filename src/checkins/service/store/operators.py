"""Queries for operators: their tokens, the log of their actions, and changes of the allow-list.

Tokens and keys of clients are stored as hashes. Every change is logged in its own transaction.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from sqlalchemy import Connection, delete, func, insert, select, text

from checkins.ledger.operator_log import LogHead, OperatorAction
from checkins.protocol.wire import OperatorRole, format_time
from checkins.service.store import schema

allow_list, operators, operator_log = schema.allow_list, schema.operators, schema.operator_log
MAX_LIST_LENGTH = 500  # largest number of values in one list in a statement


def allow_list_changes(connection: Connection, credentials: Sequence[str]) -> dict[str, bool]:
    """Return whether each credential may enrol, for those that an operator has changed."""
    c, found = allow_list.c, {}
    for start in range(0, len(credentials), MAX_LIST_LENGTH):
        part = credentials[start : start + MAX_LIST_LENGTH]
        rows = connection.execute(select(c.credential, c.allowed).where(c.credential.in_(part)))
        found.update({row.credential: bool(row.allowed) for row in rows})
    return found


def allow_list_size(connection: Connection, listed: Collection[str]) -> int:
    """Return how many keys may enrol. ``listed`` are the hashes of the keys in the file."""
    rows = connection.execute(select(allow_list.c.credential, allow_list.c.allowed))
    return len(listed) + sum(int(row.allowed) - (row.credential in listed) for row in rows)


def change_allow_list(connection: Connection, credentials: Sequence[str], *, allowed: bool) -> None:
    """Save whether these credentials may enrol."""
    for start in range(0, len(credentials), MAX_LIST_LENGTH):
        part = credentials[start : start + MAX_LIST_LENGTH]
        connection.execute(delete(allow_list).where(allow_list.c.credential.in_(part)))
        rows = [{"credential": credential, "allowed": allowed} for credential in part]
        connection.execute(insert(allow_list), rows)


def operator_with(connection: Connection, token: str) -> tuple[str, OperatorRole] | None:
    """Return name and role of the operator with this hash of a token, or None."""
    query = select(operators.c.name, operators.c.role).where(operators.c.token == token)
    row = connection.execute(query).one_or_none()
    return None if row is None else (row.name, row.role)


def token_of(connection: Connection, name: str) -> tuple[str, OperatorRole] | None:
    """Return the hash of an operator's token and the role, or None if there is no such name."""
    query = select(operators.c.token, operators.c.role).where(operators.c.name == name)
    row = connection.execute(query).one_or_none()
    return None if row is None else (row.token, row.role)


def list_operators(connection: Connection) -> list[tuple[str, OperatorRole]]:
    """Return the names and roles of all operators, ordered by name."""
    query = select(operators.c.name, operators.c.role).order_by(operators.c.name)
    return [(row.name, row.role) for row in connection.execute(query)]


def add_operator(connection: Connection, name: str, token: str, role: OperatorRole) -> None:
    connection.execute(insert(operators).values(name=name, token=token, role=role))


def remove_operator(connection: Connection, name: str) -> None:
    connection.execute(delete(operators).where(operators.c.name == name))


def append_to_log(
    connection: Connection,
    action: OperatorAction,
    *,
    operator: str,
    now: float,
    **details: str | int,
) -> None:
    """Log an action of an operator. ``now`` is the time in seconds since 1970.

    Other transactions that append to the log wait for this one.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("LOCK TABLE operator_log IN EXCLUSIVE MODE"))
    time = format_time(now)[:19] + "Z"
    head, line = log_head(connection).append(action, operator=operator, time=time, **details)
    connection.execute(insert(operator_log).values(entry=head.entries, line=line))


def log_head(connection: Connection) -> LogHead:
    """Return the number of lines of the log, and the hash of the last line."""
    entries = select(func.max(operator_log.c.entry)).scalar_subquery()
    line = connection.execute(select(operator_log.c.line).where(operator_log.c.entry == entries))
    found = line.scalar_one_or_none()
    if found is None:
        return LogHead()
    fields = json.loads(found)
    return LogHead(fields["entry"], fields["hash"])


def log_lines(connection: Connection, *, after: int, limit: int) -> list[bytes]:
    """Return at most ``limit`` lines of the log, starting after entry ``after``."""
    c = operator_log.c
    query = select(c.line).where(c.entry > after).order_by(c.entry).limit(limit)
    return list(connection.execute(query).scalars())
