"""Correlated noise: seen values, simulation of the worst case, and explicit matrices."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkins.accounting import (
    Adjacency,
    Certificate,
    Design,
    GaussianNoise,
    NoiseAt,
    NoiseStrategy,
    Population,
    Protocol,
    WakeTimes,
    certify,
    certify_heterogeneous,
    loss_distribution,
)
from checkins.accounting.exact.correlated_noise import (
    CorrelatedCampaign,
    LowerBound,
    antithetic_ratio,
    block_ratio,
)
from checkins.accounting.exact.gaussian import GaussianCampaign
from checkins.accounting.exact.grid_distribution import Rounding, Side, discretise_up
from checkins.accounting.exact.slot_blocks import (
    Blocks,
    Grouping,
    groupings,
    lower_spread,
    spread_of,
)
from checkins.accounting.exact.slot_ratio import AntipodalGaussian, ShiftedGaussian
from checkins.accounting.filters import Block, Filter, certify_adaptive
from checkins.errors import InvalidValue, NotCovered
from checkins.strategies import square_root
from tests.soak import SOAK, examples
from tests.strategies import noise_strategies

pytestmark = pytest.mark.slow

FAILURE = 1e-9
"""Probability with which each comparison with a simulation fails although the code is right."""
ROOT = square_root(16, bits=24)
SIXTEEN = GaussianNoise(1.5, NoiseAt.SERVER, ROOT)
DESIGN = Design(Protocol.FIXED, slots=200, participation=1.0, randomizer=SIXTEEN)


def epsilon_of(campaign: GaussianCampaign) -> float:
    bounds = campaign.divergence(Adjacency.ADD_REMOVE, delta=1e-4, cells=None)
    return bounds.upper_epsilon(1e-4)


def certificate(design: Design, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> Certificate:
    return certify(design, delta=1e-4, adjacency=adjacency, compare=False)


# Values computed independently


@pytest.mark.parametrize(
    ("slots", "noise", "lower", "blocks", "spacing", "whole_bands"),
    [
        (64, 1.0, 0.8298, 2.160, (2.490, 16), 2.490),
        (200, 1.5, 0.2381, 0.5983, (0.6902, 8), 0.6998),
        (200, 4.0, 0.0726, 0.1565, (0.1604, 4), 0.1946),
        (1000, 2.0, 0.0688, 0.1527, (0.1634, 8), 0.1793),
        (1000, 6.0, 0.0183, 0.0380, (0.03831, 2), 0.04739),
    ],
)
def test_the_table_is_reproduced(
    slots: int,
    noise: float,
    lower: float,
    blocks: float,
    spacing: tuple[float, int],
    whole_bands: float,
) -> None:
    """Root coefficients, 16 bands, delta 1e-4. Blocks may be better than those that were seen."""
    campaign = CorrelatedCampaign(noise, ROOT, slots, 16, 1.0)
    for seen, period in (spacing, (whole_bands, 16)):
        spread = spread_of(ROOT, 16, Grouping(1, 1, period), slots)
        assert spread is not None
        rounded_down = campaign.of_blocks(Blocks(slots // period, 1, spread, 1.0))
        assert epsilon_of(rounded_down) == pytest.approx(seen, rel=5e-4)
    found = certificate(
        replace(DESIGN, slots=slots, randomizer=GaussianNoise(noise, NoiseAt.SERVER, ROOT))
    )
    assert 0.97 * blocks < found.epsilon < blocks * (1 + 5e-4)
    assert found.epsilon_lower == pytest.approx(lower, rel=0.01)


# Simulation of the worst case


def simulated_deltas(
    design: Design, epsilon: float, *, draws: int, seed: int, adjacency: Adjacency
) -> tuple[float, float]:
    """Lower and upper confidence ends of the delta of a client whose updates have one direction.

    The delta of P against Q is the mean of (1 - e^eps Q/P)_+ under P, which lies in [0, 1]. So the
    empirical Bernstein bound applies, once for each direction.
    """
    noise, slots, p0 = design.randomizer, design.slots, design.participation
    assert isinstance(noise, GaussianNoise)
    assert noise.strategy is not None
    matrix = np.zeros((slots, slots))
    for band, coefficient in enumerate(noise.strategy.coefficients[:slots]):
        matrix += np.diag(np.full(slots - band, coefficient / noise.noise_multiplier), -band)
    random = np.random.default_rng(seed)
    means = []
    for present in (True, False):
        noises = random.standard_normal((draws, slots))
        takes_part = (random.random(draws) < p0) & present
        drawn = random.integers(0, slots, draws)
        outputs = noises + takes_part[:, None] * matrix.T[drawn]
        half = (matrix**2).sum(axis=0) / 2
        ratio = 1 - p0 + p0 * np.exp(outputs @ matrix - half).mean(axis=1)
        other = 1.0
        if adjacency is Adjacency.REPLACE_ONE:
            other = 1 - p0 + p0 * np.exp(-outputs @ matrix - half).mean(axis=1)
        loss = other / ratio if present else ratio / other
        means.append(np.maximum(0.0, 1.0 - math.exp(epsilon) * loss))
        if adjacency is Adjacency.REPLACE_ONE:
            break  # the two directions are mirror images
    log = math.log(4 / FAILURE)
    ends = [
        (
            float(x.mean()),
            math.sqrt(2 * float(x.var()) * log / draws) + 7 * log / (3 * (draws - 1)),
        )
        for x in means
    ]
    return max(mean - margin for mean, margin in ends), max(mean + margin for mean, margin in ends)


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize(
    ("slots", "bands", "noise", "participation"),
    [(24, 6, 1.0, 1.0), (40, 16, 0.8, 0.6), (10, 16, 1.5, 1.0), (33, 2, 0.5, 0.3)],
)
def test_the_simulated_delta_lies_between_the_bounds(
    slots: int, bands: int, noise: float, participation: float, adjacency: Adjacency
) -> None:
    """The worst case is attained, so its delta is a bound from both sides."""
    randomizer = GaussianNoise(noise, NoiseAt.SERVER, square_root(bands))
    design = Design(Protocol.FIXED, slots=slots, participation=participation, randomizer=randomizer)
    delta = 0.02
    found = certify(design, delta=delta, adjacency=adjacency, compare=False)
    draws = 1_000_000 if SOAK else 60_000
    at_upper, _ = simulated_deltas(design, found.epsilon, draws=draws, seed=1, adjacency=adjacency)
    _, at_lower = simulated_deltas(
        design, found.epsilon_lower, draws=draws, seed=2, adjacency=adjacency
    )
    assert 0.0 < found.epsilon_lower < found.epsilon
    assert at_upper <= delta <= at_lower


def test_updates_that_depend_on_earlier_releases_do_not_exceed_the_bound() -> None:
    """The client reverses its update if the release before it was negative."""
    design = replace(
        DESIGN, slots=12, randomizer=GaussianNoise(0.7, NoiseAt.SERVER, square_root(4))
    )
    delta, draws, slots = 0.02, 200_000, 12
    epsilon = certify(design, delta=delta, adjacency=Adjacency.ADD_REMOVE).epsilon
    random = np.random.default_rng(3)
    coefficients = np.array(square_root(4).coefficients)
    noises, drawn = random.standard_normal((draws, slots)), random.integers(0, slots, draws)
    # Under P, the update of the drawn slot is added; the history before it is only noise.
    directions = np.ones((draws, slots))
    directions[:, 1:] = np.where(noises[:, :-1] < 0.0, -1.0, 1.0)
    outputs = noises.copy()
    for band, coefficient in enumerate(coefficients):
        row = np.minimum(drawn + band, slots - 1)
        shift = coefficient / 0.7 * directions[np.arange(draws), drawn]
        outputs[np.arange(draws), row] += np.where(drawn + band < slots, shift, 0.0)
    seen = np.ones((draws, slots))
    seen[:, 1:] = np.where(outputs[:, :-1] < 0.0, -1.0, 1.0)
    log_ratios = np.zeros((draws, slots))
    for slot in range(slots):
        for band, coefficient in enumerate(coefficients[: slots - slot]):
            size = coefficient / 0.7
            log_ratios[:, slot] += size * seen[:, slot] * outputs[:, slot + band] - size**2 / 2
    losses = np.maximum(0.0, 1.0 - math.exp(epsilon) / np.exp(log_ratios).mean(axis=1))
    log = math.log(4 / FAILURE)
    margin = math.sqrt(2 * losses.var() * log / draws) + 7 * log / (3 * (draws - 1))
    assert losses.mean() - margin <= delta


# Covariances, against explicit matrices


def columns_of(strategy: NoiseStrategy, slots: int, rows: int) -> np.ndarray:
    matrix = np.zeros((rows, slots))
    for slot in range(slots):
        visible = strategy.coefficients[: rows - slot]
        matrix[slot : slot + len(visible), slot] = visible
    return matrix


@given(noise_strategies(most_bands=9), st.integers(1, 9), st.integers(1, 40))
def test_the_variance_of_spaced_slots_covers_every_slot_of_every_class(
    strategy: NoiseStrategy, period: int, slots: int
) -> None:
    covariances = columns_of(strategy, slots, slots).T @ columns_of(strategy, slots, slots)
    for start in range(min(period, slots)):
        chosen = np.arange(start, slots, period)
        spread = spread_of(
            strategy, min(slots, strategy.bands), Grouping(1, 1, period), len(chosen)
        )
        assert spread is not None
        assert covariances[np.ix_(chosen, chosen)].sum(axis=1).max() <= spread.variance


@given(
    noise_strategies(most_bands=7),
    st.integers(2, 4),
    st.integers(1, 4),
    st.integers(1, 12),
    st.integers(1, 5),
)
def test_the_spread_of_blocks_is_that_of_columns_on_a_circle(
    strategy: NoiseStrategy, size: int, spacing: int, period: int, count: int
) -> None:
    rows = period * count
    circle = np.zeros((rows, rows))
    for slot in range(rows):
        for band, coefficient in enumerate(strategy.coefficients):
            circle[(slot + band) % rows, slot] += coefficient
    blocks = [[(k * period + j * spacing) % rows for j in range(size)] for k in range(count)]
    of_block = circle[:, blocks[0]].sum(axis=1)
    of_all = sum(circle[:, block].sum(axis=1) for block in blocks)
    used = of_block > 0.0
    first = circle[np.ix_(used, blocks[0])]
    covariances = first.T @ (first * (of_all[used] / of_block[used])[:, None])
    variance = covariances.diagonal().max()
    covariance = covariances[~np.eye(size, dtype=bool)].max()
    found = spread_of(strategy, strategy.bands, Grouping(size, spacing, period), count)
    if found is None:
        assert covariance > variance * (1.0 - 2e-6)
    else:
        assert found.variance == pytest.approx(variance, rel=1e-9)
        assert found.covariance == pytest.approx(max(covariance, 1e-6 * variance), rel=1e-9)
        assert found.variance >= variance * (1.0 - 1e-15)


@given(noise_strategies(most_bands=9), st.integers(1, 9), st.integers(1, 6))
def test_lower_spreads_are_below_the_covariances_of_slots_that_are_counted(
    strategy: NoiseStrategy, rows: int, size: int
) -> None:
    rows = min(rows, strategy.bands)
    slots = rows - 1 + 3 * size
    covariances = columns_of(strategy, slots, slots).T @ columns_of(strategy, slots, slots)
    spread = lower_spread(strategy, rows, size)
    for start in range(0, 3 * size, size):
        block = covariances[start : start + size, start : start + size]
        assert spread.variance <= block.diagonal().min() + 1e-15
        assert spread.covariance <= block.min() + 1e-15


# The ratio of a block


def test_the_ratio_of_a_block_is_bracketed_and_agrees_with_a_simulation() -> None:
    t = np.array([0.2, 0.8, 1.0, 1.5, 3.0])
    up, down = (block_ratio(1.2, 0.4, 3, side) for side in (Side.UP, Side.DOWN))
    assert (down.call(t) <= up.call(t)).all()
    assert up.call(t) == pytest.approx(down.call(t), rel=0.02)
    assert up.call(t) - up.put(t) == pytest.approx(1.0 - t, abs=1e-9)
    assert down.survival(t) + down.cdf(t) == pytest.approx(1.0, abs=1e-12)
    random, draws = np.random.default_rng(4), 400_000
    common = random.standard_normal(draws) * 1.2 * math.sqrt(0.4)
    own = random.standard_normal((3, draws)) * 1.2 * math.sqrt(0.6)
    ratios = np.exp(common + own - 0.72).mean(axis=0)
    # A six-sigma deviation: each comparison fails with probability below 1e-8.
    for threshold, call in zip(t, up.call(t), strict=True):
        calls = np.maximum(ratios - threshold, 0.0)
        assert abs(calls.mean() - call) <= 6 * calls.std() / math.sqrt(draws) + 0.01 * call


def test_slots_that_have_everything_in_common_count_as_one() -> None:
    t = np.array([0.3, 1.0, 2.5])
    together = block_ratio(1.0, 1.0 - 1e-9, 8, Side.UP)
    assert together.call(t) == pytest.approx(ShiftedGaussian(1.0).call(t), rel=1e-4)


@given(st.floats(0.0, 3.0), st.floats(0.2, 2.0))
@examples(10, soak=100)
def test_the_antithetic_ratio_of_one_gaussian_is_the_antipodal_one(
    epsilon: float, shift: float
) -> None:
    """With a single slot, l and l' are opposite, so the general bound is the exact one."""
    ratio = ShiftedGaussian(shift)
    rounded = discretise_up(ratio, Rounding(side=Side.UP, cells=800, tolerance=1e-20))
    found = antithetic_ratio(rounded, epsilon)
    exact = AntipodalGaussian(shift, epsilon)
    assert found.masses.sum() == pytest.approx(1.0)
    assert found.deviations @ found.masses == pytest.approx(0.0, abs=1e-9)
    t = exact.quantiles[40:-40:20]
    assert (found.call(t) >= exact.call(t) * (1.0 - 1e-9)).all()
    assert found.call(t) == pytest.approx(exact.call(t), rel=2e-2, abs=1e-12)
    assert found.call(t) - found.put(t) == pytest.approx(exact.mean - t, abs=1e-8)


