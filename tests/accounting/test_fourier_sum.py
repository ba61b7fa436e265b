"""Sums of slot ratios by Fourier transform, held to sums that are computed exactly."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import binom

from checkins.accounting.composition import Composition
from checkins.accounting.design import (
    Adjacency,
    Design,
    GaussianNoise,
    NoiseAt,
    Protocol,
)
from checkins.accounting.exact import fourier_sum
from checkins.accounting.exact.dominating_pair import AcceptanceProbabilities, from_tests
from checkins.accounting.exact.fourier_sum import CellMasses, ThresholdTest, upper_stop_loss
from checkins.accounting.exact.gaussian import GaussianCampaign, shifted_delta
from checkins.accounting.exact.gaussian_replace_one import GaussianReplaceOne, client_alone
from checkins.accounting.exact.grid_distribution import GridDistribution, Rounding, Side
from tests.soak import examples


def exact_sum(values: np.ndarray, masses: np.ndarray, copies: int) -> tuple[np.ndarray, np.ndarray]:
    """Return all sums of ``copies`` draws and their probabilities."""
    total, probabilities = np.zeros(1), np.ones(1)
    for _ in range(copies):
        total = np.add.outer(total, values).ravel()
        probabilities = np.multiply.outer(probabilities, masses).ravel()
    return total, probabilities


laws = st.lists(
    st.tuples(st.floats(-3.0, 3.0), st.floats(0.01, 1.0)), min_size=3, max_size=12, unique_by=id
)


@examples(60, soak=2000)
@given(law=laws, copies=st.integers(2, 4), share=st.floats(0.1, 0.95), tail=st.floats(0.0, 30.0))
def test_a_sum_is_never_below_the_exact_one(
    law: list[tuple[float, float]], copies: int, share: float, tail: float
) -> None:
    values, masses = np.array(sorted(law)).T
    assume(values[-1] - values[0] > 0.5)
    masses = masses * np.exp(-tail * (values - values[0]) / (values[-1] - values[0]))
    masses /= masses.sum()
    mean = float(values @ masses)
    threshold = copies * (mean + share * (values[-1] - mean))
    sums, probabilities = exact_sum(values, masses, copies)
    truth = float(np.maximum(sums - threshold, 0.0) @ probabilities)
    slot = GridDistribution(values, masses, 0.0)
    bound = upper_stop_loss([(slot, copies)], threshold=threshold, resolution=400)
    if bound is not None:
        assert truth <= bound * (1 + 1e-9)


def test_a_huge_ratio_above_the_grid_is_counted() -> None:
    """A ratio of 1e9, which would need too large a grid, is half of the result."""
    values = np.append(np.linspace(-1.0, 1.0, 41), 1e9)
    masses = np.append(np.full(41, (1.0 - 1e-12) / 41), 1e-12)
    slot = GridDistribution(values, masses, 0.0)
    without = GridDistribution(values[:-1], masses[:-1], 0.0)
    ordinary, bound = (
        upper_stop_loss([(one, 50)], threshold=8.0, resolution=400) for one in (without, slot)
    )
    assert ordinary is not None
    assert bound is not None
    assert bound >= 0.98 * ordinary + 50 * 1e-12 * (1e9 - 20.0)


@pytest.mark.parametrize(("copies", "deviations"), [(1000, 6.0), (100_000, 6.0), (100_000, 9.0)])
def test_a_binomial_tail_is_bounded_closely_at_any_size(copies: int, deviations: float) -> None:
    """The smallest one is about 1e-17, below the round-off of an untilted transform."""
    chance = 0.3
    slot = GridDistribution(np.array([0.0, 1.0]), np.array([1.0 - chance, chance]), 0.0)
    deviation = math.sqrt(copies * chance * (1.0 - chance))
    threshold = math.floor(copies * chance + deviations * deviation) + 0.5
    counts = np.arange(math.ceil(threshold), copies + 1)
    truth = float((counts - threshold) @ binom.pmf(counts, copies, chance))
    bound = upper_stop_loss([(slot, copies)], threshold=threshold, resolution=600)
    assert bound is not None
    assert truth * (1 - 1e-7) <= bound <= truth * 1.05


def few_cells(shift: float, count: int) -> CellMasses:
    """Return the cells of a client alone, merged into ``count`` cells."""
    cells = client_alone(shift)
    groups = np.linspace(1200, 1800, count - 1).astype(int)
    starts = np.concatenate(([0], groups))
    base, present, other = (
        np.add.reduceat(masses, starts) for masses in (cells.base, cells.present, cells.other)
    )
    return CellMasses(base, present, other)


@examples(40, soak=1000)
@given(
    shift=st.floats(0.1, 2.0),
    slots=st.integers(1, 3),
    participation=st.one_of(st.just(1.0), st.floats(0.1, 1.0)),
    epsilon=st.floats(0.0, 2.0),
)
def test_a_test_between_two_data_is_one_that_exists(
    shift: float, slots: int, participation: float, epsilon: float
) -> None:
    """Its point lies in the region of all tests: below each line of slope e^eps."""
    cells = few_cells(shift, 16)
    test = ThresholdTest(
        cells, epsilon=epsilon, slots=slots, participation=participation, resolution=200
    )
    point = test.probabilities()

    def divergence(at: float) -> float:
        differences = cells.present - math.exp(at) * cells.other
        others = slots * (1.0 - participation) / participation * -math.expm1(at)
        sums, probabilities = exact_sum(differences / cells.base, cells.base, slots)
        return participation / slots * float(np.maximum(sums + others, 0.0) @ probabilities)

    assert test.gain <= divergence(epsilon) * (1 + 1e-9) + 1e-15
    for at in (0.0, 0.5 * epsilon, epsilon, 1.5 * epsilon, epsilon + 0.3):
        assert point.gain - math.expm1(at) * point.absent <= divergence(at) * (1 + 1e-9) + 1e-13


@pytest.mark.parametrize("length", [16, 32, 64, 128, 256])
def test_mass_that_wraps_around_is_not_counted(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a grid that is too short, low sums of slots appear above the threshold."""

    def too_short(*args: Any, **options: Any) -> Any:
        grid = choose_grid(*args, **options)
        return grid and replace(grid, length=length)

    choose_grid = fourier_sum.choose_grid
    monkeypatch.setattr(fourier_sum, "choose_grid", too_short)
    cells, slots = few_cells(1.0, 16), 3
    test = ThresholdTest(cells, epsilon=1.5, slots=slots, participation=1.0, resolution=200)
    differences = cells.present - math.exp(1.5) * cells.other
    sums, probabilities = exact_sum(differences / cells.base, cells.base, slots)
    assert test.gain <= float(np.maximum(sums, 0.0) @ probabilities) / slots * (1 + 1e-9)


