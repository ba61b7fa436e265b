"""A declared number of clients limits the number of slots in which a client displaces another."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkins.accounting import certify
from checkins.accounting.certificate import OF_ANY_OTHERS, OF_DESIGN
from checkins.accounting.design import (
    Adjacency,
    Design,
    GaussianNoise,
    NoiseAt,
    Population,
    Protocol,
)
from checkins.accounting.exact import campaign_divergence
from checkins.accounting.exact.fourier_sum import upper_stop_loss
from checkins.accounting.exact.full_slots import FewFullSlots, FullSlots, WithFullSlots
from checkins.accounting.exact.gaussian import GaussianCampaign
from checkins.accounting.exact.grid_distribution import GridDistribution
from tests.soak import examples

ADD_REMOVE, REPLACE_ONE = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE


# The number of full slots


@pytest.mark.parametrize("participation", [1.0, 0.4])
@pytest.mark.parametrize(("others", "slots", "capacity"), [(4, 3, 1), (5, 3, 2), (6, 2, 2)])
def test_the_number_of_full_slots_is_bounded(
    others: int, slots: int, capacity: int, participation: float
) -> None:
    """Against all ways in which the others draw a slot, or none."""
    bounds = FullSlots(
        others=others,
        all_others=others,
        slots=slots,
        check_in=participation / slots,
        capacity=capacity,
    )
    exact = np.zeros(slots + 1)
    for drawn in product(range(slots + 1), repeat=others):
        absent = drawn.count(slots)
        probability = (1.0 - participation) ** absent * (participation / slots) ** (others - absent)
        full = sum(drawn.count(slot) >= capacity for slot in range(slots))
        exact[: full + 1] += probability
    for count in range(slots + 1):
        assert exact[count] <= bounds.tail(count) * (1 + 1e-9)
    assert bounds.tail(others // capacity + 1) == 0.0
    for probability in (0.9, 0.1, 1e-3):
        quantile = bounds.quantile(probability)
        assert exact[quantile + 1 :].max(initial=0.0) <= probability


def test_clients_of_two_windows_can_fill_the_slots_of_one() -> None:
    """One check-in fills a slot. Three clients wake in every window of four slots."""
    design = Design(
        Protocol.SLIDING,
        slots=100,
        window=4,
        participation=1.0,
        randomizer=GaussianNoise(1.0, NoiseAt.CLIENT),
        capacity=1,
        arrivals=3,
    )
    found = campaign_divergence.with_population(design, REPLACE_ONE, delta=1e-6)
    assert isinstance(found, FewFullSlots)
    assert found.full_slots.most == 4  # 5 others, but only 4 slots


# The divergence, by quadrature over the outputs of two slots


def deltas_of_two_slots(
    *, others: int, noise: float, updates: tuple[float, float | None, float], epsilon: float
) -> float:
    """Return the delta of a client's first and second value, with one report per slot.

    The updates are those of the client with each value, and of all others. None means absent.
    """
    grid = np.linspace(-8.0, 8.0, 301)
    cell = (grid[1] - grid[0]) ** 2

    def density(mean: float) -> np.ndarray:
        return np.exp(-((grid - mean / noise) ** 2) / 2) / math.sqrt(2 * math.pi)

    def slot(load: int, update: float | None, other: float) -> np.ndarray:
        """Return the output's density if ``load`` others check in, and maybe the client."""
        if update is None:
            return density(other if load else 0.0)
        return (density(update) + load * density(other)) / (load + 1)

    first, second, other = updates
    total = np.zeros((len(grid), len(grid)))
    for load in range(others + 1):
        weight = math.comb(others, load) / 2**others
        for drawn in (0, 1):
            for update, sign in ((first, 1.0), (second, -math.exp(epsilon))):
                at = [update if drawn == slot_ else None for slot_ in (0, 1)]
                outputs = slot(load, at[0], other), slot(others - load, at[1], other)
                total += 0.5 * weight * sign * np.multiply.outer(*outputs)
    return float(np.maximum(total, 0.0).sum()) * cell


