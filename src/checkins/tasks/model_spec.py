"""The model of a task without its data: what a coordinator and a device must agree on."""

from __future__ import annotations

import math
import os

from checkins.campaign.task import DataFile, DataSet, Features, Task
from checkins.errors import InvalidValue
from checkins.tasks import catalogue, fashion_mnist, patients
from checkins.tasks.model import Model
from checkins.tasks.scattering import Scattering

SYNTHETIC_DIMENSION = 10
"""Of the problem that ``synthetic.load`` makes when it is not told otherwise."""

START_SEED = 0
"""Of the first model where it is drawn: public, like the model itself."""


def model_of(task: Task, *, folder: str | os.PathLike[str] = ".") -> Model:
    """The model that a sealed task names; own models are looked for in ``folder``.

    >>> from checkins.campaign import Optimizer
    >>> model_of(Task("patients", "logistic", Optimizer(rate=1.0))).dimension
    14
    """
    shape, classes = _rows(task)
    return catalogue.from_name(task.model, shape, classes, folder=folder)


def _rows(task: Task) -> tuple[tuple[int, ...], int]:
    """The shape of a row's features, and how many classes there are."""
    if isinstance(task.data, DataFile):
        classes = task.data.classes
        if classes is None and task.model == "logistic":
            classes = 2
        if classes is None:
            raise InvalidValue(
                "classes", None, "say in [task.data] how many there are: devices cannot count them"
            )
        return (len(task.data.features),), classes
    match DataSet(task.data):
        case DataSet.PATIENTS:
            return (len(patients.FEATURES),), 2
        case DataSet.FASHION_MNIST:
            if task.features is Features.SCATTERING:
                shape = (math.prod(Scattering(fashion_mnist.SIDE).shape),)
                return shape, fashion_mnist.CLASSES
            return (fashion_mnist.SIDE, fashion_mnist.SIDE), fashion_mnist.CLASSES
        case DataSet.SYNTHETIC:
            return (SYNTHETIC_DIMENSION,), 2
