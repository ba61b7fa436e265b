"""The entries of a ledger, and the line of canonical JSON that each entry is written as.

A campaign has one ``Opened`` entry, then one ``SlotClosed`` entry for each slot, then one
``Closed`` entry. An entry contains no client, token, receipt or time of a check-in (invariants 7
and 8 of docs/invariants.md). It contains the sum of a slot's reports, and the hash of the model
that was computed from this sum.

Canonical JSON has sorted keys, no spaces, only ASCII, numbers as Python prints them, and one
newline at the end. Every other spelling of the same content is refused, so that no byte of a ledger
can be changed. The field ``hash`` is the SHA-256 of the canonical line without this field. The
field ``previous`` is the hash of the line before, so the lines form a chain.

A (privacy) filter is the rule that bounds the total privacy loss of several campaigns, even if
later campaigns were designed after the releases of earlier campaigns were known.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, NoReturn, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from checkins import validate
from checkins.accounting import Adjacency
from checkins.accounting.certificate import CERTIFICATE_FIELDS
from checkins.accounting.filters import Filter
from checkins.errors import CheckinsError, InvalidValue
from checkins.protocol.wire import MAX_NUMBERS, SHA256_PATTERN

SEAL_PATTERN = re.compile(r"sha256:[0-9a-f]{64}")

SCHEMA = 1
"""The version of the format of ledgers."""
INITIAL_HASH = "0" * 64
"""The field ``previous`` of the first line, which has no line before it."""

MAX_LINE_BYTES = 12 * MAX_NUMBERS
"""Largest size of a line in bytes. Base64 needs 10.7 bytes for each number of a model."""
LONGEST_QUOTED_VALUE = 60
"""Largest number of characters of a value in an error message. Longer values are shortened."""

COMMON_FIELDS = frozenset({"kind", "entry", "previous", "hash"})
"""The fields of every entry: its kind, its number, the hash of the line before, and its hash."""
FIELDS: Mapping[str, frozenset[str]] = {
    "opened": frozenset(
        {"schema", "campaign", "seal", "run", "model", "model_hash", "simulated", "filter"}
    ),
    "slot-closed": frozenset({"slot", "total", "dtype", "model_hash", "contributors"}),
    "closed": frozenset({"reason", "certificate"}),
}
"""The fields of each kind of entry, in addition to ``COMMON_FIELDS``."""

OPTIONAL_FIELDS = frozenset({"contributors", "filter"})
"""Fields that are left out (never null) if an entry has no value for them."""

Enumeration = TypeVar("Enumeration", bound=StrEnum)


class InvalidLedger(CheckinsError):
    """The ledger was changed or is inconsistent. ``place`` is the file and line, if known."""

    def __init__(self, problem: str, *, place: str = "") -> None:
        self.problem = problem
        self.place = place
        super().__init__(f"{place}: {problem}" if place else problem)


class NumberType(StrEnum):
    """The number type of a slot's total: integer grid units, or floats in some simulations."""

    INT64 = "int64"
    FLOAT64 = "float64"

    @property
    def little_endian(self) -> str:
        """The name of the little-endian type in numpy."""
        return "<i8" if self is NumberType.INT64 else "<f8"


class Reason(StrEnum):
    """Why a campaign was closed: all slots are over, or it was stopped earlier."""

    COMPLETED = "completed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Opened:
    """The entry that opens a campaign: its sealed parameters and its initial model.

    ``campaign`` is the canonical text whose hash is ``seal``. ``run`` is the number of
    this run among the repeats of the campaign, from 1. ``model`` contains the parameters as
    ``pack_numbers`` returns them. ``filter`` is the privacy filter that composes this campaign with
    earlier campaigns. It is None in a ledger without a filter.
    """

    kind: ClassVar[str] = "opened"
    schema: ClassVar[int] = SCHEMA

    campaign: str
    seal: str
    run: int
    model: bytes
    simulated: bool = False
    filter: Filter | None = None

    def __post_init__(self) -> None:
        validate.one_of(str, campaign=self.campaign)
        _require_match(SEAL_PATTERN, "must be sha256: and 64 hexadecimal digits", seal=self.seal)
        validate.count(most=validate.MAX_CAMPAIGNS, run=self.run)
        validate.one_of(bool, simulated=self.simulated)
        validate.one_of((Filter, type(None)), filter=self.filter)
        _check_numbers("model", self.model, NumberType.FLOAT64)

    @property
    def model_hash(self) -> str:
        return hashlib.sha256(self.model).hexdigest()

    @property
    def dimension(self) -> int:
        return len(self.model) // 8

    def numbers(self) -> NDArray[np.float64]:
        """Return the model as a read-only array."""
        return np.frombuffer(self.model, dtype="<f8")


