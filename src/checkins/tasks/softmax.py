"""Softmax regression: a score for each class, linear in the features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from checkins import validate
from checkins.tasks.model import MOST_NUMBERS, Rows, Vector, check_classes, check_labels, flat_rows
from checkins.tasks.tensors import size, unflatten

if TYPE_CHECKING:
    import jax


@dataclass(frozen=True, slots=True)
class Softmax:
    """P(class k) in proportion to exp(z_k), z = x·W + b; the loss is −log P(label).

    >>> Softmax(features=784, classes=10).dimension
    7850
    """

    features: int
    classes: int

    def __post_init__(self) -> None:
        check_classes(self.classes)
        validate.count(most=MOST_NUMBERS // self.classes, features=self.features)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Weights (features, classes), then a bias for each class."""
        return {"weights": (self.features, self.classes), "bias": (self.classes,)}

    @property
    def dimension(self) -> int:
        """(features + 1) × classes."""
        return size(self.shapes)

    def start(self, seed: int) -> NDArray[np.float64]:
        """Zeros: the problem is convex, and zero favours nobody."""
        return np.zeros(self.dimension)

    def loss(self, parameters: dict[str, jax.Array], features: jax.Array, label: Any) -> jax.Array:
        """−log P(label) at one example."""
        return cross_entropy(
            features.reshape(-1) @ parameters["weights"] + parameters["bias"], label
        )

    def residuals(self, scores: Any, labels: Any) -> Any:
        """P − (1 at the label), from scores along the last axis."""
        return class_residuals(scores, labels)

    def gradient(self, flat: Vector, features: Rows, labels: Rows) -> Vector:
        """The mean over rows of (x, 1) times the residuals, as one matrix product."""
        x = flat_rows(features, self.features, flat.dtype)
        check_labels(labels, rows=len(x), classes=self.classes)
        residuals = class_residuals(self.scores(flat, features), labels) / len(x)
        return np.append(x.T @ residuals, residuals.sum(axis=0))

    def scores(self, flat: Vector, features: Rows) -> Rows:
        """One score for each class and row: logarithms of the odds, up to a constant of the row."""
        tensors = unflatten(flat, self.shapes)
        x = flat_rows(features, self.features, flat.dtype)
        scores: Rows = x @ tensors["weights"] + tensors["bias"]
        return scores


def cross_entropy(scores: jax.Array, label: Any) -> jax.Array:
    """−log of the label's probability, for JAX: log Σ exp(z) − z_label, without overflow."""
    import jax

    return jax.nn.logsumexp(scores) - scores[label]


def class_residuals(scores: Any, labels: Any) -> Any:
    """Probabilities less the truth, along the last axis, for arrays of numpy or of JAX."""
    if isinstance(scores, np.ndarray):
        odds = np.exp(scores - scores.max(axis=-1, keepdims=True))
        odds /= odds.sum(axis=-1, keepdims=True)
        return odds - (labels[..., np.newaxis] == np.arange(scores.shape[-1]))
    import jax

    return jax.nn.softmax(scores) - jax.nn.one_hot(labels, scores.shape[-1], dtype=scores.dtype)
