"""A client's privatized update as the server takes it, and what makes one well formed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from checkins import validate
from checkins.errors import ProtocolViolation
from checkins.randomizers import DeviceReport, NormBound, Simulated


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """Values that never change again; ``simulated`` ones never enter a real campaign.

    Two reports are the same when their bytes are.
    """

    values: NDArray[Any]
    simulated: bool
    step: float | None = None
    """The grid that a device's report lies on."""

    @classmethod
    def from_device(cls, report: DeviceReport) -> Report:
        """A real report: integers in grid units."""
        validate.one_of(DeviceReport, report=report)
        return cls(_frozen(report.units), simulated=False, step=report.grid.step)

    @classmethod
    def from_noise(cls, noise: NDArray[np.int64]) -> Report:
        """A server's own noise, as ``DeviceSampler.noise`` draws it."""
        return cls(_frozen(noise), simulated=False)

    @classmethod
    def from_simulation(cls, values: Simulated[Any] | ArrayLike) -> Report:
        """A report that was drawn from seeded randomness, and says so."""
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
    """What an honest report looks like whatever the client's data are (invariant 12).

    Honest clients clip and encode validly by construction: an integer above ``most_units`` cannot
    come from one. ``most_units`` is None in a simulation without a grid. ``norm`` is None in a
    simulation; elsewhere a report beyond it comes from an honest client never, if the server adds
    the noise, or with a probability below 2**-131, whatever the client's data.
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
