"""Norms that no honest report exceeds, tested exactly on the whole numbers of a report.

Without noise the bound is the clip, and holds always. With noise it holds but for a probability of
``REFUSED``, which ``checkins.randomizers.grid.variation`` charges to delta.

Theorem: docs/theory/grid.md, "Reports that are too long".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from checkins import validate
from checkins.randomizers.gaussian import Gaussian
from checkins.randomizers.grid import REFUSED_EXPONENT, Grid, no_device_sampler
from checkins.randomizers.laplace import Laplace
from checkins.randomizers.randomizer import Randomizer
from checkins.randomizers.response import RandomizedResponse
from checkins.randomizers.units import Units, sum_of_powers

_SLACK = 1.0 + 1e-9  # more than all roundings of the floats below


@dataclass(frozen=True, slots=True)
class NormBound:
    """The sum of sizes (``order`` 1) or of squares (``order`` 2) is at most ``most``.

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
        """Whether a report is short enough; exact, whatever its 32-bit integers are."""
        return sum_of_powers(units, self.order) <= self.most


def clipped_bound(randomizer: Randomizer, grid: Grid) -> NormBound:
    """The bound on reports without noise, where the server adds it: the clip itself.

    Theorem:     docs/theory/grid.md, "Clipping": no honest report exceeds it.
    Rounding:    none: whole numbers are compared.

    >>> clipped_bound(Gaussian(clip=1.0, noise_multiplier=2.0), Grid(0.25))
    NormBound(order=2, most=16)
    """
    match randomizer:
        case Gaussian(clip=clip):
            return NormBound(2, math.floor(grid.clip_units(clip) ** 2))
        case Laplace(clip=clip):
            return NormBound(1, math.floor(grid.clip_units(clip)))
    raise no_device_sampler(randomizer)


def report_bound(randomizer: Randomizer, grid: Grid, *, dimension: int) -> NormBound:
    r"""The bound on reports with a client's own noise.

    With C/g the clip and s or b the deviation or scale of the noise, all in grid units, d the
    dimension and t = ``REFUSED_EXPONENT``:

        Gaussian:  |report|_2 <= C/g + s sqrt(d + 2 sqrt(d t) + 2 t) + sqrt(d)/2
        Laplace:   |report|_1 <= C/g + b (d + sqrt(2 d t) + t) + d/2 .

    Randomized response reports a single 1, always.

    Theorem:     docs/theory/grid.md, "Reports that are too long": an honest report is longer with
                 probability at most exp(-t), besides the total variation of its noise.
    Rounding:    up.

    >>> bound = report_bound(Gaussian(clip=1.0, noise_multiplier=1.0), Grid(1e-3), dimension=100)
    >>> round(math.sqrt(bound.most) * 1e-3, 2)
    22.75
    """
    validate.count(dimension=dimension)
    t, d = float(REFUSED_EXPONENT), float(dimension)
    match randomizer:
        case RandomizedResponse():
            return NormBound(1, 1)
        case Gaussian(clip=clip, noise_multiplier=multiplier):
            scale = Fraction(multiplier) * grid.clip_units(clip)
            noise = math.sqrt(d + 2.0 * math.sqrt(d * t) + 2.0 * t)
            reach = float(grid.clip_units(clip)) + float(scale) * noise + math.sqrt(d) / 2.0
            return NormBound(2, math.ceil((reach * _SLACK) ** 2 * _SLACK))
        case Laplace(clip=clip, local_epsilon=local_epsilon):
            scale = 2 * grid.clip_units(clip) / Fraction(local_epsilon)
            noise = d + math.sqrt(2.0 * d * t) + t
            reach = float(grid.clip_units(clip)) + float(scale) * noise + d / 2.0
            return NormBound(1, math.ceil(reach * _SLACK))
    raise no_device_sampler(randomizer)
