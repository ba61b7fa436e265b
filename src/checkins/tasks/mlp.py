"""One hidden layer of tanh units between the features and a softmax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from checkins import validate
from checkins.tasks.model import (
    MOST_NUMBERS,
    Rows,
    Vector,
    check_classes,
    check_labels,
    flat_rows,
    random_weights,
)
from checkins.tasks.softmax import class_residuals, cross_entropy
from checkins.tasks.tensors import flatten, size, unflatten

if TYPE_CHECKING:
    import jax


@dataclass(frozen=True, slots=True)
class MLP:
    """z = tanh(x·W₁ + b₁)·W₂ + b₂, then as softmax regression.

    tanh, because bounded units keep gradients small, and clipping then costs less ([PTSCE21]).

    >>> MLP(features=4, classes=3, width=8).dimension
    67
    """

    features: int
    classes: int
    width: int = 64

    def __post_init__(self) -> None:
        check_classes(self.classes)
        validate.count(most=MOST_NUMBERS // self.classes, width=self.width)
        validate.count(most=MOST_NUMBERS // self.width, features=self.features)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The hidden layer, then the output."""
        return {
            "hidden_weights": (self.features, self.width),
            "hidden_bias": (self.width,),
            "weights": (self.width, self.classes),
            "bias": (self.classes,),
        }

    @property
    def dimension(self) -> int:
        """(features + 1) × width + (width + 1) × classes."""
        return size(self.shapes)

    def start(self, seed: int) -> NDArray[np.float64]:
        """Random weights of variance 1 / inputs, and biases of zero."""
        generator = np.random.default_rng(seed)
        tensors = {name: np.zeros(shape, np.float32) for name, shape in self.shapes.items()}
        for name, inputs in (("hidden_weights", self.features), ("weights", self.width)):
            tensors[name] = random_weights(generator, self.shapes[name], inputs=inputs)
        return flatten(tensors, self.shapes).astype(np.float64)

    def loss(self, parameters: dict[str, jax.Array], features: jax.Array, label: Any) -> jax.Array:
        """−log P(label) at one example."""
        import jax.numpy as jnp

        inputs = features.reshape(-1) @ parameters["hidden_weights"] + parameters["hidden_bias"]
        return cross_entropy(jnp.tanh(inputs) @ parameters["weights"] + parameters["bias"], label)

    def gradient(self, flat: Vector, features: Rows, labels: Rows) -> Vector:
        """The mean gradient over rows, by the chain rule."""
        tensors = unflatten(flat, self.shapes)
        x = flat_rows(features, self.features, flat.dtype)
        check_labels(labels, rows=len(x), classes=self.classes)
        hidden = np.tanh(x @ tensors["hidden_weights"] + tensors["hidden_bias"])
        residuals = class_residuals(hidden @ tensors["weights"] + tensors["bias"], labels) / len(x)
        back = (residuals @ tensors["weights"].T) * (1.0 - hidden**2)
        slopes = {
            "hidden_weights": x.T @ back,
            "hidden_bias": back.sum(axis=0),
            "weights": hidden.T @ residuals,
            "bias": residuals.sum(axis=0),
        }
        return flatten(slopes, self.shapes)

    def scores(self, flat: Vector, features: Rows) -> Rows:
        """One score for each class and row."""
        tensors = unflatten(flat, self.shapes)
        x = flat_rows(features, self.features, flat.dtype)
        hidden = np.tanh(x @ tensors["hidden_weights"] + tensors["hidden_bias"])
        scores: Rows = hidden @ tensors["weights"] + tensors["bias"]
        return scores
