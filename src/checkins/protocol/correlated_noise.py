"""Noise that the server correlates across slots: what it publishes, and what everyone computes.

Let x_t be the exact sum of the clipped updates of slot t, in units of the campaign's grid. Slots
are counted from the first one that releases something. The server draws new noise Z_t in every
slot, and publishes

    v_t = n_0 x_t + n_1 x_(t-1) + ... + n_(b-1) x_(t-b+1) + Z_t ,

where n_0, ..., n_(b-1) are the numerators of the campaign's ``NoiseStrategy``, and b is its number
of bands. These are exact integers in units of the campaign's release grid, which is finer than the
grid of reports by the factor 2^bits. Everyone, the server included, computes from v_t the noisy sum

    y_t = (v_t - n_1 y_(t-1) - ... - n_(b-1) y_(t-b+1)) / n_0 ,

in units of the campaign's grid. y_t is x_t with noise, and the noise of different slots is
correlated (docs/theory/correlated-noise.md). In both formulas, terms of slots before the first
are 0.

The server needs the exact sums of the last b − 1 slots. They are secret. Past noise is not stored,
because x_t and the public y_t determine it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkins.accounting import NoiseStrategy

Vector = NDArray[Any]


def published_total(strategy: NoiseStrategy, sums: Sequence[Vector], noise: Vector) -> Vector:
    """Return v_t. ``sums`` are x_t, x_(t-1), ..., and ``noise`` is Z_t.

    ``sums`` has b elements, or fewer in the first slots. Integers are added exactly in 64 bits
    (``Campaign`` refuses parameters with which totals could be larger).

    >>> strategy = NoiseStrategy((3, 2), bits=2)
    >>> published_total(strategy, [np.array([10]), np.array([-1])], np.array([5]))
    array([33])
    """
    total = noise.copy()
    for numerator, exact_sum in zip(strategy.numerators, sums, strict=False):
        total += numerator * exact_sum
    return total


def noisy_sum(
    strategy: NoiseStrategy, total: Vector, earlier: Sequence[NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Return y_t. ``total`` is v_t, and ``earlier`` are y_(t-1), y_(t-2), ...

    ``earlier`` has b − 1 elements, or fewer in the first slots. The terms are subtracted in the
    order of the formula, then the result is divided. Each operation is rounded to float64, so every
    platform gets the same bits.

    >>> strategy = NoiseStrategy((3, 2), bits=2)
    >>> noisy_sum(strategy, np.array([33]), [np.array([-1.0])])
    array([11.66666667])
    """
    remainder = total.astype(np.float64)
    for numerator, noisy in zip(strategy.numerators[1:], earlier, strict=False):
        remainder -= float(numerator) * noisy
    return remainder / float(strategy.numerators[0])
