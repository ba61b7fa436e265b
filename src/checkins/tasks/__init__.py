"""What is learned: data scaled by public constants, features, models and their gradients.

Importing this loads neither JAX nor pandas: a device needs numpy alone to read a table and compute
its update.
"""

from checkins.tasks.convex import Loss, Problem
from checkins.tasks.dataset import Dataset

__all__ = ["Dataset", "Loss", "Problem"]
