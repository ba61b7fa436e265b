"""Format numbers for people, with few significant digits and with bounds rounded safely.

A number is rounded from its shortest decimal text, ``repr``. So 0.8 is printed as 0.8, although the
binary number is 4e-17 above 0.8. A number that was rounded up is still an upper bound. If rounding
up has removed digits of ``repr``, the printed text is above the binary number. If the printed text
is the same as ``repr``, it may be below the binary number by a relative 1.1e-16, but every program
that parses the text gets the same binary number again.

There are two notations. ``up``, ``down`` and ``nearest`` write 1.235e+04, for a terminal.
``up_for_page``, ``down_for_page`` and ``nearest_for_page`` write 12,350, for an HTML page. The
JavaScript of the service's web page uses the same notation as ``up_for_page`` and
``down_for_page``.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from numbers import Real

DIGITS = 4
"""Default number of significant digits."""
MISSING = "–"
"""The text on an HTML page for a value that is missing or not finite."""
SUPERSCRIPT_DIGITS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def up(value: float, digits: int = DIGITS) -> str:
    """Round up, for an upper bound.

    >>> up(0.12661), up(144.31), up(0.8), up(0.0), up(float("inf"))
    ('0.1267', '144.4', '0.8', '0', 'unbounded')
    """
    return _for_terminal(value, digits, ROUND_CEILING)


def down(value: float, digits: int = DIGITS) -> str:
    """Round down, for a lower bound.

    >>> down(0.12669)
    '0.1266'
    """
    return _for_terminal(value, digits, ROUND_FLOOR)


def nearest(value: float, digits: int = DIGITS) -> str:
    """Round to nearest, for a number that is not a bound."""
    return _for_terminal(value, digits, ROUND_HALF_EVEN)


def up_in_full(value: float, digits: int = DIGITS) -> str:
    """Round a finite number up and write it without an exponent.

    >>> up_in_full(0.25051), up_in_full(1.0), up_in_full(0.8), up_in_full(12345.6)
    ('0.2506', '1', '0.8', '12350')
    """
    return f"{_round_to_digits(value, digits, ROUND_CEILING).normalize():f}"


def up_for_page(value: object, digits: int = DIGITS) -> str:
    """Round up, in the notation of an HTML page.

    >>> up_for_page(0.25052), up_for_page(144.31), up_for_page(12345.6), up_for_page(None)
    ('0.2506', '144.4', '12,350', '–')
    """
    return _for_page(value, digits, ROUND_CEILING)


def down_for_page(value: object, digits: int = DIGITS) -> str:
    """Round down, in the notation of an HTML page.

    >>> down_for_page(0.12669)
    '0.1266'
    """
    return _for_page(value, digits, ROUND_FLOOR)


def nearest_for_page(value: object, digits: int = DIGITS) -> str:
    """Round to nearest, in the notation of an HTML page.

    >>> nearest_for_page(0.2134567), nearest_for_page(1.5e-7), nearest_for_page(3.0)
    ('0.2135', '1.5·10⁻⁷', '3')
    """
    return _for_page(value, digits, ROUND_HALF_EVEN)


def finite_or_none(value: object) -> float | None:
    """Return the value as a float. None if it is missing, not a number or not finite.

    >>> finite_or_none(0.5), finite_or_none(float("inf")), finite_or_none(None)
    (0.5, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def _round_to_digits(value: float, digits: int, rounding: str) -> Decimal:
    return Context(prec=digits, rounding=rounding).create_decimal(Decimal(repr(value)))


def _for_terminal(value: float, digits: int, rounding: str) -> str:
    if math.isnan(value):
        return "unknown"
    if math.isinf(value):
        return "unbounded"
    return f"{float(_round_to_digits(value, digits, rounding)):.{digits}g}"


def _for_page(value: object, digits: int, rounding: str) -> str:
    number = finite_or_none(value)
    if number is None:
        return MISSING
    rounded = _round_to_digits(number, digits, rounding)
    exponent = rounded.adjusted()
    if number == 0.0 or -4 <= exponent < 7:
        return f"{rounded.normalize():,f}"
    mantissa = f"{rounded.scaleb(-exponent).normalize():f}"
    power = f"10{str(exponent).translate(SUPERSCRIPT_DIGITS)}"
    return power if mantissa == "1" else f"{mantissa}·{power}"
