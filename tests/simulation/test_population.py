"""Who checks in when, in a simulation: the laws of the counts, and that nobody comes twice."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, chi2, norm

from checkins.errors import InvalidValue
from checkins.simulation.engine.loop import compile_slot_clients
from checkins.simulation.population import (
    AlwaysAvailable,
    Arrivals,
    Diurnal,
    Sampling,
    SimulatedPopulation,
    SlotCounts,
    parse_availability,
)
from tests.simulation.campaigns import pure_design as design

SLOTS, CLIENTS, RUNS = 40, 500, 2000
DEVIATIONS = float(norm.isf(0.5e-9 / (4 * SLOTS)))
"""For each of four times as many means as there are slots: 1e-9 for all of them together."""


def counted(population: SimulatedPopulation, runs: int = RUNS) -> np.ndarray:
    """Check-ins of many runs: (runs, slots)."""
    generator = np.random.default_rng(population.seed)
    return np.stack([population.draw_check_ins(generator) for _ in range(runs)])


def follows(seen: np.ndarray, trials: int, chance: float) -> bool:
    """A chi-square of counts against a binomial law; false of the right law with 1e-9."""
    law = binom(trials, chance)
    edges = np.unique(law.ppf(np.linspace(0.02, 0.98, 12))).astype(int)  # each cell has 1% or more
    expected = np.diff(np.concatenate([[0.0], law.cdf(edges), [1.0]])) * seen.size
    cells = np.bincount(np.searchsorted(edges, seen), minlength=expected.size)
    cells, expected = cells[expected > 5], expected[expected > 5]
    return bool(((cells - expected) ** 2 / expected).sum() < chi2.isf(1e-9, expected.size - 1))


def waking(slots: int, clients: int, given: Arrivals | None = None) -> np.ndarray:
    found = np.zeros(slots, int)
    early = (given or Arrivals(slots)).waking(clients)[:slots]
    found[: early.size] = early
    return found


def test_counts_of_a_fixed_window_are_multinomial() -> None:
    """Each slot is Binomial(n, p0/m); two slots have the covariance −n (p0/m)². Each 1e-9."""
    seen = counted(SimulatedPopulation(design(participation=0.8), CLIENTS, 1))
    chance = 0.8 / SLOTS
    for slot in (0, 17, SLOTS - 1):
        assert follows(seen[:, slot], CLIENTS, chance)
    assert follows(seen.sum(axis=1), CLIENTS, 0.8)
    assert follows(seen[:, :20].sum(axis=1), CLIENTS, 0.4)
    both = np.cov(seen[:, 0], seen[:, 1])[0, 1]
    spread = CLIENTS * chance * 1.1  # deviation of a product of two deviations, at most
    assert abs(both + CLIENTS * chance**2) < DEVIATIONS * spread / np.sqrt(RUNS)


@pytest.mark.parametrize(("window", "clients"), [(1, 500), (3, 500), (40, 500), (40, 3000)])
def test_counts_of_a_sliding_window_are_binomial_over_those_it_reaches(
    window: int, clients: int
) -> None:
    """Cohorts that let each client pick, and those that draw all at once. Each 1e-9."""
    seen = counted(SimulatedPopulation(design(participation=0.9, window=window), clients, 2))
    awake = waking(SLOTS, clients)
    for slot in (0, 1, 20, SLOTS - 1):
        reach = awake[max(0, slot - window + 1) : slot + 1].sum()
        assert follows(seen[:, slot], int(reach), 0.9 / window)


def test_large_and_small_cohorts_in_one_run_keep_their_distributions() -> None:
    """A window of 8: each client of a cohort of 1 or 2 picks, 34 are drawn at once; 1e-9."""
    for clients in (2, 5, 100):
        population = SimulatedPopulation(design(12, window=8), clients, 3, Arrivals(3))
        seen, awake = counted(population), waking(12, clients, Arrivals(3))
        assert (seen.sum(axis=1) == clients).all()  # all windows end in time
        for slot in range(12):
            reach = int(awake[max(0, slot - 7) : slot + 1].sum())
            if reach:
                assert follows(seen[:, slot], reach, 1 / 8)
            else:
                assert not seen[:, slot].any()


def test_poisson_samples_every_client_independently_for_each_slot() -> None:
    """Slots are independent binomials: their sum is one of n m trials. Each 1e-9."""
    population = SimulatedPopulation(
        design(participation=0.8, capacity=None), CLIENTS, 4, sampling=Sampling.POISSON
    )
    seen = counted(population)
    for slot in (0, SLOTS - 1):
        assert follows(seen[:, slot], CLIENTS, 0.8 / SLOTS)
    assert follows(seen.sum(axis=1), CLIENTS * SLOTS, 0.8 / SLOTS)


@given(clients=st.integers(1, 10_000), slots=st.integers(1, 200))
def test_a_shuffler_sends_everyone_once_and_evenly(clients: int, slots: int) -> None:
    population = SimulatedPopulation(
        design(slots, capacity=None), clients, 5, sampling=Sampling.SHUFFLED
    )
    reports = population.draw_run().reports
    assert reports.sum() == clients
    assert reports.max() - reports.min() <= 1


@pytest.mark.parametrize(
    "available", [Diurnal(8, 0.3), Diurnal(7, 0.0), Arrivals(25), Arrivals(1), Arrivals(80)]
)
def test_a_client_is_online_with_the_stated_probability(available: Any) -> None:
    """Binomial with that chance, in every slot looked at; 1e-9 each."""
    seen = counted(SimulatedPopulation(design(participation=0.8), CLIENTS, 6, available))
    online = available.online(np.arange(1, SLOTS + 1))
    for slot in (0, 3, 4, 20, SLOTS - 1):
        assert follows(seen[:, slot], CLIENTS, 0.8 / SLOTS * online[slot])


def test_who_enrols_late_abstains_from_the_slots_before() -> None:
    """Client by client: enrol in one of 25 slots, draw one of 40; the same means. 1e-9."""
    generator = np.random.default_rng(7)
    enrolled = generator.integers(1, 26, 10**6)
    drawn = generator.integers(1, SLOTS + 1, 10**6)
    share = np.bincount(drawn[enrolled <= drawn], minlength=SLOTS + 1)[1:] / 10**6
    said = Arrivals(25).online(np.arange(1, SLOTS + 1)) / SLOTS
    assert np.abs(share - said).max() < DEVIATIONS * np.sqrt(1 / SLOTS / 10**6)


def test_sliding_clients_are_thinned_by_the_hour_and_wake_when_they_arrive() -> None:
    """1e-9 each."""
    night = counted(SimulatedPopulation(design(window=4), CLIENTS, 8, Diurnal(8, 0.2)))
    awake, online = waking(SLOTS, CLIENTS), Diurnal(8, 0.2).online(np.arange(1, SLOTS + 1))
    early = counted(SimulatedPopulation(design(window=4), CLIENTS, 9, Arrivals(10)))
    crowded = waking(SLOTS, CLIENTS, Arrivals(10))
    for slot in (0, 4, 11, 30):
        reach = slice(max(0, slot - 3), slot + 1)
        assert follows(night[:, slot], int(awake[reach].sum()), online[slot] / 4)
        if crowded[reach].any():
            assert follows(early[:, slot], int(crowded[reach].sum()), 1 / 4)
    assert not early[:, 13:].any()


def test_an_hour_returns_exactly_after_a_period() -> None:
    online = Diurnal(7, 0.2).online(np.arange(1, 7001)).reshape(-1, 7)
    assert (online == online[0]).all()
    assert (online[0].max(), online.min() >= 0.2) == (1.0, True)


def test_those_who_arrive_after_the_last_slot_never_come() -> None:
    population = SimulatedPopulation(design(10, window=2), 1000, 1, Arrivals(1000))
    assert population.draw_check_ins(np.random.default_rng(1)).sum() <= 10


def test_a_chosen_client_drops_out_with_the_stated_probability() -> None:
    """100 runs of 40 full slots of 5: reports are Binomial(200, 0.7) each run; 1e-9."""
    population = SimulatedPopulation(design(capacity=5), 40_000, 1, dropout=0.3)
    runs = [population.draw_run(number) for number in range(1, 401)]
    assert follows(np.array([run.reports.sum() for run in runs]), 200, 0.7)
    none = SimulatedPopulation(design(capacity=5), 40_000, 1, dropout=1.0).draw_run()
    assert (none.reports.sum(), none.check_ins.sum()) == (0, 40_000)


@given(
    seed=st.integers(0, 2**40),
    capacity=st.integers(1, 30),
    dropout=st.sampled_from([0.0, 0.4]),
    window=st.sampled_from([None, 1, 6, SLOTS]),
)
def test_a_slot_uses_no_more_than_its_capacity_and_none_while_the_server_warms_up(
    seed: int, capacity: int, dropout: float, window: int | None
) -> None:
    run = SimulatedPopulation(
        design(window=window, capacity=capacity), CLIENTS, seed, dropout=dropout
    ).draw_run()
    assert (run.reports <= np.minimum(run.check_ins, capacity)).all()
    if window is not None:
        assert not run.reports[: window - 1].any()
    if dropout == 0.0:
        late = slice((window or 1) - 1, None)
        assert np.array_equal(run.reports[late], np.minimum(run.check_ins, capacity)[late])


seated_in = cache(compile_slot_clients)


def used(run: SlotCounts, clients: int, *, width: int) -> np.ndarray:
    """Who is used in each slot; −1 for nobody."""
    assert run.reports.max() <= width
    found = seated_in(clients, clients, width)(
        run.keys[:, :, np.newaxis], run.first_position, run.reports
    )
    return np.asarray(found)


@pytest.mark.parametrize("window", [None, 6])
def test_every_client_is_used_once_in_a_run(window: int | None) -> None:
    for number in range(1, 6):
        run = SimulatedPopulation(design(window=window, capacity=None), CLIENTS, 7).draw_run(number)
        people = used(run, CLIENTS, width=40)
        seated = people[people >= 0]
        assert ((people >= 0).sum(axis=1) == run.reports).all()
        assert len(np.unique(seated)) == seated.size == run.reports.sum()
        if window is None:
            assert np.array_equal(np.sort(seated), np.arange(CLIENTS))


def test_everyone_is_used_in_a_slot_equally_often() -> None:
    """30 clients in 10 slots, capacity 1, 2,000 runs; slot 4's client is uniform: 1e-9."""
    population = SimulatedPopulation(design(10), 30, 11)
    people = np.concatenate(
        [used(population.draw_run(number), 30, width=1)[3] for number in range(1, 2001)]
    )
    seen = np.bincount(people[people >= 0], minlength=30)
    expected = seen.sum() / 30
    assert expected > 50
    assert ((seen - expected) ** 2 / expected).sum() < chi2.isf(1e-9, 29)


