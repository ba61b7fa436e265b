"""Find models by name. ``OwnModel`` is a user's own model: initial weights and a loss.

``InitialArrays`` is a model that only the devices can train: initial weights alone.
"""

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

from checkins.campaign.task import DEVICES
from checkins.errors import InvalidValue, first_line
from checkins.tasks.built_in_models import CNN, MLP, Logistic, Softmax
from checkins.tasks.model import Model, Rows, Vector, flatten, parameter_count, unflatten

if TYPE_CHECKING:
    import jax


ExampleLoss = Callable[[dict[str, Any], Any, Any], Any]
RowGradient = Callable[[dict[str, Any], Any, Any], Mapping[str, Any]]
ExampleScores = Callable[[dict[str, Any], Any], Any]


@dataclass(frozen=True, eq=False)
class _WithInitialWeights:
    """A model whose tensors are named by its public initial weights."""

    initial: Mapping[str, Any]

    def __post_init__(self) -> None:
        _check_initial(self.initial)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the tensors, in the order of ``initial``."""
        return _shapes_of(self.initial)

    @property
    def dimension(self) -> int:
        return parameter_count(self.shapes)

    def start(self, seed: int) -> NDArray[np.float64]:
        """Return the initial weights, rounded to float32. The seed has no effect."""
        return _flat_float32(self.initial)


@dataclass(frozen=True, eq=False)
class OwnModel(_WithInitialWeights):
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

    example_loss: ExampleLoss
    row_gradient: RowGradient | None = None
    example_scores: ExampleScores | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for field_name in ("example_loss", "row_gradient", "example_scores"):
            function = getattr(self, field_name)
            if not callable(function) and (field_name == "example_loss" or function is not None):
                raise InvalidValue(field_name, function, "must be a function")

    def loss(self, parameters: dict[str, jax.Array], features: jax.Array, label: Any) -> jax.Array:
        value: jax.Array = self.example_loss(parameters, features, label)
        return value

    def gradient(self, flat: Vector, features: Rows, labels: Rows) -> Vector:
        """Return the mean gradient over rows: by ``row_gradient`` if it is set, else by JAX."""
        if self.row_gradient is not None:
            gradients = self.row_gradient(unflatten(flat, self.shapes), features, labels)
            return flatten(gradients, self.shapes).astype(flat.dtype)
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
            why = "must be given to compute scores, for accuracy and AUC"
            raise InvalidValue("example_scores", None, why)
        scores = jax.vmap(self.example_scores, in_axes=(None, 0))
        return jax.jit(lambda flat, features: scores(unflatten(flat, self.shapes), features))


@dataclass(frozen=True, eq=False)
class InitialArrays(_WithInitialWeights):
    """A model of which only the public initial weights are known: the devices train it.

    It implements ``Model``, but has no loss, gradient and scores. A function that a campaign with
    ``data = "devices"`` names may return the mapping ``initial`` itself, or a list of arrays, whose
    names are "0", "1", and so on.

    >>> InitialArrays({"0": np.zeros((10, 4)), "1": np.zeros(10)}).dimension
    50
    """

    def loss(self, parameters: dict[str, jax.Array], features: jax.Array, label: Any) -> jax.Array:
        raise _only_devices_train()

    def gradient(self, flat: Vector, features: Rows, labels: Rows) -> Vector:
        raise _only_devices_train()

    def scores(self, flat: Vector, features: Rows) -> Rows:
        raise _only_devices_train()


def _only_devices_train() -> InvalidValue:
    return InvalidValue("data", DEVICES, "only the devices know how this model is trained")


def _check_initial(initial: Mapping[str, Any]) -> None:
    if not isinstance(initial, Mapping) or not initial:
        raise InvalidValue("initial", initial, "must name at least one tensor")
    for name, tensor in initial.items():
        values = np.asarray(tensor)
        if not isinstance(name, str) or values.dtype.kind not in "fiu" or not values.size:
            raise InvalidValue("initial", name, "must map a name to an array of numbers")
        if not np.all(np.isfinite(values.astype(np.float32))):
            raise InvalidValue("initial", name, "must hold finite numbers that fit float32")


def _shapes_of(tensors: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(np.shape(tensor)) for name, tensor in tensors.items()}


def _flat_float32(tensors: Mapping[str, Any]) -> NDArray[np.float64]:
    """Return the tensors as one vector of float64, rounded to float32."""
    rounded = {name: np.asarray(tensor, np.float32) for name, tensor in tensors.items()}
    return flatten(rounded, _shapes_of(tensors)).astype(np.float64)


MODEL_NAMES = ("logistic", "softmax", "mlp", "cnn")
"""Names of the built-in models in a campaign file."""


def model_by_name(
    name: str,
    features_shape: tuple[int, ...],
    classes: int,
    *,
    folder: str | os.PathLike[str] = ".",
) -> Model:
    """Return the model with this name, for rows whose features have the shape ``features_shape``.

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
    return _import_model(name, shape, classes, folder)


def initial_arrays_by_name(name: str, *, folder: str | os.PathLike[str] = ".") -> InitialArrays:
    """Return the initial arrays of the function ``module:function``, which takes no arguments.

    The function returns a mapping of names to arrays, or a list of arrays. Its module is searched
    for as in ``model_by_name``.
    """
    function = _import_function(name, folder)
    try:
        arrays = function()
        if isinstance(arrays, list | tuple):
            arrays = {str(index): array for index, array in enumerate(arrays)}
        return InitialArrays(arrays)
    except Exception as error:
        why = f"does not return initial arrays: {first_line(error)}"
        raise InvalidValue("model", name, why) from error


def _import_model(
    name: str, shape: tuple[int, ...], classes: int, folder: str | os.PathLike[str]
) -> Model:
    function = _import_function(name, folder)
    try:
        model = function(shape, classes)
    except Exception as error:
        problem = f"{function.__name__} failed: {first_line(error)}"
        raise InvalidValue("model", name, problem) from error
    required_members = ("shapes", "dimension", "start", "loss", "gradient", "scores")
    missing = ", ".join(member for member in required_members if not hasattr(model, member))
    if missing:
        why = f"returned a {type(model).__name__} without {missing}"
        raise InvalidValue("model", name, f"{why}: return a checkins.tasks.OwnModel")
    imported_model: Model = model
    return imported_model


def _import_function(name: str, folder: str | os.PathLike[str]) -> Callable[..., Any]:
    """Import the function ``module:function`` from Python's path, ``folder`` or here."""
    module_name, colon, function_name = name.partition(":")
    if not (module_name and colon and function_name):
        raise InvalidValue("model", name, f'must be {", ".join(MODEL_NAMES)} or "module:function"')
    for import_folder in (os.path.abspath(folder), os.getcwd()):
        if import_folder not in sys.path:
            sys.path.append(import_folder)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise InvalidValue("model", name, f"cannot be imported: {first_line(error)}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        problem = "is not a function" if hasattr(module, function_name) else "does not exist"
        raise InvalidValue("model", name, f"{function_name} {problem} in {module_name}")
    imported: Callable[..., Any] = function
    return imported
