"""Linear models: logistic and softmax regression.

In formulas, x is a row of features, W or w are the weights, and b is the intercept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from checkins import validate
from checkins.tasks.model import (
    MAX_LAYER_WEIGHTS,
    Rows,
    Vector,
    check_classes,
    check_labels,
    parameter_count,
    rows_as_matrix,
    unflatten,
)

if TYPE_CHECKING:
    import jax


class _LinearMethods:
    """The methods that ``Softmax`` and ``Logistic`` share."""

    __slots__ = ()
    features: int
    classes: Any
    shapes: Any

    @property
    def dimension(self) -> int:
        return parameter_count(self.shapes)

    def start(self, seed: int) -> NDArray[np.float64]:
        """Return zeros. The seed has no effect: a convex loss needs no random initial weights."""
        return np.zeros(self.dimension)

    def scores(self, flat: Vector, features: Rows) -> Rows:
        """Return x·W + b for each row."""
        tensors = unflatten(flat, self.shapes)
        x = rows_as_matrix(features, self.features, flat.dtype)
        scores: Rows = x @ tensors["weights"] + tensors["bias"]
        return scores

    def residuals(self, scores: Any, labels: Any) -> Any:
        """Return the derivative of the loss by the scores."""
        raise NotImplementedError

    def gradient(self, flat: Vector, features: Rows, labels: Rows) -> Vector:
        x = rows_as_matrix(features, self.features, flat.dtype)
        check_labels(labels, rows=len(x), classes=self.classes)
        residuals = self.residuals(self.scores(flat, features), labels).astype(flat.dtype) / len(x)
        return np.append(x.T @ residuals, residuals.sum(axis=0))


@dataclass(frozen=True, slots=True)
class Softmax(_LinearMethods):
    """Softmax regression: P(class k) is proportional to exp(z_k), where z = x·W + b.

    The loss is −log P(label).

    >>> Softmax(features=784, classes=10).dimension
    7850
    """

    features: int
    classes: int

    def __post_init__(self) -> None:
        check_classes(self.classes)
        validate.count(most=MAX_LAYER_WEIGHTS // self.classes, features=self.features)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"weights": (self.features, self.classes), "bias": (self.classes,)}

    def loss(self, parameters: dict[str, jax.Array], features: jax.Array, label: Any) -> jax.Array:
        scores = features.reshape(-1) @ parameters["weights"] + parameters["bias"]
        return cross_entropy(scores, label)

    def residuals(self, scores: Any, labels: Any) -> Any:
        return class_residuals(scores, labels)


def cross_entropy(scores: jax.Array, label: Any) -> jax.Array:
    """Return −log P(label) = log Σ exp(z) − z_label in JAX, without overflow."""
    import jax

    return jax.nn.logsumexp(scores) - scores[label]


def class_residuals(scores: Any, labels: Any) -> Any:
    """Return class probabilities minus the one-hot label, along the last axis.

    ``scores`` and the result are numpy arrays, or both are JAX arrays.
    """
    if isinstance(scores, np.ndarray):
        probabilities = np.exp(scores - scores.max(axis=-1, keepdims=True))
        probabilities /= probabilities.sum(axis=-1, keepdims=True)
        return probabilities - (labels[..., np.newaxis] == np.arange(scores.shape[-1]))
    import jax

    return jax.nn.softmax(scores) - jax.nn.one_hot(labels, scores.shape[-1], dtype=scores.dtype)


@dataclass(frozen=True, slots=True)
class Logistic(_LinearMethods):
    """Logistic regression: P(label 1) = 1 / (1 + exp(−z)), where z = x·w + b.

    The loss is log(1 + exp(z)) − label × z.

    >>> model = Logistic(features=2)
    >>> model.gradient(model.start(seed=0), np.array([[1.0, -3.0]]), np.array([1])).tolist()
    [-0.5, 1.5, -0.5]
    """

    features: int

    def __post_init__(self) -> None:
        validate.count(most=MAX_LAYER_WEIGHTS, features=self.features)

    @property
    def classes(self) -> int:
        return 2

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"weights": (self.features,), "bias": ()}

    def loss(self, parameters: dict[str, jax.Array], features: jax.Array, label: Any) -> jax.Array:
        import jax.numpy as jnp

        z = features.reshape(-1) @ parameters["weights"] + parameters["bias"]
        loss: jax.Array = jnp.logaddexp(z, 0.0) - label * z  # no overflow for large z
        return loss

    def residuals(self, scores: Any, labels: Any) -> Any:
        """Return P(label 1) − label. ``scores`` are log-odds, in an array of any shape."""
        if isinstance(scores, np.ndarray):
            return (np.tanh(scores / 2) + 1.0) / 2 - labels  # no overflow for large scores
        import jax

        return jax.nn.sigmoid(scores) - labels
