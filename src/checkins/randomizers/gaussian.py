"""Gaussian noise on a clipped update, and the exact delta of one report."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import numpy as np
from scipy.special import erfcx, ndtr, roots_legendre

from checkins import validate
from checkins.accounting import GaussianNoise, NoiseAt
from checkins.accounting.exact.slot_ratio import FloatArray
from checkins.errors import InvalidValue

ROUND_OFF = 1e-9
"""Relative amount that is added to ``Gaussian.delta``, ten times its largest rounding error."""
LEAST_DELTA = sys.float_info.min
"""Smallest delta that is returned."""
_FAR = -37.6  # Φ(_FAR) is below LEAST_DELTA
_NO_NOISE = 1e150  # if updates are so many deviations apart, noise hides nothing
_SHORT = 0.1
_NODES, _WEIGHTS = roots_legendre(10)


@dataclass(frozen=True, slots=True)
class Gaussian:
    """Clip an update to L2 norm ``clip`` and add N(0, (noise_multiplier clip)²) per coordinate.

    A dummy, which the server draws in place of a missing report, is the report of a zero update.

    >>> Gaussian(clip=2.0, noise_multiplier=0.5).std
    1.0
    """

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
        Rounding:    up, by the relative ROUND_OFF (more if the noise is below a ten-thousandth of
                     the clip). The result is at least LEAST_DELTA.

        >>> round(Gaussian(clip=1.0, noise_multiplier=2.0).delta(epsilon=1.0), 4)
        0.1269
        """
        validate.non_negative(epsilon=epsilon)
        s = 2.0 / self.noise_multiplier
        if not s < _NO_NOISE:
            return 1.0
        a = s / 2 - epsilon / s
        if a < _FAR:
            return LEAST_DELTA
        density = math.exp(-a * a / 2) / math.sqrt(2 * math.pi)
        if s < _SHORT:  # the terms nearly cancel, so integrate -R' = 1 - y R(y) instead
            y = s / 2 * (_NODES + 1.0) - a
            lost = density * s / 2 * float(_WEIGHTS @ (1.0 - y * _mills(y)))
        elif a > 0.0:  # R(-a) may overflow
            lost = float(ndtr(a)) - density * float(_mills(s - a))
        else:
            lost = density * float(_mills(-a) - _mills(s - a))
        slack = ROUND_OFF + (abs(a) + 1.0) * s * 2.0**-50  # the rounding error of a grows with s
        return min(1.0, max(LEAST_DELTA, lost * (1 + slack)))


def _mills(x: FloatArray | float) -> FloatArray:
    """Return R(x) = Φ(−x)/φ(x), without underflow."""
    return np.asarray(math.sqrt(math.pi / 2) * erfcx(x / math.sqrt(2)))
