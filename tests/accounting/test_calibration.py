"""Calibration: what it finds meets the target, and a little less privacy would not."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkins.accounting.accountant import certify
from checkins.accounting.calibration import Calibration, Parameter, calibrate
from checkins.accounting.design import (
    MOST_SLOT_NOISE,
    Adjacency,
    Design,
    GaussianNoise,
    LocalRandomizer,
    NoiseAt,
    Population,
    Protocol,
)
from checkins.errors import InvalidValue, NotCovered
from tests.soak import only_in_soak

pytestmark = pytest.mark.slow

ADD_REMOVE, REPLACE_ONE = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE
DELTA = 1e-6

LOCAL = Design(Protocol.FIXED, slots=1000, participation=1.0, randomizer=LocalRandomizer(1.0))
WINDOW = dataclasses.replace(LOCAL, protocol=Protocol.SLIDING, window=50)
AVERAGED = dataclasses.replace(
    LOCAL, protocol=Protocol.AVERAGED, population=Population(500, 10_000)
)
SERVER = dataclasses.replace(LOCAL, slots=100, randomizer=GaussianNoise(1.0, NoiseAt.SERVER))
CLIENT = dataclasses.replace(
    LOCAL, slots=100, capacity=5, randomizer=GaussianNoise(1.0, NoiseAt.CLIENT)
)
FEW = dataclasses.replace(CLIENT, population=Population(1, 50))
APPROXIMATE = dataclasses.replace(LOCAL, slots=10**6, randomizer=LocalRandomizer(0.1, 1e-60))

NOISE, LOCAL_EPSILON = Parameter.NOISE_MULTIPLIER, Parameter.LOCAL_EPSILON
PARTICIPATION, SLOTS, CAPACITY = Parameter.PARTICIPATION, Parameter.SLOTS, Parameter.CAPACITY
LOOSER = {
    NOISE: lambda x: x / 1.01,
    LOCAL_EPSILON: lambda x: x * 1.01,
    PARTICIPATION: lambda x: x * 1.01,
    SLOTS: lambda x: x - 1,
    CAPACITY: lambda x: x - 1,
}


def solve(
    design: Design,
    parameter: Parameter,
    epsilon: float,
    adjacency: Adjacency = ADD_REMOVE,
    *,
    delta: float = DELTA,
    campaigns: int = 1,
) -> Calibration:
    return calibrate(
        design,
        parameter=parameter,
        epsilon=epsilon,
        delta=delta,
        adjacency=adjacency,
        campaigns=campaigns,
    )


def turned(design: Design, parameter: Parameter, value: float) -> Design:
    """``design`` with another value of ``parameter``."""
    match parameter:
        case Parameter.NOISE_MULTIPLIER:
            randomizer = dataclasses.replace(design.randomizer, noise_multiplier=value)
            return dataclasses.replace(design, randomizer=randomizer)
        case Parameter.LOCAL_EPSILON:
            randomizer = dataclasses.replace(design.randomizer, local_epsilon=value)
            return dataclasses.replace(design, randomizer=randomizer)
        case Parameter.PARTICIPATION:
            return dataclasses.replace(design, participation=value)
        case Parameter.SLOTS:
            return dataclasses.replace(design, slots=int(value))
    return dataclasses.replace(design, capacity=int(value))


def met_and_tight(
    design: Design, parameter: Parameter, epsilon: float, adjacency: Adjacency, campaigns: int = 1
) -> Calibration:
    """The target is met, and missed a little to the loose side.

    The search's grid is coarser than the certificate's: of integers 1 % is allowed too.
    """
    found = solve(design, parameter, epsilon, adjacency, campaigns=campaigns)
    assert found.certificate.epsilon <= epsilon
    assert found.design == turned(design, parameter, found.value)
    assert found.parameter is parameter
    looser = LOOSER[parameter](found.value)
    if parameter in (SLOTS, CAPACITY):
        looser = min(looser, int(found.value / 1.01))
    wanting = turned(design, parameter, looser)
    certificate = certify(
        wanting, delta=DELTA, adjacency=adjacency, campaigns=campaigns, compare=False
    )
    assert certificate.epsilon > epsilon
    return found


# Met, and tight


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("epsilon", [0.05, 0.5, 2.0])
@pytest.mark.parametrize("parameter", [LOCAL_EPSILON, PARTICIPATION, SLOTS])
def test_a_local_randomizer_meets_the_target_and_spends_it(
    parameter: Parameter, epsilon: float, adjacency: Adjacency
) -> None:
    design = dataclasses.replace(LOCAL, randomizer=LocalRandomizer(5.0))
    met_and_tight(design, parameter, epsilon, adjacency)


@pytest.mark.parametrize(
    ("epsilon", "parameter"),
    [
        *((0.2, NOISE), (1.5, PARTICIPATION), (1.5, SLOTS)),
        pytest.param(1.5, NOISE, marks=only_in_soak),
        pytest.param(0.2, PARTICIPATION, marks=only_in_soak),
        pytest.param(0.2, SLOTS, marks=only_in_soak),
    ],
)
def test_noise_at_the_server_meets_the_target_and_spends_it(
    parameter: Parameter, epsilon: float
) -> None:
    met_and_tight(dataclasses.replace(SERVER, slots=20), parameter, epsilon, ADD_REMOVE)


@pytest.mark.parametrize("parameter", [NOISE, PARTICIPATION, SLOTS, CAPACITY])
def test_noise_at_the_client_meets_the_target_and_spends_it(parameter: Parameter) -> None:
    met_and_tight(dataclasses.replace(CLIENT, slots=20), parameter, 0.4, ADD_REMOVE)


@pytest.mark.parametrize(
    ("parameter", "slots", "epsilon"),
    [
        *((NOISE, 1, 0.3), (NOISE, 1, 2.0), (PARTICIPATION, 1, 0.3), (PARTICIPATION, 1, 2.0)),
        *((NOISE, 10, 2.0), (PARTICIPATION, 10, 0.3)),
        pytest.param(NOISE, 10, 0.3, marks=only_in_soak),
        pytest.param(PARTICIPATION, 10, 2.0, marks=only_in_soak),
    ],
)
def test_gaussian_replacement_meets_the_target_and_spends_it(
    parameter: Parameter, slots: int, epsilon: float
) -> None:
    met_and_tight(dataclasses.replace(SERVER, slots=slots), parameter, epsilon, REPLACE_ONE)


@pytest.mark.parametrize(
    ("design", "parameter"), [(WINDOW, LOCAL_EPSILON), (WINDOW, PARTICIPATION)]
)
@pytest.mark.parametrize("adjacency", Adjacency)
def test_a_window_is_calibrated_too(
    design: Design, parameter: Parameter, adjacency: Adjacency
) -> None:
    loose = dataclasses.replace(design, randomizer=LocalRandomizer(4.0))
    met_and_tight(loose, parameter, 0.7, adjacency)


def test_averaged_updates_are_calibrated_too() -> None:
    met_and_tight(AVERAGED, LOCAL_EPSILON, 0.7, REPLACE_ONE)


def test_an_approximate_randomizer_is_calibrated_by_what_its_certificate_says() -> None:
    met_and_tight(APPROXIMATE, LOCAL_EPSILON, 0.01, REPLACE_ONE)


@pytest.mark.parametrize(
    ("design", "parameter", "adjacency"),
    [
        (LOCAL, LOCAL_EPSILON, ADD_REMOVE),
        (LOCAL, LOCAL_EPSILON, REPLACE_ONE),
        (dataclasses.replace(LOCAL, randomizer=LocalRandomizer(4.0)), PARTICIPATION, REPLACE_ONE),
        (dataclasses.replace(SERVER, slots=5), NOISE, ADD_REMOVE),
    ],
)
def test_several_campaigns_meet_the_target_together(
    design: Design, parameter: Parameter, adjacency: Adjacency
) -> None:
    found = met_and_tight(design, parameter, 0.9, adjacency, campaigns=12)
    assert found.certificate.campaigns == 12


def test_a_known_population_buys_less_noise() -> None:
    known = met_and_tight(FEW, NOISE, 0.5, ADD_REMOVE)
    unknown = solve(CLIENT, NOISE, 0.5)
    assert known.certificate.method == "exact-population"
    assert known.value < 0.97 * unknown.value


@settings(max_examples=15)
@given(
    epsilon=st.floats(0.01, 6.0),
    parameter=st.sampled_from([LOCAL_EPSILON, PARTICIPATION, SLOTS]),
    local=st.floats(6.5, 10.0),
    adjacency=st.sampled_from(Adjacency),
    delta=st.sampled_from([1e-4, 1e-9]),
)
def test_every_target_is_met_from_below(
    epsilon: float, parameter: Parameter, local: float, adjacency: Adjacency, delta: float
) -> None:
    design = dataclasses.replace(LOCAL, slots=200, randomizer=LocalRandomizer(local))
    found = solve(design, parameter, epsilon, adjacency, delta=delta)
    assert 0.97 * epsilon <= found.certificate.epsilon <= epsilon


@settings(max_examples=12)
@given(epsilon=st.floats(0.05, 5.0), delta=st.sampled_from([1e-4, 1e-9]))
def test_every_noise_is_met_from_below(epsilon: float, delta: float) -> None:
    found = solve(dataclasses.replace(SERVER, slots=5), NOISE, epsilon, delta=delta)
    assert 0.99 * epsilon <= found.certificate.epsilon <= epsilon


@settings(max_examples=20)
@given(epsilon=st.floats(0.05, 5.0), parameter=st.sampled_from([NOISE, PARTICIPATION]))
def test_every_replacement_target_of_one_slot_is_met_from_below(
    epsilon: float, parameter: Parameter
) -> None:
    """One slot is computed without a grid: nothing but the search's own rounding is left."""
    found = solve(dataclasses.replace(SERVER, slots=1), parameter, epsilon, REPLACE_ONE)
    assert 0.999 * epsilon <= found.certificate.epsilon <= epsilon


