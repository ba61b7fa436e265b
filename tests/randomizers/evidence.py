"""What samples prove about probabilities: exact binomial bounds, with a stated failure."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy.stats import beta

FAILURE = 1e-9
"""Probability, at most, with which each statistical test here fails although the code is right."""


def proportion(hits: npt.NDArray[np.bool_], *, failure: float) -> tuple[float, float]:
    """Clopper-Pearson: where the probability of a hit lies, but for ``failure`` at most."""
    n, k = hits.size, int(hits.sum())
    low = 0.0 if k == 0 else float(beta.ppf(failure / 2, k, n - k + 1))
    high = 1.0 if k == n else float(beta.isf(failure / 2, k + 1, n - k))
    return low, high


def proven_epsilon(
    here: npt.NDArray[np.bool_], there: npt.NDArray[np.bool_], *, failure: float = FAILURE
) -> float:
    """A lower bound of |log Pr[hit here] - log Pr[hit there]|, false with ``failure`` at most."""
    low, high = proportion(here, failure=failure / 2)
    other_low, other_high = proportion(there, failure=failure / 2)
    return max(_log_ratio(low, other_high), _log_ratio(other_low, high), 0.0)


def _log_ratio(above: float, below: float) -> float:
    return -math.inf if above == 0.0 else math.log(above / below)


def deviates(failure: float = FAILURE, *, tests: int = 1) -> float:
    """How many standard errors a mean of many draws may be off, ``tests`` means looked at.

    A normal approximation; the constant is rounded up so that Berry-Esseen's error at the sample
    sizes used here, and heavier tails than normal, are inside it.
    """
    return 1.2 * math.sqrt(2 * math.log(2 * tests / failure))
