"""The models that come with the package: logistic and softmax regression, and neural networks.

The neural networks are a perceptron with one hidden layer and a small convolutional network.
The convolutional network has two layers, each with 5 x 5 filters, tanh and the mean of each 2 x 2
square, and then a linear layer. Means and tanh are differentiable everywhere, unlike maxima and
ReLU, so the gradients that numpy and JAX compute agree.

In formulas of linear models, x is a row of features, W or w are the weights, and b is the
intercept.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from checkins import validate
from checkins.errors import InvalidValue
from checkins.tasks.model import (
    MAX_LAYER_WEIGHTS,
    Rows,
    Vector,
    check_classes,
    check_labels,
    flatten,
    parameter_count,
    random_initial_weights,
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


@dataclass(frozen=True, slots=True)
class MLP:
    """A perceptron: softmax regression with the scores z = tanh(x·W₁ + b₁)·W₂ + b₂.

    It uses tanh because bounded units have small gradients, which clipping distorts less
    ([PTSCE21]).

    >>> MLP(features=4, classes=3, width=8).dimension
    67
    """

    features: int
    classes: int
    width: int = 64

    def __post_init__(self) -> None:
        check_classes(self.classes)
        validate.count(most=MAX_LAYER_WEIGHTS // self.classes, width=self.width)
        validate.count(most=MAX_LAYER_WEIGHTS // self.width, features=self.features)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {
            "hidden_weights": (self.features, self.width),
            "hidden_bias": (self.width,),
            "weights": (self.width, self.classes),
            "bias": (self.classes,),
        }

    @property
    def dimension(self) -> int:
        return parameter_count(self.shapes)

    def start(self, seed: int) -> NDArray[np.float64]:
        return random_initial_weights(self.shapes, ("hidden_weights", "weights"), seed)

    def loss(self, parameters: dict[str, jax.Array], features: jax.Array, label: Any) -> jax.Array:
        import jax.numpy as jnp

        inputs = features.reshape(-1) @ parameters["hidden_weights"] + parameters["hidden_bias"]
        return cross_entropy(jnp.tanh(inputs) @ parameters["weights"] + parameters["bias"], label)

    def gradient(self, flat: Vector, features: Rows, labels: Rows) -> Vector:
        tensors, x, hidden = self._hidden_layer(flat, features)
        check_labels(labels, rows=len(x), classes=self.classes)
        residuals = class_residuals(hidden @ tensors["weights"] + tensors["bias"], labels) / len(x)
        hidden_gradient = (residuals @ tensors["weights"].T) * (1.0 - hidden**2)
        gradients = {
            "hidden_weights": x.T @ hidden_gradient,
            "hidden_bias": hidden_gradient.sum(axis=0),
            "weights": hidden.T @ residuals,
            "bias": residuals.sum(axis=0),
        }
        return flatten(gradients, self.shapes)

    def scores(self, flat: Vector, features: Rows) -> Rows:
        tensors, _, hidden = self._hidden_layer(flat, features)
        scores: Rows = hidden @ tensors["weights"] + tensors["bias"]
        return scores

    def _hidden_layer(self, flat: Vector, features: Rows) -> tuple[dict[str, Rows], Rows, Rows]:
        """Return the tensors, the rows as a matrix, and each row's hidden activations."""
        tensors = unflatten(flat, self.shapes)
        x = rows_as_matrix(features, self.features, flat.dtype)
        return tensors, x, np.tanh(x @ tensors["hidden_weights"] + tensors["hidden_bias"])


FILTER_SIDE = 5  # pixels
_CONVOLUTIONS = ("first", "second")  # prefixes of the names of their tensors


