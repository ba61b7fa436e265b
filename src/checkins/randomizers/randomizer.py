"""Descriptions of randomizers: how a device makes one report private, and how private it is.

A dummy is a report without data, which the server draws in place of a missing report. In formulas,
ε₀ is the local epsilon of a report, C is the clip norm, and σ is the noise multiplier.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from checkins import validate
from checkins.accounting import GaussianNoise, LocalRandomizer, NoiseAt
from checkins.accounting.design import LEAST_PRIVUNIT_EPSILON, MOST_PRIVUNIT_DIMENSION
from checkins.accounting.privunit_cap import Cap, best_cap
from checkins.errors import InvalidValue
from checkins.randomizers.clipping import FloatArray

RELATIVE_ROUND_OFF = 1e-9
"""Relative amount that is added to ``Gaussian.delta``, ten times the largest rounding error."""
MIN_DELTA = sys.float_info.min
"""Smallest delta that ``Gaussian.delta`` returns, because smaller floats are less precise."""
_MIN_QUANTILE = -37.6  # below it, the normal distribution function is below MIN_DELTA
_MAX_DISTANCE = 1e150  # if updates are this many deviations apart, noise hides nothing
_SMALL_DISTANCE = 0.1  # below this many deviations, a difference is computed as an integral
MAX_CATEGORIES = 2**31 - 1
"""Largest number of categories of randomized response, so that a category fits 32 bits."""


@dataclass(frozen=True, slots=True)
class Gaussian:
    """Clip an update to L2 norm ``clip`` and add N(0, (noise_multiplier clip)²) per coordinate.

    A dummy is the report of a zero update.

    >>> Gaussian(clip=2.0, noise_multiplier=0.5).std
    1.0
    """

    norm_order: ClassVar[int] = 2

    clip: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        validate.positive(clip=self.clip, noise_multiplier=self.noise_multiplier)
        validate.make_floats(self, "clip", "noise_multiplier")
        if not 0.0 < self.std < math.inf:
            raise InvalidValue(
                "clip", self.clip, f"the noise, clip × noise_multiplier, would be {self.std!r}"
            )

    @property
    def std(self) -> float:
        """Standard deviation of the noise of one coordinate."""
        return self.noise_multiplier * self.clip

    @property
    def privacy_spec(self) -> GaussianNoise:
        """The noise of a report, as the accountant expects it."""
        return GaussianNoise(self.noise_multiplier, NoiseAt.CLIENT)

    def variance(self, *, dimension: int, norm: float = 0.0) -> float:
        """Return the expected squared distance of a report from the clipped update."""
        validate.count(dimension=dimension)
        validate.non_negative(norm=norm)
        return dimension * self.std**2

    def delta(self, *, epsilon: float) -> float:
        r"""Return the smallest δ for which one report is (ε, δ)-DP, for any two updates.

        Two clipped updates are at most 2C apart, which is s = 2/σ standard deviations. With
        a = s/2 − ε/s, the normal density φ and R(x) = Φ(−x)/φ(x),

            δ(ε) = Φ(a) − exp(ε) Φ(a − s) = φ(a) (R(−a) − R(s − a)).

        Theorem:     [BW18, Thm 8], arXiv:1805.06530v2, at sensitivity 2C. Necessary and sufficient.
        Neighbours:  any two updates of one client (the local model).
        Rounding:    up, by the relative amount RELATIVE_ROUND_OFF, and by more if the noise is
                     below a ten-thousandth of the clip. The result is at least MIN_DELTA.

        >>> round(Gaussian(clip=1.0, noise_multiplier=2.0).delta(epsilon=1.0), 4)
        0.1269
        """
        from scipy.special import ndtr, roots_legendre

        validate.non_negative(epsilon=epsilon)
        s = 2.0 / self.noise_multiplier
        if not s < _MAX_DISTANCE:
            return 1.0
        a = s / 2 - epsilon / s
        if a < _MIN_QUANTILE:
            return MIN_DELTA
        density = math.exp(-a * a / 2) / math.sqrt(2 * math.pi)
        if s < _SMALL_DISTANCE:  # the terms nearly cancel, so integrate -R' = 1 - y R(y) instead
            nodes, weights = roots_legendre(10)  # of Gauss-Legendre quadrature on [-1, 1]
            y = s / 2 * (nodes + 1.0) - a
            delta = density * s / 2 * float(weights @ (1.0 - y * _mills_ratio(y)))
        elif a > 0.0:  # R(-a) may overflow
            delta = float(ndtr(a)) - density * float(_mills_ratio(s - a))
        else:
            delta = density * float(_mills_ratio(-a) - _mills_ratio(s - a))
        margin = RELATIVE_ROUND_OFF + (abs(a) + 1.0) * s * 2.0**-50  # the error of a grows with s
        return min(1.0, max(MIN_DELTA, delta * (1 + margin)))


@dataclass(frozen=True, slots=True)
class Laplace:
    """Clip an update to L1 norm ``clip`` and add independent Laplace noise per coordinate.

    Any two clipped updates are at most 2 ``clip`` apart in L1 norm. The densities of their reports
    therefore differ by a factor of at most exp(2 clip / scale) = exp(local_epsilon), which is
    attained. A dummy is the report of a zero update. Its privacy loss against any report is at most
    half of ``local_epsilon``.

    Theorem:     [DR14, Thm 3.6], at L1 sensitivity 2C.
    Neighbours:  any two updates of one client (the local model).
    Rounding:    ``scale`` is rounded up.

    >>> 4.0 <= Laplace(clip=2.0, local_epsilon=1.0).scale < 4.0 + 1e-14
    True
    """

    norm_order: ClassVar[int] = 1

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


@dataclass(frozen=True, slots=True)
class RandomizedResponse:
    """Report the true category, of k ``categories``, with probability b/(b + k − 1), b = exp(ε₀).

    Otherwise report one of the other categories, uniformly. A report is interpreted as the vector

        (b + k − 2)/(b − 1) at the reported category,    −1/(b − 1) elsewhere,

    whose mean is the one-hot vector of the true category, and whose entries sum to 1. A dummy is a
    uniform category. Its probability 1/k is between the two probabilities of a report, so the
    privacy loss between a dummy and any report is at most ε₀. As a vector, its mean is 1/k.

    Theorem:     docs/theory/randomizers.md, "Randomized response"; ε₀ is attained.
    Neighbours:  any two categories of one client (the local model).
    Rounding:    ``lie_probability`` is rounded up.

    >>> coin = RandomizedResponse(categories=2, local_epsilon=math.log(3.0))
    >>> round(coin.truth_probability, 9), round(coin.reported_entry, 9), round(coin.other_entry, 9)
    (0.75, 1.5, -0.5)
    """

    categories: int
    local_epsilon: float

    def __post_init__(self) -> None:
        validate.count(most=MAX_CATEGORIES, categories=self.categories)
        if self.categories < 2:
            raise InvalidValue("categories", self.categories, "must be at least 2")
        LocalRandomizer(self.local_epsilon)
        validate.make_floats(self, "local_epsilon")
        object.__setattr__(self, "categories", int(self.categories))
        if not self.local_epsilon >= LEAST_PRIVUNIT_EPSILON:
            raise InvalidValue(
                "local_epsilon", self.local_epsilon, f"must be at least {LEAST_PRIVUNIT_EPSILON:g}"
            )

    @property
    def lie_probability(self) -> float:
        """Probability that the reported category is not the true one, rounded up.

        It is (k − 1)/(b + k − 1). For accuracy, the smaller of the probabilities of truth and lie
        is computed directly.
        """
        odds = math.exp(self.local_epsilon) / (self.categories - 1)
        if odds >= 1.0:
            return 1.0 / (1.0 + odds) * (1.0 + 2.0**-50)
        truth = odds / (1.0 + odds) * (1.0 - 2.0**-50)
        return math.nextafter(1.0 - truth, 1.0)

    @property
    def truth_probability(self) -> float:
        """Probability that the reported category is the true one."""
        return 1.0 - self.lie_probability

    @property
    def reported_entry(self) -> float:
        """Entry of a report's vector at the reported category."""
        return 1.0 + (self.categories - 1) / math.expm1(self.local_epsilon)

    @property
    def other_entry(self) -> float:
        """Entry of a report's vector at every other category."""
        return -1.0 / math.expm1(self.local_epsilon)

    @property
    def privacy_spec(self) -> LocalRandomizer:
        """The epsilon of a report, as the accountant expects it."""
        return LocalRandomizer(self.local_epsilon)

    def variance(self, *, dimension: int, norm: float = 1.0) -> float:
        """Return the expected squared distance of a report's vector from the true one-hot vector.

        It is (k − 1)(2b + k − 2)/(b − 1)². ``dimension`` must be k, and ``norm`` must be 1, the
        norm of a one-hot vector.
        """
        if dimension != self.categories:
            raise InvalidValue("dimension", dimension, f"must be categories = {self.categories}")
        if norm != 1.0:
            raise InvalidValue("norm", norm, "must be 1, the norm of a one-hot vector")
        b, k = math.exp(self.local_epsilon), float(self.categories)
        b_minus_1 = math.expm1(self.local_epsilon)
        return (k - 1) / b_minus_1 * ((2 * b + k - 2) / b_minus_1)


