"""Tasks: data scaled by public constants, features, models and their gradients.

Importing this loads neither JAX nor pandas: a device needs numpy alone to read a table and compute
its update.
"""

from checkins.tasks.data.dataset import Dataset
from checkins.tasks.data.synthetic import Loss, Problem
from checkins.tasks.models.own_model import OwnModel

__all__ = ["Dataset", "Loss", "OwnModel", "Problem"]
