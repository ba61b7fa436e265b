"""Learning tasks: data sets scaled by public constants, features, and models with gradients.

Importing this package loads neither JAX nor pandas, because a device that reads a table and
computes its update needs only numpy.
"""

from checkins.tasks.data.dataset import Dataset
from checkins.tasks.data.synthetic import Loss, Problem
from checkins.tasks.own_model import OwnModel

__all__ = ["Dataset", "Loss", "OwnModel", "Problem"]