@pytest.mark.parametrize(
    ("design", "parameter", "grows"),
    [
        (SERVER, NOISE, False),
        (LOCAL, LOCAL_EPSILON, True),
        (dataclasses.replace(LOCAL, randomizer=LocalRandomizer(5.0)), PARTICIPATION, True),
        (dataclasses.replace(LOCAL, randomizer=LocalRandomizer(5.0)), SLOTS, False),
    ],
)
def test_a_larger_target_asks_for_no_more_privacy(
    design: Design, parameter: Parameter, grows: bool
) -> None:
    values = [solve(design, parameter, epsilon).value for epsilon in (0.1, 0.2, 0.8, 3.0)]
    assert values == sorted(values, reverse=not grows)


def test_the_designs_own_value_of_the_parameter_does_not_matter() -> None:
    other = dataclasses.replace(LOCAL, randomizer=LocalRandomizer(50.0))
    assert solve(LOCAL, LOCAL_EPSILON, 0.5).value == solve(other, LOCAL_EPSILON, 0.5).value


# The ends


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize(
    ("design", "parameter", "epsilon", "loosest"),
    [
        (LOCAL, PARTICIPATION, 2.0, 1.0),
        (LOCAL, SLOTS, 1.01, 1),
        (dataclasses.replace(SERVER, slots=1), SLOTS, 30.0, 1),
        (dataclasses.replace(CLIENT, slots=1), CAPACITY, 50.0, 1),
    ],
)
def test_a_generous_target_gets_the_loosest_value(
    design: Design, parameter: Parameter, epsilon: float, loosest: float, adjacency: Adjacency
) -> None:
    found = solve(design, parameter, epsilon, adjacency)
    assert found.value == pytest.approx(loosest, rel=1e-9)
    assert found.certificate.epsilon <= epsilon


