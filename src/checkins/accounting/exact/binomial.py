"""Binomial distributions on a window of counts, with negligible probability outside.

Probabilities are computed from ratios of neighbouring terms instead of factorials, so they are
accurate for counts in the billions. Tails are sums of positive terms, so they are accurate far
below 1e-15.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import betainc, xlogy

from checkins.accounting.exact.slot_ratio import FloatArray
from checkins.accounting.solve import first_true

ROUND_OFF = 2e-7
"""Relative error allowed for a tail. The largest error in tests, at 1e12 trials, is 5e-8."""


@dataclass(frozen=True, slots=True)
class Window:
    """Probabilities of the counts ``first``, ``first + 1``, ..., scaled to sum to 1."""

    first: int
    masses: FloatArray

    @property
    def counts(self) -> FloatArray:
        return self.first + np.arange(len(self.masses), dtype=np.float64)


def window(*, trials: int, probability: float, tail_exponent: float) -> Window:
    """Return the probabilities of Binomial(trials, probability), without negligible tails.

    Each of the two tails has a probability below exp(-tail_exponent). By Chernoff's bound,
    Pr[B >= k] <= exp(-trials KL(k/trials, probability)) for k above the mean, and likewise below
    it. The probabilities inside are scaled to sum to 1, so each is too large by a factor of at most
    1 / (1 - 2 exp(-tail_exponent)). An expectation over the window is wrong by at most
    2 exp(-tail_exponent) times the largest value in it.
    """
    first = _window_end(trials, probability, tail_exponent, upwards=False)
    last = _window_end(trials, probability, tail_exponent, upwards=True)
    counts = np.arange(first, last + 1, dtype=np.float64)
    steps = np.log((trials - counts[:-1]) / (counts[:-1] + 1.0)) + math.log(
        probability / (1.0 - probability)
    )
    logs = np.concatenate(([0.0], np.cumsum(steps)))
    masses = np.exp(logs - logs.max())
    return Window(first, masses / masses.sum())


def _window_end(trials: int, probability: float, tail_exponent: float, *, upwards: bool) -> int:
    """Return the first or last count of the window.

    Going outwards from the mean, it is the first count whose Chernoff exponent, trials * KL,
    exceeds ``tail_exponent``. If no count does, it is 0 or ``trials``.
    """
    inside, outside = round(trials * probability), trials if upwards else 0
    if _chernoff_exponent(trials, probability, outside) <= tail_exponent:
        return outside
    return first_true(
        lambda count: _chernoff_exponent(trials, probability, count) > tail_exponent,
        false=inside,
        true=outside,
    )


def _chernoff_exponent(trials: int, probability: float, count: int) -> float:
    """Return trials * KL(count/trials, probability)."""
    share = count / trials
    return trials * float(
        xlogy(share, share / probability) + xlogy(1 - share, (1 - share) / (1 - probability))
    )


def half_binomial_put(trials: FloatArray, y: FloatArray) -> FloatArray:
    """Return E(y - B)_+ for B ~ Binomial(trials, 1/2), elementwise.

    With j = floor(y) and T = Pr[B <= j], it equals (y - trials/2) T + (trials/4) Pr[B' = j], where
    B' ~ Binomial(trials - 1, 1/2). Far in the tail, the two terms cancel a few digits at most.
    """
    n = np.maximum(trials, 1.0)
    count = np.clip(np.floor(y), 0.0, n - 1.0)
    tail = betainc(n - count, count + 1.0, 0.5)
    regular = (y - n / 2) * tail + n / 4 * _half_binomial_mass(n - 1.0, count)
    inside = np.where(y < 1.0, np.maximum(y, 0.0) * np.exp2(-trials), np.maximum(regular, 0.0))
    return np.where(y >= trials, np.maximum(y - trials / 2, 0.0), inside)


def _half_binomial_mass(trials: FloatArray, count: FloatArray) -> FloatArray:
    """Return Pr[Binomial(trials, 1/2) = count] by Loader's saddle-point form.

    In this form, no large logarithms cancel.
    """
    other = trials - count
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(trials > 0, (count - other) / np.maximum(trials, 1.0), 0.0)
        deviance = trials / 2 * ((1 + t) * np.log1p(t) + (1 - t) * np.log1p(-t))
        correction = _stirling_error(trials) - _stirling_error(count) - _stirling_error(other)
        inner = np.sqrt(trials / (2 * math.pi * count * other)) * np.exp(correction - deviance)
    ends = np.exp2(-trials)
    return np.where((count <= 0) | (other <= 0), ends, inner)


def _stirling_error(n: FloatArray) -> FloatArray:
    """Return log n! - log(sqrt(2 pi n) (n/e)^n), the error of Stirling's formula.

    Use a table for n up to 15, and the asymptotic series for larger n.
    """
    small = np.minimum(n, 15.0).astype(np.intp)
    m = np.maximum(n, 15.0)
    s = 1.0 / (m * m)
    series = (1 / 12 - (1 / 360 - (1 / 1260 - (1 / 1680 - s / 1188) * s) * s) * s) / m
    return np.where(n < 15.5, _STIRLING_ERRORS[small], series)


_STIRLING_ERRORS = np.array(
    [0.0]
    + [
        math.lgamma(n + 1) - (n * math.log(n) - n + 0.5 * math.log(2 * math.pi * n))
        for n in range(1, 16)
    ]
)
