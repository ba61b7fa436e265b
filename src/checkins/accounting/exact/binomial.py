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
"""Relative error allowed in each tail. The largest error found, at 1e12 trials, is 5e-8."""


@dataclass(frozen=True, slots=True)
class Window:
    """Probabilities of the counts ``first``, ``first + 1``, ..., scaled to sum to 1."""

    first: int
    masses: FloatArray

    @property
    def counts(self) -> FloatArray:
        return self.first + np.arange(len(self.masses), dtype=np.float64)


def window(*, trials: int, probability: float, log_outside: float) -> Window:
    """Return the counts of Binomial(trials, probability) without its negligible tails.

    Each of the two tails has a probability below exp(-log_outside). By Chernoff's bound,
    Pr[B >= k] <= exp(-trials KL(k/trials, probability)) for k above the mean, and likewise below
    it. The probabilities inside are scaled to sum to 1, so each is too large by a factor of at most
    1 / (1 - 2 exp(-log_outside)). An expectation over the window is wrong by at most
    2 exp(-log_outside) times the largest value in it.
    """
    first = _edge(trials, probability, log_outside, upwards=False)
    last = _edge(trials, probability, log_outside, upwards=True)
    counts = np.arange(first, last + 1, dtype=np.float64)
    steps = np.log((trials - counts[:-1]) / (counts[:-1] + 1.0)) + math.log(
        probability / (1.0 - probability)
    )
    logs = np.concatenate(([0.0], np.cumsum(steps)))
    masses = np.exp(logs - logs.max())
    return Window(first, masses / masses.sum())


def _edge(trials: int, probability: float, log_outside: float, *, upwards: bool) -> int:
    """Return the first or last count of the window.

    Going outwards from the mean, it is the first count whose Chernoff exponent, trials * KL,
    exceeds ``log_outside``. If no count does, it is 0 or ``trials``.
    """
    inside, outside = round(trials * probability), trials if upwards else 0
    if _exponent(trials, probability, outside) <= log_outside:
        return outside
    return first_true(
        lambda count: _exponent(trials, probability, count) > log_outside,
        false=inside,
        true=outside,
    )


def _exponent(trials: int, probability: float, count: int) -> float:
    share = count / trials
    return trials * float(
        xlogy(share, share / probability) + xlogy(1 - share, (1 - share) / (1 - probability))
    )


def fair_shortfall(trials: FloatArray, y: FloatArray) -> FloatArray:
    """Return E(y - B)_+ for B ~ Binomial(trials, 1/2), elementwise.

    With j = floor(y) and T = Pr[B <= j], it equals (y - trials/2) T + (trials/4) Pr[B' = j], where
    B' has one trial less. Far in the tail, the two terms cancel by no more than a few digits.
    """
    some = np.maximum(trials, 1.0)
    j = np.clip(np.floor(y), 0.0, some - 1.0)
    tail = betainc(some - j, j + 1.0, 0.5)
    inner = (y - some / 2) * tail + some / 4 * _fair_mass(some - 1.0, j)
    within = np.where(y < 1.0, np.maximum(y, 0.0) * np.exp2(-trials), np.maximum(inner, 0.0))
    return np.where(y >= trials, np.maximum(y - trials / 2, 0.0), within)


def _fair_mass(trials: FloatArray, count: FloatArray) -> FloatArray:
    """Return Pr[Binomial(trials, 1/2) = count] by Loader's saddle-point form.

    In this form, no large logarithms cancel.
    """
    other = trials - count
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(trials > 0, (count - other) / np.maximum(trials, 1.0), 0.0)
        deviance = trials / 2 * ((1 + t) * np.log1p(t) + (1 - t) * np.log1p(-t))
        correction = _stirling(trials) - _stirling(count) - _stirling(other)
        inner = np.sqrt(trials / (2 * math.pi * count * other)) * np.exp(correction - deviance)
    ends = np.exp2(-trials)
    return np.where((count <= 0) | (other <= 0), ends, inner)


def _stirling(n: FloatArray) -> FloatArray:
    """Return log n! - log(sqrt(2 pi n) (n/e)^n).

    Use a table for n up to 15, and the asymptotic series above.
    """
    small = np.minimum(n, 15.0).astype(np.intp)
    m = np.maximum(n, 15.0)
    s = 1.0 / (m * m)
    series = (1 / 12 - (1 / 360 - (1 / 1260 - (1 / 1680 - s / 1188) * s) * s) * s) / m
    return np.where(n < 15.5, _STIRLING[small], series)


_STIRLING = np.array(
    [0.0]
    + [
        math.lgamma(n + 1) - (n * math.log(n) - n + 0.5 * math.log(2 * math.pi * n))
        for n in range(1, 16)
    ]
)
