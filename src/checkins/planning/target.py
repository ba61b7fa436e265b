"""What may be spent, and a proven bound on what a design candidate spends of it.

Neighbours:  the target's.
Rounding:    delta up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from checkins.accounting import Adjacency, NoiseAt
from checkins.accounting.precision import Method, Precision, delta_at, method_at
from checkins.planning.candidate import DesignCandidate

__all__ = ["FINE", "QUICK", "Method", "Precision", "Target"]

QUICK, FINE = Precision.DRAFT, Precision.FINE
"""Precision to draw curves with, and to prove what is shown."""


@dataclass(frozen=True, slots=True)
class Target:
    """An (epsilon, delta) between neighbours."""

    epsilon: float
    delta: float
    adjacency: Adjacency

    def spent(self, shape: DesignCandidate, level: float, precision: Precision) -> float:
        """An upper bound on the delta that the shape spends at this epsilon."""
        return delta_at(
            shape.design(level),
            epsilon=self.epsilon,
            delta=self.delta,
            adjacency=self.adjacency,
            precision=precision,
            campaigns=shape.repeats,
        )

    def method(self, shape: DesignCandidate) -> Method:
        """By which of a certificate's methods ``spent`` is proven."""
        design = shape.design(_any_level(shape))
        return method_at(design, delta=self.delta, campaigns=shape.repeats)


def _any_level(shape: DesignCandidate) -> float:
    """A noise that any design may have: the method does not depend on it."""
    summed = shape.capacity if shape.noise_at is NoiseAt.CLIENT else None
    return 1.0 / math.sqrt(summed or 1)
