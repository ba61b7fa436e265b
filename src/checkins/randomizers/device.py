"""The device sampler, which makes every report of a real campaign.

The sampler's randomness comes from the operating system, without a seed, and is never stored or
used twice. After clipping, all arithmetic is on integers. Simulations use ``simulated`` and
``compiled`` instead.

``NormBound`` is an upper bound on the norm of honest reports, computed exactly on integers. For
reports without noise, the bound is the clip norm, which honest reports never exceed. Reports with
noise exceed their bound with probability at most ``REFUSAL_PROBABILITY``, which
``checkins.randomizers.grid.variation`` adds to delta (docs/theory/grid.md, "Reports that are too
long"). A dummy is a report without data, which the server draws in place of a missing report.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from checkins import validate
from checkins.errors import InvalidValue
from checkins.randomizers.exact_sampling import OperatingSystemBytes
from checkins.randomizers.grid import (
    MAX_DIMENSION,
    REFUSAL_EXPONENT,
    Grid,
    Units,
    as_vector,
    no_device_sampler_error,
    sum_of_powers,
)
from checkins.randomizers.integer_noise import (
    RoundedResponse,
    SymmetricNoise,
    rounded_response,
    uniform_below,
)
from checkins.randomizers.randomizer import (
    Gaussian,
    Laplace,
    RandomizedResponse,
    Randomizer,
    require_dimension,
)

_FLOAT_MARGIN = 1.0 + 1e-9  # covers the relative rounding errors of the bounds


@dataclass(frozen=True, slots=True)
class NormBound:
    """A bound on reports: the sum of |entry|^``order`` is at most ``most``. The order is 1 or 2.

    >>> import numpy as np
    >>> bound = NormBound(order=2, most=25)
    >>> bound.holds(np.array([3, -4], dtype=np.int32))
    True
    >>> bound.holds(np.array([3, -4, 1], dtype=np.int32))
    False
    """

    order: int
    most: int

    def holds(self, units: Units) -> bool:
        """Return True if the bound holds for a report, computed exactly."""
        return sum_of_powers(units, self.order) <= self.most


def clipped_bound(randomizer: Randomizer, grid: Grid) -> NormBound:
    """Return the bound on reports without noise: the clip norm. The server adds noise to their sum.

    Theorem:     docs/theory/grid.md, "Clipping": no honest report exceeds the bound.
    Rounding:    none, because integers are compared.

    >>> clipped_bound(Gaussian(clip=1.0, noise_multiplier=2.0), Grid(0.25))
    NormBound(order=2, most=16)
    """
    if not isinstance(randomizer, Gaussian | Laplace):
        raise no_device_sampler_error(randomizer)
    order = randomizer.norm_order
    return NormBound(order, grid.most_power_sum(randomizer.clip, order=order))


def report_bound(randomizer: Randomizer, grid: Grid, *, dimension: int) -> NormBound:
    r"""Return the bound on reports to which the client has added noise.

    Let d be the dimension and t = ``REFUSAL_EXPONENT``. In grid units, let C/g be the clip norm, s
    the deviation of Gaussian noise and b the scale of Laplace noise. Then

        Gaussian:  |report|_2 <= C/g + s sqrt(d + 2 sqrt(d t) + 2 t) + sqrt(d)/2
        Laplace:   |report|_1 <= C/g + b (d + sqrt(2 d t) + t) + d/2 .

    With randomized response, every report has a single 1.

    Theorem:     docs/theory/grid.md, "Reports that are too long": the probability that an honest
                 report exceeds the bound is at most exp(-t) plus the total variation of its noise.
    Rounding:    up.

    >>> bound = report_bound(Gaussian(clip=1.0, noise_multiplier=1.0), Grid(1e-3), dimension=100)
    >>> round(math.sqrt(bound.most) * 1e-3, 2)
    22.75
    """
    validate.count(dimension=dimension)
    if isinstance(randomizer, RandomizedResponse):
        return NormBound(1, 1)
    if not isinstance(randomizer, Gaussian | Laplace):
        raise no_device_sampler_error(randomizer)
    t, d = float(REFUSAL_EXPONENT), float(dimension)
    clip, scale = float(grid.clip_units(randomizer.clip)), float(grid.noise_scale(randomizer))
    if isinstance(randomizer, Laplace):
        noise = d + math.sqrt(2.0 * d * t) + t
        return NormBound(1, math.ceil((clip + scale * noise + d / 2.0) * _FLOAT_MARGIN))
    noise = math.sqrt(d + 2.0 * math.sqrt(d * t) + 2.0 * t)
    max_norm = clip + scale * noise + math.sqrt(d) / 2.0
    return NormBound(2, math.ceil((max_norm * _FLOAT_MARGIN) ** 2 * _FLOAT_MARGIN))


_RANDOMNESS = OperatingSystemBytes()


@dataclass(frozen=True, slots=True, eq=False)
class DeviceReport:
    """A report: a vector of integer multiples of a grid's step. It is immutable."""

    units: Units
    grid: Grid

    def __post_init__(self) -> None:
        validate.one_of(Grid, grid=self.grid)
        units = self.units
        if type(units) is not np.ndarray or units.dtype != np.int32 or units.ndim != 1:
            raise InvalidValue("units", type(units).__name__, "must be a vector of type int32")
        # An array that is based on bytes cannot be made writable.
        object.__setattr__(self, "units", np.frombuffer(units.tobytes(), dtype=np.int32))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DeviceReport):
            return NotImplemented
        return self.grid == other.grid and np.array_equal(self.units, other.units)

    def __hash__(self) -> int:
        return hash((self.grid, self.units.tobytes()))

    def __reduce__(self) -> tuple[type[DeviceReport], tuple[Units, Grid]]:
        """Copy by calling the constructor, because numpy's copies of arrays are writable."""
        return DeviceReport, (self.units, self.grid)


