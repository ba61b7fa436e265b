"""Numbers as a terminal prints them."""

from checkins.formatting import DIGITS, down, nearest, up

__all__ = ["DIGITS", "down", "nearest", "up"]
