"""From the name of a model, as a campaign seals it, to the model."""

from __future__ import annotations

import importlib
import math
import os
import sys

from checkins.errors import InvalidValue, first_line
from checkins.tasks.cnn import CNN
from checkins.tasks.logistic import Logistic
from checkins.tasks.mlp import MLP
from checkins.tasks.model import Model
from checkins.tasks.softmax import Softmax

NAMES = ("logistic", "softmax", "mlp", "cnn")


def from_name(
    name: str,
    features_shape: tuple[int, ...],
    classes: int,
    *,
    folder: str | os.PathLike[str] = ".",
) -> Model:
    """The model of this name for rows of this shape; ``module:function`` calls that function.

    Such a function takes (features_shape, classes) and returns an ``OwnModel``, or anything that
    has what ``Model`` asks for. Its module is looked for as ``import`` would, then in ``folder``
    and in the current one.

    >>> from_name("softmax", (28, 28), 10)
    Softmax(features=784, classes=10)
    """
    shape = tuple(features_shape)
    if name == "logistic":
        if classes != 2:
            raise InvalidValue(
                "model", name, f"tells two classes apart, and the data has {classes}: use softmax"
            )
        return Logistic(math.prod(shape))
    if name == "softmax":
        return Softmax(math.prod(shape), classes)
    if name == "mlp":
        return MLP(math.prod(shape), classes)
    if name == "cnn":
        if len(shape) not in (2, 3):
            raise InvalidValue(
                "model", name, f"needs pictures, and a row of the data has the shape {shape}"
            )
        height, width, channels = (*shape, 1)[:3]
        return CNN(height=height, width=width, classes=classes, channels=channels)
    return _own(name, shape, classes, folder)


def _own(name: str, shape: tuple[int, ...], classes: int, folder: str | os.PathLike[str]) -> Model:
    module_name, colon, function_name = name.partition(":")
    if not (module_name and colon and function_name):
        raise InvalidValue("model", name, f'must be {", ".join(NAMES)} or "module:function"')
    for place in (os.path.abspath(folder), os.getcwd()):
        if place not in sys.path:
            sys.path.append(place)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise InvalidValue("model", name, f"cannot be imported: {first_line(error)}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        found = "is not a function" if hasattr(module, function_name) else "does not exist"
        raise InvalidValue("model", name, f"{function_name} {found} in {module_name}")
    try:
        model = function(shape, classes)
    except Exception as error:
        raise InvalidValue("model", name, f"{function_name} failed: {first_line(error)}") from error
    missing = [
        member
        for member in ("shapes", "dimension", "start", "loss", "gradient", "scores")
        if not hasattr(model, member)
    ]
    if missing:
        raise InvalidValue(
            "model",
            name,
            f"returned a {type(model).__name__} without {', '.join(missing)}: "
            "return a checkins.tasks.own_model.OwnModel",
        )
    own: Model = model
    return own
