"""The entries of a ledger: what remains stored of a campaign once its slots are over.

A campaign has one ``Opened`` entry, then one ``SlotClosed`` entry for each slot, then one
``Closed`` entry. An entry contains no client, token, receipt or time of a check-in (invariants 7
and 8). It contains the sum of a slot's reports and the hash of the model computed from that sum.
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
"""Largest number of parameters of a model. The ledger line of such a model has 180 MB."""

SHA256 = re.compile(r"[0-9a-f]{64}")
SEAL = re.compile(r"sha256:[0-9a-f]{64}")


class Units(StrEnum):
    """The number type of a slot's total: integer grid units, or floats in some simulations."""

    INT64 = "int64"
    FLOAT64 = "float64"

    @property
    def little_endian(self) -> str:
        return "<i8" if self is Units.INT64 else "<f8"


class Reason(StrEnum):
    """Why a campaign was closed: all slots are over, or it was stopped earlier."""

    COMPLETED = "completed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Opened:
    """The entry that opens a campaign: its sealed parameters and its initial model.

    ``campaign`` is the canonical text whose hash is ``seal``. ``run`` counts the repeats of one
    campaign from 1. ``model`` has the format of ``packed``. ``filter`` is the rule that composes
    this campaign with earlier ones. It is None in ledgers that began without a filter.
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
        """Return the model as a read-only array."""
        return np.frombuffer(self.model, dtype="<f8")


@dataclass(frozen=True, slots=True)
class SlotClosed:
    """The entry that closes a slot: the sum of its reports, and the hash of the released model.

    ``total`` is None in the warm-up of the sliding protocol, and in a slot of averaged updates
    without reports. ``contributors`` is the number of reports under averaged updates, because their
    certificate depends on it. It is None under every other protocol (invariant 7).
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
            raise InvalidValue("dtype", self.units, "goes with a total: both or none must be null")
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
        """Return the entry of a slot. An integer ``total`` is in grid units."""
        if total is None:
            return cls(slot, None, None, hashed(model), contributors)
        units = Units.INT64 if np.issubdtype(total.dtype, np.integer) else Units.FLOAT64
        return cls(slot, packed(total, units), units, hashed(model), contributors)

    def numbers(self) -> NDArray[Any] | None:
        """Return the total as a read-only array. None if the slot has no total."""
        if self.total is None or self.units is None:
            return None
        return np.frombuffer(self.total, dtype=self.units.little_endian)


@dataclass(frozen=True, slots=True)
class Closed:
    """The entry that closes a campaign.

    ``certificate`` is the ``Certificate.as_dict()`` of all campaigns of the ledger up to here.
    """

    reason: Reason
    certificate: Mapping[str, Any]

    def __post_init__(self) -> None:
        validate.one_of(Reason, reason=self.reason)
        object.__setattr__(self, "certificate", _plain(self.certificate))


Entry = Opened | SlotClosed | Closed


def packed(numbers: ArrayLike, units: Units = Units.FLOAT64) -> bytes:
    """Return the bytes of numbers as a ledger stores them: flat, little-endian, 8 bytes each.

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