def test_the_pair_of_tests_is_below_the_gaussian_mechanism_and_close_to_it() -> None:
    campaign = GaussianCampaign(2.0, 1, 1.0)
    rounding = Rounding.near(1e-6, side=Side.DOWN)
    pair = campaign.replace_one_pair(rounding)
    epsilons = np.linspace(0.0, 2.2, 23)
    truth = shifted_delta(1.0, epsilons)
    for epsilon, delta in zip(epsilons, truth, strict=True):
        for found in (pair.remove(float(epsilon)), pair.add(float(epsilon))):
            assert 0.98 * delta - 1e-9 <= found <= delta * (1 + 1e-9)


def test_no_tests_make_a_pair_without_loss() -> None:
    assert from_tests([]).remove(0.0) == 0.0


@pytest.mark.parametrize(
    ("noise", "slots", "delta"), [(0.5, 10_000, 1e-6), (1.0, 1000, 1e-12), (4.0, 100_000, 1e-5)]
)
def test_both_bounds_of_replace_one_are_within_a_hundredth(
    noise: float, slots: int, delta: float
) -> None:
    bounds = GaussianReplaceOne(GaussianCampaign(noise, slots, 1.0), delta=delta, cells=None)
    found = bounds.epsilon(delta)
    assert 0.99 * found.upper < found.lower <= found.upper


def server_noise(noise: float, slots: int) -> Design:
    randomizer = GaussianNoise(noise, NoiseAt.SERVER)
    return Design(Protocol.FIXED, slots=slots, participation=1.0, randomizer=randomizer)