@pytest.mark.parametrize(
    ("design", "parameter", "epsilon"),
    [(LOCAL, LOCAL_EPSILON, 101.0), (dataclasses.replace(SERVER, slots=1), NOISE, 200.0)],
)
def test_a_target_beyond_our_own_limits_is_refused_and_not_clamped(
    design: Design, parameter: Parameter, epsilon: float
) -> None:
    with pytest.raises(InvalidValue, match=f"epsilon = {epsilon}: even .* gives a smaller epsilon"):
        solve(design, parameter, epsilon)


def refused(make: Callable[[], object], name: str, value: object) -> str:
    with pytest.raises(InvalidValue) as caught:
        make()
    assert caught.value.name == name
    message = str(caught.value)
    assert message.startswith(f"{name} = {value!r}: ")
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("design", "parameter", "epsilon", "campaigns", "end"),
    [
        (SERVER, NOISE, 1e-9, 10**6, f"noise_multiplier = {MOST_SLOT_NOISE:g}"),
        (dataclasses.replace(CLIENT, slots=1), CAPACITY, 1e-12, 1, "capacity = 1e+12"),
    ],
)
def test_a_target_out_of_reach_is_refused_with_the_value_that_misses_it(
    design: Design, parameter: Parameter, epsilon: float, campaigns: int, end: str
) -> None:
    message = refused(
        lambda: solve(design, parameter, epsilon, delta=1e-12, campaigns=campaigns),
        "epsilon",
        epsilon,
    )
    assert end in message


