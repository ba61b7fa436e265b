"""The distribution of one slot's likelihood ratio, given by its stop-loss transforms.

The accountant describes what a slot reveals about one client by a random variable X. For
add/remove, X is the density ratio of the slot's output with the client to the output without the
client. For replace-one, X is a difference of two such ratios. The accountant needs only

    call(t) = E(X - t)_+,   put(t) = E(t - X)_+,   and the two tail probabilities.

All of them are computed without cancellation in the tails. ``call`` is the stop-loss transform. The
names ``call`` and ``put`` are those of options in finance. X is below Y in convex order if X and Y
have the same mean and the call of X is nowhere larger than that of Y. If two distributions have the
same mean, the pointwise maximum of their calls is the call of a third distribution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

FloatArray = npt.NDArray[np.float64]

DEVIATES: FloatArray = np.linspace(-12.0, 12.0, 241)
"""Values of a standard normal variable, at which a ratio's quantiles are computed."""


class SlotRatio(Protocol):
    """The distribution of one slot's contribution X to the likelihood ratio."""

    @property
    def mean(self) -> float: ...
    @property
    def floor(self) -> float:
        """The smallest value of X, or minus infinity if there is none."""
        ...

    @property
    def quantiles(self) -> FloatArray:
        """Approximate quantiles of X at the normal ``DEVIATES``, used only to choose a grid."""
        ...

    def call(self, t: FloatArray) -> FloatArray: ...
    def put(self, t: FloatArray) -> FloatArray: ...
    def likely_range(self, tolerance: float) -> tuple[float, float]:
        """Return the ends of a grid. The little mass of X outside is still accounted for."""
        ...


class AttainedRatio(SlotRatio, Protocol):
    """The exact slot ratio of some client and data, which also proves lower bounds.

    ``survival(t)`` is Pr[X > t], and ``cdf(t)`` is Pr[X <= t].
    """

    def survival(self, t: FloatArray) -> FloatArray: ...
    def cdf(self, t: FloatArray) -> FloatArray: ...


def _normal_quantile(tolerance: float) -> float:
    """Return an upper bound on the z with Pr[N(0, 1) > z] = ``tolerance``."""
    return math.sqrt(-2.0 * math.log(min(0.5, tolerance)))


