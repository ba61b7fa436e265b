"""Synthetic data: drawn from a seed, for any number of clients, with known optimal weights.

Two classes are the logistic problem of ``convex``; more classes are its analogue with a softmax:
x uniform on the unit sphere, label k with probability proportional to exp⟨x, wₖ⟩. It holds no
person's data, so nothing in it needs protection.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from checkins import validate
from checkins.errors import InvalidValue
from checkins.tasks.data.convex import MOST_DIMENSIONS, Loss, Problem, on_sphere, uniforms
from checkins.tasks.data.dataset import Dataset

NAME = "synthetic"
DIAMETER = 10.0
"""Diameter of the ball that holds the optimum of two classes, at 0.8 of its radius."""

SIGNAL = 10.0
"""Length of the weights of each of several classes."""

MOST_CLASSES = 1000


def load(
    *,
    clients: int = 10_000,
    holdout: int = 2_000,
    classes: int = 2,
    dimension: int = 10,
    seed: int = 0,
) -> Dataset:
    """Return a classification problem; the same arguments give the same bytes.

    >>> data = load(clients=100, holdout=10, classes=3)
    >>> data.clients, data.shape, len(data.holdout_labels), data.classes
    (100, (10,), 10, 3)
    """
    validate.count(most=10**9, clients=clients)
    if isinstance(holdout, bool) or not 0 <= holdout <= 10**9:
        raise InvalidValue("holdout", holdout, "must be 0 to 10^9 rows")
    if classes == 2:
        return logistic(dimension=dimension, seed=seed).dataset(clients=clients, holdout=holdout)
    several = SeveralClasses(dimension, classes, seed)
    features, labels = several.clients(np.arange(clients))
    held, held_labels = several.clients(np.arange(holdout), stream="holdout")
    return Dataset.one_row_each(
        f"{NAME}-softmax",
        features.astype(np.float32),
        labels,
        classes,
        holdout_features=held.astype(np.float32),
        holdout_labels=held_labels,
    )


def logistic(*, dimension: int = 10, seed: int = 0) -> Problem:
    """Return the problem behind ``load`` with two classes."""
    return Problem(Loss.LOGISTIC, dimension, DIAMETER, seed)


@dataclass(frozen=True, slots=True)
class SeveralClasses:
    """The distribution of features and labels with several classes, and its optimal weights."""

    dimension: int
    classes: int
    seed: int

    def __post_init__(self) -> None:
        validate.count(most=MOST_DIMENSIONS, dimension=self.dimension)
        validate.one_of(int, seed=self.seed)
        validate.count(most=MOST_CLASSES, classes=self.classes)
        if not self.classes >= 2:
            raise InvalidValue("classes", self.classes, f"must be 2 to {MOST_CLASSES:,}")

    @property
    def weights(self) -> NDArray[np.float64]:
        """Weights of the softmax that drew the labels: one column for each class."""
        rows = on_sphere(self.seed, "weights", np.arange(self.classes), self.dimension)
        return SIGNAL * rows.T

    def clients(
        self, indices: NDArray[np.int64], *, stream: str = "clients"
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return features and labels of the clients of these numbers, without storing any."""
        features = on_sphere(self.seed, stream, indices, self.dimension)
        probabilities = np.cumsum(softmax(features @ self.weights, axis=1), axis=1)
        draws = uniforms(self.seed, f"{stream}:labels", indices, 1)
        # The last sum may round below 1 and below a draw: it counts as 1.
        return features, np.sum(draws > probabilities[:, :-1], axis=1, dtype=np.int64)