def test_an_approximate_randomizer_that_no_theorem_covers_is_out_of_reach() -> None:
    hopeless = dataclasses.replace(LOCAL, randomizer=LocalRandomizer(0.1, 1e-3))
    with pytest.raises(NotCovered, match="out of reach"):
        solve(hopeless, LOCAL_EPSILON, 0.5, REPLACE_ONE)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, "1", None, True])
def test_a_target_is_positive_and_finite(value: object) -> None:
    refused(lambda: solve(LOCAL, LOCAL_EPSILON, value), "epsilon", value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0.0, 1.0, math.nan, -1e-6])
def test_a_targets_delta_lies_strictly_between_zero_and_one(value: float) -> None:
    refused(lambda: solve(LOCAL, LOCAL_EPSILON, 0.5, delta=value), "delta", value)


@pytest.mark.parametrize("value", [0, -3, 10**7, 2.0])
def test_a_targets_campaigns_are_counted(value: object) -> None:
    refused(lambda: solve(LOCAL, LOCAL_EPSILON, 0.5, campaigns=value), "campaigns", value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("design", "parameter", "why"),
    [
        (LOCAL, NOISE, "local-epsilon instead"),
        (SERVER, LOCAL_EPSILON, "noise-multiplier instead"),
        (AVERAGED, PARTICIPATION, "participation 1 only"),
        (AVERAGED, SLOTS, "fixed protocol only"),
        (WINDOW, SLOTS, "fixed protocol only"),
        (SERVER, CAPACITY, "sum private reports"),
        (AVERAGED, CAPACITY, "averaged updates use all"),
    ],
)
def test_a_parameter_that_epsilon_does_not_depend_on_is_refused_with_the_reason(
    design: Design, parameter: Parameter, why: str
) -> None:
    message = refused(lambda: solve(design, parameter, 0.5, REPLACE_ONE), "solve", str(parameter))
    assert why in message


def test_averaged_updates_are_not_calibrated_between_one_more_and_one_less() -> None:
    refused(lambda: solve(AVERAGED, LOCAL_EPSILON, 0.5), "adjacency", "add-remove")


def test_a_calibration_is_plain_json() -> None:
    found = solve(LOCAL, SLOTS, 0.05)
    told = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert told["parameter"] == "slots"
    assert told["value"] == found.value == found.design.slots
    assert isinstance(found.value, int)
    assert told["epsilon"] == found.certificate.epsilon <= 0.05
