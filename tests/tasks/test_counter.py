"""Draws by number: the same for everyone who asks, and as good as independent."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from checkins.errors import InvalidValue
from checkins.tasks.data.synthetic import MAX_CLIENTS, uniforms

indices = st.lists(st.integers(0, MAX_CLIENTS - 1), min_size=1, max_size=20)


@given(seed=st.integers(-(2**70), 2**70), clients=indices, draws=st.integers(1, 5))
def test_a_draw_does_not_depend_on_the_other_requested_draws(
    seed: int, clients: list[int], draws: int
) -> None:
    rows = uniforms(seed, "test", np.array(clients), draws)
    assert np.all((rows > 0.0) & (rows < 1.0))
    for place, client in enumerate(clients):
        assert np.array_equal(uniforms(seed, "test", np.array([client]), draws)[0], rows[place])
    assert np.array_equal(uniforms(seed, "test", np.array(clients), draws + 3)[:, :draws], rows)


def test_draws_never_change_from_one_version_to_the_next() -> None:
    drawn = uniforms(7, "test", np.array([0, 1, 10**12]), 2)
    assert (drawn * 2**53).astype(np.int64).tolist() == FROZEN


FROZEN = [
    [1786861468913507, 4971211268413394],
    [6919826286150566, 8716138655716174],
    [6977157145079264, 2713701773972652],
]


@pytest.mark.parametrize("client_step", [1, 2**20, 2**31])
def test_draws_are_uniform_and_uncorrelated(client_step: int) -> None:
    """Each p-value is below 1e-10 with that probability, under the law claimed."""
    rows = uniforms(3, "test", np.arange(50_000) * client_step, 4)
    assert stats.kstest(rows.ravel(), "uniform").pvalue > 1e-10
    other = uniforms(4, "test", np.arange(50_000) * client_step, 1)[:, 0]
    stream = uniforms(3, "other", np.arange(50_000) * client_step, 1)[:, 0]
    pairs = [
        (rows[:, 0], rows[:, 1]),
        (rows[:-1, 0], rows[1:, 0]),
        (rows[:, 0], other),
        (rows[:, 0], stream),
    ]
    for first, second in pairs:
        cells = np.histogram2d(first, second, bins=16, range=[[0, 1], [0, 1]])[0]
        assert stats.chisquare(cells.ravel()).pvalue > 1e-10


@pytest.mark.parametrize(
    ("clients", "draws"),
    [([-1], 1), ([MAX_CLIENTS], 1), ([0.5], 1), ([[1]], 1), ([1], 0), ([1], 2**16 + 1)],
)
def test_a_number_that_no_client_or_draw_has_is_refused(clients: list[int], draws: int) -> None:
    with pytest.raises(InvalidValue):
        uniforms(0, "test", np.array(clients), draws)


def test_no_clients_is_no_rows() -> None:
    assert uniforms(0, "test", np.arange(0), 3).shape == (0, 3)
