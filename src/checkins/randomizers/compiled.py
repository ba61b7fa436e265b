"""Samplers for the compiled simulation: pure functions of a JAX key, for jit, vmap and scan.

The distributions are the same as in ``simulated``, but the drawn values differ. Reports have the
type of the updates: float32, or float64 if the caller has enabled it. If a constant, such as the
noise scale, does not fit the type, tracing raises InvalidValue. Only this module of the package
imports jax. A dummy is a report without data, which the server draws in place of a missing report.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import betainccinv, betaincinv

from checkins import validate
from checkins.accounting.privunit_cap import tail_moments
from checkins.errors import InvalidValue
from checkins.randomizers.clipping import FloatArray
from checkins.randomizers.randomizer import (
    Gaussian,
    Laplace,
    PrivUnit,
    RandomizedResponse,
    Randomizer,
    require_dimension,
)
from checkins.randomizers.simulated import Simulated

ReportSampler = Callable[[jax.Array, jax.Array], Simulated[jax.Array]]
DummySampler = Callable[[jax.Array], Simulated[jax.Array]]
NoiseSampler = Callable[[jax.Array, tuple[int, ...], jax.typing.DTypeLike], jax.Array]

_SUM_BLOCK = 32  # number of terms of a partial sum
_TABLE_SIZE = 4096  # number of tabulated quantiles of a PrivUnit component
_MAX_LOG_TAIL = 40.0  # e^-40 is less than any positive uniform double of jax.random


def compiled_reports(randomizer: Randomizer, dimension: int) -> ReportSampler:
    """Return a function from (key, updates) to reports, one per row of ``dimension`` numbers.

    With randomized response, the updates are categories: integers from 0, in an array of any shape.
    An integer that is no category becomes the nearest category. Each report is a vector along a
    new last axis.

    >>> report = compiled_reports(Gaussian(1.0, noise_multiplier=0.1), 2)
    >>> jax.jit(report)(jax.random.key(7), jnp.array([[3.0, 4.0]])).values.shape
    (1, 2)
    """
    validate.count(dimension=dimension)
    require_dimension(randomizer, dimension)
    if isinstance(randomizer, PrivUnit):
        return _privunit_reports(randomizer)
    if isinstance(randomizer, RandomizedResponse):
        return _response_reports(randomizer)
    noise = _additive_noise(randomizer)
    clip = clip_l2 if isinstance(randomizer, Gaussian) else clip_l1

    def reports(key: jax.Array, updates: jax.Array) -> Simulated[jax.Array]:
        _require_last_axis(updates, dimension)
        clipped = clip(updates, randomizer.clip)
        return Simulated(clipped + noise(key, clipped.shape, clipped.dtype))

    return reports


def compiled_dummies(
    randomizer: Randomizer, dimension: int, *, count: int, dtype: jax.typing.DTypeLike
) -> DummySampler:
    """Return a function from a key to ``count`` dummies of ``randomizer``."""
    validate.count(count=count, dimension=dimension)
    require_dimension(randomizer, dimension)
    shape, float_type = (count, dimension), jnp.dtype(dtype)
    if isinstance(randomizer, PrivUnit):
        radius = _rounded_constant(randomizer.report_norm, float_type, name="clip")
        return lambda key: Simulated(radius * _uniform_directions(key, shape, float_type))
    if isinstance(randomizer, RandomizedResponse):
        response = randomizer

        def uniform(key: jax.Array) -> Simulated[jax.Array]:
            reported = jax.random.randint(key, (count,), 0, response.categories)
            return Simulated(_report_vectors(response, reported, float_type))

        return uniform
    noise = _additive_noise(randomizer)
    return lambda key: Simulated(noise(key, shape, float_type))


def clip_l2(updates: jax.Array, clip: float) -> jax.Array:
    """Shrink each row (last axis) to an L2 norm of at most ``clip``.

    A row that contains a NaN or an infinity becomes zero.

    Rounding:    the true norm is never above ``clip``. The norm of a shrunk row is at least
                 (1 − margin) ``clip``. Here margin = 4 (32 l + 16) eps, eps is the machine epsilon
                 of the type, and l is log_32 of the dimension, rounded up. In float32, with a
                 dimension of a million, the margin is 7e-5. A row whose norm is at most
                 (1 − margin) ``clip`` is unchanged. Rows of subnormal numbers become zero.
    """
    return _clip(updates, clip, lambda rows: jnp.sqrt(_blockwise_sum(rows * rows)))


def clip_l1(updates: jax.Array, clip: float) -> jax.Array:
    """Shrink each row (last axis) to an L1 norm of at most ``clip``, as ``clip_l2`` does for L2."""
    return _clip(updates, clip, lambda rows: _blockwise_sum(jnp.abs(rows)))


def _clip(updates: jax.Array, clip: float, norm: Callable[[jax.Array], jax.Array]) -> jax.Array:
    validate.positive(clip=clip)
    bound = _rounded_constant(clip, updates.dtype, name="clip")
    limits = np.finfo(updates.dtype)
    finite = jnp.all(jnp.isfinite(updates), axis=-1, keepdims=True)
    x = jnp.where(finite, updates, 0.0)
    largest = jnp.max(jnp.abs(x), axis=-1, keepdims=True, initial=0.0)
    x = jnp.where(largest >= limits.tiny, x, 0.0)  # processors differ on subnormal numbers
    # XLA may replace a division by a reciprocal, which must neither overflow nor underflow.
    scale = jnp.where(largest > 1.0, 2.0 ** (-limits.maxexp // 2), 1.0).astype(x.dtype)
    y = (x * scale) / jnp.where(largest >= limits.tiny, largest * scale, 1.0)
    margin = _sum_margin(updates.shape[-1], updates.dtype)
    norm_above = jnp.maximum(norm(y), 1.0) * (1.0 + margin)  # the largest entry of y is 1
    is_inside = largest * norm_above <= bound
    return jnp.where(is_inside, x, y * (bound / (norm_above * (1.0 + 2.0 * margin))))


def _sum_levels(dimension: int) -> int:
    """Return how often sums of blocks are taken until one number remains."""
    levels = 1
    while _SUM_BLOCK**levels < dimension:
        levels += 1
    return levels


def _sum_margin(dimension: int, dtype: jax.typing.DTypeLike) -> float:
    """Return an upper bound on the relative error of a norm that uses ``_blockwise_sum``."""
    return (_SUM_BLOCK * _sum_levels(dimension) + 16) * float(np.finfo(dtype).eps)


def _blockwise_sum(terms: jax.Array) -> jax.Array:
    """Sum blocks along the last axis, then blocks of these sums, and so on.

    Every partial sum has few terms, so the error is small in any order of summation. In float32,
    a plain sum of a million terms could be wrong by several per cent.
    """
    for _ in range(_sum_levels(terms.shape[-1])):
        blocks = -(-terms.shape[-1] // _SUM_BLOCK)
        padding = [(0, 0)] * (terms.ndim - 1) + [(0, blocks * _SUM_BLOCK - terms.shape[-1])]
        padded = jnp.pad(terms, padding).reshape(*terms.shape[:-1], blocks, _SUM_BLOCK)
        # Without a barrier, XLA may merge the sums into one.
        terms = jax.lax.optimization_barrier(padded.sum(axis=-1))  # type: ignore[no-untyped-call]
    return terms


def _rounded_constant(value: float, dtype: jax.typing.DTypeLike, *, name: str) -> float:
    """Return ``value`` rounded toward zero to ``dtype``.

    Raises InvalidValue if it is outside the range of normal numbers of ``dtype``.
    """
    float_type = np.dtype(dtype)
    if float_type not in (np.float32, np.float64):
        raise InvalidValue("updates", float_type.name, "must be of float32 or float64")
    limits = np.finfo(float_type)
    if not float(limits.tiny) <= value <= float(limits.max):
        raise InvalidValue(name, value, f"makes reports that do not fit {float_type.name}")
    nearest = float_type.type(value)
    return float(nearest if nearest <= value else np.nextafter(nearest, float_type.type(0.0)))


def _require_last_axis(updates: jax.Array, dimension: int) -> None:
    if updates.ndim == 0 or updates.shape[-1] != dimension:
        raise InvalidValue("updates", updates.shape, f"must have a last axis of {dimension}")


def _additive_noise(randomizer: Gaussian | Laplace) -> NoiseSampler:
    draw, scale = (
        (jax.random.normal, randomizer.std)
        if isinstance(randomizer, Gaussian)
        else (jax.random.laplace, randomizer.scale)
    )

    def noise(key: jax.Array, shape: tuple[int, ...], dtype: jax.typing.DTypeLike) -> jax.Array:
        return _rounded_constant(scale, dtype, name="clip") * draw(key, shape, dtype)

    return noise


def _response_reports(response: RandomizedResponse) -> ReportSampler:
    k = response.categories

    def reports(key: jax.Array, updates: jax.Array) -> Simulated[jax.Array]:
        lie_key, step_key = jax.random.split(key)
        true = jnp.clip(updates, 0, k - 1)
        lies = jax.random.uniform(lie_key, true.shape) < response.lie_probability
        other = jax.random.randint(step_key, true.shape, 0, k - 1)
        other = other + (other >= true)  # uniform among the other categories
        return Simulated(
            _report_vectors(response, jnp.where(lies, other, true), jnp.result_type(float))
        )

    return reports


def _report_vectors(
    response: RandomizedResponse, reported: jax.Array, dtype: jax.typing.DTypeLike
) -> jax.Array:
    is_reported = reported[..., jnp.newaxis] == jnp.arange(response.categories)
    return jnp.where(is_reported, response.reported_entry, response.other_entry).astype(dtype)


def _uniform_directions(
    key: jax.Array, shape: tuple[int, ...], dtype: jax.typing.DTypeLike
) -> jax.Array:
    return _normalised(jax.random.normal(key, shape, dtype))


def _normalised(rows: jax.Array) -> jax.Array:
    length = jnp.sqrt(jnp.sum(rows * rows, axis=-1, keepdims=True))
    return rows / jnp.where(length > 0.0, length, 1.0)


def _privunit_reports(unit: PrivUnit) -> ReportSampler:
    cosine_sampler = _cosine_sampler(unit)

    def reports(key: jax.Array, updates: jax.Array) -> Simulated[jax.Array]:
        _require_last_axis(updates, unit.dimension)
        radius = _rounded_constant(unit.report_norm, updates.dtype, name="clip")
        uniform_key, normal_key = jax.random.split(key)
        uniforms = jax.random.uniform(uniform_key, (3, *updates.shape[:-1], 1), updates.dtype)
        normals = jax.random.normal(normal_key, (2, *updates.shape), updates.dtype)
        directions = _directions(unit, updates, coins=uniforms[0], uniform=_normalised(normals[0]))
        cosine = cosine_sampler(uniforms[1], 1.0 - uniforms[2])
        sine = jnp.sqrt((1.0 - cosine) * (1.0 + cosine))
        along = jnp.sum(normals[1] * directions, axis=-1, keepdims=True)
        across = _normalised(normals[1] - along * directions)
        return Simulated(radius * (cosine * directions + sine * across))

    return reports


def _directions(
    unit: PrivUnit, updates: jax.Array, *, coins: jax.Array, uniform: jax.Array
) -> jax.Array:
    """Map each clipped update to a random direction whose mean is the update / clip.

    A zero update is mapped to ``uniform``.
    """
    clipped = clip_l2(updates, unit.clip)
    largest = jnp.max(jnp.abs(clipped), axis=-1, keepdims=True)
    scaled = clipped / jnp.where(largest > 0.0, largest, 1.0)
    length = jnp.sqrt(jnp.sum(scaled * scaled, axis=-1, keepdims=True)) * (largest / unit.clip)
    sign = jnp.where(coins < (1.0 + length) / 2, 1.0, -1.0).astype(scaled.dtype)
    return jnp.where(largest > 0.0, sign * _normalised(scaled), uniform)


def _cosine_sampler(unit: PrivUnit) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Return a function that draws the component of a PrivUnit report along its direction.

    The report is a point of the unit sphere, so this component is a cosine. The function has two
    arguments, which must be uniform random numbers. ``coins`` in [0, 1) decide whether a report is
    inside or outside of the cap. ``shares`` in (0, 1] decide which quantile of its distribution in
    that part the component is.
    """
    cap = unit.cap
    if unit.dimension == 1:
        return lambda coins, shares: jnp.where(coins < cap.outside, -1.0, 1.0).astype(shares.dtype)
    log_mass = math.log(cap.mass)
    component = _component_quantile(unit.dimension, max_logit=cap.cap_epsilon + _MAX_LOG_TAIL)

    def cosines(coins: jax.Array, shares: jax.Array) -> jax.Array:
        log_above = log_mass + jnp.log(shares)  # a logarithm, because the mass may not fit float32
        in_cap = jnp.log1p(-jnp.exp(log_above)) - log_above
        below = (1.0 - cap.mass) * shares
        outside_cap = jnp.log(below) - jnp.log((1.0 - shares) + cap.mass * shares)
        logit = jnp.where(coins < cap.outside, jnp.minimum(outside_cap, cap.cap_epsilon), in_cap)
        return component(logit)

    return cosines


