"""Anyone's model: initial weights, and a loss that is a pure function of parameters and example."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from checkins.errors import InvalidValue
from checkins.tasks.model import Rows, Vector
from checkins.tasks.tensors import flatten, size, unflatten

if TYPE_CHECKING:
    import jax

Loss = Callable[[dict[str, Any], Any, Any], Any]
Gradient = Callable[[dict[str, Any], Any, Any], Mapping[str, Any]]
Scores = Callable[[dict[str, Any], Any], Any]


@dataclass(frozen=True, eq=False)
class OwnModel:
    """What a function named as ``module:function`` returns.

    ``initial`` names the tensors and gives their public initial weights. ``example_loss`` takes
    (parameters, features, label) of one example, in JAX. The rest is optional: ``row_gradient`` is
    the same loss's mean gradient by (parameters, rows, labels) in numpy, for devices without JAX;
    ``example_scores`` takes (parameters, features) of one example, in JAX, and predicts.

    >>> model = OwnModel({"centre": np.zeros(2)}, lambda own, x, _: abs(x - own["centre"]).sum())
    >>> model.shapes, model.dimension
    ({'centre': (2,)}, 2)
    """

    initial: Mapping[str, Any]
    example_loss: Loss
    row_gradient: Gradient | None = None
    example_scores: Scores | None = None

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
        """As the initial weights stand."""
        return {name: tuple(np.shape(tensor)) for name, tensor in self.initial.items()}

    @property
    def dimension(self) -> int:
        """How many numbers the initial weights hold."""
        return size(self.shapes)

    def start(self, seed: int) -> NDArray[np.float64]:
        """The initial weights as float32 holds them; they are given, so no seed changes them."""
        tensors = {name: np.asarray(tensor, np.float32) for name, tensor in self.initial.items()}
        return flatten(tensors, self.shapes).astype(np.float64)

    def loss(self, parameters: dict[str, jax.Array], features: jax.Array, label: Any) -> jax.Array:
        """As given."""
        value: jax.Array = self.example_loss(parameters, features, label)
        return value

    def gradient(self, flat: Vector, features: Rows, labels: Rows) -> Vector:
        """The mean gradient over rows: as given, else by JAX."""
        if self.row_gradient is not None:
            slopes = self.row_gradient(unflatten(flat, self.shapes), features, labels)
            return flatten(slopes, self.shapes).astype(flat.dtype)
        return np.asarray(self._compiled_gradient(flat, features, labels), flat.dtype)

    def scores(self, flat: Vector, features: Rows) -> Rows:
        """As given; a model without scores learns, and cannot be asked for an accuracy."""
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
            raise InvalidValue("example_scores", None, "a model that predicts must give its scores")
        scores = jax.vmap(self.example_scores, in_axes=(None, 0))
        return jax.jit(lambda flat, features: scores(unflatten(flat, self.shapes), features))