@pytest.mark.parametrize("others", [0, 1, 2, 4])
@pytest.mark.parametrize("noise", [0.8])
def test_the_bound_is_above_what_small_populations_leak(others: int, noise: float) -> None:
    bounds = {
        adjacency: FewFullSlots(
            GaussianCampaign(noise, 2, 1.0, 1),
            adjacency,
            full_slots=FullSlots(
                others=others, all_others=others, slots=2, check_in=0.5, capacity=1
            ),
            delta=1e-4,
            cells=200,
        )
        for adjacency in Adjacency
    }
    for second, other, epsilon in product((None, -1.0, 0.0, 1.0), (-1.0, 0.0, 1.0), (0.3, 1.5)):
        updates = (1.0, second, other)
        truth = deltas_of_two_slots(others=others, noise=noise, updates=updates, epsilon=epsilon)
        adjacency = ADD_REMOVE if second is None else REPLACE_ONE
        assert truth <= bounds[adjacency].upper(epsilon) * (1 + 1e-3)
        if not others and (second, other) == (-1.0, 0.0):
            assert truth >= bounds[REPLACE_ONE].lower(epsilon) * (1 - 1e-3)


@pytest.mark.parametrize("adjacency", Adjacency)
def test_the_bound_lies_between_no_full_slot_and_only_full_slots(adjacency: Adjacency) -> None:
    campaign = GaussianCampaign(1.0, 20, 1.0, 4)
    deltas = [
        WithFullSlots(campaign, adjacency, full, delta=1e-6, cells=300).upper(1.5)
        for full in (0, 1, 10, 20)
    ]
    assert deltas == sorted(deltas)
    ends = [
        one.divergence(adjacency, delta=1e-6, cells=300).upper(1.5)
        for one in (campaign.uncapped, campaign)
    ]
    assert [deltas[0], deltas[-1]] == pytest.approx(ends, rel=0.02)


@pytest.mark.parametrize("adjacency", Adjacency)
def test_a_probability_of_more_full_slots_is_added_to_delta(adjacency: Adjacency) -> None:
    """At an epsilon at which even full slots leak nothing, delta is the probability of more."""
    full_slots = FullSlots(others=400, all_others=400, slots=20, check_in=0.05, capacity=40)
    few = FewFullSlots(
        GaussianCampaign(5.0, 20, 1.0, 40),
        adjacency,
        full_slots=full_slots,
        delta=1e-3,
        cells=100,
    )
    never = full_slots.quantile(1e-6)
    assert 0.0 < full_slots.tail(never + 1) <= few.upper(5.0) <= 1e-3 * 1e-3


def design(clients: int, *, noise: float = 1.0, slots: int = 1000) -> Design:
    return Design(
        Protocol.FIXED,
        slots=slots,
        participation=1.0,
        randomizer=GaussianNoise(noise / 10.0, NoiseAt.CLIENT),
        capacity=100,
        population=Population(1, clients),
    )


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", Adjacency)
def test_a_rare_full_slot_hardly_raises_epsilon(adjacency: Adjacency) -> None:
    """At delta 1e-12, some of 1,000 slots is full with a probability of about 1e-6."""
    found = certify(design(50_000), delta=1e-12, adjacency=adjacency, compare=False)
    assert found.method == "exact-population"
    alone = campaign_divergence.uncapped(design(50_000))
    assert found.epsilon < 1.2 * certify(alone, delta=1e-12, adjacency=adjacency).epsilon


@pytest.mark.slow
@pytest.mark.parametrize("campaigns", [1, 2])
def test_lower_bounds_do_not_use_more_clients_than_declared(campaigns: int) -> None:
    """Four others cannot fill 100 slots. For two runs, their number is not used in upper bounds."""
    randomizer = GaussianNoise(1.0, NoiseAt.CLIENT)
    few = replace(design(5, slots=100), capacity=1, randomizer=randomizer)
    terms = {"delta": 1e-5, "adjacency": REPLACE_ONE, "campaigns": campaigns, "compare": False}
    found = certify(few, **terms)  # type: ignore[arg-type]
    alone = certify(campaign_divergence.uncapped(few), **terms)  # type: ignore[arg-type]
    assert found.epsilon_lower_of == OF_DESIGN
    assert found.epsilon_lower == pytest.approx(alone.epsilon_lower, rel=0.01)
    among_others = certify(replace(few, population=None), **terms)  # type: ignore[arg-type]
    assert among_others.epsilon_lower_of == OF_ANY_OTHERS
    assert among_others.epsilon_lower > 2.0 * alone.epsilon_lower


