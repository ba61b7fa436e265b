"""The log of operators' actions: who did what and when, as a chain of hashes.

A line is canonical JSON, as in a ledger. Its field ``hash`` is the SHA-256 of the line without this
field, and ``previous`` is the hash of the line before. So no line can be changed or removed in the
middle without changing all hashes after it. A line contains nothing about a client: neither a key
nor its hash (invariant 8 of docs/invariants.md).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from checkins.errors import InvalidValue
from checkins.ledger.entry import INITIAL_HASH, InvalidLedger

TOKEN_FILE, MACHINE = "token-file", "machine"
"""Who acted with the token of `checkins serve`, and who acted with its options at the start."""
OPERATOR_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")
_DETAIL = re.compile(r"[A-Za-z0-9._-]{1,64}")


class OperatorAction(StrEnum):
    """What an operator did."""

    CAMPAIGN_OPENED = "campaign-opened"
    CAMPAIGN_STOPPED = "campaign-stopped"
    KEYS_ADDED = "keys-added"
    KEYS_REVOKED = "keys-revoked"
    OPERATOR_ADDED = "operator-added"
    OPERATOR_REVOKED = "operator-revoked"
    STORE_RESTORED = "store-restored"
    CLOCK_TRUSTED = "clock-trusted"


FIELDS = {
    OperatorAction.CAMPAIGN_OPENED: frozenset({"campaign"}),
    OperatorAction.CAMPAIGN_STOPPED: frozenset({"campaign"}),
    OperatorAction.KEYS_ADDED: frozenset({"count"}),
    OperatorAction.KEYS_REVOKED: frozenset({"count"}),
    OperatorAction.OPERATOR_ADDED: frozenset({"name", "role"}),
    OperatorAction.OPERATOR_REVOKED: frozenset({"name"}),
    OperatorAction.STORE_RESTORED: frozenset[str](),
    OperatorAction.CLOCK_TRUSTED: frozenset[str](),
}
"""The fields of each action, in addition to those of every line."""


@dataclass(frozen=True, slots=True)
class LogHead:
    """The number of lines of a log, and the hash of the last."""

    entries: int = 0
    hash: str = INITIAL_HASH

    def append(
        self, action: OperatorAction, *, operator: str, time: str, **details: str | int
    ) -> tuple[LogHead, bytes]:
        """Return the head after one more line, and this line."""
        if details.keys() != FIELDS[action]:
            raise InvalidValue("details", sorted(details), f"must be {sorted(FIELDS[action])}")
        for name, value in details.items():
            if not (type(value) is int or (isinstance(value, str) and _DETAIL.fullmatch(value))):
                raise InvalidValue(name, "...", "must be an integer or a short word")
        fields = {
            **{"action": str(action), "entry": self.entries + 1, "operator": operator},
            **{"previous": self.hash, "time": time},
            **details,
        }
        digest = hashlib.sha256(_canonical(fields)).hexdigest()
        return LogHead(self.entries + 1, digest), _canonical({**fields, "hash": digest}) + b"\n"

    def read(self, line: bytes) -> tuple[LogHead, dict[str, Any]]:
        """Return the head after this line of a log, and its fields; raise InvalidLedger."""
        try:
            fields: dict[str, Any] = json.loads(line)
            details = {name: fields[name] for name in FIELDS[OperatorAction(fields["action"])]}
            after, expected = self.append(
                OperatorAction(fields["action"]),
                operator=str(fields["operator"]),
                time=str(fields["time"]),
                **details,
            )
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise InvalidLedger(f"is not a line of a log: {type(error).__name__}") from error
        if line != expected:
            raise InvalidLedger(
                f"is not what follows line {self.entries:,}: a line was changed, removed or added"
            )
        return after, fields


def check_log(lines: Iterable[bytes], *, path: str) -> tuple[LogHead, list[dict[str, Any]]]:
    """Return the head and all lines of a log; raise InvalidLedger if a line was changed."""
    head, found = LogHead(), []
    for number, line in enumerate(lines, start=1):
        try:
            head, fields = head.read(line)
        except InvalidLedger as error:
            raise InvalidLedger(error.problem, place=f"{path}:{number}") from error
        found.append(fields)
    return head, found


def _canonical(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode("ascii")
