"""Metrics, held against the obvious way to count."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkins.errors import InvalidValue
from checkins.tasks.metrics import accuracy, auc, mean_loss

# Few values, so that ties are common.
some_scores = st.floats(-3, 3) | st.sampled_from([-1.0, 0.0, -0.0, 1.0])
both_classes = st.lists(st.tuples(some_scores, st.integers(0, 1)), min_size=2, max_size=40).filter(
    lambda rows: len({label for _, label in rows}) == 2
)


def split(rows: list[tuple[float, int]]) -> tuple[np.ndarray, np.ndarray]:
    scores, labels = zip(*rows, strict=True)
    return np.array(scores), np.array(labels)


@given(both_classes)
def test_the_auc_is_the_share_of_pairs_in_order(rows):
    ones = [score for score, label in rows if label]
    zeros = [score for score, label in rows if not label]
    halves = sum(2 * (one > zero) + (one == zero) for one in ones for zero in zeros)
    assert auc(*split(rows)) == halves / (2 * len(ones) * len(zeros))


@given(both_classes)
def test_the_auc_of_the_opposite_scores_is_the_rest(rows):
    scores, labels = split(rows)
    assert auc(scores, labels) + auc(-scores, labels) == pytest.approx(1.0, abs=1e-15)


@given(both_classes)
def test_two_columns_of_scores_rank_by_their_difference(rows):
    scores, labels = split(rows)
    columns = np.stack([np.zeros_like(scores), scores], axis=1)
    assert auc(columns, labels) == auc(scores, labels)
    assert accuracy(columns, labels) == accuracy(scores, labels)
    assert mean_loss(columns, labels) == pytest.approx(mean_loss(scores, labels), rel=1e-12)


def test_the_auc_of_a_million_rows_is_exact_and_quick() -> None:
    labels = np.arange(10**6) % 2
    assert auc(np.zeros(10**6), labels) == 0.5
    assert auc(labels.astype(np.float32), labels) == 1.0
    assert auc(np.arange(1e6), labels) == (5e5 + 1) / 1e6  # each 1 stands above its own 0 too


@given(st.integers(2, 5), st.integers(1, 20), st.integers(0, 2**32 - 1))
def test_accuracy_counts_the_rows_whose_label_scores_highest(classes, rows, seed):
    generator = np.random.default_rng(seed)
    scores, labels = generator.integers(0, 3, (rows, classes)), generator.integers(0, classes, rows)
    right = sum(
        list(row).index(max(row)) == label for row, label in zip(scores, labels, strict=True)
    )
    assert accuracy(scores.astype(float), labels) == right / rows


@given(st.integers(2, 5), st.integers(1, 20), st.integers(0, 2**32 - 1))
def test_the_mean_loss_is_that_of_the_labels_probability(classes, rows, seed):
    generator = np.random.default_rng(seed)
    scores, labels = generator.normal(size=(rows, classes)), generator.integers(0, classes, rows)
    probability = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    expected = -np.mean(np.log(probability[np.arange(rows), labels]))
    assert mean_loss(scores, labels) == pytest.approx(expected, rel=1e-12)


def test_the_mean_loss_of_extreme_scores_does_not_overflow() -> None:
    assert mean_loss(np.array([[1e300, -1e300]]), np.array([0])) == 0.0
    assert mean_loss(np.array([[1e300, 0.0]]), np.array([1])) == 1e300
    assert mean_loss(np.array([-1e300, 1e300]), np.array([0, 1])) == 0.0
    single = np.array([[3e38, -3e38]], np.float32)
    assert mean_loss(single, np.array([1])) == pytest.approx(6e38)
    assert not math.isinf(mean_loss(np.array([3e38], np.float32), np.array([0])))


@pytest.mark.parametrize("metric", [accuracy, auc, mean_loss])
@pytest.mark.parametrize(
    ("scores", "labels", "said"),
    [
        (np.zeros(0), np.zeros(0, int), "1 or more rows"),
        (np.zeros(3), np.zeros(2, int), "1 or more rows"),
        (np.zeros((2, 2, 2)), np.zeros(2, int), "1 or more rows"),
        (np.array([np.nan, 0.0]), np.array([0, 1]), "diverged"),
        (np.array([[np.inf, 0.0]]), np.array([0]), "diverged"),
        (np.zeros(2), np.array([0, 2]), "from 0 to 1"),
        (np.zeros((2, 3)), np.array([0, -1]), "from 0 to 2"),
        (np.zeros(2), np.array([0.0, 1.0]), "from 0 to 1"),
    ],
)
def test_scores_that_do_not_fit_labels_are_refused(metric, scores, labels, said):
    with pytest.raises(InvalidValue, match=said):
        metric(scores, labels)


def test_the_auc_of_one_class_or_of_three_is_refused() -> None:
    with pytest.raises(InvalidValue, match="both classes"):
        auc(np.zeros(3), np.ones(3, int))
    with pytest.raises(InvalidValue, match="two classes"):
        auc(np.zeros((3, 3)), np.array([0, 1, 2]))
