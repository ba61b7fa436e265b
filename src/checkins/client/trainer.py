"""The ``Trainer`` interface, and trainers that run a campaign's task on the rows of one person.

The task (data, model and optimizer) is part of the sealed campaign: its hash fixes the parameters.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from checkins.accounting import NoiseAt
from checkins.campaign import DataFile, Task
from checkins.campaign.task import DEVICES
from checkins.campaign.task import Model as BuiltInModel
from checkins.client.view import CampaignView
from checkins.errors import InvalidCell, InvalidValue
from checkins.randomizers import DeviceReport
from checkins.tasks.data import Dataset, in_holdout, table
from checkins.tasks.loaded_task import LoadedTask, model_of
from checkins.tasks.model import Model, flatten, unflatten

Tensors = Mapping[str, NDArray[Any]]
"""Named arrays: the weights of a model, or an update with the same names and shapes."""


class Trainer(Protocol):
    """Computes an update of a model from the device's data.

    The server uses updates like gradients: θ ← θ − rate × mean(updates). The gradient of a loss is
    a valid update. After several local steps of size s, the update is (start − end) / s. The update
    need not be bounded, because the SDK clips and randomizes it afterwards.
    """

    def update(self, model: Tensors) -> Tensors:
        """Return the update: one array for each tensor of ``model``.

        If it raises, the device sends a dummy report, so that what it sends does not depend on
        whether its training fails, and raises the error when its participation has ended.
        """


@runtime_checkable
class SlotTrainer(Protocol):
    """A trainer that also gets the id of the run and the slot, in which it trains at most once.

    After a crash before the report was stored, it is called again with the same arguments.
    """

    def update_in_slot(self, model: Tensors, *, run: str, slot: int) -> Tensors:
        """Return the update, as ``Trainer.update`` does."""


def check_model_allowed(task: Task, allow_model: str | None) -> None:
    """Raise if the task's model is code that the owner of the device has not allowed.

    The task comes from the service. If its model is ``module:function``, the device would import
    and call this function. ``allow_model`` is the only function that is allowed, or None. A task
    whose training is left to the devices is refused too, because its model cannot be trained here.
    """
    if task.data == DEVICES:
        raise InvalidValue(
            "data",
            task.data,
            "the campaign leaves training to its devices: name a Flower app with --flower, or pass"
            " your own Trainer to checkins.client.Participant",
        )
    if task.model not in list(BuiltInModel) and task.model != allow_model:
        raise InvalidValue(
            "allow_model",
            allow_model,
            f"the campaign's model is the code {task.model}, which the service names, and a device"
            " imports only code that its owner allows: read it, then allow it with --allow-model"
            f" {task.model}",
        )


class RowsTrainer:
    """Trains a campaign's task on one person's rows. It needs only numpy.

    ``features`` has one row for each example, scaled as the task requires. ``trainer_of_file``
    reads the rows from a table. If the task has ``local_steps`` above 1, the device takes so many
    gradient steps. ``model`` is the task's model, or None to build it. ``allow_model`` is the only
    ``module:function`` that the task may name; None allows only the models of this package.
    """

    __slots__ = ("_features", "_labels", "_local_steps", "_step_size", "model")

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
        self._local_steps = task.local_steps
        self._step_size = task.local_step_size

    def update(self, model: Tensors) -> Tensors:
        """Return the mean gradient, or (start − end) / step size after several local steps."""
        shapes = self.model.shapes
        start = flatten(model, shapes).astype(np.float64)
        if self._local_steps == 1:
            return unflatten(self._gradient(start), shapes)
        weights = start
        for _ in range(self._local_steps):
            weights = weights - self._step_size * self._gradient(weights)
        return unflatten((start - weights) / self._step_size, shapes)

    def _gradient(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        return self.model.gradient(weights, self._features, self._labels)


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
    ``client`` is the person's value in the client column. If ``client`` is None, all rows must
    belong to one person, and the file needs no client column. The task also names a data file of
    the operator; this file is not opened. ``allow_model`` is as in ``RowsTrainer``.
    """
    check_model_allowed(task, allow_model)
    source = task.data
    if not isinstance(source, DataFile):
        raise InvalidValue(
            "data",
            source,
            "the campaign uses a built-in data set: choose a client of this data set",
        )
    path = Path(file)
    has_client_column = source.client_column in table.column_names(path)
    if client is not None and not has_client_column:
        raise InvalidValue("client", client, f"{path.name} has no column {source.client_column}")
    cells = table.read_columns(
        path,
        client=source.client_column if has_client_column else source.label_column,
        label=source.label_column,
        features=source.features,
    )
    if has_client_column:
        rows = _rows_of(cells.clients, client, path)
    else:
        rows = np.ones(len(cells.labels), np.bool_)
    person = client if client is not None or not has_client_column else cells.clients[0]
    share, prefix = source.holdout, table.HASH_PREFIX
    if person is not None and in_holdout([person], share=share, hash_prefix=prefix)[0]:
        raise InvalidValue("client", person, "is in the public holdout, and cannot take part")
    model = model_of(task)
    labels = _checked_labels(cells.labels[rows], source)
    return RowsTrainer(task, table.scale(cells.features[rows], source.ranges), labels, model=model)


