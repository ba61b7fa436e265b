"""Scattering features: the fast transform is the definition, and each picture stands alone."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from checkins.errors import InvalidValue
from checkins.tasks.data.scattering import (
    ASPECT_RATIO,
    MARGIN,
    SMALL_FREQUENCY,
    SMALL_WIDTH,
    Scattering,
    group_normalised,
)

pictures = hnp.arrays(np.float32, (16, 16), elements=st.floats(-1, 1, width=32))


def random_pictures(rows: int, size: int = 28) -> np.ndarray:
    return np.random.default_rng(3).random((rows, size, size), np.float32)


@cache
def wavelet_in_space(side: int, scale: int, angle: float) -> np.ndarray:
    """A Morlet wavelet by its formula in space, repeated with the period of the grid."""
    spread, frequency = SMALL_WIDTH * scale, SMALL_FREQUENCY / scale
    y, x = np.mgrid[-2 * side : 3 * side, -2 * side : 3 * side].astype(float)
    along, across = np.cos(angle) * x + np.sin(angle) * y, np.cos(angle) * y - np.sin(angle) * x
    envelope = np.exp(-(along**2 + (ASPECT_RATIO * across) ** 2) / (2 * spread**2))

    def repeated(values: np.ndarray) -> np.ndarray:
        return values.reshape(5, side, 5, side).sum(axis=(0, 2))

    wave, rest = repeated(envelope * np.exp(1j * frequency * along)), repeated(envelope)
    wave = wave - wave.sum() / rest.sum() * rest
    return wave * ASPECT_RATIO / (2 * np.pi * spread**2)  # the envelope's integral is then 1


def convolved(picture: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """Σ_v x(v) k(u − v) with wrapped borders, one pixel at a time."""
    total = np.zeros(picture.shape, np.result_type(picture, kernel))
    for (row, column), value in np.ndenumerate(picture):
        total += value * np.roll(kernel, (row, column), axis=(0, 1))
    return total


def by_definition(picture: np.ndarray, *, angles: int, gain: float) -> np.ndarray:
    """Orders 0, 1 and 2 in double precision, without any Fourier transform."""
    side = len(picture) + 2 * MARGIN
    x = np.pad(picture.astype(float), MARGIN, mode="symmetric")

    def pooled(response: np.ndarray, step: int) -> np.ndarray:
        pixels = np.arange(0, side, step)
        centres = np.arange(MARGIN + 1.5, MARGIN + len(picture), 4)
        distances = np.abs(pixels - centres[:, np.newaxis])
        distances = np.minimum(distances, side - distances)
        weights = np.exp(-0.5 * (distances / (2 * SMALL_WIDTH)) ** 2)
        weights /= weights.sum(axis=1, keepdims=True)
        return weights @ response[::step, ::step] @ weights.T

    def seen(response: np.ndarray, scale: int) -> list[np.ndarray]:
        turns = np.pi * np.arange(angles) / angles
        return [
            np.abs(convolved(response, gain * wavelet_in_space(side, scale, turn)))
            for turn in turns
        ]

    edges, shapes = seen(x, 1), seen(x, 2)
    textures = [texture for edge in edges for texture in seen(edge, 2)]
    channels = [pooled(x, 1), *(pooled(edge, 1) for edge in edges)]
    channels += [pooled(response, 2) for response in (*shapes, *textures)]
    return np.stack(channels)


def gain_of(scattering: Scattering) -> float:
    """What the fast transform scales its wavelets by, from the response to one of them."""
    side = scattering.size + 2 * MARGIN
    spectrum = np.fft.fft2(wavelet_in_space(side, 1, 0.0)).real
    place = np.unravel_index(np.argmax(spectrum), spectrum.shape)
    return float(scattering._wavelets[0][0][place] / spectrum[place])


@pytest.mark.parametrize("angles", [1, 3])
def test_the_fast_transform_is_the_definition(angles):
    scattering = Scattering(8, angles)
    images = random_pictures(2, 8)
    features = scattering.transform(images)
    for picture, fast in zip(images, features, strict=True):
        slow = by_definition(picture, angles=angles, gain=gain_of(scattering))
        np.testing.assert_allclose(fast, slow, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("size", "angles"), [(28, 8), (8, 1), (16, 4), (32, 8)])
def test_there_is_a_channel_for_each_path(size, angles):
    scattering = Scattering(size, angles)
    assert scattering.shape == (1 + 2 * angles + angles**2, size // 4, size // 4)
    features = scattering.transform(random_pictures(3, size))
    assert features.shape == (3, *scattering.shape)
    assert features.dtype == np.float32


def test_no_frequency_is_amplified_and_few_are_lost() -> None:
    scattering = Scattering(28)
    side = 36
    small, large = (wavelets.astype(float) for wavelets in scattering._wavelets)
    pixels = np.minimum(np.arange(side), side - np.arange(side))
    window = np.exp(-0.5 * (pixels / (2 * SMALL_WIDTH)) ** 2)
    window_spectrum = np.fft.fft(window / window.sum()).real
    power = np.sum(small**2 + large**2, axis=0)
    power = 0.5 * (power + np.roll(power[::-1, ::-1], 1, axis=(0, 1)))
    power += np.multiply.outer(window_spectrum, window_spectrum) ** 2
    assert power.max() <= 1.0 + 1e-6
    assert power[0, 0] == pytest.approx(1.0)
    radius = np.hypot(*np.meshgrid(np.fft.fftfreq(side), np.fft.fftfreq(side)))
    assert power[radius < 0.45].min() > 0.1  # what a wavelet can see, some wavelet does


@given(pictures)
def test_features_hold_no_more_energy_than_the_picture(picture):
    features = Scattering(16, 4).transform(picture[np.newaxis])
    energy = np.sum(np.pad(picture, MARGIN, mode="symmetric").astype(float) ** 2)
    assert np.sum(features.astype(float) ** 2) <= energy * (1 + 1e-5)


@settings(max_examples=20)
@given(pictures, pictures)
def test_pictures_never_move_apart(one, other):
    features = Scattering(16, 4).transform(np.stack([one, other])).astype(float)
    border = np.pad(one.astype(float) - other, MARGIN, mode="symmetric")
    assert np.linalg.norm(features[0] - features[1]) <= np.linalg.norm(border) + 1e-4


def test_a_picture_moved_by_a_cell_moves_its_features_by_a_cell() -> None:
    blob = np.zeros((28, 28), np.float32)
    blob[8:16, 8:16] = random_pictures(1, 8)[0]
    moved = np.roll(blob, 4, axis=1)
    features, after = Scattering(28).transform(np.stack([blob, moved]))
    np.testing.assert_allclose(after[:, 1:6, 2:6], features[:, 1:6, 1:5], rtol=1e-3, atol=1e-5)


def test_a_picture_moved_by_a_pixel_hardly_moves_its_features() -> None:
    blob = np.zeros((28, 28), np.float32)
    blob[8:20, 8:20] = random_pictures(1, 12)[0]
    moved = np.roll(blob, 1, axis=1)
    features = Scattering(28).transform(np.stack([blob, moved]))
    apart = np.linalg.norm(features[0] - features[1]) / np.linalg.norm(features[0])
    pixels_apart = np.linalg.norm(blob - moved) / np.linalg.norm(blob)
    assert apart < 0.35 * pixels_apart


def test_a_flat_picture_is_seen_by_the_window_alone() -> None:
    features = Scattering(28).transform(np.full((1, 28, 28), 0.7, np.float32))
    np.testing.assert_allclose(features[0, 0], 0.7, rtol=1e-5)
    np.testing.assert_allclose(features[0, 1:], 0.0, atol=1e-5)


def test_stripes_are_seen_by_the_wavelet_that_lies_across_them() -> None:
    wave = np.cos(SMALL_FREQUENCY * np.arange(28))
    upright = np.broadcast_to(wave, (28, 28))
    features = Scattering(28).transform(np.stack([upright, upright.T])).mean(axis=(2, 3))
    assert features[0, 1:9].argmax() == 0  # angle 0: the wave runs along the columns
    assert features[1, 1:9].argmax() == 4  # a quarter turn


@pytest.mark.parametrize("workers", [1, 3])
def test_the_features_of_a_picture_do_not_depend_on_others(workers):
    images = random_pictures(21)
    scattering = Scattering(28)
    together = scattering.transform(images, workers=workers)
    np.testing.assert_array_equal(together[17:18], scattering.transform(images[17:18]))


def test_no_pictures_have_no_features() -> None:
    assert Scattering(28).transform(np.zeros((0, 28, 28), np.float32)).shape == (0, 81, 7, 7)


@pytest.mark.parametrize("groups", [1, 27, 81])
def test_each_group_of_each_picture_has_mean_0_and_variance_1(groups):
    features = 10 * Scattering(28).transform(random_pictures(3))
    normal = group_normalised(features, groups)
    assert normal.shape == (3, 3969)
    assert normal.dtype == np.float32
    grouped = normal.reshape(3, groups, -1)
    np.testing.assert_allclose(grouped.mean(axis=2), 0.0, atol=1e-5)
    variance = features.reshape(3, groups, -1).var(axis=2)
    np.testing.assert_allclose(grouped.var(axis=2), variance / (variance + 1e-5), rtol=1e-3)
    assert np.all(np.linalg.norm(normal, axis=1) <= np.sqrt(3969) * (1 + 1e-5))


@pytest.mark.parametrize("angles", [2, 8])
def test_features_are_normalised_roots_with_order_2_relative_to_its_order_1(angles):
    images = random_pictures(20)
    scattering = Scattering(28, angles)
    seen = scattering.transform(images)
    for one in range(angles):
        for two in range(angles):
            seen[:, 1 + 2 * angles + one * angles + two] /= seen[:, 1 + one] + 0.01
    expected = group_normalised(np.sqrt(seen), scattering.shape[0], floor=5e-3)
    np.testing.assert_allclose(scattering.features(images), expected, rtol=1e-4, atol=1e-5)


def test_features_of_a_fainter_picture_keep_the_arrangement_of_its_edges() -> None:
    images = random_pictures(4)
    bright, faint = (Scattering(28).features(scale * images) for scale in (1.0, 0.5))
    alike = np.sum(bright * faint) / (np.linalg.norm(bright) * np.linalg.norm(faint))
    assert alike > 0.98


@given(hnp.arrays(np.float32, (16, 16), elements=st.floats(0, 1, width=32)))
def test_features_of_any_picture_are_finite_and_short(picture):
    features = Scattering(16, 2).features(picture[np.newaxis])
    assert np.all(np.isfinite(features))
    assert np.linalg.norm(features) <= np.sqrt(features.size) * (1 + 1e-5)


def test_a_picture_is_normalised_by_itself_alone() -> None:
    features = Scattering(28).transform(random_pictures(5))
    np.testing.assert_array_equal(
        group_normalised(features, 27)[2:3], group_normalised(features[2:3], 27)
    )
    assert not np.any(group_normalised(np.ones((2, 81, 7, 7), np.float32), 27))


@pytest.mark.parametrize(
    "call",
    [
        lambda: Scattering(30),
        lambda: Scattering(4),
        lambda: Scattering(28, angles=0),
        lambda: Scattering(28).transform(np.zeros((28, 28), np.float32)),
        lambda: Scattering(28).transform(np.zeros((2, 32, 32), np.float32)),
        lambda: Scattering(28).transform(np.zeros((2, 28, 28), np.float32), workers=0),
        lambda: Scattering(28).features(np.full((2, 28, 28), 1.01)),
        lambda: Scattering(28).features(np.full((2, 28, 28), -0.01)),
        lambda: Scattering(28).features(np.full((2, 28, 28), np.nan)),
        lambda: group_normalised(np.zeros((2, 81, 7, 7), np.float32), 10),
        lambda: group_normalised(np.zeros((2, 81, 7, 7), np.float32), 9, floor=0.0),
        lambda: group_normalised(np.zeros((2, 81, 7, 7), np.float32), 0),
    ],
)
def test_what_does_not_fit_is_refused(call):
    with pytest.raises(InvalidValue):
        call()
