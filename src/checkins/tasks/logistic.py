"""Logistic regression: two classes, one weight for each feature and a bias."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from checkins import validate
from checkins.tasks.model import MOST_NUMBERS, Rows, Vector, check_labels, flat_rows
from checkins.tasks.tensors import unflatten

if TYPE_CHECKING:
    import jax


@dataclass(frozen=True, slots=True)
class Logistic:
    """P(label 1) = 1 / (1 + exp(−z)), z = x·w + b; the loss is log(1 + exp(z)) − label × z.

    >>> model = Logistic(features=2)
    >>> model.gradient(model.start(seed=0), np.array([[1.0, -3.0]]), np.array([1])).tolist()
    [-0.5, 1.5, -0.5]
    """

    features: int

    def __post_init__(self) -> None:
        validate.count(most=MOST_NUMBERS, features=self.features)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Weights, then the bias."""
        return {"weights": (self.features,), "bias": ()}

    @property
    def dimension(self) -> int:
        """One number for each feature, and the bias."""
        return self.features + 1

    def start(self, seed: int) -> NDArray[np.float64]:
        """Zeros: the problem is convex, and zero favours nobody."""
        return np.zeros(self.dimension)

    def loss(self, parameters: dict[str, jax.Array], features: jax.Array, label: Any) -> jax.Array:
        """log(1 + exp(z)) − label × z at one example, without overflow."""
        import jax.numpy as jnp

        z = features.reshape(-1) @ parameters["weights"] + parameters["bias"]
        loss: jax.Array = jnp.logaddexp(z, 0.0) - label * z
        return loss

    def residuals(self, scores: Any, labels: Any) -> Any:
        """P(label 1) − label, from log-odds of any shape."""
        if isinstance(scores, np.ndarray):
            return expit(scores) - labels
        import jax

        return jax.nn.sigmoid(scores) - labels

    def gradient(self, flat: Vector, features: Rows, labels: Rows) -> Vector:
        """The mean over rows of (P(label 1) − label) × (x, 1)."""
        x = flat_rows(features, self.features, flat.dtype)
        check_labels(labels, rows=len(x), classes=2)
        residuals = self.residuals(self.scores(flat, features), labels).astype(flat.dtype)
        return np.append(residuals @ x, residuals.sum()) / len(x)

    def scores(self, flat: Vector, features: Rows) -> Rows:
        """The log-odds of class 1 for each row."""
        tensors = unflatten(flat, self.shapes)
        x = flat_rows(features, self.features, flat.dtype)
        scores: Rows = x @ tensors["weights"] + tensors["bias"]
        return scores