# Designs


def test_one_band_is_independent_noise() -> None:
    plain = replace(DESIGN, randomizer=GaussianNoise(2.0, NoiseAt.SERVER))
    alone = replace(DESIGN, randomizer=GaussianNoise(2.0, NoiseAt.SERVER, NoiseStrategy((16,), 4)))
    assert alone == plain
    halved = GaussianNoise(1.0, NoiseAt.SERVER, NoiseStrategy((8,), 4))
    for adjacency in Adjacency:
        found = certificate(replace(DESIGN, randomizer=halved), adjacency)
        expected = certificate(plain, adjacency)
        assert found.epsilon == pytest.approx(expected.epsilon, rel=1e-4)
        assert found.epsilon_lower == pytest.approx(expected.epsilon_lower, rel=1e-3)


@given(
    strategy=noise_strategies(),
    slots=st.integers(1, 300),
    noise=st.floats(0.5, 20.0),
    participation=st.floats(0.01, 1.0),
    adjacency=st.sampled_from(Adjacency),
)
@examples(4, soak=300)
def test_every_design_has_a_lower_bound_below_its_epsilon(
    strategy: NoiseStrategy, slots: int, noise: float, participation: float, adjacency: Adjacency
) -> None:
    randomizer = GaussianNoise(noise, NoiseAt.SERVER, strategy)
    design = Design(Protocol.FIXED, slots=slots, participation=participation, randomizer=randomizer)
    found = certificate(design, adjacency)
    # The sum of the coefficients at most: as if all slots had one and the same noise.
    least = noise / math.sqrt(strategy.bands)
    known_slot = GaussianCampaign(noise, 1, participation)
    assert 0.0 <= found.epsilon_lower <= found.epsilon
    if adjacency is Adjacency.ADD_REMOVE:
        assert found.epsilon <= epsilon_of(known_slot) * (1 + 1e-6)
        if least > 0.2:
            worst = epsilon_of(GaussianCampaign(least, slots, participation))
            assert found.epsilon <= worst * 1.02


