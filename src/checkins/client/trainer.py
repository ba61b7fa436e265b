"""The ``Trainer`` interface, and trainers that run a campaign's sealed task on given rows."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from checkins.campaign import DataFile, Task
from checkins.campaign.task import Model as Named
from checkins.errors import InvalidCell, InvalidValue
from checkins.tasks.data import table
from checkins.tasks.data.dataset import Dataset, in_holdout
from checkins.tasks.loaded_task import LoadedTask, model_of
from checkins.tasks.model import Model, flatten, unflatten

Tensors = Mapping[str, NDArray[Any]]
"""Named arrays: the weights of a model, or an update with the same names and shapes."""


class Trainer(Protocol):
    """Computes an update of a model from the device's data.

    The server uses updates like gradients: θ ← θ − rate × mean(updates). The gradient of a loss is
    such an update. After several local steps of size s, the update is (start − end) / s. The update
    need not be bounded, because the participant clips and randomizes it afterwards.
    """

    def update(self, model: Tensors) -> Tensors:
        """Return the update: one array for each tensor of ``model``."""


def check_model_allowed(task: Task, allow_model: str | None) -> None:
    """Raise if the task's model is code that the owner of the device has not allowed by name.

    The task comes from the service, and a model ``module:function`` is imported and called.
    """
    if task.model not in list(Named) and task.model != allow_model:
        raise InvalidValue(
            "allow_model",
            allow_model,
            f"the campaign's model is the code {task.model}, which is not imported because a"
            f" service names it: read the code, then allow it with --allow-model {task.model}",
        )


class RowsTrainer:
    """Trains a campaign's sealed task on one person's rows, with numpy alone.

    ``features`` has one row for each example, scaled as the task requires. ``trainer_of_file``
    reads the rows from a table. If the task has ``local_steps`` above 1, the device takes local
    steps. ``model`` is the task's model, or None to build it. ``allow_model`` is the only
    ``module:function`` that the task may name; None allows only the models of this package.
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
        """Return the mean gradient, or (start − end) / step size after several local steps."""
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


MAX_CLIENTS_LISTED = 5
"""Largest number of client names in an error message."""


def trainer_of_file(
    task: Task,
    file: str | os.PathLike[str],
    *,
    client: str | None = None,
    allow_model: str | None = None,
) -> RowsTrainer:
    """Return a trainer on one person's rows of a CSV or Parquet file.

    The file has the columns that the task declares, and values are clipped to the declared ranges.
    ``client`` names the person. If it is None, all rows must belong to one person, and the file
    needs no client column. The file that the task names is not opened. ``allow_model`` is as in
    ``RowsTrainer``.
    """
    check_model_allowed(task, allow_model)
    source = task.data
    if not isinstance(source, DataFile):
        raise InvalidValue(
            "data", source, "the campaign uses a built-in data set: choose one of its rows"
        )
    path = Path(file)
    named = source.client_column in table.column_names(path)
    if client is not None and not named:
        raise InvalidValue("client", client, f"{path.name} has no column {source.client_column}")
    cells = table.read_columns(
        path,
        client=source.client_column if named else source.label_column,
        label=source.label_column,
        features=source.features,
    )
    mine = _rows_of(cells.clients, client, path) if named else np.ones(len(cells.labels), np.bool_)
    who = client if client is not None or not named else cells.clients[0]
    share, prefix = source.holdout, table.HASH_PREFIX
    if who is not None and in_holdout([who], share=share, hash_prefix=prefix)[0]:
        raise InvalidValue("client", who, "is in the public holdout, and cannot take part")
    model = model_of(task)
    labels = _labels(cells.labels[mine], source)
    return RowsTrainer(task, table.scale(cells.features[mine], source.ranges), labels, model=model)


def _rows_of(clients: list[str], client: str | None, path: Path) -> NDArray[np.bool_]:
    present = sorted(set(clients))
    if client is None and len(present) > 1:
        more = ["..."] if len(present) > MAX_CLIENTS_LISTED else []
        shown = ", ".join(present[:MAX_CLIENTS_LISTED] + more)
        raise InvalidValue(
            "client", None, f"{path.name} has rows of several clients: {shown}; name one"
        )
    if client is not None and client not in present:
        raise InvalidValue("client", client, f"has no rows in {path.name}")
    return np.array([client is None or owner == client for owner in clients])


def _labels(raw: NDArray[np.float64], source: DataFile) -> NDArray[np.int64]:
    classes = source.classes or 2  # the same default as ``model_of``
    fits = (raw == np.floor(raw)) & (raw >= 0) & (raw < classes)
    if not fits.all():
        row = int(np.argmin(fits))
        raise InvalidCell(
            f"column {source.label_column!r}", float(raw[row]), f"must be 0 to {classes - 1}"
        )
    return raw.astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class DatasetClients:
    """The clients of a data set. Their trainers share the data and the model."""

    task: Task
    data: Dataset
    model: Model

    @classmethod
    def of(
        cls,
        task: Task,
        *,
        file: str | os.PathLike[str] | None = None,
        allow_model: str | None = None,
    ) -> DatasetClients:
        """Load the clients of the task's built-in data set, or of the table ``file``.

        The table needs the columns that the task declares. The file that the task names is not
        opened. ``allow_model`` is as in ``RowsTrainer``.
        """
        check_model_allowed(task, allow_model)
        source = task.data
        if file is not None:
            if not isinstance(source, DataFile):
                raise InvalidValue("data", str(file), f"the campaign has built-in data: {source}")
            task = replace(task, data=replace(source, file=str(Path(file).resolve())))
        elif isinstance(source, DataFile):
            raise InvalidValue("data", None, "the campaign learns from a table: name the file")
        loaded = LoadedTask.of(task)
        return cls(task, loaded.data, loaded.model)

    def __len__(self) -> int:
        return self.data.clients

    def trainer(self, client: int) -> RowsTrainer:
        """Return the trainer on the rows of one client. Clients are numbered from 0."""
        rows = self.data.rows_of(client)
        features: Any = self.data.features[rows]
        return RowsTrainer(self.task, features, self.data.labels[rows], model=self.model)
