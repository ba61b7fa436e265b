"""Reports: their values, the checks of the server, and the bytes of reports and models.

The bytes are in the safetensors format, which cannot contain code. A report is one flat tensor
``report`` of 32-bit integers in grid units. A model is a list of named float64 tensors. The ledger
holds the hash of their bytes, concatenated in order.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from checkins import validate
from checkins.errors import InvalidValue, ProtocolViolation, first_line
from checkins.protocol.model_update import read_only
from checkins.randomizers import DeviceReport, NormBound, Simulated


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """Read-only values. Two reports are equal if their bytes are equal.

    ``simulated`` marks values from seeded randomness, which a real campaign refuses.
    """

    values: NDArray[Any]
    simulated: bool
    step: float | None = None
    """The grid step of a report made by a device; None for server noise and simulated reports."""

    @classmethod
    def from_device(cls, report: DeviceReport) -> Report:
        """Return a real report with integers in grid units."""
        validate.one_of(DeviceReport, report=report)
        return cls(read_only(np.array(report.units)), simulated=False, step=report.grid.step)

    @classmethod
    def from_noise(cls, noise: NDArray[np.int64]) -> Report:
        """Return noise that the server adds, as ``DeviceSampler.noise`` draws it."""
        return cls(read_only(np.array(noise)), simulated=False)

    @classmethod
    def from_simulation(cls, values: Simulated[Any] | ArrayLike) -> Report:
        """Return a report that was drawn with seeded randomness, marked as simulated."""
        bare = values.values if isinstance(values, Simulated) else values
        return cls(read_only(np.array(bare)), simulated=True)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Report):
            return NotImplemented
        return self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[bool, str, tuple[int, ...], bytes]:
        return self.simulated, self.values.dtype.str, self.values.shape, self.values.tobytes()


@dataclass(frozen=True, slots=True)
class ReportForm:
    """The checks that every honest report passes, whatever the client's data (invariant 12).

    An honest client clips its update and rounds it to the grid, so the absolute value of each
    integer is at most ``most_units`` (None in a simulation without a grid). ``norm`` is the bound
    on the norm of a report (None in a simulation). If the server adds the noise, an honest report
    never exceeds it. If clients add the noise, it exceeds it with probability below 2**-131.
    """

    dimension: int
    most_units: int | None
    simulated: bool
    step: float | None = None
    norm: NormBound | None = None

    def __post_init__(self) -> None:
        validate.count(dimension=self.dimension)
        if self.most_units is not None:
            validate.count(most_units=self.most_units)

    def check(self, report: Report) -> None:
        """Refuse a client's report that is malformed, or whose norm exceeds the bound."""
        self.check_units(report)
        if self.norm is not None and not self.norm.holds(report.values):
            length = "squares" if self.norm.order == 2 else "sizes"
            raise ProtocolViolation(
                f"a report's sum of {length} in grid units must be at most {self.norm.most:,}, and"
                " this one is larger: an update is clipped before it is reported"
            )

    def check_units(self, report: Report) -> None:
        """Refuse a malformed report. The norm is not checked, so every dummy report passes."""
        self.check_kind(report)
        if not self.simulated and report.step is None:
            raise ProtocolViolation("a real report must be made by a DeviceSampler")
        if self.most_units is not None:
            largest = max(-int(report.values.min()), int(report.values.max()))
            if largest > self.most_units:
                raise ProtocolViolation(
                    f"a value of a report must be at most {self.most_units:,}, not {largest:,}"
                )

    def check_kind(self, report: Report) -> None:
        """Refuse values that cannot be added to reports. Noise of the server may be of any size."""
        values = report.values
        if report.simulated and not self.simulated:
            raise ProtocolViolation("a real campaign refuses simulated reports")
        if self.simulated and not report.simulated:
            raise ProtocolViolation("a simulation refuses real reports")
        if report.step is not None and report.step != self.step:
            raise ProtocolViolation(
                f"a report must have the campaign's grid step {self.step}, not {report.step}"
            )
        if values.shape != (self.dimension,):
            raise ProtocolViolation(
                f"a report has one value for each of {self.dimension:,} coordinates,"
                f" not the shape {values.shape}"
            )
        if self.most_units is None:
            if values.dtype != np.float64 or not np.isfinite(values).all():
                raise ProtocolViolation("a simulated report holds finite float64 values")
            return
        if not np.issubdtype(values.dtype, np.signedinteger):
            raise ProtocolViolation(f"a report holds integers in grid units, not {values.dtype}")


