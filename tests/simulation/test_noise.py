"""The noise of a sum of reports has the law of the reports' noises, added up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import chi2, gamma, kstest, laplace, norm

from checkins.randomizers import Gaussian, Laplace, simulate_dummies, simulate_reports
from checkins.simulation.engine import mechanism as noise
from checkins.simulation.engine.mechanism import BufferRing, NoiseKind, draw_noise, prefetched

DRAWS = 60_000
FAILURE = 1e-9
counts = pytest.mark.parametrize("reports", [1, 2, 7])
precisions = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def rows(
    law: NoiseKind,
    reports: Any,
    dimension: int,
    *,
    first: int = 0,
    count: int | None = None,
    **other: Any,
) -> np.ndarray:
    """Rows of one run; ``reports`` are those of all its slots."""
    given = {"seeds": (1, 2), "dtype": np.float32, "ring": BufferRing(), **other}
    every = np.asarray(reports)
    asked = every.size - first if count is None else count
    return np.array(draw_noise(law, every, dimension, first=first, rows=asked, **given))


def one_by_one(randomizer: Any, reports: int) -> np.ndarray:
    """Sums of so many reports of zero updates, each drawn by itself; dummies have that law too."""
    generator = np.random.default_rng(5)
    real = reports - reports // 3
    found = np.zeros(DRAWS)
    for place in range(reports):
        if place < real:
            found += simulate_reports(randomizer, np.zeros((DRAWS, 1)), generator).values[:, 0]
        else:
            found += simulate_dummies(
                randomizer, count=DRAWS, dimension=1, generator=generator
            ).values[:, 0]
    return found


def same_law(ours: np.ndarray, theirs: np.ndarray, deviation: float, kurtosis: float) -> None:
    """Means, variances and a two-sample Kolmogorov-Smirnov test, 1e-9 each."""
    far = float(norm.isf(FAILURE / 2)) * 1.1  # a sum of many draws, nearly normal
    assert abs(ours.mean()) < far * deviation / np.sqrt(DRAWS)
    variance_error = np.sqrt((kurtosis - 1.0) / DRAWS)
    assert abs(ours.var() / deviation**2 - 1.0) < far * variance_error
    assert abs(theirs.var() / deviation**2 - 1.0) < far * variance_error
    assert kstest(ours, theirs, method="asymp").pvalue > FAILURE


@counts
@precisions
def test_the_sum_of_gaussian_reports_has_the_drawn_distribution(reports: int, dtype: Any) -> None:
    """One noise of deviation √K σ against K of σ, dummies among them; 1e-9 each."""
    randomizer = Gaussian(clip=0.5, noise_multiplier=3.0)
    deviation = np.sqrt(reports) * randomizer.std
    ours = (
        deviation * rows(NoiseKind.GAUSSIAN, np.full(DRAWS // 4, reports), 4, dtype=dtype).ravel()
    )
    same_law(ours, one_by_one(randomizer, reports), deviation, kurtosis=3.0)
    assert kstest(ours / deviation, norm.cdf).pvalue > FAILURE


@counts
@precisions
def test_the_sum_of_laplace_reports_has_the_drawn_distribution(reports: int, dtype: Any) -> None:
    """A difference of two Gammas of shape K against K Laplace noises; 1e-9 each."""
    randomizer = Laplace(clip=0.5, local_epsilon=2.0)
    deviation = np.sqrt(2.0 * reports) * randomizer.scale
    ours = rows(NoiseKind.LAPLACE, np.full(DRAWS // 4, reports), 4, dtype=dtype).ravel()
    same_law(
        randomizer.scale * ours,
        one_by_one(randomizer, reports),
        deviation,
        kurtosis=3.0 + 3.0 / reports,
    )
    if reports == 1:
        assert kstest(ours, laplace.cdf).pvalue > FAILURE


@given(reports=st.integers(1, 12), at=st.floats(0.05, 4.0))
def test_the_distribution_functions_are_equal(reports: int, at: float) -> None:
    """Characteristic functions: φ(t)^K of one report is that of the sum's noise, exactly.

    Gaussian: exp(−t²/2)^K is that of deviation √K. Laplace: 1/(1 + t²) = 1/|1 − it|², and
    1/(1 − it)^K is that of a Gamma of shape K, so G − G′ has 1/|1 − it|^(2K) = (1/(1 + t²))^K.
    """
    assert np.exp(-0.5 * at**2) ** reports == pytest.approx(
        np.exp(-0.5 * (np.sqrt(reports) * at) ** 2), rel=1e-12
    )
    # The Gamma's characteristic function by integration, from its density alone.
    density = gamma(reports).pdf
    reach = gamma(reports).isf(1e-14)
    real = quad(lambda x: density(x), 0.0, reach, weight="cos", wvar=at, limit=500)[0]
    imaginary = quad(lambda x: density(x), 0.0, reach, weight="sin", wvar=at, limit=500)[0]
    one_laplace = quad(lambda x: np.exp(-x), 0.0, 40.0, weight="cos", wvar=at, limit=500)[0]
    assert real**2 + imaginary**2 == pytest.approx(one_laplace**reports, abs=1e-8)


def test_coordinates_and_slots_are_independent() -> None:
    """A chi-square of the correlations of 6 coordinates and of neighbouring slots; 1e-9 each."""
    for law in (NoiseKind.GAUSSIAN, NoiseKind.LAPLACE):
        found = rows(law, np.full(20_000, 2), 6).astype(np.float64)
        found /= found.std(axis=0)
        for first, second in ((found, found), (found[:-1], found[1:])):
            products = (first.T @ second) / np.sqrt(len(first))
            if first is found:
                products = products[np.triu_indices(6, k=1)]
            assert (products**2).sum() < chi2.isf(FAILURE, products.size)


def test_float32_normals_are_symmetric_and_finite() -> None:
    ends = np.array([[0, 2**32 - 1, 2**31 - 1, 2**31]], np.uint32)
    least, most, below, above = np.asarray(noise._normals(ends))[0]
    assert (least, below) == (-most, -above)
    assert 5.2 < most < 5.4
    assert 0.0 < above < 1e-6


laws = st.sampled_from([NoiseKind.GAUSSIAN, NoiseKind.LAPLACE, NoiseKind.PER_REPORT])


@given(law=laws, dtype=st.sampled_from([np.float32, np.float64]), data=st.data())
def test_the_noise_of_a_slot_does_not_depend_on_the_requested_rows(
    law: NoiseKind, dtype: Any, data: st.DataObject
) -> None:
    """Rows that begin and end inside a block, at its edges, and over several blocks."""
    dimension = noise.BLOCK_VALUES // 8 - 1  # blocks of eight slots
    slots = data.draw(st.integers(1, 20))
    reports = np.arange(slots) % 3
    first = data.draw(st.integers(0, slots - 1))
    count = data.draw(st.integers(1, slots - first))
    whole = rows(law, reports, dimension, dtype=dtype)
    part = rows(law, reports, dimension, first=first, count=count, dtype=dtype)
    assert np.array_equal(part, whole[first : first + count])


def test_no_two_slots_or_runs_share_their_noise() -> None:
    dimension = noise.BLOCK_VALUES // 2  # two slots in a block
    found = rows(NoiseKind.GAUSSIAN, np.ones(7, int), dimension)
    other = rows(NoiseKind.GAUSSIAN, np.ones(7, int), dimension, seeds=(1, 3))
    assert len({row.tobytes() for row in (*found, *other)}) == 14


@pytest.mark.parametrize("law", [NoiseKind.GAUSSIAN, NoiseKind.LAPLACE])
def test_rows_past_the_last_slot_are_finite(law: NoiseKind) -> None:
    assert np.isfinite(rows(law, np.ones(3, int), 4, first=2, count=5)).all()


def test_no_reports_have_no_laplace_noise() -> None:
    found = rows(NoiseKind.LAPLACE, np.array([0, 1, 0]), 5)
    assert (found[[0, 2]] == 0.0).all()
    assert found[1].all()


def test_a_ring_gives_an_array_back_only_after_the_others() -> None:
    ring = BufferRing()
    taken = [ring.next_array((3, 5)) for _ in range(BufferRing.SIZE)]
    assert all(array.ctypes.data % 64 == 0 for array in taken)
    assert len({array.ctypes.data for array in taken}) == BufferRing.SIZE
    assert ring.next_array((3, 5)).ctypes.data == taken[0].ctypes.data
    assert ring.next_array((30, 5)).shape == (30, 5)


def test_prefetched_work_is_in_order_and_raises_its_errors() -> None:
    assert list(prefetched(iter(range(5)), lambda task: task * task)) == [
        (n, n * n) for n in range(5)
    ]
    assert list(prefetched(iter(()), lambda task: task)) == []
    with pytest.raises(ZeroDivisionError):
        list(prefetched(iter([1, 0]), lambda task: 1 // task))


def test_only_a_few_tasks_are_prefetched() -> None:
    begun: list[int] = []
    work: Iterator[Any] = prefetched(iter(range(100)), begun.append)
    next(work)
    while len(begun) <= noise.NOISE_THREADS:
        time.sleep(0.001)
    time.sleep(0.05)  # time for one too many
    assert sorted(begun) == list(range(noise.NOISE_THREADS + 1))
    work.close()  # type: ignore[attr-defined]
    assert len(begun) <= noise.NOISE_THREADS + 2 < BufferRing.SIZE


def test_a_ring_holds_the_noise_of_every_chunk_until_it_is_used() -> None:
    """As the loop does: what was drawn prefetched is intact when its turn comes."""
    ring, reports = BufferRing(), np.ones(60, int)

    def work(first: int) -> Any:
        return draw_noise(
            NoiseKind.GAUSSIAN,
            reports,
            700,
            seeds=(1, 2),
            first=first,
            rows=3,
            dtype=np.float32,
            ring=ring,
        )

    whole = rows(NoiseKind.GAUSSIAN, reports, 700)
    for first, found in prefetched(iter(range(0, 60, 3)), work):
        assert np.array_equal(np.array(found), whole[first : first + 3])