def test_runs_are_independent_and_a_seed_repeats_them() -> None:
    population = SimulatedPopulation(design(), CLIENTS, 1, dropout=0.1)
    first, again, second = population.draw_run(1), population.draw_run(1), population.draw_run(2)
    assert np.array_equal(first.check_ins, again.check_ins)
    assert np.array_equal(first.reports, again.reports)
    assert np.array_equal(first.keys, again.keys)
    assert not np.array_equal(first.check_ins, second.check_ins)
    assert not np.array_equal(first.keys, second.keys)
    other = replace(population, seed=2).draw_run(1)
    assert not np.array_equal(first.check_ins, other.check_ins)


@given(participation=st.sampled_from([0.0, 1.0]), window=st.sampled_from([None, 5, 40]))
def test_everyone_who_takes_part_is_in_one_slot_at_most(
    participation: float, window: int | None
) -> None:
    for seed in range(20):
        came = SimulatedPopulation(
            design(participation=participation, window=window), CLIENTS, seed
        ).draw_run()
        total = came.check_ins.sum()
        assert total <= CLIENTS * participation
        assert window is not None or total == CLIENTS * participation


@pytest.mark.slow
def test_a_hundred_million_clients_take_no_more_memory_than_their_slots() -> None:
    tracemalloc.start()
    run = SimulatedPopulation(design(100_000), 10**8, 1).draw_run()
    people = np.asarray(
        compile_slot_clients(10**8, 10**8, 1)(
            run.keys[:, :, np.newaxis], run.first_position, run.reports
        )
    )
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (run.check_ins.sum(), len(np.unique(people))) == (10**8, 100_000)
    assert peak < 50e6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("window", "available"),
    [(100, AlwaysAvailable()), (5000, Arrivals(1)), (5000, AlwaysAvailable())],
)
def test_a_hundred_million_clients_with_a_sliding_window_take_no_more_memory(
    window: int, available: Any
) -> None:
    tracemalloc.start()
    run = SimulatedPopulation(design(20_000, window=window), 2 * 10**7, 1, available).draw_run()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert run.check_ins.sum() > 10**7
    assert peak < 150e6


def test_offline_clients_do_not_check_in() -> None:
    night = SimulatedPopulation(design(96), 96_000, 1, Diurnal(96, 0.0)).draw_run().check_ins
    assert night[48] == 0
    assert night[0] > 800


@given(clients=st.integers(1, 10**12), slots=st.integers(1, 1000))
def test_arrivals_differ_by_one_at_most_between_slots(clients: int, slots: int) -> None:
    awake = Arrivals(slots).waking(clients)
    assert awake.sum() == clients
    assert awake.max() - awake.min() <= 1


def test_availability_is_read_or_refused() -> None:
    for said in (AlwaysAvailable(), Diurnal(24, 0.5), Arrivals(7)):
        assert parse_availability(str(said)) == said
    for text in ("", "sometimes", "diurnal", "diurnal:0:0.5", "diurnal:24:2", "diurnal:x:1"):
        with pytest.raises(InvalidValue):
            parse_availability(text)


@pytest.mark.parametrize(
    "wrong", [{"clients": 0}, {"clients": 2**32}, {"dropout": 1.5}, {"dropout": float("nan")}]
)
def test_an_invalid_population_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue, match=next(iter(wrong))):
        SimulatedPopulation(**{"design": design(), "clients": 10, "seed": 1, **wrong})