def test_all_coefficients_count() -> None:
    """Two coefficients and one: with the second, the update is visible once more."""
    both = GaussianNoise(2.0, NoiseAt.SERVER, NoiseStrategy((11, 11), 4))
    first = GaussianNoise(2.0, NoiseAt.SERVER, NoiseStrategy((11,), 4))
    epsilons = [certificate(replace(DESIGN, randomizer=noise)).epsilon for noise in (first, both)]
    assert epsilons[1] > 1.3 * epsilons[0]


@pytest.mark.parametrize(
    ("participation", "adjacency"),
    [(1.0, Adjacency.ADD_REMOVE), (1.0, Adjacency.REPLACE_ONE), (0.7, Adjacency.ADD_REMOVE)],
)
def test_a_run_that_stops_early_has_no_larger_epsilon(
    participation: float, adjacency: Adjacency
) -> None:
    whole = replace(DESIGN, participation=participation)
    epsilons = [certificate(whole.after(k), adjacency).epsilon for k in (60, 190, 199, 200)]
    tolerance = 1.0 if participation == 1.0 else 1.0 + 2e-3
    assert all(epsilon <= epsilons[-1] * tolerance for epsilon in epsilons)
    assert epsilons[0] < epsilons[1] < epsilons[-1]


def test_a_window_takes_the_place_of_all_slots() -> None:
    sliding = replace(DESIGN, protocol=Protocol.SLIDING, slots=1000, window=200)
    assert certificate(sliding).epsilon == pytest.approx(certificate(DESIGN).epsilon, rel=1e-9)
    replaced = certificate(sliding, Adjacency.REPLACE_ONE)
    assert replaced.epsilon == pytest.approx(
        certificate(DESIGN, Adjacency.REPLACE_ONE).epsilon, rel=1e-9
    )
    depends = replace(sliding, wake_times=WakeTimes.ANY)
    assert certificate(depends, Adjacency.REPLACE_ONE).epsilon > replaced.epsilon
    assert certificate(depends).epsilon == pytest.approx(certificate(DESIGN).epsilon, rel=1e-9)


