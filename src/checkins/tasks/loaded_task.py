"""What a campaign learns, ready to learn: its data, with their features, and its model."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from checkins.campaign.task import DataFile, DataSet, Features, Task
from checkins.errors import InvalidValue
from checkins.tasks import catalogue, fashion_mnist, patients, synthetic, table
from checkins.tasks.dataset import Dataset
from checkins.tasks.model import Model
from checkins.tasks.scattering import Scattering


@dataclass(frozen=True, slots=True, eq=False)
class LoadedTask:
    """Data and a model that fits them."""

    data: Dataset
    model: Model

    @classmethod
    def of(cls, task: Task, *, folder: str | os.PathLike[str] = ".") -> LoadedTask:
        """Get the data of a task; a relative file name counts from ``folder``."""
        data = featured(_loaded(task.data, folder), task.features)
        return cls(data, catalogue.from_name(task.model, data.shape, data.classes, folder=folder))


def featured(data: Dataset, features: Features | None) -> Dataset:
    """The same people, with public features in place of their own."""
    if features is not Features.SCATTERING:
        return data
    if len(data.shape) != 2 or data.shape[0] != data.shape[1]:
        raise InvalidValue("features", str(features), f"needs square pictures, not {data.shape}")
    scattering = Scattering(data.shape[0])
    return replace(
        data,
        features=scattering.features(data.features),
        holdout_features=scattering.features(data.holdout_features),
    )


def _loaded(source: str | DataFile, folder: str | os.PathLike[str]) -> Dataset:
    if isinstance(source, DataFile):
        return table.load(source, folder=folder, classes=source.classes, holdout=source.holdout)
    match DataSet(source):
        case DataSet.PATIENTS:
            return patients.load()
        case DataSet.FASHION_MNIST:
            return fashion_mnist.load()
        case DataSet.SYNTHETIC:
            return synthetic.load()
