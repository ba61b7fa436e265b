"""The interface of a model: pure functions of its tensors and of rows of data.

A device computes ``gradient`` with numpy alone; the simulator differentiates ``loss`` with JAX.
Tests hold the two equal. No model has state, and none is fitted to data when it is made.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from checkins import validate
from checkins.errors import InvalidValue
from checkins.tasks.tensors import flatten

if TYPE_CHECKING:
    import jax


Vector = NDArray[Any]
Rows = NDArray[Any]

MOST_NUMBERS = 10**8


@runtime_checkable
class Model(Protocol):
    """A model as named tensors, sent as float32, and as one flat vector."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The tensors by name, in the order of the flat vector."""

    @property
    def dimension(self) -> int:
        """The length of the flat vector."""

    def start(self, seed: int) -> NDArray[np.float64]:
        """Public initial weights: they are drawn from the seed alone and fit float32."""

    def loss(self, parameters: dict[str, jax.Array], features: jax.Array, label: Any) -> jax.Array:
        """The loss at one example, for JAX to differentiate, vmap and compile."""

    def gradient(self, flat: Vector, features: Rows, labels: Rows) -> Vector:
        """The mean over rows of the gradients, in numpy, in the vector's own precision."""

    def scores(self, flat: Vector, features: Rows) -> Rows:
        """For each row the log-odds of class 1, or one score for each class."""


@runtime_checkable
class LinearModel(Model, Protocol):
    """A model whose scores are x·W + b: the gradient at a row is the outer product of (x, 1) with
    its residuals.

    Its norm is therefore |(x, 1)| × |residuals|, and a sum of clipped gradients is one matrix
    product, without a gradient for each row.
    """

    def residuals(self, scores: Any, labels: Any) -> Any:
        """The derivative of the loss by each score, in numpy or JAX, like ``scores``."""


def check_classes(classes: int, *, most: int = 10**6) -> None:
    """Refuse to predict fewer than two classes, or more than ``most``."""
    validate.count(most=most, classes=classes)
    if classes < 2:
        raise InvalidValue("classes", classes, f"must be an integer from 2 to {most:,}")


def flat_rows(features: Rows, count: int, dtype: Any) -> Rows:
    """Rows of any shape as a matrix of ``count`` columns, in the precision of the weights."""
    if features.ndim < 2 or math.prod(features.shape[1:]) != count:
        raise InvalidValue("features", features.shape, f"must be rows of {count:,} numbers")
    return features.reshape(len(features), count).astype(dtype, copy=False)


def check_labels(labels: Rows, *, rows: int, classes: int) -> None:
    """Refuse labels that are not one class for each of at least one row."""
    if not rows or labels.shape != (rows,):
        raise InvalidValue("labels", labels.shape, "must be one label for each of 1 or more rows")
    fits = labels.dtype.kind in "iu" and labels.min() >= 0 and labels.max() < classes
    if not fits:
        raise InvalidValue(
            "labels", np.unique(labels)[:5].tolist(), f"must be integers from 0 to {classes - 1}"
        )


def random_start(
    shapes: dict[str, tuple[int, ...]], weights: Iterable[str], seed: int
) -> NDArray[np.float64]:
    """Return normal ``weights`` of variance 1 / inputs, and biases of zero.

    The variance preserves the scale of activations.
    """
    generator = np.random.default_rng(seed)
    tensors = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    for name in weights:
        normals = generator.standard_normal(shapes[name], np.float32)
        tensors[name] = normals / np.float32(math.sqrt(math.prod(shapes[name][:-1])))
    return flatten(tensors, shapes).astype(np.float64)
