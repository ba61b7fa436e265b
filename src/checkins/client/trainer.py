"""The one thing a user of the SDK writes: from a model to an update, on the device's own data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from checkins.campaign import Task
from checkins.campaign.task import Model as Named
from checkins.errors import InvalidValue
from checkins.tasks.loaded_task import model_of
from checkins.tasks.models.model import Model
from checkins.tasks.tensors import flatten, unflatten

Tensors = Mapping[str, NDArray[Any]]
"""Named arrays: a model's weights, or an update of them under the same names and shapes."""


class Trainer(Protocol):
    """Model in, update out. Everything else is the participant's work.

    The server steps against updates like gradients: θ ← θ − rate × mean(updates). One gradient of
    a loss is an update; after several local steps of size s it is (start − end) / s. An update is
    clipped as a whole and made private after this, so it need not be bounded.
    """

    def update(self, model: Tensors) -> Tensors:
        """The update of this device's data, an array for each tensor of ``model``."""


def check_model_allowed(task: Task, allow_model: str | None) -> None:
    """Refuse a task whose model is code, unless the device's owner names the same code.

    A task comes from a service. What it names as ``module:function`` would be imported and called.
    """
    if task.model not in list(Named) and task.model != allow_model:
        raise InvalidValue(
            "allow_model",
            allow_model,
            f"the campaign's model is the code {task.model}, which is not imported because a"
            f" service names it: read it, and allow it as --allow-model {task.model}",
        )


class RowsTrainer:
    """What a campaign's sealed task asks of a person's rows, with numpy alone.

    ``features`` has one row for each example, scaled as the task says; ``rows.py`` reads them
    from a table. With ``local_steps`` above 1 the device takes steps of its own. ``model`` is the
    task's, where it is already at hand. ``allow_model`` is the ``module:function`` that the owner
    of the device lets the task name; without it only models of this package are built.
    """

    __slots__ = ("_features", "_labels", "_rate", "_steps", "model")

    def __init__(
        self,
        task: Task,
        features: ArrayLike,
        labels: ArrayLike,
        *,
        model: Model | None = None,
        allow_model: str | None = None,
    ) -> None:
        if model is None:
            check_model_allowed(task, allow_model)
            model = model_of(task)
        self.model = model
        self._features = np.asarray(features, dtype=np.float64)
        self._labels = np.asarray(labels)
        self._steps = task.local_steps
        self._rate = task.local_step_size

    def update(self, model: Tensors) -> Tensors:
        """One mean gradient over the rows, or what several local steps lost over their size."""
        shapes = self.model.shapes
        start = flatten(model, shapes).astype(np.float64)
        if self._steps == 1:
            return unflatten(self._gradient(start), shapes)
        here = start
        for _ in range(self._steps):
            here = here - self._rate * self._gradient(here)
        return unflatten((start - here) / self._rate, shapes)

    def _gradient(self, flat: NDArray[np.float64]) -> NDArray[np.float64]:
        return self.model.gradient(flat, self._features, self._labels)
