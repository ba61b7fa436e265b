"""Laplace noise on an update clipped in L1 norm, which gives pure local privacy."""

from __future__ import annotations

import math
from dataclasses import dataclass

from checkins import validate
from checkins.accounting import LocalRandomizer
from checkins.errors import InvalidValue


@dataclass(frozen=True, slots=True)
class Laplace:
    """Clip an update to L1 norm ``clip`` and add independent Laplace noise per coordinate.

    Any two clipped updates are at most 2 ``clip`` apart in L1 norm. The densities of their reports
    therefore differ by a factor of at most exp(2 clip / scale) = exp(local_epsilon), which is
    attained. A dummy, which the server draws in place of a missing report, is the report of a zero
    update. Its privacy loss against any report is at most half of ``local_epsilon``.

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
                "clip", self.clip, f"the noise, 2 clip / local_epsilon, would be {self.scale!r}"
            )

    @property
    def scale(self) -> float:
        """2 C / ε₀, rounded up. It is the mean absolute value of the noise of one coordinate."""
        return math.nextafter(2.0 * (self.clip / self.local_epsilon), math.inf)

    @property
    def privacy_spec(self) -> LocalRandomizer:
        """The epsilon of a report, as the accountant expects it."""
        return LocalRandomizer(self.local_epsilon)

    def variance(self, *, dimension: int, norm: float = 0.0) -> float:
        """Return the expected squared distance of a report from the clipped update."""
        validate.count(dimension=dimension)
        validate.non_negative(norm=norm)
        return dimension * 2.0 * self.scale**2