SHORT_WINDOW = Design(
    Protocol.SLIDING,
    slots=1000,
    window=8,
    participation=1.0,
    randomizer=GaussianNoise(1.5, NoiseAt.SERVER, NoiseStrategy((128,) * 64, bits=10)),
)
"""Every update is visible in 64 releases, most of them after the window of its client."""


@pytest.mark.parametrize("campaigns", [1, 2])
def test_updates_are_visible_after_a_window_even_if_no_slot_is_full(campaigns: int) -> None:
    roomy = replace(SHORT_WINDOW, capacity=60, arrivals=60)  # no slot is ever full
    for wake_times, adjacency in (
        (WakeTimes.INDEPENDENT, Adjacency.ADD_REMOVE),
        (WakeTimes.INDEPENDENT, Adjacency.REPLACE_ONE),
        (WakeTimes.ANY, Adjacency.REPLACE_ONE),
    ):
        found, expected = (
            certify(
                replace(design, wake_times=wake_times),
                delta=1e-2,
                adjacency=adjacency,
                campaigns=campaigns,
                compare=False,
            )
            for design in (roomy, SHORT_WINDOW)
        )
        assert found.epsilon == pytest.approx(expected.epsilon, rel=1e-3)


def test_updates_are_visible_after_a_window_of_a_client_that_nearly_always_takes_part() -> None:
    """The bounds for a longer run with participation 1 count all releases too."""
    rarer, nearly_always = (
        certify(
            replace(SHORT_WINDOW, window=40, participation=participation),
            delta=1e-2,
            adjacency=Adjacency.ADD_REMOVE,
            compare=False,
        )
        for participation in (0.94, 0.97)
    )
    assert nearly_always.epsilon > rarer.epsilon


