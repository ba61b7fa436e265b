"""k-ary randomized response: the true category is reported with some probability, else another."""

from __future__ import annotations

import math
from dataclasses import dataclass

from checkins import validate
from checkins.accounting import LocalRandomizer
from checkins.errors import InvalidValue

MOST_CATEGORIES = 2**31 - 1
LEAST_LOCAL_EPSILON = 1e-6
"""Smallest local epsilon. Below it, the two probabilities are too close for floating point."""


@dataclass(frozen=True, slots=True)
class RandomizedResponse:
    """Report the true one of k ``categories`` with probability b/(b + k − 1), where b = exp(ε₀).

    Otherwise report one of the other categories, uniformly. A report is interpreted as the vector

        (b + k − 2)/(b − 1) at the reported category,    −1/(b − 1) elsewhere,

    whose mean is the one-hot vector of the true category, and whose entries sum to 1. A dummy,
    which the server draws in place of a missing report, is a uniform category. Its probability 1/k
    is between the two probabilities of a report, so the privacy loss between a dummy and any report
    is at most ε₀. As a vector, its mean is 1/k everywhere.

    Theorem:     docs/theory/randomizers.md, "Randomized response"; ε₀ is attained.
    Neighbours:  any two categories of one client (the local model).
    Rounding:    ``lie`` is rounded up.

    >>> coin = RandomizedResponse(categories=2, local_epsilon=math.log(3.0))
    >>> round(coin.keep, 12), round(coin.on, 12), round(coin.off, 12)
    (0.75, 1.5, -0.5)
    """

    categories: int
    local_epsilon: float

    def __post_init__(self) -> None:
        validate.count(most=MOST_CATEGORIES, categories=self.categories)
        if self.categories < 2:
            raise InvalidValue("categories", self.categories, "must be at least 2")
        LocalRandomizer(self.local_epsilon)
        validate.make_floats(self, "local_epsilon")
        object.__setattr__(self, "categories", int(self.categories))
        if not self.local_epsilon >= LEAST_LOCAL_EPSILON:
            raise InvalidValue(
                "local_epsilon", self.local_epsilon, f"must be at least {LEAST_LOCAL_EPSILON:g}"
            )

    @property
    def lie(self) -> float:
        """Probability that the reported category is not the true one, rounded up.

        It is (k − 1)/(b + k − 1). Of ``lie`` and ``keep``, the smaller one is computed first, for
        accuracy.
        """
        odds = math.exp(self.local_epsilon) / (self.categories - 1)
        if odds >= 1.0:
            return 1.0 / (1.0 + odds) * (1.0 + 2.0**-50)
        keep = odds / (1.0 + odds) * (1.0 - 2.0**-50)
        return math.nextafter(1.0 - keep, 1.0)

    @property
    def keep(self) -> float:
        """Probability that the reported category is the true one."""
        return 1.0 - self.lie

    @property
    def on(self) -> float:
        """Entry of a report's vector at the reported category."""
        return 1.0 + (self.categories - 1) / math.expm1(self.local_epsilon)

    @property
    def off(self) -> float:
        """Entry of a report's vector at every other category."""
        return -1.0 / math.expm1(self.local_epsilon)

    @property
    def privacy_spec(self) -> LocalRandomizer:
        """The epsilon of a report, as the accountant expects it."""
        return LocalRandomizer(self.local_epsilon)

    def variance(self, *, dimension: int, norm: float = 1.0) -> float:
        """Return the expected squared distance of a report's vector from the true one-hot vector.

        It is (k − 1)(2b + k − 2)/(b − 1)². ``dimension`` must be k, and ``norm`` must be 1, the
        norm of a one-hot vector.
        """
        if dimension != self.categories:
            raise InvalidValue("dimension", dimension, f"must be categories = {self.categories}")
        if norm != 1.0:
            raise InvalidValue("norm", norm, "must be 1, the norm of a one-hot vector")
        b, k = math.exp(self.local_epsilon), float(self.categories)
        gain = math.expm1(self.local_epsilon)
        return (k - 1) / gain * ((2 * b + k - 2) / gain)
