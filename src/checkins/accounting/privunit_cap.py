"""The cap of PrivUnit: how large it is, and how likely a report lies in it.

PrivUnit reports a random point of the unit sphere. The point is uniform in a cap around the
direction of the update, or uniform outside the cap with a smaller probability. The accountant needs
the cap, because it determines the density of a report relative to a dummy. A dummy is a uniform
point, which the server draws in place of a missing report.

Notation: d is the dimension, b = exp(ε₀), and U is one coordinate of a uniform point on the unit
sphere of R^d, so that U² ~ Beta(1/2, (d−1)/2). γ is the threshold of the cap, q = Pr[U ≥ γ] its
mass, and M = E[U; U ≥ γ], where U below γ counts as 0. p is the probability that a report is in
the cap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from checkins.errors import ComputationFailed

_HALF_ULP = 2.0**-53
"""Largest relative error of rounding a number to double precision."""
_MOST_ITERATIONS = 5000


@dataclass(frozen=True, slots=True)
class Cap:
    """The cap of PrivUnit: its size, and the probability that a report lies in it.

    ``mass`` and ``outside`` define the mechanism and its privacy. ``threshold`` and ``mean`` are
    only as accurate as floating-point numbers, and privacy does not depend on them.
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
        """log((1 − q)/q), the part of ε₀ that a small cap uses."""
        return math.log1p(-self.mass) - math.log(self.mass)

    @property
    def membership_epsilon(self) -> float:
        """log(p/(1 − p)), the part of ε₀ that a likely report in the cap uses."""
        return math.log1p(-self.outside) - math.log(self.outside)


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
    mass_offset = 1.0 / math.expm1(local_epsilon)
    threshold = 0.0
    for _ in range(_MOST_ITERATIONS):
        mass, moment = tail_moments(threshold, dimension)
        mean = min(moment / (mass + mass_offset), 1.0 - _HALF_ULP)
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
    from scipy.special import betainc, betaincc

    square, rest = threshold * threshold, (1.0 - threshold) * (1.0 + threshold)
    if square < 0.5:  # use the smaller of γ² and 1 − γ², which is more accurate
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