def test_lower_bounds_count_only_slots_that_exist() -> None:
    campaign = CorrelatedCampaign(1.5, ROOT, slots=8, rows=16, participation=1.0)
    bound = LowerBound(campaign, Adjacency.ADD_REMOVE, delta=1e-4, cells=None)
    candidates = list(bound._candidates())
    assert candidates
    for blocks in candidates:
        assert 0 < blocks.count * blocks.slots_per_block <= 8
        assert 0.0 < blocks.participation <= 1.0


def test_a_capacity_allows_spacing_only_and_costs_more() -> None:
    capped = replace(DESIGN, capacity=50)
    found, uncapped = certificate(capped), certificate(DESIGN)
    assert found.epsilon > uncapped.epsilon
    spacings = []
    for period in (4, 8, 16):
        spread = spread_of(ROOT, 16, Grouping(1, 1, period), 200)
        assert spread is not None
        noise = 1.5 / math.sqrt(spread.variance)
        spacings.append(epsilon_of(GaussianCampaign(noise, 200 // period, 1.0, 50)))
    assert found.epsilon <= min(spacings) * (1 + 1e-3)
    assert found.epsilon_lower == pytest.approx(uncapped.epsilon_lower, rel=1e-3)
    roomy = certificate(replace(capped, capacity=500, population=Population(1, 2000)))
    assert roomy.method == "exact-population"
    assert roomy.epsilon == pytest.approx(uncapped.epsilon, rel=1e-3)
    assert all(one.slots_per_block == 1 for one in groupings(16, 200, only_single=True))
    campaign = CorrelatedCampaign(1.5, ROOT, 200, 16, 1.0, capacity=50)
    assert all(part.blocks[0].slots_per_block == 1 for part in campaign._best_parts(1e-4))


@pytest.mark.parametrize("adjacency", Adjacency)
def test_runs_compose_with_fresh_noise(adjacency: Adjacency) -> None:
    one, three = (
        certify(DESIGN, delta=1e-4, adjacency=adjacency, campaigns=runs, compare=False)
        for runs in (1, 3)
    )
    assert one.epsilon < three.epsilon < 3 * one.epsilon
    assert one.epsilon_lower <= three.epsilon_lower < three.epsilon
    pair = loss_distribution(DESIGN, delta=1e-4, adjacency=adjacency, interval=1e-3)
    assert pair.get_epsilon_for_delta(1e-4) >= one.epsilon_lower


def test_kinds_filters_and_curious_clients_are_covered() -> None:
    rare = replace(DESIGN, participation=0.5)
    largest = max(certificate(kind).epsilon for kind in (DESIGN, rare))
    kinds = certify_heterogeneous([DESIGN, rare], delta=1e-4, adjacency=Adjacency.ADD_REMOVE)
    assert kinds.epsilon == pytest.approx(largest)
    block = Block((DESIGN,))
    filtered = certify_adaptive([block], Filter(), delta=1e-4, adjacency=Adjacency.ADD_REMOVE)
    assert filtered.epsilon > certificate(DESIGN).epsilon
    curious = certify(DESIGN, delta=1e-4, adjacency=Adjacency.ADD_REMOVE, curious=5)
    assert curious.epsilon == certificate(DESIGN).epsilon


def test_the_assumptions_say_that_noise_is_correlated_and_what_stays_secret() -> None:
    found = certify(DESIGN, delta=1e-4, adjacency=Adjacency.ADD_REMOVE)
    assert any(
        "correlated" in line and "keeps the noise and the sums" in line
        for line in found.assumptions
    )
    assert "poisson" not in {other.method for other in found.alternatives}


# What is refused


@pytest.mark.parametrize(
    ("numerators", "bits", "name"),
    [
        ((), 4, "bands"),
        ((3, 4), 4, "numerators"),
        ((4, 0), 4, "numerators"),
        ((17,), 4, "numerators"),
        ((16, 1), 4, "strategy"),
        ((12, 11), 4, "strategy"),
        ((1,), 25, "bits"),
        ((1,), True, "bits"),
        ((1.0,), 4, "numerators"),
    ],
)
def test_coefficients_that_no_theorem_covers_are_refused(
    numerators: tuple[int, ...], bits: int, name: str
) -> None:
    with pytest.raises(InvalidValue) as caught:
        NoiseStrategy(numerators, bits)
    assert caught.value.name == name


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.int64])
def test_small_integers_of_numpy_do_not_overflow_in_the_norm(dtype: Any) -> None:
    with pytest.raises(InvalidValue, match="the squares of the coefficients"):
        NoiseStrategy(tuple(np.array([255, 255, 255], dtype)), 8)
    with pytest.raises(InvalidValue, match="the squares of the coefficients"):
        NoiseStrategy((dtype(90),) * 3, dtype(7))
    found = NoiseStrategy(tuple(np.array([7, 5], dtype)), dtype(4))
    assert found == NoiseStrategy((7, 5), 4)
    assert all(type(number) is int for number in (*found.numerators, found.bits))


def test_a_norm_of_exactly_one_is_allowed() -> None:
    assert NoiseStrategy((4, 3), 0 + 3).bands == 2
    assert NoiseStrategy((8, 8, 8, 8), 4).coefficients == (0.5, 0.5, 0.5, 0.5)
    with pytest.raises(InvalidValue):
        NoiseStrategy((9, 8, 8, 8), 4)


def test_noise_of_devices_and_averaged_updates_cannot_be_correlated() -> None:
    with pytest.raises(NotCovered, match="only at the server"):
        GaussianNoise(1.0, NoiseAt.CLIENT, ROOT)
    with pytest.raises(NotCovered, match="averaged"):
        Design(
            Protocol.AVERAGED,
            slots=10,
            participation=1.0,
            randomizer=SIXTEEN,
            population=Population(10, 20),
        )


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize(("participation", "campaigns"), [(1.0, 1), (0.001, 1), (0.001, 3)])
def test_noise_that_dwarfs_the_update_counts_as_the_largest_supported_noise(
    adjacency: Adjacency, participation: float, campaigns: int
) -> None:
    """Two coefficients of 2**-24: the noise is more than 1e12 times the update in a release."""
    strategy = NoiseStrategy((1, 1), bits=24)
    design = Design(
        Protocol.FIXED,
        slots=1000,
        participation=participation,
        randomizer=GaussianNoise(1e5, NoiseAt.SERVER, strategy),
    )
    found = certify(design, delta=1e-6, adjacency=adjacency, campaigns=campaigns, compare=False)
    assert found.epsilon_lower == 0.0
    assert found.epsilon < 1e-3
