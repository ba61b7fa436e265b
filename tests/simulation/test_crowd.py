"""Who checks in when, in a simulation."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, chi2

from checkins.accounting import Design, LocalRandomizer, Protocol
from checkins.errors import InvalidValue
from checkins.simulation.availability import Always, Arrivals, Diurnal, parse
from checkins.simulation.crowd import Crowd
from checkins.simulation.permutation import Permutation


def design(slots: int, participation: float = 1.0, window: int | None = None) -> Design:
    return Design(
        Protocol.FIXED if window is None else Protocol.SLIDING,
        slots=slots,
        participation=participation,
        randomizer=LocalRandomizer(1.0),
        capacity=1,
        window=window,
    )


@given(size=st.integers(1, 3000), seed=st.integers(0, 2**32))
def test_a_shuffled_order_names_everyone_once(size: int, seed: int) -> None:
    order = Permutation(size, seed=seed)(np.arange(size))
    assert np.array_equal(np.sort(order), np.arange(size))


@given(size=st.integers(1, 10**12), seed=st.integers(0, 2**32), data=st.data())
def test_an_order_is_the_same_whichever_part_is_asked(
    size: int, seed: int, data: st.DataObject
) -> None:
    places = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20))
    order = Permutation(size, seed=seed)
    whole = order(np.array(places))
    assert all(order(np.array([place]))[0] == who for place, who in zip(places, whole, strict=True))
    assert ((whole >= 0) & (whole < size)).all()


def test_everyone_comes_first_equally_often() -> None:
    """Seeds 0..19,999, ten clients: a chi-square of 9 degrees fails with probability 1e-9."""
    first = [int(Permutation(10, seed=seed)(np.array([0]))[0]) for seed in range(20_000)]
    seen = np.bincount(first, minlength=10)
    assert ((seen - 2000) ** 2 / 2000).sum() < chi2.isf(1e-9, 9)


@pytest.mark.parametrize("window", [None, 3, 40])
def test_the_counts_of_a_slot_follow_their_binomial_law(window: int | None) -> None:
    """500 clients, 5,000 seeds; slot 30 of 40. Fails with probability at most 1e-9 each.

    Fixed: Binomial(500, 0.8/40). Sliding: the cohorts that can reach slot 30 have 12 or 13 clients
    each; the mean and the spread of a sum of binomials are known.
    """
    counts = np.array(
        [Crowd(design(40, 0.8, window), 500, seed).check_ins()[29] for seed in range(5000)]
    )
    if window is None:
        law = binom(500, 0.8 / 40)
        mean, variance = law.mean(), law.var()
    else:
        waking = Arrivals(40).waking(500)[max(0, 30 - window) : 30]
        chance = 0.8 / window
        mean, variance = waking.sum() * chance, waking.sum() * chance * (1 - chance)
    assert abs(counts.mean() - mean) < 6.2 * np.sqrt(variance / 5000)
    assert abs(counts.var() / variance - 1) < 6.2 * np.sqrt(3.0 / 5000)


def test_everyone_who_takes_part_is_in_exactly_one_slot() -> None:
    for seed in range(50):
        assert Crowd(design(40), 500, seed).check_ins().sum() == 500
        assert Crowd(design(40, 0.0), 500, seed).check_ins().sum() == 0
        assert Crowd(design(40, 1.0, 5), 500, seed).check_ins().sum() <= 500


def test_both_ways_to_let_cohorts_pick_have_one_law() -> None:
    """Few and many clients take different paths: per client, slot by slot, the same means."""
    few = (
        np.mean([Crowd(design(20, 1.0, 10), 40, seed).check_ins() for seed in range(4000)], 0) / 40
    )
    many = (
        np.mean([Crowd(design(20, 1.0, 10), 4000, seed).check_ins() for seed in range(400)], 0)
        / 4000
    )
    assert np.abs(few - many).max() < 6.2 * np.sqrt(0.05 / (4000 * 40)) + 0.001


@pytest.mark.slow
def test_a_hundred_million_clients_take_no_more_memory_than_their_slots() -> None:
    tracemalloc.start()
    counts = Crowd(design(100_000), 10**8, 1).check_ins()
    used = Crowd(design(100_000), 10**8, 1).order()(np.arange(100_000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (counts.sum(), len(np.unique(used))) == (10**8, 100_000)
    assert peak < 50e6


def test_offline_clients_do_not_check_in() -> None:
    always = Crowd(design(96), 96_000, 1).check_ins()
    night = Crowd(design(96), 96_000, 1, Diurnal(96, 0.0)).check_ins()
    assert night[48] == 0
    assert night[0] > 800
    assert night.sum() < 0.6 * always.sum()


@given(clients=st.integers(1, 10**12), slots=st.integers(1, 1000))
def test_arrivals_are_as_even_as_can_be(clients: int, slots: int) -> None:
    waking = Arrivals(slots).waking(clients)
    assert waking.sum() == clients
    assert waking.max() - waking.min() <= 1


def test_availability_is_read_or_refused() -> None:
    assert parse("always") == Always()
    assert parse("diurnal:24:0.5") == Diurnal(24, 0.5)
    for text in ("", "sometimes", "diurnal", "diurnal:0:0.5", "diurnal:24:2", "diurnal:x:1"):
        with pytest.raises(InvalidValue):
            parse(text)
