"""Load the task of a campaign: the data, the features computed from them, and the model."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace

from checkins.campaign.task import DEVICES, DataFile, DataSet, Features, Task
from checkins.errors import InvalidValue
from checkins.tasks.data import Dataset, fashion_mnist, patients, table
from checkins.tasks.model import Model
from checkins.tasks.own_model import initial_arrays_by_name, model_by_name


@dataclass(frozen=True, slots=True, eq=False)
class LoadedTask:
    """The data of a task, and a model for rows of these data."""

    data: Dataset
    model: Model

    @classmethod
    def of(cls, task: Task, *, folder: str | os.PathLike[str] = ".") -> LoadedTask:
        """Load the data of a task. A relative file name is relative to ``folder``."""
        data = with_features(_load_data(task.data, folder), task.features)
        return cls(data, model_by_name(task.model, data.shape, data.classes, folder=folder))


def with_features(data: Dataset, features: Features | None) -> Dataset:
    """Return the data set with scattering features, or unchanged if ``features`` is None."""
    if features is not Features.SCATTERING:
        return data
    if len(data.shape) != 2 or data.shape[0] != data.shape[1]:
        raise InvalidValue("features", str(features), f"needs square pictures, not {data.shape}")
    from checkins.tasks.data.scattering import Scattering

    scattering = Scattering(data.shape[0])
    return replace(
        data,
        features=scattering.features(data.features),
        holdout_features=scattering.features(data.holdout_features),
    )


def _load_data(data: str | DataFile, folder: str | os.PathLike[str]) -> Dataset:
    if isinstance(data, DataFile):
        return table.load(data, folder=folder)
    if data == DEVICES:
        expected = (
            "means that only the devices have the data, so the campaign can be served and not"
            " simulated: name a data set or a table"
        )
        raise InvalidValue("data", data, expected)
    match DataSet(data):
        case DataSet.PATIENTS:
            return patients.load()
        case DataSet.FASHION_MNIST:
            return fashion_mnist.load()
        case DataSet.SYNTHETIC:
            from checkins.tasks.data import synthetic

            return synthetic.load()


SYNTHETIC_DIMENSION = 10
"""Number of features of a row of the synthetic data: the default of ``synthetic.load``."""

INITIAL_WEIGHTS_SEED = 0
"""Seed of a model's initial weights, if they are random. The seed is public."""


def model_of(task: Task, *, folder: str | os.PathLike[str] = ".") -> Model:
    """Return the model that a task names, without loading the data.

    If only the devices have the data, it is their ``InitialArrays``. A user-defined model is
    imported from ``folder``.

    >>> from checkins.campaign import Optimizer
    >>> model_of(Task("patients", "logistic", Optimizer(rate=1.0))).dimension
    14
    """
    if task.data == DEVICES:
        return initial_arrays_by_name(task.model, folder=folder)
    shape, classes = _row_shape_and_classes(task)
    return model_by_name(task.model, shape, classes, folder=folder)


def _row_shape_and_classes(task: Task) -> tuple[tuple[int, ...], int]:
    """Return the shape of a row's features and the number of classes of a task's data."""
    if isinstance(task.data, DataFile):
        classes = task.data.classes
        if classes is None and task.model == "logistic":
            classes = 2
        if classes is None:
            why = "must be in [task.data], because a device has too few rows to count the classes"
            raise InvalidValue("classes", None, why)
        return (len(task.data.features),), classes
    match DataSet(task.data):
        case DataSet.PATIENTS:
            return (len(patients.FEATURES),), 2
        case DataSet.FASHION_MNIST:
            shape: tuple[int, ...] = (fashion_mnist.SIDE, fashion_mnist.SIDE)
            if task.features is Features.SCATTERING:
                from checkins.tasks.data.scattering import Scattering

                shape = (math.prod(Scattering(fashion_mnist.SIDE).shape),)
            return shape, fashion_mnist.CLASSES
        case DataSet.SYNTHETIC:
            return (SYNTHETIC_DIMENSION,), 2
