"""Reports: their values, the checks of a server, and reports and models as bytes.

Bytes are safetensors, so that nothing that is read can run code. A report is one flat tensor of
32-bit integers in grid units, under the name ``report``. A model is its named tensors in float64,
exactly as released: laid flat in their order, their bytes are those whose hash is in the ledger.
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
from checkins.randomizers import DeviceReport, NormBound, Simulated


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """Read-only values; two reports are equal if their bytes are.

    A real campaign refuses ``simulated`` values.
    """

    values: NDArray[Any]
    simulated: bool
    step: float | None = None
    """The grid step of a device's report; None for other reports."""

    @classmethod
    def from_device(cls, report: DeviceReport) -> Report:
        """Return a real report: integers in grid units."""
        validate.one_of(DeviceReport, report=report)
        return cls(_frozen(report.units), simulated=False, step=report.grid.step)

    @classmethod
    def from_noise(cls, noise: NDArray[np.int64]) -> Report:
        """Return a server's own noise, as ``DeviceSampler.noise`` draws it."""
        return cls(_frozen(noise), simulated=False)

    @classmethod
    def from_simulation(cls, values: Simulated[Any] | ArrayLike) -> Report:
        """Return a report from seeded randomness, marked as simulated."""
        bare = values.values if isinstance(values, Simulated) else values
        return cls(_frozen(bare), simulated=True)

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

    An honest client clips and encodes, so no integer of it exceeds ``most_units``, which is None in
    a simulation without a grid. ``norm`` is None in a simulation. Otherwise an honest report
    exceeds it never if the server adds the noise, else with probability below 2**-131.
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
        """Refuse a client's report that is malformed, or longer than an honest one."""
        self.check_units(report)
        if self.norm is not None and not self.norm.holds(report.values):
            length = "squares" if self.norm.order == 2 else "sizes"
            raise ProtocolViolation(
                f"a report's sum of {length} in grid units is at most {self.norm.most:,}, and this"
                " one's is larger: an update is clipped before it is reported"
            )

    def check_units(self, report: Report) -> None:
        """Refuse a malformed report of any length; dummies are never refused by their length."""
        self.check_kind(report)
        if not self.simulated and report.step is None:
            raise ProtocolViolation("a real report is made by a device sampler; this one is not")
        if self.most_units is not None:
            largest = max(-int(report.values.min()), int(report.values.max()))
            if largest > self.most_units:
                raise ProtocolViolation(
                    f"a report holds no unit above {self.most_units:,}, not {largest:,}"
                )

    def check_kind(self, report: Report) -> None:
        """Refuse what cannot be added to reports; a server's noise may be of any size."""
        values = report.values
        if report.simulated and not self.simulated:
            raise ProtocolViolation("a simulated report has no place in a real campaign")
        if self.simulated and not report.simulated:
            raise ProtocolViolation("a real report has no place in a simulation")
        if report.step is not None and report.step != self.step:
            raise ProtocolViolation(
                f"a report lies on the campaign's grid, {self.step}, not on {report.step}"
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


def _frozen(values: ArrayLike) -> NDArray[Any]:
    fixed = np.array(values)
    fixed.flags.writeable = False
    return fixed


REPORT = "report"
MOST_HEADER_BYTES = 1024
"""Largest header of a report in bytes; its one tensor needs about a hundred."""
MOST_METADATA_BYTES = 64 * 1024
"""Largest metadata of a model in bytes; hash, seal, run and slot need a few hundred."""
ORDER = "order"
"""The metadata key of the names of a model's tensors in their order, as a JSON list."""


class Malformed(ProtocolViolation):
    """Bytes that are no report of this campaign."""


def report_to_bytes(units: NDArray[np.int32]) -> bytes:
    """Return the bytes of a report; the same units give the same bytes.

    >>> report_from_bytes(report_to_bytes(np.array([1, -2], dtype=np.int32)), dimension=2).tolist()
    [1, -2]
    """
    from safetensors.numpy import save

    return save({REPORT: np.ascontiguousarray(units, dtype=np.int32)})


def report_from_bytes(data: bytes, *, dimension: int) -> NDArray[np.int32]:
    """Return the units of a report; refuse all but one flat int32 tensor of this size.

    Metadata and unknown fields of the header are refused too.
    """
    from safetensors import SafetensorError, deserialize

    if len(data) > 8 + MOST_HEADER_BYTES + 4 * dimension:
        raise Malformed(f"a report of {dimension:,} coordinates is not that long")
    try:
        tensors = deserialize(bytes(data))  # type: ignore[no-untyped-call]
        header = _header(data)
    except (SafetensorError, ValueError, OverflowError, RecursionError):
        raise Malformed(
            f'a report is safetensors with one tensor, "{REPORT}", and this is not'
        ) from None
    if [name for name, _ in tensors] != [REPORT] or header.keys() != {REPORT}:
        raise Malformed(f'a report holds one tensor, "{REPORT}", and nothing else')
    tensor: Mapping[str, Any] = tensors[0][1]
    if tensor["dtype"] != "I32":
        raise Malformed("a report holds 32-bit integers in grid units (I32)")
    if header[REPORT].keys() != {"dtype", "shape", "data_offsets"}:
        raise Malformed("a report's header holds dtype, shape and data_offsets, and nothing else")
    if list(tensor["shape"]) != [dimension]:
        raise Malformed(f"a report has the shape [{dimension}]: one unit a coordinate")
    return np.frombuffer(bytes(tensor["data"]), dtype="<i4").astype(np.int32, copy=False)


def model_to_bytes(
    tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] | None = None
) -> bytes:
    """Return the bytes of named tensors in float64 and their metadata."""
    from safetensors.numpy import save

    whole = {name: np.array(tensor, dtype=np.float64) for name, tensor in tensors.items()}
    return save(whole, {**(metadata or {}), ORDER: json.dumps(list(whole))})


def most_model_bytes(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Return the largest size in bytes of a model with these tensors, metadata included.

    >>> most_model_bytes({"weights": (2, 3)}) > len(model_to_bytes({"weights": np.zeros((2, 3))}))
    True
    """
    numbers = sum(math.prod(shape) for shape in shapes.values())
    # A name stands in the header and in the order of names, where each character may be escaped.
    names = sum(24 * len(name) + 24 * len(shape) + 256 for name, shape in shapes.items())
    return 8 * numbers + names + MOST_METADATA_BYTES


def model_from_bytes(data: bytes) -> tuple[dict[str, NDArray[np.float64]], dict[str, str]]:
    """Return the tensors of a model in their order, and its metadata."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        tensors = load(data)
        metadata = {str(k): str(v) for k, v in _header(data).get("__metadata__", {}).items()}
        order = json.loads(metadata.pop(ORDER, "null")) or list(tensors)
        if sorted(order) != sorted(tensors):
            raise ValueError("the order names other tensors than there are")
        return {name: np.asarray(tensors[name], np.float64) for name in order}, metadata
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise InvalidValue(
            "model", f"{len(data)} bytes", f"is not a model of checkins: {first_line(error)[:120]}"
        ) from None


def _header(data: bytes) -> dict[str, Any]:
    """Return the header; refuse one in which a name occurs twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError("a name occurs twice in the header")
        return dict(pairs)

    length = int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(data[8 : 8 + length], object_pairs_hook=once)
    return header
