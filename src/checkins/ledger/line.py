"""Write an entry as a line of canonical JSON, and parse it.

Canonical JSON has sorted keys, no spaces, only ASCII, numbers as Python prints them, and one
newline at the end. Every other spelling of the same content is refused, so that no byte of a ledger
can be changed.

The field ``hash`` is the SHA-256 of the canonical line without this field. The field ``previous``
is the hash of the line before, so the lines form a chain.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NoReturn, TypeVar

from checkins.accounting.filters import Filter
from checkins.errors import CheckinsError, InvalidValue
from checkins.ledger.entry import (
    MOST_NUMBERS,
    SHA256,
    Closed,
    Entry,
    Opened,
    Reason,
    SlotClosed,
    Units,
)

SCHEMA = 1
BEGINNING = "0" * 64
"""The field ``previous`` of the first line."""

MOST_LINE_BYTES = 12 * MOST_NUMBERS
LONGEST_VALUE = 60

PLACING = frozenset({"kind", "entry", "previous", "hash"})
"""The fields of every entry: its kind, its number, the hash of the line before, and its hash."""
FIELDS: Mapping[str, frozenset[str]] = {
    "opened": frozenset(
        {"schema", "campaign", "seal", "run", "model", "model_hash", "simulated", "filter"}
    ),
    "slot-closed": frozenset({"slot", "total", "dtype", "model_hash", "contributors"}),
    "closed": frozenset({"reason", "certificate"}),
}
"""The fields of each kind of entry, in addition to ``PLACING``."""

OPTIONAL = frozenset({"contributors", "filter"})
"""Fields that are left out (never null) if an entry has no value for them."""

Choice = TypeVar("Choice", bound=StrEnum)


class InvalidLedger(CheckinsError):
    """The ledger was changed or is inconsistent. ``place`` is the file and line, if known."""

    def __init__(self, problem: str, *, place: str = "") -> None:
        self.problem = problem
        self.place = place
        super().__init__(f"{place}: {problem}" if place else problem)


@dataclass(frozen=True, slots=True)
class Line:
    """An entry with its number and hashes. ``written`` is the whole line with its newline."""

    entry: Entry
    number: int
    previous: str
    hash: str
    written: bytes = field(repr=False)

    @classmethod
    def of(cls, entry: Entry, *, number: int, previous: str) -> Line:
        """Return the line of an entry."""
        fields = {"entry": number, "previous": previous, **_content(entry)}
        before = _canonical({name: fields[name] for name in fields if name < "hash"})
        after = _canonical({name: fields[name] for name in fields if name > "hash"})
        hashed = hashlib.sha256(b"%b,%b" % (before[:-1], after[1:])).hexdigest()
        written = b'%b,"hash":"%b",%b\n' % (before[:-1], hashed.encode("ascii"), after[1:])
        return cls(entry, number, previous, hashed, written)

    @classmethod
    def parse(cls, written: bytes) -> Line:
        """Parse a line. Raise InvalidLedger if its spelling is not canonical or its hash wrong."""
        found = _json(written)
        try:
            entry = _entry(found)
        except InvalidValue as error:
            value = "" if error.value is None else f" = {_cut(error.value)}"
            raise InvalidLedger(f"{error.name}{value}: {error.expected}") from error
        number, previous = found["entry"], found["previous"]
        if isinstance(number, bool) or not isinstance(number, int):
            raise InvalidLedger("entry must be an integer")
        if not isinstance(previous, str) or not SHA256.fullmatch(previous):
            raise InvalidLedger("previous must be 64 hexadecimal digits")
        line = cls.of(entry, number=number, previous=previous)
        if found["hash"] != line.hash:
            raise InvalidLedger("its hash does not match its content: the line was changed")
        if line.written != written:
            raise InvalidLedger(
                "is not spelled as it was written: with sorted keys, no spaces, shortest numbers"
            )
        return line


def _canonical(fields: Mapping[str, object]) -> bytes:
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("ascii")


def _content(entry: Entry) -> dict[str, object]:
    if isinstance(entry, Opened):
        return {
            "kind": "opened",
            "schema": SCHEMA,
            "campaign": entry.campaign,
            "seal": entry.seal,
            "run": entry.run,
            "model": _text(entry.model),
            "model_hash": entry.model_hash,
            "simulated": entry.simulated,
            **({} if entry.filter is None else {"filter": str(entry.filter)}),
        }
    if isinstance(entry, Closed):
        return {"kind": "closed", "reason": str(entry.reason), "certificate": entry.certificate}
    count = {} if entry.contributors is None else {"contributors": entry.contributors}
    return {
        "kind": "slot-closed",
        "slot": entry.slot,
        "total": None if entry.total is None else _text(entry.total),
        "dtype": None if entry.units is None else str(entry.units),
        "model_hash": entry.model_hash,
        **count,
    }


def _entry(found: Mapping[str, Any]) -> Entry:
    kind = found.get("kind")
    if not isinstance(kind, str) or kind not in FIELDS:
        raise InvalidLedger(f"kind must be one of {', '.join(FIELDS)}")
    known = FIELDS[kind] | PLACING
    for name in found.keys() - known:
        raise InvalidLedger(f"{_cut(name)} is not a field of an entry of the kind {kind}")
    for name in sorted(known - found.keys() - OPTIONAL):
        raise InvalidLedger(f"{name} is missing")
    if kind == "opened":
        return _opened(found)
    if kind == "closed":
        return Closed(_choice(Reason, "reason", found), found["certificate"])
    if found.get("contributors", 0) is None:
        raise InvalidLedger("contributors must be an integer, or absent")
    return SlotClosed(
        found["slot"],
        None if found["total"] is None else _bytes("total", found),
        None if found["dtype"] is None else _choice(Units, "dtype", found),
        found["model_hash"],
        found.get("contributors"),
    )


def _opened(found: Mapping[str, Any]) -> Opened:
    if found["schema"] != SCHEMA or isinstance(found["schema"], bool):
        raise InvalidLedger(f"schema must be {SCHEMA}; a newer version may read this ledger")
    opened = Opened(
        found["campaign"],
        found["seal"],
        found["run"],
        _bytes("model", found),
        found["simulated"],
        Filter.parse(found["filter"]) if "filter" in found else None,
    )
    if found["model_hash"] != opened.model_hash:
        raise InvalidLedger("model_hash is not the hash of the model")
    return opened


def _choice(choices: type[Choice], name: str, found: Mapping[str, Any]) -> Choice:
    if found[name] not in [str(choice) for choice in choices]:
        raise InvalidLedger(f"{name} must be {' or '.join(choices)}")
    return choices(found[name])


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def _bytes(name: str, found: Mapping[str, Any]) -> bytes:
    try:
        return base64.b64decode(found[name], validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise InvalidLedger(f"{name} must be base64") from None


def _json(written: bytes) -> Mapping[str, Any]:
    """Parse the JSON object of a line. Refuse duplicate keys, NaN and infinity."""
    if len(written) > MOST_LINE_BYTES:
        raise InvalidLedger(f"is longer than {MOST_LINE_BYTES:,} bytes")
    try:
        text = written.decode("ascii")
    except UnicodeDecodeError as error:
        raise InvalidLedger(f"is not ASCII text at byte {error.start + 1}") from None
    try:
        found = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise InvalidLedger(f"is not JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise InvalidLedger("is nested too deeply") from None
    except ValueError:  # the number has more digits than Python converts
        raise InvalidLedger("holds a number that is too large") from None
    if not isinstance(found, dict):
        raise InvalidLedger("must be a JSON object")
    return found


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise InvalidLedger("holds the same key twice")
    return found


def _no_constant(word: str) -> NoReturn:
    raise InvalidLedger(f"contains {word}, which is not a number")


def _cut(value: object) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 3] + "..."
