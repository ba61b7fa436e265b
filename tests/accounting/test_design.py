"""Descriptions: what they accept, and what they refuse with the field and the value named."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkins.accounting.design import (
    LEAST_SLOT_NOISE,
    MOST_SLOT_NOISE,
    Design,
    GaussianNoise,
    LocalRandomizer,
    NoiseAt,
    Population,
    Protocol,
)
from checkins.accounting.exact.campaign_divergence import campaign_of
from checkins.accounting.exact.correlated_noise import CorrelatedCampaign
from checkins.accounting.exact.gaussian import GaussianCampaign
from checkins.accounting.exact.pure import PureCampaign
from checkins.accounting.exact.pure_capacity import PureCapacityCampaign
from checkins.errors import InvalidValue, NotCovered
from tests import strategies

FIXED = {
    "protocol": Protocol.FIXED,
    "slots": 100,
    "participation": 0.5,
    "randomizer": LocalRandomizer(1.0),
}
SLIDING = {**FIXED, "protocol": Protocol.SLIDING, "window": 10}
AVERAGED = {
    **FIXED,
    "protocol": Protocol.AVERAGED,
    "participation": 1.0,
    "population": Population(10, 20),
}
AT_CLIENT = {**FIXED, "randomizer": GaussianNoise(1.0, NoiseAt.CLIENT), "capacity": 2}
AT_SERVER = {**FIXED, "randomizer": GaussianNoise(1.0, NoiseAt.SERVER)}

NOT_NUMBERS: list[object] = [math.nan, math.inf, -math.inf, "1", None, True, 1j]
NOT_COUNTS: list[object] = [0, -1, 1.0, 2.5, math.nan, math.inf, "10", True, 10**12 + 1]


def refused(make: Callable[[], object], name: str, value: object) -> None:
    """The refusal names the field and the value, in one line."""
    with pytest.raises(InvalidValue) as caught:
        make()
    error = caught.value
    assert error.name == name
    assert error.value is value or error.value == value
    message = str(error)
    assert message.startswith(f"{name} = {value!r}: ")
    assert "\n" not in message


# What is accepted


@given(design=strategies.designs())
def test_every_design_says_among_how_many_slots_a_client_chooses(design: Design) -> None:
    assert 1 <= design.drawable_slots <= design.slots
    assert (design.drawable_slots < design.slots) <= (design.protocol is Protocol.SLIDING)


@given(design=strategies.designs())
def test_a_design_hands_its_own_numbers_to_the_accountant(design: Design) -> None:
    campaign, slots = campaign_of(design), design.drawable_slots
    if isinstance(campaign, PureCampaign) and design.protocol is Protocol.AVERAGED:
        assert design.population is not None
        slots = design.population.fewest
    if isinstance(campaign, GaussianCampaign) and design.protocol is Protocol.AVERAGED:
        slots = 1  # certified as if the slot of the client were known
    assert (campaign.slots, campaign.participation) == (slots, design.participation)
    if isinstance(design.randomizer, LocalRandomizer):
        assert isinstance(campaign, PureCampaign | PureCapacityCampaign)
        assert isinstance(campaign, PureCapacityCampaign) == ((design.capacity or 1) > 1)
        assert campaign.local_epsilon == design.randomizer.local_epsilon
    else:
        assert isinstance(campaign, GaussianCampaign | CorrelatedCampaign)
        assert campaign.capacity == design.capacity
        if design.protocol is Protocol.AVERAGED:
            assert campaign.noise == pytest.approx(
                design.randomizer.noise_multiplier * math.sqrt(design.least_reports or 1) / 2
            )


@given(capacity=st.integers(1, 10_000))
def test_reports_add_their_noise_and_the_server_adds_its_own_once(capacity: int) -> None:
    for options, at, noise in (
        (AT_CLIENT, NoiseAt.CLIENT, math.sqrt(capacity)),
        (AT_SERVER, NoiseAt.SERVER, 1.0),
    ):
        changed = {**options, "capacity": capacity, "randomizer": GaussianNoise(1.0, at)}
        campaign = campaign_of(Design(**changed))  # type: ignore[arg-type]
        assert isinstance(campaign, GaussianCampaign)
        assert campaign.noise == pytest.approx(noise)


def test_noise_at_the_server_without_a_cap_displaces_no_client() -> None:
    campaign = campaign_of(Design(**AT_SERVER))  # type: ignore[arg-type]
    assert isinstance(campaign, GaussianCampaign)
    assert campaign.capacity is None


def test_integers_of_numpy_are_integers() -> None:
    assert Design(**{**FIXED, "slots": np.int64(7)}).drawable_slots == 7  # type: ignore[arg-type]


@pytest.mark.parametrize("participation", [0, 0.0, 1, 1.0])
def test_no_client_and_every_client_may_participate(participation: float) -> None:
    assert Design(**{**FIXED, "participation": participation}).participation == participation  # type: ignore[arg-type]


# What is refused


@pytest.mark.parametrize("value", [*NOT_NUMBERS, 0.0, -1.0, 300.1, 1e308])
def test_a_local_epsilon_is_positive_finite_and_not_absurd(value: object) -> None:
    refused(lambda: LocalRandomizer(value), "local_epsilon", value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [*NOT_NUMBERS, -1e-9, 1.0, 2.0])
def test_a_local_delta_is_zero_or_strictly_between_zero_and_one(value: object) -> None:
    refused(lambda: LocalRandomizer(1.0, value), "local_delta", value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [*NOT_NUMBERS, 0.0, -1.0])
def test_a_noise_multiplier_is_positive_and_finite(value: object) -> None:
    refused(lambda: GaussianNoise(value, NoiseAt.SERVER), "noise_multiplier", value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", NOT_COUNTS)
def test_a_population_is_counted(value: object) -> None:
    refused(lambda: Population(value, 10**12), "population", value)  # type: ignore[arg-type]
    refused(lambda: Population(1, value), "population", value)  # type: ignore[arg-type]


def test_a_population_is_given_from_few_to_many() -> None:
    refused(lambda: Population(5, 4), "population", "5..4")


@pytest.mark.parametrize("value", [*NOT_COUNTS, None])
@pytest.mark.parametrize("base", [FIXED, SLIDING, AVERAGED, AT_CLIENT, AT_SERVER])
def test_slots_are_counted(base: dict[str, object], value: object) -> None:
    refused(lambda: Design(**{**base, "slots": value}), "slots", value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [*NOT_NUMBERS, -1e-9, 1.0 + 1e-9, 2])
@pytest.mark.parametrize("base", [FIXED, SLIDING, AVERAGED, AT_CLIENT, AT_SERVER])
def test_a_participation_is_a_probability(base: dict[str, object], value: object) -> None:
    refused(lambda: Design(**{**base, "participation": value}), "participation", value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", NOT_COUNTS)
@pytest.mark.parametrize("base", [FIXED, SLIDING, AT_CLIENT, AT_SERVER])
def test_a_capacity_is_counted(base: dict[str, object], value: object) -> None:
    refused(lambda: Design(**{**base, "capacity": value}), "capacity", value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [*NOT_COUNTS, None, 101])
def test_a_sliding_window_is_counted_and_no_longer_than_the_campaign(value: object) -> None:
    refused(lambda: Design(**{**SLIDING, "window": value}), "window", value)  # type: ignore[arg-type]


@pytest.mark.parametrize("base", [FIXED, AVERAGED, AT_CLIENT, AT_SERVER])
def test_only_the_sliding_protocol_has_a_window(base: dict[str, object]) -> None:
    refused(lambda: Design(**{**base, "window": 10}), "window", 10)  # type: ignore[arg-type]


def test_averaged_updates_are_not_covered_below_full_participation() -> None:
    make = lambda: Design(**{**AVERAGED, "participation": 0.5})  # type: ignore[arg-type]  # noqa: E731
    refused(make, "participation", 0.5)
    with pytest.raises(NotCovered):
        make()


def test_averaged_updates_have_no_capacity_and_a_population() -> None:
    refused(lambda: Design(**{**AVERAGED, "capacity": 3}), "capacity", 3)  # type: ignore[arg-type]
    refused(lambda: Design(**{**AVERAGED, "population": None}), "population", None)  # type: ignore[arg-type]


def test_averaged_updates_with_noise_at_the_server_are_not_covered() -> None:
    noise = GaussianNoise(1.0, NoiseAt.SERVER)
    make = lambda: Design(**{**AVERAGED, "randomizer": noise})  # type: ignore[arg-type]  # noqa: E731
    refused(make, "noise_at", "server")
    with pytest.raises(NotCovered):
        make()


def test_noise_at_the_client_needs_a_capacity() -> None:
    refused(lambda: Design(**{**AT_CLIENT, "capacity": None}), "capacity", None)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [1e-9, 0.99 * LEAST_SLOT_NOISE, 1.01 * MOST_SLOT_NOISE, 1e300])
def test_a_slot_has_enough_noise_and_not_absurdly_much(value: float) -> None:
    noise = GaussianNoise(value, NoiseAt.SERVER)
    refused(lambda: Design(**{**AT_SERVER, "randomizer": noise}), "noise_multiplier", value)  # type: ignore[arg-type]


def test_the_noise_of_a_slot_counts_its_reports() -> None:
    noise = GaussianNoise(0.6 * LEAST_SLOT_NOISE, NoiseAt.CLIENT)
    refused(
        lambda: Design(**{**AT_CLIENT, "randomizer": noise, "capacity": 2}),  # type: ignore[arg-type]
        "noise_multiplier",
        noise.noise_multiplier,
    )
    assert Design(**{**AT_CLIENT, "randomizer": noise, "capacity": 4}).capacity == 4  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["sliding", "averaged", "nonsense", None, 3])
def test_a_protocol_is_one_of_the_protocols(name: object) -> None:
    """A plain string must not slip through and be certified as another protocol."""
    with pytest.raises(InvalidValue, match="protocol"):
        Design(**{**FIXED, "protocol": name})  # type: ignore[arg-type]


@pytest.mark.parametrize("at", ["client", "server", "nowhere", None])
def test_noise_is_added_at_a_known_place(at: object) -> None:
    """A plain "client" without capacity would count as noise at the server: epsilon too small."""
    with pytest.raises(InvalidValue, match="at"):
        Design(**{**FIXED, "randomizer": GaussianNoise(1.0, at)})  # type: ignore[arg-type]


@pytest.mark.parametrize("randomizer", [None, 1.0, "gaussian"])
def test_a_randomizer_is_a_description(randomizer: object) -> None:
    with pytest.raises(InvalidValue, match="randomizer"):
        Design(**{**FIXED, "randomizer": randomizer})  # type: ignore[arg-type]


@pytest.mark.parametrize("population", [10, (5, 10), "5..10"])
def test_a_population_is_a_description(population: object) -> None:
    with pytest.raises(InvalidValue, match="population"):
        Design(**{**FIXED, "population": population})  # type: ignore[arg-type]
