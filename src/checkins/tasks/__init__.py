"""Learning tasks: data sets scaled by public constants, features, and models with gradients.

Importing this package loads neither JAX nor scipy nor pandas, because a device that reads a table
and computes its update needs only numpy.
"""

from typing import TYPE_CHECKING

from checkins.optional_imports import exports_on_first_use
from checkins.tasks.data import Dataset
from checkins.tasks.own_model import OwnModel

if TYPE_CHECKING:
    from checkins.tasks.data.synthetic import Loss, Problem

__all__ = ["Dataset", "Loss", "OwnModel", "Problem"]

if not TYPE_CHECKING:
    __getattr__ = exports_on_first_use(__name__, __all__, "data.synthetic")