REPORT = "report"
MOST_HEADER_BYTES = 1024
"""Largest header of a report in bytes. Its only tensor needs about a hundred."""
MOST_METADATA_BYTES = 64 * 1024
"""Largest metadata of a model in bytes. Hash, seal, run and slot need a few hundred."""
ORDER = "order"
"""The metadata key of a JSON list with the names of the tensors in their order."""


class Malformed(ProtocolViolation):
    """The bytes are not a report of this campaign."""


def report_to_bytes(units: NDArray[np.int32]) -> bytes:
    """Return the bytes of a report. Equal units give equal bytes.

    >>> report_from_bytes(report_to_bytes(np.array([1, -2], dtype=np.int32)), dimension=2).tolist()
    [1, -2]
    """
    from safetensors.numpy import save

    return save({REPORT: np.ascontiguousarray(units, dtype=np.int32)})


def report_from_bytes(data: bytes, *, dimension: int) -> NDArray[np.int32]:
    """Return the units of a report.

    Raises Malformed unless the bytes hold exactly one flat int32 tensor with ``dimension`` values,
    without metadata or unknown header fields.
    """
    from safetensors import SafetensorError, deserialize

    if len(data) > 8 + MOST_HEADER_BYTES + 4 * dimension:
        raise Malformed(f"the bytes are too long for a report of {dimension:,} coordinates")
    try:
        tensors = deserialize(bytes(data))  # type: ignore[no-untyped-call]
        header = _header(data)
    except (SafetensorError, ValueError, OverflowError, RecursionError):
        raise Malformed(f'the bytes are not safetensors with one tensor "{REPORT}"') from None
    if [name for name, _ in tensors] != [REPORT] or header.keys() != {REPORT}:
        raise Malformed(f'a report holds one tensor, "{REPORT}", and nothing else')
    tensor: Mapping[str, Any] = tensors[0][1]
    if tensor["dtype"] != "I32":
        raise Malformed("a report holds 32-bit integers in grid units (I32)")
    if header[REPORT].keys() != {"dtype", "shape", "data_offsets"}:
        raise Malformed("a report's header holds dtype, shape and data_offsets, and nothing else")
    if list(tensor["shape"]) != [dimension]:
        raise Malformed(f"a report has the shape [{dimension}], one integer per coordinate")
    return np.frombuffer(bytes(tensor["data"]), dtype="<i4").astype(np.int32, copy=False)


def model_to_bytes(
    tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] | None = None
) -> bytes:
    """Return the bytes of a model: named tensors in float64, and their metadata."""
    from safetensors.numpy import save

    whole = {name: np.array(tensor, dtype=np.float64) for name, tensor in tensors.items()}
    return save(whole, {**(metadata or {}), ORDER: json.dumps(list(whole))})


def most_model_bytes(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Return the largest size in bytes of a model with these tensors, metadata included.

    >>> most_model_bytes({"weights": (2, 3)}) > len(model_to_bytes({"weights": np.zeros((2, 3))}))
    True
    """
    numbers = sum(math.prod(shape) for shape in shapes.values())
    # A name is in the header and in the list of names, and each character may be escaped.
    names = sum(24 * len(name) + 24 * len(shape) + 256 for name, shape in shapes.items())
    return 8 * numbers + names + MOST_METADATA_BYTES


def model_from_bytes(data: bytes) -> tuple[dict[str, NDArray[np.float64]], dict[str, str]]:
    """Return the tensors of a model in their order, and its metadata; raise if malformed."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        tensors = load(data)
        metadata = {str(k): str(v) for k, v in _header(data).get("__metadata__", {}).items()}
        order = json.loads(metadata.pop(ORDER, "null")) or list(tensors)
        if sorted(order) != sorted(tensors):
            raise ValueError("the list of names differs from the names of the tensors")
        return {name: np.asarray(tensors[name], np.float64) for name in order}, metadata
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise InvalidValue(
            "model", f"{len(data)} bytes", f"is not a model of checkins: {first_line(error)[:120]}"
        ) from None


def _header(data: bytes) -> dict[str, Any]:
    """Return the header; raise if a name occurs twice in it."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError("a name occurs twice in the header")
        return dict(pairs)

    length = int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(data[8 : 8 + length], object_pairs_hook=once)
    return header
