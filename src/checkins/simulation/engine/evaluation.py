"""Metrics of a model on the public held-out rows or, if there are none, on the clients' rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from checkins.errors import InvalidValue, first_line
from checkins.tasks import metrics
from checkins.tasks.loaded_task import LoadedTask
from checkins.tasks.model import unflatten
from checkins.tasks.own_model import OwnModel

Metrics = dict[str, float]
MOST_ROWS = 20_000
"""Largest number of clients' rows to evaluate on. If there are more, evenly spaced ones are
used."""


class Diverged(InvalidValue):
    """The model is no longer finite."""


def check_loss(loaded: LoadedTask, name: str) -> None:
    """Raise InvalidValue if the loss fails at the first row of the data or is not a scalar."""
    model, data = loaded.model, loaded.data

    def loss(flat: Any) -> Any:
        tensors = unflatten(flat, model.shapes)
        return model.loss(tensors, jnp.asarray(data.features[0]), jnp.asarray(data.labels[0]))

    try:
        shape = jax.eval_shape(loss, jnp.zeros(model.dimension)).shape
    except Exception as error:
        why = f"its loss fails at the first row: {first_line(error)}"
        raise InvalidValue("model", name, why) from error
    if shape != ():
        raise InvalidValue("model", name, f"its loss must be one number, but has the shape {shape}")


@dataclass(frozen=True, slots=True)
class Point:
    """The metrics of the model after the first ``slots`` slots."""

    slots: int
    metrics: Metrics


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Compute metrics of models of a loaded task. Devices do not use it."""

    loaded: LoadedTask

    @property
    def on_holdout(self) -> bool:
        return len(self.loaded.data.holdout_labels) > 0

    @cached_property
    def rows(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Features and labels to evaluate on."""
        data = self.loaded.data
        if self.on_holdout:
            return data.holdout_features, data.holdout_labels
        some: Any = slice(None)
        if len(data.labels) > MOST_ROWS:
            some = np.linspace(0, len(data.labels) - 1, MOST_ROWS).astype(np.int64)
        return data.features[some], data.labels[some]

    def __call__(self, flat: NDArray[Any]) -> Metrics:
        """Return the loss, and also accuracy and AUC if they are defined.

        Raises Diverged if the model or its loss is not finite.
        """
        values = {"loss": np.inf}
        if np.all(np.isfinite(flat)):
            with np.errstate(over="ignore", invalid="ignore"):  # the loss is checked below
                values = self._computed(np.asarray(flat, np.float32))
        if not np.isfinite(values["loss"]):
            raise Diverged("rate", "too large", "the model has diverged: lower the rate")
        return values

    def _computed(self, flat: NDArray[Any]) -> Metrics:
        model, (features, labels) = self.loaded.model, self.rows
        own = model if isinstance(model, OwnModel) else None
        if not self.loaded.data.classes or (own is not None and own.example_scores is None):
            return {"loss": self._mean_loss(flat)}
        scores = model.scores(flat, features)
        loss = metrics.mean_loss(scores, labels) if own is None else self._mean_loss(flat)
        values = {"loss": loss, "accuracy": metrics.accuracy(scores, labels)}
        if self.loaded.data.classes == 2 and 0 < np.mean(labels) < 1:
            values["auc"] = metrics.auc(scores, labels)
        return values

    def _mean_loss(self, flat: NDArray[Any]) -> float:
        return float(self._compiled_loss(flat, *self.rows))

    @cached_property
    def _compiled_loss(self) -> Any:
        model = self.loaded.model

        def mean(flat: Any, features: Any, labels: Any) -> Any:
            tensors, rows = unflatten(flat, model.shapes), (features, labels)
            losses = jax.lax.map(lambda row: model.loss(tensors, *row), rows, batch_size=512)
            return jnp.mean(losses)

        return jax.jit(mean)
