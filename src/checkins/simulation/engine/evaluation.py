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
MAX_CLIENT_ROWS = 20_000
"""Largest number of clients' rows to evaluate on. If there are more, evenly spaced rows are
used."""


class Diverged(InvalidValue):
    """The model or its loss is not finite any more."""


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
class CurvePoint:
    """The metrics of the model after the first ``slots`` slots."""

    slots: int
    metrics: Metrics


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A function that computes the metrics of models of a loaded task. Devices do not use it."""

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
        row_indices: Any = slice(None)
        if len(data.labels) > MAX_CLIENT_ROWS:
            row_indices = np.linspace(0, len(data.labels) - 1, MAX_CLIENT_ROWS).astype(np.int64)
        return data.features[row_indices], data.labels[row_indices]

    def __call__(self, flat: NDArray[Any]) -> Metrics:
        """Return the loss, and also accuracy and AUC if they are defined.

        Raises Diverged if the model or its loss is not finite.
        """
        values = {"loss": np.inf}
        if np.all(np.isfinite(flat)):
            with np.errstate(over="ignore", invalid="ignore"):  # the loss is checked below
                values = self._compute_metrics(np.asarray(flat, np.float32))
        if not np.isfinite(values["loss"]):
            raise Diverged("rate", "too large", "the model has diverged: lower the rate")
        return values

    def _compute_metrics(self, flat: NDArray[Any]) -> Metrics:
        model, (features, labels) = self.loaded.model, self.rows
        own_model = model if isinstance(model, OwnModel) else None
        has_scores = own_model is None or own_model.example_scores is not None
        if not self.loaded.data.classes or not has_scores:
            return {"loss": self._mean_loss(flat)}
        scores = model.scores(flat, features)
        loss = metrics.mean_loss(scores, labels) if own_model is None else self._mean_loss(flat)
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