@dataclass(frozen=True, slots=True)
class ShiftedGaussian:
    """Density ratio of a Gaussian shifted by s = ``shift`` standard deviations: exp(N(-s²/2, s²)).

    It is the slot ratio if the client joins a sum or displaces a dummy.

    Theorem:     docs/theory/gaussian.md. Attained.
    Neighbours:  add/remove.

    >>> float(ShiftedGaussian(1.0).call(np.array([1.0]))[0])  # the total variation distance
    0.38292492254802624
    """

    shift: float
    mean, floor = 1.0, 0.0

    @property
    def quantiles(self) -> FloatArray:
        return np.exp(self.shift * DEVIATES - self.shift**2 / 2)

    def _deviates(self, t: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return max(t, 0), and the output with ratio t, standardised with and without client."""
        clipped = np.maximum(t, 0.0)
        with np.errstate(divide="ignore"):
            log_t = np.log(clipped)
        return clipped, log_t / self.shift - self.shift / 2, log_t / self.shift + self.shift / 2

    def call(self, t: FloatArray) -> FloatArray:
        clipped, present, absent = self._deviates(t)
        return np.maximum(ndtr(-present) - clipped * ndtr(-absent), 0.0) + np.maximum(-t, 0.0)

    def put(self, t: FloatArray) -> FloatArray:
        clipped, present, absent = self._deviates(t)
        return np.maximum(clipped * ndtr(absent) - ndtr(present), 0.0)

    def survival(self, t: FloatArray) -> FloatArray:
        return np.asarray(ndtr(-self._deviates(t)[2]))

    def cdf(self, t: FloatArray) -> FloatArray:
        return np.asarray(ndtr(self._deviates(t)[2]))

    def likely_range(self, tolerance: float) -> tuple[float, float]:
        half_width = _normal_quantile(tolerance) * self.shift
        return math.exp(-(self.shift**2) / 2 - half_width), math.exp(self.shift**2 / 2 + half_width)


@dataclass(frozen=True, slots=True)
class DilutedRatio:
    """The ratio 1 - w + w L of a client that is chosen only with probability w = ``weight``.

    Theorem:     docs/theory/gaussian.md: w = K/(K+1) if K of K+1 check-ins are chosen.
    """

    ratio: SlotRatio
    weight: float

    @property
    def mean(self) -> float:
        return 1.0 - self.weight + self.weight * self.ratio.mean

    @property
    def floor(self) -> float:
        return 1.0 - self.weight + self.weight * self.ratio.floor

    @property
    def quantiles(self) -> FloatArray:
        return 1.0 - self.weight + self.weight * self.ratio.quantiles

    def _inner(self, t: FloatArray) -> FloatArray:
        return (t - (1.0 - self.weight)) / self.weight

    def call(self, t: FloatArray) -> FloatArray:
        return self.weight * self.ratio.call(self._inner(t))

    def put(self, t: FloatArray) -> FloatArray:
        return self.weight * self.ratio.put(self._inner(t))

    def likely_range(self, tolerance: float) -> tuple[float, float]:
        low, high = self.ratio.likely_range(tolerance)
        return 1 - self.weight + self.weight * low, 1 - self.weight + self.weight * high


@dataclass(frozen=True, slots=True)
class DilutedGaussian(DilutedRatio):
    """The ratio of a client that displaces another one with probability ``weight``.

    Theorem:     docs/theory/gaussian.md, "Lower bounds with a capacity". Attained.
    Neighbours:  add/remove.
    """

    ratio: ShiftedGaussian

    def survival(self, t: FloatArray) -> FloatArray:
        return self.ratio.survival(self._inner(t))

    def cdf(self, t: FloatArray) -> FloatArray:
        return self.ratio.cdf(self._inner(t))


@dataclass(frozen=True, slots=True)
class Envelope:
    """The smallest distribution above two others in convex order.

    ``first`` and ``second`` must have the same mean. The stop-loss transform of the envelope is, at
    each point, the larger of their two transforms.

    Theorem:     docs/theory/gaussian.md.
    """

    first: SlotRatio
    second: SlotRatio

    @property
    def mean(self) -> float:
        return self.first.mean

    @property
    def floor(self) -> float:
        return min(self.first.floor, self.second.floor)

    @property
    def quantiles(self) -> FloatArray:
        return self.first.quantiles

    def call(self, t: FloatArray) -> FloatArray:
        return np.maximum(self.first.call(t), self.second.call(t))

    def put(self, t: FloatArray) -> FloatArray:
        return np.maximum(self.first.put(t), self.second.put(t))

    def likely_range(self, tolerance: float) -> tuple[float, float]:
        (low, high), (lower, higher) = (
            self.first.likely_range(tolerance),
            self.second.likely_range(tolerance),
        )
        return min(low, lower), max(high, higher)


@dataclass(frozen=True, slots=True)
class AntipodalGaussian:
    """The difference l - e^eps l', for the density ratios l and l' of two opposite updates.

    Both ratios are relative to the same dummy. With G standard normal and s = ``shift``, the
    difference is z = exp(sG - s²/2) - e^eps exp(-sG - s²/2).

    Theorem:     docs/theory/gaussian.md. Exact and attained.
    Neighbours:  replace-one, at privacy loss ``epsilon``.
    """

    shift: float
    epsilon: float
    floor = -math.inf

    @property
    def mean(self) -> float:
        return -math.expm1(self.epsilon)

    @property
    def quantiles(self) -> FloatArray:
        up, down = (
            ShiftedGaussian(self.shift).quantiles,
            ShiftedGaussian(self.shift).quantiles[::-1],
        )
        return up - math.exp(self.epsilon) * down

    def _deviate(self, t: FloatArray) -> FloatArray:
        """Return the g with z(g) = t.

        y = e^(sg - s²/2) is the positive root of y² - ty - e^(eps - s²).
        """
        corner = 2.0 * math.exp((self.epsilon - self.shift**2) / 2)
        root = np.hypot(t, corner)
        y = np.where(t > 0, (root + t) / 2, corner**2 / 2 / np.maximum(root - t, corner))
        return (np.log(y) + self.shift**2 / 2) / self.shift

    def call(self, t: FloatArray) -> FloatArray:
        g = self._deviate(t)
        first, second = ndtr(self.shift - g), math.exp(self.epsilon) * ndtr(-self.shift - g)
        return np.maximum(first - second - t * ndtr(-g), 0.0)

    def put(self, t: FloatArray) -> FloatArray:
        g = self._deviate(t)
        first, second = ndtr(g - self.shift), math.exp(self.epsilon) * ndtr(g + self.shift)
        return np.maximum(t * ndtr(g) - first + second, 0.0)

    def survival(self, t: FloatArray) -> FloatArray:
        return np.asarray(ndtr(-self._deviate(t)))

    def cdf(self, t: FloatArray) -> FloatArray:
        return np.asarray(ndtr(self._deviate(t)))

    def likely_range(self, tolerance: float) -> tuple[float, float]:
        high = math.exp(self.shift**2 / 2 + _normal_quantile(tolerance) * self.shift)
        return -math.exp(self.epsilon) * high, high


@dataclass(frozen=True, slots=True)
class DisplacedGaussian:
    """The bound on the replace-one ratio if the client may displace another client.

    It is w X + (1 - w)(1 - e^eps), where w = ``weight`` is the probability that the client is
    chosen. With L the ratio of a Gaussian shifted by 2s, E(X - t)_+ is E(L - e^eps - t)_+ for
    t >= 0, and E(1 - e^eps L - t)_+ for t < 0.

    Theorem:     docs/theory/gaussian.md, "Replace-one". Each value of E(X - t)_+ is attained, by a
                 client with one value of its data equal to that of the displaced client.
    Neighbours:  replace-one, at privacy loss ``epsilon``.
    """

    shift: float
    epsilon: float
    weight: float
    floor = -math.inf

    @property
    def mean(self) -> float:
        return -math.expm1(self.epsilon)

    @property
    def quantiles(self) -> FloatArray:
        ratio = ShiftedGaussian(2 * self.shift)
        up, down = ratio.quantiles, ratio.quantiles[::-1]
        blended: FloatArray = self.weight * (up - math.exp(self.epsilon) * down)
        return blended + (1 - self.weight) * self.mean

    def _inner(self, t: FloatArray) -> FloatArray:
        return (t - (1.0 - self.weight) * self.mean) / self.weight

    def call(self, t: FloatArray) -> FloatArray:
        ratio, growth, inner = (
            ShiftedGaussian(2 * self.shift),
            math.exp(self.epsilon),
            self._inner(t),
        )
        above = ratio.call(growth + np.maximum(inner, 0.0))
        below = growth * ratio.put((1.0 - np.minimum(inner, 0.0)) / growth)
        return np.asarray(self.weight * np.where(inner >= 0.0, above, below))

    def put(self, t: FloatArray) -> FloatArray:
        ratio, growth, inner = (
            ShiftedGaussian(2 * self.shift),
            math.exp(self.epsilon),
            self._inner(t),
        )
        above = ratio.put(growth + np.maximum(inner, 0.0))
        below = growth * ratio.call((1.0 - np.minimum(inner, 0.0)) / growth)
        return np.asarray(self.weight * np.where(inner >= 0.0, above, below))

    def likely_range(self, tolerance: float) -> tuple[float, float]:
        high = math.exp(2 * self.shift**2 + 2 * _normal_quantile(tolerance) * self.shift)
        return -math.exp(self.epsilon) * high - math.expm1(self.epsilon), high
