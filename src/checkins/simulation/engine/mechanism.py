"""The mechanism of a campaign or baseline: sampling, noise of a slot's sum, and divisor of the sum.

Only the sum of a slot's reports is released, so only the distribution of the sum's noise matters:

    Gaussian    the sum of K noises of deviation σ has deviation √K σ
    Laplace     the sum of K noises of scale b is b (G − G′), where G and G′ are Gamma of shape K

The second line holds because a Laplace variable is the difference of two exponential variables,
and the sum of K exponential variables is a Gamma variable. Noise is drawn for many slots at a time,
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

from checkins.accounting import Design, NoiseAt, Protocol
from checkins.campaign import Campaign
from checkins.errors import InvalidValue
from checkins.randomizers import Gaussian, Laplace, PrivUnit, Randomizer
from checkins.simulation.engine.loop import IGNORED, SKIPPED
from checkins.simulation.engine.updates import Clip
from checkins.simulation.population import Counts, Sampling

Rows = NDArray[Any]

BLOCK = 1 << 17
"""Approximate number of values that are drawn from one random generator."""

THREADS = 2
"""Number of threads that draw noise. With small models, the loop is faster than one thread."""

_LINE = 64  # bytes


class NoiseKind(Enum):
    """The distribution of the noise of one report, in units of its scale."""

    GAUSSIAN = "gaussian"
    LAPLACE = "laplace"
    PER_REPORT = "none: each report is drawn separately, from a key of its slot"


class BufferRing:
    """A few arrays that are used in turn. JAX on a CPU reads them without a copy.

    Allocating memory for every chunk is measurably slower. With ``prefetched``, at most
    ``THREADS`` + 2 arrays are in use at a time.
    """

    SIZE = THREADS + 3

    def __init__(self) -> None:
        self._arrays: list[Rows] = []
        self._turn = 0
        self._lock = Lock()

    def take(self, shape: tuple[int, int], dtype: Any) -> Rows:
        """Return the next array of the ring, for the caller to overwrite."""
        size = math.prod(shape)
        with self._lock:
            if not self._arrays or self._arrays[0].dtype != dtype or self._arrays[0].size < size:
                self._arrays = [_aligned(size, dtype) for _ in range(self.SIZE)]
            self._turn = (self._turn + 1) % self.SIZE
            return self._arrays[self._turn][:size].reshape(shape)


def _aligned(size: int, dtype: Any) -> Rows:
    length = size * np.dtype(dtype).itemsize
    raw = np.empty(length + _LINE, np.uint8)
    start = -raw.ctypes.data % _LINE
    return raw[start : start + length].view(dtype)


def block_slots(dimension: int) -> int:
    """Return the number of slots in a block, whose noise is drawn from one random generator."""
    return max(1, BLOCK // dimension)


def draw_noise(
    kind: NoiseKind,
    reports: NDArray[np.int64],
    dimension: int,
    *,
    seeds: Sequence[int],
    first: int,
    rows: int,
    dtype: Any,
    ring: BufferRing,
) -> Any:
    """Return one row of noise for each of ``rows`` slots of a run, from slot ``first`` on.

    A row is the sum of the noise of the slot's ``reports``, in units of one report's scale. The
    noise of a slot does not depend on ``first`` and ``rows``. Rows after the last slot hold
    arbitrary finite values.

    Gaussian noise has deviation 1, and the caller multiplies it by √K. In float32 it is the
    inverse of the normal distribution function at the middle of one of 2^23 equal parts of (0, 1),
    as JAX draws it. Its absolute value is therefore never above 5.3.
    """
    size = block_slots(dimension)
    fast = kind is NoiseKind.GAUSSIAN and dtype == np.float32
    if fast:
        noise = ring.take((rows, dimension), np.uint32)
    elif kind is NoiseKind.PER_REPORT:
        noise = np.zeros((rows, 2), np.uint32)
    else:
        noise = np.zeros((rows, dimension), dtype)
    last = min(first + rows, len(reports))
    for start in range(first - first % size, last, size):
        generator = np.random.Generator(np.random.SFC64(np.random.SeedSequence([*seeds, start])))
        block = _block(kind, reports[start : min(start + size, last)], dimension, generator, dtype)
        ours = block[max(0, first - start) :]
        there = max(0, start - first)
        noise[there : there + len(ours)] = ours
    return _normals(jax.device_put(noise)) if fast else noise


def _block(
    kind: NoiseKind,
    reports: NDArray[np.int64],
    dimension: int,
    generator: np.random.Generator,
    dtype: Any,
) -> Rows:
    """Draw the noise slot by slot, so that a slot's noise does not depend on later slots."""
    shape = (len(reports), dimension)
    if kind is NoiseKind.GAUSSIAN and dtype == np.float32:
        raw = generator.bit_generator.random_raw(-(-math.prod(shape) // 2))
        return np.asarray(raw).view(np.uint32)[: math.prod(shape)].reshape(shape)
    if kind is NoiseKind.GAUSSIAN:
        return generator.standard_normal(shape, dtype)
    if kind is NoiseKind.LAPLACE:
        each = np.broadcast_to(reports[:, np.newaxis, np.newaxis], (len(reports), 2, dimension))
        both = generator.standard_gamma(each, dtype=dtype)
        return np.asarray(both[:, 0] - both[:, 1])
    return generator.integers(0, 2**32, (len(reports), 2), dtype=np.uint32)


@jax.jit
def _normals(words: Any) -> Any:
    """Return a normal variable for each random 32-bit word. This is twice as fast as numpy."""
    middles = ((words >> 9).astype(jnp.float32) + 0.5) * jnp.float32(2.0**-22) - 1.0
    return jnp.float32(math.sqrt(2.0)) * jax.lax.erf_inv(middles)


def prefetched(tasks: Iterator[Any], work: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (task, work(task)) in order, while threads already work on the next tasks."""
    with ThreadPoolExecutor(THREADS, thread_name_prefix="noise") as pool:
        pending: deque[tuple[Any, Future[Any]]] = deque()
        try:
            for task in tasks:
                pending.append((task, pool.submit(work, task)))
                if len(pending) > THREADS:
                    done, future = pending.popleft()
                    yield done, future.result()
            for done, future in pending:
                yield done, future.result()
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
        """Return the mechanism of a campaign."""
        optimizer = None if campaign.task is None else campaign.task.optimizer
        return cls(
            campaign.design,
            campaign.repeats,
            campaign.mechanism(dimension),
            campaign.noise_at or NoiseAt.CLIENT,
            None if optimizer is None else optimizer.divide_by,
        )

    @property
    def averaged(self) -> bool:
        return self.design.protocol is Protocol.AVERAGED

    @property
    def noise_kind(self) -> NoiseKind:
        """The distribution of the noise of a sum, or ``PER_REPORT`` with PrivUnit."""
        if isinstance(self.randomizer, Gaussian):
            return NoiseKind.GAUSSIAN
        return NoiseKind.LAPLACE if isinstance(self.randomizer, Laplace) else NoiseKind.PER_REPORT

    @property
    def clip(self) -> Clip:
        return Clip(self.randomizer.clip, l1=isinstance(self.randomizer, Laplace))  # type: ignore[union-attr]

    def noises(self, reports: Counts) -> Counts:
        """Return the number of reports, real or dummy, whose noise is in each slot's sum."""
        return reports if self.averaged else np.full_like(reports, self.design.capacity or 1)

    def scales(self, reports: Counts) -> NDArray[np.float64]:
        """Return the factor that each slot's noise is multiplied by."""
        if isinstance(self.randomizer, Gaussian):
            scale = self.randomizer.clip * self.randomizer.noise_multiplier
            if self.noise_at is NoiseAt.SERVER:
                return np.full(reports.shape, scale)
            return scale * np.sqrt(self.noises(reports))
        if isinstance(self.randomizer, Laplace):
            return np.full(reports.shape, self.randomizer.scale)
        return np.full(reports.shape, 0.0 if self.averaged else 1.0)  # the factor of the dummies

    def counts(self, reports: Counts) -> NDArray[np.float64]:
        """Return the divisor of each slot's sum, or ``SKIPPED`` or ``IGNORED`` (see ``loop``)."""
        if self.averaged:
            return np.where(reports > 0, reports, SKIPPED)
        counts = np.full(reports.shape, float(self.divide_by or 1))
        if self.design.window is not None:
            counts[: self.design.window - 1] = IGNORED  # warm-up slots, without a step
        return counts

    def dummies(self, reports: Counts) -> int:
        """Return the number of dummies in a run.

        A dummy is a report without data, which the server draws in place of a missing report.
        """
        if self.averaged or self.noise_at is NoiseAt.SERVER or self.sampling is Sampling.POISSON:
            return 0
        missing = (self.design.capacity or 1) - reports
        return int(missing[(self.design.window or 1) - 1 :].sum())

    @property
    def noise_description(self) -> str:
        """The noise in a few words, for a table."""
        r: Any = self.randomizer
        if isinstance(r, Gaussian):
            multiplier = f"{r.noise_multiplier:.4g}"
            noise = f"Gaussian, {multiplier} {'clip' if multiplier == '1' else 'clips'}"
            if self.noise_at is NoiseAt.SERVER:
                return f"{noise} on the sum of a slot"
            if self.averaged or not self.design.capacity:
                return f"{noise} on each report"
            total = math.sqrt(self.design.capacity) * r.noise_multiplier
            return f"{noise} on each report, {total:.4g} on a sum"
        return f"{type(r).__name__}, local epsilon {r.local_epsilon:.4g}"
