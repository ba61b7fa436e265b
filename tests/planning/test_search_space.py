"""What is searched is what was asked for, and room is room."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkins.accounting import NoiseAt, Protocol
from checkins.accounting.paper.occupancy import overflow_probability
from checkins.campaign import RandomizerKind
from checkins.planning import Constraints, Devices, Server
from checkins.planning.search_space import (
    OVERFLOW_SHARE,
    candidates,
    capacity_without_overflow,
    contributors,
    with_slots,
)
from tests.planning.plans import ADD_REMOVE, REPLACE_ONE, ask
from tests.planning.test_noise import CLIENT, candidate


@given(
    slots=st.integers(1, 10**5),
    most=st.integers(1, 10**8),
    participation=st.floats(1e-4, 1.0),
    repeats=st.integers(1, 100),
)
def test_room_for_everyone_hardly_ever_overflows(
    slots: int, most: int, participation: float, repeats: int
) -> None:
    asked = ask(population=(1, most))
    found = candidate(slots, participation=participation, repeats=repeats, **CLIENT)
    probability = overflow_probability(
        clients=most,
        slots=slots,
        participation=participation,
        capacity=capacity_without_overflow(found, asked),
    )
    assert probability * repeats <= OVERFLOW_SHARE * asked.delta


def test_averages_are_searched_where_they_are_proved() -> None:
    kinds = {
        adjacency: {one.protocol for one in candidates(ask(adjacency=adjacency))}
        for adjacency in (ADD_REMOVE, REPLACE_ONE)
    }
    assert kinds[ADD_REMOVE] == {Protocol.FIXED}
    assert kinds[REPLACE_ONE] == {Protocol.FIXED, Protocol.AVERAGED}


def test_windows_slide_where_devices_leave_early() -> None:
    found = candidates(ask(devices=Devices(availability_s=50.0)))
    sliding = [one for one in found if one.protocol is Protocol.SLIDING]
    assert sliding
    assert all(one.window is not None and one.window <= 50 for one in sliding)


def test_participation_falls_if_the_server_cannot_take_all_reports() -> None:
    asked = ask(population=(10**8, 10**8), server=Server(updates_per_s=100.0))
    assert max(one.participation for one in candidates(asked)) <= 0.06


@pytest.mark.parametrize(
    ("fixed", "expected"),
    [
        (Constraints(slots=77), lambda one: one.slots == 77),
        (Constraints(repeats=4), lambda one: one.repeats == 4),
        (Constraints(participation=0.3), lambda one: one.participation == 0.3),
        (Constraints(capacity=9), lambda one: one.capacity == 9),
        (Constraints(capacity="all"), lambda one: one.capacity is None and one.is_gaussian),
        (Constraints(window=7), lambda one: one.window == 7),
        (Constraints(bands=16), lambda one: one.bands == 16 and one.noise_at is NoiseAt.SERVER),
        (Constraints(bands=1), lambda one: one.bands == 1),
        (Constraints(minibatch=3), lambda one: one.minibatch == 3 and one.slots >= 3),
        (Constraints(noise_at=NoiseAt.CLIENT), lambda one: one.noise_at is NoiseAt.CLIENT),
        (
            Constraints(randomizer=RandomizerKind.LAPLACE),
            lambda one: one.randomizer is RandomizerKind.LAPLACE,
        ),
        (Constraints(protocol=Protocol.SLIDING), lambda one: one.protocol is Protocol.SLIDING),
    ],
)
def test_what_is_fixed_is_not_searched(fixed: Constraints, expected) -> None:
    found = candidates(ask(fixed=fixed))
    assert found
    assert all(map(expected, found))


def test_correlated_noise_is_searched_for_one_and_two_runs_only() -> None:
    repeats_with_bands = {one.repeats for one in candidates(ask()) if one.bands > 1}
    assert repeats_with_bands == {1, 2}
    five = candidates(ask(fixed=Constraints(repeats=5)))
    assert five
    assert all(one.bands == 1 for one in five)


def test_more_slots_bring_smaller_capacities_and_longer_windows() -> None:
    asked = ask()
    laplace = candidate(100, capacity=100, randomizer=RandomizerKind.LAPLACE, **CLIENT)
    assert with_slots(laplace, 200, asked).capacity == 50
    sliding = candidate(100, protocol=Protocol.SLIDING, window=20)
    assert with_slots(sliding, 300, asked).window == 60
    room = candidate(100, capacity=500, population=asked.population, **CLIENT)
    assert with_slots(room, 200, asked).capacity == capacity_without_overflow(
        candidate(200, capacity=500, **CLIENT), asked
    )


def test_contributors_are_surely_there() -> None:
    everyone = ask(adjacency=REPLACE_ONE)
    some = ask(adjacency=REPLACE_ONE, devices=Devices(dropout=0.5))
    assert contributors(candidate(100), everyone) == 9_000
    assert 4_000 < contributors(candidate(100), some) < 4_500
