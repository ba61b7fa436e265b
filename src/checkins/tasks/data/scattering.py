"""Scattering features of pictures: two layers of wavelets, pooled to a coarse grid.

Nothing is fitted to data. The filters are public constants, and each picture is normalised by its
own values only. The features of one client therefore do not depend on other clients' data. [TB21]
found that, with privacy, linear models on these features classify small pictures better than deep
models.

For a picture x, wavelets ψ of two sizes (0, 1) and L angles, and a Gaussian window φ, where ∗ is
convolution,

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

STRIDE = 4  # distance between samples, in pixels
MARGIN = 4  # width of the mirrored border in pixels, so that opposite edges do not interact
SMALL_WIDTH = 0.8  # standard deviation of the small wavelets' envelope, in pixels
SMALL_FREQUENCY = 0.75 * np.pi  # frequency of the small wavelets, in radians per pixel
VARIANCE_FLOOR = 1e-5  # added to variances before dividing by their roots, as in [TB21]
ROOT_VARIANCE_FLOOR = 5e-3  # the same for variances of the square roots of responses
DIVISOR_FLOOR = 0.01  # added to responses of order 1 before dividing by them
ASPECT_RATIO = 0.5  # width of a wavelet along its direction / width across it
_BATCH_PICTURES = 16  # pictures per batch, so that their order-2 responses fit into the cache


@dataclass(frozen=True)
class Scattering:
    """The scattering transform of square pictures with ``size`` pixels per side.

    ``size`` must be a multiple of four and at least 8.

    Bound:       the transform is non-expansive. Before normalisation, the sum of squares of the
                 features is at most the sum of squares of the picture with its mirrored border.

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
        channels of order 2, by the angles of the small and of the large wavelet.
        """
        side = self.size // STRIDE
        return 1 + 2 * self.angles + self.angles**2, side, side

    def transform(self, images: NDArray[np.floating], *, workers: int = 2) -> Images:
        """Return the responses of orders 0 to 2, in an array of shape (pictures, *shape).

        ``images`` has the shape (pictures, size, size).
        """
        return self._in_batches(images, self.shape, self._responses, workers)

    def features(self, images: NDArray[np.floating], *, workers: int = 2) -> Images:
        """Return flat, normalised features for linear models, of pictures with values in [0, 1].

        Each response of order 2 is divided by the response of order 1 that it is computed from, as
        in [BM13]. The quotient describes how edges are arranged, independently of their strength.
        Then square roots are taken, so that one bright spot does not outweigh the rest. Finally,
        each channel is normalised separately.
        """
        if len(images) and not (images.min() >= 0.0 and images.max() <= 1.0):
            raise InvalidValue("images", "values", "must lie in [0, 1]")

        def batch_features(batch: Images) -> Images:
            responses = self._responses(batch)
            second_order_start = 1 + 2 * self.angles
            first_order = responses[:, 1 : 1 + self.angles]
            second_order = responses[:, second_order_start:].reshape(
                len(responses), self.angles, -1, *self.shape[1:]
            )
            second_order /= first_order[:, :, np.newaxis] + DIVISOR_FLOOR
            return group_normalised(np.sqrt(responses), self.shape[0], floor=ROOT_VARIANCE_FLOOR)

        return self._in_batches(images, (math.prod(self.shape),), batch_features, workers)

    def _in_batches(
        self,
        images: NDArray[np.floating],
        shape: tuple[int, ...],
        compute_batch: Callable[[Images], Images],
        workers: int,
    ) -> Images:
        validate.count(workers=workers)
        if images.ndim != 3 or images.shape[1:] != (self.size, self.size):
            raise InvalidValue("images", images.shape, f"must be N x {self.size} x {self.size}")
        results = np.empty((len(images), *shape), np.float32)

        def fill(first: int) -> None:
            batch = np.asarray(images[first : first + _BATCH_PICTURES], np.float32)
            results[first : first + _BATCH_PICTURES] = compute_batch(batch)

        with ThreadPoolExecutor(workers) as pool:
            for _ in pool.map(fill, range(0, len(images), _BATCH_PICTURES)):
                pass  # iterating raises the errors of the threads
        return results

    def _responses(self, images: Images) -> Images:
        pooling, half_pooling = self._pooling_matrices
        small_wavelets, large_wavelets = self._wavelets
        border = ((0, 0), (MARGIN, MARGIN), (MARGIN, MARGIN))
        pictures = np.pad(images, border, mode="symmetric")[:, np.newaxis]
        spectra = _fft(pictures)
        small_responses = np.abs(_inverse_fft(spectra * small_wavelets))
        large_responses = _subsampled_modulus(spectra, large_wavelets)
        second_order = _subsampled_modulus(_fft(small_responses)[:, :, np.newaxis], large_wavelets)
        responses = (
            _pooled(pictures, pooling),
            _pooled(small_responses, pooling),
            _pooled(large_responses, half_pooling),
            _pooled(second_order.reshape(len(images), -1, *second_order.shape[-2:]), half_pooling),
        )
        return np.concatenate(responses, axis=1)

    @cached_property
    def _wavelets(self) -> tuple[Images, Images]:
        """The real-valued Fourier transforms of the small and of the large wavelets.

        Their axes are (angle, row, column). They are scaled so that, with the window φ, no
        frequency is amplified: Σ|ψ̂|² + |φ̂|² ≤ 1.
        """
        side = self.size + 2 * MARGIN
        small_wavelets, large_wavelets = (
            np.stack([_morlet(side, scale, np.pi * k / self.angles) for k in range(self.angles)])
            for scale in (1, 2)
        )
        window = np.abs(fft.fft(_gaussian(side, np.arange(side), centre=0.0)))
        allowed_energy = 1.0 - np.multiply.outer(window, window) ** 2
        # A real picture has the same energy at ω and at -ω, so a bound on the mean of the energies
        # of the filters at ω and at -ω is enough.
        energy = np.sum(small_wavelets**2 + large_wavelets**2, axis=0)
        energy = 0.5 * (energy + np.roll(energy[::-1, ::-1], 1, axis=(0, 1)))
        max_amplification = np.max(energy.flat[1:] / allowed_energy.flat[1:])
        scale = np.sqrt(max_amplification)
        return _as_float32(small_wavelets / scale), _as_float32(large_wavelets / scale)

    @cached_property
    def _pooling_matrices(self) -> tuple[Images, Images]:
        """Matrices that pool a line of pixels to one sample per ``STRIDE`` pixels.

        The first matrix is for lines of all pixels, the second for lines of every second pixel.
        """
        side = self.size + 2 * MARGIN
        centres = MARGIN + (STRIDE - 1) / 2 + STRIDE * np.arange(self.size // STRIDE)

        def pooling_matrix(step: int) -> Images:
            pixels = np.arange(0, side, step)
            windows = [_gaussian(side, pixels, centre=centre) for centre in centres]
            return _as_float32(np.stack(windows))

        return pooling_matrix(1), pooling_matrix(2)


def _as_float32(constants: NDArray[np.float64]) -> Images:
    """Return constants as float32. Tiny values become 0, because subnormal numbers are slow."""
    return np.ascontiguousarray(np.where(np.abs(constants) < 1e-12, 0.0, constants), np.float32)


def _gaussian(side: int, pixels: NDArray[np.int64], *, centre: float) -> NDArray[np.float64]:
    """Return the periodic window φ around ``centre``, with sum 1."""
    distances = pixels - centre
    distances -= side * np.round(distances / side)
    weights: NDArray[np.float64] = np.exp(-0.5 * (distances / (2 * SMALL_WIDTH)) ** 2)
    weights /= weights.sum()
    return weights


def _morlet(side: int, scale: int, angle: float) -> NDArray[np.float64]:
    """Return the Fourier transform of a wave with a Gaussian envelope, corrected to mean 0.

    On a grid the spectrum is periodic with period 2π, so copies shifted by up to two periods are
    added.
    """
    omega = 2 * np.pi * fft.fftfreq(side)
    periods = 2 * np.pi * np.arange(-2, 3)
    y = (omega[:, np.newaxis] + periods).reshape(side, 1, 5, 1)
    x = (omega[:, np.newaxis] + periods).reshape(1, side, 1, 5)
    along, across = np.cos(angle) * x + np.sin(angle) * y, np.cos(angle) * y - np.sin(angle) * x

    def gaussian_spectrum(frequency: float) -> NDArray[np.float64]:
        squares = (along - frequency) ** 2 + (across / ASPECT_RATIO) ** 2
        copies = np.exp(-0.5 * (scale * SMALL_WIDTH) ** 2 * squares)
        return np.asarray(copies.sum(axis=(2, 3)))

    wavelet, mean_correction = gaussian_spectrum(SMALL_FREQUENCY / scale), gaussian_spectrum(0.0)
    wavelet -= (wavelet[0, 0] / mean_correction[0, 0]) * mean_correction
    return wavelet


def _subsampled_modulus(spectra: Spectra, wavelets: Images) -> Images:
    """Return |x ∗ ψ| at every second pixel, by adding up the four quarters of the spectrum."""
    half = wavelets.shape[-1] // 2
    low, high = slice(half), slice(half, None)
    folded = spectra[..., low, low] * wavelets[..., low, low]
    for rows, columns in ((low, high), (high, low), (high, high)):
        folded += spectra[..., rows, columns] * wavelets[..., rows, columns]
    folded *= 0.25
    return np.abs(_inverse_fft(folded))


def _fft(pictures: Images) -> Spectra:
    return cast(Spectra, fft.fft2(pictures))  # the type stubs cover only double precision


def _inverse_fft(spectra: Spectra) -> Spectra:
    return cast(Spectra, fft.ifft2(spectra, overwrite_x=True))


def _pooled(responses: Images, window: Images) -> Images:
    """Pool rows, then columns. The matrices are small, so numpy multiplies them in one thread."""
    pooled: Images = np.matmul(np.matmul(window, responses), window.T)
    return pooled


def group_normalised(features: Images, groups: int, *, floor: float = VARIANCE_FLOOR) -> Images:
    """Divide each row's channels into ``groups``, and scale each group to mean 0 and variance 1.

    A group has consecutive channels. A row is normalised by its own values only, so no other row
    affects it. Returned rows are flat, for a linear model. ``floor`` is added to variances, so that
    nearly constant groups stay small.
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
