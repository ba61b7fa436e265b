"""Numbers for people: four significant digits, rounded to the side that claims less.

A number is rounded from its shortest decimal text, ``repr``: 0.8 is printed as 0.8, although its
binary value lies 4e-17 above 0.8. That is an upper statement all the same. A text with fewer digits
that reads back as the same number is the number as it was asked for or certified, to the last bit.
Any other text that is rounded up lies above every text that reads back as the number, and so above
its binary value. The first kind may lie below the binary value by half a unit in the last place,
1.1e-16 of the number: files, options and certificates hold the same text, and mean that number.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal

DIGITS = 4


def up(value: float, digits: int = DIGITS) -> str:
    """Rounded up, as an upper bound must be.

    >>> up(0.12661), up(144.31), up(0.8), up(0.0), up(float("inf"))
    ('0.1267', '144.4', '0.8', '0', 'unbounded')
    """
    return _rounded(value, digits, ROUND_CEILING)


def down(value: float, digits: int = DIGITS) -> str:
    """Rounded down, as a lower bound must be.

    >>> down(0.12669)
    '0.1266'
    """
    return _rounded(value, digits, ROUND_FLOOR)


def nearest(value: float, digits: int = DIGITS) -> str:
    """Rounded to nearest, for numbers that promise nothing."""
    return _rounded(value, digits, ROUND_HALF_EVEN)


def _rounded(value: float, digits: int, rounding: str) -> str:
    if math.isnan(value):
        return "unknown"
    if math.isinf(value):
        return "unbounded"
    short = Context(prec=digits, rounding=rounding).create_decimal(Decimal(repr(value)))
    return f"{float(short):.{digits}g}"
