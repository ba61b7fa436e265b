"""Reports: their values, the checks of the server, and the bytes of reports and models.

The bytes are in the safetensors format, which cannot contain code. A report is one flat tensor
``report`` of 32-bit integers in grid units. A model is a list of named float64 tensors. The ledger
contains the hash of a model: of the bytes of its tensors, concatenated in order. Invariant 12 is in
docs/invariants.md.
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
    """A client's randomized update, or a dummy report or noise that the server drew.

    Two reports are equal if the bytes of their values are equal. ``values`` is read-only.
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
        array = values.values if isinstance(values, Simulated) else values
        return cls(read_only(np.array(array)), simulated=True)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Report):
            return NotImplemented
        return self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[bool, str, tuple[int, ...], bytes]:
        return self.simulated, self.values.dtype.str, self.values.shape, self.values.tobytes()


@dataclass(frozen=True, slots=True)
class ReportChecks:
    """The checks that every honest report passes, whatever the client's data are (invariant 12).

    An honest client clips its update and rounds it to the grid, so the absolute value of each
    integer is at most ``most_units`` (None in a simulation without a grid). ``norm`` is the bound
    on the norm of a report (None in a simulation). If the server adds the noise, an honest report
    never exceeds this bound. If clients add the noise, an honest report exceeds the bound with
    probability below 2**-131. ``step`` is the grid step (None in a simulation).
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
        """Raise ProtocolViolation if a client's report is malformed or its norm is too large."""
        self.check_units(report)
        if self.norm is not None and not self.norm.holds(report.values):
            terms = "squares" if self.norm.order == 2 else "absolute values"
            raise ProtocolViolation(
                f"a report's sum of {terms} in grid units must be at most {self.norm.most:,}, and"
                " this one is larger: a client must clip its update before it reports"
            )

    def check_units(self, report: Report) -> None:
        """Raise ProtocolViolation if a report is malformed. Its norm is not checked.

        A dummy report may exceed the bound on the norm, so only this check applies to it.
        """
        self.check_addable(report)
        if not self.simulated and report.step is None:
            raise ProtocolViolation("a real report must be made by a DeviceSampler")
        if self.most_units is not None:
            largest = max(-int(report.values.min()), int(report.values.max()))
            if largest > self.most_units:
                bound = f"at most {self.most_units:,} in size, not {largest:,}"
                raise ProtocolViolation(f"a report's values must be {bound}")

    def check_addable(self, report: Report) -> None:
        """Raise ProtocolViolation if values cannot be added to reports.

        Their size is not checked, because the server's noise may have any size.
        """
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


REPORT_TENSOR = "report"
"""The name of the only tensor of a report."""
MAX_HEADER_BYTES = 1024
"""Largest header of a report in bytes. Its only tensor needs about a hundred bytes."""
MAX_METADATA_BYTES = 64 * 1024
"""Largest metadata of a model in bytes. Hash, seal, run and slot need a few hundred bytes."""
ORDER_KEY = "order"
"""The metadata key of a JSON list with the names of the tensors in their order."""


class MalformedReport(ProtocolViolation):
    """The bytes are not a report of this campaign."""


def report_to_bytes(units: NDArray[np.int32]) -> bytes:
    """Return the bytes of a report. Equal units give equal bytes.

    >>> report_from_bytes(report_to_bytes(np.array([1, -2], dtype=np.int32)), dimension=2).tolist()
    [1, -2]
    """
    from safetensors.numpy import save

    return save({REPORT_TENSOR: np.ascontiguousarray(units, dtype=np.int32)})


def report_from_bytes(data: bytes, *, dimension: int) -> NDArray[np.int32]:
    """Return the units of a report.

    Raises MalformedReport unless the bytes contain exactly one flat int32 tensor with ``dimension``
    values, without metadata or unknown header fields.
    """
    from safetensors import SafetensorError, deserialize

    if len(data) > 8 + MAX_HEADER_BYTES + 4 * dimension:
        raise MalformedReport(f"the bytes are too long for a report of {dimension:,} coordinates")
    try:
        tensors = deserialize(bytes(data))  # type: ignore[no-untyped-call]
        header = _header(data)
    except (SafetensorError, ValueError, OverflowError, RecursionError):
        raise MalformedReport(
            f'the bytes are not safetensors with one tensor "{REPORT_TENSOR}"'
        ) from None
    if [name for name, _ in tensors] != [REPORT_TENSOR] or header.keys() != {REPORT_TENSOR}:
        raise MalformedReport(f'a report holds one tensor, "{REPORT_TENSOR}", and nothing else')
    tensor: Mapping[str, Any] = tensors[0][1]
    if tensor["dtype"] != "I32":
        raise MalformedReport("a report holds 32-bit integers in grid units (I32)")
    if header[REPORT_TENSOR].keys() != {"dtype", "shape", "data_offsets"}:
        raise MalformedReport(
            "a report's header holds dtype, shape and data_offsets, and nothing else"
        )
    if list(tensor["shape"]) != [dimension]:
        raise MalformedReport(f"a report has the shape [{dimension}], one integer per coordinate")
    return np.frombuffer(bytes(tensor["data"]), dtype="<i4").astype(np.int32, copy=False)


def model_to_bytes(
    tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] | None = None
) -> bytes:
    """Return the bytes of a model: named tensors in float64, and their metadata."""
    from safetensors.numpy import save

    arrays = {name: np.array(tensor, dtype=np.float64) for name, tensor in tensors.items()}
    return save(arrays, {**(metadata or {}), ORDER_KEY: json.dumps(list(arrays))})


def most_model_bytes(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Return the largest size in bytes of a model with these tensors, metadata included.

    >>> most_model_bytes({"weights": (2, 3)}) > len(model_to_bytes({"weights": np.zeros((2, 3))}))
    True
    """
    numbers = sum(math.prod(shape) for shape in shapes.values())
    # A name is in the header and in the list of names, and JSON may need 12 bytes per character.
    name_bytes = sum(24 * len(name) + 24 * len(shape) + 256 for name, shape in shapes.items())
    return 8 * numbers + name_bytes + MAX_METADATA_BYTES


def model_from_bytes(data: bytes) -> tuple[dict[str, NDArray[np.float64]], dict[str, str]]:
    """Return the tensors of a model in their order, and its metadata.

    Raise InvalidValue if the bytes are not a model.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        tensors = load(data)
        metadata = {str(k): str(v) for k, v in _header(data).get("__metadata__", {}).items()}
        order = json.loads(metadata.pop(ORDER_KEY, "null")) or list(tensors)
        if sorted(order) != sorted(tensors):
            raise ValueError("the list of names differs from the names of the tensors")
        return {name: np.asarray(tensors[name], np.float64) for name in order}, metadata
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise InvalidValue(
            "model", f"{len(data)} bytes", f"is not a model of checkins: {first_line(error)[:120]}"
        ) from None


def _header(data: bytes) -> dict[str, Any]:
    """Return the safetensors header. Raise ValueError if a name occurs twice in it."""

    def refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError("a name occurs twice in the header")
        return dict(pairs)

    length = int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(data[8 : 8 + length], object_pairs_hook=refuse_duplicates)
    return header
