"""Convert between named tensors and the flat vector that protocol, noise and clipping use.

The vector holds the tensors in the order of ``shapes``, each in row-major order. The order does not
depend on the values, so all devices and the server split a vector in the same way.

>>> shapes = {"weights": (2, 2), "bias": ()}
>>> flat = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
>>> unflatten(flat, shapes)["weights"].tolist()
[[1.0, 2.0], [3.0, 4.0]]
>>> flatten(unflatten(flat, shapes), shapes).tolist()
[1.0, 2.0, 3.0, 4.0, 5.0]
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkins.errors import InvalidValue

Shapes = Mapping[str, tuple[int, ...]]


def size(shapes: Shapes) -> int:
    """Return the total number of elements of the tensors."""
    return sum(math.prod(shape) for shape in shapes.values())


def flatten(tensors: Mapping[str, NDArray[Any]], shapes: Shapes) -> NDArray[Any]:
    """Return the tensors as one numpy vector. Raises InvalidValue if their shapes are wrong."""
    if set(tensors) != set(shapes):
        raise InvalidValue("tensors", sorted(tensors), f"must be {', '.join(sorted(shapes))}")
    for name, shape in shapes.items():
        if np.shape(tensors[name]) != tuple(shape):
            raise InvalidValue(name, np.shape(tensors[name]), f"must have the shape {tuple(shape)}")
    return np.concatenate([np.ravel(tensors[name]) for name in shapes])


def unflatten(flat: Any, shapes: Shapes) -> dict[str, Any]:
    """Return the tensors of a vector. With numpy they are views of the vector."""
    if flat.shape != (size(shapes),):
        raise InvalidValue("flat", flat.shape, f"must be a vector of {size(shapes):,} numbers")
    tensors, start = {}, 0
    for name, shape in shapes.items():
        end = start + math.prod(shape)
        tensors[name] = flat[start:end].reshape(shape)
        start = end
    return tensors