@dataclass(frozen=True, slots=True)
class PrivUnit:
    """Report an update in the L2 ball of radius ``clip`` as a random point of a sphere.

    ``checkins.accounting.privunit_cap`` computes the cap. q is the share of the sphere that it
    covers, and p is the probability that a report is in it.

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


Randomizer = Gaussian | Laplace | PrivUnit | RandomizedResponse
"""Any description of how one report is made private."""


def require_dimension(randomizer: Randomizer, dimension: int) -> None:
    """Raise InvalidValue if the randomizer is for updates of another dimension.

    Gaussian and Laplace noise can have any dimension.

    >>> require_dimension(RandomizedResponse(categories=3, local_epsilon=1.0), 4)
    Traceback (most recent call last):
        ...
    checkins.errors.InvalidValue: dimension = 4: must be 3, the number of categories
    """
    match randomizer:
        case PrivUnit(dimension=own_dimension):
            meaning = "the dimension of the randomizer"
        case RandomizedResponse(categories=own_dimension):
            meaning = "the number of categories"
        case Gaussian() | Laplace():
            return
        case _:
            raise InvalidValue("randomizer", randomizer, "must be a description of a randomizer")
    if dimension != own_dimension:
        raise InvalidValue("dimension", dimension, f"must be {own_dimension}, {meaning}")


def _mills_ratio(x: FloatArray | float) -> FloatArray:
    """Return R(x) = Φ(−x)/φ(x), without underflow."""
    from scipy.special import erfcx

    return np.asarray(math.sqrt(math.pi / 2) * erfcx(x / math.sqrt(2)))
