"""Format numbers for people, with few significant digits and with bounds rounded safely.

A number is rounded from its shortest decimal text, ``repr``. So 0.8 is printed as 0.8, although its
binary value is 4e-17 above 0.8. The printed text is still an upper bound. If it reads back as the
same number, it stands for exactly that number in files, options and certificates, although its
decimal value may be smaller than the binary value by a relative 1.1e-16. Otherwise, it was rounded
up and lies above the binary value.

There are two notations. ``up``, ``down`` and ``nearest`` write 1.235e+04, for a terminal.
``page_up``, ``page_down`` and ``page_nearest`` write 12,350, for a page. The JavaScript of the
coordinator's page uses the same notation as ``page_up`` and ``page_down``.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from numbers import Real

DIGITS = 4
"""Default number of significant digits."""
MISSING = "–"
"""Text that a page shows for a value that is missing or not finite."""
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def up(value: float, digits: int = DIGITS) -> str:
    """Round up, for an upper bound.

    >>> up(0.12661), up(144.31), up(0.8), up(0.0), up(float("inf"))
    ('0.1267', '144.4', '0.8', '0', 'unbounded')
    """
    return _terminal(value, digits, ROUND_CEILING)


def down(value: float, digits: int = DIGITS) -> str:
    """Round down, for a lower bound.

    >>> down(0.12669)
    '0.1266'
    """
    return _terminal(value, digits, ROUND_FLOOR)


def nearest(value: float, digits: int = DIGITS) -> str:
    """Round to nearest, for a number that is not a bound."""
    return _terminal(value, digits, ROUND_HALF_EVEN)


def up_in_full(value: float, digits: int = DIGITS) -> str:
    """Round a finite number up and write it without an exponent.

    >>> up_in_full(0.25051), up_in_full(1.0), up_in_full(0.8), up_in_full(12345.6)
    ('0.2506', '1', '0.8', '12350')
    """
    return f"{_significant(value, digits, ROUND_CEILING).normalize():f}"


def page_up(value: object, digits: int = DIGITS) -> str:
    """Round up, in the notation of a page.

    >>> page_up(0.25052), page_up(144.31), page_up(12345.6), page_up(2.7), page_up(None)
    ('0.2506', '144.4', '12,350', '2.7', '–')
    """
    return _page(value, digits, ROUND_CEILING)


def page_down(value: object, digits: int = DIGITS) -> str:
    """Round down, in the notation of a page.

    >>> page_down(0.12669)
    '0.1266'
    """
    return _page(value, digits, ROUND_FLOOR)


def page_nearest(value: object, digits: int = DIGITS) -> str:
    """Round to nearest, in the notation of a page.

    >>> page_nearest(0.2134567), page_nearest(1.5e-7), page_nearest(3.0)
    ('0.2135', '1.5·10⁻⁷', '3')
    """
    return _page(value, digits, ROUND_HALF_EVEN)


def finite(value: object) -> float | None:
    """Return the number, or None if it is missing, not a number or not finite.

    >>> finite(0.5), finite(float("inf")), finite(None)
    (0.5, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def _significant(value: float, digits: int, rounding: str) -> Decimal:
    return Context(prec=digits, rounding=rounding).create_decimal(Decimal(repr(value)))


def _terminal(value: float, digits: int, rounding: str) -> str:
    if math.isnan(value):
        return "unknown"
    if math.isinf(value):
        return "unbounded"
    return f"{float(_significant(value, digits, rounding)):.{digits}g}"


def _page(value: object, digits: int, rounding: str) -> str:
    number = finite(value)
    if number is None:
        return MISSING
    short = _significant(number, digits, rounding)
    power = short.adjusted()
    if number == 0.0 or -4 <= power < 7:
        return f"{short.normalize():,f}"
    head = f"{short.scaleb(-power).normalize():f}"
    tail = f"10{str(power).translate(SUPERSCRIPTS)}"
    return tail if head == "1" else f"{head}·{tail}"
