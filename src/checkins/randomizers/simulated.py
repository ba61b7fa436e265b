"""Samplers for simulation only, with a seed and in floating point.

They must not be used with a real client's data, because a seed can be guessed, and because the last
digits of floating-point noise reveal information. ``checkins.randomizers.device`` makes real
reports. The results have the type ``Simulated``, so that they cannot be mistaken for real reports.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from checkins import validate
from checkins.errors import InvalidValue
from checkins.randomizers.clipping import FloatArray, clip_l1, clip_l2
from checkins.randomizers.randomizer import (
    Gaussian,
    Laplace,
    PrivUnit,
    RandomizedResponse,
    Randomizer,
    require_dimension,
)

Array = TypeVar("Array")


class Simulated(NamedTuple, Generic[Array]):
    """Simulated reports, one per row, which are not private. JAX treats the type as a pytree."""

    values: Array

    @property
    def simulated(self) -> bool:
        """Always True, to tell these reports from real reports."""
        return True


def simulate_reports(
    randomizer: Randomizer, updates: npt.ArrayLike, generator: np.random.Generator
) -> Simulated[FloatArray]:
    """Clip and randomize each row of ``updates``, and return one report per row.

    ``updates`` has the shape (n, d). With randomized response among k categories, it has n integers
    from 0 to k − 1, and the reports are vectors in an array of shape (n, k).

    >>> seeded = np.random.default_rng(7)
    >>> simulate_reports(Gaussian(1.0, noise_multiplier=0.1), [[3.0, 4.0]], seeded).simulated
    True
    """
    validate.one_of(np.random.Generator, generator=generator)
    match randomizer:
        case Gaussian():
            clipped = clip_l2(_as_rows(updates), randomizer.clip)
            return Simulated(clipped + generator.normal(0.0, randomizer.std, clipped.shape))
        case Laplace():
            clipped = clip_l1(_as_rows(updates), randomizer.clip)
            return Simulated(clipped + generator.laplace(0.0, randomizer.scale, clipped.shape))
        case PrivUnit():
            directions = _directions(randomizer, _as_rows(updates), generator)
            return Simulated(_draw_points_around(randomizer, directions, generator))
        case RandomizedResponse():
            return Simulated(_responses(randomizer, updates, generator))
    raise InvalidValue("randomizer", randomizer, "must be a description of a randomizer")


def simulate_dummies(
    randomizer: Randomizer, *, count: int, dimension: int, generator: np.random.Generator
) -> Simulated[FloatArray]:
    """Return ``count`` dummies of ``randomizer``.

    A dummy is a report without data, which the server draws in place of a missing report.
    """
    validate.count(count=count, dimension=dimension)
    validate.one_of(np.random.Generator, generator=generator)
    shape = (count, dimension)
    match randomizer:
        case Gaussian():
            return Simulated(generator.normal(0.0, randomizer.std, shape))
        case Laplace():
            return Simulated(generator.laplace(0.0, randomizer.scale, shape))
        case PrivUnit():
            require_dimension(randomizer, dimension)
            return Simulated(randomizer.report_norm * _uniform_directions(shape, generator))
        case RandomizedResponse():
            require_dimension(randomizer, dimension)
            return Simulated(_report_vectors(randomizer, generator.integers(dimension, size=count)))
    raise InvalidValue("randomizer", randomizer, "must be a description of a randomizer")


def _as_rows(updates: npt.ArrayLike) -> FloatArray:
    rows = np.asarray(updates, dtype=np.float64)
    if rows.ndim != 2:
        raise InvalidValue("updates", rows.shape, "must have two axes: one row per report")
    return rows


def _responses(
    response: RandomizedResponse, categories: npt.ArrayLike, generator: np.random.Generator
) -> FloatArray:
    true = np.asarray(categories)
    if true.ndim != 1 or not np.issubdtype(true.dtype, np.integer):
        raise InvalidValue("updates", true.dtype.name, "must be a vector of integer categories")
    if true.size and not (true.min() >= 0 and true.max() < response.categories):
        raise InvalidValue("updates", true, f"must be from 0 to {response.categories - 1}")
    lies = generator.random(true.shape) < response.lie_probability
    steps = generator.integers(1, response.categories, size=true.shape)  # to another category
    return _report_vectors(response, np.where(lies, (true + steps) % response.categories, true))


def _report_vectors(response: RandomizedResponse, reported: npt.NDArray[np.int64]) -> FloatArray:
    vectors = np.full((reported.size, response.categories), response.other_entry)
    vectors[np.arange(reported.size), reported] = response.reported_entry
    return vectors


def _uniform_directions(shape: tuple[int, ...], generator: np.random.Generator) -> FloatArray:
    return _normalised(generator.standard_normal(shape))


def _normalised(rows: FloatArray) -> FloatArray:
    length = np.sqrt(np.einsum("ij,ij->i", rows, rows))[:, np.newaxis]
    return rows / np.where(length > 0.0, length, 1.0)


def _directions(unit: PrivUnit, rows: FloatArray, generator: np.random.Generator) -> FloatArray:
    """Map each clipped update to a random direction whose mean is the update / clip.

    A zero update is mapped to a uniform direction.
    """
    require_dimension(unit, rows.shape[1])
    clipped = clip_l2(rows, unit.clip)
    peak = np.max(np.abs(clipped), axis=1, keepdims=True, initial=0.0)
    scaled = clipped / np.where(peak > 0.0, peak, 1.0)  # so that tiny updates do not underflow
    length = np.sqrt(np.einsum("ij,ij->i", scaled, scaled))[:, np.newaxis] * (peak / unit.clip)
    is_positive = generator.random(length.shape) < (1.0 + length) / 2
    directions = _normalised(scaled) * np.where(is_positive, 1.0, -1.0)
    is_zero = peak[:, 0] == 0.0
    directions[is_zero] = _uniform_directions((int(is_zero.sum()), unit.dimension), generator)
    return directions


def _draw_points_around(
    unit: PrivUnit, directions: FloatArray, generator: np.random.Generator
) -> FloatArray:
    """Draw for each direction a point of the sphere, inside or outside of the cap around it."""
    cosine, sine = _draw_components(unit, directions.shape[0], generator)
    across = generator.standard_normal(directions.shape)
    across -= np.einsum("ij,ij->i", across, directions)[:, np.newaxis] * directions
    points = cosine[:, np.newaxis] * directions + sine[:, np.newaxis] * _normalised(across)
    return np.asarray(unit.report_norm * points)


def _draw_components(
    unit: PrivUnit, count: int, generator: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """Draw the components of ``count`` points along their direction and orthogonal to it."""
    from scipy.special import betainccinv, betaincinv

    cap, half = unit.cap, (unit.dimension - 1) / 2
    outside = generator.random(count) < cap.outside
    if unit.dimension == 1:
        return np.where(outside, -1.0, 1.0), np.zeros(count)
    share = 1.0 - generator.random(count)  # in (0, 1]
    # For a uniform point with component U: above is Pr[U >= component], below Pr[U <= component].
    above = np.where(outside, (1.0 - share) + cap.mass * share, cap.mass * share)
    below = np.where(outside, (1.0 - cap.mass) * share, 1.0)  # not used inside the cap
    tails = np.minimum(1.0, 2.0 * np.minimum(above, below))  # Pr[|U| >= |component|]
    sign = np.where(above < below, 1.0, -1.0)
    return sign * np.sqrt(betainccinv(0.5, half, tails)), np.sqrt(betaincinv(half, 0.5, tails))
