"""The noise of a slot's sum along one direction, in clips: how it is drawn, what a shift of it is.

For simulation only: seeded floating-point noise, which would protect nobody.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


class Noise(Protocol):
    """A law of the noise of one slot's sum."""

    def draw(self, shape: tuple[int, int], generator: np.random.Generator) -> FloatArray: ...

    def log_ratio(self, noise: FloatArray, shift: FloatArray) -> FloatArray:
        """log of the density at ``noise`` of the law shifted by ``shift``, over that of the law."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class GaussianSum:
    """Gaussian noise; ``deviation`` is a number, or one for each slot of each run."""

    deviation: float | FloatArray

    def draw(self, shape: tuple[int, int], generator: np.random.Generator) -> FloatArray:
        return np.asarray(generator.standard_normal(shape) * self.deviation)

    def log_ratio(self, noise: FloatArray, shift: FloatArray) -> FloatArray:
        away = shift / self.deviation
        return np.asarray(away * (noise / self.deviation) - away * away / 2)


@dataclass(frozen=True, slots=True)
class LaplaceSum:
    """The sum of ``reports`` Laplace noises: b (G − G′) with Gamma variables of that shape.

    Of one report the ratio is exact; of more, it is that of a Gaussian with the same variance.
    """

    scale: float
    reports: int

    def draw(self, shape: tuple[int, int], generator: np.random.Generator) -> FloatArray:
        if self.reports == 1:
            return generator.laplace(0.0, self.scale, shape)
        up, down = (generator.standard_gamma(self.reports, shape) for _ in range(2))
        return np.asarray(self.scale * (up - down))

    def log_ratio(self, noise: FloatArray, shift: FloatArray) -> FloatArray:
        if self.reports == 1:
            return np.asarray((np.abs(noise) - np.abs(noise - shift)) / self.scale)
        deviation = self.scale * math.sqrt(2.0 * self.reports)
        return GaussianSum(deviation).log_ratio(noise, shift)