@dataclass(frozen=True, slots=True)
class CNN:
    """A convolutional network for pictures.

    ``height`` and ``width`` are in pixels and must be multiples of 4, at least 16. ``filters`` are
    the numbers of filters of the first and the second layer.

    >>> CNN(height=28, width=28, classes=10).dimension
    5994
    """

    height: int
    width: int
    classes: int
    channels: int = 1
    filters: tuple[int, int] = (8, 16)

    def __post_init__(self) -> None:
        check_classes(self.classes, max_classes=10**4)
        validate.count(most=4096, height=self.height, width=self.width)
        validate.count(most=4096, channels=self.channels)
        for filters in self.filters:
            validate.count(most=4096, filters=filters)
        for name in ("height", "width"):
            pixels = getattr(self, name)
            if pixels < 16 or pixels % 4:
                raise InvalidValue(name, pixels, "must be a multiple of 4 and at least 16")

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the tensors.

        Filters have the axes (row, column, input channel, output channel).
        """
        first, second = self.filters
        return {
            "first_filters": (FILTER_SIDE, FILTER_SIDE, self.channels, first),
            "first_bias": (first,),
            "second_filters": (FILTER_SIDE, FILTER_SIDE, first, second),
            "second_bias": (second,),
            "weights": ((self.height // 4 - 3) * (self.width // 4 - 3) * second, self.classes),
            "bias": (self.classes,),
        }

    @property
    def dimension(self) -> int:
        return parameter_count(self.shapes)

    def start(self, seed: int) -> NDArray[np.float64]:
        weight_names = ("first_filters", "second_filters", "weights")
        return random_initial_weights(self.shapes, weight_names, seed)

    def loss(self, parameters: dict[str, jax.Array], features: jax.Array, label: Any) -> jax.Array:
        """Return −log P(label) at one example, with convolutions as matrix products of patches.

        JAX's own convolutions would be slow for one gradient per example, because they become
        grouped convolutions.
        """
        import jax.numpy as jnp

        picture = features.reshape(self.height, self.width, self.channels)
        for layer in _CONVOLUTIONS:
            filters, bias = parameters[f"{layer}_filters"], parameters[f"{layer}_bias"]
            rows, columns = (pixels - FILTER_SIDE + 1 for pixels in picture.shape[:2])
            offsets = product(range(FILTER_SIDE), repeat=2)
            shifted = [picture[i : i + rows, j : j + columns] for i, j in offsets]
            patches = jnp.stack(shifted, axis=2)
            weights = filters.reshape(-1, filters.shape[-1])
            activations = jnp.tanh(patches.reshape(rows * columns, -1) @ weights + bias)
            picture = activations.reshape(rows // 2, 2, columns // 2, 2, -1).mean(axis=(1, 3))
        scores = picture.reshape(-1) @ parameters["weights"] + parameters["bias"]
        return cross_entropy(scores, label)

    def gradient(self, flat: Vector, features: Rows, labels: Rows) -> Vector:
        tensors = unflatten(flat, self.shapes)
        pictures = self._pictures(features, flat.dtype)
        check_labels(labels, rows=len(pictures), classes=self.classes)
        inputs, activations = _forward(tensors, pictures)
        pooled = _average_pooled(activations[-1])
        hidden = pooled.reshape(len(pooled), -1)
        residuals = class_residuals(hidden @ tensors["weights"] + tensors["bias"], labels)
        residuals /= len(pictures)
        gradients = {"weights": hidden.T @ residuals, "bias": residuals.sum(axis=0)}
        layer_gradient = (residuals @ tensors["weights"].T).reshape(pooled.shape)
        layers = list(zip(_CONVOLUTIONS, inputs, activations, strict=True))
        for layer, layer_input, activation in reversed(layers):
            layer_gradient = _unpooled_gradient(layer_gradient) * (1.0 - activation**2)
            axes = (0, 1, 2)
            filter_gradient = np.tensordot(_patches(layer_input), layer_gradient, (axes, axes))
            # The axes of the product are (input channel, row, column, output channel).
            gradients[f"{layer}_filters"] = filter_gradient.transpose(1, 2, 0, 3)
            gradients[f"{layer}_bias"] = layer_gradient.sum(axis=axes)
            if layer != _CONVOLUTIONS[0]:
                layer_gradient = _input_gradient(layer_gradient, tensors[f"{layer}_filters"])
        return flatten(gradients, self.shapes)

    def scores(self, flat: Vector, features: Rows) -> Rows:
        tensors = unflatten(flat, self.shapes)
        _, activations = _forward(tensors, self._pictures(features, flat.dtype))
        pooled = _average_pooled(activations[-1])
        scores: Rows = pooled.reshape(len(pooled), -1) @ tensors["weights"] + tensors["bias"]
        return scores

    def _pictures(self, features: Rows, dtype: Any) -> Rows:
        pixels = self.height * self.width * self.channels
        rows = rows_as_matrix(features, pixels, dtype)
        return rows.reshape(len(rows), self.height, self.width, self.channels)


def _forward(tensors: dict[str, Rows], pictures: Rows) -> tuple[list[Rows], list[Rows]]:
    """Return the inputs of the convolutional layers, and the layers' activations before pooling."""
    inputs, activations = [pictures], []
    for layer in _CONVOLUTIONS:
        filters = tensors[f"{layer}_filters"]
        filtered = np.tensordot(_patches(inputs[-1]), filters, ((3, 4, 5), (2, 0, 1)))
        activations.append(np.tanh(filtered + tensors[f"{layer}_bias"]))
        inputs.append(_average_pooled(activations[-1]))
    return inputs[:-1], activations


def _patches(pictures: Rows) -> Rows:
    """Return all squares of the size of a filter, as a view of the pictures.

    The axes are (picture, y, x, channel, row in filter, column in filter).
    """
    return sliding_window_view(pictures, (FILTER_SIDE, FILTER_SIDE), axis=(1, 2))


def _average_pooled(pictures: Rows) -> Rows:
    rows, height, width, channels = pictures.shape
    squares = pictures.reshape(rows, height // 2, 2, width // 2, 2, channels)
    pooled: Rows = squares.mean(axis=(2, 4))
    return pooled


def _unpooled_gradient(pooled_gradient: Rows) -> Rows:
    """Return the gradient before pooling: a pixel has a quarter of the gradient of its square."""
    return np.repeat(np.repeat(pooled_gradient, 2, axis=1), 2, axis=2) / 4.0


def _input_gradient(output_gradient: Rows, filters: Rows) -> Rows:
    """Return the gradient with respect to a layer's inputs.

    ``output_gradient`` is the gradient with respect to the layer's convolution.
    """
    margin = (FILTER_SIDE - 1, FILTER_SIDE - 1)
    padded = np.pad(output_gradient, ((0, 0), margin, margin, (0, 0)))
    return np.tensordot(_patches(padded), filters[::-1, ::-1], ((3, 4, 5), (3, 0, 1)))
