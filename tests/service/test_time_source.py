"""The clock by which slots close never jumps, whatever is done to the calendar."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkins.service.store.time_source import SLEW_RATE, TOLERANCE_S
from tests.support.clock import Clocks

NOON = 1_900_000_000.0
HOUR = 3600.0


@given(
    steps=st.lists(
        st.tuples(st.floats(0.0, 100.0), st.floats(-2 * HOUR, 2 * HOUR) | st.just(0.0)), max_size=20
    )
)
def test_time_goes_on_at_its_own_pace_however_the_calendar_is_set(
    steps: list[tuple[float, float]],
) -> None:
    clocks = Clocks(NOON)
    clock = clocks.clock()
    before, passed = clock.now(), 0.0
    for seconds, set_by in steps:
        clocks.passes(seconds)
        clocks.set(set_by)
        clock.adjust_to_calendar()
        passed += seconds
        assert clock.now() - before == pytest.approx(passed, abs=SLEW_RATE * passed + 1e-5)


@pytest.mark.parametrize("set_by", [HOUR, -HOUR, 2.1, -2.1])
def test_a_calendar_that_jumps_holds_until_it_agrees_again(set_by: float) -> None:
    clocks = Clocks(NOON)
    clock = clocks.clock()
    clocks.passes(10.0)
    clocks.set(set_by)
    clock.adjust_to_calendar()
    assert clock.calendar_ahead_s == pytest.approx(set_by)
    assert clock.now() == pytest.approx(NOON + 10.0)
    clocks.passes(500.0)  # it does not get used to it
    clock.adjust_to_calendar()
    assert clock.is_holding
    clocks.set(-set_by)
    clock.adjust_to_calendar()
    assert not clock.is_holding
    assert clock.now() == pytest.approx(NOON + 510.0)


@pytest.mark.parametrize("ppm", [500.0, -500.0])
def test_what_ntp_slews_passes(ppm: float) -> None:
    clocks = Clocks(NOON)
    clock = clocks.clock()
    for _ in range(24 * 60):
        clocks.passes(60.0)
        clocks.set(60.0 * ppm / 1e6)
        clock.adjust_to_calendar()
        assert not clock.is_holding
    assert clock.now() == pytest.approx(clocks.calendar, abs=1e-3)


@pytest.mark.parametrize("set_by", [-1.0, 1.0, 1.9])
def test_a_leap_second_is_followed_slowly(set_by: float) -> None:
    clocks = Clocks(NOON)
    clock = clocks.clock()
    clocks.set(set_by)
    for second in range(1, 60):
        clocks.passes(1.0)
        clock.adjust_to_calendar()
        assert not clock.is_holding
        moved = clock.now() - NOON - second
        assert moved == pytest.approx(math.copysign(min(abs(set_by), SLEW_RATE * second), set_by))
    assert clock.now() == pytest.approx(clocks.calendar)


def test_many_small_steps_are_a_jump() -> None:
    clocks = Clocks(NOON)
    clock = clocks.clock()
    for _ in range(10):
        clocks.passes(1.0)
        clocks.set(0.9 * TOLERANCE_S)
        clock.adjust_to_calendar()
    assert clock.is_holding
    assert clock.now() <= NOON + 10.0 * (1.0 + SLEW_RATE) + 1e-6


def test_a_suspended_machine_has_missed_time_and_does_not_hold() -> None:
    """The steady clock goes on while a machine is suspended (CLOCK_BOOTTIME): like an outage."""
    clocks = Clocks(NOON)
    clock = clocks.clock()
    clocks.passes(8 * HOUR)
    clock.adjust_to_calendar()
    assert not clock.is_holding
    assert clock.now() == pytest.approx(NOON + 8 * HOUR)


def test_a_machine_whose_steady_clock_was_stopped_holds() -> None:
    """As a virtual machine that was paused: its calendar is ahead afterwards."""
    clocks = Clocks(NOON)
    clock = clocks.clock()
    clocks.set(600.0)
    clock.adjust_to_calendar()
    assert clock.is_holding


def test_a_slow_answer_neither_moves_the_clock_nor_holds() -> None:
    clocks = Clocks(NOON)
    clock = clocks.clock()

    def slowly() -> float:
        told = clocks.calendar
        clocks.passes(30.0)
        return told

    clock.adjust_to_calendar(slowly)
    assert not clock.is_holding
    assert clock.now() == pytest.approx(NOON + 30.0)


def test_a_first_answer_that_was_slow_is_corrected_by_a_quick_one() -> None:
    clocks = Clocks(NOON)
    clock = clocks.clock()
    clock.accept_next_reading()

    def slowly() -> float:
        clocks.passes(30.0)
        return clocks.calendar + 15.0

    clock.adjust_to_calendar(slowly)
    assert not clock.is_holding
    clock.adjust_to_calendar(lambda: clocks.calendar + 15.0)
    assert not clock.is_holding
    assert clock.now() == pytest.approx(clocks.calendar + 15.0)


def test_a_calendar_that_is_no_number_holds() -> None:
    clocks = Clocks(NOON)
    clock = clocks.clock()
    clock.adjust_to_calendar(lambda: math.nan)
    assert clock.is_holding
    assert clock.now() == pytest.approx(NOON)
