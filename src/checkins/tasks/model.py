"""The interface of a model: pure functions of its tensors and of rows of data.

A device computes ``gradient`` with numpy only. The simulator differentiates ``loss`` with JAX.
Tests check that the two gradients agree. A model has no state and is not fitted to data.

Protocol, noise and clipping use a flat vector, which holds the tensors in the order of ``shapes``,
each in row-major order. The order does not depend on the values, so all devices and the server
split a vector in the same way.

>>> shapes = {"weights": (2, 2), "bias": ()}
>>> flat = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
>>> unflatten(flat, shapes)["weights"].tolist()
[[1.0, 2.0], [3.0, 4.0]]
>>> flatten(unflatten(flat, shapes), shapes).tolist()
[1.0, 2.0, 3.0, 4.0, 5.0]
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from checkins import validate
from checkins.errors import InvalidValue

if TYPE_CHECKING:
    import jax

Vector = NDArray[Any]
Rows = NDArray[Any]
Shapes = Mapping[str, tuple[int, ...]]

MAX_LAYER_WEIGHTS = 10**8
"""Largest allowed number of weights in one layer of a model."""


def parameter_count(shapes: Shapes) -> int:
    """Return the total number of elements of the tensors."""
    return sum(math.prod(shape) for shape in shapes.values())


def flatten(tensors: Mapping[str, NDArray[Any]], shapes: Shapes) -> NDArray[Any]:
    """Return the tensors as one numpy vector. Raises InvalidValue if their shapes are wrong."""
    if set(tensors) != set(shapes):
        raise InvalidValue("tensors", sorted(tensors), f"must be {', '.join(sorted(shapes))}")
    for name, shape in shapes.items():
        if np.shape(tensors[name]) != tuple(shape):
            raise InvalidValue(name, np.shape(tensors[name]), f"must have the shape {tuple(shape)}")
    return np.concatenate([np.ravel(tensors[name]) for name in shapes])


def unflatten(flat: Any, shapes: Shapes) -> dict[str, Any]:
    """Split a flat vector into named tensors. With numpy, the tensors are views of the vector."""
    if flat.shape != (parameter_count(shapes),):
        why = f"must be a vector of {parameter_count(shapes):,} numbers"
        raise InvalidValue("flat", flat.shape, why)
    tensors, start = {}, 0
    for name, shape in shapes.items():
        end = start + math.prod(shape)
        tensors[name] = flat[start:end].reshape(shape)
        start = end
    return tensors


@runtime_checkable
class Model(Protocol):
    """A model, whose parameters are named tensors or, in the same order, one flat vector.

    Devices and server send the parameters to each other as float32.
    """

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the tensors by name, in the order of the flat vector."""

    @property
    def dimension(self) -> int:
        """The length of the flat vector."""

    def start(self, seed: int) -> NDArray[np.float64]:
        """Return public initial weights, which depend only on the seed and fit into float32."""

    def loss(self, parameters: dict[str, jax.Array], features: jax.Array, label: Any) -> jax.Array:
        """Return the loss at one example. JAX must be able to differentiate and compile it."""

    def gradient(self, flat: Vector, features: Rows, labels: Rows) -> Vector:
        """Return the mean gradient over rows, in numpy, with the dtype of ``flat``."""

    def scores(self, flat: Vector, features: Rows) -> Rows:
        """Return for each row the log-odds of class 1, or one score per class."""


@runtime_checkable
class LinearModel(Model, Protocol):
    """A model whose scores are x·W + b.

    Here x is a row of features, W are the weights, and b is the intercept. The gradient at a row is
    the outer product of (x, 1), which is x with a 1 appended, and the residuals. Its norm is
    therefore |(x, 1)| × |residuals|, and a sum of clipped gradients is one matrix product.
    """

    def residuals(self, scores: Any, labels: Any) -> Any:
        """Return the derivative of the loss with respect to each score, in numpy or JAX."""


def check_classes(classes: int, *, max_classes: int = 10**6) -> None:
    """Raise InvalidValue if there are fewer than two classes, or more than ``max_classes``."""
    validate.count(most=max_classes, classes=classes)
    if classes < 2:
        raise InvalidValue("classes", classes, f"must be an integer from 2 to {max_classes:,}")


def rows_as_matrix(features: Rows, columns: int, dtype: Any) -> Rows:
    """Return rows of features of any shape as a matrix with ``columns`` columns and this dtype."""
    if features.ndim < 2 or math.prod(features.shape[1:]) != columns:
        raise InvalidValue("features", features.shape, f"must be rows of {columns:,} numbers")
    return features.reshape(len(features), columns).astype(dtype, copy=False)


def check_labels(labels: Rows, *, rows: int, classes: int) -> None:
    """Raise InvalidValue unless there is a valid class for each row, and at least one row."""
    if not rows or labels.shape != (rows,):
        raise InvalidValue("labels", labels.shape, "must be one label for each of 1 or more rows")
    are_valid = labels.dtype.kind in "iu" and labels.min() >= 0 and labels.max() < classes
    if not are_valid:
        why = f"must be integers from 0 to {classes - 1}"
        raise InvalidValue("labels", np.unique(labels)[:5].tolist(), why)


def random_initial_weights(
    shapes: dict[str, tuple[int, ...]], weight_names: Iterable[str], seed: int
) -> NDArray[np.float64]:
    """Return random initial parameters, drawn from the seed.

    The tensors in ``weight_names`` are normally distributed with variance 1 / (number of inputs of
    a unit), which preserves the scale of activations. The other tensors are zero.
    """
    generator = np.random.default_rng(seed)
    tensors = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    for name in weight_names:
        normals = generator.standard_normal(shapes[name], np.float32)
        tensors[name] = normals / np.float32(math.sqrt(math.prod(shapes[name][:-1])))
    return flatten(tensors, shapes).astype(np.float64)
