"""PrivUnit: report a random point of a sphere, mostly from a cap around the update's direction.

``accounting.privunit_cap`` computes the cap. In formulas, q is the share of the sphere that the cap
covers, p is the probability that a report is in the cap, and ε₀ is the local epsilon.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from checkins import validate
from checkins.accounting import LocalRandomizer
from checkins.accounting.design import LEAST_PRIVUNIT_EPSILON, MOST_PRIVUNIT_DIMENSION
from checkins.accounting.privunit_cap import Cap, best_cap
from checkins.errors import InvalidValue


@dataclass(frozen=True, slots=True)
class PrivUnit:
    """Report an update in the L2 ball of radius ``clip`` as a random point of a sphere.

    First the update is mapped to a random direction whose mean is u = update / clip: u/|u| with
    probability (1 + |u|)/2, else −u/|u|. A zero update becomes a uniform direction. Then the report
    is, with probability p, a uniform point of the cap around the direction, else a uniform point
    outside of the cap. It is scaled so that its mean is the update. Given the direction, the
    density of a report, relative to the uniform distribution on the sphere, is p/q or
    (1 − p)/(1 − q). The ratio of the two is exp(ε₀), and mixtures over directions lie between them.

    A dummy, which the server draws in place of a missing report, is a uniform point of the same
    sphere, with density 1. Because (1 − p)/(1 − q) ≤ 1 ≤ p/q, the privacy loss between a dummy and
    any report is at most ε₀.

    Theorem:     docs/theory/randomizers.md, "PrivUnit"; [BDFKR18], arXiv:1812.00984v2. With the
                 best parameters, no unbiased randomizer of a direction has a smaller error [AFT22],
                 arXiv:2205.02466v1.
    Neighbours:  any two updates of one client (the local model).
    Rounding:    p is rounded down, so that the log-ratio of the two densities is at most ε₀.

    >>> cap = PrivUnit(clip=1.0, local_epsilon=8.0, dimension=1000).cap
    >>> round(cap.cap_epsilon, 3), round(cap.membership_epsilon, 3)
    (5.787, 2.213)
    """

    clip: float
    local_epsilon: float
    dimension: int

    def __post_init__(self) -> None:
        validate.positive(clip=self.clip)
        validate.count(most=MOST_PRIVUNIT_DIMENSION, dimension=self.dimension)
        LocalRandomizer(self.local_epsilon)
        validate.make_floats(self, "clip", "local_epsilon")
        if not self.local_epsilon >= LEAST_PRIVUNIT_EPSILON:
            raise InvalidValue(
                "local_epsilon", self.local_epsilon, f"must be at least {LEAST_PRIVUNIT_EPSILON:g}"
            )
        if not self.report_norm < math.inf:
            raise InvalidValue("clip", self.clip, "is so large that reports are not finite")

    @property
    def cap(self) -> Cap:
        """The cap with the best split of ε₀, which gives the smallest report norm."""
        return best_cap(local_epsilon=float(self.local_epsilon), dimension=int(self.dimension))

    @property
    def report_norm(self) -> float:
        """L2 norm of every report and every dummy: the clip divided by the mean component."""
        return self.clip / self.cap.mean

    @property
    def privacy_spec(self) -> LocalRandomizer:
        """The epsilon of a report, as the accountant expects it."""
        return LocalRandomizer(self.local_epsilon)

    def variance(self, *, dimension: int, norm: float = 0.0) -> float:
        """Return the expected squared distance of a report from an update with this norm."""
        if dimension != self.dimension:
            raise InvalidValue("dimension", dimension, f"must be {self.dimension}, as declared")
        validate.non_negative(norm=norm)
        return self.report_norm**2 - min(norm, self.clip) ** 2
