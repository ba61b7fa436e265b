"""A device keeps the server's time, whatever its own calendar says."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkins.campaign import Schedule
from checkins.client.clock_and_randomness import MAX_CLOCK_DRIFT, ServerClock, monotonic_s
from checkins.protocol.rules import RunSchedule

seconds = st.floats(0.0, 30.0)


@given(server=st.floats(0.0, 4e9), monotonic_s=st.floats(0.0, 1e8), there=seconds, back=seconds)
def test_the_error_is_at_most_half_the_round_trip(
    server: float, monotonic_s: float, there: float, back: float
) -> None:
    received = monotonic_s + there + back
    clock = ServerClock.estimate(server + there, sent_s=monotonic_s, received_s=received)
    true = server + there + back
    assert abs(clock.server_s(received) - true) <= clock.error_s + 1e-5
    assert clock.monotonic_s(clock.server_s(monotonic_s)) == pytest.approx(monotonic_s, abs=1e-5)


def test_an_exact_reading_is_kept_until_drift_has_outgrown_a_worse_one() -> None:
    exact = ServerClock(100.0, error_s=0.01, estimated_at_s=0.0)
    soon, late = (
        ServerClock(100.3, error_s=0.5, estimated_at_s=at) for at in (10.0, 0.5 / MAX_CLOCK_DRIFT)
    )
    assert exact.more_accurate(soon) is exact
    assert soon.more_accurate(exact) is exact
    assert exact.more_accurate(late) is late


def test_the_steady_clock_is_not_the_calendar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: -1e9)
    before = monotonic_s()
    assert 0.0 <= monotonic_s() - before < 60.0


@given(now=st.floats(-1e4, 1e4), slot_s=st.floats(0.5, 100.0), share=st.floats(0.01, 0.99))
def test_the_first_open_slot_is_the_first_whose_choice_is_to_come(
    now: float, slot_s: float, share: float
) -> None:
    schedule = Schedule(datetime(1970, 1, 1, tzinfo=UTC), slot_s=slot_s, choose_s=share * slot_s)
    run_schedule = RunSchedule(schedule, slots=10)
    slot = run_schedule.first_open_slot(now)
    assert slot >= 1
    assert now < run_schedule.chooses(slot)
    assert slot == 1 or now >= run_schedule.chooses(slot - 1)
