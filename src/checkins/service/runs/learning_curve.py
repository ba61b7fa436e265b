"""The learning curve of a run: metrics of its released models on the public holdout data."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkins.campaign import DataFile, Task
from checkins.errors import CheckinsError
from checkins.service.store import run_state
from checkins.service.store.database import Database
from checkins.service.store.run_state import Curve, RunSnapshot, RunSpec
from checkins.service.workers.background_tasks import DaemonThreads
from checkins.tasks import metrics
from checkins.tasks.loaded_task import LoadedTask

TARGET_POINTS = 200  # approximate number of points on a learning curve


class Holdout:
    """The public rows of a task's data on which models are measured."""

    def __init__(self, task: LoadedTask) -> None:
        self._model, self._data = task.model, task.data

    @classmethod
    def of(cls, task: Task, *, folder: Path) -> Holdout | None:
        """Return the holdout of a task, or None if there is none or its data cannot be loaded."""
        if isinstance(task.data, DataFile) and not task.data.holdout:
            return None
        try:
            loaded = LoadedTask.of(task, folder=folder)
        except (CheckinsError, OSError, ImportError):
            return None
        return cls(loaded) if len(loaded.data.holdout_labels) else None

    def measure(self, model: NDArray[np.float64]) -> dict[str, float]:
        """Return loss, accuracy and, for two classes, AUC. Omit metrics that are not finite."""
        values: dict[str, float] = {}
        features, labels = self._data.holdout_features, self._data.holdout_labels
        with np.errstate(all="ignore"):
            try:
                scores: Any = self._model.scores(model.astype(np.float32), features)
                values["loss"] = metrics.mean_loss(scores, labels)
                values["accuracy"] = metrics.accuracy(scores, labels)
                if self._data.classes == 2:
                    values["auc"] = metrics.auc(scores, labels)
            except CheckinsError:
                return {}  # a model that has diverged has no metrics
        return {name: value for name, value in values.items() if math.isfinite(value)}


class MeasuringThread:
    """A thread that measures models, and saves the metrics in the store."""

    def __init__(self, database: Database, *, folder: Path) -> None:
        self._database = database
        self._folder = folder
        self._thread = DaemonThreads(1, name="curve")
        self._holdouts: dict[str, Holdout | None] = {}

    async def measure(self, spec: RunSpec, snapshot: RunSnapshot) -> None:
        """Measure the model of a snapshot and save the metrics, if the task has a holdout."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._measure, spec, snapshot)

    def stop(self, *, timeout_s: float) -> bool:
        """Accept no more work. Return False if a measurement still runs after ``timeout_s``."""
        return self._thread.stop(timeout_s=timeout_s)

    def _measure(self, spec: RunSpec, snapshot: RunSnapshot) -> None:
        task = spec.campaign.task
        if spec.seal not in self._holdouts and task is not None:
            self._holdouts[spec.seal] = Holdout.of(task, folder=self._folder)
        holdout = self._holdouts.get(spec.seal)
        values = None if holdout is None else holdout.measure(snapshot.learner.model)
        if values:
            slots = snapshot.state.closed
            run_state.add_curve_point(self._database, spec.id, slots=slots, metrics=values)


def should_measure(spec: RunSpec, snapshot: RunSnapshot, curve: Curve) -> bool:
    """Return whether the model of a snapshot should become the next point of ``curve``."""
    slots, closed = spec.rules.slots, snapshot.state.closed
    if curve and curve[-1][0] >= closed:
        return False
    return closed == slots or closed % max(1, slots // TARGET_POINTS) == 0
