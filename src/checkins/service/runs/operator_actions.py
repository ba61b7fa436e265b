"""Changes that operators make while the service runs: keys that may enrol, and operators' tokens.

Each change and its line in the log of actions are one transaction.
"""

from __future__ import annotations

from collections.abc import Collection

from checkins.errors import ProtocolViolation
from checkins.ledger.operator_log import MACHINE, TOKEN_FILE, OperatorAction
from checkins.protocol.wire import OperatorRole
from checkins.service.http.problems import Problem
from checkins.service.runs import opening
from checkins.service.store import operators, run_state
from checkins.service.store.database import Connection, Database

LOCK = "openings"
"""The lock of transactions that open runs or change operators or the allow-list, because each of
them may depend on the number of keys."""


def add_keys(
    database: Database, credentials: Collection[str], *, listed: Collection[str], operator: str
) -> tuple[int, int]:
    """Let keys enrol. Return how many could not before, and how many can now.

    ``credentials`` are hashes of keys, and ``listed`` those in the file of the allow-list. Raise
    InvalidValue if an open run declares a smaller population.
    """
    return _change_keys(database, credentials, listed, operator, allowed=True)


def revoke_keys(
    database: Database, credentials: Collection[str], *, listed: Collection[str], operator: str
) -> tuple[int, int]:
    """Let keys no longer enrol. Return how many could before, and how many can now.

    A token that a key has got before stays valid, because nothing links it to its key. What a key
    has spent in a run stays spent if the key is added again.
    """
    return _change_keys(database, credentials, listed, operator, allowed=False)


def _change_keys(
    database: Database,
    credentials: Collection[str],
    listed: Collection[str],
    operator: str,
    *,
    allowed: bool,
) -> tuple[int, int]:
    ordered = sorted(set(credentials))
    with database.exclusive_transaction(LOCK) as connection:
        known = operators.allow_list_changes(connection, ordered)
        changed = [key for key in ordered if known.get(key, key in listed) is not allowed]
        operators.change_allow_list(connection, changed, allowed=allowed)
        size = operators.allow_list_size(connection, listed)
        if allowed:
            require_populations(connection, size)
        action = OperatorAction.KEYS_ADDED if allowed else OperatorAction.KEYS_REVOKED
        if changed:
            _log(connection, database, action, operator, count=len(changed))
    return len(changed), size


def require_populations(connection: Connection, size: int) -> None:
    """Raise InvalidValue if an open run declares fewer clients than there are keys."""
    for spec in run_state.load_specs_except(connection, ()):
        if run_state.load_state(connection, spec.id).ending is None:
            opening.require_allow_list_fits(spec.campaign, size)


def add_operator(
    database: Database, name: str, token: str, role: OperatorRole, *, operator: str
) -> None:
    """Add an operator with the hash of a token; a repeated request changes nothing.

    Raise ProtocolViolation if another operator has this name or this token.
    """
    with database.exclusive_transaction(LOCK) as connection:
        known = operators.token_of(connection, name)
        if known == (token, role):
            return
        if name in (TOKEN_FILE, MACHINE) or known is not None:
            raise ProtocolViolation(f"there is an operator {name}: choose another name")
        if operators.operator_with(connection, token) is not None:
            raise ProtocolViolation("another operator has this token: make another token")
        operators.add_operator(connection, name, token, role)
        action = OperatorAction.OPERATOR_ADDED
        _log(connection, database, action, operator, name=name, role=role)


def revoke_operator(database: Database, name: str, *, operator: str) -> None:
    """Remove an operator, whose token is no longer valid; raise ``unknown-operator``."""
    with database.exclusive_transaction(LOCK) as connection:
        if operators.token_of(connection, name) is None:
            raise Problem("unknown-operator", f"there is no operator {name}")
        operators.remove_operator(connection, name)
        _log(connection, database, OperatorAction.OPERATOR_REVOKED, operator, name=name)


def log_start_options(database: Database, *actions: OperatorAction) -> None:
    """Log what the options of `checkins serve` did."""
    if not actions:
        return
    with database.exclusive_transaction(LOCK) as connection:
        for action in actions:
            _log(connection, database, action, MACHINE)


def _log(
    connection: Connection,
    database: Database,
    action: OperatorAction,
    operator: str,
    **details: str | int,
) -> None:
    operators.append_to_log(connection, action, operator=operator, now=database.now(), **details)
