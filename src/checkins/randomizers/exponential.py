"""The exponential function in whole numbers: what every table of thresholds is computed from.

A real x in [0, 1] is kept as the integer nearest below or above 2**BITS * x; its last digit is one
*unit*. No float takes part, so tables are the same on every machine.
"""

from __future__ import annotations

from fractions import Fraction

BITS = 288
"""Fixed-point digits after the binary point."""
DECAY_ERROR = 1 << 24
"""No value of ``decay`` is wrong by more units than this."""

_SMALL = 8  # the series is summed for arguments below 2**-8
_NOTHING = 1 << 10  # exp(-1024) is far below one unit


def decay(numerator: int, denominator: int) -> int:
    """exp(-numerator / denominator) in units, for a non-negative fraction.

    Theorem:     docs/theory/grid.md, "Exponentials": halve the argument until it is below 2^-8,
                 sum the alternating series, square as often.
    Rounding:    within DECAY_ERROR units on either side, and never above 1.

    >>> abs(decay(1, 1) / 2**BITS - 0.36787944117144233) < 1e-16
    True
    """
    if numerator >= _NOTHING * denominator:
        return 0
    halvings = max(0, numerator.bit_length() - denominator.bit_length() + 1 + _SMALL)
    argument = (numerator << BITS) // (denominator << halvings)
    total = term = 1 << BITS
    count = 1
    while term:
        term = (term * argument >> BITS) // count
        total += -term if count & 1 else term
        count += 1
    for _ in range(halvings):
        total = total * total >> BITS
    return total


def at_most_decay(loss: Fraction) -> Fraction:
    """exp(-loss), rounded up by about 2**-264."""
    return Fraction(decay(loss.numerator, loss.denominator) + DECAY_ERROR, 1 << BITS)
