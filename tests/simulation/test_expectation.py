"""What theory says of a run is what its runs do, and what the paper's formulas say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from checkins.accounting.paper.occupancy import dummies_fixed, dummies_sliding
from checkins.simulation import population as populations
from checkins.simulation.population import (
    MAX_BARS,
    AlwaysAvailable,
    Arrivals,
    Diurnal,
    Sampling,
    SimulatedPopulation,
    expected_dummies,
    expected_reports,
    occupancy,
)
from tests.simulation.campaigns import pure_design as design

RUNS = 1000


@given(
    clients=st.integers(1, 10**6),
    slots=st.integers(1, 10**4),
    participation=st.sampled_from([0.01, 0.5, 1.0]),
)
def test_dummies_of_one_report_a_slot_are_the_papers(
    clients: int, slots: int, participation: float
) -> None:
    """Proposition 3.4: m (1 − p0/m)^n."""
    expected = dummies_fixed(clients=clients, slots=slots, participation=participation)
    found = expected_dummies(
        SimulatedPopulation(design(slots, participation=participation), clients, 1)
    )
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-9 * slots)


@given(clients=st.integers(2, 3000), data=st.data())
def test_dummies_of_a_sliding_window_are_the_papers(clients: int, data: st.DataObject) -> None:
    """Proposition 4.4: one client wakes in each of n slots, and (n − m + 1)(1 − 1/m)^m."""
    window = data.draw(st.integers(1, clients))
    expected = dummies_sliding(clients=clients, window=window)
    found = expected_dummies(SimulatedPopulation(design(clients, window=window), clients, 1))
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-9 * clients)


CROWDS: dict[str, SimulatedPopulation] = {
    "fixed": SimulatedPopulation(design(30, participation=0.6, capacity=3), 100, 1),
    "without a capacity": SimulatedPopulation(design(30, capacity=None), 100, 2),
    "dropouts": SimulatedPopulation(design(30, capacity=4), 100, 3, dropout=0.25),
    "diurnal": SimulatedPopulation(design(30, capacity=4), 100, 4, Diurnal(7, 0.1)),
    "arrivals": SimulatedPopulation(design(30, capacity=4), 100, 5, Arrivals(20)),
    "sliding": SimulatedPopulation(design(30, window=5, capacity=3), 100, 6),
    "sliding arrivals": SimulatedPopulation(design(30, window=5, capacity=3), 100, 7, Arrivals(12)),
    "sliding diurnal": SimulatedPopulation(
        design(30, window=5, capacity=3, participation=0.9), 100, 8, Diurnal(6, 0.3), 0.1
    ),
    "poisson": SimulatedPopulation(design(30, capacity=None), 100, 9, sampling=Sampling.POISSON),
    "shuffled": SimulatedPopulation(design(30, capacity=4), 100, 10, sampling=Sampling.SHUFFLED),
    "shuffled, some offline": SimulatedPopulation(
        design(30, capacity=4), 100, 11, Diurnal(6, 0.3), sampling=Sampling.SHUFFLED
    ),
}


@pytest.mark.parametrize("name", CROWDS)
def test_means_and_shares_are_those_of_many_runs(name: str) -> None:
    """Reports within the error of 1,000 runs, and shares of slots; 1e-9 each."""
    population = CROWDS[name]
    runs = [population.draw_run(number) for number in range(1, RUNS + 1)]
    totals = np.array([run.reports.sum() for run in runs])
    far = float(norm.isf(0.5e-9)) * 1.1
    error = far * totals.std() / np.sqrt(RUNS) + 1e-9
    assert abs(totals.mean() - expected_reports(population)) < error
    released = population.design.slots - (population.design.window or 1) + 1
    if population.design.capacity is not None:
        assert expected_dummies(population) == pytest.approx(
            population.design.capacity * released - expected_reports(population), rel=1e-12
        )
    counted = np.concatenate([run.check_ins for run in runs])
    found = occupancy(population, counted)
    measured, expected = np.array(found.measured), np.array(found.expected)
    # Slots of a run go together: as if a run were one draw of a share between 0 and 1.
    shares = np.stack([np.histogram(run.check_ins, [*found.edges, 10**9])[0] for run in runs])
    spread = shares.std(axis=0) / population.design.slots
    cells = float(norm.isf(0.5e-9 / len(measured))) * 1.2
    assert (np.abs(measured - expected) <= cells * spread / np.sqrt(RUNS) + 2e-4).all()
    assert sum(found.measured) == pytest.approx(1.0, abs=1e-9)
    assert sum(found.expected) == pytest.approx(1.0, abs=1e-5)


@given(
    clients=st.integers(1, 10**7),
    slots=st.integers(1, 300),
    window=st.sampled_from([None, 1, 20]),
    participation=st.sampled_from([0.0, 0.1, 1.0]),
    available=st.sampled_from([AlwaysAvailable(), Diurnal(5, 0.0), Arrivals(3), Arrivals(1000)]),
    dropout=st.sampled_from([0.0, 0.5, 1.0]),
    capacity=st.sampled_from([None, 1, 50]),
)
def test_shares_add_up_to_one_and_dummies_to_a_number(
    clients: int,
    slots: int,
    window: int | None,
    participation: float,
    available: Any,
    dropout: float,
    capacity: int | None,
) -> None:
    given_design = design(
        slots,
        participation=participation,
        window=None if window is None else min(window, slots),
        capacity=capacity,
    )
    population = SimulatedPopulation(given_design, clients, 1, available, dropout)
    found = occupancy(population, population.draw_run().check_ins)
    assert len(found.edges) == len(found.measured) == len(found.expected) <= MAX_BARS
    assert (np.diff(found.edges) == found.width).all()
    assert sum(found.measured) == pytest.approx(1.0, abs=1e-9)
    assert sum(found.expected) == pytest.approx(1.0, abs=1e-5)
    assert 0.0 <= expected_reports(population) <= clients * participation * (1 + 1e-9)
    if capacity is not None:
        assert -1e-6 <= expected_dummies(population) <= capacity * slots


def test_many_different_distributions_are_weighted_by_their_slots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """300 laws of a warm-up and one of 2,700 slots: a few that stand for all of them do so."""
    population = SimulatedPopulation(design(3000, window=300), 30_000, 1)
    measured = population.draw_run().check_ins
    exact, mean = occupancy(population, measured), expected_reports(population)
    monkeypatch.setattr(populations, "MAX_BINOMIALS", 50)
    some = occupancy(population, measured)
    assert np.allclose(exact.expected, some.expected, atol=0.005)
    assert expected_reports(population) == mean


def test_a_period_repeats_the_same_distributions() -> None:
    population = SimulatedPopulation(design(10_000), 1000, 1, Diurnal(24, 0.1))
    assert populations._check_in_binomials(population).slots.size <= 24
    assert expected_reports(replace(population, dropout=1.0)) == 0.0
