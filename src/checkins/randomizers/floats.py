"""Numbers of a description as plain floats, which exact fractions can be made of."""

from __future__ import annotations


def make_floats(description: object, *names: str) -> None:
    """Turn fields of a frozen description that were checked to be numbers into floats."""
    for name in names:
        object.__setattr__(description, name, float(getattr(description, name)))