@dataclass(frozen=True, slots=True)
class SlotClosed:
    """The entry that closes a slot: the sum of its reports, and the hash of the released model.

    ``total`` is None in the warm-up of the sliding protocol. Under averaged updates, it is also
    None if the slot has no reports, or fewer than the campaign's ``least_reports``.
    ``contributors`` is the number of reports under averaged updates, because the certificate of
    averaged updates depends on this number. It is None under every other protocol (invariant 7).
    """

    kind: ClassVar[str] = "slot-closed"

    slot: int
    total: bytes | None
    dtype: NumberType | None
    model_hash: str
    contributors: int | None = None

    def __post_init__(self) -> None:
        validate.count(slot=self.slot)
        _require_match(SHA256_PATTERN, "must be 64 hexadecimal digits", model_hash=self.model_hash)
        validate.one_of((NumberType, type(None)), dtype=self.dtype)
        if (self.total is None) != (self.dtype is None):
            raise InvalidValue("dtype", self.dtype, "must be null if and only if total is null")
        if self.total is not None and self.dtype is not None:
            _check_numbers("total", self.total, self.dtype)
        if self.contributors is not None and (self.contributors != 0 or self.contributors is False):
            validate.count(contributors=self.contributors)

    @classmethod
    def of(
        cls,
        *,
        slot: int,
        total: NDArray[Any] | None,
        model: ArrayLike,
        contributors: int | None = None,
    ) -> SlotClosed:
        """Return the entry of a slot. An integer ``total`` is in grid units."""
        if total is None:
            return cls(slot, None, None, hash_model(model), contributors)
        dtype = NumberType.INT64 if np.issubdtype(total.dtype, np.integer) else NumberType.FLOAT64
        return cls(slot, pack_numbers(total, dtype), dtype, hash_model(model), contributors)

    def numbers(self) -> NDArray[Any] | None:
        """Return the total as a read-only array. None if the slot has no total."""
        if self.total is None or self.dtype is None:
            return None
        return np.frombuffer(self.total, dtype=self.dtype.little_endian)


@dataclass(frozen=True, slots=True)
class Closed:
    """The entry that closes a campaign.

    ``certificate`` is the ``Certificate.as_dict()`` of all campaigns of the ledger up to here.
    """

    kind: ClassVar[str] = "closed"

    reason: Reason
    certificate: Mapping[str, Any]

    def __post_init__(self) -> None:
        validate.one_of(Reason, reason=self.reason)
        object.__setattr__(self, "certificate", _checked_certificate(self.certificate))


Entry = Opened | SlotClosed | Closed


def pack_numbers(numbers: ArrayLike, dtype: NumberType = NumberType.FLOAT64) -> bytes:
    """Return the bytes of numbers as a ledger stores them: flat, little-endian, 8 bytes each.

    >>> pack_numbers([1, -1], NumberType.INT64).hex()
    '0100000000000000ffffffffffffffff'
    """
    return np.ascontiguousarray(numbers, dtype=dtype.little_endian).tobytes()


def hash_model(model: ArrayLike) -> str:
    """Return the SHA-256 of a model, as ``pack_numbers`` stores it."""
    return hashlib.sha256(pack_numbers(model)).hexdigest()


