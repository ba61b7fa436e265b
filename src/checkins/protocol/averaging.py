"""The average of the models that a campaign releases. Late models have larger weights.

The average is post-processing of released models, so it does not affect epsilon. With noise in
every step, it is often better than the last model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from checkins import validate


def average_weights(numbers: NDArray[np.integer], *, share: float) -> NDArray[np.float64]:
    r"""Return the weight of model t in the average of models 1 to t, for each t in ``numbers``.

    The average a_t of the models θ_1, ..., θ_t is computed one model at a time:

        a_t = a_{t−1} + w_t (θ_t − a_{t−1}),   w_t = (η + 1) / (t + η),   η = 2 / share − 2.

    In a_t, the weight of θ_s is nearly proportional to s^η. With ``share`` 1, it is the mean of all
    models. The mean age of the averaged models is ``share`` / 2 times the number of models, as in
    a mean of the last ``share`` of the models. The number of models need not be known beforehand.

    Theorem:     polynomial-decay averaging, [SZ13, section 4], arXiv:1212.1824.

    >>> average_weights(np.array([1, 2, 3]), share=1.0).round(3).tolist()
    [1.0, 0.5, 0.333]
    """
    validate.positive(share=share)
    validate.probability(share=share)
    exponent = 2.0 / share - 2.0
    return (exponent + 1.0) / (numbers.astype(np.float64) + exponent)


@dataclass(frozen=True, slots=True)
class RunningAverage:
    """The average of ``models`` released models. ``model`` is None before the first one.

    >>> average = RunningAverage(share=1.0).with_model(np.zeros(2)).with_model(np.ones(2))
    >>> average.models, average.model
    (2, array([0.5, 0.5]))
    """

    share: float
    models: int = 0
    model: NDArray[np.float64] | None = None

    def with_model(self, model: NDArray[np.float64]) -> RunningAverage:
        """Return the average with the next released model."""
        number = self.models + 1
        weight = float(average_weights(np.array(number), share=self.share))
        earlier = model if self.model is None else self.model
        return RunningAverage(self.share, number, earlier + weight * (model - earlier))
