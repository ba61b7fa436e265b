"""The texts of options as values: each is checked here, and refused by name.

Nothing is clamped: a number that float64 would turn into 0 or infinity is refused, not rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Any, TypeVar

from checkins import validate
from checkins.accounting import Population
from checkins.errors import InvalidValue

ALL = "all"
Choice = TypeVar("Choice", bound=StrEnum)


def whole(name: str, text: str, *, most: int = validate.MOST_SLOTS) -> int:
    """An integer from 1 on; ``1e6`` is one too.

    >>> whole("slots", "1e6"), whole("slots", "1_000")
    (1000000, 1000)
    >>> whole("slots", "2.5")
    Traceback (most recent call last):
        ...
    checkins.errors.InvalidValue: slots = '2.5': must be an integer from 1 to 1,000,000,000,000
    """
    try:
        exact = Decimal(text)
    except InvalidOperation:
        exact = Decimal("nan")
    in_range = exact.is_finite() and 1 <= exact <= most
    if not in_range or exact != exact.to_integral_value():
        named: dict[str, Any] = {name: text}
        validate.count(most=most, **named)  # raises: a text is no count
    return int(exact)


def real(name: str, text: str, check: Callable[..., None]) -> float:
    """A number that passes the check from ``accounting.require``.

    >>> real("delta", "1e-6", validate.open_unit)
    1e-06
    >>> real("participation", "1e-400", validate.probability)
    Traceback (most recent call last):
        ...
    checkins.errors.InvalidValue: participation = '1e-400': is too close to 0 for a float64
    """
    try:
        value = float(text) if text.isascii() else math.nan
    except ValueError:
        value = math.nan
    check(**{name: value})
    if value == 0.0 and any(digit in "123456789" for digit in text.lower().partition("e")[0]):
        raise InvalidValue(name, text, "is too close to 0 for a float64")
    return value


def one_of(name: str, text: str, choices: type[Choice]) -> Choice:
    """A member of an enumeration, by its exact word."""
    try:
        return choices(text)
    except ValueError:
        *most, last = [str(choice) for choice in choices]
        raise InvalidValue(name, text, f"must be {', '.join(most)} or {last}") from None


def population(text: str, *, most: int = validate.MOST_SLOTS) -> Population:
    """``LO..HI``, or one number for both.

    >>> population("10..20"), population("1e3")
    (Population(fewest=10, most=20), Population(fewest=1000, most=1000))
    """
    low, dots, high = text.partition("..")
    try:
        fewest = whole("population", low, most=most)
        largest = whole("population", high, most=most) if dots else fewest
    except InvalidValue:
        raise InvalidValue(
            "population", text, f"must be an integer or LO..HI, from 1 to {most:,}"
        ) from None
    return Population(fewest, largest)


def capacity(text: str) -> int | None:
    """A whole number, or ``all`` as None."""
    try:
        return None if text == ALL else whole("capacity", text)
    except InvalidValue as error:
        raise InvalidValue("capacity", text, f"{error.expected}, or {ALL}") from None
