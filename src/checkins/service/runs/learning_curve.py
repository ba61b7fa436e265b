"""The learning curve: metrics of released models on the public holdout of their task."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkins.campaign import DataFile, Task
from checkins.errors import CheckinsError
from checkins.tasks import metrics
from checkins.tasks.loaded_task import LoadedTask

Metrics = dict[str, float]
POINTS = 200
"""Largest number of points of a curve."""


class Holdout:
    """The public rows on which models are measured."""

    def __init__(self, lesson: LoadedTask) -> None:
        self._model = lesson.model
        self._features = lesson.data.holdout_features
        self._labels = lesson.data.holdout_labels
        self._classes = lesson.data.classes

    @classmethod
    def of(cls, task: Task, *, folder: Path) -> Holdout | None:
        """Return the holdout of a task; None if it has none or it is not on this machine."""
        if isinstance(task.data, DataFile) and not task.data.holdout:
            return None
        try:
            lesson = LoadedTask.of(task, folder=folder)
        except (CheckinsError, OSError, ImportError):
            return None
        return cls(lesson) if len(lesson.data.holdout_labels) else None

    def measure(self, model: NDArray[np.float64]) -> Metrics:
        """Return loss, accuracy and, for two classes, AUC; only finite ones."""
        found: Metrics = {}
        with np.errstate(all="ignore"):
            try:
                scores: Any = self._model.scores(model.astype(np.float32), self._features)
                found["loss"] = metrics.mean_loss(scores, self._labels)
                found["accuracy"] = metrics.accuracy(scores, self._labels)
                if self._classes == 2:
                    found["auc"] = metrics.auc(scores, self._labels)
            except CheckinsError:
                return {}  # a model that has diverged has no metrics
        return {name: value for name, value in found.items() if math.isfinite(value)}


def is_measured(slots: int, *, closed: int) -> bool:
    """Return whether the model after ``closed`` of ``slots`` slots is a point of the curve."""
    return closed == slots or closed % max(1, slots // POINTS) == 0
