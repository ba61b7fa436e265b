"""The type of all descriptions of randomizers, and a check of their dimension."""

from __future__ import annotations

from checkins.errors import InvalidValue
from checkins.randomizers.gaussian import Gaussian
from checkins.randomizers.laplace import Laplace
from checkins.randomizers.privunit import PrivUnit
from checkins.randomizers.randomized_response import RandomizedResponse

Randomizer = Gaussian | Laplace | PrivUnit | RandomizedResponse
"""Any description of how one report is made private."""


def require_dimension(randomizer: Randomizer, dimension: int) -> None:
    """Raise InvalidValue if the randomizer has another dimension.

    Gaussian and Laplace noise have no fixed dimension.

    >>> require_dimension(RandomizedResponse(categories=3, local_epsilon=1.0), 4)
    Traceback (most recent call last):
        ...
    checkins.errors.InvalidValue: dimension = 4: must be 3, the categories described
    """
    match randomizer:
        case PrivUnit(dimension=described):
            what = "dimension"
        case RandomizedResponse(categories=described):
            what = "categories"
        case Gaussian() | Laplace():
            return
        case _:
            raise InvalidValue("randomizer", randomizer, "must be a description of a randomizer")
    if dimension != described:
        raise InvalidValue("dimension", dimension, f"must be {described}, the {what} described")