@dataclass(frozen=True, slots=True)
class DeviceSampler:
    """Make reports of ``dimension`` integers with a randomizer on a grid.

    With Gaussian and Laplace noise, the update is clipped and rounded toward zero, and noise is
    added. With randomized response, the category of an update is the index of its largest entry. A
    report is 1 at the reported category and 0 elsewhere. Post-processing of the sum removes the
    bias of these reports.

    ``noise_grid`` is the grid of the noise that a server adds to a sum. None means the grid of
    reports. It is finer if the server correlates its noise across slots.

    Theorem:     docs/theory/grid.md.
    Neighbours:  any two updates of one client.
    Rounding:    exact except for the total variation ``checkins.randomizers.grid.variation``.

    >>> sampler = DeviceSampler(Gaussian(clip=1.0, noise_multiplier=0.1), Grid(2**-10), dimension=2)
    >>> sampler.encode(np.array([0.5, -0.25])).units
    array([ 512, -256], dtype=int32)
    >>> bool(np.abs(sampler.privatize(np.array([0.5, -0.25])).units).max() <= sampler.most_units)
    True
    """

    randomizer: Randomizer
    grid: Grid
    dimension: int
    noise_grid: Grid | None = None
    _noise: SymmetricNoise | RoundedResponse = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        validate.one_of(Grid, grid=self.grid)
        validate.count(most=MAX_DIMENSION, dimension=self.dimension)
        require_dimension(self.randomizer, self.dimension)
        validate.one_of((Grid, type(None)), noise_grid=self.noise_grid)
        noise: SymmetricNoise | RoundedResponse
        match self.randomizer:
            case Gaussian() | Laplace():
                noise = self.grid.noise(self.randomizer)
            case RandomizedResponse():
                if self.grid.step != 1.0:
                    raise InvalidValue("grid", self.grid.step, "must be 1 for randomized response")
                noise = rounded_response(self.randomizer.categories, self.randomizer.local_epsilon)
            case _:
                raise no_device_sampler_error(self.randomizer)
        object.__setattr__(self, "_noise", noise)

    @property
    def most_units(self) -> int:
        """The largest possible entry of an honest report (invariant 12 in docs/invariants.md)."""
        if isinstance(self.randomizer, Gaussian | Laplace):
            clip_units = int(self.grid.clip_units(self.randomizer.clip))
            return clip_units + self.grid.noise(self.randomizer).largest_size
        return 1

    def bound(self, *, noise_at_server: bool) -> NormBound:
        """Return the bound on honest reports. If the server adds the noise, it is the clip norm."""
        if noise_at_server:
            return clipped_bound(self.randomizer, self.grid)
        return report_bound(self.randomizer, self.grid, dimension=self.dimension)

    def privatize(self, update: npt.ArrayLike) -> DeviceReport:
        """Return a private report of the update. Retries must send the same report again.

        New noise for the same update would reveal more (invariant 3 in docs/invariants.md).
        """
        if isinstance(self._noise, RoundedResponse):
            return self._one_hot(self._noise.draw(self._category(update), _RANDOMNESS))
        units = self._clipped(update)
        self._noise.add_to(units, _RANDOMNESS)
        return DeviceReport(units, self.grid)

    def encode(self, update: npt.ArrayLike) -> DeviceReport:
        """Return the clipped and rounded update without noise. The server must add the noise."""
        return DeviceReport(self._clipped(update), self.grid)

    def dummy(self) -> DeviceReport:
        """Return a dummy: only noise or, with randomized response, a uniform category."""
        if isinstance(self._noise, RoundedResponse):
            return self._one_hot(uniform_below(self._noise.categories, _RANDOMNESS))
        return DeviceReport(self._noise.draw(self.dimension, _RANDOMNESS), self.grid)

    def noise(self) -> npt.NDArray[np.int64]:
        """Return the noise that a server adds to the sum of a slot, in units of its grid.

        Raises InvalidValue for randomized response.
        """
        if not isinstance(self.randomizer, Gaussian | Laplace):
            raise self._no_noise_error()
        noise = (self.noise_grid or self.grid).noise(self.randomizer)
        return noise.draw(self.dimension, _RANDOMNESS).astype(np.int64)

    def _clipped(self, update: npt.ArrayLike) -> Units:
        if not isinstance(self.randomizer, Gaussian | Laplace):
            raise self._no_noise_error()
        clip, order = self.randomizer.clip, self.randomizer.norm_order
        return self.grid.clip(self._vector(update), clip, order=order)

    def _category(self, update: npt.ArrayLike) -> int:
        values = self._vector(update)
        return int(np.argmax(np.where(np.isnan(values), -np.inf, values)))

    def _vector(self, update: npt.ArrayLike) -> npt.NDArray[np.generic]:
        values = as_vector(update)
        if values.size != self.dimension:
            raise InvalidValue("update", f"{values.size} coordinates", f"must be {self.dimension}")
        return values

    def _one_hot(self, category: int) -> DeviceReport:
        units = np.zeros(self.dimension, dtype=np.int32)
        units[category] = 1
        return DeviceReport(units, self.grid)

    def _no_noise_error(self) -> InvalidValue:
        return InvalidValue(
            "randomizer", type(self.randomizer).__name__, "has no noise that a server could add"
        )
