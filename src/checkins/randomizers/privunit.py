"""PrivUnit: a direction, reported from a cap around it or else from outside, at optimal odds.

Notation: d dimension, b = exp(ε₀), U one coordinate of a uniform point of the unit sphere of R^d
(U² ~ Beta(1/2, (d−1)/2)), γ the cap's threshold, q = Pr[U ≥ γ] its mass, p the probability that a
report lies in the cap around the reported direction, M = E[U; U ≥ γ].
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
"""Smallest local epsilon: below it, doubles do not separate the two densities well."""
_HALF_ULP = 2.0**-53
_MOST_STEPS = 5000


@dataclass(frozen=True, slots=True)
class Cap:
    """The cap of PrivUnit: its size, and the probability that a report lies in it.

    ``mass`` and ``outside`` define the mechanism and its privacy; ``threshold`` and ``mean``
    describe it to floating-point accuracy.
    """

    threshold: float
    """γ: a direction is in the cap if its component along the reported one is at least this."""
    mass: float
    """q: share of the sphere that the cap covers."""
    outside: float
    """1 − p: probability that the report is drawn outside the cap; rounded up."""
    mean: float
    """Mean component of the drawn direction along the reported one."""

    @property
    def inside(self) -> float:
        """p: probability that the report is drawn in the cap."""
        return 1.0 - self.outside

    @property
    def cap_epsilon(self) -> float:
        """log((1 − q)/q): the part of the budget that makes the cap small."""
        return math.log1p(-self.mass) - math.log(self.mass)

    @property
    def membership_epsilon(self) -> float:
        """log(p/(1 − p)): the part of the budget that keeps the report in the cap."""
        return math.log1p(-self.outside) - math.log(self.outside)


@dataclass(frozen=True, slots=True)
class PrivUnit:
    """An update in the L2 ball of radius ``clip``, reported as a point of one sphere.

    The ball is mapped onto the sphere without bias: u = update / clip becomes the direction u/|u|
    with probability (1 + |u|)/2, else its opposite; zero becomes a uniform direction. The
    direction then is reported as a uniform point of a cap around it with probability p, else as a
    uniform point outside of it, and scaled so that the mean is the update. Relative to the
    uniform distribution of the sphere, the density of a report takes the two values p/q and
    (1 − p)/(1 − q) only, whose ratio is exp(ε₀); mixtures over directions stay between them.

    The dummy is the report of a uniform direction: a uniform point of the same sphere, with
    density 1. Since (1 − p)/(1 − q) ≤ 1 ≤ p/q, it is within ε₀ of every report.

    Theorem:     docs/theory/randomizers.md, "PrivUnit"; [BDFKR18], arXiv:1812.00984v2. With the
                 best parameters no unbiased randomizer of a direction errs less: [AFT22],
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
            raise InvalidValue("clip", self.clip, "scaled to a report it is no finite number")

    @property
    def cap(self) -> Cap:
        """The best split of the budget."""
        return best_cap(local_epsilon=float(self.local_epsilon), dimension=int(self.dimension))

    @property
    def report_norm(self) -> float:
        """L2 norm of every report and every dummy: clip over the mean component."""
        return self.clip / self.cap.mean

    @property
    def privacy_spec(self) -> LocalRandomizer:
        """The epsilon of a report, as the accountant takes it."""
        return LocalRandomizer(self.local_epsilon)

    def variance(self, *, dimension: int, norm: float = 0.0) -> float:
        """Expected squared distance of a report from the clipped update, whose norm is given."""
        if dimension != self.dimension:
            raise InvalidValue("dimension", dimension, f"must be {self.dimension} as described")
        validate.non_negative(norm=norm)
        return self.report_norm**2 - min(norm, self.clip) ** 2


@lru_cache(maxsize=1024)
def best_cap(*, local_epsilon: float, dimension: int) -> Cap:
    r"""The cap whose report has the largest mean component, at odds exp(ε₀).

    At fixed odds p(1−q)/(q(1−p)) = b the mean component is

        mean(γ) = M / (q + 1/(b − 1)),      and its derivative has the sign of h(γ) = mean(γ) − γ .

    (q + 1/(b−1)) h = E(U − γ)₊ − γ/(b − 1) falls and is convex, so there is one best threshold,
    where mean(γ) = γ, and Newton's method on it is the iteration γ ← mean(γ), rising from 0.

    Theorem:     docs/theory/randomizers.md, "The best split".
    Rounding:    ``outside`` up; mass and mean to nearest.
    """
    if dimension == 1:
        return at_odds(local_epsilon=local_epsilon, threshold=0.0, dimension=1)
    floor = 1.0 / math.expm1(local_epsilon)
    threshold = 0.0
    for _ in range(_MOST_STEPS):
        mass, moment = tail(threshold, dimension)
        mean = min(moment / (mass + floor), 1.0 - _HALF_ULP)
        if not mean > threshold:
            return at_odds(local_epsilon=local_epsilon, threshold=threshold, dimension=dimension)
        threshold = mean
    raise ComputationFailed(
        f"no cap found for local_epsilon = {local_epsilon!r}, dimension = {dimension!r}"
    )


def at_odds(*, local_epsilon: float, threshold: float, dimension: int) -> Cap:
    """The cap with this threshold, its membership at the odds that ε₀ allows."""
    mass, moment = tail(threshold, dimension)
    log_mass, log_rest = math.log(mass), math.log1p(-mass)
    membership = local_epsilon + log_mass - log_rest
    outside = 1.0 / (1.0 + math.exp(membership))
    slack = 8 * _HALF_ULP * (1.0 + local_epsilon - log_mass)  # more than the line above can lose
    outside = min(outside * (1.0 + slack), 1.0)
    mean = moment * ((1.0 - mass - outside) / (mass * (1.0 - mass)))
    return Cap(threshold, mass, outside, min(mean, 1.0))


def tail(threshold: float, dimension: int) -> tuple[float, float]:
    """q = Pr[U ≥ γ] and M = E[U; U ≥ γ] for 0 ≤ γ < 1, to a relative 1e-12.

    In dimension 1, U is a sign.
    """
    if dimension == 1:
        return 0.5, 0.5
    half = (dimension - 1) / 2
    square, rest = threshold * threshold, (1.0 - threshold) * (1.0 + threshold)
    if square < 0.5:  # the smaller argument is the one known to full relative accuracy
        mass = 0.5 * float(betaincc(0.5, half, square))
        power = math.exp(half * math.log1p(-square))
    else:
        mass = 0.5 * float(betainc(half, 0.5, rest))
        power = rest**half
    return mass, power * _gamma_ratio(half) / (math.sqrt(math.pi) * (dimension - 1))


def _gamma_ratio(x: float) -> float:
    """Γ(x + 1/2)/Γ(x), without the cancellation of two large logarithms."""
    if x < 100.0:
        return math.gamma(x + 0.5) / math.gamma(x)
    y = 1.0 / x
    series = 1.0 + y * (
        -1 / 8 + y * (1 / 128 + y * (5 / 1024 + y * (-21 / 32768 - y * 399 / 262144)))
    )
    return math.sqrt(x) * series
