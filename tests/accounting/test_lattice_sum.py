"""Sums on evenly spaced points: above the exact sum in convex order, with its mean, and close."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from checkins.accounting.exact.grid_distribution import GridDistribution, Rounding, Side
from checkins.accounting.exact.lattice_sum import (
    LatticeAdder,
    LatticeDistribution,
    discretise,
    sum_of_bounded,
)
from checkins.accounting.exact.report_distributions import LaplaceRatio, randomized_response

local_epsilons = st.floats(0.05, 5.0)
tolerances = st.sampled_from([1e-15, 1e-6, 1e-3])
deviates = st.floats(-5.0, 5.0)


def mean_of(found: LatticeDistribution) -> float:
    points = found.first + np.arange(len(found.masses))
    lattice = float(points @ found.masses) + found.floor * found.floor_mass
    return found.step * lattice + found.excess


def call(found: GridDistribution, t: float) -> float:
    values = found.origin - t + found.values
    return float(np.maximum(values, 0.0) @ found.masses) + found.excess


@given(
    local_epsilon=local_epsilons,
    categories=st.sampled_from([2, 3, 10]),
    copies=st.integers(1, 3000),
    tolerance=tolerances,
    deviate=deviates,
)
def test_a_sum_is_above_the_binomial_sum_and_has_its_mean(
    local_epsilon: float, categories: int, copies: int, tolerance: float, deviate: float
) -> None:
    ratio = randomized_response(local_epsilon, categories).against_dummy
    rounding = Rounding(side=Side.UP, cells=400, tolerance=tolerance)
    low, gap = ratio.floor, float(np.diff(ratio.deviations)[0])
    counts, q = np.arange(copies + 1), float(ratio.masses[1])
    values, masses = low * copies + gap * counts, binom.pmf(counts, copies, q)
    deviation = gap * math.sqrt(copies * q * (1.0 - q))
    found = sum_of_bounded(copies, ratio, rounding)
    t = copies + deviate * deviation
    exact = float(np.maximum(values - t, 0.0) @ masses)
    exact_put = float(np.maximum(t - values, 0.0) @ masses)
    found_call = call(found, t)
    assert found_call >= exact - 1e-11 * deviation
    assert found_call <= exact + (0.01 + 100 * copies * tolerance) * deviation
    assert found_call - found.excess - (copies - t) >= exact_put - found.excess - 1e-9 * deviation


@given(
    local_epsilon=local_epsilons,
    copies=st.integers(2, 300),
    tolerance=tolerances,
    points=st.sampled_from([5.0, 20.0]),
)
def test_every_step_preserves_the_mean(
    local_epsilon: float, copies: int, tolerance: float, points: float
) -> None:
    """What lies below the grid goes to its first point and to the smallest possible value."""
    ratio = LaplaceRatio(local_epsilon)
    one = discretise(ratio, copies=copies, tolerance=tolerance, points=points)
    if one is None:
        return
    total = LatticeAdder(one, ratio.mean, points, tolerance).sum_of(copies)
    for found in (
        one,
        total,
        total.coarser(),
        total.coarser().coarser(),
        one.add(total, tolerance=1e-3),
    ):
        assert found.floor_mass + found.masses.sum() == 1.0 or math.isclose(
            found.floor_mass + found.masses.sum(), 1.0, rel_tol=1e-12
        )
        assert abs(mean_of(found)) <= 1e-9 * found.deviation
        assert found.floor <= found.first
        assert found.floor_mass >= 0.0
        assert found.masses.min() >= 0.0


@given(local_epsilon=st.floats(0.05, 2.0), copies=st.integers(300, 600), deviate=deviates)
def test_fewer_points_increase_the_stop_loss_transform(
    local_epsilon: float, copies: int, deviate: float
) -> None:
    ratio = LaplaceRatio(local_epsilon)
    one = discretise(ratio, copies=copies, tolerance=1e-6, points=10.0)
    assert one is not None
    adder = LatticeAdder(one, ratio.mean, 10.0, 1e-6)
    fine = adder.sum_of(copies)
    t = copies + deviate * fine.deviation
    calls = [
        call(adder.on_grid(found, copies), t)
        for found in (fine, fine.coarser(), fine.coarser().coarser().coarser())
    ]
    assert calls == sorted(calls) or np.allclose(calls, sorted(calls), rtol=1e-9)


def test_too_uneven_a_ratio_is_refused() -> None:
    """A value of e^8 with probability 1e-3 is far outside the other values."""
    ratio = randomized_response(8.0, 1000).against_dummy
    assert discretise(ratio, copies=3, tolerance=1e-15, points=50.0) is None