@pytest.mark.parametrize(
    ("noise", "slots", "campaigns"), [(2.0, 100, 10), (2.0, 1000, 100), (0.5, 100, 3)]
)
def test_the_lower_bound_of_several_campaigns_is_within_a_twentieth(
    noise: float, slots: int, campaigns: int
) -> None:
    composed = Composition((server_noise(noise, slots),), Adjacency.REPLACE_ONE, campaigns)
    found = composed.epsilon(1e-6)
    assert 0.95 * found.upper < found.lower <= found.upper


@pytest.mark.parametrize("adjacency", Adjacency)
def test_a_client_that_displaces_others_raises_the_lower_bound(adjacency: Adjacency) -> None:
    """K = 100 and a shift of 2: all slots are full, and a chosen client shifts its slot by 4."""
    campaign = GaussianCampaign(0.5, 100, 1.0, 100)
    alone = campaign.uncapped.divergence(adjacency, delta=1e-6, cells=200).epsilon(1e-6)
    found = campaign.divergence(adjacency, delta=1e-6, cells=200).epsilon(1e-6)
    assert 1.5 * alone.lower < found.lower <= found.upper
    assert found.lower > 0.85 * found.upper


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize(("capacity", "slots"), [(1, 1), (1, 3), (10, 100)])
def test_a_displacing_client_is_never_above_the_upper_bound(
    capacity: int, slots: int, adjacency: Adjacency
) -> None:
    campaign = GaussianCampaign(1.0, slots, 1.0, capacity)
    bounds = campaign.divergence(adjacency, delta=1e-6, cells=200)
    for epsilon in (0.0, 0.1, 0.5, 2.0):
        assert bounds.lower(epsilon) <= bounds.upper(epsilon) * (1 + 1e-9)


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("capacity", [1, 3])
def test_a_displacing_client_in_one_slot_has_the_delta_of_a_mixture(
    capacity: int, adjacency: Adjacency
) -> None:
    """K others report -1, and the client reports 1: the sum moves by 2 with probability K/(K+1)."""
    noise, epsilon, weight = 0.8, 1.2, capacity / (capacity + 1.0)
    x = np.linspace(-15.0, 15.0, 200_001)
    absent, moved = (np.exp(-((x - mean) ** 2) / 2.0) for mean in (0.0, 2.0 / noise))
    present = (1.0 - weight) * absent + weight * moved
    excess = np.maximum(present - math.exp(epsilon) * absent, 0.0)
    truth = float(excess.sum()) * (x[1] - x[0]) / math.sqrt(2.0 * math.pi)
    campaign = GaussianCampaign(noise, 1, 1.0, capacity)
    found = campaign.divergence(adjacency, delta=truth, cells=None)
    assert found.lower(epsilon) >= truth * (1.0 - 1e-5)
    if adjacency is Adjacency.ADD_REMOVE:
        assert found.lower(epsilon) <= truth * (1.0 + 1e-5)


probabilities = st.floats(0.0, 1.0)


@given(tests=st.lists(st.tuples(probabilities, probabilities), min_size=1, max_size=6))
def test_a_pair_of_tests_has_at_most_the_mass_of_a_distribution(
    tests: list[tuple[float, float]],
) -> None:
    """A test may accept nearly everything. Then its mirror image counts."""
    found = from_tests([AcceptanceProbabilities(a, gain * (1.0 - a)) for a, gain in tests])
    assert found.absent.sum() <= 1.0 + 1e-9
    assert found.present.sum() + found.only_present <= 1.0 + 1e-9


def test_rare_participation_and_little_noise_keep_the_lower_end_below_the_truth() -> None:
    """The upper end, 8.86858, is from a loss distribution with steps of 1e-4."""
    design = Design(
        Protocol.FIXED, slots=1, participation=0.01, randomizer=GaussianNoise(0.3, NoiseAt.SERVER)
    )
    found = Composition((design,), Adjacency.REPLACE_ONE, 2).epsilon(1e-4)
    assert found.lower <= 8.86858 <= found.upper
