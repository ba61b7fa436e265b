"""Models by name, and users' own models, which consist of initial weights and a loss."""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from checkins.errors import InvalidValue, first_line
from checkins.tasks.linear_models import Logistic, Softmax
from checkins.tasks.model import Model, Rows, Vector, flatten, size, unflatten
from checkins.tasks.neural_networks import CNN, MLP

if TYPE_CHECKING:
    import jax


ExampleLoss = Callable[[dict[str, Any], Any, Any], Any]
RowGradient = Callable[[dict[str, Any], Any, Any], Mapping[str, Any]]
ExampleScores = Callable[[dict[str, Any], Any], Any]


@dataclass(frozen=True, eq=False)
class OwnModel:
    """The return value of a function that a campaign names as ``module:function``.

    ``initial`` names the tensors and holds their public initial weights. ``example_loss`` takes
    (parameters, features, label) of one example, and returns its loss in JAX. It must be pure.
    Two functions are optional. ``row_gradient`` takes (parameters, rows, labels) and returns the
    mean gradient of the loss in numpy, for devices without JAX. ``example_scores`` takes
    (parameters, features) of one example, and returns its scores in JAX.

    >>> model = OwnModel({"centre": np.zeros(2)}, lambda own, x, _: abs(x - own["centre"]).sum())
    >>> model.shapes, model.dimension
    ({'centre': (2,)}, 2)
    """

    initial: Mapping[str, Any]
    example_loss: ExampleLoss
    row_gradient: RowGradient | None = None
    example_scores: ExampleScores | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.initial, Mapping) or not self.initial:
            raise InvalidValue("initial", self.initial, "must name at least one tensor")
        for name, tensor in self.initial.items():
            values = np.asarray(tensor)
            if not isinstance(name, str) or values.dtype.kind not in "fiu" or not values.size:
                raise InvalidValue("initial", name, "must be a name with an array of numbers")
            if not np.all(np.isfinite(values.astype(np.float32))):
                raise InvalidValue("initial", name, "must hold finite numbers that fit float32")
        for given in ("example_loss", "row_gradient", "example_scores"):
            function = getattr(self, given)
            if not callable(function) and (given == "example_loss" or function is not None):
                raise InvalidValue(given, function, "must be a function")

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the tensors, in the order of ``initial``."""
        return {name: tuple(np.shape(tensor)) for name, tensor in self.initial.items()}

    @property
    def dimension(self) -> int:
        return size(self.shapes)

    def start(self, seed: int) -> NDArray[np.float64]:
        """Return the initial weights, rounded to float32. The seed has no effect."""
        tensors = {name: np.asarray(tensor, np.float32) for name, tensor in self.initial.items()}
        return flatten(tensors, self.shapes).astype(np.float64)

    def loss(self, parameters: dict[str, jax.Array], features: jax.Array, label: Any) -> jax.Array:
        value: jax.Array = self.example_loss(parameters, features, label)
        return value

    def gradient(self, flat: Vector, features: Rows, labels: Rows) -> Vector:
        """Return the mean gradient over rows, from ``row_gradient`` if given, else from JAX."""
        if self.row_gradient is not None:
            slopes = self.row_gradient(unflatten(flat, self.shapes), features, labels)
            return flatten(slopes, self.shapes).astype(flat.dtype)
        return np.asarray(self._compiled_gradient(flat, features, labels), flat.dtype)

    def scores(self, flat: Vector, features: Rows) -> Rows:
        """Return ``example_scores`` of each row. Raises InvalidValue if the model has none."""
        return np.asarray(self._compiled_scores(flat, features))

    @cached_property
    def _compiled_gradient(self) -> Callable[[Vector, Rows, Rows], jax.Array]:
        import jax

        def mean_loss(flat: jax.Array, features: jax.Array, labels: jax.Array) -> jax.Array:
            losses = jax.vmap(self.example_loss, in_axes=(None, 0, 0))
            mean: jax.Array = losses(unflatten(flat, self.shapes), features, labels).mean()
            return mean

        return jax.jit(jax.grad(mean_loss))

    @cached_property
    def _compiled_scores(self) -> Callable[[Vector, Rows], jax.Array]:
        import jax

        if self.example_scores is None:
            raise InvalidValue("example_scores", None, "must be given if the model predicts")
        scores = jax.vmap(self.example_scores, in_axes=(None, 0))
        return jax.jit(lambda flat, features: scores(unflatten(flat, self.shapes), features))


NAMES = ("logistic", "softmax", "mlp", "cnn")


def model_by_name(
    name: str,
    features_shape: tuple[int, ...],
    classes: int,
    *,
    folder: str | os.PathLike[str] = ".",
) -> Model:
    """Return the model of this name for rows of this shape.

    If the name is ``module:function``, the function is called with (features_shape, classes). It
    returns an ``OwnModel``, or another object that implements ``Model``. Its module is searched for
    in Python's import path, then in ``folder`` and in the current folder.

    >>> model_by_name("softmax", (28, 28), 10)
    Softmax(features=784, classes=10)
    """
    shape = tuple(features_shape)
    if name == "logistic":
        if classes != 2:
            why = f"is for two classes, but the data has {classes}: use softmax"
            raise InvalidValue("model", name, why)
        return Logistic(math.prod(shape))
    if name in ("softmax", "mlp"):
        return (Softmax if name == "softmax" else MLP)(math.prod(shape), classes)
    if name == "cnn":
        if len(shape) not in (2, 3):
            why = f"needs pictures, but a row of the data has the shape {shape}"
            raise InvalidValue("model", name, why)
        height, width, channels = (*shape, 1)[:3]
        return CNN(height=height, width=width, classes=classes, channels=channels)
    return _own(name, shape, classes, folder)


def _own(name: str, shape: tuple[int, ...], classes: int, folder: str | os.PathLike[str]) -> Model:
    module_name, colon, function_name = name.partition(":")
    if not (module_name and colon and function_name):
        raise InvalidValue("model", name, f'must be {", ".join(NAMES)} or "module:function"')
    for place in (os.path.abspath(folder), os.getcwd()):
        if place not in sys.path:
            sys.path.append(place)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise InvalidValue("model", name, f"cannot be imported: {first_line(error)}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        what = "is not a function" if hasattr(module, function_name) else "does not exist"
        raise InvalidValue("model", name, f"{function_name} {what} in {module_name}")
    try:
        model = function(shape, classes)
    except Exception as error:
        raise InvalidValue("model", name, f"{function_name} failed: {first_line(error)}") from error
    members = ("shapes", "dimension", "start", "loss", "gradient", "scores")
    missing = ", ".join(member for member in members if not hasattr(model, member))
    if missing:
        why = f"returned a {type(model).__name__} without {missing}"
        raise InvalidValue("model", name, f"{why}: return a checkins.tasks.OwnModel")
    own: Model = model
    return own
