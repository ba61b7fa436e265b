"""The entries of a ledger: all that is stored of a campaign after its slots.

A campaign is ``Opened``, its slots are ``SlotClosed`` one after another, and it is ``Closed``. No
client, token, receipt or time of a check-in is stored (invariants 7 and 8): the record has the
releases and the sums that they were computed from, and links them to no client.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from checkins import validate
from checkins.accounting import Adjacency
from checkins.accounting.certificate import CERTIFICATE_FIELDS
from checkins.accounting.filters import Filter
from checkins.errors import InvalidValue

MOST_NUMBERS = 2**24
"""Largest number of parameters of a model: its line has 180 MB."""

SHA256 = re.compile(r"[0-9a-f]{64}")
SEAL = re.compile(r"sha256:[0-9a-f]{64}")


class Units(StrEnum):
    """The type of a total: integer grid steps, or floats in a simulation without a grid."""

    INT64 = "int64"
    FLOAT64 = "float64"

    @property
    def little_endian(self) -> str:
        return "<i8" if self is Units.INT64 else "<f8"


class Reason(StrEnum):
    """Why a campaign was closed: every slot is over, or it was stopped before."""

    COMPLETED = "completed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Opened:
    """A campaign begins: its sealed parameters, and the model before its first slot.

    ``campaign`` is the canonical text whose hash is ``seal``; ``run`` counts the repeats of one
    campaign from 1; ``model`` is packed as by ``packed``. ``filter`` charges the campaigns of this
    population if there are several; None in ledgers that began without a filter.
    """

    campaign: str
    seal: str
    run: int
    model: bytes
    simulated: bool = False
    filter: Filter | None = None

    def __post_init__(self) -> None:
        validate.one_of(str, campaign=self.campaign)
        _matches(SEAL, "must be sha256: and 64 hexadecimal digits", seal=self.seal)
        validate.count(most=validate.MOST_CAMPAIGNS, run=self.run)
        validate.one_of(bool, simulated=self.simulated)
        validate.one_of((Filter, type(None)), filter=self.filter)
        _check_numbers("model", self.model, Units.FLOAT64)

    @property
    def model_hash(self) -> str:
        return hashlib.sha256(self.model).hexdigest()

    @property
    def dimension(self) -> int:
        return len(self.model) // 8

    def numbers(self) -> NDArray[np.float64]:
        """Return the model, read-only."""
        return np.frombuffer(self.model, dtype="<f8")


@dataclass(frozen=True, slots=True)
class SlotClosed:
    """A slot is over: the sum of its reports, and the hash of the released model.

    ``total`` is None in the warm-up of the sliding protocol, and in an empty slot of averaged
    updates. ``contributors`` is the number of reports of averaged updates, whose certificate needs
    it; None under any other protocol (invariant 7).
    """

    slot: int
    total: bytes | None
    units: Units | None
    model_hash: str
    contributors: int | None = None

    def __post_init__(self) -> None:
        validate.count(slot=self.slot)
        _matches(SHA256, "must be 64 hexadecimal digits", model_hash=self.model_hash)
        validate.one_of((Units, type(None)), units=self.units)
        if (self.total is None) != (self.units is None):
            raise InvalidValue("dtype", self.units, "goes with a total, and a total with it")
        if self.total is not None and self.units is not None:
            _check_numbers("total", self.total, self.units)
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
        """Return the entry from arrays: integers are grid units, floats are simulated."""
        if total is None:
            return cls(slot, None, None, hashed(model), contributors)
        units = Units.INT64 if np.issubdtype(total.dtype, np.integer) else Units.FLOAT64
        return cls(slot, packed(total, units), units, hashed(model), contributors)

    def numbers(self) -> NDArray[Any] | None:
        """Return the total, read-only; None if there is none."""
        if self.total is None or self.units is None:
            return None
        return np.frombuffer(self.total, dtype=self.units.little_endian)


@dataclass(frozen=True, slots=True)
class Closed:
    """A campaign is over: the reason, and the certificate of all campaigns of the ledger.

    ``certificate`` is ``Certificate.as_dict()``.
    """

    reason: Reason
    certificate: Mapping[str, Any]

    def __post_init__(self) -> None:
        validate.one_of(Reason, reason=self.reason)
        object.__setattr__(self, "certificate", _plain(self.certificate))


Entry = Opened | SlotClosed | Closed


def packed(numbers: ArrayLike, units: Units = Units.FLOAT64) -> bytes:
    """Return numbers as a ledger stores them: flat, little-endian, eight bytes each.

    >>> packed([1, -1], Units.INT64).hex()
    '0100000000000000ffffffffffffffff'
    """
    return np.ascontiguousarray(numbers, dtype=units.little_endian).tobytes()


def hashed(model: ArrayLike) -> str:
    """Return the SHA-256 of a packed model."""
    return hashlib.sha256(packed(model)).hexdigest()


def _check_numbers(name: str, content: bytes, units: Units) -> None:
    whole = isinstance(content, bytes) and len(content) % 8 == 0
    if not whole or not 8 <= len(content) <= 8 * MOST_NUMBERS:
        raise InvalidValue(name, "...", f"must be 1 to {MOST_NUMBERS:,} numbers of 8 bytes each")
    if units is Units.FLOAT64 and not np.isfinite(np.frombuffer(content, dtype="<f8")).all():
        raise InvalidValue(name, "...", "must be finite numbers")


def _matches(pattern: re.Pattern[str], expected: str, **values: object) -> None:
    for name, value in values.items():
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise InvalidValue(name, value, expected)


def _plain(certificate: object) -> dict[str, Any]:
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
