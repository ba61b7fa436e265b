"""Slot ratios, their distributions on a grid and sums of them: rounded to which side, how far."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkins.accounting.exact.grid_distribution import (
    Grid,
    GridDistribution,
    Rounding,
    Side,
    add,
    discretise_down,
    discretise_up,
    sum_of,
)
from checkins.accounting.exact.slot_ratio import (
    AntipodalGaussian,
    AttainedRatio,
    DilutedRatio,
    DisplacedGaussian,
    Envelope,
    ShiftedGaussian,
    SlotRatio,
)

ROUND_OFF = 1e-7  # what the accountant grants itself (gaussian.ROUND_OFF)
TOLERANCE = 1e-15

shifts = st.floats(-3.0, 0.5).map(lambda power: 10.0**power)
epsilons = st.one_of(st.just(0.0), st.floats(1e-3, 5.0))
weights = st.integers(1, 5).map(lambda k: k / (k + 1))
attained_ratios = st.one_of(
    st.builds(ShiftedGaussian, shifts), st.builds(AntipodalGaussian, shifts, epsilons)
)
joining = st.builds(
    lambda s, w: Envelope(ShiftedGaussian(s), DilutedRatio(ShiftedGaussian(2 * s), w)),
    shifts,
    weights,
)
replacing = st.builds(
    lambda s, e, w: Envelope(AntipodalGaussian(s, e), DisplacedGaussian(s, e, w)),
    shifts,
    epsilons,
    weights,
)
ratios = st.one_of(attained_ratios, joining, replacing)
cell_counts = st.sampled_from([16, 64, 200])
deviates = st.floats(-7.0, 7.0)


def at(ratio: SlotRatio, deviate: float) -> float:
    """A place where the distribution of the ratio lives: its value at a normal deviate, roughly."""
    grid = np.linspace(-12.0, 12.0, 241)
    return float(np.interp(deviate, grid, ratio.quantiles))


def one(value: np.ndarray) -> float:
    return float(value[0])


def call(distribution: GridDistribution, t: float) -> float:
    return float(
        np.maximum(distribution.origin - t + distribution.values, 0.0) @ distribution.masses
    )


def put(distribution: GridDistribution, t: float) -> float:
    return float(
        np.maximum(t - distribution.origin - distribution.values, 0.0) @ distribution.masses
    )


def mean(distribution: GridDistribution) -> float:
    return distribution.origin + float(distribution.values @ distribution.masses)


def rounding(side: Side, cells: int) -> Rounding:
    return Rounding(side=side, cells=cells, tolerance=TOLERANCE)


def spread(ratio: SlotRatio) -> float:
    return abs(at(ratio, 1.0) - at(ratio, -1.0)) / 2


# The ratios themselves, against quadrature over the normal deviate


def quadrature(value, floor: float, sign: float = 1.0) -> float:  # type: ignore[no-untyped-def]
    """E(value(G) - floor)+ (or the put) for increasing ``value``, from its root outwards."""
    low, high = -40.0, 40.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if value(middle) < floor else (low, middle)
    nodes, weight = np.polynomial.legendre.leggauss(40)
    edges = high + sign * np.linspace(0.0, 26.0, 61)
    total = 0.0
    for left, right in itertools.pairwise(edges):
        g = (left + right) / 2 + (right - left) / 2 * nodes
        density = np.exp(-(g**2) / 2) / math.sqrt(2 * math.pi)
        gain = sign * (value(g) - floor)
        total += abs(right - left) / 2 * float(weight @ (gain * density))
    return total


@given(shift=shifts, deviate=deviates)
def test_a_shifted_gaussian_has_the_call_and_put_of_its_density_ratio(
    shift: float, deviate: float
) -> None:
    ratio = ShiftedGaussian(shift)
    t = math.exp(shift * deviate - shift**2 / 2)

    def value(g):  # type: ignore[no-untyped-def]
        return np.exp(shift * g - shift**2 / 2)

    assert one(ratio.call(np.array([t]))) == pytest.approx(quadrature(value, t), rel=1e-7)
    assert one(ratio.put(np.array([t]))) == pytest.approx(quadrature(value, t, -1.0), rel=1e-7)


@given(shift=shifts, epsilon=epsilons, deviate=deviates)
def test_antipodal_data_have_the_call_and_put_of_their_density_ratios(
    shift: float, epsilon: float, deviate: float
) -> None:
    ratio = AntipodalGaussian(shift, epsilon)

    def value(g):  # type: ignore[no-untyped-def]
        return np.exp(shift * g - shift**2 / 2) - np.exp(epsilon - shift * g - shift**2 / 2)

    t = float(value(deviate))
    scale = 1e-13 * (1 + math.exp(epsilon)) * math.exp(-deviate * deviate / 2)
    calls, puts = one(ratio.call(np.array([t]))), one(ratio.put(np.array([t])))
    assert calls == pytest.approx(quadrature(value, t), rel=1e-7, abs=scale)
    assert puts == pytest.approx(quadrature(value, t, -1.0), rel=1e-7, abs=scale)


@given(shift=st.floats(0.05, 2.0), epsilon=epsilons, weight=weights, deviate=st.floats(-5, 5))
def test_a_client_whose_data_are_those_of_the_displaced_client_attains_the_displaced_distribution(
    shift: float, epsilon: float, weight: float, deviate: float
) -> None:
    """Its first data if t is above (1 - w)(1 - e^eps), and its second data if t is below."""
    ratio = DisplacedGaussian(shift, epsilon, weight)
    t = at(ratio, deviate)
    unchosen = (1 - weight) * -math.expm1(epsilon)

    def value(g):  # type: ignore[no-untyped-def]
        if t >= unchosen:
            first_ratio = np.exp(2 * shift * g - 2 * shift**2)
            return weight * (first_ratio - math.exp(epsilon)) + unchosen
        second_ratio = np.exp(-2 * shift * g - 2 * shift**2)
        return weight * (1 - math.exp(epsilon) * second_ratio) + unchosen

    scale = 1e-12 * (1 + math.exp(epsilon))
    calls, puts = one(ratio.call(np.array([t]))), one(ratio.put(np.array([t])))
    assert calls == pytest.approx(quadrature(value, t), rel=1e-7, abs=scale)
    assert puts == pytest.approx(quadrature(value, t, -1.0), rel=1e-7, abs=scale)


@given(ratio=ratios, deviate=deviates)
def test_call_and_put_obey_parity(ratio: SlotRatio, deviate: float) -> None:
    """E(X - t)+ - E(t - X)+ = E X - t."""
    t = at(ratio, deviate)
    difference = one(ratio.call(np.array([t]))) - one(ratio.put(np.array([t])))
    scale = abs(ratio.mean) + abs(t) + 1.0
    assert difference == pytest.approx(ratio.mean - t, abs=1e-12 * scale)


@given(ratio=attained_ratios, deviate=deviates)
def test_tail_probabilities_are_the_slopes_of_call_and_put(
    ratio: AttainedRatio, deviate: float
) -> None:
    t = at(ratio, deviate)
    h = 1e-3 * spread(ratio)
    around = np.array([t - h, t, t + h])
    calls, puts = ratio.call(around), ratio.put(around)
    above, below = ratio.survival(around), ratio.cdf(around)
    noise = 1e-12 * (abs(t) + abs(ratio.mean) + 1) / h
    assert above[2] - noise <= (calls[1] - calls[2]) / h <= above[1] + noise
    assert below[1] - noise <= (puts[2] - puts[1]) / h <= below[2] + noise
    assert above[1] + below[1] == pytest.approx(1.0, abs=1e-12)


@given(shift=shifts, less=st.floats(0.1, 1.0), deviate=deviates)
def test_a_longer_shift_is_larger_in_convex_order(
    shift: float, less: float, deviate: float
) -> None:
    t = np.array([at(ShiftedGaussian(shift), deviate)])
    assert (
        one(ShiftedGaussian(less * shift).call(t))
        <= one(ShiftedGaussian(shift).call(t)) * (1 + 1e-9) + 1e-16
    )


@given(shift=shifts, weight=weights, deviate=deviates)
def test_a_diluted_ratio_is_smaller_in_convex_order(
    shift: float, weight: float, deviate: float
) -> None:
    ratio, t = ShiftedGaussian(shift), np.array([at(ShiftedGaussian(shift), deviate)])
    diluted = DilutedRatio(ratio, weight)
    assert diluted.mean == pytest.approx(1.0)
    assert one(diluted.call(t)) <= one(ratio.call(t)) * (1 + 1e-9) + 1e-16
    assert one(diluted.put(t)) <= one(ratio.put(t)) * (1 + 1e-9) + 1e-16


# On a grid


@given(ratio=ratios, cells=cell_counts, deviate=deviates)
def test_discretising_up_goes_up_at_every_strike(
    ratio: SlotRatio, cells: int, deviate: float
) -> None:
    distribution = discretise_up(ratio, rounding(Side.UP, cells))
    t = at(ratio, deviate)
    noise = 1e-14 * (abs(t) + abs(ratio.mean) + 1e-6)
    assert (
        call(distribution, t) + distribution.excess
        >= one(ratio.call(np.array([t]))) * (1 - ROUND_OFF) - noise
    )
    if math.isfinite(ratio.floor):
        assert put(distribution, t) >= one(ratio.put(np.array([t]))) * (1 - ROUND_OFF) - noise


@given(ratio=attained_ratios, cells=cell_counts, deviate=deviates)
def test_discretising_down_goes_down_at_every_strike(
    ratio: AttainedRatio, cells: int, deviate: float
) -> None:
    distribution = discretise_down(ratio, rounding(Side.DOWN, cells))
    t = at(ratio, deviate)
    noise = 1e-14 * (abs(t) + abs(ratio.mean) + 1e-6)
    assert call(distribution, t) <= one(ratio.call(np.array([t]))) * (1 + ROUND_OFF) + noise
    assert put(distribution, t) <= one(ratio.put(np.array([t]))) * (1 + ROUND_OFF) + noise
    assert distribution.excess == 0.0


@given(ratio=ratios, cells=cell_counts)
def test_a_discretised_distribution_is_a_distribution_with_the_right_mean(
    ratio: SlotRatio, cells: int
) -> None:
    distribution = discretise_up(ratio, rounding(Side.UP, cells))
    assert np.all(distribution.masses >= 0.0)
    assert distribution.masses.sum() == pytest.approx(1.0, abs=1e-12)
    assert np.all(np.diff(distribution.values) > 0)
    assert 0.0 <= distribution.excess <= 1e-3 * spread(ratio)
    kept = mean(distribution) + distribution.excess - ratio.mean
    scale = 1e-9 * spread(ratio)
    if math.isfinite(ratio.floor):
        assert kept == pytest.approx(0.0, abs=scale)
    else:
        assert kept >= -scale  # values below the grid were raised to it
        assert kept == pytest.approx(0.0, abs=1e-3 * spread(ratio))


@given(ratio=attained_ratios, cells=cell_counts)
def test_merging_cells_keeps_mass_and_mean(ratio: AttainedRatio, cells: int) -> None:
    distribution = discretise_down(ratio, rounding(Side.DOWN, cells))
    assert np.all(distribution.masses > 0.0)
    assert distribution.masses.sum() == pytest.approx(1.0, abs=1e-12)
    assert mean(distribution) == pytest.approx(ratio.mean, abs=1e-9 * spread(ratio))


@given(shift=shifts)
def test_capping_the_top_is_recorded_as_excess(shift: float) -> None:
    """A tolerance that cuts much: what the cap takes off the mean is exactly the excess."""
    distribution = discretise_up(ShiftedGaussian(shift), Rounding(Side.UP, 64, 1e-7))
    top = distribution.origin + distribution.values[-1]
    assert distribution.excess == pytest.approx(one(ShiftedGaussian(shift).call(np.array([top]))))
    assert mean(distribution) + distribution.excess == pytest.approx(1.0, abs=1e-9 * shift)


@given(
    low=st.floats(-10.0, 0.9), width=st.floats(1e-3, 50.0), origin=st.sampled_from([0.0, 1.0]),
    scale=st.floats(0.01, 10.0), cells=cell_counts, share=st.floats(0.0, 1.0),
)  # fmt: skip
def test_a_grid_locates_what_its_edges_enclose(
    low: float, width: float, origin: float, scale: float, cells: int, share: float
) -> None:
    grid = Grid.over(low, low + width, origin=origin, scale=scale, cells=cells)
    edges = grid.edges()
    assert np.all(np.diff(edges) > 0)
    assert edges[0] + origin == pytest.approx(low, abs=1e-9 * (1 + abs(low)))
    assert edges[-1] + origin == pytest.approx(low + width, rel=1e-9, abs=1e-9)
    x = low - origin + share * width
    cell = int(grid.locate(np.array([x]))[0])
    near = 1e-9 * (width + abs(low) + 1)
    assert cell == 0 or edges[cell - 1] <= x + near
    assert cell == cells + 1 or x <= edges[cell] + near
    assert int(grid.locate(np.array([edges[0] - width]))[0]) == 0
    assert int(grid.locate(np.array([edges[-1] + width]))[0]) == cells + 1


# Sums


def truth(ratio: SlotRatio, value, copies: int, t: float) -> float:  # type: ignore[no-untyped-def]
    """E(X1 + ... + Xn - t)+, the last copy in closed form and the others by trapezoids."""
    g = np.linspace(-11.0, 11.0, 1401 if copies == 2 else 301)
    probability = np.exp(-(g**2) / 2) / math.sqrt(2 * math.pi) * (g[1] - g[0])
    x = value(g)
    if copies == 2:
        return float(ratio.call(t - x) @ probability)
    return float(
        probability
        @ ratio.call((t - x[:, None] - x[None, :]).ravel()).reshape(301, 301)
        @ probability
    )


def lognormal(shift: float):  # type: ignore[no-untyped-def]
    return lambda g: np.exp(shift * g - shift**2 / 2)


def antipodal(shift: float, epsilon: float):  # type: ignore[no-untyped-def]
    return lambda g: lognormal(shift)(g) - math.exp(epsilon) * lognormal(shift)(-g)


cases = st.one_of(
    st.floats(0.02, 2.0).map(lambda s: (ShiftedGaussian(s), lognormal(s))),
    st.tuples(st.floats(0.02, 1.5), st.floats(0.0, 2.0)).map(
        lambda a: (AntipodalGaussian(*a), antipodal(*a))
    ),
)


@settings(max_examples=30)
@given(case=cases, copies=st.sampled_from([2, 3]), cells=cell_counts, deviate=st.floats(-4, 4))
def test_sums_stay_on_their_side_of_the_truth(case, copies: int, cells: int, deviate) -> None:  # type: ignore[no-untyped-def]
    ratio, value = case
    t = copies * ratio.mean + math.sqrt(copies) * (at(ratio, deviate) - ratio.mean)
    exact = truth(ratio, value, copies, t)
    first = discretise_up(ratio, rounding(Side.UP, cells))
    above = sum_of(copies, first, mean=ratio.mean, rounding=rounding(Side.UP, cells))
    first = discretise_down(ratio, rounding(Side.DOWN, cells))
    below = sum_of(copies, first, mean=ratio.mean, rounding=rounding(Side.DOWN, cells))
    noise = 1e-12 * spread(ratio)
    assert call(below, t) - noise <= exact * (1 + ROUND_OFF)
    assert exact * (1 - ROUND_OFF) <= call(above, t) + above.excess + noise
    if math.isfinite(ratio.floor):
        exact_put = exact - copies * ratio.mean + t
        noise = 1e-12 * (abs(t) + copies)
        assert put(below, t) - noise <= exact_put <= put(above, t) + noise


@settings(max_examples=30)
@given(case=cases, copies=st.integers(2, 40), cells=cell_counts)
def test_sums_are_distributions_with_the_right_mean(case, copies: int, cells: int) -> None:  # type: ignore[no-untyped-def]
    ratio, _ = case
    for side, discretise in ((Side.UP, discretise_up), (Side.DOWN, discretise_down)):
        first = discretise(ratio, rounding(side, cells))
        distribution = sum_of(copies, first, mean=ratio.mean, rounding=rounding(side, cells))
        assert np.all(distribution.masses > 0.0)
        assert distribution.masses.sum() == pytest.approx(1.0, abs=1e-12)
        assert np.all(np.diff(distribution.values) >= 0)
        assert len(distribution.values) <= cells + 2
        target = copies * (mean(first) + first.excess)
        assert mean(distribution) + distribution.excess == pytest.approx(
            target, abs=1e-9 * copies * spread(ratio)
        )


@settings(max_examples=30)
@given(
    first=st.lists(st.tuples(st.floats(0.0, 9.0), st.floats(0.01, 1.0)), min_size=1, max_size=9),
    second=st.lists(st.tuples(st.floats(0.0, 9.0), st.floats(0.01, 1.0)), min_size=2, max_size=9),
    strikes=st.lists(st.floats(0.0, 20.0), min_size=5, max_size=5),
    cells=st.sampled_from([4, 16, 64]),
)
def test_adding_any_two_distributions_brackets_the_exact_convolution(
    first, second, strikes, cells
) -> None:  # type: ignore[no-untyped-def]
    one_, other = (_law(atoms) for atoms in (first, second))
    exact = [
        (x + y, p * q)
        for x, p in zip(one_.values, one_.masses, strict=True)
        for y, q in zip(other.values, other.masses, strict=True)
    ]
    middle = sum(x * p for x, p in exact)
    if max(x for x, _ in exact) - min(x for x, _ in exact) < 1e-3 or middle < 1e-3:
        return
    distributions = {
        side: add(one_, other, mean=middle / 2, copies=2, rounding=Rounding(side, cells, 1e-12))
        for side in Side
    }
    for t in strikes:
        calls = sum(max(x - t, 0.0) * p for x, p in exact)
        puts = sum(max(t - x, 0.0) * p for x, p in exact)
        above, below = distributions[Side.UP], distributions[Side.DOWN]
        assert call(below, t) - 1e-12 <= calls <= call(above, t) + above.excess + 1e-12
        assert put(below, t) - 1e-12 <= puts <= put(above, t) + 1e-12


def _law(atoms: list[tuple[float, float]]) -> GridDistribution:
    merged: dict[float, float] = {}
    for value, mass in atoms:
        merged[value] = merged.get(value, 0.0) + mass
    values = np.array(sorted(merged))
    masses = np.array([merged[v] for v in values])
    return GridDistribution(values, masses / masses.sum(), 0.0)


@pytest.mark.parametrize("copies", [1, 2, 3, 5, 8, 13, 100])
def test_doubling_adds_the_right_number_of_copies(copies: int) -> None:
    """The variance of a sum of ratios is the sum of their variances, e^(s²) - 1 each."""
    ratio = ShiftedGaussian(0.5)
    fine = Rounding(Side.UP, 1000, 1e-18)
    distribution = sum_of(copies, discretise_up(ratio, fine), mean=1.0, rounding=fine)
    values = distribution.values + distribution.origin
    variance = float(distribution.masses @ (values - copies) ** 2)
    assert variance == pytest.approx(copies * math.expm1(0.25), rel=1e-2)
    assert variance >= copies * math.expm1(0.25) * (1 - 1e-6)
