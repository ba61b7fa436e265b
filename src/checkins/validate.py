"""Checks of arguments to public functions.

Each check takes keyword arguments and raises ``InvalidValue`` if a value is not allowed. The
message names the keyword. Every check refuses NaN.

>>> open_unit(delta=float("nan"))
Traceback (most recent call last):
    ...
checkins.errors.InvalidValue: delta = nan: must lie strictly between 0 and 1
"""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Integral, Real

from checkins.errors import InvalidValue

MAX_CAMPAIGNS = 10**6
"""Largest number of campaigns that the accountant supports."""
MAX_SLOTS = 10**12
"""Largest number of slots or clients. For larger numbers, double precision is not enough."""


def _require(values: dict[str, object], fits: Callable[[float], bool], expected: str) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, Real) or not fits(_float(value)):
            raise InvalidValue(name, _printable(value), expected)


def _float(value: Real) -> float:
    """Return the value as a float. If it is too large for a float, return an infinity."""
    try:
        return float(value)
    except OverflowError:
        return -math.inf if value < 0 else math.inf


def _printable(value: object) -> object:
    """Return the value for a message. A huge integer becomes an infinity.

    Python refuses to print integers with thousands of digits.
    """
    if isinstance(value, Real) and math.isinf(_float(value)):
        return _float(value)
    return value


def positive(**values: object) -> None:
    """Refuse anything but a finite number above 0."""
    _require(values, lambda x: 0.0 < x < math.inf, "must be a finite number above 0")


def non_negative(**values: object) -> None:
    """Refuse anything but a finite number of at least 0."""
    _require(values, lambda x: 0.0 <= x < math.inf, "must be a finite number of at least 0")


def open_unit(**values: object) -> None:
    """Refuse anything but a number strictly between 0 and 1."""
    _require(values, lambda x: 0.0 < x < 1.0, "must lie strictly between 0 and 1")


def probability(**values: object) -> None:
    """Refuse anything but a number in [0, 1]."""
    _require(values, lambda x: 0.0 <= x <= 1.0, "must lie in [0, 1]")


def count(*, most: int = MAX_SLOTS, **values: object) -> None:
    """Refuse anything but an integer from 1 to ``most``."""
    for name, value in values.items():
        is_integer = isinstance(value, Integral) and not isinstance(value, bool)
        if not is_integer or not 1 <= int(value) <= most:  # type: ignore[call-overload]  # it is an int
            raise InvalidValue(name, _printable(value), f"must be an integer from 1 to {most:,}")


def one_of(kinds: type | tuple[type, ...], **values: object) -> None:
    """Refuse anything but an instance of one of the types ``kinds``.

    A string is refused even if it equals the value of an enum member.
    """
    types = kinds if isinstance(kinds, tuple) else (kinds,)
    for name, value in values.items():
        if not isinstance(value, types):
            names = " or ".join("None" if kind is type(None) else kind.__name__ for kind in types)
            raise InvalidValue(name, value, f"must be a {names}")


LONGEST_TEXT = 200
"""Largest number of characters in a name or another text."""


def text(**values: object) -> None:
    """Refuse anything but a text of 1 to 200 printable characters.

    >>> text(name="")
    Traceback (most recent call last):
        ...
    checkins.errors.InvalidValue: name = '': must be a text of 1 to 200 printable characters
    """
    for name, value in values.items():
        has_length = isinstance(value, str) and 1 <= len(value) <= LONGEST_TEXT
        if not has_length or not str(value).isprintable():
            expected = f"must be a text of 1 to {LONGEST_TEXT} printable characters"
            raise InvalidValue(name, value, expected)


def make_floats(frozen: object, *names: str) -> None:
    """Convert the named attributes of a frozen object to floats. They must be numbers."""
    for name in names:
        object.__setattr__(frozen, name, float(getattr(frozen, name)))
