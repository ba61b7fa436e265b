"""Neural networks: a perceptron with one hidden layer, and a small convolutional network.

The convolutional network has two layers, each with 5 x 5 filters, tanh and the mean of each 2 x 2
square, and then a linear layer. Means and tanh are differentiable everywhere, unlike maxima and
ReLU, so the gradients of numpy and JAX agree.
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
from checkins.tasks.linear_models import class_residuals, cross_entropy
from checkins.tasks.model import (
    MOST_NUMBERS,
    Rows,
    Vector,
    check_classes,
    check_labels,
    flat_rows,
    flatten,
    random_start,
    size,
    unflatten,
)

if TYPE_CHECKING:
    import jax


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
        validate.count(most=MOST_NUMBERS // self.classes, width=self.width)
        validate.count(most=MOST_NUMBERS // self.width, features=self.features)

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
        return size(self.shapes)

    def start(self, seed: int) -> NDArray[np.float64]:
        return random_start(self.shapes, ("hidden_weights", "weights"), seed)

    def loss(self, parameters: dict[str, jax.Array], features: jax.Array, label: Any) -> jax.Array:
        import jax.numpy as jnp

        inputs = features.reshape(-1) @ parameters["hidden_weights"] + parameters["hidden_bias"]
        return cross_entropy(jnp.tanh(inputs) @ parameters["weights"] + parameters["bias"], label)

    def gradient(self, flat: Vector, features: Rows, labels: Rows) -> Vector:
        tensors, x, hidden = self._hidden(flat, features)
        check_labels(labels, rows=len(x), classes=self.classes)
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
        tensors, _, hidden = self._hidden(flat, features)
        scores: Rows = hidden @ tensors["weights"] + tensors["bias"]
        return scores

    def _hidden(self, flat: Vector, features: Rows) -> tuple[dict[str, Rows], Rows, Rows]:
        """Return the tensors, the rows as a matrix, and the hidden units of each row."""
        tensors = unflatten(flat, self.shapes)
        x = flat_rows(features, self.features, flat.dtype)
        return tensors, x, np.tanh(x @ tensors["hidden_weights"] + tensors["hidden_bias"])


FILTER = 5  # pixels a side
_LAYERS = ("first", "second")


@dataclass(frozen=True, slots=True)
class CNN:
    """A convolutional network for pictures.

    ``height`` and ``width`` are in pixels and must be multiples of 4, at least 16.

    >>> CNN(height=28, width=28, classes=10).dimension
    5994
    """

    height: int
    width: int
    classes: int
    channels: int = 1
    filters: tuple[int, int] = (8, 16)

    def __post_init__(self) -> None:
        check_classes(self.classes, most=10**4)
        validate.count(most=4096, height=self.height, width=self.width)
        validate.count(most=4096, channels=self.channels)
        for filters in self.filters:
            validate.count(most=4096, filters=filters)
        for name in ("height", "width"):
            pixels = getattr(self, name)
            if pixels < 16 or pixels % 4:
                raise InvalidValue(name, pixels, "must be a multiple of 4 from 16")

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the tensors. Filters have the axes (row, column, input, output channel)."""
        first, second = self.filters
        return {
            "first_filters": (FILTER, FILTER, self.channels, first),
            "first_bias": (first,),
            "second_filters": (FILTER, FILTER, first, second),
            "second_bias": (second,),
            "weights": ((self.height // 4 - 3) * (self.width // 4 - 3) * second, self.classes),
            "bias": (self.classes,),
        }

    @property
    def dimension(self) -> int:
        return size(self.shapes)

    def start(self, seed: int) -> NDArray[np.float64]:
        return random_start(self.shapes, ("first_filters", "second_filters", "weights"), seed)

    def loss(self, parameters: dict[str, jax.Array], features: jax.Array, label: Any) -> jax.Array:
        """Return −log P(label) at one example, with convolutions as matrix products of patches.

        JAX's own convolutions would be slow for one gradient per example, because they become
        grouped convolutions.
        """
        import jax.numpy as jnp

        picture = features.reshape(self.height, self.width, self.channels)
        for layer in _LAYERS:
            filters, bias = parameters[f"{layer}_filters"], parameters[f"{layer}_bias"]
            rows, columns = (pixels - FILTER + 1 for pixels in picture.shape[:2])
            corners = product(range(FILTER), repeat=2)
            shifted = [picture[i : i + rows, j : j + columns] for i, j in corners]
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
        last = _halved(activations[-1])
        hidden = last.reshape(len(last), -1)
        residuals = class_residuals(hidden @ tensors["weights"] + tensors["bias"], labels)
        residuals /= len(pictures)
        slopes = {"weights": hidden.T @ residuals, "bias": residuals.sum(axis=0)}
        back = (residuals @ tensors["weights"].T).reshape(last.shape)
        for layer, entered, left in reversed(list(zip(_LAYERS, inputs, activations, strict=True))):
            back = _doubled(back) * (1.0 - left**2)
            axes = (0, 1, 2)
            patches = np.tensordot(_patches(entered), back, (axes, axes))  # (in, row, column, out)
            slopes[f"{layer}_filters"] = patches.transpose(1, 2, 0, 3)
            slopes[f"{layer}_bias"] = back.sum(axis=axes)
            if layer != _LAYERS[0]:
                back = _spread(back, tensors[f"{layer}_filters"])
        return flatten(slopes, self.shapes)

    def scores(self, flat: Vector, features: Rows) -> Rows:
        tensors = unflatten(flat, self.shapes)
        _, activations = _forward(tensors, self._pictures(features, flat.dtype))
        last = _halved(activations[-1])
        scores: Rows = last.reshape(len(last), -1) @ tensors["weights"] + tensors["bias"]
        return scores

    def _pictures(self, features: Rows, dtype: Any) -> Rows:
        pixels = self.height * self.width * self.channels
        rows = flat_rows(features, pixels, dtype)
        return rows.reshape(len(rows), self.height, self.width, self.channels)


def _forward(tensors: dict[str, Rows], pictures: Rows) -> tuple[list[Rows], list[Rows]]:
    """Return the inputs of the layers, and their activations before pooling."""
    inputs, activations = [pictures], []
    for layer in _LAYERS:
        filters = tensors[f"{layer}_filters"]
        summed = np.tensordot(_patches(inputs[-1]), filters, ((3, 4, 5), (2, 0, 1)))
        activations.append(np.tanh(summed + tensors[f"{layer}_bias"]))
        inputs.append(_halved(activations[-1]))
    return inputs[:-1], activations


def _patches(pictures: Rows) -> Rows:
    """Return a view with the axes (picture, y, x, channel, row in filter, column in filter)."""
    return sliding_window_view(pictures, (FILTER, FILTER), axis=(1, 2))


def _halved(pictures: Rows) -> Rows:
    rows, height, width, channels = pictures.shape
    squares = pictures.reshape(rows, height // 2, 2, width // 2, 2, channels)
    halved: Rows = squares.mean(axis=(2, 4))
    return halved


def _doubled(slopes: Rows) -> Rows:
    """Return the gradient before pooling: each pixel has a quarter of the gradient of its mean."""
    return np.repeat(np.repeat(slopes, 2, axis=1), 2, axis=2) / 4.0


def _spread(slopes: Rows, filters: Rows) -> Rows:
    """Return the gradient with respect to a layer's inputs, given that of its convolution."""
    edge = (FILTER - 1, FILTER - 1)
    padded = np.pad(slopes, ((0, 0), edge, edge, (0, 0)))
    return np.tensordot(_patches(padded), filters[::-1, ::-1], ((3, 4, 5), (3, 0, 1)))
