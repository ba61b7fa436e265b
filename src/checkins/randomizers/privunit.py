"""PrivUnit: report a random point of a sphere, mostly from a cap around the update's direction.

Notation: d is the dimension, b = exp(ε₀), and U is one coordinate of a uniform point on the unit
sphere of R^d, so that U² ~ Beta(1/2, (d−1)/2). γ is the threshold of the cap, q = Pr[U ≥ γ] its
mass, and M = E[U; U ≥ γ]. p is the probability that a report is in the cap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from scipy.special import betainc, betaincc

from checkins import validate
from checkins.accounting import LocalRandomizer
from checkins.errors import ComputationFailed, InvalidValue

MOST_DIMENSION = 10**8
LEAST_LOCAL_EPSILON = 1e-6
"""Smallest local epsilon. Below it, the two densities are too close for floating point."""
_HALF_ULP = 2.0**-53
_MOST_STEPS = 5000


@dataclass(frozen=True, slots=True)
class Cap:
    """The cap of PrivUnit: its size, and the probability that a report lies in it.

    ``mass`` and ``outside`` define the mechanism and its privacy. ``threshold`` and ``mean`` are
    computed from them, with floating-point accuracy.
    """

    threshold: float
    """γ. A point is in the cap if its component along the update's direction is at least γ."""
    mass: float
    """q, the share of the sphere that the cap covers."""
    outside: float
    """1 − p, the probability that the report is outside the cap, rounded up."""
    mean: float
    """Mean component of the drawn point along the update's direction."""

    @property
    def inside(self) -> float:
        """p, the probability that the report is in the cap."""
        return 1.0 - self.outside

    @property
    def cap_epsilon(self) -> float:
        """log((1 − q)/q), the part of ε₀ that is used to make the cap small."""
        return math.log1p(-self.mass) - math.log(self.mass)

    @property
    def membership_epsilon(self) -> float:
        """log(p/(1 − p)), the part of ε₀ that is used to keep the report in the cap."""
        return math.log1p(-self.outside) - math.log(self.outside)


@dataclass(frozen=True, slots=True)
class PrivUnit:
    """Report an update in the L2 ball of radius ``clip`` as a random point of a sphere.

    First the update is mapped to a direction without bias: u = update / clip becomes u/|u| with
    probability (1 + |u|)/2, else −u/|u|. A zero update becomes a uniform direction. Then the report
    is, with probability p, a uniform point of the cap around the direction, else a uniform point
    outside of the cap. It is scaled so that its mean is the update. Given the direction, the
    density of a report, relative to the uniform distribution on the sphere, is p/q or
    (1 − p)/(1 − q). Their ratio is exp(ε₀), and mixtures over directions stay between them.

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
        validate.count(most=MOST_DIMENSION, dimension=self.dimension)
        LocalRandomizer(self.local_epsilon)
        validate.make_floats(self, "clip", "local_epsilon")
        if not self.local_epsilon >= LEAST_LOCAL_EPSILON:
            raise InvalidValue(
                "local_epsilon", self.local_epsilon, f"must be at least {LEAST_LOCAL_EPSILON:g}"
            )
        if not self.report_norm < math.inf:
            raise InvalidValue("clip", self.clip, "is so large that reports are not finite")

    @property
    def cap(self) -> Cap:
        """The cap with the best split of ε₀."""
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
            raise InvalidValue("dimension", dimension, f"must be {self.dimension} as described")
        validate.non_negative(norm=norm)
        return self.report_norm**2 - min(norm, self.clip) ** 2


@lru_cache(maxsize=1024)
def best_cap(*, local_epsilon: float, dimension: int) -> Cap:
    r"""Return the cap whose report has the largest mean component for this ε₀.

    If p(1−q)/(q(1−p)) = b, the mean component is

        mean(γ) = M / (q + 1/(b − 1)),      and its derivative has the sign of h(γ) = mean(γ) − γ .

    (q + 1/(b−1)) h = E(U − γ)₊ − γ/(b − 1) is decreasing and convex in γ. Therefore there is one
    best threshold, with mean(γ) = γ. Newton's method is the iteration γ ← mean(γ), which increases
    from 0.

    Theorem:     docs/theory/randomizers.md, "The best split".
    Rounding:    ``outside`` is rounded up, mass and mean to nearest.
    """
    if dimension == 1:
        return cap_at(local_epsilon=local_epsilon, threshold=0.0, dimension=1)
    floor = 1.0 / math.expm1(local_epsilon)
    threshold = 0.0
    for _ in range(_MOST_STEPS):
        mass, moment = tail_moments(threshold, dimension)
        mean = min(moment / (mass + floor), 1.0 - _HALF_ULP)
        if not mean > threshold:
            return cap_at(local_epsilon=local_epsilon, threshold=threshold, dimension=dimension)
        threshold = mean
    raise ComputationFailed(
        f"no cap found for local_epsilon = {local_epsilon!r}, dimension = {dimension!r}"
    )


def cap_at(*, local_epsilon: float, threshold: float, dimension: int) -> Cap:
    """Return the cap with this threshold and the largest p that ε₀ allows."""
    mass, moment = tail_moments(threshold, dimension)
    log_mass, log_rest = math.log(mass), math.log1p(-mass)
    membership = local_epsilon + log_mass - log_rest
    outside = 1.0 / (1.0 + math.exp(membership))
    slack = 8 * _HALF_ULP * (1.0 + local_epsilon - log_mass)  # above the error of ``outside``
    outside = min(outside * (1.0 + slack), 1.0)
    mean = moment * ((1.0 - mass - outside) / (mass * (1.0 - mass)))
    return Cap(threshold, mass, outside, min(mean, 1.0))


def tail_moments(threshold: float, dimension: int) -> tuple[float, float]:
    """Return q = Pr[U ≥ γ] and M = E[U; U ≥ γ] for 0 ≤ γ < 1, with a relative error of 1e-12.

    In dimension 1, U is 1 or −1.
    """
    if dimension == 1:
        return 0.5, 0.5
    half = (dimension - 1) / 2
    square, rest = threshold * threshold, (1.0 - threshold) * (1.0 + threshold)
    if square < 0.5:  # of γ² and 1 − γ², the smaller one is more accurate
        mass = 0.5 * float(betaincc(0.5, half, square))
        power = math.exp(half * math.log1p(-square))
    else:
        mass = 0.5 * float(betainc(half, 0.5, rest))
        power = rest**half
    return mass, power * _gamma_ratio(half) / (math.sqrt(math.pi) * (dimension - 1))


def _gamma_ratio(x: float) -> float:
    """Return Γ(x + 1/2)/Γ(x). For large x a series avoids a difference of large logarithms."""
    if x < 100.0:
        return math.gamma(x + 0.5) / math.gamma(x)
    y = 1.0 / x
    series = 1.0 + y * (
        -1 / 8 + y * (1 / 128 + y * (5 / 1024 + y * (-21 / 32768 - y * 399 / 262144)))
    )
    return math.sqrt(x) * series
