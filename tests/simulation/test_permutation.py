"""A shuffled order of clients: a bijection, the same everywhere, and fair."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import chi2

from checkins.errors import InvalidValue
from checkins.simulation.engine.loop import compile_slot_clients
from checkins.simulation.population import (
    MAX_CLIENTS,
    Permutation,
    digit_sizes,
    feistel,
    round_keys,
)

seeds = st.integers(0, 2**32)


@given(size=st.integers(1, 3000), seed=seeds)
def test_a_permutation_names_every_client_once(size: int, seed: int) -> None:
    order = Permutation(size, seed=seed)(np.arange(size))
    assert np.array_equal(np.sort(order), np.arange(size))


@given(size=st.integers(1, MAX_CLIENTS), seed=seeds, data=st.data())
@example(size=MAX_CLIENTS, seed=1, data=None)
def test_a_permutation_does_not_depend_on_the_requested_part(
    size: int, seed: int, data: st.DataObject | None
) -> None:
    places = [0, size // 2, size - 1]
    if data is not None:
        places = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20))
    order = Permutation(size, seed=seed)
    whole = order(np.array(places))
    assert all(order(np.array([place]))[0] == who for place, who in zip(places, whole, strict=True))
    assert ((whole >= 0) & (whole < size)).all()
    assert len(set(whole.tolist())) == len(set(places))


@given(size=st.integers(1, MAX_CLIENTS), seed=seeds)
def test_a_pass_of_the_permutation_is_invertible(size: int, seed: int) -> None:
    """Digits hold every position in 32 bits, and distinct positions stay distinct."""
    high, low = digit_sizes(size)
    assert size <= high * low < 2**32
    top = high * low - 1
    some = np.unique(np.linspace(0, top, 400).astype(np.uint32))
    passed = feistel(some, round_keys(np.random.SeedSequence(seed), ()), high, low)
    assert len(np.unique(passed)) == len(some)
    assert passed.max() <= top


@pytest.mark.parametrize("size", [1, 2, 7, 63, 64, 65, 1000, 2**31 + 3, MAX_CLIENTS])
def test_numpy_and_jax_compute_the_same_permutation(size: int) -> None:
    width, rows = 5, min(size, 2**31 - 1)
    reports = np.minimum([5, 3, 0, 1], size)
    first = np.array([0, max(0, size // 2 - 3), 0, size - 1])
    keys = round_keys(np.random.SeedSequence(9), (1,))
    found = np.asarray(
        compile_slot_clients(size, rows, width)(keys[:, :, np.newaxis], first, reports)
    )
    order = Permutation(size, seed=9)
    for row, (start, used) in enumerate(zip(first, reports, strict=True)):
        assert found[row, :used].tolist() == (order(start + np.arange(used)) % rows).tolist()
        assert (found[row, used:] == -1).all()


def test_every_slot_of_a_poisson_run_has_an_order_of_its_own() -> None:
    keys = round_keys(np.random.SeedSequence(3), (4,))
    found = np.asarray(
        compile_slot_clients(100, 100, 100)(
            keys[:, :, np.newaxis], np.zeros(4, int), np.full(4, 100)
        )
    )
    assert all(np.array_equal(np.sort(row), np.arange(100)) for row in found)
    assert len({row.tobytes() for row in found}) == 4


def orders(size: int, draws: int, *, places: int, seed: int) -> np.ndarray:
    """Who stands at the first places in many orders at once."""
    high, low = digit_sizes(size)
    keys = round_keys(np.random.SeedSequence(seed), (draws, 1))
    found = np.array(
        feistel(np.tile(np.arange(places, dtype=np.uint32), (draws, 1)), keys, high, low)
    )
    while (outside := np.flatnonzero((found >= size).any(axis=1))).size:
        again = feistel(found[outside], keys[:, outside], high, low)
        found[outside] = np.where(found[outside] >= size, again, found[outside])
    return found.astype(np.int64)


def is_even(seen: np.ndarray) -> bool:
    """A chi-square that fails with probability 1e-9."""
    expected = seen.sum() / seen.size
    return bool(((seen - expected) ** 2 / expected).sum() < chi2.isf(1e-9, seen.size - 1))


@pytest.mark.parametrize("size", [2, 5, 10, 70])
def test_everyone_comes_first_equally_often(size: int) -> None:
    """50,000 orders; fails with probability 1e-9."""
    first = orders(size, 50_000, places=1, seed=1)[:, 0]
    assert is_even(np.bincount(first, minlength=size))


@pytest.mark.parametrize("size", [3, 5])
def test_few_clients_come_in_every_order_equally_often(size: int) -> None:
    """50,000 orders of all clients; fails with probability 1e-9."""
    places = size ** np.arange(size)
    codes = orders(size, 50_000, places=size, seed=4) @ places
    every = [int(np.array(one) @ places) for one in permutations(range(size))]
    seen = np.array([np.count_nonzero(codes == code) for code in every])
    assert seen.sum() == 50_000
    assert is_even(seen)


@pytest.mark.parametrize("size", [6, 12, 66])
def test_neighbours_in_the_order_are_any_two_equally_often(size: int) -> None:
    """100,000 orders, each of size (size − 1) pairs; fails with probability 1e-9."""
    pair = orders(size, 100_000, places=2, seed=5)
    seen = np.bincount(pair @ [size, 1], minlength=size**2).reshape(size, size)
    assert not np.diag(seen).any()
    assert is_even(seen[~np.eye(size, dtype=bool)])


@pytest.mark.parametrize("size", [0, -1, MAX_CLIENTS + 1, 2.5, float("nan")])
def test_an_invalid_size_is_refused(size: float) -> None:
    with pytest.raises(InvalidValue, match="size"):
        Permutation(size, seed=1)  # type: ignore[arg-type]
