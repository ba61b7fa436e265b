"""The mechanism of a campaign or baseline: sampling, noise of a slot's sum, divisor of the sum.

Only the sum of a slot's reports is released, so only the distribution of the sum's noise matters:

    Gaussian    the sum of K noises with standard deviation σ has standard deviation √K σ
    Laplace     the sum of K noises of scale b is b (G − G′), where G and G′ are Gamma of shape K

The rule for Laplace holds because a Laplace variable is the difference of two exponential ones, and
the sum of K exponential variables is a Gamma variable. Noise is drawn for many slots at a time,
before the loop that uses it. On a CPU, separate threads draw it, because drawing inside the
compiled loop would take most of the loop's time. An accelerator draws Gaussian noise itself.

Theorem:     Algorithms 1 and 2, and section 4.2: the noise of a slot's sum, and its divisor.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from threading import Lock
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from checkins.accounting import Design, GaussianNoise, NoiseAt, Protocol
from checkins.campaign import Campaign
from checkins.errors import InvalidValue
from checkins.randomizers import Gaussian, Laplace, PrivUnit, Randomizer
from checkins.simulation.engine.loop import IGNORED_ROW, SKIPPED_SLOT, Coefficients
from checkins.simulation.engine.updates import Clip
from checkins.simulation.population import Counts, Sampling

Rows = NDArray[Any]

BLOCK_VALUES = 1 << 17
"""Approximate number of noise values that one random generator draws."""

NOISE_THREADS = 2
"""Number of threads that draw noise. One thread would be slower than the loop of a small model."""

_CACHE_LINE_BYTES = 64


class NoiseKind(Enum):
    """What ``draw_noise`` draws for a slot, before the loop multiplies it by ``noise_scales``."""

    GAUSSIAN = "one standard normal variable per coordinate"
    LAPLACE = "the sum of standard Laplace variables, one per report, per coordinate"
    PER_REPORT = "a random key, from which the loop draws each report separately"


class BufferRing:
    """Arrays of random 32-bit words, reused in turn. JAX on a CPU reads them without a copy.

    Allocating memory for every chunk is measurably slower. An array must not be overwritten while
    JAX reads it. With ``prefetched``, at most ``NOISE_THREADS`` + 2 arrays are in use at a time, so
    one array more is enough.
    """

    SIZE = NOISE_THREADS + 3

    def __init__(self) -> None:
        self._arrays: list[Rows] = []
        self._index = 0
        self._lock = Lock()

    def next_array(self, shape: tuple[int, int]) -> Rows:
        """Return the next array of the ring, for the caller to overwrite."""
        size = math.prod(shape)
        with self._lock:
            if not self._arrays or self._arrays[0].size < size:
                self._arrays = [_aligned_words(size) for _ in range(self.SIZE)]
            self._index = (self._index + 1) % self.SIZE
            return self._arrays[self._index][:size].reshape(shape)


def _aligned_words(size: int) -> Rows:
    """Return an array that starts at a cache line, so that JAX can use it without a copy."""
    length = size * np.dtype(np.uint32).itemsize
    raw = np.empty(length + _CACHE_LINE_BYTES, np.uint8)
    start = -raw.ctypes.data % _CACHE_LINE_BYTES
    return raw[start : start + length].view(np.uint32)


def block_slots(dimension: int) -> int:
    """Return the number of slots in a block, whose noise is drawn from one random generator."""
    return max(1, BLOCK_VALUES // dimension)


def draw_noise(
    kind: NoiseKind,
    noise_terms: NDArray[np.int64],
    dimension: int,
    *,
    seeds: Sequence[int],
    first: int,
    rows: int,
    dtype: Any,
    ring: BufferRing,
) -> Any:
    """Return one row of noise for each of ``rows`` slots of a run, from slot ``first`` on.

    ``kind`` decides what a row is:

    - Gaussian: one standard normal variable per coordinate, whatever ``noise_terms`` says. The
      caller multiplies it by the deviation of the sum (``Mechanism.noise_scales``). In float32, it
      is the inverse of the normal distribution function at the middle of one of 2^23 equal parts
      of (0, 1), as JAX draws it. So its absolute value is at most 5.3.
    - Laplace: the sum of ``noise_terms`` standard Laplace variables per coordinate.
    - per report: two random 32-bit words, the key from which the loop draws each report.

    A row does not depend on ``first`` and ``rows``. Rows after the last slot hold arbitrary finite
    values.
    """
    slots_per_block = block_slots(dimension)
    is_float32_gaussian = kind is NoiseKind.GAUSSIAN and dtype == np.float32
    if is_float32_gaussian:
        noise = ring.next_array((rows, dimension))
    elif kind is NoiseKind.PER_REPORT:
        noise = np.zeros((rows, 2), np.uint32)
    else:
        noise = np.zeros((rows, dimension), dtype)
    end_slot = min(first + rows, len(noise_terms))
    for start in range(first - first % slots_per_block, end_slot, slots_per_block):
        generator = np.random.Generator(np.random.SFC64(np.random.SeedSequence([*seeds, start])))
        block_terms = noise_terms[start : min(start + slots_per_block, end_slot)]
        block = _draw_block(kind, block_terms, dimension, generator, dtype)
        wanted_rows = block[max(0, first - start) :]
        row = max(0, start - first)
        noise[row : row + len(wanted_rows)] = wanted_rows
    return _normals(jax.device_put(noise)) if is_float32_gaussian else noise


def _draw_block(
    kind: NoiseKind,
    noise_terms: NDArray[np.int64],
    dimension: int,
    generator: np.random.Generator,
    dtype: Any,
) -> Rows:
    """Draw the noise of a block slot by slot, so that it does not depend on later slots."""
    shape = (len(noise_terms), dimension)
    if kind is NoiseKind.GAUSSIAN and dtype == np.float32:
        raw = generator.bit_generator.random_raw(-(-math.prod(shape) // 2))
        return np.asarray(raw).view(np.uint32)[: math.prod(shape)].reshape(shape)
    if kind is NoiseKind.GAUSSIAN:
        return generator.standard_normal(shape, dtype)
    if kind is NoiseKind.LAPLACE:
        shape_of_pairs = (len(noise_terms), 2, dimension)
        gamma_shapes = np.broadcast_to(noise_terms[:, np.newaxis, np.newaxis], shape_of_pairs)
        gammas = generator.standard_gamma(gamma_shapes, dtype=dtype)
        return np.asarray(gammas[:, 0] - gammas[:, 1])
    return generator.integers(0, 2**32, (len(noise_terms), 2), dtype=np.uint32)


@jax.jit
def _normals(random_words: Any) -> Any:
    """Return one normal variable per random 32-bit word, twice as fast as numpy draws it."""
    middles = ((random_words >> 9).astype(jnp.float32) + 0.5) * jnp.float32(2.0**-22) - 1.0
    return jnp.float32(math.sqrt(2.0)) * jax.lax.erf_inv(middles)


def prefetched(items: Iterator[Any], compute: Any) -> Iterator[tuple[Any, Any]]:
    """Yield pairs (item, compute(item)) in order, while threads compute the next items."""
    with ThreadPoolExecutor(NOISE_THREADS, thread_name_prefix="noise") as pool:
        pending: deque[tuple[Any, Future[Any]]] = deque()
        try:
            for item in items:
                pending.append((item, pool.submit(compute, item)))
                if len(pending) > NOISE_THREADS:
                    finished_item, future = pending.popleft()
                    yield finished_item, future.result()
            for finished_item, future in pending:
                yield finished_item, future.result()
        finally:
            for _, future in pending:
                future.cancel()


@dataclass(frozen=True, slots=True)
class Mechanism:
    """A design with its randomizer and divisor, run ``runs`` times with independent randomness."""

    design: Design
    runs: int
    randomizer: Randomizer
    noise_at: NoiseAt
    divide_by: int | None
    """The public number that a slot's sum is divided by; None if reports are averaged."""
    sampling: Sampling = Sampling.CHECK_INS

    def __post_init__(self) -> None:
        if not isinstance(self.randomizer, Gaussian | Laplace | PrivUnit):
            why = "reports categories, not model updates: use gaussian, laplace or privunit"
            raise InvalidValue("randomizer", type(self.randomizer).__name__, why)

    @classmethod
    def of(cls, campaign: Campaign, dimension: int) -> Mechanism:
        """Return the mechanism of a campaign whose model has ``dimension`` weights."""
        optimizer = None if campaign.task is None else campaign.task.optimizer
        return cls(
            campaign.design,
            campaign.repeats,
            campaign.mechanism(dimension),
            campaign.noise_at or NoiseAt.CLIENT,
            None if optimizer is None else optimizer.divide_by,
        )

    @property
    def is_averaged(self) -> bool:
        return self.design.protocol is Protocol.AVERAGED

    @property
    def coefficients(self) -> Coefficients | None:
        """The coefficients of noise that is correlated across slots; None if it is independent."""
        noise = self.design.randomizer
        strategy = noise.strategy if isinstance(noise, GaussianNoise) else None
        return None if strategy is None else strategy.coefficients

    @property
    def warm_up(self) -> int:
        """Number of slots at the start of a run of the sliding protocol that release nothing."""
        return (self.design.window or 1) - 1

    @property
    def noise_kind(self) -> NoiseKind:
        """What is drawn for each slot: noise of its sum, or a key with PrivUnit."""
        if isinstance(self.randomizer, Gaussian):
            return NoiseKind.GAUSSIAN
        return NoiseKind.LAPLACE if isinstance(self.randomizer, Laplace) else NoiseKind.PER_REPORT

    @property
    def clip(self) -> Clip:
        return Clip(self.randomizer.clip, is_l1=isinstance(self.randomizer, Laplace))  # type: ignore[union-attr]

    def noise_terms(self, reports: Counts) -> Counts:
        """Return the number of reports, real or dummy, whose noise is in each slot's sum."""
        return reports if self.is_averaged else np.full_like(reports, self.design.reports_per_slot)

    def noise_scales(self, reports: Counts) -> NDArray[np.float64]:
        """Return the factor that each slot's noise is multiplied by."""
        if isinstance(self.randomizer, Gaussian):
            scale = self.randomizer.clip * self.randomizer.noise_multiplier
            if self.noise_at is NoiseAt.SERVER:
                return np.full(reports.shape, scale)
            return scale * np.sqrt(self.noise_terms(reports))
        if isinstance(self.randomizer, Laplace):
            return np.full(reports.shape, self.randomizer.scale)
        # With PrivUnit, this is the factor of the dummies. Averaged slots have none.
        return np.full(reports.shape, 0.0 if self.is_averaged else 1.0)

    def divisors(self, reports: Counts) -> NDArray[np.float64]:
        """Return the divisor of each slot's sum; for the special values, see ``SKIPPED_SLOT``."""
        if self.is_averaged:
            return np.where(reports >= (self.design.least_reports or 1), reports, SKIPPED_SLOT)
        divisors = np.full(reports.shape, float(self.divide_by or 1))
        divisors[: self.warm_up] = IGNORED_ROW  # without a step
        return divisors

    def dummies(self, reports: Counts) -> int:
        """Return the number of dummies in a run.

        A dummy is a report without data, which the server draws in place of a missing report.
        """
        if self.is_averaged or self.noise_at is NoiseAt.SERVER or self.sampling is Sampling.POISSON:
            return 0
        missing = self.design.reports_per_slot - reports
        return int(missing[self.warm_up :].sum())

    @property
    def noise_description(self) -> str:
        """The noise in a few words, for a table of methods."""
        randomizer: Any = self.randomizer
        if isinstance(randomizer, Gaussian):
            noise = f"Gaussian, {randomizer.noise_multiplier:.4g} × clip norm"
            if self.noise_at is NoiseAt.SERVER:
                bands = 1 if self.coefficients is None else len(self.coefficients)
                correlated = f", correlated over {bands:,} slots" if bands > 1 else ""
                return f"{noise} on the sum of a slot{correlated}"
            if self.is_averaged or not self.design.capacity:
                return f"{noise} on each report"
            sum_multiplier = math.sqrt(self.design.capacity) * randomizer.noise_multiplier
            return f"{noise} on each report, {sum_multiplier:.4g} on a sum"
        return f"{type(randomizer).__name__}, local epsilon {randomizer.local_epsilon:.4g}"