def _rows_of(row_clients: list[str], client: str | None, path: Path) -> NDArray[np.bool_]:
    """Return, for each row, whether it belongs to ``client``; None means the only client."""
    clients = sorted(set(row_clients))
    if client is None and len(clients) > 1:
        more = ["..."] if len(clients) > MAX_CLIENTS_LISTED else []
        names = ", ".join(clients[:MAX_CLIENTS_LISTED] + more)
        raise InvalidValue(
            "client", None, f"{path.name} has rows of several clients: {names}; name one"
        )
    if client is not None and client not in clients:
        raise InvalidValue("client", client, f"has no rows in {path.name}")
    return np.array([client is None or row_client == client for row_client in row_clients])


def _checked_labels(labels: NDArray[np.float64], source: DataFile) -> NDArray[np.int64]:
    classes = source.classes or 2  # the same default as ``model_of``
    is_valid = (labels == np.floor(labels)) & (labels >= 0) & (labels < classes)
    if not is_valid.all():
        row = int(np.argmin(is_valid))
        raise InvalidCell(
            f"column {source.label_column!r}", float(labels[row]), f"must be 0 to {classes - 1}"
        )
    return labels.astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class DatasetClients:
    """The clients of a data set. Their trainers share the data and the model."""

    task: Task
    data: Dataset
    model: Model

    @classmethod
    def load(
        cls,
        task: Task,
        *,
        file: str | os.PathLike[str] | None = None,
        allow_model: str | None = None,
    ) -> DatasetClients:
        """Load the clients of the task's built-in data set, or of the table ``file``.

        The table needs the columns that the task declares. The task also names a data file of the
        operator; this file is not opened. ``allow_model`` is as in ``RowsTrainer``.
        """
        check_model_allowed(task, allow_model)
        source = task.data
        if file is not None:
            if not isinstance(source, DataFile):
                raise InvalidValue(
                    "data", str(file), f"the campaign uses the built-in data set {source}"
                )
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


def make_report(
    view: CampaignView, trainer: Trainer | SlotTrainer, model: Any, slot: int
) -> DeviceReport:
    """Return the trainer's update, clipped, rounded, and with noise unless the server adds it."""
    tensors: Mapping[str, Any] = unflatten(model, view.shapes)
    if isinstance(trainer, SlotTrainer):
        update = trainer.update_in_slot(tensors, run=view.id, slot=slot)
    else:
        update = trainer.update(tensors)
    sampler, flat = view.sampler(), flatten(update, view.shapes)
    if view.campaign.noise_at is NoiseAt.SERVER:
        return sampler.encode(flat)
    return sampler.privatize(flat)


def make_dummy(view: CampaignView) -> DeviceReport:
    """Return a dummy report: noise alone, or zero if the server adds the noise."""
    sampler = view.sampler()
    if view.campaign.noise_at is NoiseAt.SERVER:
        return sampler.encode(np.zeros(view.dimension))
    return sampler.dummy()