def _check_numbers(name: str, content: bytes, dtype: NumberType) -> None:
    is_whole = isinstance(content, bytes) and len(content) % 8 == 0
    if not is_whole or not 8 <= len(content) <= 8 * MAX_NUMBERS:
        raise InvalidValue(name, "...", f"must be 1 to {MAX_NUMBERS:,} numbers of 8 bytes each")
    if dtype is NumberType.FLOAT64 and not np.isfinite(np.frombuffer(content, dtype="<f8")).all():
        raise InvalidValue(name, "...", "must be finite numbers")


def _require_match(pattern: re.Pattern[str], expected: str, **values: object) -> None:
    for name, value in values.items():
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise InvalidValue(name, value, expected)


def _checked_certificate(certificate: object) -> dict[str, Any]:
    """Return a checked copy of a certificate, as JSON values."""
    if not isinstance(certificate, Mapping):
        raise InvalidValue("certificate", type(certificate).__name__, "must be an object")
    for name in certificate.keys() - CERTIFICATE_FIELDS:
        raise InvalidValue("certificate", name, "is not a field of a certificate")
    validate.non_negative(epsilon=certificate.get("epsilon"))
    validate.open_unit(delta=certificate.get("delta"))
    adjacency = certificate.get("adjacency")
    if adjacency not in [str(known) for known in Adjacency]:
        raise InvalidValue("adjacency", adjacency, f"must be {' or '.join(Adjacency)}")
    try:
        copy: dict[str, Any] = json.loads(json.dumps(dict(certificate), allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        raise InvalidValue("certificate", "...", "must be plain, finite JSON values") from None
    return copy


@dataclass(frozen=True, slots=True)
class Line:
    """An entry with its number, its hash and the hash of the ``previous`` line.

    ``content`` is the whole line with its newline.
    """

    entry: Entry
    number: int
    previous: str
    hash: str
    content: bytes = field(repr=False)

    @classmethod
    def of(cls, entry: Entry, *, number: int, previous: str) -> Line:
        """Return the line of an entry."""
        fields = {"entry": number, "previous": previous, **_fields_of(entry)}
        # Keys are sorted. The fields before "hash" and the fields after it are encoded separately,
        # so that the hash can be inserted between them.
        before = _canonical({name: fields[name] for name in fields if name < "hash"})
        after = _canonical({name: fields[name] for name in fields if name > "hash"})
        digest = hashlib.sha256(b"%b,%b" % (before[:-1], after[1:])).hexdigest()
        content = b'%b,"hash":"%b",%b\n' % (before[:-1], digest.encode("ascii"), after[1:])
        return cls(entry, number, previous, digest, content)

    @classmethod
    def parse(cls, content: bytes) -> Line:
        """Parse a line. Raise InvalidLedger if it is not canonical JSON or its hash is wrong."""
        fields = _parse_json(content)
        try:
            entry = _entry_of(fields)
        except InvalidValue as error:
            value = "" if error.value is None else f" = {_short_repr(error.value)}"
            raise InvalidLedger(f"{error.name}{value}: {error.expected}") from error
        number, previous = fields["entry"], fields["previous"]
        if isinstance(number, bool) or not isinstance(number, int):
            raise InvalidLedger("entry must be an integer")
        if not isinstance(previous, str) or not SHA256_PATTERN.fullmatch(previous):
            raise InvalidLedger("previous must be 64 hexadecimal digits")
        line = cls.of(entry, number=number, previous=previous)
        if fields["hash"] != line.hash:
            raise InvalidLedger("its hash does not match its content: the line was changed")
        if line.content != content:
            raise InvalidLedger(
                "is not canonical JSON, which has sorted keys, no spaces, and numbers in their"
                " shortest form"
            )
        return line


def _canonical(fields: Mapping[str, object]) -> bytes:
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("ascii")


def _fields_of(entry: Entry) -> dict[str, object]:
    """Return the fields of an entry as JSON values. Bytes are written in base64."""
    values = {name: getattr(entry, name) for name in FIELDS[entry.kind]}
    for name, value in values.items():
        if isinstance(value, bytes):
            values[name] = base64.b64encode(value).decode("ascii")
        elif isinstance(value, Filter):
            values[name] = str(value)
    absent = {name for name in OPTIONAL_FIELDS & values.keys() if values[name] is None}
    return {"kind": entry.kind} | {name: values[name] for name in values.keys() - absent}


def _entry_of(fields: Mapping[str, Any]) -> Entry:
    kind = fields.get("kind")
    if not isinstance(kind, str) or kind not in FIELDS:
        raise InvalidLedger(f"kind must be one of {', '.join(FIELDS)}")
    known = FIELDS[kind] | COMMON_FIELDS
    for name in fields.keys() - known:
        raise InvalidLedger(f"{_short_repr(name)} is not a field of an entry of the kind {kind}")
    for name in sorted(known - fields.keys() - OPTIONAL_FIELDS):
        raise InvalidLedger(f"{name} is missing")
    if kind == "opened":
        return _opened_entry(fields)
    if kind == "closed":
        return Closed(_enum_member(Reason, "reason", fields), fields["certificate"])
    if fields.get("contributors", 0) is None:
        raise InvalidLedger("contributors must be an integer, or absent")
    return SlotClosed(
        fields["slot"],
        None if fields["total"] is None else _decode_base64("total", fields),
        None if fields["dtype"] is None else _enum_member(NumberType, "dtype", fields),
        fields["model_hash"],
        fields.get("contributors"),
    )


def _opened_entry(fields: Mapping[str, Any]) -> Opened:
    if fields["schema"] != SCHEMA or isinstance(fields["schema"], bool):
        raise InvalidLedger(
            f"schema must be {SCHEMA}: a newer version of checkins may read this ledger"
        )
    opened = Opened(
        fields["campaign"],
        fields["seal"],
        fields["run"],
        _decode_base64("model", fields),
        fields["simulated"],
        Filter.parse(fields["filter"]) if "filter" in fields else None,
    )
    if fields["model_hash"] != opened.model_hash:
        raise InvalidLedger("model_hash is not the hash of the model")
    return opened


def _enum_member(kind: type[Enumeration], name: str, fields: Mapping[str, Any]) -> Enumeration:
    if fields[name] not in [str(member) for member in kind]:
        raise InvalidLedger(f"{name} must be {' or '.join(kind)}")
    return kind(fields[name])


def _decode_base64(name: str, fields: Mapping[str, Any]) -> bytes:
    try:
        return base64.b64decode(fields[name], validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise InvalidLedger(f"{name} must be base64") from None


def _parse_json(content: bytes) -> Mapping[str, Any]:
    """Parse the JSON object of a line. Refuse duplicate keys, NaN and infinity."""
    if len(content) > MAX_LINE_BYTES:
        raise InvalidLedger(f"is longer than {MAX_LINE_BYTES:,} bytes")
    try:
        text = content.decode("ascii")
    except UnicodeDecodeError as error:
        raise InvalidLedger(f"is not ASCII text at byte {error.start + 1}") from None
    try:
        fields = json.loads(
            text, object_pairs_hook=_refuse_duplicates, parse_constant=_refuse_constant
        )
    except json.JSONDecodeError as error:
        raise InvalidLedger(f"is not JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise InvalidLedger("is nested too deeply") from None
    except ValueError:  # a number with more digits than Python converts
        raise InvalidLedger("contains a number that is too large") from None
    if not isinstance(fields, dict):
        raise InvalidLedger("must be a JSON object")
    return fields


def _refuse_duplicates(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise InvalidLedger("contains the same key twice")
    return fields


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidLedger(f"contains {name}, which is not a finite number")


def _short_repr(value: object) -> str:
    """Return a value for an error message. A long value is shortened."""
    text = repr(value)
    return text if len(text) <= LONGEST_QUOTED_VALUE else text[: LONGEST_QUOTED_VALUE - 3] + "..."
