"""Scattering features of pictures: two layers of wavelets, pooled to a coarse grid.

Nothing is fitted to data. The filters are public constants, and each picture is normalised by its
own values only. The features of one client therefore do not depend on other clients' data. [TB21]
found that, with privacy, linear models on these features classify small pictures better than deep
models.

For a picture x, wavelets ψ of two sizes (0, 1) and L angles, and a Gaussian window φ,

    order 0:  x ∗ φ        order 1:  |x ∗ ψ| ∗ φ        order 2:  ||x ∗ ψ₀| ∗ ψ₁| ∗ φ,

sampled at every fourth pixel: 1 + 2L + L² channels, 81 for eight angles ([Mallat12], [BM13]).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from checkins import validate
from checkins.errors import InvalidValue

Images = NDArray[np.float32]
Spectra = NDArray[np.complex64]

STRIDE = 4  # distance of samples, in pixels
MARGIN = 4  # width of the mirrored border in pixels, so that opposite edges do not interact
WIDTH = 0.8  # standard deviation of the smallest wavelet's envelope, in pixels
FREQUENCY = 0.75 * np.pi  # frequency of the smallest wavelet
FLOOR = 1e-5  # added to variances, as in [TB21]
ROOT_FLOOR = 5e-3  # added to variances of square roots
DIVISOR_FLOOR = 0.01  # added to responses of order 1 before dividing by them
ASPECT_RATIO = 0.5  # width of a wavelet along its direction, divided by its width across
_BATCH = 16  # pictures per batch, so that their order-2 responses fit into the cache


@dataclass(frozen=True)
class Scattering:
    """The transform of square pictures with ``size`` pixels per side.

    ``size`` must be a multiple of four and at least 8.

    Bound:       the transform is non-expansive. Before normalisation, the sum of squares of the
                 features is at most that of the picture with its mirrored border.

    >>> Scattering(28).shape
    (81, 7, 7)
    """

    size: int
    angles: int = 8

    def __post_init__(self) -> None:
        validate.count(most=1024, size=self.size)
        validate.count(most=64, angles=self.angles)
        if self.size < 2 * STRIDE or self.size % STRIDE:
            raise InvalidValue("size", self.size, f"must be a multiple of {STRIDE} and at least 8")

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape (channels, rows, columns) of a transformed picture.

        The first channel has order 0. Channels of order 1 follow, by size and angle, and then
        channels of order 2, by both angles.
        """
        side = self.size // STRIDE
        return 1 + 2 * self.angles + self.angles**2, side, side

    def transform(self, images: NDArray[np.floating], *, workers: int = 2) -> Images:
        """Return the responses of orders 0 to 2, in an array of shape (pictures, *shape).

        ``images`` has the shape (pictures, size, size).
        """
        return self._in_batches(images, self.shape, self._batch, workers)

    def features(self, images: NDArray[np.floating], *, workers: int = 2) -> Images:
        """Return flat, normalised features for linear models, of pictures with values in [0, 1].

        Each response of order 2 is divided by the response of order 1 that it is computed from, as
        in [BM13]. The quotient describes how edges are arranged, independently of their strength.
        Then square roots are taken, so that one bright spot does not outweigh the rest. Finally,
        each channel is normalised separately.
        """
        if len(images) and not (images.min() >= 0.0 and images.max() <= 1.0):
            raise InvalidValue("images", "values", "must lie in [0, 1]")

        def of_batch(batch: Images) -> Images:
            responses = self._batch(batch)
            first = 1 + 2 * self.angles
            edges = responses[:, 1 : 1 + self.angles]
            relative = responses[:, first:].reshape(
                len(responses), self.angles, -1, *self.shape[1:]
            )
            relative /= edges[:, :, np.newaxis] + DIVISOR_FLOOR
            return group_normalised(np.sqrt(responses), self.shape[0], floor=ROOT_FLOOR)

        return self._in_batches(images, (math.prod(self.shape),), of_batch, workers)

    def _in_batches(
        self,
        images: NDArray[np.floating],
        shape: tuple[int, ...],
        of_batch: Callable[[Images], Images],
        workers: int,
    ) -> Images:
        validate.count(workers=workers)
        if images.ndim != 3 or images.shape[1:] != (self.size, self.size):
            raise InvalidValue("images", images.shape, f"must be rows of {self.size} x {self.size}")
        filled = np.empty((len(images), *shape), np.float32)

        def fill(first: int) -> None:
            batch = np.asarray(images[first : first + _BATCH], np.float32)
            filled[first : first + _BATCH] = of_batch(batch)

        with ThreadPoolExecutor(workers) as pool:
            for _ in pool.map(fill, range(0, len(images), _BATCH)):
                pass  # iterating raises the errors of the threads
        return filled

    def _batch(self, images: Images) -> Images:
        fine, coarse = self._windows
        small, large = self._wavelets
        border = ((0, 0), (MARGIN, MARGIN), (MARGIN, MARGIN))
        pictures = np.pad(images, border, mode="symmetric")[:, np.newaxis]
        spectra = _forward(pictures)
        edges = np.abs(_inverse(spectra * small))
        shapes = _halved(spectra, large)
        textures = _halved(_forward(edges)[:, :, np.newaxis], large)
        responses = (
            _pooled(pictures, fine),
            _pooled(edges, fine),
            _pooled(shapes, coarse),
            _pooled(textures.reshape(len(images), -1, *textures.shape[-2:]), coarse),
        )
        return np.concatenate(responses, axis=1)

    @cached_property
    def _wavelets(self) -> tuple[Images, Images]:
        """The Fourier transforms of the small and the large wavelets: angle, row, column.

        They are real-valued.

        They are scaled so that, with the window, no frequency is amplified: Σ|ψ̂|² + |φ̂|² ≤ 1.
        """
        side = self.size + 2 * MARGIN
        small, large = (
            np.stack([_morlet(side, scale, np.pi * k / self.angles) for k in range(self.angles)])
            for scale in (1, 2)
        )
        window = np.abs(fft.fft(_gaussian(side, np.arange(side), centre=0.0)))
        room = 1.0 - np.multiply.outer(window, window) ** 2
        # A real picture has the same energy at ω and at -ω, so a bound on the mean of the energies
        # of the filters at ω and at -ω is enough.
        both = np.sum(small**2 + large**2, axis=0)
        both = 0.5 * (both + np.roll(both[::-1, ::-1], 1, axis=(0, 1)))
        most = np.max(both.flat[1:] / room.flat[1:])
        return _single(small / np.sqrt(most)), _single(large / np.sqrt(most))

    @cached_property
    def _windows(self) -> tuple[Images, Images]:
        """Matrices that pool a line of pixels to samples.

        The first matrix is for lines of all pixels, the second for lines of every second pixel.
        """
        side = self.size + 2 * MARGIN
        centres = MARGIN + (STRIDE - 1) / 2 + STRIDE * np.arange(self.size // STRIDE)

        def matrix(step: int) -> Images:
            pixels = np.arange(0, side, step)
            return _single(np.stack([_gaussian(side, pixels, centre=centre) for centre in centres]))

        return matrix(1), matrix(2)


def _single(constants: NDArray[np.float64]) -> Images:
    """Return constants as float32. Values below 1e-12 become 0, as subnormal numbers are slow."""
    return np.ascontiguousarray(np.where(np.abs(constants) < 1e-12, 0.0, constants), np.float32)


def _gaussian(side: int, pixels: NDArray[np.int64], *, centre: float) -> NDArray[np.float64]:
    """Return the periodic window φ around ``centre``, with sum 1."""
    away = pixels - centre
    away -= side * np.round(away / side)
    weights: NDArray[np.float64] = np.exp(-0.5 * (away / (2 * WIDTH)) ** 2)
    weights /= weights.sum()
    return weights


def _morlet(side: int, scale: int, angle: float) -> NDArray[np.float64]:
    """Return the Fourier transform of a wave with a Gaussian envelope, corrected to mean 0.

    On a grid the spectrum is periodic with period 2π, so the nearest periods are added.
    """
    omega = 2 * np.pi * fft.fftfreq(side)
    turns = 2 * np.pi * np.arange(-2, 3)
    y = (omega[:, np.newaxis] + turns).reshape(side, 1, 5, 1)
    x = (omega[:, np.newaxis] + turns).reshape(1, side, 1, 5)
    along, across = np.cos(angle) * x + np.sin(angle) * y, np.cos(angle) * y - np.sin(angle) * x

    def bump(frequency: float) -> NDArray[np.float64]:
        squares = (along - frequency) ** 2 + (across / ASPECT_RATIO) ** 2
        total: NDArray[np.float64] = np.exp(-0.5 * (scale * WIDTH) ** 2 * squares).sum(axis=(2, 3))
        return total

    wave, rest = bump(FREQUENCY / scale), bump(0.0)
    wave -= (wave[0, 0] / rest[0, 0]) * rest
    return wave


def _halved(spectra: Spectra, wavelets: Images) -> Images:
    """Return |x ∗ ψ| at every second pixel, by folding the spectrum."""
    half = wavelets.shape[-1] // 2
    low, high = slice(half), slice(half, None)
    folded = spectra[..., low, low] * wavelets[..., low, low]
    for rows, columns in ((low, high), (high, low), (high, high)):
        folded += spectra[..., rows, columns] * wavelets[..., rows, columns]
    folded *= 0.25
    return np.abs(_inverse(folded))


def _forward(pictures: Images) -> Spectra:
    return cast(Spectra, fft.fft2(pictures))  # the type stubs cover only double precision


def _inverse(spectra: Spectra) -> Spectra:
    return cast(Spectra, fft.ifft2(spectra, overwrite_x=True))


def _pooled(responses: Images, window: Images) -> Images:
    """Pool rows, then columns. The products are small, so numpy computes them in one thread."""
    pooled: Images = np.matmul(np.matmul(window, responses), window.T)
    return pooled


def group_normalised(features: Images, groups: int, *, floor: float = FLOOR) -> Images:
    """Divide each row's channels into ``groups``, and scale each group to mean 0 and variance 1.

    A group has consecutive channels. A row is normalised by its own values only, so no statistic of
    the data is released. Returned rows are flat, for a linear model. ``floor`` is added to
    variances, so that nearly constant groups stay small.
    """
    validate.count(groups=groups)
    validate.positive(floor=floor)
    if features.ndim < 2 or features.shape[1] % groups:
        raise InvalidValue("groups", groups, "must divide the number of channels")
    grouped = features.reshape(len(features), groups, -1)
    centred: Images = grouped - grouped.mean(axis=2, keepdims=True)
    variance = np.mean(centred**2, axis=2, keepdims=True)
    centred /= np.sqrt(variance + floor)
    return centred.reshape(len(features), -1)
