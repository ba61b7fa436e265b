"""The texts of a description: one printable line each, so that they can be told and sealed."""

from __future__ import annotations

from checkins.errors import InvalidValue

LONGEST = 200


def require_text(**values: object) -> None:
    """Refuse anything but a text of 1 to 200 printable characters.

    >>> require_text(name="")
    Traceback (most recent call last):
        ...
    checkins.errors.InvalidValue: name = '': must be a text of 1 to 200 printable characters
    """
    for name, value in values.items():
        if not (isinstance(value, str) and 1 <= len(value) <= LONGEST and value.isprintable()):
            raise InvalidValue(
                name, value, f"must be a text of 1 to {LONGEST} printable characters"
            )