# Sums of two kinds of slots

ratios = st.lists(
    st.tuples(st.floats(-3.0, 3.0), st.floats(0.01, 1.0)), min_size=3, max_size=8, unique_by=id
)


@examples(40, soak=1000)
@given(laws=st.tuples(ratios, ratios), copies=st.tuples(st.integers(1, 2), st.integers(1, 2)))
def test_a_sum_of_two_kinds_of_slots_is_never_below_the_exact_one(
    laws: tuple[list[tuple[float, float]], ...], copies: tuple[int, int]
) -> None:
    groups, sums, masses = [], np.zeros(1), np.ones(1)
    for law, count in zip(laws, copies, strict=True):
        values, weights = np.array(sorted(law)).T
        weights = weights / weights.sum()
        groups.append((GridDistribution(values, weights, 0.0), count))
        for _ in range(count):
            sums = np.add.outer(sums, values).ravel()
            masses = np.multiply.outer(masses, weights).ravel()
    threshold = 0.5 * (float(masses @ sums) + float(sums.max()))
    truth = float(np.maximum(sums - threshold, 0.0) @ masses)
    bound = upper_stop_loss(groups, threshold=threshold, resolution=400)
    if bound is not None:
        assert truth <= bound * (1 + 1e-9)


# An adversary that chooses by the earlier output


@pytest.mark.parametrize(("capacity", "epsilon"), [(1, 3.0), (100, 1.0), (100, 5.0)])
def test_choosing_the_displaced_update_by_the_earlier_output_is_covered(
    capacity: int, epsilon: float
) -> None:
    """Two full slots with noise 1. In the second, the others' update is the worst of 11.

    The client's updates are 1 and -1. Delta is between the two bounds, and larger than if the
    others have the same update in both slots.
    """
    output = np.linspace(-9.0, 9.0, 601)
    weight, growth = capacity / (capacity + 1.0), math.exp(epsilon)

    def density(mean: float) -> np.ndarray:
        return np.exp(-((output - mean) ** 2) / 2) / math.sqrt(2 * math.pi)

    def slot(update: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the probabilities and the ratios z of the output, if the others send this."""
        base = density(update)
        first, second = (1 - weight + weight * density(mean) / base for mean in (1.0, -1.0))
        return base * (output[1] - output[0]), first - growth * second

    slots = [slot(update) for update in np.linspace(-1.0, 1.0, 11)]

    def calls(sums: np.ndarray) -> np.ndarray:
        """Return E(sum + z)_+ of the second slot, for each of its updates and each sum."""
        return np.array([[masses @ np.maximum(x + z, 0.0) for x in sums] for masses, z in slots])

    adaptive, fixed, two_updates = 0.0, 0.0, 0.0
    for masses, z in slots[::5]:
        of_second_slot = calls(z)
        adaptive = max(adaptive, 0.5 * float(of_second_slot.max(axis=0) @ masses))
        fixed = max(fixed, 0.5 * float((of_second_slot @ masses).max()))
        if masses is not slots[5][0]:
            of_two = of_second_slot[[0, -1]].max(axis=0)
            two_updates = max(two_updates, 0.5 * float(of_two @ masses))
    bounds = GaussianCampaign(1.0, 2, 1.0, capacity).divergence(REPLACE_ONE, delta=1e-4, cells=None)
    assert fixed < adaptive <= bounds.upper(epsilon)
    assert fixed * (1 - 2e-3) <= bounds.lower(epsilon) <= adaptive
    assert bounds.lower(epsilon) >= 0.97 * two_updates