def _component_quantile(d: int, *, max_logit: float) -> Callable[[jax.Array], jax.Array]:
    """Return the quantile function of one component of a uniform direction in dimension d.

    The argument of this function is the logit of a probability, between −max_logit and max_logit.
    The function is odd, and is interpolated by cubics between equally spaced logits. Besides the
    rounding of float32, its error is below 1e-8 standard deviations.
    """
    logits = np.linspace(0.0, max_logit, _TABLE_SIZE)
    step = float(logits[1])
    values, slopes = _quantiles_and_slopes(d, logits)

    def component(logit: jax.Array) -> jax.Array:
        place = jnp.minimum(jnp.abs(logit) / step, _TABLE_SIZE - 1.0)
        cell = jnp.clip(place.astype(jnp.int32), 0, _TABLE_SIZE - 2)
        x = place - cell
        knots, rises = jnp.asarray(values, x.dtype), jnp.asarray(slopes * step, x.dtype)
        start, s0, s1 = knots[cell], rises[cell], rises[cell + 1]
        rise = knots[cell + 1] - start
        value = start + x * (s0 + x * ((3 * rise - 2 * s0 - s1) + x * (s0 + s1 - 2 * rise)))
        return jnp.sign(logit) * jnp.clip(value, 0.0, 1.0)

    return component


def _quantiles_and_slopes(d: int, logits: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the quantiles at these logits, which are at least 0, and their derivatives."""
    half = (d - 1) / 2
    above = 1.0 / (1.0 + np.exp(logits))
    values = np.sqrt(betainccinv(0.5, half, 2 * above))
    log_rest = np.where(
        values < 0.7,
        np.log1p(-(np.minimum(values, 0.7) ** 2)),
        np.log(betaincinv(half, 0.5, 2 * above)),
    )
    # Let U be one component of a uniform direction. Its density at t is
    # density(0) (1 - t²)^((d-3)/2), where density(0) = (d - 1) E[max(U, 0)].
    density = (d - 1) * tail_moments(0.0, d)[1] * np.exp((d - 3) / 2 * log_rest)
    return values, above * (1.0 - above) / density
