"""Lower bounds of a client in full slots, in which the other updates follow the releases."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkins.accounting.exact.adaptive_updates import AdaptiveUpdates, LargestTangent
from checkins.accounting.exact.gaussian import GaussianCampaign
from checkins.accounting.exact.gaussian_replace_one import GaussianReplaceOne
from checkins.accounting.exact.slot_sum import AddRemove
from tests.soak import examples


def delta_of_best_choices(campaign: GaussianCampaign, epsilon: float) -> float:
    """Return the delta if the others choose the better of both updates in every slot.

    The output of a slot is integrated over a grid, and the gain is interpolated between 4,001 sums.
    """
    assert campaign.capacity is not None
    weight, shift = campaign.capacity / (campaign.capacity + 1.0), 2.0 / campaign.noise
    output = np.linspace(-9.0, 9.0 + shift, 801)
    masses = np.exp(-(output**2) / 2) / math.sqrt(2 * math.pi) * (output[1] - output[0])
    ratio = weight * np.expm1(shift * output - shift**2 / 2)
    threshold = campaign.slots / campaign.participation * math.expm1(epsilon)
    sums = np.concatenate(([-threshold], 0.01 * np.sinh(np.linspace(-28.0, 28.0, 4001))))
    sums.sort()
    gain = np.maximum(sums, 0.0)
    for _ in range(campaign.slots):
        gain = np.max(
            [
                np.interp(sums[:, None] + step, sums, gain) @ masses
                for step in (ratio, -math.exp(epsilon) * ratio)
            ],
            axis=0,
        )
    at_start = float(gain[np.searchsorted(sums, -threshold)])
    return campaign.participation / campaign.slots * at_start


@pytest.mark.parametrize(
    ("campaign", "epsilon"),
    [
        (GaussianCampaign(1.0, 1, 1.0, 1), 2.0),
        (GaussianCampaign(2.0, 1, 0.5, 3), 0.5),
        (GaussianCampaign(1.0, 2, 1.0, 100), 4.0),
        (GaussianCampaign(1.5, 3, 0.6, 2), 1.0),
        (GaussianCampaign(3.0, 4, 1.0, 10), 0.7),
    ],
)
def test_the_lower_bound_is_the_delta_of_the_best_choices(
    campaign: GaussianCampaign, epsilon: float
) -> None:
    truth = delta_of_best_choices(campaign, epsilon)
    found = AdaptiveUpdates(campaign, delta=truth, cells=600).lower(epsilon)
    assert truth * (1 - 0.02) <= found <= truth * (1 + 1e-4)


def test_choices_by_earlier_releases_reveal_more_than_fixed_updates() -> None:
    campaign = GaussianCampaign(1.0, 10, 1.0, 100)
    fixed = AddRemove(campaign.displacing, delta=1e-5, cells=600).lower(7.5)
    assert AdaptiveUpdates(campaign, delta=1e-5, cells=300).lower(7.5) > 2.0 * fixed


@examples(15, soak=300)
@given(
    noise=st.floats(0.3, 10.0),
    slots=st.integers(1, 60),
    participation=st.one_of(st.just(1.0), st.floats(0.01, 1.0)),
    capacity=st.sampled_from((1, 4, 100)),
    delta=st.sampled_from((1e-3, 1e-6, 1e-12)),
)
def test_the_lower_bound_is_below_the_upper_bound(
    noise: float, slots: int, participation: float, capacity: int, delta: float
) -> None:
    campaign = GaussianCampaign(noise, slots, participation, capacity)
    bounds = GaussianReplaceOne(campaign, delta=delta, cells=200)
    epsilon = bounds.campaign.initial_guess(delta) * 0.7
    found = AdaptiveUpdates(campaign, delta=delta, cells=200).lower(epsilon)
    assert 0.0 <= found <= bounds.upper(epsilon) * (1 + 1e-9)


def test_more_slots_than_blocks_have_the_same_sums() -> None:
    """17 to 40 slots are divided into 16 blocks of different sizes."""
    for slots in (16, 17, 31, 40):
        bound = AdaptiveUpdates(GaussianCampaign(2.0, slots, 1.0, 1), delta=1e-6, cells=60)
        variances = [float(masses @ sums**2) for sums, masses in bound._blocks]
        whole = AdaptiveUpdates(GaussianCampaign(2.0, 1, 1.0, 1), delta=1e-6, cells=400)
        sums, masses = whole._blocks[0]
        assert sum(variances) == pytest.approx(slots * float(masses @ sums**2), rel=0.05)


slopes = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6)


@given(
    weights=slopes,
    places=st.lists(st.floats(-5.0, 5.0), min_size=1, max_size=8, unique=True),
    at=st.floats(-20.0, 20.0),
)
def test_the_largest_tangent_is_below_its_function_and_above_the_positive_part(
    weights: list[float], places: list[float], at: float
) -> None:
    """The function is max(x, 0), averaged over shifts of x with mean 0."""
    shifts = np.linspace(-1.0, 1.0, len(weights)) * np.array(weights)
    shifts -= shifts.mean()

    def function(x: np.ndarray) -> np.ndarray:
        return np.maximum(x[:, None] + shifts, 0.0).mean(axis=1)

    points = np.sort(places)
    slope = (points[:, None] + shifts > 0.0).mean(axis=1)
    tangents = LargestTangent.above_positive_part(points, function(points), slope)
    x = np.concatenate((points, [at], points - 0.1, points + 0.1))
    values, _ = tangents.mean(x, np.zeros(1), np.ones(1))
    assert np.all(values <= function(x) + 1e-12)
    assert values[: len(points)] == pytest.approx(function(points), abs=1e-12)
    assert np.all(values >= np.maximum(x, 0.0) - 1e-12)


def test_without_a_capacity_no_slot_is_full() -> None:
    campaign = GaussianCampaign(1.0, 10, 1.0, 1)
    alone = GaussianReplaceOne(replace(campaign, capacity=None), delta=1e-5, cells=200)
    assert alone.lower(7.0) < GaussianReplaceOne(campaign, delta=1e-5, cells=200).lower(7.0)
