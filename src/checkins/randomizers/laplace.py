"""Laplace noise on an update clipped in L1: pure local privacy."""

from __future__ import annotations

import math
from dataclasses import dataclass

from checkins import validate
from checkins.accounting import LocalRandomizer
from checkins.errors import InvalidValue


@dataclass(frozen=True, slots=True)
class Laplace:
    """An update clipped to L1 norm ``clip``, plus independent Laplace noise per coordinate.

    Any two clipped updates are at most 2 ``clip`` apart in L1, so the densities of their reports
    differ by a factor of at most exp(2 clip / scale) = exp(local_epsilon), and attain it.
    The dummy is noise alone: the report of a zero update, within half of ``local_epsilon``.

    Theorem:     [DR14, Thm 3.6], at L1 sensitivity 2C.
    Neighbours:  any two updates of one client (the local model).
    Rounding:    ``scale`` is rounded up.

    >>> 4.0 <= Laplace(clip=2.0, local_epsilon=1.0).scale < 4.0 + 1e-14
    True
    """

    clip: float
    local_epsilon: float

    def __post_init__(self) -> None:
        validate.positive(clip=self.clip)
        LocalRandomizer(self.local_epsilon)
        validate.make_floats(self, "clip", "local_epsilon")
        if not 0.0 < self.scale < math.inf:
            raise InvalidValue(
                "clip", self.clip, f"over local_epsilon it is {self.scale!r}, not a usable noise"
            )

    @property
    def scale(self) -> float:
        """2 C / ε₀, rounded up: the mean size of the noise of one coordinate."""
        return math.nextafter(2.0 * (self.clip / self.local_epsilon), math.inf)

    @property
    def privacy_spec(self) -> LocalRandomizer:
        """The epsilon of a report, as the accountant takes it."""
        return LocalRandomizer(self.local_epsilon)

    def variance(self, *, dimension: int, norm: float = 0.0) -> float:
        """Return the expected squared distance of a report from the clipped update."""
        validate.count(dimension=dimension)
        validate.non_negative(norm=norm)
        return dimension * 2.0 * self.scale**2
