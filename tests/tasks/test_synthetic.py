"""Synthetic classes: drawn from a seed, learnable, and the same for everyone."""

from __future__ import annotations

import numpy as np
import pytest

from checkins.errors import InvalidValue
from checkins.tasks.data import synthetic
from checkins.tasks.data.synthetic import SoftmaxDistribution, load


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_the_same_arguments_give_the_same_bytes(classes: int) -> None:
    one, other = (load(clients=500, holdout=50, classes=classes, seed=4) for _ in range(2))
    assert one.features.tobytes() == other.features.tobytes()
    assert one.labels.tobytes() == other.labels.tobytes()
    assert set(one.labels.tolist()) == set(range(classes))
    third = load(clients=500, holdout=50, classes=classes, seed=5)
    assert third.features.tobytes() != one.features.tobytes()


@pytest.mark.parametrize("classes", [2, 5])
def test_more_clients_are_the_same_clients_and_others(classes: int) -> None:
    few, many = load(clients=100, classes=classes), load(clients=200, classes=classes)
    assert np.array_equal(many.features[:100], few.features)
    assert np.array_equal(many.labels[:100], few.labels)


def test_a_far_away_client_needs_no_others() -> None:
    features, labels = SoftmaxDistribution(8, 4, seed=1).clients(np.array([10**8, 10**14]))
    assert features.shape == (2, 8)
    assert labels.dtype == np.int64


def test_labels_follow_the_softmax_that_drew_them() -> None:
    """Seven standard errors: fails with a probability of about 3e-12 for each class."""
    problem = SoftmaxDistribution(4, 3, seed=0)
    features, labels = problem.clients(np.arange(100_000))
    scores = np.exp(features @ problem.weights)
    chances = scores / scores.sum(axis=1, keepdims=True)
    for label in range(3):
        difference = (labels == label) - chances[:, label]
        error = np.std(difference) / np.sqrt(len(labels))
        assert abs(difference.mean()) < 7.0 * error


def test_the_best_model_predicts_the_holdout() -> None:
    data = load()
    best = synthetic.logistic_problem().optimum
    assert np.mean((data.holdout_features @ best > 0) == data.holdout_labels) > 0.7
    several = load(classes=10, dimension=20)
    scores = several.holdout_features @ SoftmaxDistribution(20, 10, seed=0).weights
    assert np.mean(scores.argmax(axis=1) == several.holdout_labels) > 0.45


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("clients", 0),
        ("clients", 1.5),
        ("holdout", -1),
        ("holdout", True),
        ("classes", 1),
        ("classes", 1001),
        ("dimension", 0),
        ("seed", 0.5),
    ],
)
def test_an_invalid_value_is_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidValue, match=name):
        load(**{"clients": 10, "holdout": 1, "classes": 3, name: value})  # type: ignore[arg-type]
