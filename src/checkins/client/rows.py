"""A person's rows, as the sealed task of a campaign reads them: columns, ranges, classes."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkins.campaign import DataFile, Task
from checkins.client.trainer import RowsTrainer, check_model_allowed
from checkins.errors import InvalidValue
from checkins.tasks.data import table, table_file
from checkins.tasks.data.dataset import Dataset, in_holdout
from checkins.tasks.loaded_task import LoadedTask, model_of
from checkins.tasks.models.model import Model

SHOWN = 5


def trainer_of_file(
    task: Task,
    file: str | os.PathLike[str],
    *,
    client: str | None = None,
    allow_model: str | None = None,
) -> RowsTrainer:
    """Trains on one person's rows of a CSV or Parquet file.

    The file has the sealed columns; values are clipped to the sealed ranges. Without ``client``
    all rows must be one person's: the file then needs no column that says whose they are. The file
    that the task names is not opened. ``allow_model`` is as in ``RowsTrainer``.
    """
    check_model_allowed(task, allow_model)
    source = task.data
    if not isinstance(source, DataFile):
        raise InvalidValue(
            "data", source, "the campaign learns from a data set of its own: take a row of that"
        )
    path = Path(file)
    named = source.client_column in table_file.header(path)
    if client is not None and not named:
        raise InvalidValue("client", client, f"{path.name} has no column {source.client_column}")
    cells = table_file.read(
        path,
        client=source.client_column if named else source.label_column,
        label=source.label_column,
        features=source.features,
    )
    mine = _mine(cells.clients, client, path) if named else np.ones(len(cells.labels), np.bool_)
    who = client if client is not None or not named else cells.clients[0]
    if who is not None and in_holdout([who], share=source.holdout, purpose=table.PURPOSE)[0]:
        raise InvalidValue("client", who, "is in the public holdout, and does not take part")
    model = model_of(task)
    labels = _labels(cells.labels[mine], source)
    return RowsTrainer(task, table.scaled(cells.features[mine], source.ranges), labels, model=model)


def _mine(clients: list[str], client: str | None, path: Path) -> NDArray[np.bool_]:
    present = sorted(set(clients))
    if client is None and len(present) > 1:
        shown = ", ".join(present[:SHOWN]) + (", ..." if len(present) > SHOWN else "")
        raise InvalidValue("client", None, f"{path.name} has rows of several: {shown}; name one")
    if client is not None and client not in present:
        raise InvalidValue("client", client, f"has no rows in {path.name}")
    return np.array([client is None or owner == client for owner in clients])


def _labels(raw: NDArray[np.float64], source: DataFile) -> NDArray[np.int64]:
    classes = source.classes or 2  # as ``model_of`` has it
    fits = (raw == np.floor(raw)) & (raw >= 0) & (raw < classes)
    if not fits.all():
        row = int(np.argmin(fits))
        raise InvalidValue(
            f"column {source.label_column!r}", float(raw[row]), f"must be 0 to {classes - 1}"
        )
    return raw.astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class People:
    """The clients of a data set, each with a trainer of its own; data and model are shared."""

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
    ) -> People:
        """The people of the task's own data set, or of a table in its form.

        The file that the task names is not opened. ``allow_model`` is as in ``RowsTrainer``.
        """
        check_model_allowed(task, allow_model)
        source = task.data
        if file is not None:
            if not isinstance(source, DataFile):
                raise InvalidValue("data", str(file), f"the campaign has data of its own: {source}")
            task = replace(task, data=replace(source, file=str(Path(file).resolve())))
        elif isinstance(source, DataFile):
            raise InvalidValue("data", None, "the campaign learns from a table: name the file")
        lesson = LoadedTask.of(task)
        return cls(task, lesson.data, lesson.model)

    def __len__(self) -> int:
        return self.data.clients

    def trainer(self, client: int) -> RowsTrainer:
        """What trains on the rows of one of them, counted from 0."""
        rows = self.data.rows_of(client)
        features: Any = self.data.features[rows]
        return RowsTrainer(self.task, features, self.data.labels[rows], model=self.model)
